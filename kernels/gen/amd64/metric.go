package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// metric emits the kernels that measure quality. No fused multiply-add: Zen 4
// multiplies and adds 16 lanes each per cycle, and the generic kernels round twice.
func metric() {
	for _, w := range []width{{"AVX2", 8}, {"AVX512", 16}} {
		w.errors()
		w.scores()
		w.scores64()
		w.tilt()
		w.peak()
		w.rise()
		w.weightedSum()
	}
}

// queryRows is MetricLanes: the query rows side by side in one token's weights.
const queryRows = 32

func zeroAll(acc []reg.VecVirtual) {
	for _, a := range acc {
		if a.Size() == 64 {
			VPXORD(a, a, a)
		} else {
			VXORPS(a, a, a)
		}
	}
}

func (w width) vecs(n int) []reg.VecVirtual {
	all := make([]reg.VecVirtual, n)
	for i := range all {
		all[i] = w.vec()
	}
	return all
}

// errors takes 16 channels at a time: their float64 forms are the 16 lanes of the
// definition, channel c in lane c%16, however many registers those are.
func (w width) errors() {
	w.text("errors", "func(e, got, want *float32, rowSquares, rowProducts, columnSums *float64, dim, rows int)",
		"is Errors; dim is a multiple of 16.")
	e, got, want := gp("e"), gp("got"), gp("want")
	rowSquares, rowProducts := gp("rowSquares"), gp("rowProducts")
	dim := gp("dim")
	rows := gp("rows")
	n := 16 / (w.lanes / 2) // registers of 16 lanes of float64
	squares, products := w.vecs(n), w.vecs(n)
	loop(rows, 1, func() {
		zeroAll(squares)
		zeroAll(products)
		sums, left := gp("columnSums"), GP64()
		MOVQ(dim, left)
		loop(left, 16, func() {
			for i := range n {
				step := 4 * w.lanes / 2 * i
				exact, diff := w.half(), w.half()
				VMOVUPS(Mem{Base: want, Disp: step}, exact)
				VMOVUPS(Mem{Base: got, Disp: step}, diff)
				VSUBPS(exact, diff, diff)
				VMOVUPS(diff, Mem{Base: e, Disp: step})
				x, d, column := w.vec(), w.vec(), w.vec()
				VCVTPS2PD(exact, x)
				VCVTPS2PD(diff, d)
				at := Mem{Base: sums, Disp: 2 * step}
				VADDPD(at, d, column)
				VMOVUPD(column, at)
				VMULPD(d, x, x)
				VADDPD(x, products[i], products[i])
				VMULPD(d, d, d)
				VADDPD(d, squares[i], squares[i])
			}
			ADDQ(Imm(64), e)
			ADDQ(Imm(64), got)
			ADDQ(Imm(64), want)
			ADDQ(U32(128), sums)
		})
		w.sum16(squares, rowSquares)
		w.sum16(products, rowProducts)
		ADDQ(Imm(8), rowSquares)
		ADDQ(Imm(8), rowProducts)
	})
	done()
}

// sum16 stores the sum of 16 lanes of float64: eight apart, then 4, 2, 1.
func (w width) sum16(v []reg.VecVirtual, to reg.Register) {
	for i := range len(v) / 2 {
		VADDPD(v[i+len(v)/2], v[i], v[i])
	}
	low, high := YMM(), YMM()
	if w.lanes == 16 {
		VEXTRACTF64X4(Imm(0), v[0], low)
		VEXTRACTF64X4(Imm(1), v[0], high)
	} else {
		low, high = v[0].(reg.VecVirtual), v[1].(reg.VecVirtual)
	}
	sum, x := YMM(), XMM()
	VADDPD(high, low, sum)
	VEXTRACTF128(Imm(1), sum, x)
	VADDPD(x, sum.AsX(), x)
	other := XMM()
	VPERMILPD(Imm(1), x, other)
	VADDSD(other, x, x)
	VMOVSD(x, Mem{Base: to})
}

