package quantize

import "kvq/kernels"

// What the fused kernels read of an encoded head: the unpacked fields and the
// scales, biases and offsets that turn them into values,
//
//	x̂ = scale·(field − bias) + offset

// CodedRows returns the range of tokens that Codes hold; the others are in Window.
func (e *Encoded) CodedRows() (first, end int) { return e.rows() }

// Fields unpacks the codes of rows [row, row+len(dst)/Dim), counted from the
// first coded row, one byte each. Only for Integer and Codebook formats; the codes of
// 8-bit floats are bytes already.
func (e *Encoded) Fields(dst []uint8, row int) {
	width := e.Scheme.codeBytes(e.Dim)
	unpackRows(dst, e.Codes[row*width:(row+len(dst)/e.Dim)*width], e.Dim, e.Scheme.Format.Bits)
}

// ScaleValues returns the stored scales as float32, in dst's memory if it is
// large enough, in the order of Scales.
func (e *Encoded) ScaleValues(dst []float32) []float32 { return e.metaValues(dst, e.Scales) }

// OffsetValues returns the stored offsets, none unless the zero form is Asym.
func (e *Encoded) OffsetValues(dst []float32) []float32 { return e.metaValues(dst, e.Offsets) }

func (e *Encoded) metaValues(dst []float32, src []byte) []float32 {
	dst = resize(dst, len(src)/e.Scheme.Meta.Bytes())
	metaFormats[e.Scheme.Meta].decode(dst, src)
	return dst
}

// BiasValues returns what is subtracted from the fields of each scale: zero
// point + 2^(B−1) for ZP, 2^(B−1) for Sym, 0 for Asym.
func (e *Encoded) BiasValues(dst []float32) []float32 {
	dst = resize(dst, len(e.Scales)/e.Scheme.Meta.Bytes())
	e.Scheme.biases(dst, e.ZeroPoints)
	return dst
}

// biases fills dst with the biases of zero points, which are none but for ZP.
func (s *Scheme) biases(dst []float32, points []byte) {
	half := float32(int(1) << (s.Format.Bits - 1))
	for i := range dst {
		switch s.Zero {
		case Sym:
			dst[i] = half
		case Asym:
			dst[i] = 0
		case ZP:
			dst[i] = float32(int8(points[i])) + half
		}
	}
}

// MeanValues returns the means that +center took out, one a channel.
func (e *Encoded) MeanValues(dst []float32) []float32 {
	dst = resize(dst, len(e.Means)/meanBytes)
	kernels.FromF32(dst, e.Means)
	return dst
}
