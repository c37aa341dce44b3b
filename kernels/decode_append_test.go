package kernels

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestDecodeAppend fills a cache with a prefill and appends tokens one by one, and
// holds every step against float64 attention: over the decoded prefill, the pages
// decoded as they were encoded, and the tail as it was appended.
func TestDecodeAppend(t *testing.T) {
	const heads, dim, prefill, total = 2, 32, 100, 330
	token8 := Format{Codec: CodecInt, Bits: 8, Share: ShareToken}
	for _, f := range [][2]Format{
		{{Codec: CodecF16}, {Codec: CodecF32}},
		{token8, token8},
		{{Codec: CodecInt, Bits: 8, Share: ShareChannel}, {Codec: CodecInt, Bits: 4, Share: ShareToken, Group: 32, Zero: ZeroAsym}},
		{{Codec: CodecInt, Bits: 4, Share: ShareChannel, Group: 32, Zero: ZeroAsym}, {Codec: CodecInt, Bits: 8, Share: ShareHead, Zero: ZeroPoint}},
		{{Codec: CodecE4M3, Share: ShareTensor}, {Codec: CodecInt, Bits: 5, Share: ShareToken}},
		{{Codec: CodecBook, Bits: 4, Share: ShareHead}, {Codec: CodecLevels, Share: ShareToken, Group: 16, Levels: &uneven}},
	} {
		r := rand.New(rand.NewPCG(4, 4))
		c, err := NewCache(CacheShape{Heads: heads, DimK: dim, DimV: dim, Tokens: total}, f[0], f[1])
		if err != nil {
			t.Fatal(err)
		}
		// values[head][side] is what attention should see.
		var values [heads][2][]float64
		for h := range heads {
			ek, xk := randomSide(r, f[0], prefill, dim, 1)
			ev, xv := randomSide(r, f[1], prefill, dim, 1)
			values[h] = [2][]float64{xk, xv}
			if err := c.Fill(h, prefill, ek, ev); err != nil {
				t.Fatal(err)
			}
		}
		encode := func(head int, k, v []float32) (Encoded, Encoded, error) {
			// Codes of their own, not those of the rows: what is stored is what counts.
			ek, xk := randomSide(r, f[0], pageTokens, dim, 1)
			ev, xv := randomSide(r, f[1], pageTokens, dim, 1)
			for i, x := range [][]float64{xk, xv} {
				if []*side{&c.k, &c.v}[i].encodes() {
					copy(values[head][i][len(values[head][i])-len(x):], x)
				}
			}
			return ek, ev, nil
		}
		o := DecodeOptions{QueryHeads: 2 * heads, Scale: 1 / math.Sqrt(dim), Threads: 1}
		q := make([]float32, o.QueryHeads*dim)
		for i := range q {
			q[i] = float32(r.NormFloat64())
		}
		for n := prefill; n < total; n++ {
			k, v := make([]float32, heads*dim), make([]float32, heads*dim)
			for i := range k {
				k[i], v[i] = float32(r.NormFloat64()/4), float32(r.NormFloat64()/4)
			}
			for h := range heads {
				for i, row := range [][]float32{k, v} {
					for _, x := range row[h*dim:][:dim] {
						values[h][i] = append(values[h][i], float64(x))
					}
				}
			}
			if err := c.Append(k, v, encode); err != nil {
				t.Fatal(err)
			}
			if (n+1)%pageTokens == 0 {
				for h := range heads {
					for i, s := range []*side{&c.k, &c.v} {
						if !s.encodes() {
							frozen(values[h][i][len(values[h][i])-pageTokens*dim:], s, &c.heads[h])
						}
					}
				}
			}
			if n%37 != 0 && n%64 > 1 && n != total-1 {
				continue
			}
			d, err := NewDecoder(c, o)
			if err != nil {
				t.Fatal(err)
			}
			out := make([]float32, o.QueryHeads*dim)
			if err := d.Step(c, out, q); err != nil {
				t.Fatal(err)
			}
			d.Close()
			var want []float64
			for j := range o.QueryHeads {
				want = append(want, attention64(q[j*dim:][:dim], values[j/2][0], values[j/2][1], dim, dim, n+1, 0, o.Scale)...)
			}
			if e := relativeRMS(out, want); !(e <= vectorLimit) {
				t.Fatalf("%v:%v, %d tokens: relative error %.3g", f[0], f[1], n+1, e)
			}
		}
		if err := c.Append(make([]float32, heads*dim), make([]float32, heads*dim), encode); err == nil {
			t.Errorf("%v:%v: appended to a full cache", f[0], f[1])
		}
		c.Close()
	}
}

// frozen rounds values to what a head's fixed scales hold, in float64.
func frozen(x []float64, s *side, h *head) {
	f := s.format
	scales, offsets := h.whole(s)
	for i, v := range x {
		u := 0
		if f.Share == ShareChannel {
			u = i % s.dim
		}
		switch {
		case f.Codec == CodecF16:
			x[i] = float64(fromF16(f16(float32(v))))
		case f.Codec == CodecInt && scales[u] > 0:
			scale, zero, low := float64(scales[u]), float64(offsets[u]), 0.0
			if f.Zero == ZeroSym {
				low = 1
			}
			field := math.RoundToEven(float64(float32(v)/scales[u])) + zero
			x[i] = scale * (min(max(field, low), float64(int(1)<<f.Bits-1)) - zero)
		case f.Codec == CodecE4M3:
			scale := scales[u] / e4m3Half
			code := E4M3(float32(v) / scale)
			x[i] = float64(scale) * float8(code, 4, 7)
		case f.Codec == CodecBook:
			book := h.vBook
			if s.key {
				book = h.kBook
			}
			book = book[:1<<f.Bits]
			u := float32(v) / scales[u]
			near := slices.MinFunc(book, func(a, b float32) int { return cmp.Compare(abs32(a-u), abs32(b-u)) })
			x[i] = float64(scales[0]) * float64(near)
		}
	}
}

// TestDecodeSaturates holds that values beyond a frozen scale are counted and clamped.
func TestDecodeSaturates(t *testing.T) {
	const dim = 16
	f := Format{Codec: CodecInt, Bits: 8, Share: ShareChannel}
	c, err := NewCache(CacheShape{Heads: 1, DimK: dim, DimV: dim, Tokens: 128}, f, f)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	e := Encoded{Fields: make([]uint8, 64*dim), Scales: make([]float32, dim)}
	for i := range e.Scales {
		e.Scales[i] = 1.0 / 127
	}
	if err := c.Fill(0, 64, e, e); err != nil {
		t.Fatal(err)
	}
	row := make([]float32, dim)
	row[3], row[4], row[5] = 1, 5, -7 // the first is the largest that fits
	for range 64 {
		if err := c.Append(row, make([]float32, dim), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.Saturated(); got != 2*64 {
		t.Errorf("%d values saturated, want %d", got, 2*64)
	}
	// A block of tokens that outlasts a page cannot be built token by token.
	long := Format{Codec: CodecInt, Bits: 8, Share: ShareChannel, Group: 128}
	l, err := NewCache(CacheShape{Heads: 1, DimK: dim, DimV: dim, Tokens: 256}, long, f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Appends() || l.Append(row, row, nil) == nil {
		t.Error("appended to blocks of 128 tokens")
	}
}
