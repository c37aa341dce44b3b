package main

import (
	"fmt"
	"math"
)

// The distances that package kernels fixes (decode_kernels.go), in bytes.
const (
	scoreBytes = 256 // of two query heads' scores
	valueBytes = 128 // of two query heads' outputs in a block of 32 lanes
	blockBytes = 512 // of two blocks of outputs
	biasBytes  = 80  // of two query heads' sums in foldWeighted
	pageBytes  = 256 // of the metadata of two groups of a page's tokens
	mostHeads  = 4
)

const dotProd = "DOTPROD"

// decode emits the kernels of decode attention. Both backends multiply codes with
// 16-bit multiplicands in exact integers: NEON as words, one widening multiply-add
// for four lanes and one code of each; DotProd as two planes of signed bytes, one
// instruction for four lanes and four codes of each, for both planes. The planes
// join as 256·high + low. Sums are modulo 2^32 either way.
func decode(a *asm) {
	for _, isa := range []string{neon, dotProd} {
		for _, bits := range []int{8, 4} {
			for heads := 1; heads <= mostHeads; heads++ {
				for _, mode := range []string{"tile", "score", "scoreHalf", "scoreHalfAdd", "value"} {
					for wide := 1; wide <= 2; wide++ {
						if wide == 2 || mode == "tile" || mode == "value" {
							intTile{isa, bits, heads, 16 * wide, mode}.emit(a)
						}
					}
				}
			}
		}
		for _, weighted := range []bool{false, true} {
			for _, scaled := range []bool{false, true} {
				fold(a, isa, weighted, scaled)
			}
		}
	}
	for _, size := range []int{2, 4} {
		for heads := 1; heads <= mostHeads; heads++ {
			floatTile{size, heads, 32, "score"}.emit(a)
			floatTile{size, heads, 16, "value"}.emit(a)
			floatTile{size, heads, 32, "value"}.emit(a)
		}
	}
	for _, offset := range []bool{false, true} {
		scoreToken(a, offset)
		accumulate(a, 16, offset)
		accumulate(a, 32, offset)
	}
	softmax(a)
	laneDot(a)
	merge(a)
	byScalar(a, "multiply", "src·a", a.fmul4s)
	byScalar(a, "divide", "src / a", a.fdiv4s)
	fetch(a)
	read(a)
}

// allOf loads the float32 or int32 at an offset into every lane of d.
func (a *asm) allOf(d vec, base gp, offset int) {
	a.ldrs(d, base, offset)
	a.dup4s(d, d, 0)
}

// intTile multiplies codes with multiplicands for some query heads and blocks of
// lanes; what it does with the sums is its mode, as intTiles of package kernels says.
type intTile struct {
	isa                string
	bits, heads, lanes int
	mode               string
}

// codes is how many codes of a lane a step takes.
func (t intTile) codes() int { return 32 / t.bits }

func (t intTile) emit(a *asm) {
	params, doc := "", ""
	switch t.mode {
	case "tile":
		params, doc = "sums *int32, codes, coef *byte, plane int, bias *int32, blocks, steps int", "sums"
	case "score":
		params, doc = "z *float32, codes, coef *byte, plane int, bias *int32, unit, add *float32, blocks, steps int", "score"
	case "scoreHalf", "scoreHalfAdd":
		params, doc = "z *float32, codes, coef *byte, plane int, bias *int32, unit *float32, scale *byte, blocks, steps int", t.mode
	case "value":
		params, doc = "o *float32, codes, coef *byte, plane int, bias *int32, r, unit *float32, blocks, steps int", "value"
	}
	name := fmt.Sprintf("%s%dx%dx%d%s", t.mode, t.bits, t.heads, t.lanes/16, t.isa)
	a.function(name, params, "", fmt.Sprintf("is %s of intTiles for int%d, %d query heads and %d lanes; blocks and steps are not 0.", doc, t.bits, t.heads, t.lanes), func() {
		out := a.param(map[string]string{"tile": "sums", "score": "z", "scoreHalf": "z", "scoreHalfAdd": "z", "value": "o"}[t.mode])
		codes, coef, plane, blocks, steps := a.param("codes"), a.param("coef"), a.param("plane"), a.param("blocks"), a.param("steps")
		e := t.epilogue(a, out)
		bias := t.biases(a, coef, plane, steps)
		blockSize := a.gp()
		a.lslImm(blockSize, steps, map[int]int{16: 6, 32: 7}[t.lanes])
		part, line, from := a.gp(), a.gp(), a.gp()
		width := 16 // lanes of a part
		if t.isa == dotProd {
			width = 8
		}
		a.loop(blocks, 1, func() {
			a.mov(from, codes)
			a.movImm(part, uint64(t.lanes/width))
			a.loop(part, 1, func() {
				a.mov(line, from)
				var acc [][]vec
				if t.isa == dotProd {
					acc = t.dotPlanes(a, line, coef, plane, steps)
				} else {
					acc = t.multiplyWords(a, line, coef, plane, steps)
				}
				for h, sums := range acc {
					b := a.vec()
					a.dupGP(b, bias[h], "S4")
					for _, s := range sums {
						a.sub4s(s, s, b)
					}
					a.release(b)
					e.store(h, sums)
					a.release(sums...)
				}
				e.advance(4 * width)
				a.addImm(from, from, 4*width)
			})
			a.add(codes, codes, blockSize)
			e.nextBlock()
		})
	})
}