// scores keeps the sums of some tokens and query rows in registers over all
// channels: 8 tokens × 32 rows for AVX-512, 4 × 16 for AVX2.
func (w width) scores() {
	w.text("scores", "func(out, e, q *float32, dim, tokens int)", "is Scores; tokens is a multiple of 8, not 0.")
	tokens, across := 8, 2
	if w.lanes == 8 {
		tokens = 4
	}
	out, e, q, dim := gp("out"), gp("e"), gp("q"), gp("dim")
	stride, stride3 := GP64(), GP64()
	MOVQ(dim, stride)
	SHLQ(Imm(2), stride)
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, stride3)
	acc := w.vecs(tokens * across)
	left := gp("tokens")
	loop(left, tokens, func() {
		for part := range queryRows / (across * w.lanes) {
			at := part * across * w.bytes()
			zeroAll(acc)
			rows := []reg.GPVirtual{GP64(), GP64()}[:tokens/4]
			for i, r := range rows {
				if i == 0 {
					MOVQ(e, r)
				} else {
					LEAQ(Mem{Base: e, Index: stride, Scale: 4}, r)
				}
			}
			column, channels := GP64(), GP64()
			LEAQ(Mem{Base: q, Disp: at}, column)
			MOVQ(dim, channels)
			loop(channels, 1, func() {
				queries := w.vecs(across)
				for i, v := range queries {
					VMOVUPS(Mem{Base: column, Disp: i * w.bytes()}, v)
				}
				for t := range tokens {
					w.addScaled(rowAt(rows[t/4], stride, stride3, t%4), queries, acc[t*across:])
				}
				for _, r := range rows {
					ADDQ(Imm(4), r)
				}
				ADDQ(U32(4*queryRows), column)
			})
			for i, a := range acc {
				VMOVUPS(a, Mem{Base: out, Disp: i/across*4*queryRows + at + i%across*w.bytes()})
			}
		}
		LEAQ(Mem{Base: e, Index: stride, Scale: 4}, e)
		if tokens == 8 {
			LEAQ(Mem{Base: e, Index: stride, Scale: 4}, e)
		}
		ADDQ(U32(uint32(4*queryRows*tokens)), out)
	})
	done()
}

// addScaled adds v times a float in memory to acc. On Zen 4 a broadcast into a
// 512-bit register takes arithmetic units for two cycles, one inside the
// multiplication none (measured: 38 against 57 G products a second).
func (w width) addScaled(by Mem, v, acc []reg.VecVirtual) {
	x := w.vec()
	if w.lanes == 8 {
		VBROADCASTSS(by, x)
	}
	for i := range v {
		product := w.vec()
		if w.lanes == 16 {
			VMULPS_BCST(by, v[i], product)
		} else {
			VMULPS(x, v[i], product)
		}
		VADDPS(product, acc[i], acc[i])
	}
}

// rowAt is the start of row i of 4 from base on.
func rowAt(base, stride, stride3 reg.Register, i int) Mem {
	switch i {
	case 0:
		return Mem{Base: base}
	case 3:
		return Mem{Base: base, Index: stride3, Scale: 1}
	}
	return Mem{Base: base, Index: stride, Scale: uint8(i)}
}

