package kernels

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// metricNoise fills guarded memory with values whose magnitudes spread over
// about spread powers of two, some of them 0.
func metricNoise(t *testing.T, r *rand.Rand, n int, head bool, spread float64) []float32 {
	x := guardedFloats(t, n, head)
	for i := range x {
		if r.IntN(16) > 0 {
			x[i] = float32(r.NormFloat64() * math.Exp2(spread*(r.Float64()-1)))
		}
	}
	return x
}

// sameBits fails unless two slices are equal bit by bit.
func sameBits[T float32 | float64](t *testing.T, what string, got, want []T) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] && !(got[i] != got[i] && want[i] != want[i]) {
			t.Fatalf("%s[%d] = %g, generic has %g", what, i, got[i], want[i])
		}
	}
}

func TestErrors(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 1))
		for _, dim := range []int{1, 7, 15, 16, 17, 32, 48, 64, 80, 128, 576} {
			for _, rows := range []int{0, 1, 2, 5} {
				for _, head := range []bool{true, false} {
					got := metricNoise(t, r, rows*dim, head, 20)
					want := metricNoise(t, r, rows*dim, head, 20)
					e, e2 := guardedFloats(t, rows*dim, head), make([]float32, rows*dim)
					squares, products, sums := make([]float64, rows), make([]float64, rows), make([]float64, dim)
					for i := range sums {
						sums[i] = r.NormFloat64()
					}
					squares2, products2, sums2 := make([]float64, rows), make([]float64, rows), slices.Clone(sums)
					Errors(e, got, want, squares, products, sums)
					errorsGeneric(e2, got, want, squares2, products2, sums2)
					sameBits(t, "e", e, e2)
					sameBits(t, "squares", squares, squares2)
					sameBits(t, "products", products, products2)
					sameBits(t, "sums", sums, sums2)
					for row := range rows {
						var square, product float64
						for c := range dim {
							d := float64(got[row*dim+c] - want[row*dim+c])
							square += d * d
							product += d * float64(want[row*dim+c])
						}
						if math.Abs(square-squares[row]) > 1e-12*square || math.Abs(product-products[row]) > 1e-9*(1+math.Abs(product)) {
							t.Fatalf("dim %d: row %d: %g, %g, want %g, %g", dim, row, squares[row], products[row], square, product)
						}
					}
					Errors(got, got, want, squares, products, sums)
					sameBits(t, "in place", got, e)
				}
			}
		}
	})
}

func TestScores(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 2))
		for _, dim := range []int{1, 3, 16, 63, 64, 128, 576} {
			for _, tokens := range []int{0, 8, 16, 40} {
				for _, head := range []bool{true, false} {
					e, q := metricNoise(t, r, tokens*dim, head, 8), metricNoise(t, r, dim*MetricLanes, head, 8)
					out, out2 := guardedFloats(t, tokens*MetricLanes, head), make([]float32, tokens*MetricLanes)
					Scores(out, e, q, dim)
					scoresGeneric(out2, e, q, dim)
					sameBits(t, fmt.Sprintf("dim %d, tokens %d: out", dim, tokens), out, out2)
					wide := make([]float64, len(q))
					for i, v := range q {
						wide[i] = float64(v) * (1 + 0x1p-30)
					}
					out64, out264 := make([]float64, len(out)), make([]float64, len(out))
					Scores64(out64, e, wide, dim)
					scores64Generic(out264, e, wide, dim)
					sameBits(t, fmt.Sprintf("dim %d, tokens %d: out64", dim, tokens), out64, out264)
					for i := range out {
						var sum, size float64
						for c := range dim {
							p := float64(e[i/MetricLanes*dim+c]) * float64(q[c*MetricLanes+i%MetricLanes])
							sum += p
							size += math.Abs(p)
						}
						if math.Abs(float64(out[i])-sum) > float64(dim)*0x1p-23*size || math.Abs(out64[i]-sum) > 1e-8*size {
							t.Fatalf("dim %d: score %d = %g and %g, want %g", dim, i, out[i], out64[i], sum)
						}
					}
				}
			}
		}
	})
}

func TestWeightedSum(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 3))
		for _, width := range []int{32, 64, 96, 160, 512} {
			for _, tokens := range []int{0, 1, 2, 7, 33} {
				for _, head := range []bool{true, false} {
					w, v := metricNoise(t, r, tokens*MetricLanes, head, 8), metricNoise(t, r, tokens*width, head, 8)
					acc := make([]float64, MetricLanes*width)
					for i := range acc {
						acc[i] = r.NormFloat64()
					}
					acc2, before := slices.Clone(acc), slices.Clone(acc)
					WeightedSum(acc, w, v, width)
					weightedSumGeneric(acc2, w, v, width)
					sameBits(t, fmt.Sprintf("width %d, tokens %d: acc", width, tokens), acc, acc2)
					for i := range acc {
						sum, size := before[i], math.Abs(before[i])
						for tok := range tokens {
							p := float64(w[tok*MetricLanes+i/width]) * float64(v[tok*width+i%width])
							sum += p
							size += math.Abs(p)
						}
						if math.Abs(acc[i]-sum) > float64(tokens+1)*0x1p-23*size {
							t.Fatalf("width %d: sum %d = %g, want %g", width, i, acc[i], sum)
						}
					}
				}
			}
		}
	})
}

