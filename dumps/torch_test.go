package dumps

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestTorch reads what torch.save wrote (testdata/torch/make.py): every kind of
// container, types, strides and protocols.
func TestTorch(t *testing.T) {
	for name, test := range map[string]struct {
		layers []int
		k, v   DType
	}{
		"tuple.pt":    {[]int{0, 1}, F16, F16},
		"dict.pt":     {[]int{0}, BF16, F32},
		"ordered.pt":  {[]int{3, 7}, F16, F16},
		"listdict.pt": {[]int{0, 1}, F16, F16},
		"strided.pt":  {[]int{0, 1}, F16, F16},
		"dynamic.pt":  {[]int{0, 1}, F16, F16},
		"param.pt":    {[]int{0}, F32, F64},
		"proto4.pt":   {[]int{0}, F16, F16},
	} {
		t.Run(name, func(t *testing.T) {
			f := mustOpen(t, filepath.Join("testdata", "torch", name), Options{})
			var numbers []int
			for _, l := range f.Layers {
				numbers = append(numbers, l.Number)
				if l.KVHeads != 2 || l.Tokens != 5 || l.HeadDimK != 6 || l.HeadDimV != 4 {
					t.Fatalf("%+v", l)
				}
				if k, v := l.Tensor(K).DType, l.Tensor(V).DType; k != test.k || v != test.v {
					t.Errorf("K is %s and V %s", k, v)
				}
				checkValues(t, l, K)
				checkValues(t, l, V)
				if (l.Queries > 0) != (name == "dict.pt") {
					t.Errorf("%d query rows", l.Queries)
				} else if l.Queries > 0 {
					checkValues(t, l, Q)
				}
				if !contains(l.Facts.Assumed, "window") {
					t.Error("the window is taken as known")
				}
			}
			if !reflect.DeepEqual(numbers, test.layers) {
				t.Errorf("layers %v", numbers)
			}
			if len(f.Warnings) > 0 {
				t.Errorf("warnings %q", f.Warnings)
			}
		})
	}
	// A sliding layer of window 4 keeps the last 3 of 5 tokens.
	f := mustOpen(t, filepath.Join("testdata", "torch", "dynamic_sliding.pt"), Options{})
	l := f.Layers[0]
	if l.Tokens != 3 || l.Facts.Window != 4 || l.Facts.FirstPosition != 2 {
		t.Errorf("%d tokens, %+v", l.Tokens, l.Facts)
	}
	if got := readHead(t, l, K, 1); float64(got[0]) != value(int(K), 1, 2, 0) {
		t.Errorf("its first key is %g", got[0])
	}
	if l := f.Layers[1]; l.Tokens != 5 || l.Facts.Window != 0 || contains(l.Facts.Assumed, "window") {
		t.Errorf("%d tokens, %+v", l.Tokens, l.Facts)
	}
	if l := mustOpen(t, filepath.Join("testdata", "torch", "fp8.pt"), Options{}).Layers[0]; l.DType != E4M3 {
		t.Errorf("fp8.pt: %s", l.DType)
	} else if got := readHead(t, l, K, 0); got[1] != -1 || got[2] != 2 {
		t.Errorf("fp8.pt: %v", got[:6])
	}
	// Whatever its name, and in either order of the extension's letters.
	data, err := os.ReadFile(filepath.Join("testdata", "torch", "tuple.pt"))
	if err != nil {
		t.Fatal(err)
	}
	dir := write(t, "cache.bin", data, "cache.PTH", data)
	for _, name := range []string{"cache.bin", "cache.PTH"} {
		checkValues(t, mustOpen(t, filepath.Join(dir, name), Options{}).Layers[1], V)
	}
}

// pickle puts a pickle together: strings are opcodes and names, numbers are
// pushed, and the whole is stopped.
func pickle(parts ...any) []byte {
	b := []byte{0x80, 2}
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			b = append(b, p...)
		case int:
			b = binary.LittleEndian.AppendUint32(append(b, 'J'), uint32(int32(p)))
		case pickleText:
			b = binary.LittleEndian.AppendUint32(append(b, 'X'), uint32(len(p)))
			b = append(b, p...)
		}
	}
	return append(b, '.')
}

// pickleText is pushed as a string.
type pickleText string

// storage pushes the storage of the given key and number of float32 elements.
func storage(key string, n int) []any {
	return []any{"(", pickleText("storage"), "ctorch\nFloatStorage\n", pickleText(key), pickleText("cpu"), n, "tQ"}
}

// pickledTensor pushes a tensor over storage 0.
func pickledTensor(elements, offset int, shape, stride []int) []any {
	parts := append([]any{"ctorch._utils\n_rebuild_tensor_v2\n("}, storage("0", elements)...)
	parts = append(parts, offset)
	for _, list := range [][]int{shape, stride} {
		parts = append(parts, "(")
		for _, n := range list {
			parts = append(parts, n)
		}
		parts = append(parts, "t")
	}
	return append(parts, "\x89ccollections\nOrderedDict\n)RtR")
}

func torchFile(t testing.TB, method uint16, data []byte, storages ...member) []byte {
	return npzFile(t, method, append([]member{{"x/data.pkl", data}}, storages...)...)
}

