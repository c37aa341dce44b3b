//go:build !purego && (amd64 || arm64)

package kernels

// codecAsm is the assembly of one instruction set, for lengths that are whole
// vectors of lanes values.
type codecAsm struct {
	lanes int

	absMaxRuns                func(dst, x *float32, runs, run int)
	minMaxRuns                func(lo, hi, x *float32, runs, run int)
	absMaxColumns             func(acc, x *float32, rows, columns int)
	minMaxColumns             func(lo, hi, x *float32, rows, columns int)
	encodeRuns, encodeColumns func(fields *uint8, x, scale, bias, offset *float32, lo, hi float32, n, run int)
	decodeRuns, decodeColumns func(dst *float32, fields *uint8, scale, bias, offset *float32, n, run int)
	// The roundings of block formats; nil leaves them to the weaker backend.
	truncateRuns  func(fields *uint8, x, offset, factor *float32, half float32, top uint32, runs, run int)
	roundAwayRuns func(fields *uint8, x, factor *float32, runs, run int)
	e2m1Runs      func(fields *uint8, x *float32, middles *int32, runs, run int)
	fitLevels     func(fit, x, levels *float32, n int)

	divideRuns, divideColumns     func(dst, x, scale *float32, n, run int)
	multiplyRuns, multiplyColumns func(dst, x, scale *float32, n, run int)

	toF16, toBF16, toE4M3, toE5M2         func(dst *byte, x *float32, n int)
	fromF16, fromBF16, fromE4M3, fromE5M2 func(dst *float32, src *byte, n int)
}

