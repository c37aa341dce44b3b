package eval

import (
	"cmp"
	"math"
	"slices"

	"kvq/kernels"
)

// tileTokens is the number of tokens whose attention is worked out at once. The
// float32 sums of a tile are added up in float64, so it is part of the figures'
// definition. A multiple of kernels.ScoreTokens.
const tileTokens = 256

const lanes = kernels.MetricLanes

// A query is one captured query row: where it is stored and where it stands.
type query struct{ row, position int }

// selectQueries takes n of the layer's query rows, evenly strided and including
// the last: row ⌊(i+1)·M/n⌋ − 1 for i = 0…n−1. Without captured queries the M
// rows are the tokens themselves. They come in order of position.
func selectQueries(l *Layer, n int) []query {
	rows := l.QueryRows
	position := func(row int) int { return l.QueryPositions[row] }
	if rows == 0 {
		rows, position = l.Tokens, func(row int) int { return row }
	}
	if n == AllQueries || n > rows {
		n = rows
	}
	queries := make([]query, n)
	for i := range queries {
		row := int(int64(i+1)*int64(rows)/int64(n)) - 1
		queries[i] = query{row, position(row)}
	}
	slices.SortStableFunc(queries, func(a, b query) int { return cmp.Compare(a.position, b.position) })
	return queries
}

// visible returns the tokens [lo, hi) that a query at position p attends to.
func (f *Facts) visible(p, tokens int) (lo, hi int) {
	hi = tokens
	if f.Causal {
		hi = p + 1
	}
	if f.Window > 0 {
		lo = max(lo, p-f.Window+1)
	}
	if f.Chunk > 0 {
		start := p / f.Chunk * f.Chunk
		lo, hi = max(lo, start), min(hi, start+f.Chunk)
	}
	return lo, hi
}

// A panel is up to 32 query rows of one KV head with the attention they pay to
// the exact keys. Its arrays are [tokens, lanes] from token lo, a whole number
// of tiles from the first; lanes without a row have probability 0 everywhere.
type panel struct {
	rows   int // lanes in use
	first  int // index of lane 0 among the block's rows
	lo, hi int // tokens that some row sees, lo at the start of a tile

	q       []float32 // [dim, lanes]: scale·q
	p, logp []float32
	capped  []float64 // tanh(z/softcap), nil without softcap
	out     []float64 // [lanes, width]: Σ p·v

	top          [lanes]int // most attended token, the lowest of equals
	topP         [lanes]float32
	topLogP      [lanes]float32
	sinkP, sinkL [lanes]float64 // probability of the sink and its log; 0 and −Inf without
}

// head is one KV head's working set: exact tensors and attention to them.
type head struct {
	k      []float32 // [tokens, dimK] and zeros up to a multiple of kernels.ScoreTokens
	values []float32 // [tokens, dimV]
	v      []float32 // [tokens, width]: values, channels padded with zeros
	padded []float32 // v's memory where it is not values
	panels []panel

	outEnergy float64 // Σ ‖o‖² over the block's rows
}

// padded rounds a number of channels up to what kernels.WeightedSum takes.
func padded(dim int) int { return (dim + 31) / 32 * 32 }

// attend fills h.panels with the attention that the block's queries pay to h's
// keys. rows(j, i) is query head j of the group at the block's query i.
func (b *block) attend(h *head, group int, rows func(j, i int) []float32, sinks []float64, z []float64) {
	facts, tokens, dim, width := &b.layer.Facts, b.layer.Tokens, b.layer.DimK, padded(b.layer.DimV)
	total := len(b.queries) * group
	count := (total + lanes - 1) / lanes
	if cap(h.panels) < count {
		h.panels = make([]panel, count)
	}
	h.panels = h.panels[:count]
	h.outEnergy = 0
	q64 := make([]float64, dim*lanes)
	for n := range h.panels {
		p := &h.panels[n]
		p.first, p.rows = n*lanes, min(lanes, total-n*lanes)
		clear(q64)
		p.q = resize(p.q, dim*lanes)
		clear(p.q)
		var lo, hi [lanes]int
		p.lo, p.hi = tokens, 0
		for r := range p.rows {
			i, j := (p.first+r)/group, (p.first+r)%group
			for c, x := range rows(j, i) {
				q64[c*lanes+r] = float64(x)
				p.q[c*lanes+r] = float32(facts.Scale * float64(x))
			}
			lo[r], hi[r] = facts.visible(b.queries[i].position, tokens)
			p.lo, p.hi = min(p.lo, lo[r]), max(p.hi, hi[r])
		}
		p.lo -= p.lo % tileTokens
		span := (p.hi - p.lo + kernels.ScoreTokens - 1) / kernels.ScoreTokens * kernels.ScoreTokens
		z := z[:span*lanes]
		for t := 0; t < span; t += tileTokens {
			m := min(tileTokens, span-t)
			kernels.Scores64(z[t*lanes:][:m*lanes], h.k[(p.lo+t)*dim:][:m*dim], q64, dim)
		}
		for r := range p.rows {
			p.sinkL[r] = math.Inf(-1)
			if sinks != nil {
				p.sinkL[r] = sinks[(p.first+r)%group]
			}
		}
		p.softmax(z, &lo, &hi, facts)
		p.output(h, width)
		for r := range p.rows {
			h.outEnergy += sumSquares(p.out[r*width:][:width])
		}
	}
}

