package dumps

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
)

// DType is the floating-point type in which a tensor is stored.
type DType string

// The types a dump's K, V and Q may have. E4M3 is the OCP "fn" variant: no
// infinities, largest value 448. E5M2 has infinities, largest value 57344.
const (
	F16  DType = "f16"
	BF16 DType = "bf16"
	F32  DType = "f32"
	F64  DType = "f64"
	E4M3 DType = "e4m3"
	E5M2 DType = "e5m2"
)

// ParseDType reads a type's name as typed after --dtype, in any case.
func ParseDType(s string) (DType, error) {
	switch d := DType(strings.ToLower(s)); d {
	case F16, BF16, F32, F64, E4M3, E5M2:
		return d, nil
	}
	return "", &OptionError{"dtype", fmt.Sprintf("%s is not a type: want f16, bf16, f32, f64, e4m3 or e5m2", quote(s))}
}

// Size returns the bytes of one element.
func (d DType) Size() int {
	switch d {
	case E4M3, E5M2:
		return 1
	case F16, BF16:
		return 2
	case F32:
		return 4
	case F64:
		return 8
	}
	return 0
}

// kind is what a file says about the elements of an array.
type kind uint8

const (
	kindOther kind = iota // valid in its format, of no use here
	kindFloat             // IEEE 754 binary16, 32 or 64
	kindBF16
	kindE4M3
	kindE5M2
	kindInt
	kindUint
	kindRaw     // numpy void: bytes without a meaning
	kindBytes   // numpy S
	kindUnicode // numpy U: UTF-32
)

// element is the element type of an array as its file declares it.
type element struct {
	kind kind
	size int // bytes
	big  bool
	name string // as the file spells it
}

// float returns the floating-point type of an element. Types that the file
// leaves open (void and unsigned integers) take option; used says that it was
// needed. An empty result means that the elements are no floats.
func (e element) float(option DType) (d DType, used bool) {
	switch e.kind {
	case kindFloat:
		switch e.size {
		case 2:
			return F16, false
		case 4:
			return F32, false
		case 8:
			return F64, false
		}
	case kindBF16:
		return BF16, false
	case kindE4M3:
		return E4M3, false
	case kindE5M2:
		return E5M2, false
	case kindRaw, kindUint:
		if option != "" && option.Size() == e.size {
			return option, true
		}
	}
	return "", false
}

// decoder converts len(dst) consecutive little-endian elements exactly to
// float32 (f64 rounds to nearest even and overflows to infinity).
type decoder func(dst []float32, src []byte)

func (d DType) decoder() decoder {
	switch d {
	case F16:
		return decodeF16
	case BF16:
		return decodeBF16
	case F32:
		return decodeF32
	case F64:
		return decodeF64
	case E4M3:
		return func(dst []float32, src []byte) { decodeBytes(dst, src, e4m3Table()) }
	case E5M2:
		return func(dst []float32, src []byte) { decodeBytes(dst, src, e5m2Table()) }
	}
	return nil
}

// minifloat returns the value of a sign-exponent-mantissa pattern with the
// given field widths. The all-ones exponent is infinity or NaN.
func minifloat(bits uint32, exponent, mantissa int) float32 {
	bias := 1<<(exponent-1) - 1
	m := bits & (1<<mantissa - 1)
	e := int(bits>>mantissa) & (1<<exponent - 1)
	var v float64
	switch {
	case e == 1<<exponent-1 && m != 0:
		return float32(math.NaN())
	case e == 1<<exponent-1:
		v = math.Inf(1)
	case e == 0:
		v = math.Ldexp(float64(m), 1-bias-mantissa)
	default:
		v = math.Ldexp(float64(m|1<<mantissa), e-bias-mantissa)
	}
	if bits>>(exponent+mantissa)&1 != 0 {
		v = -v
	}
	if v == 0 {
		return math.Float32frombits(bits >> (exponent + mantissa) & 1 << 31)
	}
	return float32(v)
}

var e5m2Table = sync.OnceValue(func() *[256]float32 {
	var t [256]float32
	for i := range t {
		t[i] = minifloat(uint32(i), 5, 2)
	}
	return &t
})

