//go:build !purego

package kernels

// Wrappers around the assembly of decode attention: they hold lengths against what
// a kernel touches, and choose the function for the number of query heads.

func avx2Decode(k decodeKernels) decodeKernels {
	k.name = "fused-avx2"
	k.int8 = intAssembly{
		step: 4, unit: 2,
		sums:        [2][headBlock]sumsFunc{{tile8x1x1AVX2, tile8x2x1AVX2, tile8x3x1AVX2, tile8x4x1AVX2}, {tile8x1x2AVX2, tile8x2x2AVX2, tile8x3x2AVX2, tile8x4x2AVX2}},
		score:       [headBlock]scoreFunc{score8x1x2AVX2, score8x2x2AVX2, score8x3x2AVX2, score8x4x2AVX2},
		scoreScaled: [headBlock]scoreFunc{scoreScaled8x1x2AVX2, scoreScaled8x2x2AVX2, scoreScaled8x3x2AVX2, scoreScaled8x4x2AVX2},
		scoreHalf:   [headBlock]scoreHalfFunc{scoreHalf8x1x2AVX2, scoreHalf8x2x2AVX2, scoreHalf8x3x2AVX2, scoreHalf8x4x2AVX2},
		value:       [2][headBlock]scoreFunc{{value8x1x1AVX2, value8x2x1AVX2, value8x3x1AVX2, value8x4x1AVX2}, {value8x1x2AVX2, value8x2x2AVX2, value8x3x2AVX2, value8x4x2AVX2}},
	}.tiles()
	k.int4 = intAssembly{
		step: 8, unit: 2,
		sums:        [2][headBlock]sumsFunc{{tile4x1x1AVX2, tile4x2x1AVX2, tile4x3x1AVX2, tile4x4x1AVX2}, {tile4x1x2AVX2, tile4x2x2AVX2, tile4x3x2AVX2, tile4x4x2AVX2}},
		score:       [headBlock]scoreFunc{score4x1x2AVX2, score4x2x2AVX2, score4x3x2AVX2, score4x4x2AVX2},
		scoreScaled: [headBlock]scoreFunc{scoreScaled4x1x2AVX2, scoreScaled4x2x2AVX2, scoreScaled4x3x2AVX2, scoreScaled4x4x2AVX2},
		scoreHalf:   [headBlock]scoreHalfFunc{scoreHalf4x1x2AVX2, scoreHalf4x2x2AVX2, scoreHalf4x3x2AVX2, scoreHalf4x4x2AVX2},
		value:       [2][headBlock]scoreFunc{{value4x1x1AVX2, value4x2x1AVX2, value4x3x1AVX2, value4x4x1AVX2}, {value4x1x2AVX2, value4x2x2AVX2, value4x3x2AVX2, value4x4x2AVX2}},
	}.tiles()
	k.f16 = floatAssembly{
		size:  2,
		score: [headBlock]floatScoreFunc{scoreF16x1x2AVX2, scoreF16x2x2AVX2, scoreF16x3x2AVX2, scoreF16x4x2AVX2},
		value: [2][headBlock]floatValueFunc{{valueF16x1x1AVX2, valueF16x2x1AVX2, valueF16x3x1AVX2, valueF16x4x1AVX2}, {valueF16x1x2AVX2, valueF16x2x2AVX2, valueF16x3x2AVX2, valueF16x4x2AVX2}},
	}.tiles()
	k.f32 = floatAssembly{
		size:  4,
		score: [headBlock]floatScoreFunc{scoreF32x1x2AVX2, scoreF32x2x2AVX2, scoreF32x3x2AVX2, scoreF32x4x2AVX2},
		value: [2][headBlock]floatValueFunc{{valueF32x1x1AVX2, valueF32x2x1AVX2, valueF32x3x1AVX2, valueF32x4x1AVX2}, {valueF32x1x2AVX2, valueF32x2x2AVX2, valueF32x3x2AVX2, valueF32x4x2AVX2}},
	}.tiles()
	k.readers = []func([]byte) uint64{reader(readAhead0AVX2), reader(readAhead2048AVX2), reader(readAhead8192AVX2)}
	k.foldWeighted = func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, weight []int32, limit float32, heads, n int) {
		mustHold(n > 0 && n%blockWide == 0 && plane >= n && len(coef) >= 2*heads*plane && len(units) >= heads && len(bias) >= (heads-1)*biasStride+n/blockWide &&
			len(x) >= rows(heads, row, n) && (scale == nil || len(scale) >= n) && len(weight) >= n)
		if scale == nil {
			foldWeightedPlainAVX2(&coef[0], plane, &units[0], &bias[0], &x[0], row, limit, &weight[0], heads, n)
		} else {
			foldWeightedScaledAVX2(&coef[0], plane, &units[0], &bias[0], &x[0], &scale[0], row, limit, &weight[0], heads, n)
		}
	}
	k.fold = foldAVX2
	k.scoreToken = func(z []float32, sums []int32, unit, scale, offset, q []float32, heads, groups int) {
		mustHold(groups > 0 && len(z) >= heads*pageTokens && len(sums) >= heads*groups*pageTokens && len(unit) >= heads && len(scale) >= groups*pageTokens)
		if offset == nil {
			scoreTokenAVX2(&z[0], &sums[0], &unit[0], &scale[0], heads, groups)
			return
		}
		mustHold(len(offset) >= groups*pageTokens && len(q) >= (groups-1)*headBlock+heads)
		scoreTokenOffsetAVX2(&z[0], &sums[0], &unit[0], &scale[0], &offset[0], &q[0], heads, groups)
	}
	k.softmax = func(z, m, r, l []float32, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth)
		softmaxAVX2(&z[0], &m[0], &r[0], &l[0], heads)
	}
	k.softmaxFold = func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, scale []float32, centre, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth &&
			len(coef) >= 2*heads*valuePlane && len(units) >= headBlock && len(bias) >= heads && (scale == nil || len(scale) >= pageTokens))
		if scale == nil {
			softmaxFoldPlainAVX2(&z[0], &m[0], &r[0], &l[0], &coef[0], &units[0], &bias[0], planeLimit, centre, heads)
		} else {
			softmaxFoldScaledAVX2(&z[0], &m[0], &r[0], &l[0], &coef[0], &units[0], &bias[0], &scale[0], planeLimit, centre, heads)
		}
	}
	k.softmaxFoldHalf = func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, halves []byte, scale []float32, centre, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth &&
			len(coef) >= 2*heads*valuePlane && len(units) >= headBlock && len(bias) >= heads && len(halves) >= 2*pageTokens && len(scale) >= pageTokens)
		softmaxFoldHalfAVX2(&z[0], &m[0], &r[0], &l[0], &coef[0], &units[0], &bias[0], &halves[0], &scale[0], planeLimit, centre, heads)
	}
	k.accumulateScaled = func(o []float32, sums []int32, r, unit, scale, add, offset []float32, heads, lanes, blocks int) {
		mustHold(blocks > 0 && len(o) >= valueLen(heads, lanes, blocks) && len(sums) >= heads*lanes*blocks && len(r) >= heads && len(unit) >= heads &&
			len(scale) >= lanes*blocks && (offset == nil || len(offset) >= lanes*blocks && len(add) >= heads))
		switch {
		case offset == nil && lanes == blockWide:
			accumulateScaledx2AVX2(&o[0], &sums[0], &r[0], &unit[0], &scale[0], heads, blocks)
		case offset == nil:
			accumulateScaledx1AVX2(&o[0], &sums[0], &r[0], &unit[0], &scale[0], heads, blocks)
		case lanes == blockWide:
			accumulateOffsetx2AVX2(&o[0], &sums[0], &r[0], &unit[0], &scale[0], &add[0], &offset[0], heads, blocks)
		default:
			accumulateOffsetx1AVX2(&o[0], &sums[0], &r[0], &unit[0], &scale[0], &add[0], &offset[0], heads, blocks)
		}
	}
	k.laneDot = func(e, x []float32, row int, w, r []float32, heads, n int) {
		mustHold(n > 0 && n%laneWidth == 0 && len(e) >= heads*laneWidth && len(x) >= rows(heads, row, n) && len(w) >= n && len(r) >= heads)
		laneDotAVX2(&e[0], &x[0], row, &w[0], &r[0], heads, n)
	}
	k.widen = func(dst []float32, src []byte) {
		mustHold(len(dst) > 0 && len(dst)%laneWidth == 0 && len(src) >= 2*len(dst))
		widenAVX2(&dst[0], &src[0], len(dst))
	}
	k.merge = func(dst, src []float32, a, b float32) {
		mustHold(len(src) > 0 && len(src)%laneWidth == 0 && len(dst) == len(src))
		mergeAVX2(&dst[0], &src[0], a, b, len(src))
	}
	k.multiply = rowBy(multiplyAVX2, multiplyGeneric)
	k.divide = rowBy(divideAVX2, divideGeneric)
	return k
}

