//go:build !purego

package kernels

func avx2Codec(k codecKernels) codecKernels {
	k.absMaxRuns = func(dst, x []float32, run int) {
		absMaxBlocks(dst, x, run, 32, absMaxAVX2)
	}
	return k
}

func avx512Codec(k codecKernels) codecKernels {
	k.absMaxRuns = func(dst, x []float32, run int) {
		absMaxBlocks(dst, x, run, 64, absMaxAVX512)
	}
	return k
}

// absMaxBlocks runs whole blocks in assembly and the tail in Go: a maximum does
// not depend on where it is cut.
func absMaxBlocks(dst, x []float32, run, block int, asm func(*float32, int) float32) {
	n := run - run%block
	if n == 0 {
		absMaxRunsGeneric(dst, x, run)
		return
	}
	for r := range dst {
		xr := x[r*run : (r+1)*run]
		dst[r] = asm(&xr[0], n)
		for _, v := range xr[n:] {
			dst[r] = max(dst[r], abs32(v))
		}
	}
}
