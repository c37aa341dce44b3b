//go:build !purego

package kernels

// neonDecode multiplies codes with multiplicands kept as words, as the portable
// code has them.
func neonDecode(k decodeKernels) decodeKernels {
	k.name = "fused-neon"
	k.int8 = intAssembly{
		step: 4, unit: 2,
		sums:         [2][headBlock]sumsFunc{{tile8x1x1NEON, tile8x2x1NEON, tile8x3x1NEON, tile8x4x1NEON}, {tile8x1x2NEON, tile8x2x2NEON, tile8x3x2NEON, tile8x4x2NEON}},
		score:        [headBlock]scoreFunc{score8x1x2NEON, score8x2x2NEON, score8x3x2NEON, score8x4x2NEON},
		scoreHalf:    [headBlock]scoreHalfFunc{scoreHalf8x1x2NEON, scoreHalf8x2x2NEON, scoreHalf8x3x2NEON, scoreHalf8x4x2NEON},
		scoreHalfAdd: [headBlock]scoreHalfFunc{scoreHalfAdd8x1x2NEON, scoreHalfAdd8x2x2NEON, scoreHalfAdd8x3x2NEON, scoreHalfAdd8x4x2NEON},
		value:        [2][headBlock]scoreFunc{{value8x1x1NEON, value8x2x1NEON, value8x3x1NEON, value8x4x1NEON}, {value8x1x2NEON, value8x2x2NEON, value8x3x2NEON, value8x4x2NEON}},
	}.tiles()
	k.levels = levelsBy(k.int8)
	k.int4 = intAssembly{
		step: 8, unit: 2,
		sums:         [2][headBlock]sumsFunc{{tile4x1x1NEON, tile4x2x1NEON, tile4x3x1NEON, tile4x4x1NEON}, {tile4x1x2NEON, tile4x2x2NEON, tile4x3x2NEON, tile4x4x2NEON}},
		score:        [headBlock]scoreFunc{score4x1x2NEON, score4x2x2NEON, score4x3x2NEON, score4x4x2NEON},
		scoreHalf:    [headBlock]scoreHalfFunc{scoreHalf4x1x2NEON, scoreHalf4x2x2NEON, scoreHalf4x3x2NEON, scoreHalf4x4x2NEON},
		scoreHalfAdd: [headBlock]scoreHalfFunc{scoreHalfAdd4x1x2NEON, scoreHalfAdd4x2x2NEON, scoreHalfAdd4x3x2NEON, scoreHalfAdd4x4x2NEON},
		value:        [2][headBlock]scoreFunc{{value4x1x1NEON, value4x2x1NEON, value4x3x1NEON, value4x4x1NEON}, {value4x1x2NEON, value4x2x2NEON, value4x3x2NEON, value4x4x2NEON}},
	}.tiles()
	k.f16 = floatAssembly{
		size:  2,
		score: [headBlock]floatScoreFunc{scoreF16x1x2NEON, scoreF16x2x2NEON, scoreF16x3x2NEON, scoreF16x4x2NEON},
		value: [2][headBlock]floatValueFunc{{valueF16x1x1NEON, valueF16x2x1NEON, valueF16x3x1NEON, valueF16x4x1NEON}, {valueF16x1x2NEON, valueF16x2x2NEON, valueF16x3x2NEON, valueF16x4x2NEON}},
	}.tiles()
	k.f32 = floatAssembly{
		size:  4,
		score: [headBlock]floatScoreFunc{scoreF32x1x2NEON, scoreF32x2x2NEON, scoreF32x3x2NEON, scoreF32x4x2NEON},
		value: [2][headBlock]floatValueFunc{{valueF32x1x1NEON, valueF32x2x1NEON, valueF32x3x1NEON, valueF32x4x1NEON}, {valueF32x1x2NEON, valueF32x2x2NEON, valueF32x3x2NEON, valueF32x4x2NEON}},
	}.tiles()
	k.foldWeighted = weightedFold(foldWeightedPlainNEON, foldWeightedScaledNEON)
	k.fold = uniformFold(foldPlainNEON, foldScaledNEON)
	k.scoreToken = tokenScores(scoreTokenNEON, scoreTokenOffsetNEON)
	k.softmax = func(z, m, r, l []float32, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth)
		softmaxNEON(&z[0], &m[0], &r[0], &l[0], heads)
	}
	k.softmaxFold, k.softmaxFoldHalf = foldedSoftmax(k)
	k.accumulateScaled = scaledAccumulation(
		[2]accumulateFunc{accumulateScaledx1NEON, accumulateScaledx2NEON},
		[2]accumulateOffsetFunc{accumulateOffsetx1NEON, accumulateOffsetx2NEON})
	k.laneDot = dotOfLanes(laneDotNEON)
	k.merge = mergeBy(mergeNEON)
	k.multiply = rowBy(multiplyNEON, multiplyGeneric)
	k.divide = rowBy(divideNEON, divideGeneric)
	k.fetch = fetchBy(fetchNEON)
	k.widen = widenBy(fromF16NEON)
	k.foldHalf = halfFold(k.widen, k.fold)
	k.readers = []func([]byte) uint64{reader(readNEON), readGeneric}
	return k
}

