package main

import "math"

// metric emits the kernels that measure quality. No fused multiply-add: the
// generic kernels round twice.
func metric(a *asm) {
	errorSums(a)
	scores(a)
	scores64(a)
	tilt(a)
	peak(a)
	rise(a)
	weightedSum(a)
}

// queryRows is MetricLanes: the query rows side by side in one token's weights.
const queryRows = 32

func (a *asm) zeroAll(v ...vec) {
	for _, r := range v {
		a.eor16b(r, r, r)
	}
}

// errorSums takes 16 channels at a time: their float64 forms are the 16 lanes of
// the definition, two to a register.
func errorSums(a *asm) {
	a.function("errors"+neon, "e, got, want *float32, rowSquares, rowProducts, columnSums *float64, dim, rows int", "",
		"is Errors; dim is a multiple of 16.", func() {
			e, got, want := a.param("e"), a.param("got"), a.param("want")
			rowSquares, rowProducts, columnSums := a.param("rowSquares"), a.param("rowProducts"), a.param("columnSums")
			dim, rows := a.param("dim"), a.param("rows")
			sums, left := a.gp(), a.gp()
			squares, products := a.vecsOf(8), a.vecsOf(8)
			a.loop(rows, 1, func() {
				a.zeroAll(squares...)
				a.zeroAll(products...)
				a.mov(sums, columnSums)
				a.mov(left, dim)
				a.loop(left, 16, func() {
					exact, diff, x, d, column := a.vec(), a.vec(), a.vec(), a.vec(), a.vec()
					for i := range 4 {
						a.ldrq(exact, want, 16*i)
						a.ldrq(diff, got, 16*i)
						a.fsub4s(diff, diff, exact)
						a.strq(diff, e, 16*i)
						for half, widen := range []func(d, n vec){a.fcvtl2d, a.fcvtl22d} {
							lane := 2*i + half
							widen(x, exact)
							widen(d, diff)
							a.ldrq(column, sums, 16*lane)
							a.fadd2d(column, column, d)
							a.strq(column, sums, 16*lane)
							a.fmul2d(x, x, d)
							a.fadd2d(products[lane], products[lane], x)
							a.fmul2d(d, d, d)
							a.fadd2d(squares[lane], squares[lane], d)
						}
					}
					a.release(exact, diff, x, d, column)
					a.addImm(e, e, 64)
					a.addImm(got, got, 64)
					a.addImm(want, want, 64)
					a.addImm(sums, sums, 128)
				})
				for i, v := range [][]vec{squares, products} {
					to := []gp{rowSquares, rowProducts}[i]
					for n := 4; n > 0; n /= 2 { // lanes 8 apart, then 4, then 2
						for j := range n {
							a.fadd2d(v[j], v[j], v[j+n])
						}
					}
					a.faddp2d(v[0], v[0])
					a.strd(v[0], to, 0)
					a.addImm(to, to, 8)
				}
			})
		})
}

// scores keeps the sums of 4 tokens and 16 query rows in registers over all channels.
func scores(a *asm) {
	a.function("scores"+neon, "out, e, q *float32, dim, tokens int", "", "is Scores; tokens is a multiple of 8, not 0.", func() {
		out, e, q, dim, left := a.param("out"), a.param("e"), a.param("q"), a.param("dim"), a.param("tokens")
		a.tokenTile(e, dim, left, 4, 2, func(part int, row []gp, channels gp) {
			column, acc := a.gp(), a.vecsOf(16)
			a.addImm(column, q, 64*part)
			a.zeroAll(acc...)
			a.loop(channels, 1, func() {
				queries, x, product := a.load4(column), a.vec(), a.vec()
				for t := range row {
					a.ld1r4s(x, row[t])
					for i, v := range queries {
						a.fmul4s(product, v, x)
						a.fadd4s(acc[4*t+i], acc[4*t+i], product)
					}
				}
				a.addImm(column, column, 4*queryRows)
				a.release(append(queries, x, product)...)
			})
			for i, v := range acc {
				a.strq(v, out, i/4*4*queryRows+64*part+i%4*16)
			}
			a.release(acc...)
			a.releaseGP(column)
		}, func() { a.addImm(out, out, 4*4*queryRows) })
	})
}

