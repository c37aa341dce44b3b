package kernels

// MetricLanes is the number of query rows that the attention kernels take at
// once: rows are the lanes, so no figure of a row ever meets another's.
const MetricLanes = 32

// ScoreTokens divides the number of tokens of Scores and Scores64.
const ScoreTokens = 8

// metricKernels are one backend's kernels for measuring quality. The exported
// functions check lengths; a backend may rely on them.
type metricKernels struct {
	errors      func(e, got, want []float32, rowSquares, rowProducts, columnSums []float64)
	scores      func(out, e, q []float32, dim int)
	scores64    func(out []float64, e []float32, q []float64, dim int)
	tilt        func(delta, p []float32, shift *[MetricLanes]float32, sums *TiltSums)
	peak        func(delta, p, logp []float32, shift *[MetricLanes]float32, sums *PeakSums)
	rise        func(delta, logp []float32, shift *[MetricLanes]float32, sum *[MetricLanes]float32)
	weightedSum func(acc []float64, w, v []float32, width int)
}

// Errors stores the differences e = got − want of rows of len(columnSums)
// values and adds up what the tensor errors need:
//
//	rowSquares[t]  = Σ_c e²        rowProducts[t] = Σ_c e·want
//	columnSums[c] += Σ_t e
//
// There is a row for each entry of rowSquares. e is rounded to float32, the sums
// are float64: a row's in 16 lanes, channel c in lane c%16, added up 8-4-2-1; a
// column's in the order of rows. e may be got.
func Errors(e, got, want []float32, rowSquares, rowProducts, columnSums []float64) {
	n := len(rowSquares) * len(columnSums)
	if len(e) != n || len(got) != n || len(want) != n || len(rowProducts) != len(rowSquares) {
		panic(errLength)
	}
	active.Load().metric.errors(e, got, want, rowSquares, rowProducts, columnSums)
}

// Scores multiplies rows of dim channels with MetricLanes queries:
//
//	out[t][r] = Σ_c e[t][c]·q[c][r]    c ascending, one product and one sum at a time
//
// q is transposed, [dim, MetricLanes]; out is [tokens, MetricLanes] and tokens
// a multiple of ScoreTokens.
func Scores(out, e, q []float32, dim int) {
	checkScores(len(out), len(e), len(q), dim)
	active.Load().metric.scores(out, e, q, dim)
}

// Scores64 is Scores in float64: products of e with q round once.
func Scores64(out []float64, e []float32, q []float64, dim int) {
	checkScores(len(out), len(e), len(q), dim)
	active.Load().metric.scores64(out, e, q, dim)
}

func checkScores(out, e, q, dim int) {
	if dim <= 0 || q != dim*MetricLanes || out%(MetricLanes*ScoreTokens) != 0 || e != out/MetricLanes*dim {
		panic(errLength)
	}
}

// TiltSums are sums and maxima over the tokens of a Tilt, one per query row.
type TiltSums struct {
	Second [MetricLanes]float32 // Σ p·(e^δ − 1 − δ)
	First  [MetricLanes]float32 // Σ p·δ
	Top    [MetricLanes]float32 // max p + w
	Delta  [MetricLanes]float32 // max δ
}

// Tilt turns differences of logits into differences of unnormalised
// probabilities. With δ = delta − shift of its row, it stores
//
//	w = p·(e^δ − 1)
//
// in delta's place and returns the sums over all tokens, in their order.
// delta and p are [tokens, MetricLanes]; p is finite and not negative.
//
// e^δ − 1 − δ comes from a polynomial of its own, so that both it and e^δ − 1
// keep about 22 bits however small δ is. For the exponential δ is limited to
// −87…80; the caller gives up a row whose Delta shows that it mattered.
func Tilt(delta, p []float32, shift *[MetricLanes]float32, sums *TiltSums) {
	if len(delta) == 0 || len(delta)%MetricLanes != 0 || len(p) != len(delta) {
		panic(errLength)
	}
	active.Load().metric.tilt(delta, p, shift, sums)
}

// PeakSums are what Peak returns, one per query row.
type PeakSums struct {
	First [MetricLanes]float32 // Σ p·δ
	Top   [MetricLanes]float32 // max log p + δ
}

// Peak prepares Rise, for rows whose logits differ so much that e^δ alone may
// overflow: it returns, with δ = delta − shift of its row, the largest
// log p + δ and Σ p·δ over the tokens, in their order. delta is left as it is.
func Peak(delta, p, logp []float32, shift *[MetricLanes]float32, sums *PeakSums) {
	if len(delta) == 0 || len(delta)%MetricLanes != 0 || len(p) != len(delta) || len(logp) != len(delta) {
		panic(errLength)
	}
	active.Load().metric.peak(delta, p, logp, shift, sums)
}

// Rise stores u = e^(log p + (delta − shift)) in delta's place, 0 where the
// exponent is below −87, and returns the sum of u over the tokens, in their
// order, for each query row. The exponent must not exceed 80: the caller adds
// the row's peak to its shift.
func Rise(delta, logp []float32, shift *[MetricLanes]float32, sum *[MetricLanes]float32) {
	if len(delta) == 0 || len(delta)%MetricLanes != 0 || len(logp) != len(delta) {
		panic(errLength)
	}
	active.Load().metric.rise(delta, logp, shift, sum)
}

// WeightedSum adds weighted rows of values to MetricLanes sums:
//
//	acc[r][c] += Σ_t w[t][r]·v[t][c]    t ascending
//
// The sum over t is float32, one product and one sum at a time; then it is
// added to acc in float64. w is [tokens, MetricLanes], v is [tokens, width],
// acc is [MetricLanes, width]; width is a multiple of 32.
func WeightedSum(acc []float64, w, v []float32, width int) {
	tokens := len(w) / MetricLanes
	if width <= 0 || width%32 != 0 || len(w)%MetricLanes != 0 || len(v) != tokens*width || len(acc) != MetricLanes*width {
		panic(errLength)
	}
	if tokens > 0 {
		active.Load().metric.weightedSum(acc, w, v, width)
	}
}
