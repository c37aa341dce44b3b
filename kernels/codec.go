package kernels

import (
	"encoding/binary"
	"math"
	"slices"
)

// codecKernels are one backend's reductions, encoders and decoders. The
// exported functions check lengths; a backend may rely on them.
type codecKernels struct {
	absMax        func(x []float32) float32
	absMaxRuns    func(dst, x []float32, run int)
	minMaxRuns    func(lo, hi, x []float32, run int)
	absMaxColumns func(acc, x []float32)
	minMaxColumns func(lo, hi, x []float32)

	encodeRuns, encodeColumns func(fields []uint8, x []float32, run int, a Affine)
	decodeRuns, decodeColumns func(dst []float32, fields []uint8, run int, a Affine)
	pack                      func(dst []byte, fields []uint8, bits int)
	unpack                    func(fields []uint8, src []byte, bits int)

	truncateRuns  func(fields []uint8, x, offset, factor []float32, half float32, top uint8, run int)
	roundAwayRuns func(fields []uint8, x, factor []float32, run int)
	e2m1Runs      func(fields []uint8, x []float32, middles []int32, run int)

	fitLevels func(fit *LevelFit, x []float32, levels *Levels)

	divideRuns, divideColumns     func(dst, x, scale []float32, run int)
	multiplyRuns, multiplyColumns func(dst, x, scale []float32, run int)

	toF16, toBF16, toE4M3, toE5M2         func(dst []byte, x []float32)
	fromF16, fromBF16, fromE4M3, fromE5M2 func(dst []float32, src []byte)
}

const errLength = "kernels: length mismatch"

// Values are grouped in one of two ways. In runs, each run consecutive values
// share what stands at their run's index (one scale per row, or per group of
// channels of a row). In columns, x is rows of len(scale) values and all values
// of a column share what stands at its index (one scale per channel).

// An Affine maps stored fields to values and back. A field is the unsigned
// integer that is stored, one byte before packing.
//
//	field = clamp(rne((x − Offset) / Scale) + Bias, Lo, Hi)
//	x̂     = Scale·(field − Bias) + Offset
//
// Every operation rounds to float32 on its own; rne is to nearest, ties to even.
// Where Scale is 0 the quotient counts as 0. x is finite, 0 <= Lo <= Hi <= 255.
// Scale, Bias and Offset have one entry per run or column.
type Affine struct {
	Scale, Bias, Offset []float32
	Lo, Hi              float32
}

// check panics unless a has n entries.
func (a Affine) check(n int) {
	if len(a.Scale) != n || len(a.Bias) != n || len(a.Offset) != n {
		panic(errLength)
	}
}

// checkRuns panics unless n values are runs full runs of run values.
func checkRuns(n, run, runs int) {
	if run <= 0 || n != run*runs {
		panic(errLength)
	}
}

// checkColumns panics unless n values are full rows of columns values.
func checkColumns(n, columns int) {
	if columns == 0 && n != 0 || columns != 0 && n%columns != 0 {
		panic(errLength)
	}
}

// maxCall bounds the values of one call of a kernel: assembly cannot be
// preempted, so a long slice is taken in parts.
const maxCall = 1 << 16

// IndexNonFinite returns the index of the first NaN or infinity in x, or -1.
func IndexNonFinite(x []float32) int {
	if finite(AbsMax(x)) {
		return -1
	}
	return slices.IndexFunc(x, func(v float32) bool { return !finite(v) })
}

func finite(v float32) bool { return math.Float32bits(v)&0x7f800000 != 0x7f800000 }

// AbsMax returns the largest |x[i]|, 0 for an empty slice and a NaN if x holds one.
func AbsMax(x []float32) float32 {
	k := &active.Load().codec
	var largest float32
	for len(x) > maxCall {
		largest = max(largest, k.absMax(x[:maxCall]))
		x = x[maxCall:]
	}
	return max(largest, k.absMax(x))
}

