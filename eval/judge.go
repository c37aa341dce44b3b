package eval

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"kvq/quantize"
)

// kindOf tells rows apart that compare with each other: keys alone, values
// alone, pairs.
func kindOf(k, v string) string {
	switch Exact {
	case v:
		return "keys"
	case k:
		return "values"
	}
	return "pairs"
}

// A candidate is what rows and summaries have in common when they are compared.
// cost is what a scheme loses, less is better: kl_mean and output_nmse, or for
// stand-in queries k_centered_nmse and v_nmse, which do not rest on them.
type candidate struct {
	kind, scheme string
	bits         float64
	cost         []float64
}

func newCandidate(scheme, k, v, queries string, bits float64, kl, out, centered, values *float64) (c candidate, ok bool) {
	c = candidate{kind: kindOf(k, v), scheme: scheme, bits: bits}
	wanted := []*float64{kl, out}
	if queries == Proxy {
		wanted = nil
		if k != Exact {
			wanted = append(wanted, centered)
		}
		if v != Exact {
			wanted = append(wanted, values)
		}
	}
	for _, f := range wanted {
		if f == nil {
			return c, false
		}
		c.cost = append(c.cost, *f)
	}
	return c, true
}

// dominates reports whether a is nowhere worse than b and better somewhere.
func (a candidate) dominates(b candidate) bool {
	better := a.bits < b.bits
	if a.bits > b.bits {
		return false
	}
	for i := range a.cost {
		if a.cost[i] > b.cost[i] {
			return false
		}
		better = better || a.cost[i] < b.cost[i]
	}
	return better
}

// markPareto marks the rows, or summaries, that none of their kind dominates.
func markPareto[R any](rows []R, candidateOf func(*R) (candidate, bool), mark func(*R)) {
	var all []candidate
	var of []*R
	for i := range rows {
		if c, ok := candidateOf(&rows[i]); ok {
			all, of = append(all, c), append(of, &rows[i])
		}
	}
	for i, c := range all {
		if !slices.ContainsFunc(all, func(other candidate) bool { return other.kind == c.kind && other.dominates(c) }) {
			mark(of[i])
		}
	}
}

// markParetoRows marks the rows of one layer or head.
func markParetoRows(rows []Row) {
	markPareto(rows, func(r *Row) (candidate, bool) {
		return newCandidate(r.Scheme, r.K, r.V, r.Queries, r.BitsPerElement, r.KLMean, r.OutputNMSE, r.KCenteredNMSE, r.VNMSE)
	}, func(r *Row) { r.Pareto = true })
}

// markParetoSummaries marks the summaries.
func markParetoSummaries(rows []Summary) {
	markPareto(rows, func(s *Summary) (candidate, bool) {
		return newCandidate(s.Scheme, s.K, s.V, s.Queries, s.BitsPerElement, s.KLMean, s.OutputNMSE, s.KCenteredNMSE, s.VNMSE)
	}, func(s *Summary) { s.Pareto = true })
}

// contradictory is by how much mean squared error and k_centered_nmse must rank
// two schemes differently to be worth a warning, both ways.
const contradictory = 1.1

// warnBiased says once for all layers that plain errors of keys flatter.
func (t *table) warnBiased() {
	if len(t.biased) == 0 {
		return
	}
	worst := slices.MaxFunc(t.biased, func(a, b Outliers) int { return cmp.Compare(*a.BiasEnergy, *b.BiasEnergy) })
	more := ""
	if n := len(t.biased) - 1; n > 0 {
		more = fmt.Sprintf(" (and at least half on %d more)", n)
	}
	t.warn("%s: layer %d: %.0f%% of the keys' energy is a constant per channel%s, which softmax ignores: k_nmse and k_sqnr_db look %.3g times better than k_centered_nmse, the one to rank by",
		worst.Dump, worst.Layer, 100**worst.BiasEnergy, more, 1/(1-*worst.BiasEnergy))
}

