package quantize

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// readNpy reads a two-dimensional little-endian npy file of type kind ("<f4", "|u1").
func readNpy(t testing.TB, path, kind string) (rows int, data []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(b, []byte("\x93NUMPY\x01")) {
		t.Fatalf("%s: not an npy file of version 1", path)
	}
	end := 10 + int(binary.LittleEndian.Uint16(b[8:]))
	header := string(b[10:end])
	if !strings.Contains(header, "'"+kind+"'") || !strings.Contains(header, "'fortran_order': False") {
		t.Fatalf("%s: header %s", path, header)
	}
	_, shape, _ := strings.Cut(header, "'shape': (")
	if _, err := fmt.Sscanf(shape, "%d,", &rows); err != nil {
		t.Fatalf("%s: header %s", path, header)
	}
	return rows, b[end:]
}

func floats(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// TestGGML holds the block formats, f16 and bf16 to the bytes and values that
// ggml's reference encoder gave, in testdata/ggml or the folder KVQ_GGML.
func TestGGML(t *testing.T) {
	dir := os.Getenv("KVQ_GGML")
	if dir == "" {
		dir = filepath.Join("testdata", "ggml")
	}
	rows, input := readNpy(t, filepath.Join(dir, "input.npy"), "<f4")
	x := floats(input)
	dim := len(x) / rows
	files, err := filepath.Glob(filepath.Join(dir, "*.dequant.npy"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors in %s: %v", dir, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".dequant.npy")
		t.Run(name, func(t *testing.T) {
			_, values := readNpy(t, file, "<f4")
			want := floats(values)
			_, wantBytes := readNpy(t, filepath.Join(dir, name+".bytes.npy"), "|u1")
			s := mustLookup(t, name)
			// Row by row, so that a row which the format cannot hold stands alone.
			width := len(wantBytes) / rows
			for row := range rows {
				coder, e := s.NewCoder(), new(Encoded)
				err := coder.Encode(e, Head{Dim: dim, Values: x[row*dim : (row+1)*dim]}, nil)
				if err != nil {
					if !overflows(want[row*dim : (row+1)*dim]) {
						t.Errorf("row %d: %v", row, err)
					}
					continue
				}
				if got, want := e.Append(nil), wantBytes[row*width:(row+1)*width]; !bytes.Equal(got, want) {
					at := 0
					for got[at] == want[at] {
						at++
					}
					t.Errorf("row %d, byte %d: %x, want %x", row, at, got[at], want[at])
				}
				got := make([]float32, dim)
				coder.Decode(got, e)
				for i, v := range got {
					if math.Float32bits(v) != math.Float32bits(want[row*dim+i]) {
						t.Fatalf("row %d, channel %d: %g gives %g, want %g", row, i, x[row*dim+i], v, want[row*dim+i])
					}
				}
			}
		})
	}
}

// overflows reports whether the origin's own decoding is not finite.
func overflows(x []float32) bool {
	for _, v := range x {
		if v-v != 0 {
			return true
		}
	}
	return false
}