// tiltCase is a tile of differences, probabilities and shifts of many sizes.
func tiltCase(t *testing.T, r *rand.Rand, tokens int, head bool, size float64) (delta, p, logp []float32, shift [MetricLanes]float32) {
	delta = metricNoise(t, r, tokens*MetricLanes, head, 30)
	p, logp = guardedFloats(t, len(delta), head), guardedFloats(t, len(delta), head)
	for i := range delta {
		delta[i] *= float32(size)
		l := -20 * r.Float64()
		p[i], logp[i] = float32(math.Exp(l)), float32(l)
		if r.IntN(8) == 0 {
			p[i], logp[i] = 0, float32(math.Inf(-1))
		}
	}
	for i := range shift {
		shift[i] = float32(r.NormFloat64() * size)
	}
	return delta, p, logp, shift
}

func TestTilt(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		for _, size := range []float64{0, 1e-6, 1e-3, 0.3, 3, 200} {
			for _, tokens := range []int{1, 2, 9, 64} {
				for _, head := range []bool{true, false} {
					delta, p, logp, shift := tiltCase(t, r, tokens, head, size)
					before, delta2 := slices.Clone(delta), slices.Clone(delta)
					var sums, sums2 TiltSums
					Tilt(delta, p, &shift, &sums)
					tiltGeneric(delta2, p, &shift, &sums2)
					sameBits(t, "w", delta, delta2)
					sameBits(t, "second", sums.Second[:], sums2.Second[:])
					sameBits(t, "first", sums.First[:], sums2.First[:])
					sameBits(t, "top", sums.Top[:], sums2.Top[:])
					sameBits(t, "largest", sums.Delta[:], sums2.Delta[:])
					if size < 10 {
						checkTilt(t, before, delta, p, &shift, &sums)
					}

					copy(delta, before)
					var peaks, peaks2 PeakSums
					Peak(delta, p, logp, &shift, &peaks)
					peakGeneric(before, p, logp, &shift, &peaks2)
					sameBits(t, "first of peak", peaks.First[:], peaks2.First[:])
					sameBits(t, "peak", peaks.Top[:], peaks2.Top[:])
					for lane := range shift {
						if !math.IsInf(float64(peaks.Top[lane]), -1) {
							shift[lane] += peaks.Top[lane]
						}
					}
					copy(delta2, delta)
					var sum, sum2 [MetricLanes]float32
					Rise(delta, logp, &shift, &sum)
					riseGeneric(delta2, logp, &shift, &sum2)
					sameBits(t, "u", delta, delta2)
					sameBits(t, "sum", sum[:], sum2[:])
					for i, u := range delta {
						want := math.Exp(float64(logp[i] + (before[i] - shift[i%MetricLanes])))
						if math.Abs(float64(u)-want) > 3e-7*want+2e-38 {
							t.Fatalf("u[%d] = %g, want %g", i, u, want)
						}
					}
				}
			}
		}
	})
}

// checkTilt holds Tilt against float64.
func checkTilt(t *testing.T, delta, w, p []float32, shift *[MetricLanes]float32, sums *TiltSums) {
	t.Helper()
	for lane := range MetricLanes {
		var second, first, size float64
		for i := lane; i < len(delta); i += MetricLanes {
			d, p := float64(delta[i]-shift[lane]), float64(p[i])
			if want := p * math.Expm1(d); math.Abs(float64(w[i])-want) > 4e-7*math.Abs(want) {
				t.Fatalf("δ = %g: w = %g, want %g", d, w[i], want)
			}
			h, _ := bigSecond(d).Float64()
			second += p * h
			first += p * d
			size += p * math.Abs(d)
		}
		if math.Abs(float64(sums.Second[lane])-second) > 2e-6*second {
			t.Fatalf("Σp·(e^δ−1−δ) = %g, want %g", sums.Second[lane], second)
		}
		if math.Abs(float64(sums.First[lane])-first) > 4e-6*size {
			t.Fatalf("Σp·δ = %g, want %g", sums.First[lane], first)
		}
	}
}

