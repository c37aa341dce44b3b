package eval

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"kvq/kernels"
	"kvq/quantize"
)

// What one unit of residual_sum of the keys and of the values is worth in logit
// KL, as measured end to end on two models (docs/metrics.md §6), and how far
// beyond both a third may lie.
const (
	keysWorthLow, keysWorthHigh     = 3, 6
	valuesWorthLow, valuesWorthHigh = 1.8, 2.7
	worthMargin                     = 2
)

// A TruthTable is what schemes did to a whole model, measured end to end.
type TruthTable struct {
	Path    string
	Rows    []TruthEntry
	Unknown []string // pairs that are no schemes of quantize
}

// A TruthEntry is one scheme of a TruthTable.
type TruthEntry struct {
	K, V    string  // canonical names, Exact for a side left alone
	LogitKL float64 // mean over tokens, nats
}

// ParseTruth reads a table separated by tabs or commas whose header names the
// columns pair and logit_kl_mean; other columns are passed over. path is for
// messages.
func ParseTruth(text, path string) (*TruthTable, error) {
	t := &TruthTable{Path: path}
	pair, kl, columns := -1, -1, 0
	separator := "\t"
	seen := map[string]bool{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		if columns == 0 && !strings.Contains(line, separator) {
			separator = ","
		}
		fields := strings.Split(line, separator)
		fail := func(format string, args ...any) error {
			return fmt.Errorf("%s: line %d: %s", path, number, fmt.Sprintf(format, args...))
		}
		if columns == 0 {
			columns = len(fields)
			pair, kl = slices.Index(fields, "pair"), slices.Index(fields, "logit_kl_mean")
			if pair < 0 || kl < 0 {
				return nil, fail("no header that names the columns pair and logit_kl_mean")
			}
			continue
		}
		if len(fields) != columns {
			return nil, fail("%d fields, but the header has %d", len(fields), columns)
		}
		name := strings.TrimSpace(fields[pair])
		value, err := strconv.ParseFloat(strings.TrimSpace(fields[kl]), 64)
		if err != nil || !(value >= 0) || math.IsInf(value, 0) {
			return nil, fail("logit_kl_mean of %.60q is %.60q, want a number from 0", name, fields[kl])
		}
		p, err := quantize.ParsePair(name)
		if err != nil {
			t.Unknown = append(t.Unknown, name)
			continue
		}
		e := TruthEntry{K: sideName(p.K), V: sideName(p.V), LogitKL: value}
		if seen[e.pair()] {
			return nil, fail("%.60q is given twice", name)
		}
		seen[e.pair()] = true
		t.Rows = append(t.Rows, e)
	}
	if len(t.Rows) == 0 {
		return nil, fmt.Errorf("%s: no scheme that kvq knows", path)
	}
	return t, nil
}

func sideName(s *quantize.Scheme) string {
	if s == nil {
		return Exact
	}
	return s.Name()
}

func (e TruthEntry) pair() string { return e.K + ":" + e.V }

// Schemes lists what to run for a comparison: the table's own schemes, among
// them those asked for unless asked is empty, and each side of a pair alone,
// which the fitted line needs. What was asked for comes first, in its order.
func (t *TruthTable) Schemes(asked []string) []string {
	list := slices.Clone(asked)
	known := map[string]bool{}
	for _, name := range asked {
		if p, err := quantize.ParsePair(name); err == nil {
			known[sideName(p.K)+":"+sideName(p.V)] = true
		}
	}
	add := func(name string) {
		if !known[name] {
			known[name] = true
			list = append(list, name)
		}
	}
	for _, e := range t.Rows {
		if len(asked) == 0 {
			add(e.pair())
		}
	}
	for _, e := range t.Rows {
		if known[e.pair()] && e.K != Exact && e.V != Exact {
			add(e.K + ":" + Exact)
			add(Exact + ":" + e.V)
		}
	}
	return list
}

// A Truth compares a report's figures, pooled over layers, with what the same
// schemes did to the whole model.
type Truth struct {
	Path     string     `json:"path"`
	Spearman TruthRanks `json:"spearman"`
	Fit      *TruthFit  `json:"fit,omitempty"`
	Rows     []TruthRow `json:"rows"`
	LeftOut  []string   `json:"left_out,omitempty"` // schemes of the table that were not run
}

// TruthRanks are Spearman's rank correlations with logit_kl_mean, over the
// schemes of a kind: keys alone, values alone, or all of the table.
type TruthRanks struct {
	Keys             int      `json:"keys"` // how many schemes
	Values           int      `json:"values"`
	All              int      `json:"all"`
	KeysKLMean       *float64 `json:"keys_kl_mean,omitempty"`
	KeysCenteredNMSE *float64 `json:"keys_k_centered_nmse,omitempty"`
	ValuesOutputNMSE *float64 `json:"values_output_nmse,omitempty"`
	ValuesNMSE       *float64 `json:"values_v_nmse,omitempty"`
	AllOutputNMSE    *float64 `json:"all_output_nmse,omitempty"`
	AllResidualSum   *float64 `json:"all_residual_sum,omitempty"`
}

