package cmd

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"kvq/eval"
)

// evalView says which part of an eval report people want to see. Programs
// (csv, tsv, json) always get all of it.
type evalView struct {
	wide     bool   // every figure
	perLayer bool   // every layer, not only the worst
	engine   string // whose flags are asked for; of all where it runs nothing
}

// figureColumn is one figure of a row, for people and programs.
type figureColumn struct {
	name   string // as in JSON
	header string // "" when only --wide shows it, under its name
	of     func(*eval.Row) *float64
}

// rowFigures are the figures of a row in the order of its JSON form.
func rowFigures() []figureColumn {
	return []figureColumn{
		{"k_mse", "", func(r *eval.Row) *float64 { return r.KMSE }},
		{"v_mse", "", func(r *eval.Row) *float64 { return r.VMSE }},
		{"k_nmse", "", func(r *eval.Row) *float64 { return r.KNMSE }},
		{"k_centered_nmse", "k_centered\n_nmse", func(r *eval.Row) *float64 { return r.KCenteredNMSE }},
		{"v_nmse", "v_nmse", func(r *eval.Row) *float64 { return r.VNMSE }},
		{"k_sqnr_db", "", func(r *eval.Row) *float64 { return r.KSQNRdB }},
		{"v_sqnr_db", "", func(r *eval.Row) *float64 { return r.VSQNRdB }},
		{"k_max_abs_error", "", func(r *eval.Row) *float64 { return r.KMaxAbsError }},
		{"v_max_abs_error", "", func(r *eval.Row) *float64 { return r.VMaxAbsError }},
		{"k_cosine", "", func(r *eval.Row) *float64 { return r.KCosine }},
		{"v_cosine", "", func(r *eval.Row) *float64 { return r.VCosine }},
		{"k_floor_ratio", "", func(r *eval.Row) *float64 { return r.KFloorRatio }},
		{"v_floor_ratio", "", func(r *eval.Row) *float64 { return r.VFloorRatio }},
		{"kl_mean", "kl_mean", func(r *eval.Row) *float64 { return r.KLMean }},
		{"kl_mean_lo", "", func(r *eval.Row) *float64 { return r.KLMeanLo }},
		{"kl_mean_hi", "", func(r *eval.Row) *float64 { return r.KLMeanHi }},
		{"kl_p50", "", func(r *eval.Row) *float64 { return r.KLP50 }},
		{"kl_p90", "", func(r *eval.Row) *float64 { return r.KLP90 }},
		{"kl_p99", "kl_p99", func(r *eval.Row) *float64 { return r.KLP99 }},
		{"kl_p999", "", func(r *eval.Row) *float64 { return r.KLP999 }},
		{"kl_max", "", func(r *eval.Row) *float64 { return r.KLMax }},
		{"top1_flip_rate", "", func(r *eval.Row) *float64 { return r.Top1FlipRate }},
		{"output_nmse", "output\n_nmse", func(r *eval.Row) *float64 { return r.OutputNMSE }},
		{"residual_nmse", "", func(r *eval.Row) *float64 { return r.ResidualNMSE }},
		{"decode_gb_s", "GB/s", func(r *eval.Row) *float64 { return r.DecodeGBps }},
		{"decode_us_per_token", "", func(r *eval.Row) *float64 { return r.DecodeUsPerToken }},
		{"decode_roofline", "", func(r *eval.Row) *float64 { return r.DecodeRoofline }},
		{"decode_speedup_vs_f16", "", func(r *eval.Row) *float64 { return r.DecodeSpeedupVsF16 }},
	}
}

// figureCell shows a figure with three significant digits.
func figureCell(x *float64) cell {
	if x == nil {
		return absent()
	}
	return number(*x, 3)
}

// cosineCell shows a cosine with two digits of what it lacks to 1.
func cosineCell(x *float64) cell {
	if x == nil || *x <= 0.9 || *x >= 1 {
		return figureCell(x)
	}
	return fixed(*x, 1+int(math.Ceil(-math.Log10(1-*x))))
}

// speedCell shows a bandwidth with two decimals at most: what is far below the
// others need not be told apart.
func speedCell(x *float64) cell {
	switch {
	case x == nil:
		return absent()
	case *x < 0.01:
		return number(*x, 1)
	case *x < 10:
		return fixed(*x, 2)
	}
	return number(*x, 3)
}

