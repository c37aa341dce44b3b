package quantize

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"kvq/kernels"
)

// eachISA runs test on every backend of this CPU.
func eachISA(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	before := kernels.Active()
	t.Cleanup(func() { kernels.Use(before) })
	for _, isa := range kernels.Available() {
		if err := kernels.Use(isa); err != nil {
			t.Fatal(err)
		}
		t.Run("isa="+string(isa), test)
	}
}

// scaledNames lists every combination of the grammar with scales in a type:
// "" for the default, "@f16", "@bf16", "@f32".
func scaledNames(meta string) []string {
	var names []string
	for _, share := range []string{"tensor", "head", "token", "token/32", "token/7", "channel", "channel/32", "channel/7", "channel/1000"} {
		for _, codec := range []string{"e4m3", "e5m2"} {
			names = append(names, codec+"-"+share+meta)
		}
		for _, codec := range []string{"int8", "int6", "int5", "int4", "int3", "int2"} {
			for _, zero := range []string{"", "-asym", "-zp"} {
				names = append(names, codec+zero+"-"+share+meta)
			}
		}
	}
	return names
}

var plainNames = []string{"f32", "f16", "bf16", "e4m3-raw", "e5m2-raw"}

// tensor is heads of [tokens, dim] values.
type tensor struct {
	dim   int
	heads [][]float32
}

func (x tensor) tokens() int  { return len(x.heads[0]) / x.dim }
func (x tensor) shape() Shape { return Shape{Heads: len(x.heads), Tokens: x.tokens(), Dim: x.dim} }

func (x tensor) head(i int) Head {
	return Head{Index: i, Dim: x.dim, Values: x.heads[i], Heads: len(x.heads)}
}

// newTensor fills a tensor from a function of head, token and channel.
func newTensor(heads, tokens, dim int, value func(h, t, c int) float64) tensor {
	x := tensor{dim: dim}
	for h := range heads {
		values := make([]float32, tokens*dim)
		for i := range values {
			values[i] = float32(value(h, i/dim, i%dim))
		}
		x.heads = append(x.heads, values)
	}
	return x
}

// inputs are tensors that stress the definitions. Values stay below what a
// scale in f16 can hold.
func inputs() map[string]tensor {
	r := rand.New(rand.NewPCG(3, 9))
	normal := func(h, t, c int) float64 { return r.NormFloat64() }
	return map[string]tensor{
		"normal":   newTensor(2, 35, 64, normal),
		"odd":      newTensor(2, 33, 45, normal),
		"outliers": newTensor(1, 34, 64, func(h, t, c int) float64 { return r.NormFloat64() * map[bool]float64{true: 500, false: 1}[c == 5] }),
		"shifted":  newTensor(1, 35, 32, func(h, t, c int) float64 { return 100 + r.NormFloat64() }),
		"negative": newTensor(1, 35, 32, func(h, t, c int) float64 { return -3 - r.Float64() }),
		"zero":     newTensor(2, 33, 32, func(h, t, c int) float64 { return 0 }),
		"constant": newTensor(1, 33, 32, func(h, t, c int) float64 { return -0.3 }),
		"one":      newTensor(1, 33, 32, func(h, t, c int) float64 { return map[bool]float64{true: 77.7}[t == 9 && c == 9] }),
		"denormal": newTensor(1, 33, 32, func(h, t, c int) float64 { return r.NormFloat64() * 0x1p-140 }),
		"tiny":     newTensor(1, 33, 32, func(h, t, c int) float64 { return r.NormFloat64() * 1e-7 }),
		"ties":     newTensor(1, 33, 32, func(h, t, c int) float64 { return float64(r.IntN(255)-127) / 2 }),
		"single":   newTensor(2, 1, 64, normal),
		"long":     newTensor(1, 290, 64, normal),
	}
}

