package kernels

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// encodeByDefinition encodes rows as docs/schemes.md defines it, one value at a time,
// with scales of float16 or float32.
func encodeByDefinition(f Format, x []float32, tokens, dim int) Encoded {
	if f.Codec == CodecF16 {
		e := Encoded{Values: make([]float32, len(x))}
		for i, v := range x {
			e.Values[i] = fromF16(f16(v))
		}
		return e
	}
	stored, least := func(v float32) float32 { return v }, float32(math.SmallestNonzeroFloat32)
	if f.Meta == MetaF16 {
		stored, least = func(v float32) float32 { return fromF16(f16(v)) }, 0x1p-24
	}
	levels := math.Ldexp(1, f.Bits) - 1
	half := math.Ldexp(1, f.Bits-1)
	n := f.scales(tokens, dim)
	lo, hi := make([]float32, n), make([]float32, n)
	for i := range lo {
		lo[i], hi[i] = float32(math.Inf(1)), float32(math.Inf(-1))
	}
	for i, v := range x {
		u := unitOf(f, tokens, dim, i/dim, i%dim)
		lo[u], hi[u] = min(lo[u], v), max(hi[u], v)
	}
	e := Encoded{Fields: make([]uint8, len(x)), Scales: make([]float32, n)}
	if f.Zero != ZeroSym {
		e.Offsets = make([]float32, n)
	}
	for u := range n {
		width, by := hi[u]-lo[u], float32(levels)
		switch f.Zero {
		case ZeroSym:
			width, by = max(hi[u], -lo[u]), float32(half-1)
		case ZeroPoint:
			lo[u] = min(lo[u], 0)
			width = max(hi[u], 0) - lo[u]
		}
		e.Scales[u] = stored(width / by)
		if e.Scales[u] == 0 && width > 0 {
			e.Scales[u] = least
		}
		switch {
		case f.Zero == ZeroAsym:
			e.Offsets[u] = stored(lo[u] + 0) // a zero is positive
		case f.Zero == ZeroPoint && e.Scales[u] > 0:
			e.Offsets[u] = float32(math.Min(math.Max(-math.RoundToEven(float64(lo[u]/e.Scales[u])), 0), levels))
		}
	}
	for i, v := range x {
		u := unitOf(f, tokens, dim, i/dim, i%dim)
		var q, least float64
		if f.Zero == ZeroAsym {
			v -= e.Offsets[u]
		}
		if e.Scales[u] > 0 {
			q = math.RoundToEven(float64(v / e.Scales[u]))
		}
		switch f.Zero {
		case ZeroSym:
			q, least = q+half, 1
		case ZeroPoint:
			q += float64(e.Offsets[u])
		}
		e.Fields[i] = uint8(min(max(q, least), levels))
	}
	return e
}

// rowFormats are the formats that are encoded from rows.
func rowFormats() []Format {
	formats := []Format{{Codec: CodecF16}}
	for _, bits := range []int{8, 4} {
		for _, zero := range []Zero{ZeroSym, ZeroAsym, ZeroPoint} {
			for _, meta := range []Meta{MetaF16, MetaF32} {
				f := Format{Codec: CodecInt, Bits: bits, Zero: zero, Meta: meta}
				for _, share := range []Share{ShareHead, ShareToken, ShareChannel} {
					f.Share = share
					formats = append(formats, f)
				}
				for _, group := range []int{16, 32, 48, 64, 128, 192} {
					f.Share, f.Group = ShareChannel, group
					if group == blockWide || group%pageTokens == 0 {
						formats = append(formats, f)
					}
					f.Share = ShareToken
					formats = append(formats, f)
				}
			}
		}
	}
	return formats
}

// TestFillRows holds a cache that encodes rows by itself to the bytes of one filled with
// what the definition makes of them, on every backend.
func TestFillRows(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		if !active.Load().page.direct {
			t.Skip("this backend encodes no rows")
		}
		r := rand.New(rand.NewPCG(5, 5))
		for _, shape := range []CacheShape{
			{Heads: 2, DimK: 128, DimV: 64, Tokens: 210}, {Heads: 1, DimK: 80, DimV: 112, Tokens: 277}, {Heads: 1, DimK: 112, DimV: 256, Tokens: 64},
			{Heads: 1, DimK: 576, DimV: 512, Tokens: 70}, {Heads: 1, DimK: 16, DimV: 48, Tokens: 79}, {Heads: 1, DimK: 32, DimV: 16, Tokens: 15},
		} {
			for _, f := range rowFormats() {
				if f.Share == ShareToken && f.Group > min(shape.DimK, shape.DimV) {
					continue
				}
				x := [2][]float32{rowsOf(r, f, shape.Tokens, shape.DimK), rowsOf(r, f, shape.Tokens, shape.DimV)}
				got, want := newCacheFor(t, shape, f), newCacheFor(t, shape, f)
				for h := range shape.Heads {
					if err := got.Fill(h, shape.Tokens, Encoded{Rows: x[0]}, Encoded{Rows: x[1]}); err != nil {
						t.Fatalf("%+v: %v", f, err)
					}
					if err := want.Fill(h, shape.Tokens, encodeByDefinition(f, x[0], shape.Tokens, shape.DimK), encodeByDefinition(f, x[1], shape.Tokens, shape.DimV)); err != nil {
						t.Fatalf("%+v: %v", f, err)
					}
				}
				if err := sameCaches(got, want); err != nil {
					t.Fatalf("%+v, %+v: %v", shape, f, err)
				}
				got.Close()
				want.Close()
			}
		}
	})
}

