package eval

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"kvq/kernels"
	"kvq/quantize"
)

// A testLayer is a layer in memory.
type testLayer struct {
	Layer
	data map[Tensor][][]float32 // of each head
}

// shapeOf describes a layer to make up.
type shapeOf struct {
	name                    string
	kvHeads, group, tokens  int
	dimK, dimV, rows, model int
	facts                   Facts
	size                    float64 // of logits
	sinks                   bool
	bias                    float64
}

func newTestLayer(s shapeOf, seed uint64) *testLayer {
	r := rand.New(rand.NewPCG(seed, 9))
	normal := func(n int, scale float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64() * scale)
		}
		return x
	}
	l := &testLayer{data: map[Tensor][][]float32{}}
	l.Layer = Layer{
		Dump: s.name, Number: 7, DType: "f32", Tokens: s.tokens, KVHeads: s.kvHeads, QueryHeads: s.kvHeads * s.group,
		DimK: s.dimK, DimV: s.dimV, QueryRows: s.rows, Facts: s.facts,
	}
	if l.Facts.Scale == 0 {
		l.Facts.Scale = 1 / math.Sqrt(float64(s.dimK))
	}
	for range s.kvHeads {
		k := normal(s.tokens*s.dimK, s.size)
		for t := range s.tokens {
			k[t*s.dimK] = k[t*s.dimK]*5 + float32(s.bias) // an outlier channel
		}
		for i := range s.dimK {
			k[i] *= 0.1 // a sink
		}
		l.data[Keys] = append(l.data[Keys], k)
		v := normal(s.tokens*s.dimV, 1)
		for i := range v {
			v[i] += 0.3
		}
		l.data[Values] = append(l.data[Values], v)
	}
	if s.rows > 0 {
		for range l.QueryHeads {
			l.data[Queries] = append(l.data[Queries], normal(s.rows*s.dimK, 1))
		}
		for i := range s.rows {
			l.QueryPositions = append(l.QueryPositions, (i+1)*s.tokens/s.rows-1)
		}
		r.Shuffle(s.rows, func(i, j int) { // rows may come in any order
			l.QueryPositions[i], l.QueryPositions[j] = l.QueryPositions[j], l.QueryPositions[i]
		})
	}
	if s.sinks {
		for range l.QueryHeads {
			l.Facts.Sinks = append(l.Facts.Sinks, r.NormFloat64()*2)
		}
	}
	if s.model > 0 {
		l.ModelDim = s.model
		for range l.QueryHeads {
			l.data[Output] = append(l.data[Output], normal(s.model*s.dimV, 0.2))
		}
		for range s.rows {
			l.OutputWeight = append(l.OutputWeight, r.Float64())
		}
	}
	l.Read = func(dst []float32, tensor Tensor, head int) error {
		if len(dst) != len(l.data[tensor][head]) {
			return fmt.Errorf("%d values asked for, there are %d", len(dst), len(l.data[tensor][head]))
		}
		copy(dst, l.data[tensor][head])
		return nil
	}
	return l
}

// reference is the attention of one query row in plain float64.
type reference struct {
	p, z []float64 // over all tokens; p 0 and z −Inf where masked
	sink float64   // probability
}

func (l *testLayer) attend(q []float64, k [][]float64, position int, sink float64) reference {
	f := &l.Facts
	r := reference{p: make([]float64, l.Tokens), z: make([]float64, l.Tokens)}
	most := sink
	for t := range k {
		r.z[t] = math.Inf(-1)
		seen := (!f.Causal || t <= position) && (f.Window == 0 || t > position-f.Window) && (f.Chunk == 0 || t/f.Chunk == position/f.Chunk)
		if !seen {
			continue
		}
		var z float64
		for c := range q {
			z += q[c] * k[t][c]
		}
		z *= f.Scale
		if f.Softcap > 0 {
			z = f.Softcap * math.Tanh(z/f.Softcap)
		}
		r.z[t] = z
		most = max(most, z)
	}
	sum := math.Exp(sink - most)
	for t := range r.p {
		r.p[t] = math.Exp(r.z[t] - most)
		sum += r.p[t]
	}
	for t := range r.p {
		r.p[t] /= sum
		r.z[t] -= most + math.Log(sum)
	}
	r.sink = math.Exp(sink-most) / sum
	return r
}

