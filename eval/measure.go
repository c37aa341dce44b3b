package eval

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"kvq/kernels"
	"kvq/quantize"
)

// sideErrors are the errors of one side on one head, sums over its elements.
type sideErrors struct {
	squares  float64 // Σ e²
	centered float64 // Σ (e − channel mean)²
	maxAbs   float64
	cosines  float64 // Σ over tokens that are not zero on either side
	nonzero  int
	refused  error // a value that the side cannot hold: the rest is meaningless
}

// A measurement is everything measured on one layer, in sums that rows of the
// layer and of its heads pool.
type measurement struct {
	layer   *Layer
	plan    *plan
	sizes   [2][]*quantize.Size
	queries []query
	proxy   bool
	heads   int // query heads measured

	stats  [2][]*headStats // of each KV head
	pooled [2]Outliers
	byHead [2][]Outliers

	errors   [2][][]sideErrors // side, KV head
	floors   [2][]float64      // side: its centred NMSE on Gaussian data
	kl       [][]float64       // side of the keys: query head·queries + query
	flips    [][]int           // side of the keys, KV head
	outError [][]float64       // combo, KV head
	outTotal []float64         // KV head
	residual []float64         // combo: Σ over query rows; nil without output projection
}

// group returns the number of query heads of a KV head.
func (m *measurement) group() int { return m.heads / m.layer.KVHeads }

// A block is what is measured at once: some of a layer's query positions.
type block struct {
	*measurement
	layer   *Layer
	queries []query
	from    int // index of queries[0] among the measurement's

	// delta holds Δ of each combo where the residual is wanted:
	// [query heads, queries, dimV].
	delta [][]float32
}

// blockBytes bounds the attention arrays of one head, and the Δ of all combos.
const (
	blockBytes = 96 << 20
	deltaBytes = 192 << 20
)

