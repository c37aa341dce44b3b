package formula

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// VLLM is vLLM's KV cache manager: blocks of tokens, groups of layers that
// share a block table, one width of block for all groups. The rules are those
// of 0.33.0, or with the option version those of the releases before, as far
// as docs/planning-vllm.md tells them apart. Figures are those of one request
// of Context tokens times the sequences; what vLLM logs about its memory comes
// with the option available.
func VLLM() Engine {
	return Engine{
		Name:  "vllm",
		Title: "vLLM's blocks and groups, as of 0.33.0 unless version says otherwise",
		Options: []Option{
			{"version", "0.33", "release whose rules hold, from 0.6"},
			{"block-size", "", "tokens of a block; the smallest that every attention backend takes where absent"},
			{"max-num-batched-tokens", "8192", "tokens of one step; 2048 on sm80, 16384 on sm100"},
			{"async-scheduling", "yes", "a second batch may be in flight"},
			{"prefix-caching", "yes", "keep blocks for later requests; needs more states in hybrids"},
			{"max-model-len", "", "longest request it must serve, -1 for the longest that fits; the context where absent"},
			{"available", "", "memory for the cache on each rank, which gives blocks, tokens and concurrency"},
			{"hybrid", "yes", "hybrid KV cache manager; no is --disable-hybrid-kv-cache-manager"},
			{"kv-layout", "LBNHC", "order of layer (L), block (B) and so on in memory"},
			{"speculative-tokens", "0", "tokens guessed ahead; counts the model's draft layers in"},
			{"mamba-ssm-cache-dtype", "auto", "type of recurrent states: auto, float32, float16 or bfloat16"},
			{"gpu", "sm90", "device, which decides the attention backend: sm80, sm90 or sm100"},
			{"skip-layers", "", "layers left unquantized: indices joined by +, or sliding_window"},
		},
		Scheme:         vllmScheme,
		DefaultSchemes: []string{"auto", "fp8", "int8_per_token_head", "int4_per_token_head", "nvfp4"},
		Variants:       []string{"hybrid=no"},
		Reserve:        reserveVLLM,
		Explain:        explainVLLM,
		SharesPrefix:   true,
		inside:         draftInVLLM,
	}
}

// vllmScheme reads a --kv-cache-dtype. vLLM has one for K and V together.
func vllmScheme(name string) (Scheme, error) {
	k, v, pair := strings.Cut(name, ":")
	t, err := lookupVLLMCacheType(k)
	if err != nil {
		return Scheme{}, err
	}
	if pair {
		if other, err := lookupVLLMCacheType(v); err != nil {
			return Scheme{}, err
		} else if other.name != t.name {
			return Scheme{}, fmt.Errorf("vllm stores K and V in one type, not %s", name)
		}
	}
	return Scheme{Name: t.name, K: vllmSide{t, false}, V: vllmSide{t, true}}, nil
}

// A vllmSide is K or V under a cache type: what its tokens hold, without the
// padding of blocks.
type vllmSide struct {
	vllmCacheType
	value bool
}

// Name is vLLM's name of the type.
func (s vllmSide) Name() string { return s.name }

// Size is codes and scales of [heads, tokens, dim].
func (s vllmSide) Size(heads, tokens, dim int64) (data, metadata int64, err error) {
	var c calc
	d, m := s.data(dim, s.value), s.metadata(dim, s.value)
	if s.latent > 0 && dim == vllmLatent {
		d, m = s.latent-s.latentScales, s.latentScales
	}
	return c.mul(heads, tokens, d), c.mul(heads, tokens, m), c.err
}

// vllmOptions are the options of one request.
type vllmOptions struct {
	rules      vllmRules
	gpu        string
	blockSize  int64
	batched    int64
	batches    int64 // that may be in flight
	prefix     bool
	maxLen     int64
	autoFit    bool
	available  int64
	hybrid     bool
	outermost  bool
	guessed    int64 // speculative tokens
	stateBytes int64 // of an element of a recurrent state; 0: the model's
	skip       []int64
	skipWindow bool
}