// decoded returns what a scheme makes of a tensor, [head][token][channel].
func (l *testLayer) decoded(t *testing.T, tensor Tensor, name string, dim int) [][][]float64 {
	t.Helper()
	rows := func(x []float32) [][]float64 {
		var all [][]float64
		for row := range slices.Chunk(x, dim) {
			wide := make([]float64, dim)
			for i, v := range row {
				wide[i] = float64(v)
			}
			all = append(all, wide)
		}
		return all
	}
	var out [][][]float64
	if name == Exact {
		for _, x := range l.data[tensor] {
			out = append(out, rows(x))
		}
		return out
	}
	s, err := quantize.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	coder := s.NewCoder()
	var calibration quantize.Calibration
	for i, x := range l.data[tensor] {
		if err := coder.Observe(&calibration, quantize.Head{Index: i, Dim: dim, Values: x}); err != nil {
			t.Fatal(err)
		}
	}
	for i, x := range l.data[tensor] {
		var e quantize.Encoded
		if err := coder.Encode(&e, quantize.Head{Index: i, Dim: dim, Values: x}, &calibration); err != nil {
			t.Fatal(err)
		}
		y := make([]float32, len(x))
		coder.Decode(y, &e)
		out = append(out, rows(y))
	}
	return out
}

// slow computes a row's figures straight from their definitions, over KV heads
// [from, to).
func (l *testLayer) slow(t *testing.T, kName, vName string, n, from, to int) map[string]float64 {
	t.Helper()
	k, v := l.decoded(t, Keys, Exact, l.DimK), l.decoded(t, Values, Exact, l.DimV)
	k2, v2 := l.decoded(t, Keys, kName, l.DimK), l.decoded(t, Values, vName, l.DimV)
	out := map[string]float64{}
	tensorFigures(out, "k_", kName, k[from:to], k2[from:to])
	tensorFigures(out, "v_", vName, v[from:to], v2[from:to])

	rows, group := l.QueryRows, l.QueryHeads/l.KVHeads
	if rows == 0 {
		rows = l.Tokens
		if l.Facts.Sinks == nil {
			group = 1
		}
	}
	if n > rows {
		n = rows
	}
	var kl []float64
	flips := 0
	var lost, total, residual float64
	for i := range n {
		row := (i+1)*rows/n - 1
		position := row
		if l.QueryRows > 0 {
			position = l.QueryPositions[row]
		}
		var projected []float64
		if l.ModelDim > 0 {
			projected = make([]float64, l.ModelDim)
		}
		for h := from; h < to; h++ {
			for j := range group {
				qh := h*group + j
				q := k[h][position]
				if l.QueryRows > 0 {
					q = make([]float64, l.DimK)
					for c := range q {
						q[c] = float64(l.data[Queries][qh][row*l.DimK+c])
					}
				}
				sink := math.Inf(-1)
				if l.Facts.Sinks != nil {
					sink = l.Facts.Sinks[qh]
				}
				a, b := l.attend(q, k[h], position, sink), l.attend(q, k2[h], position, sink)
				var d float64
				best, best2 := 0, 0
				for t := range a.p {
					if a.p[t] > 0 {
						d += a.p[t] * (a.z[t] - b.z[t])
					}
					if a.z[t] > a.z[best] {
						best = t
					}
					if b.z[t] > b.z[best2] {
						best2 = t
					}
				}
				if a.sink > 0 {
					d += a.sink * (math.Log(a.sink) - math.Log(b.sink))
				}
				kl = append(kl, d)
				if best != best2 {
					flips++
				}
				delta := make([]float64, l.DimV)
				for c := range delta {
					var o, o2 float64
					for t := range a.p {
						o += a.p[t] * v[h][t][c]
						o2 += b.p[t] * v2[h][t][c]
					}
					delta[c] = o2 - o
					lost += delta[c] * delta[c]
					total += o * o
				}
				for m := range projected {
					for c, d := range delta {
						projected[m] += float64(l.data[Output][qh][m*l.DimV+c]) * d
					}
				}
			}
		}
		for _, x := range projected {
			residual += l.OutputWeight[row] * x * x / float64(n)
		}
	}
	slices.Sort(kl)
	quantileOf := func(p float64) float64 {
		h := float64(len(kl)-1) * p
		lo := int(h)
		return kl[lo] + (h-float64(lo))*(kl[min(lo+1, len(kl)-1)]-kl[lo])
	}
	var sum float64
	for _, d := range kl {
		sum += d
	}
	out["kl_mean"], out["kl_max"] = sum/float64(len(kl)), kl[len(kl)-1]
	out["kl_p50"], out["kl_p90"], out["kl_p99"], out["kl_p999"] = quantileOf(0.5), quantileOf(0.9), quantileOf(0.99), quantileOf(0.999)
	out["top1_flip_rate"] = float64(flips) / float64(len(kl))
	out["output_nmse"] = lost / total
	if l.ModelDim > 0 && l.QueryRows > 0 && from == 0 && to == l.KVHeads {
		out["residual_nmse"] = residual
	}
	return out
}