func avx512Decode(k decodeKernels) decodeKernels {
	k.name = "fused-avx512"
	k.int8 = intAssembly{
		step: 4, unit: 1,
		sums:        [2][headBlock]sumsFunc{{tile8x1x1AVX512, tile8x2x1AVX512, tile8x3x1AVX512, tile8x4x1AVX512}, {tile8x1x2AVX512, tile8x2x2AVX512, tile8x3x2AVX512, tile8x4x2AVX512}},
		score:       [headBlock]scoreFunc{score8x1x2AVX512, score8x2x2AVX512, score8x3x2AVX512, score8x4x2AVX512},
		scoreScaled: [headBlock]scoreFunc{scoreScaled8x1x2AVX512, scoreScaled8x2x2AVX512, scoreScaled8x3x2AVX512, scoreScaled8x4x2AVX512},
		scoreHalf:   [headBlock]scoreHalfFunc{scoreHalf8x1x2AVX512, scoreHalf8x2x2AVX512, scoreHalf8x3x2AVX512, scoreHalf8x4x2AVX512},
		value:       [2][headBlock]scoreFunc{{value8x1x1AVX512, value8x2x1AVX512, value8x3x1AVX512, value8x4x1AVX512}, {value8x1x2AVX512, value8x2x2AVX512, value8x3x2AVX512, value8x4x2AVX512}},
	}.tiles()
	k.int4 = intAssembly{
		step: 8, unit: 1,
		sums:        [2][headBlock]sumsFunc{{tile4x1x1AVX512, tile4x2x1AVX512, tile4x3x1AVX512, tile4x4x1AVX512}, {tile4x1x2AVX512, tile4x2x2AVX512, tile4x3x2AVX512, tile4x4x2AVX512}},
		score:       [headBlock]scoreFunc{score4x1x2AVX512, score4x2x2AVX512, score4x3x2AVX512, score4x4x2AVX512},
		scoreScaled: [headBlock]scoreFunc{scoreScaled4x1x2AVX512, scoreScaled4x2x2AVX512, scoreScaled4x3x2AVX512, scoreScaled4x4x2AVX512},
		scoreHalf:   [headBlock]scoreHalfFunc{scoreHalf4x1x2AVX512, scoreHalf4x2x2AVX512, scoreHalf4x3x2AVX512, scoreHalf4x4x2AVX512},
		value:       [2][headBlock]scoreFunc{{value4x1x1AVX512, value4x2x1AVX512, value4x3x1AVX512, value4x4x1AVX512}, {value4x1x2AVX512, value4x2x2AVX512, value4x3x2AVX512, value4x4x2AVX512}},
	}.tiles()
	k.f16 = floatAssembly{
		size:  2,
		score: [headBlock]floatScoreFunc{scoreF16x1x2AVX512, scoreF16x2x2AVX512, scoreF16x3x2AVX512, scoreF16x4x2AVX512},
		value: [2][headBlock]floatValueFunc{{valueF16x1x1AVX512, valueF16x2x1AVX512, valueF16x3x1AVX512, valueF16x4x1AVX512}, {valueF16x1x2AVX512, valueF16x2x2AVX512, valueF16x3x2AVX512, valueF16x4x2AVX512}},
	}.tiles()
	k.f32 = floatAssembly{
		size:  4,
		score: [headBlock]floatScoreFunc{scoreF32x1x2AVX512, scoreF32x2x2AVX512, scoreF32x3x2AVX512, scoreF32x4x2AVX512},
		value: [2][headBlock]floatValueFunc{{valueF32x1x1AVX512, valueF32x2x1AVX512, valueF32x3x1AVX512, valueF32x4x1AVX512}, {valueF32x1x2AVX512, valueF32x2x2AVX512, valueF32x3x2AVX512, valueF32x4x2AVX512}},
	}.tiles()
	k.readers = []func([]byte) uint64{reader(readAhead0AVX512), reader(readAhead2048AVX512), reader(readAhead8192AVX512)}
	k.foldWeighted = func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, weight []int32, limit float32, heads, n int) {
		mustHold(n > 0 && n%blockWide == 0 && plane >= n && len(coef) >= 2*heads*plane && len(units) >= heads && len(bias) >= (heads-1)*biasStride+n/blockWide &&
			len(x) >= rows(heads, row, n) && (scale == nil || len(scale) >= n) && len(weight) >= n)
		if scale == nil {
			foldWeightedPlainAVX512(&coef[0], plane, &units[0], &bias[0], &x[0], row, limit, &weight[0], heads, n)
		} else {
			foldWeightedScaledAVX512(&coef[0], plane, &units[0], &bias[0], &x[0], &scale[0], row, limit, &weight[0], heads, n)
		}
	}
	foldPlain := [headBlock]func(coef *byte, plane int, units *float32, bias *int32, x *float32, row int, limit float32, centre, n int){
		foldPlainx1AVX512, foldPlainx2AVX512, foldPlainx3AVX512, foldPlainx4AVX512}
	foldScaled := [headBlock]func(coef *byte, plane int, units *float32, bias *int32, x, scale *float32, row int, limit float32, centre, n int){
		foldScaledx1AVX512, foldScaledx2AVX512, foldScaledx3AVX512, foldScaledx4AVX512}
	k.fold = func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, limit float32, centre, heads, n int) {
		mustHold(n > 0 && n%blockWide == 0 && plane >= n && len(coef) >= 2*heads*plane && len(units) >= headBlock && len(bias) >= heads &&
			len(x) >= rows(heads, row, n) && (scale == nil || len(scale) >= n))
		if scale == nil {
			foldPlain[heads-1](&coef[0], plane, &units[0], &bias[0], &x[0], row, limit, centre, n)
		} else {
			foldScaled[heads-1](&coef[0], plane, &units[0], &bias[0], &x[0], &scale[0], row, limit, centre, n)
		}
	}
	k.scoreToken = func(z []float32, sums []int32, unit, scale, offset, q []float32, heads, groups int) {
		mustHold(groups > 0 && len(z) >= heads*pageTokens && len(sums) >= heads*groups*pageTokens && len(unit) >= heads && len(scale) >= groups*pageTokens)
		if offset == nil {
			scoreTokenAVX512(&z[0], &sums[0], &unit[0], &scale[0], heads, groups)
			return
		}
		mustHold(len(offset) >= groups*pageTokens && len(q) >= (groups-1)*headBlock+heads)
		scoreTokenOffsetAVX512(&z[0], &sums[0], &unit[0], &scale[0], &offset[0], &q[0], heads, groups)
	}
	softmax := [headBlock]func(z, m, r, l *float32){softmaxx1AVX512, softmaxx2AVX512, softmaxx3AVX512, softmaxx4AVX512}
	k.softmax = func(z, m, r, l []float32, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth)
		softmax[heads-1](&z[0], &m[0], &r[0], &l[0])
	}
	plain := [headBlock]func(z, m, r, l *float32, coef *byte, units *float32, bias *int32, limit float32, centre int){
		softmaxPlainx1AVX512, softmaxPlainx2AVX512, softmaxPlainx3AVX512, softmaxPlainx4AVX512}
	scaled := [headBlock]func(z, m, r, l *float32, coef *byte, units *float32, bias *int32, scale *float32, limit float32, centre int){
		softmaxScaledx1AVX512, softmaxScaledx2AVX512, softmaxScaledx3AVX512, softmaxScaledx4AVX512}
	k.softmaxFold = func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, scale []float32, centre, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth &&
			len(coef) >= 2*heads*valuePlane && len(units) >= headBlock && len(bias) >= heads && (scale == nil || len(scale) >= pageTokens))
		if scale == nil {
			plain[heads-1](&z[0], &m[0], &r[0], &l[0], &coef[0], &units[0], &bias[0], planeLimit, centre)
		} else {
			scaled[heads-1](&z[0], &m[0], &r[0], &l[0], &coef[0], &units[0], &bias[0], &scale[0], planeLimit, centre)
		}
	}
	half := [headBlock]func(z, m, r, l *float32, coef *byte, units *float32, bias *int32, half *byte, scale *float32, limit float32, centre int){
		softmaxHalfx1AVX512, softmaxHalfx2AVX512, softmaxHalfx3AVX512, softmaxHalfx4AVX512}
	k.softmaxFoldHalf = func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, halves []byte, scale []float32, centre, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth &&
			len(coef) >= 2*heads*valuePlane && len(units) >= headBlock && len(bias) >= heads && len(halves) >= 2*pageTokens && len(scale) >= pageTokens)
		half[heads-1](&z[0], &m[0], &r[0], &l[0], &coef[0], &units[0], &bias[0], &halves[0], &scale[0], planeLimit, centre)
	}
	k.accumulateScaled = func(o []float32, sums []int32, r, unit, scale, add, offset []float32, heads, lanes, blocks int) {
		mustHold(blocks > 0 && len(o) >= valueLen(heads, lanes, blocks) && len(sums) >= heads*lanes*blocks && len(r) >= heads && len(unit) >= heads &&
			len(scale) >= lanes*blocks && (offset == nil || len(offset) >= lanes*blocks && len(add) >= heads))
		switch {
		case offset == nil && lanes == blockWide:
			accumulateScaledx2AVX512(&o[0], &sums[0], &r[0], &unit[0], &scale[0], heads, blocks)
		case offset == nil:
			accumulateScaledx1AVX512(&o[0], &sums[0], &r[0], &unit[0], &scale[0], heads, blocks)
		case lanes == blockWide:
			accumulateOffsetx2AVX512(&o[0], &sums[0], &r[0], &unit[0], &scale[0], &add[0], &offset[0], heads, blocks)
		default:
			accumulateOffsetx1AVX512(&o[0], &sums[0], &r[0], &unit[0], &scale[0], &add[0], &offset[0], heads, blocks)
		}
	}
	k.laneDot = func(e, x []float32, row int, w, r []float32, heads, n int) {
		mustHold(n > 0 && n%laneWidth == 0 && len(e) >= heads*laneWidth && len(x) >= rows(heads, row, n) && len(w) >= n && len(r) >= heads)
		laneDotAVX512(&e[0], &x[0], row, &w[0], &r[0], heads, n)
	}
	k.widen = func(dst []float32, src []byte) {
		mustHold(len(dst) > 0 && len(dst)%laneWidth == 0 && len(src) >= 2*len(dst))
		widenAVX512(&dst[0], &src[0], len(dst))
	}
	k.merge = func(dst, src []float32, a, b float32) {
		mustHold(len(src) > 0 && len(src)%laneWidth == 0 && len(dst) == len(src))
		mergeAVX512(&dst[0], &src[0], a, b, len(src))
	}
	k.multiply = rowBy(multiplyAVX512, multiplyGeneric)
	k.divide = rowBy(divideAVX512, divideGeneric)
	return k
}