// bitsCell shows bits per element with four significant digits: 4.252, 16.00.
func bitsCell(x float64) cell { return number(x, 4) }

func intCell(n *int) cell {
	if n == nil {
		return absent()
	}
	return text(strconv.Itoa(*n))
}

func bytesCell(n *int64) cell {
	if n == nil {
		return absent()
	}
	return count(*n)
}

// evalReport arranges a report: what was measured, what the tensors look
// like, the schemes, and what follows.
func evalReport(r *eval.Report, view evalView) report {
	var schemes []*table
	if len(r.Dumps) > 1 {
		schemes = summaryTables(r, view)
	}
	if len(r.Dumps) > 1 && !view.perLayer {
		schemes = append(schemes, worstTables(r, view)...)
	} else {
		schemes = append(schemes, layerTables(r, view)...)
	}
	outliers := outlierTable(r, view)
	if len(r.Dumps) > 1 && !view.perLayer {
		outliers = diagnosisTable(r)
	}
	tables := append([]*table{dumpTable(r), outliers}, schemes...)
	tables = append(tables, legend(r, schemes))
	tables = append(tables, truthTables(r)...)
	tables = append(tables, checkTable(r.Checks), recommendationTable(r, view.engine))
	tables = slices.DeleteFunc(tables, func(t *table) bool { return len(t.rows) == 0 && len(t.notes) == 0 })
	return report{title: "kvq eval", tables: tables, data: rowData(r.Rows), json: r, plots: evalPlots(r)}
}

// dumpTable says in words what was measured, and what had to be assumed.
// Layers of one kind share a line.
func dumpTable(r *eval.Report) *table {
	t := &table{}
	measured := grouping[int]{}
	assumed := grouping[int]{}
	proxy := false
	for _, d := range r.Dumps {
		dim := strconv.Itoa(d.HeadDim)
		if d.HeadDimV != 0 && d.HeadDimV != d.HeadDim {
			dim += "+" + strconv.Itoa(d.HeadDimV)
		}
		what := fmt.Sprintf("%s, %s x %s, %s, %s", plural(int64(d.Tokens), "token"), plural(int64(d.KVHeads), "KV head"), dim, plural(int64(d.QueryHeads), "query head"), d.DType)
		if d.Queries == eval.Captured {
			what += ", " + plural(int64(d.QueryRows), "query position") + " captured"
		} else {
			what += ", no queries"
			proxy = true
		}
		measured.add(dumpName(d.Path)+"\x00"+what, d.Layer)
		if len(d.FactsAssumed) > 0 {
			assumed.add(strings.Join(d.FactsAssumed, ", "), d.Layer)
		}
	}
	for _, key := range measured.order {
		name, what, _ := strings.Cut(key, "\x00")
		t.notes = append(t.notes, fmt.Sprintf("%s, %s: %s", name, layerList(measured.of[key]), what))
	}
	for _, what := range assumed.order {
		where := ""
		if len(assumed.of[what]) < len(r.Dumps) {
			where = " (" + layerList(assumed.of[what]) + ")"
		}
		t.notes = append(t.notes, "assumed, because the dump does not say: "+what+where)
	}
	if proxy {
		t.notes = append(t.notes, "proxy: keys stand in for the queries that the dump lacks, in every attention figure")
	}
	if r.CPU.ReadGBps != nil {
		t.notes = append(t.notes, fmt.Sprintf("decode on %s with %d threads; reading memory alone reaches %s GB/s",
			r.CPU.ISA, r.CPU.Threads, significant(*r.CPU.ReadGBps, 3)))
	}
	return t
}

// grouping collects values under keys, in the order in which keys appear.
type grouping[T any] struct {
	order []string
	of    map[string][]T
}

func (g *grouping[T]) add(key string, value T) {
	if g.of == nil {
		g.of = map[string][]T{}
	}
	if g.of[key] == nil {
		g.order = append(g.order, key)
	}
	g.of[key] = append(g.of[key], value)
}

// layerList writes layer numbers: "layer 5", "layers 0-3, 7".
func layerList(layers []int) string {
	layers = slices.Clone(layers)
	slices.Sort(layers)
	layers = slices.Compact(layers)
	var parts []string
	for i := 0; i < len(layers); {
		j := i
		for j+1 < len(layers) && layers[j+1] == layers[j]+1 {
			j++
		}
		switch {
		case j > i+1:
			parts = append(parts, fmt.Sprintf("%d-%d", layers[i], layers[j]))
		default:
			for _, n := range layers[i : j+1] {
				parts = append(parts, strconv.Itoa(n))
			}
		}
		i = j + 1
	}
	if len(layers) == 1 {
		return "layer " + parts[0]
	}
	return "layers " + strings.Join(parts, ", ")
}

