package quantize

import (
	"encoding/binary"
	"math"

	"kvq/kernels"
)

// The block formats of ggml (ggml-quants.c at d99724f), as its reference
// encoder computes them; its vectorised encoders differ in the last place for
// q8_0 and iq4_nl. All arithmetic is float32. The reciprocal of the unrounded
// scale encodes; the scale rounded to f16 decodes. Elements j and j+16 share a
// byte, low and high nibble.

// putF16 stores v; false where it is too large.
func putF16(dst []byte, v float32) bool {
	kernels.PutF16(dst, v)
	return dst[1]&0x7c != 0x7c
}

// reciprocal is 1/d, 0 for 0.
func reciprocal(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// extreme returns the value of largest magnitude with its sign, the first on a tie.
func extreme(x []float32) float32 {
	var largest, signed float32
	for _, v := range x {
		if a := max(v, -v); a > largest {
			largest, signed = a, v
		}
	}
	return signed
}

func extremes(x []float32) (lo, hi float32) {
	lo, hi = x[0], x[0]
	for _, v := range x {
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
	}
	return lo, hi
}

// truncate rounds v + half towards 0, to at most top. What is no number of a code,
// where the reciprocal of a tiny scale overflowed, is 0 as the origin has it on x86.
func truncate(v, half float32, top uint8) uint8 {
	if v += half; !(v > 0 && v < 256) {
		return 0
	}
	return min(top, uint8(v))
}

func encodeQ8_0(dst []byte, x []float32, _ float32) bool {
	d := max(extreme(x), -extreme(x)) / 127
	id := reciprocal(d)
	for i, v := range x {
		if q := math.Round(float64(v * id)); math.Abs(q) <= 127 { // not where id overflowed
			dst[2+i] = byte(int8(q))
		} else {
			dst[2+i] = 0
		}
	}
	return putF16(dst, d)
}

func decodeQ8_0(dst []float32, src []byte, _ float32) {
	d := kernels.GetF16(src)
	for i := range dst {
		dst[i] = float32(int8(src[2+i])) * d
	}
}

func encodeQ4_0(dst []byte, x []float32, _ float32) bool {
	d := extreme(x) / -8
	id := reciprocal(d)
	for j := range 16 {
		dst[2+j] = truncate(float32(x[j]*id), 8.5, 15) | truncate(float32(x[j+16]*id), 8.5, 15)<<4
	}
	return putF16(dst, d)
}

func decodeQ4_0(dst []float32, src []byte, _ float32) {
	d := kernels.GetF16(src)
	for j, b := range src[2:18] {
		dst[j] = float32(int(b&15)-8) * d
		dst[j+16] = float32(int(b>>4)-8) * d
	}
}

func encodeQ4_1(dst []byte, x []float32, _ float32) bool {
	lo, hi := extremes(x)
	d := (hi - lo) / 15
	id := reciprocal(d)
	for j := range 16 {
		dst[4+j] = truncate(float32((x[j]-lo)*id), 0.5, 15) | truncate(float32((x[j+16]-lo)*id), 0.5, 15)<<4
	}
	return putF16(dst, d) && putF16(dst[2:], lo)
}

func decodeQ4_1(dst []float32, src []byte, _ float32) {
	d, m := kernels.GetF16(src), kernels.GetF16(src[2:])
	for j, b := range src[4:20] {
		dst[j] = float32(float32(b&15)*d) + m
		dst[j+16] = float32(float32(b>>4)*d) + m
	}
}

// fifth splits 5-bit codes of elements j and j+16 into a shared byte and the
// fifth bits of all 32 elements.
func fifth(high uint32, j int, a, b uint8) (uint32, byte) {
	return high | uint32(a>>4)<<j | uint32(b>>4)<<(j+16), a&15 | b&15<<4
}

// unfifth is the inverse of fifth.
func unfifth(high uint32, j int, packed byte) (a, b uint8) {
	return packed&15 | uint8(high>>j&1)<<4, packed>>4 | uint8(high>>(j+16)&1)<<4
}

func encodeQ5_0(dst []byte, x []float32, _ float32) bool {
	d := extreme(x) / -16
	id := reciprocal(d)
	var high uint32
	for j := range 16 {
		high, dst[6+j] = fifth(high, j, truncate(float32(x[j]*id), 16.5, 31), truncate(float32(x[j+16]*id), 16.5, 31))
	}
	binary.LittleEndian.PutUint32(dst[2:], high)
	return putF16(dst, d)
}

func decodeQ5_0(dst []float32, src []byte, _ float32) {
	d, high := kernels.GetF16(src), binary.LittleEndian.Uint32(src[2:])
	for j, packed := range src[6:22] {
		a, b := unfifth(high, j, packed)
		dst[j], dst[j+16] = float32(int(a)-16)*d, float32(int(b)-16)*d
	}
}

func encodeQ5_1(dst []byte, x []float32, _ float32) bool {
	lo, hi := extremes(x)
	d := (hi - lo) / 31
	id := reciprocal(d)
	var high uint32
	for j := range 16 {
		high, dst[8+j] = fifth(high, j, truncate(float32((x[j]-lo)*id), 0.5, 31), truncate(float32((x[j+16]-lo)*id), 0.5, 31))
	}
	binary.LittleEndian.PutUint32(dst[4:], high)
	return putF16(dst, d) && putF16(dst[2:], lo)
}

func decodeQ5_1(dst []float32, src []byte, _ float32) {
	d, m, high := kernels.GetF16(src), kernels.GetF16(src[2:]), binary.LittleEndian.Uint32(src[4:])
	for j, packed := range src[8:24] {
		a, b := unfifth(high, j, packed)
		dst[j], dst[j+16] = float32(float32(a)*d)+m, float32(float32(b)*d)+m
	}
}

// iq4nl are the values of iq4_nl's codes.
var iq4nl = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// nearestIQ4NL returns the code nearest to v, the upper one on a tie.
func nearestIQ4NL(v float32) uint8 {
	if v <= iq4nl[0] {
		return 0
	}
	for i := 1; i < len(iq4nl); i++ {
		if v < iq4nl[i] {
			if v-iq4nl[i-1] < iq4nl[i]-v {
				return uint8(i - 1)
			}
			return uint8(i)
		}
	}
	return 15
}

// fitIQ4NL rounds x·id to codes and returns the sums of the scale that fits them
// best by least squares weighted with x².
func fitIQ4NL(x []float32, id float32) (qx, qq float32) {
	for _, v := range x {
		q, w := iq4nl[nearestIQ4NL(float32(id*v))], float32(v*v)
		qx += float32(float32(w*q) * v)
		qq += float32(float32(w*q) * q)
	}
	return qx, qq
}

// encodeIQ4NL is the encoder of ggml's files: of scales around the one that maps
// the extreme to an end of the codes it takes the best fit, then rounds once more.
func encodeIQ4NL(dst []byte, x []float32, _ float32) bool {
	clear(dst)
	var d float32
	if signed := extreme(x); max(signed, -signed) >= 1e-15 {
		qx, qq := fitIQ4NL(x, 1/(-signed/iq4nl[0]))
		d = qx / qq
		best := float32(d * qx)
		for try := -7; try <= 7; try++ {
			qx, qq := fitIQ4NL(x, (float32(try)+iq4nl[0])/signed)
			if qq > 0 && float32(qx*qx) > float32(best*qq) {
				d = qx / qq
				best = float32(d * qx)
			}
		}
	}
	id := reciprocal(d)
	for j, v := range x {
		dst[2+j%16] |= nearestIQ4NL(float32(id*v)) << (j / 16 * 4)
	}
	return putF16(dst, d)
}

func decodeIQ4NL(dst []float32, src []byte, _ float32) {
	d := kernels.GetF16(src)
	for j, b := range src[2:18] {
		dst[j], dst[j+16] = d*iq4nl[b&15], d*iq4nl[b>>4]
	}
}

// e2m1 are twice the magnitudes of the 4-bit float's codes; bit 3 is the sign.
// Scales are halved to match, which is exact.
var e2m1 = [8]float32{0, 1, 2, 3, 4, 6, 8, 12}

// e2m1Max is the largest magnitude of the 4-bit float.
const e2m1Max = 6

// nearestE2M1 returns the code nearest to v in units of half d, the lower
// magnitude on a tie; what rounds to 0 has no sign.
func nearestE2M1(v, d float32) uint8 {
	a := max(v, -v)
	if d == 0 {
		return 0
	}
	var code uint8
	for code < 7 && a > (e2m1[code]+e2m1[code+1])/2*d {
		code++
	}
	if v < 0 && code > 0 {
		code |= 8
	}
	return code
}

// valueE2M1 returns twice the value of a code.
func valueE2M1(code uint8) float32 {
	if code&8 != 0 {
		return -e2m1[code&7] + 0 // no negative zero
	}
	return e2m1[code]
}

// floorLog2 returns ⌊log2 v⌋ as the origin computes it for v > 0: log2 rounded to
// float32 first, which carries the largest floats below a power of two up to it.
func floorLog2(v float32) int {
	fraction, exp := math.Frexp(float64(v)) // v = fraction·2^exp, fraction in [.5, 1)
	below := 1 - fraction
	if below < 0x1p-12 && float32(float64(exp)-below*(1+below/2)/math.Ln2) == float32(exp) {
		return exp
	}
	return exp - 1
}

// encodeMXFP4 stores an e8m0 exponent, 127 + what round makes of the largest
// magnitude, and e2m1 codes.
func encodeMXFP4(exponent func(largest float32) int) func([]byte, []float32, float32) bool {
	return func(dst []byte, x []float32, _ float32) bool {
		signed := extreme(x)
		e := 0
		if signed != 0 {
			e = min(max(exponent(max(signed, -signed))+127, 0), 254)
		}
		dst[0] = byte(e)
		d := float32(math.Ldexp(1, e-128))
		for j := range 16 {
			dst[1+j] = nearestE2M1(x[j], d) | nearestE2M1(x[j+16], d)<<4
		}
		return true
	}
}

func decodeMXFP4(dst []float32, src []byte, _ float32) {
	d := float32(math.Ldexp(1, int(src[0])-128))
	for j, b := range src[1:17] {
		dst[j], dst[j+16] = valueE2M1(b&15)*d, valueE2M1(b>>4)*d
	}
}

// ue4m3 rounds v >= 0 to the unsigned e4m3 of ggml's nvfp4: halves up, and 248
// and above to 448.
func ue4m3(v float32) uint8 {
	if v < 0x1p-6 {
		return uint8(min(float32(v*512)+0.5, 7))
	}
	v = min(v, kernels.MaxE4M3)
	code := (math.Float32bits(v)+1<<19)>>20 - (127-7)<<3
	if code >= 15<<3 {
		return 0x7e
	}
	return uint8(code)
}

// encodeNVFP4 stores four sub-blocks of 16: their scales, then 8 bytes of codes
// each, elements j and j+8 in one.
func encodeNVFP4(dst []byte, x []float32, _ float32) bool {
	for s := range 4 {
		sub := x[16*s : 16*s+16]
		signed := extreme(sub)
		dst[s] = ue4m3(max(signed, -signed) / e2m1Max)
		d := kernels.GetE4M3(dst[s]) / 2
		for j := range 8 {
			dst[4+8*s+j] = nearestE2M1(sub[j], d) | nearestE2M1(sub[j+8], d)<<4
		}
	}
	return true
}

func decodeNVFP4(dst []float32, src []byte, _ float32) {
	for s := range 4 {
		d := kernels.GetE4M3(src[s]) / 2
		for j, b := range src[4+8*s : 12+8*s] {
			dst[16*s+j], dst[16*s+j+8] = valueE2M1(b&15)*d, valueE2M1(b>>4)*d
		}
	}
}
