package cmd

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"kvq/kernels"
	"kvq/quantize"
)

// TestFillRows holds that attention over a cache that encodes rows by itself gives the
// same bits as over one filled with what the coder made of them.
func TestFillRows(t *testing.T) {
	defer kernels.Use(kernels.Active())
	r := rand.New(rand.NewPCG(3, 1))
	direct := 0
	for _, codec := range []string{"f16", "int8", "int4"} {
		for _, zero := range []string{"", "-asym", "-zp"} {
			for _, share := range []string{"-token", "-token/32", "-token/48", "-token/64", "-token/16", "-channel", "-channel/32", "-channel/64", "-channel/128", "-channel/192", "-head", "-tensor"} {
				for _, meta := range []string{"", "@f32", "@bf16"} {
					if meta != "" && share != "-token" && share != "-channel/32" {
						continue
					}
					name := codec + zero + share + meta
					if codec == "f16" {
						if zero+share+meta != "-token" {
							continue
						}
						name = codec
					}
					pair, err := quantize.ParsePair(name)
					if err != nil {
						t.Fatal(err)
					}
					for _, shape := range []kernels.CacheShape{
						{Heads: 1, DimK: 80, DimV: 112, Tokens: 461}, {Heads: 1, DimK: 192, DimV: 128, Tokens: 130}, {Heads: 1, DimK: 100, DimV: 72, Tokens: 70},
					} {
						if pair.K.Group > 0 && pair.K.Share == quantize.PerToken && pair.K.Group > min(shape.DimK, shape.DimV) {
							continue
						}
						direct += compareFill(t, r, name, pair.K, shape)
					}
				}
			}
		}
	}
	if direct < 100 {
		t.Errorf("only %d caches took rows", direct)
	}
}

// compareFill fills caches both ways, on every backend, and returns how many sides took
// rows.
func compareFill(t *testing.T, r *rand.Rand, name string, s *quantize.Scheme, shape kernels.CacheShape) (direct int) {
	t.Helper()
	dims := []int{shape.DimK, shape.DimV}
	var values [2][]float32
	for i, dim := range dims {
		tiny := []float32{0, 0x1p-149, 0x1p-30}[r.IntN(3)]
		for j := range shape.Tokens * dim {
			x := float32(r.NormFloat64()) * float32(math.Exp(float64(j%dim%7)))
			if j%dim == 3 || j/dim == 2 {
				x = tiny // a column and a row that need the least scale, or none
			}
			values[i] = append(values[i], x)
		}
	}
	q := make([]float32, 2*shape.DimK)
	for i := range q {
		q[i] = float32(r.NormFloat64())
	}
	step := func(rows bool) []float32 {
		encoders := make([]*sideEncoder, 2)
		for i, dim := range dims {
			var err error
			if encoders[i], err = newSideEncoder(s, shape.Tokens, dim, nil); err != nil {
				t.Fatal(err)
			}
			if s.Calibrated() {
				if err := encoders[i].coder.Observe(&encoders[i].calibration, quantize.Head{Dim: dim, Values: values[i]}); err != nil {
					t.Fatal(err)
				}
			}
		}
		cache, err := kernels.NewCache(shape, encoders[0].format, encoders[1].format)
		if err != nil {
			t.Fatal(err)
		}
		defer cache.Close()
		var encoded [2]kernels.Encoded
		for i, dim := range dims {
			head := quantize.Head{Dim: dim, Values: values[i]}
			if rows {
				if encoders[i].takesRows(cache, i == 0) {
					direct++
				}
				err = encoders[i].fill(cache, i == 0, head)
			} else {
				encoded[i], err = encoders[i].encode(head)
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if !rows {
			if err := cache.Fill(0, shape.Tokens, encoded[0], encoded[1]); err != nil {
				t.Fatal(err)
			}
		}
		d, err := kernels.NewDecoder(cache, kernels.DecodeOptions{QueryHeads: 2, Scale: 0.01, Threads: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		out := make([]float32, 2*shape.DimV)
		if err := d.Step(cache, out, q); err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, isa := range kernels.Available() {
		if err := kernels.Use(isa); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(step(true), step(false)) {
			t.Errorf("%s, %+v, %s: rows and codes give other outputs", name, shape, isa)
		}
	}
	return direct
}
