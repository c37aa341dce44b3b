package formula

import (
	"fmt"
	"math"
	"strings"
)

// LlamaCpp is llama.cpp and what is built on it (ollama, LM Studio,
// koboldcpp, ik_llama.cpp). A model that came from a GGUF file is laid out by
// the keys that llama.cpp itself reads; another one by its layers' kinds.
//
// The rules are those of the version that llama-cpp-python 0.3.36 vendors;
// options give those of older versions and of forks.
func LlamaCpp() Engine {
	return Engine{
		Name:  "llama.cpp",
		Title: "llama.cpp as in llama-cpp-python 0.3.36; older builds and forks by options",
		Options: []Option{
			{"c", "context times sequences", "context size of all slots together, as -c; 0 is the model's own"},
			{"np", "sequences", "slots, as -np"},
			{"kvu", "no", "one unified cache for all slots, as -kvu"},
			{"ub", "512", "micro-batch, as -ub: sliding layers keep their window and this many tokens"},
			{"b", "2048", "batch, as -b"},
			{"fa", "auto", "flash attention, as -fa: auto, on or off; off pads V to the widest layer and refuses a quantized V"},
			{"pad", "256", "cells are a multiple of this; 32 in older builds without flash attention"},
			{"swa-full", "no", "sliding layers keep the whole context, as --swa-full and as ik_llama.cpp and builds before May 2025 do"},
			{"mla", "as the file says", "latent attention: latent, latent+v (mainline of 2025) or expanded"},
			{"rs-seq", "0", "state snapshots for each slot beside the current one, for speculative decoding"},
			{"mtp", "no", "add the draft context of the next-token-prediction layers"},
		},
		Scheme:         llamaScheme,
		DefaultSchemes: []string{"f16", "q8_0", "q8_0:q5_1", "q8_0:q4_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"},
		Variants:       []string{"swa-full=yes"},
		Reserve:        reserveLlamaCpp,
		Explain:        explainLlamaCpp,
		inside:         draftInLlamaCpp,
	}
}

// llamaScheme reads the types of K and V: one name for both, or K:V.
func llamaScheme(name string) (Scheme, error) {
	kName, vName, two := strings.Cut(strings.TrimSpace(name), ":")
	if !two {
		vName = kName
	}
	k, okK := ggmlCacheType(kName)
	v, okV := ggmlCacheType(vName)
	if !okK || !okV {
		return Scheme{}, fmt.Errorf("llama.cpp has no cache type %q (%s)", name, strings.Join(ggmlCacheTypes(), ", "))
	}
	s := Scheme{Name: k.name, K: k, V: v}
	if k.name != v.name {
		s.Name += ":" + v.name
	}
	return s, nil
}

// llamaTypes are the two sides of a scheme that llamaScheme returned.
func llamaTypes(s Scheme) (k, v ggmlType, err error) {
	k, okK := s.K.(ggmlType)
	v, okV := s.V.(ggmlType)
	if !okK || !okV {
		return k, v, fmt.Errorf("llama.cpp has no cache type %q (%s)", s.Name, strings.Join(ggmlCacheTypes(), ", "))
	}
	return k, v, nil
}

// llamaMaxSequences is LLAMA_MAX_SEQ of llama.h.
const llamaMaxSequences = 256

// The values of the option mla.
const (
	mlaLatent     = "latent"
	mlaLatentCopy = "latent+v"
	mlaExpanded   = "expanded"
)

// llamaOptions are the parameters of a context, with defaults filled in.
type llamaOptions struct {
	context, slots int64
	unified        bool
	ubatch, batch  int64
	fa             string // auto, on or off
	pad            int64
	swaFull        bool
	mla            string
	rsSeq          int64
	mtp            bool
}

// optionReader reads options and keeps the first error.
type optionReader struct {
	Options
	err error
}

func (o *optionReader) int(key string, def, low int64) int64 {
	n, err := o.Int(key, def, low)
	return keepFirst(&o.err, n, err)
}

func (o *optionReader) bool(key string, def bool) bool {
	b, err := o.Bool(key, def)
	return keepFirst(&o.err, b, err)
}

func (o *optionReader) text(key, def string, values ...string) string {
	s, err := o.String(key, def, values...)
	return keepFirst(&o.err, s, err)
}

func (o *optionReader) tokens(key string, def int64) int64 {
	n, err := o.Tokens(key, def)
	return keepFirst(&o.err, n, err)
}

func keepFirst[T any](first *error, value T, err error) T {
	if *first == nil {
		*first = err
	}
	return value
}

