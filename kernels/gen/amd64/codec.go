package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// codec emits the reductions, encoders and decoders. Each is written once over
// a width: the AVX2 and the AVX-512 form differ in registers and masks only.
func codec() {
	for _, w := range []width{{"AVX2", 8}, {"AVX512", 16}} {
		w.absMaxRuns()
		w.minMaxRuns()
		w.columnReduction("absMaxColumns", "raises acc[c] to the largest magnitude of column c", "acc")
		w.columnReduction("minMaxColumns", "lowers lo[c] and raises hi[c] to the extremes of column c", "lo", "hi")
		w.encodeRuns()
		w.encodeColumns()
		w.decodeRuns()
		w.decodeColumns()
		w.truncateRuns()
		w.roundAwayRuns()
		w.e2m1Runs()
		w.scaleRuns("divideRuns", "x / scale", w.divide)
		w.scaleRuns("multiplyRuns", "x·scale", multiply)
		w.scaleColumns("divideColumns", "x / scale", w.divide)
		w.scaleColumns("multiplyColumns", "x·scale", multiply)
		w.fitLevels()
		w.convert("toF16", true, 2, w.toF16)
		w.convert("toBF16", true, 2, w.toBF16)
		w.convert("toE4M3", true, 1, func() conversion { return w.toF8(7, 3, 448) })
		w.convert("toE5M2", true, 1, func() conversion { return w.toF8(15, 2, 57344) })
		w.convert("fromF16", false, 2, w.fromF16)
		w.convert("fromBF16", false, 2, w.fromBF16)
		w.convert("fromE4M3", false, 1, w.fromE4M3)
		w.convert("fromE5M2", false, 1, w.fromE5M2)
	}
	packAVX2()
	unpackAVX2()
	packAVX512()
	unpackAVX512()
}

// A width is an instruction set with vectors of lanes float32.
type width struct {
	name  string
	lanes int
}

func (w width) bytes() int { return 4 * w.lanes }

func (w width) vec() reg.VecVirtual {
	if w.lanes == 16 {
		return ZMM()
	}
	return YMM()
}

// half returns a register half as wide as vec.
func (w width) half() reg.VecVirtual {
	if w.lanes == 16 {
		return YMM()
	}
	return XMM()
}

// text opens a function.
func (w width) text(name, signature, doc string, args ...any) {
	TEXT(name+w.name, NOSPLIT, signature)
	Doc(name + w.name + " " + fmt.Sprintf(doc, args...))
	Pragma("noescape")
}

func gp(name string) reg.Register { return Load(Param(name), GP64()) }

// all returns a vector with v in every lane.
func (w width) all(v float32) reg.VecVirtual { return w.allBits(math.Float32bits(v)) }

func (w width) allBits(bits uint32) reg.VecVirtual {
	v := w.vec()
	if bits == 0 {
		VXORPS(v, v, v)
		return v
	}
	r, x := GP32(), XMM()
	MOVL(U32(bits), r)
	VMOVD(r, x)
	VPBROADCASTD(x, v)
	return v
}

// broadcast returns a vector with the float32 parameter in every lane.
func (w width) broadcast(param string) reg.VecVirtual {
	v := w.vec()
	x := Load(Param(param), XMM())
	VBROADCASTSS(x, v)
	return v
}

// labels numbers the loops of the file.
var labels int

// loop runs body while n, a register of a count that is not 0, goes down to 0 in steps.
func loop(n reg.Register, step int, body func()) {
	labels++
	label := fmt.Sprintf("loop%d", labels)
	Label(label)
	body()
	SUBQ(U32(uint32(step)), n)
	JNZ(LabelRef(label))
}

func done() {
	VZEROUPPER()
	RET()
}

// fold reduces v to its lowest lane with op, which must not depend on order.
func (w width) fold(v reg.VecVirtual, op func(...Op)) reg.VecVirtual {
	y := v
	if w.lanes == 16 {
		low, high := YMM(), YMM()
		VEXTRACTF64X4(Imm(0), v, low)
		VEXTRACTF64X4(Imm(1), v, high)
		op(low, high, high)
		y = high
	}
	x, t := XMM(), XMM()
	VEXTRACTF128(Imm(1), y, x)
	op(y.AsX(), x, x)
	VPERMILPS(Imm(0b01_00_11_10), x, t)
	op(x, t, x)
	VPERMILPS(Imm(0b10_11_00_01), x, t)
	op(x, t, x)
	return x
}

// absMaxRuns takes maxima of the bits without sign: as integers they are
// ordered like the magnitudes, a NaN above all.
func (w width) absMaxRuns() {
	w.text("absMaxRuns", "func(dst, x *float32, runs, run int)",
		"sets dst[r] to the largest |x| of run r, a NaN counting as the largest. run is a multiple of %d; neither is 0.", w.lanes)
	dst, x, runs, run := gp("dst"), gp("x"), gp("runs"), gp("run")
	mask := w.allBits(0x7fffffff)
	loop(runs, 1, func() {
		acc, n := w.vec(), GP64()
		VXORPS(acc, acc, acc)
		MOVQ(run, n)
		loop(n, w.lanes, func() {
			v := w.vec()
			VANDPS(Mem{Base: x}, mask, v)
			VPMAXSD(v, acc, acc)
			ADDQ(Imm(uint64(w.bytes())), x)
		})
		VMOVSS(w.fold(acc, func(o ...Op) { VPMAXSD(o[0], o[1], o[2]) }), Mem{Base: dst})
		ADDQ(Imm(4), dst)
	})
	done()
}