// biases returns what is to be subtracted from the sums of each head: its bias; and
// where the codes' top bit is flipped to make them signed, the product of −128 with
// the sum of the multiplicands.
func (t intTile) biases(a *asm, coef, plane, steps gp) []gp {
	at := a.param("bias")
	var bias []gp
	for h := range t.heads {
		b := a.gp()
		a.op("MOVW", mem(at, 4*h), b)
		bias = append(bias, b)
	}
	a.releaseGP(at)
	if t.isa != dotProd || t.bits == 4 {
		return bias
	}
	a.comment("Add −128 times the sum of the multiplicands to the biases.")
	high, low, n, sum := a.gp(), a.gp(), a.gp(), a.gp()
	flip, x, y, sums, sumsLow := a.vec(), a.vec(), a.vec(), a.vec(), a.vec()
	a.movi16b(flip, 128)
	a.mov(high, coef)
	for h := range t.heads {
		a.add(low, high, plane)
		a.zeroAll(sums, sumsLow)
		a.mov(n, steps)
		next := a.gp()
		a.add(next, low, plane)
		take := func(load func(d vec, base gp, offset int), bytes int) func() {
			return func() {
				load(x, high, 0)
				load(y, low, 0)
				a.sdot4s(sums, flip, x)
				a.sdot4s(sumsLow, flip, y)
				a.addImm(high, high, bytes)
				a.addImm(low, low, bytes)
			}
		}
		a.whileAtLeast(n, 4, take(a.ldrq, 16))
		a.whileAtLeast(n, 1, take(a.ldrs, 4))
		a.shl4s(sums, sums, 8)
		a.add4s(sums, sums, sumsLow)
		a.addv4s(sums, sums)
		a.op("VMOV", sums.at("S", 0), sum)
		a.add(bias[h], bias[h], sum)
		a.mov(high, next)
		a.releaseGP(next)
	}
	a.releaseGP(high, low, n, sum)
	a.release(flip, x, y, sums, sumsLow)
	return bias
}

// rows returns pointers to n rows that stand distance apart.
func (a *asm) rows(first, distance gp, n int) []gp {
	var at []gp
	for i := range n {
		at = append(at, a.gp())
		if i == 0 {
			a.mov(at[i], first)
		} else {
			a.add(at[i], at[i-1], distance)
		}
	}
	return at
}

// multiplyWords sums 16 lanes from line on, for each head in four registers.
func (t intTile) multiplyWords(a *asm, line, coef, plane, steps gp) [][]vec {
	n, distance := a.gp(), a.gp()
	a.lslImm(distance, plane, 1)
	at := a.rows(coef, distance, t.heads)
	m := a.vecsOf(t.heads) // low registers: an instruction with a word as factor needs one
	codes := a.vecsOf(4)
	acc := make([][]vec, t.heads)
	for h := range acc {
		acc[h] = a.vecsOf(4)
		a.zeroAll(acc[h]...)
	}
	var mask vec
	if t.bits == 4 {
		mask = a.vec()
		a.movi16b(mask, 15)
	}
	multiply := func(bytes vec, word int) {
		low, high := a.vec(), a.vec()
		a.uxtl8h(low, bytes)
		a.uxtl28h(high, bytes)
		for h := range acc {
			a.smlalLane4s(acc[h][0], low, m[h], word)
			a.smlal2Lane4s(acc[h][1], low, m[h], word)
			a.smlalLane4s(acc[h][2], high, m[h], word)
			a.smlal2Lane4s(acc[h][3], high, m[h], word)
		}
		a.release(low, high)
	}
	a.mov(n, steps)
	a.loop(n, 1, func() {
		for h := range m {
			if t.bits == 8 {
				a.ldrd(m[h], at[h], 0)
			} else {
				a.ldrq(m[h], at[h], 0)
			}
			a.addImm(at[h], at[h], 2*t.codes())
		}
		a.ld416b(codes, line)
		a.addImm(line, line, 4*t.lanes)
		for j, c := range codes {
			if t.bits == 8 {
				multiply(c, j)
				continue
			}
			nibble := a.vec()
			a.and16b(nibble, c, mask)
			multiply(nibble, j)
			a.ushr16b(nibble, c, 4)
			multiply(nibble, 4+j)
			a.release(nibble)
		}
	})
	a.release(append(m, codes...)...)
	if t.bits == 4 {
		a.release(mask)
	}
	a.releaseGP(append(at, n, distance)...)
	return acc
}

