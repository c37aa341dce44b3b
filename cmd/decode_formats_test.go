package cmd

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"kvq/eval"
	"kvq/kernels"
	"kvq/quantize"
)

// cachedSchemes lists the sides that a paged cache can hold without windows and outliers:
// those of every default set, and of every format and recipe of the registry, without
// their modifiers, which change values and not what a cache holds.
func cachedSchemes(t *testing.T) []*quantize.Scheme {
	t.Helper()
	names := append(eval.DefaultSchemes("f32", "f16"), planDefaultSchemes...)
	all, err := quantize.Set("all")
	if err != nil {
		t.Fatal(err)
	}
	names = append(append(names, all...), benchSchemes...)
	for _, zero := range []string{"", "-asym", "-zp"} {
		for _, share := range []string{"tensor", "head", "token", "token/32", "channel", "channel/32"} {
			for _, bits := range []string{"8", "6", "5", "4", "3", "2"} {
				names = append(names, "int"+bits+zero+"-"+share)
			}
		}
	}
	seen := map[string]bool{}
	var schemes []*quantize.Scheme
	for _, name := range names {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []*quantize.Scheme{pair.K, pair.V} {
			if s == nil || s.Format.Class == quantize.Strided {
				continue
			}
			plain := *s
			plain.Modifiers = nil
			if _, ok := s.Format.BlockFormat(); !ok && s.Format.Class == quantize.Block {
				continue
			}
			if !seen[plain.Name()] {
				seen[plain.Name()] = true
				schemes = append(schemes, &plain)
			}
		}
	}
	return schemes
}

// TestDecodeFormats holds that every scheme of the default sets and of the registry, as
// keys and as values and beside f16, is read by a fused kernel wherever there is one, and
// that what it computes is attention over the values that the scheme's own decoder gives.
func TestDecodeFormats(t *testing.T) {
	const tokens, dim, grouped = 150, 64, 3
	r := rand.New(rand.NewPCG(3, 4))
	random := func() []float32 {
		x := make([]float32, tokens*dim)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	k, v, q := random(), random(), random()[:grouped*dim]
	read := func(dst []float32, key bool, _ int) error {
		if key {
			copy(dst, k)
		} else {
			copy(dst, v)
		}
		return nil
	}
	shape := kernels.CacheShape{Heads: 1, DimK: dim, DimV: dim, Tokens: tokens}
	before := kernels.Active()
	defer func() { _ = kernels.Use(before) }()
	f16, err := quantize.Lookup("f16")
	if err != nil {
		t.Fatal(err)
	}
	var worst float64
	for _, s := range cachedSchemes(t) {
		for _, pair := range []quantize.Pair{{K: s, V: s}, {K: s, V: f16}, {K: f16, V: s}} {
			name := pair.K.Name() + ":" + pair.V.Name()
			cache, err := fillCache(shape, pair, nil, read)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			decodedK, _ := schemeValues(t, pair.K, [][]float32{k}, dim, nil)
			decodedV, _ := schemeValues(t, pair.V, [][]float32{v}, dim, nil)
			var want []float64
			for at := 0; at < len(q); at += dim {
				want = append(want, exactStep(float64s(q[at:at+dim]), decodedK[0], decodedV[0], 1/math.Sqrt(dim)).output...)
			}
			for _, isa := range kernels.Available() {
				if err := kernels.Use(isa); err != nil {
					t.Fatal(err)
				}
				d, err := kernels.NewDecoder(cache, kernels.DecodeOptions{QueryHeads: grouped, Scale: 1 / math.Sqrt(dim), Threads: 1})
				if err != nil {
					t.Fatal(err)
				}
				out := make([]float32, grouped*dim)
				if err := d.Step(cache, out, q); err != nil {
					t.Fatal(err)
				}
				if kernel := d.Kernel(); isa != kernels.Generic && !strings.HasPrefix(kernel, "fused-") {
					t.Errorf("%s on %s: kernel %s", name, isa, kernel)
				}
				d.Close()
				var e, size float64
				for i, w := range want {
					e += (float64(out[i]) - w) * (float64(out[i]) - w)
					size += w * w
				}
				if e = math.Sqrt(e / size); !(e <= 2e-4) {
					t.Errorf("%s on %s: relative error %.3g, want at most 2e-4", name, isa, e)
				}
				worst = max(worst, e)
			}
			cache.Close()
		}
	}
	t.Logf("worst relative error %.3g", worst)
}
