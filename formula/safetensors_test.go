package formula

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// safetensorsFile is a file of the format: the header's length, the header,
// and data of so many bytes.
func safetensorsFile(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

const twoTensors = `{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"b":{"dtype":"F4","shape":[8],"data_offsets":[12,16]}}   `

func TestReadSafetensors(t *testing.T) {
	for _, test := range []struct {
		header string
		data   int
		want   string // a part of the error; empty when there is none
	}{
		{twoTensors, 16, ""},
		{`{}`, 0, ""},
		{`{"x":{"dtype":"NEW","shape":[3],"data_offsets":[0,5]}}`, 5, ""}, // a type of the future
		{`{"x":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 4, ""},
		{`{"x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`, 0, ""},
		{twoTensors, 15, "is the file cut short"},
		{twoTensors, 17, "after the last tensor"},
		{`{"x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}`, 8, "before tensor"},
		{`{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}`, 7, "overlaps"},
		{`{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"x":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}`, 8, `"x" is given twice`},
		{`{"x":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}`, 4, `"dtype" is given twice`},
		{`{"x":{"dtype":"F16","shape":[4],"data_offsets":[0,4]}}`, 4, "which is not the 4 bytes"},
		{`{"x":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 2, "which is not"},
		{`{"x":{"dtype":"U8","shape":[4611686018427387904,4],"data_offsets":[0,4]}}`, 4, "which is not"},
		{`{"x":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}`, 4, "not a natural number"},
		{`{"x":{"dtype":"U8","shape":[4.5],"data_offsets":[0,4]}}`, 4, "not a natural number"},
		{`{"x":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}`, 4, "ends before it begins"},
		{`{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}}`, 4, "more than 2 numbers"},
		{`{"x":{"dtype":"U8","shape":[4]}}`, 4, "lacks"},
		{`{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"more":1}}`, 4, "unknown key"},
		{`{"x":3}`, 0, "want {"},
		{`{"__metadata__":{"a":1}}`, 0, "is not a string"},
		{`[]`, 0, "want {"},
		{`{}{}`, 0, "something follows"},
		{`{"x":` + strings.Repeat("[", 100000), 0, "want {"},
		{``, 0, "EOF"},
		{`{`, 0, "EOF"},
	} {
		data := safetensorsFile(test.header, test.data)
		tensors, err := readSafetensors(bytes.NewReader(data), int64(len(data)))
		switch {
		case test.want == "" && err != nil, test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !errors.Is(err, ErrSafetensors)):
			t.Errorf("%.80s: %v, want %q", test.header, err, test.want)
		}
		total := int64(0)
		for _, x := range tensors {
			total += x.end - x.begin
		}
		if err == nil && total != int64(test.data) {
			t.Errorf("%.80s: %d bytes, want %d", test.header, total, test.data)
		}
	}
	for _, data := range [][]byte{nil, {1, 2, 3}, binary.LittleEndian.AppendUint64(nil, 1<<60), binary.LittleEndian.AppendUint64(nil, 1<<63|5), []byte("version https://git-lfs")} {
		if _, err := readSafetensors(bytes.NewReader(data), int64(len(data))); !errors.Is(err, ErrSafetensors) {
			t.Errorf("%q: %v", data, err)
		}
	}
	if _, err := readSafetensors(bytes.NewReader(binary.LittleEndian.AppendUint64(nil, 200e6)), 1e9); !errors.Is(err, ErrSafetensors) {
		t.Errorf("a header of 200 MB: %v", err)
	}
}

// TestOpenSafetensors reads checkpoints of one file and of several.
func TestOpenSafetensors(t *testing.T) {
	one := func(name string, n int) []byte {
		return safetensorsFile(fmt.Sprintf(`{%q:{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, name, n, n), n)
	}
	index := func(total string, files ...string) []byte {
		var entries []string
		for i, f := range files {
			entries = append(entries, fmt.Sprintf(`"t%d":%q`, i, f))
		}
		return []byte(`{"metadata":{"total_size":` + total + `,"other":[{"deep":[1]}]},"weight_map":{` + strings.Join(entries, ",") + `}}`)
	}
	const indexName = "model.safetensors.index.json"
	for _, test := range []struct {
		name  string
		files map[string][]byte
		open  string // below the folder
		bytes int64
		parts int
		want  string // a part of the error
	}{
		{"one file", map[string][]byte{"x.safetensors": one("a", 10)}, "x.safetensors", 10, 1, ""},
		{"a folder", map[string][]byte{"x.safetensors": one("a", 10), "y.safetensors": one("b", 5), "z.bin": nil}, "", 15, 2, ""},
		{"a copy beside the parts", map[string][]byte{"model.safetensors": one("a", 10), "consolidated.safetensors": one("a", 10)}, "", 10, 1, ""},
		{"the same tensor twice", map[string][]byte{"x.safetensors": one("a", 10), "y.safetensors": one("a", 10)}, "", 0, 0, "are these files of one checkpoint"},
		{"an index", map[string][]byte{indexName: index("15", "p1.safetensors", "p2.safetensors", "p1.safetensors"), "p1.safetensors": one("a", 10), "p2.safetensors": one("b", 5), "consolidated.safetensors": one("a", 99)}, "", 15, 2, ""},
		{"an index that lies", map[string][]byte{indexName: index("7", "p1.safetensors"), "p1.safetensors": one("a", 10)}, indexName, 10, 1, ""},
		{"an index alone", map[string][]byte{indexName: index("1.6e10", "p1.safetensors")}, "", 16e9, 1, ""},
		{"a part is missing", map[string][]byte{indexName: index("15", "p1.safetensors", "p2.safetensors"), "p1.safetensors": one("a", 10)}, "", 0, 0, "1 of 2 files are missing, p2.safetensors first"},
		{"an index without files or size", map[string][]byte{indexName: index("0", "p1.safetensors")}, "", 0, 0, "total_size"},
		{"an index that points outside", map[string][]byte{indexName: index("5", "../p1.safetensors")}, "", 0, 0, "not the name of a safetensors file"},
		{"an index of something else", map[string][]byte{indexName: []byte(`{"weight_map":[]}`)}, "", 0, 0, "want {"},
		{"an empty index", map[string][]byte{indexName: []byte(`{}`)}, "", 0, 0, "weight_map"},
		{"two indices in one", map[string][]byte{indexName: append(index("1", "a.safetensors"), '{')}, "", 0, 0, "something follows"},
		{"nothing", map[string][]byte{"x.bin": nil}, "", 0, 0, "no *.safetensors"},
		{"no such file", nil, "x.safetensors", 0, 0, "no such file"},
		{"not the format", map[string][]byte{"x.safetensors": []byte("GGUF or something else")}, "", 0, 0, "another format"},
	} {
		dir := t.TempDir()
		for name, data := range test.files {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := OpenSafetensors(filepath.Join(dir, test.open))
		if test.want != "" {
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", test.name, err, test.want)
			}
			continue
		}
		if err != nil || s.Bytes != test.bytes || len(s.Files) != test.parts || s.Claimed != (test.name == "an index alone") {
			t.Errorf("%s: %+v, %v", test.name, s, err)
		}
	}
}

// TestActiveSafetensors: of 8 experts of 100 bytes a token uses 2, beside 60
// bytes of everything else, a shared expert among it.
func TestActiveSafetensors(t *testing.T) {
	header := `{"model.embed_tokens.weight":{"dtype":"U8","shape":[50],"data_offsets":[0,50]},"l.0.mlp.shared_experts.up.weight":{"dtype":"U8","shape":[10],"data_offsets":[50,60]},` +
		`"l.0.mlp.experts.gate_up_proj":{"dtype":"U8","shape":[8,75],"data_offsets":[60,660]},"l.0.mlp.experts.down_proj":{"dtype":"U8","shape":[8,25],"data_offsets":[660,860]}}`
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := os.WriteFile(path, safetensorsFile(header, 860), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := OpenSafetensors(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		experts, used, want int64
		ok                  bool
	}{{8, 2, 60 + 200, true}, {8, 8, 860, true}, {0, 0, 860, false}, {2, 8, 860, false}} {
		if got, ok := s.Active(&Model{Experts: test.experts, ExpertsPerToken: test.used}); got != test.want || ok != test.ok {
			t.Errorf("%+v: %d, %v", test, got, ok)
		}
	}
}

// TestExpertsOfConfigs reads what their publishers say of these models.
func TestExpertsOfConfigs(t *testing.T) {
	for name, want := range map[string][2]int64{
		"mixtral-8x22b": {8, 2}, "gpt-oss-20b": {32, 4}, "deepseek-v4-pro": {384, 6}, "qwen3-vl-30b-a3b": {128, 8}, "hunyuan-large-a52b-instruct": {16, 1}, "llama-3.1-8b": {0, 0},
	} {
		m, err := ReadHF("testdata/configs/"+name+".config.json", HFOptions{})
		if err != nil || m.Experts != want[0] || m.ExpertsPerToken != want[1] {
			t.Errorf("%s: %d experts, %d used, %v, want %v", name, m.Experts, m.ExpertsPerToken, err, want)
		}
	}
}

// FuzzSafetensors: whatever header is accepted covers the data exactly.
func FuzzSafetensors(f *testing.F) {
	f.Add(safetensorsFile(twoTensors, 16))
	f.Add(safetensorsFile(`{"x":{"dtype":"U8","shape":[1e2],"data_offsets":[0,100]}}`, 100))
	f.Add([]byte(`{"metadata":{"total_size":15},"weight_map":{"a":"p1.safetensors"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if tensors, err := readSafetensors(bytes.NewReader(data), int64(len(data))); err == nil {
			total := int64(0)
			for _, x := range tensors {
				total += x.end - x.begin
			}
			if header := int64(binary.LittleEndian.Uint64(data)); total != int64(len(data))-8-header {
				t.Fatalf("%d bytes of tensors in %d behind a header of %d", total, len(data), header)
			}
		} else if !errors.Is(err, ErrSafetensors) {
			t.Fatal(err)
		}
		if _, files, err := readSafetensorsIndex(bytes.NewReader(data)); err == nil {
			for _, name := range files {
				if name != filepath.Base(name) {
					t.Fatalf("an index points to %q", name)
				}
			}
		}
	})
}
