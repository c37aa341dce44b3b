package cmd

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"kvq/kernels"
	"kvq/quantize"
)

// schemeEncoder is what a live cache of a scheme appends tokens with.
type schemeEncoder struct{ sides [2]liveSide }

// liveSide encodes tokens of one side: as codes, as those of a window, and as what they
// are under the modifiers that change values.
type liveSide struct {
	codes, sink, recent, plain *sideEncoder
	rope                       *quantize.Rope
	values                     bool // the cache has the scales
}

func newSchemeEncoder(t *testing.T, pair quantize.Pair, shape kernels.CacheShape, rope *quantize.Rope) *schemeEncoder {
	t.Helper()
	x := new(schemeEncoder)
	for i, s := range []*quantize.Scheme{pair.K, pair.V} {
		side := func(format *quantize.Format, without ...quantize.ModifierKind) *sideEncoder {
			part := *s
			part.Modifiers = slices.DeleteFunc(slices.Clone(s.Modifiers), func(m quantize.Modifier) bool { return slices.Contains(without, m.Kind) })
			if format != nil {
				part = quantize.Scheme{Format: format, Modifiers: part.Modifiers}
			}
			r := [2]*quantize.Rope{rope, nil}[i]
			if r != nil {
				shifted := *r
				r = &shifted
			}
			e, err := newSideEncoder(&part, shape.Tokens, []int{shape.DimK, shape.DimV}[i], r)
			if err != nil {
				t.Fatal(err)
			}
			return e
		}
		f32, err := quantize.Lookup("f32")
		if err != nil {
			t.Fatal(err)
		}
		l := &x.sides[i]
		l.rope = [2]*quantize.Rope{rope, nil}[i]
		l.codes = side(nil, quantize.Sink, quantize.Recent)
		l.sink, l.recent = side(nil, quantize.Recent), side(nil, quantize.Sink)
		if l.values = l.codes.format.Codec >= kernels.CodecE4M3 && s.Format.Class == quantize.Plain; l.values {
			l.plain = side(f32.Format, quantize.Sink, quantize.Recent)
		}
	}
	return x
}

func (x *schemeEncoder) side(key bool) *liveSide {
	if key {
		return &x.sides[0]
	}
	return &x.sides[1]
}

func (l *liveSide) head(e *sideEncoder, token int, rows []float32, dim int) quantize.Head {
	if e.rope != nil {
		e.rope.First = l.rope.First + token
	}
	return quantize.Head{Dim: dim, Values: rows, Rope: e.rope}
}

const appendDim = 64

func (x *schemeEncoder) Encode(key bool, _, token int, rows []float32) (kernels.Encoded, error) {
	l := x.side(key)
	e := l.codes
	if l.values {
		e = l.plain
	}
	encoded, err := e.encode(l.head(e, token, rows, appendDim))
	if l.values {
		encoded.Scales = []float32{1}
	}
	return encoded, err
}

func (x *schemeEncoder) Keep(dst []float32, key bool, _, token int, row []float32) error {
	l := x.side(key)
	e := l.recent
	if token < l.sink.format.Sink {
		e = l.sink
	}
	_, err := e.encode(l.head(e, token, row, appendDim))
	copy(dst, e.stored)
	return err
}

