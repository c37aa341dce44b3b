package formula

import "fmt"

// Ideal is the sum over the layers of what they keep: no blocks, no padding.
//
// A layer of n KV heads holds K [n, tokens, d_k] and V [n, tokens, d_v], each
// priced by its Sizer for every sequence; a latent is one tensor, priced as K.
// Index keys take 2 bytes an element, as does cross attention; recurrent state
// keeps its own types. Over tp ranks the heads are split as evenly as they go,
// and every rank holds one when there are more ranks than heads; latents and
// index keys are on every rank; state is split by elements. Over pp stages the
// blocks are split as evenly as they go, the first stages taking one more.
func Ideal() Engine {
	return Engine{
		Name:         "ideal",
		Title:        "the exact sum over layers: no blocks, no padding",
		SharesPrefix: true,
		Reserve:      reserveIdeal,
		Explain:      explainIdeal,
	}
}

// elementBytes is the size of an element that no scheme changes: index keys
// and cross attention are 16-bit.
const elementBytes = 2

func reserveIdeal(req Request) (Reservation, error) {
	stages, err := req.Model.stages(req.PP)
	if err != nil {
		return Reservation{}, err
	}
	var c calc
	var r Reservation
	parts := map[string]Component{}
	layers := make([]layerSize, len(req.Model.Geometry))
	for i, g := range req.Model.Geometry {
		prefix, own, err := idealLayers(g, req)
		if err != nil {
			return Reservation{}, fmt.Errorf("group %s: %w", g, err)
		}
		l := prefix.plus(&c, own, req.Sequences)
		layers[i] = l
		for _, part := range []struct {
			to  *int64
			one int64
		}{
			{&r.Data, c.add(l.k.data, l.v.data, l.index)}, {&r.Metadata, c.add(l.k.metadata, l.v.metadata)},
			{&r.KBytes, c.add(l.k.data, l.k.metadata)}, {&r.VBytes, c.add(l.v.data, l.v.metadata)},
			{&r.KElements, l.k.elements}, {&r.VElements, l.v.elements},
		} {
			*part.to = c.add(*part.to, c.mul(g.Count, part.one))
		}
		name := AttentionKV
		switch {
		case g.Extra == Index:
			name = IndexerKeys
		case g.Kind == Sliding || g.Kind == Chunked:
			name = SlidingKV
		}
		k := c.mul(g.Count, c.add(l.k.data, l.k.metadata, l.index))
		v := c.mul(g.Count, c.add(l.v.data, l.v.metadata))
		parts[name] = Component{name, c.add(parts[name].Bytes, k, v), c.add(parts[name].K, k), c.add(parts[name].V, v)}
	}
	r.State = c.mul(c.keep(req.Model.StateBytes()), req.Sequences)
	cross := req.Model.Cross
	if cross != nil {
		r.Cross = c.mul(cross.Layers, max(cross.KVHeads, req.TP), c.add(cross.HeadDimK, cross.HeadDimV), elementBytes, cross.Tokens, req.Sequences)
	}
	parts[RecurrentState] = Component{Name: RecurrentState, Bytes: r.State}
	parts[CrossKV] = Component{Name: CrossKV, Bytes: r.Cross}
	for _, name := range []string{AttentionKV, SlidingKV, IndexerKeys, RecurrentState, CrossKV} {
		if parts[name].Bytes > 0 {
			r.Components = append(r.Components, parts[name])
		}
	}
	for _, s := range stages {
		device := int64(0)
		for i, n := range s.groups {
			device = c.add(device, c.mul(n, layers[i].device))
		}
		for i, n := range s.states {
			state := req.Model.States[i]
			device = c.add(device,
				c.mul(n, ceilDiv(state.ConvElements, req.TP), state.ConvBytes, req.Sequences),
				c.mul(n, ceilDiv(state.SSMElements, req.TP), state.SSMBytes, req.Sequences))
		}
		if cross != nil {
			device = c.add(device, c.mul(s.cross, ceilDiv(cross.KVHeads, req.TP), c.add(cross.HeadDimK, cross.HeadDimV), elementBytes, cross.Tokens, req.Sequences))
		}
		r.PerDevice = max(r.PerDevice, device)
	}
	if c.err != nil {
		return Reservation{}, c.err
	}
	return r, nil
}

// layerSize is what one layer keeps: over all tensor parallel ranks, and on the
// fullest of them.
type layerSize struct {
	k, v   sideSize
	index  int64 // index keys are on neither side
	device int64
}

