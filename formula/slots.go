package formula

import (
	"cmp"
	"fmt"
	"strings"
)

// A slotRule is an engine that gives every layer slots for so many tokens,
// whichever they are.
type slotRule struct {
	// slots is the number of slots of a layer for one sequence, or where they
	// are pooled for all sequences together.
	slots  func(Group) int64
	pooled bool
	// held is how many of them one sequence fills; nil is Group.Tokens.
	held func(Group) int64
	// common is how many of those all sequences share; nil is none.
	common func(Group) int64
	// indexKey is the bytes of an indexer's key of so many elements, scales
	// apart; nil is 2 bytes an element.
	indexKey func(dim int64) (data, scales int64)
	// states is how many recurrent states are kept for all sequences.
	states int64
	// stateBytes is the size of an element of a recurrent state; 0: the model's.
	stateBytes int64
	// cross: the engine keeps the encoder's keys and values.
	cross bool
}

// slotPools are the bytes of the slots on the fullest device, by side.
type slotPools struct {
	k, v             int64 // layers that keep every token
	windowK, windowV int64
	index, state     int64
}

// reserve adds up the slots. Heads are split over tensor parallel ranks, each
// with at least one; latents, indexer keys are on every rank; states are split
// by elements. Stages are as even as they go.
func (rule slotRule) reserve(req Request) (Reservation, slotPools, error) {
	var c calc
	var r Reservation
	var fullest slotPools
	m := req.Model
	stages, err := m.stages(req.PP)
	if err != nil {
		return r, fullest, err
	}
	parts := map[string]*Component{}
	part := func(name string) *Component {
		if parts[name] == nil {
			parts[name] = &Component{Name: name}
		}
		return parts[name]
	}
	size := func(s Sizer, heads, tokens, dim int64) (data, scales int64) {
		if dim == 0 {
			return 0, 0
		}
		data, scales, err := s.Size(heads, tokens, dim)
		return c.keep(data, err), c.keep(scales, err)
	}
	devices := make([]slotPools, len(stages))
	copies := req.Sequences
	if rule.pooled {
		copies = 1
	}
	for i, g := range m.Geometry {
		heads := max(1, ceilDiv(g.KVHeads, req.TP))
		if g.Latent() || g.Extra == Index {
			heads = g.KVHeads
		}
		slots, held := rule.slots(g), g.Tokens(req.Context)
		if rule.held != nil {
			held = rule.held(g)
		}
		ranks := c.mul(g.Count, req.TP)
		common := int64(0)
		if rule.common != nil {
			common = rule.common(g)
		}
		if g.Extra == Index {
			data, scales := c.mul(g.HeadDimK, elementBytes), int64(0)
			if rule.indexKey != nil {
				data, scales = rule.indexKey(g.HeadDimK)
			}
			filled := c.mul(ranks, heads, c.mul(held, req.Sequences)-c.mul(common, req.Sequences-1))
			r.Data = c.add(r.Data, c.mul(filled, data))
			r.Metadata = c.add(r.Metadata, c.mul(filled, scales))
			p := part(IndexerKeys)
			p.Bytes = c.add(p.Bytes, c.mul(filled, data+scales))
			p.K = p.Bytes
			pool := c.mul(heads, slots, data+scales, copies)
			r.Padding = c.add(r.Padding, c.mul(ranks, pool)-c.mul(filled, data+scales))
			for s := range stages {
				devices[s].index = c.add(devices[s].index, c.mul(stages[s].groups[i], pool))
			}
			continue
		}
		kPool, kScales := size(req.Scheme.K, heads, slots, g.HeadDimK)
		vPool, vScales := size(req.Scheme.V, heads, slots, g.HeadDimV)
		kPool, vPool = c.mul(copies, c.add(kPool, kScales)), c.mul(copies, c.add(vPool, vScales))
		all, again := c.mul(ranks, req.Sequences), c.mul(ranks, req.Sequences-1)
		stored := func(s Sizer, dim int64) (data, scales int64) {
			data, scales = size(s, heads, held, dim)
			twiceData, twiceScales := size(s, heads, common, dim)
			return c.mul(all, data) - c.mul(again, twiceData), c.mul(all, scales) - c.mul(again, twiceScales)
		}
		kData, kMeta := stored(req.Scheme.K, g.HeadDimK)
		vData, vMeta := stored(req.Scheme.V, g.HeadDimV)
		k, v := c.add(kData, kMeta), c.add(vData, vMeta)
		r.Data = c.add(r.Data, kData, vData)
		r.Metadata = c.add(r.Metadata, kMeta, vMeta)
		r.KBytes, r.VBytes = c.add(r.KBytes, k), c.add(r.VBytes, v)
		vectors := c.mul(heads, c.mul(all, held)-c.mul(again, common))
		r.KElements = c.add(r.KElements, c.mul(vectors, g.HeadDimK))
		r.VElements = c.add(r.VElements, c.mul(vectors, g.HeadDimV))
		windowed := g.Kind == Sliding || g.Kind == Chunked
		p := part(AttentionKV)
		if windowed {
			p = part(SlidingKV)
		}
		p.K, p.V, p.Bytes = c.add(p.K, k), c.add(p.V, v), c.add(p.Bytes, k, v)
		r.Padding = c.add(r.Padding, max(c.mul(ranks, c.add(kPool, vPool))-c.add(k, v), 0))
		for s := range stages {
			n := stages[s].groups[i]
			d := &devices[s]
			if windowed {
				d.windowK, d.windowV = c.add(d.windowK, c.mul(n, kPool)), c.add(d.windowV, c.mul(n, vPool))
			} else {
				d.k, d.v = c.add(d.k, c.mul(n, kPool)), c.add(d.v, c.mul(n, vPool))
			}
		}
	}
	for i, st := range m.States {
		one := c.add(c.mul(ceilDiv(st.ConvElements, req.TP), st.ConvBytes), c.mul(ceilDiv(st.SSMElements, req.TP), cmp.Or(rule.stateBytes, st.SSMBytes)))
		r.State = c.add(r.State, c.mul(st.Layers, req.TP, one, req.Sequences))
		r.Padding = c.add(r.Padding, c.mul(st.Layers, req.TP, one, max(rule.states-req.Sequences, 0)))
		for s := range stages {
			devices[s].state = c.add(devices[s].state, c.mul(stages[s].states[i], one, max(rule.states, req.Sequences)))
		}
	}
	if r.State > 0 {
		part(RecurrentState).Bytes = r.State
	}
	for s, d := range devices {
		n := c.add(d.k, d.v, d.windowK, d.windowV, d.index, d.state)
		if cr := m.Cross; cr != nil && rule.cross {
			n = c.add(n, c.mul(stages[s].cross, max(1, ceilDiv(cr.KVHeads, req.TP)), cr.HeadDimK+cr.HeadDimV, elementBytes, cr.Tokens, req.Sequences))
		}
		if n >= r.PerDevice {
			r.PerDevice, fullest = n, d
		}
	}
	if cr := m.Cross; cr != nil && rule.cross {
		all := c.mul(cr.Layers, max(1, ceilDiv(cr.KVHeads, req.TP)), req.TP, elementBytes, cr.Tokens, req.Sequences)
		p := part(CrossKV)
		p.K, p.V = c.mul(all, cr.HeadDimK), c.mul(all, cr.HeadDimV)
		p.Bytes = c.add(p.K, p.V)
		r.Cross = p.Bytes
	}
	if r.Padding > 0 {
		part(PaddingBytes).Bytes = r.Padding
	}
	r.Components = listComponents(parts)
	return r, fullest, c.err
}

