package formula

import "fmt"

// llamaCells says how many cells a cache has for each stream.
type llamaCells int

const (
	baseCells   llamaCells = iota // the context of a stream
	windowCells                   // window and micro-batch, at most the context
	csaCells                      // an entry for every 4 tokens
	hcaCells                      // an entry for every 128
)

// Compression ratios of DeepSeek-V4 (llama-kv-cache-dsv4.cpp).
const (
	dsv4CSARatio = 4
	dsv4HCARatio = 128
)

// A llamaLayer is what one layer adds to each cell of a cache.
type llamaLayer struct {
	index   int64 // of the layer in the model
	kvHeads int64
	k, v    int64 // widths of a head; v is 0 where V lives in K
}

// A llamaCache is one cache that llama.cpp creates: a K tensor and perhaps a
// V tensor for every layer, with the same cells.
type llamaCache struct {
	role   string // name of the component
	layers []llamaLayer
	cells  llamaCells
	// perSequence: a stream for every sequence even where the cache is unified
	perSequence bool
	// vWidest is the V width, over all heads, that every layer's V is padded
	// to when it is stored transposed: the widest layer's of the whole model.
	vWidest int64
	latent  bool // one vector stands for all heads: every device holds it whole
}

// A llamaLayerState is the constant state of one layer, in float32 elements:
// r, s and p for every row of the recurrent memory, comp for every plane of
// the compressor state.
type llamaLayerState struct {
	index         int64
	r, s, p, comp int64
}

// A llamaPlan is what a model makes llama.cpp allocate, before the request's
// context, slots and types are known.
type llamaPlan struct {
	name         string
	trainContext int64
	causal       bool
	noFlash      bool
	rollback     bool
	// oneType: K and V must have the same type
	oneType bool
	window  int64
	layers  int64 // layers of the model, for splits over devices
	caches  []llamaCache
	states  []llamaLayerState
	cross   *Cross // of models that only relatives of llama.cpp run
	// kWidths and vWidths are the head widths that the block of a quantized
	// type must divide.
	kWidths, vWidths []int64
	// none says why there is nothing to allocate.
	none     string
	warnings []string
}

// plan lays out the caches of a GGUF file's model. mla is the option of that
// name: "", "latent", "latent+v" or mlaExpanded. With draft it lays out the
// context that runs only the next-token-prediction layers.
func (m *llamaModel) plan(mla string, draft bool) (*llamaPlan, error) {
	p := &llamaPlan{
		name: m.name, trainContext: m.trainContext, causal: m.causal, noFlash: m.noFlash, rollback: m.rollback,
		oneType: m.isMLA() || m.memory == dsv4Memory, window: m.window, layers: m.layers,
	}
	if m.borrows {
		return nil, fmt.Errorf("architecture %s: it reads the cache of the model it drafts for; plan that model instead", m.name)
	}
	for i := range m.trunk() {
		k, v := m.widths(i)
		p.kWidths, p.vWidths = append(p.kWidths, k), append(p.vWidths, v)
	}
	switch {
	case mla == "":
	case m.isMLA() && mla == mlaExpanded:
		m = m.expanded()
	case !m.isMLA() && m.latent > 0 && mla != mlaExpanded:
		m = m.absorbed()
		p.oneType = true
	case !m.isMLA() && m.latent == 0:
		return nil, fmt.Errorf("engine option mla: architecture %s has no latent", m.name)
	}
	kOnly := m.isMLA() && mla != mlaLatentCopy
	if draft {
		if m.nextn == 0 || m.router {
			return nil, fmt.Errorf("architecture %s: the file has no next-token-prediction layers", m.name)
		}
		if ok := m.memory == attentionMemory || m.memory == dsaMemory || m.memory == dsv4Memory || m.drafts; !ok {
			return nil, fmt.Errorf("architecture %s: llama.cpp does not run its next-token-prediction layers", m.name)
		}
		m.draftCaches(p, kOnly)
		return p, nil
	}
	if err := m.caches(p, kOnly); err != nil {
		return nil, err
	}
	return p, nil
}

// expanded is the model with every head's K and V in place of the latent.
func (m *llamaModel) expanded() *llamaModel {
	e := *m
	e.k, e.v, e.kSWA, e.vSWA = m.kMLA, m.vMLA, m.kMLA, m.vMLA
	e.kMLA, e.vMLA = 0, 0
	e.kvHeads = make([]int64, m.layers)
	for i := range e.kvHeads {
		if m.kvHeads[i] > 0 {
			e.kvHeads[i] = m.heads[i]
		}
	}
	return &e
}

// absorbed is the model of an older file, which describes the expanded form,
// with one latent in place of every head's K and V.
func (m *llamaModel) absorbed() *llamaModel {
	a := *m
	a.kMLA, a.vMLA = m.k, m.v
	a.k, a.v = m.latent+m.ropeDim, m.latent
	a.kSWA, a.vSWA = a.k, a.v
	a.kvHeads = make([]int64, m.layers)
	for i := range a.kvHeads {
		a.kvHeads[i] = min(m.kvHeads[i], 1)
	}
	return &a
}

