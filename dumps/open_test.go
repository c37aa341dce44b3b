package dumps

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestSampleDumps(t *testing.T) {
	for _, c := range []struct {
		path                                   string
		numbers                                []int
		kv, q, tokens, queries, dim            int
		scale                                  float64
		window                                 int
		firstPosition, secondPosition, lastPos int
		dumpName                               string
	}{
		{"layer12.npy", []int{12}, 3, 9, 2048, 64, 64, 0.125, 0, 31, 63, 2047, "layer12.npy"},
		{"smollm2-prose.safetensors", []int{0, 12, 18, 29}, 3, 9, 4096, 256, 64, 0.125, 0, 15, 31, 4095, "smollm2-prose.safetensors"},
		{"smollm2-layer18-allq.npz", []int{18}, 3, 9, 1000, 1000, 64, 0.125, 0, 0, 1, 999, "smollm2-layer18-allq.npz"},
		{"gemma3-prose.safetensors", []int{5, 6}, 1, 4, 4096, 256, 256, 0.0625, 512, 15, 31, 4095, "gemma3-prose.safetensors"},
	} {
		f := mustOpen(t, filepath.Join("testdata", c.path), Options{})
		var numbers []int
		for _, l := range f.Layers {
			numbers = append(numbers, l.Number)
		}
		if !slices.Equal(numbers, c.numbers) {
			t.Errorf("%s: layers %v, want %v", c.path, numbers, c.numbers)
		}
		l := f.Layers[len(f.Layers)-1]
		if l.KVHeads != c.kv || l.QueryHeads != c.q || l.Tokens != c.tokens || l.Queries != c.queries || l.HeadDimK != c.dim || l.HeadDimV != c.dim || l.DType != F16 {
			t.Errorf("%s: %+v", c.path, l)
		}
		if l.Facts.Scale != c.scale || l.Facts.Window != c.window || !l.Facts.Causal {
			t.Errorf("%s: facts %+v", c.path, l.Facts)
		}
		p := l.QPositions
		if p[0] != c.firstPosition || p[1] != c.secondPosition || p[len(p)-1] != c.lastPos {
			t.Errorf("%s: positions %v", c.path, p)
		}
		for _, p := range []Part{K, V, Q} {
			readHead(t, l, p, l.Tensor(p).Heads-1) // finite throughout
		}
		if l.Name != c.dumpName {
			t.Errorf("name %q", l.Name)
		}
	}
}

// The same layer lies in two of the sample files: 2,048 of the 4,096 tokens as
// npy, all of them as safetensors, in float16 both.
func TestSampleFormatsAgree(t *testing.T) {
	a := mustOpen(t, "testdata/layer12.npy", Options{}).Layers[0]
	b := mustOpen(t, "testdata/smollm2-prose.safetensors", Options{}).Layers[1]
	for _, p := range []Part{K, V} {
		for h := range 3 {
			x, y := readHead(t, a, p, h), readHead(t, b, p, h)
			if !slices.Equal(x, y[:len(x)]) {
				t.Errorf("%s head %d differs", p, h)
			}
		}
	}
}

