package quantize

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"kvq/kernels"
)

// nearestOf returns the value of a book nearest to u by trying all, the lower on a tie.
func nearestOf(book []float32, u float64) (code int) {
	for i, v := range book {
		if math.Abs(u-float64(v)) < math.Abs(u-float64(book[code])) {
			code = i
		}
	}
	return code
}

// TestNF4 holds nf4 against its definition in every sharing.
func TestNF4(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for _, share := range []string{"-tensor", "-head", "-token", "-token/32", "-token/7@f32", "-channel", "-channel/5@bf16"} {
		ref := refParse("int4" + share) // sym: the range is the largest magnitude
		x := newTensor(2, 23, 48, func(h, t, c int) float64 { return r.NormFloat64() })
		encoded, decoded := encodeAll(t, mustLookup(t, "nf4"+share), x)
		largest := map[[3]int]float64{}
		for h, values := range x.heads {
			for i, v := range values {
				key := ref.unit(h, i/x.dim, i%x.dim)
				largest[key] = math.Max(largest[key], math.Abs(float64(v)))
			}
		}
		for h, values := range x.heads {
			for i, v := range values {
				scale := roundTo(ref.meta, largest[ref.unit(h, i/x.dim, i%x.dim)])
				code := nearestOf(nf4, f32(float64(v)/scale))
				if got := readCode(encoded[h].Codes, i/x.dim, i%x.dim, x.dim, 4); got != code {
					t.Fatalf("nf4%s: %g has code %d, want %d", share, v, got, code)
				}
				if want := f32(float64(nf4[code]) * scale); float64(decoded[h][i]) != want {
					t.Fatalf("nf4%s: %g gives %g, want %g", share, v, decoded[h][i], want)
				}
			}
		}
	}
	_, decoded := encodeAll(t, mustLookup(t, "nf4+clip"), newTensor(1, 3, 16, func(h, t, c int) float64 { return 0 }))
	if decoded[0][0] != 0 {
		t.Errorf("zero gives %g", decoded[0][0])
	}
}