// vllmStep is vLLM's default on a device for the tokens and the sequences of
// one step.
func vllmStep(gpu string) (tokens, sequences int64) {
	switch gpu {
	case "sm80":
		return 2048, 256
	case "sm100":
		return 16384, 1024
	}
	return 8192, 1024
}

func parseVLLMOptions(req Request, t vllmCacheType) (vllmOptions, error) {
	r := optionReader{Options: req.Options}
	var o vllmOptions
	rules, err := vllmRulesOf(r.text("version", "0.33"))
	o.rules = keepFirst(&r.err, rules, err)
	o.gpu = "sm90"
	if t.sm100 {
		o.gpu = "sm100"
	}
	o.gpu = r.text("gpu", o.gpu, "sm80", "sm90", "sm100")
	o.blockSize = r.int("block-size", 0, 1)
	step, _ := vllmStep(o.gpu)
	o.batched = r.tokens("max-num-batched-tokens", step)
	async := r.bool("async-scheduling", o.rules.inFlight)
	o.batches = 1
	if o.rules.inFlight {
		o.batches = req.PP
		if async {
			o.batches++
		}
	}
	// Hybrids had prefix caching off by default until checkpoints came.
	o.prefix = r.bool("prefix-caching", len(req.Model.States) == 0 || o.rules.nullBlock)
	if text := req.Options["max-model-len"]; text == "-1" || strings.EqualFold(text, "auto") {
		o.autoFit, o.maxLen = true, max(req.Model.MaxContext, req.Context)
	} else {
		o.maxLen = r.tokens("max-model-len", req.Context)
	}
	available, err := req.Options.Bytes("available", 0)
	o.available = keepFirst(&r.err, available, err)
	o.hybrid = r.bool("hybrid", true) && o.rules.grouping
	switch layout := strings.ToUpper(req.Options["kv-layout"]); {
	case layout == "":
		o.outermost = compressed(req.Model)
	case len(layout) == 5 && strings.Trim(layout, "BLNHC") == "" && (layout[0] == 'B' || layout[0] == 'L'):
		o.outermost = layout[0] == 'B'
	default:
		keepFirst(&r.err, 0, fmt.Errorf("engine option kv-layout: %q is not an order such as LBNHC or BLHNC", layout))
	}
	o.guessed = r.int("speculative-tokens", 0, 0)
	o.stateBytes = map[string]int64{"float32": 4, "float16": 2, "bfloat16": 2}[r.text("mamba-ssm-cache-dtype", "auto", "auto", "float32", "float16", "bfloat16")]
	for _, part := range strings.FieldsFunc(req.Options["skip-layers"], func(c rune) bool { return c == '+' || c == ' ' }) {
		if strings.EqualFold(part, "sliding_window") {
			o.skipWindow = true
			continue
		}
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil || n < 0 {
			err = fmt.Errorf("engine option skip-layers: %q is neither a layer's index nor sliding_window", part)
		}
		o.skip = append(o.skip, keepFirst(&r.err, n, err))
	}
	return o, r.err
}

// vllmRulesOf gives the rules of a release (docs/planning-vllm.md §7): a rule holds from
// the release in which it was first seen.
func vllmRulesOf(version string) (vllmRules, error) {
	bad := fmt.Errorf("engine option version: %q is not a release of vLLM from 0.6 on, such as 0.33 or 0.19.1", version)
	var at [3]int
	parts := strings.Split(strings.TrimPrefix(strings.ToLower(version), "v"), ".")
	if len(parts) < 2 || len(parts) > 3 {
		return vllmRules{}, bad
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return vllmRules{}, bad
		}
		at[i] = int(n)
	}
	// A release without a patch number is the last of its line.
	if len(parts) == 2 {
		at[2] = 1 << 16
	}
	from := func(minor, patch int) bool {
		return slices.Compare(at[:], []int{0, minor, patch}) >= 0
	}
	if !from(6, 0) {
		return vllmRules{}, bad
	}
	r := vllmRules{
		engineV1: from(8, 0), grouping: from(10, 0), spread: 125, padPages: from(24, 0), inFlight: from(26, 0),
		promote: from(27, 1), nullBlock: from(29, 0), byConcurrency: from(20, 2), unknown: from(34, 0),
	}
	if from(19, 1) {
		r.spread = 150
	}
	return r, nil
}

