package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The distances that package kernels fixes (decode_kernels.go).
const (
	scoreBytes = 256 // of two query heads' scores
	valueBytes = 128 // of two query heads' outputs in a block of 32 lanes
	blockBytes = 512 // of two blocks of outputs
	planeBytes = 64  // of the planes of V's multiplicands
	biasStride = 20  // of two query heads' sums in foldWeighted
	pageTokens = 64
)

// A tier is the vectors one instruction set has: 16 lanes are one register of
// AVX-512 or two of AVX2.
type tier struct {
	suffix string
	wide   bool
}

var (
	avx2   = tier{suffix: "AVX2"}
	avx512 = tier{suffix: "AVX512", wide: true}
)

func (w tier) reg() reg.VecVirtual {
	if w.wide {
		return ZMM()
	}
	return YMM()
}

func (w tier) bytes() int {
	if w.wide {
		return 64
	}
	return 32
}

// lanes is 16 lanes of 32 bits.
type lanes []reg.VecVirtual

func (w tier) lanes() lanes {
	if w.wide {
		return lanes{ZMM()}
	}
	return lanes{YMM(), YMM()}
}

// at is the part of a run of 16 lanes in memory that register i holds.
func (w tier) at(m Mem, i int) Mem {
	m.Disp += i * w.bytes()
	return m
}

func (w tier) load(m Mem) lanes {
	v := w.lanes()
	for i := range v {
		VMOVUPS(w.at(m, i), v[i])
	}
	return v
}

func (w tier) store(v lanes, m Mem) {
	for i := range v {
		VMOVUPS(v[i], w.at(m, i))
	}
}

// splat fills a register with a float in memory.
func (w tier) splat(m Mem) reg.VecVirtual {
	v := w.reg()
	VBROADCASTSS(m, v)
	return v
}

// zero clears v.
func (w tier) zero(v reg.VecVirtual) {
	if w.wide {
		VPXORD(v, v, v)
	} else {
		VPXOR(v, v, v)
	}
}

// same applies f to each register of v.
func (v lanes) same(f func(r reg.VecVirtual)) {
	for _, r := range v {
		f(r)
	}
}

// words are the constants made so far.
var words = map[uint32]Mem{}

// word is 16 lanes of the 32-bit pattern bits, in memory.
func word(bits uint32) Mem {
	m, ok := words[bits]
	if !ok {
		m = GLOBL(fmt.Sprintf("decodeWord%08x", bits), RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(bits))
		}
		words[bits] = m
	}
	return m
}

// decode emits the parts of decode attention.
func decode() {
	for heads := 1; heads <= 4; heads++ {
		for _, kind := range []string{"8", "4", "Levels"} {
			for _, e := range []end{sumsEnd, valueEnd} {
				for lines := 1; lines <= 2; lines++ {
					tileVNNI(e, kind, heads, lines)
					tileAVX2(e, kind, heads, lines)
				}
			}
			for _, e := range []end{scoreEnd, halfEnd, halfAddEnd} {
				tileVNNI(e, kind, heads, 2)
				tileAVX2(e, kind, heads, 2)
			}
		}
		for _, w := range []tier{avx512, avx2} {
			for _, kind := range []string{"F32", "F16", "BF16", "E4M3", "E5M2"} {
				tileFloat(w, false, kind, heads, 2)
				tileFloat(w, true, kind, heads, 1)
				tileFloat(w, true, kind, heads, 2)
			}
		}
	}
	for heads := 1; heads <= 4; heads++ {
		weights(heads, "")
		weights(heads, "Plain")
		weights(heads, "Scaled")
		weights(heads, "Half")
		foldRows(heads, "Plain")
		foldRows(heads, "Scaled")
		foldRows(heads, "Half")
	}
	softmax(avx2)
	softmaxFold("Plain")
	softmaxFold("Scaled")
	softmaxFold("Half")
	for _, w := range []tier{avx512, avx2} {
		for _, scaled := range []bool{false, true} {
			foldWeighted(w, scaled)
		}
		scoreToken(w)
		accumulateScaled(w)
		laneDot(w)
		widen(w)
		fetch(w, "fetch", PREFETCHT0)
		fetch(w, "fetchFar", PREFETCHT1)
		merge(w)
		rowBy(w, "multiply", "src·a", VMULPS)
		rowBy(w, "divide", "src/a", VDIVPS)
		addChain(w)
		for _, ahead := range []int{0, 2048, 8192} {
			readPass(w, ahead)
		}
	}
}

// count emits a loop that runs body n times, n at least 1, and counts n down.
func count(name string, n reg.Register, body func()) {
	Label(name)
	body()
	DECQ(n)
	JNZ(LabelRef(name))
}

func copyOf(r reg.Register) reg.GPVirtual {
	c := GP64()
	MOVQ(r, c)
	return c
}

// An end is what a tile does with its sums.
type end struct {
	name   string
	params string // beyond codes, coef, bias; the output comes first
	output string
}

var (
	// sumsEnd stores the integers, block by block, head by head.
	sumsEnd = end{"tile", "", "sums *int32"}
	// scoreEnd is z = float32(sum)·unit + add.
	scoreEnd = end{"score", "unit, add *float32, ", "z *float32"}
	// halfEnd is z = (float32(sum)·unit)·scale of the token, the scales in float16.
	halfEnd = end{"scoreHalf", "unit *float32, scale *byte, ", "z *float32"}
	// halfAddEnd adds what halfEnd would store to what is there.
	halfAddEnd = end{"scoreHalfAdd", "unit *float32, scale *byte, ", "z *float32"}
	// valueEnd is o = o·r + float32(sum)·unit.
	valueEnd = end{"value", "r, unit *float32, ", "o *float32"}
)

// integerTile opens a function and loads what all integer tiles take.
type integerTile struct {
	end                              end
	out, codes, coef, bias, one, two reg.Register
	plane                            reg.Register // distance of the planes of multiplicands
	blocks, steps                    reg.Register
}

func openTile(e end, kind string, heads, lines int, suffix string) integerTile {
	name := fmt.Sprintf("%s%sx%dx%d%s", e.name, kind, heads, lines, suffix)
	params := e.params
	if kind == "Levels" {
		params += "levels *byte, "
	}
	TEXT(name, NOSPLIT, "func("+e.output+", codes, coef *byte, plane int, bias *int32, "+params+"blocks, steps int)")
	Doc(fmt.Sprintf("%s is %s%s for %d query heads and blocks of %d lanes.", name, e.name, kind, heads, 16*lines))
	Pragma("noescape")
	t := integerTile{end: e}
	out := map[string]string{"tile": "sums", "score": "z", "scoreHalf": "z", "scoreHalfAdd": "z", "value": "o"}[e.name]
	t.out = Load(Param(out), GP64())
	t.codes = Load(Param("codes"), GP64())
	t.coef = Load(Param("coef"), GP64())
	t.plane = Load(Param("plane"), GP64())
	t.bias = Load(Param("bias"), GP64())
	switch e.name {
	case "score":
		t.one, t.two = Load(Param("unit"), GP64()), Load(Param("add"), GP64())
	case "scoreHalf", "scoreHalfAdd":
		t.one, t.two = Load(Param("unit"), GP64()), Load(Param("scale"), GP64())
	case "value":
		t.one, t.two = Load(Param("r"), GP64()), Load(Param("unit"), GP64())
	}
	t.blocks = Load(Param("blocks"), GP64())
	t.steps = Load(Param("steps"), GP64())
	return t
}

// levels is the table of the integers that codes stand for, once in every 16 bytes.
func (w tier) levels() reg.VecVirtual {
	at, table := Load(Param("levels"), GP64()), w.reg()
	if w.wide {
		VBROADCASTI32X4(Mem{Base: at}, table)
	} else {
		VBROADCASTI128(Mem{Base: at}, table)
	}
	return table
}

// fetchMeta asks for a page's metadata, which stands right before the codes of K and
// is needed after them: too late to ask then, because nothing can go on without it.
func (t integerTile) fetchMeta() {
	if t.end.name == "tile" || t.end.name == "value" || t.end.name == "scoreHalfAdd" {
		return
	}
	for line := 1; line <= 4; line++ {
		PREFETCHT0(Mem{Base: t.codes, Disp: -64 * line})
	}
}

