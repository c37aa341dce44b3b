package dumps

import (
	"fmt"
	"slices"
)

// Selection is the part of some layers that is written to another file.
type Selection struct {
	Layers   []*Layer
	From, To int // tokens From ≤ t < To; 0, 0 for all
}

// Contents returns the arrays and facts with which WriteSafetensors and
// WriteNPZ make a dump of the selection: tensors [heads, tokens, dim] in their
// own type where the format has it (fp8 becomes f16, which holds all of its
// values, f64 and ggml's block types become f32), query rows that stand at the
// tokens, positions counted from From, and the facts that were stated. Tokens
// that the layers leave out are left out. The facts are nil where none is
// known. Warnings say what could not be kept.
func (s Selection) Contents() (facts *FactFile, arrays []Content, warnings []string, err error) {
	facts = &FactFile{Layers: map[int]FactSet{}}
	stated := false
	for i, l := range s.Layers {
		from, to := s.From, s.To
		if to == 0 {
			to = l.Tokens
		}
		fail := func(format string, args ...any) error {
			return fmt.Errorf("%s: layer %d: %s", l.Path, l.Number, fmt.Sprintf(format, args...))
		}
		if _, ok := facts.Layers[l.Number]; ok {
			return nil, nil, nil, fail("there are two layers of this number")
		}
		if from < 0 || from >= to || to > l.Tokens {
			return nil, nil, nil, fail("has %d tokens, of which %d to %d are no part", l.Tokens, from, to)
		}
		f := l.Facts
		if i == 0 {
			facts.Model, facts.Source, facts.RoPEApplied = f.Model, f.Source, f.RoPEApplied
		} else if f.Model != facts.Model || f.Source != facts.Source || !equalBools(f.RoPEApplied, facts.RoPEApplied) {
			if !equalBools(f.RoPEApplied, facts.RoPEApplied) {
				return nil, nil, nil, fail("does not agree with the others on whether RoPE is applied")
			}
			warnings = append(warnings, fmt.Sprintf("layers are of several models or sources: %q, %q is written", facts.Model, facts.Source))
		}
		set := l.statedFacts(from)
		facts.Layers[l.Number] = set
		stated = stated || !emptyFacts(set)
		prefix := fmt.Sprintf("layers.%d.", l.Number)
		tokens := []span{{from, to}}
		arrays = append(arrays, l.content(K, prefix, tokens), l.content(V, prefix, tokens))
		if l.Queries == 0 {
			continue
		}
		rows, at := rowsWithin(l.QPositions, from, to)
		if len(rows) == 0 {
			warnings = append(warnings, fail("no query row stands at the tokens kept: q is left out").Error())
			continue
		}
		arrays = append(arrays, l.content(Q, prefix, rows), Content{Name: prefix + "q_positions", Ints: at})
		if l.Tensor(O) != nil && l.Tensor(OWeight) != nil {
			arrays = append(arrays, l.content(O, prefix, []span{{0, l.Rows(O)}}), l.content(OWeight, prefix, rows))
		}
	}
	if !stated && facts.Model == "" && facts.Source == "" && facts.RoPEApplied == nil {
		facts = nil
	}
	return facts, arrays, slices.Compact(warnings), nil
}

func equalBools(a, b *bool) bool { return a == b || a != nil && b != nil && *a == *b }

func emptyFacts(s FactSet) bool {
	return s.Scale == nil && s.Causal == nil && s.Window == nil && s.Chunk == nil && s.Softcap == nil && s.Sinks == nil && s.RoPE == nil && s.FirstPosition == nil
}

// statedFacts returns what the dump states about a layer whose first tokens
// are cut off.
func (l *Layer) statedFacts(from int) FactSet {
	f := l.Facts
	var s FactSet
	for _, name := range f.Given {
		switch name {
		case "scale":
			s.Scale = &f.Scale
		case "causal":
			s.Causal = &f.Causal
		case "window":
			s.Window = &f.Window
		case "chunk":
			s.Chunk = &f.Chunk
		case "softcap":
			s.Softcap = &f.Softcap
		case "sinks":
			s.Sinks = f.Sinks
		case "rope":
			s.RoPE = f.RoPE
		}
	}
	if first := f.FirstPosition + from; first > 0 {
		s.FirstPosition = &first
	}
	return s
}

// span is the rows from ≤ i < to.
type span struct{ from, to int }

// rowsWithin returns the query rows that stand at tokens from ≤ t < to, as
// runs, and where they stand, counted from from.
func rowsWithin(positions []int, from, to int) (rows []span, at []int) {
	for i, p := range positions {
		if p < from || p >= to {
			continue
		}
		at = append(at, p-from)
		if n := len(rows); n > 0 && rows[n-1].to == i {
			rows[n-1].to++
		} else {
			rows = append(rows, span{i, i + 1})
		}
	}
	return rows, at
}

// content streams some rows of every head of a tensor.
func (l *Layer) content(p Part, prefix string, rows []span) Content {
	t := l.Tensor(p)
	count := 0
	for _, r := range rows {
		count += r.to - r.from
	}
	shape := []int{t.Heads, count, t.Dim}
	switch p {
	case O:
		shape = shape[1:]
	case OWeight:
		shape = shape[1:2]
	}
	c := Content{Name: prefix + p.String(), DType: t.DType.writable(), Shape: shape}
	c.Values = func(e *Encoder) error {
		block := max(1, hot/t.Dim)
		buf := make([]float32, min(block, count)*t.Dim)
		for head := range t.Heads {
			for _, r := range rows {
				for from := r.from; from < r.to; from += block {
					n := min(block, r.to-from)
					if err := l.ReadRows(buf[:n*t.Dim], p, head, from, from+n); err != nil {
						return err
					}
					if err := e.Write(buf[:n*t.Dim]); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	return c
}

// writable returns the type that holds the values of d in a file that kvq
// writes.
func (d DType) writable() DType {
	switch d {
	case F16, BF16, F32:
		return d
	case E4M3, E5M2:
		return F16
	}
	return F32
}

// Size returns the bytes of the array's data.
func (c Content) Size() (int64, error) { return c.bytes() }
