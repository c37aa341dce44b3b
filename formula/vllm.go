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
			{"gpu", "sm90", "device, which decides the attention backend: sm80, sm90 or sm100"},
			{"skip-layers", "", "layers left unquantized: indices joined by +, or sliding_window"},
		},
		Scheme:         vllmScheme,
		DefaultSchemes: []string{"auto", "fp8", "int8_per_token_head", "int4_per_token_head", "nvfp4"},
		Variants:       []string{"hybrid=no"},
		Reserve:        reserveVLLM,
		Explain:        explainVLLM,
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
	skip       []int64
	skipWindow bool
}

// vllmGPUs are the devices whose attention backends are known, with vLLM's
// default for the tokens of a step and for the sequences of one.
var vllmGPUs = map[string]struct{ batched, sequences int64 }{
	"sm80":  {2048, 256},
	"sm90":  {8192, 1024},
	"sm100": {16384, 1024},
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
	o.batched = r.tokens("max-num-batched-tokens", vllmGPUs[o.gpu].batched)
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

// vllmRulesOf gives the rules of a release (vllm_rules.md H): a rule holds from
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
		promote: from(27, 1), nullBlock: from(29, 0), byConcurrency: from(20, 2),
	}
	if from(19, 1) {
		r.spread = 150
	}
	return r, nil
}

// compressed reports whether the model has DeepSeek-V4's compressed entries.
func compressed(m *Model) bool {
	return slices.ContainsFunc(m.Geometry, func(g Group) bool { return g.Kind == Compressed })
}

// vllmModel is the model as vLLM's planner sees it on one rank.
type vllmModel struct {
	layers []vllmLayers
	types  []vllmCacheType // of each entry
	draft  []int           // entries of draft layers
	stages [][]int64
	block  int64
}

