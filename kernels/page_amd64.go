//go:build !purego

package kernels

type (
	keyAsm   = func(dst *byte, x, ahead, constants *float32, stride, columns int, levels, lo, hi float32) uint32
	valueAsm = func(dst *byte, x, ahead, constants *float32, stride, lanes, blocks, block, steps int, levels, lo, hi float32) uint32
	rowAsm   = func(dst *byte, x, constants *float32, run, runs int, levels, lo, hi float32) uint32
	rangeAsm = func(scale, divisor, width *float32, levels float32, n int) uint32
)

func avx2Page() pageKernels {
	return pageKernels{
		direct: true,
		int8: linesBy(8, [codeSources]keyAsm{keyLines8ChannelsAVX2, keyLines8TokensAVX2, keyLines8RangesAVX2},
			[codeSources]valueAsm{valueLines8ChannelsAVX2, valueLines8TokensAVX2, valueLines8RangesAVX2}, rowCodes8AVX2),
		int4: linesBy(4, [codeSources]keyAsm{keyLines4ChannelsAVX2, keyLines4TokensAVX2, keyLines4RangesAVX2},
			[codeSources]valueAsm{valueLines4ChannelsAVX2, valueLines4TokensAVX2, valueLines4RangesAVX2}, rowCodes4AVX2),
		halfKeys:   halfKeysBy(halfKeyLinesAVX2),
		halfValues: halfValuesBy(halfValueLinesAVX2),
		scales:     scalesBy(scalesAVX2),
		scalesHalf: scalesBy(scalesHalfAVX2),
	}
}

func avx512Page() pageKernels {
	return pageKernels{
		direct: true,
		int8: linesBy(8, [codeSources]keyAsm{keyLines8ChannelsAVX512, keyLines8TokensAVX512, keyLines8RangesAVX512},
			[codeSources]valueAsm{valueLines8ChannelsAVX512, valueLines8TokensAVX512, valueLines8RangesAVX512}, rowCodes8AVX512),
		int4: linesBy(4, [codeSources]keyAsm{keyLines4ChannelsAVX512, keyLines4TokensAVX512, keyLines4RangesAVX512},
			[codeSources]valueAsm{valueLines4ChannelsAVX512, valueLines4TokensAVX512, valueLines4RangesAVX512}, rowCodes4AVX512),
		halfKeys:   halfKeysBy(halfKeyLinesAVX512),
		halfValues: halfValuesBy(halfValueLinesAVX512),
		scales:     scalesBy(scalesAVX512),
		scalesHalf: scalesBy(scalesHalfAVX512),
	}
}

func linesBy(bits int, keys [codeSources]keyAsm, values [codeSources]valueAsm, rowCodes rowAsm) (l pageLines) {
	wide := 32 / bits
	for from := range codeSources {
		key, value := keys[from], values[from]
		// entries is how many constants a call has, from the first plane to the last it reads.
		entries := func(tokens, columns int) int {
			if from == fromChannels {
				return 2*maxScales + columns
			}
			if from == fromTokens {
				return 2*maxScales + tokens
			}
			return 3*maxScales + tokens
		}
		l.keys[from] = func(dst []byte, x, ahead []float32, stride, columns int, constants []float32, r codeRange) uint32 {
			mustHold(columns > 0 && columns%laneWidth == 0 && len(dst) >= 2*lineBytes*(columns/wide-1)+lineBytes && len(x) >= rows(chunkTokens, stride, columns) &&
				len(ahead) >= chunkTokens*columns && len(constants) >= entries(chunkTokens, columns))
			return key(&dst[0], &x[0], &ahead[0], &constants[0], stride, columns, r.levels, r.lo, r.hi)
		}
		l.values[from] = func(dst []byte, x, ahead []float32, stride int, g valueGrid, constants []float32, r codeRange) uint32 {
			mustHoldGrid(g, wide, 4, dst, x, ahead, stride)
			mustHold(len(constants) >= entries(g.steps*wide, g.blocks*g.lanes))
			return value(&dst[0], &x[0], &ahead[0], &constants[0], stride, g.lanes, g.blocks, g.block, g.steps, r.levels, r.lo, r.hi)
		}
	}
	generic := genericLines(bits).rows
	l.rows = func(dst []byte, x []float32, run int, constants []float32, r codeRange) uint32 {
		mustHold(run > 0 && run%laneWidth == 0 && len(x)%run == 0 && len(dst) == len(x)*bits/8 && len(constants) >= 3*maxScales+len(x)/run)
		n := len(x) / run &^ 3
		var most uint32
		if n > 0 {
			most = rowCodes(&dst[0], &x[0], &constants[0], run, n, r.levels, r.lo, r.hi)
		}
		return max(most, generic(dst[n*run*bits/8:], x[n*run:], run, constants[n:], r))
	}
	return l
}

// mustHoldGrid checks a grid whose steps reduce wide tokens to size bytes a lane.
func mustHoldGrid(g valueGrid, wide, size int, dst []byte, x, ahead []float32, stride int) {
	mustHold((g.lanes == laneWidth || g.lanes == blockWide) && g.blocks > 0 && g.block >= 0 && g.steps > 0 && g.steps*wide <= chunkTokens &&
		len(dst) >= g.end(size) && len(x) >= rows(g.steps*wide, stride, g.blocks*g.lanes) && len(ahead) >= g.steps*wide*g.blocks*g.lanes)
}

func halfKeysBy(asm func(dst *byte, x, ahead *float32, stride, columns int) uint32) func(dst []byte, x, ahead []float32, stride, columns int) uint32 {
	return func(dst []byte, x, ahead []float32, stride, columns int) uint32 {
		mustHold(columns > 0 && columns%laneWidth == 0 && len(dst) >= lineBytes*(columns-1)+2*chunkTokens && len(x) >= rows(chunkTokens, stride, columns) && len(ahead) >= chunkTokens*columns)
		return asm(&dst[0], &x[0], &ahead[0], stride, columns)
	}
}

func halfValuesBy(asm func(dst *byte, x, ahead *float32, stride, lanes, blocks, block, steps int) uint32) func(dst []byte, x, ahead []float32, stride int, g valueGrid) uint32 {
	return func(dst []byte, x, ahead []float32, stride int, g valueGrid) uint32 {
		mustHoldGrid(g, 1, 2, dst, x, ahead, stride)
		return asm(&dst[0], &x[0], &ahead[0], stride, g.lanes, g.blocks, g.block, g.steps)
	}
}

func scalesBy(asm rangeAsm) func(scale, divisor, width []float32, levels float32) bool {
	return func(scale, divisor, width []float32, levels float32) bool {
		mustHold(len(width) > 0 && len(width)%laneWidth == 0 && len(scale) == len(width) && len(divisor) == len(width))
		return asm(&scale[0], &divisor[0], &width[0], levels, len(width)) < 0x7f800000
	}
}
