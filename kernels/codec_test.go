package kernels

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// codecInput is what a codec kernel can be given: values in runs or columns of
// width, with an Affine entry for each.
type codecInput struct {
	x      []float32
	width  int // of a run, or the number of columns
	affine Affine
	bits   int
}

// codecCalls are the codec kernels: each writes to dst (guarded memory of 8
// bytes a value) and returns the part it wrote.
var codecCalls = map[string]func(k *codecKernels, dst []byte, in codecInput) []byte{
	"absMax": func(k *codecKernels, dst []byte, in codecInput) []byte {
		return binary.LittleEndian.AppendUint32(dst[:0], math.Float32bits(k.absMax(in.x)))
	},
	"absMaxRuns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		out := asFloats(dst)[:len(in.x)/in.width]
		k.absMaxRuns(out, in.x, in.width)
		return dst[:4*len(out)]
	},
	"minMaxRuns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		n := len(in.x) / in.width
		k.minMaxRuns(asFloats(dst)[:n], asFloats(dst)[n:2*n], in.x, in.width)
		return dst[:8*n]
	},
	"absMaxColumns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		acc := asFloats(dst)[:min(in.width, len(in.x))]
		clear(acc)
		k.absMaxColumns(acc, in.x)
		return dst[:4*len(acc)]
	},
	"minMaxColumns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		n := min(in.width, len(in.x))
		lo, hi := asFloats(dst)[:n], asFloats(dst)[n:2*n]
		copy(lo, in.x)
		copy(hi, in.x)
		k.minMaxColumns(lo, hi, in.x)
		return dst[:8*n]
	},
	"encodeRuns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.encodeRuns(dst[:len(in.x)], in.x, in.width, in.entries(len(in.x)/in.width))
		return dst[:len(in.x)]
	},
	"encodeColumns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.encodeColumns(dst[:len(in.x)], in.x, in.width, in.entries(in.width))
		return dst[:len(in.x)]
	},
	"decodeRuns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.decodeRuns(asFloats(dst)[:len(in.x)], asBytes(in.x)[:len(in.x)], in.width, in.entries(len(in.x)/in.width))
		return dst[:4*len(in.x)]
	},
	"decodeColumns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.decodeColumns(asFloats(dst)[:len(in.x)], asBytes(in.x)[:len(in.x)], in.width, in.entries(in.width))
		return dst[:4*len(in.x)]
	},
	"truncateRuns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.truncateRuns(dst[:len(in.x)], in.x, in.affine.Offset[:len(in.x)/in.width], in.affine.Scale[:len(in.x)/in.width], 8.5, uint8(in.affine.Hi), in.width)
		return dst[:len(in.x)]
	},
	"roundAwayRuns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.roundAwayRuns(dst[:len(in.x)], in.x, in.affine.Scale[:len(in.x)/in.width], in.width)
		return dst[:len(in.x)]
	},
	"e2m1Runs": func(k *codecKernels, dst []byte, in codecInput) []byte {
		middles := make([]int32, len(in.x)/in.width*E2M1Middles)
		for i := range middles {
			middles[i] = int32(math.Float32bits(abs32(in.affine.Offset[i/E2M1Middles]) * float32(i%E2M1Middles)))
		}
		k.e2m1Runs(dst[:len(in.x)], in.x, middles, in.width)
		return dst[:len(in.x)]
	},
	"divideRuns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.divideRuns(asFloats(dst)[:len(in.x)], in.x, in.affine.Scale[:len(in.x)/in.width], in.width)
		return dst[:4*len(in.x)]
	},
	"divideColumns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.divideColumns(asFloats(dst)[:len(in.x)], in.x, in.affine.Scale[:in.width], in.width)
		return dst[:4*len(in.x)]
	},
	"multiplyRuns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.multiplyRuns(asFloats(dst)[:len(in.x)], in.x, in.affine.Scale[:len(in.x)/in.width], in.width)
		return dst[:4*len(in.x)]
	},
	"multiplyColumns": func(k *codecKernels, dst []byte, in codecInput) []byte {
		k.multiplyColumns(asFloats(dst)[:len(in.x)], in.x, in.affine.Scale[:in.width], in.width)
		return dst[:4*len(in.x)]
	},
	"pack": func(k *codecKernels, dst []byte, in codecInput) []byte {
		fields := asBytes(in.x)[:len(in.x)]
		for i := range fields {
			fields[i] &= 1<<in.bits - 1
		}
		// At the end of the guarded memory: a write too far crashes.
		out := dst[len(dst)-PackedLen(len(fields), in.bits):]
		k.pack(out, fields, in.bits)
		return out
	},
	"unpack": func(k *codecKernels, dst []byte, in codecInput) []byte {
		src := asBytes(in.x)
		k.unpack(dst[:len(in.x)], src[len(src)-PackedLen(len(in.x), in.bits):], in.bits)
		return dst[:len(in.x)]
	},
	"toF16":    func(k *codecKernels, dst []byte, in codecInput) []byte { return converted(k.toF16, dst, in.x, 2) },
	"toBF16":   func(k *codecKernels, dst []byte, in codecInput) []byte { return converted(k.toBF16, dst, in.x, 2) },
	"toE4M3":   func(k *codecKernels, dst []byte, in codecInput) []byte { return converted(k.toE4M3, dst, in.x, 1) },
	"toE5M2":   func(k *codecKernels, dst []byte, in codecInput) []byte { return converted(k.toE5M2, dst, in.x, 1) },
	"fromF16":  func(k *codecKernels, dst []byte, in codecInput) []byte { return read(k.fromF16, dst, in.x, 2) },
	"fromBF16": func(k *codecKernels, dst []byte, in codecInput) []byte { return read(k.fromBF16, dst, in.x, 2) },
	"fromE4M3": func(k *codecKernels, dst []byte, in codecInput) []byte { return read(k.fromE4M3, dst, in.x, 1) },
	"fromE5M2": func(k *codecKernels, dst []byte, in codecInput) []byte { return read(k.fromE5M2, dst, in.x, 1) },
}

