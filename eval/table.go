package eval

import (
	"context"
	"fmt"
	"slices"
)

// table makes a report of measurements.
type table struct {
	plan    *plan
	report  *Report
	options *Options
	combos  []pooled
	omitted []omission
	biased  []Outliers // of keys that are half a constant or more
}

// pooled is what the summary of a combo pools: layers, their rows, and the
// units of resampling.
type pooled struct {
	layers []*Layer // not their measurements, which are large
	rows   []*Row
	units  []sample
}

func (t *table) warn(format string, args ...any) {
	t.report.Warnings = append(t.report.Warnings, fmt.Sprintf(format, args...))
}

// add appends everything about one layer to the report.
func (t *table) add(ctx context.Context, m *measurement) error {
	l := m.layer
	t.report.Dumps = append(t.report.Dumps, dumpOf(m))
	var err error
	if m.floors, err = t.plan.floors(ctx, l, m.sizes, t.options.Threads); err != nil {
		return err
	}

	t.omitRefused(m)
	var combos []int // those with a row
	for n, c := range t.plan.combos {
		if !m.refused(c) {
			combos = append(combos, n)
		}
	}
	rows := t.rowsOf(m, combos, 0, l.KVHeads)
	for i, n := range combos {
		p := &t.combos[n]
		p.layers = append(p.layers, l)
		p.rows = append(p.rows, &rows[i])
		if side := t.plan.combos[n].side[keys]; side >= 0 {
			p.units = append(p.units, m.klUnits(side, 0, l.KVHeads)...)
		}
	}
	if err := t.bench(ctx, l, rows); err != nil {
		return err
	}
	for tensor, o := range m.pooled {
		o.Dump, o.Layer, o.Tensor = l.Dump, l.Number, tensors[tensor]
		o.remedy(rows)
		if tensor == keys {
			t.warnRanking(rows, o)
		}
		t.report.Outliers = append(t.report.Outliers, o)
	}
	var byHead [][]Row
	if t.options.PerHead {
		for head := range l.KVHeads {
			byHead = append(byHead, t.rowsOf(m, combos, head, head+1))
			for i := range byHead[head] {
				byHead[head][i].KVHead = &head
			}
			for tensor := range m.byHead {
				o := m.byHead[tensor][head]
				o.Dump, o.Layer, o.Tensor, o.KVHead = l.Dump, l.Number, tensors[tensor], &head
				o.remedy(byHead[head])
				t.report.Outliers = append(t.report.Outliers, o)
			}
		}
	}
	for i := range rows {
		t.report.Rows = append(t.report.Rows, rows[i])
		for _, rows := range byHead {
			t.report.Rows = append(t.report.Rows, rows[i])
		}
	}
	return nil
}

func dumpOf(m *measurement) Dump {
	l := m.layer
	d := Dump{
		Name: l.Dump, Path: l.Path, Layer: l.Number, Tokens: l.Tokens, KVHeads: l.KVHeads, QueryHeads: l.QueryHeads,
		HeadDim: l.DimK, DType: l.DType, Queries: m.queriesName(), QueryRows: len(m.queries), FactsAssumed: l.Assumed,
		Scale: &l.Facts.Scale, Causal: &l.Facts.Causal, Window: l.Facts.Window, Chunk: l.Facts.Chunk, Softcap: l.Facts.Softcap, Sinks: l.Facts.Sinks,
	}
	if l.DimV != l.DimK {
		d.HeadDimV = l.DimV
	}
	return d
}

// rowsOf makes the rows of some KV heads of a layer, marks included.
func (t *table) rowsOf(m *measurement, combos []int, from, to int) []Row {
	rows := make([]Row, len(combos))
	draws := make([][]float64, len(combos))
	for i, n := range combos {
		rows[i] = m.row(n, from, to)
		if side := t.plan.combos[n].side[keys]; side >= 0 && rows[i].KLMean != nil {
			draws[i] = resampleMeans(m.klUnits(side, from, to))
			rows[i].KLMeanLo, rows[i].KLMeanHi = interval(draws[i])
		}
	}
	names := func(i int) (scheme, k, v string) { return rows[i].Scheme, rows[i].K, rows[i].V }
	for i, same := range indistinctFrom(draws, names) {
		rows[i].IndistinctFrom = same
	}
	markParetoRows(rows)
	return rows
}

