package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// page emits what turns float32 rows into the lines of a decode cache's pages.
// Each kernel is written once over a width, the integer ones over the bits of a
// code and over who shares a scale.
//
// Constants of the codes are planes of 2560 float32, one of divisors, one of
// offsets and one of biases, with an entry for each row (perToken) or for
// each column:
//
//	code = clamp(rne((x − offset) / divisor) + bias, lo, hi)
//
// Rows are read in stripes that no machine reads ahead on its own. So every kernel
// also loads, in order, as many values from ahead on as it encodes, and lets them lie:
// those are the rows that are next. (Prefetch instructions would not train the
// read-ahead; docs/kernels.md.)
func page() {
	for _, w := range []width{{"AVX2", 8}, {"AVX512", 16}} {
		w.scales(true)
		w.scales(false)
		for _, bits := range []int{8, 4} {
			for _, from := range []source{channels, tokens, ranges} {
				w.keyLines(bits, from)
				w.valueLines(bits, from)
			}
			w.rowCodes(bits)
		}
		w.halfKeyLines()
		w.halfValueLines()
	}
}

const (
	constantBytes = 4 * 2560 // of a plane of kernels.codeConstants
	lineBytes     = 64
	chunkRows     = 16 // of one call for keys
)

// A source is where the constants of codes come from.
type source struct {
	name     string
	perToken bool
	ranges   bool // the kernel makes divisors itself, from the largest magnitudes of each row
}

var (
	channels = source{name: "Channels"}
	tokens   = source{name: "Tokens", perToken: true}
	ranges   = source{name: "Ranges", perToken: true, ranges: true}
)

// rowsWide is how many rows a line of values reduces.
func rowsWide(bits int) int { return 32 / bits }

// A reader reads rows: it raises most to the magnitudes of all values, as integers, in
// which NaN and infinities are above all numbers, and walks along ahead.
type reader struct {
	width
	most, unsigned reg.VecVirtual
	ranged         bool // most is raised to ranges instead
	ahead          reg.Register
	at             int // bytes from ahead to what is next
}

func (w width) reader() *reader {
	return &reader{width: w, most: w.all(0), unsigned: w.allBits(0x7fffffff), ahead: gp("ahead")}
}

// load returns the values at x.
func (r *reader) load(x Mem) reg.VecVirtual {
	v := r.vec()
	VMOVUPS(x, v)
	if r.ahead != nil {
		MOVL(Mem{Base: r.ahead, Disp: r.at}, GP32())
		r.at += r.bytes()
	}
	if r.ranged {
		return v
	}
	t := r.vec()
	VANDPS(v, r.unsigned, t)
	VPMAXSD(t, r.most, r.most)
	return v
}

// step moves ahead behind what was read.
func (r *reader) step() {
	if r.ahead == nil {
		return
	}
	ADDQ(U32(uint32(r.at)), r.ahead)
	r.at = 0
}

// done returns the bits of the largest magnitude.
func (r *reader) done() {
	bits := GP32()
	VMOVD(r.fold(r.most, func(o ...Op) { VPMAXSD(o[0], o[1], o[2]) }).AsX(), bits)
	Store(bits, ReturnIndex(0))
	done()
}

// A coder makes codes of vectors: what all kernels of one sort have in common.
type coder struct {
	*reader
	source
	lo, hi reg.VecVirtual

	levels, least, inf reg.VecVirtual // of a source of ranges
}

// coder prepares a kernel that makes codes.
func (w width) coder(from source) *coder {
	c := &coder{source: from, lo: w.broadcast("lo"), hi: w.broadcast("hi")}
	if !from.ranges {
		c.reader = w.reader()
		return c
	}
	c.reader = &reader{width: w, ranged: true, most: XMM(), unsigned: w.allBits(0x7fffffff)}
	VXORPS(c.most, c.most, c.most)
	c.levels, c.least, c.inf = w.broadcast("levels"), w.allBits(smallestHalf), w.allBits(infinity)
	return c
}

// smallestHalf are the bits of 2^−24.
const smallestHalf = 0x33800000

