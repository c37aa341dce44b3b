package main

// Instructions that the Go assembler lacks up to 1.26, as words. A helper computes
// the word from registers and immediates within bounds and prints what a
// disassembler makes of it; TestWords of package kernels compares the two.

func (v vec) n() uint32 {
	mustBe(v >= 0 && v < 32, "vector register %d", int(v))
	return uint32(v)
}

// wordOf is a word with destination, first and second source at their places.
func wordOf(base uint32, d, n, m vec) uint32 { return base | m.n()<<16 | n.n()<<5 | d.n() }

func (a *asm) word3(base uint32, name, arrangement string, d, n, m vec) {
	a.word(wordOf(base, d, n, m), "%s v%d.%[5]s, v%[3]d.%[5]s, v%[4]d.%[5]s", name, int(d), int(n), int(m), arrangement)
}

func (a *asm) word2(base uint32, name, to, from string, d, n vec) {
	a.word(wordOf(base, d, n, 0), "%s v%d.%s, v%d.%s", name, int(d), to, int(n), from)
}

// Float arithmetic.
func (a *asm) fadd4s(d, n, m vec)  { a.word3(0x4e20d400, "fadd", "4s", d, n, m) }
func (a *asm) fsub4s(d, n, m vec)  { a.word3(0x4ea0d400, "fsub", "4s", d, n, m) }
func (a *asm) fmul4s(d, n, m vec)  { a.word3(0x6e20dc00, "fmul", "4s", d, n, m) }
func (a *asm) fdiv4s(d, n, m vec)  { a.word3(0x6e20fc00, "fdiv", "4s", d, n, m) }
func (a *asm) fmax4s(d, n, m vec)  { a.word3(0x4e20f400, "fmax", "4s", d, n, m) }
func (a *asm) fmin4s(d, n, m vec)  { a.word3(0x4ea0f400, "fmin", "4s", d, n, m) }
func (a *asm) fcmge4s(d, n, m vec) { a.word3(0x6e20e400, "fcmge", "4s", d, n, m) }
func (a *asm) fadd2d(d, n, m vec)  { a.word3(0x4e60d400, "fadd", "2d", d, n, m) }
func (a *asm) fmul2d(d, n, m vec)  { a.word3(0x6e60dc00, "fmul", "2d", d, n, m) }

func (a *asm) fabs4s(d, n vec)   { a.word2(0x4ea0f800, "fabs", "4s", "4s", d, n) }
func (a *asm) frintn4s(d, n vec) { a.word2(0x4e218800, "frintn", "4s", "4s", d, n) }

// Conversions: to an integer, truncating or to nearest with ties to even, and back.
func (a *asm) fcvtzs4s(d, n vec) { a.word2(0x4ea1b800, "fcvtzs", "4s", "4s", d, n) }
func (a *asm) fcvtns4s(d, n vec) { a.word2(0x4e21a800, "fcvtns", "4s", "4s", d, n) }
func (a *asm) scvtf4s(d, n vec)  { a.word2(0x4e21d800, "scvtf", "4s", "4s", d, n) }
func (a *asm) ucvtf4s(d, n vec)  { a.word2(0x6e21d800, "ucvtf", "4s", "4s", d, n) }

// Conversions between float widths: half to single, single to half, single to
// double; the 2 forms take or fill the upper half of a register.
func (a *asm) fcvtl4s(d, n vec)  { a.word2(0x0e217800, "fcvtl", "4s", "4h", d, n) }
func (a *asm) fcvtl24s(d, n vec) { a.word2(0x4e217800, "fcvtl2", "4s", "8h", d, n) }
func (a *asm) fcvtn4h(d, n vec)  { a.word2(0x0e216800, "fcvtn", "4h", "4s", d, n) }
func (a *asm) fcvtn28h(d, n vec) { a.word2(0x4e216800, "fcvtn2", "8h", "4s", d, n) }
func (a *asm) fcvtl2d(d, n vec)  { a.word2(0x0e617800, "fcvtl", "2d", "2s", d, n) }
func (a *asm) fcvtl22d(d, n vec) { a.word2(0x4e617800, "fcvtl2", "2d", "4s", d, n) }

// fcmeqZero4s sets the lanes of d in which n is 0 of either sign.
func (a *asm) fcmeqZero4s(d, n vec) {
	a.word(wordOf(0x4ea0d800, d, n, 0), "fcmeq v%d.4s, v%d.4s, #0.0", int(d), int(n))
}

