package cmd

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"kvq/kernels"
	"kvq/quantize"
)

// hadamard64 turns blocks of n channels by the orthonormal Walsh–Hadamard matrix,
// entry (i, j) of which is (−1)^popcount(i&j)/√n: its own inverse.
func hadamard64(x []float64, n int) {
	if n == 0 {
		for n = 1; len(x)%(2*n) == 0; n *= 2 {
		}
	}
	for b := 0; b < len(x); b += n {
		block := append([]float64(nil), x[b:b+n]...)
		for i := range n {
			x[b+i] = 0
			for j, v := range block {
				for bits := i & j; bits != 0; bits &= bits - 1 {
					v = -v
				}
				x[b+i] += v / math.Sqrt(float64(n))
			}
		}
	}
}

// schemeValues are what one side of a scheme decodes to, head by head, and the means
// that attention over the stored values leaves out.
func schemeValues(t *testing.T, s *quantize.Scheme, heads [][]float32, dim int, rope *quantize.Rope) (values [][]float32, means [][]float32) {
	t.Helper()
	coder := s.NewCoder()
	calibration := new(quantize.Calibration)
	if !s.Calibrated() {
		calibration = nil
	}
	head := func(i int) quantize.Head {
		return quantize.Head{Index: i, Dim: dim, Values: heads[i], Heads: len(heads), Rope: rope}
	}
	for i := range heads {
		if calibration != nil {
			if err := coder.Observe(calibration, head(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range heads {
		var e quantize.Encoded
		if err := coder.Encode(&e, head(i), calibration); err != nil {
			t.Fatal(err)
		}
		x := make([]float32, len(heads[i]))
		coder.Decode(x, &e)
		values, means = append(values, x), append(means, e.MeanValues(nil))
	}
	return values, means
}

// windowedSchemes combine formats and modifiers in the ways that a cache holds differently.
var windowedSchemes = []string{
	"f16+sink3", "f16+hadamard", "int8-token+sink4", "int8-channel+recent100", "int8-head+sink2+recent30", "int4-asym-token/32+recent64",
	"int8-channel/32+recent64", "int8-channel/32+sink4+recent64", "int4-channel/64+recent64:int4-token+sink70", "int3-asym-channel/32+recent32:int2-zp-token",
	"int8-channel/7+sink1+recent14:f16", "e4m3-token+sink4+recent20", "int8-tensor+sink5:e5m2-raw+recent7", "bf16+recent5:f32+sink1",
	"int8-token+hadamard+sink4+recent20", "int8-token+sink4+recent20+hadamard", "int8-token+hadamard32+sink4+center", "int8-channel/32+recent64+center",
	"int4-token+outlier1%", "int4-asym-token/32+sink5+outlier3%", "int8-channel+outlier0.5%:int8-head+recent20+outlier2%", "int4-zp-channel/32+recent64+outlier2%",
	"int3-channel/32+hadamard+outlier5%+clip:e4m3-channel+outlier1%",
	"nuq4-channel+tails1%:nuq3-token+tails2%", "q8_0+sink4", "q8_0+hadamard+recent40", "nvfp4-ts+sink64", "iq4_nl+recent33", "tq4+hadamard+sink1",
	"int8-token+prerope+sink3+recent10:int8-token", "int8-channel/32+prerope+recent32+center+outlier1%:int8-token+center", "q4_0+prerope:int8-token",
}

// TestDecodeSchemes holds decode attention over the paged cache of a scheme to
// attention in float64 over what the scheme decodes to. Where the scheme rotates, the
// queries are rotated too and the output is rotated back; means of V are added to it.
func TestDecodeSchemes(t *testing.T) {
	const heads, grouped, dim = 2, 2, 64
	names := slices.Clone(windowedSchemes)
	for _, r := range quantize.Recipes() {
		names = append(names, r.Name)
	}
	r := rand.New(rand.NewPCG(3, 4))
	rope := &quantize.Rope{Interleaved: true, First: 5}
	for i := range 24 {
		rope.Frequencies = append(rope.Frequencies, math.Pow(500, -float64(i)/24))
	}
	for _, name := range names {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, tokens := range []int{5, 70, 256, 333} {
			var values [2][][]float32
			for i := range values {
				for range heads {
					x := make([]float32, tokens*dim)
					for j := range x {
						x[j] = float32(r.NormFloat64()) + float32(j%dim%5)/2
					}
					values[i] = append(values[i], x)
				}
			}
			shape := kernels.CacheShape{Heads: heads, DimK: dim, DimV: dim, Tokens: tokens}
			cache, err := fillCache(shape, pair, rope, func(dst []float32, key bool, head int) error {
				if key {
					copy(dst, values[0][head])
				} else {
					copy(dst, values[1][head])
				}
				return nil
			})
			var unfit *quantize.SchemeError
			if errors.Is(err, errNoCache) || errors.As(err, &unfit) {
				t.Logf("%s: %v", name, err)
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			k, _ := schemeValues(t, pair.K, values[0], dim, rope)
			v, means := schemeValues(t, pair.V, values[1], dim, nil)
			q := make([]float32, heads*grouped*dim)
			exact := make([]float64, len(q)) // the queries before rotation
			for h := 0; h < len(q); h += dim {
				x := make([]float64, dim)
				for i := range x {
					x[i] = r.NormFloat64()
				}
				copy(exact[h:], x)
				for _, m := range pair.K.Modifiers {
					if m.Kind == quantize.Hadamard {
						hadamard64(x, m.N)
					}
				}
				for i, v := range x {
					q[h+i] = float32(v)
				}
			}
			d, err := kernels.NewDecoder(cache, kernels.DecodeOptions{QueryHeads: heads * grouped, Scale: 0.125, Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			out := make([]float32, len(q))
			if err := d.Step(cache, out, q); err != nil {
				t.Fatal(err)
			}
			d.Close()
			cache.Close()
			var e, s float64
			for h := range heads * grouped {
				got := make([]float64, dim)
				for i, v := range out[h*dim:][:dim] {
					got[i] = float64(v)
				}
				for i := len(pair.V.Modifiers) - 1; i >= 0; i-- {
					switch m := pair.V.Modifiers[i]; m.Kind {
					case quantize.Hadamard:
						hadamard64(got, m.N)
					case quantize.Center:
						for c, mean := range means[h/grouped] {
							got[c] += float64(mean)
						}
					}
				}
				want := exactStep(exact[h*dim:][:dim], k[h/grouped], v[h/grouped], 0.125).output
				for i, w := range want {
					e += (got[i] - w) * (got[i] - w)
					s += w * w
				}
			}
			if rms := math.Sqrt(e / s); !(rms <= 2e-4) {
				t.Errorf("%s, %d tokens: relative error %.3g, want at most 2e-4", name, tokens, rms)
			}
		}
	}
}
