package kernels

import (
	"encoding/binary"
	"math"
	"unsafe"
)

var genericDecode = decodeKernels{
	name:             "generic",
	int8:             genericTiles(dot8),
	int4:             genericTiles(dot4),
	levels:           levelsGeneric,
	f16:              genericFloatTiles(2, func(b []byte) float32 { return fromF16(binary.LittleEndian.Uint16(b)) }),
	bf16:             genericFloatTiles(2, func(b []byte) float32 { return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16) }),
	e4m3:             genericFloatTiles(1, func(b []byte) float32 { return fromF16(uint16(b[0]&0x80)<<8 | uint16(b[0]&0x7f)<<7) }),
	e5m2:             genericFloatTiles(1, func(b []byte) float32 { return fromF16(uint16(b[0]) << 8) }),
	f32:              genericFloatTiles(4, func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }),
	expand:           expandGeneric,
	lookUp:           lookUpGeneric,
	scaleLanes:       scaleLanesGeneric,
	scaleSteps:       scaleStepsGeneric,
	widenE8M0:        widenE8M0Generic,
	fold:             foldGeneric,
	foldHalf:         halfFold(fromF16Generic, foldGeneric),
	foldWeighted:     foldWeightedGeneric,
	scoreToken:       scoreTokenGeneric,
	softmax:          softmaxGeneric,
	softmaxFold:      softmaxFoldGeneric,
	softmaxFoldHalf:  softmaxFoldHalfGeneric,
	accumulateScaled: accumulateScaledGeneric,
	laneDot:          laneDotGeneric,
	widen:            fromF16Generic,
	fetch:            func([]byte) {},
	fetchFar:         func([]byte) {},
	merge:            mergeGeneric,
	multiply:         multiplyGeneric,
	divide:           divideGeneric,
	readers:          []func([]byte) uint64{readGeneric},
}

// multiplicands views a coefficient area as the portable code keeps it: an int16
// each, in order.
func multiplicands(coef []byte) []int16 {
	return unsafe.Slice((*int16)(unsafe.Pointer(unsafe.SliceData(coef))), len(coef)/2)
}

// dot8 is Σ code·m over one lane of int8 codes; stride is the distance of two steps.
func dot8(codes []byte, m []int16, steps, stride int) int32 {
	var sum int32
	for s := range steps {
		c, f := codes[s*stride:][:4], m[4*s:][:4]
		sum += int32(c[0])*int32(f[0]) + int32(c[1])*int32(f[1]) + int32(c[2])*int32(f[2]) + int32(c[3])*int32(f[3])
	}
	return sum
}

// dot4 is Σ code·m over one lane of int4 codes.
func dot4(codes []byte, m []int16, steps, stride int) int32 {
	var sum int32
	for s := range steps {
		c, f := codes[s*stride:][:4], m[8*s:][:8]
		for j, v := range c {
			sum += int32(v&15)*int32(f[j]) + int32(v>>4)*int32(f[4+j])
		}
	}
	return sum
}

// levelsGeneric are the tiles of int4 for codes that stand for the integers of a table.
func levelsGeneric(table *[16]uint8) intTiles {
	return genericTiles(func(codes []byte, m []int16, steps, stride int) int32 {
		var sum int32
		for s := range steps {
			c, f := codes[s*stride:][:4], m[8*s:][:8]
			for j, v := range c {
				sum += int32(table[v&15])*int32(f[j]) + int32(table[v>>4])*int32(f[4+j])
			}
		}
		return sum
	})
}

