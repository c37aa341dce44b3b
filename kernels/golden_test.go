package kernels

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// goldenDigests are hashes of results over fixed inputs. They are kvq's own
// output: made by the portable code on amd64 (go test -tags purego -run Golden
// prints them when they differ), whose values the other tests of this package
// hold against independent references. What they add is that every architecture
// and every backend gives these same bits.
var goldenDigests = map[string]string{
	"codec":      "9e67c2ec79b176d70d517ffe1dc1aba4",
	"metric":     "ecf1a714975ea19408cf0d87e74aa9a3",
	"elementary": "8e7535acb6e598d47f27ad98ec25411a",
	"decode":     "9ee31f41a555801f574763313eaf8df7",
}

// plainValue returns a finite value made of integers alone: what math and rand
// make of logarithms may differ between architectures.
func plainValue(r *rand.Rand) float32 {
	switch r.IntN(4) {
	case 0:
		return float32(r.IntN(1024)-512) / 2
	case 1:
		for {
			if v := math.Float32frombits(r.Uint32()); finite(v) {
				return v
			}
		}
	case 2:
		return math.Float32frombits(r.Uint32() & 0x807fffff)
	}
	return float32(r.IntN(1<<20)-1<<19) / (1 << 18)
}

// smallValues are n multiples of 2^−18 within −2…2.
func smallValues(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.IntN(1<<20)-1<<19) / (1 << 18)
	}
	return x
}

func put[T float32 | float64](h hash.Hash, values ...T) {
	for _, v := range values {
		if v == 0 {
			v = 0 // the sign of a zero is left open by Scores and its like
		}
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], math.Float64bits(float64(v)))
		h.Write(b[:])
	}
}

// TestGolden holds every backend of every architecture to the same bits.
func TestGolden(t *testing.T) {
	digests := map[string]func(h hash.Hash, r *rand.Rand){
		"codec": func(h hash.Hash, r *rand.Rand) {
			var names []string
			for name := range codecCalls {
				names = append(names, name)
			}
			slices.Sort(names)
			for _, width := range []int{1, 16, 48, 100, 128} {
				in := codecInput{x: make([]float32, 9*width), width: width, bits: 2 + width%6}
				in.affine = Affine{smallValues(r, max(9, width)), make([]float32, max(9, width)), smallValues(r, max(9, width)), 0, float32(int(1)<<in.bits - 1)}
				for i := range in.affine.Bias {
					in.affine.Bias[i] = float32(r.IntN(1 << in.bits))
				}
				dst := make([]byte, 8*len(in.x)+8)
				for _, name := range names {
					for i := range in.x {
						in.x[i] = plainValue(r)
					}
					h.Write(codecCalls[name](&active.Load().codec, dst, in))
				}
			}
		},
		"metric": func(h hash.Hash, r *rand.Rand) {
			const tokens, dim = 16, 80
			got, want := smallValues(r, tokens*dim), smallValues(r, tokens*dim)
			squares, products, sums := make([]float64, tokens), make([]float64, tokens), make([]float64, dim)
			e := make([]float32, tokens*dim)
			Errors(e, got, want, squares, products, sums)
			put(h, e...)
			put(h, slices.Concat(squares, products, sums)...)
			q := smallValues(r, dim*MetricLanes)
			wide := make([]float64, len(q))
			for i, v := range q {
				wide[i] = float64(v) / 3
			}
			delta, out64 := make([]float32, tokens*MetricLanes), make([]float64, tokens*MetricLanes)
			Scores(delta, e, q, dim)
			Scores64(out64, e, wide, dim)
			put(h, delta...)
			put(h, out64...)
			p, logp, shift := smallValues(r, len(delta)), smallValues(r, len(delta)), [MetricLanes]float32(smallValues(r, MetricLanes))
			for i := range p {
				p[i] = abs32(p[i])
			}
			var tilts TiltSums
			w := slices.Clone(delta)
			Tilt(w, p, &shift, &tilts)
			put(h, slices.Concat(w, tilts.Second[:], tilts.First[:], tilts.Top[:], tilts.Delta[:])...)
			var peaks PeakSums
			Peak(delta, p, logp, &shift, &peaks)
			for i := range shift {
				shift[i] += peaks.Top[i]
			}
			var sum [MetricLanes]float32
			Rise(delta, logp, &shift, &sum)
			put(h, slices.Concat(peaks.First[:], peaks.Top[:], delta, sum[:])...)
			acc := make([]float64, MetricLanes*96)
			WeightedSum(acc, w, smallValues(r, tokens*96), 96)
			put(h, acc...)
		},
		"elementary": func(h hash.Hash, r *rand.Rand) {
			for range 20000 {
				x := float64(r.Int64N(1<<40)-1<<39) / (1 << 32)
				sin, cos := SinCos(x)
				put(h, Exp(x), Expm1(x), Expm1(x/1024), Log(math.Abs(x)), Log1p(math.Abs(x)/64), Tanh(x/16), sin, cos)
			}
		},
		"decode": func(h hash.Hash, r *rand.Rand) {
			const tokens, dim, heads = 150, 64, 2
			for _, bits := range []int{8, 4} {
				for _, f := range [][2]Format{
					{{Share: ShareChannel}, {Share: ShareToken}},
					{{Share: ShareToken, Group: 32, Zero: ZeroAsym}, {Share: ShareChannel, Group: 32, Zero: ZeroAsym}},
					{{Share: ShareChannel, Group: 64}, {Share: ShareToken, Zero: ZeroPoint}},
				} {
					side := func(f *Format) Encoded {
						f.Codec, f.Bits = CodecInt, bits
						e := Encoded{Fields: make([]uint8, tokens*dim), Scales: make([]float32, f.scales(tokens, dim))}
						for i := range e.Fields {
							e.Fields[i] = uint8(r.IntN(1 << bits))
						}
						for i := range e.Scales {
							e.Scales[i] = float32(1+r.IntN(63)) / float32(int(16)<<bits)
							switch f.Zero {
							case ZeroAsym:
								e.Offsets = append(e.Offsets, -float32(r.IntN(32))/16)
							case ZeroPoint:
								e.Offsets = append(e.Offsets, float32(r.IntN(1<<bits)))
							}
						}
						return e
					}
					k, v := f[0], f[1]
					ek, ev := side(&k), side(&v)
					c, err := NewCache(CacheShape{Heads: 1, DimK: dim, DimV: dim, Tokens: tokens}, k, v)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					if err := c.Fill(0, tokens, ek, ev); err != nil {
						t.Fatal(err)
					}
					d, err := NewDecoder(c, DecodeOptions{QueryHeads: heads, Scale: 0.125, Threads: 1})
					if err != nil {
						t.Fatal(err)
					}
					defer d.Close()
					out := make([]float32, heads*dim)
					if err := d.Step(c, out, smallValues(r, heads*dim)); err != nil {
						t.Fatal(err)
					}
					put(h, out...)
				}
			}
		},
	}
	eachBackend(t, func(t *testing.T) {
		for name, digest := range digests {
			h := sha256.New()
			digest(h, rand.New(rand.NewPCG(11, 12)))
			if got := hex.EncodeToString(h.Sum(nil)[:16]); got != goldenDigests[name] {
				t.Errorf("%s: digest %s, want %s", name, got, goldenDigests[name])
			}
		}
	})
}
