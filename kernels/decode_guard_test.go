//go:build unix

package kernels

import (
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// guardedInts is guarded for n int32.
func guardedInts(t *testing.T, n int, head bool) []int32 {
	t.Helper()
	b := guarded(t, 4*n, head)
	return unsafe.Slice((*int32)(unsafe.Pointer(&b[0])), n)
}

// TestDecodeKernels runs every kernel of every backend on buffers that end, and then
// begin, at a page that cannot be touched, and holds the results against the
// portable code: the same bits, but for tileF16's fused sums.
func TestDecodeKernels(t *testing.T) {
	g := &genericDecode
	for _, guardHead := range []bool{false, true} {
		floats := func(n int) []float32 { return guardedFloats(t, n, guardHead) }
		ints := func(n int) []int32 { return guardedInts(t, n, guardHead) }
		bytes := func(n int) []byte { return guarded(t, n, guardHead) }
		eachBackend(t, func(t *testing.T) {
			k := &active.Load().decode
			r := rand.New(rand.NewPCG(5, 6))
			random := func(x []float32) []float32 {
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				return x
			}
			for heads := 1; heads <= headBlock; heads++ {
				for _, lanes := range []int{laneWidth, blockWide} {
					for _, shape := range [][2]int{{1, 1}, {1, 2}, {2, 3}, {4, 16}, {3, 7}} {
						blocks, steps := shape[0], shape[1]
						// Codes of every value, multiplicands up to the limit.
						codes := bytes(4 * lanes * blocks * steps)
						for i := range codes {
							codes[i] = byte(r.Uint32())
							if r.IntN(4) == 0 {
								codes[i] = 255
							}
						}
						for _, bits := range []int{8, 4} {
							step := map[int]int{8: 4, 4: 8}[bits]
							n := roundUp(step*steps+step, blockWide)
							x := floats(rows(heads, n))
							for i := range x {
								x[i] = []float32{1, -1, float32(r.NormFloat64())}[r.IntN(3)]
							}
							weight := ints(n)
							for i := range weight {
								weight[i] = int32(r.IntN(256))
							}
							scale := random(floats(n))
							for _, s := range [][]float32{nil, scale} {
								coef, want := bytes(heads*coefBytes), make([]byte, heads*coefBytes)
								units, wantUnits := floats(heads), make([]float32, heads)
								bias, wantBias := ints((heads-1)*biasStride+n/blockWide), make([]int32, heads*biasStride)
								k.fold(coef, units, bias, x, s, weight, planeLimit, heads, n)
								g.fold(want, wantUnits, wantBias, x, s, weight, planeLimit, heads, n)
								if !slices.Equal(units, wantUnits) || !slices.Equal(bias, wantBias[:len(bias)]) {
									t.Fatalf("fold: %v %v, want %v %v", units, bias, wantUnits, wantBias)
								}
								sums, wantSums := ints(heads*lanes*blocks), make([]int32, heads*lanes*blocks)
								b := ints(heads)
								for i := range b {
									b[i] = int32(r.Uint32())
								}
								tile, wantTile := k.tile8, g.tile8
								if bits == 4 {
									tile, wantTile = k.tile4, g.tile4
								}
								for _, first := range []int{0, step} {
									tile(sums, codes, coef, b, heads, lanes, blocks, steps, first)
									wantTile(wantSums, codes, want, b, heads, lanes, blocks, steps, first)
									if !slices.Equal(sums, wantSums) {
										t.Fatalf("tile%d: %d heads, %d lanes, %d blocks, %d steps from %d differ", bits, heads, lanes, blocks, steps, first)
									}
								}
							}
						}
						x := random(floats(rows(heads, steps)))
						f32 := floats(lanes * blocks * steps)
						random(f32)
						raw := unsafe.Slice((*byte)(unsafe.Pointer(&f32[0])), 4*len(f32))
						sums, want := floats(rows(heads, lanes*blocks)), make([]float32, rows(heads, lanes*blocks))
						k.tileF32(sums, raw, x, heads, lanes, blocks, steps)
						g.tileF32(want, raw, x, heads, lanes, blocks, steps)
						if !slices.Equal(sums, want) {
							t.Fatalf("tileF32: %d heads, %d lanes, %d blocks, %d steps differ", heads, lanes, blocks, steps)
						}
						half := bytes(2 * lanes * blocks * steps)
						for i := range lanes * blocks * steps {
							h := halfBits(f32[i])
							half[2*i], half[2*i+1] = byte(h), byte(h>>8)
						}
						clear(sums)
						clear(want)
						k.tileF16(sums, half, x, heads, lanes, blocks, steps)
						g.tileF16(want, half, x, heads, lanes, blocks, steps)
						var magnitude float32
						for _, v := range x {
							magnitude += max(v, -v) * 4
						}
						for i := range sums {
							if d := sums[i] - want[i]; max(d, -d) > float32(steps+1)*2*magnitude/(1<<24) {
								t.Fatalf("tileF16: %v, want %v", sums[i], want[i])
							}
						}
						testAccumulate(t, k, heads, lanes, blocks, floats, ints, random)
					}
				}
				testScores(t, k, heads, floats, ints, random)
			}
		})
	}
}

func testAccumulate(t *testing.T, k *decodeKernels, heads, lanes, blocks int, floats func(int) []float32, ints func(int) []int32, random func([]float32) []float32) {
	t.Helper()
	g := &genericDecode
	n := lanes * blocks
	sums := ints(heads * n)
	for i := range sums {
		sums[i] = int32(uint32(i)*2654435761) >> (i % 20)
	}
	o := random(floats(rows(heads, n)))
	want := slices.Clone(o)
	r, unit, add := random(floats(heads)), random(floats(heads)), random(floats(heads))
	scale, offset := random(floats(n)), random(floats(n))
	k.accumulate(o, sums, r, unit, heads, lanes, blocks)
	g.accumulate(want, sums, r, unit, heads, lanes, blocks)
	k.accumulateScaled(o, sums, r, unit, scale, nil, nil, heads, lanes, blocks)
	g.accumulateScaled(want, sums, r, unit, scale, nil, nil, heads, lanes, blocks)
	k.accumulateScaled(o, sums, r, unit, scale, add, offset, heads, lanes, blocks)
	g.accumulateScaled(want, sums, r, unit, scale, add, offset, heads, lanes, blocks)
	f := random(floats(rows(heads, n)))
	k.accumulateFloat(o, f, r, heads, n)
	g.accumulateFloat(want, f, r, heads, n)
	if !slices.Equal(o, want) {
		t.Fatalf("accumulate: %d heads, %d lanes, %d blocks differ", heads, lanes, blocks)
	}
	e := random(floats(heads * laneWidth))
	wantE := slices.Clone(e)
	k.laneDot(e, f, scale, r, heads, n)
	g.laneDot(wantE, f, scale, r, heads, n)
	if !slices.Equal(e, wantE) {
		t.Fatalf("laneDot: %d heads, %d differ", heads, n)
	}
	dst := random(floats(n))
	wantDst := slices.Clone(dst)
	k.merge(dst, scale, 0.5, 3)
	g.merge(wantDst, scale, 0.5, 3)
	if !slices.Equal(dst, wantDst) {
		t.Fatal("merge differs")
	}
}

func testScores(t *testing.T, k *decodeKernels, heads int, floats func(int) []float32, ints func(int) []int32, random func([]float32) []float32) {
	t.Helper()
	g := &genericDecode
	z := random(floats(rows(heads, pageTokens)))
	want := slices.Clone(z)
	unit, add := random(floats(heads)), random(floats(heads))
	for groups := 1; groups <= 3; groups++ {
		sums := ints(heads * groups * pageTokens)
		for i := range sums {
			sums[i] = int32(uint32(i)*2654435761) >> (i % 20)
		}
		scale, offset := random(floats(groups*pageTokens)), random(floats(groups*pageTokens))
		q := random(floats((groups-1)*headBlock + heads))
		k.scoreToken(z, sums, unit, scale, nil, nil, heads, groups)
		g.scoreToken(want, sums, unit, scale, nil, nil, heads, groups)
		if !slices.Equal(z, want) {
			t.Fatalf("scoreToken: %d heads, %d groups differ", heads, groups)
		}
		k.scoreToken(z, sums, unit, scale, offset, q, heads, groups)
		g.scoreToken(want, sums, unit, scale, offset, q, heads, groups)
		if !slices.Equal(z, want) {
			t.Fatalf("scoreToken with offsets: %d heads, %d groups differ", heads, groups)
		}
		if groups == 1 {
			k.scoreUniform(z, sums, unit, add, heads, 2, 0)
			g.scoreUniform(want, sums, unit, add, heads, 2, 0)
			k.scoreUniform(z, sums, unit, add, heads, 1, blockWide)
			g.scoreUniform(want, sums, unit, add, heads, 1, blockWide)
			if !slices.Equal(z, want) {
				t.Fatalf("scoreUniform: %d heads differ", heads)
			}
		}
	}
	m, r, l := random(floats(heads)), random(floats(heads)), random(floats(heads*laneWidth))
	for _, size := range []float32{1, 30, 1000, 1e20} {
		random(z)
		for i := range z {
			z[i] *= size
		}
		copy(want, z)
		wantM, wantR, wantL := slices.Clone(m), slices.Clone(r), slices.Clone(l)
		k.softmax(z, m, r, l, heads)
		g.softmax(want, wantM, wantR, wantL, heads)
		if !slices.Equal(z, want) || !slices.Equal(m, wantM) || !slices.Equal(r, wantR) || !slices.Equal(l, wantL) {
			t.Fatalf("softmax: %d heads differ", heads)
		}
	}
}

// TestDecodeReaders holds that a read pass stays inside its buffer.
func TestDecodeReaders(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		for _, head := range []bool{false, true} {
			for _, n := range []int{512, 1024, 8192, 4096 + 512} {
				b := guarded(t, n, head)
				for _, read := range active.Load().decode.readers {
					read(b)
				}
			}
		}
	})
}