type sideSize struct{ data, metadata, elements int64 }

// plus adds n times another size.
func (l layerSize) plus(c *calc, other layerSize, n int64) layerSize {
	side := func(a, b sideSize) sideSize {
		return sideSize{c.add(a.data, c.mul(n, b.data)), c.add(a.metadata, c.mul(n, b.metadata)), c.add(a.elements, c.mul(n, b.elements))}
	}
	return layerSize{side(l.k, other.k), side(l.v, other.v), c.add(l.index, c.mul(n, other.index)), c.add(l.device, c.mul(n, other.device))}
}

// idealLayers prices a layer of the group: what all sequences have in common,
// and what each has of its own.
func idealLayers(g Group, req Request) (prefix, own layerSize, err error) {
	shared := g.shared(req.Context, req.Prefix)
	if shared > 0 {
		if prefix, err = idealLayer(g, shared, req.TP, req.Scheme); err != nil {
			return prefix, own, err
		}
		if shared == g.Tokens(req.Context) {
			return prefix, own, nil
		}
	}
	own, err = idealLayer(g, g.Tokens(req.Context)-shared, req.TP, req.Scheme)
	return prefix, own, err
}

// idealLayer prices a layer of the group that keeps so many vectors.
func idealLayer(g Group, tokens, tp int64, scheme Scheme) (layerSize, error) {
	// Ranks alike: so many of them, each with so many heads.
	type share struct{ ranks, heads int64 }
	shares := []share{{g.KVHeads % tp, g.KVHeads/tp + 1}, {tp - g.KVHeads%tp, g.KVHeads / tp}}
	switch {
	case g.Latent() || g.Extra == Index:
		shares = []share{{tp, g.KVHeads}}
	case tp > g.KVHeads:
		shares = []share{{tp, 1}}
	}
	var c calc
	var l layerSize
	for _, s := range shares {
		if s.ranks == 0 {
			continue
		}
		device := int64(0)
		if g.Extra == Index {
			device = c.mul(s.heads, tokens, c.add(g.HeadDimK, g.HeadDimV), elementBytes)
			l.index = c.add(l.index, c.mul(s.ranks, device))
			l.device = max(l.device, device)
			continue
		}
		for _, side := range []struct {
			sizer Sizer
			dim   int64
			size  *sideSize
		}{{scheme.K, g.HeadDimK, &l.k}, {scheme.V, g.HeadDimV, &l.v}} {
			if side.dim == 0 {
				continue
			}
			data, metadata, err := side.sizer.Size(s.heads, tokens, side.dim)
			if err != nil {
				return l, err
			}
			side.size.data = c.add(side.size.data, c.mul(s.ranks, data))
			side.size.metadata = c.add(side.size.metadata, c.mul(s.ranks, metadata))
			side.size.elements = c.add(side.size.elements, c.mul(s.ranks, s.heads, tokens, side.dim))
			device = c.add(device, data, metadata)
		}
		l.device = max(l.device, device)
	}
	return l, c.err
}

// A stage is the blocks of one pipeline stage, by group and state.
type stage struct {
	groups, states []int64
	cross          int64
}

// stages splits the model over pp pipeline stages.
func (m *Model) stages(pp int64) ([]stage, error) {
	if pp == 1 {
		s := stage{groups: make([]int64, len(m.Geometry)), states: make([]int64, len(m.States))}
		for i, g := range m.Geometry {
			s.groups[i] = g.Count
		}
		for i, st := range m.States {
			s.states[i] = st.Layers
		}
		if m.Cross != nil {
			s.cross = m.Cross.Layers
		}
		return []stage{s}, nil
	}
	blocks := m.Blocks()
	n := int64(len(blocks))
	if pp > n {
		return nil, fmt.Errorf("%d pipeline stages for %d layers", pp, n)
	}
	stages := make([]stage, pp)
	at := int64(0)
	for i := range stages {
		s := &stages[i]
		s.groups, s.states = make([]int64, len(m.Geometry)), make([]int64, len(m.States))
		size := n / pp
		if int64(i) < n%pp {
			size++
		}
		for _, b := range blocks[at : at+size] {
			for _, g := range b.Groups {
				s.groups[g]++
			}
			for _, st := range b.States {
				s.states[st]++
			}
		}
		at += size
		if m.Cross != nil {
			s.cross = ceilDiv(m.Cross.Layers, pp)
		}
	}
	return stages, nil
}
