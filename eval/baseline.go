package eval

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// baselineFields are the figures that a comparison looks at.
var baselineFields = []string{"kl_mean", "kl_p99", "k_centered_nmse", "v_nmse", "output_nmse"}

// baselineSlack is what a figure may grow whatever its size.
const baselineSlack = 1e-9

// CompareBaseline holds r against an earlier report of the same dumps, matching
// rows by dump, layer, k and v (and KV head). A figure is worse when it exceeds
// the old one by more than the share tolerance and 1e-9; bytes must be equal; a
// row that r does not have fails. Only such checks are returned. Notices name
// rows that the baseline does not have, and figures that it lacks. Errors: a
// baseline without rows, or none of whose layers r has; layers of another shape
// or type, or measured with other queries or facts; and a *UsageError for
// attention figures of stand-in queries without allowProxy.
func CompareBaseline(r, baseline *Report, tolerance float64, allowProxy bool) (checks []Check, notices []string, err error) {
	if err := checkBaseline(baseline); err != nil {
		return nil, nil, err
	}
	for _, d := range r.Dumps {
		if d.Queries == Proxy && !allowProxy {
			return nil, nil, proxyError("the comparison with a baseline")
		}
	}
	if notices, err = compareDumps(r.Dumps, baseline.Dumps); err != nil {
		return nil, nil, err
	}
	now := map[rowKey]*Row{}
	for i := range r.Rows {
		now[keyOf(&r.Rows[i])] = &r.Rows[i]
	}
	seen := map[rowKey]bool{}
	lacking := map[string][]*Row{} // rows of the baseline by the figure that they lack
	for i := range baseline.Rows {
		old := &baseline.Rows[i]
		seen[keyOf(old)] = true
		check := Check{Dump: old.Dump, Scheme: old.Scheme, Layer: &old.Layer, KVHead: old.KVHead, Failed: true}
		row := now[keyOf(old)]
		if row == nil {
			check.Check, check.Note = "baseline", "the row is missing from this run"
			checks = append(checks, check)
			continue
		}
		for _, name := range baselineFields {
			before, after := fieldValue(old, name), fieldValue(row, name)
			if before == nil {
				if after != nil {
					lacking[name] = append(lacking[name], old)
				}
				continue
			}
			if after != nil && *after <= float64(*before*(1+tolerance))+baselineSlack {
				continue
			}
			check := check
			check.Check, check.Baseline, check.Value = name, before, after
			if after == nil {
				check.Note = name + " is absent"
			}
			checks = append(checks, check)
		}
		if row.Bytes != old.Bytes {
			check.Check, check.Baseline, check.Value = "bytes", figure(float64(old.Bytes)), figure(float64(row.Bytes))
			checks = append(checks, check)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(lacking)) {
		rows := lacking[name]
		more := ""
		if n := len(rows) - 1; n > 0 {
			more = fmt.Sprintf(", nor for %d more", n)
		}
		notices = append(notices, fmt.Sprintf("the baseline has no %s for %s on layer %d of %s%s: not compared", name, rows[0].Scheme, rows[0].Layer, rows[0].Dump, more))
	}
	for i := range r.Rows {
		if row := &r.Rows[i]; !seen[keyOf(row)] {
			notices = append(notices, fmt.Sprintf("%s: layer %d: %s is not in the baseline", row.Dump, row.Layer, row.Scheme))
		}
	}
	return checks, notices, nil
}

// checkBaseline refuses what is no report to compare with.
func checkBaseline(r *Report) error {
	if r.Schema != Schema {
		return fmt.Errorf("its schema is %q, want %q", r.Schema, Schema)
	}
	if len(r.Rows) == 0 {
		return fmt.Errorf("it has no rows: nothing to compare with")
	}
	for i := range r.Rows {
		if row := &r.Rows[i]; row.Dump == "" || row.K == "" || row.V == "" {
			return fmt.Errorf("its row %d names no dump, k or v", i)
		}
	}
	return nil
}

// A place is where rows of two reports can match.
type place struct {
	dump  string
	layer int
}

func (p place) String() string { return fmt.Sprintf("layer %d of %s", p.layer, p.dump) }

// A rowKey is what must agree for two rows to be compared.
type rowKey struct {
	place
	k, v string
	head int // −1: all of them
}

func keyOf(row *Row) rowKey {
	head := -1
	if row.KVHead != nil {
		head = *row.KVHead
	}
	return rowKey{place{row.Dump, row.Layer}, row.K, row.V, head}
}

// compareDumps fails unless every layer that both reports have was measured in
// the same way, and there is one. Notices name what the older one does not say.
func compareDumps(now, old []Dump) (notices []string, err error) {
	if len(old) == 0 {
		return []string{"the baseline does not describe its dumps: shapes, queries and facts are not compared"}, nil
	}
	have := map[place]*Dump{}
	for i := range now {
		have[place{now[i].Name, now[i].Layer}] = &now[i]
	}
	matched := false
	var unsaid []string
	for i := range old {
		before := &old[i]
		where := place{before.Name, before.Layer}
		after := have[where]
		if after == nil {
			continue
		}
		matched = true
		if before.Scale == nil {
			unsaid = append(unsaid, where.String())
		}
		if was, is := differences(before.settings(), after.settings()); len(was) > 0 {
			return nil, fmt.Errorf("%v was measured with %s, this run has %s: nothing can be compared", where, strings.Join(was, ", "), strings.Join(is, ", "))
		}
	}
	if !matched {
		return nil, fmt.Errorf("it is of other dumps: it has %v, this run %v", place{old[0].Name, old[0].Layer}, place{now[0].Name, now[0].Layer})
	}
	if len(unsaid) > 0 {
		notices = append(notices, fmt.Sprintf("the baseline does not say the facts of %s, as an older kvq wrote it: not compared", atMostThree(unsaid)))
	}
	return notices, nil
}

// atMostThree names a few of many.
func atMostThree(names []string) string {
	if more := len(names) - 3; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), more)
	}
	return strings.Join(names, ", ")
}

