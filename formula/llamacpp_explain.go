package formula

import "fmt"

// explainLlamaCpp writes a context's sizes in llama.cpp's terms: cells, then
// what the layers of each cache hold for them, then the state.
func explainLlamaCpp(req Request) ([]string, error) {
	k, v, err := llamaTypes(req.Scheme)
	if err != nil {
		return nil, err
	}
	plan, draft, l, err := planLlamaCpp(req)
	if err != nil {
		return nil, err
	}
	e := llamaExplanation{k: k, v: v, tp: req.TP}
	e.context(plan, l)
	for _, p := range []*llamaPlan{plan, draft} {
		if p != nil {
			e.caches(p, p.context(l, &e.c))
		}
	}
	return e.lines, e.c.err
}

type llamaExplanation struct {
	lines []string
	c     calc
	k, v  ggmlType
	tp    int64
}

func (e *llamaExplanation) line(format string, args ...any) {
	e.lines = append(e.lines, fmt.Sprintf(format, args...))
}

// context writes how the request becomes cells.
func (e *llamaExplanation) context(p *llamaPlan, l llamaOptions) {
	x := p.context(l, &e.c)
	each := "shared by all slots"
	if !l.unified {
		each = "for each"
	}
	e.line("a context of %s tokens over %s, in multiples of %d: %s cells %s", thousands(l.context), counted(l.slots, "slot"),
		l.pad, thousands(x.cells[baseCells]), each)
	for _, c := range p.caches {
		if c.cells != windowCells {
			continue
		}
		if l.swaFull {
			e.line("sliding layers, swa-full: %s cells", thousands(x.cells[windowCells]))
			break
		}
		e.line("sliding layers: min(%s, window %s x %s + micro-batch %s, in multiples of %d) = %s cells", thousands(x.cells[baseCells]),
			thousands(p.window), counted(x.sharing, "slot"), thousands(x.ubatch), l.pad, thousands(x.cells[windowCells]))
		break
	}
}

// caches writes each cache, layers of the same shape together.
func (e *llamaExplanation) caches(p *llamaPlan, x llamaContext) {
	c := &e.c
	for _, cache := range p.caches {
		if len(cache.layers) == 0 {
			continue
		}
		streams := x.streamsOf(cache)
		cells := x.cells[cache.cells]
		all := c.mul(cells, streams)
		e.line("%s: %s x %s", cache.role, counted(cells, "cell"), counted(streams, "stream"))
		var shapes []llamaLayer
		count := map[llamaLayer]int64{}
		for _, l := range cache.layers {
			l.index = 0
			if count[l] == 0 {
				shapes = append(shapes, l)
			}
			count[l]++
		}
		for _, l := range shapes {
			k := llamaTensorSize(c, e.k, l, l.k, 0, all, e.tp, cache.latent)
			v := llamaTensorSize(c, e.v, l, l.v, x.widest(cache), all, e.tp, cache.latent)
			text := fmt.Sprintf("K %d x %d as %s", l.kvHeads, l.k, e.k.name)
			if l.v > 0 {
				text += fmt.Sprintf(", V %d x %d as %s", l.kvHeads, l.v, e.v.name)
			}
			if v.padding > 0 {
				text += fmt.Sprintf(", V padded to %s elements", thousands(cache.vWidest))
			}
			n := count[l]
			e.line("  %s, %s: %s + %s B", counted(n, "layer"), text, thousands(c.mul(n, c.add(k.data, k.scales))),
				thousands(c.mul(n, c.add(v.data, v.scales, v.padding))))
		}
	}
	var state, compressor int64
	for _, s := range p.states {
		state, compressor = c.add(state, s.r, s.s, s.p), c.add(compressor, s.comp)
	}
	if state > 0 {
		e.line("state: %s elements over %s, float32 of 4 B, x %s = %s B", thousands(state),
			counted(int64(len(p.states)), "layer"), counted(x.rows, "row"), thousands(c.mul(state, x.rows, 4)))
	}
	if compressor > 0 {
		e.line("compressor state: %s elements over %s, float32 of 4 B, x %s = %s B", thousands(compressor),
			counted(int64(len(p.states)), "layer"), counted(x.rows, "plane"), thousands(c.mul(compressor, x.rows, 4)))
	}
	if p.none != "" {
		e.line("%s: %s", p.name, p.none)
	}
}
