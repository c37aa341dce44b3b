package kernels

import (
	"encoding/binary"
	"math"
)

var genericCodec = codecKernels{
	absMax:          absMaxGeneric,
	absMaxRuns:      absMaxRunsGeneric,
	minMaxRuns:      minMaxRunsGeneric,
	absMaxColumns:   absMaxColumnsGeneric,
	minMaxColumns:   minMaxColumnsGeneric,
	encodeRuns:      encodeRunsGeneric,
	encodeColumns:   encodeColumnsGeneric,
	decodeRuns:      decodeRunsGeneric,
	decodeColumns:   decodeColumnsGeneric,
	pack:            packGeneric,
	unpack:          unpackGeneric,
	truncateRuns:    truncateRunsGeneric,
	roundAwayRuns:   roundAwayRunsGeneric,
	e2m1Runs:        e2m1RunsGeneric,
	divideRuns:      divideRunsGeneric,
	divideColumns:   divideColumnsGeneric,
	multiplyRuns:    multiplyRunsGeneric,
	multiplyColumns: multiplyColumnsGeneric,
	toF16:           toF16Generic,
	toBF16:          toBF16Generic,
	fitLevels:       fitLevelsGeneric,
	toE4M3:          toE4M3Generic,
	toE5M2:          toE5M2Generic,
	fromF16:         fromF16Generic,
	fromBF16:        fromBF16Generic,
	fromE4M3:        fromE4M3Generic,
	fromE5M2:        fromE5M2Generic,
}

