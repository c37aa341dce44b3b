//go:build !purego

package kernels

// Wrappers around the assembly of decode attention: they hold lengths against what
// a kernel touches, and choose the function for the number of query heads.

func avx2Decode(k decodeKernels) decodeKernels {
	k.name = "fused-avx2"
	int8 := intAssembly{
		step: 4, unit: 2,
		sums:         [2][headBlock]sumsFunc{{tile8x1x1AVX2, tile8x2x1AVX2, tile8x3x1AVX2, tile8x4x1AVX2}, {tile8x1x2AVX2, tile8x2x2AVX2, tile8x3x2AVX2, tile8x4x2AVX2}},
		score:        [headBlock]scoreFunc{score8x1x2AVX2, score8x2x2AVX2, score8x3x2AVX2, score8x4x2AVX2},
		scoreHalf:    [headBlock]scoreHalfFunc{scoreHalf8x1x2AVX2, scoreHalf8x2x2AVX2, scoreHalf8x3x2AVX2, scoreHalf8x4x2AVX2},
		scoreHalfAdd: [headBlock]scoreHalfFunc{scoreHalfAdd8x1x2AVX2, scoreHalfAdd8x2x2AVX2, scoreHalfAdd8x3x2AVX2, scoreHalfAdd8x4x2AVX2},
		value:        [2][headBlock]scoreFunc{{value8x1x1AVX2, value8x2x1AVX2, value8x3x1AVX2, value8x4x1AVX2}, {value8x1x2AVX2, value8x2x2AVX2, value8x3x2AVX2, value8x4x2AVX2}},
	}
	k.int8 = int8.tiles()
	int4 := intAssembly{
		step: 8, unit: 2,
		sums:         [2][headBlock]sumsFunc{{tile4x1x1AVX2, tile4x2x1AVX2, tile4x3x1AVX2, tile4x4x1AVX2}, {tile4x1x2AVX2, tile4x2x2AVX2, tile4x3x2AVX2, tile4x4x2AVX2}},
		score:        [headBlock]scoreFunc{score4x1x2AVX2, score4x2x2AVX2, score4x3x2AVX2, score4x4x2AVX2},
		scoreHalf:    [headBlock]scoreHalfFunc{scoreHalf4x1x2AVX2, scoreHalf4x2x2AVX2, scoreHalf4x3x2AVX2, scoreHalf4x4x2AVX2},
		scoreHalfAdd: [headBlock]scoreHalfFunc{scoreHalfAdd4x1x2AVX2, scoreHalfAdd4x2x2AVX2, scoreHalfAdd4x3x2AVX2, scoreHalfAdd4x4x2AVX2},
		value:        [2][headBlock]scoreFunc{{value4x1x1AVX2, value4x2x1AVX2, value4x3x1AVX2, value4x4x1AVX2}, {value4x1x2AVX2, value4x2x2AVX2, value4x3x2AVX2, value4x4x2AVX2}},
	}
	k.int4 = int4.tiles()
	f16 := floatAssembly{
		size:  2,
		score: [headBlock]floatScoreFunc{scoreF16x1x2AVX2, scoreF16x2x2AVX2, scoreF16x3x2AVX2, scoreF16x4x2AVX2},
		value: [2][headBlock]floatValueFunc{{valueF16x1x1AVX2, valueF16x2x1AVX2, valueF16x3x1AVX2, valueF16x4x1AVX2}, {valueF16x1x2AVX2, valueF16x2x2AVX2, valueF16x3x2AVX2, valueF16x4x2AVX2}},
	}
	k.f16 = f16.tiles()
	bf16 := floatAssembly{
		size:  2,
		score: [headBlock]floatScoreFunc{scoreBF16x1x2AVX2, scoreBF16x2x2AVX2, scoreBF16x3x2AVX2, scoreBF16x4x2AVX2},
		value: [2][headBlock]floatValueFunc{{valueBF16x1x1AVX2, valueBF16x2x1AVX2, valueBF16x3x1AVX2, valueBF16x4x1AVX2}, {valueBF16x1x2AVX2, valueBF16x2x2AVX2, valueBF16x3x2AVX2, valueBF16x4x2AVX2}},
	}
	k.bf16 = bf16.tiles()
	e4m3 := floatAssembly{
		size:  1,
		score: [headBlock]floatScoreFunc{scoreE4M3x1x2AVX2, scoreE4M3x2x2AVX2, scoreE4M3x3x2AVX2, scoreE4M3x4x2AVX2},
		value: [2][headBlock]floatValueFunc{{valueE4M3x1x1AVX2, valueE4M3x2x1AVX2, valueE4M3x3x1AVX2, valueE4M3x4x1AVX2}, {valueE4M3x1x2AVX2, valueE4M3x2x2AVX2, valueE4M3x3x2AVX2, valueE4M3x4x2AVX2}},
	}
	e5m2 := floatAssembly{
		size:  1,
		score: [headBlock]floatScoreFunc{scoreE5M2x1x2AVX2, scoreE5M2x2x2AVX2, scoreE5M2x3x2AVX2, scoreE5M2x4x2AVX2},
		value: [2][headBlock]floatValueFunc{{valueE5M2x1x1AVX2, valueE5M2x2x1AVX2, valueE5M2x3x1AVX2, valueE5M2x4x1AVX2}, {valueE5M2x1x2AVX2, valueE5M2x2x2AVX2, valueE5M2x3x2AVX2, valueE5M2x4x2AVX2}},
	}
	k.e4m3, k.e5m2 = e4m3.tiles(), e5m2.tiles()
	k.levels = levelsAssembly{
		unit:         2,
		sums:         [2][headBlock]levelsSumsFunc{{tileLevelsx1x1AVX2, tileLevelsx2x1AVX2, tileLevelsx3x1AVX2, tileLevelsx4x1AVX2}, {tileLevelsx1x2AVX2, tileLevelsx2x2AVX2, tileLevelsx3x2AVX2, tileLevelsx4x2AVX2}},
		score:        [headBlock]levelsScoreFunc{scoreLevelsx1x2AVX2, scoreLevelsx2x2AVX2, scoreLevelsx3x2AVX2, scoreLevelsx4x2AVX2},
		scoreHalf:    [headBlock]levelsHalfFunc{scoreHalfLevelsx1x2AVX2, scoreHalfLevelsx2x2AVX2, scoreHalfLevelsx3x2AVX2, scoreHalfLevelsx4x2AVX2},
		scoreHalfAdd: [headBlock]levelsHalfFunc{scoreHalfAddLevelsx1x2AVX2, scoreHalfAddLevelsx2x2AVX2, scoreHalfAddLevelsx3x2AVX2, scoreHalfAddLevelsx4x2AVX2},
		value:        [2][headBlock]levelsScoreFunc{{valueLevelsx1x1AVX2, valueLevelsx2x1AVX2, valueLevelsx3x1AVX2, valueLevelsx4x1AVX2}, {valueLevelsx1x2AVX2, valueLevelsx2x2AVX2, valueLevelsx3x2AVX2, valueLevelsx4x2AVX2}},
	}.tiles
	expandAVX2.into(&k)
	k.f32 = floatAssembly{
		size:  4,
		score: [headBlock]floatScoreFunc{scoreF32x1x2AVX2, scoreF32x2x2AVX2, scoreF32x3x2AVX2, scoreF32x4x2AVX2},
		value: [2][headBlock]floatValueFunc{{valueF32x1x1AVX2, valueF32x2x1AVX2, valueF32x3x1AVX2, valueF32x4x1AVX2}, {valueF32x1x2AVX2, valueF32x2x2AVX2, valueF32x3x2AVX2, valueF32x4x2AVX2}},
	}.tiles()
	table := &streamTable{
		int8: int8, int4: int4, f16: f16, bf16: bf16, e4m3: e4m3, e5m2: e5m2, fetch: fetchAVX2, widen: widenAVX2, merge: mergeAVX2, laneDot: laneDotAVX2,
		softmax:     [headBlock]softmaxFunc{softmaxAVX2, softmaxAVX2, softmaxAVX2, softmaxAVX2},
		softmaxFold: [headBlock]softmaxFoldFunc{softmaxFoldPlainAVX2, softmaxFoldPlainAVX2, softmaxFoldPlainAVX2, softmaxFoldPlainAVX2},
		softmaxHalf: [headBlock]softmaxHalfFunc{softmaxFoldHalfAVX2, softmaxFoldHalfAVX2, softmaxFoldHalfAVX2, softmaxFoldHalfAVX2},
	}
	k.stream = table.stream
	k.readers = []func([]byte) uint64{reader(readAhead0AVX2), reader(readAhead2048AVX2), reader(readAhead8192AVX2)}
	k.foldWeighted = weightedFold(foldWeightedPlainAVX2, foldWeightedScaledAVX2)
	k.fold = foldAVX2
	k.scoreToken = tokenScores(scoreTokenAVX2, scoreTokenOffsetAVX2)
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
	k.accumulateScaled = scaledAccumulation(
		[2]accumulateFunc{accumulateScaledx1AVX2, accumulateScaledx2AVX2},
		[2]accumulateOffsetFunc{accumulateOffsetx1AVX2, accumulateOffsetx2AVX2})
	k.laneDot = dotOfLanes(laneDotAVX2)
	k.addChain = addChainAVX2
	k.widen = widenBy(widenAVX2)
	k.foldHalf = halfFold(k.widen, k.fold)
	k.fetch, k.fetchFar = fetchBy(fetchAVX2), fetchBy(fetchFarAVX2)
	k.merge = mergeBy(mergeAVX2)
	k.multiply = rowBy(multiplyAVX2, multiplyGeneric)
	k.divide = rowBy(divideAVX2, divideGeneric)
	return k
}