// finish stores one register of sums: of query head h, disp bytes into the block.
func (t integerTile) finish(w tier, sum reg.VecVirtual, h, lines, disp int) {
	row := Mem{Base: t.out, Disp: h*scoreBytes + disp}
	switch t.end.name {
	case "tile":
		VMOVUPS(sum, Mem{Base: t.out, Disp: 64*h*lines + disp})
		return
	case "score":
		VCVTDQ2PS(sum, sum)
		VMULPS(w.splat(Mem{Base: t.one, Disp: 4 * h}), sum, sum)
		VADDPS(w.splat(Mem{Base: t.two, Disp: 4 * h}), sum, sum)
	case "scoreHalf", "scoreHalfAdd":
		scale := w.reg()
		VCVTPH2PS(Mem{Base: t.two, Disp: disp / 2}, scale)
		VCVTDQ2PS(sum, sum)
		VMULPS(w.splat(Mem{Base: t.one, Disp: 4 * h}), sum, sum)
		VMULPS(scale, sum, sum)
		if t.end.name == "scoreHalfAdd" {
			VADDPS(row, sum, sum)
		}
	case "value":
		row.Disp = h*valueBytes + disp
		VCVTDQ2PS(sum, sum)
		VMULPS(w.splat(Mem{Base: t.two, Disp: 4 * h}), sum, sum)
		kept := w.splat(Mem{Base: t.one, Disp: 4 * h})
		VMULPS(row, kept, kept)
		VADDPS(sum, kept, sum)
	}
	VMOVUPS(sum, row)
}

// next moves on to the next block.
func (t integerTile) next(heads, lines int) {
	switch t.end.name {
	case "tile":
		ADDQ(U32(64*uint32(heads*lines)), t.out)
		return
	case "scoreHalf", "scoreHalfAdd":
		ADDQ(Imm(32*uint64(lines)), t.two)
	case "value":
		ADDQ(U32(blockBytes), t.out)
		return
	}
	ADDQ(U32(64*uint32(lines)), t.out)
}

// rowSet addresses up to eight rows that stand a variable distance apart with one
// pointer for every three of them.
type rowSet struct {
	pointers []reg.Register
	distance reg.Register
}

// rowsOf makes a set of n rows from a base, which it takes over, and their distance in bytes.
func rowsOf(base, distance reg.Register, n int) rowSet {
	r := rowSet{[]reg.Register{base}, distance}
	for i := 3; i < n; i += 3 {
		next := copyOf(r.pointers[len(r.pointers)-1])
		ADDQ(distance, next)
		LEAQ(Mem{Base: next, Index: distance, Scale: 2}, next)
		r.pointers = append(r.pointers, next)
	}
	return r
}

// at is the place disp bytes into row i.
func (r rowSet) at(i, disp int) Mem {
	m := Mem{Base: r.pointers[i/3], Disp: disp}
	if i%3 > 0 {
		m.Index, m.Scale = r.distance, uint8(i%3)
	}
	return m
}

// each emits op for every pointer.
func (r rowSet) each(op func(pointer reg.Register)) {
	for _, p := range r.pointers {
		op(p)
	}
}

// tileVNNI multiplies lines of 16 lanes × 4 codes with the two byte planes of each
// head's multiplicands. VPDPBUSD takes the codes as unsigned and a plane's four
// bytes, in every lane, as signed: |sum of a plane| ≤ 640·255·128 < 2^31.
func tileVNNI(e end, kind string, heads, lines int) {
	t := openTile(e, kind, heads, lines, "AVX512")
	var mask, table reg.VecVirtual
	if kind == "Levels" {
		table = avx512.levels()
	}
	if kind != "8" {
		mask = ZMM()
		VMOVDQU32(word(0x0f0f0f0f), mask)
	}
	t.fetchMeta()
	rows := rowsOf(t.coef, t.plane, 2*heads)
	count("block", t.blocks, func() {
		acc := make([][][2]reg.VecVirtual, heads)
		for h := range acc {
			acc[h] = make([][2]reg.VecVirtual, lines)
			for l := range lines {
				acc[h][l] = [2]reg.VecVirtual{ZMM(), ZMM()}
				VPXORD(acc[h][l][1], acc[h][l][1], acc[h][l][1])
				VPXORD(acc[h][l][0], acc[h][l][0], acc[h][l][0])
				VPSUBD_BCST(Mem{Base: t.bias, Disp: 4 * h}, acc[h][l][0], acc[h][l][0])
			}
		}
		n, parts := copyOf(t.steps), 1
		count("step", n, func() {
			code := make([][]reg.VecVirtual, lines)
			for l := range lines {
				raw := ZMM()
				VMOVDQU32(Mem{Base: t.codes, Disp: 64 * l}, raw)
				code[l] = []reg.VecVirtual{raw}
				if kind != "8" {
					low, high := ZMM(), ZMM()
					VPANDD(mask, raw, low)
					VPSRLW(Imm(4), raw, high)
					VPANDD(mask, high, high)
					code[l] = []reg.VecVirtual{low, high}
					parts = 2
				}
				if kind == "Levels" {
					for _, c := range code[l] {
						VPSHUFB(c, table, c)
					}
				}
			}
			for part := range parts {
				for h := range heads {
					for plane := range 2 {
						m := rows.at(2*h+plane, 4*part)
						if lines == 1 {
							VPDPBUSD_BCST(m, code[0][part], acc[h][0][plane])
							continue
						}
						factor := ZMM()
						VPBROADCASTD(m, factor)
						for l := range lines {
							VPDPBUSD(factor, code[l][part], acc[h][l][plane])
						}
					}
				}
			}
			rows.each(func(p reg.Register) { ADDQ(Imm(uint64(4*parts)), p) })
			ADDQ(U32(64*uint32(lines)), t.codes)
		})
		back := copyOf(t.steps)
		SHLQ(Imm(uint64(1+parts)), back)
		rows.each(func(p reg.Register) { SUBQ(back, p) })
		for h := range acc {
			for l, a := range acc[h] {
				VPSLLD(Imm(8), a[1], a[1])
				VPADDD(a[1], a[0], a[0])
				t.finish(avx512, a[0], h, lines, 64*l)
			}
		}
		t.next(heads, lines)
	})
	VZEROUPPER()
	RET()
}

// tileAVX2 widens codes to 16 bits, every second byte (int8) or every fourth nibble
// (int4) a register, and multiplies pairs with VPMADDWD: exact, and no planes. The
// multiplicands stand as fold left them, in pairs (0,2) (1,3) of every four.
func tileAVX2(e end, kind string, heads, lines int) {
	t := openTile(e, kind, heads, lines, "AVX2")
	stride := 64 * lines
	var table reg.VecVirtual
	if kind == "Levels" {
		table = avx2.levels()
	}
	t.fetchMeta()
	ADDQ(t.plane, t.plane) // a row of multiplicands takes the room of two planes
	rows := rowsOf(t.coef, t.plane, heads)
	count("block", t.blocks, func() {
		var line reg.Register
		for l := range lines {
			acc := make([][2]reg.VecVirtual, heads)
			for h := range acc {
				acc[h] = [2]reg.VecVirtual{YMM(), YMM()}
				minus := YMM()
				VPBROADCASTD(Mem{Base: t.bias, Disp: 4 * h}, minus)
				for i := range 2 {
					VPXOR(acc[h][i], acc[h][i], acc[h][i])
					VPSUBD(minus, acc[h][i], acc[h][i])
				}
			}
			n := copyOf(t.steps)
			line = copyOf(t.codes)
			multiply := func(pair int, code [2]reg.VecVirtual) {
				for h := range heads {
					factor := YMM()
					VPBROADCASTD(rows.at(h, 4*pair), factor)
					for i := range 2 {
						product := YMM()
						VPMADDWD(factor, code[i], product)
						VPADDD(product, acc[h][i], acc[h][i])
					}
				}
			}
			count(fmt.Sprintf("step%d", l), n, func() {
				if l == 0 && lines == 2 {
					// Every second line waits for the second pass: ask for it in order, or
					// the machine reads ahead of every second line only.
					PREFETCHT0(Mem{Base: line, Disp: 64})
				}
				load := func() (raw [2]reg.VecVirtual) {
					for i := range raw {
						raw[i] = YMM()
						VMOVDQU(Mem{Base: line, Disp: 64*l + 32*i}, raw[i])
					}
					return raw
				}
				if kind == "Levels" {
					// The line is loaded twice: there is no register to keep it in.
					for high := range 2 {
						raw := load()
						for _, c := range raw {
							if high == 1 {
								VPSRLW(Imm(4), c, c)
							}
							VPAND(word(0x0f0f0f0f), c, c)
							VPSHUFB(c, table, c)
						}
						even := [2]reg.VecVirtual{YMM(), YMM()}
						for i, c := range raw {
							VPAND(word(0x00ff00ff), c, even[i])
						}
						multiply(2*high, even)
						for _, c := range raw {
							VPSRLW(Imm(8), c, c)
						}
						multiply(2*high+1, raw)
					}
					rows.each(func(p reg.Register) { ADDQ(Imm(16), p) })
					ADDQ(U32(uint32(stride)), line)
					return
				}
				raw := load()
				low := func(shift int, mask uint32) (code [2]reg.VecVirtual) {
					for i := range code {
						code[i] = YMM()
						from := raw[i]
						if shift > 0 {
							VPSRLW(Imm(uint64(shift)), from, code[i])
							from = code[i]
						}
						if mask != 0 {
							VPAND(word(mask), from, code[i])
						}
					}
					return code
				}
				if kind == "8" {
					multiply(0, low(0, 0x00ff00ff))
					multiply(1, low(8, 0))
					rows.each(func(p reg.Register) { ADDQ(Imm(8), p) })
				} else {
					multiply(0, low(0, 0x000f000f))
					multiply(1, low(8, 0x000f000f))
					multiply(2, low(4, 0x000f000f))
					multiply(3, low(12, 0))
					rows.each(func(p reg.Register) { ADDQ(Imm(16), p) })
				}
				ADDQ(U32(uint32(stride)), line)
			})
			back := copyOf(t.steps)
			SHLQ(Imm(map[string]uint64{"8": 3, "4": 4, "Levels": 4}[kind]), back)
			rows.each(func(p reg.Register) { SUBQ(back, p) })
			for h := range acc {
				for i, a := range acc[h] {
					t.finish(avx2, a, h, lines, 64*l+32*i)
				}
			}
		}
		MOVQ(line, t.codes)
		t.next(heads, lines)
	})
	VZEROUPPER()
	RET()
}

