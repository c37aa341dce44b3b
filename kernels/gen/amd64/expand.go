package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// expand emits what widens the codes of a page to what tiles read.
func expand() {
	for _, w := range []tier{avx512, avx2} {
		for bits := 2; bits <= 7; bits++ {
			expandPlanes(w, bits, false)
		}
		expandPlanes(w, 4, true)
		expandFloats(w, "E4M3")
		expandFloats(w, "E5M2")
		lookUp(w)
		scaleTile(w, "scaleLanes")
		scaleTile(w, "scaleSteps")
		widenE8M0(w)
	}
}

func (w tier) move(from, to Op) {
	if w.wide {
		VMOVDQU64(from, to)
	} else {
		VMOVDQU(from, to)
	}
}

// andBytes keeps the bits of v that every byte of mask has.
func (w tier) andBytes(mask uint8, v, dst reg.VecVirtual) {
	w.and(word(uint32(mask)*0x01010101), v, dst)
}

// shiftWords shifts 16-bit words, to the left where by is negative.
func shiftWords(v reg.VecVirtual, by int, dst reg.VecVirtual) {
	if by < 0 {
		VPSLLW(Imm(uint64(-by)), v, dst)
	} else {
		VPSRLW(Imm(uint64(by)), v, dst)
	}
}

// expandPlanes unpacks chunks of 512 codes from their planes, and with levels looks the
// codes of 4 bits up.
func expandPlanes(w tier, bits int, levels bool) {
	name, params := fmt.Sprintf("expand%d%s", bits, w.suffix), ""
	doc := fmt.Sprintf(" unpacks chunks of 512 codes of %d bits.", bits)
	if levels {
		name, params = "expandLevels"+w.suffix, ", levels *byte"
		doc = " unpacks chunks of 512 codes of 4 bits and looks them up."
	}
	TEXT(name, NOSPLIT, "func(dst, src *byte"+params+", chunks int)")
	Doc(name + doc)
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	var table reg.VecVirtual
	if levels {
		at := Load(Param("levels"), GP64())
		table = w.reg()
		if w.wide {
			VBROADCASTI32X4(Mem{Base: at}, table)
		} else {
			VBROADCASTI128(Mem{Base: at}, table)
		}
	}
	chunks := Load(Param("chunks"), GP64())
	count("chunk", chunks, func() {
		for half := 0; half < 64; half += w.bytes() {
			lines := make([]reg.VecVirtual, bits)
			for i := range lines {
				lines[i] = w.reg()
				w.move(Mem{Base: src, Disp: 64*i + half}, lines[i])
			}
			for n := range 8 {
				var code reg.VecVirtual
				low := 0
				for _, width := range []int{4, 2, 1} {
					if bits&width == 0 {
						continue
					}
					part := w.reg()
					from := lines[low+n*width/8]
					if by := n*width%8 - low; by != 0 {
						shiftWords(from, by, part)
						from = part
					}
					w.andBytes(uint8((1<<width-1)<<low), from, part)
					if code == nil {
						code = part
					} else if w.wide {
						VPORD(part, code, code)
					} else {
						VPOR(part, code, code)
					}
					low += width
				}
				if levels {
					VPSHUFB(code, table, code)
				}
				w.move(code, Mem{Base: dst, Disp: 64*n + half})
			}
		}
		ADDQ(U32(uint32(64*bits)), src)
		ADDQ(U32(512), dst)
	})
	VZEROUPPER()
	RET()
}