// vllmLayersOf lists the model's layers in the order in which vLLM meets them,
// with blocks and pages set.
func vllmLayersOf(req Request, o vllmOptions, t vllmCacheType) (vllmModel, error) {
	var c calc
	var out vllmModel
	m := req.Model
	plain, err := lookupVLLMCacheType("auto")
	if err != nil {
		return out, err
	}
	if m.DType == "float16" {
		plain.store = "float16"
	}
	asked := t.name
	if t.name == "auto" {
		t = plain
	}
	latents := false
	for _, g := range m.Geometry {
		if g.Latent() && g.Extra == "" {
			latents = true
		}
		if heads := g.KVHeads; !g.Latent() && heads%req.TP != 0 && req.TP%heads != 0 {
			return out, &vllmRefused{fmt.Sprintf("%d KV heads can be neither split nor repeated over %d ranks", heads, req.TP)}
		}
	}
	indexed := slices.ContainsFunc(m.Geometry, func(g Group) bool { return g.Extra == Index })
	if latents && indexed && t.name == "fp8" && o.gpu == "sm90" {
		// The only sparse backend there keeps the rope part in 16 bits.
		if t, err = lookupVLLMCacheType("fp8_ds_mla"); err != nil {
			return out, err
		}
	}
	blocks := m.Blocks()
	skip := map[int64]bool{}
	for _, i := range o.skip {
		if i >= int64(len(blocks)) {
			return out, fmt.Errorf("engine option skip-layers: no layer %d in a model of %d", i, len(blocks))
		}
		skip[i] = true
	}
	if t.turboQuant() && len(m.States) == 0 {
		for _, i := range []int{0, 1, len(blocks) - 2, len(blocks) - 1} {
			skip[int64(max(i, 0))] = true
		}
	}
	var rule vllmBlockRule
	stageOf, stages, err := vllmStages(int64(len(blocks)), req.PP)
	if err != nil {
		return out, err
	}
	var counts [][]int64 // by entry and stage
	add := func(l vllmLayers, as vllmCacheType, n, stage int64) int {
		at := slices.IndexFunc(out.layers, l.alike)
		if at < 0 {
			l.Count = 0
			at = len(out.layers)
			out.layers, out.types = append(out.layers, l), append(out.types, as)
			counts = append(counts, make([]int64, stages))
		}
		out.layers[at].Count += n
		counts[at][stage] += n
		return at
	}
	addGroup := func(g Group, n, stage int64, left bool) (int, error) {
		l := vllmLayers{Heads: max(1, g.KVHeads/req.TP), DimK: g.HeadDimK, DimV: g.HeadDimV, Window: g.Window, Kind: vllmFull}
		switch {
		case g.Extra == Index && latents:
			l.Kind, l.Heads, l.Store = vllmIndex, 1, "uint8"
			// fp8 values and a float32 scale for every 128 of them.
			l.DimK = c.add(g.HeadDimK, c.mul(ceilDiv(g.HeadDimK, 128), 4))
			l.TokenBytes = l.DimK
		case g.Extra == Index:
			l.Kind, l.Heads, l.Store = vllmIndex, 1, "bfloat16"
			l.TokenBytes = c.mul(g.HeadDimK, elementBytes)
		case g.Latent():
			l.Kind, l.Heads = vllmMLA, 1
		case g.Kind == Sliding:
			l.Kind = vllmSliding
			if strings.HasPrefix(strings.ToLower(m.Family), "cohere2") {
				l.Window++ // its sliding layers ask for one token more
			}
		case g.Kind == Chunked:
			l.Kind = vllmChunked
		}
		as := t
		if left || o.skipWindow && l.Kind == vllmSliding {
			as = plain
			if t.quantized() && rule.WideToken == 0 && l.Kind != vllmIndex {
				// The alignment prices the model's first layer, and packed
				// types as if they were bytes.
				rule.WideToken = c.mul(l.Heads, plain.head(l.DimK, l.DimV))
				rule.QuantToken = c.mul(l.Heads, t.head(l.DimK, l.DimV))
				if t.turboQuant() {
					rule.QuantToken = c.mul(l.Heads, l.DimK+l.DimV)
				}
			}
		}
		l, err := as.stored(&c, l)
		if err != nil {
			return 0, err
		}
		return add(l, as, n, stage), nil
	}
	v4 := compressed(m)
	if v4 && !slices.Contains([]string{"auto", "bfloat16", "fp8", "fp8_ds_mla"}, asked) {
		return out, &vllmRefused{fmt.Sprintf("its attention backend for compressed latents stores fp8_ds_mla, not %s", asked)}
	}
	for i, b := range blocks {
		stage := stageOf(int64(i))
		if v4 {
			for _, g := range b.Groups {
				for _, l := range vllmV4Layers(m.Geometry[g]) {
					add(l, t, 1, stage)
				}
			}
			continue
		}
		// A layer's indexer registers its cache before the layer does where
		// both are latents, after it where they are heads.
		groups := slices.Clone(b.Groups)
		slices.SortStableFunc(groups, func(x, y int) int {
			return indexLast(m.Geometry[x], !latents) - indexLast(m.Geometry[y], !latents)
		})
		for _, g := range groups {
			if _, err := addGroup(m.Geometry[g], 1, stage, skip[int64(i)]); err != nil {
				return out, err
			}
		}
		for _, s := range b.States {
			l, step := vllmStateLayer(&c, m.States[s], req.TP, o, m.Family)
			rule.StateStep = max(rule.StateStep, step)
			add(l, t, 1, stage)
		}
	}
	if m.Cross != nil {
		l := vllmLayers{Kind: vllmCross, Heads: max(1, m.Cross.KVHeads/req.TP), DimK: m.Cross.HeadDimK, DimV: m.Cross.HeadDimV}
		if l, err = t.stored(&c, l); err != nil {
			return out, err
		}
		add(l, t, m.Cross.Layers, stages-1)
	}
	if o.guessed > 0 {
		for _, g := range m.Draft {
			if v4 {
				for _, l := range vllmV4Layers(g) {
					out.draft = append(out.draft, add(l, t, g.Count, stages-1))
				}
				continue
			}
			at, err := addGroup(g, g.Count, stages-1, false)
			if err != nil {
				return out, err
			}
			out.draft = append(out.draft, at)
		}
	}
	rule.Asked = o.blockSize
	rule.Kernel = vllmKernel(out.layers, t, o, v4)
	rule.LatentStep = 128
	if !o.rules.nullBlock {
		rule.StateStep, rule.LatentStep = 1, 64
	}
	if v4 {
		out.block = 256
	} else {
		out.block = rule.set(&c, out.layers)
	}
	for i := range out.layers {
		// Without prefix caching one state is the whole request's.
		if out.layers[i].Kind == vllmState && !o.prefix {
			out.layers[i].Block = o.maxLen
		}
	}
	if stages > 1 {
		for s := range stages {
			one := make([]int64, len(out.layers))
			for i := range one {
				one[i] = counts[i][s]
			}
			out.stages = append(out.stages, one)
		}
	}
	return out, c.err
}