// dotPlanes sums 8 lanes from line on, for each head in two registers.
func (t intTile) dotPlanes(a *asm, line, coef, plane, steps gp) [][]vec {
	n := a.gp()
	at := a.rows(coef, plane, 2*t.heads)
	planes := a.vecsOf(2 * t.heads)
	acc := a.vecsOf(4 * t.heads) // of a plane's two registers one after the other
	a.zeroAll(acc...)
	mask, code, bytes := a.vec(), a.vec(), a.vec()
	if t.bits == 8 {
		a.movi16b(mask, 128)
	} else {
		a.movi16b(mask, 15)
	}
	dot := func(i, quad int, x vec) {
		for p, m := range planes {
			a.sdotLane4s(acc[2*p+i], x, m, quad)
		}
	}
	step := func(s int) {
		for i := range 2 {
			a.ldrq(code, line, s*4*t.lanes+16*i)
			if t.bits == 8 {
				a.eor16b(bytes, code, mask)
				dot(i, s, bytes)
				continue
			}
			a.and16b(bytes, code, mask)
			dot(i, 2*s, bytes)
			a.ushr16b(bytes, code, 4)
			dot(i, 2*s+1, bytes)
		}
	}
	take := func(steps int, load func(d vec, base gp, offset int)) func() {
		return func() {
			for p, m := range planes {
				load(m, at[p], 0)
				a.addImm(at[p], at[p], steps*t.codes())
			}
			for s := range steps {
				step(s)
			}
			a.addImm(line, line, steps*4*t.lanes)
		}
	}
	a.mov(n, steps)
	full := 16 / t.codes() // steps to a register of multiplicands
	a.whileAtLeast(n, full, take(full, a.ldrq))
	if t.bits == 8 {
		a.whileAtLeast(n, 1, take(1, a.ldrs))
	} else {
		a.whileAtLeast(n, 1, take(1, a.ldrd))
	}
	var sums [][]vec
	for h := range t.heads {
		high, low := acc[4*h:4*h+2], acc[4*h+2:4*h+4]
		for i := range high {
			a.shl4s(high[i], high[i], 8)
			a.add4s(high[i], high[i], low[i])
		}
		a.release(low...)
		sums = append(sums, high)
	}
	a.release(append(planes, mask, code, bytes)...)
	a.releaseGP(append(at, n)...)
	return sums
}

// epilogue writes sums where a tile's mode wants them.
type epilogue struct {
	store     func(h int, sums []vec) // of a part of the lanes of head h; sums is used up
	advance   func(bytes int)         // to the next part, of as many bytes of float32
	nextBlock func()
}