// floatSizes are the bytes of a code.
var floatSizes = map[string]int{"F32": 4, "F16": 2, "BF16": 2, "E4M3": 1, "E5M2": 1}

// loadFloats widens codes in memory to the floats of a register. The bits of an e5m2 are
// the upper byte of a float16; those of an e4m3, behind the sign, stand one lower, which
// divides by 256.
func (w tier) loadFloats(kind string, m Mem, v reg.VecVirtual) {
	var half reg.VecVirtual = XMM()
	if w.wide {
		half = YMM()
	}
	switch kind {
	case "F32":
		VMOVUPS(m, v)
	case "F16":
		VCVTPH2PS(m, v)
	case "BF16":
		VPMOVZXWD(m, v)
		VPSLLD(Imm(16), v, v)
	case "E4M3":
		VPMOVSXBW(m, half)
		VPSLLW(Imm(7), half, half)
		VPAND(word(0xbf80bf80), half, half)
		VCVTPH2PS(half, v)
	case "E5M2":
		VPMOVZXBW(m, half)
		VPSLLW(Imm(8), half, half)
		VCVTPH2PS(half, v)
	}
}

// tileFloat multiplies lines of narrow floats (fused) or of float32 (product rounded
// first) with float rows: scores, or with r the outputs o = o·r + sum. AVX2 has registers
// for 16 lanes of four heads at a time.
func tileFloat(w tier, value bool, kind string, heads, lines int) {
	size, use := floatSizes[kind], "score"
	params, outBytes := "x *float32, row int", scoreBytes
	if value {
		use, outBytes = "value", valueBytes
		params += ", r *float32"
	}
	name := fmt.Sprintf("%s%sx%dx%d%s", use, kind, heads, lines, w.suffix)
	TEXT(name, NOSPLIT, "func(out *float32, codes *byte, "+params+", blocks, steps int)")
	Doc(fmt.Sprintf("%s is %s%s for %d query heads and blocks of %d lanes.", name, use, kind, heads, 16*lines))
	Pragma("noescape")
	out := Load(Param("out"), GP64())
	codes := Load(Param("codes"), GP64())
	x := Load(Param("x"), GP64())
	row := Load(Param("row"), GP64())
	SHLQ(Imm(2), row)
	rows := rowsOf(x, row, heads)
	var r reg.Register
	if value {
		r = Load(Param("r"), GP64())
	}
	blocks := Load(Param("blocks"), GP64())
	steps := Load(Param("steps"), GP64())
	t := floatTile{w: w, kind: kind, size: size, lines: lines, value: value, outBytes: outBytes, out: out, rows: rows, r: r}
	next := func() {
		if value {
			ADDQ(U32(blockBytes), out)
		} else {
			ADDQ(U32(64*uint32(lines)), out)
		}
	}
	if !w.wide && lines == 2 {
		t.inPieces(heads, codes, blocks, steps, next)
		return
	}
	count("block", blocks, func() {
		acc := t.sums(heads, lines)
		for _, head := range acc {
			for _, a := range head {
				a.same(w.zero)
			}
		}
		n := copyOf(steps)
		count("step", n, func() { t.step(codes, 0, acc) })
		t.rewind(steps)
		for h := range acc {
			for l, a := range acc[h] {
				t.finish(h, l, a)
			}
		}
		next()
	})
	VZEROUPPER()
	RET()
}

// floatTile is what the parts of tileFloat share.
type floatTile struct {
	w           tier
	kind        string
	size, lines int
	value       bool
	outBytes    int
	out, r      reg.Register
	rows        rowSet
}

// sums are the registers of the sums of `lines` lines for each head.
func (t *floatTile) sums(heads, lines int) [][]lanes {
	acc := make([][]lanes, heads)
	for h := range acc {
		for range lines {
			acc[h] = append(acc[h], t.w.lanes())
		}
	}
	return acc
}

// step multiplies the lines from first on of one step and moves on to the next.
func (t *floatTile) step(codes reg.Register, first int, acc [][]lanes) {
	w := t.w
	var code []lanes
	for l := range acc[0] {
		c := w.lanes()
		for i := range c {
			m := Mem{Base: codes, Disp: (first+l)*16*t.size + i*w.bytes()*t.size/4}
			w.loadFloats(t.kind, m, c[i])
		}
		code = append(code, c)
	}
	for h := range acc {
		factor := w.splat(t.rows.at(h, 0))
		for l := range code {
			for i, c := range code[l] {
				if t.kind != "F32" {
					VFMADD231PS(factor, c, acc[h][l][i])
					continue
				}
				product := w.reg()
				VMULPS(factor, c, product)
				VADDPS(product, acc[h][l][i], acc[h][l][i])
			}
		}
	}
	t.rows.each(func(p reg.Register) { ADDQ(Imm(4), p) })
	ADDQ(U32(uint32(16*t.lines*t.size)), codes)
}

// rewind takes the rows back by n steps.
func (t *floatTile) rewind(n reg.Register) {
	back := copyOf(n)
	SHLQ(Imm(2), back)
	t.rows.each(func(p reg.Register) { SUBQ(back, p) })
}

// finish stores the sums of one line of a head.
func (t *floatTile) finish(h, l int, sums lanes) {
	for i, sum := range sums {
		at := Mem{Base: t.out, Disp: h*t.outBytes + 64*l + i*t.w.bytes()}
		if t.value {
			kept := t.w.splat(Mem{Base: t.r, Disp: 4 * h})
			VMULPS(at, kept, kept)
			VADDPS(sum, kept, sum)
		}
		VMOVUPS(sum, at)
	}
}

// pieceSteps is how many steps inPieces does of one line before it does the other.
const pieceSteps = 32

// inPieces does the two lines of a block in turn, a few steps of each: AVX2 has
// registers for the sums of one. Were each done in one go, the first would wait for
// memory while the second asked it for nothing.
func (t *floatTile) inPieces(heads int, codes, blocks, steps reg.Register, next func()) {
	w := t.w
	kept := AllocLocal(2 * 64 * heads)
	at := func(l, h int) Mem { return kept.Offset(64 * (l*heads + h)) }
	count("block", blocks, func() {
		zero := w.lanes()
		zero.same(w.zero)
		for l := range 2 {
			for h := range heads {
				w.store(zero, at(l, h))
			}
		}
		left := copyOf(steps)
		Label("piece")
		piece, line := GP64(), GP64()
		MOVQ(U32(pieceSteps), piece)
		CMPQ(left, piece)
		JGE(LabelRef("whole"))
		MOVQ(left, piece)
		Label("whole")
		for l := range 2 {
			acc := make([][]lanes, heads)
			for h := range acc {
				acc[h] = []lanes{w.load(at(l, h))}
			}
			MOVQ(codes, line)
			count(fmt.Sprintf("step%d", l), copyOf(piece), func() { t.step(line, l, acc) })
			for h := range acc {
				w.store(acc[h][0], at(l, h))
			}
			if l == 0 {
				t.rewind(piece)
			}
		}
		MOVQ(line, codes)
		SUBQ(piece, left)
		JNZ(LabelRef("piece"))
		t.rewind(steps)
		for l := range 2 {
			for h := range heads {
				t.finish(h, l, w.load(at(l, h)))
			}
		}
		next()
	})
	VZEROUPPER()
	RET()
}

