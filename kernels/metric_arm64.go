//go:build !purego

package kernels

func neonMetric(weaker metricKernels) metricKernels {
	return metricAsm{
		errors: errorsNEON, scores: scoresNEON, scores64: scores64NEON,
		tilt: tiltNEON, peak: peakNEON, rise: riseNEON, weightedSum: weightedSumNEON,
	}.over(weaker)
}
