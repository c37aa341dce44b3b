package eval

import (
	"strings"
	"testing"
)

// summaryOf is a summary with the figures that a choice looks at.
func summaryOf(k, v string, bits, kl, out float64, online bool) Summary {
	s := Summary{Scheme: k + ":" + v, K: k, V: v, Layers: 1, Queries: Captured, BitsPerElement: bits, Online: online, KLMean: &kl, OutputNMSE: &out}
	return s
}

func TestPareto(t *testing.T) {
	rows := []Summary{
		summaryOf("a", "a", 8, 0.001, 0.001, true),
		summaryOf("b", "b", 4, 0.1, 0.1, true),
		summaryOf("c", "c", 6, 0.2, 0.2, true),           // b is better with fewer bits
		summaryOf("d", "d", 8, 0.001, 0.001, true),       // equal to a: neither dominates
		summaryOf("e", "e", 9, 0.0005, 0.5, true),        // best kl_mean
		summaryOf("f", Exact, 5, 0.15, 0.15, true),       // of another kind
		summaryOf("g", Exact, 5, 0.15, 0.16, true),       // f dominates
		{Scheme: "h", K: "h", V: "h", Queries: Captured}, // no figures
	}
	markParetoSummaries(rows)
	var got string
	for _, s := range rows {
		if s.Pareto {
			got += s.K
		}
	}
	if got != "abdef" {
		t.Errorf("marked %q, want abdef", got)
	}
}

func TestRecommend(t *testing.T) {
	proxy := func(s Summary, centered, v float64) Summary {
		s.Queries, s.KCenteredNMSE, s.VNMSE = Proxy, &centered, &v
		return s
	}
	without := func(s Summary) Summary {
		s.OutputNMSE = nil
		return s
	}
	for name, c := range map[string]struct {
		rows    []Summary
		want    string
		why     string
		refused string
	}{
		"fewest bits within limits": {[]Summary{
			summaryOf("a", "a", 8, 0.001, 0.001, true), summaryOf("b", "b", 6, 0.009, 0.009, true), summaryOf("c", "c", 4, 0.02, 0.001, true),
		}, "b:b", "fewest bits", ""},
		"online first": {[]Summary{
			summaryOf("a", "a", 8, 0.001, 0.001, true), summaryOf("b", "b", 6, 0.009, 0.009, false),
		}, "a:a", "fewest bits", ""},
		"not online where nothing else does": {[]Summary{
			summaryOf("a", "a", 8, 0.1, 0.1, true), summaryOf("b", "b", 6, 0.009, 0.009, false),
		}, "b:b", "whole context", ""},
		"leaner but not online": {[]Summary{
			summaryOf("int8-token", "int8-token", 8, 0.001, 0.001, true), summaryOf("int4-channel/32", "int4-token", 4, 0.009, 0.009, false),
		}, "int8-token:int8-token", "int4-channel/32:int4-token does at 4 bits, but cannot be built token by token: try int4-channel/32+recent128:int4-token", ""},
		"nothing good enough: the closest, online or not": {[]Summary{
			summaryOf("a", "a", 8, 9, 9, true), summaryOf("b", "b", 4, 0.5, 0.5, false),
		}, "b:b", "cannot be built while decoding", ""},
		"same bits: less output error": {[]Summary{
			summaryOf("a", "a", 8, 0.001, 0.002, true), summaryOf("b", "b", 8, 0.002, 0.001, true),
		}, "b:b", "", ""},
		"nothing good enough": {[]Summary{
			summaryOf("a", "a", 8, 0.1, 0.1, true), summaryOf("b", "b", 4, 0.5, 0.5, true), summaryOf("f16", "f16", 16, 0, 0, true),
		}, "a:a", "closest", ""},
		"pairs before one side": {[]Summary{
			summaryOf("a", Exact, 2, 0, 0, true), summaryOf("b", Exact, 3, 0, 0, true), summaryOf("c", "c", 8, 0.001, 0.001, true), summaryOf("d", "d", 9, 0.001, 0.001, true),
		}, "c:c", "", ""},
		"one side where there are no pairs": {[]Summary{
			summaryOf("a", Exact, 2, 0.002, 0.9, true), summaryOf("b", Exact, 3, 0.001, 0, true),
		}, "a:exact", "keys alone", ""},
		"stand-in queries: by tensor errors": {[]Summary{
			proxy(summaryOf("a", "a", 8, 0, 0, true), 0.001, 0.001), proxy(summaryOf("b", "b", 4, 0, 0, true), 0.5, 0.5),
		}, "a:a", "tensor errors", ""},
		"one alone within limits": {[]Summary{summaryOf("a", "a", 8, 0.001, 0.01, true)}, "a:a", "keeps kl_mean ≤ 0.01 and output_nmse ≤ 0.01: kl_mean 0.001, output_nmse 0.01 at 8 bits", ""},
		"one alone beyond one":    {[]Summary{summaryOf("a", Exact, 8, 0.011, 0, false)}, "a:exact", "does not keep kl_mean ≤ 0.01: kl_mean 0.011 at 8 bits per element; keys alone, values exact; it cannot", ""},
		"one alone, unknown":      {[]Summary{without(summaryOf("a", "a", 8, 0, 0, true))}, "", "", "a:a (no output_nmse)"},
		"no choice":               {[]Summary{summaryOf("a", "a", 8, 0, 0, true), summaryOf("a", Exact, 8, 0, 0, true)}, "", "", ""},
		"what attention returns is not known": {[]Summary{
			without(summaryOf("a", Exact, 4, 0.001, 0, true)), summaryOf("b", Exact, 6, 0.001, 0.001, true),
		}, "b:exact", "fewest bits", "a:exact (no output_nmse)"},
		"of no scheme": {[]Summary{
			without(summaryOf("a", "a", 4, 0.001, 0, true)), without(summaryOf("b", "b", 6, 0.001, 0.001, true)), without(summaryOf("f16", "f16", 16, 0, 0, true)),
		}, "", "", "a:a (no output_nmse), b:b (no output_nmse)"},
	} {
		got, refused := recommend(c.rows)
		if got == nil {
			got = &Recommendation{}
		}
		if got.Scheme != c.want || !strings.Contains(got.Why, c.why) {
			t.Errorf("%s: %q because %q, want %q and %q", name, got.Scheme, got.Why, c.want, c.why)
		}
		if list := strings.Join(refused, ", "); list != c.refused {
			t.Errorf("%s: refused %q, want %q", name, list, c.refused)
		}
	}
}

