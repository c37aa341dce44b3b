//go:build !purego

package kernels

import "encoding/binary"

func avx2Codec(weaker codecKernels) codecKernels {
	k := codecAsm{
		lanes:      8,
		absMaxRuns: absMaxRunsAVX2, minMaxRuns: minMaxRunsAVX2,
		absMaxColumns: absMaxColumnsAVX2, minMaxColumns: minMaxColumnsAVX2,
		encodeRuns: encodeRunsAVX2, encodeColumns: encodeColumnsAVX2,
		decodeRuns: decodeRunsAVX2, decodeColumns: decodeColumnsAVX2,
		truncateRuns: truncateRunsAVX2, roundAwayRuns: roundAwayRunsAVX2, e2m1Runs: e2m1RunsAVX2, fitLevels: fitLevelsAVX2,
		divideRuns: divideRunsAVX2, divideColumns: divideColumnsAVX2,
		multiplyRuns: multiplyRunsAVX2, multiplyColumns: multiplyColumnsAVX2,
		toF16: toF16AVX2, toBF16: toBF16AVX2, toE4M3: toE4M3AVX2, toE5M2: toE5M2AVX2,
		fromF16: fromF16AVX2, fromBF16: fromBF16AVX2, fromE4M3: fromE4M3AVX2, fromE5M2: fromE5M2AVX2,
	}.over(weaker)
	k.absMax = func(x []float32) float32 {
		var largest [1]float32 // stays on the stack: the call below is direct
		n := len(x) - len(x)%8
		if n > 0 {
			absMaxRunsAVX2(&largest[0], &x[0], 1, n)
		}
		return max(largest[0], weaker.absMax(x[n:]))
	}
	// The packers touch 16 bytes at a time: these many fields are left to the weaker backend.
	const slack = 64
	k.pack = func(dst []byte, fields []uint8, bits int) {
		n := 0
		if bits >= 2 && bits <= 6 && len(fields) > slack {
			n = (len(fields) - slack) &^ 31
		}
		if n > 0 {
			plan := packPlanAVX2(bits, true)
			packAVX2(&dst[0], &fields[0], n, &plan[0])
		}
		weaker.pack(dst[n/8*bits:], fields[n:], bits)
	}
	k.unpack = func(fields []uint8, src []byte, bits int) {
		n := 0
		if bits >= 2 && bits <= 6 && len(fields) > slack {
			n = (len(fields) - slack) &^ 31
		}
		if n > 0 {
			plan := packPlanAVX2(bits, false)
			unpackAVX2(&fields[0], &src[0], n, &plan[0])
		}
		weaker.unpack(fields[n:], src[n/8*bits:], bits)
	}
	return k
}

func avx512Codec(weaker codecKernels) codecKernels {
	k := codecAsm{
		lanes:      16,
		absMaxRuns: absMaxRunsAVX512, minMaxRuns: minMaxRunsAVX512,
		absMaxColumns: absMaxColumnsAVX512, minMaxColumns: minMaxColumnsAVX512,
		encodeRuns: encodeRunsAVX512, encodeColumns: encodeColumnsAVX512,
		decodeRuns: decodeRunsAVX512, decodeColumns: decodeColumnsAVX512,
		truncateRuns: truncateRunsAVX512, roundAwayRuns: roundAwayRunsAVX512, e2m1Runs: e2m1RunsAVX512, fitLevels: fitLevelsAVX512,
		divideRuns: divideRunsAVX512, divideColumns: divideColumnsAVX512,
		multiplyRuns: multiplyRunsAVX512, multiplyColumns: multiplyColumnsAVX512,
		toF16: toF16AVX512, toBF16: toBF16AVX512, toE4M3: toE4M3AVX512, toE5M2: toE5M2AVX512,
		fromF16: fromF16AVX512, fromBF16: fromBF16AVX512, fromE4M3: fromE4M3AVX512, fromE5M2: fromE5M2AVX512,
	}.over(weaker)
	k.absMax = func(x []float32) float32 {
		var largest [1]float32
		n := len(x) - len(x)%16
		if n > 0 {
			absMaxRunsAVX512(&largest[0], &x[0], 1, n)
		}
		return max(largest[0], weaker.absMax(x[n:]))
	}
	k.pack = func(dst []byte, fields []uint8, bits int) {
		n := len(fields) &^ 63
		if bits > 6 {
			n = 0
		}
		if n > 0 {
			plan := packPlanAVX512(bits, true)
			packAVX512(&dst[0], &fields[0], n, &plan[0])
		}
		weaker.pack(dst[n/8*bits:], fields[n:], bits)
	}
	k.unpack = func(fields []uint8, src []byte, bits int) {
		n := len(fields) &^ 63
		if bits > 6 {
			n = 0
		}
		if n > 0 {
			plan := packPlanAVX512(bits, false)
			unpackAVX512(&fields[0], &src[0], n, &plan[0])
		}
		weaker.unpack(fields[n:], src[n/8*bits:], bits)
	}
	return k
}

// A packPlan holds the constants of the packers for one number of bits, at the
// offsets that kernels/gen names.
type packPlan [128]byte

func newPackPlan(bits int) (p packPlan) {
	for i := range 2 {
		p[64+2*i], p[64+2*i+1] = 1, 1<<bits
	}
	binary.LittleEndian.PutUint16(p[68:], 1)
	binary.LittleEndian.PutUint16(p[70:], 1<<(2*bits))
	p[72], p[80] = byte(4*bits), byte(16-bits)
	binary.LittleEndian.PutUint64(p[88:], 1<<(8*bits)-1)
	for j := range 8 {
		p[96+j] = byte(j * bits)
		binary.LittleEndian.PutUint16(p[112+2*j:], 1<<(16-bits-j*bits%8))
	}
	for i := range 4 {
		p[104+i] = 1<<bits - 1
	}
	return p
}

func packPlanAVX512(bits int, pack bool) packPlan {
	p := newPackPlan(bits)
	for i := range 64 {
		switch {
		case !pack:
			p[i] = byte(i/8*bits + i%8)
		case i < 8*bits:
			p[i] = byte(i/bits*8 + i%bits)
		}
	}
	return p
}

// packPlanAVX2 indexes within each half of a vector, as the shuffle does.
func packPlanAVX2(bits int, pack bool) packPlan {
	p := newPackPlan(bits)
	for i := range 32 {
		half, j := i/16, i%16
		switch {
		case !pack:
			p[i] = byte(half*bits + j/2*bits/8 + j%2)
		case j < 2*bits:
			p[i] = byte(j/bits*8 + j%bits)
		default:
			p[i] = 0x80 // a zero byte
		}
	}
	return p
}