func (w width) minMaxRuns() {
	w.text("minMaxRuns", "func(lo, hi, x *float32, runs, run int)",
		"sets lo[r] and hi[r] to the extremes of run r, a zero made positive. run is a multiple of %d; neither is 0.", w.lanes)
	lo, hi, x, runs, run := gp("lo"), gp("hi"), gp("x"), gp("runs"), gp("run")
	zero := XMM()
	VXORPS(zero, zero, zero)
	loop(runs, 1, func() {
		least, largest, n := w.vec(), w.vec(), GP64()
		VMOVUPS(Mem{Base: x}, least)
		VMOVAPS(least, largest)
		MOVQ(run, n)
		loop(n, w.lanes, func() {
			v := w.vec()
			VMOVUPS(Mem{Base: x}, v)
			VMINPS(v, least, least)
			VMAXPS(v, largest, largest)
			ADDQ(Imm(uint64(w.bytes())), x)
		})
		l := w.fold(least, func(o ...Op) { VMINPS(o[0], o[1], o[2]) })
		VADDSS(zero, l, l)
		VMOVSS(l, Mem{Base: lo})
		h := w.fold(largest, func(o ...Op) { VMAXPS(o[0], o[1], o[2]) })
		VADDSS(zero, h, h)
		VMOVSS(h, Mem{Base: hi})
		ADDQ(Imm(4), lo)
		ADDQ(Imm(4), hi)
	})
	done()
}

// columnReduction walks down strips of columns, as wide as registers allow while the
// columns last: memory is read ahead best where rows follow one another whole.
func (w width) columnReduction(name, doc string, accs ...string) {
	w.text(name, "func("+accs[0]+lists(accs[1:])+", x *float32, rows, columns int)",
		"%s. columns is a multiple of %d; neither is 0.", doc, w.lanes)
	var acc []reg.Register
	for _, a := range accs {
		acc = append(acc, gp(a))
	}
	x, rows, columns := gp("x"), gp("rows"), gp("columns")
	stride := GP64()
	MOVQ(columns, stride)
	SHLQ(Imm(2), stride)
	var mask, zero reg.VecVirtual
	if len(acc) == 1 {
		mask = w.allBits(0x7fffffff)
	} else {
		zero = w.all(0)
	}
	strip := func(vectors int) {
		at, n := GP64(), GP64()
		MOVQ(x, at)
		MOVQ(rows, n)
		var v [][]reg.VecVirtual
		for _, a := range acc {
			var row []reg.VecVirtual
			for i := range vectors {
				r := w.vec()
				VMOVUPS(Mem{Base: a, Disp: w.bytes() * i}, r)
				row = append(row, r)
			}
			v = append(v, row)
		}
		loop(n, 1, func() {
			for i := range vectors {
				m := w.vec()
				if len(acc) == 1 {
					VANDPS(Mem{Base: at, Disp: w.bytes() * i}, mask, m)
					VPMAXSD(m, v[0][i], v[0][i])
				} else {
					VMOVUPS(Mem{Base: at, Disp: w.bytes() * i}, m)
					VMINPS(m, v[0][i], v[0][i])
					VMAXPS(m, v[1][i], v[1][i])
				}
			}
			ADDQ(stride, at)
		})
		for a := range acc {
			for i := range vectors {
				if len(acc) == 2 {
					VADDPS(zero, v[a][i], v[a][i])
				}
				VMOVUPS(v[a][i], Mem{Base: acc[a], Disp: w.bytes() * i})
			}
			ADDQ(U32(uint32(w.bytes()*vectors)), acc[a])
		}
		ADDQ(U32(uint32(w.bytes()*vectors)), x)
		SUBQ(U32(uint32(w.lanes*vectors)), columns)
	}
	strips := []int{4, 1}
	if w.lanes == 16 {
		strips = []int{8, 4, 1}
	}
	for _, vectors := range strips {
		wide, narrow := fmt.Sprintf("strip%d", vectors), fmt.Sprintf("under%d", vectors)
		Label(wide)
		CMPQ(columns, U32(uint32(vectors*w.lanes)))
		JLT(LabelRef(narrow))
		strip(vectors)
		JMP(LabelRef(wide))
		Label(narrow)
	}
	done()
}

func lists(names []string) (s string) {
	for _, name := range names {
		s += ", " + name
	}
	return s
}

// notZero returns the mask of scale's lanes that are not 0: a mask register for
// AVX-512, a vector for AVX2.
func (w width) notZero(scale reg.VecVirtual, zero reg.VecVirtual) reg.Register {
	const neq = 4
	if w.lanes == 16 {
		k := K()
		VCMPPS(Imm(neq), zero, scale, k)
		return k
	}
	m := YMM()
	VCMPPS(Imm(neq), zero, scale, m)
	return m
}

