package quantize

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
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

// notIdempotent are the formats whose definition does not promise to give back what they
// decoded: by the first letters of their names, and why.
var notIdempotent = map[string]string{
	"nuq":         "codebooks are learned anew",
	"iq4_nl":      "its scale is fitted to the values",
	"mxfp4-round": "values beyond 6 scales are clipped, so the largest is another",
	"mlx":         "the edge that is exact moves the scale",
	"quanto":      "decoded values are rounded to f16 before they are encoded",
	"quarot":      "decoded values are rounded to f16 before they are encoded",
	"flexgen":     "decoded values are rounded to f16 before they are encoded",
	"mid":         "the largest magnitude is not on the grid",
	"cubic":       "the largest magnitude is not on the grid",
	"pth-int4":    "a range without 0 is clipped, as its zero point has four bits",
	"tq2":         "decoded rows have another norm",
	"tq3":         "decoded rows have another norm, or codes of another",
	"tq4":         "decoded rows have another norm, or codes of another",
}

// TestRegistryIsIdempotent encodes what every format decoded again, which gives the
// same values but where the definition says otherwise.
func TestRegistryIsIdempotent(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 1))
	x := newTensor(2, 64, 64, func(h, t, c int) float64 { return r.NormFloat64() * math.Exp(r.NormFloat64()) })
	for _, f := range Formats() {
		exempt := false
		for prefix := range notIdempotent {
			exempt = exempt || strings.HasPrefix(f.Name, prefix)
		}
		if exempt {
			continue
		}
		s := mustLookup(t, f.Name)
		_, once := encodeAll(t, s, x)
		_, twice := encodeAll(t, s, tensor{x.dim, once})
		for h := range once {
			for at := 0; at < len(once[h]); at += x.dim {
				largest := 0.0
				for _, v := range once[h][at : at+x.dim] {
					largest = math.Max(largest, math.Abs(float64(v)))
				}
				for i, v := range once[h][at : at+x.dim] {
					if d := math.Abs(float64(twice[h][at+i] - v)); !(d <= 0x1p-20*largest) {
						t.Fatalf("%s: %g becomes %g, where the largest is %g", f.Name, v, twice[h][at+i], largest)
					}
				}
			}
		}
	}
}

// TestRegistryShapes encodes heads of one token and of one block, and head widths that
// formats do not divide, which are an error that names the scheme.
func TestRegistryShapes(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 2))
	for _, f := range Formats() {
		s := mustLookup(t, f.Name)
		fits := 0
		for _, dim := range []int{1, 2, 3, 16, 31, 32, 48, 64, 80, 96, 100, 128, 256, 576} {
			err := s.CheckDim(dim)
			var scheme *SchemeError
			if err != nil {
				if !errors.As(err, &scheme) || scheme.Name != s.Name() || f.Class != Block {
					t.Errorf("%s at %d: %v", f.Name, dim, err)
				}
				continue
			}
			fits++
			tokens := []int{1, 2, 33}
			if f.Class == Strided {
				tokens = []int{64}
			}
			for _, n := range tokens {
				// encodeAll holds Size to the bytes
				encoded, _ := encodeAll(t, s, newTensor(2, n, dim, func(h, t, c int) float64 { return r.NormFloat64() }))
				if got := encoded[1].Append(nil); len(got) == 0 {
					t.Errorf("%s of %d tokens at %d: no bytes", f.Name, n, dim)
				}
			}
		}
		if fits == 0 {
			t.Errorf("%s fits no head width", f.Name)
		}
	}
}