// makeScales takes the largest magnitudes of four rows of columns values and stores
// their scales and divisors at c.
func (k *coder) makeScales(x, stride, triple, columns reg.Register, c Mem) {
	// Row by row, not four at once: memory is read ahead in this order.
	var acc []reg.VecVirtual
	for _, at := range fourRows(x, stride, triple) {
		p, n, most := GP64(), GP64(), k.all(0)
		LEAQ(at, p)
		MOVQ(columns, n)
		loop(n, k.lanes, func() {
			v := k.vec()
			VANDPS(Mem{Base: p}, k.unsigned, v)
			VPMAXSD(v, most, most)
			ADDQ(Imm(uint64(k.bytes())), p)
		})
		acc = append(acc, most)
	}
	for i, v := range acc {
		if k.lanes == 16 {
			y := YMM()
			VEXTRACTF64X4(Imm(1), v, y)
			VPMAXSD(y, v.AsY(), y)
			v = y
		}
		x := XMM()
		VEXTRACTF128(Imm(1), v.AsY(), x)
		VPMAXSD(x, v.AsX(), x)
		acc[i] = x
	}
	// Two rows at a time, then all four: lane i becomes the largest of row i.
	for i := 0; i < 4; i += 2 {
		low, high := XMM(), XMM()
		VUNPCKLPS(acc[i+1], acc[i], low)
		VUNPCKHPS(acc[i+1], acc[i], high)
		VPMAXSD(high, low, low)
		acc[i/2] = low
	}
	width, high, scale, divisor, zero := XMM(), XMM(), XMM(), XMM(), XMM()
	VMOVLHPS(acc[1], acc[0], width)
	VUNPCKHPD(acc[1], acc[0], high)
	VPMAXSD(high, width, width)
	VPMAXSD(width, k.most, k.most)
	VDIVPS(k.levels.AsX(), width, scale)
	VCVTPS2PH(Imm(0), scale, scale)
	VCVTPH2PS(scale, scale)
	VXORPS(zero, zero, zero)
	VPMAXSD(k.least.AsX(), scale, scale)
	VCMPPS(Imm(0), zero, width, zero)
	VPANDN(scale, zero, scale)
	VBLENDVPS(zero, k.inf.AsX(), scale, divisor)
	VMOVUPS(divisor, c)
	c.Disp += 3 * constantBytes
	VMOVUPS(scale, c)
}

// done returns the bits of the largest magnitude: of the ranges, where there are.
func (k *coder) done() {
	if !k.ranges {
		k.reader.done()
		return
	}
	x, bits := XMM(), GP32()
	VPSHUFD(Imm(0b01_00_11_10), k.most, x)
	VPMAXSD(x, k.most, x)
	VPSHUFD(Imm(0b10_11_00_01), x, k.most)
	VPMAXSD(x, k.most, x)
	VMOVD(x, bits)
	Store(bits, ReturnIndex(0))
	done()
}

// constant applies op to v and the constant of one plane, for row of the 16 or for
// the columns at c.
func (w coder) constant(v reg.VecVirtual, c reg.Register, row, plane int, op, broadcast func(...Op)) {
	m := Mem{Base: c, Disp: plane * constantBytes}
	switch {
	case !w.perToken:
		op(m, v, v)
	case w.lanes == 16:
		m.Disp += 4 * row
		broadcast(m, v, v)
	default:
		m.Disp += 4 * row
		t := w.vec()
		VBROADCASTSS(m, t)
		op(t, v, v)
	}
}

// code returns the codes of the values at x as doublewords.
func (w coder) code(x Mem, c reg.Register, row int) reg.VecVirtual {
	v := w.load(x)
	w.constant(v, c, row, 1, VSUBPS, VSUBPS_BCST)
	w.constant(v, c, row, 0, VDIVPS, VDIVPS_BCST)
	w.roundEven(v)
	w.constant(v, c, row, 2, VADDPS, VADDPS_BCST)
	VMAXPS(w.lo, v, v)
	VMINPS(w.hi, v, v)
	VCVTTPS2DQ(v, v)
	return v
}