func converted(to func([]byte, []float32), dst []byte, x []float32, size int) []byte {
	out := dst[len(dst)-size*len(x):]
	to(out, x)
	return out
}

func read(from func([]float32, []byte), dst []byte, x []float32, size int) []byte {
	src := asBytes(x)
	from(asFloats(dst)[:len(x)], src[len(src)-size*len(x):])
	return dst[:4*len(x)]
}

// entries returns the first n entries of the affine.
func (in codecInput) entries(n int) Affine {
	a := in.affine
	a.Scale, a.Bias, a.Offset = a.Scale[:n], a.Bias[:n], a.Offset[:n]
	return a
}

// newCodecInput makes rows·width values of one of several kinds, in guarded memory.
func newCodecInput(t *testing.T, r *rand.Rand, rows, width int, head bool) codecInput {
	in := codecInput{x: guardedFloats(t, rows*width, head), width: width, bits: 2 + r.IntN(6)}
	kind := r.IntN(5)
	for i := range in.x {
		in.x[i] = randomValue(r, kind)
	}
	n := max(rows, width)
	in.affine = Affine{guardedFloats(t, n, head), guardedFloats(t, n, head), guardedFloats(t, n, head), float32(r.IntN(2)), float32(int(1)<<in.bits - 1)}
	for i := range n {
		in.affine.Scale[i] = []float32{0, 1, 0.25, 0x1p-24, 3.7e-40, 1e30, 0.013}[r.IntN(7)]
		in.affine.Bias[i] = float32(r.IntN(1 << in.bits))
		if r.IntN(2) == 0 {
			in.affine.Offset[i] = randomValue(r, kind)
		}
	}
	return in
}

// randomValue returns a finite value: ordinary, on a tie of the codes, of any
// magnitude, denormal, or at the end of the range.
func randomValue(r *rand.Rand, kind int) float32 {
	switch kind {
	case 1:
		return float32(r.IntN(1024)-512) / 2
	case 2:
		for {
			if v := math.Float32frombits(r.Uint32()); finite(v) {
				return v
			}
		}
	case 3:
		return math.Float32frombits(r.Uint32() & 0x807fffff)
	case 4:
		return math.MaxFloat32 * float32(r.IntN(3)-1)
	}
	return float32(r.NormFloat64())
}

