package cmd

import (
	"math"
	"testing"
)

// TestDumpModel reads a header whose caches llama.cpp printed itself
// (formula/testdata/llamacpp/cases.tsv): 6 full-length and 6 sliding layers
// whose rows of K have 256 elements.
func TestDumpModel(t *testing.T) {
	m, err := readDumpModel(gguf(t, "gemma3-v1.gguf"), func(format string, args ...any) { t.Errorf(format, args...) })
	if err != nil {
		t.Fatal(err)
	}
	sliding := 0
	for i, l := range m.Layers {
		f := l.Facts
		if l.Number != i || l.KVHeads*l.HeadDimK != 256 || l.HeadDimV != l.HeadDimK {
			t.Errorf("%+v", l)
		}
		if f.Scale == nil || math.Abs(*f.Scale*math.Sqrt(float64(l.HeadDimK))-1) > 1e-12 {
			t.Errorf("layer %d: scale %v", i, f.Scale)
		}
		if f.Window == nil || (*f.Window > 0) != l.Sliding || *f.Chunk != 0 {
			t.Errorf("layer %d: window %v", i, f.Window)
		}
		if l.Sliding {
			sliding++
		}
	}
	if len(m.Layers) != 12 || sliding != 6 {
		t.Errorf("%d layers, %d of them sliding", len(m.Layers), sliding)
	}
}
