package quantize

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kvq/kernels"
)

// half rounds to f16 by the reference.
func half(v float32) float32 { return float32(roundTo("f16", float64(v))) }

// sylvester returns ±1 of the Walsh–Hadamard matrix: the parity of the bits that
// row and column share.
func sylvester(row, column int) float64 {
	sign := 1.0
	for b := row & column; b > 0; b >>= 1 {
		if b&1 == 1 {
			sign = -sign
		}
	}
	return sign
}

// rotated multiplies rows by the block-diagonal orthonormal Hadamard matrix.
func rotated(rows []float32, dim, n int) []float32 {
	out := make([]float32, len(rows))
	for at := 0; at < len(rows); at += n {
		for i := range n {
			var sum float64
			for j := range n {
				sum += sylvester(i, j) * float64(rows[at+j])
			}
			out[at+i] = float32(sum / math.Sqrt(float64(n)))
		}
	}
	return out
}

// near compares with room for the order of a float64 sum.
func near(a, b float32) bool {
	return math.Abs(float64(a)-float64(b)) <= 0x1p-22*math.Abs(float64(b))+1e-12
}

// TestHadamard holds the transform against the matrix: the codes are those of the
// rotated head, and the decoded head is the rotation of what they decode to.
func TestHadamard(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 3))
	for name, n := range map[string]int{"f32+hadamard": 16, "f32+hadamard4": 4, "f32+hadamard16": 16} {
		x := newTensor(1, 9, 48, func(h, t, c int) float64 { return r.NormFloat64() })
		encoded, decoded := encodeAll(t, mustLookup(t, name), x)
		want := rotated(x.heads[0], 48, n)
		stored := floats(encoded[0].Codes)
		back := rotated(stored, 48, n)
		for i := range want {
			if !near(stored[i], want[i]) && math.Abs(float64(stored[i]-want[i])) > 1e-7 {
				t.Fatalf("%s: stored %g, want %g", name, stored[i], want[i])
			}
			if math.Abs(float64(decoded[0][i]-back[i])) > 1e-6 || math.Abs(float64(decoded[0][i]-x.heads[0][i])) > 1e-6 {
				t.Fatalf("%s: decoded %g, want %g", name, decoded[0][i], back[i])
			}
		}
	}
}

// TestCenter: what is stored is x minus the mean, and the mean comes back.
func TestCenter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 4))
	x := newTensor(1, 33, 8, func(h, t, c int) float64 { return 100*float64(c) + r.NormFloat64() })
	encoded, decoded := encodeAll(t, mustLookup(t, "int8-token+center"), x)
	centred := tensor{x.dim, [][]float32{slices.Clone(x.heads[0])}}
	for c := range 8 {
		var sum float64
		for token := range 33 {
			sum += float64(x.heads[0][token*8+c])
		}
		mean := float32(sum / 33)
		if got := encoded[0].MeanValues(nil)[c]; got != mean {
			t.Fatalf("channel %d: mean %g, want %g", c, got, mean)
		}
		for token := range 33 {
			centred.heads[0][token*8+c] -= mean
		}
	}
	_, plain := encodeAll(t, mustLookup(t, "int8-token"), centred)
	for i, v := range plain[0] {
		if want := v + encoded[0].MeanValues(nil)[i%8]; decoded[0][i] != want {
			t.Fatalf("%d: %g, want %g", i, decoded[0][i], want)
		}
	}
}

