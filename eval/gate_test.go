package eval

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestParseCondition(t *testing.T) {
	for text, want := range map[string]Condition{
		"kl_mean>0.01":         {Field: "kl_mean", op: ">", value: 0.01},
		" kl_p99 >= 1e-3 ":     {Field: "kl_p99", op: ">=", value: 1e-3},
		"bytes<100":            {Field: "bytes", op: "<", value: 100},
		"k_sqnr_db<=-3":        {Field: "k_sqnr_db", op: "<=", value: -3},
		"residual_sum>1":       {Field: "residual_sum", op: ">", value: 1, summary: true},
		"summary.kl_mean>0.01": {Field: "kl_mean", op: ">", value: 0.01, summary: true},
	} {
		got, err := ParseCondition(text)
		want.Text = got.Text
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "kl_mean", "kl_mean=1", "kl_mean>", "kl_mean>x", "kl_mean>nan", "klmean>1", "scheme>1", "summary.k_mse>1", ">1", "kl_mean=>1", "online>0"} {
		var usage *UsageError
		if c, err := ParseCondition(text); !errors.As(err, &usage) {
			t.Errorf("%q: %+v, %v, want a usage error", text, c, err)
		}
	}
}

// twoRows is a report of two rows on layer 3, the second without kl_mean.
func twoRows() *Report {
	kl, nmse, head, causal := 0.02, 1e-4, 3, true
	return &Report{
		Schema:  Schema,
		Dumps:   []Dump{{Name: "a.npy", Layer: 3, Tokens: 96, Queries: Captured, QueryRows: 64, Scale: figure(0.125), Causal: &causal}},
		Rows:    []Row{{Dump: "a.npy", Layer: 3, Scheme: "x", K: "x", V: "x", Bytes: 100, Queries: Captured, KLMean: &kl}, {Dump: "a.npy", Layer: 3, Scheme: "exact:y", K: Exact, V: "y", Bytes: 50, Queries: Captured, VNMSE: &nmse}},
		Summary: []Summary{{Scheme: "x", KLMean: &kl, WorstLayer: &head, Queries: Captured}},
	}
}

func failIf(t *testing.T, r *Report, allowProxy bool, texts ...string) ([]Check, error) {
	t.Helper()
	var conditions []Condition
	for _, text := range texts {
		c, err := ParseCondition(text)
		if err != nil {
			t.Fatal(err)
		}
		conditions = append(conditions, c)
	}
	return FailIf(r, conditions, allowProxy)
}

func TestFailIf(t *testing.T) {
	r := twoRows()
	checks, err := failIf(t, r, false, "kl_mean>0.01")
	if err != nil || len(checks) != 2 || !checks[0].Failed || checks[1].Failed || checks[1].Note == "" || !anyFailed(checks) {
		t.Errorf("checks %+v, %v: want the first failed, the second absent", checks, err)
	}
	for text, failed := range map[string]bool{"kl_mean>=0.02": true, "kl_mean>0.02": false, "bytes<51": true, "bytes<=49": false, "summary.kl_mean>0.01": true, "worst_layer<3": false} {
		checks, err := failIf(t, r, false, text)
		if err != nil || anyFailed(checks) != failed {
			t.Errorf("%s: failed %t, %v, want %t", text, anyFailed(checks), err, failed)
		}
	}
	var usage *UsageError
	if _, err := failIf(t, r, false, "kl_p99>1"); !errors.As(err, &usage) {
		t.Errorf("a field absent everywhere: %v, want a usage error", err)
	}
	for i := range r.Rows {
		r.Rows[i].Queries = Proxy
	}
	if _, err := failIf(t, r, false, "kl_mean>0.01"); !errors.As(err, &usage) {
		t.Errorf("stand-in queries: %v, want a usage error", err)
	}
	if checks, err := failIf(t, r, true, "kl_mean>0.01"); err != nil || !anyFailed(checks) {
		t.Errorf("stand-in queries allowed: %+v, %v", checks, err)
	}
	if _, err := failIf(t, r, false, "v_nmse>0.01"); err != nil {
		t.Errorf("a tensor figure of stand-in queries: %v", err)
	}
}

