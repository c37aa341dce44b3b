package cmd

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"kvq/eval"
)

// gate is what --fail-if and --baseline ask of a report.
type gate struct {
	conditions []eval.Condition
	baseline   *eval.Report
	path       string // of the baseline
	tolerance  float64
	allowProxy bool
}

// newGate reads the checks before anything is measured, so that a mistake in
// them costs no time.
func newGate(o evalOptions) (*gate, error) {
	g := &gate{allowProxy: o.allowProxy, path: o.baseline}
	if len(o.failIf) > 0 && len(o.schemes) == 0 {
		return nil, withHint(usagef("--fail-if needs --scheme"), "in the default set some scheme always fails")
	}
	for _, text := range o.failIf {
		c, err := eval.ParseCondition(text)
		if err != nil {
			return nil, fmt.Errorf("--fail-if %w", err)
		}
		g.conditions = append(g.conditions, c)
	}
	var err error
	if g.tolerance, err = parseTolerance(o.tolerance); err != nil {
		return nil, err
	}
	if o.baseline == "" {
		if g.tolerance != 0 {
			return nil, usagef("--tolerance needs --baseline")
		}
		return g, nil
	}
	raw, err := readRegular(o.baseline, maxBaseline)
	if err != nil {
		return nil, fmt.Errorf("--baseline %s: %w", o.baseline, unwrapPath(err))
	}
	if err := json.Unmarshal(raw, &g.baseline); err != nil || g.baseline == nil {
		return nil, withHint(fmt.Errorf("--baseline %s: not a report of kvq eval", o.baseline), "'kvq eval ... --format json -o FILE' makes one")
	}
	return g, nil
}

// maxBaseline bounds the report of --baseline: a thousand layers under a
// hundred schemes are under 200 MiB.
const maxBaseline = 256 << 20

// readRegular reads a file of at most so many bytes whole. A named pipe would
// block and a device might never end, so that they are refused.
func readRegular(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > most) {
		err = fmt.Errorf("not a regular file of at most %d MiB", most>>20)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// parseTolerance reads 2% or 0.02.
func parseTolerance(s string) (float64, error) {
	number, percent := strings.CutSuffix(strings.TrimSpace(s), "%")
	x, err := strconv.ParseFloat(number, 64)
	if err != nil || !(x >= 0) || math.IsInf(x, 0) {
		return 0, usagef("--tolerance %q: want a share such as 2%% or 0.02", s)
	}
	if percent {
		x /= 100
	}
	return x, nil
}

// check holds r against the checks and adds them to it. failed says which did
// not hold, err that they could not be asked.
func (g *gate) check(r *eval.Report, out *output) (failed, err error) {
	if len(g.conditions) > 0 {
		if r.Checks, err = eval.FailIf(r, g.conditions, g.allowProxy); err != nil {
			return nil, fmt.Errorf("--fail-if %w", err)
		}
	}
	if g.baseline != nil {
		worse, notices, err := eval.CompareBaseline(r, g.baseline, g.tolerance, g.allowProxy)
		if err != nil {
			return nil, fmt.Errorf("--baseline %s: %w", g.path, err)
		}
		for _, n := range notices {
			out.note("%s", n)
		}
		r.Checks = append(r.Checks, worse...)
	}
	var first *eval.Check
	n := 0
	for i := range r.Checks {
		if c := &r.Checks[i]; c.Failed {
			if first == nil {
				first = c
			}
			n++
		}
	}
	if first == nil {
		return nil, nil
	}
	more := ""
	if n > 1 {
		more = fmt.Sprintf(", and %d more", n-1)
	}
	return answerNo("%s%s", describeCheck(first), more), nil
}

// describeCheck says in one line what did not hold.
func describeCheck(c *eval.Check) string {
	where := c.Scheme
	if c.Layer != nil {
		where += fmt.Sprintf(" on layer %d", *c.Layer)
	}
	if c.Dump != "" {
		where += " of " + c.Dump
	}
	switch {
	case c.Value != nil && c.Baseline != nil:
		return fmt.Sprintf("worse than the baseline: %s of %s: %s, was %s", c.Check, where, significant(*c.Value, 4), significant(*c.Baseline, 4))
	case c.Value != nil:
		return fmt.Sprintf("--fail-if %s holds for %s: %s", c.Check, where, significant(*c.Value, 4))
	default:
		return fmt.Sprintf("%s: %s", where, c.Note)
	}
}