// TestWindows: the tokens of the windows come back as f16, the others as if the
// scheme had stored them alone; sinks leave before the recent window counts.
func TestWindows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 5))
	for _, c := range []struct {
		base, suffix string
		tokens       int
		first, end   int // of the coded rows
	}{
		{"int4-token", "+sink3", 20, 3, 20},
		{"int4-token", "+recent5", 20, 0, 15},
		{"int4-token", "+sink3+recent5", 20, 3, 15},
		{"int4-token", "+recent5+sink3", 20, 3, 15},
		{"int4-token", "+sink3+recent50", 20, 3, 3},
		{"int4-token", "+sink30+recent5", 20, 20, 20},
		{"int4-asym-channel/4", "+recent8", 20, 0, 16},
		{"int4-asym-channel/4", "+recent8", 16, 0, 16},
		{"int4-asym-channel/4", "+recent8", 7, 0, 0},
		{"int4-asym-channel/4", "+sink3+recent8", 20, 3, 19},
		{"int8-channel", "+recent8", 20, 0, 12},
		{"q8_0", "+sink1+recent2", 9, 1, 7},
	} {
		x := newTensor(2, c.tokens, 32, func(h, t, c int) float64 { return r.NormFloat64() })
		_, decoded := encodeAll(t, mustLookup(t, c.base+c.suffix), x)
		for h := range x.heads {
			want := make([]float32, len(x.heads[h]))
			for i, v := range x.heads[h] {
				want[i] = half(v)
			}
			inner := tensor{32, [][]float32{x.heads[h][c.first*32 : c.end*32]}}
			_, coded := encodeAll(t, mustLookup(t, c.base), inner)
			copy(want[c.first*32:], coded[0])
			if !slices.Equal(decoded[h], want) {
				t.Errorf("%s%s of %d tokens: head %d differs", c.base, c.suffix, c.tokens, h)
			}
		}
	}
}

// TestOrder: modifiers apply from left to right. A window taken after +center
// holds centred values; one taken before it does not count in the mean.
func TestOrder(t *testing.T) {
	x := newTensor(1, 4, 4, func(h, t, c int) float64 { return float64(10 * t) }) // 0, 10, 20, 30
	for name, want := range map[string]struct{ mean, window float32 }{
		"f32+center+recent1": {15, 15},
		"f32+recent1+center": {10, 30},
	} {
		encoded, decoded := encodeAll(t, mustLookup(t, name), x)
		if mean, window := encoded[0].MeanValues(nil)[0], kernels.GetF16(encoded[0].Window); mean != want.mean || window != want.window {
			t.Errorf("%s: mean %g, window %g, want %+v", name, mean, window, want)
		}
		if !slices.Equal(decoded[0], x.heads[0]) {
			t.Errorf("%s: decoded %v", name, decoded[0])
		}
	}
}

// TestPreRoPE: keys rotated by the definition are stored as they were before,
// and come back rotated.
func TestPreRoPE(t *testing.T) {
	const dim, tokens, first = 16, 40, 5
	r := rand.New(rand.NewPCG(1, 6))
	plain := newTensor(1, tokens, dim, func(h, t, c int) float64 { return r.NormFloat64() })
	for _, interleaved := range []bool{false, true} {
		rope := &Rope{Interleaved: interleaved, First: first}
		for i := range 6 { // the last 4 channels are not rotated
			rope.Frequencies = append(rope.Frequencies, math.Pow(10000, -float64(i)/6))
		}
		keys := slices.Clone(plain.heads[0])
		for token := range tokens {
			row := keys[token*dim : (token+1)*dim]
			for i, f := range rope.Frequencies {
				a, b := i, i+6
				if interleaved {
					a, b = 2*i, 2*i+1
				}
				angle := float64(first+token) * f
				x, y := float64(row[a]), float64(row[b])
				row[a] = float32(x*math.Cos(angle) - y*math.Sin(angle))
				row[b] = float32(x*math.Sin(angle) + y*math.Cos(angle))
			}
		}
		s := mustLookup(t, "f32+prerope")
		coder, e := s.NewCoder(), new(Encoded)
		if err := coder.Encode(e, Head{Dim: dim, Values: keys, Rope: rope}, nil); err != nil {
			t.Fatal(err)
		}
		for i, v := range floats(e.Codes) {
			if math.Abs(float64(v-plain.heads[0][i])) > 1e-6 {
				t.Fatalf("interleaved %v: stored %g, want %g", interleaved, v, plain.heads[0][i])
			}
		}
		out := make([]float32, len(keys))
		coder.Decode(out, e)
		for i, v := range out {
			if math.Abs(float64(v-keys[i])) > 1e-6 {
				t.Fatalf("interleaved %v: decoded %g, want %g", interleaved, v, keys[i])
			}
		}
	}
	err := mustLookup(t, "int8+prerope").NewCoder().Encode(new(Encoded), plain.head(0), nil)
	var scheme *SchemeError
	if !errors.As(err, &scheme) {
		t.Errorf("without rope facts: %v", err)
	}
}