func parseLlamaOptions(req Request, trainContext int64) (llamaOptions, error) {
	o := optionReader{Options: req.Options}
	l := llamaOptions{
		slots:   o.int("np", req.Sequences, 1),
		unified: o.bool("kvu", false),
		ubatch:  o.int("ub", 512, 0),
		batch:   o.int("b", 2048, 0),
		fa:      o.text("fa", "auto", "auto", "on", "off", "yes", "no"),
		pad:     o.int("pad", 256, 1),
		swaFull: o.bool("swa-full", false),
		mla:     o.text("mla", "", mlaLatent, mlaLatentCopy, mlaExpanded),
		rsSeq:   o.int("rs-seq", 0, 0),
		mtp:     o.bool("mtp", false),
	}
	switch text, set := req.Options["c"]; {
	case !set:
		n, err := product(req.Context, l.slots)
		l.context = keepFirst(&o.err, n, err)
	case text == "0" && trainContext > 0:
		l.context = trainContext
	case text == "0":
		return l, fmt.Errorf("engine option c: 0 asks for the model's own context, which is unknown")
	default:
		l.context = o.tokens("c", 0)
	}
	if o.err == nil && l.ubatch == 0 && l.batch == 0 {
		o.err = fmt.Errorf("engine options b and ub: both are 0")
	}
	return l, o.err
}

// A llamaContext is what a context works out to: cells of each kind of cache
// for one stream, and the streams.
type llamaContext struct {
	cells   [4]int64 // by llamaCells
	streams int64    // of a cache that can be unified
	slots   int64
	rows    int64 // of recurrent state, planes of compressor state
	flash   bool
	sharing int64 // slots that share one stream's window
	ubatch  int64 // as it is after the batch and the context have bounded it
}

// streamsOf is the number of streams of a cache.
func (x llamaContext) streamsOf(cache llamaCache) int64 {
	if cache.perSequence {
		return x.slots
	}
	return x.streams
}

// widest is the width that V is padded to, 0 where it is not: it is stored
// transposed without flash attention.
func (x llamaContext) widest(cache llamaCache) int64 {
	if x.flash {
		return 0
	}
	return cache.vWidest
}

// context applies llama_context's constructor: the batch is at most the
// context when attention is causal, n_ctx is rounded up, divided among the
// slots unless they share it, and rounded up again.
func (p *llamaPlan) context(l llamaOptions, c *calc) llamaContext {
	batch := l.batch
	if p.causal {
		batch = min(l.context, l.batch)
	}
	ubatch := l.ubatch
	if ubatch == 0 {
		ubatch = l.batch
	}
	base := c.roundUp(l.context, l.pad)
	x := llamaContext{streams: 1, slots: l.slots, flash: l.flash() && !p.noFlash, sharing: l.slots, ubatch: min(batch, ubatch)}
	if !l.unified {
		base = c.roundUp(base/l.slots, l.pad)
		x.streams, x.sharing = l.slots, 1
	}
	if p.perSequence() {
		x.sharing = 1
	}
	window := base
	if !l.swaFull {
		window = min(base, c.roundUp(c.add(c.mul(p.window, x.sharing), x.ubatch), l.pad))
	}
	x.cells = [...]int64{
		baseCells:   base,
		windowCells: window,
		csaCells:    c.roundUp(ceilDiv(base, dsv4CSARatio), 256),
		hcaCells:    c.roundUp(ceilDiv(base, dsv4HCARatio), 256),
	}
	snapshots := int64(1)
	if p.rollback {
		snapshots = c.add(1, l.rsSeq)
	}
	x.rows = c.mul(l.slots, snapshots)
	return x
}

func (l llamaOptions) flash() bool { return l.fa != "off" && l.fa != "no" }

func (p *llamaPlan) perSequence() bool { return len(p.caches) > 0 && p.caches[0].perSequence }

// refusal says why llama.cpp would not create such a context, "" when it would.
func (p *llamaPlan) refusal(l llamaOptions, k, v ggmlType) string {
	switch {
	case l.slots > llamaMaxSequences:
		return fmt.Sprintf("%d slots; llama.cpp takes at most %d", l.slots, llamaMaxSequences)
	case l.context > math.MaxUint32:
		return fmt.Sprintf("a context of %d tokens; llama.cpp counts them in 32 bits", l.context)
	case p.oneType && k.name != v.name:
		return "latent attention needs the same cache type for K and V"
	case v.quantized() && (!l.flash() || p.noFlash):
		return "a quantized V cache needs flash attention"
	case !l.flash() || p.noFlash:
		return ""
	}
	for _, side := range []struct {
		name   string
		t      ggmlType
		widths []int64
	}{{"K", k, p.kWidths}, {"V", v, p.vWidths}} {
		for _, width := range side.widths {
			if width%side.t.block != 0 {
				return fmt.Sprintf("%s cache type %s stores blocks of %d, which do not divide a head of %d",
					side.name, side.t.name, side.t.block, width)
			}
		}
	}
	return ""
}