// keyLines writes lines of 16 tokens × 4 (8 bits) or 8 channels (4 bits), 128 bytes
// apart. Four rows are packed to bytes, which leaves the same four channels of each
// side by side; quarters of registers then move to the line of their channels.
func (w width) keyLines(bits int, from source) {
	w.text(fmt.Sprintf("keyLines%d%s", bits, from.name), "func(dst *byte, x, ahead, constants *float32, stride, columns int, levels, lo, hi float32) uint32",
		"writes the codes of 16 rows and returns the bits of the largest magnitude. columns is a multiple of 16, not 0; rows stand stride values apart.")
	k := w.coder(from)
	k.ahead = gp("ahead")
	if from.ranges {
		x, c, stride, columns, triple := gp("x"), gp("constants"), gp("stride"), gp("columns"), GP64()
		SHLQ(Imm(2), stride)
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, triple)
		for first := 0; first < chunkRows; first += 4 {
			k.makeScales(x, stride, triple, columns, Mem{Base: c, Disp: 4 * first})
			LEAQ(Mem{Base: x, Index: stride, Scale: 4}, x)
		}
	}
	for part := range chunkRows / w.lanes {
		dst, x, c, stride, columns := gp("dst"), gp("x"), gp("constants"), gp("stride"), gp("columns")
		SHLQ(Imm(2), stride)
		triple := GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, triple)
		if part > 0 {
			LEAQ(Mem{Base: x, Index: stride, Scale: 8}, x)
			ADDQ(Imm(uint64(w.bytes())), dst)
		}
		loop(columns, w.lanes, func() {
			row := GP64()
			MOVQ(x, row)
			var packed []reg.VecVirtual
			for first := 0; first < w.lanes; first += 4 {
				var q []reg.VecVirtual
				for j, at := range fourRows(row, stride, triple) {
					q = append(q, k.code(at, c, part*w.lanes+first+j))
				}
				VPACKSSDW(q[1], q[0], q[0])
				VPACKSSDW(q[3], q[2], q[2])
				VPACKUSWB(q[2], q[0], q[0])
				packed = append(packed, q[0])
				LEAQ(Mem{Base: row, Index: stride, Scale: 4}, row)
			}
			lines := w.quarters(packed)
			if bits == 4 {
				for i := range len(lines) / 2 {
					VPSLLW(Imm(4), lines[2*i+1], lines[2*i+1])
					w.or(lines[2*i+1], lines[2*i])
					lines[i] = lines[2*i]
				}
				lines = lines[:len(lines)/2]
			}
			for i, line := range lines {
				w.stream(line, Mem{Base: dst, Disp: 2 * lineBytes * i})
			}
			ADDQ(U32(uint32(2*lineBytes*len(lines))), dst)
			ADDQ(Imm(uint64(w.bytes())), x)
			if !from.perToken {
				ADDQ(Imm(uint64(w.bytes())), c)
			}
			k.step()
		})
	}
	k.done()
}

// stream stores a whole line past the caches.
func (w width) stream(line reg.VecVirtual, to Mem) {
	if w.lanes == 16 {
		VMOVNTPS(line, to)
		return
	}
	VMOVUPS(line, to)
}

// fourRows are the places of four rows from row on.
func fourRows(row, stride, triple reg.Register) []Mem {
	return []Mem{{Base: row}, {Base: row, Index: stride, Scale: 1}, {Base: row, Index: stride, Scale: 2}, {Base: row, Index: triple, Scale: 1}}
}

// or sets v to v | a.
func (w width) or(a, v reg.VecVirtual) {
	if w.lanes == 16 {
		VPORD(a, v, v)
		return
	}
	VPOR(a, v, v)
}

// quarters transposes 128-bit parts: result i holds part i of every register.
func (w width) quarters(v []reg.VecVirtual) []reg.VecVirtual {
	var to []reg.VecVirtual
	for range v {
		to = append(to, w.vec())
	}
	if w.lanes == 8 {
		VPERM2I128(Imm(0x20), v[1], v[0], to[0])
		VPERM2I128(Imm(0x31), v[1], v[0], to[1])
		return to
	}
	const low, high, even, odd = 0b01_00_01_00, 0b11_10_11_10, 0b10_00_10_00, 0b11_01_11_01
	var half []reg.VecVirtual
	for _, part := range []uint64{low, high} {
		for i := 0; i < 4; i += 2 {
			t := w.vec()
			VSHUFI64X2(Imm(part), v[i+1], v[i], t)
			half = append(half, t)
		}
	}
	for i := range to {
		pick := uint64(even)
		if i%2 == 1 {
			pick = odd
		}
		VSHUFI64X2(Imm(pick), half[i/2*2+1], half[i/2*2], to[i])
	}
	return to
}

