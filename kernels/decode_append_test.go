package kernels

import (
	"cmp"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomEncoder makes codes of its own, not those of the rows: what is stored is what
// counts. values[head][side] is what attention should see.
type randomEncoder struct {
	c      *Cache
	r      *rand.Rand
	values [][2][]float64
	refuse bool
}

func (x *randomEncoder) side(key bool) (*side, int) {
	if key {
		return &x.c.k, 0
	}
	return &x.c.v, 1
}

// see notes what attention should see of tokens.
func (x *randomEncoder) see(key bool, head, token int, rows []float64) {
	s, i := x.side(key)
	v := append(x.values[head][i], make([]float64, max(0, token*s.dim+len(rows)-len(x.values[head][i])))...)
	copy(v[token*s.dim:], rows)
	x.values[head][i] = v
}

func (x *randomEncoder) Encode(key bool, head, token int, rows []float32) (Encoded, error) {
	if x.refuse {
		return Encoded{}, errors.New("refused")
	}
	s, _ := x.side(key)
	exact := make([]float64, len(rows))
	for i, v := range rows {
		exact[i] = float64(v)
	}
	if s.encodes() {
		e, exact := windowedSide(x.r, Format{Codec: s.format.Codec, Bits: s.format.Bits, Zero: s.format.Zero, Share: s.format.Share, Group: s.format.Group, Meta: s.format.Meta,
			Outliers: min(s.format.Outliers, len(rows)*3/100)}, len(rows)/s.dim, s.dim)
		x.see(key, head, token, exact)
		return e, nil
	}
	e := Encoded{Values: slices.Clone(rows)}
	if s.format.Codec == CodecF16 {
		for i, v := range rows {
			e.Values[i] = fromF16(f16(v))
		}
	}
	frozen(exact, s, &x.c.heads[head])
	x.see(key, head, token, exact)
	return e, nil
}

func (x *randomEncoder) Keep(dst []float32, key bool, head, token int, row []float32) error {
	if x.refuse {
		return errors.New("refused")
	}
	exact := make([]float64, len(row))
	for i, v := range row {
		dst[i] = fromF16(f16(v))
		exact[i] = float64(dst[i])
	}
	x.see(key, head, token, exact)
	return nil
}

// TestDecodeAppend fills a cache with a prefill and appends tokens one by one, and
// holds every step against float64 attention over what it should hold.
func TestDecodeAppend(t *testing.T) {
	const heads, dim, total = 2, 32, 400
	token8 := Format{Codec: CodecInt, Bits: 8, Share: ShareToken}
	asym4 := Format{Codec: CodecInt, Bits: 4, Zero: ZeroAsym, Share: ShareToken, Group: 32}
	channel := func(group, sink, recent int) Format {
		return Format{Codec: CodecInt, Bits: 4, Zero: ZeroAsym, Share: ShareChannel, Group: group, Sink: sink, Recent: recent}
	}
	with := func(f Format, sink, recent, outliers int) Format {
		f.Sink, f.Recent, f.Outliers = sink, recent, outliers
		return f
	}
	for i, f := range [][2]Format{
		{{Codec: CodecF16}, {Codec: CodecF32}},
		{token8, token8},
		{{Codec: CodecInt, Bits: 8, Share: ShareChannel}, asym4},
		{channel(32, 0, 0), {Codec: CodecInt, Bits: 8, Share: ShareHead, Zero: ZeroPoint}},
		{{Codec: CodecE4M3, Share: ShareTensor}, {Codec: CodecInt, Bits: 5, Share: ShareToken}},
		// KIVI; blocks that outlast a page, or lie across pages; sinks; outliers.
		{channel(32, 0, 128), with(asym4, 0, 128, 0)},
		{channel(128, 0, 0), token8},
		{channel(128, 4, 128), with(token8, 9, 0, 0)},
		{channel(48, 0, 0), channel(7, 3, 21)},
		{with(token8, 5, 30, 1000), with(asym4, 0, 0, 1000)},
		{with(channel(32, 0, 64), 0, 64, 1000), {Codec: CodecF16, Sink: 70, Recent: 10}},
	} {
		for _, prefill := range []int{0, 1, 100, 256} {
			if k := f[0]; prefill == 0 && (k.Share == ShareChannel && k.Group == 0 || f[1].Share == ShareHead || k.Codec == CodecE4M3) {
				continue // scales of a prefill
			}
			r := rand.New(rand.NewPCG(4, uint64(i)))
			c, err := NewCache(CacheShape{Heads: heads, DimK: dim, DimV: dim, Tokens: total}, f[0], f[1])
			if err != nil {
				t.Fatal(err)
			}
			x := &randomEncoder{c: c, r: r, values: make([][2][]float64, heads)}
			for h := range heads {
				ek, xk := windowedSide(r, f[0], prefill, dim)
				ev, xv := windowedSide(r, f[1], prefill, dim)
				x.values[h] = [2][]float64{xk, xv}
				for j, e := range []*Encoded{&ek, &ev} {
					_, open := windowsOf(f[j], prefill)
					if sink, _ := windowsOf(f[j], prefill); f[j].blocks() && f[j].Recent == 0 {
						open = (prefill - sink) % f[j].Group
					}
					for _, v := range x.values[h][j][(prefill-open)*dim:] {
						e.Open = append(e.Open, float32(v))
					}
				}
				if err := c.Fill(h, prefill, ek, ev); err != nil {
					t.Fatal(err)
				}
			}
			o := DecodeOptions{QueryHeads: 2 * heads, Scale: 1 / math.Sqrt(dim), Threads: 1}
			d, err := NewDecoder(c, o)
			if err != nil {
				t.Fatal(err)
			}
			q := make([]float32, o.QueryHeads*dim)
			for i := range q {
				q[i] = float32(r.NormFloat64())
			}
			for n := prefill; n < total; n++ {
				k, v := make([]float32, heads*dim), make([]float32, heads*dim)
				for i := range k {
					k[i], v[i] = float32(r.NormFloat64()/4), float32(r.NormFloat64()/4)
				}
				if n%50 == 3 {
					x.refuse = true
					if err := c.Append(k, v, x); err == nil {
						t.Fatalf("%v:%v: a refused token was appended", f[0], f[1])
					}
					x.refuse = false
				}
				if err := c.Append(k, v, x); err != nil {
					t.Fatal(err)
				}
				if c.Tokens() != n+1 || c.pages != c.pagesOf(n+1) {
					t.Fatalf("%v:%v: %d tokens, %d pages", f[0], f[1], c.Tokens(), c.pages)
				}
				if n%37 != 0 && n%64 > 1 && n != total-1 {
					continue
				}
				out := make([]float32, o.QueryHeads*dim)
				if err := d.Step(c, out, q); err != nil {
					t.Fatal(err)
				}
				var want []float64
				for j := range o.QueryHeads {
					want = append(want, attention64(q[j*dim:][:dim], x.values[j/2][0], x.values[j/2][1], dim, dim, n+1, 0, o.Scale)...)
				}
				if e := relativeRMS(out, want); !(e <= vectorLimit) {
					t.Fatalf("%v:%v, prefill %d, %d tokens: relative error %.3g", f[0], f[1], prefill, n+1, e)
				}
			}
			if err := c.Append(make([]float32, heads*dim), make([]float32, heads*dim), x); err == nil {
				t.Errorf("%v:%v: appended to a full cache", f[0], f[1])
			}
			d.Close()
			c.Close()
		}
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
	x := &randomEncoder{c: c, values: make([][2][]float64, 1)}
	row := make([]float32, dim)
	row[3], row[4], row[5] = 1, 5, -7 // the first is the largest that fits
	for range 64 {
		if err := c.Append(row, make([]float32, dim), x); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.Saturated(); got != 2*64 {
		t.Errorf("%d values saturated, want %d", got, 2*64)
	}
	// Without the rows of a short block it cannot be opened again.
	long := Format{Codec: CodecInt, Bits: 8, Share: ShareChannel, Group: 128}
	l, err := NewCache(CacheShape{Heads: 1, DimK: dim, DimV: dim, Tokens: 256}, long, f)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x.c = l
	if err := l.Fill(0, 64, e, e); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(row, row, x); err == nil {
		t.Error("appended to a short block that nobody knows")
	}
}

// fixedEncoder gives every token the same codes.
type fixedEncoder struct {
	c       *Cache
	encoded [2]Encoded
}

func (x *fixedEncoder) Encode(key bool, _, _ int, rows []float32) (Encoded, error) {
	if key {
		return x.encoded[0], nil
	}
	return x.encoded[1], nil
}

func (x *fixedEncoder) Keep(dst []float32, _ bool, _, _ int, row []float32) error {
	copy(dst, row)
	return nil
}

// TestAppendAllocations holds that appending allocates nothing once it has what it needs,
// pages that close included.
func TestAppendAllocations(t *testing.T) {
	const dim, capacity, steady = 64, 2000, 700
	for _, f := range []Format{
		{Codec: CodecF16}, {Codec: CodecF32, Sink: 4, Recent: 20}, {Codec: CodecInt, Bits: 8, Share: ShareToken}, {Codec: CodecInt, Bits: 8, Share: ShareHead},
		{Codec: CodecInt, Bits: 4, Zero: ZeroAsym, Share: ShareChannel, Group: 32, Recent: 128}, {Codec: CodecInt, Bits: 3, Share: ShareToken, Recent: 10, Outliers: 2 * capacity},
		{Codec: CodecE4M3, Share: ShareTensor}, {Codec: CodecInt, Bits: 8, Share: ShareChannel, Group: 128},
	} {
		c, err := NewCache(CacheShape{Heads: 2, DimK: dim, DimV: dim, Tokens: capacity}, f, f)
		if err != nil {
			t.Fatal(err)
		}
		x := &fixedEncoder{c: c}
		unit, _ := f.unit()
		for i := range x.encoded {
			e, _ := randomSide(rand.New(rand.NewPCG(1, 1)), f, unit, dim, 1)
			if f.Outliers > 0 {
				e.Outliers = []Outlier{{0, 5, 1}, {0, 9, -1}}
			}
			if !(&c.k).encodes() {
				e.Values = make([]float32, unit*dim)
			}
			x.encoded[i] = e
		}
		rows := make([]float32, 2*dim)
		add := func(n int) {
			for range n {
				if err := c.Append(rows, rows, x); err != nil {
					t.Fatal(err)
				}
			}
		}
		add(steady)
		if n := testing.AllocsPerRun(1, func() { add(300) }); n != 0 {
			t.Errorf("%v: %v allocations for 300 tokens", f, n)
		}
		c.Close()
	}
}
