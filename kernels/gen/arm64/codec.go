package main

// codecStep is the number of values that every codec kernel takes at once: four
// registers of float32, one of bytes.
const codecStep = 16

// codec emits the reductions, encoders and decoders.
func codec(a *asm) {
	absMaxRuns(a)
	minMaxRuns(a)
	columnReduction(a, "absMaxColumns", "raises acc[c] to the largest magnitude of column c", "acc")
	columnReduction(a, "minMaxColumns", "lowers lo[c] and raises hi[c] to the extremes of column c", "lo", "hi")
	encodeRuns(a)
	encodeColumns(a)
	decodeRuns(a)
	decodeColumns(a)
	for _, s := range []struct {
		name, doc string
		op        func(a *asm, v, scale vec)
	}{{"divide", "x / scale", (*asm).quotient}, {"multiply", "x·scale", func(a *asm, v, scale vec) { a.fmul4s(v, v, scale) }}} {
		scaleRuns(a, s.name+"Runs", s.doc, s.op)
		scaleColumns(a, s.name+"Columns", s.doc, s.op)
	}
	convert(a, "toF16", true, 2, toF16)
	convert(a, "toBF16", true, 2, toBF16)
	convert(a, "toE4M3", true, 1, func(a *asm) conversion { return toF8(a, 7, 3, 448) })
	convert(a, "toE5M2", true, 1, func(a *asm) conversion { return toF8(a, 15, 2, 57344) })
	convert(a, "fromF16", false, 2, fromF16)
	convert(a, "fromBF16", false, 2, fromBF16)
	convert(a, "fromE4M3", false, 1, fromE4M3)
	convert(a, "fromE5M2", false, 1, fromE5M2)
	pack(a)
	unpack(a)
}

const neon = "NEON"

// load4 loads four registers that stand one after the other.
func (a *asm) load4(base gp) []vec {
	v := a.vecsOf(4)
	for i, r := range v {
		a.ldrq(r, base, 16*i)
	}
	return v
}

func (a *asm) store4(v []vec, base gp) {
	for i, r := range v {
		a.strq(r, base, 16*i)
	}
}

// absMaxRuns takes maxima of the bits without sign: as integers they are ordered
// like the magnitudes, a NaN above all.
func absMaxRuns(a *asm) {
	a.function("absMaxRuns"+neon, "dst, x *float32, runs, run int", "",
		"sets dst[r] to the largest magnitude of run r. run is a multiple of 16; neither is 0.", func() {
			dst, x, runs, run := a.param("dst"), a.param("x"), a.param("runs"), a.param("run")
			n, acc := a.gp(), a.vecsOf(4)
			a.loop(runs, 1, func() {
				for _, m := range acc {
					a.eor16b(m, m, m)
				}
				a.mov(n, run)
				a.loop(n, codecStep, func() {
					v := a.load4(x)
					for i, m := range acc {
						a.fabs4s(v[i], v[i])
						a.umax4s(m, m, v[i])
					}
					a.release(v...)
					a.addImm(x, x, 64)
				})
				a.umax4s(acc[0], acc[0], acc[1])
				a.umax4s(acc[2], acc[2], acc[3])
				a.umax4s(acc[0], acc[0], acc[2])
				a.umaxv4s(acc[0], acc[0])
				a.strs(acc[0], dst, 0)
				a.addImm(dst, dst, 4)
			})
		})
}

func minMaxRuns(a *asm) {
	a.function("minMaxRuns"+neon, "lo, hi, x *float32, runs, run int", "",
		"sets lo[r] and hi[r] to the extremes of run r, a zero made positive. run is a multiple of 16; neither is 0.", func() {
			lo, hi, x, runs, run := a.param("lo"), a.param("hi"), a.param("x"), a.param("runs"), a.param("run")
			n, zero := a.gp(), a.allBits(0)
			least, largest := a.vecsOf(2), a.vecsOf(2)
			a.loop(runs, 1, func() {
				for _, r := range append(least, largest...) {
					a.ldrq(r, x, 0)
				}
				a.mov(n, run)
				a.loop(n, codecStep, func() {
					v := a.load4(x)
					for i, r := range v {
						a.fmin4s(least[i%2], least[i%2], r)
						a.fmax4s(largest[i%2], largest[i%2], r)
					}
					a.release(v...)
					a.addImm(x, x, 64)
				})
				a.fmin4s(least[0], least[0], least[1])
				a.fmax4s(largest[0], largest[0], largest[1])
				a.fminv4s(least[0], least[0])
				a.fmaxv4s(largest[0], largest[0])
				for i, at := range []gp{lo, hi} {
					r := []vec{least[0], largest[0]}[i]
					a.fadd4s(r, r, zero)
					a.strs(r, at, 0)
					a.addImm(at, at, 4)
				}
			})
		})
}

