package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// hardCase makes a cache of one KV head whose logits for query row 0 are known, by
// writing keys along the query's direction, and encodes both sides with codes of
// the given width and one scale per token.
func hardCase(t *testing.T, bits int, logits []float64, values func(token, channel int) float64) (*decodeCase, float64) {
	t.Helper()
	const dim = 64
	tokens := len(logits)
	r := rand.New(rand.NewPCG(uint64(bits), 3))
	q := make([]float32, 4*dim)
	var norm float64
	for c := range dim {
		v := float32(r.NormFloat64())
		for h := range 4 {
			q[h*dim+c] = v
		}
		norm += float64(v) * float64(v)
	}
	f := Format{Codec: CodecInt, Bits: bits, Share: ShareToken, Meta: MetaF32}
	top := float64(int(1)<<(bits-1) - 1)
	encode := func(x []float64) (Encoded, []float64) {
		var e Encoded
		for t := range tokens {
			row := x[t*dim : (t+1)*dim]
			var amax float64
			for _, v := range row {
				amax = max(amax, math.Abs(v))
			}
			scale := float32(amax / top)
			e.Scales = append(e.Scales, scale)
			for c, v := range row {
				var code float64
				if scale > 0 {
					code = min(max(math.RoundToEven(v/float64(scale)), -top), top)
				}
				e.Fields = append(e.Fields, uint8(code+top+1))
				row[c] = code * float64(scale)
			}
		}
		return e, x
	}
	k, v := make([]float64, tokens*dim), make([]float64, tokens*dim)
	scale := 1 / math.Sqrt(dim)
	for t := range tokens {
		for c := range dim {
			k[t*dim+c] = logits[t]/(scale*norm)*float64(q[c]) + 0.05*r.NormFloat64()
			v[t*dim+c] = values(t, c)
		}
	}
	ek, k := encode(k)
	ev, v := encode(v)
	cache, err := NewCache(CacheShape{Heads: 1, DimK: dim, DimV: dim, Tokens: tokens}, f, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cache.Close)
	if err := cache.Fill(0, tokens, ek, ev); err != nil {
		t.Fatal(err)
	}
	x := &decodeCase{shape: cache.shape, k: f, v: f, options: DecodeOptions{QueryHeads: 4, Scale: scale}, cache: cache, q: q}
	for range 4 {
		x.want = append(x.want, attention64(q[:dim], k, v, dim, dim, tokens, 0, scale)...)
	}
	// The derived bound on a logit: Σ|code|·max|q'|/65278, in units of the logit.
	var qmax, worst float64
	for _, c := range q[:dim] {
		qmax = max(qmax, math.Abs(float64(c)))
	}
	for t := range tokens {
		var sum float64
		for c := range dim {
			sum += math.Abs(float64(ek.Fields[t*dim+c]) - top - 1)
		}
		worst = max(worst, sum*float64(ek.Scales[t])*qmax*scale/65278)
	}
	return x, worst
}

// TestDecodeHardCases runs the softmaxes that break approximate kernels.
func TestDecodeHardCases(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	fill := func(n int, f func(int) float64) []float64 {
		z := make([]float64, n)
		for i := range z {
			z[i] = f(i)
		}
		return z
	}
	noise := func(int, int) float64 { return 1 + 0.3*r.NormFloat64() }
	// A sink token with tiny values: what the others hold is the answer although it
	// has nearly all the weight.
	sinkValues := func(t, _ int) float64 {
		if t == 0 {
			return 1e-3 * r.NormFloat64()
		}
		return 1 + 0.3*r.NormFloat64()
	}
	for _, x := range []struct {
		name   string
		logits []float64
		values func(int, int) float64
	}{
		{"sink beside a diffuse tail", fill(2000, func(i int) float64 {
			if i == 0 {
				return 14
			}
			return r.NormFloat64()
		}), sinkValues},
		{"one dominant token", fill(1000, func(i int) float64 {
			if i == 700 {
				return 25
			}
			return 0
		}), noise},
		{"all equal", fill(1500, func(int) float64 { return 0 }), noise},
		{"growing", fill(1300, func(i int) float64 { return float64(i) / 50 }), noise},
		{"falling", fill(1300, func(i int) float64 { return 28 - float64(i)/50 }), noise},
		{"huge", fill(640, func(i int) float64 { return 4000 * r.NormFloat64() }), noise},
		{"huge and negative", fill(640, func(i int) float64 { return -9000 - 100*r.Float64() }), noise},
	} {
		for _, bits := range []int{8, 4} {
			t.Run(fmt.Sprintf("%s/int%d", x.name, bits), func(t *testing.T) {
				c, bound := hardCase(t, bits, x.logits, x.values)
				// An error δ in every logit moves the output by at most a factor e^2δ.
				limit := errorLimit
				if bound > 1e-4 {
					limit += math.Expm1(2*bound) * 2
				}
				e := c.check(t, limit)
				t.Logf("relative error %.2g, logits within %.2g", e, bound)
			})
		}
	}
}