func (t intTile) epilogue(a *asm, out gp) epilogue {
	factors := func(base gp, offset int) vec {
		v := a.vec()
		a.allOf(v, base, offset)
		return v
	}
	// eachUnit converts the sums of head h and hands them over times its unit.
	eachUnit := func(unit gp, h int, sums []vec, use func(i int, v vec)) {
		u := factors(unit, 4*h)
		for i, s := range sums {
			a.scvtf4s(s, s)
			a.fmul4s(s, s, u)
			use(i, s)
		}
		a.release(u)
	}
	advance := func(bytes int) { a.addImm(out, out, bytes) }
	switch t.mode {
	case "tile":
		return epilogue{
			func(h int, sums []vec) {
				for i, s := range sums {
					a.strq(s, out, 4*t.lanes*h+16*i)
				}
			},
			advance,
			func() { a.addImm(out, out, 4*t.lanes*(t.heads-1)) },
		}
	case "score":
		unit, add := a.param("unit"), a.param("add")
		return epilogue{
			func(h int, sums []vec) {
				b := factors(add, 4*h)
				eachUnit(unit, h, sums, func(i int, v vec) {
					a.fadd4s(v, v, b)
					a.strq(v, out, scoreBytes*h+16*i)
				})
				a.release(b)
			},
			advance, func() {},
		}
	case "scoreHalf", "scoreHalfAdd":
		unit, scale := a.param("unit"), a.param("scale")
		return epilogue{
			func(h int, sums []vec) {
				s := a.vec()
				eachUnit(unit, h, sums, func(i int, v vec) {
					a.ldrd(s, scale, 8*i)
					a.fcvtl4s(s, s)
					a.fmul4s(v, v, s)
					if t.mode == "scoreHalfAdd" {
						a.ldrq(s, out, scoreBytes*h+16*i)
						a.fadd4s(v, s, v)
					}
					a.strq(v, out, scoreBytes*h+16*i)
				})
				a.release(s)
			},
			func(bytes int) {
				advance(bytes)
				a.addImm(scale, scale, bytes/2)
			},
			func() {},
		}
	}
	unit, r := a.param("unit"), a.param("r")
	return epilogue{
		func(h int, sums []vec) {
			decay, o := factors(r, 4*h), a.vec()
			eachUnit(unit, h, sums, func(i int, v vec) {
				a.ldrq(o, out, valueBytes*h+16*i)
				a.fmul4s(o, o, decay)
				a.fadd4s(v, o, v)
				a.strq(v, out, valueBytes*h+16*i)
			})
			a.release(decay, o)
		},
		advance,
		func() { a.addImm(out, out, blockBytes-4*t.lanes) },
	}
}

// floatTile multiplies float16 (size 2) or float32 codes with float rows.
type floatTile struct {
	size, heads, lanes int
	mode               string
}

func (t floatTile) emit(a *asm) {
	name := fmt.Sprintf("%sF%dx%dx%dNEON", t.mode, 8*t.size, t.heads, t.lanes/16)
	params := "z *float32, codes *byte, x *float32, row, blocks, steps int"
	if t.mode == "value" {
		params = "o *float32, codes *byte, x *float32, row int, r *float32, blocks, steps int"
	}
	doc := fmt.Sprintf("is %s of floatTiles for codes of %d bytes, %d query heads and %d lanes; blocks and steps are not 0.", t.mode, t.size, t.heads, t.lanes)
	a.function(name, params, "", doc, func() {
		var out, decays gp
		if t.mode == "value" {
			out, decays = a.param("o"), a.param("r")
		} else {
			out = a.param("z")
		}
		codes, x, distance, blocks, steps := a.param("codes"), a.param("x"), a.param("row"), a.param("blocks"), a.param("steps")
		a.lslImm(distance, distance, 2)
		blockSize, part, line, from, n := a.gp(), a.gp(), a.gp(), a.gp(), a.gp()
		a.lslImm(blockSize, steps, map[int]int{32: 5, 64: 6, 128: 7}[t.size*t.lanes])
		at := a.rows(x, distance, t.heads)
		factors := a.vecsOf(t.heads)
		acc := a.vecsOf(4 * t.heads)
		code, product := a.vecsOf(4), a.vec()
		step := func(s int) {
			offset := s * t.size * t.lanes
			for i := range code {
				if t.size == 4 {
					a.ldrq(code[i], line, offset+16*i)
				} else if i%2 == 0 {
					a.ldrq(code[i+1], line, offset+8*i)
					a.fcvtl4s(code[i], code[i+1])
					a.fcvtl24s(code[i+1], code[i+1])
				}
			}
			for i, sum := range acc {
				if t.size == 2 {
					a.fmlaLane4s(sum, code[i%4], factors[i/4], s)
					continue
				}
				a.fmulLane4s(product, code[i%4], factors[i/4], s)
				a.fadd4s(sum, sum, product)
			}
		}
		take := func(steps int, load func(d vec, base gp, offset int)) func() {
			return func() {
				for h, f := range factors {
					load(f, at[h], 0)
					a.addImm(at[h], at[h], 4*steps)
				}
				for s := range steps {
					step(s)
				}
				a.addImm(line, line, steps*t.size*t.lanes)
			}
		}
		a.loop(blocks, 1, func() {
			a.mov(from, codes)
			a.movImm(part, uint64(t.lanes/16))
			a.loop(part, 1, func() {
				a.zeroAll(acc...)
				for h := range at {
					if h == 0 {
						a.mov(at[h], x)
					} else {
						a.add(at[h], x, distance)
						for range h - 1 {
							a.add(at[h], at[h], distance)
						}
					}
				}
				a.mov(line, from)
				a.mov(n, steps)
				a.whileAtLeast(n, 4, take(4, a.ldrq))
				a.whileAtLeast(n, 1, take(1, a.ldrs))
				for i, sum := range acc {
					h, at := i/4, i%4*16
					if t.mode == "score" {
						a.strq(sum, out, scoreBytes*h+at)
						continue
					}
					if i%4 == 0 {
						a.allOf(product, decays, 4*h)
					}
					a.ldrq(code[0], out, valueBytes*h+at)
					a.fmul4s(code[0], code[0], product)
					a.fadd4s(sum, code[0], sum)
					a.strq(sum, out, valueBytes*h+at)
				}
				a.addImm(out, out, 64)
				a.addImm(from, from, 16*t.size)
			})
			a.add(codes, codes, blockSize)
			if t.mode == "value" {
				a.addImm(out, out, blockBytes-4*t.lanes)
			}
		})
	})
}