// TestFailIfNotFinite: a figure that is no number is as bad as any, and passes
// no check. Figures of the other side and of an error of 0 do pass.
func TestFailIfNotFinite(t *testing.T) {
	report := func() *Report {
		row := func(layer int, k, v string) Row {
			return Row{Dump: "a.npy", Layer: layer, Scheme: k + ":" + v, K: k, V: v, Queries: Captured, KMSE: figure(0.1), VMSE: figure(0.1)}
		}
		r := &Report{Rows: []Row{row(0, "x", "x"), row(1, "x", "x"), row(0, Exact, "x"), row(0, "x", Exact)}}
		for i := range r.Rows {
			row := &r.Rows[i]
			row.KLMean, row.KLP99, row.OutputNMSE = figure(0), figure(0), figure(0)
			if row.K != Exact {
				row.KNMSE, row.KSQNRdB = figure(0), figure(20)
			}
			if row.V != Exact {
				row.VNMSE = figure(0)
			}
		}
		r.Rows[0].ResidualNMSE = figure(0)
		r.Rows[2].ResidualNMSE, r.Rows[3].ResidualNMSE = figure(0), figure(0)
		r.Summary = []Summary{{Scheme: "x:x", K: "x", V: "x", Queries: Captured, Layers: 2, KLMean: figure(0), KLP99: figure(0)}}
		return r
	}
	for _, c := range []struct {
		check  string
		change func(r *Report)
		failed int
	}{
		{"kl_mean>1", func(*Report) {}, 0},
		{"v_nmse>1", func(*Report) {}, 0},        // the row of keys alone has none
		{"residual_nmse>1", func(*Report) {}, 0}, // layer 1 has no projection
		{"kl_mean>1", func(r *Report) { r.Rows[1].KLMean, r.Rows[1].KLP99 = nil, nil }, 1},
		{"kl_mean<1e9", func(r *Report) { r.Rows[0].KLMean = nil }, 4},
		{"kl_p99>1", func(r *Report) { r.Rows[1].KLMean, r.Rows[1].KLP99 = nil, nil }, 1},
		{"summary.kl_mean>1", func(r *Report) { r.Rows[1].KLMean, r.Summary[0].KLMean = nil, nil }, 1},
		// The maximum over layers does not show that one has none.
		{"summary.kl_p99>1", func(r *Report) { r.Rows[1].KLMean, r.Rows[1].KLP99 = nil, nil }, 1},
		{"output_nmse>1", func(r *Report) { r.Rows[2].OutputNMSE = nil }, 1},
		{"v_nmse>1", func(r *Report) { r.Rows[2].VNMSE = nil }, 1},
		{"v_nmse>1", func(r *Report) { r.Rows[2].VNMSE, r.Rows[2].VMSE = nil, figure(0) }, 0},
		{"k_sqnr_db<5", func(r *Report) { r.Rows[0].KSQNRdB, r.Rows[0].KMSE = nil, figure(0) }, 0},
		{"residual_nmse>1", func(r *Report) { r.Rows[2].ResidualNMSE = nil }, 1},
		{"kl_mean>1", func(r *Report) { r.Rows = r.Rows[:1]; r.Rows[0].KLMean = nil }, 1},
	} {
		r := report()
		c.change(r)
		checks, err := failIf(t, r, false, c.check)
		failed := 0
		for _, check := range checks {
			if check.Failed {
				failed++
				if check.Value == nil && !strings.Contains(check.Note, "not finite") {
					t.Errorf("%s: no reason in %+v", c.check, check)
				}
			}
		}
		if err != nil || failed != c.failed {
			t.Errorf("%s: %d failed of %+v, %v, want %d", c.check, failed, checks, err, c.failed)
		}
	}
}

// A decibel figure of an error as large as its tensor is 0, without a sign.
func TestFigureOfZero(t *testing.T) {
	if x := figure(-10 * math.Log10(1)); x == nil || math.Signbit(*x) {
		t.Errorf("%v, want 0", x)
	}
}