func tensorFigures(out map[string]float64, prefix, name string, x, y [][][]float64) {
	if name == Exact {
		return
	}
	var lost, energy, lostCentred, energyCentred, most, cosines float64
	n, nonzero := 0, 0
	for h := range x {
		dim := len(x[h][0])
		tokens := float64(len(x[h]))
		for c := range dim {
			var meanX, meanE float64
			for t := range x[h] {
				meanX += x[h][t][c] / tokens
				meanE += (y[h][t][c] - x[h][t][c]) / tokens
			}
			for t := range x[h] {
				e := y[h][t][c] - x[h][t][c]
				lost += e * e
				energy += x[h][t][c] * x[h][t][c]
				lostCentred += (e - meanE) * (e - meanE)
				energyCentred += (x[h][t][c] - meanX) * (x[h][t][c] - meanX)
				most = max(most, math.Abs(e))
				n++
			}
		}
		for t := range x[h] {
			var xx, yy, xy float64
			for c := range dim {
				xx += x[h][t][c] * x[h][t][c]
				yy += y[h][t][c] * y[h][t][c]
				xy += x[h][t][c] * y[h][t][c]
			}
			if xx > 0 && yy > 0 {
				cosines += xy / math.Sqrt(xx*yy)
				nonzero++
			}
		}
	}
	out[prefix+"mse"], out[prefix+"nmse"], out[prefix+"sqnr_db"] = lost/float64(n), lost/energy, -10*math.Log10(lost/energy)
	if prefix == "k_" {
		out["k_centered_nmse"] = lostCentred / energyCentred
	}
	out[prefix+"max_abs_error"], out[prefix+"cosine"] = most, cosines/float64(nonzero)
}