// A llamaTensor is one side of one layer, over all streams.
type llamaTensor struct{ data, scales, padding, device, elements int64 }

// llamaTensorSize prices heads of width elements a cell. widest is the width that a
// transposed V is padded to, 0 where it is not.
func llamaTensorSize(c *calc, t ggmlType, l llamaLayer, width, widest, cells, tp int64, latent bool) llamaTensor {
	if width == 0 && widest == 0 {
		return llamaTensor{}
	}
	// Heads over all devices, and on the fullest.
	heads, most := max(l.kvHeads, min(tp, l.kvHeads*tp)), ceilDiv(l.kvHeads, tp)
	if latent {
		heads, most = c.mul(l.kvHeads, tp), l.kvHeads
	}
	size := func(heads int64) (data, scales int64) {
		data, scales, err := t.Size(heads, cells, width)
		c.keep(0, err)
		return data, scales
	}
	var x llamaTensor
	x.data, x.scales = size(heads)
	x.elements = c.mul(heads, cells, width)
	deviceData, deviceScales := size(most)
	x.device = c.add(deviceData, deviceScales)
	if own := c.mul(l.kvHeads, width); widest > own {
		padding, scales, err := t.Size(1, cells, widest-own)
		c.keep(0, err)
		x.padding = c.add(padding, scales)
		x.device = c.add(x.device, x.padding)
	}
	return x
}

// reserveLlamaCpp prices every cache of the model's plan.
func reserveLlamaCpp(req Request) (Reservation, error) {
	k, v, err := llamaTypes(req.Scheme)
	if err != nil {
		return Reservation{}, err
	}
	plan, draft, l, err := planLlamaCpp(req)
	if err != nil {
		return Reservation{}, err
	}
	var c calc
	r := llamaReservation{k: k, v: v, tp: req.TP, pp: req.PP, layers: plan.layers, c: &c,
		device: make([]int64, req.PP), parts: map[string]*Component{}}
	x := plan.context(l, &c)
	r.price(plan, x)
	if draft != nil {
		r.price(draft, draft.context(l, &c))
	}
	if c.err != nil {
		return Reservation{}, c.err
	}
	r.finish(plan, x)
	r.Refusal = plan.refusal(l, k, v)
	r.Warnings = append(r.Warnings, plan.warnings...)
	if plan.none != "" {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%s keeps no cache: %s", plan.name, plan.none))
	}
	return r.Reservation, c.err
}

// planLlamaCpp lays out the caches of a request, and of its draft context.
func planLlamaCpp(req Request) (plan, draft *llamaPlan, l llamaOptions, err error) {
	if req.Model.gguf == nil {
		if l, err = parseLlamaOptions(req, req.Model.MaxContext); err != nil {
			return nil, nil, l, err
		}
		plan, draft, err = planLlamaModel(req.Model, l)
		return plan, draft, l, err
	}
	m, err := readLlamaModel(req.Model.gguf, req.Model.assumed)
	if err != nil {
		return nil, nil, l, err
	}
	if l, err = parseLlamaOptions(req, m.trainContext); err != nil {
		return nil, nil, l, err
	}
	if plan, err = m.plan(l.mla, false); err == nil && l.mtp {
		draft, err = m.plan(l.mla, true)
	}
	return plan, draft, l, err
}

// llamaReservation adds up what the caches take.
type llamaReservation struct {
	Reservation
	k, v   ggmlType
	tp, pp int64
	layers int64
	c      *calc
	device []int64 // bytes of each pipeline stage's fullest device
	parts  map[string]*Component

	caches            []string
	kTotal, vTotal    int64
	rBytes, sBytes    int64
	pBytes, compBytes int64
	cells, swaCells   int64
}

func (r *llamaReservation) component(name string) *Component {
	if r.parts[name] == nil {
		r.parts[name] = &Component{Name: name}
	}
	return r.parts[name]
}

// stage is the pipeline stage of a layer: the layers are split as evenly as
// they go.
func (r *llamaReservation) stage(layer int64) int64 { return layer * r.pp / max(r.layers, layer+1) }

func (r *llamaReservation) onDevice(layer, bytes int64) {
	at := &r.device[r.stage(layer)]
	*at = r.c.add(*at, bytes)
}

