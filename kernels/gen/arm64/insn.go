package main

import (
	"fmt"
	"math"
)

// Instructions that the Go assembler has, as methods in the order of the
// architecture's manual: the destination first. An instruction's name ends in its
// arrangement of lanes.

func (v vec) as(arrangement string) string { return v.String() + "." + arrangement }

func (v vec) at(kind string, i int) string { return fmt.Sprintf("%s.%s[%d]", v, kind, i) }

func (a *asm) three(mnemonic, arrangement string, d, n, m vec) {
	a.op(mnemonic, m.as(arrangement), n.as(arrangement), d.as(arrangement))
}

func (a *asm) add4s(d, n, m vec)   { a.three("VADD", "S4", d, n, m) }
func (a *asm) add8h(d, n, m vec)   { a.three("VADD", "H8", d, n, m) }
func (a *asm) sub4s(d, n, m vec)   { a.three("VSUB", "S4", d, n, m) }
func (a *asm) umax4s(d, n, m vec)  { a.three("VUMAX", "S4", d, n, m) }
func (a *asm) umin4s(d, n, m vec)  { a.three("VUMIN", "S4", d, n, m) }
func (a *asm) and16b(d, n, m vec)  { a.three("VAND", "B16", d, n, m) }
func (a *asm) orr16b(d, n, m vec)  { a.three("VORR", "B16", d, n, m) }
func (a *asm) eor16b(d, n, m vec)  { a.three("VEOR", "B16", d, n, m) }
func (a *asm) bit16b(d, n, m vec)  { a.three("VBIT", "B16", d, n, m) } // n where m is set
func (a *asm) uzp18h(d, n, m vec)  { a.three("VUZP1", "H8", d, n, m) }
func (a *asm) uzp116b(d, n, m vec) { a.three("VUZP1", "B16", d, n, m) }
func (a *asm) uzp216b(d, n, m vec) { a.three("VUZP2", "B16", d, n, m) }
func (a *asm) cmeq8h(d, n, m vec)  { a.three("VCMEQ", "H8", d, n, m) }

func (a *asm) mov16b(d, n vec) { a.op("VMOV", n.as("B16"), d.as("B16")) }

func (a *asm) shift(mnemonic, arrangement string, d, n vec, by, most int) {
	a.op(mnemonic, imm(by, 0, most), n.as(arrangement), d.as(arrangement))
}

func (a *asm) ushr4s(d, n vec, by int)  { a.shift("VUSHR", "S4", d, n, by, 32) }
func (a *asm) ushr8h(d, n vec, by int)  { a.shift("VUSHR", "H8", d, n, by, 16) }
func (a *asm) ushr2d(d, n vec, by int)  { a.shift("VUSHR", "D2", d, n, by, 64) }
func (a *asm) ushr16b(d, n vec, by int) { a.shift("VUSHR", "B16", d, n, by, 8) }
func (a *asm) shl4s(d, n vec, by int)   { a.shift("VSHL", "S4", d, n, by, 31) }
func (a *asm) shl8h(d, n vec, by int)   { a.shift("VSHL", "H8", d, n, by, 15) }
func (a *asm) shl2d(d, n vec, by int)   { a.shift("VSHL", "D2", d, n, by, 63) }

// The unsigned widening of the lower or the upper half of a register.
func (a *asm) uxtl8h(d, n vec)  { a.op("VUXTL", n.as("B8"), d.as("H8")) }
func (a *asm) uxtl28h(d, n vec) { a.op("VUXTL2", n.as("B16"), d.as("H8")) }
func (a *asm) uxtl4s(d, n vec)  { a.op("VUXTL", n.as("H4"), d.as("S4")) }
func (a *asm) uxtl24s(d, n vec) { a.op("VUXTL2", n.as("H8"), d.as("S4")) }

// tbl16b looks up n's bytes; an index of 16 or more gives 0.
func (a *asm) tbl16b(d, n, index vec) {
	a.op("VTBL", index.as("B16"), "["+n.as("B16")+"]", d.as("B16"))
}

func (a *asm) dup4s(d, n vec, lane int) {
	mustBe(lane >= 0 && lane < 4, "lane %d of 4", lane)
	a.op("VDUP", n.at("S", lane), d.as("S4"))
}