func avx512Decode(k decodeKernels) decodeKernels {
	k.name = "fused-avx512"
	int8 := intAssembly{
		step: 4, unit: 1,
		sums:         [2][headBlock]sumsFunc{{tile8x1x1AVX512, tile8x2x1AVX512, tile8x3x1AVX512, tile8x4x1AVX512}, {tile8x1x2AVX512, tile8x2x2AVX512, tile8x3x2AVX512, tile8x4x2AVX512}},
		score:        [headBlock]scoreFunc{score8x1x2AVX512, score8x2x2AVX512, score8x3x2AVX512, score8x4x2AVX512},
		scoreHalf:    [headBlock]scoreHalfFunc{scoreHalf8x1x2AVX512, scoreHalf8x2x2AVX512, scoreHalf8x3x2AVX512, scoreHalf8x4x2AVX512},
		scoreHalfAdd: [headBlock]scoreHalfFunc{scoreHalfAdd8x1x2AVX512, scoreHalfAdd8x2x2AVX512, scoreHalfAdd8x3x2AVX512, scoreHalfAdd8x4x2AVX512},
		value:        [2][headBlock]scoreFunc{{value8x1x1AVX512, value8x2x1AVX512, value8x3x1AVX512, value8x4x1AVX512}, {value8x1x2AVX512, value8x2x2AVX512, value8x3x2AVX512, value8x4x2AVX512}},
	}
	k.int8 = int8.tiles()
	int4 := intAssembly{
		step: 8, unit: 1,
		sums:         [2][headBlock]sumsFunc{{tile4x1x1AVX512, tile4x2x1AVX512, tile4x3x1AVX512, tile4x4x1AVX512}, {tile4x1x2AVX512, tile4x2x2AVX512, tile4x3x2AVX512, tile4x4x2AVX512}},
		score:        [headBlock]scoreFunc{score4x1x2AVX512, score4x2x2AVX512, score4x3x2AVX512, score4x4x2AVX512},
		scoreHalf:    [headBlock]scoreHalfFunc{scoreHalf4x1x2AVX512, scoreHalf4x2x2AVX512, scoreHalf4x3x2AVX512, scoreHalf4x4x2AVX512},
		scoreHalfAdd: [headBlock]scoreHalfFunc{scoreHalfAdd4x1x2AVX512, scoreHalfAdd4x2x2AVX512, scoreHalfAdd4x3x2AVX512, scoreHalfAdd4x4x2AVX512},
		value:        [2][headBlock]scoreFunc{{value4x1x1AVX512, value4x2x1AVX512, value4x3x1AVX512, value4x4x1AVX512}, {value4x1x2AVX512, value4x2x2AVX512, value4x3x2AVX512, value4x4x2AVX512}},
	}
	k.int4 = int4.tiles()
	f16 := floatAssembly{
		size:  2,
		score: [headBlock]floatScoreFunc{scoreF16x1x2AVX512, scoreF16x2x2AVX512, scoreF16x3x2AVX512, scoreF16x4x2AVX512},
		value: [2][headBlock]floatValueFunc{{valueF16x1x1AVX512, valueF16x2x1AVX512, valueF16x3x1AVX512, valueF16x4x1AVX512}, {valueF16x1x2AVX512, valueF16x2x2AVX512, valueF16x3x2AVX512, valueF16x4x2AVX512}},
	}
	k.f16 = f16.tiles()
	bf16 := floatAssembly{
		size:  2,
		score: [headBlock]floatScoreFunc{scoreBF16x1x2AVX512, scoreBF16x2x2AVX512, scoreBF16x3x2AVX512, scoreBF16x4x2AVX512},
		value: [2][headBlock]floatValueFunc{{valueBF16x1x1AVX512, valueBF16x2x1AVX512, valueBF16x3x1AVX512, valueBF16x4x1AVX512}, {valueBF16x1x2AVX512, valueBF16x2x2AVX512, valueBF16x3x2AVX512, valueBF16x4x2AVX512}},
	}
	k.bf16 = bf16.tiles()
	e4m3 := floatAssembly{
		size:  1,
		score: [headBlock]floatScoreFunc{scoreE4M3x1x2AVX512, scoreE4M3x2x2AVX512, scoreE4M3x3x2AVX512, scoreE4M3x4x2AVX512},
		value: [2][headBlock]floatValueFunc{{valueE4M3x1x1AVX512, valueE4M3x2x1AVX512, valueE4M3x3x1AVX512, valueE4M3x4x1AVX512}, {valueE4M3x1x2AVX512, valueE4M3x2x2AVX512, valueE4M3x3x2AVX512, valueE4M3x4x2AVX512}},
	}
	e5m2 := floatAssembly{
		size:  1,
		score: [headBlock]floatScoreFunc{scoreE5M2x1x2AVX512, scoreE5M2x2x2AVX512, scoreE5M2x3x2AVX512, scoreE5M2x4x2AVX512},
		value: [2][headBlock]floatValueFunc{{valueE5M2x1x1AVX512, valueE5M2x2x1AVX512, valueE5M2x3x1AVX512, valueE5M2x4x1AVX512}, {valueE5M2x1x2AVX512, valueE5M2x2x2AVX512, valueE5M2x3x2AVX512, valueE5M2x4x2AVX512}},
	}
	k.e4m3, k.e5m2 = e4m3.tiles(), e5m2.tiles()
	k.levels = levelsAssembly{
		unit:         1,
		sums:         [2][headBlock]levelsSumsFunc{{tileLevelsx1x1AVX512, tileLevelsx2x1AVX512, tileLevelsx3x1AVX512, tileLevelsx4x1AVX512}, {tileLevelsx1x2AVX512, tileLevelsx2x2AVX512, tileLevelsx3x2AVX512, tileLevelsx4x2AVX512}},
		score:        [headBlock]levelsScoreFunc{scoreLevelsx1x2AVX512, scoreLevelsx2x2AVX512, scoreLevelsx3x2AVX512, scoreLevelsx4x2AVX512},
		scoreHalf:    [headBlock]levelsHalfFunc{scoreHalfLevelsx1x2AVX512, scoreHalfLevelsx2x2AVX512, scoreHalfLevelsx3x2AVX512, scoreHalfLevelsx4x2AVX512},
		scoreHalfAdd: [headBlock]levelsHalfFunc{scoreHalfAddLevelsx1x2AVX512, scoreHalfAddLevelsx2x2AVX512, scoreHalfAddLevelsx3x2AVX512, scoreHalfAddLevelsx4x2AVX512},
		value:        [2][headBlock]levelsScoreFunc{{valueLevelsx1x1AVX512, valueLevelsx2x1AVX512, valueLevelsx3x1AVX512, valueLevelsx4x1AVX512}, {valueLevelsx1x2AVX512, valueLevelsx2x2AVX512, valueLevelsx3x2AVX512, valueLevelsx4x2AVX512}},
	}.tiles
	expandAVX512.into(&k)
	k.f32 = floatAssembly{
		size:  4,
		score: [headBlock]floatScoreFunc{scoreF32x1x2AVX512, scoreF32x2x2AVX512, scoreF32x3x2AVX512, scoreF32x4x2AVX512},
		value: [2][headBlock]floatValueFunc{{valueF32x1x1AVX512, valueF32x2x1AVX512, valueF32x3x1AVX512, valueF32x4x1AVX512}, {valueF32x1x2AVX512, valueF32x2x2AVX512, valueF32x3x2AVX512, valueF32x4x2AVX512}},
	}.tiles()
	table := &streamTable{
		int8: int8, int4: int4, f16: f16, bf16: bf16, e4m3: e4m3, e5m2: e5m2, fetch: fetchAVX512, widen: widenAVX512, merge: mergeAVX512, laneDot: laneDotAVX512,
		softmax:     [headBlock]softmaxFunc{softmaxx1AVX512, softmaxx2AVX512, softmaxx3AVX512, softmaxx4AVX512},
		softmaxFold: [headBlock]softmaxFoldFunc{softmaxPlainx1AVX512, softmaxPlainx2AVX512, softmaxPlainx3AVX512, softmaxPlainx4AVX512},
		softmaxHalf: [headBlock]softmaxHalfFunc{softmaxHalfx1AVX512, softmaxHalfx2AVX512, softmaxHalfx3AVX512, softmaxHalfx4AVX512},
		foldHalf:    [headBlock]foldHalfFunc{foldHalfx1AVX512, foldHalfx2AVX512, foldHalfx3AVX512, foldHalfx4AVX512},
	}
	k.stream = table.stream
	k.readers = []func([]byte) uint64{reader(readAhead0AVX512), reader(readAhead2048AVX512), reader(readAhead8192AVX512)}
	k.foldWeighted = weightedFold(foldWeightedPlainAVX512, foldWeightedScaledAVX512)
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
	k.scoreToken = tokenScores(scoreTokenAVX512, scoreTokenOffsetAVX512)
	k.softmax = func(z, m, r, l []float32, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth)
		table.softmax[heads-1](&z[0], &m[0], &r[0], &l[0], heads)
	}
	scaled := [headBlock]func(z, m, r, l *float32, coef *byte, units *float32, bias *int32, scale *float32, limit float32, centre, heads int){
		softmaxScaledx1AVX512, softmaxScaledx2AVX512, softmaxScaledx3AVX512, softmaxScaledx4AVX512}
	k.softmaxFold = func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, scale []float32, centre, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth &&
			len(coef) >= 2*heads*valuePlane && len(units) >= headBlock && len(bias) >= heads && (scale == nil || len(scale) >= pageTokens))
		if scale == nil {
			table.softmaxFold[heads-1](&z[0], &m[0], &r[0], &l[0], &coef[0], &units[0], &bias[0], planeLimit, centre, heads)
		} else {
			scaled[heads-1](&z[0], &m[0], &r[0], &l[0], &coef[0], &units[0], &bias[0], &scale[0], planeLimit, centre, heads)
		}
	}
	k.softmaxFoldHalf = func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, halves []byte, scale []float32, centre, heads int) {
		mustHold(len(z) >= heads*pageTokens && len(m) >= headBlock && len(r) >= headBlock && len(l) >= heads*laneWidth &&
			len(coef) >= 2*heads*valuePlane && len(units) >= headBlock && len(bias) >= heads && len(halves) >= 2*pageTokens && len(scale) >= pageTokens)
		table.softmaxHalf[heads-1](&z[0], &m[0], &r[0], &l[0], &coef[0], &units[0], &bias[0], &halves[0], &scale[0], planeLimit, centre, heads)
	}
	k.accumulateScaled = scaledAccumulation(
		[2]accumulateFunc{accumulateScaledx1AVX512, accumulateScaledx2AVX512},
		[2]accumulateOffsetFunc{accumulateOffsetx1AVX512, accumulateOffsetx2AVX512})
	k.laneDot = dotOfLanes(laneDotAVX512)
	k.addChain = addChainAVX512
	k.widen = widenBy(widenAVX512)
	k.foldHalf = func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, half []byte, _ []float32, limit float32, centre, heads, n int) {
		mustHold(n > 0 && n%blockWide == 0 && plane >= n && len(coef) >= 2*heads*plane && len(units) >= headBlock && len(bias) >= heads &&
			len(x) >= rows(heads, row, n) && len(half) >= 2*n)
		table.foldHalf[heads-1](&coef[0], plane, &units[0], &bias[0], &x[0], &half[0], row, limit, centre, n)
	}
	k.fetch, k.fetchFar = fetchBy(fetchAVX512), fetchBy(fetchFarAVX512)
	k.merge = mergeBy(mergeAVX512)
	k.multiply = rowBy(multiplyAVX512, multiplyGeneric)
	k.divide = rowBy(divideAVX512, divideGeneric)
	return k
}

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

