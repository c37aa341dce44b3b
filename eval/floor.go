package eval

import (
	"context"
	"math"
	"math/rand/v2"

	"kvq/kernels"
	"kvq/quantize"
)

// floorTokens is the most tokens that the floor of a scheme is measured on.
const floorTokens = 2048

// gaussian returns tokens rows of dim values of N(0,1), the same in every run
// and on every machine: Marsaglia's polar method over a fixed PCG.
func gaussian(tokens, dim int) []float32 {
	x := make([]float32, tokens*dim)
	r := rand.NewPCG(0x6b7671, 0x666c6f6f72)
	uniform := func() float64 { return float64(float64(r.Uint64()>>11)*0x1p-52) - 1 }
	for i := 0; i < len(x); {
		a, b := uniform(), uniform()
		s := float64(a*a) + float64(b*b)
		if s >= 1 || s == 0 {
			continue
		}
		scale := math.Sqrt(-2 * kernels.Log(s) / s)
		x[i] = float32(a * scale)
		if i++; i < len(x) {
			x[i] = float32(b * scale)
			i++
		}
	}
	return x
}

// floor returns the centred NMSE of a scheme on one head x of Gaussian values
// whose centred energy is given: what remains when nothing about the data is
// unfavourable; NaN where the scheme does not apply.
func floor(s *quantize.Scheme, x []float32, dim int, energy float64) float64 {
	coder := s.NewCoder()
	head := quantize.Head{Dim: dim, Values: x, Heads: 1}
	var calibration quantize.Calibration
	if s.Calibrated() {
		if err := coder.Observe(&calibration, head); err != nil {
			return math.NaN()
		}
	}
	var encoded quantize.Encoded
	if err := coder.Encode(&encoded, head, &calibration); err != nil {
		return math.NaN()
	}
	e := make([]float32, len(x))
	coder.Decode(e, &encoded)
	tokens := len(x) / dim
	squares, cross, sums := make([]float64, tokens), make([]float64, tokens), make([]float64, dim)
	kernels.Errors(e, e, x, squares, cross, sums)
	var lost float64
	for _, v := range squares {
		lost += v
	}
	for _, v := range sums {
		lost -= float64(v*v) / float64(tokens)
	}
	return max(lost, 0) / energy
}

// floors returns the floor of every side on a layer's shape.
func (p *plan) floors(ctx context.Context, l *Layer, sizes [2][]*quantize.Size, threads int) (floors [2][]float64, err error) {
	for tensor, sides := range p.sides {
		dim := l.shape(tensor).Dim
		x := gaussian(min(l.Tokens, floorTokens), dim)
		_, energy := newHeadStats(x, dim).totalEnergy()
		floors[tensor] = make([]float64, len(sides))
		err = parallel(ctx, threads, len(sides), func(_ context.Context, _, i int) error {
			floors[tensor][i] = math.NaN()
			if sizes[tensor][i] != nil {
				floors[tensor][i] = floor(sides[i].scheme, x, dim, energy)
			}
			return nil
		})
		if err != nil {
			return floors, err
		}
	}
	return floors, nil
}