// indexLast orders an indexer's keys after or before the layer's own cache.
func indexLast(g Group, last bool) int {
	switch {
	case g.Extra != Index:
		return 0
	case last:
		return 1
	}
	return -1
}

// vllmStages says which stage a block is in: as even as it goes, with what is
// left over on the stages before the last.
func vllmStages(blocks, pp int64) (of func(int64) int64, stages int64, err error) {
	if pp > blocks {
		return nil, 0, fmt.Errorf("%d pipeline stages for %d layers", pp, blocks)
	}
	var ends []int64
	end := int64(0)
	for s := range pp {
		end += blocks / pp
		if left := pp - 1 - s; left >= 1 && left <= blocks%pp {
			end++
		}
		ends = append(ends, end)
	}
	return func(i int64) int64 {
		at, _ := slices.BinarySearch(ends, i+1)
		return int64(at)
	}, pp, nil
}

// vllmStateLayer is a layer's recurrent state on one rank, and the step that
// its checkpoints ask of the block size.
func vllmStateLayer(c *calc, s State, tp int64, o vllmOptions, family string) (vllmLayers, int64) {
	conv := s.ConvElements
	if o.guessed > 0 && s.ConvSteps > 0 {
		// Each guessed token's input stays in the convolution's window.
		conv = c.mul(conv/s.ConvSteps, c.add(s.ConvSteps, o.guessed))
	}
	l := vllmLayers{
		Kind:        vllmState,
		StateBytes:  c.add(c.mul(ceilDiv(conv, tp), s.ConvBytes), c.mul(ceilDiv(s.SSMElements, tp), s.SSMBytes)),
		Speculative: o.guessed,
		Store:       s.Kind,
	}
	if !o.rules.nullBlock {
		return l, 1
	}
	switch {
	case s.Kind == "mamba2":
		l.Checkpoint = 1
	case !o.prefix:
	case s.Kind == "gdn" && o.gpu != "sm80":
		l.Checkpoint = 1
		return l, 64
	case s.Kind == "kda" && strings.Contains(strings.ToLower(family), "k3"):
		l.Checkpoint = 1
		return l, 16
	}
	return l, 1
}

// vllmKernel is the smallest block that every attention backend of the model
// takes (vllm_rules.md B6).
func vllmKernel(layers []vllmLayers, t vllmCacheType, o vllmOptions, v4 bool) int64 {
	var latent, index, wide bool
	for _, l := range layers {
		latent = latent || l.Kind == vllmMLA
		index = index || l.Kind == vllmIndex
		wide = wide || l.DimK >= 512 && l.Kind != vllmMLA && l.Kind != vllmIndex
	}
	switch {
	case v4:
		return 256
	case index && !latent:
		return 128
	case index:
		return 64
	case latent && o.gpu == "sm100":
		return 32
	case latent && t.fp8() && o.gpu == "sm90":
		return 64
	case wide && t.fp8() && o.gpu == "sm90":
		return 64
	}
	return 16
}

