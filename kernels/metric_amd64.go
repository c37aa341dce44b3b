//go:build !purego

package kernels

func avx2Metric(weaker metricKernels) metricKernels {
	return metricAsm{
		errors: errorsAVX2, scores: scoresAVX2, scores64: scores64AVX2,
		tilt: tiltAVX2, peak: peakAVX2, rise: riseAVX2, weightedSum: weightedSumAVX2,
	}.over(weaker)
}

func avx512Metric(weaker metricKernels) metricKernels {
	return metricAsm{
		errors: errorsAVX512, scores: scoresAVX512, scores64: scores64AVX512,
		tilt: tiltAVX512, peak: peakAVX512, rise: riseAVX512, weightedSum: weightedSumAVX512,
	}.over(weaker)
}