// TestCodecBackends: every backend gives the bits of the generic one, for every
// kernel, at all lengths to three vectors and more, at the edges of its memory.
func TestCodecBackends(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		k := &active.Load().codec
		r := rand.New(rand.NewPCG(5, 6))
		for width := 1; width < 3*64+2; width++ {
			for _, rows := range []int{0, 1, 2, 3, 17} {
				in := newCodecInput(t, r, rows, width, (width+rows)%2 == 0)
				want, got := guarded(t, 8*len(in.x)+8, false), guarded(t, 8*len(in.x)+8, false)
				for name, call := range codecCalls {
					a, b := call(&genericCodec, want, in), call(k, got, in)
					if !bytes.Equal(a, b) {
						t.Fatalf("%s, %d rows of %d, %d bits: differs from generic", name, rows, width, in.bits)
					}
				}
			}
		}
	})
}

func FuzzCodecs(f *testing.F) {
	f.Add(uint64(1), uint8(3), uint8(64))
	f.Fuzz(func(t *testing.T, seed uint64, rows, width uint8) {
		if width == 0 {
			return
		}
		in := newCodecInput(t, rand.New(rand.NewPCG(seed, 0)), int(rows%40), int(width), seed%2 == 0)
		want, got := guarded(t, 8*len(in.x)+8, false), guarded(t, 8*len(in.x)+8, false)
		for _, b := range backends() {
			for name, call := range codecCalls {
				if !bytes.Equal(call(&genericCodec, want, in), call(&b.codec, got, in)) {
					t.Fatalf("%s on %s: differs from generic", name, b.isa)
				}
			}
		}
	})
}

// TestReductions holds the reductions against loops of their own.
func TestReductions(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for n := 1; n < 200; n++ {
			x := make([]float32, 3*n)
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
			lo, hi, abs := make([]float32, n), make([]float32, n), make([]float32, n)
			columnLo, columnHi, columnAbs := append([]float32{}, x[:n]...), append([]float32{}, x[:n]...), make([]float32, n)
			MinMaxRuns(lo, hi, x, 3)
			AbsMaxRuns(abs, x, 3)
			MinMaxColumns(columnLo, columnHi, x)
			AbsMaxColumns(columnAbs, x)
			for i := range n {
				l, h := math.Inf(1), math.Inf(-1)
				cl, ch := math.Inf(1), math.Inf(-1)
				for j := range 3 {
					l, h = math.Min(l, float64(x[3*i+j])), math.Max(h, float64(x[3*i+j]))
					cl, ch = math.Min(cl, float64(x[j*n+i])), math.Max(ch, float64(x[j*n+i]))
				}
				if float64(lo[i]) != l || float64(hi[i]) != h || float64(abs[i]) != math.Max(-l, h) {
					t.Fatalf("run %d of %d: %g %g %g, want %g %g", i, n, lo[i], hi[i], abs[i], l, h)
				}
				if float64(columnLo[i]) != cl || float64(columnHi[i]) != ch || float64(columnAbs[i]) != math.Max(-cl, ch) {
					t.Fatalf("column %d of %d: %g %g %g, want %g %g", i, n, columnLo[i], columnHi[i], columnAbs[i], cl, ch)
				}
			}
		}
		zeros := []float32{float32(math.Copysign(0, -1)), float32(math.Copysign(0, -1))}
		lo, hi := []float32{1}, []float32{1}
		MinMaxRuns(lo, hi, zeros, 2)
		if math.Signbit(float64(lo[0])) || math.Signbit(float64(hi[0])) {
			t.Error("a zero came out negative")
		}
	})
}

func TestIndexNonFinite(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		x := make([]float32, 3*maxCall/2)
		if i := IndexNonFinite(x); i != -1 {
			t.Errorf("zeros: %d", i)
		}
		for _, at := range []int{0, 1, 15, 16, 100, maxCall - 1, maxCall, len(x) - 1} {
			for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				x[at] = float32(v)
				if i := IndexNonFinite(x); i != at {
					t.Errorf("%g at %d: %d", v, at, i)
				}
				x[at] = math.MaxFloat32
			}
		}
	})
}

