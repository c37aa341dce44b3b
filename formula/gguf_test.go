package formula

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// ggufFile writes headers for tests, in either byte order.
type ggufFile struct {
	order         binary.ByteOrder
	keys, tensors bytes.Buffer
	nKeys, nTens  uint64
}

func (f *ggufFile) put(b *bytes.Buffer, values ...any) {
	for _, v := range values {
		if s, ok := v.(string); ok {
			f.put(b, uint64(len(s)))
			b.WriteString(s)
			continue
		}
		if err := binary.Write(b, f.order, v); err != nil {
			panic(err)
		}
	}
}

func (f *ggufFile) key(name string, kind ggufKind, values ...any) *ggufFile {
	f.nKeys++
	f.put(&f.keys, name, uint32(kind))
	f.put(&f.keys, values...)
	return f
}

func (f *ggufFile) tensor(name string, kind uint32, shape ...uint64) *ggufFile {
	f.nTens++
	f.put(&f.tensors, name, uint32(len(shape)))
	for _, n := range shape {
		f.put(&f.tensors, n)
	}
	f.put(&f.tensors, kind, uint64(0))
	return f
}

func (f *ggufFile) bytes(version uint32) []byte {
	var b bytes.Buffer
	b.WriteString("GGUF")
	f.put(&b, version, f.nTens, f.nKeys)
	b.Write(f.keys.Bytes())
	b.Write(f.tensors.Bytes())
	return b.Bytes()
}

// smallLlama is a llama of 3 layers, 4 heads of 16 and 2 KV heads.
func smallLlama(order binary.ByteOrder) *ggufFile {
	f := &ggufFile{order: order}
	f.key("general.architecture", ggufString, "llama").
		key("llama.context_length", ggufUint32, uint32(4096)).
		key("llama.embedding_length", ggufUint32, uint32(64)).
		key("llama.block_count", ggufUint32, uint32(3)).
		key("llama.attention.head_count", ggufUint32, uint32(4)).
		key("llama.attention.head_count_kv", ggufArray, uint32(ggufInt32), uint64(3), int32(2), int32(0), int32(1)).
		key("llama.rope.freq_base", ggufFloat32, float32(1e4)).
		key("tokenizer.ggml.tokens", ggufArray, uint32(ggufString), uint64(2), "a", "bc").
		tensor("token_embd.weight", 1, 64, 100).
		tensor("blk.0.ffn_up.weight", 12, 256, 3)
	return f
}

func readGGUF(data []byte) (*GGUF, error) { return ReadGGUF(bytes.NewReader(data), int64(len(data))) }

// TestActiveGGUF: a token uses 2 of 8 experts, which hold 8
// blocks of 144 bytes, and everything else.
func TestActiveGGUF(t *testing.T) {
	f := smallLlama(binary.LittleEndian)
	g, err := readGGUF(f.bytes(3))
	if err != nil || g.ActiveWeightBytes() != g.WeightBytes {
		t.Errorf("dense: %d of %d bytes, %v", g.ActiveWeightBytes(), g.WeightBytes, err)
	}
	f.key("llama.expert_count", ggufUint32, uint32(8)).key("llama.expert_used_count", ggufUint32, uint32(2)).tensor("blk.0.ffn_up_exps.weight", 12, 256, 8)
	if g, err = readGGUF(f.bytes(3)); err != nil || g.WeightBytes != 64*100*2+(3+8)*144 || g.ActiveWeightBytes() != 64*100*2+(3+2)*144 {
		t.Errorf("%d of %d bytes, %v", g.ActiveWeightBytes(), g.WeightBytes, err)
	}
}