func reserveVLLM(req Request) (Reservation, error) {
	side, ok := req.Scheme.K.(vllmSide)
	if !ok {
		s, err := vllmScheme(req.Scheme.Name)
		if err != nil {
			return Reservation{}, err
		}
		req.Scheme, side = s, s.K.(vllmSide)
	}
	o, err := parseVLLMOptions(req, side.vllmCacheType)
	if err != nil {
		return Reservation{}, err
	}
	if side.sm100 && o.gpu != "sm100" {
		return Reservation{Refusal: fmt.Sprintf("no attention backend for %s on %s", side.name, o.gpu)}, nil
	}
	if req.Prefix > 0 && !o.prefix {
		return Reservation{}, errors.New("vllm stores a prefix once only with prefix caching: add --engine-opt prefix-caching=yes")
	}
	model, plan, err := planVLLMModel(req, o, side.vllmCacheType)
	var bug *vllmBug
	var refused *vllmRefused
	switch {
	case errors.As(err, &bug), errors.As(err, &refused), errors.Is(err, errVLLMHybridOff), errors.Is(err, errVLLMPages):
		return Reservation{Refusal: err.Error()}, nil
	case err != nil:
		return Reservation{}, err
	}
	return vllmReservation(req, o, model, plan)
}

// planVLLMModel plans a model with its options.
func planVLLMModel(req Request, o vllmOptions, t vllmCacheType) (vllmModel, vllmPlan, error) {
	model, err := vllmLayersOf(req, o, t)
	if err != nil {
		return model, vllmPlan{}, err
	}
	inFlight, err := product(o.batches, o.batched)
	if err != nil {
		return model, vllmPlan{}, err
	}
	plan, err := planVLLM(vllmRequest{
		layers: model.layers, stages: model.stages, rules: o.rules, hybrid: o.hybrid, blockOutermost: o.outermost,
		prefixCaching: o.prefix, inFlight: inFlight, encoderTokens: o.batched,
		available: o.available, maxModelLen: o.maxLen, autoFit: o.autoFit,
	})
	return model, plan, err
}