func (a *asm) dupGP(d vec, r gp, arrangement string) { a.op("VDUP", r, d.as(arrangement)) }

// addv4s leaves the sum of n's lanes in d's lowest.
func (a *asm) addv4s(d, n vec) { a.op("VADDV", n.as("S4"), d) }

// movi16b sets every byte of d.
func (a *asm) movi16b(d vec, v uint8) { a.op("VMOVI", fmt.Sprintf("$%d", v), d.as("B16")) }

func mem(base gp, offset int) string {
	if offset == 0 {
		return fmt.Sprintf("(%s)", base)
	}
	return fmt.Sprintf("%d(%s)", offset, base)
}

// Loads and stores of whole registers, and of their lowest 4 or 8 bytes.
func (a *asm) ldrq(d vec, base gp, offset int) {
	mustBe(offset >= 0 && offset%16 == 0 && offset < 65536, "offset %d of a whole register", offset)
	a.op("FMOVQ", mem(base, offset), d.f())
}
func (a *asm) strq(d vec, base gp, offset int) {
	mustBe(offset >= 0 && offset%16 == 0 && offset < 65536, "offset %d of a whole register", offset)
	a.op("FMOVQ", d.f(), mem(base, offset))
}
func (a *asm) ldrd(d vec, base gp, offset int) { a.op("FMOVD", mem(base, offset), d.f()) }
func (a *asm) ldrs(d vec, base gp, offset int) { a.op("FMOVS", mem(base, offset), d.f()) }
func (a *asm) strd(d vec, base gp, offset int) { a.op("FMOVD", d.f(), mem(base, offset)) }
func (a *asm) strs(d vec, base gp, offset int) { a.op("FMOVS", d.f(), mem(base, offset)) }

// ld1r4s loads one float32 or int32 into every lane, and moves base behind it.
func (a *asm) ld1r4s(d vec, base gp) { a.op("VLD1R.P", mem(base, 4), "["+d.as("S4")+"]") }

// ld416b loads 64 bytes, every fourth into the same of four registers that follow one another.
func (a *asm) ld416b(d []vec, base gp) {
	mustBe(len(d) == 4 && d[1] == d[0]+1 && d[2] == d[0]+2 && d[3] == d[0]+3, "registers %v do not follow one another", d)
	a.op("VLD4", mem(base, 0), fmt.Sprintf("[%s, %s, %s, %s]", d[0].as("B16"), d[1].as("B16"), d[2].as("B16"), d[3].as("B16")))
}

func (a *asm) movImm(d gp, v uint64)  { a.op("MOVD", fmt.Sprintf("$%d", v), d) }
func (a *asm) mov(d, n gp)            { a.op("MOVD", n, d) }
func (a *asm) addImm(d, n gp, v int)  { a.op("ADD", imm(v, 0, 1<<24-1), n, d) }
func (a *asm) subImm(d, n gp, v int)  { a.op("SUB", imm(v, 0, 1<<24-1), n, d) }
func (a *asm) add(d, n, m gp)         { a.op("ADD", m, n, d) }
func (a *asm) lslImm(d, n gp, by int) { a.op("LSL", imm(by, 0, 63), n, d) }

// addShifted is d = n + m·2^by.
func (a *asm) addShifted(d, n, m gp, by int) {
	a.op("ADD", fmt.Sprintf("%s<<%s", m, imm(by, 0, 63)[1:]), n, d)
}

// allBits returns a register with bits in each of its four lanes.
func (a *asm) allBits(bits uint32) vec {
	d := a.vec()
	if bits == 0 {
		a.eor16b(d, d, d)
		return d
	}
	r := a.gp()
	a.movImm(r, uint64(bits))
	a.dupGP(d, r, "S4")
	a.releaseGP(r)
	return d
}

func (a *asm) all(v float32) vec { return a.allBits(math.Float32bits(v)) }

// allHalves returns a register with bits in each of its eight lanes.
func (a *asm) allHalves(bits uint16) vec { return a.allBits(uint32(bits)<<16 | uint32(bits)) }