// columnReduction walks down strips of 16 columns.
func columnReduction(a *asm, name, doc string, accs ...string) {
	params := accs[0]
	for _, other := range accs[1:] {
		params += ", " + other
	}
	a.function(name+neon, params+", x *float32, rows, columns int", "",
		doc+". columns is a multiple of 16; neither is 0.", func() {
			var acc []gp
			for _, p := range accs {
				acc = append(acc, a.param(p))
			}
			x, rows, columns := a.param("x"), a.param("rows"), a.param("columns")
			stride, at, n := a.gp(), a.gp(), a.gp()
			a.lslImm(stride, columns, 2)
			zero := a.allBits(0)
			a.loop(columns, codecStep, func() {
				a.mov(at, x)
				a.mov(n, rows)
				var best [][]vec
				for _, r := range acc {
					best = append(best, a.load4(r))
				}
				a.loop(n, 1, func() {
					v := a.load4(at)
					for i, r := range v {
						if len(acc) == 1 {
							a.fabs4s(r, r)
							a.fmax4s(best[0][i], best[0][i], r)
						} else {
							a.fmin4s(best[0][i], best[0][i], r)
							a.fmax4s(best[1][i], best[1][i], r)
						}
					}
					a.release(v...)
					a.add(at, at, stride)
				})
				for i, r := range acc {
					if len(acc) == 2 {
						for _, v := range best[i] {
							a.fadd4s(v, v, zero)
						}
					}
					a.store4(best[i], r)
					a.release(best[i]...)
					a.addImm(r, r, 64)
				}
				a.addImm(x, x, 64)
			})
		})
}

// quotient divides v by scale; 0 where the scale is 0.
func (a *asm) quotient(v, scale vec) {
	none := a.vec()
	a.fcmeqZero4s(none, scale)
	a.fdiv4s(v, v, scale)
	a.bic16b(v, v, none)
	a.release(none)
}

// narrow leaves the lowest bytes of 16 doublewords in v[0].
func (a *asm) narrow(v []vec) {
	a.uzp18h(v[0], v[0], v[1])
	a.uzp18h(v[2], v[2], v[3])
	a.uzp116b(v[0], v[0], v[2])
}

// encode writes the fields of the 16 values at x. scale, bias and offset give the
// register for each four of them.
func (a *asm) encode(fields, x gp, lo, hi vec, scale, bias, offset func(i int) vec) {
	v := a.load4(x)
	for i, r := range v {
		o := offset(i)
		a.fsub4s(r, r, o)
		s := scale(i)
		a.quotient(r, s)
		a.frintn4s(r, r)
		b := bias(i)
		a.fadd4s(r, r, b)
		a.fmax4s(r, r, lo)
		a.fmin4s(r, r, hi)
		a.fcvtzs4s(r, r)
	}
	a.narrow(v)
	a.strq(v[0], fields, 0)
	a.release(v...)
	a.addImm(x, x, 64)
	a.addImm(fields, fields, codecStep)
}

// decode writes the values of 16 fields.
func (a *asm) decode(dst, fields gp, scale, bias, offset func(i int) vec) {
	f, words := a.vec(), a.vecsOf(2)
	a.ldrq(f, fields, 0)
	a.uxtl8h(words[0], f)
	a.uxtl28h(words[1], f)
	for i := range 4 {
		v := a.vec()
		if i%2 == 0 {
			a.uxtl4s(v, words[i/2])
		} else {
			a.uxtl24s(v, words[i/2])
		}
		a.ucvtf4s(v, v)
		b := bias(i)
		a.fsub4s(v, v, b)
		s := scale(i)
		a.fmul4s(v, v, s)
		o := offset(i)
		a.fadd4s(v, v, o)
		a.strq(v, dst, 16*i)
		a.release(v)
	}
	a.release(f)
	a.release(words...)
	a.addImm(fields, fields, codecStep)
	a.addImm(dst, dst, 64)
}