// vllmReservation adds up what the plan's blocks hold for the sequences.
func vllmReservation(req Request, o vllmOptions, model vllmModel, plan vllmPlan) (Reservation, error) {
	var c calc
	blocks, total, err := plan.requestBlocks(req.Context)
	if err != nil {
		return Reservation{}, err
	}
	everywhere := c.mul(req.TP, req.Sequences)
	var r Reservation
	var reserved int64
	prefix, prefixBlocks := plan.shared(req)
	taken := c.mul(total, req.Sequences) - c.mul(prefixBlocks, req.Sequences-1)
	for _, width := range plan.bytesPerBlock {
		r.PerDevice = max(r.PerDevice, c.mul(width, taken))
		reserved = c.add(reserved, c.mul(width, taken, req.TP))
	}
	windowed := func(l vllmLayers) bool { return l.Kind.slides() || l.Kind == vllmChunked }
	windows := slices.ContainsFunc(plan.layers, windowed)
	// vectors is how many layers of a kind hold over all ranks and sequences,
	// where each holds so many of one sequence.
	vectors := func(l vllmLayers, tokens int64) int64 {
		common := int64(0)
		switch {
		case l.Kind.keepsAll():
			common = prefix / max(l.Ratio, 1)
		case !windows: // they were planned as full layers
			common = tokens - min(tokens, req.Context-prefix)
		}
		return c.mul(l.Count, everywhere, tokens) - c.mul(l.Count, req.TP, req.Sequences-1, common)
	}
	parts := map[string]*Component{}
	part := func(name string) *Component {
		if parts[name] == nil {
			parts[name] = &Component{Name: name}
		}
		return parts[name]
	}
	for i, l := range model.layers {
		n := c.mul(l.Count, everywhere)
		switch l.Kind {
		case vllmState:
			bytes := c.mul(n, l.StateBytes)
			r.State = c.add(r.State, bytes)
			part(RecurrentState).Bytes += bytes
			continue
		case vllmCross:
			bytes := c.mul(n, l.TokenBytes, crossTokens(req.Model, o.batched))
			r.Cross = c.add(r.Cross, bytes)
			p := part(CrossKV)
			p.Bytes += bytes
			p.K += bytes / 2
			p.V += bytes - bytes/2
			continue
		case vllmIndex:
			keys := vectors(l, req.Context)
			bytes := c.mul(keys, l.TokenBytes)
			scales := int64(0)
			if l.Store == "uint8" {
				scales = c.mul(keys, ceilDiv(l.DimK, 132)*4)
			}
			r.Data, r.Metadata = c.add(r.Data, bytes-scales), c.add(r.Metadata, scales)
			part(IndexerKeys).Bytes += bytes
			continue
		}
		tokens := req.Context
		if l.Window > 0 && windowed(l) {
			tokens = min(tokens, l.Window)
		}
		tokens /= max(l.Ratio, 1)
		name := AttentionKV
		if windowed(l) {
			name = SlidingKV
		}
		k, v, scales := vllmContent(&c, l, model.types[i])
		held := vectors(l, tokens)
		k, v, scales = c.mul(held, k), c.mul(held, v), c.mul(held, scales)
		// Draft layers may share an entry with the model's.
		draft := model.draft[i]
		for _, share := range []struct {
			name   string
			layers int64
		}{{name, l.Count - draft}, {DraftKV, draft}} {
			if share.layers > 0 {
				p := part(share.name)
				shareK, shareV := k/l.Count*share.layers, v/l.Count*share.layers
				p.K, p.V, p.Bytes = c.add(p.K, shareK), c.add(p.V, shareV), c.add(p.Bytes, shareK, shareV)
			}
		}
		r.Data, r.Metadata = c.add(r.Data, k+v-scales), c.add(r.Metadata, scales)
		r.KBytes, r.VBytes = c.add(r.KBytes, k), c.add(r.VBytes, v)
		r.KElements = c.add(r.KElements, c.mul(held, l.Heads, l.DimK))
		r.VElements = c.add(r.VElements, c.mul(held, l.Heads, l.DimV))
	}
	if c.err != nil {
		return Reservation{}, c.err
	}
	held, err := sum(r.Data, r.Metadata, r.State, r.Cross)
	if err != nil {
		return Reservation{}, err
	}
	r.Padding = max(reserved-held, 0)
	part(PaddingBytes).Bytes = r.Padding
	r.Components = listComponents(parts)
	r.Details, r.Line = vllmDetails(plan, model, blocks, total), plan.line(&c, req.TP)
	r.Warnings = vllmWarnings(req, o, model, plan)
	if c.err != nil {
		return Reservation{}, c.err
	}
	if plan.refusal != nil {
		r.Refusal = plan.refusal.text(plan.maxModelLen)
	} else if req.Context > plan.maxModelLen {
		r.Refusal = fmt.Sprintf("a request of %d tokens is longer than max-model-len %d", req.Context, plan.maxModelLen)
	}
	return r, nil
}

// crossTokens is what of the encoder's tokens a sequence fills.
func crossTokens(m *Model, most int64) int64 {
	if m.Cross.Tokens > 0 {
		return min(m.Cross.Tokens, most)
	}
	return most
}

// vllmContent is what one token of a layer holds on a rank: K and V with their
// scales, and how much of both are scales.
func vllmContent(c *calc, l vllmLayers, t vllmCacheType) (k, v, scales int64) {
	if l.Kind == vllmSlidingMLA || l.Ratio > 0 {
		return l.TokenBytes, 0, 0
	}
	kd, km, err := vllmSide{t, false}.Size(l.Heads, 1, l.DimK)
	c.keep(0, err)
	if l.DimV == 0 {
		return kd + km, 0, km
	}
	vd, vm, err := vllmSide{t, true}.Size(l.Heads, 1, l.DimV)
	c.keep(0, err)
	return kd + km, vd + vm, km + vm
}

