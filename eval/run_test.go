package eval

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"kvq/quantize"
)

func runOn(t *testing.T, l *testLayer, o Options) *Report {
	t.Helper()
	r, err := Run(context.Background(), []*Layer{&l.Layer}, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func rowOf(t *testing.T, r *Report, scheme string) *Row {
	t.Helper()
	for i := range r.Rows {
		if r.Rows[i].Scheme == scheme && r.Rows[i].KVHead == nil {
			return &r.Rows[i]
		}
	}
	t.Fatalf("no row of %s", scheme)
	return nil
}

// TestSelectQueries holds the rows chosen against their formula.
func TestSelectQueries(t *testing.T) {
	l := &Layer{QueryRows: 10, QueryPositions: []int{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, Tokens: 10}
	for n, want := range map[int]string{1: "9", 2: "9 4", 3: "9 5 2", 4: "9 6 4 1", 10: "9 8 7 6 5 4 3 2 1 0", 11: "9 8 7 6 5 4 3 2 1 0", AllQueries: "9 8 7 6 5 4 3 2 1 0"} {
		got := ""
		for i, q := range selectQueries(l, n) {
			got += fmt.Sprint(q.row, " ")
			if q.position != 9-q.row || i > 0 && q.position < 9-q.row {
				t.Errorf("row %d stands at %d", q.row, q.position)
			}
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("%d queries: rows %s, want %s (in order of position)", n, got, want)
		}
	}
}

// TestControl demands zeros of a dump's own type.
func TestControl(t *testing.T) {
	l := newTestLayer(referenceShapes[0], 3)
	r := runOn(t, l, Options{})
	for _, scheme := range []string{"f32", "f32:exact", "exact:f32"} {
		if scheme == "f32" {
			continue // default pairs are plan's list
		}
		row := rowOf(t, r, scheme)
		for name, f := range map[string]*float64{"kl_mean": row.KLMean, "kl_max": row.KLMax, "top1_flip_rate": row.Top1FlipRate, "output_nmse": row.OutputNMSE} {
			if f == nil || *f != 0 {
				t.Errorf("%s: %s = %v, want 0", scheme, name, f)
			}
		}
	}
}

// TestKeyBias shows why keys are ranked by k_centered_nmse: a constant added to
// all keys of a channel changes no exact attention, improves k_nmse, and ruins
// what is left after quantization.
func TestKeyBias(t *testing.T) {
	shape := shapeOf{name: "bias", kvHeads: 2, group: 4, tokens: 400, dimK: 64, dimV: 64, rows: 30, size: 1, facts: Facts{Causal: true}}
	plain := newTestLayer(shape, 4)
	biased := newTestLayer(shape, 4)
	for head := range plain.data[Keys] {
		a, b := plain.data[Keys][head], biased.data[Keys][head]
		for i := range a {
			if i%64 == 0 {
				a[i] /= 5 // no outlier channel
			}
			b[i] = a[i] + []float32{60, -60, 60}[i%64%3]
		}
	}
	o := Options{Schemes: []string{"int8-token:exact", "int8-token+center:exact"}}
	was, is := runOn(t, plain, o), runOn(t, biased, o)
	a, b := rowOf(t, was, "int8-token:exact"), rowOf(t, is, "int8-token:exact")
	if !(*b.KNMSE < *a.KNMSE) || !(*b.KLMean > 100**a.KLMean) || !(*b.KCenteredNMSE > 100**a.KCenteredNMSE) {
		t.Errorf("k_nmse %g → %g (want better), kl_mean %g → %g and k_centered_nmse %g → %g (want far worse)",
			*a.KNMSE, *b.KNMSE, *a.KLMean, *b.KLMean, *a.KCenteredNMSE, *b.KCenteredNMSE)
	}
	if cured := rowOf(t, is, "int8-token+center:exact"); *cured.KLMean > 2**a.KLMean {
		t.Errorf("+center: kl_mean %g, want about %g", *cured.KLMean, *a.KLMean)
	}
	if warnings := strings.Join(is.Warnings, "\n"); !strings.Contains(warnings, "constant per channel") {
		t.Errorf("warnings %q say nothing of the bias", warnings)
	}
	if d := is.Outliers[0]; d.Diagnosis != "bias" || d.RemedyGain == nil || *d.RemedyGain < 100 || d.RemedyTo != "int8-token+center" {
		t.Errorf("diagnosis %q, gain %v by %s", d.Diagnosis, d.RemedyGain, d.RemedyTo)
	}
}

func TestRankingContradiction(t *testing.T) {
	row := func(k string, mse, centered float64) Row {
		return Row{K: k, V: Exact, KMSE: &mse, KCenteredNMSE: &centered}
	}
	for want, rows := range map[int][]Row{
		0: {row("a", 1, 1), row("b", 2, 2), row("c", 1.05, 0.95)},
		1: {row("a", 1, 2), row("b", 2, 1), row("c", 3, 3)},
	} {
		tb := &table{report: &Report{}}
		tb.warnRanking(rows, Outliers{})
		if got := len(tb.report.Warnings); got != want {
			t.Errorf("%d warnings %q, want %d", got, tb.report.Warnings, want)
		}
	}
}

func TestProxy(t *testing.T) {
	l := newTestLayer(shapeOf{name: "proxy", kvHeads: 2, group: 2, tokens: 100, dimK: 32, dimV: 32, size: 1, facts: Facts{Causal: true}}, 5)
	r := runOn(t, l, Options{Schemes: []string{"int8-token", "int4-token"}})
	if r.Dumps[0].Queries != Proxy || r.Rows[0].Queries != Proxy || r.Summary[0].Queries != Proxy {
		t.Error("stand-in queries are not marked")
	}
	if r.Recommendation == nil || !strings.Contains(r.Recommendation.Why, "k_centered_nmse") || strings.Contains(r.Recommendation.Why, "kl_mean") {
		t.Errorf("recommendation %+v rests on attention", r.Recommendation)
	}
	if len(r.Warnings) == 0 || !strings.Contains(strings.Join(r.Warnings, " "), "capture q") {
		t.Errorf("warnings %q", r.Warnings)
	}
}

func TestRunErrors(t *testing.T) {
	l := newTestLayer(referenceShapes[0], 6)
	run := func(l Layer, o Options) error {
		_, err := Run(context.Background(), []*Layer{&l}, o)
		return err
	}
	var scheme *quantize.SchemeError
	for _, name := range []string{"int9-token", "exact", "int4-token/65", "mxfp4+nonsense"} {
		if err := run(l.Layer, Options{Schemes: []string{name}}); !errors.As(err, &scheme) {
			t.Errorf("%s: %v, want a scheme error", name, err)
		}
	}
	broken := errors.New("broken disk")
	failing := l.Layer
	failing.Read = func(dst []float32, tensor Tensor, head int) error {
		if tensor == Values && head == 1 {
			return broken
		}
		return l.Read(dst, tensor, head)
	}
	for _, threads := range []int{1, 3} {
		if err := run(failing, Options{Schemes: []string{"int8-token"}, Threads: threads}); !errors.Is(err, broken) {
			t.Errorf("%d threads: %v, want the reader's error", threads, err)
		}
	}
	for name, change := range map[string]func(l *Layer){
		"no tokens":        func(l *Layer) { l.Tokens = 0 },
		"uneven heads":     func(l *Layer) { l.QueryHeads = 5 },
		"positions":        func(l *Layer) { l.QueryPositions = l.QueryPositions[:3] },
		"a position ahead": func(l *Layer) { l.QueryPositions = append([]int{l.Tokens}, l.QueryPositions[1:]...) },
		"sinks":            func(l *Layer) { l.Facts.Sinks = []float64{1} },
		"scale":            func(l *Layer) { l.Facts.Scale = math.NaN() },
		"softcap":          func(l *Layer) { l.Facts.Softcap = math.Inf(1) },
		"an endless sink":  func(l *Layer) { l.Facts.Sinks = append(make([]float64, l.QueryHeads-1), math.Inf(1)) },
		"weights":          func(l *Layer) { l.ModelDim = 3 },
	} {
		c := l.Layer
		change(&c)
		if err := run(c, Options{}); err == nil || !strings.Contains(err.Error(), "layer 7") {
			t.Errorf("%s: %v, want an error that names the layer", name, err)
		}
	}
	if _, err := Run(context.Background(), nil, Options{}); err == nil {
		t.Error("no layers: no error")
	}
	ctx, cancel := context.WithCancel(context.Background())
	_, err := Run(ctx, []*Layer{&l.Layer}, Options{Progress: func(Progress) { cancel() }, Threads: 2})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestUnholdable has a value that f16 cannot hold: an error where f16 was named,
// a row less and a warning in the default set.
func TestUnholdable(t *testing.T) {
	l := newTestLayer(referenceShapes[0], 7)
	l.data[Values][1][77] = 1e6
	_, err := Run(context.Background(), []*Layer{&l.Layer}, Options{Schemes: []string{"int8-token:f16"}})
	var value *quantize.ValueError
	if !errors.As(err, &value) {
		t.Errorf("named: %v, want a value error", err)
	}
	r := runOn(t, l, Options{})
	for _, row := range r.Rows {
		if row.V == "f16" {
			t.Errorf("a row %s", row.Scheme)
		}
	}
	rowOf(t, r, "f16:exact")
	if !strings.Contains(strings.Join(r.Warnings, "\n"), "v: scheme f16: head 1, token ") || len(r.Warnings) != 1 {
		t.Errorf("warnings %q", r.Warnings)
	}
}

func TestMisfit(t *testing.T) {
	l := newTestLayer(shapeOf{name: "d 40", kvHeads: 1, group: 1, tokens: 40, dimK: 40, dimV: 40, rows: 4, size: 1, facts: Facts{Causal: true}}, 8)
	r := runOn(t, l, Options{})
	for _, row := range r.Rows {
		if strings.HasPrefix(row.K, "q8_0") {
			t.Errorf("a row %s on 40 channels", row.Scheme)
		}
	}
	if !strings.Contains(strings.Join(r.Warnings, "\n"), `scheme "q8_0": its blocks of 32 channels do not divide the head of 40: left out of layer `) {
		t.Errorf("warnings %q", r.Warnings)
	}
}

// TestNothingFits has only schemes that do not fit, in a set that leaves those out.
func TestNothingFits(t *testing.T) {
	l := newTestLayer(shapeOf{name: "d 40", kvHeads: 5, group: 1, tokens: 40, dimK: 40, dimV: 40, rows: 4, model: 3, size: 1, facts: Facts{Causal: true}}, 8)
	r := runOn(t, l, Options{Schemes: []string{"q8_0", "mxfp4:exact"}, Optional: true})
	if len(r.Rows) != 0 || len(r.Warnings) == 0 || len(r.Outliers) == 0 {
		t.Errorf("%d rows, warnings %q", len(r.Rows), r.Warnings)
	}
}

func TestProgressAndBench(t *testing.T) {
	l := newTestLayer(referenceShapes[0], 9)
	var last Progress
	calls := 0
	r := runOn(t, l, Options{
		Schemes: []string{"int8-token", "int4-token:exact", "int8-token:int4-token"},
		Progress: func(p Progress) {
			if p.Done < last.Done || p.Done > p.Total {
				t.Errorf("progress %+v after %+v", p, last)
			}
			last = p
			calls++
		},
		Bench: func(_ context.Context, _ *Layer, schemes []string) (BenchResult, error) {
			if fmt.Sprint(schemes) != "[int8-token int8-token:int4-token]" {
				t.Errorf("asked to bench %q", schemes)
			}
			return BenchResult{ReadGBps: 20, Rows: []*Decode{{UsPerToken: 5, GBps: 10, Roofline: 0.5, SpeedupVsF16: 2, Kernel: "generic"}, nil}}, nil
		},
	})
	if last.Done != last.Total || calls == 0 {
		t.Errorf("progress ended at %d of %d", last.Done, last.Total)
	}
	if row := rowOf(t, r, "int8-token"); row.DecodeGBps == nil || *row.DecodeGBps != 10 || row.Kernel != "generic" {
		t.Errorf("row %+v", row)
	}
	if row := rowOf(t, r, "int8-token:int4-token"); row.DecodeGBps != nil || row.Kernel != "" {
		t.Errorf("a figure where nothing was measured: %+v", row)
	}
	if r.CPU.ReadGBps == nil || *r.CPU.ReadGBps != 20 {
		t.Errorf("read bandwidth %v", r.CPU.ReadGBps)
	}
}

// TestBenchWithoutF16: what cannot be compared with f16 has no speedup, not one of 0.
func TestBenchWithoutF16(t *testing.T) {
	r := runOn(t, newTestLayer(referenceShapes[0], 9), Options{
		Schemes: []string{"int8-token"},
		Bench: func(context.Context, *Layer, []string) (BenchResult, error) {
			return BenchResult{Rows: []*Decode{{UsPerToken: 5, GBps: 10, Roofline: 0.5, Kernel: "generic"}}}, nil
		},
	})
	if row := rowOf(t, r, "int8-token"); row.DecodeGBps == nil || row.DecodeSpeedupVsF16 != nil {
		t.Errorf("row %+v", row)
	}
}

// TestBlocks demands the same figures when queries are taken in small blocks.
func TestBlocks(t *testing.T) {
	for _, shape := range []shapeOf{referenceShapes[0], referenceShapes[8], referenceShapes[18]} {
		l := newTestLayer(shape, 10)
		whole := runOn(t, l, Options{Schemes: referenceSchemes, Queries: AllQueries})
		parts := runOn(t, l, Options{Schemes: referenceSchemes, Queries: AllQueries, blockBytes: 1})
		for i := range whole.Rows {
			a, b := &whole.Rows[i], &parts.Rows[i]
			for _, name := range []string{"kl_mean", "kl_p50", "kl_max", "top1_flip_rate", "k_mse", "v_mse"} {
				x, y := fieldValue(a, name), fieldValue(b, name)
				if (x == nil) != (y == nil) || x != nil && *x != *y {
					t.Errorf("%s: %s: %s %v and %v", shape.name, a.Scheme, name, x, y)
				}
			}
			for _, name := range []string{"output_nmse", "residual_nmse"} { // sums over blocks
				x, y := fieldValue(a, name), fieldValue(b, name)
				if (x == nil) != (y == nil) || x != nil && math.Abs(*x-*y) > 1e-12*math.Abs(*x) {
					t.Errorf("%s: %s: %s %v and %v", shape.name, a.Scheme, name, x, y)
				}
			}
		}
	}
}

// TestReportJSON holds the form of a report: no NaN, lists that are never null.
func TestReportJSON(t *testing.T) {
	l := newTestLayer(referenceShapes[2], 11)
	text, err := json.Marshal(runOn(t, l, Options{Schemes: []string{"f32", "int4-token"}}))
	if err != nil {
		t.Fatal(err)
	}
	if s := string(text); strings.Contains(s, "null") || !strings.Contains(s, `"schema":"kvq.eval/1"`) {
		t.Errorf("%s", s)
	}
}

// TestExtremes has values and facts at the ends of what a dump can hold: figures
// may be absent, but nothing panics or hangs.
func TestExtremes(t *testing.T) {
	for name, change := range map[string]func(l *testLayer){
		"huge keys":      func(l *testLayer) { scaleBy(l.data[Keys][0], 1e36) },
		"huge values":    func(l *testLayer) { scaleBy(l.data[Values][0], 1e36) },
		"huge queries":   func(l *testLayer) { scaleBy(l.data[Queries][0], 3e37) },
		"huge scale":     func(l *testLayer) { l.Facts.Scale = 1e300 },
		"tiny scale":     func(l *testLayer) { l.Facts.Scale = 5e-324 },
		"negative scale": func(l *testLayer) { l.Facts.Scale = -1 },
		"zero scale":     func(l *testLayer) { l.Facts.Scale = 0 },
		"tiny softcap":   func(l *testLayer) { l.Facts.Softcap = 1e-300 },
		"huge softcap":   func(l *testLayer) { l.Facts.Softcap = 1e300; l.Facts.Scale = 1e250 },
		"large sink":     func(l *testLayer) { l.Facts.Sinks = []float64{1e300, -1e300, 0, 1, 2, 3} },
		"denormals":      func(l *testLayer) { scaleBy(l.data[Keys][1], 1e-42); scaleBy(l.data[Values][1], 1e-42) },
		"zeros": func(l *testLayer) {
			scaleBy(l.data[Keys][0], 0)
			scaleBy(l.data[Values][0], 0)
			scaleBy(l.data[Values][1], 0)
		},
		"wide window": func(l *testLayer) { l.Facts.Window = math.MaxInt },
		"wide chunk":  func(l *testLayer) { l.Facts.Chunk = math.MaxInt },
	} {
		l := newTestLayer(referenceShapes[0], 12)
		change(l)
		r, err := Run(context.Background(), []*Layer{&l.Layer}, Options{Schemes: []string{"int8-token@f32", "int4-channel@f32:exact", "exact:int2-asym-token@f32", "f32"}, PerHead: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text, err := json.Marshal(r); err != nil || strings.Contains(string(text), "null") {
			t.Errorf("%s: %v, %s", name, err, text)
		}
	}
}
