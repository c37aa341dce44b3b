package quantize

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"kvq/kernels"
)

// A grid says how a Block format's codes become values, which is how a paged cache
// stores them: scales of their own type, and codes for integers or for a few floats.
type grid struct {
	cache  kernels.Format // scales per token and, with a Group, per so many channels
	factor float32        // of the stored scales; 0: 1
	book   func(bits, dim int) []float32
	// fields unpacks the codes of a group. A block has its scales, then what else its
	// metadata are, then the codes of its groups one after the other.
	fields func(dst []uint8, codes []byte, bits int)
	behind bool // the metadata follow the codes
	// meta is the scale and the offset of a block of one group where the format does not
	// store them as the cache does.
	meta func(meta []byte, fields []uint8, book []float32) (scale, offset float32)
}

// e2m1Levels are twice the values of the 4-bit float's codes.
var e2m1Levels = func() (levels [16]int8) {
	for code, v := range e2m1 {
		levels[code], levels[code|8] = int8(v), int8(-v)
	}
	return levels
}()

// iq4nlIntegers are the values of iq4_nl's codes.
var iq4nlIntegers = func() (levels [16]int8) {
	for code, v := range iq4nl {
		levels[code] = int8(v)
	}
	return levels
}()

// grids are the grids of the Block formats.
var grids = func() map[string]grid {
	integers := func(bits, group int, zero kernels.Zero) kernels.Format {
		return kernels.Format{Codec: kernels.CodecInt, Bits: bits, Zero: zero, Share: kernels.ShareToken, Group: group}
	}
	levels := func(of *[16]int8, group int, meta kernels.Meta) kernels.Format {
		return kernels.Format{Codec: kernels.CodecLevels, Levels: of, Share: kernels.ShareToken, Group: group, Meta: meta}
	}
	row := integers(8, 0, kernels.ZeroSym)
	row.Meta = kernels.MetaF32
	all := map[string]grid{
		"q8_0":     {cache: integers(8, 32, kernels.ZeroSym), fields: signedFields},
		"q5_1":     {cache: integers(5, 32, kernels.ZeroAsym), fields: fifthFields},
		"q5_0":     {cache: integers(5, 32, kernels.ZeroSym), fields: fifthFields},
		"q4_1":     {cache: integers(4, 32, kernels.ZeroAsym), fields: halvesFields},
		"q4_0":     {cache: integers(4, 32, kernels.ZeroSym), fields: halvesFields},
		"q6_0":     {cache: integers(6, 32, kernels.ZeroSym), fields: pairFields},
		"q8_kv":    {cache: row, fields: signedFields},
		"iq4_nl":   {cache: levels(&iq4nlIntegers, 32, kernels.MetaF16), fields: halvesFields},
		"nvfp4":    {cache: levels(&e2m1Levels, 16, kernels.MetaE4M3), factor: 0.5, fields: halvesFields},
		"nvfp4-ts": {cache: levels(&e2m1Levels, 16, kernels.MetaE4M3), factor: 0.5, fields: halvesFields},
		"mx16fp4":  {cache: levels(&e2m1Levels, 16, kernels.MetaE8M0), factor: 0.5, fields: orderedFields},
	}
	all["q8_0-cpu"], all["iq4_nl-cpu"], all["q4_0-ls"], all["nvfp4-46"] = all["q8_0"], all["iq4_nl"], all["q4_0"], all["nvfp4-ts"]
	steps := integers(4, 64, kernels.ZeroAsym)
	steps.Meta = kernels.MetaF32
	all["flexgen4"] = grid{cache: steps, fields: orderedFields, behind: true, meta: flexGenMeta}
	all["quarot4"] = grid{cache: integers(4, 0, kernels.ZeroAsym), fields: orderedFields, behind: true, meta: shiftMeta}
	all["pth-int8"] = grid{cache: row, fields: signedFields, behind: true}
	row.Codec = kernels.CodecE4M3
	all["pth-fp8"] = grid{cache: row, fields: byteFields, behind: true}
	for _, name := range []string{"mxfp4", "mxfp4-ceil", "mxfp4-round"} {
		all[name] = grid{cache: levels(&e2m1Levels, 32, kernels.MetaE8M0), factor: 0.5, fields: halvesFields}
	}
	for _, f := range formats {
		book := kernels.Format{Codec: kernels.CodecBook, Bits: f.Bits, Share: kernels.ShareToken}
		switch strings.Replace(f.Name, strconv.Itoa(f.Bits), "", 1) {
		case "mlx":
			all[f.Name] = grid{cache: integers(f.Bits, 64, kernels.ZeroAsym), fields: orderedFields}
		case "quanto":
			all[f.Name] = grid{cache: integers(f.Bits, 64, kernels.ZeroAsym), fields: orderedFields, behind: true, meta: shiftMeta}
		case "mid":
			all[f.Name] = grid{cache: integers(f.Bits, 32, kernels.ZeroMiddle), factor: float32(math.Ldexp(2, -f.Bits)), fields: orderedFields}
		case "tq":
			all[f.Name] = grid{cache: book, book: turboCodebook, fields: orderedFields}
		case "tq-nc":
			book.Meta = kernels.MetaF32
			all[f.Name] = grid{cache: book, book: vllmCentroids, fields: orderedFields, behind: true, meta: correctedMeta}
		case "tqv":
			all[f.Name] = grid{cache: integers(f.Bits, 0, kernels.ZeroAsym), fields: orderedFields, behind: true}
		case "cubic":
			book.Group = 32
			all[f.Name] = grid{cache: book, book: cubicCodebook, fields: orderedFields}
		}
	}
	return all
}()

