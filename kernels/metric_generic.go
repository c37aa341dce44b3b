package kernels

import "math"

var genericMetric = metricKernels{
	errors:      errorsGeneric,
	scores:      scoresGeneric,
	scores64:    scores64Generic,
	tilt:        tiltGeneric,
	peak:        peakGeneric,
	rise:        riseGeneric,
	weightedSum: weightedSumGeneric,
}

func errorsGeneric(e, got, want []float32, rowSquares, rowProducts, columnSums []float64) {
	dim := len(columnSums)
	for t := range rowSquares {
		row := e[t*dim:][:dim]
		got, want := got[t*dim:][:dim], want[t*dim:][:dim]
		var squares, products [16]float64
		for c := range row {
			d := got[c] - want[c]
			row[c] = d
			e := float64(d)
			squares[c%16] += float64(e * e)
			products[c%16] += float64(e * float64(want[c]))
			columnSums[c] += e
		}
		rowSquares[t], rowProducts[t] = sum16(&squares), sum16(&products)
	}
}

// sum16 adds up 16 lanes: 8 pairs eight apart, then 4, 2, 1.
func sum16(lanes *[16]float64) float64 {
	for step := 8; step > 0; step /= 2 {
		for i := range step {
			lanes[i] += lanes[i+step]
		}
	}
	return lanes[0]
}

func scoresGeneric(out, e, q []float32, dim int) {
	for t := range len(out) / MetricLanes {
		var acc [MetricLanes]float32
		for c, x := range e[t*dim:][:dim] {
			q := (*[MetricLanes]float32)(q[c*MetricLanes:])
			for r := range acc {
				acc[r] += float32(x * q[r])
			}
		}
		copy(out[t*MetricLanes:], acc[:])
	}
}

func scores64Generic(out []float64, e []float32, q []float64, dim int) {
	for t := range len(out) / MetricLanes {
		var acc [MetricLanes]float64
		for c, x := range e[t*dim:][:dim] {
			q := (*[MetricLanes]float64)(q[c*MetricLanes:])
			for r := range acc {
				acc[r] += float64(float64(x) * q[r])
			}
		}
		copy(out[t*MetricLanes:], acc[:])
	}
}

// The float32 exponential: x = n·ln2 + r, |r| <= ln2/2, in which expLn2Hi has
// so few bits that n·expLn2Hi is exact. e^r − 1 − r = r²·P(r) with Taylor's
// coefficients, of which the first left out is 1/9!: relative 5e-9.
const (
	expLog2E float32 = 1.44269504088896341
	expLn2Hi float32 = 0.693359375
	expLn2Lo float32 = -2.12194440e-4
	expMin   float32 = -87
	expMax   float32 = 80
)

var expCoefficients = [...]float32{1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5}

// expParts returns 2^n, r and e^r − 1 − r for x within expMin…expMax.
func expParts(x float32) (pow, r, second float32) {
	n := float32(math.RoundToEven(float64(float32(x * expLog2E))))
	r = (x - float32(n*expLn2Hi)) - float32(n*expLn2Lo)
	p := expCoefficients[0]
	for _, c := range expCoefficients[1:] {
		p = float32(p*r) + c
	}
	pow = math.Float32frombits(uint32(int32(n)+127) << 23)
	return pow, r, float32(float32(r*r) * p)
}

func tiltGeneric(delta, p []float32, shift *[MetricLanes]float32, sums *TiltSums) {
	for r := range MetricLanes {
		var second, first float32
		top, most := float32(math.Inf(-1)), float32(math.Inf(-1))
		for i := r; i < len(delta); i += MetricLanes {
			d := delta[i] - shift[r]
			pow, rest, h := expParts(max(min(d, expMax), expMin))
			w := float32(p[i] * (float32(pow*(rest+h)) + (pow - 1)))
			delta[i] = w
			second += float32(p[i] * (float32(pow*h) + ((float32(pow*rest) - d) + (pow - 1))))
			first += float32(p[i] * d)
			top = max(top, p[i]+w)
			most = max(most, d)
		}
		sums.Second[r], sums.First[r], sums.Top[r], sums.Delta[r] = second, first, top, most
	}
}

func peakGeneric(delta, p, logp []float32, shift *[MetricLanes]float32, sums *PeakSums) {
	for r := range MetricLanes {
		var first float32
		top := float32(math.Inf(-1))
		for i := r; i < len(delta); i += MetricLanes {
			d := delta[i] - shift[r]
			first += float32(p[i] * d)
			top = max(top, logp[i]+d)
		}
		sums.First[r], sums.Top[r] = first, top
	}
}

func riseGeneric(delta, logp []float32, shift *[MetricLanes]float32, sum *[MetricLanes]float32) {
	for r := range MetricLanes {
		var total float32
		for i := r; i < len(delta); i += MetricLanes {
			x := logp[i] + (delta[i] - shift[r])
			var u float32
			if x >= expMin {
				pow, rest, h := expParts(min(x, expMax))
				u = float32(pow*(rest+h)) + pow
			}
			delta[i] = u
			total += u
		}
		sum[r] = total
	}
}

func weightedSumGeneric(acc []float64, w, v []float32, width int) {
	tokens := len(w) / MetricLanes
	for r := range MetricLanes {
		for c := range width {
			var sum float32
			for t := range tokens {
				sum += float32(w[t*MetricLanes+r] * v[t*width+c])
			}
			acc[r*width+c] += float64(sum)
		}
	}
}