// vllmDetails are the plan's figures in vLLM's terms, those of one rank unless
// they say otherwise.
func vllmDetails(plan vllmPlan, model vllmModel, blocks []int64, total int64) []Detail {
	var kinds, sizes, perGroup, layers []string
	for i, g := range plan.groups {
		n := int64(0)
		for k, s := range g.specs {
			n += g.share(k, 0, plan.layers[s].Count)
		}
		kinds = append(kinds, plan.kinds(g))
		sizes = append(sizes, fmt.Sprint(plan.layers[g.specs[0]].Block))
		perGroup = append(perGroup, fmt.Sprint(blocks[i]))
		layers = append(layers, fmt.Sprint(n))
	}
	list := func(s []string) string { return strings.Join(s, ",") }
	d := []Detail{
		{"block_size", "block size (tokens)", model.block},
		{"bytes_per_block", "bytes of a block", slices.Max(plan.bytesPerBlock)},
		{"groups", "groups", int64(len(plan.groups))},
		{"group_kinds", "kinds of the groups", list(kinds)},
		{"group_layers", "layers of the groups", list(layers)},
		{"group_block_sizes", "block sizes of the groups (tokens)", list(sizes)},
		{"padding_layers", "padding layers", plan.padding},
		{"blocks_per_request_by_group", "blocks of a request, by group", list(perGroup)},
		{"blocks_per_request", "blocks of a request", total},
	}
	if plan.numBlocks > 0 {
		d = append(d,
			Detail{"blocks", "blocks", plan.numBlocks},
			Detail{"tokens", "GPU KV cache size (tokens)", plan.tokens},
			Detail{"concurrency", fmt.Sprintf("maximum concurrency for %s tokens", thousands(plan.maxModelLen)), roundTo(plan.concurrency, 2)},
			Detail{"max_model_len", "max-model-len (tokens)", plan.maxModelLen})
	}
	if r := plan.refusal; r != nil && r.estimate > 0 {
		d = append(d, Detail{"estimated_max_model_len", "estimated longest request (tokens)", r.estimate})
	}
	return d
}

// roundTo rounds as printing with so many decimals does.
func roundTo(x float64, decimals int) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(x, 'f', decimals, 64), 64)
	if err != nil {
		return x
	}
	return r
}

// vllmWarnings says what of the plan a reader would not expect.
func vllmWarnings(req Request, o vllmOptions, model vllmModel, plan vllmPlan) []string {
	var out []string
	var c calc
	codes := func(i int) int64 {
		l, t := model.layers[i], model.types[i]
		return l.Block * l.Heads * (t.data(l.DimK, false) + t.data(l.DimV, true))
	}
	widest := -1
	for i, l := range model.layers {
		if l.Kind != vllmState && (widest < 0 || l.page(&c) > model.layers[widest].page(&c)) {
			widest = i
		}
	}
	for i, l := range model.layers {
		padded := l
		at := slices.IndexFunc(plan.layers, func(p vllmLayers) bool {
			padded.Padded = p.Padded
			return p.Padded > 0 && p.alike(padded)
		})
		if l.Kind == vllmState || l.Padded > 0 || at < 0 {
			continue
		}
		page, wide := l.page(&c), plan.layers[at].Padded
		text := fmt.Sprintf("pages of %d bytes do not divide those of %d bytes: %d layers are padded by %d%%", page, wide, l.Count, (wide-page)*100/page)
		if n := codes(i); n > 0 && n < page && codes(widest)%n == 0 {
			text += fmt.Sprintf(" (without scales they would be 1 to %d)", codes(widest)/n)
		}
		out = append(out, text)
	}
	if o.rules.unknown {
		out = append(out, "the rules are those of vllm 0.33.0, not of a later release")
	}
	if _, limit := vllmStep(o.gpu); len(req.Model.States) > 0 && plan.numBlocks > 0 && plan.numBlocks < limit {
		out = append(out, fmt.Sprintf("with recurrent states vllm starts only where max-num-seqs is at most %d, its blocks; the default on %s is %d", plan.numBlocks, o.gpu, limit))
	}
	return out
}