// TestOutliers sorts each sharing unit by magnitude and index: the first
// ⌈P·n/100⌉ come back in f16, and the others as if the unit had been without them.
func TestOutliers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 7))
	for _, name := range []string{"int4-token", "int4-asym-token/5", "int3-zp-channel", "int4-asym-channel/7", "int8-head", "e4m3-token"} {
		for _, p := range []struct {
			text     string
			of10000  int // P in hundredths of a percent
			withSink bool
		}{{"1", 100, false}, {"10", 1000, true}, {"0.25", 25, false}, {"99", 9900, false}} {
			suffix, sink := "", 0
			if p.withSink {
				suffix, sink = "+sink2", 2
			}
			x := newTensor(2, 23, 12, func(h, t, c int) float64 {
				return float64(r.IntN(9)-4) * map[bool]float64{true: 30, false: 1}[r.IntN(20) == 0]
			})
			s := mustLookup(t, name+suffix+"+outlier"+p.text+"%")
			encoded, decoded := encodeAll(t, s, x)
			ref := refParse(name)
			for h, values := range x.heads {
				units := map[[3]int][]int{}
				for i := sink * x.dim; i < len(values); i++ {
					key := ref.unit(h, i/x.dim-sink, i%x.dim)
					units[key] = append(units[key], i)
				}
				total := 0
				for _, unit := range units {
					keep := (p.of10000*len(unit) + 9999) / 10000
					total += keep
					slices.SortStableFunc(unit, func(a, b int) int {
						return int(math.Abs(float64(values[b]))-math.Abs(float64(values[a]))) + 0
					})
					rest := refRange{math.Inf(1), math.Inf(-1), 0}
					for _, i := range unit[keep:] {
						v := float64(values[i])
						rest = refRange{math.Min(rest.lo, v), math.Max(rest.hi, v), math.Max(rest.abs, math.Abs(v))}
					}
					for rank, i := range unit {
						want := float64(half(values[i]))
						if rank >= keep {
							_, want = ref.code(float64(values[i]), ref.scaleOf(rest))
						}
						if float64(decoded[h][i]) != want {
							t.Fatalf("%s: head %d, index %d, rank %d of %d: %g gives %g, want %g", s.Name(), h, i, rank, keep, values[i], decoded[h][i], want)
						}
					}
				}
				if got := len(encoded[h].Outliers) / 2; got != total {
					t.Errorf("%s: %d outliers, want %d", s.Name(), got, total)
				}
				last := encoded[h].OutlierEnds[len(encoded[h].OutlierEnds)-4:]
				if got := int(binary.LittleEndian.Uint32(last)); got != total {
					t.Errorf("%s: the last row ends at %d outliers, want %d", s.Name(), got, total)
				}
			}
		}
	}
}