// A TruthFit is the line logit KL ≈ KeysWorth·Σ(K) + ValuesWorth·Σ(V) through
// the table, Σ being residual_sum of a side alone.
type TruthFit struct {
	KeysWorth   *float64 `json:"keys_worth,omitempty"`
	ValuesWorth *float64 `json:"values_worth,omitempty"`
	Schemes     int      `json:"schemes"`     // that the line was fitted to
	Within1_5   int      `json:"within_1_5x"` // schemes whose truth is at most 1.5 times off
	Within2     int      `json:"within_2x"`
	WorstFactor float64  `json:"worst_factor"` // by which the worst one is off
}

// A TruthRow is one scheme of a Truth.
type TruthRow struct {
	Scheme       string   `json:"scheme"`
	K            string   `json:"k"`
	V            string   `json:"v"`
	LogitKLMean  float64  `json:"logit_kl_mean"` // of the table
	KLMean       *float64 `json:"kl_mean,omitempty"`
	OutputNMSE   *float64 `json:"output_nmse,omitempty"`
	ResidualSum  *float64 `json:"residual_sum,omitempty"`
	KResidualSum *float64 `json:"k_residual_sum,omitempty"` // of its keys alone
	VResidualSum *float64 `json:"v_residual_sum,omitempty"`
	Predicted    *float64 `json:"predicted_logit_kl,omitempty"` // by the fitted line
}

// Compare holds the table against the summaries of a report.
func (t *TruthTable) Compare(r *Report) (*Truth, error) {
	of := map[string]*Summary{}
	for i := range r.Summary {
		s := &r.Summary[i]
		of[s.K+":"+s.V] = s
	}
	out := &Truth{Path: t.Path, Rows: []TruthRow{}, LeftOut: slices.Clone(t.Unknown)}
	var klMean, centered, valuesOut, valuesNMSE, allOut, residual ranking
	for _, e := range t.Rows {
		s := of[e.pair()]
		if s == nil {
			out.LeftOut = append(out.LeftOut, e.pair())
			continue
		}
		row := TruthRow{Scheme: s.Scheme, K: s.K, V: s.V, LogitKLMean: e.LogitKL, KLMean: s.KLMean, OutputNMSE: s.OutputNMSE, ResidualSum: s.ResidualSum}
		row.KResidualSum, row.VResidualSum = residualOf(of, e.K+":"+Exact, e.K), residualOf(of, Exact+":"+e.V, e.V)
		out.Rows = append(out.Rows, row)
		switch kindOf(s.K, s.V) {
		case "keys":
			out.Spearman.Keys++
			klMean.add(s.KLMean, e.LogitKL)
			centered.add(s.KCenteredNMSE, e.LogitKL)
		case "values":
			out.Spearman.Values++
			valuesOut.add(s.OutputNMSE, e.LogitKL)
			valuesNMSE.add(s.VNMSE, e.LogitKL)
		}
		out.Spearman.All++
		allOut.add(s.OutputNMSE, e.LogitKL)
		residual.add(s.ResidualSum, e.LogitKL)
	}
	if len(out.Rows) == 0 {
		return nil, errors.New(t.Path + ": none of its schemes was run")
	}
	for dst, figures := range map[**float64]*ranking{
		&out.Spearman.KeysKLMean: &klMean, &out.Spearman.KeysCenteredNMSE: &centered,
		&out.Spearman.ValuesOutputNMSE: &valuesOut, &out.Spearman.ValuesNMSE: &valuesNMSE,
		&out.Spearman.AllOutputNMSE: &allOut, &out.Spearman.AllResidualSum: &residual,
	} {
		*dst = figures.spearman()
	}
	out.fit()
	return out, nil
}

// residualOf returns residual_sum of a side alone: 0 for an exact side, nil where
// it was not run.
func residualOf(of map[string]*Summary, alone, side string) *float64 {
	if side == Exact {
		return figure(0)
	}
	if s := of[alone]; s != nil {
		return s.ResidualSum
	}
	return nil
}

// ranking is a figure beside the truth, scheme by scheme.
type ranking struct {
	figure, truth []float64
	absent        bool // in some scheme
}

func (r *ranking) add(x *float64, truth float64) {
	if x == nil {
		r.absent = true
		return
	}
	r.figure, r.truth = append(r.figure, *x), append(r.truth, truth)
}

// spearman returns the correlation of the ranks, nil where it says nothing:
// under three schemes, all alike, or figures missing.
func (r *ranking) spearman() *float64 {
	if r.absent || len(r.truth) < 3 {
		return nil
	}
	a, b := ranks(r.figure), ranks(r.truth)
	mean := float64(float64(len(a)+1) / 2)
	var ab, aa, bb float64
	for i := range a {
		x, y := a[i]-mean, b[i]-mean
		ab += float64(x * y)
		aa += float64(x * x)
		bb += float64(y * y)
	}
	return figure(ab / math.Sqrt(aa*bb))
}

