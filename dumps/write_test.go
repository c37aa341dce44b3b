package dumps

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// layerContents returns a layer whose elements are value(part, head, row, channel).
func layerContents(prefix string, d DType, kv, q, tokens, queries, dk, dv int) []Content {
	one := func(p Part, name string, heads, rows, dim int) Content {
		return Content{Name: prefix + name, DType: d, Shape: []int{heads, rows, dim}, Values: func(e *Encoder) error {
			for h := range heads {
				for r := range rows {
					row := make([]float32, dim)
					for c := range row {
						row[c] = float32(value(int(p), h, r, c))
					}
					if err := e.Write(row); err != nil {
						return err
					}
				}
			}
			return nil
		}}
	}
	return []Content{one(K, "k", kv, tokens, dk), one(V, "v", kv, tokens, dv), one(Q, "q", q, queries, dk),
		{Name: prefix + "q_positions", Ints: []int{0, 3}[:queries]}}
}

func TestWriteAndReadBack(t *testing.T) {
	scale, window, yes := 0.25, 3, true
	facts := &FactFile{Model: "m", Source: "s", RoPEApplied: &yes, Defaults: FactSet{Scale: &scale},
		Layers: map[int]FactSet{7: {Window: &window, RoPE: &RoPE{Theta: 1e4, Style: "half", Scaling: map[string]any{"rope_type": "yarn"}}}}}
	arrays := layerContents("layers.7.", F16, 2, 4, 5, 2, 6, 4)
	for name, write := range map[string]func(*bytes.Buffer) error{
		"x.safetensors": func(b *bytes.Buffer) error { return WriteSafetensors(b, facts, arrays) },
		"x.npz":         func(b *bytes.Buffer) error { return WriteNPZ(b, facts, arrays) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		f := mustOpen(t, path, Options{})
		if len(f.Warnings) > 0 {
			t.Errorf("%s: %q", name, f.Warnings)
		}
		l := f.Layers[0]
		for _, p := range []Part{K, V, Q} {
			checkValues(t, l, p)
		}
		fc := l.Facts
		if l.Number != 7 || fc.Scale != 0.25 || fc.Window != 3 || fc.RoPE.Theta != 1e4 || fc.RoPE.Scaling["rope_type"] != "yarn" || fc.Model != "m" || !*fc.RoPEApplied {
			t.Errorf("%s: %+v", name, l)
		}
		if !slices.Equal(l.QPositions, []int{0, 3}) {
			t.Errorf("%s: positions %v", name, l.QPositions)
		}
	}
}

// The header of the sample was written by NumPy.
func TestWriteNPYBytes(t *testing.T) {
	sample, err := os.ReadFile("testdata/layer12.npy")
	if err != nil {
		t.Fatal(err)
	}
	if got := npyPreamble("<f2", []int{2, 3, 2048, 64}); !bytes.Equal(got, sample[:128]) {
		t.Errorf("header %q, want %q", got, sample[:128])
	}
	var b bytes.Buffer
	err = WriteNPY(&b, Content{DType: F16, Shape: []int{2, 1, 1, 2}, Values: func(e *Encoder) error {
		return e.Write([]float32{0, 1, -2, 65504})
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String()[128:]; got != "\x00\x00\x00\x3c\x00\xc0\xff\x7b" {
		t.Errorf("data %q", got)
	}
	err = WriteNPY(&b, Content{DType: F16, Shape: []int{3}, Values: func(e *Encoder) error { return e.Write(make([]float32, 2)) }})
	if err == nil {
		t.Error("too few elements: no error")
	}
}

// Every pattern of f16 against the definition by sign, exponent and mantissa,
// with Ldexp and exact float64 arithmetic.
func TestF16(t *testing.T) {
	var all []byte
	for i := range 1 << 16 {
		all = binary.LittleEndian.AppendUint16(all, uint16(i))
	}
	inGroups := make([]float32, 1<<16)
	decodeF16(inGroups, all)
	dst := make([]float32, 1)
	for i := range 1 << 16 {
		decodeF16(dst, all[2*i:2*i+2])
		if math.Float32bits(dst[0]) != math.Float32bits(inGroups[i]) {
			t.Fatalf("%#04x: alone %v, in a group %v", i, dst[0], inGroups[i])
		}
		sign, e, m := 1.0, i>>10&31, float64(i&1023)
		if i >= 1<<15 {
			sign = -1
		}
		want := sign * (1 + m/1024) * math.Pow(2, float64(e-15))
		switch {
		case e == 0:
			want = sign * m / (1 << 24)
		case e == 31 && m == 0:
			want = math.Inf(int(sign))
		case e == 31:
			want = math.NaN()
		}
		got := float64(dst[0])
		if got != want && !(math.IsNaN(got) && math.IsNaN(want)) || math.Signbit(got) != (sign < 0) && !math.IsNaN(want) {
			t.Fatalf("%#04x: %v, want %v", i, got, want)
		}
		if math.IsNaN(want) {
			continue
		}
		if back := toF16(dst[0]); back != uint16(i) {
			t.Fatalf("%v became %#04x, want %#04x", got, back, i)
		}
		// Half-way to the next pattern goes to the even one, a bit off it to the nearer.
		if e < 30 {
			next := make([]float32, 1)
			decodeF16(next, []byte{byte(i + 1), byte((i + 1) >> 8)})
			middle := float32((got + float64(next[0])) / 2)
			even := uint16(i + i&1)
			near, far := math.Nextafter32(middle, dst[0]), math.Nextafter32(middle, next[0])
			if toF16(middle) != even || toF16(near) != uint16(i) || toF16(far) != uint16(i+1) {
				t.Fatalf("around %v: %#04x %#04x %#04x", middle, toF16(near), toF16(middle), toF16(far))
			}
		}
	}
	for v, want := range map[float32]uint16{65504: 0x7bff, 65519: 0x7bff, 65520: 0x7c00, -1e30: 0xfc00, 1e-30: 0, float32(math.Inf(1)): 0x7c00} {
		if got := toF16(v); got != want {
			t.Errorf("%v: %#04x, want %#04x", v, got, want)
		}
	}
}

// The values that the OCP 8-bit floating-point specification tabulates.
func TestFP8(t *testing.T) {
	for _, c := range []struct {
		d    DType
		bits byte
		want float64
	}{
		{E4M3, 0x00, 0}, {E4M3, 0x01, 0x1p-9}, {E4M3, 0x07, 7 * 0x1p-9}, {E4M3, 0x08, 0x1p-6}, {E4M3, 0x38, 1}, {E4M3, 0x77, 240},
		{E4M3, 0x78, 256}, {E4M3, 0x7e, 448}, {E4M3, 0xfe, -448}, {E4M3, 0x7f, math.NaN()}, {E4M3, 0xff, math.NaN()},
		{E5M2, 0x01, 0x1p-16}, {E5M2, 0x03, 3 * 0x1p-16}, {E5M2, 0x04, 0x1p-14}, {E5M2, 0x3c, 1}, {E5M2, 0x7b, 57344},
		{E5M2, 0xfb, -57344}, {E5M2, 0x7c, math.Inf(1)}, {E5M2, 0xfc, math.Inf(-1)}, {E5M2, 0x7d, math.NaN()}, {E5M2, 0xff, math.NaN()},
	} {
		dst := make([]float32, 1)
		c.d.decoder()(dst, []byte{c.bits})
		if got := float64(dst[0]); got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s %#02x: %v, want %v", c.d, c.bits, got, c.want)
		}
	}
	// Both types order their finite patterns by value.
	for _, d := range []DType{E4M3, E5M2} {
		dst := make([]float32, 2)
		for i := range byte(0x7b) {
			if d.decoder()(dst, []byte{i, i + 1}); !(dst[0] < dst[1]) {
				t.Errorf("%s: %#02x is %v, the next %v", d, i, dst[0], dst[1])
			}
		}
	}
}

func TestBF16(t *testing.T) {
	for v, want := range map[float32]uint16{1: 0x3f80, -2: 0xc000, 1 + 0x1p-8: 0x3f80, 1 + 3*0x1p-8: 0x3f82, 1 + 0x1p-8 + 0x1p-20: 0x3f81, math.MaxFloat32: 0x7f80} {
		if got := toBF16(v); got != want {
			t.Errorf("%v: %#04x, want %#04x", v, got, want)
		}
	}
	if toBF16(float32(math.NaN()))&0x7f80 != 0x7f80 || toBF16(float32(math.NaN()))&0x7f == 0 {
		t.Error("NaN")
	}
	dst := make([]float32, 5)
	decodeBF16(dst, []byte{0x80, 0x3f, 0, 0xc0, 0, 0, 0x80, 0x7f, 1, 0})
	if dst[0] != 1 || dst[1] != -2 || dst[2] != 0 || !math.IsInf(float64(dst[3]), 1) || dst[4] != 0x1p-133 {
		t.Error(dst)
	}
}

func TestIndexNonFinite(t *testing.T) {
	for n := range 12 {
		x := make([]float32, n)
		if got := indexNonFinite(x); got != -1 {
			t.Errorf("%d zeros: %d", n, got)
		}
		for i := range x {
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				x[i] = float32(bad)
				if got := indexNonFinite(x); got != i {
					t.Errorf("%v at %d of %d: %d", bad, i, n, got)
				}
			}
			x[i] = math.MaxFloat32
		}
	}
}