// quotient divides v by scale; 0 where mask is not set.
func (w width) quotient(v, scale reg.VecVirtual, mask reg.Register) {
	if w.lanes == 16 {
		VDIVPS_Z(scale, v, mask, v)
		return
	}
	VDIVPS(scale, v, v)
	VANDPS(mask, v, v)
}

// roundEven rounds v to integers.
func (w width) roundEven(v reg.VecVirtual) {
	const nearest = 8
	if w.lanes == 16 {
		VRNDSCALEPS(Imm(nearest), v, v)
		return
	}
	VROUNDPS(Imm(nearest), v, v)
}

// storeBytes stores the lanes of v, integers from 0 to 255, as bytes.
func (w width) storeBytes(v reg.VecVirtual, to Mem) {
	if w.lanes == 16 {
		VPMOVDB(v, to)
		return
	}
	high := XMM()
	VEXTRACTI128(Imm(1), v, high)
	VPACKUSDW(high, v.AsX(), high)
	VPACKUSWB(high, high, high)
	VMOVQ(high, to)
}

// encode writes the fields of the values at from.
func (w width) encode(from, to Mem, scale, bias, offset, lo, hi reg.VecVirtual, mask reg.Register) {
	v := w.vec()
	VMOVUPS(from, v)
	VSUBPS(offset, v, v)
	w.quotient(v, scale, mask)
	w.roundEven(v)
	VADDPS(bias, v, v)
	VMAXPS(lo, v, v)
	VMINPS(hi, v, v)
	VCVTTPS2DQ(v, v)
	w.storeBytes(v, to)
}

func (w width) encodeRuns() {
	w.text("encodeRuns", "func(fields *uint8, x, scale, bias, offset *float32, lo, hi float32, runs, run int)",
		"writes the fields of x as Affine says. run is a multiple of %d; neither is 0.", w.lanes)
	fields, x, runs, run := gp("fields"), gp("x"), gp("runs"), gp("run")
	scales, biases, offsets := gp("scale"), gp("bias"), gp("offset")
	lo, hi, zero := w.broadcast("lo"), w.broadcast("hi"), w.all(0)
	loop(runs, 1, func() {
		scale, bias, offset, n := w.vec(), w.vec(), w.vec(), GP64()
		VBROADCASTSS(Mem{Base: scales}, scale)
		VBROADCASTSS(Mem{Base: biases}, bias)
		VBROADCASTSS(Mem{Base: offsets}, offset)
		mask := w.notZero(scale, zero)
		MOVQ(run, n)
		loop(n, w.lanes, func() {
			w.encode(Mem{Base: x}, Mem{Base: fields}, scale, bias, offset, lo, hi, mask)
			ADDQ(Imm(uint64(w.bytes())), x)
			ADDQ(Imm(uint64(w.lanes)), fields)
		})
		ADDQ(Imm(4), scales)
		ADDQ(Imm(4), biases)
		ADDQ(Imm(4), offsets)
	})
	done()
}

func (w width) encodeColumns() {
	w.text("encodeColumns", "func(fields *uint8, x, scale, bias, offset *float32, lo, hi float32, rows, columns int)",
		"writes the fields of x as Affine says. columns is a multiple of %d; neither is 0.", w.lanes)
	fields, x, rows, columns := gp("fields"), gp("x"), gp("rows"), gp("columns")
	scales, biases, offsets := gp("scale"), gp("bias"), gp("offset")
	lo, hi, zero := w.broadcast("lo"), w.broadcast("hi"), w.all(0)
	loop(rows, 1, func() {
		column, n := GP64(), GP64()
		XORQ(column, column)
		MOVQ(columns, n)
		loop(n, w.lanes, func() {
			scale, bias, offset := w.vec(), w.vec(), w.vec()
			VMOVUPS(Mem{Base: scales, Index: column, Scale: 4}, scale)
			VMOVUPS(Mem{Base: biases, Index: column, Scale: 4}, bias)
			VMOVUPS(Mem{Base: offsets, Index: column, Scale: 4}, offset)
			w.encode(Mem{Base: x}, Mem{Base: fields}, scale, bias, offset, lo, hi, w.notZero(scale, zero))
			ADDQ(Imm(uint64(w.bytes())), x)
			ADDQ(Imm(uint64(w.lanes)), fields)
			ADDQ(Imm(uint64(w.lanes)), column)
		})
	})
	done()
}

// decode writes the values of the fields at from.
func (w width) decode(from, to Mem, scale, bias, offset Op) {
	v := w.vec()
	VPMOVZXBD(from, v)
	VCVTDQ2PS(v, v)
	VSUBPS(bias, v, v)
	VMULPS(scale, v, v)
	VADDPS(offset, v, v)
	VMOVUPS(v, to)
}