func genericTiles(dot func(codes []byte, m []int16, steps, stride int) int32) intTiles {
	// each calls use with every sum of a tile.
	each := func(codes, coef []byte, plane int, bias []int32, heads, lanes, blocks, steps, first int, use func(b, h, lane int, sum int32)) {
		m := multiplicands(coef)
		for b := range blocks {
			for h := range heads {
				for lane := range lanes {
					use(b, h, lane, dot(codes[4*(b*steps*lanes+lane):], m[h*plane+first:], steps, 4*lanes)-bias[h])
				}
			}
		}
	}
	return intTiles{
		sums: func(sums []int32, codes, coef []byte, plane int, bias []int32, heads, lanes, blocks, steps, first int) {
			each(codes, coef, plane, bias, heads, lanes, blocks, steps, first, func(b, h, lane int, sum int32) {
				sums[(b*heads+h)*lanes+lane] = sum
			})
		},
		score: func(z []float32, codes, coef []byte, plane int, bias []int32, unit, add []float32, heads, blocks, steps, first int) {
			each(codes, coef, plane, bias, heads, blockWide, blocks, steps, first, func(b, h, lane int, sum int32) {
				z[h*pageTokens+b*blockWide+lane] = float32(float32(sum)*unit[h]) + add[h]
			})
		},
		scoreHalf: func(z []float32, codes, coef []byte, plane int, bias []int32, unit []float32, scale []byte, heads, blocks, steps, first int) {
			each(codes, coef, plane, bias, heads, blockWide, blocks, steps, first, func(b, h, lane int, sum int32) {
				z[h*pageTokens+b*blockWide+lane] = float32(float32(sum)*unit[h]) * GetF16(scale[2*(b*blockWide+lane):])
			})
		},
		scoreHalfAdd: func(z []float32, codes, coef []byte, plane int, bias []int32, unit []float32, scale []byte, heads, blocks, steps, first int) {
			each(codes, coef, plane, bias, heads, blockWide, blocks, steps, first, func(b, h, lane int, sum int32) {
				z[h*pageTokens+b*blockWide+lane] += float32(float32(float32(sum)*unit[h]) * GetF16(scale[2*(b*blockWide+lane):]))
			})
		},
		value: func(o []float32, codes, coef []byte, plane int, bias []int32, r, unit []float32, heads, lanes, blocks, steps, first int) {
			each(codes, coef, plane, bias, heads, lanes, blocks, steps, first, func(b, h, lane int, sum int32) {
				at := &o[b*valueBlock+h*valueRow+lane]
				*at = float32(*at*r[h]) + float32(float32(sum)*unit[h])
			})
		},
	}
}

func genericFloatTiles(size int, load func([]byte) float32) floatTiles {
	dot := func(codes []byte, x []float32, steps, stride int) float32 {
		var sum float32
		for s := range steps {
			sum += float32(load(codes[s*stride:]) * x[s])
		}
		return sum
	}
	return floatTiles{
		score: func(z []float32, codes []byte, x []float32, row, heads, blocks, steps int) {
			for b := range blocks {
				for h := range heads {
					for lane := range blockWide {
						z[h*pageTokens+b*blockWide+lane] = dot(codes[size*(b*steps*blockWide+lane):], x[h*row:], steps, size*blockWide)
					}
				}
			}
		},
		value: func(o []float32, codes []byte, x []float32, row int, r []float32, heads, lanes, blocks, steps int) {
			for b := range blocks {
				for h := range heads {
					for lane := range lanes {
						at := &o[b*valueBlock+h*valueRow+lane]
						*at = float32(*at*r[h]) + dot(codes[size*(b*steps*lanes+lane):], x[h*row:], steps, size*lanes)
					}
				}
			}
		},
	}
}

// smallestFold is the largest row, 2^−100, that folds to zeros: limit/amax stays finite above it.
var smallestFold = float32(math.Ldexp(1, -100))

