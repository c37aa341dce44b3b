package dumps

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkReadHead reads every head of K of a long layer; bytes are those of
// the file.
func BenchmarkReadHead(b *testing.B) {
	s := Synthetic{Layers: 1, KVHeads: 8, Tokens: 1 << 15, HeadDimK: 128, HeadDimV: 1, Seed: 1}
	for _, d := range []DType{F16, BF16, F32} {
		for _, layout := range []Layout{HSD, SHD} {
			b.Run(fmt.Sprintf("%s/%s", d, layout), func(b *testing.B) {
				s.DType = d
				k, v := s.tensor(0, K, ""), s.tensor(0, V, "")
				if layout == SHD { // the same bytes, read as if the axes were swapped
					k.Shape[0], k.Shape[1] = k.Shape[1], k.Shape[0]
					v.Shape[0], v.Shape[1] = v.Shape[1], v.Shape[0]
				}
				path := filepath.Join(b.TempDir(), "x.safetensors")
				f, err := os.Create(path)
				if err != nil {
					b.Fatal(err)
				}
				if err := WriteSafetensors(f, nil, []Content{k, v}); err != nil {
					b.Fatal(err)
				}
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
				l := mustOpen(b, path, Options{Layout: layout}).Layers[0]
				dst := make([]float32, l.Tokens*l.HeadDimK)
				b.SetBytes(l.Tensor(K).Bytes)
				for b.Loop() {
					for h := range l.KVHeads {
						if err := l.ReadHead(dst, K, h); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
