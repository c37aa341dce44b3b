package quantize

import (
	"math"
	"math/rand/v2"
	"testing"

	"kvq/kernels"
)

// TestGrids holds that every Block format, taken apart for a paged cache, stands for the
// values that its own decoder gives.
func TestGrids(t *testing.T) {
	const tokens, dim = 70, 128
	r := rand.New(rand.NewPCG(8, 8))
	values := make([]float32, tokens*dim)
	for i := range values {
		values[i] = float32(r.NormFloat64() * math.Exp(r.NormFloat64()))
	}
	for _, f := range formats {
		if f.Class != Block {
			continue
		}
		format, ok := f.BlockFormat()
		if !ok {
			if f.Name != "pth-int4" {
				t.Errorf("%s has no grid", f.Name)
			}
			continue
		}
		s, err := Lookup(f.Name)
		if err != nil {
			t.Fatal(err)
		}
		c := s.NewCoder()
		head := Head{Dim: dim, Values: values}
		var calibration Calibration
		if err := c.Observe(&calibration, head); err != nil {
			t.Fatal(err)
		}
		var e Encoded
		if err := c.Encode(&e, head, &calibration); err != nil {
			t.Fatal(err)
		}
		want := make([]float32, len(values))
		c.Decode(want, &e)
		var o kernels.Encoded
		e.Blocks(&o)
		groups := 1
		if format.Group > 0 {
			groups = dim / format.Group
		}
		factor := 1.0
		if o.Factor != 0 {
			factor = float64(o.Factor)
		}
		for i, w := range want {
			u := i/dim*groups + i%dim/(dim/groups)
			scale, code := float64(o.Scales[u])*factor, float64(o.Fields[i])
			var x, size float64
			switch {
			case format.Codec == kernels.CodecLevels:
				x = scale * float64(format.Levels[o.Fields[i]])
			case format.Codec == kernels.CodecBook:
				x = scale * float64(o.Book[o.Fields[i]])
			case format.Zero == kernels.ZeroAsym:
				size = math.Abs(float64(o.Offsets[u]))
				x = scale*code + float64(o.Offsets[u])
			case format.Codec == kernels.CodecE4M3:
				x = scale * float64(kernels.GetE4M3(o.Fields[i]))
			case format.Zero == kernels.ZeroMiddle:
				x = scale * (code - float64(int(1)<<f.Bits-1)/2)
			default:
				x = scale * (code - float64(int(1)<<(f.Bits-1)))
			}
			if d := math.Abs(x - float64(w)); !(d <= 0x1p-22*(math.Abs(x)+size)) {
				t.Fatalf("%s, value %d: %v, its decoder says %v", f.Name, i, x, w)
			}
		}
	}
}
