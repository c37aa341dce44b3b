package dumps

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestHeads reads arrays of two to four axes in both orders.
func TestHeads(t *testing.T) {
	for _, test := range []struct {
		descr, fortran, shape string
		data                  []byte
		count                 int
		want                  []float32 // head after head
	}{
		{"|u1", "False", "(2, 3)", []byte{0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c}, 1, []float32{1, 2, 3, 4, 5, 6}},
		{"|u1", "True", "(2, 3)", []byte{0x38, 0x48, 0x40, 0x4a, 0x44, 0x4c}, 1, []float32{1, 2, 3, 4, 5, 6}},
		{"|u1", "False", "(2, 1, 3)", []byte{0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c}, 2, []float32{1, 2, 3, 4, 5, 6}},
		{"|u1", "True", "(2, 1, 3)", []byte{0x38, 0x48, 0x40, 0x4a, 0x44, 0x4c}, 2, []float32{1, 2, 3, 4, 5, 6}},
		{"|u1", "False", "(1, 3, 1, 2)", []byte{0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c}, 3, []float32{1, 2, 3, 4, 5, 6}},
	} {
		path := filepath.Join(t.TempDir(), "x.npy")
		if err := os.WriteFile(path, npyFile(1, test.descr, test.fortran, test.shape, test.data), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := OpenHeads(path, E4M3)
		if err != nil {
			t.Errorf("%s: %v", test.shape, err)
			continue
		}
		if h.Count != test.count {
			t.Errorf("%s: %d heads, want %d", test.shape, h.Count, test.count)
		}
		n := h.Tokens * h.Dim
		for i := range h.Count {
			got := make([]float32, n)
			if err := h.Read(got, i); err != nil {
				t.Error(err)
			}
			for j, v := range got {
				if v != test.want[i*n+j] {
					t.Errorf("%s fortran %s: head %d is %v", test.shape, test.fortran, i, got)
					break
				}
			}
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestHeadsRefuses(t *testing.T) {
	for _, test := range []struct{ fortran, shape string }{{"False", "(6,)"}, {"True", "(1, 1, 2, 3)"}, {"False", "(0, 3)"}} {
		path := filepath.Join(t.TempDir(), "x.npy")
		data := make([]byte, 6)
		if test.shape == "(0, 3)" {
			data = nil
		}
		if err := os.WriteFile(path, npyFile(1, "|u1", test.fortran, test.shape, data), 0o600); err != nil {
			t.Fatal(err)
		}
		if h, err := OpenHeads(path, E4M3); err == nil {
			t.Errorf("%s fortran %s: read as %d heads", test.shape, test.fortran, h.Count)
		}
	}
}

func TestWriteUint8(t *testing.T) {
	var b bytes.Buffer
	err := WriteNPYBytes(&b, []int{2, 2}, func(w io.Writer) error {
		_, err := w.Write([]byte{0x38, 0x40, 0x44, 0x48})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.npy")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := OpenHeads(path, E4M3)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, 4)
	if err := h.Read(got, 0); err != nil || got[3] != 4 || h.Dim != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
}