// warnRanking warns where plain errors of a layer's keys mislead. rows are those
// of the layer.
func (t *table) warnRanking(rows []Row, keys Outliers) {
	if keys.BiasEnergy != nil && *keys.BiasEnergy >= biasShare && *keys.BiasEnergy < 1 {
		t.biased = append(t.biased, keys)
	}
	var sides []*Row
	for i := range rows {
		r := &rows[i]
		if r.KMSE != nil && r.KCenteredNMSE != nil && *r.KCenteredNMSE > 0 && *r.KMSE > 0 &&
			!slices.ContainsFunc(sides, func(s *Row) bool { return s.K == r.K }) {
			sides = append(sides, r)
		}
	}
	var worst [2]*Row
	most, count := 0.0, 0
	for _, a := range sides {
		for _, b := range sides {
			mse, centered := *b.KMSE / *a.KMSE, *a.KCenteredNMSE / *b.KCenteredNMSE
			if mse > contradictory && centered > contradictory {
				count++
				if worse := min(mse, centered); worse > most {
					most, worst = worse, [2]*Row{a, b}
				}
			}
		}
	}
	if count > 0 {
		a, b := worst[0], worst[1]
		t.warn("%s: layer %d: k_mse and k_centered_nmse rank %d pairs of key schemes differently: k_mse has %s %.2f times better than %s, k_centered_nmse %.2f times worse; softmax follows the second",
			a.Dump, a.Layer, count, a.K, *b.KMSE / *a.KMSE, b.K, *a.KCenteredNMSE / *b.KCenteredNMSE)
	}
}

// Limits of what is recommended without reserve.
const (
	goodKL    = 0.01 // nats
	goodError = 0.01 // output_nmse; k_centered_nmse and v_nmse for stand-in queries
	plainBits = 16
)

// recommend is recommend with the flags of the engines that run the scheme as it
// was measured.
func (t *table) recommend(rows []Summary) *Recommendation {
	r, refused := recommend(rows)
	if len(refused) > 0 {
		t.warn("not recommended, because a figure of attention is absent (not finite, or 0/0): %s", atMostThree(refused))
	}
	if r == nil {
		return nil
	}
	for _, c := range t.plan.combos {
		if c.name != r.Scheme {
			continue
		}
		for _, d := range c.runsOn {
			if r.Flags == nil {
				r.Flags, r.Needs = map[string]string{}, map[string]string{}
			}
			if r.Flags[d.Engine] == "" {
				r.Flags[d.Engine] = d.Flags
				if d.Note != "" {
					r.Needs[d.Engine] = d.Note
				}
			}
		}
	}
	return r
}

// recommend picks the scheme to try first: of the pairs, or where none was run
// of the keys alone, the one of the fewest bits that stays within the limits,
// one that can be built while decoding before any other; where none does, the
// one that comes closest. Of one row alone it
// is a verdict; nil where there is no choice. refused names the
// schemes that could not be considered, with what they lack.
func recommend(rows []Summary) (r *Recommendation, refused []string) {
	for _, kind := range []string{"pairs", "keys", "values"} {
		var all []*Summary
		for i := range rows {
			if kindOf(rows[i].K, rows[i].V) == kind {
				all = append(all, &rows[i])
			}
		}
		if len(all) >= 2 {
			return recommendOf(all, kind)
		}
	}
	if len(rows) == 1 {
		return verdict(&rows[0])
	}
	return nil, nil
}

// verdict says of the only scheme whether it keeps the limits; nil for one of 16 bits.
func verdict(s *Summary) (r *Recommendation, refused []string) {
	kind := kindOf(s.K, s.V)
	all, refused := choices([]*Summary{s}, kind)
	if len(all) == 0 {
		return nil, refused
	}
	limit, have := all[0].figures(kind)
	why := "keeps "
	if all[0].worst > 1 {
		why = "does not keep "
	}
	why += fmt.Sprintf("%s: %s at %.3g bits per element", limit, have, s.BitsPerElement) + s.scope(kind)
	if !s.Online {
		why += "; it cannot be built while decoding: its scales need the whole context"
	}
	return &Recommendation{Scheme: s.Scheme, Why: why + s.proxyNote(), Alone: true}, nil
}

// figures are the limits of what decides, and what s has of it.
func (s *Summary) figures(kind string) (limit, have string) {
	names, costs, limits := s.costs(kind)
	var most, is []string
	for i := range names {
		most = append(most, fmt.Sprintf("%s ≤ %g", names[i], limits[i]))
		is = append(is, fmt.Sprintf("%s %.2g", names[i], *costs[i]))
	}
	return strings.Join(most, " and "), strings.Join(is, ", ")
}

// scope says over what the figures of a summary are, where that is not a pair on one layer.
func (s *Summary) scope(kind string) string {
	scope := ""
	if s.Layers > 1 {
		scope = fmt.Sprintf(", mean over %d layers", s.Layers)
	}
	switch kind {
	case "keys":
		scope += "; keys alone, values exact"
	case "values":
		scope += "; values alone, keys exact"
	}
	return scope
}

