package cmd

import (
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"kvq/formula"
)

// The quantities that --sweep varies.
const (
	sweepContext  = "ctx"
	sweepSessions = "sessions"
)

// maxSweep bounds the points of a sweep.
const maxSweep = 1000

// A sweep is the values that one quantity of the request takes; none without
// --sweep.
type sweep struct {
	over   string // sweepContext or sweepSessions, "" for no sweep
	points []int64
}

// findSweep reads --sweep.
func (p *planRun) findSweep(o planOptions) error {
	if o.sweep == "" {
		if o.plot != "" {
			return withHint(usagef("--plot %s: nothing to draw without --sweep", o.plot), "add --sweep ctx=4k..128k")
		}
		return nil
	}
	var err error
	if p.sweep, err = parseSweep(o.sweep); err != nil {
		return usagef("--sweep %w", err)
	}
	switch {
	case p.sweep.over == sweepContext && o.context != "":
		return usagef("--ctx %s and --sweep %s: want one", o.context, o.sweep)
	case p.sweep.over == sweepSessions && o.manySet:
		return usagef("--sessions %d and --sweep %s: want one", o.sessions, o.sweep)
	}
	if o.plot != "" {
		return checkPlot(o.plot, p.sweep)
	}
	return nil
}

// parseSweep reads ctx=LIST or sessions=LIST. An item of the list is a number
// or LOW..HIGH: doubling from LOW, HIGH included, or with :STEP by steps.
func parseSweep(text string) (sweep, error) {
	var s sweep
	what, list, ok := strings.Cut(text, "=")
	switch strings.ToLower(strings.TrimSpace(what)) {
	case "ctx", "context":
		s.over = sweepContext
	case "sessions":
		s.over = sweepSessions
	default:
		ok = false
	}
	if !ok {
		return s, withHint(usagef("%q: want ctx= or sessions=", text), "as in --sweep ctx=4k..128k, --sweep ctx=8k..64k:8k, --sweep sessions=1,2,4")
	}
	for item := range strings.SplitSeq(list, ",") {
		span, step, stepped := strings.Cut(item, ":")
		low, high, ranged := strings.Cut(span, "..")
		if !ranged {
			high = low
		}
		numbers := map[*string]int64{}
		for _, part := range []*string{&low, &high, &step} {
			if part == &step && !stepped {
				continue
			}
			n, err := formula.ParseTokens(*part)
			switch {
			case err != nil && s.over == sweepSessions:
				return s, usagef("%q: %q is not a number of sessions", text, *part)
			case err != nil:
				return s, usagef("%q: %w", text, err)
			}
			numbers[part] = n
		}
		from, to, by := numbers[&low], numbers[&high], numbers[&step]
		switch {
		case stepped && !ranged:
			return s, usagef("%q: a step needs a range, as in 8k..64k:8k", text)
		case from > to:
			return s, usagef("%q: %s is more than %s", text, low, high)
		}
		for n := from; n < to; {
			if s.points = append(s.points, n); len(s.points) > maxSweep {
				return s, usagef("%q: more than %s points", text, grouped(maxSweep))
			}
			next := by
			if !stepped {
				next = n
			}
			if n > to-next { // also keeps n from overflowing
				break
			}
			n += next
		}
		if len(s.points) == 0 || s.points[len(s.points)-1] != to {
			s.points = append(s.points, to)
		}
	}
	if len(s.points) > maxSweep {
		return s, usagef("%q: more than %s points", text, grouped(maxSweep))
	}
	return s, nil
}

// at is the request at one point.
func (s sweep) at(q formula.Request, n int64) formula.Request {
	switch s.over {
	case sweepContext:
		q.Context = n
	case sweepSessions:
		q.Sequences = n
	}
	return q
}

// requests are the request at every point, or the only one.
func (p *planRun) requests() []formula.Request {
	if p.sweep.over == "" {
		return []formula.Request{p.request}
	}
	var all []formula.Request
	for _, n := range p.sweep.points {
		all = append(all, p.sweep.at(p.request, n))
	}
	return all
}

