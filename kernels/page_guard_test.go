//go:build unix

package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// rowValue returns a finite value: ordinary ones, ties of the codes, and the extremes.
func rowValue(r *rand.Rand) float32 {
	switch r.IntN(8) {
	case 0:
		return float32(r.IntN(600)-300) / 2
	case 1:
		return plainValue(r)
	case 2:
		return []float32{0, float32(math.Copysign(0, -1)), math.MaxFloat32, -math.MaxFloat32, 0x1p-149, -0x1p-149, 0x1p-126}[r.IntN(7)]
	}
	return float32(r.NormFloat64())
}

// TestPageKernels holds every backend's page kernels to the same bytes as the portable
// code, on buffers that end, and then begin, at a page that cannot be touched.
func TestPageKernels(t *testing.T) {
	g := &genericPage
	for _, guardHead := range []bool{false, true} {
		eachBackend(t, func(t *testing.T) {
			k := &active.Load().page
			r := rand.New(rand.NewPCG(7, 8))
			for _, columns := range []int{16, 32, 48, 64, 128, 576} {
				stride := columns + []int{0, 16, 3}[r.IntN(3)]
				x := guardedFloats(t, rowsLen(chunkTokens, stride, columns), guardHead)
				for i := range x {
					x[i] = rowValue(r)
				}
				ahead := guardedFloats(t, chunkTokens*columns, guardHead)
				for from := range codeSources {
					n := chunkTokens
					if from == fromChannels {
						n = columns
					}
					for _, bits := range []int{8, 4} {
						// Constants are written too where they are made of ranges.
						constants := guardedFloats(t, 3*maxScales+n, guardHead)
						c := codeRange{lo: float32(r.IntN(2)), hi: float32(int(1)<<bits - 1), levels: float32(int(1)<<(bits-1) - 1)}
						for i := range n {
							constants[i] = []float32{1, 0.5, float32(math.Inf(1)), math.Float32frombits(r.Uint32() & 0x7f7fffff), 0x1p-149}[r.IntN(5)]
							if r.IntN(2) == 0 {
								constants[maxScales+i], c.lo = rowValue(r), 0
							} else {
								constants[2*maxScales+i] = float32(r.IntN(int(c.hi) + 1))
							}
						}
						testLines(t, fmt.Sprintf("%d columns from %d, %d bits", columns, from, bits), k, bits, from, guardHead, x, ahead, stride, columns, constants, c)
					}
				}
				testRows(t, k, guardHead, columns, r)
				half := guarded(t, lineBytes*(columns-1)+2*chunkTokens, guardHead)
				want := make([]byte, len(half))
				most := k.halfKeys(half, x, ahead, stride, columns)
				if most != g.halfKeys(want, x, ahead, stride, columns) || !slices.Equal(half, want) {
					t.Fatalf("halfKeys of %d columns differ", columns)
				}
				eachGrid(1, 2, columns, func(grid valueGrid) {
					half := guarded(t, grid.end(2), guardHead)
					want := make([]byte, len(half))
					most := k.halfValues(half, x, ahead, stride, grid)
					if most != g.halfValues(want, x, ahead, stride, grid) || !slices.Equal(half, want) {
						t.Fatalf("halfValues %+v differ", grid)
					}
				})
			}
			testScales(t, k, guardHead, r)
		})
	}
}

// eachGrid calls f with grids of columns channels, steps of wide tokens.
func eachGrid(wide, size, columns int, f func(valueGrid)) {
	for _, lanes := range []int{laneWidth, blockWide} {
		if columns%lanes != 0 {
			continue
		}
		for _, steps := range []int{1, chunkTokens / wide} {
			for _, gap := range []int{0, 64} {
				f(valueGrid{lanes: lanes, blocks: columns / lanes, block: steps*lanes*size + gap, steps: steps})
			}
		}
	}
}

