package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// codec emits the reductions, encoders and decoders.
func codec() {
	absMaxAVX2()
	absMaxAVX512()
}

// absMaxAVX2 keeps four running maxima of 8 lanes: VMAXPS has a latency of
// several cycles, one accumulator would wait for itself.
func absMaxAVX2() {
	TEXT("absMaxAVX2", NOSPLIT, "func(x *float32, n int) float32")
	Doc("absMaxAVX2 returns the largest |x[i]| for i < n; n is a multiple of 32, not 0.")
	Pragma("noescape")
	x := Load(Param("x"), GP64())
	n := Load(Param("n"), GP64())
	mask := signMask(YMM(), XMM())
	acc := []reg.VecVirtual{YMM(), YMM(), YMM(), YMM()}
	for _, a := range acc {
		VXORPS(a, a, a)
	}
	Label("loop")
	for i, a := range acc {
		v := YMM()
		VANDPS(Mem{Base: x, Disp: 32 * i}, mask, v)
		VMAXPS(v, a, a)
	}
	ADDQ(Imm(128), x)
	SUBQ(Imm(32), n)
	JNZ(LabelRef("loop"))
	VMAXPS(acc[1], acc[0], acc[0])
	VMAXPS(acc[3], acc[2], acc[2])
	VMAXPS(acc[2], acc[0], acc[0])
	storeMaxOfY(acc[0])
}

func absMaxAVX512() {
	TEXT("absMaxAVX512", NOSPLIT, "func(x *float32, n int) float32")
	Doc("absMaxAVX512 returns the largest |x[i]| for i < n; n is a multiple of 64, not 0.")
	Pragma("noescape")
	x := Load(Param("x"), GP64())
	n := Load(Param("n"), GP64())
	mask := signMask(ZMM(), XMM())
	acc := []reg.VecVirtual{ZMM(), ZMM(), ZMM(), ZMM()}
	for _, a := range acc {
		VPXORD(a, a, a)
	}
	Label("loop")
	for i, a := range acc {
		v := ZMM()
		VPANDD(Mem{Base: x, Disp: 64 * i}, mask, v)
		VMAXPS(v, a, a)
	}
	ADDQ(U32(256), x)
	SUBQ(Imm(64), n)
	JNZ(LabelRef("loop"))
	VMAXPS(acc[1], acc[0], acc[0])
	VMAXPS(acc[3], acc[2], acc[2])
	VMAXPS(acc[2], acc[0], acc[0])
	low, high := YMM(), YMM()
	VEXTRACTF64X4(Imm(0), acc[0], low)
	VEXTRACTF64X4(Imm(1), acc[0], high)
	VMAXPS(low, high, high)
	storeMaxOfY(high)
}

// signMask fills v with 0x7fffffff: every bit but a float's sign.
func signMask(v, x reg.VecVirtual) reg.VecVirtual {
	bits := GP32()
	MOVL(U32(0x7fffffff), bits)
	VMOVD(bits, x)
	VPBROADCASTD(x, v)
	return v
}

// storeMaxOfY returns the largest of v's eight lanes. A maximum does not depend on the order.
func storeMaxOfY(v reg.VecVirtual) {
	x, y := XMM(), XMM()
	VEXTRACTF128(Imm(1), v, x)
	VMAXPS(v.AsX(), x, x)
	VPERMILPS(Imm(0b01_00_11_10), x, y)
	VMAXPS(x, y, x)
	VPERMILPS(Imm(0b10_11_00_01), x, y)
	VMAXPS(x, y, x)
	Store(x, ReturnIndex(0))
	VZEROUPPER()
	RET()
}