// valueLines writes lines of 16 channels × 4 (8 bits) or 8 tokens (4 bits): the
// codes of a channel are shifted into one doubleword.
func (w width) valueLines(bits int, from source) {
	rows := rowsWide(bits)
	w.text(fmt.Sprintf("valueLines%d%s", bits, from.name), "func(dst *byte, x, ahead, constants *float32, stride, lanes, blocks, block, steps int, levels, lo, hi float32) uint32",
		"writes the codes of steps·%d rows, at most 16, of blocks·lanes columns; lanes is 16 or 32, blocks start block bytes apart.", rows)
	k := w.coder(from)
	k.ahead = gp("ahead")
	w.valueLoop(rows, k, func(x, stride, triple reg.Register, c reg.Register, dst reg.Register) {
		var line reg.VecVirtual
		for first := 0; first < rows; first += 4 {
			for j, at := range fourRows(x, stride, triple) {
				q := k.code(at, c, first+j)
				if shift := 8*j + first; shift > 0 {
					VPSLLD(Imm(uint64(shift)), q, q)
					w.or(q, line)
				} else {
					line = q
				}
			}
			if first+4 < rows {
				second := GP64()
				LEAQ(Mem{Base: x, Index: stride, Scale: 4}, second)
				x = second
			}
		}
		w.stream(line, Mem{Base: dst})
		k.step()
	}, w.bytes())
	k.done()
}

// valueLoop emits the loops over steps of rows, blocks and vectors of columns. body
// stores size bytes for a vector; k is nil where it needs no constants. Scales of ranges
// are made a step ahead, so that nothing waits for them.
func (w width) valueLoop(rows int, k *coder, body func(x, stride, triple, c, dst reg.Register), size int) {
	dst, x, stride, steps := gp("dst"), gp("x"), gp("stride"), gp("steps")
	var c reg.Register
	if k != nil {
		c = gp("constants")
	}
	perToken, perChannel := k != nil && k.perToken, k != nil && !k.perToken
	SHLQ(Imm(2), stride)
	triple := GP64()
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, triple)
	// makeScales makes those of the step that is `ahead` steps from x and c on.
	makeScales := func(ahead int) {
		columns, p := gp("lanes"), GP64()
		blocks := gp("blocks")
		IMULQ(blocks, columns)
		MOVQ(x, p)
		for first := -ahead * rows; first < rows; first += 4 {
			if first >= 0 {
				k.makeScales(p, stride, triple, columns, Mem{Base: c, Disp: 4 * (ahead*rows + first)})
			}
			LEAQ(Mem{Base: p, Index: stride, Scale: 4}, p)
		}
	}
	if perToken && k.ranges {
		makeScales(0)
	}
	loop(steps, 1, func() {
		if perToken && k.ranges {
			labels++
			last := fmt.Sprintf("last%d", labels)
			CMPQ(steps, Imm(1))
			JE(LabelRef(last))
			makeScales(1)
			Label(last)
		}
		from, block, blocks := GP64(), GP64(), gp("blocks")
		MOVQ(x, from)
		MOVQ(dst, block)
		if perChannel {
			Load(Param("constants"), c.(reg.GPVirtual))
		}
		loop(blocks, 1, func() {
			to, n := GP64(), gp("lanes")
			MOVQ(block, to)
			loop(n, w.lanes, func() {
				body(from, stride, triple, c, to)
				ADDQ(Imm(uint64(w.bytes())), from)
				ADDQ(Imm(uint64(size)), to)
				if perChannel {
					ADDQ(Imm(uint64(w.bytes())), c)
				}
			})
			ADDQ(gp("block"), block)
		})
		if rows == 1 {
			ADDQ(stride, x)
		}
		for range rows / 4 {
			LEAQ(Mem{Base: x, Index: stride, Scale: 4}, x)
		}
		n := gp("lanes")
		ADDQ(scaled(n, size/w.lanes), dst)
		if perToken {
			ADDQ(Imm(uint64(4*rows)), c)
		}
	})
}

