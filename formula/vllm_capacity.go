package formula

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A vllmRequest is what the planner is asked on one rank.
type vllmRequest struct {
	layers []vllmLayers
	// stages says for each pipeline stage how many layers of each entry it
	// holds; nil is one stage with all of them.
	stages         [][]int64
	rules          vllmRules
	hybrid         bool
	blockOutermost bool
	prefixCaching  bool
	inFlight       int64 // tokens of all batches that may be in flight
	encoderTokens  int64
	available      int64 // bytes for the cache on each rank; 0: not given
	maxModelLen    int64
	autoFit        bool // --max-model-len -1: maxModelLen is the model's own
}

// A vllmPlan is what the planner answers.
type vllmPlan struct {
	vllmGroups
	request       vllmRequest
	bytesPerBlock []int64 // of each stage
	maxModelLen   int64   // as fitted
	blocks        []int64 // of one request of maxModelLen tokens, by group
	total         int64   // their sum
	// With available bytes:
	numBlocks   int64
	tokens      int64 // "GPU KV cache size"
	concurrency float64
	refusal     *vllmRefusal
}

// A vllmRefusal is why vLLM would not start.
type vllmRefusal struct {
	class             string // "no_memory", "max_model_len_too_long"
	needed, available int64  // bytes, the null block taken off
	estimate          int64  // longest request that fits; 0: none
}

// planVLLM plans a cache.
func planVLLM(req vllmRequest) (vllmPlan, error) {
	var c calc
	groups, err := planVLLMGroups(&c, req.layers, req.rules, req.hybrid, req.blockOutermost)
	if err == nil {
		err = c.err
	}
	if err != nil {
		return vllmPlan{}, err
	}
	p := vllmPlan{vllmGroups: groups, request: req, maxModelLen: req.maxModelLen}
	stages := p.stageRanges()
	for _, s := range stages {
		p.bytesPerBlock = append(p.bytesPerBlock, p.blockBytes(&c, s))
	}
	if c.err != nil {
		return p, c.err
	}
	null := func(stage int) int64 {
		if req.rules.nullBlock {
			return p.bytesPerBlock[stage]
		}
		return 0
	}
	if req.autoFit && req.available > 0 {
		for i := range stages {
			n, err := p.longest(i, req.available-null(i))
			if err != nil {
				return p, err
			}
			p.maxModelLen = min(p.maxModelLen, n)
		}
		if p.maxModelLen < 1 {
			p.maxModelLen = req.maxModelLen
			p.refusal = &vllmRefusal{class: "no_memory", available: req.available}
		}
	}
	if p.blocks, p.total, err = p.requestBlocks(p.maxModelLen); err != nil || req.available == 0 {
		return p, err
	}
	p.numBlocks = math.MaxInt64
	for i, width := range p.bytesPerBlock {
		p.numBlocks = min(p.numBlocks, req.available/width)
		if p.refusal != nil {
			continue
		}
		usable := req.available - null(i)
		if usable <= 0 {
			p.refusal = &vllmRefusal{class: "no_memory", available: req.available}
			continue
		}
		needed, err := product(width, p.total)
		if err != nil {
			return p, err
		}
		if needed <= usable {
			continue
		}
		estimate, err := p.longest(i, usable)
		if err != nil {
			return p, err
		}
		p.refusal = &vllmRefusal{class: "max_model_len_too_long", needed: needed, available: usable, estimate: estimate}
	}
	p.concurrency = float64(p.numBlocks) / float64(p.total)
	switch {
	case req.rules.byConcurrency:
		p.tokens = int64(float64(p.concurrency * float64(p.maxModelLen)))
	default:
		p.tokens, err = product(p.numBlocks/int64(len(p.groups)), p.smallestBlock())
		if !req.rules.engineV1 {
			p.concurrency = float64(p.tokens) / float64(p.maxModelLen)
		}
	}
	return p, err
}

// stageRanges gives the layers of each planned spec that each stage holds, as
// a range of their positions in the model.
func (p vllmPlan) stageRanges() [][][2]int64 {
	if p.request.stages == nil {
		one := make([][2]int64, len(p.layers))
		for i, l := range p.layers {
			one[i] = [2]int64{0, l.Count}
		}
		return [][][2]int64{one}
	}
	// Layers of entries that planning merged follow one another within a stage.
	at := make([]int64, len(p.layers))
	var out [][][2]int64
	for _, counts := range p.request.stages {
		ranges := make([][2]int64, len(p.layers))
		for i := range ranges {
			ranges[i] = [2]int64{at[i], at[i]}
		}
		for i, n := range counts {
			ranges[p.became[i]][1] += n
		}
		for i := range ranges {
			at[i] = ranges[i][1]
		}
		out = append(out, ranges)
	}
	return out
}