// TestKVQuant holds KVQuant's outliers and ranges to its simulation
// (simquant_module_quantizer.py), value by value: percentiles of a channel as
// np.percentile interpolates them, in f16, are the ends of the range of what lies
// within; of a token, whose range is that of what is left, as torch.quantile has
// them. Codes are the nearest of the stored codebook.
func TestKVQuant(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 21))
	quantile := func(sorted []float32, q float64) float64 {
		at := float64(q * float64(len(sorted)-1)) // not fused: the position is often whole
		i := min(int(at), len(sorted)-2)
		return float64(sorted[i]) + float64((at-float64(i))*(float64(sorted[i+1])-float64(sorted[i])))
	}
	for _, name := range []string{"nuq4-channel+tails1%", "nuq3-channel+tails2%", "nuq4-token+tails1%", "nuq2-token+tails10%"} {
		var share string
		var bits int
		var percent float64
		if _, err := fmt.Sscanf(strings.NewReplacer("-", " ", "+tails", " ", "%", "").Replace(name), "nuq%d %s %g", &bits, &share, &percent); err != nil {
			t.Fatal(err)
		}
		x := newTensor(2, 401, 160, func(h, t, c int) float64 { return r.NormFloat64() * (1 + 3*float64(c%5)) })
		encoded, decoded := encodeAll(t, mustLookup(t, name), x)
		book := make([]float32, 1<<bits)
		kernels.FromF16(book, encoded[0].Codebook)
		for h, values := range x.heads {
			units, n, step := 401, 160, 1
			if share == "channel" {
				units, n, step = 160, 401, 160
			}
			for unit := range units {
				first := unit * 160
				if share == "channel" {
					first = unit
				}
				sorted := make([]float32, n)
				for i := range n {
					sorted[i] = values[first+i*step]
				}
				slices.Sort(sorted)
				low, high := quantile(sorted, percent/200), quantile(sorted, 1-percent/200)
				outlier := func(v float64) bool { return v < low || v > high }
				lo, hi := roundTo("f16", low), roundTo("f16", high)
				if share == "token" {
					outlier = func(v float64) bool { return v <= low || v >= high }
					lo, hi = math.Inf(1), math.Inf(-1)
					for _, v := range sorted {
						if v := float64(v); !outlier(v) {
							lo, hi = math.Min(lo, v), math.Max(hi, v)
						}
					}
				}
				offset, scale := roundTo("f16", f32(f32(hi+lo)/2)), roundTo("f16", f32(f32(hi-lo)/2))
				for i := range n {
					v := float64(values[first+i*step])
					want := roundTo("f16", v)
					if !outlier(v) {
						code := nearestOf(book, f32(f32(v-offset)/scale))
						want = f32(f32(float64(book[code])*scale) + offset)
					}
					if got := float64(decoded[h][first+i*step]); got != want {
						t.Fatalf("%s: unit %d, value %d: %g gives %g, want %g", name, unit, i, v, got, want)
					}
				}
			}
		}
	}
}

// TestTails: both ends of every unit stay out, of equal values the first, however
// few there are, and sizes count them.
func TestTails(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 22))
	for _, name := range []string{"int4-asym-token+tails10%", "int4-token/3+tails1%", "int4-asym-channel/5+tails50%", "int8-zp-channel+tails99%", "nf4-head+tails3%"} {
		for _, tokens := range []int{0, 1, 2, 3, 50} {
			x := newTensor(2, tokens, 12, func(h, t, c int) float64 { return float64(r.IntN(5) - 2) })
			encoded, decoded := encodeAll(t, mustLookup(t, name), x) // encodeAll compares with Size
			for h := range x.heads {
				for i, v := range x.heads[h] {
					if math.Abs(float64(decoded[h][i]-v)) > 2 {
						t.Errorf("%s: %g gives %g", name, v, decoded[h][i])
					}
				}
				if name == "int4-asym-token+tails10%" && tokens > 0 { // ⌊11·0.05⌋ + 1 at each end
					if got := len(encoded[h].Outliers) / 2; got != 2*tokens {
						t.Errorf("%d outliers of %d tokens", got, tokens)
					}
				}
			}
		}
	}
}

