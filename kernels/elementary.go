package kernels

import "math"

// The elementary functions below are kvq's own because the standard library's
// differ between architectures, in assembly and through fused multiply-adds.
// Every product is rounded before it is added to, so all machines agree.

const (
	ln2Hi = 6.93147180369123816490e-01 // the leading 32 bits of ln 2: n·ln2Hi is exact for |n| < 2^21
	ln2Lo = 1.90821492927058770002e-10
	log2E = 1 / math.Ln2
)

// expReduce splits x = n·ln2 + r with |r| <= ln2/2 and returns n and e^r − 1.
// Taylor's series to r^13 leaves less than 2^-57.
func expReduce(x float64) (n, em1 float64) {
	n = math.RoundToEven(x * log2E)
	r := (x - float64(n*ln2Hi)) - float64(n*ln2Lo)
	p := 1.0 / 6227020800
	for _, c := range [...]float64{1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5} {
		p = float64(p*r) + c
	}
	return n, r + float64(float64(r*r)*p)
}

// Exp returns e^x within 2 units in the last place, 0 below about −745 and +Inf
// above about 709.8.
func Exp(x float64) float64 {
	switch {
	case math.IsNaN(x):
		return x
	case x > 709.8:
		return math.Inf(1)
	case x < -746:
		return 0
	}
	n, em1 := expReduce(x)
	return math.Ldexp(1+em1, int(n))
}

// Expm1 returns e^x − 1 within 2 units in the last place.
func Expm1(x float64) float64 {
	switch {
	case math.IsNaN(x):
		return x
	case x > 709.8:
		return math.Inf(1)
	case x < -40:
		return -1
	}
	n, em1 := expReduce(x)
	if n == 0 {
		return em1
	}
	if n > 60 {
		return math.Ldexp(1+em1, int(n)) - 1
	}
	t := math.Ldexp(1, int(n))
	return (t - 1) + float64(t*em1)
}

// atanhSeries returns 2·atanh(s) for |s| <= 0.18: what log((1+s)/(1−s)) is.
func atanhSeries(s float64) float64 {
	s2 := s * s
	p := 1.0 / 25
	for _, c := range [...]float64{1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3} {
		p = float64(p*s2) + c
	}
	return 2 * (s + float64(s*float64(s2*p)))
}

// Log returns the natural logarithm of x within 2 units in the last place, −Inf
// of 0 and NaN of a negative number.
func Log(x float64) float64 {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 1):
		return x
	case x < 0:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	}
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	f := m - 1
	n := float64(e)
	return float64(n*ln2Hi) + (float64(n*ln2Lo) + atanhSeries(f/(2+f)))
}

// Log1p returns log(1+x), as exact for x near 0 as elsewhere.
func Log1p(x float64) float64 {
	if x > -0.29 && x < 0.41 { // where |x/(2+x)| stays within atanhSeries' reach
		return atanhSeries(x / (2 + x))
	}
	return Log(1 + x)
}

// Tanh returns the hyperbolic tangent of x.
func Tanh(x float64) float64 {
	switch {
	case x > 22:
		return 1
	case x < -22:
		return -1
	}
	e := Expm1(2 * x)
	return e / (e + 2)
}