// smallestFold is 2^−100: a row below it folds to zeros.
var smallestFold = float32(math.Ldexp(1, -100))

// fold turns rows into multiplicands: words for NEON, planes of high and of low
// bytes for DotProd.
func fold(a *asm, isa string, weighted, scaled bool) {
	name, scale, last := "fold", "", "centre"
	what := "bias[h] = centre·Σ m"
	if weighted {
		name, last = "foldWeighted", "weight *int32"
		what = "a sum of m·weight for every 32"
	}
	if scaled {
		name, scale = name+"Scaled", ", scale"
	} else {
		name += "Plain"
	}
	a.function(name+isa, "coef *byte, plane int, units *float32, bias *int32, x"+scale+" *float32, row int, limit float32, "+last+", heads, n int", "",
		"is fold of decodeKernels: "+what+"; n is a multiple of 32, not 0.", func() {
			coef, plane, units, bias := a.param("coef"), a.param("plane"), a.param("units"), a.param("bias")
			x, row, heads, n := a.param("x"), a.param("row"), a.param("heads"), a.param("n")
			var scales, weights, centre gp
			if scaled {
				scales = a.param("scale")
			}
			if weighted {
				weights = a.param("weight")
			} else {
				centre = a.param("centre")
			}
			limit, smallest := a.paramAll("limit"), a.all(smallestFold)
			var half vec
			if isa == dotProd {
				half = a.allHalves(128)
			}
			at, scaleAt, weightAt, biasAt, left, to, low := a.gp(), a.gp(), a.gp(), a.gp(), a.gp(), a.gp(), a.gp()
			// load reads 16 values of the row, times their scales.
			load := func() []vec {
				v := a.load4(at)
				if scaled {
					s := a.load4(scaleAt)
					for i := range v {
						a.fmul4s(v[i], v[i], s[i])
					}
					a.release(s...)
					a.addImm(scaleAt, scaleAt, 64)
				}
				a.addImm(at, at, 64)
				return v
			}
			start := func() {
				a.mov(at, x)
				if scaled {
					a.mov(scaleAt, scales)
				}
				a.mov(left, n)
			}
			a.loop(heads, 1, func() {
				a.comment("The largest magnitude, and what it makes of the unit.")
				most, unit, factor, enough := a.vec(), a.vec(), a.vec(), a.vec()
				a.zeroAll(most)
				start()
				a.loop(left, 16, func() {
					v := load()
					for _, r := range v {
						a.fabs4s(r, r)
						a.fmax4s(most, most, r)
					}
					a.release(v...)
				})
				a.fmaxv4s(most, most)
				a.dup4s(most, most, 0)
				a.fcmge4s(enough, most, smallest)
				a.fdiv4s(factor, limit, most)
				a.and16b(factor, factor, enough)
				a.fdiv4s(unit, most, limit)
				a.and16b(unit, unit, enough)
				a.strs(unit, units, 0)
				a.addImm(units, units, 4)
				a.release(most, unit, enough)

				a.comment("The multiplicands and their sums.")
				sum := a.vec()
				start()
				a.mov(to, coef)
				if isa == dotProd {
					a.add(low, coef, plane)
				}
				if weighted {
					a.mov(weightAt, weights)
					a.mov(biasAt, bias)
				} else {
					a.zeroAll(sum)
				}
				a.loop(left, 32, func() {
					if weighted {
						a.zeroAll(sum)
					}
					for range 2 {
						v := load()
						for _, m := range v {
							a.fmul4s(m, m, factor)
							a.fcvtns4s(m, m)
						}
						if weighted {
							w := a.load4(weightAt)
							for i := range w {
								a.mul4s(w[i], w[i], v[i])
								a.add4s(sum, sum, w[i])
							}
							a.release(w...)
							a.addImm(weightAt, weightAt, 64)
						} else {
							for _, m := range v {
								a.add4s(sum, sum, m)
							}
						}
						a.uzp18h(v[0], v[0], v[1])
						a.uzp18h(v[2], v[2], v[3])
						if isa == dotProd {
							a.uzp116b(v[1], v[0], v[2])
							a.add8h(v[0], v[0], half)
							a.add8h(v[2], v[2], half)
							a.uzp216b(v[0], v[0], v[2])
							a.strq(v[0], to, 0)
							a.strq(v[1], low, 0)
							a.addImm(to, to, 16)
							a.addImm(low, low, 16)
						} else {
							a.strq(v[0], to, 0)
							a.strq(v[2], to, 16)
							a.addImm(to, to, 32)
						}
						a.release(v...)
					}
					if weighted {
						a.addv4s(sum, sum)
						a.strs(sum, biasAt, 0)
						a.addImm(biasAt, biasAt, 4)
					}
				})
				if weighted {
					a.addImm(bias, bias, biasBytes)
				} else {
					a.addv4s(sum, sum)
					a.op("VMOV", sum.at("S", 0), left)
					a.op("MUL", centre, left, left)
					a.op("MOVW", left, mem(bias, 0))
					a.addImm(bias, bias, 4)
				}
				a.release(sum, factor)
				a.addShifted(x, x, row, 2)
				a.addShifted(coef, coef, plane, 1)
			})
		})
}