// TestPack reads packed fields bit by bit.
func TestPack(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(7, 7))
		for bits := 1; bits <= 8; bits++ {
			for n := range 400 {
				fields := make([]uint8, n)
				for i := range fields {
					fields[i] = uint8(r.IntN(1 << bits))
				}
				packed := make([]byte, PackedLen(n, bits))
				Pack(packed, fields, bits)
				for i, f := range fields {
					for b := range bits {
						at := i*bits + b
						if packed[at/8]>>(at%8)&1 != f>>b&1 {
							t.Fatalf("%d bits, field %d of %d: bit %d is wrong", bits, i, n, b)
						}
					}
				}
				if last := n * bits % 8; last > 0 && packed[len(packed)-1]>>last != 0 {
					t.Fatalf("%d bits, %d fields: bits behind the last are set", bits, n)
				}
				back := make([]uint8, n)
				Unpack(back, packed, bits)
				if !bytes.Equal(back, fields) {
					t.Fatalf("%d bits, %d fields: Unpack differs", bits, n)
				}
			}
		}
	})
}

// smallFloat describes a float type for the reference of the conversions.
type smallFloat struct {
	bits, digits, bias int // digits: significant bits, the hidden one included
	infinity           bool
	largest            float64
	saturates          bool
	to                 func([]byte, []float32)
	from               func([]float32, []byte)
}

var smallFloats = map[string]smallFloat{
	"f16":  {16, 11, 15, true, 65504, false, ToF16, FromF16},
	"bf16": {16, 8, 127, true, 0x1.fep127, false, ToBF16, FromBF16},
	"e4m3": {8, 4, 7, false, 448, true, ToE4M3, FromE4M3},
	"e5m2": {8, 3, 15, true, 57344, true, ToE5M2, FromE5M2},
}

// value returns the value of a code without sign, as the type's definition says.
func (f smallFloat) value(code int) float64 {
	mantissa := code & (1<<(f.digits-1) - 1)
	exponent := code >> (f.digits - 1)
	top := 1<<(f.bits-f.digits) - 1
	switch {
	case f.infinity && exponent == top && mantissa == 0:
		return math.Inf(1)
	case f.infinity && exponent == top, !f.infinity && exponent == top && mantissa == 1<<(f.digits-1)-1:
		return math.NaN()
	case exponent == 0:
		return math.Ldexp(float64(mantissa), 1-f.bias-(f.digits-1))
	}
	return math.Ldexp(float64(mantissa+1<<(f.digits-1)), exponent-f.bias-(f.digits-1))
}

func (f smallFloat) bytes(code int) []byte {
	if f.bits == 8 {
		return []byte{byte(code)}
	}
	return binary.LittleEndian.AppendUint16(nil, uint16(code))
}

// TestConversions is exhaustive: every code decodes to its value, and encoding
// is right at every value, at every midpoint between neighbours, and one float32
// to both sides of each. Rounding being monotone, that leaves nothing open.
func TestConversions(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		for name, f := range smallFloats {
			sign := 1 << (f.bits - 1)
			var x []float32
			var want []byte
			expect := func(v float64, code int) {
				x = append(x, float32(v), float32(-v))
				want = append(append(want, f.bytes(code)...), f.bytes(code|sign)...)
			}
			var codes []byte
			for code := range sign {
				codes = append(append(codes, f.bytes(code)...), f.bytes(code|sign)...)
			}
			values := make([]float32, 2*sign)
			f.from(values, codes)
			for code := range sign {
				v := f.value(code)
				for i, got := range values[2*code : 2*code+2] {
					if want := v * float64(1-2*i); float64(got) != want && !(math.IsNaN(want) && got != got) || want == 0 && math.Signbit(float64(got)) != (i == 1) {
						t.Fatalf("%s: code %#x is %g, want %g", name, code+i*sign, got, want)
					}
				}
				if math.IsNaN(v) || math.IsInf(v, 0) {
					continue
				}
				expect(v, code)
				next := f.value(code + 1)
				if v == f.largest {
					if f.saturates {
						expect(v*2, code)
						expect(math.MaxFloat32, code)
						expect(math.Inf(1), code)
						continue
					}
					next = v + math.Ldexp(1, int(math.Log2(v))-f.digits+1)
				}
				middle := (v + next) / 2
				even := code + code&1
				expect(middle, even)
				expect(float64(math.Nextafter32(float32(middle), 0)), code)
				expect(float64(math.Nextafter32(float32(middle), math.MaxFloat32)), code+1)
			}
			got := make([]byte, len(want))
			f.to(got, x)
			size := f.bits / 8
			for i, v := range x {
				if !bytes.Equal(got[i*size:(i+1)*size], want[i*size:(i+1)*size]) {
					t.Fatalf("%s: %g (%#x) gives %x, want %x", name, v, math.Float32bits(v), got[i*size:(i+1)*size], want[i*size:(i+1)*size])
				}
			}
			for _, bits := range []uint32{0x7fc00000, 0xffc00001, 0x7f800001, 0xffffffff} {
				// A whole vector and a tail.
				for _, n := range []int{1, 64} {
					x := make([]float32, n)
					for i := range x {
						x[i] = math.Float32frombits(bits)
					}
					code, back := make([]byte, n*size), make([]float32, n)
					f.to(code, x)
					f.from(back, code)
					for _, v := range back {
						if v == v || math.Float32bits(v)>>31 != bits>>31 {
							t.Fatalf("%s: the NaN %#x comes back as %g (%x)", name, bits, v, code[:size])
						}
					}
				}
			}
		}
	})
}