func TestNPY(t *testing.T) {
	const heads, tokens, dim = 3, 5, 4
	for _, version := range []byte{1, 2, 3} {
		for _, descr := range []string{"<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "<V2", "<u2", ">u2"} {
			for _, fortran := range []bool{false, true} {
				for _, layout := range []Layout{HSD, SHD} {
					for n := 2; n <= 3; n++ {
						shape := []int{n, heads, tokens, dim}
						if layout == SHD {
							shape = []int{n, tokens, heads, dim}
						}
						data := fill(descr, fortran, shape, func(i []int) float64 {
							if layout == SHD {
								return bfExact(descr, value(i[0], i[2], i[1], i[3]))
							}
							return bfExact(descr, value(i[0], i[1], i[2], i[3]))
						})
						dir := write(t, "layer7.npy", npyFile(version, descr, pyBool(fortran), pyShape(shape), data))
						name := fmt.Sprintf("v%d %s fortran=%v %s [%d]", version, descr, fortran, layout, n)
						o := Options{Layout: layout}
						if descr[1] == 'V' || descr[1] == 'u' {
							o.DType = BF16
						}
						f, err := Open(filepath.Join(dir, "layer7.npy"), o)
						if err != nil {
							t.Fatalf("%s: %v", name, err)
						}
						l := f.Layers[0]
						if l.KVHeads != heads || l.Tokens != tokens || l.HeadDimK != dim || l.Number != 7 || l.QueryHeads != (n-2)*heads {
							t.Fatalf("%s: %+v", name, l)
						}
						for p := range n {
							for h := range heads {
								for i, v := range readHead(t, l, Part(p), h) {
									if want := bfExact(descr, value(p, h, i/dim, i%dim)); float64(v) != want {
										t.Fatalf("%s: %s head %d element %d: %v, want %v", name, Part(p), h, i, v, want)
									}
								}
							}
						}
						if err := f.Close(); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	}
}

// bfExact cuts a value down to the 8 significant bits of bfloat16 where the
// type is that.
func bfExact(descr string, v float64) float64 {
	if descr[1] == 'V' || descr[1] == 'u' {
		return float64(math.Float32frombits(math.Float32bits(float32(v)) &^ 0xffff))
	}
	return v
}

// Blocks of rows, batches and page releases must join without a seam.
func TestLargeStrided(t *testing.T) {
	const heads, tokens, dim = 2, 70_000, 16
	at := func(h, i, c int) float64 { return float64((h*31 + i*7 + c) % 2048) }
	for _, c := range []struct {
		name    string
		descr   string
		fortran bool
		layout  Layout
	}{{"contiguous", "<f4", false, HSD}, {"shd", "<f4", false, SHD}, {"fortran", "<f2", true, HSD}, {"big", ">f2", false, SHD}} {
		shape := []int{2, heads, tokens, dim}
		if c.layout == SHD {
			shape = []int{2, tokens, heads, dim}
		}
		data := fill(c.descr, c.fortran, shape, func(i []int) float64 {
			if c.layout == SHD {
				return at(i[0]*heads+i[2], i[1], i[3])
			}
			return at(i[0]*heads+i[1], i[2], i[3])
		})
		dir := write(t, "x.npy", npyFile(1, c.descr, pyBool(c.fortran), pyShape(shape), data))
		l := mustOpen(t, filepath.Join(dir, "x.npy"), Options{Layout: c.layout}).Layers[0]
		for p := range 2 {
			for h := range heads {
				for i, v := range readHead(t, l, Part(p), h) {
					if want := at(p*heads+h, i/dim, i%dim); float64(v) != want {
						t.Fatalf("%s: part %d head %d element %d: %v, want %v", c.name, p, h, i, v, want)
					}
				}
			}
		}
		part := make([]float32, 1000*dim)
		if err := l.ReadRows(part, V, 1, 40_000, 41_000); err != nil {
			t.Fatal(err)
		}
		for i, v := range part {
			if want := at(3, 40_000+i/dim, i%dim); float64(v) != want {
				t.Fatalf("%s: rows from 40000, element %d: %v, want %v", c.name, i, v, want)
			}
		}
	}
}

// roleArray returns an npy file of tensor p in f4.
func roleArray(p Part, shape ...int) []byte {
	n := len(shape)
	return npyFile(1, "<f4", "False", pyShape(shape), fill("<f4", false, shape, func(i []int) float64 {
		return value(int(p), i[n-3], i[n-2], i[n-1])
	}))
}

func ints(descr string, v ...int) []byte {
	return npyFile(1, descr, "False", pyShape([]int{len(v)}), fill(descr, false, []int{len(v)}, func(i []int) float64 { return float64(v[i[0]]) }))
}

// unicode returns a 0-d numpy string array.
func unicode(s string) []byte {
	var b []byte
	for _, r := range s {
		b = binary.LittleEndian.AppendUint32(b, uint32(r))
	}
	return npyFile(1, fmt.Sprintf("<U%d", len([]rune(s))), "False", "()", b)
}

func TestNPZ(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	facts := `{"schema":"kvq.dump/1","model":"Größe","defaults":{"causal":false,"scale":0.5}}`
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		for _, names := range [][3]string{{"k", "v", "q"}, {"Key", "VALUE", "query"}, {"layers.3.k", "layers.3.v", "layers.3.q"}} {
			members := []member{
				{names[2] + ".npy", roleArray(Q, 1, 4, 2, 6)},
				{names[0] + ".npy", roleArray(K, 2, 5, 6)},
				{"note.npy", ints("<i8", 1)},
				{names[1] + ".npy", roleArray(V, 2, 5, 3)},
				{"kvq.npy", unicode(facts)},
			}
			positions := []int{3, 4} // the last rows
			if names[0] == "k" {
				positions = []int{1, 4}
				members = append(members, member{"q_positions.npy", ints("<i8", positions...)})
			}
			dir := write(t, "layer_3.npz", npzFile(t, method, members...))
			f := mustOpen(t, filepath.Join(dir, "layer_3.npz"), Options{})
			l := f.Layers[0]
			if l.Number != 3 || l.KVHeads != 2 || l.QueryHeads != 4 || l.Queries != 2 || l.HeadDimK != 6 || l.HeadDimV != 3 {
				t.Fatalf("%+v", l)
			}
			for _, p := range []Part{K, V, Q} {
				checkValues(t, l, p)
			}
			if !slices.Equal(l.QPositions, positions) {
				t.Errorf("positions %v, want %v", l.QPositions, positions)
			}
			if l.Facts.Causal || l.Facts.Scale != 0.5 || l.Facts.Model != "Größe" {
				t.Errorf("facts %+v", l.Facts)
			}
			if !contains(f.Warnings, `ignored "note"`) {
				t.Errorf("warnings %q", f.Warnings)
			}
			if l.Tensor(K).Deflated != (method == zip.Deflate) {
				t.Error("deflated", l.Tensor(K).Deflated)
			}
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("temporary files left: %v, %v", left, err)
	}
}

func TestSafetensors(t *testing.T) {
	f32 := func(p Part, shape ...int) []byte {
		return fill("<f4", false, shape, func(i []int) float64 { return value(int(p), i[0], i[1], i[2]) })
	}
	k, v, q := f32(K, 1, 2, 3), f32(V, 1, 2, 3), f32(Q, 2, 1, 3)
	bf := []byte{0x80, 0x3f, 0x00, 0xc0} // 1, −2
	e4 := []byte{0x38, 0xc0}             // 1, −2 in e4m3
	e5 := []byte{0x3c, 0xc0}             // 1, −2 in e5m2
	data := slices.Concat(k, v, q, bf, bf, e4, e5)
	header := `{"__metadata__":{"format":"pt","kvq":"{\"schema\":\"kvq.dump/1\",\"layers\":{\"10\":{\"window\":7}}}"},
"m.layers.10.k":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]},
"m.layers.10.v":{"dtype":"F32","shape":[1,2,3],"data_offsets":[24,48]},
"m.layers.10.q":{"dtype":"F32","shape":[2,1,3],"data_offsets":[48,72]},
"m.layers.2.k":{"dtype":"BF16","shape":[1,2,1],"data_offsets":[72,76]},
"m.layers.2.v":{"dtype":"BF16","shape":[1,2,1],"data_offsets":[76,80]},
"m.layers.3.key":{"dtype":"F8_E4M3","shape":[1,2,1],"data_offsets":[80,82]},
"m.layers.3.value":{"dtype":"F8_E5M2","shape":[1,2,1],"data_offsets":[82,84]}}`
	dir := write(t, "x.safetensors", safetensorsFile(header, data))
	f := mustOpen(t, filepath.Join(dir, "x.safetensors"), Options{})
	if len(f.Layers) != 3 || len(f.Warnings) != 0 {
		t.Fatalf("%d layers, warnings %q", len(f.Layers), f.Warnings)
	}
	for i, n := range []int{2, 3, 10} {
		l := f.Layers[i]
		if l.Number != n {
			t.Errorf("layer %d, want %d", l.Number, n)
		}
		if n == 10 {
			if l.Facts.Window != 7 || !slices.Equal(l.QPositions, []int{1}) {
				t.Errorf("facts %+v, positions %v", l.Facts, l.QPositions)
			}
			for _, p := range []Part{K, V, Q} {
				checkValues(t, l, p)
			}
			continue
		}
		for _, p := range []Part{K, V} {
			if got := readHead(t, l, p, 0); !slices.Equal(got, []float32{1, -2}) {
				t.Errorf("layer %d %s: %v", n, p, got)
			}
		}
	}
}

// numpy has no names for 8-bit floats: --dtype says what they are.
func TestOpenTypes(t *testing.T) {
	for _, descr := range []string{"|u1", "|V1", "<f1"} {
		path := filepath.Join(write(t, "x.npy", npyFile(1, descr, "False", "(2, 1, 2, 1)", []byte{0x38, 0x7e, 0xb8, 0x01})), "x.npy")
		for d, want := range map[DType][4]float32{E4M3: {1, 448, -1, 0x1p-9}, E5M2: {0.5, float32(math.NaN()), -0.5, 0x1p-16}} {
			l := mustOpen(t, path, Options{DType: d}).Layers[0]
			if l.DType != d {
				t.Errorf("%s: %s", descr, l.DType)
			}
			got := make([]float32, 2)
			if err := l.ReadHead(got, V, 0); err != nil || got[0] != want[2] || got[1] != want[3] {
				t.Errorf("%s as %s: v %v, %v", descr, d, got, err)
			}
			err := l.ReadHead(got, K, 0)
			if d == E5M2 { // 0x7e is a NaN there
				if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "token 1, channel 0 is NaN") {
					t.Errorf("%s as %s: %v", descr, d, err)
				}
			} else if err != nil || got[0] != want[0] || got[1] != want[1] {
				t.Errorf("%s as %s: k %v, %v", descr, d, got, err)
			}
		}
		var fe *FormatError
		if _, err := Open(path, Options{}); !errors.As(err, &fe) || !strings.Contains(fe.Hint(), "--dtype e4m3") {
			t.Errorf("%s without a type: %v", descr, err)
		}
		if _, err := Open(path, Options{DType: BF16}); !errors.Is(err, ErrFormat) {
			t.Errorf("%s as bf16: %v", descr, err)
		}
	}
}

func TestNamePatterns(t *testing.T) {
	row := func(p Part) []byte {
		return fill("<f4", false, []int{1, 2, 1}, func(i []int) float64 { return value(int(p), 0, i[1], 0) })
	}
	header := `{"key_cache.4":{"dtype":"F32","shape":[1,2,1],"data_offsets":[0,8]},
"value_cache.4":{"dtype":"F32","shape":[1,2,1],"data_offsets":[8,16]},"layers.4.q":{"dtype":"F32","shape":[1,2,1],"data_offsets":[16,24]}}`
	path := filepath.Join(write(t, "x.safetensors", safetensorsFile(header, slices.Concat(row(K), row(V), row(Q)))), "x.safetensors")
	_, err := Open(path, Options{})
	if !errors.Is(err, errNoLayer) || !strings.Contains(err.Error(), `"key_cache.4"`) {
		t.Errorf("without names: %v", err)
	}
	l := mustOpen(t, path, Options{NameK: "key_cache.{layer}", NameV: "value_cache.{layer}"}).Layers[0]
	if l.Number != 4 || l.QueryHeads != 1 {
		t.Errorf("%+v", l)
	}
	for _, p := range []Part{K, V, Q} {
		checkValues(t, l, p)
	}
	var oe *OptionError
	if _, err := Open(path, Options{NameK: "{layer}{layer}"}); !errors.As(err, &oe) {
		t.Errorf("two holes: %v", err)
	}
}

func TestSeparateFiles(t *testing.T) {
	dir := write(t, "layer9.k.npy", roleArray(K, 2, 3, 4), "layer9.v.npy", roleArray(V, 2, 3, 2), "layer9.q.npy", roleArray(Q, 4, 3, 4),
		"layer9.q_positions.npy", ints("<i4", 0, 1, 2))
	at := func(s string) string { return filepath.Join(dir, "layer9."+s+".npy") }
	f, err := OpenParts(at("k"), at("v"), at("q"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, l := range []*Layer{f.Layers[0], mustOpen(t, dir, Options{}).Layers[0], mustOpen(t, filepath.Join(dir, "*.npy"), Options{}).Layers[0]} {
		if l.Number != 9 || l.Queries != 3 || l.HeadDimV != 2 {
			t.Fatalf("%+v", l)
		}
		for _, p := range []Part{K, V, Q} {
			checkValues(t, l, p)
		}
	}
}

func TestDirectory(t *testing.T) {
	two := func(heads, tokens, dim int) []byte {
		return npyFile(1, "<f4", "False", pyShape([]int{2, heads, tokens, dim}), make([]byte, 4*2*heads*tokens*dim))
	}
	dir := write(t, "layer10.npy", two(2, 5, 8), "layer2.npy", two(1, 3, 4), "layer2.q.npy", roleArray(Q, 2, 1, 4), "notes.txt", "hello",
		"z.npz", npzFile(t, zip.Store, member{"k.npy", roleArray(K, 1, 2, 3)}, member{"v.npy", roleArray(V, 1, 2, 3)}),
		"weights.safetensors", safetensorsFile(`{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)),
		"kvq.json", `{"schema":"kvq.dump/1","defaults":{"scale":0.25},"layers":{"10":{"scale":0.75}}}`,
		"layer2.kvq.json", `{"schema":"kvq.dump/1","defaults":{"window":2}}`)
	f := mustOpen(t, dir, Options{})
	if len(f.Layers) != 3 {
		t.Fatalf("%d layers", len(f.Layers))
	}
	for i, want := range []struct {
		number, dim int
		scale       float64
		window      int
	}{{2, 4, 0.25, 2}, {2, 3, 0.25, 0}, {10, 8, 0.75, 0}} {
		l := f.Layers[i]
		if l.Number != want.number || l.HeadDimK != want.dim || l.Facts.Scale != want.scale || l.Facts.Window != want.window {
			t.Errorf("layer %d: %+v", i, l)
		}
	}
	if f.Layers[0].Queries != 1 || !slices.Equal(f.Layers[0].QPositions, []int{2}) {
		t.Errorf("q %+v", f.Layers[0])
	}
	if !contains(f.Warnings, "weights.safetensors") {
		t.Errorf("warnings %q", f.Warnings)
	}
	// The facts of the directory hold for one of its files too.
	if l := mustOpen(t, filepath.Join(dir, "layer10.npy"), Options{}).Layers[0]; l.Facts.Scale != 0.75 {
		t.Errorf("scale %v", l.Facts.Scale)
	}
	if f := mustOpen(t, filepath.Join(dir, "layer?.npy"), Options{}); len(f.Layers) != 1 || f.Layers[0].Number != 2 {
		t.Errorf("glob: %+v", f.Layers)
	}
}

// What a directory names as a dump and cannot be opened is never passed over.
func TestUnopenableEntries(t *testing.T) {
	two := npyFile(1, "<f4", "False", "(2, 1, 2, 3)", make([]byte, 48))
	for name, target := range map[string]string{
		"layer1.npy": "gone.npy", "layer2.safetensors": "layer2.safetensors", "layer0.q.npy": "gone", // the second a loop
		"kvq.json": "gone.json", "layer0.kvq.json": "gone.json",
	} {
		dir := write(t, "layer0.npy", two)
		entry := filepath.Join(dir, name)
		if err := os.Symlink(target, entry); err != nil {
			t.Skip("no links here: ", err)
		}
		paths := []string{dir, filepath.Join(dir, "*.*"), entry}
		if name == "kvq.json" || strings.HasPrefix(name, "layer0.") {
			paths = []string{dir, filepath.Join(dir, "layer0.npy")}
		}
		for _, path := range paths {
			f, err := Open(path, Options{})
			if err == nil {
				f.Close()
			}
			if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), entry+": a link that leads nowhere") {
				t.Errorf("%s with the link %s: %v", path, name, err)
			}
		}
	}
	dir := write(t, "layer0.npy", two)
	folder := filepath.Join(dir, "layer1.safetensors")
	if err := os.Mkdir(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if f := mustOpen(t, dir, Options{}); len(f.Layers) != 1 || !slices.Contains(f.Warnings, folder+": not a regular file: skipped") {
		t.Errorf("layers %v, warnings %q", f.Layers, f.Warnings)
	}
	if err := os.Remove(filepath.Join(dir, "layer0.npy")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); err == nil || !strings.Contains(err.Error(), "layer1.safetensors is not a regular file") {
		t.Errorf("a folder alone: %v", err)
	}
}

// A layer that is named twice, in whatever way, is one layer.
func TestDistinct(t *testing.T) {
	two := npyFile(1, "<f4", "False", "(2, 1, 2, 3)", make([]byte, 48))
	dir := write(t, "layer2.npy", two, "layer3.npy", two,
		"many.safetensors", safetensorsFile(`{"layers.0.k":{"dtype":"F32","shape":[1,1,1],"data_offsets":[0,4]},"layers.0.v":{"dtype":"F32","shape":[1,1,1],"data_offsets":[4,8]},
"layers.1.k":{"dtype":"F32","shape":[1,1,1],"data_offsets":[8,12]},"layers.1.v":{"dtype":"F32","shape":[1,1,1],"data_offsets":[12,16]}}`, make([]byte, 16)))
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Symlink("layer2.npy", at("layer7.npy")); err != nil {
		t.Skip("no links here: ", err)
	}
	if err := os.Link(at("layer3.npy"), at("layer8.npy")); err != nil {
		t.Skip("no links here: ", err)
	}
	for _, c := range []struct {
		paths  []string
		layers int
		warned []string
	}{
		{[]string{"layer2.npy", "layer3.npy"}, 2, nil},
		{[]string{"layer2.npy", "./layer2.npy"}, 1, []string{"layer2.npy: named more than once: counted once"}},
		{[]string{"layer2.npy", "layer7.npy"}, 1, []string{"layer7.npy: the same file as " + at("layer2.npy") + ": counted once"}},
		{[]string{"layer[28].npy", "layer3.npy"}, 2, []string{"layer3.npy: the same file as " + at("layer8.npy") + ": counted once"}},
		{[]string{"."}, 4, []string{"layer7.npy: the same file", "layer8.npy: the same file"}},
		{[]string{"many.safetensors", "many.*"}, 2, []string{"many.safetensors: named more than once"}},
	} {
		var files []*File
		var warnings []string
		layers := 0
		for _, path := range c.paths {
			files = append(files, mustOpen(t, at(path), Options{}))
		}
		Distinct(files)
		for _, f := range files {
			layers += len(f.Layers)
			warnings = append(warnings, f.Warnings...)
		}
		if layers != c.layers || len(warnings) != len(c.warned) {
			t.Errorf("%v: %d layers, want %d; warnings %q, want %q", c.paths, layers, c.layers, warnings, c.warned)
			continue
		}
		for i, want := range c.warned {
			if !strings.Contains(warnings[i], want) {
				t.Errorf("%v: warning %q, want %q", c.paths, warnings[i], want)
			}
		}
	}
}

func TestLayerNumber(t *testing.T) {
	for s, want := range map[string]int{
		"layer12": 12, "layer_12": 12, "12": 12, "llama-8b.layer_07": 7, "a_1_2": 2, "x": -1, "run7b": -1, "layers.5.attn": 5,
		"model/layers/3": 3, "2.7b": 2, "_4": 4, "layer": -1, "99999999999": -1, "smollm2-layer18-allq": 18, "": -1,
	} {
		if got := layerNumber(s); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
}

func TestOutputProjection(t *testing.T) {
	matrix := func(rows, cols int) []byte {
		return npyFile(1, "<f4", "False", pyShape([]int{rows, cols}), fill("<f4", false, []int{rows, cols}, func(i []int) float64 { return float64(10*i[0] + i[1]) }))
	}
	arrays := func(cols, weights int) string {
		return filepath.Join(write(t, "x.npz", npzFile(t, zip.Store,
			member{"k.npy", roleArray(K, 1, 3, 4)}, member{"v.npy", roleArray(V, 1, 3, 2)}, member{"q.npy", roleArray(Q, 2, 2, 4)},
			member{"o.npy", matrix(5, cols)},
			member{"o_weight.npy", npyFile(1, "<f4", "False", pyShape([]int{weights}), fill("<f4", false, []int{weights}, func(i []int) float64 { return float64(i[0] + 1) }))},
		)), "x.npz")
	}
	l := mustOpen(t, arrays(4, 2), Options{}).Layers[0]
	if got := readHead(t, l, OWeight, 0); !slices.Equal(got, []float32{1, 2}) {
		t.Errorf("o_weight %v", got)
	}
	row := make([]float32, 4)
	if err := l.ReadRows(row, O, 0, 3, 4); err != nil || !slices.Equal(row, []float32{30, 31, 32, 33}) {
		t.Errorf("o row 3: %v, %v", row, err)
	}
	for _, path := range []string{arrays(3, 2), arrays(4, 3)} {
		if _, err := Open(path, Options{}); !errors.Is(err, ErrFormat) {
			t.Errorf("mismatch: %v", err)
		}
	}
}

func TestNonFinite(t *testing.T) {
	const heads, tokens, dim = 2, 6, 3
	bad := map[[4]int]float64{{0, 1, 2, 1}: math.NaN(), {1, 0, 4, 2}: math.Inf(-1), {2, 1, 0, 0}: math.Inf(1)}
	at := func(i []int) float64 {
		if v, ok := bad[[4]int(i)]; ok {
			return v
		}
		return value(i[0], i[1], i[2], i[3])
	}
	shape := []int{3, heads, tokens, dim}
	path := filepath.Join(write(t, "x.npy", npyFile(1, "<f4", "False", pyShape(shape), fill("<f4", false, shape, at))), "x.npy")
	l := mustOpen(t, path, Options{}).Layers[0]
	for p, want := range []string{"k head 1, token 2, channel 1 is NaN", "v head 0, token 4, channel 2 is infinite", "q head 1, row 0, channel 0 is infinite"} {
		var fe *FormatError
		var err error
		for h := range heads {
			if e := l.ReadHead(make([]float32, tokens*dim), Part(p), h); e != nil {
				err = e
			}
		}
		if !errors.As(err, &fe) || !strings.Contains(err.Error(), want) || !strings.Contains(fe.Hint(), "--allow-nonfinite") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	f := mustOpen(t, path, Options{AllowNonfinite: true})
	l = f.Layers[0]
	kept := []int{0, 1, 3, 5}                                                                                   // 2 is bad in k, 4 in v
	if l.Tokens != 4 || l.DroppedTokens != 2 || !slices.Equal(l.QPositions, []int{1, 2, 3}) || l.Queries != 3 { // row 0 is bad itself
		t.Fatalf("%+v", l)
	}
	if !contains(f.Warnings, "dropped 2 of 6 tokens and 3 of 6 query rows") {
		t.Errorf("%q", f.Warnings)
	}
	for p := K; p <= Q; p++ {
		rows := kept
		if p == Q {
			rows = []int{1, 3, 5}
		}
		for h := range heads {
			for i, v := range readHead(t, l, p, h) {
				if want := value(int(p), h, rows[i/dim], i%dim); float64(v) != want {
					t.Fatalf("%s head %d element %d: %v, want %v", p, h, i, v, want)
				}
			}
		}
	}
	// A float64 beyond float32's range would become infinite.
	shape = []int{2, 1, 1, 1}
	path = filepath.Join(write(t, "x.npy", npyFile(1, "<f8", "False", pyShape(shape), fill("<f8", false, shape, func([]int) float64 { return 1e300 }))), "x.npy")
	if err := mustOpen(t, path, Options{}).Layers[0].ReadHead(make([]float32, 1), K, 0); err == nil || !strings.Contains(err.Error(), "too large for float32") {
		t.Errorf("1e300: %v", err)
	}
	if _, err := Open(path, Options{AllowNonfinite: true}); !errors.Is(err, ErrFormat) {
		t.Errorf("nothing left: %v", err)
	}
}

func TestWarnings(t *testing.T) {
	wide := func(shape ...int) string {
		n := 4
		for _, d := range shape {
			n *= d
		}
		return filepath.Join(write(t, "x.npy", npyFile(1, "<f4", "False", pyShape(shape), make([]byte, n))), "x.npy")
	}
	if f := mustOpen(t, wide(2, 9, 4, 8), Options{}); !contains(f.Warnings, "--layout shd") {
		t.Errorf("heads > tokens: %q", f.Warnings)
	}
	if f := mustOpen(t, wide(2, 9, 4, 8), Options{Layout: HSD}); len(f.Warnings) != 0 {
		t.Errorf("layout given: %q", f.Warnings)
	}
	if f := mustOpen(t, wide(2, 9, 1, 1), Options{}); len(f.Warnings) != 0 {
		t.Errorf("one token: %q", f.Warnings)
	}
	if f := mustOpen(t, wide(2, 1, 4, 8), Options{DType: BF16}); !contains(f.Warnings, "--dtype bf16 was not needed") {
		t.Errorf("dtype: %q", f.Warnings)
	}
}

func TestConcurrentReads(t *testing.T) {
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		dir := write(t, "x.npz", npzFile(t, method, member{"k.npy", roleArray(K, 4, 7, 16)}, member{"v.npy", roleArray(V, 4, 7, 16)}))
		l := mustOpen(t, filepath.Join(dir, "x.npz"), Options{}).Layers[0]
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				dst := make([]float32, 7*16)
				for range 50 {
					if err := l.ReadHead(dst, Part(i%2), i/2%4); err != nil || float64(dst[17]) != value(i%2, i/2%4, 1, 1) {
						t.Errorf("%v %v", dst[17], err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}

func TestFileCutShortWhileOpen(t *testing.T) {
	shape := []int{2, 1, 4096, 64}
	path := filepath.Join(write(t, "x.npy", npyFile(1, "<f4", "False", pyShape(shape), make([]byte, 2*4096*64*4))), "x.npy")
	l := mustOpen(t, path, Options{}).Layers[0]
	dst := make([]float32, 4096*64)
	if err := l.ReadHead(dst, K, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 4096); err != nil {
		t.Skip("a mapped file cannot be cut short here")
	}
	if err := l.ReadHead(dst, V, 0); !errors.Is(err, ErrFormat) {
		t.Errorf("got %v", err)
	}
	l = mustOpen(t, "testdata/layer12.npy", Options{}).Layers[0]
	_ = readHead(t, l, K, 0) // the fault did no lasting harm
}

// Every malformed input gives one line, quickly, without large allocations.
func TestHostile(t *testing.T) {
	shape := pyShape
	k, v := member{"k.npy", roleArray(K, 1, 2, 3)}, member{"v.npy", roleArray(V, 1, 2, 3)}
	bomb := npyFile(1, "<f4", "False", "(1, 33554432, 1)", make([]byte, 128<<20))
	deflateLie := npzFile(t, zip.Deflate, k, v)
	i := bytes.LastIndex(deflateLie, []byte("PK\x01\x02"))
	binary.LittleEndian.PutUint32(deflateLie[i+24:], 1<<20) // the directory's uncompressed size
	stored := npzFile(t, zip.Store, k, v)
	header := func(s string) []byte { return safetensorsFile(s, make([]byte, 16)) }
	good := npyFile(1, "<f4", "False", shape([]int{2, 1, 2, 2}), make([]byte, 32))
	for _, c := range []struct {
		name, file string
		data       []byte
		want       string
	}{
		{"empty", "x.npy", nil, "empty"},
		{"magic", "x.npy", []byte("hello, this is text, not an array"), "not an npy array"},
		{"truncated header", "x.npy", good[:40], "cut short"},
		{"truncated data", "x.npy", good[:len(good)-1], "32 bytes, but 31 follow"},
		{"trailing data", "x.npy", append(slices.Clone(good), 0), "32 bytes, but 33 follow"},
		{"2^40 elements", "x.npy", npyFile(1, "<f4", "False", "(2, 1, 1099511627776, 1)", make([]byte, 100)), "but 100 follow"},
		{"overflow", "x.npy", npyFile(1, "<f4", "False", "(2, 4294967296, 4294967296, 4294967296)", nil), "overflow"},
		{"too long a number", "x.npy", npyFile(1, "<f4", "False", "(2, 99999999999999999999, 1, 1)", nil), "no length"},
		{"negative", "x.npy", npyFile(1, "<f4", "False", "(2, -1, 1, 1)", nil), "no length"},
		{"zero tokens", "x.npy", npyFile(1, "<f4", "False", "(2, 1, 0, 4)", nil), "nothing in it"},
		{"zero and huge", "x.npy", npyFile(1, "<f4", "False", "(2, 0, 9223372036854775807, 9223372036854775807)", nil), "nothing in it"},
		{"header length", "x.npy", []byte("\x93NUMPY\x02\x00\xff\xff\xff\xff{}"), "claims 4294967295 bytes"},
		{"version", "x.npy", []byte("\x93NUMPY\x09\x00\x02\x00{}"), "version 9.0"},
		{"pickle", "x.npy", npyFile(1, "|O", "False", "(2, 1, 1, 1)", make([]byte, 32)), "pickle"},
		{"structured", "x.npy", npyRaw(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", nil), "structured"},
		{"complex", "x.npy", npyFile(1, "<c8", "False", "(2, 1, 1, 1)", make([]byte, 16)), "has type"},
		{"strange type", "x.npy", npyFile(1, "<q4", "False", "(2, 1, 1, 1)", make([]byte, 8)), "not known"},
		{"open type", "x.npy", npyFile(1, "|V2", "False", "(2, 1, 1, 1)", make([]byte, 4)), "does not say how"},
		{"dict key twice", "x.npy", npyRaw(1, "{'shape': (1,), 'shape': (1,), }", nil), "twice"},
		{"dict key missing", "x.npy", npyRaw(1, "{'shape': (1,), }", nil), "lacks"},
		{"dict key unknown", "x.npy", npyRaw(1, "{'shop': (1,), }", nil), "unknown key"},
		{"dict unfinished", "x.npy", npyRaw(1, "{'shape': (1,", nil), "npy header"},
		{"many dims", "x.npy", npyRaw(1, "{'shape': ("+strings.Repeat("1,", 1000)+")}", nil), "dimensions"},
		{"three dims", "x.npy", npyFile(1, "<f4", "False", "(2, 1, 1)", make([]byte, 8)), "want [2, kv_heads, tokens, head_dim]"},
		{"batch", "x.npz", npzFile(t, zip.Store, member{"k.npy", roleArray(K, 2, 1, 2, 3)}, v), "a batch of 2"},
		{"not zip", "x.npz", []byte("PK\x03\x04 and then nothing of use"), "not a readable npz"},
		{"truncated zip", "x.npz", stored[:len(stored)-30], "not a readable npz"},
		{"no arrays", "x.npz", npzFile(t, zip.Store), "no tensors named k and v"},
		{"no v", "x.npz", npzFile(t, zip.Store, k), `it holds "k"`},
		{"twice", "x.npz", npzFile(t, zip.Store, k, v, k), "twice"},
		{"two keys", "x.npz", npzFile(t, zip.Store, k, v, member{"key.npy", roleArray(K, 1, 2, 3)}), "both k"},
		{"bomb", "x.npz", npzFile(t, zip.Deflate, member{"k.npy", bomb}, member{"v.npy", bomb}), "refused"},
		{"member size", "x.npz", deflateLie, "holds"},
		{"member shape", "x.npz", npzFile(t, zip.Deflate, member{"k.npy", npyFile(1, "<f4", "False", "(1, 1099511627776, 1)", nil)}, v), "member holds 0"},
		{"heads differ", "x.npz", npzFile(t, zip.Store, member{"k.npy", roleArray(K, 2, 2, 3)}, v), "k is 2 heads"},
		{"q width", "x.npz", npzFile(t, zip.Store, k, v, member{"q.npy", roleArray(Q, 1, 2, 4)}), "4 channels"},
		{"q heads", "x.npz", npzFile(t, zip.Store, member{"k.npy", roleArray(K, 2, 2, 3)}, member{"v.npy", roleArray(V, 2, 2, 3)}, member{"q.npy", roleArray(Q, 3, 2, 3)}), "no multiple"},
		{"q rows", "x.npz", npzFile(t, zip.Store, k, v, member{"q.npy", roleArray(Q, 1, 3, 3)}), "more than the 2 tokens"},
		{"positions", "x.npz", npzFile(t, zip.Store, k, v, member{"q.npy", roleArray(Q, 1, 2, 3)}, member{"q_positions.npy", ints("<i4", 0, 2)}), "stands at 2"},
		{"positions short", "x.npz", npzFile(t, zip.Store, k, v, member{"q.npy", roleArray(Q, 1, 2, 3)}, member{"q_positions.npy", ints("<i4", 0)}), "one per query row"},
		{"positions float", "x.npz", npzFile(t, zip.Store, k, v, member{"q.npy", roleArray(Q, 1, 2, 3)}, member{"q_positions.npy", ints("<f4", 0, 1)}), "want integers"},
		{"facts array", "x.npz", npzFile(t, zip.Store, k, v, member{"kvq.npy", ints("<i4", 0)}), "want a string"},
		{"facts text", "x.npz", npzFile(t, zip.Store, k, v, member{"kvq.npy", unicode("{")}), "no JSON"},
		{"short", "x.safetensors", []byte("abc"), "cut short"},
		{"header beyond file", "x.safetensors", append(bytes.Repeat([]byte{0xff}, 8), '{'), "claims 18446744073709551615"},
		{"bad json", "x.safetensors", header(`{"k":`), "safetensors header"},
		{"deep json", "x.safetensors", header(`{"k":` + strings.Repeat("[", 1<<20)), "safetensors header"},
		{"deep metadata", "x.safetensors", header(`{"__metadata__":{"kvq":` + strings.Repeat(`{"a":`, 1<<20)), "not a string"},
		{"no object", "x.safetensors", header(`[]`), "want {"},
		{"followed", "x.safetensors", header(`{} {}`), "follows"},
		{"overlap", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[1,3,1],"data_offsets":[0,12]},"v":{"dtype":"F32","shape":[1,3,1],"data_offsets":[4,16]}}`), "overlap"},
		{"same bytes", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[1,4,1],"data_offsets":[0,16]},"v":{"dtype":"F32","shape":[1,4,1],"data_offsets":[0,16]}}`), "overlap"},
		{"hole", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[1,1,1],"data_offsets":[0,4]},"v":{"dtype":"F32","shape":[1,2,1],"data_offsets":[8,16]}}`), "belong to no tensor"},
		{"beyond", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[1,5,1],"data_offsets":[0,20]}}`), "cut short"},
		{"shape lie", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[1,1099511627776,1],"data_offsets":[0,16]}}`), "but its offsets hold 16"},
		{"shape overflow", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]}}`), "overflow"},
		{"backwards", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[1],"data_offsets":[16,12]}}`), "ends before"},
		{"same name", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"k":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}`), "twice"},
		{"fraction", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[1.5],"data_offsets":[0,16]}}`), "natural"},
		{"extra key", "x.safetensors", header(`{"k":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1}}`), "unknown key"},
		{"extension", "x.bin", []byte("whatever this is"), "not a dump"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(write(t, c.file, c.data), c.file)
			c.data = nil
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			f, err := Open(path, Options{})
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if took > time.Second { // a busy machine deserves a second chance
				start = time.Now()
				_, _ = Open(path, Options{})
				took = time.Since(start)
			}
			if err == nil {
				f.Close()
				t.Fatal("no error")
			}
			if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 400 {
				t.Errorf("got %v, want … %s …", err, c.want)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 50<<20 || took > time.Second {
				t.Errorf("took %v and %d bytes", took, used)
			}
		})
	}
	if _, err := Open(filepath.Join(t.TempDir(), "missing.npy"), Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := Open(t.TempDir(), Options{}); !errors.Is(err, ErrFormat) {
		t.Errorf("empty directory: %v", err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "*.npy"), Options{}); err == nil {
		t.Error("empty glob: no error")
	}
}

