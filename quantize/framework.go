package quantize

import (
	"encoding/binary"
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

// encodeQuanto is the affine form of Hugging Face's quanto: the range as it is,
// an integer zero point that may lie outside the codes, here an int16. A group of
// equal values has no scale and is lost.
func encodeQuanto(bits int) func([]byte, []float32, float32) bool {
	top := float32(int(1)<<bits - 1)
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		lo, hi := extremes(x)
		if !putF16(dst, (hi-lo)/top) {
			return false
		}
		scale := kernels.GetF16(dst)
		if scale == 0 {
			return true
		}
		zero := math.RoundToEven(float64(-lo / scale))
		if zero < math.MinInt16 || zero > math.MaxInt16 {
			return false
		}
		binary.LittleEndian.PutUint16(dst[2:], uint16(int16(zero)))
		for i, v := range x {
			q := float32(math.RoundToEven(float64(v/scale))) + float32(zero)
			putCode(dst[4:], i, bits, uint8(min(max(q, 0), top)))
		}
		return true
	}
}

func decodeQuanto(bits int) func([]float32, []byte, float32) {
	return func(dst []float32, src []byte, _ float32) {
		scale, zero := kernels.GetF16(src), float32(int16(binary.LittleEndian.Uint16(src[2:])))
		for i := range dst {
			dst[i] = scale * (float32(getCode(src[4:], i, bits)) - zero)
		}
	}
}

// encodeMidpoint is ExLlamaV3's grid: 2^bits equal steps over [−max, max], each
// standing for its middle, so that 0 has no code. max is stored in f16 first.
func encodeMidpoint(bits int) func([]byte, []float32, float32) bool {
	half, top := float32(int(1)<<(bits-1)), float32(int(1)<<bits-1)
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		signed := extreme(x)
		if !putF16(dst, max(signed, -signed)) {
			return false
		}
		largest := kernels.GetF16(dst)
		for i, v := range x {
			at := float32(quotient(v, largest)+1) * half
			putCode(dst[2:], i, bits, uint8(min(max(float32(math.Floor(float64(at))), 0), top)))
		}
		return true
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

// quotient is x / d, 0 where d is.
func quotient(x, d float32) float32 {
	if d == 0 {
		return 0
	}
	return x / d
}

// encodeSGLangFP4 is SGLang's fp4_mx_block16: MXFP4 codes with the exponent
// ⌈log2(max/6)⌉ for 16 channels, values on a midpoint going up.
func encodeSGLangFP4(dst []byte, x []float32, _ float32) bool {
	clear(dst)
	signed := extreme(x)
	if signed == 0 {
		return true
	}
	dst[0] = byte(min(max(ceilExponent(max(signed, -signed))+127, 0), 254))
	coder := newE2M1Coder(e8m0(dst[0])/2, tiesUp)
	for i, v := range x {
		putCode(dst[1:], i, 4, coder.nearest(v))
	}
	return true
}

func decodeSGLangFP4(dst []float32, src []byte, _ float32) {
	d := e8m0(src[0]) / 2
	for i := range dst {
		dst[i] = valueE2M1(getCode(src[1:], i, 4)) * d
	}
}

// valueE2M1 returns twice the value of a code.
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
// the row over its norm the nearest value of the codebook. With correction the
// stored norm makes the decoded row as long as the row was. The rotation before
// it is +hadamard's.
func encodeTurbo(bits int, correct bool) func([]byte, []float32, float32) bool {
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		book := turboCodebook(bits, len(x))
		var square float64
		for _, v := range x {
			square += float64(float64(v) * float64(v))
		}
		norm := float32(math.Sqrt(square))
		var decoded float64
		for i, v := range x {
			u, code := quotient(v, norm), 0
			for code < len(book)-1 && u > (book[code]+book[code+1])/2 {
				code++
			}
			putCode(dst[2:], i, bits, uint8(code))
			decoded += float64(float64(book[code]) * float64(book[code]))
		}
		if correct {
			norm = float32(float64(norm) / math.Sqrt(decoded))
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