type (
	levelsSumsFunc  = func(sums *int32, codes, coef *byte, plane int, bias *int32, levels *byte, blocks, steps int)
	levelsScoreFunc = func(out *float32, codes, coef *byte, plane int, bias *int32, one, two *float32, levels *byte, blocks, steps int)
	levelsHalfFunc  = func(out *float32, codes, coef *byte, plane int, bias *int32, unit *float32, scale, levels *byte, blocks, steps int)
)

// levelsAssembly is intAssembly for codes that stand for the integers of a table.
type levelsAssembly struct {
	unit                    int
	sums                    [2][headBlock]levelsSumsFunc
	score                   [headBlock]levelsScoreFunc
	scoreHalf, scoreHalfAdd [headBlock]levelsHalfFunc
	value                   [2][headBlock]levelsScoreFunc
}

// tiles binds the tiles to a table.
func (a levelsAssembly) tiles(table *[16]uint8) intTiles {
	score := func(f levelsScoreFunc) scoreFunc {
		return func(out *float32, codes, coef *byte, plane int, bias *int32, one, two *float32, blocks, steps int) {
			f(out, codes, coef, plane, bias, one, two, &table[0], blocks, steps)
		}
	}
	half := func(f levelsHalfFunc) scoreHalfFunc {
		return func(out *float32, codes, coef *byte, plane int, bias *int32, unit *float32, scale *byte, blocks, steps int) {
			f(out, codes, coef, plane, bias, unit, scale, &table[0], blocks, steps)
		}
	}
	t := intAssembly{step: 8, unit: a.unit}
	for h := range headBlock {
		t.score[h], t.scoreHalf[h], t.scoreHalfAdd[h] = score(a.score[h]), half(a.scoreHalf[h]), half(a.scoreHalfAdd[h])
		for lines := range 2 {
			f := a.sums[lines][h]
			t.sums[lines][h] = func(sums *int32, codes, coef *byte, plane int, bias *int32, blocks, steps int) {
				f(sums, codes, coef, plane, bias, &table[0], blocks, steps)
			}
			t.value[lines][h] = score(a.value[lines][h])
		}
	}
	return t.tiles()
}
