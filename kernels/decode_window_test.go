package kernels

import (
	"math"
	"math/rand/v2"
	"testing"
)

// windowsOf is how many tokens the windows of a format keep, written out again from
// their definition: sinks leave first; blocks of tokens leave the recent window N at
// a time, so that it holds what is left of them.
func windowsOf(f Format, tokens int) (sink, recent int) {
	for sink < f.Sink && sink < tokens {
		sink++
	}
	for left := tokens - sink; recent < left && recent < f.Recent; recent++ {
		if f.Share == ShareChannel && f.Group > 0 && (left-recent)%f.Recent == 0 {
			break
		}
	}
	return sink, recent
}

// windowedSide is randomSide of the tokens that no window keeps, with float16 values
// for those that one keeps.
func windowedSide(r *rand.Rand, f Format, tokens, dim int) (e Encoded, x []float64) {
	sink, recent := windowsOf(f, tokens)
	e, x = randomSide(r, f, tokens-sink-recent, dim, 1)
	defer func() {
		if f.Rotation == nil {
			return
		}
		for t := range tokens {
			for i, frequency := range f.Rotation.frequencies {
				a, b := i, i+len(f.Rotation.frequencies)
				if f.Rotation.interleaved {
					a, b = 2*i, 2*i+1
				}
				sin, cos := math.Sincos(float64(f.Rotation.first+t) * frequency)
				u, v := x[t*dim+a], x[t*dim+b]
				x[t*dim+a], x[t*dim+b] = u*cos-v*sin, u*sin+v*cos
			}
		}
	}()
	if sink+recent == tokens {
		e.Scales, e.Offsets = nil, nil
	}
	// Outliers stand anywhere, some tokens with none and some with many; they are
	// larger than what codes stand for.
	for t := 0; t < tokens-sink-recent && f.Outliers > 0; t++ {
		for c := range dim {
			if (t*dim+c)*2654435761>>4%100 < 3*(t%3) && len(e.Outliers) < f.Outliers {
				v := fromF16(f16(float32(4 * r.NormFloat64())))
				e.Outliers = append(e.Outliers, Outlier{t, c, v})
				x[t*dim+c] = float64(v)
			}
		}
	}
	rows := func(n int) (kept []float32, exact []float64) {
		for range n * dim {
			v := fromF16(f16(float32(r.NormFloat64())))
			kept, exact = append(kept, v), append(exact, float64(v))
		}
		return kept, exact
	}
	var first, last []float64
	e.Sink, first = rows(sink)
	e.Recent, last = rows(recent)
	x = append(append(first, x...), last...)
	return e, x
}