// TestClip tries the eleven factors by the reference and expects the scale of
// the best.
func TestClip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 8))
	for _, name := range []string{"int4-token", "int2-asym-token/8", "int3-zp-channel", "int2-channel/8", "int4-asym-head", "e4m3-token"} {
		ref, clipped := refParse(name), 0
		x := newTensor(1, 24, 16, func(h, t, c int) float64 { return math.Pow(r.NormFloat64(), 3) })
		_, decoded := encodeAll(t, mustLookup(t, name+"+clip"), x)
		units := map[[3]int][]int{}
		for i := range x.heads[0] {
			key := ref.unit(0, i/x.dim, i%x.dim)
			units[key] = append(units[key], i)
		}
		for _, unit := range units {
			u := refRange{math.Inf(1), math.Inf(-1), 0}
			for _, i := range unit {
				v := float64(x.heads[0][i])
				u = refRange{math.Min(u.lo, v), math.Max(u.hi, v), math.Max(u.abs, math.Abs(v))}
			}
			var best []float64
			least := math.Inf(1)
			for percent := 100; percent >= 50; percent -= 5 {
				f := float64(percent) / 100
				s := ref.scaleOf(refRange{f32(u.lo * f), f32(u.hi * f), f32(u.abs * f)})
				var values []float64
				var sum float64
				for _, i := range unit {
					v := float64(x.heads[0][i])
					_, got := ref.code(v, s)
					values = append(values, got)
					sum += (got - v) * (got - v)
				}
				if sum < least {
					best, least = values, sum
					if percent < 100 {
						clipped++
					}
				}
			}
			for j, i := range unit {
				if float64(decoded[0][i]) != best[j] {
					t.Fatalf("%s: %g gives %g, want %g", name, x.heads[0][i], decoded[0][i], best[j])
				}
			}
		}
		if clipped == 0 && ref.bits != 8 { // a float format gains nothing from a narrower range
			t.Errorf("%s: nothing was clipped", name)
		}
	}
}

// TestClipAfterOutliers: with outliers taken out beforehand only what is left
// counts.
func TestClipAfterOutliers(t *testing.T) {
	x := newTensor(1, 1, 100, func(h, t, c int) float64 {
		if c == 0 {
			return 1000
		}
		return float64(c%8) - 3.5
	})
	_, decoded := encodeAll(t, mustLookup(t, "int4-token@f32+outlier1%+clip"), x)
	for c, v := range decoded[0] {
		if c == 0 && v != 1000 || c > 0 && math.Abs(float64(v-x.heads[0][c])) > 0.26 {
			t.Errorf("channel %d: %g gives %g", c, x.heads[0][c], v)
		}
	}
}

// TestModifierSizes: sizes with modifiers are what Encode produces, and by hand.
func TestModifierSizes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	for _, suffix := range []string{"+outlier1%", "+sink2+recent7+outlier30%", "+clip", "+center+hadamard+outlier0.5%+clip"} {
		for _, base := range []string{"int4-token/7", "int3-asym-channel/7", "int8-channel", "e5m2-head"} {
			for _, tokens := range []int{0, 1, 6, 40} {
				x := newTensor(2, tokens, 24, func(h, t, c int) float64 { return r.NormFloat64() })
				encodeAll(t, mustLookup(t, base+suffix), x)
			}
		}
	}
	// 1% of 128 is 2 a token: 2·(2+2) bytes and 4 for the row.
	size, err := mustLookup(t, "int4-token+outlier1%").Size(Shape{1, 10, 128})
	if want := (Size{10*64 + 10*2*2, 10*2 + 10*2*2 + 10*4}); err != nil || size != want {
		t.Errorf("%+v, %v, want %+v", size, err, want)
	}
}

func TestModifierErrors(t *testing.T) {
	for name, want := range map[string]string{
		"int4+center+prerope":        "+prerope undoes the rotation",
		"int4+outlier1%+hadamard":    "+hadamard would change it afterwards",
		"int4+outlier1%+recent128":   "the rows of +recent are not coded",
		"int4+tails1%+sink4":         "the rows of +sink are not coded",
		"int4+clip+center":           "nothing can come after it",
		"f16+outlier1%":              "f16 has no scale",
		"e4m3-raw+clip":              "e4m3-raw has no scale",
		"q4_0+clip":                  "q4_0 fixes how a block's scale follows",
		"int4-tensor+outlier1%":      "the whole tensor",
		"e4m3+clip":                  "the whole tensor",
		"int4+outlier":               "needs a percentage",
		"int4+outlier0%":             "needs a percentage",
		"int4+outlier100%":           "needs a percentage",
		"int4+outlier1.1234567%":     "needs a percentage",
		"int4+outlier1":              "needs a percentage",
		"int4-channel/32+recent100%": "is not a number",
	} {
		if _, err := Lookup(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}