func (r *llamaReservation) price(p *llamaPlan, ctx llamaContext) {
	for _, cache := range p.caches {
		r.priceCache(cache, ctx)
	}
	if x := p.cross; x != nil {
		token, err := x.Elements()
		r.c.keep(0, err)
		r.Cross = r.c.mul(token, x.Tokens, elementBytes, ctx.slots)
		for i := range r.device {
			r.device[i] = r.c.add(r.device[i], ceilDiv(r.Cross, r.pp))
		}
	}
	const f32 = 4
	for _, s := range p.states {
		parts := []struct {
			elements, rows int64
			to             *int64
		}{{s.r, ctx.rows, &r.rBytes}, {s.s, ctx.rows, &r.sBytes}, {s.p, ctx.rows, &r.pBytes}, {s.comp, ctx.rows, &r.compBytes}}
		for _, part := range parts {
			bytes := r.c.mul(part.elements, part.rows, f32)
			*part.to = r.c.add(*part.to, bytes)
			r.State = r.c.add(r.State, bytes)
			r.onDevice(s.index, r.c.mul(ceilDiv(part.elements, r.tp), part.rows, f32))
		}
	}
}

func (r *llamaReservation) priceCache(cache llamaCache, ctx llamaContext) {
	c := r.c
	cells, streams := ctx.cells[cache.cells], ctx.streamsOf(cache)
	all := c.mul(cells, streams)
	var kBytes, vBytes, padding int64
	for _, l := range cache.layers {
		k := llamaTensorSize(c, r.k, l, l.k, 0, all, r.tp, cache.latent)
		v := llamaTensorSize(c, r.v, l, l.v, ctx.widest(cache), all, r.tp, cache.latent)
		kBytes = c.add(kBytes, k.data, k.scales)
		vBytes = c.add(vBytes, v.data, v.scales)
		padding = c.add(padding, v.padding)
		r.Data = c.add(r.Data, k.data, v.data)
		r.Metadata = c.add(r.Metadata, k.scales, v.scales)
		r.onDevice(l.index, c.add(k.device, v.device))
		if cache.role != IndexerKeys {
			r.KElements = c.add(r.KElements, k.elements)
			r.VElements = c.add(r.VElements, v.elements)
		}
	}
	r.Padding = c.add(r.Padding, padding)
	r.kTotal, r.vTotal = c.add(r.kTotal, kBytes), c.add(r.vTotal, vBytes, padding)
	if cache.role != IndexerKeys {
		r.KBytes, r.VBytes = c.add(r.KBytes, kBytes), c.add(r.VBytes, vBytes)
	}
	part := r.component(cache.role)
	part.K, part.V = c.add(part.K, kBytes), c.add(part.V, vBytes)
	part.Bytes = c.add(part.K, part.V)
	if cache.role == AttentionKV && cache.cells == baseCells {
		r.cells = cells
	}
	if cache.cells == windowCells {
		r.swaCells = cells
	}
	r.caches = append(r.caches, fmt.Sprintf("%dx%dx%d:%d+%d", len(cache.layers), cells, streams, kBytes, c.add(vBytes, padding)))
}

// finish turns the sums into components and details.
func (r *llamaReservation) finish(p *llamaPlan, x llamaContext) {
	if r.State > 0 {
		r.component(RecurrentState).Bytes = r.State
	}
	if r.Padding > 0 {
		r.component(PaddingBytes).Bytes = r.Padding
	}
	if r.Cross > 0 {
		r.component(CrossKV).Bytes = r.Cross
	}
	for _, name := range []string{AttentionKV, SlidingKV, RecurrentState, IndexerKeys, CrossKV, DraftKV, PaddingBytes} {
		if part := r.parts[name]; part != nil && part.Bytes > 0 {
			r.Components = append(r.Components, *part)
		}
	}
	for _, bytes := range r.device {
		r.PerDevice = max(r.PerDevice, bytes)
	}
	detail := func(key, label string, value any) {
		r.Details = append(r.Details, Detail{key, label, value})
	}
	if r.cells > 0 {
		detail("cells", "cells of a stream", r.cells)
	}
	if r.swaCells > 0 {
		detail("swa_cells", "cells of a stream, sliding layers", r.swaCells)
	}
	detail("n_ctx", "n_ctx, over all slots", r.c.mul(x.cells[baseCells], x.streams))
	detail("streams", "streams", x.streams)
	detail("k_bytes", "K", r.kTotal)
	detail("v_bytes", "V", r.vTotal)
	detail("caches", "caches (layers x cells x streams : K + V)", strings.Join(r.caches, ";"))
	if r.State > 0 {
		detail("recurrent_r_bytes", "state R", r.rBytes)
		detail("recurrent_s_bytes", "state S", r.sBytes)
		detail("recurrent_p_bytes", "state P", r.pBytes)
		detail("compressor_state_bytes", "compressor state", r.compBytes)
	}
}