// softmax turns the panel's dot products z into probabilities over each row's
// visible tokens [lo, hi), in float64, and keeps them as float32.
func (p *panel) softmax(z []float64, lo, hi *[lanes]int, facts *Facts) {
	n := (p.hi - p.lo) * lanes
	p.p, p.logp = resize(p.p, n), resize(p.logp, n)
	if facts.Softcap > 0 {
		p.capped = resize(p.capped, n)
	} else {
		p.capped = nil
	}
	inf := float32(math.Inf(-1))
	var most, sum [lanes]float64
	for r := range most {
		most[r] = math.Inf(-1)
		if r < p.rows {
			most[r] = p.sinkL[r]
		}
	}
	each := func(visit func(i, r int)) {
		for t := p.lo; t < p.hi; t++ {
			for r := range p.rows {
				if t >= lo[r] && t < hi[r] {
					visit((t-p.lo)*lanes+r, r)
				}
			}
		}
	}
	each(func(i, r int) {
		z[i] *= facts.Scale
		if p.capped != nil {
			p.capped[i] = kernels.Tanh(z[i] / facts.Softcap)
			z[i] = facts.Softcap * p.capped[i]
		}
		most[r] = max(most[r], z[i])
	})
	for i := range p.p {
		p.p[i], p.logp[i] = 0, inf
	}
	for r := range p.rows {
		sum[r] = kernels.Exp(p.sinkL[r] - most[r])
	}
	each(func(i, r int) {
		z[i] -= most[r]
		e := kernels.Exp(z[i])
		sum[r] += e
		p.logp[i] = float32(e) // until the sum is known
	})
	var logSum, best [lanes]float64
	for r := range p.rows {
		logSum[r] = kernels.Log(sum[r])
		best[r] = math.Inf(-1)
		p.top[r] = p.lo // should every logit be NaN
		p.sinkP[r] = kernels.Exp(p.sinkL[r]-most[r]) / sum[r]
		p.sinkL[r] -= most[r] + logSum[r]
	}
	each(func(i, r int) {
		p.p[i] = float32(float64(p.logp[i]) / sum[r])
		p.logp[i] = float32(z[i] - logSum[r])
		if z[i] > best[r] {
			best[r] = z[i]
			p.top[r], p.topP[r], p.topLogP[r] = p.lo+i/lanes, p.p[i], p.logp[i]
		}
	})
}

// output sums the values under the panel's probabilities.
func (p *panel) output(h *head, width int) {
	p.out = resize(p.out, lanes*width)
	clear(p.out)
	for t := p.lo; t < p.hi; t += tileTokens {
		n := min(tileTokens, p.hi-t)
		kernels.WeightedSum(p.out, p.p[(t-p.lo)*lanes:][:n*lanes], h.v[t*width:][:n*width], width)
	}
}

// tile returns the part of one of the panel's arrays for n tokens from t.
func tile[T any](p *panel, array []T, t, n int) []T {
	return array[(t-p.lo)*lanes:][: n*lanes : n*lanes]
}

// shifts returns for each row the difference of the logit of its most attended
// token, in the bits that kernels.Scores gives: subtracted from all of a row's
// differences it changes no probability, and takes away what would otherwise be
// large and cancel.
func (p *panel) shifts(e []float32, dim int, softcap float64) (shift [lanes]float32) {
	for r := range p.rows {
		var d float32
		for c, x := range e[p.top[r]*dim:][:dim] {
			d += float32(x * p.q[c*lanes+r])
		}
		if p.capped != nil {
			d = capDifference(d, p.capped[(p.top[r]-p.lo)*lanes+r], softcap)
		}
		shift[r] = d
	}
	return shift
}

// capDifference returns c·tanh((z+d)/c) − c·tanh(z/c) given t = tanh(z/c),
// without forming the two: with u = tanh(d/c) it is c·u·(1−t²)/(1+t·u). Most d
// are small against c: there tanh's series is exact enough, and far quicker.
func capDifference(d float32, t, c float64) float32 {
	x := float64(d) / c
	var u float64
	if x2 := x * x; x2 < 2.5e-3 { // the first term left out is below 1e-12
		u = x * (1 - float64(x2*(1.0/3-float64(x2*(2.0/15-float64(x2*(17.0/315)))))))
	} else {
		u = kernels.Tanh(x)
	}
	return float32(c * u * (1 - float64(t*t)) / (1 + float64(t*u)))
}

func sumSquares(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += float64(v * v)
	}
	return sum
}

// resize returns a slice of n elements, s itself where it is large enough. The
// elements are not cleared.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