// scores64 is scores in float64, for 4 tokens and 8 query rows.
func scores64(a *asm) {
	a.function("scores64"+neon, "out *float64, e *float32, q *float64, dim, tokens int", "", "is Scores64; tokens is a multiple of 8, not 0.", func() {
		out, e, q, dim, left := a.param("out"), a.param("e"), a.param("q"), a.param("dim"), a.param("tokens")
		a.tokenTile(e, dim, left, 4, 4, func(part int, row []gp, channels gp) {
			column, acc := a.gp(), a.vecsOf(16)
			a.addImm(column, q, 64*part)
			a.zeroAll(acc...)
			a.loop(channels, 1, func() {
				queries, x, product := a.load4(column), a.vec(), a.vec()
				for t := range row {
					a.ldrs(x, row[t], 0)
					a.addImm(row[t], row[t], 4)
					a.op("FCVTSD", x.f(), x.f())
					for i, v := range queries {
						a.fmulLane2d(product, v, x, 0)
						a.fadd2d(acc[4*t+i], acc[4*t+i], product)
					}
				}
				a.addImm(column, column, 8*queryRows)
				a.release(append(queries, x, product)...)
			})
			for i, v := range acc {
				a.strq(v, out, i/4*8*queryRows+64*part+i%4*16)
			}
			a.release(acc...)
			a.releaseGP(column)
		}, func() { a.addImm(out, out, 4*8*queryRows) })
	})
}

// tokenTile emits body for each part of the query rows of each `tokens` tokens of
// e, with pointers to these tokens' rows and a count of channels, and next after them.
func (a *asm) tokenTile(e, dim, left gp, tokens, parts int, body func(part int, row []gp, channels gp), next func()) {
	channels := a.gp()
	var row []gp
	for range tokens {
		row = append(row, a.gp())
	}
	a.loop(left, tokens, func() {
		for part := range parts {
			a.mov(row[0], e)
			for t := 1; t < tokens; t++ {
				a.addShifted(row[t], row[t-1], dim, 2)
			}
			a.mov(channels, dim)
			body(part, row, channels)
		}
		a.addShifted(e, e, dim, 4)
		next()
	})
}

// The constants of the float32 exponential, as in metric_generic.go.
const (
	expLog2E = 1.44269504088896341
	expLn2Hi = 0.693359375
	expLn2Lo = -2.12194440e-4
	expMin   = -87
	expMax   = 80
)

var expCoefficients = []float32{1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5}

// exponential holds the constants in registers.
type exponential struct {
	log2E, ln2Hi, ln2Lo, least, most, one vec
	coefficients                          []vec
}

func (a *asm) exponential() exponential {
	e := exponential{a.all(expLog2E), a.all(expLn2Hi), a.all(expLn2Lo), a.all(expMin), a.all(expMax), a.all(1), nil}
	for _, c := range expCoefficients {
		e.coefficients = append(e.coefficients, a.all(c))
	}
	return e
}

// parts splits x into 2^n, r and e^r − 1 − r, in three registers that the caller
// releases; r's is x.
func (e exponential) parts(a *asm, x vec) (pow, r, second vec) {
	n, t := a.vec(), a.vec()
	a.fmul4s(n, x, e.log2E)
	a.frintn4s(n, n)
	a.fmul4s(t, n, e.ln2Hi)
	a.fsub4s(x, x, t)
	a.fmul4s(t, n, e.ln2Lo)
	a.fsub4s(x, x, t)
	p := t
	a.fmul4s(p, x, e.coefficients[0])
	a.fadd4s(p, p, e.coefficients[1])
	for _, c := range e.coefficients[2:] {
		a.fmul4s(p, p, x)
		a.fadd4s(p, p, c)
	}
	square := a.vec()
	a.fmul4s(square, x, x)
	a.fmul4s(p, square, p)
	a.release(square)
	a.fcvtns4s(n, n)
	a.shl4s(n, n, 23)
	a.add4s(n, n, e.one) // the bits of 1 are 127<<23
	return n, x, p
}