// abs32 clears the sign.
func abs32(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

func absMaxGeneric(x []float32) float32 {
	var largest float32
	for _, v := range x {
		largest = max(largest, abs32(v))
	}
	return largest
}

func absMaxRunsGeneric(dst, x []float32, run int) {
	for r := range dst {
		dst[r] = absMaxGeneric(x[r*run : (r+1)*run])
	}
}

func minMaxRunsGeneric(lo, hi, x []float32, run int) {
	for r := range lo {
		least, largest := x[r*run], x[r*run]
		for _, v := range x[r*run+1 : (r+1)*run] {
			least, largest = min(least, v), max(largest, v)
		}
		lo[r], hi[r] = least+0, largest+0
	}
}

func absMaxColumnsGeneric(acc, x []float32) {
	for ; len(x) > 0; x = x[len(acc):] {
		for c := range acc {
			acc[c] = max(acc[c], abs32(x[c]))
		}
	}
}

func minMaxColumnsGeneric(lo, hi, x []float32) {
	for ; len(x) > 0; x = x[len(lo):] {
		for c := range lo {
			lo[c], hi[c] = min(lo[c], x[c]), max(hi[c], x[c])
		}
	}
	for c := range lo {
		lo[c], hi[c] = lo[c]+0, hi[c]+0
	}
}

// quotient is the division of every codec: 0 where the scale is 0.
func quotient(x, scale float32) float32 {
	if scale == 0 {
		return 0
	}
	return x / scale
}

// encode is the field of one value; Affine defines it.
func encode(x, scale, bias, offset, lo, hi float32) uint8 {
	q := float32(math.RoundToEven(float64(quotient(x-offset, scale))))
	return uint8(min(max(q+bias, lo), hi))
}

// decode is the value of one field; Affine defines it.
func decode(field uint8, scale, bias, offset float32) float32 {
	return float32(scale*(float32(field)-bias)) + offset
}

func encodeRunsGeneric(fields []uint8, x []float32, run int, a Affine) {
	for r, scale := range a.Scale {
		bias, offset := a.Bias[r], a.Offset[r]
		for i := r * run; i < (r+1)*run; i++ {
			fields[i] = encode(x[i], scale, bias, offset, a.Lo, a.Hi)
		}
	}
}

func encodeColumnsGeneric(fields []uint8, x []float32, columns int, a Affine) {
	for ; len(x) > 0; x, fields = x[columns:], fields[columns:] {
		for c, scale := range a.Scale {
			fields[c] = encode(x[c], scale, a.Bias[c], a.Offset[c], a.Lo, a.Hi)
		}
	}
}

func decodeRunsGeneric(dst []float32, fields []uint8, run int, a Affine) {
	for r, scale := range a.Scale {
		bias, offset := a.Bias[r], a.Offset[r]
		for i := r * run; i < (r+1)*run; i++ {
			dst[i] = decode(fields[i], scale, bias, offset)
		}
	}
}

func decodeColumnsGeneric(dst []float32, fields []uint8, columns int, a Affine) {
	for ; len(dst) > 0; dst, fields = dst[columns:], fields[columns:] {
		for c, scale := range a.Scale {
			dst[c] = decode(fields[c], scale, a.Bias[c], a.Offset[c])
		}
	}
}

func truncateRunsGeneric(fields []uint8, x, offset, factor []float32, half float32, top uint8, run int) {
	for r, f := range factor {
		for i := r * run; i < (r+1)*run; i++ {
			fields[i] = 0
			if v := float32((x[i]-offset[r])*f) + half; v > 0 && v < 1<<31 {
				fields[i] = uint8(min(int64(v), int64(top)))
			}
		}
	}
}

// belowHalf is the largest float below a half: a value and it, with the value's
// sign, round to the next integer from a half on and not before.
const belowHalf = 0x1.fffffep-2

func roundAwayRunsGeneric(fields []uint8, x, factor []float32, run int) {
	for r, f := range factor {
		for i := r * run; i < (r+1)*run; i++ {
			v := float32(x[i] * f)
			v += float32(math.Copysign(belowHalf, float64(v)))
			fields[i] = 0
			if v > -1<<31 && v < 1<<31 {
				fields[i] = uint8(int64(v))
			}
		}
	}
}

func e2m1RunsGeneric(fields []uint8, x []float32, middles []int32, run int) {
	for r := range len(middles) / E2M1Middles {
		of := (*[E2M1Middles]int32)(middles[r*E2M1Middles:])
		for i := r * run; i < (r+1)*run; i++ {
			bits := math.Float32bits(x[i])
			a := int32(bits &^ (1 << 31))
			var code uint32
			for _, middle := range of {
				code += uint32(middle-a) >> 31 // 1 when a is above
			}
			if code > 0 {
				code |= bits >> 31 << 3
			}
			fields[i] = uint8(code)
		}
	}
}

func packGeneric(dst []byte, fields []uint8, bits int) {
	var acc uint32
	have := 0
	for _, f := range fields {
		acc |= uint32(f) << have
		if have += bits; have >= 8 {
			dst[0] = byte(acc)
			dst, acc, have = dst[1:], acc>>8, have-8
		}
	}
	if have > 0 {
		dst[0] = byte(acc)
	}
}

func unpackGeneric(fields []uint8, src []byte, bits int) {
	var acc uint32
	have := 0
	for i := range fields {
		if have < bits {
			acc |= uint32(src[0]) << have
			src, have = src[1:], have+8
		}
		fields[i] = uint8(acc & (1<<bits - 1))
		acc, have = acc>>bits, have-bits
	}
}

func divideRunsGeneric(dst, x, scale []float32, run int) {
	for r, s := range scale {
		for i := r * run; i < (r+1)*run; i++ {
			dst[i] = quotient(x[i], s)
		}
	}
}

func divideColumnsGeneric(dst, x, scale []float32, columns int) {
	for ; len(x) > 0; x, dst = x[columns:], dst[columns:] {
		for c, s := range scale {
			dst[c] = quotient(x[c], s)
		}
	}
}

func multiplyRunsGeneric(dst, x, scale []float32, run int) {
	for r, s := range scale {
		for i := r * run; i < (r+1)*run; i++ {
			dst[i] = x[i] * s
		}
	}
}

func multiplyColumnsGeneric(dst, x, scale []float32, columns int) {
	for ; len(x) > 0; x, dst = x[columns:], dst[columns:] {
		for c, s := range scale {
			dst[c] = x[c] * s
		}
	}
}

func toF16Generic(dst []byte, x []float32) {
	for i, v := range x {
		binary.LittleEndian.PutUint16(dst[2*i:], f16(v))
	}
}

// f16 rounds v to a half float. Below 2^-14, the least normal half, adding
// 2^-24·2^23 = 0.5 to |v| leaves the multiples of 2^-24 in the low bits,
// correctly rounded; above, the addition of half a unit (less one where the
// result is even) carries into the exponent, up to the infinity.
func f16(v float32) uint16 {
	u := math.Float32bits(v)
	sign := uint16(u >> 16 & 0x8000)
	u &= 1<<31 - 1
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00 | uint16(u>>13&0x3ff)
	case u >= 0x47800000: // 65536
		return sign | 0x7c00
	case u < 0x38800000: // 2^-14
		return sign | uint16(math.Float32bits(math.Float32frombits(u)+0.5))
	}
	return sign | uint16((u-(127-15)<<23+0xfff+u>>13&1)>>13)
}