// scores64 is scores in float64: 4 tokens × 32 rows for AVX-512, 2 × 16 for AVX2.
func (w width) scores64() {
	w.text("scores64", "func(out *float64, e *float32, q *float64, dim, tokens int)", "is Scores64; tokens is a multiple of 8, not 0.")
	tokens, across := 4, 4
	if w.lanes == 8 {
		tokens = 2
	}
	out, e, q, dim := gp("out"), gp("e"), gp("q"), gp("dim")
	stride, stride3 := GP64(), GP64()
	MOVQ(dim, stride)
	SHLQ(Imm(2), stride)
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, stride3)
	acc := w.vecs(tokens * across)
	left := gp("tokens")
	loop(left, tokens, func() {
		for part := range queryRows / (across * w.lanes / 2) {
			at := part * across * w.bytes()
			zeroAll(acc)
			row, column, channels := GP64(), GP64(), GP64()
			MOVQ(e, row)
			LEAQ(Mem{Base: q, Disp: at}, column)
			MOVQ(dim, channels)
			loop(channels, 1, func() {
				for t := range tokens {
					narrow, x, product := w.half(), w.vec(), w.vec()
					if at := rowAt(row, stride, stride3, t); w.lanes == 16 {
						VCVTPS2PD_BCST(at, x)
					} else {
						VBROADCASTSS(at, narrow)
						VCVTPS2PD(narrow, x)
					}
					for i := range across {
						VMULPD(Mem{Base: column, Disp: i * w.bytes()}, x, product)
						VADDPD(product, acc[t*across+i], acc[t*across+i])
					}
				}
				ADDQ(Imm(4), row)
				ADDQ(U32(8*queryRows), column)
			})
			for i, a := range acc {
				VMOVUPD(a, Mem{Base: out, Disp: i/across*8*queryRows + at + i%across*w.bytes()})
			}
		}
		LEAQ(Mem{Base: e, Index: stride, Scale: uint8(tokens)}, e)
		ADDQ(U32(uint32(8*queryRows*tokens)), out)
	})
	done()
}

// A constants hands out float32 constants: held in registers where there are
// 32 of them, else read from memory at each use.
type constants struct {
	w    width
	held map[float32]Op
}

func (w width) constants(values ...float32) constants {
	c := constants{w, map[float32]Op{}}
	for _, v := range values {
		if w.lanes == 16 {
			c.held[v] = w.all(v)
		} else {
			c.held[v] = word(math.Float32bits(v))
		}
	}
	return c
}

// The constants of the float32 exponential, as in metric_generic.go.
var (
	expLog2E        = float32(1.44269504088896341)
	expLn2Hi        = float32(0.693359375)
	expLn2Lo        = float32(-2.12194440e-4)
	expMin          = float32(-87)
	expMax          = float32(80)
	expCoefficients = []float32{1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5}
	expConstants    = append([]float32{expLog2E, expLn2Hi, expLn2Lo, expMin, expMax, 1}, expCoefficients...)
)

// expParts splits x into 2^n, r and e^r − 1 − r; x is used up.
func (c constants) expParts(x reg.VecVirtual) (pow, r, second reg.VecVirtual) {
	w := c.w
	n, t := w.vec(), w.vec()
	VMULPS(c.held[expLog2E], x, n)
	w.roundEven(n)
	VMULPS(c.held[expLn2Hi], n, t)
	VSUBPS(t, x, x)
	VMULPS(c.held[expLn2Lo], n, t)
	VSUBPS(t, x, x)
	p := w.vec()
	VMULPS(c.held[expCoefficients[0]], x, p)
	VADDPS(c.held[expCoefficients[1]], p, p)
	for _, k := range expCoefficients[2:] {
		VMULPS(x, p, p)
		VADDPS(c.held[k], p, p)
	}
	square := w.vec()
	VMULPS(x, x, square)
	VMULPS(square, p, p)
	VCVTPS2DQ(n, n)
	VPSLLD(Imm(23), n, n)
	VPADDD(c.held[1], n, n) // the bits of 1 are 127<<23
	return n, x, p
}

// eachPart emits body for each part of the 32 rows that fills a register. In it
// pointers go through the tokens; they start at the part.
func (w width) eachPart(pointers []string, body func(at []reg.GPVirtual, part int)) {
	for part := range queryRows / w.lanes {
		var at []reg.GPVirtual
		for _, name := range pointers {
			p := GP64()
			Load(Param(name), p)
			if part > 0 {
				ADDQ(U32(uint32(part*w.bytes())), p)
			}
			at = append(at, p)
		}
		body(at, part)
	}
}

// eachToken emits a loop over tokens.
func (w width) eachToken(at []reg.GPVirtual, body func()) {
	left := gp("tokens")
	loop(left, 1, func() {
		body()
		for _, p := range at {
			ADDQ(U32(4*queryRows), p)
		}
	})
}