func (w width) decodeRuns() {
	w.text("decodeRuns", "func(dst *float32, fields *uint8, scale, bias, offset *float32, runs, run int)",
		"writes the values of fields as Affine says. run is a multiple of %d; neither is 0.", w.lanes)
	dst, fields, runs, run := gp("dst"), gp("fields"), gp("runs"), gp("run")
	scales, biases, offsets := gp("scale"), gp("bias"), gp("offset")
	loop(runs, 1, func() {
		scale, bias, offset, n := w.vec(), w.vec(), w.vec(), GP64()
		VBROADCASTSS(Mem{Base: scales}, scale)
		VBROADCASTSS(Mem{Base: biases}, bias)
		VBROADCASTSS(Mem{Base: offsets}, offset)
		MOVQ(run, n)
		loop(n, w.lanes, func() {
			w.decode(Mem{Base: fields}, Mem{Base: dst}, scale, bias, offset)
			ADDQ(Imm(uint64(w.lanes)), fields)
			ADDQ(Imm(uint64(w.bytes())), dst)
		})
		ADDQ(Imm(4), scales)
		ADDQ(Imm(4), biases)
		ADDQ(Imm(4), offsets)
	})
	done()
}

func (w width) decodeColumns() {
	w.text("decodeColumns", "func(dst *float32, fields *uint8, scale, bias, offset *float32, rows, columns int)",
		"writes the values of fields as Affine says. columns is a multiple of %d; neither is 0.", w.lanes)
	dst, fields, rows, columns := gp("dst"), gp("fields"), gp("rows"), gp("columns")
	scales, biases, offsets := gp("scale"), gp("bias"), gp("offset")
	loop(rows, 1, func() {
		column, n := GP64(), GP64()
		XORQ(column, column)
		MOVQ(columns, n)
		loop(n, w.lanes, func() {
			at := func(base reg.Register) Mem { return Mem{Base: base, Index: column, Scale: 4} }
			w.decode(Mem{Base: fields}, Mem{Base: dst}, at(scales), at(biases), at(offsets))
			ADDQ(Imm(uint64(w.lanes)), fields)
			ADDQ(Imm(uint64(w.bytes())), dst)
			ADDQ(Imm(uint64(w.lanes)), column)
		})
	})
	done()
}

// factorRuns emits a loop over runs that each have a factor, and if shifted an
// offset to subtract before: body turns each product into integers, of which the
// low bytes are stored.
func (w width) factorRuns(shifted bool, body func(v reg.VecVirtual)) {
	fields, x, factors, runs, run := gp("fields"), gp("x"), gp("factor"), gp("runs"), gp("run")
	var offsets reg.Register
	if shifted {
		offsets = gp("offset")
	}
	low := w.allBits(0xff)
	loop(runs, 1, func() {
		factor, offset, n := w.vec(), w.vec(), GP64()
		VBROADCASTSS(Mem{Base: factors}, factor)
		if shifted {
			VBROADCASTSS(Mem{Base: offsets}, offset)
			ADDQ(Imm(4), offsets)
		}
		MOVQ(run, n)
		loop(n, w.lanes, func() {
			v := w.vec()
			if shifted {
				VMOVUPS(Mem{Base: x}, v)
				VSUBPS(offset, v, v)
				VMULPS(factor, v, v)
			} else {
				VMULPS(Mem{Base: x}, factor, v)
			}
			body(v)
			if w.lanes == 8 {
				VPAND(low, v, v) // AVX-512 stores low bytes, AVX2 saturates
			}
			w.storeBytes(v, Mem{Base: fields})
			ADDQ(Imm(uint64(w.bytes())), x)
			ADDQ(Imm(uint64(w.lanes)), fields)
		})
		ADDQ(Imm(4), factors)
	})
	done()
}

// truncateRuns relies on VCVTTPS2DQ giving the least integer for what is no number.
func (w width) truncateRuns() {
	w.text("truncateRuns", "func(fields *uint8, x, offset, factor *float32, half float32, top uint32, runs, run int)",
		"writes the integer part of (x − offset)·factor + half, from 0 to top. run is a multiple of %d; neither is 0.", w.lanes)
	half, top, zero := w.broadcast("half"), w.vec(), w.all(0)
	x := XMM()
	VMOVD(Load(Param("top"), GP32()), x)
	VPBROADCASTD(x, top)
	w.factorRuns(true, func(v reg.VecVirtual) {
		VADDPS(half, v, v)
		VCVTTPS2DQ(v, v)
		VPMAXSD(zero, v, v)
		VPMINSD(top, v, v)
	})
}

func (w width) roundAwayRuns() {
	w.text("roundAwayRuns", "func(fields *uint8, x, factor *float32, runs, run int)",
		"writes x·factor as int8, halves away from 0. run is a multiple of %d; neither is 0.", w.lanes)
	below, sign := w.all(0x1.fffffep-2), w.allBits(1<<31)
	w.factorRuns(false, func(v reg.VecVirtual) {
		add := w.vec()
		VANDPS(v, sign, add)
		VORPS(add, below, add)
		VADDPS(add, v, v)
		VCVTTPS2DQ(v, v)
	})
}

