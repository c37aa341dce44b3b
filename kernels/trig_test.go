package kernels

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// TestSinCos compares with the series summed in 300 bits after reduction by a
// π of 300 bits.
func TestSinCos(t *testing.T) {
	pi, _, err := big.ParseFloat("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651", 10, 300, big.ToNearestEven)
	if err != nil {
		t.Fatal(err)
	}
	exact := func(x float64) (sin, cos float64) {
		twoPi := new(big.Float).Mul(pi, big.NewFloat(2))
		turns, _ := new(big.Float).Quo(big.NewFloat(x).SetPrec(300), twoPi).Float64()
		r := new(big.Float).SetPrec(300).SetFloat64(x)
		r.Sub(r, new(big.Float).SetPrec(300).Mul(twoPi, big.NewFloat(math.Round(turns))))
		term := new(big.Float).SetPrec(300).SetInt64(1)
		var sums [2]*big.Float
		for i := range sums {
			sums[i] = new(big.Float).SetPrec(300)
		}
		for n := range 60 {
			if n > 0 {
				term.Mul(term, r)
				term.Quo(term, new(big.Float).SetInt64(int64(n)))
			}
			if n%4 < 2 {
				sums[n%2].Add(sums[n%2], term)
			} else {
				sums[n%2].Sub(sums[n%2], term)
			}
		}
		cos, _ = sums[0].Float64()
		sin, _ = sums[1].Float64()
		return sin, cos
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 20000 {
		x := (r.Float64()*2 - 1) * math.Ldexp(1, r.IntN(42)-22)
		if i < 100 {
			x = float64(i) * math.Pi / 4
		}
		sin, cos := SinCos(x)
		wantSin, wantCos := exact(x)
		if math.Abs(sin-wantSin) > 0x1p-52 || math.Abs(cos-wantCos) > 0x1p-52 {
			t.Fatalf("SinCos(%g) = %g, %g, want %g, %g", x, sin, cos, wantSin, wantCos)
		}
	}
}
