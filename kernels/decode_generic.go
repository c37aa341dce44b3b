package kernels

import (
	"encoding/binary"
	"math"
	"unsafe"
)

var genericDecode = decodeKernels{
	name:             "generic",
	tile8:            tile8Generic,
	tile4:            tile4Generic,
	tileF32:          tileF32Generic,
	tileF16:          tileF16Generic,
	fold:             foldGeneric,
	scoreUniform:     scoreUniformGeneric,
	scoreToken:       scoreTokenGeneric,
	softmax:          softmaxGeneric,
	accumulate:       accumulateGeneric,
	accumulateScaled: accumulateScaledGeneric,
	accumulateFloat:  accumulateFloatGeneric,
	laneDot:          laneDotGeneric,
	widenF16:         widenF16Generic,
	merge:            mergeGeneric,
	readers:          []func([]byte) uint64{readGeneric},
}

// multiplicands views a coefficient area as the portable code keeps it: an int16
// each, in order.
func multiplicands(coef []byte) []int16 {
	return unsafe.Slice((*int16)(unsafe.Pointer(unsafe.SliceData(coef))), len(coef)/2)
}

func tile8Generic(sums []int32, codes, coef []byte, bias []int32, heads, lanes, blocks, steps, first int) {
	m := multiplicands(coef)
	for b := range blocks {
		for h := range heads {
			row := m[h*maxDim+first:]
			for lane := range lanes {
				at := b*steps*4*lanes + lane*4
				sum := -bias[h]
				for s := range steps {
					c := codes[at+s*4*lanes:]
					sum += int32(c[0])*int32(row[4*s]) + int32(c[1])*int32(row[4*s+1]) +
						int32(c[2])*int32(row[4*s+2]) + int32(c[3])*int32(row[4*s+3])
				}
				sums[(b*heads+h)*lanes+lane] = sum
			}
		}
	}
}

func tile4Generic(sums []int32, codes, coef []byte, bias []int32, heads, lanes, blocks, steps, first int) {
	m := multiplicands(coef)
	for b := range blocks {
		for h := range heads {
			row := m[h*maxDim+first:]
			for lane := range lanes {
				at := b*steps*4*lanes + lane*4
				sum := -bias[h]
				for s := range steps {
					for j, c := range codes[at+s*4*lanes:][:4] {
						sum += int32(c&15)*int32(row[8*s+j]) + int32(c>>4)*int32(row[8*s+4+j])
					}
				}
				sums[(b*heads+h)*lanes+lane] = sum
			}
		}
	}
}

func tileF32Generic(sums []float32, codes []byte, x []float32, heads, lanes, blocks, steps int) {
	for b := range blocks {
		for h := range heads {
			for lane := range lanes {
				var sum float32
				for s := range steps {
					c := math.Float32frombits(binary.LittleEndian.Uint32(codes[4*((b*steps+s)*lanes+lane):]))
					sum += float32(c * x[h*maxDim+s])
				}
				sums[h*maxDim+b*lanes+lane] = sum
			}
		}
	}
}

func tileF16Generic(sums []float32, codes []byte, x []float32, heads, lanes, blocks, steps int) {
	for b := range blocks {
		for h := range heads {
			for lane := range lanes {
				var sum float32
				for s := range steps {
					c := widenHalf(binary.LittleEndian.Uint16(codes[2*((b*steps+s)*lanes+lane):]))
					sum += float32(c * x[h*maxDim+s])
				}
				sums[h*maxDim+b*lanes+lane] = sum
			}
		}
	}
}

// smallestFold is the largest row, 2^−100, that folds to zeros: limit/amax stays finite above it.
var smallestFold = float32(math.Ldexp(1, -100))

func foldGeneric(coef []byte, units []float32, bias []int32, x, scale []float32, weight []int32, limit float32, heads, n int) {
	m := multiplicands(coef)
	for h := range heads {
		row, out := x[h*maxDim:][:n], m[h*maxDim:][:n]
		var amax float32
		for i, v := range row {
			if scale != nil {
				v = float32(v * scale[i])
			}
			amax = max(amax, float32(math.Abs(float64(v))))
		}
		var factor float32
		units[h] = 0
		if amax >= smallestFold {
			factor = limit / amax
			units[h] = amax / limit
		}
		for i := 0; i < n; i += blockWide {
			var sum int32
			for j := i; j < min(i+blockWide, n); j++ {
				v := row[j]
				if scale != nil {
					v = float32(v * scale[j])
				}
				k := int32(math.RoundToEven(float64(float32(v * factor))))
				out[j] = int16(k)
				sum += k * weight[j]
			}
			bias[h*biasStride+i/blockWide] = sum
		}
	}
}

func scoreUniformGeneric(z []float32, sums []int32, unit, add []float32, heads, blocks, first int) {
	for b := range blocks {
		for h := range heads {
			row := z[h*maxDim+first+b*blockWide:][:blockWide]
			for lane := range row {
				row[lane] = float32(float32(sums[(b*heads+h)*blockWide+lane])*unit[h]) + add[h]
			}
		}
	}
}

