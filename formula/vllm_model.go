package formula

import (
	"fmt"
	"slices"
	"strings"
)

// vllmModel is a model as vLLM's planner sees it on one rank: its layers in
// the order in which they register their caches, with blocks and pages set.
type vllmModel struct {
	layers []vllmLayers
	types  []vllmCacheType // of each entry
	draft  map[int]int64   // draft layers among those of an entry
	stages [][]int64       // layers of each entry by pipeline stage; nil: one stage
	block  int64           // tokens of a block
}

// A vllmBuilder collects the layers of a model.
type vllmBuilder struct {
	calc
	req    Request
	o      vllmOptions
	asked  vllmCacheType // as named
	t      vllmCacheType // as stored
	plain  vllmCacheType // of layers left unquantized
	latent bool          // the model caches MLA latents
	sparse bool          // some of them beside an indexer
	v4     bool          // and DeepSeek-V4's compressed entries
	skip   map[int64]bool
	rule   vllmBlockRule
	out    vllmModel
	counts [][]int64 // layers by entry and stage
	stages int64
}

// vllmLayersOf lists a model's layers.
func vllmLayersOf(req Request, o vllmOptions, t vllmCacheType) (vllmModel, error) {
	b := vllmBuilder{req: req, o: o, asked: t, t: t}
	blocks := req.Model.Blocks()
	if err := b.check(int64(len(blocks))); err != nil {
		return vllmModel{}, err
	}
	stageOf, err := vllmStages(int64(len(blocks)), req.PP)
	if err != nil {
		return vllmModel{}, err
	}
	b.stages = req.PP
	for i, block := range blocks {
		if err := b.addBlock(block, stageOf(int64(i)), b.skip[int64(i)]); err != nil {
			return vllmModel{}, err
		}
	}
	if err := b.addRest(b.stages - 1); err != nil {
		return vllmModel{}, err
	}
	b.setBlocks()
	return b.out, b.err
}

// check finds the cache types and refuses what vLLM refuses before it plans.
func (b *vllmBuilder) check(blocks int64) error {
	m := b.req.Model
	var err error
	if b.plain, err = lookupVLLMCacheType("auto"); err != nil {
		return err
	}
	if m.DType == "float16" {
		b.plain.store = "float16"
	}
	if b.t.name == "auto" {
		b.t = b.plain
	}
	b.v4 = compressed(m)
	for _, g := range m.Geometry {
		b.latent = b.latent || g.Latent() && g.Extra == ""
		b.sparse = b.sparse || g.Extra == Index
		if n, tp := g.KVHeads, b.req.TP; !g.Latent() && n%tp != 0 && tp%n != 0 {
			return &vllmRefused{fmt.Sprintf("%d KV heads can be neither split nor repeated over %d ranks", n, tp)}
		}
	}
	b.sparse = b.sparse && b.latent
	switch {
	case b.v4:
		if !slices.Contains([]string{"auto", "bfloat16", "fp8", "fp8_ds_mla"}, b.asked.name) {
			return &vllmRefused{fmt.Sprintf("its attention backend for compressed latents stores fp8_ds_mla, not %s", b.asked.name)}
		}
	case b.sparse && b.t.name == "fp8" && b.o.gpu == "sm90":
		// The only sparse backend there keeps the rope part in 16 bits.
		if b.t, err = lookupVLLMCacheType("fp8_ds_mla"); err != nil {
			return err
		}
	}
	b.skip = map[int64]bool{}
	for _, i := range b.o.skip {
		if i >= blocks {
			return fmt.Errorf("engine option skip-layers: no layer %d in a model of %d", i, blocks)
		}
		b.skip[i] = true
	}
	if b.t.turboQuant() && len(m.States) == 0 {
		for _, i := range []int64{0, 1, blocks - 2, blocks - 1} {
			b.skip[max(i, 0)] = true
		}
	}
	return nil
}

// enter counts n layers of a spec on a stage and returns its entry.
func (b *vllmBuilder) enter(l vllmLayers, t vllmCacheType, n, stage int64) int {
	at := slices.IndexFunc(b.out.layers, l.alike)
	if at < 0 {
		at = len(b.out.layers)
		l.Count = 0
		b.out.layers, b.out.types = append(b.out.layers, l), append(b.out.types, t)
		b.counts = append(b.counts, make([]int64, b.stages))
	}
	b.out.layers[at].Count += n
	b.counts[at][stage] += n
	return at
}

// addBlock adds what one block of the decoder caches.
func (b *vllmBuilder) addBlock(block Block, stage int64, left bool) error {
	m := b.req.Model
	groups := slices.Clone(block.Groups)
	// An indexer beside latents registers before its layer, one beside heads
	// after it.
	slices.SortStableFunc(groups, func(x, y int) int {
		x, y = indexed(m.Geometry[x]), indexed(m.Geometry[y])
		if b.latent {
			return y - x
		}
		return x - y
	})
	for _, g := range groups {
		if _, err := b.addGroup(m.Geometry[g], 1, stage, left); err != nil {
			return err
		}
	}
	for _, s := range block.States {
		b.addState(m.States[s], stage)
	}
	return nil
}