// TestDecodeWindows runs every pair of windows over the ways through a page, at
// lengths around those where a window fills and a page closes, with and without a
// window of attention on top.
func TestDecodeWindows(t *testing.T) {
	int8, int4 := Format{Codec: CodecInt, Bits: 8}, Format{Codec: CodecInt, Bits: 4}
	with := func(f Format, share Share, group int, zero Zero, sink, recent int) Format {
		f.Share, f.Group, f.Zero, f.Sink, f.Recent = share, group, zero, sink, recent
		return f
	}
	var worst float64
	run := func(seed uint64, shape CacheShape, tokens, queryHeads, window int, k, v Format, fused bool) {
		t.Helper()
		shape.Tokens = tokens
		x := newDecodeCase(t, seed, shape, tokens, k, v, DecodeOptions{QueryHeads: queryHeads, Window: window})
		if x.cache.Fused() != fused {
			t.Fatalf("%v:%v: fused %v, want %v", k, v, x.cache.Fused(), fused)
		}
		worst = max(worst, x.check(t, vectorLimit))
		// Every token is there once, whatever holds it.
		c := x.cache
		if n := c.front() + c.pages*pageTokens + c.tail(); n != tokens || c.front() < 0 || c.tail() < 0 {
			t.Errorf("%v:%v: %d tokens before, %d pages, %d behind of %d", k, v, c.front(), c.pages, c.tail(), tokens)
		}
		c.Close()
	}
	for i, p := range []struct {
		k, v  Format
		fused bool
	}{
		// KIVI, the same with sinks of other lengths, and one side only.
		{with(int4, ShareChannel, 32, ZeroAsym, 0, 128), with(int4, ShareToken, 32, ZeroAsym, 0, 128), true},
		{with(int4, ShareChannel, 32, ZeroAsym, 4, 128), with(int4, ShareToken, 32, ZeroAsym, 100, 128), true},
		{with(int8, ShareChannel, 32, ZeroSym, 5, 0), with(int8, ShareToken, 0, ZeroSym, 0, 70), true},
		{with(int8, ShareChannel, 128, ZeroSym, 4, 128), with(int8, ShareChannel, 32, ZeroPoint, 36, 32), true},
		{with(int4, ShareChannel, 64, ZeroSym, 0, 192), with(int4, ShareToken, 0, ZeroSym, 0, 10), true},
		{with(int8, ShareChannel, 0, ZeroAsym, 3, 20), with(int8, ShareHead, 0, ZeroPoint, 0, 0), true},
		{with(int8, ShareToken, 0, ZeroSym, 64, 64), with(int8, ShareChannel, 0, ZeroSym, 64, 64), true},
		{Format{Codec: CodecF16, Sink: 2}, with(int4, ShareToken, 32, ZeroPoint, 0, 3), true},
		// Blocks that start nowhere together, blocks across pages, and other widths.
		{with(int8, ShareChannel, 32, ZeroSym, 4, 32), with(int8, ShareChannel, 32, ZeroSym, 8, 32), false},
		{with(int8, ShareChannel, 7, ZeroAsym, 5, 21), with(int4, ShareToken, 7, ZeroSym, 0, 0), false},
		{with(Format{Codec: CodecInt, Bits: 2}, ShareChannel, 32, ZeroAsym, 1, 128), with(Format{Codec: CodecInt, Bits: 2}, ShareToken, 32, ZeroAsym, 0, 128), true},
		{Format{Codec: CodecE4M3, Share: ShareToken, Sink: 4}, Format{Codec: CodecBF16, Recent: 9}, true},
	} {
		for j, tokens := range []int{1, 3, 4, 31, 63, 64, 100, 127, 128, 129, 191, 192, 193, 256, 260, 384, 1300} {
			seed := uint64(i*100 + j)
			run(seed, CacheShape{Heads: 1, DimK: 64, DimV: 32}, tokens, 2, 0, p.k, p.v, p.fused)
			if tokens > 100 {
				for _, window := range []int{1, 64, 100, tokens - 65, tokens - 5} {
					run(seed, CacheShape{Heads: 1, DimK: 32, DimV: 64}, tokens, 2, window, p.k, p.v, p.fused)
				}
			}
		}
		for _, grouped := range []int{1, 4, 5, 16} {
			run(uint64(i), CacheShape{Heads: 2, DimK: 128, DimV: 96}, 300, 2*grouped, 0, p.k, p.v, p.fused)
		}
	}
	t.Logf("worst relative error %.3g", worst)
}

// TestDecodeWindowBytes counts what a step over KIVI's cache reads.
func TestDecodeWindowBytes(t *testing.T) {
	const tokens, dim = 1000, 64
	k := Format{Codec: CodecInt, Bits: 4, Zero: ZeroAsym, Share: ShareChannel, Group: 32, Recent: 128}
	v := Format{Codec: CodecInt, Bits: 4, Zero: ZeroAsym, Share: ShareToken, Group: 32, Recent: 128}
	x := newDecodeCase(t, 1, CacheShape{Heads: 2, DimK: dim, DimV: dim, Tokens: tokens}, tokens, k, v, DecodeOptions{QueryHeads: 2})
	// V codes 872 tokens, which is 13 pages of 64; the other 168 tokens stand in float32.
	// A page: 64 tokens of 32 + 32 bytes, two f16 pairs a channel (K) and a token (V).
	if want := int64(2 * (13*(64*64+2*(2*64*4)) + 168*2*dim*4)); x.cache.Bytes() != want {
		t.Errorf("%d bytes, want %d", x.cache.Bytes(), want)
	}
	// Windows that take everything leave nothing to fold, and scales nobody knows.
	for _, share := range []Share{ShareTensor, ShareHead, ShareChannel, ShareToken} {
		f := Format{Codec: CodecInt, Bits: 8, Zero: ZeroPoint, Share: share, Sink: 40, Recent: 100}
		x := newDecodeCase(t, 2, CacheShape{Heads: 1, DimK: dim, DimV: dim, Tokens: 120}, 120, f, f, DecodeOptions{QueryHeads: 1})
		x.check(t, 1e-6)
		if want := int64(120 * 2 * dim * 4); x.cache.Bytes() != want {
			t.Errorf("%v: %d bytes, want %d", f, x.cache.Bytes(), want)
		}
	}
}