// A setting is one thing that figures depend on, as text.
type setting struct{ name, value string }

// settings are what must agree for figures to be compared; the facts come last,
// and only where the report holds them.
func (d *Dump) settings() []setting {
	s := []setting{
		{"dtype", d.DType},
		{"tokens", fmt.Sprint(d.Tokens)},
		{"kv_heads", fmt.Sprint(d.KVHeads)},
		{"query_heads", fmt.Sprint(d.QueryHeads)},
		{"head_dim", fmt.Sprint(d.HeadDim)},
		{"head_dim_v", fmt.Sprint(cmp.Or(d.HeadDimV, d.HeadDim))},
		{"queries", fmt.Sprintf("%d %s", d.QueryRows, d.Queries)},
	}
	if d.Scale == nil || d.Causal == nil {
		return s
	}
	return append(s,
		setting{"scale", fmt.Sprint(*d.Scale)},
		setting{"causal", fmt.Sprint(*d.Causal)},
		setting{"window", fmt.Sprint(d.Window)},
		setting{"chunk", fmt.Sprint(d.Chunk)},
		setting{"softcap", fmt.Sprint(d.Softcap)},
		setting{"sinks", fmt.Sprint(d.Sinks)},
	)
}

// differences lists the settings in which two layers differ, side by side.
func differences(old, now []setting) (was, is []string) {
	for i := range min(len(old), len(now)) {
		if old[i] != now[i] {
			was = append(was, old[i].String())
			is = append(is, now[i].String())
		}
	}
	return was, is
}

func (s setting) String() string {
	const most = 40 // sinks are one number a head
	value := s.value
	if len(value) > most {
		value = value[:most] + "…"
	}
	return s.name + " " + value
}
