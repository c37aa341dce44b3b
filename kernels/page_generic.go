package kernels

import (
	"encoding/binary"
	"math"
)

var genericPage = pageKernels{
	direct:     true,
	int8:       genericLines(8),
	int4:       genericLines(4),
	halfKeys:   halfKeysGeneric,
	halfValues: halfValuesGeneric,
	scales:     scalesFullGeneric,
	scalesHalf: scalesHalfGeneric,
}

// code is the code of one value; pageLines defines it.
func code(x float32, constants []float32, lo, hi float32) uint8 {
	v := float32(math.RoundToEven(float64((x-constants[maxScales])/constants[0]))) + constants[2*maxScales]
	if !(v > lo) {
		v = lo
	}
	return uint8(min(v, hi))
}

func genericLines(bits int) (l pageLines) {
	wide := 32 / bits // channels of a line of keys, tokens of a line of values
	// put stores a code as number i of those that share four bytes with a lane.
	put := func(lane []byte, i int, code uint8) {
		if i < 4 {
			lane[i] = code
		} else {
			lane[i-4] |= code << 4
		}
	}
	// each calls f with the place and the code of every value.
	each := func(from codeSource, x []float32, stride, tokens, columns int, constants []float32, r codeRange, f func(t, c int, code uint8)) (most uint32) {
		for t := range tokens {
			row := x[t*stride : t*stride+columns]
			if from == fromRanges {
				rangeScale(row, constants[t:], r)
			}
			for c, v := range row {
				at := constants[t:]
				if from == fromChannels {
					at = constants[c:]
				}
				most = max(most, magnitude(v))
				f(t, c, code(v, at, r.lo, r.hi))
			}
		}
		return most
	}
	for from := range codeSources {
		l.keys[from] = func(dst []byte, x, _ []float32, stride, columns int, constants []float32, r codeRange) uint32 {
			return each(from, x, stride, chunkTokens, columns, constants, r, func(t, c int, code uint8) {
				put(dst[2*lineBytes*(c/wide)+4*t:], c%wide, code)
			})
		}
		l.values[from] = func(dst []byte, x, _ []float32, stride int, g valueGrid, constants []float32, r codeRange) uint32 {
			return each(from, x, stride, g.steps*wide, g.blocks*g.lanes, constants, r, func(t, c int, code uint8) {
				put(dst[c/g.lanes*g.block+4*(t/wide*g.lanes+c%g.lanes):], t%wide, code)
			})
		}
	}
	l.rows = func(dst []byte, x []float32, run int, constants []float32, r codeRange) uint32 {
		return each(fromRanges, x, run, len(x)/run, run, constants, r, func(t, c int, code uint8) {
			at := (t*run + c) * bits / 8
			if c%2 == 0 || bits == 8 {
				dst[at] = code
			} else {
				dst[at] |= code << 4
			}
		})
	}
	return l
}

// rangeScale makes the scale and the divisor of a row.
func rangeScale(row, constants []float32, r codeRange) {
	largest := absMaxGeneric(row)
	scalesHalfGeneric(constants[3*maxScales:][:1], constants[:1], []float32{largest}, r.levels)
}

// magnitude is |v| as an integer.
func magnitude(v float32) uint32 { return math.Float32bits(v) &^ (1 << 31) }

func halfKeysGeneric(dst []byte, x, _ []float32, stride, columns int) (most uint32) {
	for t := range chunkTokens {
		for c := range columns {
			binary.LittleEndian.PutUint16(dst[lineBytes*c+2*t:], f16(x[t*stride+c]))
			most = max(most, magnitude(x[t*stride+c]))
		}
	}
	return most
}

func halfValuesGeneric(dst []byte, x, _ []float32, stride int, g valueGrid) (most uint32) {
	for s := range g.steps {
		for c := range g.blocks * g.lanes {
			b, lane := c/g.lanes, c%g.lanes
			binary.LittleEndian.PutUint16(dst[b*g.block+2*(s*g.lanes+lane):], f16(x[s*stride+c]))
			most = max(most, magnitude(x[s*stride+c]))
		}
	}
	return most
}

func scalesFullGeneric(scale, divisor, width []float32, levels float32) bool {
	return scalesGeneric(scale, divisor, width, levels, 0x1p-149, func(v float32) float32 { return v })
}

func scalesHalfGeneric(scale, divisor, width []float32, levels float32) bool {
	return scalesGeneric(scale, divisor, width, levels, 0x1p-24, func(v float32) float32 { return fromF16(f16(v)) })
}

func scalesGeneric(scale, divisor, width []float32, levels, least float32, stored func(float32) float32) bool {
	fits := true
	for i, w := range width {
		v := stored(w / levels)
		if v == 0 && w > 0 {
			v = least
		}
		fits = fits && finite(v)
		scale[i], divisor[i] = v, v
		if v == 0 {
			divisor[i] = float32(math.Inf(1))
		}
	}
	return fits
}