// same is a register that serves all values of a run.
func same(v vec) func(int) vec { return func(int) vec { return v } }

// column returns loads of the entries at base, four at a time, through one register.
func (a *asm) column(v vec, base gp) func(int) vec {
	return func(i int) vec {
		a.ldrq(v, base, 16*i)
		return v
	}
}

func encodeRuns(a *asm) {
	a.function("encodeRuns"+neon, "fields *uint8, x, scale, bias, offset *float32, lo, hi float32, runs, run int", "",
		"writes the fields of x as Affine says. run is a multiple of 16; neither is 0.", func() {
			fields, x, runs, run := a.param("fields"), a.param("x"), a.param("runs"), a.param("run")
			scales, biases, offsets := a.param("scale"), a.param("bias"), a.param("offset")
			lo, hi, n := a.paramAll("lo"), a.paramAll("hi"), a.gp()
			scale, bias, offset := a.vec(), a.vec(), a.vec()
			a.loop(runs, 1, func() {
				a.ld1r4s(scale, scales)
				a.ld1r4s(bias, biases)
				a.ld1r4s(offset, offsets)
				a.mov(n, run)
				a.loop(n, codecStep, func() { a.encode(fields, x, lo, hi, same(scale), same(bias), same(offset)) })
			})
		})
}

func encodeColumns(a *asm) {
	a.function("encodeColumns"+neon, "fields *uint8, x, scale, bias, offset *float32, lo, hi float32, rows, columns int", "",
		"writes the fields of x as Affine says. columns is a multiple of 16; neither is 0.", func() {
			fields, x, rows, columns := a.param("fields"), a.param("x"), a.param("rows"), a.param("columns")
			lo, hi, n := a.paramAll("lo"), a.paramAll("hi"), a.gp()
			scale, bias, offset := a.vec(), a.vec(), a.vec()
			a.eachRow(rows, columns, n, []string{"scale", "bias", "offset"}, func(at []gp) {
				a.encode(fields, x, lo, hi, a.column(scale, at[0]), a.column(bias, at[1]), a.column(offset, at[2]))
			})
		})
}

// eachRow runs body for every 16 columns of every row, with pointers into the
// named parameters, which have an entry for each column.
func (a *asm) eachRow(rows, columns, n gp, entries []string, body func(at []gp)) {
	var start, at []gp
	for _, name := range entries {
		start, at = append(start, a.param(name)), append(at, a.gp())
	}
	a.loop(rows, 1, func() {
		for i := range start {
			a.mov(at[i], start[i])
		}
		a.mov(n, columns)
		a.loop(n, codecStep, func() {
			body(at)
			for _, r := range at {
				a.addImm(r, r, 64)
			}
		})
	})
}

func decodeRuns(a *asm) {
	a.function("decodeRuns"+neon, "dst *float32, fields *uint8, scale, bias, offset *float32, runs, run int", "",
		"writes the values of fields as Affine says. run is a multiple of 16; neither is 0.", func() {
			dst, fields, runs, run := a.param("dst"), a.param("fields"), a.param("runs"), a.param("run")
			scales, biases, offsets := a.param("scale"), a.param("bias"), a.param("offset")
			n, scale, bias, offset := a.gp(), a.vec(), a.vec(), a.vec()
			a.loop(runs, 1, func() {
				a.ld1r4s(scale, scales)
				a.ld1r4s(bias, biases)
				a.ld1r4s(offset, offsets)
				a.mov(n, run)
				a.loop(n, codecStep, func() { a.decode(dst, fields, same(scale), same(bias), same(offset)) })
			})
		})
}

func decodeColumns(a *asm) {
	a.function("decodeColumns"+neon, "dst *float32, fields *uint8, scale, bias, offset *float32, rows, columns int", "",
		"writes the values of fields as Affine says. columns is a multiple of 16; neither is 0.", func() {
			dst, fields, rows, columns := a.param("dst"), a.param("fields"), a.param("rows"), a.param("columns")
			n, scale, bias, offset := a.gp(), a.vec(), a.vec(), a.vec()
			a.eachRow(rows, columns, n, []string{"scale", "bias", "offset"}, func(at []gp) {
				a.decode(dst, fields, a.column(scale, at[0]), a.column(bias, at[1]), a.column(offset, at[2]))
			})
		})
}