// over returns weaker with asm in its place where a length is whole vectors.
func (asm codecAsm) over(weaker codecKernels) codecKernels {
	k := weaker
	whole := func(n, run int) bool { return n > 0 && run%asm.lanes == 0 }
	k.absMaxRuns = func(dst, x []float32, run int) {
		if !whole(len(x), run) {
			weaker.absMaxRuns(dst, x, run)
			return
		}
		asm.absMaxRuns(&dst[0], &x[0], len(dst), run)
	}
	k.minMaxRuns = func(lo, hi, x []float32, run int) {
		if !whole(len(x), run) {
			weaker.minMaxRuns(lo, hi, x, run)
			return
		}
		asm.minMaxRuns(&lo[0], &hi[0], &x[0], len(lo), run)
	}
	k.absMaxColumns = func(acc, x []float32) {
		if !whole(len(x), len(acc)) {
			weaker.absMaxColumns(acc, x)
			return
		}
		asm.absMaxColumns(&acc[0], &x[0], len(x)/len(acc), len(acc))
	}
	k.minMaxColumns = func(lo, hi, x []float32) {
		if !whole(len(x), len(lo)) {
			weaker.minMaxColumns(lo, hi, x)
			return
		}
		asm.minMaxColumns(&lo[0], &hi[0], &x[0], len(x)/len(lo), len(lo))
	}
	if asm.fitLevels != nil {
		k.fitLevels = func(fit *LevelFit, x []float32, levels *Levels) {
			if len(x) > 0 {
				asm.fitLevels(&fit.Factors[0], &x[0], &levels.Values[0], len(x))
			}
		}
	}
	k.encodeRuns = func(fields []uint8, x []float32, run int, a Affine) {
		if !whole(len(x), run) {
			weaker.encodeRuns(fields, x, run, a)
			return
		}
		asm.encodeRuns(&fields[0], &x[0], &a.Scale[0], &a.Bias[0], &a.Offset[0], a.Lo, a.Hi, len(a.Scale), run)
	}
	k.encodeColumns = func(fields []uint8, x []float32, columns int, a Affine) {
		if !whole(len(x), columns) {
			weaker.encodeColumns(fields, x, columns, a)
			return
		}
		asm.encodeColumns(&fields[0], &x[0], &a.Scale[0], &a.Bias[0], &a.Offset[0], a.Lo, a.Hi, len(x)/columns, columns)
	}
	k.decodeRuns = func(dst []float32, fields []uint8, run int, a Affine) {
		if !whole(len(dst), run) {
			weaker.decodeRuns(dst, fields, run, a)
			return
		}
		asm.decodeRuns(&dst[0], &fields[0], &a.Scale[0], &a.Bias[0], &a.Offset[0], len(a.Scale), run)
	}
	k.decodeColumns = func(dst []float32, fields []uint8, columns int, a Affine) {
		if !whole(len(dst), columns) {
			weaker.decodeColumns(dst, fields, columns, a)
			return
		}
		asm.decodeColumns(&dst[0], &fields[0], &a.Scale[0], &a.Bias[0], &a.Offset[0], len(dst)/columns, columns)
	}
	if asm.truncateRuns != nil {
		k.truncateRuns = func(fields []uint8, x, offset, factor []float32, half float32, top uint8, run int) {
			if !whole(len(x), run) {
				weaker.truncateRuns(fields, x, offset, factor, half, top, run)
				return
			}
			asm.truncateRuns(&fields[0], &x[0], &offset[0], &factor[0], half, uint32(top), len(factor), run)
		}
	}
	if asm.roundAwayRuns != nil {
		k.roundAwayRuns = func(fields []uint8, x, factor []float32, run int) {
			if !whole(len(x), run) {
				weaker.roundAwayRuns(fields, x, factor, run)
				return
			}
			asm.roundAwayRuns(&fields[0], &x[0], &factor[0], len(factor), run)
		}
	}
	if asm.e2m1Runs != nil {
		k.e2m1Runs = func(fields []uint8, x []float32, middles []int32, run int) {
			if !whole(len(x), run) {
				weaker.e2m1Runs(fields, x, middles, run)
				return
			}
			asm.e2m1Runs(&fields[0], &x[0], &middles[0], len(x)/run, run)
		}
	}
	type scaleSlices = func(dst, x, scale []float32, run int)
	type scaleAsm = func(dst, x, scale *float32, n, run int)
	runs := func(asm scaleAsm, weaker scaleSlices) scaleSlices {
		return func(dst, x, scale []float32, run int) {
			if !whole(len(x), run) {
				weaker(dst, x, scale, run)
				return
			}
			asm(&dst[0], &x[0], &scale[0], len(x)/run, run)
		}
	}
	k.divideRuns = runs(asm.divideRuns, weaker.divideRuns)
	k.divideColumns = runs(asm.divideColumns, weaker.divideColumns)
	k.multiplyRuns = runs(asm.multiplyRuns, weaker.multiplyRuns)
	k.multiplyColumns = runs(asm.multiplyColumns, weaker.multiplyColumns)

	to := func(size int, asm2 func(*byte, *float32, int), weaker func([]byte, []float32)) func([]byte, []float32) {
		return func(dst []byte, x []float32) {
			n := len(x) - len(x)%asm.lanes
			if n > 0 {
				asm2(&dst[0], &x[0], n)
			}
			weaker(dst[n*size:], x[n:])
		}
	}
	k.toF16, k.toBF16 = to(2, asm.toF16, weaker.toF16), to(2, asm.toBF16, weaker.toBF16)
	k.toE4M3, k.toE5M2 = to(1, asm.toE4M3, weaker.toE4M3), to(1, asm.toE5M2, weaker.toE5M2)
	from := func(size int, asm2 func(*float32, *byte, int), weaker func([]float32, []byte)) func([]float32, []byte) {
		return func(dst []float32, src []byte) {
			n := len(dst) - len(dst)%asm.lanes
			if n > 0 {
				asm2(&dst[0], &src[0], n)
			}
			weaker(dst[n:], src[n*size:])
		}
	}
	k.fromF16, k.fromBF16 = from(2, asm.fromF16, weaker.fromF16), from(2, asm.fromBF16, weaker.fromBF16)
	k.fromE4M3, k.fromE5M2 = from(1, asm.fromE4M3, weaker.fromE4M3), from(1, asm.fromE5M2, weaker.fromE5M2)
	return k
}