// AbsMaxRuns sets dst[r] to the largest magnitude of run r. x holds no NaN.
func AbsMaxRuns(dst, x []float32, run int) {
	checkRuns(len(x), run, len(dst))
	active.Load().codec.absMaxRuns(dst, x, run)
}

// MinMaxRuns sets lo[r] and hi[r] to the least and the largest value of run r;
// a zero comes out positive. x holds no NaN.
func MinMaxRuns(lo, hi, x []float32, run int) {
	checkRuns(len(x), run, len(lo))
	if len(hi) != len(lo) {
		panic(errLength)
	}
	active.Load().codec.minMaxRuns(lo, hi, x, run)
}

// AbsMaxColumns raises acc[c] to the largest magnitude of column c. x holds no NaN.
func AbsMaxColumns(acc, x []float32) {
	checkColumns(len(x), len(acc))
	active.Load().codec.absMaxColumns(acc, x)
}

// MinMaxColumns lowers lo[c] and raises hi[c] to the extremes of column c; a
// zero comes out positive. x holds no NaN.
func MinMaxColumns(lo, hi, x []float32) {
	checkColumns(len(x), len(lo))
	if len(hi) != len(lo) {
		panic(errLength)
	}
	active.Load().codec.minMaxColumns(lo, hi, x)
}

// EncodeRuns writes the fields of x, the runs of which have a's entries.
func EncodeRuns(fields []uint8, x []float32, run int, a Affine) {
	checkRuns(len(x), run, len(a.Scale))
	a.check(len(a.Scale))
	if len(fields) != len(x) {
		panic(errLength)
	}
	active.Load().codec.encodeRuns(fields, x, run, a)
}

// EncodeColumns writes the fields of x, the columns of which have a's entries.
func EncodeColumns(fields []uint8, x []float32, a Affine) {
	checkColumns(len(x), len(a.Scale))
	a.check(len(a.Scale))
	if len(fields) != len(x) {
		panic(errLength)
	}
	active.Load().codec.encodeColumns(fields, x, len(a.Scale), a)
}

// DecodeRuns writes the values of fields, the runs of which have a's entries.
func DecodeRuns(dst []float32, fields []uint8, run int, a Affine) {
	checkRuns(len(fields), run, len(a.Scale))
	a.check(len(a.Scale))
	if len(fields) != len(dst) {
		panic(errLength)
	}
	active.Load().codec.decodeRuns(dst, fields, run, a)
}

// DecodeColumns writes the values of fields, the columns of which have a's entries.
func DecodeColumns(dst []float32, fields []uint8, a Affine) {
	checkColumns(len(fields), len(a.Scale))
	a.check(len(a.Scale))
	if len(fields) != len(dst) {
		panic(errLength)
	}
	active.Load().codec.decodeColumns(dst, fields, len(a.Scale), a)
}

// TruncateRuns writes codes that are rounded by truncation: the integer part of
// (x − offset)·factor + half, from 0 to top, with one offset and factor per run; 0
// for what is no 31-bit number. Every operation rounds on its own.
func TruncateRuns(fields []uint8, x, offset, factor []float32, half float32, top uint8, run int) {
	checkRuns(len(x), run, len(factor))
	if len(fields) != len(x) || len(offset) != len(factor) {
		panic(errLength)
	}
	active.Load().codec.truncateRuns(fields, x, offset, factor, half, top, run)
}

// RoundAwayRuns writes x·factor, one factor per run, as int8: to nearest, halves
// away from 0, the low 8 bits of the integer; 0 for what is no 32-bit number.
func RoundAwayRuns(fields []uint8, x, factor []float32, run int) {
	checkRuns(len(x), run, len(factor))
	if len(fields) != len(x) {
		panic(errLength)
	}
	active.Load().codec.roundAwayRuns(fields, x, factor, run)
}

// E2M1Middles is how many midpoints lie between the magnitudes of e2m1's codes.
const E2M1Middles = 7

