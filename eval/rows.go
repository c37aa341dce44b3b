package eval

import (
	"math"
	"slices"

	"kvq/kernels"
)

// refused reports whether a combo has no row: a side of it does not fit the
// layer, or cannot be encoded.
func (m *measurement) refused(c combo) bool {
	for tensor, side := range c.side {
		if side >= 0 && (m.sizes[tensor][side] == nil || m.refusal(tensor, side) != nil) {
			return true
		}
	}
	return false
}

// refusal returns why a side could not be encoded, nil where it could or was
// not tried.
func (m *measurement) refusal(tensor, side int) error {
	for _, e := range m.errors[tensor][side] {
		if e.refused != nil {
			return e.refused
		}
	}
	return nil
}

// row is the row of combo n over KV heads [from, to).
func (m *measurement) row(n, from, to int) Row {
	l, c := m.layer, m.plan.combos[n]
	r := Row{
		Dump: l.Dump, Layer: l.Number, Scheme: c.name, Online: c.online, Queries: Captured,
		K: m.plan.sideName(c, keys), V: m.plan.sideName(c, values),
	}
	if m.proxy {
		r.Queries = Proxy
	}
	for tensor, side := range c.side {
		if side < 0 {
			continue
		}
		size := m.sizes[tensor][side].Total()
		if to-from < l.KVHeads {
			size = m.headSize(tensor, side, from)
		}
		r.Bytes += size
		if tensor == keys {
			r.KBytes = &size
		} else {
			r.VBytes = &size
		}
	}
	r.BitsPerElement = 8 * float64(r.Bytes) / float64(m.layer.elements(c, to-from))
	if side := c.side[keys]; side >= 0 {
		e := m.pool(keys, side, from, to)
		r.KMSE, r.KNMSE, r.KSQNRdB = e.mse, e.nmse, e.sqnr
		r.KCenteredNMSE, r.KMaxAbsError, r.KCosine, r.KFloorRatio = e.centered, e.maxAbs, e.cosine, e.floorRatio
	}
	if side := c.side[values]; side >= 0 {
		e := m.pool(values, side, from, to)
		r.VMSE, r.VNMSE, r.VSQNRdB = e.mse, e.nmse, e.sqnr
		r.VMaxAbsError, r.VCosine, r.VFloorRatio = e.maxAbs, e.cosine, e.floorRatio
	}
	m.attention(&r, n, from, to)
	return r
}

// headSize returns the bytes of one head: what a tensor stores once for all
// heads counts with the first.
func (m *measurement) headSize(tensor, side, head int) int64 {
	shape := m.layer.shape(tensor)
	size := func(heads int) int64 {
		shape.Heads = heads
		s, err := m.plan.sides[tensor][side].scheme.Size(shape)
		if err != nil { // it fitted all heads
			panic(err)
		}
		return s.Total()
	}
	return size(head+1) - size(head)
}

// tensorErrors are the errors of a side over some heads.
type tensorErrors struct {
	mse, nmse, sqnr, centered, maxAbs, cosine, floorRatio *float64
}

func (m *measurement) pool(tensor, side, from, to int) tensorErrors {
	var sum sideErrors
	var energy, centered float64
	for head := from; head < to; head++ {
		e := m.errors[tensor][side][head]
		sum.squares += e.squares
		sum.centered += e.centered
		sum.cosines += e.cosines
		sum.nonzero += e.nonzero
		sum.maxAbs = max(sum.maxAbs, e.maxAbs)
		raw, c := m.stats[tensor][head].totalEnergy()
		energy += raw
		centered += c
	}
	elements := float64(to-from) * float64(m.layer.Tokens) * float64(m.layer.shape(tensor).Dim)
	nmse := sum.squares / energy
	return tensorErrors{
		mse:        figure(sum.squares / elements),
		nmse:       figure(nmse),
		sqnr:       figure(-10 / math.Ln10 * kernels.Log(nmse)),
		centered:   figure(sum.centered / centered),
		maxAbs:     figure(sum.maxAbs),
		cosine:     figure(sum.cosines / float64(sum.nonzero)),
		floorRatio: figure(sum.centered / centered / m.floors[tensor][side]),
	}
}