func (m *llamaModel) caches(p *llamaPlan, kOnly bool) error {
	trunk := func(i int64) bool { return i < m.trunk() }
	all := func(int64) bool { return true }
	attends := func(i int64) bool { return !m.recurrent[i] }
	indexed := func(i int64) bool { return i < m.trunk() && m.indexed[i] }
	switch m.memory {
	case noMemory:
		p.none = "it reads the whole input at once, so llama.cpp gives it no cache"
	case attentionMemory:
		keep := all
		if m.nextn > 0 && m.trunk() > 0 && !m.router {
			keep = trunk
		}
		m.attentionCaches(p, kOnly, keep)
	case recurrentMemory:
		return m.stateOf(p, trunk)
	case hybridMemory, hybridIndexMemory:
		has := attends
		stateful := func(i int64) bool { return trunk(i) && m.recurrent[i] }
		switch {
		case m.recur == recurrentAll:
			has = all
		case m.ff:
			has = func(i int64) bool { return attends(i) && m.ffn[i] == 0 }
		case m.recur == recurrentInterval || m.memory == hybridIndexMemory:
			has = func(i int64) bool { return trunk(i) && attends(i) }
		}
		m.attentionCaches(p, kOnly, has)
		if m.memory == hybridIndexMemory {
			owns := has
			width := m.indexerWidth
			if m.indexerPool > 0 {
				// Key, gate and pooled value of every token.
				width *= 3
				owns = func(i int64) bool { return has(i) && m.indexed[i] }
			}
			p.caches = append(p.caches, m.indexCache(width, true, owns))
		}
		return m.stateOf(p, stateful)
	case msaMemory:
		p.caches = append(p.caches, m.cache(AttentionKV, baseCells, false, all),
			m.indexCache(m.indexerWidth, false, func(i int64) bool { return m.indexed[i] }))
	case dsaMemory:
		keep := all
		if m.nextn > 0 && m.name != "hy_v4" {
			keep = trunk
		}
		if !m.windowed {
			p.caches = append(p.caches, m.cache(AttentionKV, baseCells, kOnly, keep))
			if m.indexerTopK > 0 || m.name != "hy_v4" {
				p.caches = append(p.caches, m.indexCache(m.indexerWidth, kOnly, indexed))
			}
			break
		}
		dense := func(i int64) bool { return keep(i) && !m.sliding[i] }
		slides := func(i int64) bool { return keep(i) && m.sliding[i] }
		p.caches = append(p.caches, m.cache(AttentionKV, baseCells, kOnly, dense),
			m.indexCache(m.indexerWidth, kOnly, indexed),
			m.cache(SlidingKV, windowCells, kOnly, slides))
	case dsv4Memory:
		m.dsv4Caches(p)
	}
	return m.checkWindows(p)
}

// checkWindows refuses what llama.cpp aborts on: a sliding model none of whose
// layers slides, and layers that would share a cache of the other kind.
func (m *llamaModel) checkWindows(p *llamaPlan) error {
	if m.memory != attentionMemory || !m.windowed {
		return nil
	}
	for i := m.cached; i < m.trunk(); i++ {
		// Sliding layers read the last but one layer that has a cache, dense
		// ones the last.
		source := m.cached - 1
		if m.sliding[i] {
			source--
		}
		if source < 0 || m.sliding[source] != m.sliding[i] {
			return fmt.Errorf("architecture %s: layer %d would share the cache of layer %d, which is not of its kind", m.name, i, source)
		}
	}
	for _, s := range m.sliding {
		if s {
			return nil
		}
	}
	return fmt.Errorf("GGUF key %s.attention.sliding_window_pattern: no layer slides, which llama.cpp refuses", m.name)
}

// attentionCaches adds one cache or, where layers slide, one of each kind.
func (m *llamaModel) attentionCaches(p *llamaPlan, kOnly bool, keep func(int64) bool) {
	if !m.windowed {
		p.caches = append(p.caches, m.cache(AttentionKV, baseCells, kOnly, keep))
		return
	}
	p.caches = append(p.caches,
		m.cache(AttentionKV, baseCells, kOnly, func(i int64) bool { return keep(i) && !m.sliding[i] }),
		m.cache(SlidingKV, windowCells, kOnly, func(i int64) bool { return keep(i) && m.sliding[i] }))
}

// cache lists the layers that keep tokens in one cache.
func (m *llamaModel) cache(role string, cells llamaCells, kOnly bool, keep func(int64) bool) llamaCache {
	c := llamaCache{role: role, cells: cells, latent: m.isMLA() || role == IndexerKeys}
	for i := range m.layers {
		k, v := m.widths(i)
		if !kOnly {
			c.vWidest = max(c.vWidest, m.kvHeads[i]*v)
		} else {
			v = 0
		}
		if i < m.cached && keep(i) {
			c.layers = append(c.layers, llamaLayer{index: i, kvHeads: m.kvHeads[i], k: k, v: v})
		}
	}
	return c
}