// Reductions of all lanes to the lowest of d.
func (a *asm) across(base uint32, name string, d, n vec) {
	a.word(wordOf(base, d, n, 0), "%s s%d, v%d.4s", name, int(d), int(n))
}

func (a *asm) umaxv4s(d, n vec) { a.across(0x6eb0a800, "umaxv", d, n) }
func (a *asm) fmaxv4s(d, n vec) { a.across(0x6e30f800, "fmaxv", d, n) }
func (a *asm) fminv4s(d, n vec) { a.across(0x6eb0f800, "fminv", d, n) }

// faddp2d adds the two lanes of n.
func (a *asm) faddp2d(d, n vec) {
	a.word(wordOf(0x7e70d800, d, n, 0), "faddp d%d, v%d.2d", int(d), int(n))
}

// Integers.
func (a *asm) bic16b(d, n, m vec) { a.word3(0x4e601c00, "bic", "16b", d, n, m) } // n and not m
func (a *asm) cmgt4s(d, n, m vec) { a.word3(0x4ea03400, "cmgt", "4s", d, n, m) }
func (a *asm) mul4s(d, n, m vec)  { a.word3(0x4ea09c00, "mul", "4s", d, n, m) }

// ushl shifts each lane left by the lowest byte of m's, right where that is negative.
func (a *asm) ushl8h(d, n, m vec) { a.word3(0x6e604400, "ushl", "8h", d, n, m) }
func (a *asm) ushl4s(d, n, m vec) { a.word3(0x6ea04400, "ushl", "4s", d, n, m) }
func (a *asm) ushl2d(d, n, m vec) { a.word3(0x6ee04400, "ushl", "2d", d, n, m) }

// Products with one lane of m, for every lane of n.
func (a *asm) byLane4s(base uint32, name string, d, n, m vec, lane int) {
	mustBe(lane >= 0 && lane < 4, "lane %d of 4", lane)
	a.word(wordOf(base, d, n, m)|uint32(lane&1)<<21|uint32(lane>>1)<<11, "%s v%d.4s, v%d.4s, v%d.s[%d]", name, int(d), int(n), int(m), lane)
}

func (a *asm) fmulLane4s(d, n, m vec, lane int) { a.byLane4s(0x4f809000, "fmul", d, n, m, lane) }
func (a *asm) fmlaLane4s(d, n, m vec, lane int) { a.byLane4s(0x4f801000, "fmla", d, n, m, lane) }

func (a *asm) fmulLane2d(d, n, m vec, lane int) {
	mustBe(lane >= 0 && lane < 2, "lane %d of 2", lane)
	a.word(wordOf(0x4fc09000, d, n, m)|uint32(lane)<<11, "fmul v%d.2d, v%d.2d, v%d.d[%d]", int(d), int(n), int(m), lane)
}

// smlal adds the products of the lower four signed 16-bit lanes of n with one
// lane of m, smlal2 those of the upper four.
func (a *asm) smlalLane4s(d, n, m vec, lane int)  { a.smlal(0x0f402000, "smlal", "4h", d, n, m, lane) }
func (a *asm) smlal2Lane4s(d, n, m vec, lane int) { a.smlal(0x4f402000, "smlal2", "8h", d, n, m, lane) }

func (a *asm) smlal(base uint32, name, from string, d, n, m vec, lane int) {
	mustBe(lane >= 0 && lane < 8 && m < 16, "lane %d of 8 of v%d, which must be below 16", lane, int(m))
	l := uint32(lane)
	a.word(wordOf(base, d, n, m)|(l&1)<<20|(l>>1&1)<<21|(l>>2)<<11, "%s v%d.4s, v%d.%s, v%d.h[%d]", name, int(d), int(n), from, int(m), lane)
}

// sdotLane adds, for each lane of d, the products of n's four signed bytes with
// the four of one lane of m. FEAT_DotProd.
func (a *asm) sdotLane4s(d, n, m vec, lane int) {
	mustBe(lane >= 0 && lane < 4, "lane %d of 4", lane)
	a.features["ASIMDDP"] = true
	a.word(wordOf(0x4f80e000, d, n, m)|uint32(lane&1)<<21|uint32(lane>>1)<<11, "sdot v%d.4s, v%d.16b, v%d.4b[%d]", int(d), int(n), int(m), lane)
}

// sdot4s is sdotLane4s with each lane of m for its own lane of n. FEAT_DotProd.
func (a *asm) sdot4s(d, n, m vec) {
	a.features["ASIMDDP"] = true
	a.word(wordOf(0x4e809400, d, n, m), "sdot v%d.4s, v%d.16b, v%d.16b", int(d), int(n), int(m))
}
