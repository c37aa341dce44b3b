package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomSide makes codes, scales and offsets of a format for one head, and the
// values they stand for, decoded in float64 by the formulas of Format.
func randomSide(r *rand.Rand, f Format, tokens, dim int, size float64) (Encoded, []float64) {
	var e Encoded
	x := make([]float64, tokens*dim)
	if !f.scaled() {
		e.Values = make([]float32, len(x))
		for i := range x {
			v := float32(r.NormFloat64() * size)
			switch f.Codec {
			case CodecF16:
				v = fromF16(f16(v))
			case CodecBF16:
				v = math.Float32frombits(math.Float32bits(v) &^ 0xffff)
			}
			e.Values[i], x[i] = v, float64(v)
		}
		return e, x
	}
	e.Fields = make([]uint8, len(x))
	e.Scales = make([]float32, f.scales(tokens, dim))
	top := 1<<f.elementBits() - 1
	q := float64(top) / 2
	size /= 2.5
	var book []float64
	switch f.Codec {
	case CodecE4M3, CodecE5M2:
		size /= 100
	case CodecInt:
		size /= q
	case CodecLevels:
		size /= 60
		for _, v := range f.Levels {
			book = append(book, float64(v))
		}
	case CodecBook:
		for range 1 << f.Bits {
			e.Book = append(e.Book, float32(2*r.Float64()-1))
			book = append(book, float64(e.Book[len(e.Book)-1]))
		}
	}
	factor := 1.0
	if f.Meta > MetaF32 {
		factor = math.Ldexp(1+r.Float64(), r.IntN(9)-4)
		e.Factor = float32(factor)
		factor = float64(e.Factor)
	}
	for i := range e.Scales {
		scale := size * math.Exp(r.NormFloat64()*0.5) / factor
		switch f.Meta {
		case MetaE8M0:
			e.Scales[i] = float32(math.Exp2(math.Round(math.Log2(scale))))
		case MetaE4M3:
			e.Scales[i] = GetE4M3(E4M3(float32(scale)))
		default:
			e.Scales[i] = fromF16(f16(float32(scale)))
		}
		if f.Codec < CodecInt {
			continue
		}
		if f.Meta <= MetaF32 && f.Zero == ZeroSym && f.Share == ShareToken && r.IntN(2) == 0 {
			e.Scales[i] = -e.Scales[i] // as q4_0 has them
		}
		switch f.Zero {
		case ZeroAsym:
			e.Offsets = append(e.Offsets, fromF16(f16(float32(-2.5*size*q*(1+0.3*r.NormFloat64())))))
		case ZeroPoint:
			e.Offsets = append(e.Offsets, float32(r.IntN(1<<f.Bits)))
		}
	}
	for i := range x {
		field := uint8(min(max(int(q+r.NormFloat64()*q/2.5), 0), top))
		if f.Codec == CodecE4M3 || f.Codec == CodecE5M2 {
			field &= 0xbb // no NaN or infinity
		}
		u := unitOf(f, tokens, dim, i/dim, i%dim)
		scale := float64(e.Scales[u]) * factor
		e.Fields[i] = field
		switch {
		case f.Codec == CodecE4M3:
			x[i] = scale * float8(field, 4, 7)
		case f.Codec == CodecE5M2:
			x[i] = scale * float8(field, 5, 15)
		case book != nil:
			if x[i] = scale * book[field]; f.Zero == ZeroAsym {
				x[i] += float64(e.Offsets[u])
			}
		case f.Zero == ZeroSym:
			x[i] = scale * (float64(field) - float64(int(1)<<(f.Bits-1)))
		case f.Zero == ZeroAsym:
			x[i] = scale*float64(field) + float64(e.Offsets[u])
		case f.Zero == ZeroMiddle:
			x[i] = scale * (float64(field) - q)
		default:
			x[i] = scale * (float64(field) - float64(e.Offsets[u]))
		}
	}
	return e, x
}

// float8 is the value of an 8-bit float with the given exponent width and bias.
func float8(b uint8, exponentBits, bias int) float64 {
	mantissaBits := 7 - exponentBits
	e, m := int(b&127)>>mantissaBits, float64(int(b)&(1<<mantissaBits-1))/float64(int(1)<<mantissaBits)
	v := math.Ldexp(1+m, e-bias)
	if e == 0 {
		v = math.Ldexp(m, 1-bias)
	}
	if b > 127 {
		return -v
	}
	return v
}

