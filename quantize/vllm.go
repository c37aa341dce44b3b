package quantize

import (
	"encoding/binary"
	"math"
	"sync"

	"kvq/kernels"
)

// vLLM's own formats, a row of a head each: codes first, least significant bit
// first, what they share behind them, as in its slots. Where vLLM multiplies by a
// reciprocal or rounds halves up, so does this.

// halfAway rounds to the nearest integer, halves away from zero, in float32 steps.
func halfAway(v float32) float32 {
	if v < 0 {
		return float32(math.Trunc(float64(v - 0.5)))
	}
	return float32(math.Trunc(float64(v + 0.5)))
}

// headScale is the scale of int8_per_token_head and fp8_per_token_head, and its
// reciprocal.
func headScale(x []float32, largest float32) (scale, reciprocal float32) {
	scale = max(kernels.AbsMax(x)/largest, 1e-6)
	return scale, 1 / scale
}

func encodePTHInt8(dst []byte, x []float32, _ float32) bool {
	scale, id := headScale(x, 127)
	for i, v := range x {
		dst[i] = byte(int8(min(max(halfAway(float32(v*id)), -128), 127)))
	}
	binary.LittleEndian.PutUint32(dst[len(x):], math.Float32bits(scale))
	return true
}

func decodePTHInt8(dst []float32, src []byte, _ float32) {
	scale := math.Float32frombits(binary.LittleEndian.Uint32(src[len(dst):]))
	for i := range dst {
		dst[i] = float32(int8(src[i])) * scale
	}
}

func encodePTHFP8(dst []byte, x []float32, _ float32) bool {
	scale, id := headScale(x, kernels.MaxE4M3)
	for i, v := range x {
		dst[i] = kernels.E4M3(float32(v * id))
	}
	binary.LittleEndian.PutUint32(dst[len(x):], math.Float32bits(scale))
	return true
}

func decodePTHFP8(dst []float32, src []byte, _ float32) {
	scale := math.Float32frombits(binary.LittleEndian.Uint32(src[len(dst):]))
	for i := range dst {
		dst[i] = kernels.GetE4M3(src[i]) * scale
	}
}

// encodePTHInt4 is int4_per_token_head: the row with random signs through the
// Walsh–Hadamard transform, not divided by √d, then 16 steps of a range with an
// integer zero point, which takes the lowest four bits of the float32 scale. The
// transform is in float64, rounded once; vLLM's is in the model's type.
func encodePTHInt4(dst []byte, x []float32, _ float32) bool {
	y := signedHadamard(x, false)
	lo, hi := extremes(y)
	scale := max((hi-lo)/15, 1e-6)
	if scale > math.MaxFloat32 {
		return false
	}
	zero := min(max(halfAway(-lo/scale), 0), 15)
	id := 1 / scale
	clear(dst)
	for i, v := range y {
		putCode(dst, i, 4, uint8(min(max(halfAway(float32(v*id)+zero), 0), 15)))
	}
	binary.LittleEndian.PutUint32(dst[len(dst)-4:], math.Float32bits(scale)&^15|uint32(zero))
	return true
}

func decodePTHInt4(dst []float32, src []byte, _ float32) {
	bits := binary.LittleEndian.Uint32(src[len(src)-4:])
	scale, zero := math.Float32frombits(bits&^15), float32(bits&15)
	for i := range dst {
		dst[i] = (float32(getCode(src, i, 4)) - zero) * scale
	}
	copy(dst, signedHadamard(dst, true))
}

// signedHadamard multiplies x by signs and transforms it, or takes that back.
func signedHadamard(x []float32, back bool) []float32 {
	w := make([]float64, len(x))
	signs := pthSigns(len(x))
	for i, v := range x {
		w[i] = float64(v)
		if signs[i] && !back {
			w[i] = -w[i]
		}
	}
	walshHadamard(w)
	y := make([]float32, len(x))
	for i, v := range w {
		if back {
			v /= float64(len(x))
			if signs[i] {
				v = -v
			}
		}
		y[i] = float32(v)
	}
	return y
}

// pthSigns returns which of n channels int4_per_token_head negates: fair coins of
// the Mersenne Twister with vLLM's seed, as PyTorch draws them.
func pthSigns(n int) []bool {
	if known, ok := pthSignsOf.Load(n); ok {
		return known.([]bool)
	}
	const size, shift = 624, 397
	var state [size]uint32
	state[0] = 0x9e3779b9
	for i := 1; i < size; i++ {
		state[i] = 1812433253*(state[i-1]^state[i-1]>>30) + uint32(i)
	}
	signs := make([]bool, n)
	for i := range signs {
		at := i % size
		y := state[at]&0x80000000 | state[(at+1)%size]&0x7fffffff
		next := state[(at+shift)%size] ^ y>>1
		if y&1 != 0 {
			next ^= 0x9908b0df
		}
		state[at] = next
		next ^= next >> 11
		next ^= next << 7 & 0x9d2c5680
		next ^= next << 15 & 0xefc60000
		next ^= next >> 18
		signs[i] = next&(1<<23) != 0 // a uniform of 24 bits, from 0.5 on
	}
	pthSignsOf.Store(n, signs)
	return signs
}

var pthSignsOf sync.Map // of head widths