// rowCodes writes packed rows of codes, the scale of each run made from its largest
// magnitude, for four runs at a time and four runs ahead.
func (w width) rowCodes(bits int) {
	w.text(fmt.Sprintf("rowCodes%d", bits), "func(dst *byte, x, constants *float32, run, runs int, levels, lo, hi float32) uint32",
		"writes the codes of runs of run values, and returns the bits of the largest magnitude. run is a multiple of 16, runs of 4; neither is 0.")
	k := w.coder(ranges)
	dst, x, c, run, runs := gp("dst"), gp("x"), gp("constants"), gp("run"), gp("runs")
	stride, triple := GP64(), GP64()
	MOVQ(run, stride)
	SHLQ(Imm(2), stride)
	LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, triple)
	k.makeScales(x, stride, triple, run, Mem{Base: c})
	loop(runs, 4, func() {
		CMPQ(runs, Imm(4))
		JE(LabelRef("last"))
		next := GP64()
		LEAQ(Mem{Base: x, Index: stride, Scale: 4}, next)
		k.makeScales(next, stride, triple, run, Mem{Base: c, Disp: 16})
		Label("last")
		for row := range 4 {
			n := GP64()
			MOVQ(run, n)
			loop(n, w.lanes, func() {
				q := k.code(Mem{Base: x}, c, row)
				if bits == 8 {
					w.storeBytes(q, Mem{Base: dst})
				} else {
					w.storeNibbles(q, Mem{Base: dst})
				}
				ADDQ(Imm(uint64(w.bytes())), x)
				ADDQ(Imm(uint64(w.lanes*bits/8)), dst)
			})
		}
		ADDQ(Imm(16), c)
	})
	k.done()
}

// storeNibbles stores the lanes of v, integers from 0 to 15, two a byte.
func (w width) storeNibbles(v reg.VecVirtual, to Mem) {
	odd := w.vec()
	VPSRLQ(Imm(28), v, odd)
	w.or(odd, v)
	if w.lanes == 16 {
		VPMOVQB(v, to)
		return
	}
	// The low bytes of quadwords: those of a half side by side, then both.
	high := XMM()
	VEXTRACTI128(Imm(1), v, high)
	VPSHUFD(Imm(0b10_00), v.AsX(), v.AsX())
	VPSHUFD(Imm(0b10_00), high, high)
	VPUNPCKLQDQ(high, v.AsX(), high)
	VPACKUSDW(high, high, high)
	VPACKUSWB(high, high, high)
	VMOVD(high, to)
}

// scaled returns n times 2 or 4 in n's place.
func scaled(n reg.Register, by int) reg.Register {
	SHLQ(Imm(uint64(by/2)), n)
	return n
}

// halfValueLines writes lines of 32 channels of one token.
func (w width) halfValueLines() {
	w.text("halfValueLines", "func(dst *byte, x, ahead *float32, stride, lanes, blocks, block, steps int) uint32",
		"writes steps rows of blocks·lanes columns as float16; lanes is 16 or 32, blocks start block bytes apart.")
	r := w.reader()
	w.valueLoop(1, nil, func(x, _, _, _, dst reg.Register) {
		VCVTPS2PH(Imm(0), r.load(Mem{Base: x}), Mem{Base: dst})
		r.step()
	}, w.bytes()/2)
	r.done()
}

