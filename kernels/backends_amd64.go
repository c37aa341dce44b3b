//go:build !purego

package kernels

import "github.com/klauspost/cpuid/v2"

// archBackends returns the backends written for amd64, best first.
func archBackends() []backend {
	avx2 := generic
	avx2.isa = AVX2
	avx2.needs = []cpuid.FeatureID{cpuid.AVX, cpuid.AVX2, cpuid.F16C, cpuid.FMA3}
	avx2.codec = avx2Codec(avx2.codec)
	avx2.metric = avx2Metric(avx2.metric)
	avx2.decode = avx2Decode(avx2.decode)
	avx2.page = avx2Page()

	avx512 := avx2
	avx512.isa = AVX512
	avx512.needs = append(append([]cpuid.FeatureID{}, avx2.needs...),
		cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL, cpuid.AVX512VNNI, cpuid.AVX512VBMI)
	avx512.codec = avx512Codec(avx512.codec)
	avx512.metric = avx512Metric(avx512.metric)
	avx512.decode = avx512Decode(avx512.decode)
	avx512.page = avx512Page()

	return []backend{avx512, avx2}
}