// encodeTurboValues is what TurboQuant's slots of vLLM store for values: steps of
// the range, halves up, of the scale and minimum that are then stored in f16.
func encodeTurboValues(bits int) func([]byte, []float32, float32) bool {
	top := float32(int(1)<<bits - 1)
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		lo, hi := extremes(x)
		scale := max((hi-lo)/top, 1e-8)
		for i, v := range x {
			putCode(dst, i, bits, uint8(min(max(float32((v-lo)/scale)+0.5, 0), top)))
		}
		meta := dst[len(dst)-4:]
		return putF16(meta, scale) && putF16(meta[2:], lo)
	}
}

func decodeTurboValues(bits int) func([]float32, []byte, float32) {
	return func(dst []float32, src []byte, _ float32) {
		meta := src[len(src)-4:]
		scale, lo := kernels.GetF16(meta), kernels.GetF16(meta[2:])
		for i := range dst {
			dst[i] = float32(float32(getCode(src, i, bits))*scale) + lo
		}
	}
}

// encodeTurboKeys is what they store for keys, which +hadamard has rotated: codes of
// the row over its norm, values on a boundary going up, and the norm in f16.
// Decoding gives the decoded codes the norm 1 before it multiplies by it.
func encodeTurboKeys(bits int) func([]byte, []float32, float32) bool {
	return func(dst []byte, x []float32, _ float32) bool {
		clear(dst)
		book := vllmCentroids(bits, len(x))
		norm := norm(x)
		for i, v := range x {
			u, code := v/(norm+1e-8), 0
			for code < len(book)-1 && u >= (book[code]+book[code+1])/2 {
				code++
			}
			putCode(dst, i, bits, uint8(code))
		}
		return putF16(dst[len(dst)-2:], norm)
	}
}

func decodeTurboKeys(bits int) func([]float32, []byte, float32) {
	return func(dst []float32, src []byte, _ float32) {
		book := vllmCentroids(bits, len(dst))
		for i := range dst {
			dst[i] = book[getCode(src, i, bits)]
		}
		length := norm(dst)
		inverse := 1 / float32(math.Sqrt(float64(float32(length*length)+1e-16)))
		stored := kernels.GetF16(src[len(src)-2:])
		for i, v := range dst {
			dst[i] = stored * float32(v*inverse)
		}
	}
}

// norm is the Euclidean norm, summed in float64.
func norm(x []float32) float32 {
	var square float64
	for _, v := range x {
		square += float64(float64(v) * float64(v))
	}
	return float32(math.Sqrt(square))
}

// vllmCentroids returns the codebook for coordinates of unit vectors of dim channels
// as vLLM's solver leaves it: Lloyd's iteration on N(0, 1/dim) from even steps over
// 7 deviations, with integrals by 200 trapezoids out to 10.5 of them, 200 times or
// until nothing moves by 1e-10. It is close to lloydMax, not the same.
func vllmCentroids(bits, dim int) []float32 {
	key := [2]int{bits, dim}
	if known, ok := vllmCentroidsOf.Load(key); ok {
		return known.([]float32)
	}
	n := 1 << bits
	variance := 1 / float64(dim)
	edge := float64(3.5 * math.Sqrt(variance))
	density := func(x float64) float64 {
		return float64(1 / math.Sqrt(2*math.Pi*variance) * kernels.Exp(-float64(x*x)/float64(2*variance)))
	}
	integral := func(f func(float64) float64, a, b float64) float64 {
		const steps = 200
		h := (b - a) / steps
		sum := float64(0.5 * (f(a) + f(b)))
		for i := 1; i < steps; i++ {
			sum += f(a + float64(float64(i)*h))
		}
		return sum * h
	}
	centers := make([]float64, n)
	for i := range centers {
		centers[i] = -edge + float64(2*edge*(float64(i)+0.5))/float64(n)
	}
	for range 200 {
		next := make([]float64, n)
		moved := 0.0
		for i := range centers {
			a, b := -3*edge, 3*edge
			if i > 0 {
				a = (centers[i-1] + centers[i]) / 2
			}
			if i < n-1 {
				b = (centers[i] + centers[i+1]) / 2
			}
			next[i] = centers[i]
			if mass := integral(density, a, b); mass > 1e-15 {
				next[i] = integral(func(x float64) float64 { return float64(x * density(x)) }, a, b) / mass
			}
			moved = max(moved, math.Abs(next[i]-centers[i]))
		}
		if moved < 1e-10 {
			break
		}
		centers = next
	}
	book := make([]float32, n)
	for i, v := range centers {
		book[i] = float32(v)
	}
	vllmCentroidsOf.Store(key, book)
	return book
}

var vllmCentroidsOf sync.Map // of bits and head widths

// encodeNVFP4Search is vLLM's nvfp4_4over6: of the scales that map a block's largest
// magnitude to 6 and to 4 it takes the one with the smaller squared error.
func encodeNVFP4Search(dst []byte, x []float32, tensor float32) bool {
	encodeNVFP4TS(dst, x, tensor)
	if tensor == 0 {
		return true
	}
	var other [9]byte
	encodeNVFP4Scale(other[:], x, tensor, 4)
	if nvfp4Error(other[:], x, tensor) < nvfp4Error(dst, x, tensor) {
		copy(dst, other[:])
	}
	return true
}

// nvfp4Error is the squared error of an encoded block, in float32.
func nvfp4Error(src []byte, x []float32, tensor float32) (sum float32) {
	var decoded [16]float32
	decodeNVFP4TS(decoded[:], src, tensor)
	for i, v := range x {
		d := decoded[i] - v
		sum += float32(d * d)
	}
	return sum
}