// dumpName is a path as a table shows it: its last element.
func dumpName(path string) string {
	return path[strings.LastIndexAny(path, `/\`)+1:]
}

// outlierTable shows the pooled statistics of each layer, and of each head
// where they were asked for.
func outlierTable(r *eval.Report, view evalView) *table {
	t := &table{title: "outliers", wide: view.wide, columns: []column{
		{header: "layer"}, {header: "of"}, {header: "diagnosis"}, {header: "outlier\nchannels", right: true},
		{header: "max\n/median", right: true}, {header: "persis-\ntence", right: true},
		{header: "bias", right: true}, {header: "kurtosis", right: true}, {header: "sink\ntokens", right: true},
	}}
	for _, o := range r.Outliers {
		where := strconv.Itoa(o.Layer)
		if o.KVHead != nil {
			where += fmt.Sprintf(" head %d", *o.KVHead)
		}
		t.add(text(where), text(string(o.Tensor)), text(o.Diagnosis),
			text(fmt.Sprintf("%d/%d", o.OutlierCount, o.Channels)), figureCell(o.MaxMedianRatio), figureCell(o.Persistence),
			figureCell(o.BiasEnergy), figureCell(o.Kurtosis), text(strconv.Itoa(len(o.SinkTokens))))
	}
	t.notes = remedyNotes(r)
	return t
}

// diagnosisTable sums the statistics of many layers up.
func diagnosisTable(r *eval.Report) *table {
	t := &table{title: "outliers", columns: []column{
		{header: "of"}, {header: "diagnosis"}, {header: "layers"},
		{header: "max/median", right: true}, {header: "at layer", right: true},
	}}
	diagnoses := grouping[*eval.Outliers]{}
	for i := range r.Outliers {
		if o := &r.Outliers[i]; o.KVHead == nil {
			diagnoses.add(string(o.Tensor)+" "+o.Diagnosis, o)
		}
	}
	slices.Sort(diagnoses.order)
	for _, key := range diagnoses.order {
		all := diagnoses.of[key]
		var layers []int
		worst := all[0]
		for _, o := range all {
			layers = append(layers, o.Layer)
			if o.MaxMedianRatio != nil && (worst.MaxMedianRatio == nil || *o.MaxMedianRatio > *worst.MaxMedianRatio) {
				worst = o
			}
		}
		list := strings.TrimPrefix(strings.TrimPrefix(layerList(layers), "layers "), "layer ")
		t.add(text(string(worst.Tensor)), text(worst.Diagnosis), text(list), figureCell(worst.MaxMedianRatio), text(strconv.Itoa(worst.Layer)))
	}
	t.notes = remedyNotes(r)
	return t
}

// remedyNotes says what the diagnoses suggest, and what that gains where both
// of the schemes compared were run.
func remedyNotes(r *eval.Report) []string {
	var notes []string
	remedies := grouping[*eval.Outliers]{}
	for i := range r.Outliers {
		if o := &r.Outliers[i]; o.KVHead == nil && o.Remedy != "" {
			remedies.add(fmt.Sprint(o.Tensor, o.Diagnosis, o.Remedy, o.RemedyFrom, o.RemedyTo), o)
		}
	}
	for _, key := range remedies.order {
		all := remedies.of[key]
		var layers []int
		var gains []float64
		for _, o := range all {
			layers = append(layers, o.Layer)
			if o.RemedyGain != nil {
				gains = append(gains, *o.RemedyGain)
			}
		}
		note := fmt.Sprintf("%s of %s: %s: %s", all[0].Tensor, layerList(layers), all[0].Diagnosis, all[0].Remedy)
		if len(gains) > 0 {
			least, most := significant(slices.Min(gains), 3), significant(slices.Max(gains), 3)
			if least != most {
				most = least + " to " + most
			}
			note += fmt.Sprintf("; here %s instead of %s divides the error by %s", all[0].RemedyTo, all[0].RemedyFrom, most)
		}
		notes = append(notes, note)
	}
	return notes
}

// rowTable is an empty table of rows. The columns before the figures are
// filled by rowCells.
func rowTable(title string, view evalView) *table {
	t := &table{title: title, wide: view.wide, columns: []column{
		{header: "scheme"}, {header: "layer", right: true, optional: true}, {header: "head", right: true, optional: true},
		{header: "bits", right: true},
	}}
	if view.wide {
		t.columns = append(t.columns, column{header: "bytes", right: true})
	}
	for _, f := range rowFigures() {
		c := column{header: f.header, right: true, optional: true}
		if view.wide {
			c.header = f.name
		}
		t.columns = append(t.columns, c)
	}
	if view.wide {
		t.columns = append(t.columns, column{header: "kernel", optional: true})
	}
	t.columns = append(t.columns, column{header: " ", optional: true})
	return t
}

// addRow adds a row, named as the table's title allows.
func addRow(t *table, r *eval.Row, name string, layer cell, perHead bool, view evalView) {
	head := intCell(r.KVHead)
	if r.KVHead == nil && perHead {
		head = cell{text: "all"}
	}
	cells := []cell{text(name), layer, head, bitsCell(r.BitsPerElement)}
	if view.wide {
		cells = append(cells, count(r.Bytes))
	}
	for _, f := range rowFigures() {
		switch {
		case r.K == eval.Exact && strings.HasPrefix(f.name, "kl_") && !view.wide:
			cells = append(cells, absent()) // 0 by definition: the legend says so
		case f.name == "decode_gb_s":
			cells = append(cells, speedCell(f.of(r)))
		case strings.HasSuffix(f.name, "_cosine"):
			cells = append(cells, cosineCell(f.of(r)))
		default:
			cells = append(cells, figureCell(f.of(r)))
		}
	}
	if view.wide {
		cells = append(cells, text(r.Kernel))
	}
	cells = append(cells, text(marksOf(r)))
	t.add(cells...)
	if r.Pareto {
		t.mark("good")
	}
}

// The marks behind a row, explained under the tables.
const (
	markPareto     = "*"
	markOffline    = "^"
	markIndistinct = "~"
	markGeneric    = "g"
)

// genericKernel is what a row's kernel is called where no fused one exists.
const genericKernel = "generic"

func marksOf(r *eval.Row) string {
	s := ""
	if r.Pareto {
		s += markPareto
	}
	if !r.Online {
		s += markOffline
	}
	if len(r.IndistinctFrom) > 0 {
		s += markIndistinct
	}
	if r.Kernel == genericKernel {
		s += markGeneric
	}
	return s
}

// valuesAlone begins the titles of tables in which the keys are exact.
const valuesAlone = "values alone"

// sides tells rows apart that are read differently.
func sides(k, v string) string {
	switch {
	case v == eval.Exact:
		return "keys alone, values exact"
	case k == eval.Exact:
		return valuesAlone + ", keys exact"
	}
	return "keys and values"
}

// shortName leaves out the exact side, which the title of the table names.
func shortName(scheme, k, v string) string {
	switch {
	case v == eval.Exact:
		return k
	case k == eval.Exact:
		return v
	}
	return scheme
}

// rowTables shows rows in their order, with a new table wherever the
// quantized sides change.
func rowTables(rows []*eval.Row, title string, layer func(*eval.Row) cell, view evalView) []*table {
	var tables []*table
	last := ""
	perHead := slices.ContainsFunc(rows, func(r *eval.Row) bool { return r.KVHead != nil })
	for _, r := range rows {
		s := sides(r.K, r.V)
		if r.Queries == eval.Proxy {
			s += " (attention: proxy queries)"
		}
		if s != last {
			tables = append(tables, rowTable(title+s, view))
			last = s
		}
		addRow(tables[len(tables)-1], r, shortName(r.Scheme, r.K, r.V), layer(r), perHead, view)
	}
	return tables
}

// legend explains the marks that the tables use, and what they leave out.
func legend(r *eval.Report, tables []*table) *table {
	used, values := "", false
	damage := "kl_mean, output_nmse"
	if slices.ContainsFunc(r.Dumps, func(d eval.Dump) bool { return d.Queries == eval.Proxy }) {
		damage = "k_centered_nmse, v_nmse"
	}
	for _, t := range tables {
		for _, row := range t.rows {
			used += row[len(row)-1].text
		}
		values = values || strings.Contains(t.title, valuesAlone)
	}
	l := &table{}
	for _, m := range []struct{ mark, meaning string }{
		{markPareto, "nothing of its kind has fewer bits and less damage (" + damage + ")"},
		{markOffline, "not online: what is stored depends on tokens still to come"},
		{markIndistinct, "its kl_mean cannot be told from that of another row (95% interval)"},
		{markGeneric, "no fused decode kernel: GB/s is that of the generic one"},
	} {
		if strings.Contains(used, m.mark) {
			l.notes = append(l.notes, m.mark+" "+m.meaning)
		}
	}
	if without := withoutCache(r); without != "" {
		l.notes = append(l.notes, "no decode figure, because no paged cache holds it: "+without)
	}
	if values {
		l.notes = append(l.notes, "values alone: attention weights are exact, so every KL is 0")
	}
	return l
}

// withoutCache lists the schemes that were not decoded because no cache holds them.
func withoutCache(r *eval.Report) string {
	var names []string
	for _, row := range r.Rows {
		if row.Kernel == eval.NoKernel && !slices.Contains(names, row.Scheme) {
			names = append(names, row.Scheme)
		}
	}
	return strings.Join(names, ", ")
}

// layerTables shows every row, layer by layer.
func layerTables(r *eval.Report, view evalView) []*table {
	var tables []*table
	for i := 0; i < len(r.Rows); {
		first := &r.Rows[i]
		var rows []*eval.Row
		for ; i < len(r.Rows) && r.Rows[i].Layer == first.Layer && r.Rows[i].Dump == first.Dump; i++ {
			rows = append(rows, &r.Rows[i])
		}
		title := ""
		if len(r.Dumps) > 1 {
			title = fmt.Sprintf("layer %d of %s: ", first.Layer, first.Dump)
		}
		tables = append(tables, rowTables(rows, title, func(*eval.Row) cell { return absent() }, view)...)
	}
	return tables
}

// worstTables shows of each scheme the row of its worst layer.
func worstTables(r *eval.Report, view evalView) []*table {
	var rows []*eval.Row
	for _, s := range r.Summary {
		if s.WorstLayer == nil {
			continue
		}
		for i := range r.Rows {
			if row := &r.Rows[i]; row.K == s.K && row.V == s.V && row.Layer == *s.WorstLayer && row.KVHead == nil {
				rows = append(rows, row)
				break
			}
		}
	}
	return rowTables(rows, "worst layer by kl_mean: ", func(r *eval.Row) cell { return text(strconv.Itoa(r.Layer)) }, view)
}

// summaryTables shows the schemes over all layers.
func summaryTables(r *eval.Report, view evalView) []*table {
	var tables []*table
	last := ""
	for _, s := range r.Summary {
		if kind := sides(s.K, s.V); kind != last {
			tables = append(tables, &table{
				title: fmt.Sprintf("%d layers: %s", s.Layers, kind),
				wide:  view.wide,
				columns: []column{
					{header: "scheme"}, {header: "bits", right: true}, {header: "MiB", right: true},
					{header: "kl_mean\n(mean)", right: true, optional: true}, {header: "kl_p99\n(max)", right: true, optional: true},
					{header: "output_nmse\n(mean)", right: true, optional: true}, {header: "residual\n_sum", right: true, optional: true},
					{header: "worst\nlayer", right: true, optional: true}, {header: " ", optional: true},
				},
			})
			last = kind
		}
		t := tables[len(tables)-1]
		klMean, klP99 := figureCell(s.KLMean), figureCell(s.KLP99)
		if s.K == eval.Exact {
			klMean, klP99 = absent(), absent()
		}
		t.add(text(shortName(s.Scheme, s.K, s.V)), bitsCell(s.BitsPerElement), number(float64(s.Bytes)/(1<<20), 4),
			klMean, klP99, figureCell(s.OutputNMSE), figureCell(s.ResidualSum), intCell(s.WorstLayer),
			text(marksOf(&eval.Row{Pareto: s.Pareto, Online: s.Online, IndistinctFrom: s.IndistinctFrom})))
		if s.Pareto {
			t.mark("good")
		}
	}
	return tables
}

// evalPlots draws bits against damage: of the layers together, or of the only one.
func evalPlots(r *eval.Report) []scatter {
	kl := scatter{title: "attention KL", x: "bits per element", y: "kl_mean (nats)"}
	out := scatter{title: "attention output", x: "bits per element", y: "output_nmse"}
	add := func(name string, bits float64, pareto bool, klMean, output *float64) {
		if klMean != nil {
			kl.points = append(kl.points, point{bits, *klMean, name, pareto})
		}
		if output != nil {
			out.points = append(out.points, point{bits, *output, name, pareto})
		}
	}
	if len(r.Dumps) > 1 {
		for _, s := range r.Summary {
			if s.K != eval.Exact && s.V != eval.Exact {
				add(s.Scheme, s.BitsPerElement, s.Pareto, s.KLMean, s.OutputNMSE)
			}
		}
	} else {
		for i := range r.Rows {
			if s := &r.Rows[i]; s.Pair() && s.KVHead == nil {
				add(s.Scheme, s.BitsPerElement, s.Pareto, s.KLMean, s.OutputNMSE)
			}
		}
	}
	return []scatter{kl, out}
}

// checkTable shows the checks that failed, or how many held.
func checkTable(checks []eval.Check) *table {
	t := &table{title: "checks", columns: []column{
		{header: "scheme"}, {header: "check"}, {header: "layer", right: true, optional: true},
		{header: "head", right: true, optional: true},
		{header: "baseline", right: true, optional: true}, {header: "value", right: true, optional: true},
		{header: "result"},
	}}
	held := 0
	for _, c := range checks {
		if !c.Failed && c.Note == "" {
			held++
			continue
		}
		result := "failed"
		switch {
		case c.Failed && c.Note != "":
			result = "failed: " + c.Note
		case !c.Failed:
			result = c.Note
		}
		show := figureCell
		if c.Check == "bytes" {
			show = func(x *float64) cell { return count(int64(*x)) }
		}
		t.add(text(c.Scheme), text(c.Check), intCell(c.Layer), intCell(c.KVHead), show(c.Baseline), show(c.Value), text(result))
		if c.Failed {
			t.mark("bad")
		}
	}
	if len(checks) > 0 {
		t.notes = append(t.notes, fmt.Sprintf("%d of %d checks held", held, len(checks)))
	}
	return t
}

// recommendationTable is the recommendation in words, with the flags of engine where
// it runs what is recommended, else of all that do.
func recommendationTable(r *eval.Report, engine string) *table {
	t := &table{}
	if rec := r.Recommendation; rec != nil {
		verdict := "recommended: "
		if rec.Alone {
			verdict = ""
		}
		t.notes = append(t.notes, verdict+rec.Scheme+": "+rec.Why)
		engines := make([]string, 0, len(rec.Flags))
		for e := range rec.Flags {
			engines = append(engines, e)
		}
		slices.Sort(engines)
		if i := slices.IndexFunc(engines, func(e string) bool { return strings.EqualFold(e, engine) }); i >= 0 {
			engines = engines[i : i+1]
		}
		if len(engines) == 0 && !strings.Contains(rec.Scheme, eval.Exact) {
			t.notes = append(t.notes, "no engine of the registry runs it: --set ENGINE measures what one does")
		}
		for _, e := range engines {
			note := e + ": " + rec.Flags[e]
			if needs := rec.Needs[e]; needs != "" {
				note += " (" + needs + ")"
			}
			t.notes = append(t.notes, note)
		}
	}
	return t
}

// rowData is what csv and tsv print: every row with every figure, exact,
// under the names of the JSON form.
func rowData(rows []eval.Row) *table {
	t := &table{}
	for _, name := range []string{"dump", "layer", "kv_head", "scheme", "k", "v", "queries", "bits_per_element", "bytes", "k_bytes", "v_bytes", "online", "pareto"} {
		t.columns = append(t.columns, column{name: name})
	}
	for _, f := range rowFigures() {
		t.columns = append(t.columns, column{name: f.name})
	}
	t.columns = append(t.columns, column{name: "kernel"})
	for i := range rows {
		r := &rows[i]
		cells := []cell{text(r.Dump), text(strconv.Itoa(r.Layer)), intCell(r.KVHead), text(r.Scheme), text(r.K), text(r.V), text(r.Queries),
			bitsCell(r.BitsPerElement), count(r.Bytes), bytesCell(r.KBytes), bytesCell(r.VBytes),
			text(strconv.FormatBool(r.Online)), text(strconv.FormatBool(r.Pareto))}
		for _, f := range rowFigures() {
			cells = append(cells, figureCell(f.of(r)))
		}
		t.add(append(cells, text(r.Kernel))...)
	}
	return t
}
