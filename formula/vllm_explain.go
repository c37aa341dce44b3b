package formula

import (
	"fmt"
	"strings"
)

// explainVLLM writes a plan's formula: pages, blocks of a request, groups, the
// width of a block, their product.
func explainVLLM(req Request) ([]string, error) {
	s, err := vllmScheme(req.Scheme.Name)
	if err != nil {
		return nil, err
	}
	side := s.K.(vllmSide)
	o, err := parseVLLMOptions(req, side.vllmCacheType)
	if err != nil {
		return nil, err
	}
	_, plan, err := planVLLMModel(req, o, side.vllmCacheType)
	if err != nil {
		return nil, err
	}
	var lines []string
	line := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	var c calc
	for _, l := range plan.layers {
		line("%s %s: a page %s = %s B", counted(l.Count, "layer"), l.Kind, l.pageFormula(), thousands(l.page(&c)))
		line("  a request: %s = %s blocks", l.blockFormula(plan.request, req.Context), thousands(l.blocks(&c, plan.request, req.Context)))
	}
	blocks, total, err := plan.requestBlocks(req.Context)
	if err != nil {
		return nil, err
	}
	var groups, counts []string
	for i, g := range plan.groups {
		n := int64(0)
		for k, s := range g.specs {
			n += g.share(k, 0, plan.layers[s].Count)
		}
		groups = append(groups, fmt.Sprintf("%d %s", n, plan.kinds(g)))
		counts = append(counts, thousands(blocks[i]))
	}
	line("groups: %s; %s", strings.Join(groups, ", "), counted(plan.padding, "padding layer"))
	for i, width := range plan.bytesPerBlock {
		where := "a block is as wide as the widest group"
		if len(plan.bytesPerBlock) > 1 {
			where = fmt.Sprintf("on stage %d %s", i+1, where)
		}
		line("%s: %s B", where, thousands(width))
		line("  x (%s) = %s blocks x %s = %s B on each of %s", strings.Join(counts, " + "), thousands(total),
			counted(req.Sequences, "sequence"), thousands(c.mul(width, total, req.Sequences)), counted(req.TP, "rank"))
		if tokens, blocks := plan.shared(req); blocks > 0 {
			line("  %s prefix tokens are in %s blocks, stored once: less %s x %s x %s B", thousands(tokens), thousands(blocks), thousands(req.Sequences-1), thousands(blocks), thousands(width))
		}
	}
	if a := plan.request.available; a > 0 {
		line("%s B available hold %s blocks, one of them the null block", thousands(a), thousands(plan.numBlocks))
		line("concurrency %s / %s = %.2f; x %s tokens = %s tokens", thousands(plan.numBlocks), thousands(plan.total), plan.concurrency, thousands(plan.maxModelLen), thousands(plan.tokens))
	}
	return lines, c.err
}

// pageFormula is how the bytes of a page come about.
func (l vllmLayers) pageFormula() string {
	var s string
	switch {
	case l.Kind == vllmState:
		s = fmt.Sprintf("of one state of %s B", thousands(l.StateBytes))
	case l.Ratio > 1:
		s = fmt.Sprintf("of %d tokens / %d x %s B", l.Block, l.Ratio, thousands(l.TokenBytes))
	default:
		s = fmt.Sprintf("of %d tokens x %s B", l.Block, thousands(l.TokenBytes))
	}
	if l.Padded > 0 {
		s += ", padded,"
	}
	return s
}

// blockFormula is how the blocks of a request come about.
func (l vllmLayers) blockFormula(req vllmRequest, tokens int64) string {
	switch l.Kind {
	case vllmState:
		s := "1 state"
		if req.prefixCaching {
			s += fmt.Sprintf(" + 1 for prefix caching + %d for checkpoints", l.Checkpoint)
		}
		if l.Speculative > 0 {
			s += fmt.Sprintf(" + %d for speculative tokens", l.Speculative)
		}
		return s
	case vllmCross:
		return fmt.Sprintf("ceil(%s encoder tokens / %d)", thousands(req.encoderTokens), l.Block)
	case vllmSliding, vllmSlidingMLA:
		return fmt.Sprintf("ceil(min(%s window - 1 + %s in flight, %s) / %d) + 1", thousands(l.Window), thousands(req.inFlight), thousands(tokens), l.Block)
	case vllmChunked:
		return fmt.Sprintf("ceil(min(%s chunk + %s in flight, %s) / %d)", thousands(l.Window), thousands(req.inFlight), thousands(tokens), l.Block)
	}
	return fmt.Sprintf("ceil(%s / %d)", thousands(tokens), l.Block)
}
