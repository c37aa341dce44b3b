package eval

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A UsageError is a check that cannot be asked as it stands.
type UsageError struct {
	Reason string
	Hint   string // what to do; may be empty
}

func (e *UsageError) Error() string { return e.Reason }

// A Condition is FIELD (> | >= | < | <=) NUMBER over rows or summaries.
type Condition struct {
	Text  string
	Field string // by its JSON name
	op    string
	value float64
	// summary is set for a field of summaries only, or one written "summary.FIELD".
	summary bool
}

// ParseCondition reads a condition such as "kl_mean>0.01". The error is a
// *UsageError.
func ParseCondition(text string) (Condition, error) {
	c := Condition{Text: strings.Join(strings.Fields(text), "")}
	fail := func(format string, args ...any) (Condition, error) {
		return Condition{}, &UsageError{Reason: fmt.Sprintf("%q: ", text) + fmt.Sprintf(format, args...), Hint: "FIELD, one of > >= < <=, and a number, as in 'kl_mean>0.01'"}
	}
	i := strings.IndexAny(c.Text, "<>")
	if i < 0 {
		return fail("no comparison")
	}
	c.Field, c.op = c.Text[:i], c.Text[i:i+1]
	number := c.Text[i+1:]
	if rest, ok := strings.CutPrefix(number, "="); ok {
		c.op, number = c.op+"=", rest
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v != v || math.IsInf(v, 0) {
		return fail("%q is no number", number)
	}
	c.value = v
	name, explicit := strings.CutPrefix(c.Field, "summary.")
	c.Field, c.summary = name, explicit
	rows, summaries := fieldNames(reflect.TypeFor[Row]()), fieldNames(reflect.TypeFor[Summary]())
	if !explicit && !slices.Contains(rows, name) {
		c.summary = true
	}
	if c.summary && !slices.Contains(summaries, name) {
		_, err := fail("no field %q", c.Field)
		err.(*UsageError).Hint = "fields are " + strings.Join(rows, ", ") + "; of summaries also " +
			strings.Join(slices.DeleteFunc(summaries, func(s string) bool { return slices.Contains(rows, s) }), ", ")
		return Condition{}, err
	}
	return c, nil
}

// holds reports whether the condition is true of v.
func (c Condition) holds(v float64) bool {
	switch c.op {
	case ">":
		return v > c.value
	case ">=":
		return v >= c.value
	case "<":
		return v < c.value
	}
	return v <= c.value
}

// fieldNames lists the JSON names of a struct's numbers.
func fieldNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		f := t.Field(i).Type
		if f.Kind() == reflect.Pointer {
			f = f.Elem()
		}
		switch f.Kind() {
		case reflect.Int, reflect.Int64, reflect.Float64:
			names = append(names, jsonName(t.Field(i)))
		}
	}
	return names
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// fieldValue returns the number of a row or summary by its JSON name, nil where
// it is absent.
func fieldValue(row any, name string) *float64 {
	v := reflect.ValueOf(row).Elem()
	for i := range v.NumField() {
		if jsonName(v.Type().Field(i)) != name {
			continue
		}
		f := v.Field(i)
		if f.Kind() == reflect.Pointer {
			if f.IsNil() {
				return nil
			}
			f = f.Elem()
		}
		if f.CanInt() {
			return figure(float64(f.Int()))
		}
		return figure(f.Float())
	}
	return nil
}

// attentionField reports whether a figure rests on queries.
func attentionField(name string) bool {
	return strings.HasPrefix(name, "kl_") || strings.HasPrefix(name, "logit_kl_") || strings.HasPrefix(name, "residual_") || name == "output_nmse" || name == "top1_flip_rate" || name == "worst_layer"
}

// proxyError refuses a check on attention figures of stand-in queries.
func proxyError(what string) error {
	return &UsageError{
		Reason: what + " rests on attention figures, and the dump has no queries: keys stand in for them",
		Hint:   "capture q, check k_centered_nmse or v_nmse, or pass --allow-proxy",
	}
}

// notFinite reports whether a figure is absent from a row because what it
// measures is no number, rather than because it belongs to the other side,
// needs more data, or is the 0/0 of a tensor that is stored without error.
func notFinite(r *Report, row *Row, name string) bool {
	lost := func(mse *float64) bool { return mse == nil || *mse != 0 }
	switch name {
	case "k_mse", "k_nmse", "k_sqnr_db", "k_centered_nmse", "k_max_abs_error", "k_cosine":
		return row.K != Exact && lost(row.KMSE) && fieldValue(row, name) == nil
	case "v_mse", "v_nmse", "v_sqnr_db", "v_max_abs_error", "v_cosine":
		return row.V != Exact && lost(row.VMSE) && fieldValue(row, name) == nil
	case "output_nmse":
		// Without an error of the weights or values it is 0/0: all values are 0.
		return row.OutputNMSE == nil && (row.KLMean == nil && row.K != Exact || row.V != Exact && lost(row.VMSE))
	case "residual_nmse", "residual_sum":
		return row.ResidualNMSE == nil && row.KVHead == nil && slices.ContainsFunc(r.Rows, func(o Row) bool {
			return o.Dump == row.Dump && o.Layer == row.Layer && o.ResidualNMSE != nil
		})
	}
	// The rest of attention comes with the mean, save intervals, which need heads.
	return attentionField(name) && row.K != Exact && row.KLMean == nil
}

// FailIf checks conditions on every row of r, or every summary. A check failed
// where its condition holds, and where its figure is not finite, of which no
// bound holds; one whose figure is absent for another reason says so. Errors are
// *UsageError: a figure absent from every row, or an attention figure of
// stand-in queries without allowProxy.
func FailIf(r *Report, conditions []Condition, allowProxy bool) ([]Check, error) {
	var checks []Check
	for _, c := range conditions {
		found := false
		add := func(row any, queries string, lost bool, check Check) error {
			if attentionField(c.Field) && queries == Proxy && !allowProxy {
				return proxyError(c.Text)
			}
			check.Check = c.Text
			check.Value = fieldValue(row, c.Field)
			switch {
			case lost:
				found, check.Failed, check.Value = true, true, nil
				check.Note = fmt.Sprintf("%s is not finite: --fail-if %s cannot be ruled out", c.Field, c.Text)
			case check.Value == nil:
				check.Note = c.Field + " is absent"
			default:
				found = true
				check.Failed = c.holds(*check.Value)
			}
			checks = append(checks, check)
			return nil
		}
		if c.summary {
			for i := range r.Summary {
				s := &r.Summary[i]
				lost := slices.ContainsFunc(r.Rows, func(row Row) bool {
					return row.Scheme == s.Scheme && row.KVHead == nil && notFinite(r, &row, c.Field)
				})
				if err := add(s, s.Queries, lost, Check{Scheme: s.Scheme}); err != nil {
					return nil, err
				}
			}
		} else {
			for i := range r.Rows {
				row := &r.Rows[i]
				if err := add(row, row.Queries, notFinite(r, row, c.Field), Check{Dump: row.Dump, Scheme: row.Scheme, Layer: &row.Layer, KVHead: row.KVHead}); err != nil {
					return nil, err
				}
			}
		}
		if !found {
			return nil, &UsageError{
				Reason: fmt.Sprintf("%s: no row has %s", c.Text, c.Field),
				Hint:   "it may belong to the other side, need a bench run, or need what the dump does not hold",
			}
		}
	}
	return checks, nil
}