// unitOf is the index of an element's scale, written out again from the definition of sharing.
func unitOf(f Format, tokens, dim, token, channel int) int {
	group := f.Group
	switch f.Share {
	case ShareToken:
		if group == 0 {
			group = dim
		}
		return token*((dim+group-1)/group) + channel/group
	case ShareChannel:
		if group == 0 {
			group = tokens
		}
		return token/group*dim + channel
	}
	return 0
}

// attention64 is softmax(scale·q·Kᵀ)·V over the tokens from first on, in float64.
func attention64(q []float32, k, v []float64, dimK, dimV, tokens, first int, scale float64) []float64 {
	z := make([]float64, tokens)
	top := math.Inf(-1)
	for t := first; t < tokens; t++ {
		for c := range dimK {
			z[t] += float64(q[c]) * k[t*dimK+c]
		}
		z[t] *= scale
		top = max(top, z[t])
	}
	out := make([]float64, dimV)
	var sum float64
	for t := first; t < tokens; t++ {
		p := math.Exp(z[t] - top)
		sum += p
		for c := range dimV {
			out[c] += p * v[t*dimV+c]
		}
	}
	for c := range out {
		out[c] /= sum
	}
	return out
}

// decodeCase is one cache, its queries and the exact answer.
type decodeCase struct {
	shape   CacheShape
	k, v    Format
	options DecodeOptions
	cache   *Cache
	q       []float32
	want    []float64
}

func newDecodeCase(t testing.TB, seed uint64, shape CacheShape, tokens int, k, v Format, o DecodeOptions) *decodeCase {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	c, err := NewCache(shape, k, v)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if o.Scale == 0 {
		o.Scale = 1 / math.Sqrt(float64(shape.DimK))
	}
	x := &decodeCase{shape: shape, k: k, v: v, options: o, cache: c}
	for range o.QueryHeads * shape.DimK {
		x.q = append(x.q, float32(r.NormFloat64()*1.5))
	}
	grouped := o.QueryHeads / shape.Heads
	first := 0
	if o.Window > 0 {
		first = max(0, tokens-o.Window)
	}
	for h := range shape.Heads {
		ek, xk := windowedSide(r, k, tokens, shape.DimK)
		ev, xv := windowedSide(r, v, tokens, shape.DimV)
		if err := c.Fill(h, tokens, ek, ev); err != nil {
			t.Fatal(err)
		}
		for j := range grouped {
			q := x.q[(h*grouped+j)*shape.DimK:][:shape.DimK]
			x.want = append(x.want, attention64(q, xk, xv, shape.DimK, shape.DimV, tokens, first, o.Scale)...)
		}
	}
	return x
}