// eachPart emits a loop over the parts of the 32 rows that fill a register. The
// named pointers of a part are loaded in order, at its offset.
func (a *asm) eachPart(pointers []string, body func(at []gp)) {
	offset, size := a.gp(), 4*queryRows
	a.movImm(offset, 0)
	l := a.newLabel("part")
	a.label(l)
	var at []gp
	for _, name := range pointers {
		p := a.param(name)
		a.add(p, p, offset)
		at = append(at, p)
	}
	body(at)
	a.addImm(offset, offset, 16)
	a.op("CMP", imm(size, 0, 4095), offset)
	a.op("BNE", l)
}

// eachToken emits a loop over the tokens that moves at along.
func (a *asm) eachToken(at []gp, body func()) {
	left := a.param("tokens")
	a.loop(left, 1, func() {
		body()
		for _, p := range at {
			a.addImm(p, p, 4*queryRows)
		}
	})
}

func tilt(a *asm) {
	a.function("tilt"+neon, "delta, p, shift, sums *float32, tokens int", "", "is Tilt; tokens is not 0.", func() {
		c, lowest := a.exponential(), a.all(float32(math.Inf(-1)))
		by, second, first, top, most := a.vec(), a.vec(), a.vec(), a.vec(), a.vec()
		a.eachPart([]string{"delta", "p", "shift", "sums"}, func(at []gp) {
			a.ldrq(by, at[2], 0)
			a.zeroAll(second, first)
			a.mov16b(top, lowest)
			a.mov16b(most, lowest)
			a.eachToken(at[:2], func() {
				p, d, x := a.vec(), a.vec(), a.vec()
				a.ldrq(d, at[0], 0)
				a.ldrq(p, at[1], 0)
				a.fsub4s(d, d, by)
				a.fmax4s(most, most, d)
				a.fmin4s(x, d, c.most)
				a.fmax4s(x, x, c.least)
				pow, r, h := c.parts(a, x)
				less, weight := a.vec(), a.vec()
				a.fsub4s(less, pow, c.one)
				a.fadd4s(weight, r, h)
				a.fmul4s(weight, pow, weight)
				a.fadd4s(weight, weight, less)
				a.fmul4s(weight, p, weight)
				a.strq(weight, at[0], 0)
				a.fadd4s(weight, p, weight)
				a.fmax4s(top, top, weight)
				a.fmul4s(h, pow, h)
				a.fmul4s(r, pow, r)
				a.fsub4s(r, r, d)
				a.fadd4s(r, r, less)
				a.fadd4s(h, h, r)
				a.fmul4s(h, p, h)
				a.fadd4s(second, second, h)
				a.fmul4s(d, p, d)
				a.fadd4s(first, first, d)
				a.release(p, d, x, pow, h, less, weight)
			})
			for i, v := range []vec{second, first, top, most} {
				a.strq(v, at[3], 4*queryRows*i)
			}
		})
	})
}