// vllmV4Layers are the caches of one of DeepSeek-V4's layers: latents of 584
// bytes and index keys in blocks of 64 of them, and beside compressed ones the
// compressor's running sums in float32, all in whole multiples of 576 bytes.
// The blocks are the engine's own.
func vllmV4Layers(g Group) []vllmLayers {
	const latent, align, block = 584, 576, 256
	if g.Extra == "" {
		return []vllmLayers{{Kind: vllmSlidingMLA, Heads: 1, DimK: g.HeadDimK, Store: "uint8", TokenBytes: latent, Window: max(g.Window, 1), Block: 64, Align: align}}
	}
	entry := vllmLayers{Kind: vllmMLA, Heads: 1, DimK: g.HeadDimK, Store: "uint8", TokenBytes: latent, Ratio: max(g.Ratio, 1), Block: block, Align: align}
	if g.Extra == Index {
		entry.DimK, entry.TokenBytes = vllmIndexKey, vllmIndexKey
	}
	sums := vllmLayers{Kind: vllmSlidingMLA, Heads: 1, DimK: 4 * g.HeadDimK, Store: "float32", Window: 2 * entry.Ratio, Block: 4, Align: align}
	if g.Ratio > 4 { // the short ratio's windows overlap, so each keeps two sums
		sums.DimK, sums.Window, sums.Block = 2*g.HeadDimK, g.Ratio, 8
	}
	sums.TokenBytes = 4 * sums.DimK
	return []vllmLayers{entry, sums}
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
	for _, width := range plan.bytesPerBlock {
		r.PerDevice = max(r.PerDevice, c.mul(width, total, req.Sequences))
		reserved = c.add(reserved, c.mul(width, total, everywhere))
	}
	parts := map[string]*Component{}
	part := func(name string) *Component {
		if parts[name] == nil {
			parts[name] = &Component{Name: name}
		}
		return parts[name]
	}
	for i, l := range model.layers {
		draft := slices.Contains(model.draft, i)
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
			bytes := c.mul(n, req.Context, l.TokenBytes)
			scales := int64(0)
			if l.Store == "uint8" {
				scales = c.mul(n, req.Context, ceilDiv(l.DimK, 132)*4)
			}
			r.Data, r.Metadata = c.add(r.Data, bytes-scales), c.add(r.Metadata, scales)
			part(IndexerKeys).Bytes += bytes
			continue
		}
		tokens := req.Context
		if l.Window > 0 && (l.Kind.slides() || l.Kind == vllmChunked) {
			tokens = min(tokens, l.Window)
		}
		tokens /= max(l.Ratio, 1)
		name := AttentionKV
		switch {
		case draft:
			name = DraftKV
		case l.Kind.slides() || l.Kind == vllmChunked:
			name = SlidingKV
		}
		k, v, scales := vllmContent(&c, l, model.types[i])
		k, v, scales = c.mul(n, tokens, k), c.mul(n, tokens, v), c.mul(n, tokens, scales)
		p := part(name)
		p.K, p.V, p.Bytes = c.add(p.K, k), c.add(p.V, v), c.add(p.Bytes, k, v)
		r.Data, r.Metadata = c.add(r.Data, k+v-scales), c.add(r.Metadata, scales)
		r.KBytes, r.VBytes = c.add(r.KBytes, k), c.add(r.VBytes, v)
		r.KElements = c.add(r.KElements, c.mul(n, tokens, l.Heads, l.DimK))
		r.VElements = c.add(r.VElements, c.mul(n, tokens, l.Heads, l.DimV))
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
		for _, s := range g.specs {
			n += g.share(0, plan.layers[s].Count)
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
			Detail{"concurrency", fmt.Sprintf("maximum concurrency for %d tokens", plan.maxModelLen), roundTo(plan.concurrency, 2)},
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
	if limit := vllmGPUs[o.gpu].sequences; len(req.Model.States) > 0 && plan.numBlocks > 0 && plan.numBlocks < limit {
		out = append(out, fmt.Sprintf("with recurrent states vllm starts only where max-num-seqs is at most %d, its blocks; the default on %s is %d", plan.numBlocks, o.gpu, limit))
	}
	return out
}
