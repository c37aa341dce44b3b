package quantize

import (
	"math"

	"kvq/kernels"
)

// The block formats of serving frameworks other than ggml. Their codes lie here
// one after the other, least significant bit first, whatever order the GPU has.

// putCode stores code i of bits bits into dst, which was zero.
func putCode(dst []byte, i, bits int, code uint8) {
	at := i * bits
	word := uint16(code) << (at % 8)
	dst[at/8] |= byte(word)
	if at%8+bits > 8 {
		dst[at/8+1] |= byte(word >> 8)
	}
}

// getCode reads code i of bits bits.
func getCode(src []byte, i, bits int) uint8 {
	at := i * bits
	word := uint16(src[at/8])
	if at%8+bits > 8 {
		word |= uint16(src[at/8+1]) << 8
	}
	return uint8(word >> (at % 8) & (1<<bits - 1))
}

// nearestCode clamps the nearest integer, ties to even, to [0, top].
func nearestCode(v, top float32) uint8 {
	return uint8(min(max(float32(math.RoundToEven(float64(v))), 0), top))
}

// encodeMLX is the affine quantization of MLX: the end of the range with the
// larger magnitude is exact, at the code nearest to it, and the sign of the scale
// says which end it is. Codes come from the float32 scale and bias; both are
// stored in f16, as for a model in that type.
func encodeMLX(bits int) func([]byte, []float32, float32) bool {
	top := float32(int(1)<<bits - 1)
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		lo, hi := extremes(x)
		scale := max((hi-lo)/top, 1e-7)
		edge := lo
		if max(lo, -lo) <= max(hi, -hi) {
			edge, scale = hi, -scale
		}
		bias := float32(0)
		if at := float32(math.RoundToEven(float64(edge / scale))); at != 0 {
			scale, bias = edge/at, edge
		}
		for i, v := range x {
			putCode(dst[4:], i, bits, nearestCode((v-bias)/scale, top))
		}
		return putF16(dst, scale) && putF16(dst[2:], bias)
	}
}

func decodeMLX(bits int) func([]float32, []byte, float32) {
	return func(dst []float32, src []byte, _ float32) {
		scale, bias := kernels.GetF16(src), kernels.GetF16(src[2:])
		for i := range dst {
			dst[i] = float32(float32(getCode(src[4:], i, bits))*scale) + bias
		}
	}
}

// encodeHalfAffine is steps of the range computed in f16, each operation rounded, as
// PyTorch does it for a model of that type: Hugging Face's quanto, whose offset is
// minus the minimum, and with a least range QuaRot. Both values are stored in f16. A
// group of equal values has the scale 0 and decodes to them.
func encodeHalfAffine(bits int, least float32) func([]byte, []float32, float32) bool {
	top := float32(int(1)<<bits - 1)
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		lo, hi := extremes(x)
		lo, hi = roundF16(lo), roundF16(hi)
		scale := roundF16(max(roundF16(hi-lo), roundF16(least)) / top)
		meta := dst[len(dst)-4:]
		if !putF16(meta, scale) || !putF16(meta[2:], -lo) || !(hi-lo <= maxF16) {
			return false
		}
		if scale == 0 {
			return true
		}
		for i, v := range x {
			putCode(dst, i, bits, nearestCode(roundF16(roundF16(roundF16(v)-lo)/scale), top))
		}
		return true
	}
}

func decodeHalfAffine(bits int) func([]float32, []byte, float32) {
	return func(dst []float32, src []byte, _ float32) {
		meta := src[len(src)-4:]
		scale, shift := kernels.GetF16(meta), kernels.GetF16(meta[2:])
		for i := range dst {
			dst[i] = float32(scale*float32(getCode(src, i, bits))) - shift
		}
	}
}

// encodeFlexGen is FlexGen's: 16 steps of the range by the reciprocal of the step,
// each operation in f16; the reciprocal and the minimum are stored. Where f16 cannot
// hold the reciprocal it is infinite, and the group decodes to its minimum.
func encodeFlexGen(dst []byte, x []float32, _ float32) bool {
	clear(dst)
	lo, hi := extremes(x)
	lo, hi = roundF16(lo), roundF16(hi)
	if !putF16(dst[len(dst)-2:], lo) || !(hi-lo <= maxF16) {
		return false
	}
	steps := float32(math.Inf(1))
	if width := roundF16(hi - lo); width > 0 {
		steps = roundF16(15 / width)
	}
	if putF16(dst[len(dst)-4:], steps) {
		for i, v := range x {
			putCode(dst, i, 4, nearestCode(roundF16(roundF16(roundF16(v)-lo)*steps), 15))
		}
	}
	return true
}

func decodeFlexGen(dst []float32, src []byte, _ float32) {
	steps, lo := kernels.GetF16(src[len(src)-4:]), kernels.GetF16(src[len(src)-2:])
	for i := range dst {
		dst[i] = float32(getCode(src, i, 4))/steps + lo
	}
}

// maxF16 is the largest finite f16.
const maxF16 = 65504

// roundF16 rounds to f16.
func roundF16(v float32) float32 {
	var b [2]byte
	kernels.PutF16(b[:], v)
	return kernels.GetF16(b[:])
}

// encodeMidpoint is ExLlamaV3's grid: 2^bits equal steps over [−max, max], each
// standing for its middle, so that 0 has no code. Codes come from the float32 max
// plus 1e-10 by its reciprocal; it is then stored in f16.
func encodeMidpoint(bits int) func([]byte, []float32, float32) bool {
	half, top := float64(int(1)<<(bits-1)), float64(int(1)<<bits-1)
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		largest := kernels.AbsMax(x) + 1e-10
		id := 1 / largest
		for i, v := range x {
			at := float32(float64(float64(float32(v*id))*half) + half) // a fused multiply-add
			putCode(dst[2:], i, bits, uint8(min(max(math.Floor(float64(at)), 0), top)))
		}
		return putF16(dst, largest)
	}
}