var e4m3Table = sync.OnceValue(func() *[256]float32 {
	var t [256]float32
	for i := range t {
		switch e := i & 0x7f; {
		case e == 0x7f:
			t[i] = float32(math.NaN())
		case e >= 0x78: // no infinities: the top exponent is a normal one
			t[i] = float32(8+i&7) * 32
			if i >= 0x80 {
				t[i] = -t[i]
			}
		default:
			t[i] = minifloat(uint32(i), 4, 3)
		}
	}
	return &t
})

// decodeF16 rebiases four exponents at a time, and takes the slow way only
// for groups that hold a zero, a subnormal, an infinity or a NaN. A table of
// all values (256 KiB) was faster on an idle machine, and slower beside
// kernels that need the caches themselves.
func decodeF16(dst []float32, src []byte) {
	const (
		each     = 0x0001_0001_0001_0001
		pair     = 0x0000_0001_0000_0001
		rebias   = (127 - 15) << 23 * pair
		exponent = 0x7800 * each
	)
	i := 0
	for ; i+4 <= len(dst); i += 4 {
		w, d := binary.LittleEndian.Uint64(src[2*i:]), dst[i:i+4:i+4]
		// An exponent of 0 or 31, plus 1, has no bit above the lowest.
		if u := (w&(0x7fff*each) + 0x0400*each) & exponent; (u+0x7fff*each)&(0x8000*each) != 0x8000*each {
			fourFromF16(d, w)
			continue
		}
		lo := w&0xffff | w<<16&(0xffff<<32)
		hi := w>>32&0xffff | w>>16&(0xffff<<32)
		lo = lo&(0x7fff*pair)<<13 + rebias | lo&(0x8000*pair)<<16
		hi = hi&(0x7fff*pair)<<13 + rebias | hi&(0x8000*pair)<<16
		d[0], d[1] = math.Float32frombits(uint32(lo)), math.Float32frombits(uint32(lo>>32))
		d[2], d[3] = math.Float32frombits(uint32(hi)), math.Float32frombits(uint32(hi>>32))
	}
	for ; i < len(dst); i++ {
		dst[i] = fromF16(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// fourFromF16 stays out of the loop that calls it, for the sake of registers.
//
//go:noinline
func fourFromF16(d []float32, w uint64) {
	for i := range d {
		d[i] = fromF16(uint16(w >> (16 * i)))
	}
}

// fromF16 converts one binary16 value.
func fromF16(h uint16) float32 {
	sign, m := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	switch {
	case m < 0x0400: // a multiple of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(m)*0x1p-24))
	case m < 0x7c00:
		return math.Float32frombits(sign | (m<<13 + (127-15)<<23))
	}
	return math.Float32frombits(sign | m<<13 | 0x7f800000)
}

func decodeBF16(dst []float32, src []byte) {
	for len(dst) >= 4 && len(src) >= 8 {
		w := binary.LittleEndian.Uint64(src)
		d := dst[:4]
		d[0] = math.Float32frombits(uint32(w) << 16)
		d[1] = math.Float32frombits(uint32(w) & 0xffff0000)
		d[2] = math.Float32frombits(uint32(w>>32) << 16)
		d[3] = math.Float32frombits(uint32(w>>32) & 0xffff0000)
		dst, src = dst[4:], src[8:]
	}
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

func decodeF32(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func decodeF64(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
	}
}

func decodeBytes(dst []float32, src []byte, t *[256]float32) {
	for i := range dst {
		dst[i] = t[src[i]]
	}
}

// indexNonFinite returns the index of the first NaN or infinity, or −1.
func indexNonFinite(x []float32) int {
	const exponent = 0x7f800000
	i := 0
	for ; i+4 <= len(x); i += 4 {
		// One branch for four: an all-ones exponent is rare.
		v := x[i : i+4]
		if max(math.Float32bits(v[0])&exponent, math.Float32bits(v[1])&exponent,
			math.Float32bits(v[2])&exponent, math.Float32bits(v[3])&exponent) == exponent {
			break
		}
	}
	for ; i < len(x); i++ {
		if math.Float32bits(x[i])&exponent == exponent {
			return i
		}
	}
	return -1
}
