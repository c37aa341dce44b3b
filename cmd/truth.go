package cmd

import (
	"fmt"
	"slices"
	"strings"

	"kvq/eval"
)

// maxTruth bounds the table of --truth.
const maxTruth = 16 << 20

// readTruth reads the table of --truth.
func readTruth(path string) (*eval.TruthTable, error) {
	text, err := readRegular(path, maxTruth)
	if err != nil {
		return nil, fmt.Errorf("--truth %s: %w", path, unwrapPath(err))
	}
	t, err := eval.ParseTruth(string(text), path)
	if err != nil {
		return nil, fmt.Errorf("--truth %w", err) // it names the file
	}
	return t, nil
}

// compareTruth adds the comparison to a report and takes out of it what was
// run for the comparison only.
func compareTruth(r *eval.Report, t *eval.TruthTable, asked []string) (err error) {
	if r.Truth, err = t.Compare(r); err != nil || len(asked) == 0 {
		return err
	}
	extra := func(scheme string) bool { return !slices.Contains(asked, scheme) }
	r.Rows = slices.DeleteFunc(r.Rows, func(row eval.Row) bool { return extra(row.Scheme) })
	r.Summary = slices.DeleteFunc(r.Summary, func(s eval.Summary) bool { return extra(s.Scheme) })
	return nil
}

// truthTables shows how the figures rank against the truth.
func truthTables(r *eval.Report) []*table {
	t := r.Truth
	if t == nil {
		return predictionTable(r)
	}
	rows := &table{title: "logit KL of the whole model: measured, and what the layers' figures say", columns: []column{
		{header: "scheme"}, {header: "logit_kl\n(measured)", right: true}, {header: "kl_mean", right: true, optional: true},
		{header: "output_nmse", right: true, optional: true}, {header: "residual\n_sum", right: true, optional: true},
		{header: "logit_kl\n(line)", right: true, optional: true}, {header: "ratio", right: true, optional: true},
	}}
	for i := range t.Rows {
		row := &t.Rows[i]
		ratio := absent()
		if row.Predicted != nil {
			ratio = number(*row.Predicted/row.LogitKLMean, 3)
		}
		klMean := figureCell(row.KLMean)
		if row.K == eval.Exact {
			klMean = absent()
		}
		rows.add(text(row.Scheme), number(row.LogitKLMean, 3), klMean, figureCell(row.OutputNMSE), figureCell(row.ResidualSum), figureCell(row.Predicted), ratio)
	}
	s := t.Spearman
	ranks := &table{title: "rank correlation (Spearman) with the measured logit KL", columns: []column{
		{header: "schemes"}, {header: "number", right: true}, {header: "figure"}, {header: "correlation", right: true},
	}}
	for _, line := range []struct {
		of     string
		n      int
		figure string
		value  *float64
	}{
		{"keys", s.Keys, "kl_mean", s.KeysKLMean}, {"keys", s.Keys, "k_centered_nmse", s.KeysCenteredNMSE},
		{"values", s.Values, "output_nmse", s.ValuesOutputNMSE}, {"values", s.Values, "v_nmse", s.ValuesNMSE},
		{"all", s.All, "output_nmse", s.AllOutputNMSE}, {"all", s.All, "residual_sum", s.AllResidualSum},
	} {
		value := absent()
		if line.value != nil {
			value = fixed(*line.value, 4)
		}
		ranks.add(text(line.of), text(fmt.Sprint(line.n)), text(line.figure), value)
	}
	if f := t.Fit; f != nil {
		ranks.notes = append(ranks.notes,
			"fitted line: logit KL = "+lineText(f)+", S being residual_sum of a side alone (least squares of the logarithms)",
			fmt.Sprintf("of %s with a residual_sum, %s lie within a factor 1.5 of the line, %s within 2; the farthest is a factor %s off",
				plural(int64(f.Schemes), "scheme"), share(f.Within1_5, f.Schemes), share(f.Within2, f.Schemes), significant(f.WorstFactor, 3)))
	}
	if n := len(t.LeftOut); n > 0 {
		ranks.notes = append(ranks.notes, fmt.Sprintf("in the table, but not run: %s", strings.Join(t.LeftOut, ", ")))
	}
	return []*table{rows, ranks}
}

func share(n, of int) string { return fmt.Sprintf("%d (%.0f%%)", n, 100*float64(n)/float64(of)) }

func lineText(f *eval.TruthFit) string {
	var terms []string
	if f.KeysWorth != nil {
		terms = append(terms, significant(*f.KeysWorth, 3)+" S(K)")
	}
	if f.ValuesWorth != nil {
		terms = append(terms, significant(*f.ValuesWorth, 3)+" S(V)")
	}
	return strings.Join(terms, " + ")
}

// predictionTable shows in which range the whole model's logit KL can be
// expected, for pairs or, without any, for all schemes.
func predictionTable(r *eval.Report) []*table {
	t := &table{title: "logit KL of the whole model to expect, if these are all of its layers", columns: []column{
		{header: "scheme"}, {header: "residual_sum", right: true}, {header: "from", right: true}, {header: "to", right: true},
	}}
	pairs := slices.ContainsFunc(r.Summary, func(s eval.Summary) bool { return s.K != eval.Exact && s.V != eval.Exact })
	for _, s := range r.Summary {
		if s.LogitKLLow == nil || pairs && (s.K == eval.Exact || s.V == eval.Exact) {
			continue
		}
		t.add(text(s.Scheme), figureCell(s.ResidualSum), number(*s.LogitKLLow, 2), number(*s.LogitKLHigh, 2))
	}
	if len(t.rows) == 0 {
		return nil
	}
	t.notes = append(t.notes, "the range spans what two models showed, twice each way beyond; --truth calibrates it on your own")
	return []*table{t}
}