// blockBytes is the width of a block on a stage: the widest group's layers, each
// with its own stride, or in a block-outermost layout side by side and the
// whole a multiple of every layer's alignment (docs/planning-vllm.md §5). A
// padded group is as wide as a full one, so padding needs no term of its own.
func (p vllmPlan) blockBytes(c *calc, stage [][2]int64) int64 {
	width, unit := int64(0), int64(1)
	for _, g := range p.groups {
		n := int64(0)
		for i, s := range g.specs {
			l := p.layers[s]
			bytes := l.stride(c)
			if p.request.blockOutermost {
				bytes, unit = l.page(c), c.lcm(unit, max(l.Align, 1))
			}
			n = c.add(n, c.mul(bytes, g.share(i, stage[s][0], stage[s][1])))
		}
		width = max(width, n)
	}
	return c.roundUp(max(width, 1), max(unit, 1))
}

// smallestBlock is the smallest block of the groups that hold tokens.
func (p vllmPlan) smallestBlock() int64 {
	n := int64(math.MaxInt64)
	for _, l := range p.layers {
		if l.Kind != vllmState {
			n = min(n, l.Block)
		}
	}
	if n == math.MaxInt64 {
		return p.layers[0].Block
	}
	return n
}

// requestBlocks is how many blocks a request of so many tokens takes, by group
// and in total (docs/planning-vllm.md §4).
func (p vllmPlan) requestBlocks(tokens int64) (blocks []int64, total int64, err error) {
	var c calc
	for _, g := range p.groups {
		n := int64(0)
		for _, s := range g.specs {
			n = max(n, p.layers[s].blocks(&c, p.request, tokens))
		}
		blocks = append(blocks, n)
		total = c.add(total, n)
	}
	return blocks, total, c.err
}

// shared is how many tokens of the request's prefix later sequences find in the
// cache, and in how many blocks: whole blocks of every group, of all but the
// last token. Windows and states are each sequence's own.
func (p vllmPlan) shared(req Request) (tokens, blocks int64) {
	var c calc
	unit := int64(1)
	for _, g := range p.groups {
		unit = c.lcm(unit, p.layers[g.specs[0]].Block)
	}
	if c.err != nil { // no prefix is as long
		return 0, 0
	}
	tokens = min(req.Prefix, req.Context-1) / unit * unit
	for _, g := range p.groups {
		if l := p.layers[g.specs[0]]; l.Kind.keepsAll() {
			blocks += tokens / l.Block
		}
	}
	return tokens, blocks
}

func (l vllmLayers) blocks(c *calc, req vllmRequest, tokens int64) int64 {
	switch l.Kind {
	case vllmState:
		n := 1 + l.Speculative
		if req.prefixCaching {
			n += 1 + l.Checkpoint
		}
		return n
	case vllmCross:
		return ceilDiv(req.encoderTokens, l.Block)
	case vllmSliding, vllmSlidingMLA:
		// One block more: the window need not begin on a block.
		return c.add(ceilDiv(min(c.add(l.Window-1, req.inFlight), tokens), l.Block), 1)
	case vllmChunked:
		return ceilDiv(min(c.add(l.Window, req.inFlight), tokens), l.Block)
	}
	return ceilDiv(tokens, l.Block)
}

// line is what a long request takes over so many tensor parallel ranks: windows
// and states no longer grow, full layers by their blocks.
func (p vllmPlan) line(c *calc, tp int64) *Line {
	all := int64(0)
	for _, width := range p.bytesPerBlock {
		all = c.add(all, c.mul(width, tp))
	}
	const long = 1 << 40 // tokens, beyond any window
	var line Line
	for _, g := range p.groups {
		if l := p.layers[g.specs[0]]; l.Kind.keepsAll() {
			line.PerToken += float64(all) / float64(l.Block)
		} else {
			line.Fixed = c.add(line.Fixed, c.mul(all, l.blocks(c, p.request, long)))
		}
	}
	return &line
}

// longest is the longest request of at most maxModelLen tokens whose blocks
// fit the bytes on a stage; 0 when not even one token does.
func (p vllmPlan) longest(stage int, bytes int64) (int64, error) {
	var failed error
	n := largest(p.request.maxModelLen, func(tokens int64) bool {
		_, total, err := p.requestBlocks(tokens)
		if err != nil {
			failed = err
			return false
		}
		needed, err := product(total, p.bytesPerBlock[stage])
		return err == nil && needed <= bytes
	})
	return n, failed
}

// largest is the largest n from 1 to limit for which ok holds, 0 when it holds
// for none; ok must not come back once it has failed.
func largest(limit int64, ok func(int64) bool) int64 {
	low, high := int64(0), limit
	for low < high {
		mid := low + (high-low+1)/2
		if ok(mid) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// vllmGiB is how vLLM prints bytes: GiB to at most two decimals, at least one.
func vllmGiB(bytes int64) string {
	return strings.TrimSuffix(strconv.FormatFloat(float64(bytes)/(1<<30), 'f', 2, 64), "0")
}

// text says what vLLM says, in other words, with the numbers it prints.
func (r vllmRefusal) text(maxModelLen int64) string {
	if r.class == "no_memory" {
		return "no memory is left for cache blocks"
	}
	s := fmt.Sprintf("one request of max-model-len %d needs %s GiB and %s GiB are available", maxModelLen, vllmGiB(r.needed), vllmGiB(r.available))
	if r.estimate > 0 {
		s += fmt.Sprintf("; the longest that fits is estimated at %d tokens", r.estimate)
	}
	return s
}
