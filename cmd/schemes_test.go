package cmd

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvq/kernels"
	"kvq/quantize"
)

// TestSchemesList: every format, modifier and recipe of the registry is listed.
func TestSchemesList(t *testing.T) {
	code, table, _ := run("schemes")
	if code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	for _, line := range strings.Split(table, "\n") {
		if n := len([]rune(line)); n > textWidth {
			t.Errorf("a line of %d: %s", n, line)
		}
	}
	_, text, _ := run("schemes", "--format", "json")
	var list schemesJSON
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	names := map[string]schemeJSON{}
	for _, s := range list.Schemes {
		names[s.Name] = s
	}
	for _, f := range quantize.Formats() {
		s, err := quantize.Lookup(f.Name)
		if err != nil {
			t.Fatal(err)
		}
		if names[s.Name()].Definition == "" || !strings.Contains(table, s.Name()) {
			t.Errorf("%s is not listed", s.Name())
		}
	}
	for _, r := range quantize.Recipes() {
		if e := names[r.Name]; e.K != r.K || e.V != r.V || len(e.Deployments) == 0 {
			t.Errorf("%s: %+v", r.Name, e)
		}
	}
	for name, bits := range map[string]float64{"int8-token": 8.125, "q8_0": 8.5, "nvfp4": 4.5, "kivi2": 3, "f16": 16, "q8_kv": 8.5} {
		if got := names[name].Bits["128"]; got != bits {
			t.Errorf("%s: %g bits at d=128, want %g", name, got, bits)
		}
	}
}

// TestSchemesEngines: the table of engines has a row for whatever --set runs, and a
// scheme cites no engine that does not run it.
func TestSchemesEngines(t *testing.T) {
	_, table, _ := run("schemes")
	_, table, _ = strings.Cut(table, "Which engine runs what")
	for _, row := range [][]string{{"vLLM", "int8-token@f32"}, {"vLLM", "e4m3-token"}, {"vLLM", "e4m3-head"}, {"ExLlamaV3", "cubic4+hadamard32"}} {
		found := false
		for line := range strings.Lines(table) {
			fields := strings.Fields(line)
			found = found || len(fields) > 1 && fields[0] == row[0] && fields[1] == row[1]
		}
		if !found {
			t.Errorf("no row of %q", row)
		}
	}
	for _, name := range []string{"e4m3-token", "e4m3-head", "e4m3-raw", "e5m2"} {
		if _, out, _ := run("schemes", name); !strings.Contains(out, "source: OCP") || strings.Contains(out, "TensorRT") {
			t.Errorf("%s:\n%s", name, out)
		}
	}
	if _, out, _ := run("schemes", "trt-fp8"); !strings.Contains(out, "source: TensorRT-LLM") {
		t.Errorf("trt-fp8:\n%s", out)
	}
}

// TestSchemesExplanationFits: what explains a scheme keeps to the width of a terminal,
// whatever it is made of, and says each thing once.
func TestSchemesExplanationFits(t *testing.T) {
	skipIfShort(t)
	names, err := quantize.Set("all")
	if err != nil {
		t.Fatal(err)
	}
	for _, codec := range []string{"int4-asym", "int8-zp", "nf4", "nuq4", "e4m3"} {
		for _, share := range []string{"-head", "-token", "-token/32", "-channel", "-channel/32", "-channel/128"} {
			names = append(names, codec+share+"+center+hadamard+sink4+recent128+outlier0.5%")
		}
	}
	names = append(names, "int4-asym-channel/32+center+hadamard+sink4+recent128+outlier0.5%+clip")
	for _, name := range names {
		for _, more := range [][]string{nil, {"--dim", "64", "--tokens", "131072"}, {"--dim", "1024"}} {
			_, out, stderr := run(append([]string{"schemes", name}, more...)...)
			if out == "" && stderr == "" {
				t.Errorf("%s %v: nothing", name, more)
			}
			for line := range strings.Lines(out) {
				if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > textWidth {
					t.Errorf("%s %v: a line of %d: %s", name, more, n, line)
				}
			}
			if words := strings.Join(strings.Fields(out), " "); strings.Contains(words, "window rows in place; window rows in place") {
				t.Errorf("%s: says it twice:\n%s", name, out)
			}
		}
	}
	if code, _, stderr := run("schemes", "kivi2", "--tokens", "0"); code != exitUsage || !strings.Contains(stderr, "--tokens 0: want at least 1") {
		t.Errorf("no tokens: %d, %s", code, stderr)
	}
	if _, out, _ := run("schemes", "q4_0", "--tokens", "1"); !strings.Contains(out, "One head of 1 token, 128 channels") {
		t.Errorf("one token:\n%s", out)
	}
}