func BenchmarkCodec(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const rows, width = 128, 128
	in := codecInput{x: make([]float32, rows*width), width: width, bits: 4}
	for i := range in.x {
		in.x[i] = float32(r.NormFloat64())
	}
	ones := make([]float32, rows)
	for i := range ones {
		ones[i] = 0.01
	}
	in.affine = Affine{ones, ones, ones, 0, 15}
	dst := make([]byte, 8*len(in.x))
	for name, call := range codecCalls {
		for _, backend := range backends() {
			b.Run(name+"/isa="+string(backend.isa), func(b *testing.B) {
				b.SetBytes(int64(4 * len(in.x)))
				for b.Loop() {
					call(&backend.codec, dst, in)
				}
			})
		}
	}
}

// TestRoundAway compares with the standard library around every half.
func TestRoundAway(t *testing.T) {
	eachBackend(t, func(t *testing.T) {
		for twice := float32(-254); twice <= 254; twice++ {
			x := make([]float32, 16)
			for i := range x {
				x[i] = []float32{twice / 2, math.Nextafter32(twice/2, 1000), math.Nextafter32(twice/2, -1000)}[i%3]
			}
			codes := make([]uint8, 16)
			RoundAwayRuns(codes, x, []float32{1}, 16)
			for i, v := range x {
				if got, want := int8(codes[i]), math.Round(float64(v)); float64(got) != want {
					t.Errorf("%g: %d, want %g", v, got, want)
				}
			}
		}
	})
}

func TestFitLevels(t *testing.T) {
	levels := Levels{Values: [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}}
	for i := range levels.Middles {
		levels.Middles[i] = (levels.Values[i] + levels.Values[i+1]) / 2
	}
	eachBackend(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(2, 9))
		for _, n := range []int{1, 2, 31, 32, 64} {
			for _, head := range []bool{true, false} {
				x := guardedFloats(t, n, head)
				var fit, want LevelFit
				for i := range x {
					x[i] = float32(r.NormFloat64())
				}
				for i := range fit.Factors {
					fit.Factors[i] = float32(40 * r.NormFloat64())
				}
				fit.Factors[3] = levels.Middles[5] / x[0] // often exactly a midpoint
				want = fit
				FitLevels(&fit, x, &levels)
				fitLevelsGeneric(&want, x, &levels)
				if fit != want {
					t.Fatalf("n = %d: %v, generic has %v", n, fit, want)
				}
				for i, f := range fit.Factors {
					var qx, qq float64
					for _, v := range x {
						best := levels.Values[0]
						for _, level := range levels.Values {
							if math.Abs(float64(float32(f*v)-level)) <= math.Abs(float64(float32(f*v)-best)) {
								best = level
							}
						}
						w := float64(v) * float64(v) * float64(best)
						qx += w * float64(v)
						qq += w * float64(best)
					}
					if math.Abs(float64(fit.QX[i])-qx) > 1e-4*math.Abs(qx)+1e-3 || math.Abs(float64(fit.QQ[i])-qq) > 1e-5*qq {
						t.Fatalf("n = %d: sums %g and %g, want %g and %g", n, fit.QX[i], fit.QQ[i], qx, qq)
					}
				}
			}
		}
	})
}