// minusZero is what sums start at that start at their first product.
func (a *asm) minusZero() vec { return a.allBits(1 << 31) }

func scoreToken(a *asm, offset bool) {
	name, params := "scoreToken"+neon, "z *float32, sums *int32, unit, scale *float32, heads, groups int"
	if offset {
		name, params = "scoreTokenOffset"+neon, "z *float32, sums *int32, unit, scale, offset, q *float32, heads, groups int"
	}
	a.function(name, params, "", "is scoreToken of decodeKernels; heads and groups are not 0.", func() {
		z, sums, units, scales := a.param("z"), a.param("sums"), a.param("unit"), a.param("scale")
		heads, groups := a.param("heads"), a.param("groups")
		var offsets, queries gp
		if offset {
			offsets, queries = a.param("offset"), a.param("q")
		}
		unit, start, q := a.vec(), a.minusZero(), a.vec()
		left, group, halfBlock, at, scaleAt, offsetAt, queryAt := a.gp(), a.gp(), a.gp(), a.gp(), a.gp(), a.gp(), a.gp()
		a.lslImm(halfBlock, heads, 7) // the sums of all heads over 32 tokens
		a.lslImm(group, heads, 8)
		a.loop(heads, 1, func() {
			a.allOf(unit, units, 0)
			for part := range 4 {
				acc := a.vecsOf(4)
				for _, s := range acc {
					a.mov16b(s, start)
				}
				a.addImm(at, sums, part%2*64)
				if part >= 2 {
					a.add(at, at, halfBlock)
				}
				a.addImm(scaleAt, scales, 64*part)
				if offset {
					a.addImm(offsetAt, offsets, 64*part)
					a.mov(queryAt, queries)
				}
				a.mov(left, groups)
				a.loop(left, 1, func() {
					v, s := a.load4(at), a.load4(scaleAt)
					for i := range v {
						a.scvtf4s(v[i], v[i])
						a.fmul4s(v[i], v[i], unit)
						a.fmul4s(v[i], v[i], s[i])
						a.fadd4s(acc[i], acc[i], v[i])
					}
					a.release(v...)
					a.release(s...)
					if offset {
						a.allOf(q, queryAt, 0)
						o := a.load4(offsetAt)
						for i := range o {
							a.fmul4s(o[i], o[i], q)
							a.fadd4s(acc[i], acc[i], o[i])
						}
						a.release(o...)
						a.addImm(offsetAt, offsetAt, pageBytes)
						a.addImm(queryAt, queryAt, 4*mostHeads)
					}
					a.add(at, at, group)
					a.addImm(scaleAt, scaleAt, pageBytes)
				})
				for i, s := range acc {
					a.strq(s, z, 64*part+16*i)
				}
				a.release(acc...)
			}
			a.addImm(z, z, scoreBytes)
			a.addImm(sums, sums, 128)
			a.addImm(units, units, 4)
			if offset {
				a.addImm(queries, queries, 4)
			}
		})
	})
}

