//go:build !purego

package kernels

func avx2Codec(k codecKernels) codecKernels {
	k.absMax = func(x []float32) float32 {
		return absMaxBlocks(x, 32, absMaxAVX2)
	}
	return k
}

func avx512Codec(k codecKernels) codecKernels {
	k.absMax = func(x []float32) float32 {
		return absMaxBlocks(x, 64, absMaxAVX512)
	}
	return k
}

// absMaxBlocks runs whole blocks in assembly and the tail in Go: a maximum does
// not depend on where it is cut.
func absMaxBlocks(x []float32, block int, asm func(*float32, int) float32) float32 {
	n := len(x) - len(x)%block
	if n == 0 {
		return absMaxGeneric(x)
	}
	return max(asm(&x[0], n), absMaxGeneric(x[n:]))
}