// ranks returns the ranks of x from 1, equal values sharing their mean.
func ranks(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case x[a] < x[b]:
			return -1
		case x[a] > x[b]:
			return 1
		}
		return 0
	})
	out := make([]float64, len(x))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && x[order[j]] == x[order[i]] {
			j++
		}
		for _, at := range order[i:j] {
			out[at] = float64(i+1+j) / 2
		}
		i = j
	}
	return out
}

// fit finds the constants of the line by least squares of log(predicted ÷
// truth), so that every scheme counts alike whatever its size, with
// Gauss-Newton steps on the constants' logarithms. Schemes that disturb nothing
// measurable are left out: their ratio says nothing.
func (t *Truth) fit() {
	var rows []*TruthRow
	var has [2]bool
	for i := range t.Rows {
		r := &t.Rows[i]
		if r.KResidualSum == nil || r.VResidualSum == nil || r.LogitKLMean <= 0 || !(*r.KResidualSum+*r.VResidualSum > 0) {
			continue
		}
		rows = append(rows, r)
		has[keys] = has[keys] || *r.KResidualSum > 0
		has[values] = has[values] || *r.VResidualSum > 0
	}
	if len(rows) == 0 {
		return
	}
	worth := fitWorth(rows, has)
	f := &TruthFit{Schemes: len(rows), WorstFactor: 1}
	for tensor, dst := range []**float64{&f.KeysWorth, &f.ValuesWorth} {
		if has[tensor] {
			*dst = figure(worth[tensor])
		}
	}
	for _, r := range rows {
		predicted := float64(worth[keys]**r.KResidualSum) + float64(worth[values]**r.VResidualSum)
		r.Predicted = figure(predicted)
		off := max(predicted/r.LogitKLMean, r.LogitKLMean/predicted)
		if off <= 1.5 {
			f.Within1_5++
		}
		if off <= 2 {
			f.Within2++
		}
		f.WorstFactor = max(f.WorstFactor, off)
	}
	t.Fit = f
}

// fitWorth returns the constants; those of a side that no row has stay 1.
func fitWorth(rows []*TruthRow, has [2]bool) (worth [2]float64) {
	logs := [2]float64{}
	// Where each row has one side only, this start is already the answer.
	for tensor := range logs {
		n := 0.0
		for _, r := range rows {
			alone, other := *r.KResidualSum, *r.VResidualSum
			if tensor == values {
				alone, other = other, alone
			}
			if alone > 0 && other == 0 {
				logs[tensor] += kernels.Log(r.LogitKLMean / alone)
				n++
			}
		}
		if n > 0 {
			logs[tensor] /= n
		}
	}
	for range 100 {
		worth = [2]float64{kernels.Exp(logs[keys]), kernels.Exp(logs[values])}
		var aa, ab, bb, ga, gb float64 // of the normal equations
		for _, r := range rows {
			x, y := float64(worth[keys]**r.KResidualSum), float64(worth[values]**r.VResidualSum)
			e := kernels.Log((x + y) / r.LogitKLMean)
			x, y = x/(x+y), y/(x+y)
			aa += float64(x * x)
			ab += float64(x * y)
			bb += float64(y * y)
			ga += float64(x * e)
			gb += float64(y * e)
		}
		det := float64(aa*bb) - float64(ab*ab)
		var step [2]float64
		switch {
		case !has[values]:
			step[keys] = -ga / aa
		case !has[keys]:
			step[values] = -gb / bb
		case det <= 1e-12*aa*bb: // every row has the same mixture: one factor for both
			step[keys] = -(ga + gb) / (aa + float64(2*ab) + bb)
			step[values] = step[keys]
		default:
			step[keys] = (float64(ab*gb) - float64(bb*ga)) / det
			step[values] = (float64(ab*ga) - float64(aa*gb)) / det
		}
		for i := range logs {
			logs[i] += min(1, max(-1, step[i]))
		}
		if math.Abs(step[keys])+math.Abs(step[values]) < 1e-12 {
			break
		}
	}
	return worth
}

// predict adds the range in which the whole model's logit KL can be expected to
// each summary, where the layers look like all of a model's and carry what the
// figure needs.
func predict(r *Report) {
	layers := make([]int, len(r.Dumps))
	for i, d := range r.Dumps {
		layers[i] = d.Layer
	}
	slices.Sort(layers)
	for i, n := range layers {
		if n != i {
			return
		}
	}
	if len(layers) < 2 {
		return
	}
	of := map[string]*Summary{}
	for i := range r.Summary {
		s := &r.Summary[i]
		of[s.K+":"+s.V] = s
	}
	for i := range r.Summary {
		s := &r.Summary[i]
		if s.ResidualSum == nil || s.Layers < len(layers) || s.Queries == Proxy {
			continue
		}
		k, v := residualOf(of, s.K+":"+Exact, s.K), residualOf(of, Exact+":"+s.V, s.V)
		low, high := valuesWorthLow**s.ResidualSum, keysWorthHigh**s.ResidualSum
		if k != nil && v != nil {
			low = float64(keysWorthLow**k) + float64(valuesWorthLow**v)
			high = float64(keysWorthHigh**k) + float64(valuesWorthHigh**v)
		}
		s.LogitKLLow, s.LogitKLHigh = figure(low/worthMargin), figure(high*worthMargin)
	}
}