// largest leaves the largest lane of v in every lane of the result.
func (w tier) largest(v lanes) reg.VecVirtual {
	x, y := XMM(), XMM()
	if w.wide {
		top := YMM()
		VEXTRACTF64X4(Imm(1), v[0], top)
		VMAXPS(v[0].AsY(), top, top)
		VEXTRACTF128(Imm(1), top, x)
		VMAXPS(top.AsX(), x, x)
	} else {
		top := YMM()
		VMAXPS(v[0], v[1], top)
		VEXTRACTF128(Imm(1), top, x)
		VMAXPS(top.AsX(), x, x)
	}
	VPERMILPS(Imm(0b01_00_11_10), x, y)
	VMAXPS(x, y, x)
	VPERMILPS(Imm(0b10_11_00_01), x, y)
	VMAXPS(x, y, x)
	all := w.reg()
	VBROADCASTSS(x, all)
	return all
}

// total adds the integer lanes of v.
func (w tier) total(v lanes) reg.VecVirtual {
	x, y := XMM(), XMM()
	sum := YMM()
	if w.wide {
		VEXTRACTI64X4(Imm(1), v[0], sum)
		VPADDD(v[0].AsY(), sum, sum)
	} else {
		VPADDD(v[0], v[1], sum)
	}
	VEXTRACTI128(Imm(1), sum, x)
	VPADDD(sum.AsX(), x, x)
	VPSHUFD(Imm(0b01_00_11_10), x, y)
	VPADDD(x, y, x)
	VPSHUFD(Imm(0b10_11_00_01), x, y)
	VPADDD(x, y, x)
	return x
}

// Words of 32 bits that the kernels use.
const (
	absMask    = 0x7fffffff
	smallFold  = 0x0d800000 // 2^−100
	halfByte   = 128
	exp2Low    = 0xc2c80000 // −100
	roundMagic = 0x4b400000 // 3·2^22
)

func (w tier) and(m Mem, v, dst reg.VecVirtual) {
	if w.wide {
		VPANDD(m, v, dst)
	} else {
		VPAND(m, v, dst)
	}
}

// factors leaves limit/amax in every lane of the result and stores amax/limit; both
// are 0 for an amax that is too small. label is unique in the function.
func (w tier) factors(label string, amax reg.VecVirtual, limits reg.Register, unit Mem) reg.VecVirtual {
	factor, units := XMM(), XMM()
	VXORPS(factor, factor, factor)
	VXORPS(units, units, units)
	VUCOMISS(word(smallFold), amax.AsX())
	JB(LabelRef(label))
	VDIVSS(amax.AsX(), limits, factor)
	VDIVSS(limits, amax.AsX(), units)
	Label(label)
	VMOVSS(units, unit)
	by := w.reg()
	VBROADCASTSS(factor, by)
	return by
}

// planes rounds 16 scaled values to integers, stores them as multiplicands at coef,
// 16·part elements behind index i, their high bytes at coefHigh where there are
// planes, and returns them.
func (w tier) planes(v lanes, coef, coefHigh, i reg.Register, part int) lanes {
	for r := range v {
		VCVTPS2DQ(v[r], v[r])
	}
	if w.wide {
		high := ZMM()
		VPADDD(word(halfByte), v[0], high)
		VPSRAD(Imm(8), high, high)
		VPMOVDB(v[0], Mem{Base: coef, Index: i, Scale: 1, Disp: 16 * part})
		VPMOVDB(high, Mem{Base: coefHigh, Index: i, Scale: 1, Disp: 16 * part})
		return v
	}
	packed := YMM()
	VPACKSSDW(v[1], v[0], packed)
	VPERMQ(Imm(0b11_01_10_00), packed, packed)
	VPSHUFB(pairOrder(), packed, packed)
	VMOVDQU(packed, Mem{Base: coef, Index: i, Scale: 2, Disp: 32 * part})
	return v
}

// foldWeighted writes multiplicands: two passes over each row, the first for its
// largest magnitude.
func foldWeighted(w tier, scaled bool) {
	name, scale := "foldWeightedPlain", ""
	if scaled {
		name, scale = "foldWeightedScaled", ", scale"
	}
	TEXT(name+w.suffix, NOSPLIT, "func(coef *byte, plane int, units *float32, bias *int32, x"+scale+" *float32, row int, limit float32, weight *int32, heads, n int)")
	Doc(name + w.suffix + " is foldWeighted; n is a multiple of 32, 32 at least.")
	Pragma("noescape")
	coef := Load(Param("coef"), GP64())
	plane := Load(Param("plane"), GP64())
	coefHigh := copyOf(coef)
	ADDQ(plane, coefHigh)
	ADDQ(plane, plane)
	units := Load(Param("units"), GP64())
	bias := Load(Param("bias"), GP64())
	x := Load(Param("x"), GP64())
	var factors reg.Register
	if scaled {
		factors = Load(Param("scale"), GP64())
	}
	row := Load(Param("row"), GP64())
	SHLQ(Imm(2), row)
	limits := XMM()
	Load(Param("limit"), limits)
	weight := Load(Param("weight"), GP64())
	heads := Load(Param("heads"), GP64())
	n := Load(Param("n"), GP64())
	count("head", heads, func() {
		i := GP64()
		load := func(part int) lanes {
			v := w.load(Mem{Base: x, Index: i, Scale: 4, Disp: 64 * part})
			if scaled {
				for r := range v {
					VMULPS(w.at(Mem{Base: factors, Index: i, Scale: 4, Disp: 64 * part}, r), v[r], v[r])
				}
			}
			return v
		}
		top := w.lanes()
		top.same(w.zero)
		XORQ(i, i)
		Label("amax")
		for part := range 2 {
			for r, v := range load(part) {
				w.and(word(absMask), v, v)
				VMAXPS(v, top[r], top[r])
			}
		}
		ADDQ(Imm(32), i)
		CMPQ(i, n)
		JLT(LabelRef("amax"))
		by := w.factors("small", w.largest(top), limits, Mem{Base: units})
		XORQ(i, i)
		sums := copyOf(bias)
		Label("planes")
		sum := w.lanes()
		for part := range 2 {
			v := load(part)
			v.same(func(r reg.VecVirtual) { VMULPS(by, r, r) })
			for r, k := range w.planes(v, coef, coefHigh, i, part) {
				at := w.at(Mem{Base: weight, Index: i, Scale: 4, Disp: 64 * part}, r)
				if part == 0 {
					VPMULLD(at, k, sum[r])
					continue
				}
				VPMULLD(at, k, k)
				VPADDD(k, sum[r], sum[r])
			}
		}
		VMOVD(w.total(sum).AsX(), Mem{Base: sums})
		ADDQ(Imm(4), sums)
		ADDQ(Imm(32), i)
		CMPQ(i, n)
		JLT(LabelRef("planes"))
		ADDQ(row, x)
		ADDQ(plane, coef)
		ADDQ(plane, coefHigh)
		ADDQ(Imm(4*biasStride), bias)
		ADDQ(Imm(4), units)
	})
	VZEROUPPER()
	RET()
}

var pairMask *Mem

// pairOrder shuffles every four 16-bit words into the order 0, 2, 1, 3.
func pairOrder() Mem {
	if pairMask == nil {
		m := GLOBL("decodePairs", RODATA|NOPTR)
		for i := range 4 {
			base := uint64(8 * (i % 2))
			var q uint64
			for j, word := range []uint64{0, 2, 1, 3} {
				low := base + 2*word
				q |= low<<(16*j) | (low+1)<<(16*j+8)
			}
			DATA(8*i, U64(q))
		}
		pairMask = &m
	}
	return *pairMask
}