// scale applies op to the 16 values at x.
func (a *asm) scale(dst, x gp, scale func(int) vec, op func(a *asm, v, scale vec)) {
	v := a.load4(x)
	for i, r := range v {
		op(a, r, scale(i))
	}
	a.store4(v, dst)
	a.release(v...)
	a.addImm(x, x, 64)
	a.addImm(dst, dst, 64)
}

func scaleRuns(a *asm, name, doc string, op func(a *asm, v, scale vec)) {
	a.function(name+neon, "dst, x, scale *float32, runs, run int", "",
		"sets dst to "+doc+". run is a multiple of 16; neither is 0.", func() {
			dst, x, scales, runs, run := a.param("dst"), a.param("x"), a.param("scale"), a.param("runs"), a.param("run")
			n, scale := a.gp(), a.vec()
			a.loop(runs, 1, func() {
				a.ld1r4s(scale, scales)
				a.mov(n, run)
				a.loop(n, codecStep, func() { a.scale(dst, x, same(scale), op) })
			})
		})
}

func scaleColumns(a *asm, name, doc string, op func(a *asm, v, scale vec)) {
	a.function(name+neon, "dst, x, scale *float32, rows, columns int", "",
		"sets dst to "+doc+". columns is a multiple of 16; neither is 0.", func() {
			dst, x, rows, columns := a.param("dst"), a.param("x"), a.param("rows"), a.param("columns")
			n, scale := a.gp(), a.vec()
			a.eachRow(rows, columns, n, []string{"scale"}, func(at []gp) { a.scale(dst, x, a.column(scale, at[0]), op) })
		})
}

// A conversion turns the 16 values at src into those at dst.
type conversion func(dst, src gp)

// convert emits a conversion between float32 and a type of size bytes; prepare
// sets up its constants.
func convert(a *asm, name string, to bool, size int, prepare func(a *asm) conversion) {
	params, verb := "dst *byte, x *float32, n int", "writes n values"
	from, step, into := "x", 64, size*codecStep
	if !to {
		params, verb = "dst *float32, src *byte, n int", "reads n values"
		from, step, into = "src", size*codecStep, 64
	}
	a.function(name+neon, params, "", verb+"; n is a multiple of 16, not 0.", func() {
		src, dst, n := a.param(from), a.param("dst"), a.param("n")
		convert := prepare(a)
		a.loop(n, codecStep, func() {
			convert(dst, src)
			a.addImm(src, src, step)
			a.addImm(dst, dst, into)
		})
	})
}

const infinity = 0x7f800000

func toF16(a *asm) conversion {
	return func(dst, src gp) {
		v := a.load4(src)
		for i := 0; i < 4; i += 2 {
			a.fcvtn4h(v[i], v[i])
			a.fcvtn28h(v[i], v[i+1])
			a.strq(v[i], dst, 8*i)
		}
		a.release(v...)
	}
}

func toBF16(a *asm) conversion {
	inf, quiet, half, one := a.allBits(infinity), a.allBits(0x40), a.allBits(0x7fff), a.allBits(1)
	return func(dst, src gp) {
		v := a.load4(src)
		high, nan := a.vec(), a.vec()
		for _, u := range v {
			a.fabs4s(nan, u)
			a.cmgt4s(nan, nan, inf)
			a.ushr4s(high, u, 16)
			odd := a.vec()
			a.and16b(odd, high, one)
			a.orr16b(high, high, quiet)
			a.add4s(u, u, odd)
			a.add4s(u, u, half)
			a.ushr4s(u, u, 16)
			a.bit16b(u, high, nan)
			a.release(odd)
		}
		for i := 0; i < 4; i += 2 {
			a.uzp18h(v[i], v[i], v[i+1])
			a.strq(v[i], dst, 8*i)
		}
		a.release(high, nan)
		a.release(v...)
	}
}