func TestTorchRefuses(t *testing.T) {
	parts := func(lists ...[]any) []byte {
		var all []any
		for _, l := range lists {
			all = append(all, l...)
		}
		return pickle(all...)
	}
	good := []int{1, 2, 1}
	tensor := func(elements, offset int, shape, stride []int) []byte {
		x := pickledTensor(elements, offset, shape, stride)
		return parts(x, x, []any{"\x86"})
	}
	floats := member{"x/data/0", make([]byte, 16)}
	nested := "]q\x00h\x00a" // a list that holds itself
	wide := ")" + strings.Repeat("q\x00h\x00h\x00h\x00h\x00h\x00(h\x00h\x00h\x00h\x00h\x00h\x00h\x00h\x00t", 10)
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"not a zip":         {[]byte("PK\x03\x04 and no more of it"), "not a file of torch.save"},
		"bare pickle":       {append(pickle("N"), make([]byte, 20)...), "a bare pickle"},
		"no pickle":         {npzFile(t, zip.Store, member{"x/y", nil}), "without data.pkl"},
		"program":           {torchFile(t, zip.Store, pickle("N"), member{"x/constants.pkl", nil}), "a TorchScript program"},
		"compressed":        {torchFile(t, zip.Deflate, pickle("N")), `"data.pkl" is compressed`},
		"bomb":              {torchFile(t, zip.Deflate, bytes.Repeat([]byte{'N'}, 1<<20)), `"data.pkl" is compressed`},
		"huge pickle":       {torchFile(t, zip.Store, make([]byte, maxPickle+1)), "more than the 16777216 allowed"},
		"many values":       {torchFile(t, zip.Store, bytes.Repeat([]byte("]"), 10<<20)), "more than 262144 opcodes"},
		"many memos":        {torchFile(t, zip.Store, append([]byte("N"), bytes.Repeat([]byte{0x94}, 10<<20)...)), "more than 262144 opcodes"},
		"runs code":         {torchFile(t, zip.Store, pickle("cposix\nsystem\n", pickleText("true"), "\x85R")), `names "posix.system", which is not on the list`},
		"runs code, new":    {torchFile(t, zip.Store, pickle(pickleText("builtins"), pickleText("eval"), "\x93")), `names "builtins.eval"`},
		"calls a class":     {torchFile(t, zip.Store, pickle("ctransformers.cache_utils\nDynamicCache\n)R")), `calls "transformers.cache_utils.DynamicCache": refused`},
		"opcode":            {torchFile(t, zip.Store, pickle("(i__main__\nX\n")), "opcode 0x69"},
		"extension":         {torchFile(t, zip.Store, pickle("\x82\x01")), "opcode 0x82"},
		"cut":               {torchFile(t, zip.Store, []byte{0x80, 2, 'X', 255, 255, 255, 127}), "cut short at byte 7"},
		"empty":             {torchFile(t, zip.Store, nil), "cut short at byte 0"},
		"stack":             {torchFile(t, zip.Store, []byte{0x80, 2, '.'}), "empty stack"},
		"no mark":           {torchFile(t, zip.Store, pickle("t")), "lacks a mark"},
		"memo":              {torchFile(t, zip.Store, pickle("h\x07")), "recalls 7, which it never stored"},
		"holds itself":      {torchFile(t, zip.Store, pickle(nested)), "nested too deep, or hold themselves"},
		"grows":             {torchFile(t, zip.Store, pickle(wide)), "hold more than any cache needs"},
		"append to nothing": {torchFile(t, zip.Store, pickle("Na")), "something else than a list"},
		"append to none":    {torchFile(t, zip.Store, pickle("NNa")), "something else than a list"},
		"no tensors":        {torchFile(t, zip.Store, pickle("N")), "no tensors in it"},
		"storage missing":   {torchFile(t, zip.Store, tensor(4, 0, good, good)), `"data/0" is missing`},
		"storage short":     {torchFile(t, zip.Store, tensor(5, 0, good, good), floats), "its storage of 5 elements holds 16 bytes"},
		"storage packed":    {npzFile(t, zip.Store, member{"x/data.pkl", tensor(4, 0, good, good)}, member{"x/data/00", nil}), "is missing"},
		"beyond":            {torchFile(t, zip.Store, tensor(4, 3, good, []int{1, 1, 1}), floats), "reaches beyond the 4 elements"},
		"stride":            {torchFile(t, zip.Store, tensor(4, 0, good, []int{1, 1 << 30, 1}), floats), "needs more than the 4 elements"},
		"no stride":         {torchFile(t, zip.Store, tensor(4, 0, []int{1, 1 << 30, 1}, []int{0, 0, 0}), floats), "needs more than the 4 elements"},
		"negative":          {torchFile(t, zip.Store, tensor(4, 0, []int{1, -2, 1}, good), floats), "a tensor that kvq does not read"},
		"nothing":           {torchFile(t, zip.Store, tensor(4, 0, []int{1, 0, 1}, good), floats), "nothing in it"},
		"batch":             {torchFile(t, zip.Store, tensor(4, 0, []int{2, 1, 2, 1}, []int{2, 2, 1, 1}), floats), "a batch of 2"},
		"twice":             {torchFile(t, zip.Store, parts([]any{"}(", pickleText("k")}, pickledTensor(4, 0, good, good), []any{pickleText("k")}, pickledTensor(4, 0, good, good), []any{"u"}), floats), `two tensors are called "k"`},
		"long name":         {torchFile(t, zip.Store, parts([]any{"}", pickleText(strings.Repeat("k", 300))}, pickledTensor(4, 0, good, good), []any{"s"}), floats), "a name of 300 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(filepath.Join(write(t, "x.pt", test.data), "x.pt"), Options{})
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
	for name, want := range map[string]string{"evil.pt": `names "posix.system"`, "legacy.pt": "in its old format"} {
		if _, err := Open(filepath.Join("testdata", "torch", name), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	// Cut anywhere, a file is refused.
	data, err := os.ReadFile(filepath.Join("testdata", "torch", "strided.pt"))
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(data); n += 7 {
		if _, _, err := readTorch(bytes.NewReader(data[:n]), int64(n), "x.pt"); err == nil {
			t.Errorf("%d of %d bytes are taken for a whole file", n, len(data))
		}
	}
}