var referenceShapes = []shapeOf{
	{name: "plain", kvHeads: 2, group: 3, tokens: 300, dimK: 64, dimV: 64, rows: 40, size: 1, facts: Facts{Causal: true}},
	{name: "one token", kvHeads: 1, group: 2, tokens: 1, dimK: 32, dimV: 32, rows: 1, size: 1, facts: Facts{Causal: true}},
	{name: "one channel", kvHeads: 2, group: 1, tokens: 20, dimK: 1, dimV: 1, rows: 20, size: 1, facts: Facts{Causal: true}},
	{name: "not causal", kvHeads: 1, group: 8, tokens: 270, dimK: 48, dimV: 48, rows: 9, size: 1},
	{name: "window", kvHeads: 2, group: 2, tokens: 700, dimK: 64, dimV: 64, rows: 50, size: 1, facts: Facts{Causal: true, Window: 100}},
	{name: "window of one", kvHeads: 1, group: 1, tokens: 300, dimK: 16, dimV: 16, rows: 30, size: 1, facts: Facts{Causal: true, Window: 1}},
	{name: "chunk", kvHeads: 1, group: 4, tokens: 600, dimK: 64, dimV: 64, rows: 33, size: 1, facts: Facts{Causal: true, Chunk: 128}},
	{name: "chunk, window, not causal", kvHeads: 1, group: 1, tokens: 600, dimK: 64, dimV: 64, rows: 33, size: 1, facts: Facts{Chunk: 200, Window: 50}},
	{name: "sinks", kvHeads: 2, group: 4, tokens: 290, dimK: 64, dimV: 64, rows: 20, size: 1, sinks: true, facts: Facts{Causal: true}},
	{name: "softcap", kvHeads: 2, group: 2, tokens: 260, dimK: 64, dimV: 64, rows: 20, size: 6, facts: Facts{Causal: true, Softcap: 5}},
	{name: "softcap and sinks", kvHeads: 1, group: 2, tokens: 260, dimK: 64, dimV: 64, rows: 20, size: 3, sinks: true, facts: Facts{Causal: true, Softcap: 20, Window: 200}},
	{name: "scale", kvHeads: 1, group: 5, tokens: 260, dimK: 40, dimV: 40, rows: 20, size: 1, facts: Facts{Causal: true, Scale: 0.3}},
	{name: "widths", kvHeads: 2, group: 2, tokens: 150, dimK: 96, dimV: 33, rows: 30, size: 1, facts: Facts{Causal: true}},
	{name: "wide", kvHeads: 1, group: 16, tokens: 80, dimK: 576, dimV: 512, rows: 10, size: 1, facts: Facts{Causal: true}},
	{name: "large logits", kvHeads: 2, group: 2, tokens: 300, dimK: 64, dimV: 64, rows: 40, size: 40, facts: Facts{Causal: true}},
	{name: "huge logits", kvHeads: 1, group: 2, tokens: 300, dimK: 64, dimV: 64, rows: 20, size: 1500, facts: Facts{Causal: true}},
	{name: "large logits with sinks", kvHeads: 1, group: 4, tokens: 300, dimK: 64, dimV: 64, rows: 20, size: 30, sinks: true, facts: Facts{Causal: true}},
	{name: "key bias", kvHeads: 2, group: 2, tokens: 300, dimK: 64, dimV: 64, rows: 40, size: 1, bias: 300, facts: Facts{Causal: true}},
	{name: "projection", kvHeads: 2, group: 2, tokens: 100, dimK: 32, dimV: 24, rows: 40, model: 50, size: 1, facts: Facts{Causal: true}},
	{name: "proxy", kvHeads: 2, group: 3, tokens: 300, dimK: 64, dimV: 64, size: 1, facts: Facts{Causal: true}},
	{name: "proxy with sinks", kvHeads: 2, group: 3, tokens: 200, dimK: 64, dimV: 64, size: 1, sinks: true, facts: Facts{Causal: true}},
}

var referenceSchemes = []string{
	"f16", "bf16", "int8-token", "int4-token", "int4-channel/32:exact", "exact:int2-asym-token", "int4-channel:int8-token",
	"int4-channel:int2-asym-token", "int2-tensor", "e4m3-head:e5m2", "int4-token+center", "f32",
}

// TestReference holds every figure against its definition, computed slowly and
// straightforwardly in float64.
func TestReference(t *testing.T) {
	samples := []int{8, AllQueries}
	if testing.Short() {
		samples = samples[:1] // all queries take minutes under the race detector
	}
	for i, shape := range referenceShapes {
		t.Run(shape.name, func(t *testing.T) {
			if testing.Short() && i%4 > 0 {
				t.Skip("one shape in four is enough for a short run")
			}
			l := newTestLayer(shape, 1)
			for _, queries := range samples {
				n := queries
				if n == AllQueries {
					n = math.MaxInt
				}
				r, err := Run(context.Background(), []*Layer{&l.Layer}, Options{Schemes: referenceSchemes, Queries: queries, PerHead: true, Threads: 2})
				if err != nil {
					t.Fatal(err)
				}
				if want := len(referenceSchemes) * (1 + l.KVHeads); len(r.Rows) != want {
					t.Fatalf("%d rows, want %d", len(r.Rows), want)
				}
				for _, row := range r.Rows {
					from, to := 0, l.KVHeads
					if row.KVHead != nil {
						if from, to = *row.KVHead, *row.KVHead+1; queries == AllQueries {
							continue // the reference is slow
						}
					}
					want := l.slow(t, row.K, row.V, n, from, to)
					compareRow(t, row, want, fmt.Sprintf("%s, queries %d, heads %d–%d", row.Scheme, queries, from, to))
				}
			}
		})
	}
}