// expandFloats turns 8-bit floats into float16. The bits of an e5m2 are the upper byte;
// those of an e4m3, behind the sign, stand one lower, which divides by 256.
func expandFloats(w tier, kind string) {
	name := "expand" + kind + w.suffix
	TEXT(name, NOSPLIT, "func(dst, src *byte, n int)")
	Doc(name + " is expand" + kind + "; n is a multiple of 64 and not 0.")
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	n := Load(Param("n"), GP64())
	var mask reg.VecVirtual
	if kind == "E4M3" {
		mask = w.reg()
		w.move(word(0xbf80bf80), mask)
	}
	Label("next")
	for at := 0; at < 64; at += w.bytes() / 2 {
		v := w.reg()
		if kind == "E4M3" {
			VPMOVSXBW(Mem{Base: src, Disp: at}, v)
			VPSLLW(Imm(7), v, v)
			if w.wide {
				VPANDD(mask, v, v)
			} else {
				VPAND(mask, v, v)
			}
		} else {
			VPMOVZXBW(Mem{Base: src, Disp: at}, v)
			VPSLLW(Imm(8), v, v)
		}
		w.move(v, Mem{Base: dst, Disp: 2 * at})
	}
	ADDQ(Imm(64), src)
	ADDQ(U32(128), dst)
	SUBQ(Imm(64), n)
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// lookUp puts the float of a table of 16 in the place of each code. AVX2 has two tables
// of 8, and bit 3 of the code chooses.
func lookUp(w tier) {
	name := "lookUp" + w.suffix
	TEXT(name, NOSPLIT, "func(dst *float32, codes *byte, book *float32, n int)")
	Doc(name + " is lookUp; n is a multiple of 64 and not 0.")
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	codes := Load(Param("codes"), GP64())
	at := Load(Param("book"), GP64())
	book := w.load(Mem{Base: at})
	n := Load(Param("n"), GP64())
	Label("next")
	for disp := 0; disp < 64; disp += w.bytes() / 4 {
		code, v := w.reg(), w.reg()
		VPMOVZXBD(Mem{Base: codes, Disp: disp}, code)
		VPERMPS(book[0], code, v)
		if !w.wide {
			other := w.reg()
			VPERMPS(book[1], code, other)
			VPSLLD(Imm(28), code, code)
			VBLENDVPS(code, other, v, v)
		}
		VMOVUPS(v, Mem{Base: dst, Disp: 4 * disp})
	}
	ADDQ(Imm(64), codes)
	ADDQ(U32(256), dst)
	SUBQ(Imm(64), n)
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}

// scaleTile multiplies lines of 16 or 32 lanes with a scale for each lane or one for the
// line, and adds the offset.
func scaleTile(w tier, name string) {
	lane := name == "scaleLanes"
	for lines := 1; lines <= 2; lines++ {
		full := fmt.Sprintf("%sx%d%s", name, lines, w.suffix)
		TEXT(full, NOSPLIT, "func(x, scale, offset *float32, steps int)")
		Doc(fmt.Sprintf("%s is %s for %d lanes.", full, name, 16*lines))
		Pragma("noescape")
		x := Load(Param("x"), GP64())
		scale := Load(Param("scale"), GP64())
		offset := Load(Param("offset"), GP64())
		steps := Load(Param("steps"), GP64())
		var by, plus []reg.VecVirtual
		for i := range lines * 64 / w.bytes() {
			if by, plus = append(by, w.reg()), append(plus, w.reg()); lane {
				VMOVUPS(Mem{Base: scale, Disp: i * w.bytes()}, by[i])
				VMOVUPS(Mem{Base: offset, Disp: i * w.bytes()}, plus[i])
			}
		}
		count("step", steps, func() {
			if !lane {
				VBROADCASTSS(Mem{Base: scale}, by[0])
				VBROADCASTSS(Mem{Base: offset}, plus[0])
				ADDQ(Imm(4), scale)
				ADDQ(Imm(4), offset)
			}
			for i := range by {
				k := i
				if !lane {
					k = 0
				}
				v, at := w.reg(), Mem{Base: x, Disp: i * w.bytes()}
				VMULPS(at, by[k], v)
				VADDPS(plus[k], v, v)
				VMOVUPS(v, at)
			}
			ADDQ(U32(uint32(64*lines)), x)
		})
		VZEROUPPER()
		RET()
	}
}

// widenE8M0 puts exponents where floats have them.
func widenE8M0(w tier) {
	TEXT("widenE8M0"+w.suffix, NOSPLIT, "func(dst *float32, src *byte, n int)")
	Doc("widenE8M0" + w.suffix + " is widenE8M0; n is a multiple of 16, 16 at least.")
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
	n := Load(Param("n"), GP64())
	Label("next")
	for at := 0; at < 16; at += w.bytes() / 4 {
		v := w.reg()
		VPMOVZXBD(Mem{Base: src, Disp: at}, v)
		VPSLLD(Imm(23), v, v)
		w.move(v, Mem{Base: dst, Disp: 4 * at})
	}
	ADDQ(Imm(16), src)
	ADDQ(Imm(64), dst)
	SUBQ(Imm(16), n)
	JNZ(LabelRef("next"))
	VZEROUPPER()
	RET()
}