func (w width) tilt() {
	w.text("tilt", "func(delta, p, shift, sums *float32, tokens int)", "is Tilt; tokens is not 0.")
	c := w.constants(expConstants...)
	w.eachPart([]string{"delta", "p"}, func(at []reg.GPVirtual, part int) {
		shift, sums := gp("shift"), gp("sums")
		offset := part * w.bytes()
		by := w.vec()
		VMOVUPS(Mem{Base: shift, Disp: offset}, by)
		second, first := w.vec(), w.vec()
		zeroAll([]reg.VecVirtual{second, first})
		top, most := w.all(float32(math.Inf(-1))), w.vec()
		VMOVAPS(top, most)
		w.eachToken(at, func() {
			p, d, x := w.vec(), w.vec(), w.vec()
			VMOVUPS(Mem{Base: at[0]}, d)
			VMOVUPS(Mem{Base: at[1]}, p)
			VSUBPS(by, d, d)
			VMAXPS(d, most, most)
			VMINPS(c.held[expMax], d, x)
			VMAXPS(c.held[expMin], x, x)
			pow, r, h := c.expParts(x)
			less, weight := w.vec(), w.vec()
			VSUBPS(c.held[1], pow, less)
			VADDPS(h, r, weight)
			VMULPS(weight, pow, weight)
			VADDPS(less, weight, weight)
			VMULPS(p, weight, weight)
			VMOVUPS(weight, Mem{Base: at[0]})
			VADDPS(p, weight, weight)
			VMAXPS(weight, top, top)
			VMULPS(pow, h, h)
			VMULPS(pow, r, r)
			VSUBPS(d, r, r)
			VADDPS(less, r, r)
			VADDPS(r, h, h)
			VMULPS(p, h, h)
			VADDPS(h, second, second)
			VMULPS(p, d, d)
			VADDPS(d, first, first)
		})
		for i, v := range []reg.VecVirtual{second, first, top, most} {
			VMOVUPS(v, Mem{Base: sums, Disp: 4*queryRows*i + offset})
		}
	})
	done()
}

func (w width) peak() {
	w.text("peak", "func(delta, p, logp, shift, sums *float32, tokens int)", "is Peak; tokens is not 0.")
	w.eachPart([]string{"delta", "p", "logp"}, func(at []reg.GPVirtual, part int) {
		shift, sums := gp("shift"), gp("sums")
		offset := part * w.bytes()
		by := w.vec()
		VMOVUPS(Mem{Base: shift, Disp: offset}, by)
		first, top := w.vec(), w.all(float32(math.Inf(-1)))
		zeroAll([]reg.VecVirtual{first})
		w.eachToken(at, func() {
			d, product := w.vec(), w.vec()
			VMOVUPS(Mem{Base: at[0]}, d)
			VSUBPS(by, d, d)
			VMULPS(Mem{Base: at[1]}, d, product)
			VADDPS(product, first, first)
			VADDPS(Mem{Base: at[2]}, d, d)
			VMAXPS(d, top, top)
		})
		VMOVUPS(first, Mem{Base: sums, Disp: offset})
		VMOVUPS(top, Mem{Base: sums, Disp: 4*queryRows + offset})
	})
	done()
}