func TestSchemesExplains(t *testing.T) {
	for name, want := range map[string][]string{
		"kivi2 --tokens 1000 --dim 128":      {"bits at d=128", "both  115,968      28,288  4.50800", "note: KIVI computes in half precision", "source: jy-yuan/KIVI"},
		"kivi2 --tokens 1024":                {"128  256", "both  94,208      30,720  3.81250"},
		"q8_0 --tokens 4k":                   {"8.50000", "LLAMA_ATTN_ROT_DISABLE=1", "ik_llama.cpp: -ctk q8_0 -ctv q8_0", "source: ggml"},
		"nvfp4 --tokens 4k":                  {"4.50000"},
		"int8-token --tokens 4k":             {"8.12500"},
		"int8-token@f32 --tokens 4k":         {"8.25000", "--kv-cache-dtype int8_per_token_head (it rounds halves away from zero)"},
		"llama-q4_0-rot":                     {"llama.cpp: -ctk q4_0 -ctv q4_0 (needs flash attention)", "k, q4_0+hadamard: one block", "v, q4_0+hadamard64"},
		"vllm-int4-pth --dim 64":             {"k and v, pth-int4: one block of 64 channels", "lowest four bits are the zero point"},
		"Q5_1":                               {"ggml", "-ctk q5_1 -ctv q5_1", "     4      4  qh", "x̂ = d·q + m"},
		"int4-zp-channel/32+recent64+center": {"⌈R/32⌉·128·1  zero points", "(S−R)·256", "x̂ = scale·(field − (zero point + 8))"},
		"kivi4":                              {"k, int4-asym-channel/32+recent128", "v, int4-asym-token/32+recent128", "residual_length=128"},
		"int4-token/256":                     {"one head of S tokens, 256 channels"},
		"exact:q8_0":                         {"one block of 32 channels"},
	} {
		code, text, stderr := run(append([]string{"schemes"}, strings.Fields(name)...)...)
		if code != exitOK {
			t.Errorf("%s: %d, %s", name, code, stderr)
		}
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %q in\n%s", name, part, text)
			}
		}
	}
	for _, args := range [][]string{{"schemes", "int9"}, {"schemes", "a", "b"}, {"schemes", "int4-token/1000"},
		{"schemes", "--tokens", "5"}, {"schemes", "q8_0", "--dim", "0"}, {"schemes", "q8_0", "--dim", "48"}, {"schemes", "vllm-int4-pth", "--dim", "96"}} {
		if code, _, stderr := run(args...); code != exitUsage {
			t.Errorf("%v: %d, %s", args, code, stderr)
		}
	}
}

// npyData returns what stands behind an npy file's header, and the header.
func npyData(t *testing.T, path string) (header string, data []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := 10 + int(binary.LittleEndian.Uint16(b[8:]))
	return string(b[:end]), b[end:]
}

// TestEncode: the files hold what ggml's own program gave for the same input.
func TestEncode(t *testing.T) {
	vectors := filepath.Join("..", "quantize", "testdata", "ggml")
	dir := filepath.Join(t.TempDir(), "new")
	code, _, stderr := run("encode", filepath.Join(vectors, "input.npy"), "--scheme", "q8_0,q4_1", "--scheme", "nvfp4", "-o", dir)
	if code != exitOK {
		t.Fatal(stderr)
	}
	for _, name := range []string{"q8_0", "q4_1", "nvfp4"} {
		for _, kind := range []string{".bytes.npy", ".dequant.npy"} {
			header, got := npyData(t, filepath.Join(dir, name+kind))
			_, want := npyData(t, filepath.Join(vectors, name+kind))
			if !bytes.Equal(got, want) || !strings.Contains(header, "(46, ") {
				t.Errorf("%s%s differs, or %s", name, kind, header)
			}
		}
	}
}