// e2m1Runs counts the midpoints that |x| is above: each comparison is −1 or 0.
func (w width) e2m1Runs() {
	w.text("e2m1Runs", "func(fields *uint8, x *float32, middles *int32, runs, run int)",
		"writes e2m1 codes by the midpoints between them. run is a multiple of %d; neither is 0.", w.lanes)
	fields, x, middles, runs, run := gp("fields"), gp("x"), gp("middles"), gp("runs"), gp("run")
	unsigned, eight, zero := w.allBits(0x7fffffff), w.allBits(8), w.all(0)
	one := w.allBits(1)
	loop(runs, 1, func() {
		n := GP64()
		var middle []reg.VecVirtual
		for i := range 7 {
			m := w.vec()
			VPBROADCASTD(Mem{Base: middles, Disp: 4 * i}, m)
			middle = append(middle, m)
		}
		MOVQ(run, n)
		loop(n, w.lanes, func() {
			v, a, code := w.vec(), w.vec(), w.vec()
			VMOVUPS(Mem{Base: x}, v)
			VANDPS(v, unsigned, a)
			VXORPS(code, code, code)
			for _, m := range middle {
				w.countMask(w.greater(a, m), one, code)
			}
			VPSRLD(Imm(28), v, v)
			VANDPS(v, eight, v)
			VPADDD(code, v, v)
			positive := w.greater(code, zero)
			w.keep(positive, v)
			w.storeBytes(v, Mem{Base: fields})
			ADDQ(Imm(uint64(w.bytes())), x)
			ADDQ(Imm(uint64(w.lanes)), fields)
		})
		ADDQ(Imm(28), middles)
	})
	done()
}

// countMask adds 1 to the lanes of v that mask selects.
func (w width) countMask(mask reg.Register, one, v reg.VecVirtual) {
	if w.lanes == 16 {
		VPADDD(one, v, mask, v)
		return
	}
	VPSUBD(mask, v, v)
}

// keep clears the lanes of v that mask does not select.
func (w width) keep(mask reg.Register, v reg.VecVirtual) {
	if w.lanes == 16 {
		VMOVDQA32_Z(v, mask, v)
		return
	}
	VPAND(mask, v, v)
}

// divide and multiply are the two operations of scaleRuns and scaleColumns.
func (w width) divide(v, scale, zero reg.VecVirtual) { w.quotient(v, scale, w.notZero(scale, zero)) }

func multiply(v, scale, _ reg.VecVirtual) { VMULPS(scale, v, v) }

func (w width) scaleRuns(name, doc string, op func(v, scale, zero reg.VecVirtual)) {
	w.text(name, "func(dst, x, scale *float32, runs, run int)",
		"sets dst to %s. run is a multiple of %d; neither is 0.", doc, w.lanes)
	dst, x, scales, runs, run := gp("dst"), gp("x"), gp("scale"), gp("runs"), gp("run")
	zero := w.all(0)
	loop(runs, 1, func() {
		scale, n := w.vec(), GP64()
		VBROADCASTSS(Mem{Base: scales}, scale)
		MOVQ(run, n)
		loop(n, w.lanes, func() {
			v := w.vec()
			VMOVUPS(Mem{Base: x}, v)
			op(v, scale, zero)
			VMOVUPS(v, Mem{Base: dst})
			ADDQ(Imm(uint64(w.bytes())), x)
			ADDQ(Imm(uint64(w.bytes())), dst)
		})
		ADDQ(Imm(4), scales)
	})
	done()
}

func (w width) scaleColumns(name, doc string, op func(v, scale, zero reg.VecVirtual)) {
	w.text(name, "func(dst, x, scale *float32, rows, columns int)",
		"sets dst to %s. columns is a multiple of %d; neither is 0.", doc, w.lanes)
	dst, x, scales, rows, columns := gp("dst"), gp("x"), gp("scale"), gp("rows"), gp("columns")
	zero := w.all(0)
	loop(rows, 1, func() {
		column, n := GP64(), GP64()
		XORQ(column, column)
		MOVQ(columns, n)
		loop(n, w.lanes, func() {
			v, scale := w.vec(), w.vec()
			VMOVUPS(Mem{Base: scales, Index: column, Scale: 4}, scale)
			VMOVUPS(Mem{Base: x}, v)
			op(v, scale, zero)
			VMOVUPS(v, Mem{Base: dst})
			ADDQ(Imm(uint64(w.bytes())), x)
			ADDQ(Imm(uint64(w.bytes())), dst)
			ADDQ(Imm(uint64(w.lanes)), column)
		})
	})
	done()
}

// A conversion turns one vector at from into one at to.
type conversion func(from, to Mem)

// convert emits a conversion between float32 and a type of size bytes; prepare
// sets up its constants.
func (w width) convert(name string, to bool, size int, prepare func() conversion) {
	signature, verb := "func(dst *byte, x *float32, n int)", "writes n values"
	from, step, into := "x", w.bytes(), size*w.lanes
	if !to {
		signature, verb = "func(dst *float32, src *byte, n int)", "reads n values"
		from, step, into = "src", size*w.lanes, w.bytes()
	}
	w.text(name, signature, "%s; n is a multiple of %d, not 0.", verb, w.lanes)
	src, dst, n := gp(from), gp("dst"), gp("n")
	convert := prepare()
	loop(n, w.lanes, func() {
		convert(Mem{Base: src}, Mem{Base: dst})
		ADDQ(Imm(uint64(step)), src)
		ADDQ(Imm(uint64(into)), dst)
	})
	done()
}