// indexCache is a cache of one key of the given width for every token. Where
// V is kept, as beside an attention that is not latent, it has the width of
// one V head.
func (m *llamaModel) indexCache(width int64, kOnly bool, keep func(int64) bool) llamaCache {
	x := *m
	x.k = width
	x.kvHeads = make([]int64, m.layers)
	for i := range x.kvHeads {
		x.kvHeads[i] = 1
	}
	return x.cache(IndexerKeys, baseCells, kOnly, keep)
}

// dsv4Caches: a windowed latent on every layer, compressed latents on the
// layers with that ratio, and the indexer's keys beside the ones of ratio 4.
// Each sequence has streams of its own. The compressors keep their running
// sums and scores: two ratios of rows where windows overlap, one where not.
func (m *llamaModel) dsv4Caches(p *llamaPlan) {
	ratio := func(r int64) func(int64) bool { return func(i int64) bool { return m.ratios[i] == r } }
	p.caches = []llamaCache{
		m.cache(AttentionKV, baseCells, true, func(i int64) bool { return !m.sliding[i] }),
		m.cache(SlidingKV, windowCells, true, func(i int64) bool { return m.sliding[i] }),
		m.cache(AttentionKV, csaCells, true, ratio(dsv4CSARatio)),
		m.cache(AttentionKV, hcaCells, true, ratio(dsv4HCARatio)),
	}
	index := *m
	index.kSWA = m.indexerWidth
	lid := index.indexCache(m.indexerWidth, true, ratio(dsv4CSARatio))
	lid.cells = csaCells
	p.caches = append(p.caches, lid)
	for i := range p.caches {
		p.caches[i].perSequence = true
	}
	width, _ := m.widths(0)
	for i := range m.trunk() {
		if n := dsv4CompressorElements(m.ratios[i], width, m.indexerWidth); n > 0 {
			p.states = append(p.states, llamaLayerState{index: i, comp: n})
		}
	}
}

// dsv4CompressorElements is the state of a layer's compressors: sums and
// scores of 2·4 rows of two widths for ratio 4, for the latent and for the
// index key, and of 128 rows of one width for ratio 128.
func dsv4CompressorElements(ratio, width, indexWidth int64) int64 {
	switch ratio {
	case dsv4CSARatio:
		return 2 * 2 * dsv4CSARatio * (2*width + 2*indexWidth)
	case dsv4HCARatio:
		return 2 * dsv4HCARatio * width
	}
	return 0
}

// draftCaches is the context of the next-token-prediction layers alone.
func (m *llamaModel) draftCaches(p *llamaPlan, kOnly bool) {
	nextn := func(i int64) bool { return i >= m.trunk() }
	switch m.memory {
	case hybridIndexMemory:
		p.caches = append(p.caches, m.cache(DraftKV, baseCells, kOnly, nextn))
		if m.indexerPool > 0 {
			p.caches = append(p.caches, m.indexCache(3*m.indexerWidth, true, nextn))
		}
	case dsaMemory, hybridMemory:
		p.caches = append(p.caches, m.cache(DraftKV, baseCells, kOnly, nextn))
	case dsv4Memory:
		m.attentionCaches(p, false, nextn)
	default:
		m.attentionCaches(p, kOnly, nextn)
	}
	for i := range p.caches {
		p.caches[i].role = DraftKV
	}
}

// stateOf adds the state of the layers that have one.
func (m *llamaModel) stateOf(p *llamaPlan, keep func(int64) bool) error {
	var c calc
	r, s := m.stateElements(&c)
	if c.add(r, s, m.pleElements); c.err != nil {
		return c.err
	}
	for i := range m.layers {
		if !keep(i) {
			continue
		}
		state := llamaLayerState{index: i, r: r, s: s}
		if m.pleLayers != nil && m.pleLayers[i] {
			state.p = m.pleElements
		}
		p.states = append(p.states, state)
	}
	return nil
}

// stateElements is one layer's state for one sequence: the rolling part (the
// last inputs of a convolution, or of RWKV's token shift) and the recurrent
// part (llama_hparams::n_embd_r and n_embd_s).
func (m *llamaModel) stateElements(c *calc) (r, s int64) {
	steps := max(m.convKernel-1, 0)
	switch m.state {
	case llamaWKV:
		return c.mul(m.tokenShift, m.embedding), c.mul(m.embedding, m.wkvHead)
	case llamaShortconv:
		return c.mul(m.embedding, max(m.shortconv-1, 0)), 0
	case llamaKDA:
		if m.convKernel == 0 {
			steps = 3
		}
		return c.mul(3, steps, m.heads[0], m.kdaHead), c.mul(m.kdaHead, m.kdaHead, m.heads[0])
	case llamaLinear:
		return 0, c.mul(m.linearHead, m.linearHead, m.heads[0])
	}
	return c.mul(steps, c.add(m.innerSize, c.mul(2, m.groups, m.stateSize))), c.mul(m.stateSize, m.innerSize)
}
