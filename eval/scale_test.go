package eval

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"

	"kvq/kernels"
)

// scaleLayer is a layer of 8 KV heads, 32 query heads, 32,768 tokens and 128
// channels, its keys and values held as f16 like those of a dump.
func scaleLayer() *Layer {
	const heads, queryHeads, tokens, dim, rows = 8, 32, 32768, 128, 64
	r := rand.New(rand.NewPCG(5, 1))
	noise := gaussian(4096, dim)
	fill := func(n int) []byte {
		x := make([]float32, tokens*dim)
		dump := make([]byte, 0, 2*n*len(x))
		for range n {
			for t := 0; t < len(x); t += dim {
				copy(x[t:], noise[r.IntN(4096)*dim:][:dim])
				x[t+5] += 6 // one channel with a bias
			}
			at := len(dump)
			dump = dump[:at+2*len(x)]
			kernels.ToF16(dump[at:], x)
		}
		return dump
	}
	stored := map[Tensor][]byte{Keys: fill(heads), Values: fill(heads)}
	queries := gaussian(queryHeads*rows, dim)
	l := &Layer{
		Dump: "scale", DType: "f16", Tokens: tokens, KVHeads: heads, QueryHeads: queryHeads, DimK: dim, DimV: dim,
		QueryRows: rows, Facts: Facts{Scale: 0.08838834764831845, Causal: true},
		Read: func(dst []float32, tensor Tensor, head int) error {
			if tensor == Queries {
				copy(dst, queries[head*rows*dim:])
			} else {
				kernels.FromF16(dst, stored[tensor][2*head*tokens*dim:][:2*tokens*dim])
			}
			return nil
		},
	}
	for i := range rows {
		l.QueryPositions = append(l.QueryPositions, (i+1)*tokens/rows-1)
	}
	return l
}

// BenchmarkScale measures the default schemes on a long layer in this process,
// to profile. What kvq itself needs is for cmd's BenchmarkEvalLargeLayer to say.
func BenchmarkScale(b *testing.B) {
	l := scaleLayer()
	for b.Loop() {
		if _, err := Run(context.Background(), []*Layer{l}, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestManyLayers holds that a run keeps of a layer what its rows need, not what
// grows with its tokens: a dump may be larger than memory.
func TestManyLayers(t *testing.T) {
	const layers, tokens, dim = 12, 32768, 8
	x := gaussian(tokens, dim)
	var heap []uint64
	var all []*Layer
	for n := range layers {
		all = append(all, &Layer{
			Dump: "many", Number: n, DType: "f32", Tokens: tokens, KVHeads: 1, QueryHeads: 1, DimK: dim, DimV: dim,
			QueryRows: 1, QueryPositions: []int{tokens - 1}, Facts: Facts{Scale: 1, Causal: true},
			Read: func(dst []float32, tensor Tensor, _ int) error {
				if tensor == Queries && len(heap) <= n {
					var m runtime.MemStats
					runtime.GC()
					runtime.ReadMemStats(&m)
					heap = append(heap, m.HeapAlloc)
				}
				copy(dst, x)
				return nil
			},
		})
	}
	if _, err := Run(context.Background(), all, Options{Schemes: []string{"int4-token"}, Threads: 1}); err != nil {
		t.Fatal(err)
	}
	// The norms of one layer's tokens alone are four times 8 bytes a token.
	if grown := int64(heap[layers-1]) - int64(heap[2]); len(heap) != layers || grown > 4*8*tokens {
		t.Errorf("%d layers later %d bytes more are held: %v", layers-3, grown, heap)
	}
}