// A member that inflates to something else than its header says is found out
// when it is read.
func TestCorruptStored(t *testing.T) {
	facts := unicode(`{"schema":"kvq.dump/1","defaults":{"scale":0.5}}`)
	data := npzFile(t, zip.Store, member{"k.npy", roleArray(K, 1, 50, 30)}, member{"v.npy", roleArray(V, 1, 50, 30)}, member{"kvq.npy", facts})
	damaged := func(at int) *File {
		t.Helper()
		changed := bytes.Clone(data)
		changed[at] ^= 1
		return mustOpen(t, filepath.Join(write(t, "x.npz", changed), "x.npz"), Options{})
	}
	ends := func(part []byte) int { return bytes.Index(data, part) + len(part) - 1 }
	dst := make([]float32, 50*30)
	for p, role := range map[Part][]byte{K: roleArray(K, 1, 50, 30), V: roleArray(V, 1, 50, 30)} {
		l := damaged(ends(role)).Layers[0]
		for range 2 { // the second time it is known
			if err := l.ReadHead(dst, p, 0); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "checksum") {
				t.Errorf("%v: got %v", p, err)
			}
		}
		if err := l.ReadHead(dst, K+V-p, 0); err != nil {
			t.Errorf("the other: %v", err)
		}
	}
	changed := bytes.Clone(data)
	changed[bytes.Index(data, facts)+len(facts)-12] ^= 1 // a digit of the scale
	if f, err := Open(filepath.Join(write(t, "x.npz", changed), "x.npz"), Options{}); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("facts: got %+v, %v", f, err)
	}
}