func scoreTokenGeneric(z []float32, sums []int32, unit, scale, offset, q []float32, heads, groups int) {
	for h := range heads {
		row := z[h*maxDim:][:pageTokens]
		for t := range row {
			var sum float32
			for g := range groups {
				i := sums[((g*2+t/blockWide)*heads+h)*blockWide+t%blockWide]
				v := float32(float32(float32(i)*unit[h]) * scale[g*pageTokens+t])
				if g == 0 {
					sum = v
				} else {
					sum += v
				}
				if offset != nil {
					sum += float32(offset[g*pageTokens+t] * q[g*headBlock+h])
				}
			}
			row[t] = sum
		}
	}
}

// exp2Coef are the coefficients of 2^f on |f| ≤ 1/2, lowest first: the polynomial
// that meets 2^f at the seven Chebyshev points, within 2·10^−8 in float32.
var exp2Coef = [...]float32{1, 0.693147206702832031, 0.240226509222887935, 0.0555032722667120476, 0.0096180566785237006, 0.00134004281772814784, 0.00015461444698538422}

const (
	// exp2Low is where 2^x is taken as 0: below it the result would be denormal.
	exp2Low = -126
	// roundMagic rounds |x| < 2^22 to an integer, ties to even, when added and taken away.
	roundMagic = 3 << 22
)

// exp2 is 2^x for x ≤ 0 with a relative error under 4·2^−24; 0 below −126. The
// exponent is added to the bits as an integer.
func exp2(x float32) float32 {
	if !(x >= exp2Low) {
		return 0
	}
	n := float32(x+roundMagic) - roundMagic
	f := x - n
	p := exp2Coef[6]
	for i := 5; i >= 0; i-- {
		p = float32(p*f) + exp2Coef[i]
	}
	return math.Float32frombits(math.Float32bits(p) + uint32(int32(n))<<23)
}

func softmaxGeneric(z, m, r, l []float32, heads int) {
	for h := range heads {
		row := z[h*maxDim:][:pageTokens]
		top := m[h]
		for _, v := range row {
			top = max(top, v)
		}
		r[h] = exp2(m[h] - top)
		m[h] = top
		for t, v := range row {
			row[t] = exp2(v - top)
		}
		for lane := range laneWidth {
			sum := row[lane] + row[lane+16]
			sum += row[lane+32]
			sum += row[lane+48]
			l[h*laneWidth+lane] = float32(l[h*laneWidth+lane]*r[h]) + sum
		}
	}
}

func accumulateGeneric(o []float32, sums []int32, r, unit []float32, heads, lanes, blocks int) {
	for b := range blocks {
		for h := range heads {
			row := o[h*maxDim+b*lanes:][:lanes]
			for lane := range row {
				row[lane] = float32(row[lane]*r[h]) + float32(float32(sums[(b*heads+h)*lanes+lane])*unit[h])
			}
		}
	}
}

func accumulateScaledGeneric(o []float32, sums []int32, r, unit, scale, add, offset []float32, heads, lanes, blocks int) {
	for b := range blocks {
		for h := range heads {
			row := o[h*maxDim+b*lanes:][:lanes]
			for lane := range row {
				v := float32(float32(sums[(b*heads+h)*lanes+lane]) * unit[h])
				v = float32(row[lane]*r[h]) + float32(v*scale[b*lanes+lane])
				if offset != nil {
					v += float32(add[h] * offset[b*lanes+lane])
				}
				row[lane] = v
			}
		}
	}
}

func accumulateFloatGeneric(o, sums, r []float32, heads, n int) {
	for h := range heads {
		row, add := o[h*maxDim:][:n], sums[h*maxDim:][:n]
		for lane := range row {
			row[lane] = float32(row[lane]*r[h]) + add[lane]
		}
	}
}

func laneDotGeneric(e, x, w, r []float32, heads, n int) {
	for h := range heads {
		for lane := range laneWidth {
			sum := float32(x[h*maxDim+lane] * w[lane])
			for i := laneWidth + lane; i < n; i += laneWidth {
				sum += float32(x[h*maxDim+i] * w[i])
			}
			e[h*laneWidth+lane] = float32(e[h*laneWidth+lane]*r[h]) + sum
		}
	}
}

// widenHalf converts one float16, exactly.
func widenHalf(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&1023)
	switch exponent {
	case 0:
		v := float32(fraction) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

func widenF16Generic(dst []float32, src []byte, n int) {
	for i := range dst[:n] {
		dst[i] = widenHalf(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

func mergeGeneric(dst, src []float32, a, b float32) {
	for i, v := range src {
		dst[i] = float32(dst[i]*a) + float32(v*b)
	}
}

func readGeneric(b []byte) uint64 {
	var s0, s1, s2, s3 uint64
	words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)
	for len(words) >= 8 {
		w := words[:8]
		s0 += w[0] + w[4]
		s1 += w[1] + w[5]
		s2 += w[2] + w[6]
		s3 += w[3] + w[7]
		words = words[8:]
	}
	return s0 + s1 + s2 + s3
}

// sumLanes adds 16 lanes in the fixed tree: eight and eight, four and four, two and two, one and one.
func sumLanes(l []float32) float32 {
	var a [8]float32
	for i := range a {
		a[i] = l[i] + l[i+8]
	}
	return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]))
}
