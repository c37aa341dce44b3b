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
			expandPlanes(w, bits)
		}
		lookUp(w)
		gatherFloats(w)
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

// expandPlanes unpacks chunks of 512 codes from their planes.
func expandPlanes(w tier, bits int) {
	name := fmt.Sprintf("expand%d%s", bits, w.suffix)
	TEXT(name, NOSPLIT, "func(dst, src *byte, chunks int)")
	Doc(fmt.Sprintf("%s unpacks chunks of 512 codes of %d bits.", name, bits))
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	src := Load(Param("src"), GP64())
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
				w.move(code, Mem{Base: dst, Disp: 64*n + half})
			}
		}
		ADDQ(U32(uint32(64*bits)), src)
		ADDQ(U32(512), dst)
	})
	VZEROUPPER()
	RET()
}

// lookUp puts the float of a table of 16 in the place of each code. AVX2 has two tables
// of 8, and bit 3 of the code chooses.
func lookUp(w tier) {
	lookUpBy(w, "lookUp", "lookUp", func(at reg.Register) func(code, v reg.VecVirtual) {
		book := w.load(Mem{Base: at})
		return func(code, v reg.VecVirtual) {
			VPERMPS(book[0], code, v)
			if !w.wide {
				other := w.reg()
				VPERMPS(book[1], code, other)
				VPSLLD(Imm(28), code, code)
				VBLENDVPS(code, other, v, v)
			}
		}
	})
}

// gatherFloats is lookUp for a table of 256.
func gatherFloats(w tier) {
	lookUpBy(w, "gather", "lookUp in a table of 256", func(book reg.Register) func(code, v reg.VecVirtual) {
		return func(code, v reg.VecVirtual) {
			at := Mem{Base: book, Index: code, Scale: 4}
			w.zero(v)
			if w.wide {
				all := K()
				KXNORW(all, all, all)
				VGATHERDPS(at, all, v)
			} else {
				all := w.reg()
				VPCMPEQD(all, all, all)
				VGATHERDPS(all, at, v)
			}
		}
	})
}

// lookUpBy writes a kernel that puts a float in the place of each code, 64 at a time.
// table makes of the table's address what looks codes up.
func lookUpBy(w tier, name, does string, table func(book reg.Register) func(code, v reg.VecVirtual)) {
	name += w.suffix
	TEXT(name, NOSPLIT, "func(dst *float32, codes *byte, book *float32, n int)")
	Doc(name + " is " + does + "; n is a multiple of 64 and not 0.")
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	codes := Load(Param("codes"), GP64())
	find := table(Load(Param("book"), GP64()))
	n := Load(Param("n"), GP64())
	Label("next")
	for disp := 0; disp < 64; disp += w.bytes() / 4 {
		code, v := w.reg(), w.reg()
		VPMOVZXBD(Mem{Base: codes, Disp: disp}, code)
		find(code, v)
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
	widenBy(w, "widenE8M0", 1, func(from Mem, v reg.VecVirtual) {
		VPMOVZXBD(from, v)
		VPSLLD(Imm(23), v, v)
	})
}
