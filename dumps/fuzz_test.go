package dumps

import (
	"archive/zip"
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fuzzOpen opens data as a dump and reads all of it. Whatever the bytes are,
// nothing may panic, and what opens must be as large as the file allows.
//
// The targets parse in memory first and come here with what passes: files are
// slow to write, and a fuzzer that runs slowly finds nothing.
func fuzzOpen(t *testing.T, path string, data []byte) {
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{{}, {Layout: SHD, DType: BF16, AllowNonfinite: true, KVHeads: 2}} {
		f, err := Open(path, o)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("more than one line: %q", err)
			}
			continue
		}
		for _, l := range f.Layers {
			for p := K; p <= OWeight; p++ {
				ten := l.Tensor(p)
				if ten == nil {
					continue
				}
				if n := int64(ten.Heads) * int64(ten.Rows) * int64(ten.Dim); n > int64(len(data)) && !ten.Deflated {
					t.Fatalf("%s has %d elements in a file of %d bytes", p, n, len(data))
				}
				if l.Rows(p)*ten.Dim > 1<<24 {
					continue
				}
				dst := make([]float32, l.Rows(p)*ten.Dim)
				for h := range min(ten.Heads, 3) {
					_ = l.ReadHead(dst, p, h)
				}
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func FuzzNPY(f *testing.F) {
	f.Add(npyFile(1, "<f2", "False", "(2, 1, 3, 2)", make([]byte, 24)))
	f.Add(npyFile(2, ">f8", "True", "(1, 3, 1, 2, 1)", make([]byte, 48)))
	f.Add(npyFile(3, "|V2", "False", "(2, 1, 1, 1)", make([]byte, 4)))
	f.Add(npyFile(1, "<f4", "False", "(2, 1, 1099511627776, 1)", nil))
	path := filepath.Join(f.TempDir(), "x.npy")
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := readNPYHeader(bytes.NewReader(data))
		if err != nil {
			return
		}
		if size, err := h.bytes(); err == nil && size == int64(len(data))-h.length {
			fuzzOpen(t, path, data)
		}
	})
}

func FuzzNPYHeader(f *testing.F) {
	f.Add("{'descr': '<f2', 'fortran_order': False, 'shape': (2, 3L, ), }")
	f.Add("{\"shape\": (), 'descr':'|S3','fortran_order':True}")
	f.Fuzz(func(t *testing.T, s string) {
		h, err := parseNPYDict(s)
		if err != nil {
			return
		}
		if len(h.shape) > maxDims || h.elem.size < 0 {
			t.Errorf("%+v", h)
		}
		_, _ = h.bytes()
	})
}

func FuzzNPZ(f *testing.F) {
	for _, method := range []uint16{zip.Store, zip.Deflate} {
		f.Add(npzFile(f, method, member{"k.npy", roleArray(K, 2, 3, 4)}, member{"v.npy", roleArray(V, 2, 3, 4)}, member{"q.npy", roleArray(Q, 2, 2, 4)},
			member{"q_positions.npy", ints("<i4", 0, 2)}, member{"kvq.npy", unicode(`{"schema":"kvq.dump/1"}`)}))
	}
	path := filepath.Join(f.TempDir(), "x.npz")
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := readNPZ(bytes.NewReader(data), int64(len(data)), path)
		if err != nil {
			return
		}
		for _, name := range a.names {
			if name == "kvq" {
				_, _ = a.text(name)
			}
			if arr, err := a.array(name); err == nil && !arr.deflate && arr.bytes > int64(len(data)) {
				t.Errorf("%q has %d bytes in a file of %d", name, arr.bytes, len(data))
			}
		}
	})
}

func FuzzSafetensors(f *testing.F) {
	var b bytes.Buffer
	if err := WriteSafetensors(&b, &FactFile{}, layerContents("layers.1.", BF16, 1, 2, 4, 2, 3, 2)); err != nil {
		f.Fatal(err)
	}
	f.Add(slices.Clone(b.Bytes()))
	f.Add(mlxFile("RotatingKVCache", mlxNew, []int{0, 1, -1}, 2, 0, 4, 2))
	f.Add(mlxFile("RotatingKVCache", mlxOld+`,"0.0.0":"0","0.0.1":"3","0.0.2":"5","0.0.3":"2"`, []int{3, 4, 2}))
	f.Add(safetensorsFile(`{"k":{"dtype":"F8_E4M3","shape":[1,4,1],"data_offsets":[0,4]},"v":{"dtype":"F64","shape":[1,4,1],"data_offsets":[4,36]}}`, make([]byte, 36)))
	path := filepath.Join(f.TempDir(), "x.safetensors")
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 8 {
			return
		}
		if _, _, err := readSafetensors(bytes.NewReader(data), int64(len(data)), path); err == nil {
			fuzzOpen(t, path, data)
		}
	})
}