// E2M1Runs writes e2m1 codes: how many of its run's ascending midpoints, given by
// their bits, |x| is above, and 8 more for a negative value that does not become 0.
func E2M1Runs(fields []uint8, x []float32, middles []int32, run int) {
	checkRuns(len(x), run, len(middles)/E2M1Middles)
	if len(fields) != len(x) || len(middles)%E2M1Middles != 0 {
		panic(errLength)
	}
	active.Load().codec.e2m1Runs(fields, x, middles, run)
}

// PackedLen returns the bytes of n fields of bits bits.
func PackedLen(n, bits int) int { return (n*bits + 7) / 8 }

// Pack writes fields one after the other, least significant bit first, without
// waste; the bits left over in the last byte are 0. A field is below 2^bits,
// bits is 1 to 8, len(dst) is PackedLen.
func Pack(dst []byte, fields []uint8, bits int) {
	if bits < 1 || bits > 8 || len(dst) != PackedLen(len(fields), bits) {
		panic(errLength)
	}
	if bits == 8 {
		copy(dst, fields)
		return
	}
	active.Load().codec.pack(dst, fields, bits)
}

// Unpack is the inverse of Pack. len(src) is PackedLen of the fields.
func Unpack(fields []uint8, src []byte, bits int) {
	if bits < 1 || bits > 8 || len(src) != PackedLen(len(fields), bits) {
		panic(errLength)
	}
	if bits == 8 {
		copy(fields, src)
		return
	}
	active.Load().codec.unpack(fields, src, bits)
}

// DivideRuns sets dst to x / scale, one scale per run; 0 where the scale is 0.
// dst may be x.
func DivideRuns(dst, x, scale []float32, run int) {
	checkRuns(len(x), run, len(scale))
	if len(dst) != len(x) {
		panic(errLength)
	}
	active.Load().codec.divideRuns(dst, x, scale, run)
}

// DivideColumns sets dst to x / scale, one scale per column; 0 where the scale
// is 0. dst may be x.
func DivideColumns(dst, x, scale []float32) {
	checkColumns(len(x), len(scale))
	if len(dst) != len(x) {
		panic(errLength)
	}
	active.Load().codec.divideColumns(dst, x, scale, len(scale))
}

// MultiplyRuns sets dst to x·scale, one scale per run. dst may be x.
func MultiplyRuns(dst, x, scale []float32, run int) {
	checkRuns(len(x), run, len(scale))
	if len(dst) != len(x) {
		panic(errLength)
	}
	active.Load().codec.multiplyRuns(dst, x, scale, run)
}

// MultiplyColumns sets dst to x·scale, one scale per column. dst may be x.
func MultiplyColumns(dst, x, scale []float32) {
	checkColumns(len(x), len(scale))
	if len(dst) != len(x) {
		panic(errLength)
	}
	active.Load().codec.multiplyColumns(dst, x, scale, len(scale))
}

// inParts calls f for the bounds of parts of n values.
func inParts(n int, f func(at, end int)) {
	for at := 0; at < n; at += maxCall {
		f(at, min(at+maxCall, n))
	}
}

// ToF16 writes x as IEEE 754 half floats, two bytes each, little endian: to
// nearest, ties to even; from 65520 on the result is an infinity. A NaN stays
// one, made quiet, with the upper bits of its payload.
func ToF16(dst []byte, x []float32) {
	checkRuns(len(dst), 2, len(x))
	inParts(len(x), func(at, end int) { active.Load().codec.toF16(dst[2*at:2*end], x[at:end]) })
}

// FromF16 reads half floats, exactly. A NaN is made quiet.
func FromF16(dst []float32, src []byte) {
	checkRuns(len(src), 2, len(dst))
	inParts(len(dst), func(at, end int) { active.Load().codec.fromF16(dst[at:end], src[2*at:2*end]) })
}

