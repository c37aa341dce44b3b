package cmd

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// npy returns an array file of version 1 with the given shape and data.
func npy(descr, shape string, data []byte) []byte {
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape)
	header += strings.Repeat(" ", 63-(10+len(header))%64) + "\n"
	b := []byte("\x93NUMPY\x01\x00")
	b = binary.LittleEndian.AppendUint16(b, uint16(len(header)))
	return append(append(b, header...), data...)
}

// floats returns n float32 values, a few periods of something uneven.
func floats(n int) []byte {
	var b []byte
	for i := range n {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(i%17)-8+float32(i%5)/3))
	}
	return b
}

// bomb is a small npz whose members inflate to 64 MiB of zeros each, behind
// headers that name 128 bytes.
func bomb() []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestSpeed) })
	for _, name := range []string{"k.npy", "v.npy"} {
		w, _ := z.Create(name)
		w.Write(npy("<f4", "(1, 4, 8)", nil))
		zeros := make([]byte, 1<<20)
		for range 64 {
			w.Write(zeros)
		}
	}
	z.Close()
	return b.Bytes()
}

// TestBadInput gives kvq eval what must fail: with one clear line, within a
// second, and without asking for memory that the file does not hold.
func TestBadInput(t *testing.T) {
	good := npy("<f4", "(2, 1, 4, 8)", floats(2*4*8))
	nan := bytes.Clone(good)
	binary.LittleEndian.PutUint32(nan[len(nan)-4:], 0x7fc00000)
	huge := bytes.Clone(good)
	binary.LittleEndian.PutUint32(huge[len(huge)-4:], math.Float32bits(1e30))
	for _, test := range []struct {
		name, file string
		content    []byte
		args       string // FILE stands for the file's path
		code       int
		stderr     string
	}{
		{"missing", "", nil, "--dump no-such-file.npy", exitFailure, "no-such-file.npy"},
		{"empty file", "x.npy", nil, "--dump FILE", exitFailure, "x.npy"},
		{"wrong magic", "x.npy", append([]byte("\x93NUMBY"), good[6:]...), "--dump FILE", exitFailure, "magic"},
		{"truncated", "x.npy", good[:len(good)-1], "--dump FILE", exitFailure, "x.npy"},
		{"header only", "x.npy", good[:20], "--dump FILE", exitFailure, "x.npy"},
		{"shape larger than data", "x.npy", npy("<f4", "(2, 1, 8, 8)", floats(2*4*8)), "--dump FILE", exitFailure, "x.npy"},
		{"2^40 elements", "x.npy", npy("<f4", "(2, 1024, 1048576, 512)", floats(8)), "--dump FILE", exitFailure, "x.npy"},
		{"shape overflows", "x.npy", npy("<f4", "(2, 4611686018427387904, 4, 8)", floats(8)), "--dump FILE", exitFailure, "x.npy"},
		{"no tokens", "x.npy", npy("<f4", "(2, 1, 0, 8)", nil), "--dump FILE", exitFailure, "x.npy"},
		{"one dimension", "x.npy", npy("<f4", "(64,)", floats(64)), "--dump FILE", exitFailure, "x.npy"},
		{"integers", "x.npy", npy("<i4", "(2, 1, 4, 8)", floats(2*4*8)), "--dump FILE", exitFailure, "x.npy"},
		{"NaN", "x.npy", nan, "--dump FILE --scheme int8-token", exitFailure, "v head 0, token 3, channel 7 is NaN"},
		{"npz bomb", "x.npz", bomb(), "--dump FILE --scheme int8-token", exitFailure, "x.npz"},
		{"no zip", "x.npz", []byte("PK\x03\x04 and then nothing"), "--dump FILE", exitFailure, "x.npz"},
		{"safetensors header of 2^60", "x.safetensors", append(binary.LittleEndian.AppendUint64(nil, 1<<60), "{}"...), "--dump FILE", exitFailure, "x.safetensors"},
		{"safetensors is no JSON", "x.safetensors", append(binary.LittleEndian.AppendUint64(nil, 4), "{{{{"...), "--dump FILE", exitFailure, "x.safetensors"},
		{"unknown kind of file", "x.bin", []byte("tensors, honestly"), "--dump FILE", exitFailure, "x.bin"},
		{"empty directory", "", nil, "--dump EMPTY", exitFailure, "empty"},
		{"unknown scheme", "x.npy", good, "--dump FILE --scheme int9-token", exitUsage, "int9-token"},
		{"scheme typo", "x.npy", good, "--dump FILE --scheme int8-tokn", exitUsage, "int8-tokn"},
		{"group larger than a head", "x.npy", good, "--dump FILE --scheme int8-token/32", exitUsage, "int8-token/32"},
		{"nothing quantized", "x.npy", good, "--dump FILE --scheme exact", exitUsage, "exact"},
		{"a value that a scheme cannot hold", "x.npy", huge, "--dump FILE --scheme f16", exitFailure, "kvq: x.npy: layer 0: v: scheme f16: head 0, token 3, channel 7 is 1e+30: f16 holds"},
		{"no dump", "", nil, "", exitUsage, "--dump"},
		{"dump and parts", "x.npy", good, "--dump FILE --k FILE", exitUsage, "--k"},
		{"keys only", "x.npy", good, "--k FILE", exitUsage, "--v"},
		{"no such layer", "x.npy", good, "--dump FILE --layer 7", exitUsage, "--layer 7"},
		{"layer list", "x.npy", good, "--dump FILE --layer a", exitUsage, "--layer"},
		{"layout", "x.npy", good, "--dump FILE --layout dsh", exitUsage, "dsh"},
		{"dtype", "x.npy", good, "--dump FILE --dtype int4", exitUsage, "int4"},
		{"queries", "x.npy", good, "--dump FILE --queries none", exitUsage, "--queries"},
		{"threads", "x.npy", good, "--dump FILE --threads 0", exitUsage, "--threads"},
		{"instruction set", "x.npy", good, "--dump FILE --isa mmx", exitUsage, "mmx"},
		{"scale", "x.npy", good, "--dump FILE --scale -1", exitUsage, "scale"},
		{"outlier ratio", "x.npy", good, "--dump FILE --outlier-ratio 0.5", exitUsage, "--outlier-ratio"},
		{"gate without scheme", "x.npy", good, "--dump FILE --fail-if kl_mean>1", exitUsage, "--scheme"},
		{"gate on an unknown figure", "x.npy", good, "--dump FILE --scheme int8-token --fail-if karma>1", exitUsage, "karma"},
		{"gate without number", "x.npy", good, "--dump FILE --scheme int8-token --fail-if v_nmse>", exitUsage, "v_nmse"},
		{"gate on stand-in queries", "x.npy", good, "--dump FILE --scheme int8-token --fail-if kl_mean>1", exitUsage, "--allow-proxy"},
		{"missing baseline", "x.npy", good, "--dump FILE --scheme int8-token --baseline no-such.json", exitFailure, "no-such.json"},
		{"baseline of another kind", "x.npy", good, "--dump FILE --scheme int8-token --baseline FILE", exitFailure, "x.npy"},
		{"tolerance", "x.npy", good, "--dump FILE --scheme int8-token --baseline FILE --tolerance -1%", exitUsage, "--tolerance"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, test.file)
			if test.file != "" {
				if err := os.WriteFile(path, test.content, 0o666); err != nil {
					t.Fatal(err)
				}
			}
			empty := filepath.Join(dir, "empty")
			if err := os.Mkdir(empty, 0o777); err != nil {
				t.Fatal(err)
			}
			args := []string{"eval", "--no-bench"}
			for _, a := range strings.Fields(test.args) {
				switch a {
				case "FILE":
					a = path
				case "EMPTY":
					a = empty
				}
				args = append(args, a)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			code, stdout, stderr := run(args...)
			runtime.ReadMemStats(&after)
			if code != test.code || stdout != "" {
				t.Errorf("exit code %d, want %d; stdout %q", code, test.code, stdout)
			}
			line, rest, _ := strings.Cut(stderr, "\n")
			if !strings.HasPrefix(line, "kvq: ") || !strings.Contains(stderr, test.stderr) {
				t.Errorf("stderr %q, want one line with %q", stderr, test.stderr)
			}
			if test.file != "" && strings.Count(line, test.file) > 1 {
				t.Errorf("stderr %q names the file twice", line)
			}
			for l := range strings.Lines(rest) {
				if !strings.HasPrefix(l, "kvq: hint: ") {
					t.Errorf("a second line that is no hint: %q", l)
				}
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("took %v", took) // a second, and room for a busy machine
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 100<<20 {
				t.Errorf("allocated %d MiB", n>>20)
			}
		})
	}
}