type (
	sumsFunc       = func(sums *int32, codes, coef *byte, plane int, bias *int32, blocks, steps int)
	scoreFunc      = func(out *float32, codes, coef *byte, plane int, bias *int32, one, two *float32, blocks, steps int)
	scoreHalfFunc  = func(out *float32, codes, coef *byte, plane int, bias *int32, unit *float32, scale *byte, blocks, steps int)
	floatScoreFunc = func(out *float32, codes *byte, x *float32, row, blocks, steps int)
	floatValueFunc = func(out *float32, codes *byte, x *float32, row int, r *float32, blocks, steps int)
)

// foldAVX2 is fold by way of foldWeighted: the scalar work behind it is little
// beside the rows.
func foldAVX2(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, limit float32, centre, heads, n int) {
	mustHold(n > 0 && n%blockWide == 0 && plane >= n && len(coef) >= 2*heads*plane && len(units) >= heads && len(bias) >= heads &&
		len(x) >= rows(heads, row, n) && (scale == nil || len(scale) >= n))
	var parts [headBlock * biasStride]int32
	if scale == nil {
		foldWeightedPlainAVX2(&coef[0], plane, &units[0], &parts[0], &x[0], row, limit, &ones[0], heads, n)
	} else {
		foldWeightedScaledAVX2(&coef[0], plane, &units[0], &parts[0], &x[0], &scale[0], row, limit, &ones[0], heads, n)
	}
	for h := range heads {
		bias[h] = int32(centre) * sumBias(parts[h*biasStride:], n)
	}
}