// measure does all the arithmetic of one layer.
func measure(ctx context.Context, l *Layer, p *plan, o *Options, sizes [2][]*quantize.Size, done func(work int64)) (*measurement, error) {
	m := &measurement{
		layer: l, plan: p, sizes: sizes,
		queries: selectQueries(l, o.Queries),
		proxy:   l.QueryRows == 0,
		heads:   l.QueryHeads,
	}
	if m.proxy && l.Facts.Sinks == nil {
		m.heads = l.KVHeads // all query heads of a group would be the same
	}
	workers := make([]worker, o.Threads)
	calibrations, err := m.survey(ctx, o, workers)
	if err != nil {
		return nil, err
	}
	m.outTotal = make([]float64, l.KVHeads)
	m.outError = make([][]float64, len(p.combos))
	for i := range m.outError {
		m.outError[i] = make([]float64, l.KVHeads)
	}
	for tensor, sides := range p.sides {
		m.errors[tensor] = make([][]sideErrors, len(sides))
		for i := range sides {
			m.errors[tensor][i] = make([]sideErrors, l.KVHeads)
		}
	}
	m.kl, m.flips = make([][]float64, len(p.sides[keys])), make([][]int, len(p.sides[keys]))
	for i := range m.kl {
		m.kl[i], m.flips[i] = make([]float64, m.heads*len(m.queries)), make([]int, l.KVHeads)
	}
	projection, err := m.readProjection()
	if err != nil {
		return nil, err
	}
	span := m.blockSpan(o.blockBytes, projection != nil)
	for from := 0; from < len(m.queries); from += span {
		b := &block{measurement: m, layer: l, queries: m.queries[from:min(from+span, len(m.queries))], from: from}
		if err := b.run(ctx, o, workers, calibrations, projection != nil, done); err != nil {
			return nil, err
		}
		if b.delta != nil {
			if err := b.project(ctx, o, projection); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// blockSpan returns the number of query positions of a block.
func (m *measurement) blockSpan(bytes int, residual bool) int {
	perQuery := m.group() * m.layer.Tokens * 8
	if m.layer.Facts.Softcap > 0 {
		perQuery *= 2
	}
	span := max(1, bytes/perQuery)
	if residual {
		span = min(span, max(1, deltaBytes/(len(m.plan.combos)*m.heads*m.layer.DimV*4)))
	}
	if full := lanes / m.group(); full > 1 && span > full {
		span -= span % full // whole panels
	}
	return span
}

// work is the amount of arithmetic of one layer, in products per query row and token.
func (p *plan) work(l *Layer) int64 {
	k, v := int64(l.DimK), int64(padded(l.DimV))
	perRow := 2*k + v + int64(len(p.sides[keys]))*(k+v) + int64(len(p.sides[values]))*v
	for _, c := range p.combos {
		if c.side[keys] >= 0 && c.side[values] >= 0 {
			perRow += v
		}
	}
	return perRow * int64(l.KVHeads)
}

// survey reads every head once: statistics, and what schemes with one scale
// for the whole tensor need to know before they encode.
func (m *measurement) survey(ctx context.Context, o *Options, workers []worker) (calibrations [2][]quantize.Calibration, err error) {
	l := m.layer
	observed := [2][][]quantize.Calibration{}
	for tensor, sides := range m.plan.sides {
		m.stats[tensor] = make([]*headStats, l.KVHeads)
		m.byHead[tensor] = make([]Outliers, l.KVHeads)
		calibrations[tensor] = make([]quantize.Calibration, len(sides))
		observed[tensor] = make([][]quantize.Calibration, l.KVHeads)
	}
	err = parallel(ctx, o.Threads, 2*l.KVHeads, func(_ context.Context, n, i int) error {
		tensor, head := i/l.KVHeads, i%l.KVHeads
		shape := l.shape(tensor)
		w := &workers[n]
		w.e = resize(w.e, shape.Tokens*shape.Dim)
		x := w.e
		if err := l.read(x, tensors[tensor], head); err != nil {
			return err
		}
		m.stats[tensor][head] = newHeadStats(x, shape.Dim)
		seen := make([]quantize.Calibration, len(m.plan.sides[tensor]))
		for i, s := range m.plan.sides[tensor] {
			if s.scheme.Calibrated() && m.sizes[tensor][i] != nil {
				// A value that the scheme cannot hold is Encode's to refuse.
				_ = s.scheme.NewCoder().Observe(&seen[i], quantize.Head{Index: head, Dim: shape.Dim, Values: x, Heads: l.KVHeads, Finite: true, Rope: l.schemeRope(tensor)})
			}
		}
		observed[tensor][head] = seen
		if o.PerHead {
			var err error
			m.byHead[tensor][head], err = outliers(m.stats[tensor][head:head+1], o.OutlierRatio, &w.e, func(dst []float32, _ int) error {
				return nil // the buffer still holds the head
			})
			return err
		}
		return nil
	})
	if err != nil {
		return calibrations, err
	}
	for tensor := range observed {
		for _, seen := range observed[tensor] {
			for i := range seen {
				calibrations[tensor][i].Merge(seen[i])
			}
		}
	}
	return calibrations, parallel(ctx, o.Threads, 2, func(_ context.Context, n, tensor int) error {
		var err error
		m.pooled[tensor], err = outliers(m.stats[tensor], o.OutlierRatio, &workers[n].e, func(dst []float32, head int) error {
			return l.read(dst, tensors[tensor], head)
		})
		return err
	})
}

// read fills dst from the dump.
func (l *Layer) read(dst []float32, tensor Tensor, head int) error {
	if err := l.Read(dst, tensor, head); err != nil {
		return fmt.Errorf("layer %d: %w", l.Number, err)
	}
	return nil
}

// A unit is a piece of a head's work that one worker does: a side, and for the
// keys the combos that pair it with values.
type unit struct {
	tensor, side int
	pairs        []int // combos
	again        bool  // only for the pairs: the side itself is another unit's
}

// pairBytes bounds the value errors that a unit holds for its pairs, if it has
// more than one: pairs beyond that score the keys again.
const pairBytes = 32 << 20

// units lists the work of a head, the longest first.
func (m *measurement) units() []unit {
	var all []unit
	most := max(1, pairBytes/(4*m.layer.Tokens*padded(m.layer.DimV)))
	for i := range m.plan.sides[keys] {
		u := unit{tensor: keys, side: i}
		for n, c := range m.plan.combos {
			if c.side[keys] != i || c.side[values] < 0 || m.sizes[values][c.side[values]] == nil {
				continue
			}
			if len(u.pairs) == most {
				all = append(all, u)
				u = unit{tensor: keys, side: i, again: true}
			}
			u.pairs = append(u.pairs, n)
		}
		if m.sizes[keys][i] != nil {
			all = append(all, u)
		}
	}
	for i := range m.plan.sides[values] {
		if m.sizes[values][i] != nil {
			all = append(all, unit{tensor: values, side: i})
		}
	}
	return all
}

// A slot is one head at work: its exact tensors and what its units found.
type slot struct {
	head
	index int
	ready chan struct{} // closed when the head is prepared
	left  atomic.Int64  // units to go
	keep  [][]float64   // combo: share of the values' Δ in each row's
	part  [][]float64   // combo: the keys' part of each row's Δ
	value [][]float64   // side of the values: Δ of each row
}

// worker is one goroutine's memory.
type worker struct {
	pass    keyPass
	encoded [2]quantize.Encoded
	decoded []float32   // keys, where ties need them
	e       []float32   // [tokens, dim]: decoded, then decoded − exact
	v       [][]float32 // the same of values, [tokens, width]
	tight   []float32   // [tokens, dimV]: before padding to width
	z       []float64
	q       []float32
	squares []float64
	cross   []float64
	columns []float64
	maxAbs  float32
}

// run measures the block's queries on every head. Heads are prepared one ahead
// of the units at work, so that no worker waits at a head's end.
func (b *block) run(ctx context.Context, o *Options, workers []worker, calibrations [2][]quantize.Calibration, residual bool, done func(int64)) error {
	l := b.layer
	units := b.units()
	if len(units) == 0 { // nothing fits this layer
		return nil
	}
	if residual {
		b.delta = make([][]float32, len(b.plan.combos))
		for i := range b.delta {
			b.delta[i] = make([]float32, b.heads*len(b.queries)*l.DimV)
		}
	}
	slots := 1
	if o.Threads > 1 {
		slots = min(l.KVHeads, 2+o.Threads/(len(units)+1))
	}
	ring := make([]*head, slots)
	for i := range ring {
		ring[i] = new(head)
	}
	state := make([]*slot, l.KVHeads)
	free := make([]chan struct{}, l.KVHeads) // closed when a head is done
	for i := range state {
		state[i] = &slot{index: i, ready: make(chan struct{})}
		state[i].left.Store(int64(len(units)))
		free[i] = make(chan struct{})
	}
	type task struct{ head, unit int } // unit −1: prepare
	var tasks []task
	lead := min(slots-1, o.Threads-1)
	for h := range l.KVHeads {
		if h == 0 || slots == 1 {
			tasks = append(tasks, task{h, -1})
		}
		for u := range units {
			if slots > 1 && u == max(0, len(units)-2*lead) && h+1 < l.KVHeads {
				tasks = append(tasks, task{h + 1, -1})
			}
			tasks = append(tasks, task{h, u})
		}
	}
	perHead := b.plan.work(l) / int64(l.KVHeads) * int64(len(b.queries)) * int64(l.Tokens)
	share := perHead / int64(len(units))
	return parallel(ctx, o.Threads, len(tasks), func(ctx context.Context, n, i int) error {
		t := tasks[i]
		s := state[t.head]
		wait := s.ready
		if t.unit < 0 {
			if t.head < slots {
				wait = nil
			} else {
				wait = free[t.head-slots]
			}
		}
		if wait != nil {
			select {
			case <-wait:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		w := &workers[n]
		if t.unit < 0 {
			s.head = *ring[t.head%slots]
			if err := b.prepare(w, s); err != nil {
				return err
			}
			close(s.ready)
			return nil
		}
		if err := b.work(w, s, units[t.unit], calibrations); err != nil {
			return err
		}
		if s.left.Add(-1) == 0 {
			b.finish(s)
			*ring[t.head%slots] = s.head
			state[t.head] = nil // what the units left has been used
			close(free[t.head])
			done(perHead - int64(len(units)-1)*share)
		} else {
			done(share)
		}
		return nil
	})
}

// prepare reads a head and works out its exact attention.
func (b *block) prepare(w *worker, s *slot) error {
	l := b.layer
	tokens := wholeTokens(l.Tokens)
	width := padded(l.DimV)
	s.k = resize(s.k, tokens*l.DimK)
	clear(s.k[l.Tokens*l.DimK:])
	if err := l.read(s.k[:l.Tokens*l.DimK], Keys, s.index); err != nil {
		return err
	}
	s.values = resize(s.values, l.Tokens*l.DimV)
	if err := l.read(s.values, Values, s.index); err != nil {
		return err
	}
	s.v = s.values
	if width != l.DimV {
		s.padded = resize(s.padded, l.Tokens*width)
		s.v = s.padded
		pad(s.v, s.values, l.Tokens, l.DimV, width)
	}

	group := b.group()
	rows := func(j, i int) []float32 {
		return s.k[b.queries[i].position*l.DimK:][:l.DimK]
	}
	if !b.proxy {
		w.q = resize(w.q, group*l.QueryRows*l.DimK)
		for j := range group {
			if err := l.read(w.q[j*l.QueryRows*l.DimK:][:l.QueryRows*l.DimK], Queries, s.index*group+j); err != nil {
				return err
			}
		}
		rows = func(j, i int) []float32 {
			return w.q[(j*l.QueryRows+b.queries[i].row)*l.DimK:][:l.DimK]
		}
	}
	var sinks []float64
	if l.Facts.Sinks != nil {
		sinks = l.Facts.Sinks[s.index*group:][:group]
	}
	w.z = resize(w.z, tokens*lanes)
	b.attend(&s.head, group, rows, sinks, w.z)
	b.outTotal[s.index] += s.outEnergy

	s.keep, s.part = make([][]float64, len(b.plan.combos)), make([][]float64, len(b.plan.combos))
	s.value = make([][]float64, len(b.plan.sides[values]))
	return nil
}

// wholeTokens rounds up to the tokens that kernels.Scores takes.
func wholeTokens(n int) int {
	return (n + kernels.ScoreTokens - 1) / kernels.ScoreTokens * kernels.ScoreTokens
}

// pad widens rows of dim values to width, with zeros.
func pad(dst, src []float32, rows, dim, width int) {
	for t := range rows {
		row := dst[t*width:][:width]
		clear(row[copy(row, src[t*dim:][:dim]):])
	}
}

// roundTrip stores the slot's head under a side and leaves decoded − exact in
// dst, [tokens, dim], and their sums and maximum in the worker.
// A value that the side cannot hold, or a fact that it needs and the dump lacks,
// is an error unless the schemes are optional: then it is returned as refused.
func (b *block) roundTrip(w *worker, s *slot, dst []float32, tensor, side int, calibrations [2][]quantize.Calibration) (refused, err error) {
	l, sd := b.layer, b.plan.sides[tensor][side]
	exact, dim := s.k[:l.Tokens*l.DimK], l.DimK
	if tensor == values {
		exact, dim = s.values, l.DimV
	}
	coder := sd.scheme.NewCoder()
	if err := coder.Encode(&w.encoded[tensor], quantize.Head{Index: s.index, Dim: dim, Values: exact, Heads: l.KVHeads, Finite: true, Rope: l.schemeRope(tensor)}, &calibrations[tensor][side]); err != nil {
		var value *quantize.ValueError
		var scale *quantize.RangeError
		var misfit *quantize.SchemeError // it needs facts that the dump lacks
		if b.plan.optional && (errors.As(err, &value) || errors.As(err, &scale) || errors.As(err, &misfit)) {
			return err, nil
		}
		return nil, fmt.Errorf("%s: layer %d: %s: %w", l.Dump, l.Number, tensors[tensor], err) // it names the scheme
	}
	coder.Decode(dst, &w.encoded[tensor])
	w.squares, w.cross = resize(w.squares, l.Tokens), resize(w.cross, l.Tokens)
	w.columns, w.maxAbs = zeroed(w.columns, dim), 0
	for t := 0; t < l.Tokens; t += tileTokens {
		n := min(tileTokens, l.Tokens-t)
		e := dst[t*dim:][:n*dim]
		kernels.Errors(e, e, exact[t*dim:][:n*dim], w.squares[t:][:n], w.cross[t:][:n], w.columns)
		w.maxAbs = max(w.maxAbs, kernels.AbsMax(e))
	}
	return nil, nil
}

// record keeps what roundTrip left as the errors of a side on a head.
func (b *block) record(w *worker, tensor, side, head int) {
	stats := b.stats[tensor][head]
	r := sideErrors{maxAbs: float64(w.maxAbs)}
	for t, squares := range w.squares {
		r.squares += squares
		exact := stats.energy[t]
		got := exact + 2*w.cross[t] + squares
		if exact > 0 && got > 0 {
			r.nonzero++
			r.cosines += min(1, (exact+w.cross[t])/math.Sqrt(float64(exact*got)))
		}
	}
	r.centered = r.squares
	for _, sum := range w.columns {
		r.centered -= float64(sum*sum) / float64(stats.tokens)
	}
	r.centered = max(r.centered, 0)
	b.errors[tensor][side][head] = r
}

// valueErrors leaves the errors of a side of the values in dst, padded.
func (b *block) valueErrors(w *worker, s *slot, dst *[]float32, side int, calibrations [2][]quantize.Calibration) (refused, err error) {
	l := b.layer
	width := padded(l.DimV)
	*dst = resize(*dst, l.Tokens*width)
	tight := *dst
	if width != l.DimV {
		w.tight = resize(w.tight, l.Tokens*l.DimV)
		tight = w.tight
	}
	refused, err = b.roundTrip(w, s, tight, values, side, calibrations)
	if refused == nil && err == nil && width != l.DimV {
		pad(*dst, tight, l.Tokens, l.DimV, width)
	}
	return refused, err
}

// work does one unit.
func (b *block) work(w *worker, s *slot, u unit, calibrations [2][]quantize.Calibration) error {
	for len(w.v) <= len(u.pairs) {
		w.v = append(w.v, nil)
	}
	if u.tensor == values {
		return b.workValues(w, s, u.side, calibrations)
	}
	l := b.layer
	tokens := wholeTokens(l.Tokens)
	w.e = resize(w.e, tokens*l.DimK)
	clear(w.e[l.Tokens*l.DimK:])
	refused, err := b.roundTrip(w, s, w.e[:l.Tokens*l.DimK], keys, u.side, calibrations)
	if err != nil {
		return err
	}
	if refused != nil {
		b.errors[keys][u.side][s.index].refused = refused
		return nil
	}
	if b.from == 0 && !u.again {
		b.record(w, keys, u.side, s.index)
	}
	lossless := w.maxAbs == 0
	var errs [][]float32
	var pairs []int
	for _, combo := range u.pairs {
		dst := &w.v[len(errs)]
		if !lossless {
			refused, err = b.valueErrors(w, s, dst, b.plan.combos[combo].side[values], calibrations)
		}
		if err != nil {
			return err
		}
		if refused == nil {
			errs, pairs = append(errs, *dst), append(pairs, combo)
		}
	}
	if lossless { // kl and Δ are 0, and a pair's Δ is that of its values
		return nil
	}
	var again []float32
	loss := b.loss(&w.pass, &s.head, w.e, errs, func() []float32 {
		if again == nil {
			w.decoded = resize(w.decoded, l.Tokens*l.DimK)
			again = w.decoded
			b.plan.sides[keys][u.side].scheme.NewCoder().Decode(again, &w.encoded[keys])
		}
		return again
	})
	for j, combo := range pairs {
		s.part[combo], s.keep[combo] = loss.pairs[j], loss.keep
	}
	if u.again {
		return nil
	}
	if n := b.plan.alone(keys, u.side); n >= 0 {
		b.settle(n, s.index, loss.delta, nil, nil)
	}
	group := b.group()
	for row := range len(b.queries) * group {
		i, j := row/group, row%group
		b.kl[u.side][(s.index*group+j)*len(b.measurement.queries)+b.from+i] = loss.kl[row]
	}
	b.flips[u.side][s.index] += loss.flips
	return nil
}

// workValues does the unit of a side of the values.
func (b *block) workValues(w *worker, s *slot, side int, calibrations [2][]quantize.Calibration) error {
	refused, err := b.valueErrors(w, s, &w.v[0], side, calibrations)
	if err != nil {
		return err
	}
	if refused != nil {
		b.errors[values][side][s.index].refused = refused
		return nil
	}
	if b.from == 0 {
		b.record(w, values, side, s.index)
	}
	delta := make([]float64, len(s.panels)*lanes*padded(b.layer.DimV))
	if w.maxAbs > 0 {
		b.valueLoss(delta, &s.head, w.v[0])
	}
	if n := b.plan.alone(values, side); n >= 0 {
		b.settle(n, s.index, delta, nil, nil)
	}
	if b.plan.paired(side) {
		s.value[side] = delta
	}
	return nil
}

// settle adds up ‖Δ‖² of a combo on a head: Δ is part + keep·delta of each row,
// or delta alone without part.
func (b *block) settle(n, head int, delta, part, keep []float64) {
	width, group, dim := padded(b.layer.DimV), b.group(), b.layer.DimV
	row := make([]float64, width)
	var sum float64
	for r := range len(b.queries) * group {
		copy(row, delta[r*width:])
		if part != nil {
			for i, x := range part[r*width:][:width] {
				row[i] = x + float64(keep[r]*row[i])
			}
		}
		sum += sumSquares(row)
		if b.delta != nil {
			dst := b.delta[n][((head*group+r%group)*len(b.queries)+r/group)*dim:][:dim]
			for i := range dst {
				dst[i] = float32(row[i])
			}
		}
	}
	b.outError[n][head] += sum
}

// finish works out the pairs of a head whose units are done.
func (b *block) finish(s *slot) {
	for n, c := range b.plan.combos {
		if c.side[keys] < 0 || c.side[values] < 0 || b.sizes[keys][c.side[keys]] == nil {
			continue
		}
		delta := s.value[c.side[values]]
		if delta != nil && b.errors[keys][c.side[keys]][s.index].refused == nil {
			b.settle(n, s.index, delta, s.part[n], s.keep[n])
		}
	}
}

// readProjection reads the output projection, an entry per query head of
// [modelDim, dimV] rows padded to what kernels.Scores takes; nil where the dump
// has none.
func (m *measurement) readProjection() ([][]float32, error) {
	l := m.layer
	if l.ModelDim == 0 || m.proxy {
		return nil, nil
	}
	m.residual = make([]float64, len(m.plan.combos))
	projection := make([][]float32, m.heads)
	for j := range projection {
		projection[j] = make([]float32, wholeTokens(l.ModelDim)*l.DimV)
		if err := l.read(projection[j][:l.ModelDim*l.DimV], Output, j); err != nil {
			return nil, err
		}
	}
	return projection, nil
}

// project adds up o_weight·‖o·Δ‖² of the block's query rows for every combo.
func (b *block) project(ctx context.Context, o *Options, projection [][]float32) error {
	l := b.layer
	rows := wholeTokens(l.ModelDim)
	return parallel(ctx, o.Threads, len(b.plan.combos), func(_ context.Context, _, n int) error {
		q := make([]float32, l.DimV*lanes)
		out := make([]float32, rows*lanes)
		sums := make([]float64, rows*lanes)
		for from := 0; from < len(b.queries); from += lanes {
			queries := b.queries[from:min(from+lanes, len(b.queries))]
			clear(sums)
			for j, o := range projection {
				clear(q)
				for r := range queries {
					for c, x := range b.delta[n][(j*len(b.queries)+from+r)*l.DimV:][:l.DimV] {
						q[c*lanes+r] = x
					}
				}
				for t := 0; t < rows; t += tileTokens {
					m := min(tileTokens, rows-t)
					kernels.Scores(out[t*lanes:][:m*lanes], o[t*l.DimV:][:m*l.DimV], q, l.DimV)
				}
				for i, x := range out {
					sums[i] += float64(x)
				}
			}
			for r, query := range queries {
				var norm float64
				for t := range rows {
					x := sums[t*lanes+r]
					norm += float64(x * x)
				}
				b.residual[n] += float64(l.OutputWeight[query.row] * norm)
			}
		}
		return nil
	})
}