// TestEncodeShapes: names, shapes, and what stands once for a tensor.
func TestEncodeShapes(t *testing.T) {
	dir := t.TempDir()
	dump := filepath.Join(dir, "x.npy") // [2, 3, 20, 64]
	if code, _, stderr := run("synth", "-o", dump, "--tokens", "20", "--kv-heads", "3", "--query-heads", "0", "--head-dim", "64"); code != exitOK {
		t.Fatal(stderr)
	}
	for name, want := range map[string]struct {
		file, shape string
		bytes       int
	}{
		"q4_0":                {"q4_0", "(2, 3, 20, 36)", 6 * 20 * 36},
		"int8-channel":        {"int8-channel", "(2, 3, 1408)", 6 * (20*64 + 128)},
		"int8-tensor@f32":     {"int8-tensor@f32", "(7684,)", 6*20*64 + 4},
		"int4-token/32:q8_0":  {"int4-token_32_q8_0", "(7680,)", 0},
		"e4m3-head:e4m3-head": {"e4m3-head", "(2, 3, 1284)", 6 * 1284},
	} {
		code, _, stderr := run("encode", dump, "--scheme", name, "-o", dir)
		if code != exitOK {
			t.Errorf("%s: %s", name, stderr)
			continue
		}
		header, data := npyData(t, filepath.Join(dir, want.file+".bytes.npy"))
		if want.bytes == 0 { // 3·20 rows of 32+4 bytes, and of 2·34
			want.bytes, want.shape = 60*36+60*68, "(6240,)"
		}
		if !strings.Contains(header, "'shape': "+want.shape) || len(data) != want.bytes {
			t.Errorf("%s: %d bytes, %s", name, len(data), header)
		}
		header, data = npyData(t, filepath.Join(dir, want.file+".dequant.npy"))
		if !strings.Contains(header, "(2, 3, 20, 64)") || len(data) != 4*6*20*64 {
			t.Errorf("%s: %s", name, header)
		}
	}
	for _, args := range [][]string{
		{"encode"}, {"encode", dump}, {"encode", dump, "--scheme", "q4_0"}, {"encode", dump, "-o", dir},
		{"encode", dump, "--scheme", "exact:q4_0", "-o", dir}, {"encode", dump, "--scheme", "int4-token/128", "-o", dir},
	} {
		if code, _, stderr := run(args...); code != exitUsage {
			t.Errorf("%v: %d, %s", args, code, stderr)
		}
	}
	// What is wrong with the array is said of its file, once, and leaves nothing behind.
	fresh := t.TempDir()
	nan := filepath.Join(fresh, "nan.npy")
	if err := os.WriteFile(nan, npy("<f4", "(1, 1, 2)", []byte{0, 0, 0xc0, 0x7f, 0, 0, 0, 0}), 0o666); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{nan: "head 0, token 0, channel 0 is NaN", fresh: "not a regular file"} {
		code, _, stderr := run("encode", file, "--scheme", "int8", "-o", filepath.Join(fresh, "out"))
		if code != exitFailure || !strings.HasPrefix(stderr, "kvq: "+file+": ") || !strings.Contains(stderr, want) || strings.Count(stderr, file) != 1 {
			t.Errorf("%s: exit code %d, stderr %q", file, code, stderr)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(fresh, "out", "*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if code, _, _ := run("encode", filepath.Join(dir, "none.npy"), "--scheme", "f16", "-o", dir); code != exitFailure {
		t.Errorf("a missing file: %d", code)
	}
}

// TestGoldenVectors: what was shipped for other implementations is what kvq
// writes, on every instruction set. The files are kvq's own output.
func TestGoldenVectors(t *testing.T) {
	dir := filepath.Join("..", "quantize", "testdata", "golden")
	files, err := filepath.Glob(filepath.Join(dir, "*.bytes.npy"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d vectors: %v", len(files), err)
	}
	readme, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, schemes, _ := strings.Cut(string(readme), "--scheme '")
	schemes, _, ok := strings.Cut(schemes, "'")
	if !ok {
		t.Fatal("the README names no schemes")
	}
	before := kernels.Active()
	defer kernels.Use(before)
	for _, isa := range kernels.Available() {
		out := t.TempDir()
		if code, _, stderr := run("encode", filepath.Join(dir, "x.npy"), "--isa", string(isa), "--scheme", schemes, "-o", out); code != exitOK {
			t.Fatal(stderr)
		}
		for _, file := range files {
			for _, name := range []string{filepath.Base(file), strings.Replace(filepath.Base(file), ".bytes.", ".dequant.", 1)} {
				want, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(filepath.Join(out, name))
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s on %s differs: %v", name, isa, err)
				}
			}
		}
	}
}

// TestEncodeRegistry encodes with every name of the registry: whole arrays, one row, a
// head width that blocks do not divide, and [tokens, d] without heads. What fits gives
// both files in the array's shape and the bytes that kvq schemes counts; what does not is
// a usage error that names the scheme.
func TestEncodeRegistry(t *testing.T) {
	skipIfShort(t)
	dir := t.TempDir()
	names, err := quantize.Set("all")
	if err != nil {
		t.Fatal(err)
	}
	for i, shape := range [][]int{{2, 2, 64, 64}, {2, 3, 1, 128}, {2, 1, 5, 80}, {64, 64}, {1, 1}} {
		elements := 1
		for _, n := range shape {
			elements *= n
		}
		raw := make([]byte, 4*elements)
		for j := range elements {
			binary.LittleEndian.PutUint32(raw[4*j:], math.Float32bits(float32(j*7919%1009)/256-2))
		}
		text := strings.NewReplacer("[", "(", "]", ")", " ", ", ").Replace(fmt.Sprint(shape))
		file := filepath.Join(dir, fmt.Sprint(i, ".npy"))
		if err := os.WriteFile(file, npy("<f4", text, raw), 0o666); err != nil {
			t.Fatal(err)
		}
		fit := 0
		for _, name := range names {
			out := filepath.Join(dir, fmt.Sprint(i))
			code, stdout, stderr := run("encode", file, "--scheme", name, "-o", out, "--format", "json")
			if code != exitOK {
				pair, err := quantize.ParsePair(name)
				if err != nil {
					t.Fatal(err)
				}
				misfit := pair.K.CheckDim(shape[len(shape)-1]) != nil || pair.V.CheckDim(shape[len(shape)-1]) != nil
				strided := strings.Contains(name, "hqq") && elements%64 != 0
				turned := strings.Contains(name, "kvquant") // keys before RoPE, which an array does not have
				sides := len(shape) < 3 || shape[0] != 2    // not [2, ..] of keys and values
				sides = sides && quantize.SideName(pair.K) != quantize.SideName(pair.V)
				if code != exitUsage || !misfit && !strided && !turned && !sides || strings.Contains(stderr, "write ") {
					t.Errorf("%v as %s: exit code %d, %s", shape, name, code, stderr)
				}
				continue
			}
			fit++
			var files encodedFiles
			if err := json.Unmarshal([]byte(stdout), &files); err != nil {
				t.Fatal(err)
			}
			header, data := npyData(t, files.Rows[0].Bytes)
			if int64(len(data)) != files.Rows[0].DataBytes+files.Rows[0].MetadataBytes || !strings.Contains(header, "'|u1'") {
				t.Errorf("%v as %s: %d bytes, %+v", shape, name, len(data), files.Rows[0])
			}
			header, data = npyData(t, files.Rows[0].Dequant)
			if len(data) != 4*elements || !strings.Contains(header, "'shape': "+text) {
				t.Errorf("%v as %s: %d decoded bytes, %s", shape, name, len(data), header)
			}
		}
		if fit < 10 {
			t.Errorf("%v: %d schemes fit", shape, fit)
		}
		t.Logf("%v: %d of %d", shape, fit, len(names))
	}
}