// toF8 rounds as f8 of the generic code does, both ways at once.
func toF8(a *asm, bias, mantissa uint32, largest float32) conversion {
	shift := 23 - int(mantissa)
	inf, top := a.allBits(infinity), a.all(largest)
	normal, unit23 := a.allBits((128-bias)<<23), a.allBits((127+24-bias-mantissa)<<23)
	rebias := a.allBits(1<<(shift-1) - 1 - (127-bias)<<23)
	one, nanCode, sign := a.allBits(1), a.allBits(0x7f), a.allBits(0x80)
	return func(dst, src gp) {
		v := a.load4(src)
		for _, u := range v {
			s, nan, small, r := a.vec(), a.vec(), a.vec(), a.vec()
			a.ushr4s(s, u, 24)
			a.and16b(s, s, sign)
			a.fabs4s(u, u)
			a.cmgt4s(nan, u, inf)
			a.umin4s(u, u, top)
			a.ushr4s(r, u, shift)
			a.and16b(r, r, one)
			a.add4s(r, r, u)
			a.add4s(r, r, rebias)
			a.ushr4s(r, r, shift)
			a.fadd4s(small, u, unit23)
			a.cmgt4s(u, normal, u)
			a.bit16b(r, small, u)
			a.bit16b(r, nanCode, nan)
			a.orr16b(u, r, s)
			a.release(s, nan, small, r)
		}
		a.narrow(v)
		a.strq(v[0], dst, 0)
		a.release(v...)
	}
}

// widenHalves stores the eight half floats of h as float32, times scale if it is given.
func (a *asm) widenHalves(h vec, dst gp, offset int, scale ...vec) {
	for i, widen := range []func(d, n vec){a.fcvtl4s, a.fcvtl24s} {
		v := a.vec()
		widen(v, h)
		for _, s := range scale {
			a.fmul4s(v, v, s)
		}
		a.strq(v, dst, offset+16*i)
		a.release(v)
	}
}

func fromF16(a *asm) conversion {
	return func(dst, src gp) {
		for i := range 2 {
			h := a.vec()
			a.ldrq(h, src, 16*i)
			a.widenHalves(h, dst, 32*i)
			a.release(h)
		}
	}
}

func fromBF16(a *asm) conversion {
	return func(dst, src gp) {
		for i := range 2 {
			h := a.vec()
			a.ldrq(h, src, 16*i)
			for j, widen := range []func(d, n vec){a.uxtl4s, a.uxtl24s} {
				v := a.vec()
				widen(v, h)
				a.shl4s(v, v, 16)
				a.strq(v, dst, 32*i+16*j)
				a.release(v)
			}
			a.release(h)
		}
	}
}

// eachHalf widens 16 bytes to words and runs body for each eight of them.
func (a *asm) eachHalf(src gp, body func(words vec, i int)) {
	b := a.vec()
	a.ldrq(b, src, 0)
	for i, widen := range []func(d, n vec){a.uxtl8h, a.uxtl28h} {
		h := a.vec()
		widen(h, b)
		body(h, i)
		a.release(h)
	}
	a.release(b)
}

// fromE4M3 goes by way of half floats, whose exponent is 8 larger.
func fromE4M3(a *asm) conversion {
	sign, rest, nan, scale := a.allHalves(0x8000), a.allHalves(0x3f80), a.allHalves(0x7e00), a.all(256)
	return func(dst, src gp) {
		a.eachHalf(src, func(h vec, i int) {
			s, eq := a.vec(), a.vec()
			a.shl8h(s, h, 8)
			a.and16b(s, s, sign)
			a.shl8h(h, h, 7)
			a.and16b(h, h, rest)
			a.cmeq8h(eq, h, rest)
			a.and16b(eq, eq, nan)
			a.orr16b(h, h, s)
			a.orr16b(h, h, eq)
			a.release(s, eq)
			a.widenHalves(h, dst, 32*i, scale)
		})
	}
}

func fromE5M2(a *asm) conversion {
	return func(dst, src gp) {
		a.eachHalf(src, func(h vec, i int) {
			a.shl8h(h, h, 8)
			a.widenHalves(h, dst, 32*i)
		})
	}
}

// The packers join neighbours twice in size three times, bytes to words to
// doublewords to quadwords of eight fields in 8·bits bits, by shifts of bits,
// 2·bits and 4·bits; a table look-up closes the gaps. Unpacking runs backwards.