func fromF16Generic(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = fromF16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func fromF16(h uint16) float32 {
	sign, u := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	switch {
	case u > 0x7c00:
		return math.Float32frombits(sign | 0x7fc00000 | u<<13)
	case u == 0x7c00:
		return math.Float32frombits(sign | 0x7f800000)
	case u < 0x400: // zero and denormals: u·2^-24, exact
		return math.Float32frombits(sign | math.Float32bits(float32(u)*0x1p-24))
	}
	return math.Float32frombits(sign | (u<<13 + (127-15)<<23))
}

func toBF16Generic(dst []byte, x []float32) {
	for i, v := range x {
		binary.LittleEndian.PutUint16(dst[2*i:], bf16(v))
	}
}

func bf16(v float32) uint16 {
	u := math.Float32bits(v)
	if u&(1<<31-1) > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

func fromBF16Generic(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

func toE4M3Generic(dst []byte, x []float32) {
	for i, v := range x {
		dst[i] = f8(v, 7, 3, MaxE4M3)
	}
}

func toE5M2Generic(dst []byte, x []float32) {
	for i, v := range x {
		dst[i] = f8(v, 15, 2, MaxE5M2)
	}
}

// f8 rounds v to a float of the given exponent bias and mantissa bits, in the
// way of f16, with magnitudes above largest taken as largest.
func f8(v float32, bias, mantissa uint32, largest float32) uint8 {
	u := math.Float32bits(v)
	sign := uint8(u >> 24 & 0x80)
	u &= 1<<31 - 1
	if u > 0x7f800000 {
		return sign | 0x7f
	}
	u = min(u, math.Float32bits(largest))
	if u < (128-bias)<<23 {
		// One unit is 2^(1-bias-mantissa); 2^23 units have it in their last bit.
		unit23 := math.Float32frombits((127 + 24 - bias - mantissa) << 23)
		return sign | uint8(math.Float32bits(math.Float32frombits(u)+unit23))
	}
	shift := 23 - mantissa
	return sign | uint8((u-(127-bias)<<23+1<<(shift-1)-1+u>>shift&1)>>shift)
}

func fromE4M3Generic(dst []float32, src []byte) {
	for i, b := range src {
		dst[i] = fromE4M3(b)
	}
}

// fromE4M3 reads b as a half float, whose exponent is 8 larger.
func fromE4M3(b byte) float32 {
	half := uint16(b&0x80)<<8 | uint16(b&0x7f)<<7
	if b&0x7f == 0x7f { // no arithmetic with a NaN: riscv64 forgets its sign
		return fromF16(half | 0x7e00)
	}
	return fromF16(half) * 256
}

func fromE5M2Generic(dst []float32, src []byte) {
	for i, b := range src {
		dst[i] = fromF16(uint16(b) << 8)
	}
}

func fitLevelsGeneric(fit *LevelFit, x []float32, levels *Levels) {
	fit.QX, fit.QQ = [16]float32{}, [16]float32{}
	for _, v := range x {
		w := float32(v * v)
		for i, f := range fit.Factors {
			q, y := levels.Values[0], float32(f*v)
			for j, m := range levels.Middles {
				if y >= m {
					q = levels.Values[j+1]
				}
			}
			wq := float32(w * q)
			fit.QX[i] += float32(wq * v)
			fit.QQ[i] += float32(wq * q)
		}
	}
}
