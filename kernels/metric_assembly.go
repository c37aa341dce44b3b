//go:build !purego && (amd64 || arm64)

package kernels

// metricAsm is the assembly of one instruction set. Lengths are as the exported
// functions check them.
type metricAsm struct {
	errors      func(e, got, want *float32, rowSquares, rowProducts, columnSums *float64, dim, rows int)
	scores      func(out, e, q *float32, dim, tokens int)
	scores64    func(out *float64, e *float32, q *float64, dim, tokens int)
	tilt        func(delta, p, shift, sums *float32, tokens int)
	peak        func(delta, p, logp, shift, sums *float32, tokens int)
	rise        func(delta, logp, shift, sum *float32, tokens int)
	weightedSum func(acc *float64, w, v *float32, width, tokens int)
}

// over wraps a into kernels for slices. weaker does what a does not take.
func (a metricAsm) over(weaker metricKernels) metricKernels {
	return metricKernels{
		errors: func(e, got, want []float32, rowSquares, rowProducts, columnSums []float64) {
			if len(e) == 0 || len(columnSums)%16 != 0 {
				weaker.errors(e, got, want, rowSquares, rowProducts, columnSums)
				return
			}
			a.errors(&e[0], &got[0], &want[0], &rowSquares[0], &rowProducts[0], &columnSums[0], len(columnSums), len(rowSquares))
		},
		scores: func(out, e, q []float32, dim int) {
			if len(out) > 0 {
				a.scores(&out[0], &e[0], &q[0], dim, len(out)/MetricLanes)
			}
		},
		scores64: func(out []float64, e []float32, q []float64, dim int) {
			if len(out) > 0 {
				a.scores64(&out[0], &e[0], &q[0], dim, len(out)/MetricLanes)
			}
		},
		tilt: func(delta, p []float32, shift *[MetricLanes]float32, sums *TiltSums) {
			a.tilt(&delta[0], &p[0], &shift[0], &sums.Second[0], len(delta)/MetricLanes)
		},
		peak: func(delta, p, logp []float32, shift *[MetricLanes]float32, sums *PeakSums) {
			a.peak(&delta[0], &p[0], &logp[0], &shift[0], &sums.First[0], len(delta)/MetricLanes)
		},
		rise: func(delta, logp []float32, shift *[MetricLanes]float32, sum *[MetricLanes]float32) {
			a.rise(&delta[0], &logp[0], &shift[0], &sum[0], len(delta)/MetricLanes)
		},
		weightedSum: func(acc []float64, w, v []float32, width int) {
			a.weightedSum(&acc[0], &w[0], &v[0], width, len(w)/MetricLanes)
		},
	}
}