func TestCorruptDeflate(t *testing.T) {
	data := npzFile(t, zip.Deflate, member{"k.npy", roleArray(K, 1, 50, 30)}, member{"v.npy", roleArray(V, 1, 50, 30)})
	i := bytes.Index(data, []byte("PK\x07\x08")) // after the data of k
	data[i-100] ^= 0x55
	l := mustOpen(t, filepath.Join(write(t, "x.npz", data), "x.npz"), Options{}).Layers[0]
	if err := l.ReadHead(make([]float32, 50*30), K, 0); !errors.Is(err, ErrFormat) {
		t.Errorf("got %v", err)
	}
}

// The pages of what was read must not pile up: a dump may be larger than memory.
func TestResidentMemory(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc/self/status")
	}
	resident := func() (kib int) {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, line, ok := strings.Cut(string(status), "RssFile:")
		if _, err := fmt.Sscan(line, &kib); !ok || err != nil {
			t.Skip("no RssFile here")
		}
		return kib
	}
	for _, fortran := range []string{"False", "True"} {
		const heads, tokens, dim = 4, 1 << 16, 64
		header := npyFile(1, "<f4", fortran, fmt.Sprintf("(2, %d, %d, %d)", heads, tokens, dim), nil)
		path := filepath.Join(write(t, "x.npy", header), "x.npy")
		if err := os.Truncate(path, int64(len(header))+2*heads*tokens*dim*4); err != nil { // 128 MiB
			t.Fatal(err)
		}
		l := mustOpen(t, path, Options{}).Layers[0]
		dst := make([]float32, tokens*dim)
		before := resident()
		for _, p := range []Part{K, V} {
			for h := range heads {
				if err := l.ReadHead(dst, p, h); err != nil {
					t.Fatal(err)
				}
				if grown := resident() - before; grown > 24<<10 {
					t.Fatalf("fortran %s: %d MiB of the file stay resident after %s head %d", fortran, grown>>10, p, h)
				}
			}
		}
	}
}