// ones weigh every multiplicand alike.
var ones = func() (w [maxDim]int32) {
	for i := range w {
		w[i] = 1
	}
	return w
}()

// intAssembly holds integer tiles for 1 to 4 query heads, where it matters for
// blocks of 16 and of 32 lanes. A step takes `step` codes of a lane; multiplicands
// are `unit` bytes apart in their first plane.
type intAssembly struct {
	step, unit         int
	sums               [2][headBlock]sumsFunc
	score, scoreScaled [headBlock]scoreFunc
	scoreHalf          [headBlock]scoreHalfFunc
	value              [2][headBlock]scoreFunc
}

func (a intAssembly) tiles() intTiles {
	fits := func(codes, coef []byte, plane int, bias []int32, heads, lanes, blocks, steps, first int) bool {
		// In planes the last multiplicand is the last byte of the last plane, in words
		// the last of the last row.
		return steps > 0 && blocks > 0 && len(codes) >= 4*lanes*blocks*steps && plane >= first+a.step*steps &&
			len(coef) >= 2*heads*plane && len(bias) >= heads
	}
	return intTiles{
		sums: func(sums []int32, codes, coef []byte, plane int, bias []int32, heads, lanes, blocks, steps, first int) {
			mustHold(fits(codes, coef, plane, bias, heads, lanes, blocks, steps, first) && len(sums) >= heads*lanes*blocks)
			a.sums[lanes/blockWide][heads-1](&sums[0], &codes[0], &coef[first*a.unit], plane, &bias[0], blocks, steps)
		},
		score: func(z []float32, codes, coef []byte, plane int, bias []int32, unit, add []float32, heads, blocks, steps, first int) {
			mustHold(fits(codes, coef, plane, bias, heads, blockWide, blocks, steps, first) && len(z) >= scoreLen(heads, blocks) &&
				len(unit) >= heads && len(add) >= heads)
			a.score[heads-1](&z[0], &codes[0], &coef[first*a.unit], plane, &bias[0], &unit[0], &add[0], blocks, steps)
		},
		scoreScaled: func(z []float32, codes, coef []byte, plane int, bias []int32, unit, scale []float32, heads, blocks, steps, first int) {
			mustHold(fits(codes, coef, plane, bias, heads, blockWide, blocks, steps, first) && len(z) >= scoreLen(heads, blocks) &&
				len(unit) >= heads && len(scale) >= blockWide*blocks)
			a.scoreScaled[heads-1](&z[0], &codes[0], &coef[first*a.unit], plane, &bias[0], &unit[0], &scale[0], blocks, steps)
		},
		scoreHalf: func(z []float32, codes, coef []byte, plane int, bias []int32, unit []float32, scale []byte, heads, blocks, steps, first int) {
			mustHold(fits(codes, coef, plane, bias, heads, blockWide, blocks, steps, first) && len(z) >= scoreLen(heads, blocks) &&
				len(unit) >= heads && len(scale) >= 2*blockWide*blocks)
			a.scoreHalf[heads-1](&z[0], &codes[0], &coef[first*a.unit], plane, &bias[0], &unit[0], &scale[0], blocks, steps)
		},
		value: func(o []float32, codes, coef []byte, plane int, bias []int32, r, unit []float32, heads, lanes, blocks, steps, first int) {
			mustHold(fits(codes, coef, plane, bias, heads, lanes, blocks, steps, first) && len(o) >= valueLen(heads, lanes, blocks) &&
				len(r) >= heads && len(unit) >= heads)
			a.value[lanes/blockWide][heads-1](&o[0], &codes[0], &coef[first*a.unit], plane, &bias[0], &r[0], &unit[0], blocks, steps)
		},
	}
}