// TestDecodeAllocations holds that a step allocates nothing, with one worker and with two.
func TestDecodeAllocations(t *testing.T) {
	for _, f := range []Format{{Codec: CodecF16}, {Codec: CodecInt, Bits: 8, Share: ShareToken}, {Codec: CodecInt, Bits: 4, Share: ShareChannel, Group: 32, Zero: ZeroAsym}, {Codec: CodecInt, Bits: 5, Share: ShareToken}} {
		x := newDecodeCase(t, 1, CacheShape{Heads: 2, DimK: 64, DimV: 64, Tokens: 200}, 200, f, f, DecodeOptions{QueryHeads: 4})
		eachBackend(t, func(t *testing.T) {
			for _, threads := range []int{1, 2} {
				o := x.options
				o.Threads = threads
				d, err := NewDecoder(x.cache, o)
				if err != nil {
					t.Fatal(err)
				}
				out := make([]float32, o.QueryHeads*64)
				if n := testing.AllocsPerRun(20, func() {
					if err := d.Step(x.cache, out, x.q); err != nil {
						t.Fatal(err)
					}
				}); n != 0 {
					t.Errorf("%v, %d threads: %v allocations a step", f, threads, n)
				}
				d.Close()
			}
		})
	}
}

// TestDecodeWorkersEnd holds that Close ends every worker.
func TestDecodeWorkersEnd(t *testing.T) {
	before := runtime.NumGoroutine()
	f := Format{Codec: CodecF16}
	x := newDecodeCase(t, 1, CacheShape{Heads: 1, DimK: 16, DimV: 16, Tokens: 64}, 64, f, f, DecodeOptions{QueryHeads: 1})
	for range 20 {
		x.step(t, 8)
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// TestDecodeRefuses holds what is an error and not a crash.
func TestDecodeRefuses(t *testing.T) {
	f := Format{Codec: CodecInt, Bits: 8, Share: ShareToken}
	shape := CacheShape{Heads: 2, DimK: 16, DimV: 16, Tokens: 64}
	for _, s := range []CacheShape{{}, {Heads: 1, DimK: 1<<16 + 1, DimV: 16, Tokens: 1}, {Heads: -1, DimK: 1, DimV: 1, Tokens: 1}, {Heads: 1, DimK: 1, DimV: 1}} {
		if _, err := NewCache(s, f, f); err == nil {
			t.Errorf("a cache of %+v", s)
		}
	}
	for _, bad := range []Format{{Codec: CodecInt, Bits: 1}, {Codec: CodecInt, Bits: 9}, {Codec: 99}, {Codec: CodecInt, Bits: 8, Share: ShareHead, Group: 32}} {
		if _, err := NewCache(shape, f, bad); err == nil {
			t.Errorf("a cache of %+v", bad)
		}
	}
	c, err := NewCache(shape, f, f)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Fill(0, 1, Encoded{}, Encoded{}); err == nil {
		t.Error("filled with nothing")
	}
	if err := c.Fill(0, 65, Encoded{}, Encoded{}); err == nil {
		t.Error("filled beyond its length")
	}
	for _, o := range []DecodeOptions{{QueryHeads: 3, Threads: 1}, {QueryHeads: 1, Threads: 1}, {QueryHeads: 2}, {QueryHeads: 2, Threads: 1, Window: -1}, {QueryHeads: 2, Threads: 1, Scale: math.NaN()}} {
		if _, err := NewDecoder(c, o); err == nil {
			t.Errorf("a decoder of %+v", o)
		}
	}
	d, err := NewDecoder(c, DecodeOptions{QueryHeads: 2, Threads: 1, Scale: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	out, q := make([]float32, 32), make([]float32, 32)
	if err := d.Step(c, out, q); err == nil {
		t.Error("attended to an empty cache")
	}
	x := newDecodeCase(t, 1, shape, 64, f, f, DecodeOptions{QueryHeads: 2})
	if err := d.Step(x.cache, out[1:], q); err == nil {
		t.Error("took a short output")
	}
	q[20] = float32(math.NaN())
	if err := d.Step(x.cache, out, q); err == nil {
		t.Error("took a query that is not a number")
	}
}