func indexed(g Group) int {
	if g.Extra == Index {
		return 1
	}
	return 0
}

// addGroup adds n layers of a group and returns their entries. left: they are
// left unquantized.
func (b *vllmBuilder) addGroup(g Group, n, stage int64, left bool) ([]int, error) {
	if b.v4 {
		var at []int
		for _, l := range vllmV4Layers(g) {
			l.Padded = b.roundUp(l.held(&b.calc), vllmV4Page)
			at = append(at, b.enter(l, b.t, n, stage))
		}
		return at, nil
	}
	l := vllmLayers{Kind: vllmFull, Heads: max(1, g.KVHeads/b.req.TP), DimK: g.HeadDimK, DimV: g.HeadDimV, Window: g.Window}
	switch {
	case g.Extra == Index && b.latent:
		l.Kind, l.Heads, l.Store = vllmIndex, 1, "uint8"
		// fp8 values and a float32 scale for every 128 of them.
		l.DimK = b.add(g.HeadDimK, b.mul(ceilDiv(g.HeadDimK, 128), 4))
		l.TokenBytes = l.DimK
	case g.Extra == Index:
		l.Kind, l.Heads, l.Store = vllmIndex, 1, "bfloat16"
		l.TokenBytes = b.mul(g.HeadDimK, elementBytes)
	case g.Latent():
		l.Kind, l.Heads = vllmMLA, 1
	case g.Kind == Sliding:
		l.Kind = vllmSliding
		if strings.HasPrefix(strings.ToLower(b.req.Model.Family), "cohere2") {
			l.Window++ // its sliding layers ask for one token more
		}
	case g.Kind == Chunked:
		l.Kind = vllmChunked
	}
	t := b.t
	if left || b.o.skipWindow && l.Kind == vllmSliding {
		t = b.plain
		b.leaveOut(l)
	}
	l, err := t.stored(&b.calc, l)
	if err != nil {
		return nil, err
	}
	if l.Kind == vllmMLA && b.sparse {
		l.Align = b.rowAlign(l, t)
	}
	return []int{b.enter(l, t, n, stage)}, nil
}

// rowAlign is what blocks of sparse latents are whole multiples of: rows of the
// kernels that read the cache as rows, 32 of them at once for plain fp8.
func (b *vllmBuilder) rowAlign(l vllmLayers, t vllmCacheType) int64 {
	switch {
	case t.quantized() && b.o.gpu != "sm100":
		return 0 // it reads whole blocks
	case t.fp8():
		return b.mul(32, l.TokenBytes)
	}
	return l.TokenBytes
}

// leaveOut tells the block rule of layers left unquantized: the alignment
// prices the first of them in both types, packed types as if they were bytes.
func (b *vllmBuilder) leaveOut(l vllmLayers) {
	if !b.t.quantized() || b.rule.WideToken > 0 || l.Kind == vllmIndex {
		return
	}
	b.rule.WideToken = b.mul(l.Heads, b.plain.head(l.DimK, l.DimV))
	b.rule.QuantToken = b.mul(l.Heads, b.t.head(l.DimK, l.DimV))
	if b.t.turboQuant() {
		b.rule.QuantToken = b.mul(l.Heads, l.DimK+l.DimV)
	}
}

// addState adds a layer's recurrent state.
func (b *vllmBuilder) addState(s State, stage int64) {
	conv := s.ConvElements
	if b.o.guessed > 0 && s.ConvSteps > 0 {
		// Each guessed token's input stays in the convolution's window.
		conv = b.mul(conv/s.ConvSteps, b.add(s.ConvSteps, b.o.guessed))
	}
	tp := b.req.TP
	l := vllmLayers{
		Kind:        vllmState,
		StateBytes:  b.add(b.mul(ceilDiv(conv, tp), s.ConvBytes), b.mul(ceilDiv(s.SSMElements, tp), b.stateBytes(s))),
		Speculative: b.o.guessed,
		Store:       s.Kind,
	}
	step := int64(1)
	switch {
	case !b.o.rules.nullBlock:
	case s.Kind == "mamba2":
		l.Checkpoint = 1
	case !b.o.prefix:
	case s.Kind == "gdn" && b.o.gpu != "sm80": // prefill by FlashInfer
		l.Checkpoint, step = 1, 64
	case s.Kind == "kda" && strings.Contains(strings.ToLower(b.req.Model.Family), "k3"):
		l.Checkpoint, step = 1, 16
	}
	b.rule.StateStep = max(b.rule.StateStep, step)
	b.enter(l, b.t, 1, stage)
}

// stateBytes is the size of an element of a recurrent state. Of Qwen3-Next
// "auto" is the model's own type
// (vllm/model_executor/layers/mamba/mamba_utils.py, _mamba_state_dtype);
// lightning attention has no type of its own.
func (b *vllmBuilder) stateBytes(s State) int64 {
	switch {
	case b.o.stateBytes > 0 && s.Kind != "lightning":
		return b.o.stateBytes
	case s.Kind == "gdn" && strings.EqualFold(b.req.Model.Family, "qwen3_next"):
		return elementBytes
	}
	return s.SSMBytes
}