// floatAssembly holds float tiles for 1 to 4 query heads; a code has `size` bytes.
type floatAssembly struct {
	size  int
	score [headBlock]floatScoreFunc
	value [2][headBlock]floatValueFunc
}

func (a floatAssembly) tiles() floatTiles {
	return floatTiles{
		score: func(z []float32, codes []byte, x []float32, row, heads, blocks, steps int) {
			mustHold(steps > 0 && blocks > 0 && len(z) >= scoreLen(heads, blocks) && len(codes) >= a.size*blockWide*blocks*steps &&
				len(x) >= rows(heads, row, steps))
			a.score[heads-1](&z[0], &codes[0], &x[0], row, blocks, steps)
		},
		value: func(o []float32, codes []byte, x []float32, row int, r []float32, heads, lanes, blocks, steps int) {
			mustHold(steps > 0 && blocks > 0 && len(o) >= valueLen(heads, lanes, blocks) && len(codes) >= a.size*lanes*blocks*steps &&
				len(x) >= rows(heads, row, steps) && len(r) >= heads)
			a.value[lanes/blockWide][heads-1](&o[0], &codes[0], &x[0], row, &r[0], blocks, steps)
		},
	}
}

// scoreLen is how far the scores of blocks of 32 tokens reach.
func scoreLen(heads, blocks int) int { return (heads-1)*pageTokens + blocks*blockWide }

