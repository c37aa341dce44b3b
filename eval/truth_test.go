package eval

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// The expected correlations are worked out by hand from their definition: for
// ranks without ties 1 − 6·Σd² ÷ (n(n² − 1)).
func TestSpearman(t *testing.T) {
	for name, test := range map[string]struct {
		figure, truth []float64
		want          float64
	}{
		"same order":     {[]float64{1, 5, 7, 1000}, []float64{-3, 0, 2, 2.5}, 1},
		"reversed":       {[]float64{4, 3, 2, 1}, []float64{1, 2, 3, 4}, -1},
		"one swap of 5":  {[]float64{1, 2, 4, 3, 5}, []float64{1, 2, 3, 4, 5}, 1 - 6*2.0/(5*24)},
		"tied":           {[]float64{1, 1, 2}, []float64{1, 2, 3}, math.Sqrt(3) / 2}, // ranks 1.5, 1.5, 3
		"nothing to say": {[]float64{1, 1, 1}, []float64{1, 2, 3}, math.NaN()},
		"too few":        {[]float64{1, 2}, []float64{1, 2}, math.NaN()},
	} {
		var r ranking
		for i := range test.figure {
			r.add(&test.figure[i], test.truth[i])
		}
		got := r.spearman()
		if math.IsNaN(test.want) != (got == nil) || got != nil && math.Abs(*got-test.want) > 1e-15 {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	var r ranking
	for i := range 5 {
		r.add(figure(float64(i)), float64(i))
	}
	if r.add(nil, 5); r.spearman() != nil {
		t.Error("a missing figure was passed over")
	}
}

// truthOf makes rows whose truth is the line times a factor.
func truthOf(keysWorth, valuesWorth float64, factor func() float64, sums ...[2]float64) *Truth {
	t := &Truth{}
	for _, s := range sums {
		t.Rows = append(t.Rows, TruthRow{
			LogitKLMean:  (keysWorth*s[keys] + valuesWorth*s[values]) * factor(),
			KResidualSum: figure(s[keys]), VResidualSum: figure(s[values]),
		})
	}
	return t
}

// What lies on a line gives the line back, whatever the schemes' sizes.
func TestTruthFit(t *testing.T) {
	one := func() float64 { return 1 }
	for name, test := range map[string]struct {
		truth        *Truth
		keys, values float64 // NaN: cannot be told
	}{
		"both":     {truthOf(3, 1.8, one, [2]float64{1e-5, 0}, [2]float64{0, 0.3}, [2]float64{0.2, 1e-4}, [2]float64{0.01, 0.02}), 3, 1.8},
		"pairs":    {truthOf(6, 0.5, one, [2]float64{1e-5, 3e-5}, [2]float64{0.2, 0.3}, [2]float64{0.2, 1e-4}), 6, 0.5},
		"far":      {truthOf(3e4, 2e-3, one, [2]float64{1e-5, 3e-5}, [2]float64{0.2, 30}, [2]float64{0.2, 1e-4}), 3e4, 2e-3},
		"keys":     {truthOf(3, 1.8, one, [2]float64{1e-5, 0}, [2]float64{0.2, 0}), 3, math.NaN()},
		"values":   {truthOf(3, 1.8, one, [2]float64{0, 1e-5}, [2]float64{0, 0.2}), math.NaN(), 1.8},
		"no scale": {truthOf(3, 3, one, [2]float64{1, 1}, [2]float64{2, 2}), 3, 3},
	} {
		test.truth.fit()
		f := test.truth.Fit
		for side, pair := range map[string][2]*float64{"keys": {f.KeysWorth, figure(test.keys)}, "values": {f.ValuesWorth, figure(test.values)}} {
			got, want := pair[0], pair[1]
			if (got == nil) != (want == nil) || got != nil && math.Abs(*got / *want - 1) > 1e-9 {
				t.Errorf("%s: %s are worth %v, want %v", name, side, got, want)
			}
		}
		if f.Within1_5 != len(test.truth.Rows) || math.Abs(f.WorstFactor-1) > 1e-9 {
			t.Errorf("%s: %+v", name, f)
		}
	}
	// With noise, no other constants near by fit better.
	rng := rand.New(rand.NewPCG(1, 2))
	var sums [][2]float64
	for range 40 {
		sums = append(sums, [2]float64{math.Exp(-5 * rng.Float64()), math.Exp(-5 * rng.Float64())})
	}
	truth := truthOf(3, 1.8, func() float64 { return math.Exp(rng.Float64() - 0.5) }, sums...)
	truth.fit()
	loss := func(k, v float64) (sum float64) {
		for _, r := range truth.Rows {
			d := math.Log((k**r.KResidualSum + v**r.VResidualSum) / r.LogitKLMean)
			sum += d * d
		}
		return sum
	}
	k, v := *truth.Fit.KeysWorth, *truth.Fit.ValuesWorth
	for _, by := range [][2]float64{{1.001, 1}, {0.999, 1}, {1, 1.001}, {1, 0.999}, {1.001, 0.999}} {
		if loss(k*by[0], v*by[1]) <= loss(k, v) {
			t.Errorf("constants %g, %g are better than %g, %g", k*by[0], v*by[1], k, v)
		}
	}
	if f := truth.Fit; f.Within1_5 > f.Within2 || f.Within2 != 40 || f.WorstFactor > 2 {
		t.Errorf("%+v", f)
	}
}

func TestParseTruth(t *testing.T) {
	table, err := ParseTruth("pair\tlogit_kl_mean\tx\nint8-token:exact\t0.5\t\nQ8_0:q8_0\t1e-3\t7\nnext-years-scheme\t1\t\n\n", "truth.tsv")
	if err != nil {
		t.Fatal(err)
	}
	if want := []TruthEntry{{"int8-token", Exact, 0.5}, {"q8_0", "q8_0", 1e-3}}; !slices.Equal(table.Rows, want) {
		t.Errorf("%+v, want %+v", table.Rows, want)
	}
	if !slices.Equal(table.Unknown, []string{"next-years-scheme"}) {
		t.Errorf("unknown: %q", table.Unknown)
	}
	if got, want := table.Schemes(nil), []string{"int8-token:exact", "q8_0:q8_0", "q8_0:exact", "exact:q8_0"}; !slices.Equal(got, want) {
		t.Errorf("schemes %q, want %q", got, want)
	}
	if got, want := table.Schemes([]string{"f16", "q8_0"}), []string{"f16", "q8_0", "q8_0:exact", "exact:q8_0"}; !slices.Equal(got, want) {
		t.Errorf("schemes %q, want %q", got, want)
	}
	if _, err := ParseTruth("x,pair,logit_kl_mean\r\n1,int8-token,2\r\n", "truth.csv"); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"":                                       "no scheme that kvq knows",
		"pair\tkl\nint8-token\t1\n":              "line 1: no header",
		"pair\tlogit_kl_mean\nint8-token\n":      "line 2: 1 fields, but the header has 2",
		"pair\tlogit_kl_mean\nint8-token\t-1\n":  `line 2: logit_kl_mean of "int8-token" is "-1", want a number from 0`,
		"pair\tlogit_kl_mean\nint8-token\tNaN\n": "want a number",
		"pair\tlogit_kl_mean\nint8-token\t1\nINT8-token\t1\n": `line 3: "INT8-token" is given twice`,
		"pair\tlogit_kl_mean\nunheard-of\t1\n":                "no scheme that kvq knows",
	} {
		if _, err := ParseTruth(text, "t"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseTruth(f *testing.F) {
	f.Add("pair\tlogit_kl_mean\nint8-token\t1\nexact:q4_0\t0.5\n")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := ParseTruth(text, "t")
		if err == nil && len(table.Schemes(nil)) < len(table.Rows) {
			t.Errorf("%d schemes of %d rows", len(table.Schemes(nil)), len(table.Rows))
		}
	})
}

// The range is given for what looks like a whole model only, and rests on the
// sides where they were run.
func TestPredict(t *testing.T) {
	report := func(layers ...int) *Report {
		r := &Report{Summary: []Summary{
			{K: "a", V: Exact, Layers: len(layers), ResidualSum: figure(0.01), Queries: Captured},
			{K: Exact, V: "a", Layers: len(layers), ResidualSum: figure(0.1), Queries: Captured},
			{K: "a", V: "a", Layers: len(layers), ResidualSum: figure(0.11), Queries: Captured},
			{K: "b", V: "b", Layers: len(layers), ResidualSum: figure(0.2), Queries: Captured},
			{K: "c", V: "c", Layers: len(layers), Queries: Captured},
		}}
		for _, n := range layers {
			r.Dumps = append(r.Dumps, Dump{Layer: n})
		}
		predict(r)
		return r
	}
	r := report(0, 1, 2)
	for i, want := range [][2]float64{{0.015, 0.12}, {0.09, 0.54}, {0.105, 0.66}, {0.18, 2.4}} {
		s := r.Summary[i]
		if s.LogitKLLow == nil || math.Abs(*s.LogitKLLow-want[0]) > 1e-12 || math.Abs(*s.LogitKLHigh-want[1]) > 1e-12 {
			t.Errorf("%s:%s: %v to %v, want %v", s.K, s.V, s.LogitKLLow, s.LogitKLHigh, want)
		}
	}
	if r.Summary[4].LogitKLLow != nil {
		t.Error("a range without a residual_sum")
	}
	for _, layers := range [][]int{{0}, {0, 2}, {1, 2}, {0, 0, 1}} {
		if report(layers...).Summary[0].LogitKLLow != nil {
			t.Errorf("a range from layers %v", layers)
		}
	}
}