// addRest adds cross attention and draft layers, which come last.
func (b *vllmBuilder) addRest(stage int64) error {
	m := b.req.Model
	if x := m.Cross; x != nil {
		l, err := b.t.stored(&b.calc, vllmLayers{Kind: vllmCross, Heads: max(1, x.KVHeads/b.req.TP), DimK: x.HeadDimK, DimV: x.HeadDimV})
		if err != nil {
			return err
		}
		b.enter(l, b.t, x.Layers, stage)
	}
	if b.o.guessed == 0 {
		return nil
	}
	for _, g := range m.Draft {
		at, err := b.addGroup(g, g.Count, stage, false)
		if err != nil {
			return err
		}
		for _, i := range at {
			if b.out.draft == nil {
				b.out.draft = map[int]int64{}
			}
			b.out.draft[i] += g.Count
		}
	}
	return nil
}

// setBlocks gives the layers their blocks, and the stages their layers.
func (b *vllmBuilder) setBlocks() {
	b.rule.Asked, b.rule.Kernel = b.o.blockSize, b.kernel()
	b.rule.LatentStep = 128
	if !b.o.rules.nullBlock {
		b.rule.LatentStep = 64
	}
	if b.out.block = b.rule.Kernel; !b.v4 {
		b.out.block = b.rule.set(&b.calc, b.out.layers)
	}
	for i := range b.out.layers {
		// Without prefix caching one state is the whole request's.
		if l := &b.out.layers[i]; l.Kind == vllmState && !b.o.prefix {
			l.Block = b.o.maxLen
		}
	}
	if b.stages == 1 {
		return
	}
	for s := range b.stages {
		one := make([]int64, len(b.counts))
		for i := range one {
			one[i] = b.counts[i][s]
		}
		b.out.stages = append(b.out.stages, one)
	}
}

// kernel is the smallest block that every attention backend of the model takes
// (docs/planning-vllm.md §3).
func (b *vllmBuilder) kernel() int64 {
	var latent, index, wide bool
	for _, l := range b.out.layers {
		latent = latent || l.Kind == vllmMLA
		index = index || l.Kind == vllmIndex
		wide = wide || l.DimK >= 512 && l.Kind != vllmMLA && l.Kind != vllmIndex
	}
	hopper8 := b.t.fp8() && b.o.gpu == "sm90"
	switch {
	case b.v4:
		return vllmV4Block
	case index && !latent:
		return 128
	case index:
		return 64
	case latent && b.o.gpu == "sm100":
		return 32
	case (latent || wide) && hopper8:
		return 64
	}
	return 16
}

// compressed reports whether the model has DeepSeek-V4's compressed entries.
func compressed(m *Model) bool {
	return slices.ContainsFunc(m.Geometry, func(g Group) bool { return g.Kind == Compressed })
}

// vllmStages says which stage a block is in: as even as it goes, with what is
// left over on the stages before the last.
func vllmStages(blocks, pp int64) (func(int64) int64, error) {
	if pp > blocks {
		return nil, fmt.Errorf("%d pipeline stages for %d layers", pp, blocks)
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
	return func(block int64) int64 {
		at, _ := slices.BinarySearch(ends, block+1)
		return int64(at)
	}, nil
}

// DeepSeek-V4's compressed entries come in blocks of so many tokens, and all
// its pages are a multiple of so many bytes.
const (
	vllmV4Block = 256
	vllmV4Page  = 576
)

// vllmV4Layers are the caches of one of DeepSeek-V4's layers: latents of 584
// bytes and index keys in blocks of 64 of them, and beside compressed ones the
// compressor's running sums in float32. The blocks are the engine's own.
func vllmV4Layers(g Group) []vllmLayers {
	const latent = 584
	var out []vllmLayers
	if g.Extra == "" {
		out = append(out, vllmLayers{Kind: vllmSlidingMLA, Heads: 1, DimK: g.HeadDimK, Store: "uint8", TokenBytes: latent, Window: max(g.Window, 1), Block: 64})
	}
	if g.Kind != Compressed {
		return out
	}
	entry := vllmLayers{Kind: vllmMLA, Heads: 1, DimK: g.HeadDimK, Store: "uint8", TokenBytes: latent, Ratio: max(g.Ratio, 1), Block: vllmV4Block}
	if g.Extra == Index {
		entry.DimK, entry.TokenBytes = vllmIndexKey, vllmIndexKey
	}
	sums := vllmLayers{Kind: vllmSlidingMLA, Heads: 1, DimK: 4 * g.HeadDimK, Store: "float32", Window: 2 * entry.Ratio, Block: 4}
	if g.Ratio > 4 { // the short ratio's windows overlap, so each keeps two sums
		sums.DimK, sums.Window, sums.Block = 2*g.HeadDimK, g.Ratio, 8
	}
	sums.TokenBytes = 4 * sums.DimK
	return append(out, entry, sums)
}