func FuzzFacts(f *testing.F) {
	f.Add([]byte(`{"schema":"kvq.dump/1","defaults":{"scale":1,"causal":true,"sinks":[1]},"layers":{"0":{"window":1,"rope":{"theta":1,"style":"half"},"q_positions":[0]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, _, err := ParseFacts(data, "kvq.json")
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		text, err := facts.JSON()
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := ParseFacts(text, "kvq.json")
		if err != nil {
			t.Fatalf("what was written does not read: %v", err)
		}
		if second, _ := again.JSON(); !bytes.Equal(text, second) {
			t.Errorf("%s became %s", text, second)
		}
	})
}

// Names of tensors and files.
func FuzzNames(f *testing.F) {
	f.Add("model.layers.3.self_attn.key", "key_cache.{layer}")
	f.Fuzz(func(t *testing.T, name, pattern string) {
		o := Options{NameK: pattern}
		patterns, err := o.patterns()
		if err != nil {
			return
		}
		groups, unused, err := groupNames([]string{name, name + ".v", name + ".k"}, patterns)
		if err == nil && len(groups) == 0 && len(unused) == 0 {
			t.Error("names vanished")
		}
	})
}

func FuzzLlamaState(f *testing.F) {
	cells := []testCell{{2, []int{0, 3}}, {0, []int{0}}, {1, []int{3}}}
	f.Add(sequenceHead().put(1).cells(0, cells...).put(0, 2).rows(K, 6, cells...).rows(K, 6, cells...).rows(V, 4, cells...).rows(V, 4, cells...).Bytes())
	f.Add(sessionHead("x").put(1).cells(8, cells...).put(1, 1).rows(K, 6, cells...).columns(V, 4, cells...).put(1).cells(8, cells[:1]...).put(1, 1).rows(K, 2, cells[:1]...).columns(V, 2, cells[:1]...).Bytes())
	f.Add(sessionHead("x").put(1).cells(0, cells...).put(0, 1, 8, uint64(34)).put(string(make([]byte, 3*34))).put(1, 2, 0).put(0, 1, 0, uint64(2), "ab").Bytes())
	path := filepath.Join(f.TempDir(), "slot.bin")
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := readState(bytes.NewReader(data), int64(len(data)), path)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		held := 0
		for _, c := range s.caches {
			for _, stream := range c {
				held += len(stream.cells) + len(stream.k)
			}
		}
		if held > len(data) {
			t.Errorf("%d cells and layers in %d bytes", held, len(data))
		}
		fuzzOpen(t, path, data)
	})
}

func FuzzPickle(f *testing.F) {
	f.Add(pickle(append(pickledTensor(4, 0, []int{1, 2, 1}, []int{2, 1, 1}), "\x85")...))
	f.Add(pickle("ctransformers.cache_utils\nDynamicCache\n)\x81}(", pickleText("layers"), "](ctransformers.cache_utils\nDynamicSlidingWindowLayer\n)\x81}", pickleText("sliding_window"), 4, "sbeub"))
	f.Add(pickle("]q\x00h\x00a\x94", pickleText("x"), "\x8c\x01y\x93"))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := unpickle(data)
		if err == nil {
			w := &torchWalk{tensors: map[string]*pickleTensor{}, facts: &FactFile{}}
			err = w.visit(root, nil)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\r") {
			t.Errorf("more than one line: %q", err)
		}
	})
}

func FuzzTorch(f *testing.F) {
	for _, name := range []string{"tuple.pt", "strided.pt", "dynamic_sliding.pt", "fp8.pt"} {
		data, err := os.ReadFile(filepath.Join("testdata", "torch", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	path := filepath.Join(f.TempDir(), "x.pt")
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 20 {
			return
		}
		if _, _, err := readTorch(bytes.NewReader(data), int64(len(data)), path); err == nil {
			fuzzOpen(t, path, data)
		}
	})
}
