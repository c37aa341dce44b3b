//go:build unix

package kernels

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"
)

// levelBits stands for codes of 4 bits that are looked up.
const levelBits = 0

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
		eachBackend(t, func(t *testing.T) {
			floats := func(n int) []float32 { return guardedFloats(t, n, guardHead) }
			ints := func(n int) []int32 { return guardedInts(t, n, guardHead) }
			bytes := func(n int) []byte { return guarded(t, n, guardHead) }
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
						for _, bits := range []int{8, 4, levelBits} {
							step := map[int]int{8: 4, 4: 8, levelBits: 8}[bits]
							n := roundUp(step*steps+step, blockWide)
							row, plane := n+3, n+64
							x := floats(rowsLen(heads, row, n))
							for i := range x {
								x[i] = []float32{1, -1, float32(r.NormFloat64())}[r.IntN(3)]
							}
							weight := ints(n)
							for i := range weight {
								weight[i] = int32(r.IntN(256))
							}
							scale := random(floats(n))
							for _, s := range [][]float32{nil, scale} {
								coef, want := bytes(2*heads*plane), make([]byte, 2*heads*plane)
								units, wantUnits := floats(heads), make([]float32, heads)
								bias, wantBias := ints((heads-1)*biasStride+n/blockWide), make([]int32, heads*biasStride)
								k.foldWeighted(coef, plane, units, bias, x, row, s, weight, planeLimit, heads, n)
								g.foldWeighted(want, plane, wantUnits, wantBias, x, row, s, weight, planeLimit, heads, n)
								if !slices.Equal(units, wantUnits) || !slices.Equal(bias, wantBias[:len(bias)]) {
									t.Fatalf("fold: %v %v, want %v %v", units, bias, wantUnits, wantBias)
								}
								if s != nil {
									half := bytes(2 * n)
									ToF16(half, s)
									clear(coef)
									u, b := floats(headBlock), ints(heads)
									wantU, wantB := make([]float32, headBlock), make([]int32, heads)
									k.foldHalf(coef, plane, u, b, x, row, half, floats(n), planeLimit, 8, heads, n)
									g.foldHalf(want, plane, wantU, wantB, x, row, half, make([]float32, n), planeLimit, 8, heads, n)
									if !slices.Equal(u[:heads], wantU[:heads]) || !slices.Equal(b, wantB) {
										t.Fatalf("foldHalf: %v %v, want %v %v", u, b, wantU, wantB)
									}
								}
								testTiles(t, k, bits, codes, coef, want, plane, heads, lanes, blocks, steps, step, floats, ints, random)
								units, bias = floats(headBlock), ints(heads)
								clear(coef)
								k.fold(coef, plane, units, bias, x, row, s, planeLimit, 8, heads, n)
								wantUnits = append(wantUnits, 0, 0, 0)
								g.fold(want, plane, wantUnits, wantBias, x, row, s, planeLimit, 8, heads, n)
								if !slices.Equal(units[:heads], wantUnits[:heads]) || !slices.Equal(bias, wantBias[:heads]) {
									t.Fatalf("fold: %v %v, want %v %v", units, bias, wantUnits, wantBias)
								}
								testTiles(t, k, bits, codes, coef, want, plane, heads, lanes, blocks, steps, step, floats, ints, random)
							}
						}
						row := steps + 5
						x := random(floats(rowsLen(heads, row, steps)))
						testFloatTiles(t, k, heads, lanes, blocks, steps, x, row, floats, bytes, random)
						testAccumulate(t, k, heads, lanes, blocks, floats, ints, random)
					}
				}
				testScores(t, k, heads, floats, ints, bytes, random)
			}
		})
	}
}

func rowsLen(heads, row, n int) int { return (heads-1)*row + n }

// outLen has room for the outputs, and for the scores of up to two blocks.
func outLen(heads, lanes, blocks int) int {
	return max((blocks-1)*valueBlock+(heads-1)*valueRow+lanes, (heads-1)*pageTokens+lanes*min(blocks, 2))
}

