//go:build unix

package kernels

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestExpandKernels runs what widens codes, on every backend, over every code, on buffers
// that end, and then begin, at a page that cannot be touched. What the codes are is known.
func TestExpandKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, guardHead := range []bool{false, true} {
		floats := func(n int) []float32 { return guardedFloats(t, n, guardHead) }
		eachBackend(t, func(t *testing.T) {
			k := &active.Load().decode
			small, large := floats(16), floats(256)
			for i := range large {
				large[i] = float32(r.NormFloat64())
			}
			copy(small, large)
			for _, chunks := range []int{1, 2, 5} {
				n := chunks * chunkCodes
				for bits := 2; bits <= 7; bits++ {
					codes := make([]byte, n)
					for i := range codes {
						codes[i] = byte(r.Uint32()) & (1<<bits - 1)
					}
					src, dst := guarded(t, n/8*bits, guardHead), guarded(t, n, guardHead)
					packPlanes(src, codes, bits)
					k.expand(dst, src, bits)
					if !slices.Equal(dst, codes) {
						t.Fatalf("expand: %d bits, %d chunks differ", bits, chunks)
					}
					values, book := floats(n), small
					if bits > 4 {
						book = large
					}
					k.lookUp(values, codes, book)
					for i, c := range codes {
						if values[i] != book[c] {
							t.Fatalf("lookUp: code %d is %v, want %v", c, values[i], book[c])
						}
					}
				}
			}
			for _, n := range []int{64, 256, 320} {
				src := guarded(t, n, guardHead)
				for i := range src {
					src[i] = byte(i)
				}
				exponents := floats(n)
				k.widenE8M0(exponents, src)
				for i, c := range src {
					if want := math.Ldexp(1, int(c)-127); float64(exponents[i]) != want && c != 0 && c != 255 {
						t.Fatalf("widenE8M0: %d is %v, want %v", c, exponents[i], want)
					}
				}
			}
			for _, lanes := range []int{laneWidth, blockWide} {
				for _, steps := range []int{1, 3, 64} {
					x, scale, offset := floats(lanes*steps), floats(max(lanes, steps)), floats(max(lanes, steps))
					for i := range x {
						x[i] = float32(r.NormFloat64())
					}
					for i := range scale {
						scale[i], offset[i] = float32(r.NormFloat64()), float32(r.NormFloat64())
					}
					want := slices.Clone(x)
					for i, v := range want {
						want[i] = float32(v*scale[i%lanes]) + offset[i%lanes]
						want[i] = float32(want[i]*scale[i/lanes]) + offset[i/lanes]
					}
					k.scaleLanes(x, scale, offset, lanes)
					k.scaleSteps(x, scale, offset, lanes)
					if !slices.Equal(x, want) {
						t.Fatalf("scale: %d lanes, %d steps differ", lanes, steps)
					}
				}
			}
		})
	}
}