// encodeAll encodes and decodes a tensor and checks its size.
func encodeAll(t *testing.T, s *Scheme, x tensor) (encoded []*Encoded, decoded [][]float32) {
	t.Helper()
	coder := s.NewCoder()
	var calibration Calibration
	if s.Calibrated() {
		for h := range x.heads {
			if err := coder.Observe(&calibration, x.head(h)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var size Size
	for h, values := range x.heads {
		before := slices.Clone(values)
		e := new(Encoded)
		if err := coder.Encode(e, x.head(h), &calibration); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(values, before) {
			t.Fatalf("%s: Encode changed its input", s.Name())
		}
		out := make([]float32, len(values))
		coder.Decode(out, e)
		encoded, decoded = append(encoded, e), append(decoded, out)
		got := e.Size()
		size.Data += got.Data
		size.Metadata += got.Metadata
	}
	want, err := s.Size(x.shape())
	if err != nil {
		t.Fatal(err)
	}
	if size != want {
		t.Fatalf("%s: encoded %+v, Size %+v", s.Name(), size, want)
	}
	return encoded, decoded
}

func mustLookup(t testing.TB, name string) *Scheme {
	t.Helper()
	s, err := Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDefinitions holds every code and every decoded value of every scheme of
// the grammar against the reference, every error against its bound, and every
// backend's bytes against the generic one's.
func TestDefinitions(t *testing.T) {
	before := kernels.Active()
	t.Cleanup(func() { kernels.Use(before) })
	isas := kernels.Available()
	slices.Reverse(isas) // generic first
	for input, x := range inputs() {
		names := scaledNames("")
		if input == "normal" || input == "tiny" || input == "denormal" {
			names = slices.Concat(names, scaledNames("@f16"), scaledNames("@bf16"), scaledNames("@f32"))
		}
		for _, name := range names {
			ref := refParse(name)
			if ref.share == "token" && ref.group > x.dim {
				continue
			}
			s := mustLookup(t, name)
			var generic []*Encoded
			var values [][]float32
			for i, isa := range isas {
				if err := kernels.Use(isa); err != nil {
					t.Fatal(err)
				}
				encoded, decoded := encodeAll(t, s, x)
				if i == 0 {
					if err := checkDefinition(ref, x, encoded, decoded); err != nil {
						t.Fatalf("%s of %s: %v", name, input, err)
					}
					generic, values = encoded, decoded
					continue
				}
				for h := range encoded {
					if !bytes.Equal(encoded[h].Append(nil), generic[h].Append(nil)) || !sameBits(decoded[h], values[h]) {
						t.Fatalf("%s of %s: head %d on %s differs from generic", name, input, h, isa)
					}
				}
			}
		}
	}
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) })
}

func checkDefinition(ref refScheme, x tensor, encoded []*Encoded, decoded [][]float32) error {
	ranges := map[[3]int]refRange{}
	for h, values := range x.heads {
		for i, v := range values {
			key := ref.unit(h, i/x.dim, i%x.dim)
			u, ok := ranges[key]
			if !ok {
				u = refRange{math.Inf(1), math.Inf(-1), 0}
			}
			v := float64(v)
			ranges[key] = refRange{math.Min(u.lo, v), math.Max(u.hi, v), math.Max(u.abs, math.Abs(v))}
		}
	}
	for h, values := range x.heads {
		for i, v := range values {
			token, channel := i/x.dim, i%x.dim
			u := ranges[ref.unit(h, token, channel)]
			s := ref.scaleOf(u)
			code, want := ref.code(float64(v), s)
			got := decoded[h][i]
			at := fmt.Sprintf("head %d, token %d, channel %d: %g", h, token, channel, v)
			if float64(got) != want {
				return fmt.Errorf("%s gives %g, want %g (scale %g, offset %g, zero point %g)", at, got, want, s.scale, s.offset, s.zeroPoint)
			}
			if bound := ref.bound(float64(v), s, u.abs); math.Abs(float64(got)-float64(v)) > bound {
				return fmt.Errorf("%s gives %g: off by %g, bound %g", at, got, float64(got)-float64(v), bound)
			}
			if ref.codec[0] != 'i' || s.scale == 0 {
				continue
			}
			if stored := readCode(encoded[h].Codes, token, channel, x.dim, ref.bits); stored != code+map[bool]int{true: 0, false: 1 << (ref.bits - 1)}[ref.zero == "asym"] {
				return fmt.Errorf("%s is stored as %d, want code %d", at, stored, code)
			}
		}
	}
	return nil
}

// readCode reads bit by bit: a row starts on a byte, the least significant bit comes first.
func readCode(codes []byte, token, channel, dim, bits int) (code int) {
	row := codes[token*((dim*bits+7)/8):]
	for b := range bits {
		at := channel*bits + b
		code |= int(row[at/8]>>(at%8)&1) << b
	}
	return code
}

// TestPlain holds the float formats without scales against the reference.
func TestPlain(t *testing.T) {
	eachISA(t, func(t *testing.T) {
		for input, x := range inputs() {
			for _, name := range plainNames {
				_, decoded := encodeAll(t, mustLookup(t, name), x)
				for h, values := range x.heads {
					for i, v := range values {
						if want := roundTo(refParse(name).codec, float64(v)); float64(decoded[h][i]) != want {
							t.Fatalf("%s of %s: %g gives %g, want %g", name, input, v, decoded[h][i], want)
						}
					}
				}
			}
		}
	})
}

// TestIdempotent: encoding what was decoded changes nothing more where the
// range survives encoding, as it does when its largest magnitude has a code.
func TestIdempotent(t *testing.T) {
	x := inputs()["normal"]
	for _, name := range append([]string{"int8-token@f32", "int4-channel/32@f32", "int8-head@f32", "e4m3", "e4m3-token/32", "e5m2-channel"}, plainNames...) {
		s := mustLookup(t, name)
		_, once := encodeAll(t, s, x)
		_, twice := encodeAll(t, s, tensor{x.dim, once})
		for h := range once {
			for i, v := range once[h] {
				// scale·Q rounds, so the second scale may be one unit off the first.
				if diff := math.Abs(float64(twice[h][i] - v)); diff > 0x1p-22*math.Abs(float64(v)) {
					t.Fatalf("%s: %g becomes %g", name, v, twice[h][i])
				}
			}
		}
	}
}

// TestLargest: the largest finite values survive with scales that can hold them,
// and are refused by scales that cannot.
func TestLargest(t *testing.T) {
	x := newTensor(1, 4, 32, func(h, t, c int) float64 { return math.MaxFloat32 * float64(1-2*(c%2)) })
	for _, name := range []string{"int8-token@f32", "int8-zp-channel@bf16", "int4-token/32@bf16"} {
		if strings.Contains(name, "zp") {
			continue // max − min overflows: below
		}
		encodeAll(t, mustLookup(t, name), x)
	}
	for name, want := range map[string]string{
		"int8-token":            `scheme int8-token: head 0, token 0: its scale 2.679`,
		"int4-token/16":         `scheme int4-token/16: head 0, token 0, channels 0 to 15: its scale 4.86`,
		"int4-channel/2":        `scheme int4-channel/2: head 0, channel 0, tokens 0 to 1: its scale 4.86`,
		"int8-asym-channel":     `scheme int8-asym-channel: head 0, channel 0: its offset 3.4028`,
		"int8-asym-token@f32":   `scheme int8-asym-token@f32: head 0, token 0: its scale +Inf does not fit f32`,
		"int8-head":             `scheme int8-head: head 0, the whole head: its scale`,
		"f16":                   `scheme f16: head 0, token 0, channel 0 is 3.4028`,
		"int8-channel+recent2":  `scheme int8-channel+recent2: head 0, token 2, channel 0 is 3.4028`,
		"int8-token@f32+center": "",
	} {
		s := mustLookup(t, name)
		err := s.NewCoder().Encode(new(Encoded), x.head(0), nil)
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s…", name, err, want)
		}
		var r *RangeError
		if errors.As(err, &r) && s.Meta != MetaF32 && !strings.Contains(r.Hint, "@f32") {
			t.Errorf("%s: hint %q does not suggest @f32", name, r.Hint)
		}
	}
}