func accumulate(a *asm, lanes int, offset bool) {
	name, params := "accumulateScaled", "o *float32, sums *int32, r, unit, scale *float32, heads, blocks int"
	if offset {
		name, params = "accumulateOffset", "o *float32, sums *int32, r, unit, scale, add, offset *float32, heads, blocks int"
	}
	a.function(fmt.Sprintf("%sx%d%s", name, lanes/16, neon), params, "",
		fmt.Sprintf("is accumulateScaled of decodeKernels for %d lanes; heads and blocks are not 0.", lanes), func() {
			o, sums, decays, units, scales := a.param("o"), a.param("sums"), a.param("r"), a.param("unit"), a.param("scale")
			heads, blocks := a.param("heads"), a.param("blocks")
			var adds, offsets gp
			if offset {
				adds, offsets = a.param("add"), a.param("offset")
			}
			left, at, rAt, unitAt, addAt := a.gp(), a.gp(), a.gp(), a.gp(), a.gp()
			r, unit, add := a.vec(), a.vec(), a.vec()
			a.loop(blocks, 1, func() {
				a.mov(left, heads)
				a.mov(at, o)
				a.mov(rAt, decays)
				a.mov(unitAt, units)
				if offset {
					a.mov(addAt, adds)
				}
				a.loop(left, 1, func() {
					a.ld1r4s(r, rAt)
					a.ld1r4s(unit, unitAt)
					if offset {
						a.ld1r4s(add, addAt)
					}
					v, s, out := a.vec(), a.vec(), a.vec()
					for i := range lanes / 4 {
						a.ldrq(v, sums, 16*i)
						a.scvtf4s(v, v)
						a.fmul4s(v, v, unit)
						a.ldrq(s, scales, 16*i)
						a.fmul4s(v, v, s)
						a.ldrq(out, at, 16*i)
						a.fmul4s(out, out, r)
						a.fadd4s(out, out, v)
						if offset {
							a.ldrq(s, offsets, 16*i)
							a.fmul4s(s, s, add)
							a.fadd4s(out, out, s)
						}
						a.strq(out, at, 16*i)
					}
					a.release(v, s, out)
					a.addImm(sums, sums, 4*lanes)
					a.addImm(at, at, valueBytes)
				})
				a.addImm(o, o, blockBytes)
				a.addImm(scales, scales, 4*lanes)
				if offset {
					a.addImm(offsets, offsets, 4*lanes)
				}
			})
		})
}

// The constants of exp2, as in decode_generic.go.
var exp2Coefficients = []float32{1, 0.693147182, 0.240223497, 0.0555038117, 0.00966636837, 0.00133813021}

const (
	exp2Low    = -100
	roundMagic = 3 << 22
)

func softmax(a *asm) {
	a.function("softmax"+neon, "z, m, r, l *float32, heads int", "", "is softmax of decodeKernels; heads is not 0.", func() {
		z, m, r, l, heads := a.param("z"), a.param("m"), a.param("r"), a.param("l"), a.param("heads")
		low, magic := a.all(exp2Low), a.all(roundMagic)
		var coefficients []vec
		for _, c := range exp2Coefficients {
			coefficients = append(coefficients, a.all(c))
		}
		// exp2 is 2^max(x, −100) in x's place.
		exp2 := func(x vec) {
			t, p := a.vec(), a.vec()
			a.fmax4s(x, x, low)
			a.fadd4s(t, x, magic)
			a.fsub4s(p, t, magic)
			a.fsub4s(x, x, p)
			a.mov16b(p, coefficients[5])
			for i := 4; i >= 0; i-- {
				a.fmul4s(p, p, x)
				a.fadd4s(p, p, coefficients[i])
			}
			a.shl4s(t, t, 23)
			a.add4s(x, p, t)
			a.release(t, p)
		}
		a.loop(heads, 1, func() {
			before, top := a.vec(), a.vec()
			a.allOf(before, m, 0)
			a.mov16b(top, before)
			v := a.vecsOf(4)
			for part := range 4 {
				for i := range v {
					a.ldrq(v[i], z, 64*part+16*i)
				}
				a.fmax4s(v[0], v[0], v[1])
				a.fmax4s(v[2], v[2], v[3])
				a.fmax4s(v[0], v[0], v[2])
				a.fmax4s(top, top, v[0])
			}
			a.fmaxv4s(top, top)
			a.dup4s(top, top, 0)
			a.fsub4s(before, before, top)
			exp2(before)
			a.strs(before, r, 0)
			a.strs(top, m, 0)
			for lane := range 4 {
				for i := range v {
					a.ldrq(v[i], z, 64*i+16*lane)
					a.fsub4s(v[i], v[i], top)
					exp2(v[i])
					a.strq(v[i], z, 64*i+16*lane)
				}
				for _, x := range v[1:] {
					a.fadd4s(v[0], v[0], x)
				}
				a.ldrq(v[1], l, 16*lane)
				a.fmul4s(v[1], v[1], before)
				a.fadd4s(v[0], v[1], v[0])
				a.strq(v[0], l, 16*lane)
			}
			a.release(v...)
			a.release(before, top)
			a.addImm(z, z, scoreBytes)
			a.addImm(l, l, 64)
			a.addImm(m, m, 4)
			a.addImm(r, r, 4)
		})
	})
}