// greater returns the mask of the lanes in which a > b, as signed integers.
func (w width) greater(a, b reg.VecVirtual) reg.Register {
	if w.lanes == 16 {
		k := K()
		VPCMPGTD(b, a, k)
		return k
	}
	m := YMM()
	VPCMPGTD(b, a, m)
	return m
}

// choose puts v into the lanes of dst that mask selects.
func (w width) choose(mask reg.Register, v, dst reg.VecVirtual) {
	if w.lanes == 16 {
		VMOVDQA32(v, mask, dst)
		return
	}
	VPBLENDVB(mask, v, dst, dst)
}

const infinity = 0x7f800000

func (w width) toF16() conversion {
	return func(from, to Mem) {
		v := w.vec()
		VMOVUPS(from, v)
		VCVTPS2PH(Imm(0), v, to)
	}
}

func (w width) toBF16() conversion {
	unsigned, inf, quiet := w.allBits(0x7fffffff), w.allBits(infinity), w.allBits(0x40)
	half, one := w.allBits(0x7fff), w.allBits(1)
	return func(from, to Mem) {
		u, abs, r := w.vec(), w.vec(), w.vec()
		VMOVUPS(from, u)
		VANDPS(u, unsigned, abs)
		nan := w.greater(abs, inf)
		VPSRLD(Imm(16), u, abs)
		VANDPS(abs, one, r)
		VORPS(abs, quiet, abs)
		VPADDD(u, r, r)
		VPADDD(half, r, r)
		VPSRLD(Imm(16), r, r)
		w.choose(nan, abs, r)
		if w.lanes == 16 {
			VPMOVDW(r, to)
			return
		}
		high := XMM()
		VEXTRACTI128(Imm(1), r, high)
		VPACKUSDW(high, r.AsX(), high)
		VMOVDQU(high, to)
	}
}

// toF8 rounds as f8 of the generic code does, both ways at once.
func (w width) toF8(bias, mantissa uint32, largest float32) conversion {
	shift := 23 - mantissa
	unsigned, inf, top := w.allBits(0x7fffffff), w.allBits(infinity), w.all(largest)
	normal, unit23 := w.allBits((128-bias)<<23), w.allBits((127+24-bias-mantissa)<<23)
	rebias := w.allBits(1<<(shift-1) - 1 - (127-bias)<<23)
	one, nanCode, sign, low := w.allBits(1), w.allBits(0x7f), w.allBits(0x80), w.allBits(0xff)
	return func(from, to Mem) {
		u, r, small := w.vec(), w.vec(), w.vec()
		s := w.vec()
		VMOVUPS(from, u)
		VPSRLD(Imm(24), u, s)
		VANDPS(s, sign, s)
		VANDPS(u, unsigned, u)
		nan := w.greater(u, inf)
		VPMINUD(u, top, u)
		denormal := w.greater(normal, u)
		VPSRLD(Imm(uint64(shift)), u, r)
		VANDPS(r, one, r)
		VPADDD(r, u, r)
		VPADDD(rebias, r, r)
		VPSRLD(Imm(uint64(shift)), r, r)
		VADDPS(u, unit23, small)
		VANDPS(small, low, small)
		w.choose(denormal, small, r)
		w.choose(nan, nanCode, r)
		VORPS(s, r, r)
		w.storeBytes(r, to)
	}
}

func (w width) fromF16() conversion {
	return func(from, to Mem) {
		v := w.vec()
		VCVTPH2PS(from, v)
		VMOVUPS(v, to)
	}
}

func (w width) fromBF16() conversion {
	return func(from, to Mem) {
		v := w.vec()
		VPMOVZXWD(from, v)
		VPSLLD(Imm(16), v, v)
		VMOVUPS(v, to)
	}
}

// halves returns a register of words that all hold bits, half as wide as vec.
func (w width) halves(bits uint32) reg.VecVirtual {
	v, x, r := w.half(), XMM(), GP32()
	MOVL(U32(bits<<16|bits), r)
	VMOVD(r, x)
	VPBROADCASTD(x, v)
	return v
}

// fromE4M3 goes by way of half floats, whose exponent is 8 larger.
func (w width) fromE4M3() conversion {
	sign, rest, nan, scale := w.halves(0x8000), w.halves(0x3f80), w.halves(0x7e00), w.all(256)
	return func(from, to Mem) {
		h, s, eq, v := w.half(), w.half(), w.half(), w.vec()
		VPMOVZXBW(from, h)
		VPSLLW(Imm(8), h, s)
		VPAND(s, sign, s)
		VPSLLW(Imm(7), h, h)
		VPAND(h, rest, h)
		VPCMPEQW(h, rest, eq)
		VPAND(eq, nan, eq)
		VPOR(h, s, h)
		VPOR(h, eq, h)
		VCVTPH2PS(h, v)
		VMULPS(scale, v, v)
		VMOVUPS(v, to)
	}
}

func (w width) fromE5M2() conversion {
	return func(from, to Mem) {
		h, v := w.half(), w.vec()
		VPMOVZXBW(from, h)
		VPSLLW(Imm(8), h, h)
		VCVTPH2PS(h, v)
		VMOVUPS(v, to)
	}
}

