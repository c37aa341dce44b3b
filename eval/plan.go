package eval

import (
	"errors"
	"fmt"
	"slices"

	"kvq/quantize"
)

// A plan is what to measure: combinations of sides, each side once.
type plan struct {
	combos   []combo
	sides    [2][]*side // of keys and of values
	optional bool       // schemes that do not fit are left out
}

// The indices of the two tensors that a scheme stores.
const (
	keys = iota
	values
)

var tensors = [2]Tensor{Keys, Values}

// A combo is a row of every layer: a side of the keys and one of the values, −1
// for exact.
type combo struct {
	name   string
	online bool
	side   [2]int
	runsOn []quantize.Deployment
}

// A side is a scheme on one tensor.
type side struct {
	scheme *quantize.Scheme
	name   string
}

// newPlan parses the schemes asked for, the default ones where there are none.
// Asked for twice is measured once.
func newPlan(names []string, optional bool, layers []*Layer) (*plan, error) {
	p := &plan{optional: optional || len(names) == 0}
	if len(names) == 0 {
		var dtypes []string
		for _, l := range layers {
			dtypes = append(dtypes, l.DType)
		}
		names = DefaultSchemes(dtypes...)
	}
	seen := map[string]bool{}
	for _, name := range names {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			return nil, err
		}
		if pair.K == nil && pair.V == nil {
			return nil, &quantize.SchemeError{Name: name, Reason: "nothing is quantized"}
		}
		c := combo{name: pair.Name(), online: pair.Online(), runsOn: pair.Deployments()}
		if seen[c.name] {
			continue
		}
		seen[c.name] = true
		c.side[keys], c.side[values] = p.add(keys, pair.K), p.add(values, pair.V)
		p.combos = append(p.combos, c)
	}
	return p, nil
}

func (p *plan) add(tensor int, s *quantize.Scheme) int {
	if s == nil {
		return -1
	}
	name := s.Name()
	for i, have := range p.sides[tensor] {
		if have.name == name {
			return i
		}
	}
	p.sides[tensor] = append(p.sides[tensor], &side{scheme: s, name: name})
	return len(p.sides[tensor]) - 1
}

// sideName returns the canonical name of a combo's side.
func (p *plan) sideName(c combo, tensor int) string {
	if c.side[tensor] < 0 {
		return Exact
	}
	return p.sides[tensor][c.side[tensor]].name
}

// shape returns the shape of a layer's keys or values.
func (l *Layer) shape(tensor int) quantize.Shape {
	dim := l.DimK
	if tensor == values {
		dim = l.DimV
	}
	return quantize.Shape{Heads: l.KVHeads, Tokens: l.Tokens, Dim: dim}
}

// sizes returns the size of every side on a layer. A scheme that does not fit
// the layer's shape is an error when it was named, else it is left out (a nil
// size), and omit told why.
func (p *plan) sizes(l *Layer, omit func(l *Layer, reason string)) (sizes [2][]*quantize.Size, err error) {
	for tensor, sides := range p.sides {
		for _, s := range sides {
			size, err := s.scheme.Size(l.shape(tensor))
			var misfit *quantize.SchemeError
			switch {
			case err == nil:
				sizes[tensor] = append(sizes[tensor], &size)
			case p.optional && errors.As(err, &misfit):
				omit(l, err.Error())
				sizes[tensor] = append(sizes[tensor], nil)
			default:
				return sizes, fmt.Errorf("%s: layer %d: %w", l.Dump, l.Number, err)
			}
		}
	}
	return sizes, nil
}

// alone returns the combo that a side makes with an exact other side, −1
// without one.
func (p *plan) alone(tensor, side int) int {
	return slices.IndexFunc(p.combos, func(c combo) bool { return c.side[tensor] == side && c.side[1-tensor] < 0 })
}

// paired reports whether a side of the values is in a pair.
func (p *plan) paired(side int) bool {
	return slices.ContainsFunc(p.combos, func(c combo) bool { return c.side[values] == side && c.side[keys] >= 0 })
}
