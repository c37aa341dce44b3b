package quantize

import (
	"encoding/binary"
	"math"

	"kvq/kernels"
)

// The block formats of ggml (ggml-quants.c at d99724f) and its kin, as its reference
// encoder computes them; its vectorised encoders differ in the last place for
// q8_0 and iq4_nl. All arithmetic is float32. The reciprocal of the unrounded
// scale encodes; the scale rounded to f16 decodes. Elements j and j+16 share a
// byte, low and high nibble.

// putF16 stores v; false where it is too large.
func putF16(dst []byte, v float32) bool {
	kernels.PutF16(dst, v)
	return dst[1]&0x7c != 0x7c
}

// reciprocal is 1/d, 0 for 0.
func reciprocal(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// extreme returns the value of largest magnitude with its sign, the first on a tie.
func extreme(x []float32) float32 {
	var largest, signed float32
	for _, v := range x {
		if a := max(v, -v); a > largest {
			largest, signed = a, v
		}
	}
	return signed
}

func extremes(x []float32) (lo, hi float32) {
	lo, hi = x[0], x[0]
	for _, v := range x {
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
	}
	return lo, hi
}

// truncate rounds v + half towards 0, to at most top. What is no number of a code,
// where the reciprocal of a tiny scale overflowed, is 0 as the origin has it on x86.
func truncate(v, half float32, top uint8) uint8 {
	if v += half; !(v > 0 && v < 256) {
		return 0
	}
	return min(top, uint8(v))
}

func encodeQ8_0(c *Coder, dst []byte, x []float32) int {
	n := len(x) / 32
	c.hi, c.fields = resize(c.hi, n), resize(c.fields, len(x))
	kernels.AbsMaxRuns(c.hi, x, 32)
	for i, largest := range c.hi {
		d := largest / 127
		if !putF16(dst[34*i:], d) {
			return i
		}
		c.hi[i] = reciprocal(d)
	}
	kernels.RoundAwayRuns(c.fields, x, c.hi, 32)
	for i := range n {
		copy(dst[34*i+2:34*i+34], c.fields[32*i:])
	}
	return -1
}

func decodeQ8_0(dst []float32, src []byte, _ float32) {
	d := kernels.GetF16(src)
	for i := range dst {
		dst[i] = float32(int8(src[2+i])) * d
	}
}

// encodeQ8_0Cache is ggml's vectorised encoder for CPUs: the reciprocal is 127/max
// and halves go to even.
func encodeQ8_0Cache(dst []byte, x []float32, _ float32) bool {
	signed := extreme(x)
	largest := max(signed, -signed)
	id := float32(0)
	if largest != 0 {
		id = 127 / largest
	}
	for i, v := range x {
		q := float32(0)
		if v = float32(v * id); v >= -127.5 && v <= 127.5 { // not where id overflowed
			q = float32(math.RoundToEven(float64(v)))
		}
		dst[2+i] = byte(int8(q))
	}
	return putF16(dst, largest/127)
}

// encodeSigned is q4_0's and q5_0's encoder: the extreme of a block is at the
// lowest code.
func encodeSigned(bits int) func(*Coder, []byte, []float32) int {
	half := float32(int(1) << (bits - 1))
	size := 2 + codeBytes(bits)
	return func(c *Coder, dst []byte, x []float32) int {
		c.startBlocks(x)
		for i, hi := range c.hi {
			signed := hi
			switch lo := c.lo[i]; {
			case -lo > hi:
				signed = lo
			case -lo == hi:
				signed = extreme(x[32*i : 32*i+32])
			}
			d := signed / -half
			if !putF16(dst[size*i:], d) {
				return i
			}
			c.lo[i], c.hi[i] = 0, reciprocal(d)
		}
		kernels.TruncateRuns(c.fields, x, c.lo, c.hi, half+0.5, uint8(1<<bits-1), 32)
		for i := range c.hi {
			packCodes(dst[size*i+2:size*i+size], c.fields[32*i:], bits)
		}
		return -1
	}
}

// encodeRanged is q4_1's and q5_1's encoder: the minimum of a block is code 0.
// q5_1 has no clamp in the origin; (hi−lo)·id + 0.5 stays below 32.
func encodeRanged(bits int) func(*Coder, []byte, []float32) int {
	top := float32(int(1)<<bits - 1)
	size := 4 + codeBytes(bits)
	return func(c *Coder, dst []byte, x []float32) int {
		c.startBlocks(x)
		for i, lo := range c.lo {
			d := (c.hi[i] - lo) / top
			if lo == 0 {
				lo, _ = extremes(x[32*i : 32*i+32]) // the sign of the first zero is stored
			}
			if !putF16(dst[size*i:], d) || !putF16(dst[size*i+2:], lo) {
				return i
			}
			c.hi[i] = reciprocal(d)
		}
		kernels.TruncateRuns(c.fields, x, c.lo, c.hi, 0.5, uint8(top), 32)
		for i := range c.hi {
			packCodes(dst[size*i+4:size*i+size], c.fields[32*i:], bits)
		}
		return -1
	}
}

// startBlocks leaves the ranges of blocks of 32 in c.lo and c.hi.
func (c *Coder) startBlocks(x []float32) {
	n := len(x) / 32
	c.lo, c.hi, c.fields = resize(c.lo, n), resize(c.hi, n), resize(c.fields, len(x))
	kernels.MinMaxRuns(c.lo, c.hi, x, 32)
}

// codeBytes returns the bytes of 32 codes of 4 or 5 bits.
func codeBytes(bits int) int { return 4 * bits }

// packCodes packs 32 fields: of 5 bits the fifth ones first, of all 32, then the
// others, j and j+16 in one byte.
func packCodes(dst []byte, fields []uint8, bits int) {
	if bits == 5 {
		for j := 0; j < 32; j += 8 {
			fifth := binary.LittleEndian.Uint64(fields[j:]) >> 4 & 0x0101010101010101
			dst[j/8] = byte(fifth * 0x0102040810204080 >> 56) // bit i from byte i
		}
		dst = dst[4:]
	}
	packHalves(dst, fields)
}

// packHalves packs the low nibbles of fields j and j+len(dst) in byte j, eight at a
// time.
func packHalves(dst []byte, fields []uint8) {
	const nibbles = 0x0f0f0f0f0f0f0f0f
	for j := 0; j < len(dst); j += 8 {
		low, high := binary.LittleEndian.Uint64(fields[j:]), binary.LittleEndian.Uint64(fields[j+len(dst):])
		binary.LittleEndian.PutUint64(dst[j:], low&nibbles|high&nibbles<<4)
	}
}

func decodeQ4_0(dst []float32, src []byte, _ float32) {
	d := kernels.GetF16(src)
	for j, b := range src[2:18] {
		dst[j] = float32(int(b&15)-8) * d
		dst[j+16] = float32(int(b>>4)-8) * d
	}
}

func decodeQ4_1(dst []float32, src []byte, _ float32) {
	d, m := kernels.GetF16(src), kernels.GetF16(src[2:])
	for j, b := range src[4:20] {
		dst[j] = float32(float32(b&15)*d) + m
		dst[j+16] = float32(float32(b>>4)*d) + m
	}
}

// unfifth reads 5-bit codes j and j+16.
func unfifth(high uint32, j int, packed byte) (a, b uint8) {
	return packed&15 | uint8(high>>j&1)<<4, packed>>4 | uint8(high>>(j+16)&1)<<4
}

func decodeQ5_0(dst []float32, src []byte, _ float32) {
	d, high := kernels.GetF16(src), binary.LittleEndian.Uint32(src[2:])
	for j, packed := range src[6:22] {
		a, b := unfifth(high, j, packed)
		dst[j], dst[j+16] = float32(int(a)-16)*d, float32(int(b)-16)*d
	}
}

func decodeQ5_1(dst []float32, src []byte, _ float32) {
	d, m, high := kernels.GetF16(src), kernels.GetF16(src[2:]), binary.LittleEndian.Uint32(src[4:])
	for j, packed := range src[8:24] {
		a, b := unfifth(high, j, packed)
		dst[j], dst[j+16] = float32(float32(a)*d)+m, float32(float32(b)*d)+m
	}
}

// iq4nl are the values of iq4_nl's codes.
var iq4nl = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// iq4nlLevels are the same with the midpoints between them, which are exact.
var iq4nlLevels = func() kernels.Levels {
	l := kernels.Levels{Values: iq4nl}
	for i := range l.Middles {
		l.Middles[i] = (iq4nl[i] + iq4nl[i+1]) / 2
	}
	return l
}()

// iq4nlCodes is the code of each half step from −128 on: the midpoints between
// levels are whole or half numbers, so that none lies inside one.
var iq4nlCodes = func() (codes [512]uint8) {
	for i := range codes {
		v := float64(float64(i)/2) - 128
		for c := 1; c < len(iq4nl) && 2*v >= float64(iq4nl[c-1])+float64(iq4nl[c]); c++ {
			codes[i] = uint8(c)
		}
	}
	return codes
}()

// nearestIQ4NL returns the code nearest to v, the upper one on a tie. In float64
// v + 128 is exact wherever it matters.
func nearestIQ4NL(v float32) uint8 {
	switch {
	case v >= -128 && v < 128:
		return iq4nlCodes[int((float64(v)+128)*2)&511]
	case v < 0:
		return 0
	}
	return 15
}

// encodeIQ4NL is the encoder of ggml's files: of scales around the one that maps
// the extreme to an end of the codes it takes the best fit, then rounds once more.
func encodeIQ4NL(c *Coder, dst []byte, x []float32) int {
	clear(dst)
	for n := range len(x) / 32 {
		x, dst := x[32*n:][:32], dst[18*n:][:18]
		var d float32
		if signed := extreme(x); max(signed, -signed) >= 1e-15 {
			d = c.fitIQ4NL(x, signed)
		}
		if !putF16(dst, d) {
			return n
		}
		id := reciprocal(d)
		for j, v := range x {
			dst[2+j%16] |= nearestIQ4NL(float32(id*v)) << (j / 16 * 4)
		}
	}
	return -1
}

// fitIQ4NL returns the scale of a block whose extreme is signed.
func (c *Coder) fitIQ4NL(x []float32, signed float32) float32 {
	fit := &c.fit
	fit.Factors[0] = 1 / (-signed / iq4nl[0])
	for i := 1; i < 16; i++ {
		fit.Factors[i] = (float32(i-8) + iq4nl[0]) / signed
	}
	kernels.FitLevels(fit, x, &iq4nlLevels)
	d := fit.QX[0] / fit.QQ[0]
	best := float32(d * fit.QX[0])
	for i := 1; i < 16; i++ {
		if qx, qq := fit.QX[i], fit.QQ[i]; qq > 0 && float32(qx*qx) > float32(best*qq) {
			d = qx / qq
			best = float32(d * qx)
		}
	}
	return d
}

// encodeIQ4NLCache is the encoder of llama.cpp's caches: codes at the scale that
// maps the extreme to the lowest one, then the scale that fits them best, weighted
// with the squares of the values.
func encodeIQ4NLCache(dst []byte, x []float32, _ float32) bool {
	clear(dst)
	signed := extreme(x)
	if max(signed, -signed) < 1e-15 {
		return true
	}
	id := 1 / (signed / iq4nl[0])
	var qx, qq float32
	for j, v := range x {
		code := nearestIQ4NL(float32(id * v))
		dst[2+j%16] |= code << (j / 16 * 4)
		w, q := float32(v*v), iq4nl[code]
		qx += float32(float32(w*q) * v)
		qq += float32(float32(w*q) * q)
	}
	return putF16(dst, qx/qq)
}

func decodeIQ4NL(dst []float32, src []byte, _ float32) {
	d := kernels.GetF16(src)
	for j, b := range src[2:18] {
		dst[j], dst[j+16] = d*iq4nl[b&15], d*iq4nl[b>>4]
	}
}

// e2m1 are twice the magnitudes of the 4-bit float's codes; bit 3 is the sign.
// Scales are halved to match, which is exact.
var e2m1 = [8]float32{0, 1, 2, 3, 4, 6, 8, 12}

// e2m1Max is the largest magnitude of the 4-bit float.
const e2m1Max = 6

// An e2m1Coder rounds to e2m1 codes at one scale d.
type e2m1Coder [7]int32

// newE2M1Coder sets up the midpoints between the codes' magnitudes, as bits: those
// of positive floats are ordered like the floats. d is half the scale.
func newE2M1Coder(d float32, t ties) (c e2m1Coder) {
	for i := range c {
		c[i] = int32(math.Float32bits((e2m1[i] + e2m1[i+1]) / 2 * d))
		if t == tiesUp || t == tiesEven && i%2 == 1 {
			c[i]--
		}
	}
	return c
}

// ties says which code a value on a midpoint gets: the lower magnitude, the even
// code or the higher magnitude.
type ties uint8

const (
	tiesDown ties = iota
	tiesEven
	tiesUp
)

// nearest returns the code nearest to v; what rounds to 0 has no sign.
func (c *e2m1Coder) nearest(v float32) uint8 {
	bits := math.Float32bits(v)
	a := int32(bits &^ (1 << 31))
	var code uint32
	for _, middle := range c {
		code += uint32(middle-a) >> 31 // 1 when a is above the middle
	}
	sign := bits >> 31 << 3
	if code == 0 {
		sign = 0
	}
	return uint8(code | sign)
}

// signed is nearest but for the sign, which a value that rounds to 0 keeps.
func (c *e2m1Coder) signed(v float32) uint8 {
	return c.nearest(v) | uint8(math.Float32bits(v)>>31<<3)
}

// unpairsE2M1 reads codes of which j and j+len(src) share byte j.
func unpairsE2M1(dst []float32, src []byte, d float32) {
	var values [16]float32
	for code, v := range e2m1 {
		values[code], values[code|8] = v*d, -v*d
	}
	values[8] = 0 // no negative zero
	half := len(dst) / 2
	for j, b := range src {
		dst[j], dst[j+half] = values[b&15], values[b>>4]
	}
}

// floorLog2 returns ⌊log2 v⌋ as the origin computes it for v > 0: log2 rounded to
// float32 first, which carries the largest floats below a power of two up to it.
func floorLog2(v float32) int {
	fraction, exp := math.Frexp(float64(v)) // v = fraction·2^exp, fraction in [.5, 1)
	below := 1 - fraction
	if below < 0x1p-12 && float32(float64(exp)-below*(1+float64(below/2))/math.Ln2) == float32(exp) {
		return exp
	}
	return exp - 1
}

// encodeMXFP4 stores an e8m0 exponent, 127 + what exponent makes of the largest
// magnitude, and e2m1 codes.
func encodeMXFP4(exponent func(largest float32) int, t ties) func(*Coder, []byte, []float32) int {
	return func(c *Coder, dst []byte, x []float32) int {
		c.scaleE2M1(x, 32, t, func(i int, largest float32) float32 {
			e := 0
			if largest > 0 {
				e = min(max(exponent(largest)+127, 0), 254)
			}
			dst[17*i] = byte(e)
			return e8m0(byte(e))
		})
		for i := range len(x) / 32 {
			packHalves(dst[17*i+1:17*i+17], c.fields[32*i:])
		}
		return -1
	}
}

// scaleE2M1 leaves the e2m1 codes of runs of x in c.fields; scale stores the scale
// of a run with the given largest magnitude and returns it.
func (c *Coder) scaleE2M1(x []float32, run int, t ties, scale func(i int, largest float32) float32) {
	n := len(x) / run
	c.hi, c.fields, c.middles = resize(c.hi, n), resize(c.fields, len(x)), resize(c.middles, n*kernels.E2M1Middles)
	kernels.AbsMaxRuns(c.hi, x, run)
	for i, largest := range c.hi {
		middles := c.middles[i*kernels.E2M1Middles : (i+1)*kernels.E2M1Middles]
		d := scale(i, largest)
		if d == 0 {
			// Everything would be above midpoints of 0, but counts for nothing; ggml
			// leaves such codes 0.
			for j := range middles {
				middles[j] = math.MaxInt32
			}
			continue
		}
		coder := newE2M1Coder(d/2, t)
		copy(middles, coder[:])
	}
	kernels.E2M1Runs(c.fields, x, c.middles, run)
}

// floorExponent is the rule of OCP and ggml: the largest magnitude may exceed 6
// times the scale and is then clipped.
func floorExponent(largest float32) int { return floorLog2(largest) - 2 }

// ceilExponent is the least exponent that clips nothing: ⌈log2(max/6)⌉.
func ceilExponent(largest float32) int {
	fraction, exp := math.Frexp(float64(largest / e2m1Max))
	if fraction == 0.5 {
		return exp - 1
	}
	return exp
}

// roundExponent is the rule of MLX: log2(max/6) to the nearest integer.
func roundExponent(largest float32) int {
	fraction, exp := math.Frexp(float64(largest / e2m1Max))
	if fraction*fraction >= 0.5 {
		return exp
	}
	return exp - 1
}

// e8m0 is the value of a power-of-two scale.
func e8m0(code byte) float32 {
	if code == 0 {
		return 0x1p-127
	}
	return math.Float32frombits(uint32(code) << 23)
}

func decodeMXFP4(dst []float32, src []byte, _ float32) {
	unpairsE2M1(dst, src[1:17], e8m0(src[0])/2)
}

// ue4m3 rounds v >= 0 to the unsigned e4m3 of ggml's nvfp4: halves up, and 248
// and above to 448. ggml itself stops at 7·2^-9 below 2^-6, where rounding up
// would reach 2^-6 (v from 7.5·2^-9 on); no vector of it at hand has such a block.
func ue4m3(v float32) uint8 {
	if v < 0x1p-6 {
		return uint8(float32(v*512) + 0.5)
	}
	v = min(v, kernels.MaxE4M3)
	code := (math.Float32bits(v)+1<<19)>>20 - (127-7)<<3
	if code >= 15<<3 {
		return 0x7e
	}
	return uint8(code)
}

// encodeNVFP4 stores four sub-blocks of 16: their scales, then 8 bytes of codes
// each, elements j and j+8 in one.
func encodeNVFP4(c *Coder, dst []byte, x []float32) int {
	c.scaleE2M1(x, 16, tiesDown, func(i int, largest float32) float32 {
		code := ue4m3(largest / e2m1Max)
		dst[i/4*36+i%4] = code
		return kernels.GetE4M3(code)
	})
	for i := range len(x) / 16 {
		at := i/4*36 + 4 + i%4*8
		packHalves(dst[at:at+8], c.fields[16*i:])
	}
	return -1
}

func decodeNVFP4(dst []float32, src []byte, _ float32) {
	for s := range 4 {
		unpairsE2M1(dst[16*s:16*s+16], src[4+8*s:12+8*s], kernels.GetE4M3(src[s])/2)
	}
}

// encodeNVFP4TS is NVFP4 as GPU toolchains make it: an e4m3 scale for 16 channels,
// ties to even, on top of the tensor's float32 scale max|x|/(6·448); codes from
// x divided by the product of both. A negative value that rounds to 0 keeps its sign.
func encodeNVFP4TS(dst []byte, x []float32, tensor float32) bool {
	clear(dst)
	if tensor != 0 {
		encodeNVFP4Scale(dst, x, tensor, e2m1Max)
	}
	return true
}

// encodeNVFP4Scale writes a block whose scale maps its largest magnitude to target.
func encodeNVFP4Scale(dst []byte, x []float32, tensor, target float32) {
	signed := extreme(x)
	dst[0] = kernels.E4M3(max(signed, -signed) / target / tensor)
	d := kernels.GetE4M3(dst[0]) * tensor
	if d == 0 {
		return
	}
	coder := newE2M1Coder(0.5, tiesEven)
	for j := range 8 {
		dst[1+j] = coder.signed(x[j]/d) | coder.signed(x[j+8]/d)<<4
	}
}

func decodeNVFP4TS(dst []float32, src []byte, tensor float32) {
	unpairsE2M1(dst, src[1:9], float32(kernels.GetE4M3(src[0])*tensor)/2)
}

// The formats of ik_llama.cpp at 8337e4c.

// encodeQ6_0 refits the scale to the codes by least squares weighted with the
// squares of the quotients.
func encodeQ6_0(dst []byte, x []float32, _ float32) bool {
	clear(dst)
	d := extreme(x) / -32
	id := reciprocal(d)
	var qx, qq float32
	for j := range 16 {
		a, b := truncate(float32(x[j]*id), 32.5, 63), truncate(float32(x[j+16]*id), 32.5, 63)
		dst[10+j] = a&15 | b&15<<4
		dst[2+j%8] |= (a>>4 | b>>4<<2) << (j / 8 * 4)
		for _, e := range []struct {
			x float32
			q float32
		}{{x[j], float32(a) - 32}, {x[j+16], float32(b) - 32}} {
			w := float32(float32(e.x*id) * float32(e.x*id))
			qx += float32(float32(w*e.q) * e.x)
			qq += float32(float32(w*e.q) * e.q)
		}
	}
	if qq > 0 && qq <= math.MaxFloat32 {
		d = qx / qq
	}
	return putF16(dst, d)
}

// encodeQ4_0LS is its q4_0 since March 2026: ggml's codes, and a scale refitted to them
// by least squares weighted with the squares of the values, in its CUDA kernel's order.
func encodeQ4_0LS(dst []byte, x []float32, _ float32) bool {
	d := extreme(x) / -8
	id := reciprocal(d)
	var qx, qq float32
	for j := range 16 {
		v, w := x[j], x[j+16]
		a, b := truncate(float32(v*id), 8.5, 15), truncate(float32(w*id), 8.5, 15)
		dst[2+j] = a | b<<4
		p, q := float32(a)-8, float32(b)-8
		vv, ww := float32(v*v), float32(w*w)
		qx += float32(float32(vv*p)*v) + float32(float32(ww*q)*w)
		qq += float32(float32(vv*p)*p) + float32(float32(ww*q)*q)
	}
	if qq > 0 && qq <= math.MaxFloat32 {
		d = qx / qq
	}
	return putF16(dst, d)
}

func decodeQ6_0(dst []float32, src []byte, _ float32) {
	d := kernels.GetF16(src)
	for j, packed := range src[10:26] {
		high := src[2+j%8] >> (j / 8 * 4)
		a, b := packed&15|high&3<<4, packed>>4|high>>2&3<<4
		dst[j], dst[j+16] = float32(int(a)-32)*d, float32(int(b)-32)*d
	}
}

// encodeQ8KV stores a whole row: its float32 scale max|x|/127, the int32 sum of
// its codes, and the codes.
func encodeQ8KV(dst []byte, x []float32, _ float32) bool {
	signed := extreme(x)
	d := max(signed, -signed) / 127
	id := reciprocal(d)
	var sum int32
	for i, v := range x {
		var q int32
		if v = float32(v * id); v >= -127.5 && v <= 127.5 { // not where id overflowed
			q = int32(math.RoundToEven(float64(v)))
		}
		q = min(max(q, -127), 127)
		dst[8+i] = byte(int8(q))
		sum += q
	}
	binary.LittleEndian.PutUint32(dst, math.Float32bits(d))
	binary.LittleEndian.PutUint32(dst[4:], uint32(sum))
	return true
}

func decodeQ8KV(dst []float32, src []byte, _ float32) {
	d := math.Float32frombits(binary.LittleEndian.Uint32(src))
	for i := range dst {
		dst[i] = d * float32(int8(src[8+i]))
	}
}