func decodeMidpoint(bits int) func([]float32, []byte, float32) {
	return func(dst []float32, src []byte, _ float32) {
		largest := kernels.GetF16(src)
		for i := range dst {
			q := 2*int(getCode(src[2:], i, bits)) + 1 - 1<<bits
			dst[i] = float32(math.Ldexp(float64(q), -bits)) * largest
		}
	}
}

// companded is ExLlamaV3's cubic compander a·t + (1−a)·t³ for its a of 0.65.
func companded(t float32) float32 {
	const a, b = float32(0.65), 1 - float32(0.65)
	return t * float32(float64(float64(float32(t*t))*float64(b))+float64(a)) // a fused multiply-add
}

// encodeCubic is the midpoint grid seen through the compander: steps are narrower
// around 0. A code is the number of step bounds that a value reaches; ExLlamaV3
// solves the cubic instead, so that on a bound its rounding may choose the neighbour.
func encodeCubic(bits int) func([]byte, []float32, float32) bool {
	bounds := make([]float32, 1<<bits-1)
	for i := range bounds {
		bounds[i] = companded(float32(math.Ldexp(float64(2*(i+1)), -bits)) - 1)
	}
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		largest := kernels.AbsMax(x) + 1e-10
		id := 1 / largest
		for i, v := range x {
			u, code := float32(v*id), 0
			for step := (len(bounds) + 1) / 2; step > 0; step /= 2 {
				if bounds[code+step-1] <= u {
					code += step
				}
			}
			putCode(dst[2:], i, bits, uint8(code))
		}
		return putF16(dst, largest)
	}
}

func decodeCubic(bits int) func([]float32, []byte, float32) {
	return func(dst []float32, src []byte, _ float32) {
		largest := kernels.GetF16(src)
		for i := range dst {
			q := 2*int(getCode(src[2:], i, bits)) + 1 - 1<<bits
			dst[i] = companded(float32(math.Ldexp(float64(q), -bits))) * largest
		}
	}
}

// quotient is x / d, 0 where d is.
func quotient(x, d float32) float32 {
	if d == 0 {
		return 0
	}
	return x / d
}

// encodeSGLangFP4 is SGLang's fp4_mx_block16: MXFP4 codes with the exponent
// ⌈log2(max/6)⌉, of a float32 logarithm and −33 at least, for 16 channels; values on a midpoint go up, and
// negative ones that round to 0 keep their sign.
func encodeSGLangFP4(dst []byte, x []float32, _ float32) bool {
	clear(dst)
	fraction, exp := math.Frexp(float64(max(kernels.AbsMax(x)/e2m1Max, 1e-10)))
	log2 := float32(float64(exp) + kernels.Log(fraction)/math.Ln2)
	dst[0] = byte(math.Ceil(float64(log2)) + 127)
	coder := newE2M1Coder(e8m0(dst[0])/2, tiesUp)
	for i, v := range x {
		code := coder.nearest(v)
		if v < 0 {
			code |= 8
		}
		putCode(dst[1:], i, 4, code)
	}
	return true
}

func decodeSGLangFP4(dst []float32, src []byte, _ float32) {
	d := e8m0(src[0]) / 2
	for i := range dst {
		dst[i] = valueE2M1(getCode(src[1:], i, 4)) * d
	}
}

// valueE2M1 returns twice the value of a code, never a negative zero.
func valueE2M1(code uint8) float32 {
	if code > 8 {
		return -e2m1[code&7]
	}
	return e2m1[code&7]
}

// lloydMax are the positive halves of the codebooks with the least squared error
// on N(0,1): every value is the mean of what is nearest to it.
var lloydMax = map[int][]float32{
	2: {0.4527800346364921, 1.510417608499096},
	3: {0.2450941789442218, 0.7560052812058781, 1.343909278505001, 2.151945704536987},
	4: {0.1283950298511473, 0.3880482994902917, 0.6567591185324646, 0.9423404564869629,
		1.256231197347178, 1.618046386021882, 2.069017226531386, 2.732589570995161},
}

// turboCodebook returns the values of the 2^bits codes for coordinates of a unit
// vector of dim channels, N(0, 1/dim).
func turboCodebook(bits, dim int) []float32 {
	positive := lloydMax[bits]
	book := make([]float32, 2*len(positive))
	for i, v := range positive {
		c := float32(float64(v) / math.Sqrt(float64(dim)))
		book[len(positive)+i], book[len(positive)-1-i] = c, -c
	}
	return book
}

// encodeTurbo is TurboQuant's: the norm of the row in f16, and for each channel of
// the row over its norm the nearest value of the codebook. The rotation before it is
// +hadamard's.
func encodeTurbo(bits int) func([]byte, []float32, float32) bool {
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		book := turboCodebook(bits, len(x))
		norm := norm(x)
		for i, v := range x {
			u, code := quotient(v, norm), 0
			for code < len(book)-1 && u > (book[code]+book[code+1])/2 {
				code++
			}
			putCode(dst[2:], i, bits, uint8(code))
		}
		return putF16(dst, norm)
	}
}

func decodeTurbo(bits int) func([]float32, []byte, float32) {
	return func(dst []float32, src []byte, _ float32) {
		book, norm := turboCodebook(bits, len(dst)), kernels.GetF16(src)
		for i := range dst {
			dst[i] = book[getCode(src[2:], i, bits)] * norm
		}
	}
}