// indistinctFrom lists for each scheme the others of its kind whose mean its
// own cannot be told from, given the draws of each.
func indistinctFrom(draws [][]float64, names func(i int) (scheme, k, v string)) [][]string {
	lists := make([][]string, len(draws))
	for j := range draws {
		b, kb, vb := names(j)
		for i := range j {
			a, ka, va := names(i)
			if draws[i] != nil && len(draws[i]) == len(draws[j]) && ka != kb && kindOf(ka, va) == kindOf(kb, vb) && indistinct(draws[i], draws[j]) {
				lists[i], lists[j] = append(lists[i], b), append(lists[j], a)
			}
		}
	}
	return lists
}

// bench measures decoding over the two-sided rows of a layer.
func (t *table) bench(ctx context.Context, l *Layer, rows []Row) error {
	if t.options.Bench == nil {
		return nil
	}
	var names []string
	var of []*Row
	for i := range rows {
		if rows[i].K != Exact && rows[i].V != Exact {
			names, of = append(names, rows[i].Scheme), append(of, &rows[i])
		}
	}
	if len(names) == 0 {
		return nil
	}
	result, err := t.options.Bench(ctx, l, names)
	if err != nil {
		return l.errorf("decode bandwidth: %v", err)
	}
	if t.report.CPU.ReadGBps == nil && result.ReadGBps > 0 {
		t.report.CPU.ReadGBps = figure(result.ReadGBps)
	}
	for i, d := range result.Rows {
		if d == nil || i >= len(of) {
			continue
		}
		r := of[i]
		if r.Kernel = d.Kernel; d.Kernel == NoKernel {
			continue
		}
		r.DecodeGBps, r.DecodeUsPerToken = figure(d.GBps), figure(d.UsPerToken)
		r.DecodeRoofline = figure(d.Roofline)
		if d.SpeedupVsF16 > 0 {
			r.DecodeSpeedupVsF16 = figure(d.SpeedupVsF16)
		}
	}
	return nil
}

// finish adds what rests on all layers.
func (t *table) finish() {
	t.warnBiased()
	for _, o := range t.omitted {
		t.warn("%s: left out of %s", o.reason, o.places())
	}
	summaries := []Summary{}
	var draws [][]float64
	complete := 0
	for _, p := range t.combos {
		complete = max(complete, len(p.rows))
	}
	for n, p := range t.combos {
		if len(p.rows) == 0 {
			continue
		}
		s := t.plan.summarize(n, p.layers, p.rows)
		var means []float64
		if s.KLMean != nil {
			means = resampleMeans(p.units)
			s.KLMeanLo, s.KLMeanHi = interval(means)
		}
		if len(p.rows) < complete {
			t.warn("%s: its summary covers %d of %d layers", s.Scheme, len(p.rows), complete)
		}
		summaries, draws = append(summaries, s), append(draws, means)
	}
	names := func(i int) (scheme, k, v string) { return summaries[i].Scheme, summaries[i].K, summaries[i].V }
	for i, same := range indistinctFrom(draws, names) {
		summaries[i].IndistinctFrom = same
	}
	markParetoSummaries(summaries)
	t.report.Summary = summaries
	predict(t.report)
	t.report.Recommendation = t.recommend(summaries)
	if slices.ContainsFunc(t.report.Dumps, func(d Dump) bool { return d.Queries == Proxy }) {
		t.warn("no captured queries: attention figures use keys as stand-ins, which can mislead badly, and nothing is recommended by them; capture q together with k and v to rank by attention")
	}
}

// queriesName says whose queries the measurement used.
func (m *measurement) queriesName() string {
	if m.proxy {
		return Proxy
	}
	return Captured
}