// ToBF16 writes x as bfloat16, two bytes each, little endian: to nearest, ties
// to even, overflowing to an infinity. A NaN stays one, made quiet.
func ToBF16(dst []byte, x []float32) {
	checkRuns(len(dst), 2, len(x))
	inParts(len(x), func(at, end int) { active.Load().codec.toBF16(dst[2*at:2*end], x[at:end]) })
}

// FromBF16 reads bfloat16, exactly.
func FromBF16(dst []float32, src []byte) {
	checkRuns(len(src), 2, len(dst))
	inParts(len(dst), func(at, end int) { active.Load().codec.fromBF16(dst[at:end], src[2*at:2*end]) })
}

// Largest finite values of the 8-bit floats (OCP OFP8).
const (
	MaxE4M3 = 448
	MaxE5M2 = 57344
)

// ToE4M3 writes x as OCP FP8 E4M3 (bias 7, no infinity): to nearest, ties to
// even, magnitudes above 448 saturating to it. A NaN becomes 0x7f with its sign.
func ToE4M3(dst []byte, x []float32) {
	checkRuns(len(x), 1, len(dst))
	inParts(len(x), func(at, end int) { active.Load().codec.toE4M3(dst[at:end], x[at:end]) })
}

// FromE4M3 reads E4M3, exactly.
func FromE4M3(dst []float32, src []byte) {
	checkRuns(len(src), 1, len(dst))
	inParts(len(dst), func(at, end int) { active.Load().codec.fromE4M3(dst[at:end], src[at:end]) })
}

// ToE5M2 writes x as OCP FP8 E5M2 (bias 15): to nearest, ties to even,
// magnitudes above 57344 saturating to it, infinities too. A NaN becomes 0x7f
// with its sign.
func ToE5M2(dst []byte, x []float32) {
	checkRuns(len(x), 1, len(dst))
	inParts(len(x), func(at, end int) { active.Load().codec.toE5M2(dst[at:end], x[at:end]) })
}

// FromE5M2 reads E5M2, exactly, infinities included. A NaN is made quiet.
func FromE5M2(dst []float32, src []byte) {
	checkRuns(len(src), 1, len(dst))
	inParts(len(dst), func(at, end int) { active.Load().codec.fromE5M2(dst[at:end], src[at:end]) })
}

// ToF32 writes x as it is, four bytes each, little endian.
func ToF32(dst []byte, x []float32) {
	checkRuns(len(dst), 4, len(x))
	for i, v := range x {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
}

// FromF32 reads what ToF32 wrote.
func FromF32(dst []float32, src []byte) {
	checkRuns(len(src), 4, len(dst))
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// PutF16 writes one value as ToF16 does.
func PutF16(dst []byte, v float32) { binary.LittleEndian.PutUint16(dst, f16(v)) }

// GetF16 reads one value as FromF16 does.
func GetF16(src []byte) float32 { return fromF16(binary.LittleEndian.Uint16(src)) }

// GetE4M3 reads one value as FromE4M3 does.
func GetE4M3(code byte) float32 { return fromE4M3(code) }

// E4M3 returns one value as ToE4M3 writes it.
func E4M3(v float32) byte { return f8(v, 7, 3, MaxE4M3) }

// Levels are the 16 values of a code book, ascending, and the midpoints between
// neighbours.
type Levels struct {
	Values  [16]float32
	Middles [15]float32
}

// A LevelFit tries 16 factors for one block of values.
type LevelFit struct {
	Factors [16]float32
	QX, QQ  [16]float32 // of each factor
}

// FitLevels sums, for each factor f of fit, over the values v of x in order
//
//	QX = Σ (v²·q)·v    QQ = Σ (v²·q)·q
//
// where q is the level nearest to f·v, the upper one on a tie: with them QX/QQ is
// the scale that fits x best by least squares weighted with v².
func FitLevels(fit *LevelFit, x []float32, levels *Levels) {
	active.Load().codec.fitLevels(fit, x, levels)
}