// bigSecond returns e^x − 1 − x by its series in 200 bits.
func bigSecond(x float64) *big.Float {
	b := new(big.Float).SetPrec(400).SetFloat64(x)
	term := new(big.Float).SetPrec(400).SetInt64(1)
	sum := new(big.Float).SetPrec(400)
	for n := int64(1); n < 200; n++ {
		term.Mul(term, b)
		term.Quo(term, new(big.Float).SetInt64(n))
		if n >= 2 {
			sum.Add(sum, term)
		}
	}
	return sum
}

func TestElementary(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	near := func(name string, x, got, want float64) {
		t.Helper()
		if got == want || math.IsNaN(got) && math.IsNaN(want) {
			return
		}
		if !(math.Abs(got-want) <= 4*0x1p-52*math.Abs(want)) && math.Abs(want) > 1e-300 {
			t.Errorf("%s(%g) = %g, want %g", name, x, got, want)
		}
	}
	inputs := []float64{0, 1, -1, 709.7, 710, -745, -746, 1e-300, -1e-300, 0.41, -0.29, 0.4100001, math.Inf(1), math.Inf(-1), math.NaN(), 22, -22, 40, -40, math.MaxFloat64, 5e-324}
	for range 20000 {
		inputs = append(inputs, r.NormFloat64()*math.Exp2(20*r.Float64()-14))
	}
	near("Log", 0x1p-1074, Log(0x1p-1074), -1074*math.Ln2)
	for _, x := range inputs {
		near("Exp", x, Exp(x), math.Exp(x))
		near("Expm1", x, Expm1(x), math.Expm1(x))
		if math.Abs(x) > 0x1p-1022 || x == 0 { // math.Log of a denormal is wrong on amd64
			near("Log", x, Log(x), math.Log(x))
			near("Log", math.Abs(x), Log(math.Abs(x)), math.Log(math.Abs(x)))
		}
		if x > -1 {
			near("Log1p", x, Log1p(x), math.Log1p(x))
		}
		near("Tanh", x, Tanh(x), math.Tanh(x))
	}
}

func BenchmarkScores(b *testing.B) {
	const dim, tokens = 128, 256
	e, q, out := make([]float32, tokens*dim), make([]float32, dim*MetricLanes), make([]float32, tokens*MetricLanes)
	eachISA(b, func(b *testing.B) {
		for b.Loop() {
			Scores(out, e, q, dim)
		}
		b.ReportMetric(float64(b.N)*tokens*dim*MetricLanes/b.Elapsed().Seconds()/1e9, "GMAC/s")
	})
}

func BenchmarkScores64(b *testing.B) {
	const dim, tokens = 128, 256
	e, q, out := make([]float32, tokens*dim), make([]float64, dim*MetricLanes), make([]float64, tokens*MetricLanes)
	eachISA(b, func(b *testing.B) {
		for b.Loop() {
			Scores64(out, e, q, dim)
		}
		b.ReportMetric(float64(b.N)*tokens*dim*MetricLanes/b.Elapsed().Seconds()/1e9, "GMAC/s")
	})
}

func BenchmarkWeightedSum(b *testing.B) {
	const dim, tokens = 128, 256
	w, v, acc := make([]float32, tokens*MetricLanes), make([]float32, tokens*dim), make([]float64, MetricLanes*dim)
	eachISA(b, func(b *testing.B) {
		for b.Loop() {
			WeightedSum(acc, w, v, dim)
		}
		b.ReportMetric(float64(b.N)*tokens*dim*MetricLanes/b.Elapsed().Seconds()/1e9, "GMAC/s")
	})
}

func BenchmarkTilt(b *testing.B) {
	const tokens = 256
	delta, p := make([]float32, tokens*MetricLanes), make([]float32, tokens*MetricLanes)
	var shift [MetricLanes]float32
	var sums TiltSums
	eachISA(b, func(b *testing.B) {
		for b.Loop() {
			Tilt(delta, p, &shift, &sums)
		}
		b.ReportMetric(float64(b.N)*tokens*MetricLanes/b.Elapsed().Seconds()/1e9, "Gelem/s")
	})
}

func BenchmarkErrors(b *testing.B) {
	const dim, tokens = 128, 256
	e, got, want := make([]float32, tokens*dim), make([]float32, tokens*dim), make([]float32, tokens*dim)
	squares, products, sums := make([]float64, tokens), make([]float64, tokens), make([]float64, dim)
	eachISA(b, func(b *testing.B) {
		b.SetBytes(4 * tokens * dim)
		for b.Loop() {
			Errors(e, got, want, squares, products, sums)
		}
	})
}

// eachISA runs a benchmark once for every backend of this CPU.
func eachISA(b *testing.B, bench func(b *testing.B)) {
	before := Active()
	b.Cleanup(func() { Use(before) })
	for _, isa := range Available() {
		if err := Use(isa); err != nil {
			b.Fatal(err)
		}
		b.Run("isa="+string(isa), bench)
	}
}
