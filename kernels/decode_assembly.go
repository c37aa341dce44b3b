//go:build !purego && (amd64 || arm64)

package kernels

type (
	foldFunc             = func(coef *byte, plane int, units *float32, bias *int32, x *float32, row int, limit float32, weight *int32, heads, n int)
	foldScaledFunc       = func(coef *byte, plane int, units *float32, bias *int32, x, scale *float32, row int, limit float32, weight *int32, heads, n int)
	tokenFunc            = func(z *float32, sums *int32, unit, scale *float32, heads, groups int)
	tokenOffsetFunc      = func(z *float32, sums *int32, unit, scale, offset, q *float32, heads, groups int)
	accumulateFunc       = func(o *float32, sums *int32, r, unit, scale *float32, heads, blocks int)
	accumulateOffsetFunc = func(o *float32, sums *int32, r, unit, scale, add, offset *float32, heads, blocks int)
	sumsFunc             = func(sums *int32, codes, coef *byte, plane int, bias *int32, blocks, steps int)
	scoreFunc            = func(out *float32, codes, coef *byte, plane int, bias *int32, one, two *float32, blocks, steps int)
	scoreHalfFunc        = func(out *float32, codes, coef *byte, plane int, bias *int32, unit *float32, scale *byte, blocks, steps int)
	floatScoreFunc       = func(out *float32, codes *byte, x *float32, row, blocks, steps int)
	floatValueFunc       = func(out *float32, codes *byte, x *float32, row int, r *float32, blocks, steps int)
)

// intAssembly holds integer tiles for 1 to 4 query heads, where it matters for
// blocks of 16 and of 32 lanes. A step takes `step` codes of a lane; multiplicands
// are `unit` bytes apart in their first plane.
type intAssembly struct {
	step, unit              int
	sums                    [2][headBlock]sumsFunc
	score                   [headBlock]scoreFunc
	scoreHalf, scoreHalfAdd [headBlock]scoreHalfFunc
	value                   [2][headBlock]scoreFunc
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
		scoreHalf: func(z []float32, codes, coef []byte, plane int, bias []int32, unit []float32, scale []byte, heads, blocks, steps, first int) {
			mustHold(fits(codes, coef, plane, bias, heads, blockWide, blocks, steps, first) && len(z) >= scoreLen(heads, blocks) &&
				len(unit) >= heads && len(scale) >= 2*blockWide*blocks)
			a.scoreHalf[heads-1](&z[0], &codes[0], &coef[first*a.unit], plane, &bias[0], &unit[0], &scale[0], blocks, steps)
		},
		scoreHalfAdd: func(z []float32, codes, coef []byte, plane int, bias []int32, unit []float32, scale []byte, heads, blocks, steps, first int) {
			mustHold(fits(codes, coef, plane, bias, heads, blockWide, blocks, steps, first) && len(z) >= scoreLen(heads, blocks) &&
				len(unit) >= heads && len(scale) >= 2*blockWide*blocks)
			a.scoreHalfAdd[heads-1](&z[0], &codes[0], &coef[first*a.unit], plane, &bias[0], &unit[0], &scale[0], blocks, steps)
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

// weightedFold is foldWeighted over assembly without and with scales.
func weightedFold(plain foldFunc, scaled foldScaledFunc) func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, weight []int32, limit float32, heads, n int) {
	return func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, weight []int32, limit float32, heads, n int) {
		mustHold(n > 0 && n%blockWide == 0 && plane >= n && len(coef) >= 2*heads*plane && len(units) >= heads && len(bias) >= (heads-1)*biasStride+n/blockWide &&
			len(x) >= rows(heads, row, n) && (scale == nil || len(scale) >= n) && len(weight) >= n)
		if scale == nil {
			plain(&coef[0], plane, &units[0], &bias[0], &x[0], row, limit, &weight[0], heads, n)
		} else {
			scaled(&coef[0], plane, &units[0], &bias[0], &x[0], &scale[0], row, limit, &weight[0], heads, n)
		}
	}
}

// tokenScores is scoreToken over assembly without and with offsets.
func tokenScores(plain tokenFunc, offsets tokenOffsetFunc) func(z []float32, sums []int32, unit, scale, offset, q []float32, heads, groups int) {
	return func(z []float32, sums []int32, unit, scale, offset, q []float32, heads, groups int) {
		mustHold(groups > 0 && len(z) >= heads*pageTokens && len(sums) >= heads*groups*pageTokens && len(unit) >= heads && len(scale) >= groups*pageTokens)
		if offset == nil {
			plain(&z[0], &sums[0], &unit[0], &scale[0], heads, groups)
			return
		}
		mustHold(len(offset) >= groups*pageTokens && len(q) >= (groups-1)*headBlock+heads)
		offsets(&z[0], &sums[0], &unit[0], &scale[0], &offset[0], &q[0], heads, groups)
	}
}

// scaledAccumulation is accumulateScaled over assembly for blocks of 16 and of 32
// lanes, without and with offsets.
func scaledAccumulation(plain [2]accumulateFunc, offsets [2]accumulateOffsetFunc) func(o []float32, sums []int32, r, unit, scale, add, offset []float32, heads, lanes, blocks int) {
	return func(o []float32, sums []int32, r, unit, scale, add, offset []float32, heads, lanes, blocks int) {
		mustHold(blocks > 0 && len(o) >= valueLen(heads, lanes, blocks) && len(sums) >= heads*lanes*blocks && len(r) >= heads && len(unit) >= heads &&
			len(scale) >= lanes*blocks && (offset == nil || len(offset) >= lanes*blocks && len(add) >= heads))
		if offset == nil {
			plain[lanes/blockWide](&o[0], &sums[0], &r[0], &unit[0], &scale[0], heads, blocks)
		} else {
			offsets[lanes/blockWide](&o[0], &sums[0], &r[0], &unit[0], &scale[0], &add[0], &offset[0], heads, blocks)
		}
	}
}

func dotOfLanes(asm func(e, x *float32, row int, w, r *float32, heads, n int)) func(e, x []float32, row int, w, r []float32, heads, n int) {
	return func(e, x []float32, row int, w, r []float32, heads, n int) {
		mustHold(n > 0 && n%laneWidth == 0 && len(e) >= heads*laneWidth && len(x) >= rows(heads, row, n) && len(w) >= n && len(r) >= heads)
		asm(&e[0], &x[0], row, &w[0], &r[0], heads, n)
	}
}

func mergeBy(asm func(dst, src *float32, a, b float32, n int)) func(dst, src []float32, a, b float32) {
	return func(dst, src []float32, a, b float32) {
		mustHold(len(src) > 0 && len(src)%laneWidth == 0 && len(dst) == len(src))
		asm(&dst[0], &src[0], a, b, len(src))
	}
}

func fetchBy(asm func(b *byte, lines int)) func(b []byte) {
	return func(b []byte) { asm(&b[0], (len(b)+lineBytes-1)/lineBytes) }
}

func widenBy(asm func(dst *float32, src *byte, n int)) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		mustHold(len(dst) > 0 && len(dst)%laneWidth == 0 && len(src) >= 2*len(dst))
		asm(&dst[0], &src[0], len(dst))
	}
}