// TestLearned: learned codes are the nearest in the stored codebook, of values over
// half the range around its middle; the codebook is close to a fixed point of the
// values that it was learned from and beats even steps; and it does not depend on
// the order of the heads.
func TestLearned(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 2))
	x := newTensor(3, 400, 32, func(h, t, c int) float64 { return r.NormFloat64() + float64(c%3) })
	for name, reference := range map[string]string{"nuq4-token": "int4-asym-token", "nuq3-channel": "int3-asym-channel", "nuq2-channel/50": "int2-asym-channel/50"} {
		s, ref := mustLookup(t, name), refParse(reference)
		encoded, decoded := encodeAll(t, s, x)
		book := make([]float32, 1<<ref.bits)
		kernels.FromF16(book, encoded[0].Codebook)
		ranges := map[[3]int]refRange{}
		for h, values := range x.heads {
			for i, v := range values {
				key := ref.unit(h, i/x.dim, i%x.dim)
				u, ok := ranges[key]
				if !ok {
					u = refRange{math.Inf(1), math.Inf(-1), 0}
				}
				ranges[key] = refRange{math.Min(u.lo, float64(v)), math.Max(u.hi, float64(v)), 0}
			}
		}
		sums, counts := make([]float64, len(book)), make([]float64, len(book))
		var lost float64
		for h, values := range x.heads {
			for i, v := range values {
				u := ranges[ref.unit(h, i/x.dim, i%x.dim)]
				scale, offset := roundTo("f16", f32(f32(u.hi-u.lo)/2)), roundTo("f16", f32(f32(u.hi+u.lo)/2))
				normal := f32(f32(float64(v)-offset) / scale)
				code := nearestOf(book, normal)
				if want := f32(f32(float64(book[code])*scale) + offset); float64(decoded[h][i]) != want {
					t.Fatalf("%s: %g gives %g, want %g", name, v, decoded[h][i], want)
				}
				sums[code] += normal
				counts[code]++
				lost += math.Pow(float64(decoded[h][i]-v), 2)
			}
		}
		for i, v := range book {
			if mean := sums[i] / counts[i]; math.Abs(mean-float64(v)) > 0.003 {
				t.Errorf("%s: value %d is %g, the mean of what is nearest is %g", name, i, v, mean)
			}
		}
		var even float64
		_, steps := encodeAll(t, mustLookup(t, reference), x)
		for h := range steps {
			for i, v := range steps[h] {
				even += math.Pow(float64(v-x.heads[h][i]), 2)
			}
		}
		if lost >= even {
			t.Errorf("%s: squared error %g, even steps %g", name, lost, even)
		}
		var a, b Calibration
		coder := s.NewCoder()
		for h := range x.heads {
			var one Calibration
			if err := coder.Observe(&one, x.head(len(x.heads)-1-h)); err != nil {
				t.Fatal(err)
			}
			b.Merge(one)
			if err := coder.Observe(&a, x.head(h)); err != nil {
				t.Fatal(err)
			}
		}
		e, f := new(Encoded), new(Encoded)
		if err := coder.Encode(e, x.head(1), &a); err != nil {
			t.Fatal(err)
		}
		if err := coder.Encode(f, x.head(1), &b); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(e.Append(nil), f.Append(nil)) || !bytes.Equal(e.Codebook, f.Codebook) {
			t.Errorf("%s: the order of heads changes what is learned", name)
		}
	}
	// 16 values in f16 for the tensor; a scale and an offset for each row.
	size, err := mustLookup(t, "nuq4-token").Size(Shape{3, 400, 32})
	if want := (Size{3 * 400 * 16, 3*400*4 + 32}); err != nil || size != want {
		t.Errorf("%+v, %v, want %+v", size, err, want)
	}
	encodeAll(t, mustLookup(t, "nuq3-channel+sink2+outlier2%"), x)
	for _, name := range []string{"nuq4-tensor", "nuq4-asym-token", "nf4-zp", "nuq3-token+clip"} {
		if _, err := Lookup(name); err == nil {
			t.Errorf("%s is no error", name)
		}
	}
}

// TestHQQ reshapes the whole tensor to [64, n] and holds every value against the
// definition of its column.
func TestHQQ(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for bits, name := range map[int]string{4: "hqq4", 2: "hqq2"} {
		top := math.Ldexp(1, bits) - 1
		for _, x := range []tensor{
			newTensor(3, 20, 32, func(h, t, c int) float64 { return r.NormFloat64() + float64(c%5) }),
			newTensor(1, 7, 64, func(h, t, c int) float64 { return 0.25 }),
			newTensor(5, 64, 3, func(h, t, c int) float64 { return r.NormFloat64() * 1e-6 }),
		} {
			_, decoded := encodeAll(t, mustLookup(t, name), x)
			var all []float64
			for _, values := range x.heads {
				for _, v := range values {
					all = append(all, float64(v))
				}
			}
			n := len(all) / 64
			for column := range n {
				lo, hi := math.Inf(1), math.Inf(-1)
				for row := range 64 {
					v := all[row*n+column]
					lo, hi = math.Min(lo, v), math.Max(hi, v)
				}
				scale := 1.0
				if f32(hi-lo) > 1e-4 {
					scale = math.Min(f32(top/f32(hi-lo)), 2e4)
				}
				zero := f32(-lo * scale)
				for row := range 64 {
					at := row*n + column
					q := math.Max(0, math.Min(top, math.RoundToEven(f32(f32(all[at]*scale)+zero))))
					want := f32(f32(q-roundTo("f16", zero)) * roundTo("f16", f32(1/scale)))
					perHead := len(x.heads[0])
					if got := float64(decoded[at/perHead][at%perHead]); got != want {
						t.Fatalf("%s, column %d, row %d: %g gives %g, want %g", name, column, row, all[at], got, want)
					}
				}
			}
		}
	}
	var scheme *SchemeError
	if _, err := mustLookup(t, "hqq4").Size(Shape{1, 3, 10}); !errors.As(err, &scheme) {
		t.Errorf("30 values in groups of 64: %v", err)
	}
}