// proxyNote says what a judgement without queries rests on.
func (s *Summary) proxyNote() string {
	if s.Queries != Proxy {
		return ""
	}
	return "; judged by tensor errors, because the dump has no queries: keys standing in for them mislead (capture q to rank by attention)"
}

// costs returns the figures that decide, by name, the one to rank by last.
func (s *Summary) costs(kind string) (names []string, costs []*float64, limits []float64) {
	add := func(name string, f *float64, limit float64) {
		names, costs, limits = append(names, name), append(costs, f), append(limits, limit)
	}
	proxy := s.Queries == Proxy
	if kind != "values" {
		if proxy {
			add("k_centered_nmse", s.KCenteredNMSE, goodError)
		} else {
			add("kl_mean", s.KLMean, goodKL)
		}
	}
	if kind != "keys" {
		if proxy {
			add("v_nmse", s.VNMSE, goodError)
		} else {
			add("output_nmse", s.OutputNMSE, goodError)
		}
	}
	return names, costs, limits
}

// choice is a row that could be recommended.
type choice struct {
	*Summary
	worst float64 // the largest share of a limit that a figure takes: within all limits up to 1
	rank  float64 // the figure to rank by
}

// choices are the rows below 16 bits that have every figure that decides, and
// output_nmse in any case: without it nobody knows what attention returns.
// refused names the others.
func choices(all []*Summary, kind string) (found []choice, refused []string) {
	for _, s := range all {
		if s.BitsPerElement >= plainBits {
			continue
		}
		names, costs, limits := s.costs(kind)
		lacks := ""
		for i, f := range costs {
			if f == nil {
				lacks = names[i]
			}
		}
		if s.OutputNMSE == nil {
			lacks = "output_nmse"
		}
		if lacks != "" {
			refused = append(refused, fmt.Sprintf("%s (no %s)", s.Scheme, lacks))
			continue
		}
		c := choice{Summary: s, rank: *costs[len(costs)-1]}
		for i, f := range costs {
			c.worst = max(c.worst, *f/limits[i])
		}
		found = append(found, c)
	}
	return found, refused
}

// leanest is the choice within the limits that has the fewest bits, of equals
// the one that ranks better; nil where there is none.
func leanest(all []choice, onlineOnly bool) *choice {
	var best *choice
	for i, c := range all {
		if c.worst > 1 || onlineOnly && !c.Online {
			continue
		}
		if best == nil || c.BitsPerElement < best.BitsPerElement || c.BitsPerElement == best.BitsPerElement && c.rank < best.rank {
			best = &all[i]
		}
	}
	return best
}

func recommendOf(rows []*Summary, kind string) (r *Recommendation, refused []string) {
	all, refused := choices(rows, kind)
	if len(all) == 0 {
		return nil, refused
	}
	closest := slices.MinFunc(all, func(a, b choice) int {
		return cmp.Or(cmp.Compare(a.worst, b.worst), cmp.Compare(a.BitsPerElement, b.BitsPerElement))
	})
	lean := leanest(all, false)
	pick := leanest(all, true)
	if pick == nil {
		pick = lean
	}
	why := "the fewest bits that keep "
	if pick == nil {
		pick, why = &closest, "nothing below 16 bits keeps "
	}
	limit, have := pick.figures(kind)
	why += limit
	if lean == nil {
		why += "; this comes closest"
	}
	why += fmt.Sprintf(": %s at %.3g bits per element", have, pick.BitsPerElement) + pick.scope(kind)
	switch {
	case !pick.Online && lean != nil:
		why += "; no scheme that can be built while decoding does: its scales need the whole context"
	case !pick.Online:
		why += "; it cannot be built while decoding: its scales need the whole context"
	case lean != nil && lean.BitsPerElement < pick.BitsPerElement:
		why += fmt.Sprintf("; %s does at %.3g bits, but cannot be built token by token", lean.Scheme, lean.BitsPerElement)
		if with := withRecent(lean.Summary); with != "" {
			why += ": try " + with
		}
	}
	return &Recommendation{Scheme: pick.Scheme, Why: why + pick.proxyNote()}, refused
}

// withRecent is the pair with a window of recent tokens on each side that needs
// one to be built while decoding, empty where that does not help.
func withRecent(s *Summary) string {
	sides := []string{s.K, s.V}
	for i, name := range sides {
		if side, err := quantize.Lookup(name); err == nil && !side.Online() {
			sides[i] += "+recent128"
		}
	}
	pair, err := quantize.ParsePair(strings.Join(sides, ":"))
	if err != nil || !pair.Online() {
		return ""
	}
	return pair.Name()
}