func TestReadGGUF(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, version := range []uint32{2, 3} {
			g, err := readGGUF(smallLlama(order).bytes(version))
			if err != nil {
				t.Fatal(err)
			}
			if g.Version != int(version) || g.Architecture() != "llama" || g.Tensors != 2 {
				t.Errorf("%v: version %d, architecture %q, %d tensors", order, g.Version, g.Architecture(), g.Tensors)
			}
			// 64 x 100 of 2 bytes, and 3 blocks of 256 in 144 bytes.
			if want := int64(64*100*2 + 3*144); g.WeightBytes != want || g.Parameters != 64*100+256*3 {
				t.Errorf("%v: %d bytes of %d weights", order, g.WeightBytes, g.Parameters)
			}
			if n, ok := g.Len("tokenizer.ggml.tokens"); !ok || n != 2 {
				t.Errorf("%v: %d tokens", order, n)
			}
			m, err := g.Model(false)
			if err != nil {
				t.Fatal(err)
			}
			// Layer 1 has no KV heads and so no cache.
			if got := m.Geometry.String(); got != "1xfull:2x16+16;1xfull:1x16+16" || m.Layers != 3 {
				t.Errorf("%v: %d layers, %s", order, m.Layers, got)
			}
			if err := m.Validate(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestReadGGUFTruncated cuts a header at every length: an error each time.
func TestReadGGUFTruncated(t *testing.T) {
	data := smallLlama(binary.LittleEndian).bytes(3)
	for n := range data {
		if _, err := readGGUF(data[:n]); !errors.Is(err, ErrGGUF) {
			t.Fatalf("cut at %d of %d: %v", n, len(data), err)
		}
	}
}

func TestReadGGUFRefuses(t *testing.T) {
	le := binary.LittleEndian
	file := func() *ggufFile { return &ggufFile{order: le} }
	nested := file().key("x.y", ggufArray)
	for range 20000 {
		nested.put(&nested.keys, uint32(ggufArray), uint64(1))
	}
	counts := []byte("GGUF")
	counts = le.AppendUint64(le.AppendUint64(le.AppendUint32(counts, 3), 1<<60), 1<<60)
	many := file()
	for i := range 20000 {
		many.key(fmt.Sprint(i), ggufUint8, uint8(1))
	}
	wide := file()
	wide.tensor("w", 0, 1<<40, 1<<40)
	for _, c := range []struct {
		name, want string
		data       []byte
	}{
		{"empty", "does not start with GGUF", nil},
		{"other format", "does not start with GGUF", []byte(strings.Repeat("{", 100000))},
		{"version", "version 1", file().bytes(1)},
		{"counts of 2^60", "does not fit", counts},
		{"array of 2^60", "does not fit", file().key("x.y", ggufArray, uint32(ggufUint32), uint64(1<<60)).bytes(3)},
		{"array of 2^64-1", "does not fit", file().key("x.y", ggufArray, uint32(ggufString), ^uint64(0)).bytes(3)},
		{"string of 16 GiB", "does not fit", file().key("x.y", ggufString, uint64(1<<34)).bytes(3)},
		{"key of 1 MiB", "at most 1024", file().key(strings.Repeat("k", 1<<20), ggufUint8, uint8(1)).bytes(3)},
		{"nested arrays", "array of arrays", nested.bytes(3)},
		{"unknown type", "unknown type 77", file().key("x.y", 77).bytes(3)},
		{"20,000 keys", "more than any model has", many.bytes(3)},
		{"twice", "twice", file().key("x.y", ggufUint8, uint8(1)).key("x.y", ggufUint8, uint8(1)).bytes(3)},
		{"huge number", "more than 2^63", file().key("x.y", ggufUint64, ^uint64(0)).bytes(3)},
		{"huge tensor", "more than 2^63", wide.bytes(3)},
		{"5 dimensions", "5 dimensions", file().tensor("w", 0, 1, 1, 1, 1, 1).bytes(3)},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := readGGUF(c.data)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrGGUF) || !strings.Contains(fmt.Sprint(err), c.want) || strings.Contains(fmt.Sprint(err), "\n") {
				t.Errorf("%v, want one line with %q", err, c.want)
			}
			// The read buffer is 64 KiB, whatever the file.
			if used := after.TotalAlloc - before.TotalAlloc; used > 1<<18+4*uint64(len(c.data)) {
				t.Errorf("%d bytes allocated for a file of %d", used, len(c.data))
			}
		})
	}
}

func TestGGUFModelRefuses(t *testing.T) {
	le := binary.LittleEndian
	with := func(key string, kind ggufKind, values ...any) []byte {
		return smallLlama(le).key(key, kind, values...).bytes(3)
	}
	for _, c := range []struct {
		name, want, upper string
		data              []byte
	}{
		{"no architecture", "general.architecture", "", (&ggufFile{order: le}).bytes(3)},
		{"architecture", `"nothing-known"`, "", (&ggufFile{order: le}).key("general.architecture", ggufString, "nothing-known").bytes(3)},
		{"architecture in full", `unknown architecture: GGUF architecture "lamma"`, "1xfull:2x16+16;1xfull:1x16+16", bytes.ReplaceAll(smallLlama(le).bytes(3), []byte("llama"), []byte("lamma"))},
		{"missing", "llama.context_length: missing", "", (&ggufFile{order: le}).key("general.architecture", ggufString, "llama").bytes(3)},
		{"unknown cache key", "llama.attention.kv_source_layers", "1xfull:2x16+16;1xfull:1x16+16", with("llama.attention.kv_source_layers", ggufUint32, uint32(1))},
		{"negative", "llama.nextn_predict_layers", "", with("llama.nextn_predict_layers", ggufInt32, int32(-1))},
		{"type", "llama.attention.key_length: not a whole number", "", with("llama.attention.key_length", ggufString, "64")},
		{"no KV heads", "no layer has a KV head", "", bytes.Replace(smallLlama(le).bytes(3),
			[]byte{2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}, make([]byte, 12), 1)},
		{"length", "llama.feed_forward_length: 2 entries for 3 layers", "", with("llama.feed_forward_length", ggufArray, uint32(ggufUint32), uint64(2), uint32(1), uint32(1))},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := readGGUF(c.data)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.Model(false); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			m, err := g.Model(true)
			if (err == nil) != (c.upper != "") {
				t.Fatalf("assuming: %v", err)
			}
			if err == nil && (m.UpperBound == "" || c.upper != m.Geometry.String()) {
				t.Errorf("upper bound %q of %s, want %s", m.UpperBound, m.Geometry, c.upper)
			}
		})
	}
}

// TestOpenGGUFSplit: the keys of one part, the weights of all.
func TestOpenGGUFSplit(t *testing.T) {
	dir := t.TempDir()
	write := func(part int, f *ggufFile) {
		name := filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", part))
		if err := os.WriteFile(name, f.key("split.count", ggufUint16, uint16(2)).bytes(3), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	open := func(part int) *GGUF {
		g, err := OpenGGUF(filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", part)))
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	write(1, smallLlama(binary.LittleEndian))
	if g := open(1); g.WeightBytes != -1 {
		t.Errorf("half a model has %d bytes of weights", g.WeightBytes)
	}
	write(2, (&ggufFile{order: binary.LittleEndian}).tensor("output.weight", 0, 64, 100))
	for part := 1; part <= 2; part++ {
		g := open(part)
		if want := int64(64*100*2 + 3*144 + 64*100*4); g.WeightBytes != want || g.Tensors != 3 || g.Architecture() != "llama" {
			t.Errorf("part %d: %d tensors of %d bytes, architecture %q, want 3 of %d", part, g.Tensors, g.WeightBytes, g.Architecture(), want)
		}
	}
}
