//go:build !purego

package kernels

// Wrappers around the assembly of decode attention: they hold lengths against what
// a kernel touches, and choose the function for the number of query heads.

func avx2Decode(k decodeKernels) decodeKernels {
	k.name = "fused-avx2"
	k.tile8 = tiles{
		{tile8x1x1AVX2, tile8x2x1AVX2, tile8x3x1AVX2, tile8x4x1AVX2},
		{tile8x1x2AVX2, tile8x2x2AVX2, tile8x3x2AVX2, tile8x4x2AVX2},
	}.run(4, 2)
	k.tile4 = tiles{
		{tile4x1x1AVX2, tile4x2x1AVX2, tile4x3x1AVX2, tile4x4x1AVX2},
		{tile4x1x2AVX2, tile4x2x2AVX2, tile4x3x2AVX2, tile4x4x2AVX2},
	}.run(8, 2)
	k.tileF32 = floatTiles{
		{tileF32x1x1AVX2, tileF32x2x1AVX2, tileF32x3x1AVX2, tileF32x4x1AVX2},
		{tileF32x1x2AVX2, tileF32x2x2AVX2, tileF32x3x2AVX2, tileF32x4x2AVX2},
	}.run(4)
	k.tileF16 = floatTiles{
		{tileF16x1x1AVX2, tileF16x2x1AVX2, tileF16x3x1AVX2, tileF16x4x1AVX2},
		{tileF16x1x2AVX2, tileF16x2x2AVX2, tileF16x3x2AVX2, tileF16x4x2AVX2},
	}.run(2)
	k.readers = []func([]byte) uint64{reader(readAhead0AVX2), reader(readAhead2048AVX2), reader(readAhead8192AVX2)}
	k.fold = func(coef []byte, units []float32, bias []int32, x, scale []float32, weight []int32, limit float32, heads, n int) {
		mustHold(n > 0 && n%blockWide == 0 && len(coef) >= heads*coefBytes && len(units) >= heads && len(bias) >= (heads-1)*biasStride+n/blockWide &&
			len(x) >= rows(heads, n) && (scale == nil || len(scale) >= n) && len(weight) >= n)
		if scale == nil {
			foldPlainAVX2(&coef[0], &units[0], &bias[0], &x[0], limit, &weight[0], heads, n)
		} else {
			foldScaledAVX2(&coef[0], &units[0], &bias[0], &x[0], &scale[0], limit, &weight[0], heads, n)
		}
	}
	k.scoreUniform = func(z []float32, sums []int32, unit, add []float32, heads, blocks, first int) {
		mustHold(blocks > 0 && len(z) >= rows(heads, first+blocks*blockWide) && len(sums) >= heads*blocks*blockWide && len(unit) >= heads && len(add) >= heads)
		scoreUniformAVX2(&z[first], &sums[0], &unit[0], &add[0], heads, blocks)
	}
	k.scoreToken = func(z []float32, sums []int32, unit, scale, offset, q []float32, heads, groups int) {
		mustHold(groups > 0 && len(z) >= rows(heads, pageTokens) && len(sums) >= heads*groups*pageTokens && len(unit) >= heads && len(scale) >= groups*pageTokens)
		if offset == nil {
			scoreTokenAVX2(&z[0], &sums[0], &unit[0], &scale[0], heads, groups)
			return
		}
		mustHold(len(offset) >= groups*pageTokens && len(q) >= (groups-1)*headBlock+heads)
		scoreTokenOffsetAVX2(&z[0], &sums[0], &unit[0], &scale[0], &offset[0], &q[0], heads, groups)
	}
	k.softmax = func(z, m, r, l []float32, heads int) {
		mustHold(len(z) >= rows(heads, pageTokens) && len(m) >= heads && len(r) >= heads && len(l) >= heads*laneWidth)
		softmaxAVX2(&z[0], &m[0], &r[0], &l[0], heads)
	}
	k.accumulate = func(o []float32, sums []int32, r, unit []float32, heads, lanes, blocks int) {
		mustHold(blocks > 0 && len(o) >= rows(heads, lanes*blocks) && len(sums) >= heads*lanes*blocks && len(r) >= heads && len(unit) >= heads)
		if lanes == blockWide {
			accumulatex2AVX2(&o[0], &sums[0], &r[0], &unit[0], heads, blocks)
		} else {
			accumulatex1AVX2(&o[0], &sums[0], &r[0], &unit[0], heads, blocks)
		}
	}
	k.accumulateScaled = func(o []float32, sums []int32, r, unit, scale, add, offset []float32, heads, lanes, blocks int) {
		mustHold(blocks > 0 && len(o) >= rows(heads, lanes*blocks) && len(sums) >= heads*lanes*blocks && len(r) >= heads && len(unit) >= heads &&
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
	k.accumulateFloat = func(o, sums, r []float32, heads, n int) {
		mustHold(n > 0 && n%laneWidth == 0 && len(o) >= rows(heads, n) && len(sums) >= rows(heads, n) && len(r) >= heads)
		accumulateFloatAVX2(&o[0], &sums[0], &r[0], heads, n)
	}
	k.laneDot = func(e, x, w, r []float32, heads, n int) {
		mustHold(n > 0 && n%laneWidth == 0 && len(e) >= heads*laneWidth && len(x) >= rows(heads, n) && len(w) >= n && len(r) >= heads)
		laneDotAVX2(&e[0], &x[0], &w[0], &r[0], heads, n)
	}
	k.widenF16 = func(dst []float32, src []byte, n int) {
		mustHold(n > 0 && n%laneWidth == 0 && len(dst) >= n && len(src) >= 2*n)
		widenF16AVX2(&dst[0], &src[0], n)
	}
	k.merge = func(dst, src []float32, a, b float32) {
		mustHold(len(src) > 0 && len(src)%laneWidth == 0 && len(dst) == len(src))
		mergeAVX2(&dst[0], &src[0], a, b, len(src))
	}
	return k
}

func avx512Decode(k decodeKernels) decodeKernels {
	k.name = "fused-avx512"
	k.tile8 = tiles{
		{tile8x1x1AVX512, tile8x2x1AVX512, tile8x3x1AVX512, tile8x4x1AVX512},
		{tile8x1x2AVX512, tile8x2x2AVX512, tile8x3x2AVX512, tile8x4x2AVX512},
	}.run(4, 1)
	k.tile4 = tiles{
		{tile4x1x1AVX512, tile4x2x1AVX512, tile4x3x1AVX512, tile4x4x1AVX512},
		{tile4x1x2AVX512, tile4x2x2AVX512, tile4x3x2AVX512, tile4x4x2AVX512},
	}.run(8, 1)
	k.tileF32 = floatTiles{
		{tileF32x1x1AVX512, tileF32x2x1AVX512, tileF32x3x1AVX512, tileF32x4x1AVX512},
		{tileF32x1x2AVX512, tileF32x2x2AVX512, tileF32x3x2AVX512, tileF32x4x2AVX512},
	}.run(4)
	k.tileF16 = floatTiles{
		{tileF16x1x1AVX512, tileF16x2x1AVX512, tileF16x3x1AVX512, tileF16x4x1AVX512},
		{tileF16x1x2AVX512, tileF16x2x2AVX512, tileF16x3x2AVX512, tileF16x4x2AVX512},
	}.run(2)
	k.readers = []func([]byte) uint64{reader(readAhead0AVX512), reader(readAhead2048AVX512), reader(readAhead8192AVX512)}
	k.fold = func(coef []byte, units []float32, bias []int32, x, scale []float32, weight []int32, limit float32, heads, n int) {
		mustHold(n > 0 && n%blockWide == 0 && len(coef) >= heads*coefBytes && len(units) >= heads && len(bias) >= (heads-1)*biasStride+n/blockWide &&
			len(x) >= rows(heads, n) && (scale == nil || len(scale) >= n) && len(weight) >= n)
		if scale == nil {
			foldPlainAVX512(&coef[0], &units[0], &bias[0], &x[0], limit, &weight[0], heads, n)
		} else {
			foldScaledAVX512(&coef[0], &units[0], &bias[0], &x[0], &scale[0], limit, &weight[0], heads, n)
		}
	}
	k.scoreUniform = func(z []float32, sums []int32, unit, add []float32, heads, blocks, first int) {
		mustHold(blocks > 0 && len(z) >= rows(heads, first+blocks*blockWide) && len(sums) >= heads*blocks*blockWide && len(unit) >= heads && len(add) >= heads)
		scoreUniformAVX512(&z[first], &sums[0], &unit[0], &add[0], heads, blocks)
	}
	k.scoreToken = func(z []float32, sums []int32, unit, scale, offset, q []float32, heads, groups int) {
		mustHold(groups > 0 && len(z) >= rows(heads, pageTokens) && len(sums) >= heads*groups*pageTokens && len(unit) >= heads && len(scale) >= groups*pageTokens)
		if offset == nil {
			scoreTokenAVX512(&z[0], &sums[0], &unit[0], &scale[0], heads, groups)
			return
		}
		mustHold(len(offset) >= groups*pageTokens && len(q) >= (groups-1)*headBlock+heads)
		scoreTokenOffsetAVX512(&z[0], &sums[0], &unit[0], &scale[0], &offset[0], &q[0], heads, groups)
	}
	k.softmax = func(z, m, r, l []float32, heads int) {
		mustHold(len(z) >= rows(heads, pageTokens) && len(m) >= heads && len(r) >= heads && len(l) >= heads*laneWidth)
		softmaxAVX512(&z[0], &m[0], &r[0], &l[0], heads)
	}
	k.accumulate = func(o []float32, sums []int32, r, unit []float32, heads, lanes, blocks int) {
		mustHold(blocks > 0 && len(o) >= rows(heads, lanes*blocks) && len(sums) >= heads*lanes*blocks && len(r) >= heads && len(unit) >= heads)
		if lanes == blockWide {
			accumulatex2AVX512(&o[0], &sums[0], &r[0], &unit[0], heads, blocks)
		} else {
			accumulatex1AVX512(&o[0], &sums[0], &r[0], &unit[0], heads, blocks)
		}
	}
	k.accumulateScaled = func(o []float32, sums []int32, r, unit, scale, add, offset []float32, heads, lanes, blocks int) {
		mustHold(blocks > 0 && len(o) >= rows(heads, lanes*blocks) && len(sums) >= heads*lanes*blocks && len(r) >= heads && len(unit) >= heads &&
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
	k.accumulateFloat = func(o, sums, r []float32, heads, n int) {
		mustHold(n > 0 && n%laneWidth == 0 && len(o) >= rows(heads, n) && len(sums) >= rows(heads, n) && len(r) >= heads)
		accumulateFloatAVX512(&o[0], &sums[0], &r[0], heads, n)
	}
	k.laneDot = func(e, x, w, r []float32, heads, n int) {
		mustHold(n > 0 && n%laneWidth == 0 && len(e) >= heads*laneWidth && len(x) >= rows(heads, n) && len(w) >= n && len(r) >= heads)
		laneDotAVX512(&e[0], &x[0], &w[0], &r[0], heads, n)
	}
	k.widenF16 = func(dst []float32, src []byte, n int) {
		mustHold(n > 0 && n%laneWidth == 0 && len(dst) >= n && len(src) >= 2*n)
		widenF16AVX512(&dst[0], &src[0], n)
	}
	k.merge = func(dst, src []float32, a, b float32) {
		mustHold(len(src) > 0 && len(src)%laneWidth == 0 && len(dst) == len(src))
		mergeAVX512(&dst[0], &src[0], a, b, len(src))
	}
	return k
}

// tiles are the integer tiles for 1 to 4 query heads, blocks of 16 and of 32 lanes.
type tiles [2][headBlock]func(sums *int32, codes, coef *byte, bias *int32, blocks, steps int)

// run returns the tile whose step takes codes of `step` channels or tokens, and
// whose multiplicands are `unit` bytes apart in their first plane.
func (t tiles) run(step, unit int) func(sums []int32, codes, coef []byte, bias []int32, heads, lanes, blocks, steps, first int) {
	return func(sums []int32, codes, coef []byte, bias []int32, heads, lanes, blocks, steps, first int) {
		mustHold(steps > 0 && blocks > 0 && len(sums) >= heads*lanes*blocks && len(codes) >= 4*lanes*blocks*steps &&
			len(coef) >= heads*coefBytes && len(bias) >= heads && first+step*steps <= maxDim)
		t[lanes/blockWide][heads-1](&sums[0], &codes[0], &coef[first*unit], &bias[0], blocks, steps)
	}
}

// floatTiles are the float tiles for 1 to 4 query heads, blocks of 16 and of 32 lanes.
type floatTiles [2][headBlock]func(sums *float32, codes *byte, x *float32, blocks, steps int)

func (t floatTiles) run(size int) func(sums []float32, codes []byte, x []float32, heads, lanes, blocks, steps int) {
	return func(sums []float32, codes []byte, x []float32, heads, lanes, blocks, steps int) {
		mustHold(steps > 0 && blocks > 0 && len(sums) >= rows(heads, lanes*blocks) && len(codes) >= size*lanes*blocks*steps &&
			len(x) >= rows(heads, steps))
		t[lanes/blockWide][heads-1](&sums[0], &codes[0], &x[0], blocks, steps)
	}
}

// rows is the length of `heads` rows of n elements that stand maxDim apart.
func rows(heads, n int) int { return (heads-1)*maxDim + n }

// mustHold guards the assembly: nothing else sees it read or write too far.
func mustHold(lengthsFit bool) {
	if !lengthsFit {
		panic("kernels: length mismatch")
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