// attention fills in a row's attention figures.
func (m *measurement) attention(r *Row, n, from, to int) {
	c := m.plan.combos[n]
	var lost, total float64
	for head := from; head < to; head++ {
		lost += m.outError[n][head]
		total += m.outTotal[head]
	}
	r.OutputNMSE = figure(lost / total)
	if m.residual != nil && to-from == m.layer.KVHeads {
		r.ResidualNMSE = figure(m.residual[n] / float64(len(m.queries)))
	}
	pairs := float64((to - from) * m.group() * len(m.queries))
	if c.side[keys] < 0 { // exact keys attend exactly
		for _, f := range []**float64{&r.KLMean, &r.KLP50, &r.KLP90, &r.KLP99, &r.KLP999, &r.KLMax, &r.Top1FlipRate} {
			*f = figure(0)
		}
		return
	}
	kl := slices.Clone(m.headKL(c.side[keys], from, to))
	slices.Sort(kl)
	if math.IsNaN(kl[0]) || math.IsInf(kl[len(kl)-1], 0) { // NaN sorts first
		return
	}
	units := m.klUnits(c.side[keys], from, to)
	r.KLMean = figure(meanSample(units))
	r.KLP50, r.KLP90, r.KLP99 = figure(quantile(kl, 0.5)), figure(quantile(kl, 0.9)), figure(quantile(kl, 0.99))
	r.KLP999, r.KLMax = figure(quantile(kl, 0.999)), figure(kl[len(kl)-1])
	flips := 0
	for head := from; head < to; head++ {
		flips += m.flips[c.side[keys]][head]
	}
	r.Top1FlipRate = figure(float64(flips) / pairs)
}

// headKL returns the kl of every query of some KV heads.
func (m *measurement) headKL(side, from, to int) []float64 {
	perHead := m.group() * len(m.queries)
	return m.kl[side][from*perHead : to*perHead]
}

// klUnits returns the units of resampling: the kl of each query head.
func (m *measurement) klUnits(side, from, to int) []sample {
	units := make([]sample, 0, (to-from)*m.group())
	for kl := range slices.Chunk(m.headKL(side, from, to), len(m.queries)) {
		var u sample
		for _, v := range kl {
			u.sum += v
		}
		u.n = float64(len(kl))
		units = append(units, u)
	}
	return units
}

// quantile interpolates linearly between the order statistics of sorted x.
func quantile(x []float64, p float64) float64 {
	h := float64(float64(len(x)-1) * p)
	i := int(h)
	if i+1 >= len(x) {
		return x[len(x)-1]
	}
	return x[i] + float64((h-float64(i))*(x[i+1]-x[i]))
}

// elements returns the number of values that a combo quantizes in some heads.
func (l *Layer) elements(c combo, heads int) int64 {
	var n int64
	for tensor, side := range c.side {
		if side >= 0 {
			n += int64(heads) * int64(l.Tokens) * int64(l.shape(tensor).Dim)
		}
	}
	return n
}

// summarize pools the rows of combo n, one of each of some layers.
func (p *plan) summarize(n int, layers []*Layer, rows []*Row) Summary {
	c := p.combos[n]
	s := Summary{Scheme: c.name, K: p.sideName(c, keys), V: p.sideName(c, values), Online: c.online, Layers: len(rows), Queries: Captured}
	var elements int64
	columns := make([][]*float64, 6)
	worst := math.Inf(-1)
	for i, r := range rows {
		l := layers[i]
		s.Bytes += r.Bytes
		elements += l.elements(c, l.KVHeads)
		if r.Queries == Proxy {
			s.Queries = Proxy
		}
		for j, f := range []*float64{r.KCenteredNMSE, r.VNMSE, r.KLMean, r.Top1FlipRate, r.OutputNMSE, r.ResidualNMSE} {
			columns[j] = append(columns[j], f)
		}
		if r.KLP99 != nil && (s.KLP99 == nil || *r.KLP99 > *s.KLP99) {
			s.KLP99 = r.KLP99
		}
		if r.KLMean != nil && (*r.KLMean > worst || *r.KLMean == worst && l.Number < *s.WorstLayer) {
			worst, s.WorstLayer = *r.KLMean, &l.Number
		}
	}
	s.BitsPerElement = 8 * float64(s.Bytes) / float64(elements)
	for j, f := range []**float64{&s.KCenteredNMSE, &s.VNMSE, &s.KLMean, &s.Top1FlipRate, &s.OutputNMSE, &s.ResidualSum} {
		*f = meanOf(columns[j])
	}
	if s.ResidualSum != nil {
		s.ResidualSum = figure(*s.ResidualSum * float64(len(rows)))
	}
	return s
}

// meanOf returns the mean of figures, nil unless all are there.
func meanOf(figures []*float64) *float64 {
	var sum float64
	for _, f := range figures {
		if f == nil {
			return nil
		}
		sum += *f
	}
	return figure(sum / float64(len(figures)))
}