// The packers join neighbours twice in size three times: bytes to words by
// VPMADDUBSW with (1, 2^bits), words to doublewords by VPMADDWD with
// (1, 2^(2·bits)), those to quadwords by shifts; a byte shuffle then closes the
// gaps. plan holds these constants, made in Go for a number of bits up to 6.
// Offsets into it, for packing and unpacking alike:
const (
	planIndex = 0   // 64 bytes: the shuffle
	planBytes = 64  // 4 bytes, repeated: multipliers of bytes
	planWords = 68  // 4 bytes, repeated: multipliers of words
	planShift = 72  // 8 bytes: 4·bits
	planDown  = 80  // 8 bytes: 16 − bits
	planMask  = 88  // 8 bytes: a bit for each byte of 64 packed fields
	planTurn  = 96  // 8 bytes, repeated: where the fields start in 8·bits bits
	planField = 104 // 4 bytes, repeated: the bits of a field in each byte
	planLift  = 112 // 16 bytes: the multipliers of AVX2's unpacking
)

// join leaves four fields in the low bits of each doubleword of v, and the upper
// ones of each quadword where they belong, in high.
func join(v, words, doubles, shift, high reg.VecVirtual) {
	VPMADDUBSW(words, v, v)
	VPMADDWD(doubles, v, v)
	VPSRLQ(Imm(32), v, high)
	VPSLLQ(shift, high, high)
}

func packAVX512() {
	TEXT("packAVX512", NOSPLIT, "func(dst *byte, fields *uint8, n int, plan *byte)")
	Doc("packAVX512 packs n fields; n is a multiple of 64, not 0.")
	Pragma("noescape")
	dst, fields, n, plan := gp("dst"), gp("fields"), gp("n"), gp("plan")
	index, words, doubles, low := ZMM(), ZMM(), ZMM(), ZMM()
	shift, k, step := XMM(), K(), GP64()
	VMOVDQU64(Mem{Base: plan, Disp: planIndex}, index)
	VPBROADCASTD(Mem{Base: plan, Disp: planBytes}, words)
	VPBROADCASTD(Mem{Base: plan, Disp: planWords}, doubles)
	VMOVQ(Mem{Base: plan, Disp: planShift}, shift)
	KMOVQ(Mem{Base: plan, Disp: planMask}, k)
	MOVQ(Mem{Base: plan, Disp: planShift}, step)
	SHLQ(Imm(1), step) // 8·bits bytes for 64 fields
	lowBits := GP64()
	MOVL(U32(math.MaxUint32), lowBits.As32())
	VPBROADCASTQ(lowBits, low)
	loop(n, 64, func() {
		v, high := ZMM(), ZMM()
		VMOVDQU64(Mem{Base: fields}, v)
		join(v, words, doubles, shift, high)
		VPANDQ(low, v, v)
		VPORQ(high, v, v)
		VPERMB(v, index, v)
		VMOVDQU8(v, k, Mem{Base: dst})
		ADDQ(Imm(64), fields)
		ADDQ(step, dst)
	})
	done()
}

func unpackAVX512() {
	TEXT("unpackAVX512", NOSPLIT, "func(fields *uint8, src *byte, n int, plan *byte)")
	Doc("unpackAVX512 unpacks n fields; n is a multiple of 64, not 0.")
	Pragma("noescape")
	fields, src, n, plan := gp("fields"), gp("src"), gp("n"), gp("plan")
	index, turn, mask := ZMM(), ZMM(), ZMM()
	k, step := K(), GP64()
	VMOVDQU64(Mem{Base: plan, Disp: planIndex}, index)
	VPBROADCASTD(Mem{Base: plan, Disp: planField}, mask)
	VPBROADCASTQ(Mem{Base: plan, Disp: planTurn}, turn)
	KMOVQ(Mem{Base: plan, Disp: planMask}, k)
	MOVQ(Mem{Base: plan, Disp: planShift}, step)
	SHLQ(Imm(1), step)
	loop(n, 64, func() {
		v := ZMM()
		VMOVDQU8_Z(Mem{Base: src}, k, v)
		VPERMB(v, index, v)
		VPMULTISHIFTQB(v, turn, v)
		VPANDQ(mask, v, v)
		VMOVDQU64(v, Mem{Base: fields})
		ADDQ(Imm(64), fields)
		ADDQ(step, src)
	})
	done()
}

