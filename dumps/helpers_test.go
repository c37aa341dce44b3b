package dumps

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files of these tests are put together here byte by byte, not by the
// package's own writers.

// npyFile returns an npy file of the given version with the header's fields
// pasted in as they are.
func npyFile(version byte, descr, fortran, shape string, data []byte) []byte {
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", descr, fortran, shape)
	return npyRaw(version, dict, data)
}

func npyRaw(version byte, dict string, data []byte) []byte {
	pre := 10
	if version > 1 {
		pre = 12
	}
	for (pre+len(dict)+1)%64 != 0 {
		dict += " "
	}
	dict += "\n"
	b := []byte("\x93NUMPY")
	b = append(b, version, 0)
	if version == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(dict)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(dict)))
	}
	return append(append(b, dict...), data...)
}

// value is the element of tensor p at (head, token, channel): small integers,
// exact in every type but fp8, and different for every index.
func value(p, h, t, c int) float64 {
	v := float64(p*512 + h*128 + t*16 + c)
	if (h+t+c)%2 == 1 {
		v = -v
	}
	return v
}

// half returns the f16 pattern of an integer below 2048 in magnitude.
func half(v float64) uint16 {
	if v == 0 {
		return 0
	}
	var sign uint16
	if v < 0 {
		sign, v = 0x8000, -v
	}
	frac, exp := math.Frexp(v) // v = frac·2^exp, frac in [1/2, 1)
	return sign | uint16(exp+14)<<10 | uint16(frac*2048)&0x3ff
}

// appendElement appends v in the named numpy type.
func appendElement(b []byte, descr string, v float64) []byte {
	order := binary.AppendByteOrder(binary.LittleEndian)
	if descr[0] == '>' {
		order = binary.BigEndian
	}
	switch descr[1:] {
	case "f2":
		return order.AppendUint16(b, half(v))
	case "f4":
		return order.AppendUint32(b, math.Float32bits(float32(v)))
	case "f8":
		return order.AppendUint64(b, math.Float64bits(v))
	case "V2", "u2": // bfloat16
		return order.AppendUint16(b, uint16(math.Float32bits(float32(v))>>16))
	case "i4":
		return order.AppendUint32(b, uint32(int32(v)))
	case "i8":
		return order.AppendUint64(b, uint64(int64(v)))
	}
	panic(descr)
}

// fill writes the elements of an array of the given shape in C or Fortran
// order, asking at for the value at each index.
func fill(descr string, fortran bool, shape []int, at func(i []int) float64) []byte {
	n := 1
	for _, d := range shape {
		n *= d
	}
	var b []byte
	idx := make([]int, len(shape))
	for range n {
		b = appendElement(b, descr, at(idx))
		for k := range shape {
			axis := len(shape) - 1 - k
			if fortran {
				axis = k
			}
			if idx[axis]++; idx[axis] < shape[axis] {
				break
			}
			idx[axis] = 0
		}
	}
	return b
}

func pyBool(b bool) string {
	if b {
		return "True"
	}
	return "False"
}

func pyShape(shape []int) string {
	s := "("
	for _, d := range shape {
		s += fmt.Sprintf("%d, ", d)
	}
	return s + ")"
}

type member struct {
	name string
	data []byte
}

func npzFile(t testing.TB, method uint16, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, m := range members {
		w, err := z.CreateHeader(&zip.FileHeader{Name: m.name, Method: method})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(m.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func safetensorsFile(header string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

// write puts files into a fresh directory and returns its path. Names and
// contents alternate.
func write(t testing.TB, files ...any) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(files); i += 2 {
		data, ok := files[i+1].([]byte)
		if !ok {
			data = []byte(files[i+1].(string))
		}
		if err := os.WriteFile(filepath.Join(dir, files[i].(string)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mustOpen(t testing.TB, path string, o Options) *File {
	t.Helper()
	f, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func readHead(t testing.TB, l *Layer, p Part, head int) []float32 {
	t.Helper()
	dst := make([]float32, l.Rows(p)*l.Tensor(p).Dim)
	if err := l.ReadHead(dst, p, head); err != nil {
		t.Fatal(err)
	}
	return dst
}

// checkValues compares every head of a part with value.
func checkValues(t testing.TB, l *Layer, p Part) {
	t.Helper()
	ten := l.Tensor(p)
	for h := range ten.Heads {
		got := readHead(t, l, p, h)
		for i, v := range got {
			if want := value(int(p), h, i/ten.Dim, i%ten.Dim); float64(v) != want {
				t.Fatalf("%s head %d, row %d, channel %d: %v, want %v", p, h, i/ten.Dim, i%ten.Dim, v, want)
			}
		}
	}
}

func contains(list []string, part string) bool {
	for _, s := range list {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}