func foldWeightedGeneric(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, weight []int32, limit float32, heads, n int) {
	m := multiplicands(coef)
	for h := range heads {
		in, out := x[h*row:][:n], m[h*plane:][:n]
		var amax float32
		for i, v := range in {
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
				v := in[j]
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

func scoreTokenGeneric(z []float32, sums []int32, unit, scale, offset, q []float32, heads, groups int) {
	for h := range heads {
		row := z[h*pageTokens:][:pageTokens]
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

// exp2Coef are the coefficients of 2^f on |f| ≤ 1/2, lowest first: 1 + f·g(f) with
// the polynomial g that meets (2^f − 1)/f at five Chebyshev points. The constant is
// exactly 1, so that 2^0 is.
var exp2Coef = [...]float32{1, 0.693147182, 0.240223497, 0.0555038117, 0.00966636837, 0.00133813021}

const (
	// exp2Low is the lowest power of two there is: what is smaller counts as it. A
	// weight of 2^−100 beside one of 1 vanishes in any sum, and products with it
	// stay clear of denormals, which are slow on some machines.
	exp2Low = -100
	// roundMagic rounds |x| < 2^22 to an integer, ties to even, when added and taken
	// away; in between, the integer stands in the low bits.
	roundMagic = 3 << 22
)

// exp2 is 2^max(x, −100) for x ≤ 0, with a relative error under 3·10^−7. The
// exponent is added to the bits as an integer.
func exp2(x float32) float32 {
	x = max(x, exp2Low)
	t := x + roundMagic
	f := x - (t - roundMagic)
	p := exp2Coef[5]
	for i := 4; i >= 0; i-- {
		p = float32(p*f) + exp2Coef[i]
	}
	return math.Float32frombits(math.Float32bits(p) + math.Float32bits(t)<<23)
}

func softmaxGeneric(z, m, r, l []float32, heads int) {
	for h := range heads {
		row := z[h*pageTokens:][:pageTokens]
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

func foldGeneric(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, limit float32, centre, heads, n int) {
	var weight [maxDim]int32
	for i := range weight[:n] {
		weight[i] = int32(centre)
	}
	var parts [headBlock * biasStride]int32
	foldWeightedGeneric(coef, plane, units, parts[:], x, row, scale, weight[:n], limit, heads, n)
	for h := range heads {
		bias[h] = sumBias(parts[h*biasStride:], n)
	}
}

// halfFold is foldHalf by way of widening and fold.
func halfFold(
	widen func(dst []float32, src []byte),
	fold func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, limit float32, centre, heads, n int),
) func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, half []byte, widened []float32, limit float32, centre, heads, n int) {
	return func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, half []byte, widened []float32, limit float32, centre, heads, n int) {
		widen(widened[:n], half)
		fold(coef, plane, units, bias, x, row, widened[:n], limit, centre, heads, n)
	}
}

func softmaxFoldGeneric(z, m, r, l []float32, coef []byte, units []float32, bias []int32, scale []float32, centre, heads int) {
	softmaxGeneric(z, m, r, l, heads)
	foldGeneric(coef, valuePlane, units, bias, z, pageTokens, scale, planeLimit, centre, heads, pageTokens)
}

func softmaxFoldHalfGeneric(z, m, r, l []float32, coef []byte, units []float32, bias []int32, half []byte, scale []float32, centre, heads int) {
	for t := range scale[:pageTokens] {
		scale[t] = GetF16(half[2*t:])
	}
	softmaxFoldGeneric(z, m, r, l, coef, units, bias, scale, centre, heads)
}

func accumulateScaledGeneric(o []float32, sums []int32, r, unit, scale, add, offset []float32, heads, lanes, blocks int) {
	for b := range blocks {
		for h := range heads {
			row := o[b*valueBlock+h*valueRow:][:lanes]
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

func laneDotGeneric(e, x []float32, row int, w, r []float32, heads, n int) {
	for h := range heads {
		for lane := range laneWidth {
			sum := float32(x[h*row+lane] * w[lane])
			for i := laneWidth + lane; i < n; i += laneWidth {
				sum += float32(x[h*row+i] * w[i])
			}
			e[h*laneWidth+lane] = float32(e[h*laneWidth+lane]*r[h]) + sum
		}
	}
}

func mergeGeneric(dst, src []float32, a, b float32) {
	for i, v := range src {
		dst[i] = float32(dst[i]*a) + float32(v*b)
	}
}

func multiplyGeneric(dst, src []float32, a float32) {
	for i, v := range src {
		dst[i] = float32(v * a)
	}
}

func divideGeneric(dst, src []float32, a float32) {
	for i, v := range src {
		dst[i] = v / a
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
