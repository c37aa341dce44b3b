package eval

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"kvq/kernels"
)

// scaleLayer is a layer of 8 KV heads, 32 query heads, 32,768 tokens and 128
// channels, its keys and values held as f16 like those of a dump.
func scaleLayer() (l *Layer, bytes int) {
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
	l = &Layer{
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
	return l, len(stored[Keys]) + len(stored[Values]) + 4*len(queries)
}

// BenchmarkScale measures the default schemes on a long layer and reports the
// wall time and the peak of resident memory, which is to stay below one and a
// half dumps and 300 MiB. Run it alone: the peak is the process's.
func BenchmarkScale(b *testing.B) {
	l, bytes := scaleLayer()
	for b.Loop() {
		if _, err := Run(context.Background(), []*Layer{l}, Options{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(bytes)/(1<<20), "dump-MiB")
	b.ReportMetric(1.5*float64(bytes)/(1<<20)+300, "allowed-MiB")
	if peak, ok := peakMiB(); ok {
		b.ReportMetric(peak, "peak-MiB")
	}
}

// peakMiB returns the largest resident memory the process had, where Linux says.
func peakMiB() (float64, bool) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kib / 1024, err == nil
		}
	}
	return 0, false
}
