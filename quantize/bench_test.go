package quantize

import (
	"math/rand/v2"
	"testing"

	"kvq/kernels"
)

// BenchmarkHead encodes and decodes one head of 32,768 tokens, 128 channels; a
// byte of its throughput is one element.
func BenchmarkHead(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	x := newTensor(1, 32768, 128, func(h, t, c int) float64 { return r.NormFloat64() })
	dst := make([]float32, len(x.heads[0]))
	for _, name := range []string{"f16", "bf16", "e4m3-raw", "e4m3", "int8-token", "int8-channel", "int4-token/32", "int4-asym-channel/32", "int3-asym-channel/32", "int6-token", "int2-asym-token/32", "int4-asym-tensor", "int4-zp-head"} {
		s, err := Lookup(name)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name+"/isa="+string(kernels.Active()), func(b *testing.B) {
			coder := s.NewCoder()
			e := new(Encoded)
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				var calibration Calibration
				if s.Calibrated() {
					coder.Observe(&calibration, x.head(0))
				}
				if err := coder.Encode(e, x.head(0), &calibration); err != nil {
					b.Fatal(err)
				}
				coder.Decode(dst, e)
			}
		})
	}
}
