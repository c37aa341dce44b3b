package quantize

import (
	"bytes"
	"math"
	"path/filepath"
	"strings"
	"testing"
)

// TestOrigins holds formats to the bytes that their engines' own code made, in
// testdata/origin: MLX, Hugging Face's quanto, hqq without its solver, and SGLang.
func TestOrigins(t *testing.T) {
	dir := filepath.Join("testdata", "origin")
	rows, input := readNpy(t, filepath.Join(dir, "input.npy"), "<f4")
	x := floats(input)
	dim := len(x) / rows
	files, err := filepath.Glob(filepath.Join(dir, "*.bytes.npy"))
	if err != nil || len(files) < 11 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".bytes.npy")
		_, want := readNpy(t, file, "|u1")
		rows, dim := rows, dim
		head := Head{Dim: dim, Heads: 1}
		if formatNamed(name).Class == Strided { // groups reach over the whole tensor
			rows, dim = 1, len(x)
		}
		width := len(want) / rows
		for row := range rows {
			head.Values = x[row*dim : (row+1)*dim]
			coder := mustLookup(t, name).NewCoder()
			var calibration Calibration
			if mustLookup(t, name).Calibrated() {
				if err := coder.Observe(&calibration, head); err != nil {
					t.Fatal(err)
				}
			}
			e := new(Encoded)
			if err := coder.Encode(e, head, &calibration); err != nil {
				t.Errorf("%s, row %d: %v", name, row, err)
				continue
			}
			got, want := e.Append(nil), want[row*width:(row+1)*width]
			if !bytes.Equal(got, want) {
				at := 0
				for got[at] == want[at] {
					at++
				}
				t.Errorf("%s, row %d, byte %d: %x, want %x", name, row, at, got[at], want[at])
			}
		}
	}
}

// TestVLLMCentroids compares with what vLLM's solver (turboquant/centroids.py at
// 06d0369, run in Python) gives: the positive halves, bit by bit.
func TestVLLMCentroids(t *testing.T) {
	for _, c := range []struct {
		bits, dim int
		want      []uint32
	}{
		{3, 64, []uint32{0x3cfadcfb, 0x3dc171fc, 0x3e2bed53, 0x3e899f54}},
		{4, 64, []uint32{0x3c83828a, 0x3d46b9ff, 0x3da82948, 0x3df1444a, 0x3e20cd0c, 0x3e4f16c0, 0x3e846170, 0x3eaec76e}},
		{3, 96, []uint32{0x3cccd436, 0x3d9df288, 0x3e0c60ba, 0x3e60bc84}},
		{4, 96, []uint32{0x3c56c13b, 0x3d224272, 0x3d894d98, 0x3dc4fe54, 0x3e034b1f, 0x3e29165d, 0x3e582d38, 0x3e8eb4db}},
		{3, 128, []uint32{0x3cb16317, 0x3d88c955, 0x3df3243d, 0x3e42a09f}},
		{4, 128, []uint32{0x3c39fbae, 0x3d0c8559, 0x3d6dd0e1, 0x3daa99f2, 0x3de3682b, 0x3e126f17, 0x3e3b36e7, 0x3e772cc4}},
		{3, 256, []uint32{0x3c7adcfb, 0x3d4171fc, 0x3dabed53, 0x3e099f54}},
		{4, 256, []uint32{0x3c03828a, 0x3cc6b9ff, 0x3d282948, 0x3d71444a, 0x3da0cd0c, 0x3dcf16c0, 0x3e046170, 0x3e2ec76e}},
	} {
		book := vllmCentroids(c.bits, c.dim)
		for i, want := range c.want {
			if got := math.Float32bits(book[len(book)/2+i]); got != want {
				t.Errorf("%d bits, %d channels, value %d: %08x, want %08x", c.bits, c.dim, i, got, want)
			}
		}
	}
}

// torchSigns are the signs of 128 channels that vLLM draws with PyTorch 2.15:
// bernoulli(0.5) of a CPU generator with the seed 0x9E3779B9.
const torchSigns = "+-++----+--++-+-++--+++-+-+--++-+---++-++-+-++---------+-------+" +
	"--++-++-+-++++----+---+--++--+-+---+++----+-+-+-+++++++-++-+-++-"

func TestPTHSigns(t *testing.T) {
	for _, n := range []int{128, 64, 16} { // a narrower head draws the same, fewer
		for i, negative := range pthSigns(n) {
			if negative != (torchSigns[i] == '-') {
				t.Errorf("sign %d of %d", i, n)
			}
		}
	}
}