func peak(a *asm) {
	a.function("peak"+neon, "delta, p, logp, shift, sums *float32, tokens int", "", "is Peak; tokens is not 0.", func() {
		lowest, by, first, top := a.all(float32(math.Inf(-1))), a.vec(), a.vec(), a.vec()
		a.eachPart([]string{"delta", "p", "logp", "shift", "sums"}, func(at []gp) {
			a.ldrq(by, at[3], 0)
			a.zeroAll(first)
			a.mov16b(top, lowest)
			a.eachToken(at[:3], func() {
				d, p, l := a.vec(), a.vec(), a.vec()
				a.ldrq(d, at[0], 0)
				a.ldrq(p, at[1], 0)
				a.ldrq(l, at[2], 0)
				a.fsub4s(d, d, by)
				a.fmul4s(p, p, d)
				a.fadd4s(first, first, p)
				a.fadd4s(d, l, d)
				a.fmax4s(top, top, d)
				a.release(d, p, l)
			})
			a.strq(first, at[4], 0)
			a.strq(top, at[4], 4*queryRows)
		})
	})
}

func rise(a *asm) {
	a.function("rise"+neon, "delta, logp, shift, sum *float32, tokens int", "", "is Rise; tokens is not 0.", func() {
		c, by, total := a.exponential(), a.vec(), a.vec()
		a.eachPart([]string{"delta", "logp", "shift", "sum"}, func(at []gp) {
			a.ldrq(by, at[2], 0)
			a.zeroAll(total)
			a.eachToken(at[:2], func() {
				x, l, enough := a.vec(), a.vec(), a.vec()
				a.ldrq(x, at[0], 0)
				a.ldrq(l, at[1], 0)
				a.fsub4s(x, x, by)
				a.fadd4s(x, l, x)
				a.fcmge4s(enough, x, c.least)
				a.fmin4s(x, x, c.most)
				a.fmax4s(x, x, c.least)
				pow, r, h := c.parts(a, x)
				a.fadd4s(r, r, h)
				a.fmul4s(r, pow, r)
				a.fadd4s(r, r, pow)
				a.and16b(r, r, enough)
				a.strq(r, at[0], 0)
				a.fadd4s(total, total, r)
				a.release(x, l, enough, pow, h)
			})
			a.strq(total, at[3], 0)
		})
	})
}

// weightedSum keeps the sums of 4 query rows and 16 channels in registers over all tokens.
func weightedSum(a *asm) {
	a.function("weightedSum"+neon, "acc *float64, w, v *float32, width, tokens int", "", "is WeightedSum; tokens is not 0.", func() {
		sums, weights, values, channels, tokens := a.param("acc"), a.param("w"), a.param("v"), a.param("width"), a.param("tokens")
		left, groups, weight, value, to, n := a.gp(), a.gp(), a.gp(), a.gp(), a.gp(), a.gp()
		start := a.gp()
		acc := a.vecsOf(16)
		a.mov(left, channels)
		a.loop(left, 16, func() {
			a.mov(start, weights)
			a.mov(to, sums)
			a.movImm(groups, queryRows/4)
			a.loop(groups, 1, func() {
				a.zeroAll(acc...)
				a.mov(weight, start)
				a.mov(value, values)
				a.mov(n, tokens)
				a.loop(n, 1, func() {
					x, by, product := a.load4(value), a.vec(), a.vec()
					a.ldrq(by, weight, 0)
					for i := range acc {
						a.fmulLane4s(product, x[i%4], by, i/4)
						a.fadd4s(acc[i], acc[i], product)
					}
					a.addImm(weight, weight, 4*queryRows)
					a.addShifted(value, value, channels, 2)
					a.release(append(x, by, product)...)
				})
				wide, sum := a.vec(), a.vec()
				for i, v := range acc {
					for half, widen := range []func(d, n vec){a.fcvtl2d, a.fcvtl22d} {
						at := i%4*32 + half*16
						widen(wide, v)
						a.ldrq(sum, to, at)
						a.fadd2d(sum, sum, wide)
						a.strq(sum, to, at)
					}
					if i%4 == 3 {
						a.addShifted(to, to, channels, 3)
					}
				}
				a.release(wide, sum)
				a.addImm(start, start, 16)
			})
			a.addImm(values, values, 64)
			a.addImm(sums, sums, 128)
		})
	})
}
