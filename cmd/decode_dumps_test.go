package cmd

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"kvq/dumps"
	"kvq/eval"
	"kvq/kernels"
	"kvq/quantize"
)

// TestDecodeDumps holds decode attention over captured layers, with captured queries, to
// attention in float64 over what the scheme's own decoder gives: 2e-4 pooled over a
// layer's heads and queries, 1e-3 for one vector while every logit is within ±30. Beyond,
// the rounding of the query moves a logit by at most Σ|code|·max|q'|/65278. Eight queries
// of each head are taken, from first to last; with KVQ_DUMPS, which names another folder
// of dumps, all of them.
func TestDecodeDumps(t *testing.T) {
	skipIfShort(t)
	folder := filepath.Join("..", "dumps", "testdata")
	paths := []string{filepath.Join(folder, "layer12.npy"), filepath.Join(folder, "smollm2-prose.safetensors"), filepath.Join(folder, "gemma3-prose.safetensors")}
	take := 8
	if dir := os.Getenv("KVQ_DUMPS"); dir != "" {
		paths, take = []string{dir}, math.MaxInt
	}
	src, err := openSource(sourceOptions{dumps: paths, read: dumps.Options{}})
	if err != nil {
		t.Fatal(err)
	}
	defer src.close()
	names := slices.Concat(benchSchemes, []string{"q8_0:q4_0", "int2-asym-channel/32:int2-asym-token/32", "mxfp4", "int6-token"})
	var worst, worstVector float64
	for _, l := range src.layers {
		if l.QueryRows == 0 {
			continue
		}
		read := func(tensor eval.Tensor, heads, rows, dim int) [][]float32 {
			all := make([][]float32, heads)
			for h := range all {
				all[h] = make([]float32, rows*dim)
				if err := l.Read(all[h], tensor, h); err != nil {
					t.Fatal(err)
				}
			}
			return all
		}
		k, v := read(eval.Keys, l.KVHeads, l.Tokens, l.DimK), read(eval.Values, l.KVHeads, l.Tokens, l.DimV)
		queries := read(eval.Queries, l.QueryHeads, l.QueryRows, l.DimK)
		first := 0
		if l.Facts.Window > 0 {
			first = max(0, l.Tokens-l.Facts.Window)
		}
		for _, name := range names {
			pair, err := quantize.ParsePair(name)
			if err != nil {
				t.Fatal(err)
			}
			if pair.K.CheckDim(l.DimK) != nil || pair.V.CheckDim(l.DimV) != nil {
				continue
			}
			shape := kernels.CacheShape{Heads: l.KVHeads, DimK: l.DimK, DimV: l.DimV, Tokens: l.Tokens}
			cache, err := fillCache(shape, pair, nil, func(dst []float32, key bool, head int) error {
				copy(dst, map[bool][][]float32{true: k, false: v}[key][head])
				return nil
			})
			if err != nil {
				t.Fatalf("%s of %s, layer %d: %v", name, l.Dump, l.Number, err)
			}
			d, err := kernels.NewDecoder(cache, kernels.DecodeOptions{QueryHeads: l.QueryHeads, Scale: l.Facts.Scale, Window: l.Facts.Window, Threads: 2})
			if err != nil {
				t.Fatal(err)
			}
			decodedK, _ := schemeValues(t, pair.K, k, l.DimK, nil)
			decodedV, _ := schemeValues(t, pair.V, v, l.DimV, nil)
			out := make([]float32, l.QueryHeads*l.DimV)
			var pooled, size float64
			n := min(take, l.QueryRows)
			for i := range n {
				row := (l.QueryRows - 1) * (i + 1) / n
				var q []float32
				for _, rows := range queries {
					q = append(q, rows[row*l.DimK:][:l.DimK]...)
				}
				if err := d.Step(cache, out, q); err != nil {
					t.Fatal(err)
				}
				for h := range l.QueryHeads {
					kv := h * l.KVHeads / l.QueryHeads
					want := exactStep(float64s(q[h*l.DimK:][:l.DimK]), decodedK[kv][first*l.DimK:], decodedV[kv][first*l.DimV:], l.Facts.Scale)
					var e, s float64
					for c, w := range want.output {
						e += (float64(out[h*l.DimV+c]) - w) * (float64(out[h*l.DimV+c]) - w)
						s += w * w
					}
					pooled, size = pooled+e, size+s
					limit := 1e-3 * math.Sqrt(s)
					if want.largest > 30 {
						limit += math.Expm1(2*want.move) * want.spread
					} else {
						worstVector = max(worstVector, math.Sqrt(e/s))
					}
					if !(math.Sqrt(e) <= limit) {
						t.Errorf("%s of %s, layer %d, query %d of head %d: error %.3g of %.3g, want at most %.3g", name, l.Dump, l.Number, row, h, math.Sqrt(e), math.Sqrt(s), limit)
					}
				}
			}
			d.Close()
			cache.Close()
			pooled = math.Sqrt(pooled / size)
			worst = max(worst, pooled)
			if !(pooled <= 2e-4) {
				t.Errorf("%s of %s, layer %d: relative error %.3g pooled over heads, want at most 2e-4", name, l.Dump, l.Number, pooled)
			}
		}
	}
	if worst == 0 {
		t.Fatal("no layer has captured queries, or nothing was compared")
	}
	t.Logf("worst relative error: %.3g pooled over a layer's heads, %.3g of one vector", worst, worstVector)
}

// exactResult is attention of one query in float64.
type exactResult struct {
	output  []float64
	largest float64 // the largest magnitude of a logit
	move    float64 // how far the rounding of the scaled query may move a logit
	spread  float64 // the norm of Σ p·|v|, what weights wrong by a factor can do
}

// exactStep attends with q to k and v, rows of len(q) and of len(v)/tokens values.
func exactStep(q []float64, k, v []float32, scale float64) exactResult {
	dim := len(q)
	tokens := len(k) / dim
	dimV := len(v) / tokens
	r := exactResult{output: make([]float64, dimV)}
	z := make([]float64, tokens)
	columns := make([]float64, dim)
	var largestQ, longest float64
	for t := range z {
		var sum float64
		for c, x := range q {
			y := float64(k[t*dim+c])
			z[t] += x * y * scale
			sum += math.Abs(y)
			columns[c] = max(columns[c], math.Abs(y))
			largestQ = max(largestQ, math.Abs(x))
		}
		longest = max(longest, sum)
		r.largest = max(r.largest, math.Abs(z[t]))
	}
	// Scales per token: Σ|k̂| of a token times the largest query. Per channel: each code
	// is at most its column's largest, so d times the largest product.
	r.move = longest * largestQ
	for c, y := range columns {
		r.move = max(r.move, float64(dim)*y*math.Abs(q[c]))
	}
	r.move *= math.Abs(scale) / 65278
	top := slices.Max(z)
	var sum float64
	spread := make([]float64, dimV)
	for t := range z {
		p := math.Exp(z[t] - top)
		sum += p
		for c := range dimV {
			y := float64(v[t*dimV+c])
			r.output[c] += p * y
			spread[c] += p * math.Abs(y)
		}
	}
	for c := range dimV {
		r.output[c] /= sum
		r.spread += spread[c] / sum * spread[c] / sum
	}
	r.spread = math.Sqrt(r.spread)
	return r
}

// float64s returns x in float64.
func float64s(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}