func scoreToken(w tier) {
	for _, offsets := range []bool{false, true} {
		name, params := "scoreToken"+w.suffix, "unit, scale *float32"
		if offsets {
			name, params = "scoreTokenOffset"+w.suffix, "unit, scale, offset, q *float32"
		}
		TEXT(name, NOSPLIT, "func(z *float32, sums *int32, "+params+", heads, groups int)")
		Doc(name + " is scoreToken.")
		Pragma("noescape")
		z := Load(Param("z"), GP64())
		sums := Load(Param("sums"), GP64())
		unit := Load(Param("unit"), GP64())
		scale := Load(Param("scale"), GP64())
		var offset, q reg.Register
		if offsets {
			offset = Load(Param("offset"), GP64())
			q = Load(Param("q"), GP64())
		}
		heads := Load(Param("heads"), GP64())
		groups := Load(Param("groups"), GP64())
		// A group's sums are two blocks of [heads][32].
		blockBytes := copyOf(heads)
		SHLQ(Imm(7), blockBytes)
		h := GP64()
		XORQ(h, h)
		Label("head")
		by := w.splat(Mem{Base: unit, Index: h, Scale: 4})
		for block := range 2 {
			sum := []lanes{w.lanes(), w.lanes()}
			at, sc, g := copyOf(sums), copyOf(scale), copyOf(groups)
			if block == 1 {
				ADDQ(blockBytes, at)
			}
			var off, share reg.Register
			if offsets {
				off, share = copyOf(offset), copyOf(q)
			}
			group := func(first bool) {
				var by2 reg.VecVirtual
				if offsets {
					by2 = w.splat(Mem{Base: share, Index: h, Scale: 4})
				}
				for i, s := range sum {
					for r := range s {
						disp := 64*i + r*w.bytes()
						v := w.reg()
						VCVTDQ2PS(Mem{Base: at, Disp: disp}, v)
						VMULPS(by, v, v)
						if first {
							VMULPS(Mem{Base: sc, Disp: 128*block + disp}, v, s[r])
						} else {
							VMULPS(Mem{Base: sc, Disp: 128*block + disp}, v, v)
							VADDPS(v, s[r], s[r])
						}
						if offsets {
							VMULPS(Mem{Base: off, Disp: 128*block + disp}, by2, v)
							VADDPS(v, s[r], s[r])
						}
					}
				}
				LEAQ(Mem{Base: at, Index: blockBytes, Scale: 2}, at)
				ADDQ(U32(4*pageTokens), sc)
				if offsets {
					ADDQ(U32(4*pageTokens), off)
					ADDQ(Imm(16), share)
				}
				DECQ(g)
			}
			done := fmt.Sprintf("done%d", block)
			group(true)
			JZ(LabelRef(done))
			Label(fmt.Sprintf("group%d", block))
			group(false)
			JNZ(LabelRef(fmt.Sprintf("group%d", block)))
			Label(done)
			for i, s := range sum {
				w.store(s, Mem{Base: z, Disp: 128*block + 64*i})
			}
		}
		ADDQ(U32(128), sums)
		ADDQ(U32(scoreBytes), z)
		INCQ(h)
		CMPQ(h, heads)
		JLT(LabelRef("head"))
		VZEROUPPER()
		RET()
	}
}

// exp2Coef repeats exp2Coef of decode_generic.go.
var exp2Coef = [...]float32{1, 0.693147182, 0.240223497, 0.0555038117, 0.00966636837, 0.00133813021}

// exp2 turns v into 2^v: the same steps as exp2 in decode_generic.go.
func exp2(v, n, p reg.VecVirtual) {
	VMAXPS(word(exp2Low), v, v)
	VADDPS(word(roundMagic), v, n)
	VSUBPS(word(roundMagic), n, p)
	VSUBPS(p, v, v)
	VPSLLD(Imm(23), n, n)
	last := len(exp2Coef) - 1
	VMULPS(word(math.Float32bits(exp2Coef[last])), v, p)
	for i := last - 1; i > 0; i-- {
		VADDPS(word(math.Float32bits(exp2Coef[i])), p, p)
		VMULPS(v, p, p)
	}
	VADDPS(word(math.Float32bits(exp2Coef[0])), p, p)
	VPADDD(n, p, v)
}

// tops raises the running maxima m to those of the rows z and leaves 2^(old − new)
// in r, for all heads at once. It needs room for four heads in m and r.
func (w tier) tops(z, m, r, heads reg.Register) {
	row, h := copyOf(z), GP64()
	old, x, n, p := XMM(), XMM(), XMM(), XMM()
	VMOVUPS(Mem{Base: m}, old)
	XORQ(h, h)
	Label("top")
	before := w.splat(Mem{Base: m, Index: h, Scale: 4})
	top := w.lanes()
	for i := range top {
		at := Mem{Base: row, Disp: i * w.bytes()}
		VMAXPS(at, before, top[i])
		for part := 1; part < 4; part++ {
			at.Disp += 64
			VMAXPS(at, top[i], top[i])
		}
	}
	VMOVSS(w.largest(top).AsX(), Mem{Base: m, Index: h, Scale: 4})
	ADDQ(U32(scoreBytes), row)
	INCQ(h)
	CMPQ(h, heads)
	JLT(LabelRef("top"))
	VMOVUPS(Mem{Base: m}, x)
	VSUBPS(x, old, x)
	exp2(x, n, p)
	VMOVUPS(x, Mem{Base: r})
}

// weigh turns a row of scores into probabilities relative to all and adds them to
// l; use gets each 16 of them.
func (w tier) weigh(z, l reg.Register, all, kept reg.VecVirtual, use func(part int, p lanes)) {
	sum := w.lanes()
	for part := range 4 {
		v := w.load(Mem{Base: z, Disp: 64 * part})
		for i := range v {
			VSUBPS(all, v[i], v[i])
			exp2(v[i], w.reg(), w.reg())
			if part == 0 {
				VMOVAPS(v[i], sum[i])
			} else {
				VADDPS(v[i], sum[i], sum[i])
			}
		}
		w.store(v, Mem{Base: z, Disp: 64 * part})
		if use != nil {
			use(part, v)
		}
	}
	for i := range sum {
		at := w.at(Mem{Base: l}, i)
		v := w.reg()
		VMULPS(at, kept, v)
		VADDPS(sum[i], v, v)
		VMOVUPS(v, at)
	}
}

func softmax(w tier) {
	TEXT("softmax"+w.suffix, NOSPLIT, "func(z, m, r, l *float32, heads int)")
	Doc("softmax" + w.suffix + " is softmax; m and r have room for four heads.")
	Pragma("noescape")
	z := Load(Param("z"), GP64())
	m := Load(Param("m"), GP64())
	r := Load(Param("r"), GP64())
	l := Load(Param("l"), GP64())
	heads := Load(Param("heads"), GP64())
	w.tops(z, m, r, heads)
	count("head", heads, func() {
		w.weigh(z, l, w.splat(Mem{Base: m}), w.splat(Mem{Base: r}), nil)
		ADDQ(U32(scoreBytes), z)
		ADDQ(Imm(4), m)
		ADDQ(Imm(4), r)
		ADDQ(Imm(64), l)
	})
	VZEROUPPER()
	RET()
}

// softmaxFold is softmax followed by fold. Probabilities and scales are not negative,
// so that no magnitudes need be taken.
func softmaxFold(folding string) {
	w := avx2
	scaled := folding != "Plain"
	name, params := "softmaxFold"+folding, scaleParams[folding]
	TEXT(name+w.suffix, NOSPLIT, "func(z, m, r, l *float32, coef *byte, units *float32, bias *int32"+params+", limit float32, centre, heads int)")
	Doc(name + w.suffix + " is softmaxFold; m and r have room for four heads.")
	Pragma("noescape")
	z := Load(Param("z"), GP64())
	m := Load(Param("m"), GP64())
	r := Load(Param("r"), GP64())
	l := Load(Param("l"), GP64())
	coef := Load(Param("coef"), GP64())
	units := Load(Param("units"), GP64())
	bias := Load(Param("bias"), GP64())
	var scale reg.Register
	if scaled {
		scale = Load(Param("scale"), GP64())
	}
	if folding == "Half" {
		scale = w.widenScales()
	}
	limits := XMM()
	Load(Param("limit"), limits)
	centre := Load(Param("centre"), GP64())
	heads := Load(Param("heads"), GP64())
	w.tops(z, m, r, heads)
	zero := GP64()
	XORQ(zero, zero)
	count("head", heads, func() {
		top := w.lanes()
		w.weigh(z, l, w.splat(Mem{Base: m}), w.splat(Mem{Base: r}), func(part int, p lanes) {
			for i := range p {
				v := p[i]
				if scaled {
					VMULPS(w.at(Mem{Base: scale, Disp: 64 * part}, i), v, v)
				}
				if part == 0 {
					VMOVAPS(v, top[i])
				} else {
					VMAXPS(v, top[i], top[i])
				}
			}
		})
		by := w.factors("small", w.largest(top), limits, Mem{Base: units})
		sum := w.lanes()
		for part := range 4 {
			v := w.load(Mem{Base: z, Disp: 64 * part})
			if scaled {
				for i := range v {
					VMULPS(w.at(Mem{Base: scale, Disp: 64 * part}, i), v[i], v[i])
				}
			}
			v.same(func(r reg.VecVirtual) { VMULPS(by, r, r) })
			for i, k := range w.planes(v, coef, nil, zero, part) {
				if part == 0 {
					VMOVAPS(k, sum[i])
				} else {
					VPADDD(k, sum[i], sum[i])
				}
			}
		}
		total := GP32()
		VMOVD(w.total(sum).AsX(), total)
		IMULL(centre.(reg.GP).As32(), total)
		MOVL(total, Mem{Base: bias})
		ADDQ(U32(scoreBytes), z)
		ADDQ(Imm(4), m)
		ADDQ(Imm(4), r)
		ADDQ(Imm(64), l)
		ADDQ(U32(2*planeBytes), coef)
		ADDQ(Imm(4), units)
		ADDQ(Imm(4), bias)
	})
	VZEROUPPER()
	RET()
}