// TestErrorsNameThingsOnce holds that a message says once which file, scheme or
// name is at fault.
func TestErrorsNameThingsOnce(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.md")
	if err := os.WriteFile(text, []byte("# No such thing as a model\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	dump := filepath.Join("..", "dumps", "testdata", "layer12.npy")
	absent := filepath.Join(dir, "absent.gguf")
	for _, test := range []struct{ args, name, want string }{
		{"plan --config TEXT", "text.md", "kvq: --config TEXT: not a JSON object"},
		{"plan --config ABSENT", "absent", "kvq: --config ABSENT: no such file or directory"},
		{"plan --gguf TEXT", "text.md", "kvq: --gguf TEXT: not a valid GGUF header"},
		{"plan --gguf ABSENT", "absent", "kvq: --gguf ABSENT: no such file or directory"},
		{"plan --model 8b --draft ABSENT", "absent", "kvq: --draft ABSENT: no such file or directory"},
		{"plan --model 8b --scheme int9", "int9", `kvq: scheme "int9": no such scheme`},
		{"plan --model 8b --scheme q8_0:int9", `"int9"`, `kvq: scheme "q8_0:int9": unknown scheme "int9"`},
		{"plan --geometry 1xfull:2x40+40 --ctx 64 --scheme q8_0", "q8_0", `scheme "q8_0": its blocks`},
		{"eval --dump DUMP --set mine", "mine", "kvq: --set mine: no such set"},
		{"eval --dump DUMP --gguf TEXT", "text.md", "kvq: --gguf TEXT: not a valid GGUF header"},
		{"eval --dump DUMP --gguf ABSENT", "absent", "kvq: --gguf ABSENT: no such file or directory"},
		{"eval --k DUMP --v ABSENT", "absent", "kvq: --v ABSENT: no such file or directory"},
		{"eval --k DUMP --v DUMP", "layer12", "kvq: DUMP: array has shape [2, 3, 2048, 64]: a batch of 2"},
		{"eval --dump DUMP --scheme int8-token --baseline TEXT", "text.md", "kvq: --baseline TEXT: not a report"},
		{"eval --dump DUMP --truth TEXT", "text.md", "kvq: --truth TEXT: line 1: no header"},
		{"eval --dump DUMP --scheme int8-token+prerope", "int8-token", `layer 12: v: scheme "int8-token+prerope": +prerope needs`},
		{"bench --scheme q8_0 --head-dim 40 --ctx 64 --time 1ms", "q8_0", `kvq: scheme "q8_0": its blocks`},
		{"inspect TEXT", "text.md", "kvq: TEXT: not a dump"},
		{"schemes int9", "int9", `kvq: scheme "int9": no such scheme`},
	} {
		in := strings.NewReplacer("TEXT", text, "ABSENT", absent, "DUMP", dump)
		code, _, stderr := run(strings.Fields(in.Replace(test.args))...)
		line, _, _ := strings.Cut(stderr, "\n")
		if code == exitOK || strings.Count(line, test.name) != 1 || !strings.Contains(line, in.Replace(test.want)) {
			t.Errorf("%s: exit code %d, %q, want %q and %q once", test.args, code, line, in.Replace(test.want), test.name)
		}
	}
}

// TestAbsurdConfig: what no model has is the file's fault, not the command line's.
func TestAbsurdConfig(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	text := `{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64,"head_dim":1099511627776}`
	if err := os.WriteFile(config, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := run("plan", "--config", config, "--ctx", "4k")
	if code != exitFailure || !strings.Contains(stderr, config) || !strings.Contains(stderr, "head_dim 1099511627776") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}