// halfKeyLines writes lines of 32 tokens of one channel: eight rows at a time, whose
// words three rounds of interleaving transpose within each 128-bit part.
func (w width) halfKeyLines() {
	w.text("halfKeyLines", "func(dst *byte, x, ahead *float32, stride, columns int) uint32",
		"writes 16 rows as float16. columns is a multiple of 16, not 0; rows stand stride values apart.")
	r := w.reader()
	for part := range 2 {
		dst, x, stride, columns := gp("dst"), gp("x"), gp("stride"), gp("columns")
		SHLQ(Imm(2), stride)
		triple := GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 2}, triple)
		if part > 0 {
			LEAQ(Mem{Base: x, Index: stride, Scale: 8}, x)
			ADDQ(Imm(16), dst)
		}
		loop(columns, w.lanes, func() {
			row := GP64()
			MOVQ(x, row)
			var v []reg.VecVirtual
			for range 2 {
				for _, at := range fourRows(row, stride, triple) {
					h := w.half()
					VCVTPS2PH(Imm(0), r.load(at), h)
					v = append(v, h)
				}
				LEAQ(Mem{Base: row, Index: stride, Scale: 4}, row)
			}
			v = w.interleave(v, 1, VPUNPCKLWD, VPUNPCKHWD)
			v = w.interleave(v, 2, VPUNPCKLDQ, VPUNPCKHDQ)
			v = w.interleave(v, 4, VPUNPCKLQDQ, VPUNPCKHQDQ)
			for channel, h := range v {
				at := Mem{Base: dst, Disp: lineBytes * channel}
				if w.lanes == 8 {
					VMOVUPS(h, at)
					continue
				}
				VMOVUPS(h.AsX(), at)
				at.Disp += 8 * lineBytes
				VEXTRACTI128(Imm(1), h, at)
			}
			ADDQ(U32(uint32(lineBytes*w.lanes)), dst)
			ADDQ(Imm(uint64(w.bytes())), x)
			r.step()
		})
	}
	r.done()
}

// interleave joins registers that hold runs of rows side by side into runs twice as
// long: v is ordered by rows, and within the rows by columns.
func (w width) interleave(v []reg.VecVirtual, run int, low, high func(...Op)) []reg.VecVirtual {
	var to []reg.VecVirtual
	for i := 0; i < len(v); i += 2 * run {
		for j := range run {
			a, b := v[i+j], v[i+run+j]
			l, h := w.half(), w.half()
			low(b, a, l)
			high(b, a, h)
			to = append(to, l, h)
		}
	}
	return to
}

// scales writes the scales of ranges as they are stored, float16 or float32, and the
// divisors they make: infinity stands for 0.
func (w width) scales(half bool) {
	name, smallest := "scales", uint32(1)
	if half {
		name, smallest = "scalesHalf", smallestHalf
	}
	w.text(name, "func(scale, divisor, width *float32, levels float32, n int) uint32",
		"is pageKernels.%s, but returns the bits of the largest scale. n is a multiple of 16, not 0.", name)
	scale, divisor, x, n := gp("scale"), gp("divisor"), gp("width"), gp("n")
	levels, zero, least, inf, most := w.broadcast("levels"), w.all(0), w.allBits(smallest), w.allBits(infinity), w.all(0)
	loop(n, w.lanes, func() {
		in, v, d := w.vec(), w.vec(), w.vec()
		VMOVUPS(Mem{Base: x}, in)
		VDIVPS(levels, in, v)
		if half {
			h := w.half()
			VCVTPS2PH(Imm(0), v, h)
			VCVTPH2PS(h, v)
		}
		// Where the range is not 0, a scale has at least the smallest value: as
		// integers, positive floats are ordered like their values.
		t := w.vec()
		if w.lanes == 16 {
			VPMAXUD(least, v, t)
			k := w.notZero(in, zero)
			VMOVAPS_Z(t, k, v)
			VMOVAPS(v, d)
			VMOVAPS(inf, w.zeroMask(v, zero), d)
		} else {
			VPMAXUD(least, v, t)
			VANDPS(t, w.notZero(in, zero).(reg.VecVirtual), v)
			VBLENDVPS(w.zeroMask(v, zero).(reg.VecVirtual), inf, v, d)
		}
		VPMAXUD(v, most, most)
		VMOVUPS(v, Mem{Base: scale})
		VMOVUPS(d, Mem{Base: divisor})
		for _, p := range []reg.Register{x, scale, divisor} {
			ADDQ(Imm(uint64(w.bytes())), p)
		}
	})
	r := GP32()
	VMOVD(w.fold(most, func(o ...Op) { VPMAXUD(o[0], o[1], o[2]) }).AsX(), r)
	Store(r, ReturnIndex(0))
	done()
}

// zeroMask returns the mask of v's lanes that are 0.
func (w width) zeroMask(v, zero reg.VecVirtual) reg.Register {
	if w.lanes == 16 {
		k := K()
		VCMPPS(Imm(0), zero, v, k)
		return k
	}
	m := YMM()
	VCMPPS(Imm(0), zero, v, m)
	return m
}