// dotProdDecode multiplies codes with multiplicands kept as planes of bytes.
func dotProdDecode(k decodeKernels) decodeKernels {
	k.name = "fused-dotprod"
	k.int8 = intAssembly{
		step: 4, unit: 1,
		sums:         [2][headBlock]sumsFunc{{tile8x1x1DOTPROD, tile8x2x1DOTPROD, tile8x3x1DOTPROD, tile8x4x1DOTPROD}, {tile8x1x2DOTPROD, tile8x2x2DOTPROD, tile8x3x2DOTPROD, tile8x4x2DOTPROD}},
		score:        [headBlock]scoreFunc{score8x1x2DOTPROD, score8x2x2DOTPROD, score8x3x2DOTPROD, score8x4x2DOTPROD},
		scoreHalf:    [headBlock]scoreHalfFunc{scoreHalf8x1x2DOTPROD, scoreHalf8x2x2DOTPROD, scoreHalf8x3x2DOTPROD, scoreHalf8x4x2DOTPROD},
		scoreHalfAdd: [headBlock]scoreHalfFunc{scoreHalfAdd8x1x2DOTPROD, scoreHalfAdd8x2x2DOTPROD, scoreHalfAdd8x3x2DOTPROD, scoreHalfAdd8x4x2DOTPROD},
		value:        [2][headBlock]scoreFunc{{value8x1x1DOTPROD, value8x2x1DOTPROD, value8x3x1DOTPROD, value8x4x1DOTPROD}, {value8x1x2DOTPROD, value8x2x2DOTPROD, value8x3x2DOTPROD, value8x4x2DOTPROD}},
	}.tiles()
	k.levels = levelsBy(k.int8)
	k.int4 = intAssembly{
		step: 8, unit: 1,
		sums:         [2][headBlock]sumsFunc{{tile4x1x1DOTPROD, tile4x2x1DOTPROD, tile4x3x1DOTPROD, tile4x4x1DOTPROD}, {tile4x1x2DOTPROD, tile4x2x2DOTPROD, tile4x3x2DOTPROD, tile4x4x2DOTPROD}},
		score:        [headBlock]scoreFunc{score4x1x2DOTPROD, score4x2x2DOTPROD, score4x3x2DOTPROD, score4x4x2DOTPROD},
		scoreHalf:    [headBlock]scoreHalfFunc{scoreHalf4x1x2DOTPROD, scoreHalf4x2x2DOTPROD, scoreHalf4x3x2DOTPROD, scoreHalf4x4x2DOTPROD},
		scoreHalfAdd: [headBlock]scoreHalfFunc{scoreHalfAdd4x1x2DOTPROD, scoreHalfAdd4x2x2DOTPROD, scoreHalfAdd4x3x2DOTPROD, scoreHalfAdd4x4x2DOTPROD},
		value:        [2][headBlock]scoreFunc{{value4x1x1DOTPROD, value4x2x1DOTPROD, value4x3x1DOTPROD, value4x4x1DOTPROD}, {value4x1x2DOTPROD, value4x2x2DOTPROD, value4x3x2DOTPROD, value4x4x2DOTPROD}},
	}.tiles()
	k.foldWeighted = weightedFold(foldWeightedPlainDOTPROD, foldWeightedScaledDOTPROD)
	k.fold = uniformFold(foldPlainDOTPROD, foldScaledDOTPROD)
	k.foldHalf = halfFold(k.widen, k.fold)
	k.softmaxFold, k.softmaxFoldHalf = foldedSoftmax(k)
	return k
}

