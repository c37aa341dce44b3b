//go:build !purego

package kernels

func neonCodec(weaker codecKernels) codecKernels {
	const lanes = 16
	k := codecAsm{
		lanes:      lanes,
		absMaxRuns: absMaxRunsNEON, minMaxRuns: minMaxRunsNEON,
		absMaxColumns: absMaxColumnsNEON, minMaxColumns: minMaxColumnsNEON,
		encodeRuns: encodeRunsNEON, encodeColumns: encodeColumnsNEON,
		decodeRuns: decodeRunsNEON, decodeColumns: decodeColumnsNEON,
		divideRuns: divideRunsNEON, divideColumns: divideColumnsNEON,
		multiplyRuns: multiplyRunsNEON, multiplyColumns: multiplyColumnsNEON,
		toF16: toF16NEON, toBF16: toBF16NEON, toE4M3: toE4M3NEON, toE5M2: toE5M2NEON,
		fromF16: fromF16NEON, fromBF16: fromBF16NEON, fromE4M3: fromE4M3NEON, fromE5M2: fromE5M2NEON,
	}.over(weaker)
	k.absMax = func(x []float32) float32 {
		var largest [1]float32 // stays on the stack: the call below is direct
		n := len(x) - len(x)%lanes
		if n > 0 {
			absMaxRunsNEON(&largest[0], &x[0], 1, n)
		}
		return max(largest[0], weaker.absMax(x[n:]))
	}
	// whole returns how many fields the packers take. They touch 16 bytes at a
	// time: the last ones are left to the weaker backend.
	whole := func(fields []uint8) int {
		const slack = 128 // as many fields of one bit are 16 bytes
		return max(len(fields)-slack, 0) &^ 31
	}
	k.pack = func(dst []byte, fields []uint8, bits int) {
		n := whole(fields)
		if n > 0 {
			index := packIndex(bits)
			packNEON(&dst[0], &fields[0], n, bits, &index[0])
		}
		weaker.pack(dst[n/8*bits:], fields[n:], bits)
	}
	k.unpack = func(fields []uint8, src []byte, bits int) {
		n := whole(fields)
		if n > 0 {
			index := unpackIndex(bits)
			unpackNEON(&fields[0], &src[0], n, bits, &index[0])
		}
		weaker.unpack(fields[n:], src[n/8*bits:], bits)
	}
	return k
}

const noByte = 255 // an index that looks up a zero

// packIndex closes the gap between two times eight fields in the low bytes of
// two times eight bytes.
func packIndex(bits int) (index [16]uint8) {
	for i := range index {
		index[i] = noByte
		if i < 2*bits {
			index[i] = uint8(i/bits*8 + i%bits)
		}
	}
	return index
}

// unpackIndex is the inverse of packIndex.
func unpackIndex(bits int) (index [16]uint8) {
	for i := range index {
		index[i] = noByte
		if i%8 < bits {
			index[i] = uint8(i/8*bits + i%8)
		}
	}
	return index
}