// checkPlot refuses what cannot be drawn before anything is priced.
func checkPlot(path string, s sweep) error {
	if _, err := chartWriter(path); err != nil {
		return err
	}
	if slices.Min(s.points) == slices.Max(s.points) {
		return usagef("--plot %s: one point makes no curve", path)
	}
	return nil
}

// curvePoints is how many points a curve is drawn through, besides those of
// the sweep: enough for the steps of blocks to look like steps.
const curvePoints = 400

// plot draws what one device holds over the sweep.
func (p *planRun) plot(path string, u units) error {
	format, err := chartWriter(path)
	if err != nil {
		return err
	}
	c := p.chart(u)
	if len(c.curves) == 0 {
		return fmt.Errorf("--plot %s: nothing to draw, every row is refused", path)
	}
	return writeFile(path, func(w io.Writer) error { return c.write(w, format) })
}

// chart arranges the curves: one for each scheme of each engine.
func (p *planRun) chart(u units) chart {
	q := p.request
	c := chart{title: modelLabel(q.Model), x: "tokens of a session", y: "KV cache", units: u}
	sessions := plural(q.Sequences, "session")
	if p.sweep.over == sweepSessions {
		c.x, sessions = "sessions", "sessions of "+plural(q.Context, "token")
	}
	c.title += ", " + sessions
	if q.Prefix > 0 {
		c.title += fmt.Sprintf(", %s tokens in common", grouped(q.Prefix))
	}
	if q.TP > 1 || q.PP > 1 {
		c.title += fmt.Sprintf(", tp %d pp %d", q.TP, q.PP)
		c.y += " of the fullest device"
	}
	if e := p.engines[0]; !p.all() && e.Name != "ideal" {
		c.title += ", " + e.Name
	}
	if left := p.budget.Left(q.TP * q.PP); left > 0 && p.budget.Memory > 0 {
		c.budget, c.budgetLabel = float64(left), "memory "+u.format(left)
		if left != p.budget.Memory {
			c.budgetLabel = u.format(left) + " left " + roomTitle(p, u)
		}
	} else if p.budget.Memory > 0 {
		c.title += ", no room " + roomTitle(p, u)
	}
	xs := p.sweep.curve()
	for i, r := range p.rows {
		first := slices.IndexFunc(p.rows, func(o planRow) bool {
			return o.engine.label() == r.engine.label() && o.Scheme.Name == r.Scheme.Name
		})
		if first != i {
			continue
		}
		name := r.Scheme.Name
		if p.all() {
			name = r.engine.label() + " " + name
		}
		line := curve{name: name}
		for _, x := range xs {
			at, err := r.engine.Reserve(p.sweep.at(r.request, x))
			// A request beyond int64 or that the engine refuses has no point.
			if err == nil && at.Refusal == "" && at.PerDevice > 0 {
				line.points = append(line.points, xy{float64(x), float64(at.PerDevice)})
			}
		}
		if len(line.points) == 0 {
			continue
		}
		// The last point that fits is the answer of the table, too.
		last := r.MaxContext
		if p.sweep.over == sweepSessions {
			last = r.MaxSequences
		}
		if c.budget > 0 && last >= xs[0] && last < xs[len(xs)-1] {
			line.cross, line.crossLabel = float64(last), grouped(last)
		}
		c.curves = append(c.curves, line)
	}
	return c
}

// curve lists the points to draw, in order: those of the sweep and more between
// them, evenly on a log axis.
func (s sweep) curve() []int64 {
	low, high := slices.Min(s.points), slices.Max(s.points)
	xs := slices.Clone(s.points)
	for i := range curvePoints {
		x := float64(low) * math.Pow(float64(high)/float64(low), float64(i)/curvePoints)
		xs = append(xs, min(max(int64(x), low), high))
	}
	slices.Sort(xs)
	return slices.Compact(xs)
}

// chartWriter says in which format a plot's file is written.
func chartWriter(path string) (string, error) {
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".svg", ".png":
		return ext, nil
	}
	return "", usagef("--plot %s: want a name that ends in .svg or .png", path)
}
