package kernels

import "math"

// π/2 in parts of which n·halfPi1 and n·halfPi2 are exact for |n| < 2^20.
const (
	halfPi1 = 1.57079632673412561417e+00
	halfPi2 = 6.07710050630396597660e-11
	halfPi3 = 2.02226624879595063154e-21
)

// SinCos returns the sine and cosine of x, within 2^-52 absolute for |x| up to
// 2^20; further away the error grows with |x|.
func SinCos(x float64) (sin, cos float64) {
	n := math.RoundToEven(x * (2 / math.Pi))
	r := x - float64(n*halfPi1)
	r -= float64(n * halfPi2)
	r -= float64(n * halfPi3)
	square := float64(r * r)
	// Taylor's series: |r| <= π/4 leaves less than 2^-57 behind these terms.
	s, c := 1.0/355687428096000, 1.0/20922789888000
	for _, t := range [...][2]float64{
		{-1.0 / 1307674368000, -1.0 / 87178291200}, {1.0 / 6227020800, 1.0 / 479001600}, {-1.0 / 39916800, -1.0 / 3628800},
		{1.0 / 362880, 1.0 / 40320}, {-1.0 / 5040, -1.0 / 720}, {1.0 / 120, 1.0 / 24}, {-1.0 / 6, -0.5},
	} {
		s, c = float64(s*square)+t[0], float64(c*square)+t[1]
	}
	s = r + float64(r*float64(s*square))
	c = 1 + float64(c*square)
	switch int64(n) & 3 {
	case 1:
		return c, -s
	case 2:
		return -s, -c
	case 3:
		return -c, s
	}
	return s, c
}