// uniformFold is fold over assembly without and with scales.
func uniformFold(
	plain func(coef *byte, plane int, units *float32, bias *int32, x *float32, row int, limit float32, centre, heads, n int),
	scaled func(coef *byte, plane int, units *float32, bias *int32, x, scale *float32, row int, limit float32, centre, heads, n int),
) func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, limit float32, centre, heads, n int) {
	return func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, limit float32, centre, heads, n int) {
		mustHold(n > 0 && n%blockWide == 0 && plane >= n && len(coef) >= 2*heads*plane && len(units) >= heads && len(bias) >= heads &&
			len(x) >= rows(heads, row, n) && (scale == nil || len(scale) >= n))
		if scale == nil {
			plain(&coef[0], plane, &units[0], &bias[0], &x[0], row, limit, centre, heads, n)
		} else {
			scaled(&coef[0], plane, &units[0], &bias[0], &x[0], &scale[0], row, limit, centre, heads, n)
		}
	}
}

// foldedSoftmax puts softmaxFold and softmaxFoldHalf together from k's softmax and fold.
func foldedSoftmax(k decodeKernels) (
	plain func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, scale []float32, centre, heads int),
	half func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, half []byte, scale []float32, centre, heads int),
) {
	plain = func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, scale []float32, centre, heads int) {
		k.softmax(z, m, r, l, heads)
		k.fold(coef, valuePlane, units, bias, z, pageTokens, scale, planeLimit, centre, heads, pageTokens)
	}
	return plain, func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, half []byte, scale []float32, centre, heads int) {
		mustHold(len(half) >= 2*pageTokens && len(scale) >= pageTokens)
		fromF16NEON(&scale[0], &half[0], pageTokens)
		plain(z, m, r, l, coef, units, bias, scale, centre, heads)
	}
}

// levelsBy are the tiles of levels by way of int8's: a step of 8 codes becomes two of 4.
// Each binding has room of its own for the codes of a page.
func levelsBy(t intTiles) func(table *[16]uint8) intTiles {
	return func(table *[16]uint8) intTiles {
		room := make([]byte, pageTokens*maxDim)
		wide := func(codes []byte, lanes, blocks, steps int) []byte {
			line, n := 4*lanes, blocks*steps
			for i := range n {
				low, high := room[2*i*line:][:line], room[(2*i+1)*line:][:line]
				for j, c := range codes[i*line:][:line] {
					low[j], high[j] = table[c&15], table[c>>4]
				}
			}
			return room[:2*n*line]
		}
		return intTiles{
			sums: func(sums []int32, codes, coef []byte, plane int, bias []int32, heads, lanes, blocks, steps, first int) {
				t.sums(sums, wide(codes, lanes, blocks, steps), coef, plane, bias, heads, lanes, blocks, 2*steps, first)
			},
			score: func(z []float32, codes, coef []byte, plane int, bias []int32, unit, add []float32, heads, blocks, steps, first int) {
				t.score(z, wide(codes, blockWide, blocks, steps), coef, plane, bias, unit, add, heads, blocks, 2*steps, first)
			},
			scoreHalf: func(z []float32, codes, coef []byte, plane int, bias []int32, unit []float32, scale []byte, heads, blocks, steps, first int) {
				t.scoreHalf(z, wide(codes, blockWide, blocks, steps), coef, plane, bias, unit, scale, heads, blocks, 2*steps, first)
			},
			scoreHalfAdd: func(z []float32, codes, coef []byte, plane int, bias []int32, unit []float32, scale []byte, heads, blocks, steps, first int) {
				t.scoreHalfAdd(z, wide(codes, blockWide, blocks, steps), coef, plane, bias, unit, scale, heads, blocks, 2*steps, first)
			},
			value: func(o []float32, codes, coef []byte, plane int, bias []int32, r, unit []float32, heads, lanes, blocks, steps, first int) {
				t.value(o, wide(codes, lanes, blocks, steps), coef, plane, bias, r, unit, heads, lanes, blocks, 2*steps, first)
			},
		}
	}
}