// scaleParams are the parameters for the scales of V's tokens: none, float32, or
// float16 with room to widen them.
var scaleParams = map[string]string{"": "", "Plain": "", "Scaled": ", scale *float32", "Half": ", half *byte, scale *float32"}

// widenScales converts the 64 float16 of parameter half to the floats of parameter
// scale and returns where those are.
func (w tier) widenScales() reg.Register {
	half, scale := Load(Param("half"), GP64()), Load(Param("scale"), GP64())
	for at := 0; at < 4*pageTokens; at += w.bytes() {
		v := w.reg()
		VCVTPH2PS(Mem{Base: half, Disp: at / 2}, v)
		VMOVUPS(v, Mem{Base: scale, Disp: at})
	}
	return scale
}

// weights emits softmax for a fixed number of heads, and after it, with a folding,
// fold of the probabilities while they are in registers. AVX-512 has room for all
// 64 of four heads: the long chain of each is then hidden behind the others.
// The last parameter stands for the number of heads, which AVX2's softmax takes.
func weights(heads int, folding string) {
	name := fmt.Sprintf("softmax%sx%dAVX512", folding, heads)
	params := "z, m, r, l *float32, _ int"
	doc := "softmax"
	if folding != "" {
		doc = "softmaxFold"
		params = "z, m, r, l *float32, coef *byte, units *float32, bias *int32" + scaleParams[folding] + ", limit float32, centre, _ int"
	}
	TEXT(name, NOSPLIT, "func("+params+")")
	Doc(fmt.Sprintf("%s is %s for %d query heads; m, r and units have room for four.", name, doc, heads))
	Pragma("noescape")
	z := Load(Param("z"), GP64())
	m := Load(Param("m"), GP64())
	r := Load(Param("r"), GP64())
	l := Load(Param("l"), GP64())
	at := func(h, part int) Mem { return Mem{Base: z, Disp: h*scoreBytes + 64*part} }
	w := avx512

	low, magic := splatWord(exp2Low), splatWord(roundMagic)
	var poly []reg.VecVirtual
	for _, c := range exp2Coef {
		poly = append(poly, splatWord(math.Float32bits(c)))
	}
	old, x, n, p := XMM(), XMM(), XMM(), XMM()
	VMOVUPS(Mem{Base: m}, old)
	tops := make([]reg.VecVirtual, heads)
	for h := range tops {
		top := ZMM()
		VBROADCASTSS(Mem{Base: m, Disp: 4 * h}, top)
		for part := range 4 {
			VMAXPS(at(h, part), top, top)
		}
		tops[h] = top
	}
	for h, top := range tops {
		tops[h] = w.largest(lanes{top})
	}
	gather(tops, x)
	VMOVUPS(x, Mem{Base: m})
	VSUBPS(x, old, x)
	exp2(x, n, p)
	VMOVUPS(x, Mem{Base: r})

	weight := make([][]reg.VecVirtual, heads)
	var scale reg.Register
	switch folding {
	case "Scaled":
		scale = Load(Param("scale"), GP64())
	case "Half":
		scale = w.widenScales()
	}
	for h := range heads {
		sum := ZMM()
		for part := range 4 {
			v, n, p := ZMM(), ZMM(), ZMM()
			VMOVUPS(at(h, part), v)
			VSUBPS(tops[h], v, v)
			VMAXPS(low, v, v)
			VADDPS(magic, v, n)
			VSUBPS(magic, n, p)
			VSUBPS(p, v, v)
			VPSLLD(Imm(23), n, n)
			last := len(poly) - 1
			VMULPS(poly[last], v, p)
			for i := last - 1; i > 0; i-- {
				VADDPS(poly[i], p, p)
				VMULPS(v, p, p)
			}
			VADDPS(poly[0], p, p)
			VPADDD(n, p, v)
			VMOVUPS(v, at(h, part))
			if part == 0 {
				VMOVAPS(v, sum)
			} else {
				VADDPS(v, sum, sum)
			}
			if scale != nil {
				VMULPS(Mem{Base: scale, Disp: 64 * part}, v, v)
			}
			if folding != "" {
				weight[h] = append(weight[h], v)
			}
		}
		kept, before := w.splat(Mem{Base: r, Disp: 4 * h}), Mem{Base: l, Disp: 64 * h}
		VMULPS(before, kept, kept)
		VADDPS(sum, kept, kept)
		VMOVUPS(kept, before)
	}
	if folding == "" {
		VZEROUPPER()
		RET()
		return
	}

	coef := Load(Param("coef"), GP64())
	units := Load(Param("units"), GP64())
	bias := Load(Param("bias"), GP64())
	limit := XMM()
	VBROADCASTSS(NewParamAddr("limit", map[string]int{"Plain": 56, "Scaled": 64, "Half": 72}[folding]), limit)
	largest := make([]reg.VecVirtual, heads)
	for h, v := range weight {
		top, other := ZMM(), ZMM()
		VMAXPS(v[0], v[1], top)
		VMAXPS(v[2], v[3], other)
		VMAXPS(other, top, top)
		largest[h] = top
	}
	by := w.factorRows(largest, limit, units)
	centre := Load(Param("centre"), GP64())
	sums := make([]reg.VecVirtual, heads)
	lowBytes, highBytes := bytePlanes()
	half := splatWord(halfByte | halfByte<<16)
	for h, v := range weight {
		for _, k := range v {
			VMULPS(by[h], k, k)
			VCVTPS2DQ(k, k)
		}
		// The integers fit 16 bits: two registers of words hold a row.
		first, second, sum, other := ZMM(), ZMM(), ZMM(), ZMM()
		VPADDD(v[0], v[1], sum)
		VPADDD(v[2], v[3], other)
		VPADDD(other, sum, sum)
		VPACKSSDW(v[1], v[0], first)
		VPACKSSDW(v[3], v[2], second)
		plane := ZMM()
		VMOVDQU64(lowBytes, plane)
		VPERMI2B(second, first, plane)
		VMOVDQU64(plane, Mem{Base: coef, Disp: 2 * h * planeBytes})
		VPADDW(half, first, first)
		VPADDW(half, second, second)
		plane = ZMM()
		VMOVDQU64(highBytes, plane)
		VPERMI2B(second, first, plane)
		VMOVDQU64(plane, Mem{Base: coef, Disp: (2*h + 1) * planeBytes})
		sums[h] = sum
	}
	w.storeTotals(sums, bias, centre)
	VZEROUPPER()
	RET()
}

