package cmd

import (
	"errors"
	"fmt"
	"math"

	"kvq/formula"
	"kvq/quantize"
)

// readScheme finds the pair called name, as formula prices it.
func readScheme(name string) (formula.Scheme, error) {
	pair, err := quantize.ParsePair(name)
	if err != nil {
		return formula.Scheme{}, err
	}
	return formula.Scheme{Name: pair.Name(), K: sizer{pair.K}, V: sizer{pair.V}}, nil
}

// sizer prices one side of a pair; a side left exact is kept in 16 bits.
type sizer struct{ scheme *quantize.Scheme }

func (s sizer) Name() string { return quantize.SideName(s.scheme) }

func (s sizer) Size(heads, tokens, dim int64) (data, metadata int64, err error) {
	if max(heads, tokens, dim) > math.MaxInt {
		return 0, 0, formula.ErrOverflow
	}
	if s.scheme == nil {
		return exactSize(heads, tokens, dim)
	}
	size, err := s.scheme.Size(quantize.Shape{Heads: int(heads), Tokens: int(tokens), Dim: int(dim)})
	var scheme *quantize.SchemeError
	if err != nil && !errors.As(err, &scheme) {
		err = fmt.Errorf("%w (%w)", formula.ErrOverflow, err)
	}
	return size.Data, size.Metadata, err
}

// Dips tells formula that recent tokens of a scheme with groups of tokens are
// encoded so many at a time.
func (s sizer) Dips() (period, offset int64) {
	if s.scheme == nil || s.scheme.Share != quantize.PerChannel || s.scheme.Group == 0 {
		return 0, 0
	}
	for _, m := range s.scheme.Modifiers {
		switch m.Kind {
		case quantize.Recent:
			period = int64(m.N)
		case quantize.Sink:
			offset = int64(m.N)
		}
	}
	return period, offset
}

// exactSize is a tensor left as it is, in 16 bits.
func exactSize(heads, tokens, dim int64) (data, metadata int64, err error) {
	f16, err := quantize.Lookup("f16")
	if err != nil {
		return 0, 0, err
	}
	return sizer{f16}.Size(heads, tokens, dim)
}