func laneDot(a *asm) {
	a.function("laneDot"+neon, "e, x *float32, row int, w, r *float32, heads, n int", "",
		"is laneDot of decodeKernels; n is a multiple of 16, neither is 0.", func() {
			e, x, row, weights, decays, heads, n := a.param("e"), a.param("x"), a.param("row"), a.param("w"), a.param("r"), a.param("heads"), a.param("n")
			start, r, at, weightAt, left := a.minusZero(), a.vec(), a.gp(), a.gp(), a.gp()
			acc := a.vecsOf(4)
			a.loop(heads, 1, func() {
				for _, s := range acc {
					a.mov16b(s, start)
				}
				a.mov(at, x)
				a.mov(weightAt, weights)
				a.mov(left, n)
				a.loop(left, 16, func() {
					v, w := a.load4(at), a.load4(weightAt)
					for i := range v {
						a.fmul4s(v[i], v[i], w[i])
						a.fadd4s(acc[i], acc[i], v[i])
					}
					a.release(v...)
					a.release(w...)
					a.addImm(at, at, 64)
					a.addImm(weightAt, weightAt, 64)
				})
				a.ld1r4s(r, decays)
				v := a.load4(e)
				for i := range v {
					a.fmul4s(v[i], v[i], r)
					a.fadd4s(v[i], v[i], acc[i])
				}
				a.store4(v, e)
				a.release(v...)
				a.addImm(e, e, 64)
				a.addShifted(x, x, row, 2)
			})
		})
}

func merge(a *asm) {
	a.function("merge"+neon, "dst, src *float32, a, b float32, n int", "",
		"is merge of decodeKernels; n is a multiple of 16, not 0.", func() {
			dst, src, n, x, y := a.param("dst"), a.param("src"), a.param("n"), a.paramAll("a"), a.paramAll("b")
			a.loop(n, 16, func() {
				d, s := a.load4(dst), a.load4(src)
				for i := range d {
					a.fmul4s(d[i], d[i], x)
					a.fmul4s(s[i], s[i], y)
					a.fadd4s(d[i], d[i], s[i])
				}
				a.store4(d, dst)
				a.release(d...)
				a.release(s...)
				a.addImm(dst, dst, 64)
				a.addImm(src, src, 64)
			})
		})
}

func byScalar(a *asm, name, doc string, op func(d, n, m vec)) {
	a.function(name+neon, "dst, src *float32, a float32, n int", "",
		"sets dst to "+doc+"; n is a multiple of 16, not 0.", func() {
			dst, src, n, by := a.param("dst"), a.param("src"), a.param("n"), a.paramAll("a")
			a.loop(n, 16, func() {
				v := a.load4(src)
				for _, r := range v {
					op(r, r, by)
				}
				a.store4(v, dst)
				a.release(v...)
				a.addImm(dst, dst, 64)
				a.addImm(src, src, 64)
			})
		})
}

func fetch(a *asm) {
	a.function("fetch"+neon, "b *byte, lines int", "", "asks for lines of 64 bytes; lines is not 0.", func() {
		b, lines := a.param("b"), a.param("lines")
		a.loop(lines, 1, func() {
			a.op("PRFM", mem(b, 0), "PLDL1KEEP")
			a.addImm(b, b, 64)
		})
	})
}

func read(a *asm) {
	a.function("read"+neon, "b *byte, n int", "ret uint64",
		"reads n bytes and returns a mixture of them; n is a multiple of 512, not 0.", func() {
			b, n, r := a.param("b"), a.param("n"), a.gp()
			acc, v := a.vecsOf(8), a.vecsOf(8)
			a.zeroAll(acc...)
			a.loop(n, 512, func() {
				for i := range 32 {
					a.ldrq(v[i%8], b, 16*i)
					a.eor16b(acc[i%8], acc[i%8], v[i%8])
				}
				a.addImm(b, b, 512)
			})
			for _, x := range acc[1:] {
				a.eor16b(acc[0], acc[0], x)
			}
			a.op("VMOV", acc[0].at("D", 0), r)
			a.result("ret", r)
		})
}