func (w width) rise() {
	w.text("rise", "func(delta, logp, shift, sum *float32, tokens int)", "is Rise; tokens is not 0.")
	const notLess = 13 // GE_OS
	c := w.constants(expConstants...)
	w.eachPart([]string{"delta", "logp"}, func(at []reg.GPVirtual, part int) {
		shift, sum := gp("shift"), gp("sum")
		offset := part * w.bytes()
		by := w.vec()
		VMOVUPS(Mem{Base: shift, Disp: offset}, by)
		total := w.vec()
		zeroAll([]reg.VecVirtual{total})
		w.eachToken(at, func() {
			x := w.vec()
			VMOVUPS(Mem{Base: at[0]}, x)
			VSUBPS(by, x, x)
			VADDPS(Mem{Base: at[1]}, x, x)
			var mask reg.Register
			if w.lanes == 16 {
				k := K()
				VCMPPS(Imm(notLess), c.held[expMin], x, k)
				mask = k
			} else {
				m := w.vec()
				VCMPPS(Imm(notLess), c.held[expMin], x, m)
				mask = m
			}
			VMINPS(c.held[expMax], x, x)
			VMAXPS(c.held[expMin], x, x)
			pow, r, h := c.expParts(x)
			VADDPS(h, r, r)
			VMULPS(r, pow, r)
			if w.lanes == 16 {
				VADDPS_Z(pow, r, mask, r)
			} else {
				VADDPS(pow, r, r)
				VANDPS(mask, r, r)
			}
			VMOVUPS(r, Mem{Base: at[0]})
			VADDPS(r, total, total)
		})
		VMOVUPS(total, Mem{Base: sum, Disp: offset})
	})
	done()
}

// ahead is how many tokens early weights are asked for: they come from memory,
// page by page, where the hardware starts anew.
const ahead = 24

// weightedSum keeps the sums of some query rows and channels in registers over
// all tokens: 8 rows × 32 channels for AVX-512, 4 × 16 for AVX2.
func (w width) weightedSum() {
	w.text("weightedSum", "func(acc *float64, w, v *float32, width, tokens int)", "is WeightedSum; tokens is not 0.")
	rows, across := 8, 2
	if w.lanes == 8 {
		rows = 4
	}
	v, channels := gp("v"), gp("width")
	values, sums, stride, left := GP64(), GP64(), GP64(), GP64()
	MOVQ(channels, stride)
	SHLQ(Imm(2), stride)
	MOVQ(v, values)
	Load(Param("acc"), sums)
	MOVQ(channels, left)
	acc := w.vecs(rows * across)
	loop(left, across*w.lanes, func() {
		weights, to, groups := GP64(), GP64(), GP64()
		Load(Param("w"), weights)
		MOVQ(sums, to)
		MOVQ(U32(uint32(queryRows/rows)), groups)
		loop(groups, 1, func() {
			zeroAll(acc)
			weight, value, tokens := GP64(), GP64(), gp("tokens")
			MOVQ(weights, weight)
			MOVQ(values, value)
			loop(tokens, 1, func() {
				x := w.vecs(across)
				for i := range x {
					VMOVUPS(Mem{Base: value, Disp: i * w.bytes()}, x[i])
				}
				for at := 0; at < 4*queryRows; at += 64 {
					PREFETCHT0(Mem{Base: weight, Disp: 4*queryRows*ahead + at})
				}
				for r := range rows {
					w.addScaled(Mem{Base: weight, Disp: 4 * r}, x, acc[r*across:])
				}
				ADDQ(U32(4*queryRows), weight)
				ADDQ(stride, value)
			})
			for i, a := range acc {
				at := Mem{Base: to, Disp: i % across * 2 * w.bytes()}
				w.addWide(a, at)
				if i%across == across-1 {
					LEAQ(Mem{Base: to, Index: stride, Scale: 2}, to)
				}
			}
			ADDQ(Imm(uint64(4*rows)), weights)
		})
		ADDQ(U32(uint32(across*w.bytes())), values)
		ADDQ(U32(uint32(2*across*w.bytes())), sums)
	})
	done()
}

// addWide adds the lanes of a to float64 in memory.
func (w width) addWide(a reg.VecVirtual, to Mem) {
	for i := range 2 {
		half, wide := w.half(), w.vec()
		if w.lanes == 16 {
			VEXTRACTF64X4(Imm(uint64(i)), a, half)
		} else {
			VEXTRACTF128(Imm(uint64(i)), a, half)
		}
		VCVTPS2PD(half, wide)
		VADDPD(to, wide, wide)
		VMOVUPD(wide, to)
		to.Disp += w.bytes()
	}
}
