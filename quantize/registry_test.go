package quantize

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// TestRegistry sends every format, and every recipe's sides, through the inputs
// that break codecs: what is stored has its size, what comes back is of the
// magnitude of what went in (a fixed rotation can pile up a constant row's error in
// one channel), and exactly 0 for a head of zeros; what cannot be stored is a typed
// error and no panic.
func TestRegistry(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 1))
	signs := func(c int) float64 { return float64(1 - 2*(c%2)) }
	inputs := map[string]tensor{
		"zero":     newTensor(2, 64, 64, func(h, t, c int) float64 { return 0 }),
		"constant": newTensor(1, 64, 64, func(h, t, c int) float64 { return -0.3 }),
		"one":      newTensor(1, 64, 64, func(h, t, c int) float64 { return map[bool]float64{true: 77.7}[t == 9 && c == 9] }),
		"single":   newTensor(2, 1, 64, func(h, t, c int) float64 { return r.NormFloat64() }),
		"denormal": newTensor(1, 64, 64, func(h, t, c int) float64 { return r.NormFloat64() * 0x1p-130 }),
		"least":    newTensor(1, 64, 64, func(h, t, c int) float64 { return 0x1p-149 * signs(c) }),
		"largest":  newTensor(1, 64, 64, func(h, t, c int) float64 { return math.MaxFloat32 * signs(c) }),
		"mixed":    newTensor(1, 64, 64, func(h, t, c int) float64 { return math.Ldexp(r.NormFloat64(), r.IntN(30)-20) }),
	}
	rope := &Rope{Frequencies: []float64{1, 0.1, 0.01}}
	names := map[string]bool{}
	for _, f := range Formats() {
		names[f.Name] = true
	}
	for _, recipe := range Recipes() {
		names[recipe.K], names[recipe.V] = true, true
	}
	for name := range names {
		s := mustLookup(t, name)
		for input, x := range inputs {
			coder := s.NewCoder()
			var calibration Calibration
			var refused error
			head := func(h int) Head {
				return Head{Index: h, Dim: x.dim, Values: x.heads[h], Heads: len(x.heads), Rope: rope}
			}
			for h := range x.heads {
				if s.Calibrated() && refused == nil {
					refused = coder.Observe(&calibration, head(h))
				}
			}
			var size Size
			for h := range x.heads {
				e := new(Encoded)
				if refused == nil {
					refused = coder.Encode(e, head(h), &calibration)
				}
				if refused != nil {
					break
				}
				got := e.Size()
				if int64(len(e.Append(nil))) != got.Total() {
					t.Errorf("%s of %s: %d bytes, size %+v", name, input, len(e.Append(nil)), got)
				}
				size.Data, size.Metadata = size.Data+got.Data, size.Metadata+got.Metadata
				out := make([]float32, len(x.heads[h]))
				coder.Decode(out, e)
				largest := 0.0
				for _, v := range x.heads[h] {
					largest = math.Max(largest, math.Abs(float64(v)))
				}
				for i, v := range out {
					if input == "largest" {
						break // scale·Q may round up to an infinity: at the very end of float32
					}
					// A scale is at least the smallest positive f16.
					if !(math.Abs(float64(v-x.heads[h][i])) <= 16*largest+0x1p-24) {
						t.Fatalf("%s of %s: %g gives %g", name, input, x.heads[h][i], v)
					}
					if input == "zero" && v != 0 {
						t.Fatalf("%s: zero gives %g", name, v)
					}
				}
			}
			var value *ValueError
			var group *RangeError
			if refused != nil {
				if input != "largest" && input != "mixed" || !errors.As(refused, &value) && !errors.As(refused, &group) {
					t.Errorf("%s of %s: %v", name, input, refused)
				}
				continue
			}
			if want, err := s.Size(x.shape()); err != nil || want != size {
				t.Errorf("%s of %s: %+v, Size %+v, %v", name, input, size, want, err)
			}
		}
	}
}