// TestValueErrors: the first value that cannot be stored is named.
func TestValueErrors(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e5} {
		x := newTensor(1, 10, 32, func(h, t, c int) float64 { return 1 })
		x.heads[0][7*32+3] = bad
		err := mustLookup(t, "f16").NewCoder().Encode(new(Encoded), Head{Index: 5, Dim: 32, Values: x.heads[0]}, nil)
		var e *ValueError
		if !errors.As(err, &e) || e.Head != 5 || e.Token != 7 || e.Channel != 3 {
			t.Errorf("%g: %v", bad, err)
		}
	}
	// What is not finite is named wherever it stands, also behind a scale that overflows.
	for _, name := range []string{"f16", "bf16", "f32", "int8-token", "int4-token/16", "int8-channel", "int8-channel/32", "int4-asym-token", "int8-zp-channel/32", "int8-head", "e4m3-head", "e5m2-token", "int6-token"} {
		for i, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), float32(math.Inf(1))} {
			x := newTensor(1, 1500, 32, func(h, t, c int) float64 { return math.Sin(float64(t*c + 1)) })
			at := []int{5, 32*600 + 31, len(x.heads[0]) - 1}[i]
			x.heads[0][at] = bad
			if at > 32 && name != "f32" {
				x.heads[0][7] = 3e38
			}
			err := mustLookup(t, name).NewCoder().Encode(new(Encoded), Head{Index: 2, Dim: 32, Values: x.heads[0]}, nil)
			var e *ValueError
			if !errors.As(err, &e) || e.Head != 2 || e.Token != at/32 || e.Channel != at%32 || e.Reason != onlyFinite {
				t.Errorf("%s, %g: %v", name, bad, err)
			}
		}
	}
	// 65519.99 rounds to 65504 and is held.
	x := newTensor(1, 1, 1, func(h, t, c int) float64 { return 65519.99 })
	if _, decoded := encodeAll(t, mustLookup(t, "f16"), x); decoded[0][0] != 65504 {
		t.Errorf("65519.99 gives %g", decoded[0][0])
	}
}