func (x *decodeCase) step(t testing.TB, threads int) ([]float32, string) {
	t.Helper()
	o := x.options
	o.Threads = threads
	d, err := NewDecoder(x.cache, o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	out := make([]float32, o.QueryHeads*x.shape.DimV)
	if err := d.Step(x.cache, out, x.q); err != nil {
		t.Fatal(err)
	}
	return out, d.Kernel()
}

// relativeRMS is √(Σ(got−want)²/Σwant²).
func relativeRMS(got []float32, want []float64) float64 {
	var e, s float64
	for i, w := range want {
		d := float64(got[i]) - w
		e += d * d
		s += w * w
	}
	return math.Sqrt(e / s)
}

func (f Format) String() string {
	name := []string{"f32", "f16", "bf16", "e4m3", "e5m2", fmt.Sprintf("int%d", f.Bits), "levels", fmt.Sprintf("book%d", f.Bits)}[f.Codec]
	name += []string{"", "-asym", "-zp", "-middle"}[f.Zero]
	if f.scaled() {
		name += "-" + []string{"tensor", "head", "token", "channel"}[f.Share]
		if f.Group > 0 {
			name += fmt.Sprintf("/%d", f.Group)
		}
	}
	name += []string{"", "@f32", "@e8m0", "@e4m3"}[f.Meta]
	if f.Outliers > 0 {
		name += fmt.Sprintf("+outliers%d", f.Outliers)
	}
	if f.Sink > 0 {
		name += fmt.Sprintf("+sink%d", f.Sink)
	}
	if f.Recent > 0 {
		name += fmt.Sprintf("+recent%d", f.Recent)
	}
	return name
}

// uneven are 16 integers that are not evenly spaced.
var uneven = [16]int8{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// everyFormat lists what a side can be: each sharing in each zero form for all widths,
// with groups that integer tiles read and some that they do not.
func everyFormat() []Format {
	formats := []Format{{Codec: CodecF32}, {Codec: CodecF16}, {Codec: CodecBF16}}
	sharings := []Format{{Share: ShareTensor}, {Share: ShareHead}, {Share: ShareToken}, {Share: ShareChannel},
		{Share: ShareToken, Group: 16}, {Share: ShareToken, Group: 32}, {Share: ShareToken, Group: 64}, {Share: ShareToken, Group: 7},
		{Share: ShareChannel, Group: 32}, {Share: ShareChannel, Group: 64}, {Share: ShareChannel, Group: 128}, {Share: ShareChannel, Group: 96},
		{Share: ShareChannel, Group: 7}, {Share: ShareChannel, Group: 1000}}
	for _, bits := range []int{8, 4, 2, 3, 5, 6, 7} {
		for zero := ZeroSym; zero <= ZeroPoint; zero++ {
			for i, s := range sharings {
				if s.Codec, s.Bits, s.Zero = CodecInt, bits, zero; bits == 4 || bits == 8 || (bits+i)%3 == 0 || s.Group == 32 {
					formats = append(formats, s)
				}
			}
		}
	}
	for _, s := range sharings {
		for _, codec := range []Codec{CodecE4M3, CodecE5M2} {
			s.Codec = codec
			formats = append(formats, s)
		}
		for _, bits := range []int{2, 3, 4, 5, 8} {
			s.Codec, s.Bits = CodecBook, bits
			s.Zero = []Zero{ZeroSym, ZeroAsym}[bits%2]
			formats = append(formats, s)
		}
	}
	for _, group := range []int{0, 16, 32, 64, 5} {
		for bits := 2; bits <= 8; bits++ {
			formats = append(formats,
				Format{Codec: CodecInt, Bits: bits, Share: ShareToken, Group: group, Zero: ZeroMiddle})
		}
		for _, meta := range []Meta{MetaF16, MetaF32, MetaE8M0, MetaE4M3} {
			formats = append(formats, Format{Codec: CodecLevels, Share: ShareToken, Group: group, Meta: meta, Levels: &uneven})
		}
	}
	return append(formats,
		Format{Codec: CodecInt, Bits: 8, Share: ShareToken, Meta: MetaF32},
		Format{Codec: CodecInt, Bits: 4, Share: ShareChannel, Group: 32, Zero: ZeroAsym, Meta: MetaF32},
		Format{Codec: CodecE4M3, Share: ShareToken, Meta: MetaF32})
}

// errorLimit is the pooled relative error of a decode step that kernels.md allows.
const errorLimit = 2e-4

// vectorLimit is what it allows one output vector, where pooling does not help.
const vectorLimit = 1e-3

// fuses says whether the tiles that read a side may fuse a product and a sum.
func fuses(s *side) bool { return s.layout.store > storeF32 && !s.layout.store.integer() }

// check runs the case on every backend and for 1 and 3 threads: within the limit of
// float64 attention everywhere, and the same bits everywhere unless a side is float16.
func (x *decodeCase) check(t *testing.T, limit float64) float64 {
	t.Helper()
	name := fmt.Sprintf("%v:%v heads %d/%d dim %d/%d tokens %d window %d", x.k, x.v, x.shape.Heads, x.options.QueryHeads,
		x.shape.DimK, x.shape.DimV, x.cache.Tokens(), x.options.Window)
	before := Active()
	defer Use(before)
	var worst float64
	var first []float32
	exact := !fuses(&x.cache.k) && !fuses(&x.cache.v)
	for _, isa := range Available() {
		if err := Use(isa); err != nil {
			t.Fatal(err)
		}
		for _, threads := range []int{1, 3} {
			got, kernel := x.step(t, threads)
			if (kernel == "generic") != (isa == Generic || !x.cache.Fused()) {
				t.Errorf("%s: kernel %s on %s", name, kernel, isa)
			}
			e := relativeRMS(got, x.want)
			worst = max(worst, e)
			if !(e <= limit) {
				t.Errorf("%s: %s, %d threads: relative error %.3g, want at most %g", name, isa, threads, e, limit)
			}
			if first == nil {
				first = got
			}
			if exact && !slices.Equal(got, first) {
				t.Errorf("%s: %s with %d threads gives other bits than %s with 1", name, isa, threads, Available()[0])
			}
		}
	}
	return worst
}

// TestDecodeFormats runs every format on each side, beside one other.
func TestDecodeFormats(t *testing.T) {
	shape := CacheShape{Heads: 2, DimK: 64, DimV: 64, Tokens: 300}
	other := Format{Codec: CodecInt, Bits: 8, Share: ShareToken}
	var worst float64
	for i, f := range everyFormat() {
		for side := range 2 {
			k, v := f, other
			if side == 1 {
				k, v = other, f
			}
			x := newDecodeCase(t, uint64(i), shape, 300, k, v, DecodeOptions{QueryHeads: 6})
			worst = max(worst, x.check(t, errorLimit))
			x.cache.Close()
		}
	}
	t.Logf("worst relative error %.3g", worst)
}

// TestDecodeShapes runs the head dimensions, query head ratios, lengths and
// windows that models have, and some that none has.
func TestDecodeShapes(t *testing.T) {
	formats := [][2]Format{
		{{Codec: CodecF16}, {Codec: CodecF16}},
		{{Codec: CodecInt, Bits: 8, Share: ShareChannel}, {Codec: CodecInt, Bits: 8, Share: ShareToken, Zero: ZeroPoint}},
		{{Codec: CodecInt, Bits: 8, Share: ShareToken, Group: 32, Zero: ZeroAsym}, {Codec: CodecInt, Bits: 4, Share: ShareToken, Group: 32, Zero: ZeroAsym}},
		{{Codec: CodecInt, Bits: 4, Share: ShareChannel, Group: 32, Zero: ZeroPoint}, {Codec: CodecInt, Bits: 4, Share: ShareChannel, Group: 32, Zero: ZeroAsym}},
		{{Codec: CodecInt, Bits: 4, Share: ShareChannel, Group: 128}, {Codec: CodecInt, Bits: 4, Share: ShareChannel, Zero: ZeroPoint}},
		{{Codec: CodecInt, Bits: 2, Share: ShareChannel, Group: 32, Zero: ZeroAsym}, {Codec: CodecInt, Bits: 3, Share: ShareToken, Group: 32, Zero: ZeroAsym}},
		{{Codec: CodecLevels, Share: ShareToken, Group: 16, Meta: MetaE4M3, Levels: &uneven}, {Codec: CodecLevels, Share: ShareToken, Group: 16, Meta: MetaE8M0, Levels: &uneven}},
		{{Codec: CodecBF16}, {Codec: CodecInt, Bits: 6, Share: ShareToken}},
		{{Codec: CodecE4M3, Share: ShareTensor}, {Codec: CodecE5M2, Share: ShareToken}},
		{{Codec: CodecBook, Bits: 4, Share: ShareToken}, {Codec: CodecBook, Bits: 3, Share: ShareToken, Zero: ZeroAsym, Group: 64}},
		{{Codec: CodecF32}, {Codec: CodecE4M3, Share: ShareChannel, Meta: MetaF32}},
	}
	var worst float64
	run := func(seed int, shape CacheShape, tokens, queryHeads, window int) {
		t.Helper()
		shape.Tokens = tokens
		for _, f := range formats {
			x := newDecodeCase(t, uint64(seed), shape, tokens, f[0], f[1], DecodeOptions{QueryHeads: queryHeads, Window: window})
			worst = max(worst, x.check(t, vectorLimit))
			x.cache.Close()
		}
	}
	for i, dims := range [][2]int{{64, 64}, {80, 80}, {96, 96}, {112, 112}, {128, 128}, {192, 128}, {256, 256}, {576, 512}, {1, 1}, {20, 33}} {
		run(i, CacheShape{Heads: 1, DimK: dims[0], DimV: dims[1]}, 130, 4, 0)
	}
	// Beyond 640 channels keys are multiplied in float32.
	for i, dims := range [][2]int{{641, 64}, {64, 641}, {1024, 1024}, {2000, 1500}} {
		run(i, CacheShape{Heads: 1, DimK: dims[0], DimV: dims[1]}, 130, 4, 0)
	}
	for ratio := 1; ratio <= 16; ratio++ {
		run(ratio, CacheShape{Heads: 2, DimK: 64, DimV: 64}, 100, 2*ratio, 0)
	}
	for i, tokens := range []int{1, 2, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2100} {
		run(i, CacheShape{Heads: 1, DimK: 32, DimV: 48}, tokens, 2, 0)
	}
	for i, window := range []int{1, 5, 64, 100, 1000, 2047, 2048, 5000} {
		run(i, CacheShape{Heads: 1, DimK: 32, DimV: 32}, 2100, 2, window)
		run(i, CacheShape{Heads: 1, DimK: 32, DimV: 32}, 2048, 2, window)
	}
	t.Logf("worst relative error %.3g", worst)
}
