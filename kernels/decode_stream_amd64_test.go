//go:build !purego

package kernels

import (
	"fmt"
	"math"
	"testing"
)

// TestStream attends to the same caches with a backend's stream and without it, which
// must give the same bits: over pages that share metadata, windows that cut a page, and
// lanes that fill no block. It checks that the formats of the benchmarks are streamed.
func TestStream(t *testing.T) {
	int8 := func(s Share, group int, zero Zero) Format {
		return Format{Codec: CodecInt, Bits: 8, Share: s, Group: group, Zero: zero}
	}
	int4 := func(s Share, group int, zero Zero) Format {
		return Format{Codec: CodecInt, Bits: 4, Share: s, Group: group, Zero: zero}
	}
	pairs := [][2]Format{
		{{Codec: CodecF16}, {Codec: CodecF16}},
		{{Codec: CodecBF16}, {Codec: CodecBF16}},
		{int8(ShareChannel, 0, ZeroSym), int8(ShareToken, 0, ZeroSym)},
		{int8(ShareChannel, 0, ZeroAsym), int4(ShareToken, 0, ZeroAsym)},
		{int4(ShareChannel, 0, ZeroSym), int4(ShareToken, 0, ZeroSym)},
		{int8(ShareToken, 32, ZeroSym), int8(ShareHead, 0, ZeroSym)},
		{int8(ShareChannel, 32, ZeroSym), int8(ShareToken, 32, ZeroSym)},
		{int4(ShareChannel, 128, ZeroSym), int4(ShareToken, 64, ZeroSym)},
		{int4(ShareChannel, 128, ZeroAsym), {Codec: CodecF16}},
		{int4(ShareChannel, 32, ZeroAsym), int4(ShareToken, 32, ZeroAsym)},
		{int4(ShareToken, 32, ZeroAsym), int8(ShareToken, 0, ZeroAsym)},
		{int8(ShareToken, 0, ZeroAsym), int4(ShareToken, 64, ZeroAsym)},
	}
	eachBackend(t, func(t *testing.T) {
		if active.Load().decode.stream == nil {
			t.Skip("no stream")
		}
		for i, pair := range pairs {
			for j, dim := range []int{64, 80, 128} {
				for n := range 2 {
					heads := []int{1, 3, 4, 6}[(i+j+2*n)%4]
					o := DecodeOptions{QueryHeads: 2 * heads, Window: []int{0, 64*20 + 7, 64 * 20, 64*33 + 1}[heads%4], Threads: 2}
					x := newDecodeCase(t, uint64(i), CacheShape{Heads: 2, DimK: dim, DimV: dim, Tokens: 64 * 40}, 64*37+5, pair[0], pair[1], o)
					if dim%blockWide == 0 && !streams(&x.cache.k, &x.cache.v) {
						t.Errorf("%v is not streamed", pair)
					}
					var out [2][]float32
					for pass := range out {
						d, err := NewDecoder(x.cache, x.options)
						if err != nil {
							t.Fatal(err)
						}
						if pass == 1 {
							plain := *d.kern
							plain.stream = nil
							for _, w := range d.workers {
								w.kern = &plain
							}
						}
						out[pass] = make([]float32, len(x.want))
						if err := d.Step(x.cache, out[pass], x.q); err != nil {
							t.Fatal(err)
						}
						d.Close()
					}
					for at := range out[0] {
						if math.Float32bits(out[0][at]) != math.Float32bits(out[1][at]) {
							t.Fatal(fmt.Sprint(pair), dim, o, "element", at, out[0][at], out[1][at])
						}
					}
					x.cache.Close()
				}
			}
		}
	})
}