func testLines(t *testing.T, name string, k *pageKernels, bits int, from codeSource, guardHead bool, x, ahead []float32, stride, columns int, constants []float32, c codeRange) {
	t.Helper()
	got, want := &k.int8, &genericPage.int8
	if bits == 4 {
		got, want = &k.int4, &genericPage.int4
	}
	wide := 32 / bits
	n := 2*lineBytes*(columns/wide-1) + lineBytes
	dst, wantDst, wantConstants := guarded(t, n, guardHead), make([]byte, n), slices.Clone(constants)
	most := got.keys[from](dst, x, ahead, stride, columns, constants, c)
	if most != want.keys[from](wantDst, x, ahead, stride, columns, wantConstants, c) || !slices.Equal(dst, wantDst) || !slices.Equal(constants, wantConstants) {
		t.Fatalf("keys, %s: differ", name)
	}
	eachGrid(wide, 4, columns, func(g valueGrid) {
		dst, wantDst := guarded(t, g.end(4), guardHead), make([]byte, g.end(4))
		most := got.values[from](dst, x, ahead, stride, g, constants, c)
		if most != want.values[from](wantDst, x, ahead, stride, g, wantConstants, c) || !slices.Equal(dst, wantDst) || !slices.Equal(constants, wantConstants) {
			t.Fatalf("values, %s, %+v: differ", name, g)
		}
	})
}

func testRows(t *testing.T, k *pageKernels, guardHead bool, run int, r *rand.Rand) {
	t.Helper()
	for _, runs := range []int{1, 3, 4, 5, 8, 18} {
		x := guardedFloats(t, run*runs, guardHead)
		for i := range x {
			x[i] = rowValue(r) * float32(r.IntN(2)) // some runs of zeros
		}
		constants := guardedFloats(t, 3*maxScales+runs, guardHead)
		for _, bits := range []int{8, 4} {
			fill(constants[2*maxScales:2*maxScales+runs], float32(int(1)<<(bits-1)))
			c := codeRange{1, float32(int(1)<<bits - 1), float32(int(1)<<(bits-1) - 1)}
			got, want := k.int8.rows, genericPage.int8.rows
			if bits == 4 {
				got, want = k.int4.rows, genericPage.int4.rows
			}
			dst, wantDst, wantConstants := guarded(t, run*runs*bits/8, guardHead), make([]byte, run*runs*bits/8), slices.Clone(constants)
			most := got(dst, x, run, constants, c)
			if most != want(wantDst, x, run, wantConstants, c) || !slices.Equal(dst, wantDst) || !slices.Equal(constants, wantConstants) {
				t.Fatalf("rows of %d bits: %d runs of %d differ", bits, runs, run)
			}
		}
	}
}

func testScales(t *testing.T, k *pageKernels, guardHead bool, r *rand.Rand) {
	t.Helper()
	for _, n := range []int{16, 32, 48, 640} {
		for kind := range 3 {
			width := guardedFloats(t, n, guardHead)
			for i := range width {
				width[i] = abs32(rowValue(r))
				if kind == 0 && width[i] > 6e4 {
					width[i] = 1e-7
				}
			}
			if kind == 2 {
				width[r.IntN(n)] = []float32{float32(math.Inf(1)), float32(math.NaN())}[r.IntN(2)]
			}
			scale, divisor := guardedFloats(t, n, guardHead), guardedFloats(t, n, guardHead)
			wantScale, wantDivisor := make([]float32, n), make([]float32, n)
			for _, levels := range []float32{127, 255, 7, 15} {
				for i, f := range []func(scale, divisor, width []float32, levels float32) bool{k.scales, k.scalesHalf} {
					want := []func(scale, divisor, width []float32, levels float32) bool{genericPage.scales, genericPage.scalesHalf}[i]
					fits := f(scale, divisor, width, levels)
					if wantFits := want(wantScale, wantDivisor, width, levels); fits != wantFits {
						t.Fatalf("scales %d of %d: fits %t, want %t", i, n, fits, wantFits)
					}
					if kind == 2 {
						if fits {
							t.Fatal("scales: what is not finite fits")
						}
						continue
					}
					if !slices.Equal(scale, wantScale) || !slices.Equal(divisor, wantDivisor) {
						t.Fatalf("scales %d of %d differ: %v, want %v", i, n, scale, wantScale)
					}
				}
			}
		}
	}
}