// TestSize asserts sizes counted by hand.
func TestSize(t *testing.T) {
	for _, c := range []struct {
		name           string
		shape          Shape
		data, metadata int64
	}{
		{"f16", Shape{8, 32768, 128}, 8 * 32768 * 256, 0},
		{"int8-token", Shape{8, 32768, 128}, 8 * 32768 * 128, 8 * 32768 * 2},
		{"int8-token@f32", Shape{8, 32768, 128}, 8 * 32768 * 128, 8 * 32768 * 4},
		{"int8-channel", Shape{8, 32768, 128}, 8 * 32768 * 128, 8 * 128 * 2},
		{"int4-asym-channel/32", Shape{2, 33, 10}, 2 * 33 * 5, 2 * 2 * 10 * 4},
		{"int3-token/4", Shape{1, 2, 10}, 2 * 4, 2 * 3 * 2},
		{"int5-zp-head", Shape{3, 7, 9}, 3 * 7 * 6, 3 * 3},
		{"int2-zp-tensor@f32", Shape{3, 7, 9}, 3 * 7 * 3, 5},
		{"e4m3", Shape{3, 7, 9}, 3 * 7 * 9, 4},
		{"e4m3-raw", Shape{3, 7, 9}, 3 * 7 * 9, 0},
		// KIVI: keys leave the window 128 tokens at a time, values keep the last 128.
		{"int2-asym-channel/32+recent128", Shape{1, 1000, 128}, 896*32 + 104*256, 28 * 128 * 4},
		{"int2-asym-channel/32+recent128", Shape{1, 1024, 128}, 1024 * 32, 32 * 128 * 4},
		{"int2-asym-token/32+recent128", Shape{1, 1024, 128}, 896*32 + 128*256, 896 * 4 * 4},
		{"int2-asym-channel/32+recent128", Shape{1, 100, 128}, 100 * 256, 0},
		{"int8-token+sink4+recent8", Shape{2, 10, 16}, 2 * 10 * 32, 0},
		{"int8-channel+sink4+recent2", Shape{2, 10, 16}, 2 * (6*32 + 4*16), 2 * 16 * 2},
		{"int4-token+center", Shape{2, 10, 16}, 2 * 10 * 8, 2*10*2 + 2*16*4},
		{"int4-token+hadamard", Shape{2, 10, 16}, 2 * 10 * 8, 2 * 10 * 2},
	} {
		got, err := mustLookup(t, c.name).Size(c.shape)
		if want := (Size{c.data, c.metadata}); err != nil || got != want {
			t.Errorf("%s %v: %+v, %v, want %+v", c.name, c.shape, got, err, want)
		}
	}
}