// TestAppendSchemes holds that a cache to which every token was appended, and one to
// which tokens were appended behind a prefill, give the bits of the cache that is
// filled at once, for every online scheme and recipe, at lengths around those where
// windows and pages close.
func TestAppendSchemes(t *testing.T) {
	skipIfShort(t)
	const heads, dim, capacity = 2, appendDim, 420
	names := slices.Clone(windowedSchemes)
	all, err := quantize.Set("all")
	if err != nil {
		t.Fatal(err)
	}
	rope := &quantize.Rope{First: 3}
	for i := range 32 {
		rope.Frequencies = append(rope.Frequencies, math.Pow(10000, -float64(i)/32))
	}
	r := rand.New(rand.NewPCG(3, 4))
	var values [2][heads][]float32
	for i := range values {
		for h := range values[i] {
			for j := range capacity * dim {
				values[i][h] = append(values[i][h], float32(r.NormFloat64())+float32(j%dim%5)/2)
			}
		}
	}
	q := make([]float32, 2*heads*dim)
	for i := range q {
		q[i] = float32(r.NormFloat64())
	}
	shape := kernels.CacheShape{Heads: heads, DimK: dim, DimV: dim, Tokens: capacity}
	count := 0
	for _, name := range append(names, all...) {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			t.Fatal(err)
		}
		if !pair.Online() {
			continue
		}
		// filled makes the cache of the first tokens.
		filled := func(tokens int) (*kernels.Cache, error) {
			var sides [2]*sideEncoder
			for i, s := range []*quantize.Scheme{pair.K, pair.V} {
				if err := s.CheckDim(dim); err != nil {
					return nil, err
				}
				var err error
				if sides[i], err = newSideEncoder(s, capacity, dim, [2]*quantize.Rope{rope, nil}[i]); err != nil {
					return nil, err
				}
			}
			cache, err := kernels.NewCache(shape, sides[0].format, sides[1].format)
			if err != nil {
				return nil, err
			}
			t.Cleanup(cache.Close)
			for h := range heads {
				var encoded [2]kernels.Encoded
				for i, side := range sides {
					rows := values[i][h][:tokens*dim]
					if encoded[i], err = side.encode(quantize.Head{Dim: dim, Values: rows, Rope: side.rope}); err != nil {
						return nil, err
					}
					_, end := side.encoded.CodedRows()
					encoded[i].Open = rows[end*dim:]
				}
				if err := cache.Fill(h, tokens, encoded[0], encoded[1]); err != nil {
					return nil, err
				}
			}
			return cache, nil
		}
		bits := func(c *kernels.Cache) []float32 {
			d, err := kernels.NewDecoder(c, kernels.DecodeOptions{QueryHeads: 2 * heads, Scale: 0.125, Threads: 1})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			out := make([]float32, len(q))
			if err := d.Step(c, out, q); err != nil {
				t.Fatal(err)
			}
			return out
		}
		appended, err := filled(0)
		var unfit *quantize.SchemeError
		if errors.Is(err, errNoCache) || errors.As(err, &unfit) {
			t.Logf("%s: %v", name, err)
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		count++
		behind, err := filled(150)
		if err != nil {
			t.Fatal(err)
		}
		encoder := newSchemeEncoder(t, pair, shape, rope)
		for n := range capacity {
			var rows [2][]float32
			for i := range rows {
				for h := range heads {
					rows[i] = append(rows[i], values[i][h][n*dim:][:dim]...)
				}
			}
			if err := appended.Append(rows[0], rows[1], encoder); err != nil {
				t.Fatalf("%s: token %d: %v", name, n, err)
			}
			if n >= 150 {
				if err := behind.Append(rows[0], rows[1], encoder); err != nil {
					t.Fatalf("%s: token %d behind a prefill: %v", name, n, err)
				}
			}
			if !slices.Contains([]int{1, 5, 63, 64, 70, 127, 128, 129, 151, 191, 192, 193, 256, 320, 333, capacity}, n+1) {
				continue
			}
			want, err := filled(n + 1)
			if err != nil {
				t.Fatal(err)
			}
			exact := bits(want)
			if got := bits(appended); !slices.Equal(got, exact) || appended.Bytes() != want.Bytes() {
				t.Errorf("%s: %d appended tokens give %v of %d bytes, filled at once %v of %d", name, n+1, got[:3], appended.Bytes(), exact[:3], want.Bytes())
			}
			if n >= 150 && (!slices.Equal(bits(behind), exact) || behind.Bytes() != want.Bytes()) {
				t.Errorf("%s: %d tokens behind a prefill of 150 differ from those filled at once", name, n+1)
			}
			want.Close()
		}
	}
	t.Logf("%d online schemes", count)
}