// rowsOf returns rows with ordinary values, ties, zeros and tiny values, a column and a
// row of one value, and, where the scales are wide enough, very large ones.
func rowsOf(r *rand.Rand, f Format, tokens, dim int) []float32 {
	x := make([]float32, tokens*dim)
	tiny := []float32{0, 0x1p-149, -0x1p-40, 0x1p-24}[r.IntN(4)]
	for i := range x {
		v := rowValue(r)
		switch {
		case i%dim == 3 || i/dim == 2:
			v = tiny
		case f.Meta == MetaF16 && abs32(v) > 3e4:
			v = 0x1p-130
		case f.Meta == MetaF32 && abs32(v) > 1e38:
			v /= 8
		}
		x[i] = v
	}
	return x
}

func newCacheFor(t testing.TB, shape CacheShape, f Format) *Cache {
	t.Helper()
	c, err := NewCache(shape, f, f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sameCaches compares what two caches store.
func sameCaches(a, b *Cache) error {
	if i := firstDifference(a.memory, b.memory); i >= 0 {
		return fmt.Errorf("byte %d of %d is %d, want %d", i, len(a.memory), a.memory[i], b.memory[i])
	}
	for i := range a.heads {
		x, y := &a.heads[i], &b.heads[i]
		if !slices.Equal(x.kScale, y.kScale) || !slices.Equal(x.vScale, y.vScale) || !slices.Equal(x.kOffset, y.kOffset) || !slices.Equal(x.vOffset, y.vOffset) {
			return fmt.Errorf("scales of head %d differ", i)
		}
	}
	return nil
}

func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// TestFillRowsRefuses holds that what cannot be stored is refused, wherever it stands.
func TestFillRowsRefuses(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		if !active.Load().page.direct {
			t.Skip("this backend encodes no rows")
		}
		r := rand.New(rand.NewPCG(6, 6))
		shape := CacheShape{Heads: 1, DimK: 64, DimV: 192, Tokens: 200}
		for _, f := range rowFormats() {
			if f.Share == ShareToken && f.Group > shape.DimK {
				continue
			}
			c := newCacheFor(t, shape, f)
			for range 4 {
				x := make([]float32, shape.Tokens*shape.DimV)
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				at := r.IntN(len(x))
				x[at] = math.Float32frombits(r.Uint32()<<31 | 0x7f800000 | r.Uint32N(2)<<uint(r.IntN(23)))
				err := c.FillValues(0, shape.Tokens, Encoded{Rows: x})
				if want := fmt.Sprintf("token %d, channel %d is not finite", at/shape.DimV, at%shape.DimV); err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("%+v: %v, want %s", f, err, want)
				}
				x[at] = 1e9
				if f.Meta == MetaF16 {
					if err := c.FillValues(0, shape.Tokens, Encoded{Rows: x}); err == nil {
						t.Fatalf("%+v: stored 1e9", f)
					}
				}
				x[at] = 5
				if err := c.FillValues(0, shape.Tokens, Encoded{Rows: x}); err != nil {
					t.Fatal(err)
				}
			}
			for _, e := range []Encoded{{Rows: make([]float32, 5)}, {Rows: make([]float32, shape.Tokens*shape.DimV), Scales: make([]float32, 3)}} {
				if err := c.FillValues(0, shape.Tokens, e); err == nil {
					t.Errorf("%+v: took %d rows, %d scales", f, len(e.Rows), len(e.Scales))
				}
			}
			c.Close()
		}
	})
}

// rowTokens leaves encoding to the cache.
type rowTokens struct{}

func (rowTokens) Encode(_ bool, _, _ int, rows []float32) (Encoded, error) {
	return Encoded{Rows: rows}, nil
}

func (rowTokens) Keep(dst []float32, _ bool, _, _ int, row []float32) error {
	copy(dst, row)
	return nil
}