func testTiles(t *testing.T, k *decodeKernels, bits int, codes, coef, wantCoef []byte, plane, heads, lanes, blocks, steps, step int, floats func(int) []float32, ints func(int) []int32, random func([]float32) []float32) {
	t.Helper()
	got, want := k.int8, genericDecode.int8
	switch bits {
	case 4:
		got, want = k.int4, genericDecode.int4
	case levelBits:
		table := new([16]uint8)
		for i := range table {
			table[i] = uint8(255 - 37*i)
		}
		got, want = k.levels(table), genericDecode.levels(table)
	}
	n := lanes * blocks
	sums, wantSums := ints(heads*n), make([]int32, heads*n)
	out, wantOut := random(floats(outLen(heads, lanes, blocks))), make([]float32, outLen(heads, lanes, blocks))
	copy(wantOut, out)
	bias, r, unit, scale := ints(heads), random(floats(heads)), random(floats(heads)), random(floats(n))
	for i := range bias {
		bias[i] = int32(uint32(i+1) * 2654435761)
	}
	for _, first := range []int{0, step} {
		got.sums(sums, codes, coef, plane, bias, heads, lanes, blocks, steps, first)
		want.sums(wantSums, codes, wantCoef, plane, bias, heads, lanes, blocks, steps, first)
		got.value(out, codes, coef, plane, bias, r, unit, heads, lanes, blocks, steps, first)
		want.value(wantOut, codes, wantCoef, plane, bias, r, unit, heads, lanes, blocks, steps, first)
		if !slices.Equal(sums, wantSums) || !slices.Equal(out, wantOut) {
			t.Fatalf("int%d: %d heads, %d lanes, %d blocks, %d steps from %d differ", bits, heads, lanes, blocks, steps, first)
		}
		if lanes < blockWide || blocks > 2 {
			continue
		}
		got.score(out, codes, coef, plane, bias, unit, r, heads, blocks, steps, first)
		want.score(wantOut, codes, wantCoef, plane, bias, unit, r, heads, blocks, steps, first)
		if !slices.Equal(out, wantOut) {
			t.Fatalf("int%d score: %d heads, %d blocks, %d steps from %d differ", bits, heads, blocks, steps, first)
		}
		half := make([]byte, 2*n)
		ToF16(half, scale)
		got.scoreHalf(out, codes, coef, plane, bias, unit, half, heads, blocks, steps, first)
		want.scoreHalf(wantOut, codes, wantCoef, plane, bias, unit, half, heads, blocks, steps, first)
		if !slices.Equal(out, wantOut) {
			t.Fatalf("int%d scoreHalf: %d heads, %d blocks, %d steps from %d differ", bits, heads, blocks, steps, first)
		}
		got.scoreHalfAdd(out, codes, coef, plane, bias, unit, half, heads, blocks, steps, first)
		want.scoreHalfAdd(wantOut, codes, wantCoef, plane, bias, unit, half, heads, blocks, steps, first)
		if !slices.Equal(out, wantOut) {
			t.Fatalf("int%d scoreHalfAdd: %d heads, %d blocks, %d steps from %d differ", bits, heads, blocks, steps, first)
		}
	}
}

func testFloatTiles(t *testing.T, k *decodeKernels, heads, lanes, blocks, steps int, x []float32, row int, floats func(int) []float32, bytes func(int) []byte, random func([]float32) []float32) {
	t.Helper()
	g := &genericDecode
	n := lanes * blocks
	values := random(floats(n * steps))
	raw := unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), 4*len(values))
	half := bytes(2 * len(values))
	r := random(floats(heads))
	out := random(floats(outLen(heads, lanes, blocks)))
	want := slices.Clone(out)
	k.f32.value(out, raw, x, row, r, heads, lanes, blocks, steps)
	g.f32.value(want, raw, x, row, r, heads, lanes, blocks, steps)
	if lanes == blockWide && blocks <= 2 {
		k.f32.score(out, raw, x, row, heads, blocks, steps)
		g.f32.score(want, raw, x, row, heads, blocks, steps)
	}
	if !slices.Equal(out, want) {
		t.Fatalf("f32: %d heads, %d lanes, %d blocks, %d steps differ", heads, lanes, blocks, steps)
	}
	// A row of 4s bounds Σ|code·x|; what is added to it is bounded by 4·4.
	var magnitude float32 = 16
	for _, v := range x {
		magnitude += max(v, -v) * 4
	}
	near := func(name string) {
		t.Helper()
		for i := range out {
			if d := out[i] - want[i]; !(max(d, -d) <= float32(steps+1)*2*magnitude/(1<<24)) {
				t.Fatalf("%s: %v, want %v", name, out[i], want[i])
			}
		}
		copy(out, want)
	}
	for _, kind := range []struct {
		name      string
		size      int
		got, want *floatTiles
		put       func(code []byte, v float32)
	}{
		{"f16", 2, &k.f16, &g.f16, PutF16},
		{"bf16", 2, &k.bf16, &g.bf16, func(code []byte, v float32) { binary.LittleEndian.PutUint16(code, bf16(v)) }},
		{"e4m3", 1, &k.e4m3, &g.e4m3, func(code []byte, v float32) { code[0] = E4M3(v * 200) }},
		{"e5m2", 1, &k.e5m2, &g.e5m2, func(code []byte, v float32) { code[0] = byte(f16(v) >> 8) }},
	} {
		// Narrow codes stand at either end of the memory.
		for _, codes := range [][]byte{half[:kind.size*len(values)], half[len(half)-kind.size*len(values):]} {
			for i, v := range values {
				kind.put(codes[kind.size*i:], v)
			}
			kind.got.value(out, codes, x, row, r, heads, lanes, blocks, steps)
			kind.want.value(want, codes, x, row, r, heads, lanes, blocks, steps)
			near(kind.name)
			if lanes == blockWide && blocks <= 2 {
				kind.got.score(out, codes, x, row, heads, blocks, steps)
				kind.want.score(want, codes, x, row, heads, blocks, steps)
				near(kind.name)
			}
		}
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
	o := random(floats(outLen(heads, lanes, blocks)))
	want := slices.Clone(o)
	r, unit, add := random(floats(heads)), random(floats(heads)), random(floats(heads))
	scale, offset := random(floats(n)), random(floats(n))
	k.accumulateScaled(o, sums, r, unit, scale, nil, nil, heads, lanes, blocks)
	g.accumulateScaled(want, sums, r, unit, scale, nil, nil, heads, lanes, blocks)
	k.accumulateScaled(o, sums, r, unit, scale, add, offset, heads, lanes, blocks)
	g.accumulateScaled(want, sums, r, unit, scale, add, offset, heads, lanes, blocks)
	row := n + 7
	f := random(floats(rowsLen(heads, row, n)))
	if !slices.Equal(o, want) {
		t.Fatalf("accumulate: %d heads, %d lanes, %d blocks differ", heads, lanes, blocks)
	}
	e := random(floats(heads * laneWidth))
	wantE := slices.Clone(e)
	k.laneDot(e, f, row, scale, r, heads, n)
	g.laneDot(wantE, f, row, scale, r, heads, n)
	if !slices.Equal(e, wantE) {
		t.Fatalf("laneDot: %d heads, %d differ", heads, n)
	}
	dst := random(floats(n))
	wantDst := slices.Clone(dst)
	k.merge(dst, scale, 0.5, 3)
	g.merge(wantDst, scale, 0.5, 3)
	half := make([]byte, 2*n)
	ToF16(half, scale)
	k.widen(dst, half)
	g.widen(wantDst, half)
	if !slices.Equal(dst, wantDst) {
		t.Fatal("widen differs")
	}
	k.multiply(dst[1:], scale[1:], 0.3)
	g.multiply(wantDst[1:], scale[1:], 0.3)
	k.divide(dst[:n-3], offset[:n-3], 0.3)
	g.divide(wantDst[:n-3], offset[:n-3], 0.3)
	if !slices.Equal(dst, wantDst) {
		t.Fatal("merge, multiply or divide differs")
	}
}

