package kernels

import (
	"math"
	"testing"
)

// TestDecodeRotation runs keys that are stored before their rotary embedding: of all
// channels and of a part of them, pairs in both orders, with windows and outliers.
func TestDecodeRotation(t *testing.T) {
	const tokens = 400
	var worst float64
	for i, k := range []Format{
		{Codec: CodecInt, Bits: 4, Zero: ZeroAsym, Share: ShareChannel},
		{Codec: CodecInt, Bits: 8, Share: ShareToken, Group: 32, Sink: 3},
		{Codec: CodecBook, Bits: 4, Zero: ZeroAsym, Share: ShareChannel, Outliers: 300},
		{Codec: CodecE4M3, Share: ShareHead, Recent: 70, Outliers: 1000},
		{Codec: CodecInt, Bits: 2, Zero: ZeroPoint, Share: ShareChannel, Group: 32, Recent: 64, Sink: 5},
	} {
		for pairs := range []int{32, 20} {
			for _, interleaved := range []bool{false, true} {
				var frequencies []float64
				for j := range []int{32, 20}[pairs] {
					frequencies = append(frequencies, math.Pow(10000, -float64(j)/32))
				}
				k.Rotation = NewRotation(frequencies, interleaved, 17*i)
				v := Format{Codec: CodecInt, Bits: 8, Share: ShareToken, Sink: i}
				x := newDecodeCase(t, uint64(i), CacheShape{Heads: 2, DimK: 64, DimV: 48, Tokens: tokens}, tokens, k, v, DecodeOptions{QueryHeads: 6, Window: i % 2 * 150})
				worst = max(worst, x.check(t, errorLimit))
				x.cache.Close()
			}
		}
	}
	t.Logf("worst relative error %.3g", worst)
	r := NewRotation(make([]float64, 9), false, 0)
	f := Format{Codec: CodecInt, Bits: 8, Rotation: r}
	plain := Format{Codec: CodecInt, Bits: 8}
	shape := CacheShape{Heads: 1, DimK: 16, DimV: 16, Tokens: 64}
	for _, bad := range [][2]Format{{f, plain}, {plain, f}, {{Codec: CodecF16, Rotation: NewRotation(nil, false, 0)}, plain}} {
		if c, err := NewCache(shape, bad[0], bad[1]); err == nil {
			c.Close()
			t.Errorf("a cache of %v:%v", bad[0], bad[1])
		}
	}
}