func TestSizeOverflow(t *testing.T) {
	s := mustLookup(t, "int8-token")
	if _, err := s.Size(Shape{1 << 30, 1 << 40, 128}); err == nil {
		t.Error("2^77 bytes are no error")
	}
	if size, err := s.Size(Shape{1 << 20, 1 << 30, 128}); err != nil || size.Total() != 130<<50 {
		t.Errorf("%+v, %v", size, err)
	}
}

// TestSizeOfEncoded compares Size with the bytes produced, for many shapes.
func TestSizeOfEncoded(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	names := slices.Concat(scaledNames(""), scaledNames("@f32"), plainNames)
	for _, suffix := range []string{"+center", "+hadamard", "+sink3", "+recent14", "+center+hadamard+sink5+recent7"} {
		names = append(names, "int4-asym-channel/7"+suffix, "int3-token"+suffix, "e4m3"+suffix, "f16"+suffix)
	}
	for _, name := range names {
		s := mustLookup(t, name)
		for range 6 {
			dim := 1 + r.IntN(70)
			if s.CheckDim(dim) != nil {
				continue
			}
			x := newTensor(1+r.IntN(3), r.IntN(80), dim, func(h, t, c int) float64 { return r.NormFloat64() })
			encodeAll(t, s, x)
		}
	}
}

// TestHonestBits: scales count, and so do windows; KIVI keeps S mod 128 keys in f16 but
// always 128 values.
func TestHonestBits(t *testing.T) {
	for _, c := range []struct {
		name string
		dim  int
		want float64
	}{
		{"int8-token", 128, 8.125}, {"int8-token@f32", 128, 8.25}, {"int8-channel", 128, 8},
		{"int2-asym-channel/32+recent128", 128, 3}, {"int4-asym-token/32", 128, 5}, {"f16", 64, 16},
		{"int4-token/64", 80, 4.4}, {"e4m3", 64, 8}, {"q8_0", 128, 8.5}, {"nvfp4", 128, 4.5},
		{"pth-int8", 128, 8.25}, {"pth-int4", 128, 4.25}, {"quanto4", 128, 4.5}, {"mid8", 128, 8.5},
	} {
		s := mustLookup(t, c.name)
		if got, err := s.AsymptoticBits(c.dim); err != nil || got != c.want {
			t.Errorf("%s at %d: %g, %v, want %g", c.name, c.dim, got, err, c.want)
		}
	}
	for name, want := range map[string]float64{"q8_0": 8.5, "nvfp4": 4.5, "int8-token": 8.125, "int8-token@f32": 8.25} {
		for _, tokens := range []int{1, 1000, 131072} { // without windows they are the same at any length
			if got, err := mustLookup(t, name).Bits(Shape{8, tokens, 128}); err != nil || got != want {
				t.Errorf("%s at %d tokens: %g, %v, want %g", name, tokens, got, err, want)
			}
		}
	}
	kivi, err := ParsePair("kivi2")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tokens     int
		k, v, both float64
	}{{1024, 3, 4.625, 3.81}, {1000, (896*3 + 104*16) / 1000., (872*3 + 128*16) / 1000., 4.51}} {
		shape := Shape{8, c.tokens, 128}
		k, errK := kivi.K.Bits(shape)
		v, errV := kivi.V.Bits(shape)
		if errK != nil || errV != nil || math.Abs(k-c.k) > 1e-12 || math.Abs(v-c.v) > 1e-12 || math.Abs((k+v)/2-c.both) > 0.005 {
			t.Errorf("KIVI-2 at %d tokens: %g and %g, want %g and %g; %v, %v", c.tokens, k, v, c.k, c.v, errK, errV)
		}
	}
}

func TestOnline(t *testing.T) {
	for name, want := range map[string]bool{
		"f16": true, "e4m3-raw": true, "e4m3": false, "int8-token": true, "int4-asym-token/32": true,
		"int8-head": false, "int8-channel": false, "int8-channel+recent128": false, "int4-channel/32": false,
		"int4-asym-channel/32+recent128": true, "int4-token+center": false, "int4-token+hadamard": true,
	} {
		if got := mustLookup(t, name).Online(); got != want {
			t.Errorf("%s: online %v", name, got)
		}
	}
}
