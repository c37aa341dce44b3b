package cmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvq/eval"
)

// evalView says which part of an eval report people want to see. Programs
// (csv, tsv, json) always get all of it.
type evalView struct {
	wide     bool // every figure
	perLayer bool // every layer, not only the worst
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
	out := report{title: "kvq eval", data: rowData(r.Rows), json: r, plots: evalPlots(r)}
	out.tables = append(out.tables, dumpTable(r), outlierTable(r, view))
	if len(r.Dumps) > 1 && !view.perLayer {
		out.tables = append(out.tables, summaryTables(r, view)...)
		out.tables = append(out.tables, worstTables(r, view)...)
	} else {
		if len(r.Dumps) > 1 {
			out.tables = append(out.tables, summaryTables(r, view)...)
		}
		out.tables = append(out.tables, layerTables(r, view)...)
	}
	out.tables = append(out.tables, checkTable(r.Checks), recommendationTable(r))
	out.tables = slices.DeleteFunc(out.tables, func(t *table) bool {
		return len(t.rows) == 0 && len(t.notes) == 0
	})
	return out
}

// dumpTable says what was measured, and what had to be assumed.
func dumpTable(r *eval.Report) *table {
	t := &table{columns: []column{
		{header: "dump"}, {header: "layer", right: true}, {header: "tokens", right: true},
		{header: "KV heads", right: true}, {header: "query heads", right: true}, {header: "head_dim", right: true},
		{header: "dtype"}, {header: "queries"},
	}}
	assumed := map[string][]string{}
	var order []string
	proxy := false
	for _, d := range r.Dumps {
		dim := strconv.Itoa(d.HeadDim)
		if d.HeadDimV != 0 && d.HeadDimV != d.HeadDim {
			dim += "/" + strconv.Itoa(d.HeadDimV)
		}
		queries := d.Queries
		if d.Queries == eval.Captured {
			queries = fmt.Sprintf("%d captured", d.QueryRows)
		}
		proxy = proxy || d.Queries == eval.Proxy
		t.add(text(dumpName(d.Path)), text(strconv.Itoa(d.Layer)), count(int64(d.Tokens)),
			text(strconv.Itoa(d.KVHeads)), text(strconv.Itoa(d.QueryHeads)), text(dim), text(d.DType), text(queries))
		if len(d.FactsAssumed) > 0 {
			what := strings.Join(d.FactsAssumed, ", ")
			if assumed[what] == nil {
				order = append(order, what)
			}
			assumed[what] = append(assumed[what], strconv.Itoa(d.Layer))
		}
	}
	if r.CPU.ReadGBps != nil {
		t.notes = append(t.notes, fmt.Sprintf("decode on %s with %d threads; GB/s compares with %s GB/s of reading memory alone",
			r.CPU.ISA, r.CPU.Threads, significant(*r.CPU.ReadGBps, 3)))
	}
	for _, what := range order {
		where := ""
		if len(r.Dumps) > 1 && len(assumed[what]) < len(r.Dumps) {
			where = " (layers " + strings.Join(assumed[what], ", ") + ")"
		}
		t.notes = append(t.notes, "assumed, because the dump does not say: "+what+where)
	}
	if proxy {
		t.notes = append(t.notes, "proxy: the dump has no queries, so keys stand in for them in every attention figure")
	}
	return t
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
	remedies := map[string]bool{}
	for _, o := range r.Outliers {
		where := strconv.Itoa(o.Layer)
		if o.KVHead != nil {
			where += fmt.Sprintf(" head %d", *o.KVHead)
		}
		t.add(text(where), text(string(o.Tensor)), text(o.Diagnosis),
			text(fmt.Sprintf("%d/%d", o.OutlierCount, o.Channels)), figureCell(o.MaxMedianRatio), figureCell(o.Persistence),
			figureCell(o.BiasEnergy), figureCell(o.Kurtosis), text(strconv.Itoa(len(o.SinkTokens))))
		if o.Remedy == "" || o.KVHead != nil {
			continue
		}
		note := fmt.Sprintf("%s of layer %d: %s", o.Tensor, o.Layer, o.Remedy)
		if o.RemedyGain != nil {
			note += fmt.Sprintf("; here %s instead of %s divides the error by %s", o.RemedyTo, o.RemedyFrom, significant(*o.RemedyGain, 3))
		}
		if !remedies[note] {
			remedies[note] = true
			t.notes = append(t.notes, note)
		}
	}
	return t
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
func addRow(t *table, r *eval.Row, name string, layer cell, view evalView) {
	cells := []cell{text(name), layer, intCell(r.KVHead), bitsCell(r.BitsPerElement)}
	if view.wide {
		cells = append(cells, count(r.Bytes))
	}
	for _, f := range rowFigures() {
		cells = append(cells, figureCell(f.of(r)))
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
	markPareto   = "*"
	markOffline  = "^"
	markIndistin = "~"
)

func marksOf(r *eval.Row) string {
	s := ""
	if r.Pareto {
		s += markPareto
	}
	if !r.Online {
		s += markOffline
	}
	if len(r.IndistinctFrom) > 0 {
		s += markIndistin
	}
	return s
}

// sides tells rows apart that are read differently.
func sides(k, v string) string {
	switch {
	case v == eval.Exact:
		return "keys alone, values exact"
	case k == eval.Exact:
		return "values alone, keys exact"
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
	for _, r := range rows {
		s := sides(r.K, r.V)
		if r.Queries == eval.Proxy {
			s += " (attention: proxy queries)"
		}
		if s != last {
			tables = append(tables, rowTable(title+s, view))
			last = s
		}
		addRow(tables[len(tables)-1], r, shortName(r.Scheme, r.K, r.V), layer(r), view)
	}
	if len(tables) > 0 {
		explainMarks(tables)
	}
	return tables
}

// explainMarks explains under the last table the marks that the tables use.
func explainMarks(tables []*table) {
	used := ""
	for _, t := range tables {
		for _, row := range t.rows {
			used += row[len(row)-1].text
		}
	}
	last := tables[len(tables)-1]
	for _, m := range []struct{ mark, meaning string }{
		{markPareto, "no other pair has fewer bits and less damage (kl_mean, output_nmse)"},
		{markOffline, "not online: what is stored depends on tokens still to come"},
		{markIndistin, "its kl_mean cannot be told from another row's (95% interval)"},
	} {
		if strings.Contains(used, m.mark) {
			last.notes = append(last.notes, m.mark+" "+m.meaning)
		}
	}
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
		t.add(text(shortName(s.Scheme, s.K, s.V)), bitsCell(s.BitsPerElement), number(float64(s.Bytes)/(1<<20), 4),
			figureCell(s.KLMean), figureCell(s.KLP99), figureCell(s.OutputNMSE), figureCell(s.ResidualSum), intCell(s.WorstLayer),
			text(marksOf(&eval.Row{Pareto: s.Pareto, Online: s.Online, IndistinctFrom: s.IndistinctFrom})))
		if s.Pareto {
			t.mark("good")
		}
	}
	if len(tables) > 0 {
		explainMarks(tables)
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
		t.add(text(c.Scheme), text(c.Check), intCell(c.Layer), intCell(c.KVHead), figureCell(c.Baseline), figureCell(c.Value), text(result))
		if c.Failed {
			t.mark("bad")
		}
	}
	if len(checks) > 0 {
		t.notes = append(t.notes, fmt.Sprintf("%d of %d checks held", held, len(checks)))
	}
	return t
}

// recommendationTable is the recommendation in words.
func recommendationTable(r *eval.Report) *table {
	t := &table{}
	if rec := r.Recommendation; rec != nil {
		t.notes = append(t.notes, "recommended: "+rec.Scheme+": "+rec.Why)
		engines := make([]string, 0, len(rec.Flags))
		for e := range rec.Flags {
			engines = append(engines, e)
		}
		slices.Sort(engines)
		for _, e := range engines {
			t.notes = append(t.notes, e+": "+rec.Flags[e])
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
