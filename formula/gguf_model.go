package formula

import "fmt"

// Model describes the model behind a GGUF header by its layers: what each one
// keeps of a token, as llama.cpp's loader understands the file. With assume,
// keys that may change the cache in a way unknown here are passed over; the
// figures are then an upper bound, as [Model.UpperBound] says.
func (g *GGUF) Model(assume bool) (*Model, error) {
	l, err := readLlamaModel(g, assume)
	if err != nil {
		return nil, err
	}
	m := &Model{
		Family: l.name, Params: g.Parameters, Layers: l.trunk(), MaxContext: l.trainContext,
		Source: "gguf", Facts: l.facts, gguf: g, assumed: assume,
	}
	if l.router {
		m.Layers = l.layers
	}
	m.Name, _ = g.Text("general.name")
	if m.Name == "" {
		m.Name = l.name
	}
	if _, known := llamaArchs[l.name]; !known {
		m.UpperBound = fmt.Sprintf("GGUF architecture %q is not known, every layer is taken to keep every token", l.name)
	}
	if assume {
		k := &ggufKeys{g: g, arch: l.name}
		if k.refuseUnknown(); k.err != nil && m.UpperBound == "" {
			m.UpperBound = fmt.Sprintf("%v, and is passed over", k.err)
		}
	}
	if l.memory == noMemory {
		m.Notes = append(m.Notes, fmt.Sprintf("%s reads the whole input at once and keeps no cache", l.name))
		return m, nil
	}
	if uniform(l.heads[:l.trunk()]) {
		m.QueryHeads = l.heads[0]
	}
	if l.isMLA() {
		m.MLA = &MLA{Rank: l.latent, RopeDim: l.k - l.latent, NopeDim: l.kMLA - (l.k - l.latent), VDim: l.vMLA, Heads: l.heads[0]}
	}
	if window, ok := g.Int(l.name + ".attention.sliding_window"); ok && window > 0 && !l.windowed {
		m.Notes = append(m.Notes, fmt.Sprintf("the file gives a sliding window of %d, which llama.cpp does not apply to %s", window, l.name))
	}
	plan, err := l.plan("", false)
	if err != nil {
		return nil, err
	}
	m.Order = make([]Block, m.Layers)
	for _, c := range plan.caches {
		for _, layer := range c.layers {
			if layer.kvHeads == 0 {
				continue
			}
			if layer.k == 0 {
				return nil, fmt.Errorf("architecture %s: layer %d has KV heads of width 0", l.name, layer.index)
			}
			group := l.group(c, layer)
			if layer.index >= m.Layers {
				continue
			}
			var at int
			m.Geometry, at = m.Geometry.addLayer(group)
			m.Order[layer.index].Groups = append(m.Order[layer.index].Groups, at)
		}
	}
	l.addStates(m, plan)
	if len(m.Geometry) == 0 && len(m.States) == 0 {
		return nil, fmt.Errorf("architecture %s: no layer has a KV head", l.name)
	}
	if draft, err := l.plan("", true); err == nil {
		for _, c := range draft.caches {
			for _, layer := range c.layers {
				m.Draft, _ = m.Draft.addLayer(l.group(c, layer))
			}
		}
	}
	return m, nil
}

// addStates lists the recurrent states of the plan, in float32 as llama.cpp
// keeps them.
func (l *llamaModel) addStates(m *Model, plan *llamaPlan) {
	kinds := map[llamaState]string{llamaSSMNoGroups: "mamba1", llamaSSM: "mamba2", llamaKDA: "kda", llamaLinear: "lightning", llamaShortconv: "shortconv"}
	for _, layer := range plan.states {
		s := State{Kind: kinds[l.state], Layers: 1, ConvElements: layer.r + layer.p, SSMElements: layer.s, ConvBytes: 4, SSMBytes: 4}
		if l.memory == hybridMemory && l.recur == recurrentInterval && l.state == llamaSSM || l.name == "qwen4exp" {
			s.Kind = "gdn"
		}
		if layer.index >= m.Layers || s.ConvElements+s.SSMElements == 0 {
			continue
		}
		at := -1
		for i, known := range m.States {
			known.Layers = 1
			if known == s {
				at = i
			}
		}
		if at < 0 {
			m.States = append(m.States, s)
			at = len(m.States) - 1
		} else {
			m.States[at].Layers++
		}
		m.Order[layer.index].States = append(m.Order[layer.index].States, at)
	}
}

// group describes one layer of a cache.
func (l *llamaModel) group(c llamaCache, layer llamaLayer) Group {
	g := Group{Count: 1, Kind: Full, KVHeads: layer.kvHeads, HeadDimK: layer.k, HeadDimV: layer.v}
	if c.role == IndexerKeys {
		g.Extra = Index
	}
	switch c.cells {
	case windowCells:
		g.Kind, g.Window = Sliding, max(l.window, 1)
		if l.windowRule == windowChunked {
			g.Kind = Chunked
		}
	case csaCells, hcaCells:
		g.Kind, g.Ratio = Compressed, dsv4CSARatio
		if c.cells == hcaCells {
			g.Ratio = dsv4HCARatio
		}
		if g.Extra == "" {
			g.Extra = Entries
		}
	}
	return g
}

// addLayer counts a layer in the group alike, and returns the group's index.
func (g Geometry) addLayer(layer Group) (Geometry, int) {
	for i := range g {
		alike := g[i]
		alike.Count = layer.Count
		if alike == layer {
			g[i].Count += layer.Count
			return g, i
		}
	}
	return append(g, layer), len(g)
}

func uniform(list []int64) bool {
	for _, n := range list {
		if n != list[0] {
			return false
		}
	}
	return len(list) > 0
}