// valueLen is how far the outputs of blocks of lanes reach.
func valueLen(heads, lanes, blocks int) int {
	return (blocks-1)*valueBlock + (heads-1)*valueRow + lanes
}

// rows is how far `heads` rows of n elements reach that stand `row` apart.
func rows(heads, row, n int) int { return (heads-1)*row + n }

// mustHold guards the assembly: nothing else sees it read or write too far.
func mustHold(lengthsFit bool) {
	if !lengthsFit {
		panic("kernels: length mismatch")
	}
}

// rowBy runs whole vectors in assembly and the tail in Go.
func rowBy(asm func(dst, src *float32, a float32, n int), tail func(dst, src []float32, a float32)) func(dst, src []float32, a float32) {
	return func(dst, src []float32, a float32) {
		mustHold(len(dst) == len(src))
		n := len(src) &^ (laneWidth - 1)
		if n > 0 {
			asm(&dst[0], &src[0], a, n)
		}
		tail(dst[n:], src[n:], a)
	}
}

func reader(asm func(b *byte, n int) uint64) func([]byte) uint64 {
	return func(b []byte) uint64 {
		n := len(b) &^ 511
		if n == 0 {
			return readGeneric(b)
		}
		return asm(&b[0], n) ^ readGeneric(b[n:])
	}
}