// compareRow holds a row's figures against expected ones: 1e-3 relative and
// 1e-8, the top-1 rate exactly. Figures that are not finite must be absent.
func compareRow(t *testing.T, row Row, want map[string]float64, what string) {
	t.Helper()
	for _, name := range []string{
		"k_mse", "v_mse", "k_nmse", "v_nmse", "k_sqnr_db", "v_sqnr_db", "k_centered_nmse", "k_max_abs_error", "v_max_abs_error", "k_cosine", "v_cosine",
		"kl_mean", "kl_p50", "kl_p90", "kl_p99", "kl_p999", "kl_max", "top1_flip_rate", "output_nmse", "residual_nmse",
	} {
		have := fieldValue(&row, name)
		w, ok := want[name]
		if !ok || math.IsNaN(w) || math.IsInf(w, 0) {
			if have != nil {
				t.Errorf("%s: %s = %g, want it absent", what, name, *have)
			}
			continue
		}
		tolerance := 1e-3*math.Abs(w) + 1e-8
		if name == "top1_flip_rate" {
			tolerance = 1e-12
		}
		if have == nil || math.Abs(*have-w) > tolerance {
			got := math.NaN()
			if have != nil {
				got = *have
			}
			t.Errorf("%s: %s = %.9g, want %.9g", what, name, got, w)
		}
	}
}

// TestSameDigits demands the same report from every instruction set and number
// of threads, and from blocks of any size.
func TestSameDigits(t *testing.T) {
	before := kernels.Active()
	t.Cleanup(func() { kernels.Use(before) })
	var layers []*Layer
	for i, shape := range referenceShapes {
		if testing.Short() && i%4 > 0 {
			continue
		}
		layers = append(layers, &newTestLayer(shape, 2).Layer)
	}
	var first []byte
	for _, isa := range kernels.Available() {
		for _, threads := range []int{1, 2, 5} {
			if err := kernels.Use(isa); err != nil {
				t.Fatal(err)
			}
			r, err := Run(context.Background(), layers, Options{Schemes: referenceSchemes, PerHead: true, Threads: threads})
			if err != nil {
				t.Fatal(err)
			}
			r.CPU = CPU{}
			text, err := json.MarshalIndent(r, "", " ")
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = text
				continue
			}
			if string(text) != string(first) {
				for i := range min(len(text), len(first)) {
					if text[i] != first[i] {
						t.Fatalf("isa %s, %d threads: %s\nfirst: %s", isa, threads, text[max(0, i-200):min(i+60, len(text))], first[max(0, i-200):min(i+60, len(first))])
					}
				}
				t.Fatalf("isa %s, %d threads: a report of another length", isa, threads)
			}
		}
	}
}

// TestCapDifference holds capped differences against plain float64.
func TestCapDifference(t *testing.T) {
	for _, c := range []float64{1, 30, 50} {
		for _, z := range []float64{0, 1e-3, -0.4 * c, c, -3 * c, 5 * c} {
			for _, d := range []float64{0, 1e-6, -1e-3, 0.01, -0.0499 * c, 0.0501 * c, c, -4 * c} {
				d = float64(float32(d))
				// tanh a − tanh b = sinh(a−b) / (cosh a·cosh b)
				want := c * math.Sinh(d/c) / (math.Cosh((z+d)/c) * math.Cosh(z/c))
				got := float64(capDifference(float32(d), math.Tanh(z/c), c))
				if math.Abs(got-want) > 2e-7*math.Abs(want) {
					t.Errorf("c %g, z %g, d %g: %g, want %g", c, z, d, got, want)
				}
			}
		}
	}
}