// foldRows is fold for a fixed number of heads: all of them at once, so that the
// reductions of one hide behind the others.
func foldRows(heads int, folding string) {
	scaled := folding != "Plain"
	name := fmt.Sprintf("fold%sx%dAVX512", folding, heads)
	params := map[string]string{"Plain": "x *float32", "Scaled": "x, scale *float32", "Half": "x *float32, scale *byte"}[folding]
	TEXT(name, NOSPLIT, "func(coef *byte, plane int, units *float32, bias *int32, "+params+", row int, limit float32, centre, n int)")
	Doc(name + " is fold; n is a multiple of 32, 32 at least; units has room for four heads.")
	Pragma("noescape")
	w := avx512
	row := Load(Param("row"), GP64())
	SHLQ(Imm(2), row)
	var x rowSet
	var scale reg.Register
	limitAt := 48
	if scaled {
		limitAt = 56
	}
	// rewind starts a pass over the rows.
	rewind := func() reg.Register {
		x = rowsOf(Load(Param("x"), GP64()), row, heads)
		if scaled {
			scale = Load(Param("scale"), GP64())
		}
		return Load(Param("n"), GP64())
	}
	// next moves on by 32 elements.
	next := func(label string, n reg.Register) {
		x.each(func(p reg.Register) { ADDQ(U32(128), p) })
		switch folding {
		case "Scaled":
			ADDQ(U32(128), scale)
		case "Half":
			ADDQ(Imm(64), scale)
		}
		SUBQ(Imm(32), n)
		JNZ(LabelRef(label))
	}
	limit := XMM()
	VBROADCASTSS(NewParamAddr("limit", limitAt), limit)
	tops := make([]reg.VecVirtual, heads)
	for h := range tops {
		tops[h] = ZMM()
		w.zero(tops[h])
	}
	magnitude := splatWord(absMask)
	// scales loads the scales of 32 elements once for all heads.
	scales := func() (s [2]reg.VecVirtual) {
		for part := range s {
			switch folding {
			case "Half":
				s[part] = ZMM()
				VCVTPH2PS(Mem{Base: scale, Disp: 32 * part}, s[part])
			case "Scaled":
				s[part] = ZMM()
				VMOVUPS(Mem{Base: scale, Disp: 64 * part}, s[part])
			}
		}
		return s
	}
	load := func(h, part int, s [2]reg.VecVirtual) reg.VecVirtual {
		v, at := ZMM(), x.at(h, 64*part)
		if scaled {
			VMULPS(at, s[part], v)
		} else {
			VMOVUPS(at, v)
		}
		return v
	}
	n := rewind()
	Label("amax")
	s := scales()
	for h, top := range tops {
		for part := range 2 {
			v := load(h, part, s)
			VPANDD(magnitude, v, v)
			VMAXPS(v, top, top)
		}
	}
	next("amax", n)
	by := make([]reg.VecVirtual, heads)
	for h, factor := range w.factorRows(tops, limit, Load(Param("units"), GP64())) {
		by[h] = factor
	}
	low, high := bytePlanes()
	lowBytes, highBytes := ZMM(), ZMM()
	VMOVDQU64(low, lowBytes)
	VMOVDQU64(high, highBytes)
	half := splatWord(halfByte | halfByte<<16)
	sums := make([]reg.VecVirtual, heads)
	for h := range sums {
		sums[h] = ZMM()
		w.zero(sums[h])
	}
	coef := rowsOf(Load(Param("coef"), GP64()), Load(Param("plane"), GP64()), 2*heads)
	n = rewind()
	Label("planes")
	s = scales()
	for h := range heads {
		var k [2]reg.VecVirtual
		for part := range k {
			k[part] = load(h, part, s)
			VMULPS(by[h], k[part], k[part])
			VCVTPS2DQ(k[part], k[part])
			VPADDD(k[part], sums[h], sums[h])
		}
		words, plane := ZMM(), ZMM()
		VPACKSSDW(k[1], k[0], words)
		VPERMB(words, lowBytes, plane)
		VMOVDQU(plane.AsY(), coef.at(2*h, 0))
		VPADDW(half, words, words)
		VPERMB(words, highBytes, words)
		VMOVDQU(words.AsY(), coef.at(2*h+1, 0))
	}
	coef.each(func(p reg.Register) { ADDQ(Imm(32), p) })
	next("planes", n)
	w.storeTotals(sums, Load(Param("bias"), GP64()), Load(Param("centre"), GP64()))
	VZEROUPPER()
	RET()
}

// factorRows turns the lane maxima of each head into limit/amax in every lane of a
// register, and stores amax/limit in units; both are 0 where amax is too small.
func (w tier) factorRows(tops []reg.VecVirtual, limit reg.VecVirtual, units reg.Register) []reg.VecVirtual {
	amax, unit, factor, keep := XMM(), XMM(), XMM(), XMM()
	for h, v := range tops {
		tops[h] = w.largest(lanes{v})
	}
	gather(tops, amax)
	const notLess = 5
	VCMPPS(Imm(notLess), word(smallFold), amax, keep)
	VDIVPS(limit, amax, unit)
	VDIVPS(amax, limit, factor)
	VANDPS(keep, unit, unit)
	VANDPS(keep, factor, factor)
	VMOVUPS(unit, Mem{Base: units})
	by := make([]reg.VecVirtual, len(tops))
	for h := range by {
		lane := XMM()
		by[h] = w.reg()
		VPERMILPS(Imm(uint64(h*0b01_01_01_01)), factor, lane)
		VBROADCASTSS(lane, by[h])
	}
	return by
}

// storeTotals stores centre·(the sum of the lanes) of each head.
func (w tier) storeTotals(sums []reg.VecVirtual, bias, centre reg.Register) {
	for h, sum := range sums {
		total := GP32()
		VMOVD(w.total(lanes{sum}).AsX(), total)
		IMULL(centre.(reg.GP).As32(), total)
		MOVL(total, Mem{Base: bias, Disp: 4 * h})
	}
}

// splatWord fills a register with a 32-bit pattern.
func splatWord(bits uint32) reg.VecVirtual {
	v := ZMM()
	VBROADCASTSS(word(bits), v)
	return v
}

// gather puts the lowest lanes of up to four registers side by side into x.
func gather(v []reg.VecVirtual, x reg.VecVirtual) {
	low := func(i int) reg.Register { return v[min(i, len(v)-1)].AsX() }
	other := XMM()
	VUNPCKLPS(low(1), low(0), x)
	VUNPCKLPS(low(3), low(2), other)
	VMOVLHPS(other, x, x)
}

// bytePlanes are the indices that pick the low and the high bytes of 64 words from
// two registers, where VPACKSSDW has put them, in the order of their row.
func bytePlanes() (low, high Mem) {
	if planeIndex == nil {
		for high := range 2 {
			m := GLOBL(fmt.Sprintf("decodePlane%d", high), RODATA|NOPTR)
			for i := 0; i < 64; i += 8 {
				var q uint64
				for k := range 8 {
					t := i + k
					word := 8*(t%16/4) + 4*(t%32/16) + t%4
					q |= uint64(64*(t/32)+2*word+high) << (8 * k)
				}
				DATA(i, U64(q))
			}
			planeIndex = append(planeIndex, m)
		}
	}
	return planeIndex[0], planeIndex[1]
}

var planeIndex []Mem

// outputs loops over blocks of 16·lines lanes and over heads: body handles one
// register of outputs at o+disp and its sums at sums+disp.
func outputs(w tier, lines int, o, sums, heads, blocks reg.Register, perHead func(h reg.Register) func(disp int), perBlock func()) {
	count("block", blocks, func() {
		h := GP64()
		XORQ(h, h)
		row := copyOf(o)
		Label("head")
		body := perHead(h)
		for at := 0; at < 64*lines; at += w.bytes() {
			v := w.reg()
			VMOVUPS(Mem{Base: row, Disp: at}, v)
			outputRegister = v
			body(at)
			VMOVUPS(v, Mem{Base: row, Disp: at})
		}
		ADDQ(U32(64*uint32(lines)), sums)
		ADDQ(U32(valueBytes), row)
		INCQ(h)
		CMPQ(h, heads)
		JLT(LabelRef("head"))
		ADDQ(U32(blockBytes), o)
		if perBlock != nil {
			perBlock()
		}
	})
	VZEROUPPER()
	RET()
}

var outputRegister reg.VecVirtual