func testScores(t *testing.T, k *decodeKernels, heads int, floats func(int) []float32, ints func(int) []int32, bytes func(int) []byte, random func([]float32) []float32) {
	t.Helper()
	g := &genericDecode
	z := random(floats(heads * pageTokens))
	want := slices.Clone(z)
	unit := random(floats(heads))
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
	}
	m, r, l := random(floats(headBlock)), random(floats(headBlock)), random(floats(heads*laneWidth))
	scale := random(floats(pageTokens))
	for i, v := range scale {
		scale[i] = max(v, -v)
	}
	for _, size := range []float32{1, 30, 1000, 1e20} {
		for kind := range 4 {
			random(z)
			for i := range z {
				z[i] *= size
			}
			copy(want, z)
			wantM, wantR, wantL := slices.Clone(m), slices.Clone(r), slices.Clone(l)
			if kind == 0 {
				k.softmax(z, m, r, l, heads)
				g.softmax(want, wantM, wantR, wantL, heads)
			} else {
				var s []float32
				if kind == 2 {
					s = scale
				}
				// What multiplicands are worth shows in what a tile makes of them.
				coef, wantCoef := bytes(2*heads*valuePlane), make([]byte, 2*heads*valuePlane)
				units, wantUnits := floats(headBlock), make([]float32, headBlock)
				bias, wantBias := ints(heads), make([]int32, heads)
				if kind == 3 {
					half, widened := bytes(2*pageTokens), floats(pageTokens)
					ToF16(half, scale)
					k.softmaxFoldHalf(z, m, r, l, coef, units, bias, half, widened, 128, heads)
					g.softmaxFoldHalf(want, wantM, wantR, wantL, wantCoef, wantUnits, wantBias, half, make([]float32, pageTokens), 128, heads)
				} else {
					k.softmaxFold(z, m, r, l, coef, units, bias, s, 128, heads)
					g.softmaxFold(want, wantM, wantR, wantL, wantCoef, wantUnits, wantBias, s, 128, heads)
				}
				codes := make([]byte, 4*laneWidth*pageTokens/4)
				for i := range codes {
					codes[i] = byte(i*37 + i/64)
				}
				sums, wantSums := make([]int32, heads*laneWidth), make([]int32, heads*laneWidth)
				k.int8.sums(sums, codes, coef, valuePlane, bias, heads, laneWidth, 1, pageTokens/4, 0)
				g.int8.sums(wantSums, codes, wantCoef, valuePlane, wantBias, heads, laneWidth, 1, pageTokens/4, 0)
				if !slices.Equal(units[:heads], wantUnits[:heads]) || !slices.Equal(bias, wantBias) || !slices.Equal(sums, wantSums) {
					t.Fatalf("softmaxFold: %d heads differ", heads)
				}
			}
			if !slices.Equal(z, want) || !slices.Equal(m[:heads], wantM[:heads]) || !slices.Equal(r[:heads], wantR[:heads]) || !slices.Equal(l, wantL) {
				t.Fatalf("softmax %d: %d heads differ", kind, heads)
			}
			copy(m, wantM)
			copy(r, wantR)
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
