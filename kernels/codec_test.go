package kernels

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestAbsMax(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for n := range 200 {
			for _, head := range []bool{true, false} {
				x := guardedFloats(t, n, head)
				var want float32
				for i := range x {
					x[i] = float32(r.NormFloat64())
					if a := math.Float32frombits(math.Float32bits(x[i]) &^ (1 << 31)); a > want {
						want = a
					}
				}
				if got := AbsMax(x); got != want {
					t.Fatalf("n = %d: %g, want %g", n, got, want)
				}
			}
		}
	})
}