// TestAppendRows holds that pages that are appended as rows are those that Fill makes.
func TestAppendRows(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		if !active.Load().page.direct {
			t.Skip("this backend encodes no rows")
		}
		r := rand.New(rand.NewPCG(7, 7))
		const dim = 32
		shape := CacheShape{Heads: 2, DimK: dim, DimV: dim, Tokens: 384}
		for i, f := range rowFormats() {
			prefill := []int{128, 150}[i%2]
			if f.Share == ShareToken && f.Group > dim {
				continue
			}
			// Within the scales of the prefill, whose values are the largest.
			x := make([]float32, shape.Tokens*dim)
			for i := range x {
				x[i] = float32(max(-0.9, min(0.9, r.NormFloat64())))
				if i < 2*dim {
					x[i] = float32(i/dim)*2 - 1
				}
			}
			got, want := newCacheFor(t, shape, f), newCacheFor(t, shape, f)
			for h := range shape.Heads {
				if err := got.Fill(h, prefill, Encoded{Rows: x[:prefill*dim]}, Encoded{Rows: x[:prefill*dim]}); err != nil {
					t.Fatal(err)
				}
				if err := want.Fill(h, shape.Tokens, Encoded{Rows: x}, Encoded{Rows: x}); err != nil {
					t.Fatal(err)
				}
			}
			for at := prefill; at < shape.Tokens; at++ {
				row := x[at*dim : (at+1)*dim]
				both := slices.Concat(row, row)
				if err := got.Append(both, both, rowTokens{}); err != nil {
					t.Fatalf("%+v: %v", f, err)
				}
			}
			if got.Saturated() != 0 {
				t.Errorf("%+v: %d values saturated", f, got.Saturated())
			}
			for i := range got.heads {
				got.heads[i].tail.clear(true) // what a closed page leaves is read no more
				got.heads[i].tail.clear(false)
			}
			if err := sameCaches(got, want); err != nil {
				t.Fatalf("%+v: %v", f, err)
			}
			got.Close()
			want.Close()
		}
	})
}

// TestFillRowsAllocates holds that filling and refilling a cache allocates nothing.
func TestFillRowsAllocates(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		if !active.Load().page.direct {
			t.Skip("this backend encodes no rows")
		}
		shape := CacheShape{Heads: 1, DimK: 64, DimV: 64, Tokens: 150}
		x := rowsOf(rand.New(rand.NewPCG(8, 8)), Format{Meta: MetaF16}, shape.Tokens, 64)
		for _, f := range rowFormats() {
			if f.Share == ShareToken && f.Group > 64 {
				continue
			}
			c := newCacheFor(t, shape, f)
			if n := testing.AllocsPerRun(3, func() {
				if err := c.Fill(0, shape.Tokens, Encoded{Rows: x}, Encoded{Rows: x}); err != nil {
					t.Fatal(err)
				}
				if c.Freezes(true) {
					if err := c.Refill(0, true, x); err != nil {
						t.Fatal(err)
					}
				}
			}); n != 0 {
				t.Errorf("%+v: %g allocations", f, n)
			}
			c.Close()
		}
	})
}

// FuzzFillRows holds every backend to the bytes, and to the refusals, of the portable code.
func FuzzFillRows(f *testing.F) {
	f.Add(uint16(3), uint8(1), uint8(70), []byte{0, 0, 0x80, 0x3f, 0, 0, 0x80, 0xbf, 1, 0, 0, 0})
	f.Add(uint16(40), uint8(5), uint8(64), []byte{0, 0, 0x80, 0x7f})
	f.Fuzz(func(t *testing.T, format uint16, vectors, tokens uint8, data []byte) {
		formats := rowFormats()
		of := formats[int(format)%len(formats)]
		dim := laneWidth * (1 + int(vectors)%8)
		n := 1 + int(tokens)
		if len(data) < 4 || of.Share == ShareToken && of.Group > dim {
			return
		}
		x := make([]float32, n*dim)
		for i := range x {
			at := 4 * i % (len(data) &^ 3)
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[at:]) ^ uint32(i/len(data))<<13)
		}
		before := Active()
		defer Use(before)
		shape := CacheShape{Heads: 1, DimK: dim, DimV: dim, Tokens: n}
		var want *Cache
		var wantErr error
		for _, isa := range slices.Backward(Available()) { // the portable code first
			if err := Use(isa); err != nil {
				t.Fatal(err)
			}
			if !active.Load().page.direct {
				continue
			}
			c := newCacheFor(t, shape, of)
			defer c.Close()
			err := c.Fill(0, n, Encoded{Rows: x}, Encoded{Rows: x})
			if want == nil {
				want, wantErr = c, err
				continue
			}
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%s: %v, want %v", isa, err, wantErr)
			}
			if err == nil {
				if err := sameCaches(c, want); err != nil {
					t.Fatalf("%s, %+v: %v", isa, of, err)
				}
			}
		}
	})
}
