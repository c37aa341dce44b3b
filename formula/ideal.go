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
		Name:    "ideal",
		Title:   "the exact sum over layers: no blocks, no padding",
		Reserve: reserveIdeal,
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
	layers := make([]layerSize, len(req.Model.Geometry))
	for i, g := range req.Model.Geometry {
		if layers[i], err = idealLayer(g, req.Context, req.TP, req.Scheme); err != nil {
			return Reservation{}, fmt.Errorf("group %s: %w", g, err)
		}
	}
	var data, metadata, state, cross, kBytes, vBytes, kElements, vElements tally
	for i, g := range req.Model.Geometry {
		l := layers[i]
		data.add(g.Count, l.data, req.Sequences)
		metadata.add(g.Count, l.metadata, req.Sequences)
		kBytes.add(g.Count, l.kBytes, req.Sequences)
		vBytes.add(g.Count, l.vBytes, req.Sequences)
		kElements.add(g.Count, l.kElements, req.Sequences)
		vElements.add(g.Count, l.vElements, req.Sequences)
	}
	stateBytes, err := req.Model.StateBytes()
	if err != nil {
		return Reservation{}, err
	}
	state.add(stateBytes, req.Sequences)
	if c := req.Model.Cross; c != nil {
		cross.add(c.Layers, max(c.KVHeads, req.TP), c.HeadDimK+c.HeadDimV, elementBytes, c.Tokens, req.Sequences)
	}
	var r Reservation
	for _, part := range []struct {
		to   *int64
		from *tally
	}{
		{&r.Data, &data}, {&r.Metadata, &metadata}, {&r.State, &state}, {&r.Cross, &cross},
		{&r.KBytes, &kBytes}, {&r.VBytes, &vBytes}, {&r.KElements, &kElements}, {&r.VElements, &vElements},
	} {
		if *part.to, err = part.from.result(); err != nil {
			return Reservation{}, err
		}
	}
	for _, s := range stages {
		var device tally
		for i, n := range s.groups {
			device.add(n, layers[i].device, req.Sequences)
		}
		for i, n := range s.states {
			st := req.Model.States[i]
			device.add(n, ceilDiv(st.ConvElements, req.TP), st.ConvBytes, req.Sequences)
			device.add(n, ceilDiv(st.SSMElements, req.TP), st.SSMBytes, req.Sequences)
		}
		if c := req.Model.Cross; c != nil {
			device.add(s.cross, ceilDiv(c.KVHeads, req.TP), c.HeadDimK+c.HeadDimV, elementBytes, c.Tokens, req.Sequences)
		}
		n, err := device.result()
		if err != nil {
			return Reservation{}, err
		}
		r.PerDevice = max(r.PerDevice, n)
	}
	return r, nil
}

// layerSize is one layer of one sequence: over all tensor parallel ranks, and
// on the fullest of them.
type layerSize struct {
	data, metadata               int64
	kBytes, vBytes               int64
	kElements, vElements, device int64
}

func idealLayer(g Group, context, tp int64, scheme Scheme) (layerSize, error) {
	tokens := g.Tokens(context)
	// Ranks alike: so many of them, each with so many heads.
	type share struct{ ranks, heads int64 }
	shares := []share{{g.KVHeads % tp, g.KVHeads/tp + 1}, {tp - g.KVHeads%tp, g.KVHeads / tp}}
	switch {
	case g.Latent() || g.Extra == Index:
		shares = []share{{tp, g.KVHeads}}
	case tp > g.KVHeads:
		shares = []share{{tp, 1}}
	}
	var data, metadata, kBytes, vBytes, kElements, vElements tally
	var l layerSize
	for _, s := range shares {
		if s.ranks == 0 || s.heads == 0 {
			continue
		}
		var device tally
		if g.Extra == Index {
			n, err := product(s.heads, tokens, g.HeadDimK, elementBytes)
			if err != nil {
				return l, err
			}
			data.add(s.ranks, n)
			device.add(n)
		} else {
			for _, side := range []struct {
				sizer           Sizer
				dim             int64
				bytes, elements *tally
			}{
				{scheme.K, g.HeadDimK, &kBytes, &kElements},
				{scheme.V, g.HeadDimV, &vBytes, &vElements},
			} {
				if side.dim == 0 {
					continue
				}
				d, m, err := side.sizer.Size(s.heads, tokens, side.dim)
				if err != nil {
					return l, err
				}
				data.add(s.ranks, d)
				metadata.add(s.ranks, m)
				side.bytes.add(s.ranks, d)
				side.bytes.add(s.ranks, m)
				side.elements.add(s.ranks, s.heads, tokens, side.dim)
				device.add(d)
				device.add(m)
			}
		}
		n, err := device.result()
		if err != nil {
			return l, err
		}
		l.device = max(l.device, n)
	}
	for _, part := range []struct {
		to   *int64
		from *tally
	}{
		{&l.data, &data}, {&l.metadata, &metadata}, {&l.kBytes, &kBytes}, {&l.vBytes, &vBytes},
		{&l.kElements, &kElements}, {&l.vElements, &vElements},
	} {
		n, err := part.from.result()
		if err != nil {
			return l, err
		}
		*part.to = n
	}
	return l, nil
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