// packAVX2 stores 16 bytes for each 16 fields and goes on behind those that count.
func packAVX2() {
	TEXT("packAVX2", NOSPLIT, "func(dst *byte, fields *uint8, n int, plan *byte)")
	Doc("packAVX2 packs n fields; n is a multiple of 32, not 0. It writes up to 16 bytes behind",
		"the start of the last 16 fields.")
	Pragma("noescape")
	dst, fields, n, plan := gp("dst"), gp("fields"), gp("n"), gp("plan")
	index, words, doubles, low := YMM(), YMM(), YMM(), YMM()
	shift, step := XMM(), GP64()
	VMOVDQU(Mem{Base: plan, Disp: planIndex}, index)
	VPBROADCASTD(Mem{Base: plan, Disp: planBytes}, words)
	VPBROADCASTD(Mem{Base: plan, Disp: planWords}, doubles)
	VMOVQ(Mem{Base: plan, Disp: planShift}, shift)
	MOVQ(Mem{Base: plan, Disp: planShift}, step)
	SHRQ(Imm(1), step) // 2·bits bytes for 16 fields
	VPCMPEQD(low, low, low)
	VPSRLQ(Imm(32), low, low)
	loop(n, 32, func() {
		v, high := YMM(), YMM()
		VMOVDQU(Mem{Base: fields}, v)
		join(v, words, doubles, shift, high)
		VPAND(low, v, v)
		VPOR(high, v, v)
		VPSHUFB(index, v, v)
		x := XMM()
		VEXTRACTI128(Imm(1), v, x)
		VMOVDQU(v.AsX(), Mem{Base: dst})
		ADDQ(step, dst)
		VMOVDQU(x, Mem{Base: dst})
		ADDQ(step, dst)
		ADDQ(Imm(32), fields)
	})
	done()
}

// unpackAVX2 brings the two bytes around each field into a word, lifts the field
// to its top by a multiplication and shifts it down.
func unpackAVX2() {
	TEXT("unpackAVX2", NOSPLIT, "func(fields *uint8, src *byte, n int, plan *byte)")
	Doc("unpackAVX2 unpacks n fields; n is a multiple of 32, not 0. It reads up to 16 bytes behind",
		"the start of the last 16 fields.")
	Pragma("noescape")
	fields, src, n, plan := gp("fields"), gp("src"), gp("n"), gp("plan")
	index, lift, shift, step := YMM(), YMM(), XMM(), GP64()
	VMOVDQU(Mem{Base: plan, Disp: planIndex}, index)
	VBROADCASTI128(Mem{Base: plan, Disp: planLift}, lift)
	VMOVQ(Mem{Base: plan, Disp: planDown}, shift)
	MOVQ(Mem{Base: plan, Disp: planShift}, step)
	SHRQ(Imm(1), step) // 2·bits bytes for 16 fields
	loop(n, 32, func() {
		var words []reg.VecVirtual
		for range 2 {
			v := YMM()
			VBROADCASTI128(Mem{Base: src}, v)
			VPSHUFB(index, v, v)
			VPMULLW(lift, v, v)
			VPSRLW(shift, v, v)
			ADDQ(step, src)
			words = append(words, v)
		}
		VPACKUSWB(words[1], words[0], words[0])
		VPERMQ(Imm(0b11_01_10_00), words[0], words[0])
		VMOVDQU(words[0], Mem{Base: fields})
		ADDQ(Imm(32), fields)
	})
	done()
}

// fitLevels has the factors as lanes, so that each one's sums run over x in order.
// levels are 16 values and the 15 midpoints between them; fit is 16 factors and
// the two sums of each.
func (w width) fitLevels() {
	w.text("fitLevels", "func(fit, x, levels *float32, n int)", "is FitLevels; n is not 0.")
	const notLess = 13 // GE_OS
	fit, levels := gp("fit"), gp("levels")
	value := func(i int) reg.VecVirtual {
		v := w.vec()
		VBROADCASTSS(Mem{Base: levels, Disp: 4 * i}, v)
		return v
	}
	held := []reg.VecVirtual{value(0)} // all values where there are 32 registers
	if w.lanes == 16 {
		for i := range 15 {
			held = append(held, value(i+1))
		}
	}
	for part := range 16 / w.lanes {
		at := part * w.bytes()
		factors, qx, qq := w.vec(), w.vec(), w.vec()
		VMOVUPS(Mem{Base: fit, Disp: at}, factors)
		VXORPS(qx, qx, qx)
		VXORPS(qq, qq, qq)
		x, n := gp("x"), gp("n")
		loop(n, 1, func() {
			v, y, q := w.vec(), w.vec(), w.vec()
			VBROADCASTSS(Mem{Base: x}, v)
			VMULPS(v, factors, y)
			VMOVAPS(held[0], q)
			for i := range 15 {
				middle := Mem{Base: levels, Disp: 4 * (16 + i)}
				if w.lanes == 16 {
					k := K()
					VCMPPS_BCST(Imm(notLess), middle, y, k)
					VMOVAPS(held[i+1], k, q)
					continue
				}
				mask := w.vec()
				VBROADCASTSS(middle, mask)
				VCMPPS(Imm(notLess), mask, y, mask)
				VBLENDVPS(mask, value(i+1), q, q)
			}
			weight, product := w.vec(), w.vec()
			VMULPS(v, v, weight)
			VMULPS(q, weight, weight)
			VMULPS(v, weight, product)
			VADDPS(product, qx, qx)
			VMULPS(q, weight, product)
			VADDPS(product, qq, qq)
			ADDQ(Imm(4), x)
		})
		VMOVUPS(qx, Mem{Base: fit, Disp: 64 + at})
		VMOVUPS(qq, Mem{Base: fit, Disp: 128 + at})
	}
	done()
}