// signedFields are signed bytes.
func signedFields(dst []uint8, codes []byte, _ int) {
	for i := range dst {
		dst[i] = codes[i] ^ 0x80
	}
}

// byteFields are bytes.
func byteFields(dst []uint8, codes []byte, _ int) { copy(dst, codes) }

// halvesFields have the codes j and j+len(dst)/2 in one byte.
func halvesFields(dst []uint8, codes []byte, _ int) {
	half := len(dst) / 2
	for j, b := range codes[:half] {
		dst[j], dst[j+half] = b&15, b>>4
	}
}

// fifthFields have the fifth bits of 32 codes in front.
func fifthFields(dst []uint8, codes []byte, bits int) {
	high := binary.LittleEndian.Uint32(codes)
	halvesFields(dst, codes[4:], bits)
	for j := range dst {
		dst[j] |= uint8(high>>j&1) << 4
	}
}

// pairFields have the upper two bits of 32 codes in front, as q6_0 does.
func pairFields(dst []uint8, codes []byte, bits int) {
	halvesFields(dst, codes[8:], bits)
	for j := range 16 {
		high := codes[j%8] >> (j / 8 * 4)
		dst[j] |= high & 3 << 4
		dst[j+16] |= high >> 2 & 3 << 4
	}
}

// orderedFields lie one after the other, least significant bit first.
func orderedFields(dst []uint8, codes []byte, bits int) {
	kernels.Unpack(dst, codes[:kernels.PackedLen(len(dst), bits)], bits)
}

// shiftMeta are a scale and what is subtracted, in f16.
func shiftMeta(meta []byte, _ []uint8, _ []float32) (scale, offset float32) {
	return kernels.GetF16(meta), -kernels.GetF16(meta[2:])
}

// flexGenMeta are the reciprocal of a scale and the minimum, in f16.
func flexGenMeta(meta []byte, _ []uint8, _ []float32) (scale, offset float32) {
	return 1 / kernels.GetF16(meta), kernels.GetF16(meta[2:])
}

// correctedMeta is the norm in f16 that decoded codes are brought to.
func correctedMeta(meta []byte, fields []uint8, book []float32) (scale, offset float32) {
	var square float64
	for _, q := range fields {
		square += float64(float64(book[q]) * float64(book[q]))
	}
	return float32(float64(kernels.GetF16(meta)) / math.Sqrt(square+1e-16)), 0
}

// cubicCodebook are the companded midpoints.
func cubicCodebook(bits, _ int) []float32 {
	book := make([]float32, 1<<bits)
	for q := range book {
		book[q] = companded(float32(math.Ldexp(float64(2*q+1), -bits)) - 1)
	}
	return book
}

// BlockFormat says how a paged cache stores a Block format; false for the other classes,
// and for pth-int4, whose rotation is part of it.
func (f *Format) BlockFormat() (kernels.Format, bool) {
	g, ok := grids[f.Name]
	return g.cache, ok
}

// Blocks takes a head in a Block format apart, as the cache of BlockFormat is filled.
func (e *Encoded) Blocks(o *kernels.Encoded) {
	f := e.Scheme.Format
	g := grids[f.Name]
	n := f.blockElements(e.Dim)
	data, metadata := f.blockBytes(e.Dim)
	group := g.cache.Group
	if group == 0 {
		group = n
	}
	groups := n / group
	blocks := len(e.Codes) / (data + metadata)
	o.Fields, o.Scales = resize(o.Fields, blocks*n), resize(o.Scales, blocks*groups)
	if o.Offsets = o.Offsets[:0]; g.cache.Zero == kernels.ZeroAsym {
		o.Offsets = resize(o.Offsets, len(o.Scales))
	}
	if o.Factor = g.factor; f.block.tensor && len(e.Scales) > 0 {
		o.Factor *= math.Float32frombits(binary.LittleEndian.Uint32(e.Scales))
	}
	if g.book != nil {
		o.Book = g.book(f.Bits, e.Dim)
	}
	for b := range blocks {
		src := e.Codes[b*(data+metadata):][:data+metadata]
		meta, codes := src[:metadata], src[metadata:]
		if g.behind {
			codes, meta = src[:data], src[data:]
		}
		for i := range groups {
			at := b*groups + i
			fields := o.Fields[at*group : (at+1)*group]
			g.fields(fields, codes[i*data/groups:], f.Bits)
			offset := float32(0)
			if g.meta != nil {
				o.Scales[at], offset = g.meta(meta, fields, o.Book)
			} else {
				o.Scales[at] = storedScale(meta, i, g.cache.Meta)
				if g.cache.Zero == kernels.ZeroAsym {
					offset = kernels.GetF16(meta[2:])
				}
			}
			if g.cache.Zero == kernels.ZeroAsym {
				o.Offsets[at] = offset
			}
		}
	}
}

// storedScale reads scale i of a block.
func storedScale(src []byte, i int, meta kernels.Meta) float32 {
	switch meta {
	case kernels.MetaE8M0:
		return e8m0(src[i])
	case kernels.MetaE4M3:
		return kernels.GetE4M3(src[i])
	case kernels.MetaF32:
		return math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
	return kernels.GetF16(src[2*i:])
}

// Book returns the values that the codes of a Codebook format stand for.
func (e *Encoded) Book(dst []float32) []float32 {
	if f := e.Scheme.Format; !f.learned {
		return append(dst[:0], f.book...)
	}
	dst = resize(dst, len(e.Codebook)/codebookValueBytes)
	kernels.FromF16(dst, e.Codebook)
	return dst
}
