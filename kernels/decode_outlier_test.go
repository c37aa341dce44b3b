package kernels

import (
	"testing"
)

// TestDecodeOutliers runs every format with outliers on both sides, one, or the other,
// with and without windows.
func TestDecodeOutliers(t *testing.T) {
	const tokens = 300
	shape := CacheShape{Heads: 2, DimK: 64, DimV: 96, Tokens: tokens}
	var worst float64
	for i, f := range append(everyFormat(), Format{Codec: CodecF16}) {
		k, v := f, f
		k.Outliers, v.Outliers = tokens*64*3/100, tokens*96*3/100
		if i%3 == 1 {
			k.Outliers = 0
		}
		if i%3 == 2 {
			v.Outliers = 0
		}
		if i%2 == 1 {
			k.Sink, v.Recent = 3, 40
			if f.blocks() {
				v.Recent = f.Group
			}
		}
		x := newDecodeCase(t, uint64(i), shape, tokens, k, v, DecodeOptions{QueryHeads: 2 * (1 + i%6), Window: i % 4 * 90})
		worst = max(worst, x.check(t, vectorLimit))
		x.cache.Close()
	}
	t.Logf("worst relative error %.3g", worst)
}

// TestDecodeOutlierBytes counts what outliers add to a step, and holds what Fill refuses.
func TestDecodeOutlierBytes(t *testing.T) {
	const dim = 64
	f := Format{Codec: CodecInt, Bits: 8, Share: ShareToken, Outliers: 10}
	shape := CacheShape{Heads: 1, DimK: dim, DimV: dim, Tokens: 200}
	c, err := NewCache(shape, f, f)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	e := Encoded{Fields: make([]uint8, 200*dim), Scales: make([]float32, 200)}
	e.Outliers = []Outlier{{0, 3, 1}, {64, 0, 2}, {191, 63, 3}, {192, 5, 4}}
	if err := c.Fill(0, 200, e, e); err != nil {
		t.Fatal(err)
	}
	// Three pages, 8 tokens in float32; on each side three outliers of 8 bytes in pages
	// (the fourth is in the tail) and an end for every page.
	if want := int64(3*64*2*(dim+2) + 8*2*dim*4 + 2*(3*8+3*4)); c.Bytes() != want {
		t.Errorf("%d bytes, want %d", c.Bytes(), want)
	}
	for _, bad := range [][]Outlier{{{200, 0, 1}}, {{-1, 0, 1}}, {{0, dim, 1}}, {{0, -1, 1}}, {{5, 0, 1}, {4, 0, 1}}, make([]Outlier, 11)} {
		e.Outliers = bad
		if err := c.Fill(0, 200, e, e); err == nil {
			t.Errorf("filled with outliers %v", bad)
		}
	}
	if _, err := NewCache(shape, Format{Codec: CodecF16, Outliers: -1}, f); err == nil {
		t.Error("a cache of -1 outliers")
	}
}