func TestQuantile(t *testing.T) {
	x := []float64{1, 2, 4, 8}
	for p, want := range map[float64]float64{0: 1, 1: 8, 0.5: 3, 1.0 / 3: 2, 0.9: 4 + 0.7*4} {
		if got := quantile(x, p); got < want-1e-12 || got > want+1e-12 {
			t.Errorf("quantile %g = %g, want %g", p, got, want)
		}
	}
}

// TestBootstrap holds intervals against the distribution that they estimate: the
// mean of n units of known spread.
func TestBootstrap(t *testing.T) {
	var a, b, few []sample
	for i := range 400 {
		v := float64(i%20) - 9.5 // variance (20²−1)/12
		a, b = append(a, sample{10 * v, 10}), append(b, sample{10 * (v + 0.01), 10})
	}
	few = a[:leastUnits-1]
	lo, hi := interval(resampleMeans(a))
	const deviation = 5.766 / 20 // of the mean of 400
	if lo == nil || *lo > -1.7*deviation || *lo < -2.2*deviation || *hi < 1.7*deviation || *hi > 2.2*deviation {
		t.Errorf("interval %v to %v, want about ±1.96·%g", *lo, *hi, deviation)
	}
	if lo, hi := interval(resampleMeans(few)); lo != nil || hi != nil {
		t.Error("an interval of too few units")
	}
	// The same draws make a small but constant difference certain.
	if indistinct(resampleMeans(a), resampleMeans(b)) {
		t.Error("a constant difference drowned")
	}
	b[0].sum, b[1].sum = b[0].sum-500, b[1].sum+450
	if !indistinct(resampleMeans(a), resampleMeans(b)) {
		t.Error("a difference that a few units make counts as certain")
	}
}

// TestWarnBiased holds that a warning about many layers is one, of the worst.
func TestWarnBiased(t *testing.T) {
	half, most, none := 0.5, 0.75, 0.1
	tab := &table{report: &Report{}}
	for i, share := range []*float64{&half, &most, &none, nil} {
		tab.warnRanking(nil, Outliers{Dump: "d", Layer: i, BiasEnergy: share})
	}
	tab.warnBiased()
	want := "d: layer 1: 75% of the keys' energy is a constant per channel (and at least half on 1 more), which softmax ignores: k_nmse and k_sqnr_db look 4 times better"
	if w := tab.report.Warnings; len(w) != 1 || !strings.HasPrefix(w[0], want) {
		t.Errorf("%q, want %q", w, want)
	}
}