func TestCompareBaseline(t *testing.T) {
	change := func(f func(r *Report)) *Report {
		r := twoRows()
		f(r)
		return r
	}
	compare := func(now, old *Report, tolerance float64) string {
		checks, notices, err := CompareBaseline(now, old, tolerance, false)
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, c := range checks {
			if !c.Failed {
				t.Errorf("%+v did not fail", c)
			}
			all = append(all, c.Scheme+" "+c.Check)
		}
		if len(notices) > 0 {
			all = append(all, "notices")
		}
		return strings.Join(all, ", ")
	}
	kl := func(v float64) *Report { return change(func(r *Report) { r.Rows[0].KLMean = &v }) }
	for _, c := range []struct {
		name      string
		now, old  *Report
		tolerance float64
		want      string
	}{
		{"the same", twoRows(), twoRows(), 0, ""},
		{"better", kl(0.01), twoRows(), 0, ""},
		{"worse", kl(0.0201), twoRows(), 0, "x kl_mean"},
		{"worse within the tolerance", kl(0.0201), twoRows(), 0.01, ""},
		{"worse beyond it", kl(0.0203), twoRows(), 0.01, "x kl_mean"},
		{"worse by rounding", kl(0.02 + 5e-10), twoRows(), 0, ""},
		{"no figure any more", change(func(r *Report) { r.Rows[0].KLMean = nil }), twoRows(), 0, "x kl_mean"},
		{"a figure more", twoRows(), change(func(r *Report) { r.Rows[0].KLMean = nil }), 0, "notices"},
		{"fewer bytes", change(func(r *Report) { r.Rows[1].Bytes-- }), twoRows(), 1, "exact:y bytes"},
		{"a row missing", change(func(r *Report) { r.Rows = r.Rows[:1] }), twoRows(), 0, "exact:y baseline"},
		{"a row more", twoRows(), change(func(r *Report) { r.Rows = r.Rows[:1] }), 0, "notices"},
		{"bandwidth", change(func(r *Report) { r.Rows[0].DecodeGBps = figure(1) }), change(func(r *Report) { r.Rows[0].DecodeGBps = figure(9) }), 0, ""},
	} {
		if got := compare(c.now, c.old, c.tolerance); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	// What was measured in another way is an error that says what differs.
	for want, f := range map[string]func(d *Dump){
		"queries 32 captured, this run has queries 64 captured": func(d *Dump) { d.QueryRows = 32 },
		"scale 0.5, this run has scale 0.125":                   func(d *Dump) { d.Scale = figure(0.5) },
		"window 512, this run has window 0":                     func(d *Dump) { d.Window = 512 },
		"tokens 7, chunk 9, this run has tokens 96, chunk 0":    func(d *Dump) { d.Tokens, d.Chunk = 7, 9 },
		"sinks [0.5], this run has sinks []":                    func(d *Dump) { d.Sinks = []float64{0.5} },
		"it is of other dumps: it has layer 3 of b.npy":         func(d *Dump) { d.Name = "b.npy" },
		"it has layer 4 of a.npy, this run layer 3 of a.npy":    func(d *Dump) { d.Layer = 4 },
	} {
		if got := compare(twoRows(), change(func(r *Report) { f(&r.Dumps[0]) }), 0); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	// What the baseline does not say is named, not passed over.
	for want, f := range map[string]func(r *Report){
		"has no kl_mean for x on layer 3 of a.npy: not compared": func(r *Report) { r.Rows[0].KLMean = nil },
		"does not say the facts of layer 3 of a.npy":             func(r *Report) { r.Dumps[0].Scale = nil },
		"does not describe its dumps":                            func(r *Report) { r.Dumps = nil },
	} {
		checks, notices, err := CompareBaseline(twoRows(), change(f), 0, false)
		if err != nil || len(checks) > 0 || len(notices) != 1 || !strings.Contains(notices[0], want) {
			t.Errorf("%v, %q, %v, want the notice %q", checks, notices, err, want)
		}
	}
	// A baseline is what --format json wrote.
	text, err := json.Marshal(twoRows())
	if err != nil {
		t.Fatal(err)
	}
	var old Report
	if err := json.Unmarshal(text, &old); err != nil {
		t.Fatal(err)
	}
	if got := compare(twoRows(), &old, 0); got != "" {
		t.Errorf("through JSON: %q", got)
	}
}

// anyFailed reports whether a check failed.
func anyFailed(checks []Check) bool {
	return slices.ContainsFunc(checks, func(c Check) bool { return c.Failed })
}