func accumulateScaled(w tier) {
	for _, lines := range []int{1, 2} {
		for _, offsets := range []bool{false, true} {
			kind, params := "accumulateScaled", "r, unit, scale *float32"
			if offsets {
				kind, params = "accumulateOffset", "r, unit, scale, add, offset *float32"
			}
			name := fmt.Sprintf("%sx%d%s", kind, lines, w.suffix)
			TEXT(name, NOSPLIT, "func(o *float32, sums *int32, "+params+", heads, blocks int)")
			Doc(fmt.Sprintf("%s is accumulateScaled for blocks of %d lanes.", name, 16*lines))
			Pragma("noescape")
			o := Load(Param("o"), GP64())
			sums := Load(Param("sums"), GP64())
			r := Load(Param("r"), GP64())
			unit := Load(Param("unit"), GP64())
			scale := Load(Param("scale"), GP64())
			var add, offset reg.Register
			if offsets {
				add = Load(Param("add"), GP64())
				offset = Load(Param("offset"), GP64())
			}
			heads := Load(Param("heads"), GP64())
			blocks := Load(Param("blocks"), GP64())
			outputs(w, lines, o, sums, heads, blocks, func(h reg.Register) func(int) {
				keep := w.splat(Mem{Base: r, Index: h, Scale: 4})
				by := w.splat(Mem{Base: unit, Index: h, Scale: 4})
				var plus reg.VecVirtual
				if offsets {
					plus = w.splat(Mem{Base: add, Index: h, Scale: 4})
				}
				return func(disp int) {
					v := w.reg()
					VMULPS(keep, outputRegister, outputRegister)
					VCVTDQ2PS(Mem{Base: sums, Disp: disp}, v)
					VMULPS(by, v, v)
					VMULPS(Mem{Base: scale, Disp: disp}, v, v)
					VADDPS(v, outputRegister, outputRegister)
					if offsets {
						VMULPS(Mem{Base: offset, Disp: disp}, plus, v)
						VADDPS(v, outputRegister, outputRegister)
					}
				}
			}, func() {
				ADDQ(U32(64*uint32(lines)), scale)
				if offsets {
					ADDQ(U32(64*uint32(lines)), offset)
				}
			})
		}
	}
}

func laneDot(w tier) {
	TEXT("laneDot"+w.suffix, NOSPLIT, "func(e, x *float32, row int, weight, r *float32, heads, n int)")
	Doc("laneDot" + w.suffix + " is laneDot; n is a multiple of 16, 16 at least.")
	Pragma("noescape")
	e := Load(Param("e"), GP64())
	x := Load(Param("x"), GP64())
	row := Load(Param("row"), GP64())
	SHLQ(Imm(2), row)
	weight := Load(Param("weight"), GP64())
	r := Load(Param("r"), GP64())
	heads := Load(Param("heads"), GP64())
	n := Load(Param("n"), GP64())
	count("head", heads, func() {
		sum := w.load(Mem{Base: x})
		for i := range sum {
			VMULPS(w.at(Mem{Base: weight}, i), sum[i], sum[i])
		}
		i := GP64()
		MOVQ(U32(16), i)
		Label("next")
		CMPQ(i, n)
		JGE(LabelRef("last"))
		for k := range sum {
			v := w.reg()
			VMOVUPS(w.at(Mem{Base: x, Index: i, Scale: 4}, k), v)
			VMULPS(w.at(Mem{Base: weight, Index: i, Scale: 4}, k), v, v)
			VADDPS(v, sum[k], sum[k])
		}
		ADDQ(Imm(16), i)
		JMP(LabelRef("next"))
		Label("last")
		keep := w.splat(Mem{Base: r})
		for k := range sum {
			v := w.reg()
			VMULPS(w.at(Mem{Base: e}, k), keep, v)
			VADDPS(sum[k], v, v)
			VMOVUPS(v, w.at(Mem{Base: e}, k))
		}
		ADDQ(row, x)
		ADDQ(Imm(64), e)
		ADDQ(Imm(4), r)
	})
	VZEROUPPER()
	RET()
}

func fetch(w tier, name string, prefetch func(Op)) {
	TEXT(name+w.suffix, NOSPLIT, "func(b *byte, lines int)")
	Doc(name + w.suffix + " prefetches cache lines, one at least.")
	Pragma("noescape")
	b := Load(Param("b"), GP64())
	lines := Load(Param("lines"), GP64())
	count("next", lines, func() {
		prefetch(Mem{Base: b})
		ADDQ(Imm(64), b)
	})
	RET()
}

func widen(w tier) {
	widenBy(w, "widen", 2, func(from Mem, v reg.VecVirtual) { VCVTPH2PS(from, v) })
}

// widenBy writes a kernel that makes floats of stored numbers of size bytes, 16 at a time.
func widenBy(w tier, name string, size int, load func(from Mem, v reg.VecVirtual)) {
	TEXT(name+w.suffix, NOSPLIT, "func(dst *float32, src *byte, n int)")
	Doc(name + w.suffix + " is " + name + "; n is a multiple of 16, 16 at least.")
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	n := Load(Param("n"), GP64())
	Label("next")
	for at := 0; at < 64; at += w.bytes() {
		v := w.reg()
		load(Mem{Base: src, Disp: at / 4 * size}, v)
		VMOVUPS(v, Mem{Base: dst, Disp: at})
	}
	ADDQ(Imm(uint64(16*size)), src)
	ADDQ(Imm(64), dst)
	SUBQ(Imm(16), n)
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

func merge(w tier) {
	TEXT("merge"+w.suffix, NOSPLIT, "func(dst, src *float32, a, b float32, n int)")
	Doc("merge" + w.suffix + " is merge; n is a multiple of 16, 16 at least.")
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	a, b := w.reg(), w.reg()
	VBROADCASTSS(NewParamAddr("a", 16), a)
	VBROADCASTSS(NewParamAddr("b", 20), b)
	n := Load(Param("n"), GP64())
	Label("next")
	for at := 0; at < 64; at += w.bytes() {
		x, y := w.reg(), w.reg()
		VMULPS(Mem{Base: dst, Disp: at}, a, x)
		VMULPS(Mem{Base: src, Disp: at}, b, y)
		VADDPS(y, x, x)
		VMOVUPS(x, Mem{Base: dst, Disp: at})
	}
	ADDQ(Imm(64), dst)
	ADDQ(Imm(64), src)
	SUBQ(Imm(16), n)
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// rowBy writes op of a row and one number.
func rowBy(w tier, name, does string, op func(...Op)) {
	TEXT(name+w.suffix, NOSPLIT, "func(dst, src *float32, a float32, n int)")
	Doc(name + w.suffix + " is dst = " + does + "; n is a multiple of 16, 16 at least.")
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	a := w.reg()
	VBROADCASTSS(NewParamAddr("a", 16), a)
	n := Load(Param("n"), GP64())
	Label("next")
	for at := 0; at < 64; at += w.bytes() {
		x := w.reg()
		VMOVUPS(Mem{Base: src, Disp: at}, x)
		op(a, x, x)
		VMOVUPS(x, Mem{Base: dst, Disp: at})
	}
	ADDQ(Imm(64), dst)
	ADDQ(Imm(64), src)
	SUBQ(Imm(16), n)
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// addChain adds one after the other: a cycle each on every machine that runs this.
func addChain(w tier) {
	TEXT("addChain"+w.suffix, NOSPLIT, "func(n int) uint64")
	Doc("addChain" + w.suffix + " makes n additions, a multiple of 64 and not 0, each of which waits for the one before.")
	n := Load(Param("n"), GP64())
	sum := GP64()
	MOVQ(n, sum)
	Label("next")
	for range 64 {
		ADDQ(n, sum)
	}
	SUBQ(Imm(64), n)
	JNZ(LabelRef("next"))
	Store(sum, ReturnIndex(0))
	RET()
}

// readPass loads n bytes and keeps their exclusive or, so that every line arrives
// in a register. ahead is how many bytes in front it prefetches; 0 leaves that to
// the machine.
func readPass(w tier, ahead int) {
	name := fmt.Sprintf("readAhead%d%s", ahead, w.suffix)
	TEXT(name, NOSPLIT, "func(b *byte, n int) uint64")
	Doc(fmt.Sprintf("%s reads n bytes, a multiple of 512 and not 0, and returns a word of their exclusive or.", name))
	Pragma("noescape")
	b := Load(Param("b"), GP64())
	n := Load(Param("n"), GP64())
	acc := []reg.VecVirtual{w.reg(), w.reg(), w.reg(), w.reg()}
	for _, a := range acc {
		w.zero(a)
	}
	Label("next")
	if ahead > 0 {
		for at := 0; at < 512; at += 64 {
			PREFETCHT0(Mem{Base: b, Disp: ahead + at})
		}
	}
	for i := range 512 / w.bytes() {
		m, a := Mem{Base: b, Disp: i * w.bytes()}, acc[i%len(acc)]
		if w.wide {
			VPXORD(m, a, a)
		} else {
			VPXOR(m, a, a)
		}
	}
	ADDQ(U32(512), b)
	SUBQ(U32(512), n)
	JNZ(LabelRef("next"))
	for _, a := range acc[1:] {
		if w.wide {
			VPXORD(a, acc[0], acc[0])
		} else {
			VPXOR(a, acc[0], acc[0])
		}
	}
	sum := GP64()
	VMOVQ(acc[0].AsX(), sum)
	Store(sum, ReturnIndex(0))
	VZEROUPPER()
	RET()
}