// listComponents puts the components that hold something in their order.
func listComponents(parts map[string]*Component) []Component {
	var out []Component
	for _, name := range []string{AttentionKV, SlidingKV, RecurrentState, IndexerKeys, CrossKV, DraftKV, PaddingBytes} {
		if p := parts[name]; p != nil && p.Bytes > 0 {
			out = append(out, *p)
		}
	}
	return out
}

// A bitsSide is K or V in so many bits an element with scales: one of
// scaleBytes for each group of so many elements of a head.
type bitsSide struct {
	name       string
	bits       int64
	group      int64 // elements a scale; 0: no scales
	scaleBytes int64
}

// Name is the engine's name of the type.
func (s bitsSide) Name() string { return s.name }

// Size is codes and scales of [heads, tokens, dim], each vector on its own.
func (s bitsSide) Size(heads, tokens, dim int64) (data, metadata int64, err error) {
	var c calc
	vectors := c.mul(heads, tokens)
	data = c.mul(vectors, ceilDiv(c.mul(dim, s.bits), 8))
	if s.group > 0 {
		metadata = c.mul(vectors, ceilDiv(dim, s.group), s.scaleBytes)
	}
	return data, metadata, c.err
}

// bitsScheme reads one of an engine's types for both sides, or K:V; also holds
// further names of them.
func bitsScheme(engine, name string, types []bitsSide, also map[string]string) (Scheme, error) {
	find := func(name string) (bitsSide, error) {
		name = strings.ToLower(strings.TrimSpace(name))
		if other, ok := also[name]; ok {
			name = other
		}
		var names []string
		for _, t := range types {
			if t.name == name {
				return t, nil
			}
			names = append(names, t.name)
		}
		return bitsSide{}, fmt.Errorf("%s has no cache type %q (%s)", engine, name, strings.Join(names, ", "))
	}
	kName, vName, pair := strings.Cut(name, ":")
	k, err := find(kName)
	if err != nil || !pair {
		return Scheme{Name: k.name, K: k, V: k}, err
	}
	v, err := find(vName)
	if err != nil {
		return Scheme{}, err
	}
	s := Scheme{Name: k.name, K: k, V: v}
	if k.name != v.name {
		s.Name += ":" + v.name
	}
	return s, nil
}