// shifts returns registers that shift by bits, 2·bits and 4·bits, to the right
// where sign is negative.
func (a *asm) shifts(bits gp, sign int) (words, doubles, quads vec) {
	by := a.gp()
	a.mov(by, bits)
	if sign < 0 {
		a.op("NEG", bits, by)
	}
	words, doubles, quads = a.vec(), a.vec(), a.vec()
	a.dupGP(words, by, "H8")
	a.lslImm(by, by, 1)
	a.dupGP(doubles, by, "S4")
	a.lslImm(by, by, 1)
	a.dupGP(quads, by, "D2")
	a.releaseGP(by)
	return words, doubles, quads
}

func pack(a *asm) {
	a.function("pack"+neon, "dst *byte, fields *uint8, n, bits int, index *byte", "",
		"packs n fields; n is a multiple of 32, not 0. It writes up to 16 bytes behind\n// the start of the last 16 fields. index holds 16 bytes: where the result finds its own.", func() {
			dst, fields, n, bits, at := a.param("dst"), a.param("fields"), a.param("n"), a.param("bits"), a.param("index")
			words, doubles, quads := a.shifts(bits, 1)
			index := a.vec()
			a.ldrq(index, at, 0)
			a.lslImm(bits, bits, 1) // bytes of 16 fields
			lowByte, lowWord, lowDouble := a.allHalves(0xff), a.allBits(0xffff), a.vec()
			a.movImm(at, 0xffffffff)
			a.dupGP(lowDouble, at, "D2")
			a.loop(n, codecStep, func() {
				v, odd := a.vec(), a.vec()
				a.ldrq(v, fields, 0)
				a.ushr8h(odd, v, 8)
				a.ushl8h(odd, odd, words)
				a.and16b(v, v, lowByte)
				a.orr16b(v, v, odd)
				a.ushr4s(odd, v, 16)
				a.ushl4s(odd, odd, doubles)
				a.and16b(v, v, lowWord)
				a.orr16b(v, v, odd)
				a.ushr2d(odd, v, 32)
				a.ushl2d(odd, odd, quads)
				a.and16b(v, v, lowDouble)
				a.orr16b(v, v, odd)
				a.tbl16b(v, v, index)
				a.strq(v, dst, 0)
				a.add(dst, dst, bits)
				a.addImm(fields, fields, codecStep)
				a.release(v, odd)
			})
		})
}

func unpack(a *asm) {
	a.function("unpack"+neon, "fields *uint8, src *byte, n, bits int, index *byte", "",
		"unpacks n fields; n is a multiple of 32, not 0. It reads up to 16 bytes behind\n// the start of the last 16 fields. index holds 16 bytes: where the halves find their own.", func() {
			fields, src, n, bits, at := a.param("fields"), a.param("src"), a.param("n"), a.param("bits"), a.param("index")
			words, doubles, quads := a.shifts(bits, -1)
			index := a.vec()
			a.ldrq(index, at, 0)
			// Masks of one, two and four fields.
			one, mask, by := a.gp(), a.gp(), a.gp()
			a.movImm(one, 1)
			low := a.vecsOf(3)
			for i, arrangement := range []string{"H8", "S4", "D2"} {
				a.lslImm(by, bits, i)
				a.op("LSL", by, one, mask)
				a.subImm(mask, mask, 1)
				a.dupGP(low[i], mask, arrangement)
			}
			a.lslImm(bits, bits, 1)
			a.loop(n, codecStep, func() {
				v, high := a.vec(), a.vec()
				a.ldrq(v, src, 0)
				a.tbl16b(v, v, index)
				a.ushl2d(high, v, quads)
				a.and16b(high, high, low[2])
				a.shl2d(high, high, 32)
				a.and16b(v, v, low[2])
				a.orr16b(v, v, high)
				a.ushl4s(high, v, doubles)
				a.and16b(high, high, low[1])
				a.shl4s(high, high, 16)
				a.and16b(v, v, low[1])
				a.orr16b(v, v, high)
				a.ushl8h(high, v, words)
				a.and16b(high, high, low[0])
				a.shl8h(high, high, 8)
				a.and16b(v, v, low[0])
				a.orr16b(v, v, high)
				a.strq(v, fields, 0)
				a.add(src, src, bits)
				a.addImm(fields, fields, codecStep)
				a.release(v, high)
			})
		})
}
