package cmd

import (
	"math"
	"path/filepath"
	"testing"
)

// TestDumpModel reads headers that formula's tests hold: sliding layers of
// Gemma 3, and one that gives its attention scale.
func TestDumpModel(t *testing.T) {
	warn := func(format string, args ...any) { t.Errorf(format, args...) }
	m, err := readDumpModel(filepath.Join("..", "formula", "testdata", "llamacpp", "gguf", "gemma3-v1.gguf"), warn)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", m)
	for _, l := range m.Layers {
		if l.Facts.Scale == nil || math.Abs(*l.Facts.Scale-1/math.Sqrt(float64(l.HeadDimK))) > 1e-12 {
			t.Errorf("layer %d: scale %v", l.Number, l.Facts.Scale)
		}
	}
}
