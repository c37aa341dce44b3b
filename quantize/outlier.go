package quantize

import (
	"encoding/binary"
	"math"
	"slices"

	"kvq/kernels"
)

// Bytes of what +outlier stores: for each outlier its value in f16, which counts
// as data, and its channel; for each row the end of its outliers.
const (
	outlierValueBytes   = 2
	outlierChannelBytes = 2
	outlierRowBytes     = 4
)

// outliersOf returns how many of n values of a sharing unit stay out: ⌈P·n/100⌉ of
// the largest, or the tail at each end.
func (s *Scheme) outliersOf(n int64) int64 {
	const all = 100 * percentUnit
	m := s.modifier(Outlier)
	if m.Tails {
		return min(2*s.tail(n), n)
	}
	whole, rest := times(n, int64(m.N), all)
	if rest > 0 {
		whole++
	}
	return whole
}

// tail returns how many of n values lie beyond each of their percentiles P/2 and
// 100−P/2, as KVQuant has them: a percentile is interpolated between the values
// around (n−1)·P/200. Those of a token count what reaches them as outliers, others,
// which KVQuant knows beforehand from other tokens, do not.
func (s *Scheme) tail(n int64) int64 {
	if n == 0 {
		return 0
	}
	whole, rest := times(n-1, int64(s.modifier(Outlier).N), 200*percentUnit)
	if s.Share == PerToken || rest > 0 {
		whole++
	}
	return whole
}

// times returns n·share/all and the rest, for a share below all.
func times(n, share, all int64) (whole, rest int64) {
	// n = a·all + b keeps the product small.
	a, b := n/all, n%all
	return a*share + b*share/all, b * share % all
}

// outliers returns how many values of rows of one head stay out.
func (s *Scheme) outliers(c *counter, rows, dim int64) int64 {
	perGroup := func(n int64) int64 { // of n values in groups of s.Group
		if s.Group == 0 {
			return s.outliersOf(n)
		}
		g := int64(s.Group)
		return c.add(c.mul(n/g, s.outliersOf(g)), s.outliersOf(n%g))
	}
	switch s.Share {
	case PerToken:
		return c.mul(rows, perGroup(dim))
	case PerChannel:
		return c.mul(dim, perGroup(rows))
	}
	return s.outliersOf(c.mul(rows, dim))
}

// OutlierCount returns how many values of rows of one head +outlier keeps, and no more
// of fewer rows.
func (s *Scheme) OutlierCount(rows, dim int) int {
	if !s.has(Outlier) {
		return 0
	}
	var c counter
	return int(s.outliers(&c, int64(rows), int64(dim)))
}

// EachOutlier calls f for what +outlier kept, row by coded row.
func (e *Encoded) EachOutlier(f func(row, channel int, value float32)) {
	n := 0
	for row := range len(e.OutlierEnds) / outlierRowBytes {
		for end := int(binary.LittleEndian.Uint32(e.OutlierEnds[row*outlierRowBytes:])); n < end; n++ {
			f(row, int(binary.LittleEndian.Uint16(e.OutlierChannels[n*outlierChannelBytes:])), kernels.GetF16(e.Outliers[n*outlierValueBytes:]))
		}
	}
}

// eachUnit calls f for the sharing units of rows×dim values of one head: the
// index of its first value, the step to the next, and their count.
func (s *Scheme) eachUnit(rows, dim int, f func(first, step, n int)) {
	switch s.Share {
	case PerToken:
		g := s.Group
		if g == 0 {
			g = dim
		}
		for row := range rows {
			for at := 0; at < dim; at += g {
				f(row*dim+at, 1, min(g, dim-at))
			}
		}
	case PerChannel:
		g := s.Group
		if g == 0 {
			g = max(rows, 1)
		}
		for row := 0; row < rows; row += g {
			for channel := range dim {
				f(row*dim+channel, dim, min(g, rows-row))
			}
		}
	default:
		f(0, 1, rows*dim)
	}
}

// takeOutliers stores the outliers of each sharing unit of values in e and puts in
// their place what leaves the unit's range alone: 0, or for Asym, whose range need not
// hold 0, the first value that stays. The tails of more than a token fix its range,
// which is left in c.tailLo and c.tailHi.
func (c *Coder) takeOutliers(e *Encoded, values []float32) error {
	s, dim := c.scheme, e.Dim
	c.out = resize(c.out, len(values))
	clear(c.out)
	c.tailLo, c.tailHi = c.tailLo[:0], c.tailHi[:0]
	s.eachUnit(len(values)/dim, dim, func(first, step, n int) {
		if n == 0 {
			return
		}
		mark := len(c.taken)
		if s.modifier(Outlier).Tails {
			c.markTails(values, first, step, n)
		} else {
			c.markLargest(values, first, step, n)
		}
		fill := float32(0)
		for i := range n {
			if at := first + i*step; s.Zero == Asym && !c.out[at] {
				fill = values[at]
				break
			}
		}
		for i := range c.taken[mark:] {
			c.taken[mark+i].fill = fill
		}
	})
	slices.SortFunc(c.taken, func(a, b outlier) int { return a.at - b.at })
	defer func() { c.taken = c.taken[:0] }()
	row := 0
	endRow := func() {
		e.OutlierEnds = binary.LittleEndian.AppendUint32(e.OutlierEnds, uint32(len(e.OutlierChannels)/outlierChannelBytes))
		row++
	}
	for _, o := range c.taken {
		for row < o.at/dim {
			endRow()
		}
		var value [outlierValueBytes]byte
		if !putF16(value[:], o.value) {
			name := "+" + s.modifier(Outlier).name()
			return c.valueError(e, e.sink*dim+o.at, o.value, name+" keeps it in f16, which holds magnitudes below 65520", "leave "+name+" out")
		}
		e.Outliers = append(e.Outliers, value[:]...)
		e.OutlierChannels = binary.LittleEndian.AppendUint16(e.OutlierChannels, uint16(o.at%dim))
		values[o.at] = o.fill
	}
	for row < len(values)/dim {
		endRow()
	}
	return nil
}

// An outlier is a value that stays out, at an index of the coded values, and
// what takes its place.
type outlier struct {
	at          int
	value, fill float32
}

// take marks value at as an outlier.
func (c *Coder) take(values []float32, at int) {
	c.out[at] = true
	c.taken = append(c.taken, outlier{at: at, value: values[at]})
}

// markLargest takes the largest magnitudes of a unit, of equal ones the first.
func (c *Coder) markLargest(values []float32, first, step, n int) {
	c.bits = resize(c.bits, n)
	for i := range n {
		c.bits[i] = magnitude(values[first+i*step])
	}
	slices.Sort(c.bits)
	keep := int(c.scheme.outliersOf(int64(n)))
	limit := c.bits[n-keep]
	above, _ := slices.BinarySearch(c.bits, limit+1) // index behind the last that is not above limit
	ties := above - (n - keep)                       // how many of those at the limit stay out
	for i := range n {
		at := first + i*step
		switch m := magnitude(values[at]); {
		case m > limit:
			c.take(values, at)
		case m == limit && ties > 0:
			c.take(values, at)
			ties--
		}
	}
}

// markTails takes the smallest and the largest values of a unit, of equal ones the
// first, and appends the percentiles that they lie beyond, in f16, to c.tailLo and
// c.tailHi.
func (c *Coder) markTails(values []float32, first, step, n int) {
	sorted := resize(c.gathered, n)
	c.gathered = sorted
	for i := range n {
		sorted[i] = values[first+i*step]
	}
	slices.Sort(sorted)
	position := float64(n-1) * float64(c.scheme.modifier(Outlier).N) / (200 * percentUnit)
	whole := int(position)
	percentile := func(at, next float32) float32 {
		return roundF16(float32(float64(at) + float64((position-float64(whole))*(float64(next)-float64(at)))))
	}
	last := n - 1
	c.tailLo = append(c.tailLo, percentile(sorted[whole], sorted[min(whole+1, last)]))
	c.tailHi = append(c.tailHi, percentile(sorted[last-whole], sorted[max(last-whole-1, 0)]))
	tail := int(c.scheme.tail(int64(n)))
	if tail == 0 {
		return
	}
	if 2*tail >= n {
		for i := range n {
			c.take(values, first+i*step)
		}
		return
	}
	low, high := sorted[tail-1], sorted[n-tail]
	// How many of those at a limit stay out.
	below, _ := slices.BinarySearch(sorted, low)
	upTo, _ := slices.BinarySearch(sorted, math.Nextafter32(high, float32(math.Inf(1))))
	lowTies, highTies := tail-below, tail-(n-upTo)
	for i := range n {
		at := first + i*step
		switch v := values[at]; {
		case v < low || v > high:
			c.take(values, at)
		case v == low && lowTies > 0:
			c.take(values, at)
			lowTies--
		case v == high && highTies > 0:
			c.take(values, at)
			highTies--
		}
	}
}

func magnitude(v float32) uint32 { return math.Float32bits(v) &^ (1 << 31) }

// putOutliers writes e's outliers over decoded values.
func (c *Coder) putOutliers(values []float32, e *Encoded) {
	e.EachOutlier(func(row, channel int, value float32) { values[row*e.Dim+channel] = value })
}

// clipFactors are what +clip tries, from no clipping on.
const clipFactors = 11

// clipFactor returns factor i: 1, 0.95, …, 0.5.
func clipFactor(i int) float64 { return float64(100-5*i) / 100 }

// clip multiplies the ranges in c.lo and c.hi of the block of values by the
// factor that leaves the least squared error. Outliers do not count.
func (c *Coder) clip(block []float32, out []bool, dim int) {
	if c.trial == nil {
		c.trial = c.scheme.NewCoder()
	}
	t, s, unit := c.trial, c.scheme, 0
	meta := s.Meta.Bytes()
	c.scratch = resize(c.scratch, clipFactors*(2*meta+1))
	s.eachUnit(len(block)/dim, dim, func(first, step, n int) {
		lo, hi := c.lo[unit], c.hi[unit]
		t.lo, t.hi = resize(t.lo, clipFactors), resize(t.hi, clipFactors)
		for i := range clipFactors {
			t.lo[i], t.hi[i] = float32(float64(lo)*clipFactor(i)), float32(float64(hi)*clipFactor(i))
		}
		at := clipFactors * meta
		refused, _, _ := t.computeScales(c.scratch[:at], c.scratch[at:2*at], c.scratch[2*at:])
		c.gathered = c.gathered[:0]
		for i := range n {
			if at := first + i*step; out == nil || !out[at] {
				c.gathered = append(c.gathered, block[at])
			}
		}
		best, least := 0, math.Inf(1)
		for i := range clipFactors {
			if i == refused {
				break // what does not fit is for the stored scale to report
			}
			if err := t.trialError(c.gathered, i); err < least {
				best, least = i, err
			}
		}
		c.lo[unit], c.hi[unit] = float32(float64(lo)*clipFactor(best)), float32(float64(hi)*clipFactor(best))
		unit++
	})
}

// trialError returns the squared error of values under scale i of c.affine.
func (c *Coder) trialError(values []float32, i int) (sum float64) {
	if len(values) == 0 {
		return 0
	}
	c.page = resize(c.page, len(values))
	c.fields = resize(c.fields, len(values))
	f := c.scheme.Format
	if f.Class == Scaled {
		kernels.DivideRuns(c.page, values, c.affine.Scale[i:i+1], len(values))
		f.encode(c.fields, c.page)
		f.decode(c.page, c.fields)
		kernels.MultiplyRuns(c.page, c.page, c.affine.Scale[i:i+1], len(values))
	} else if f.Class == Codebook {
		c.book = f.book
		for j, v := range values {
			c.page[j] = c.book[c.nearest(quotient(v, c.affine.Scale[i]))] * c.affine.Scale[i]
		}
	} else {
		a := part(c.affine, i, i+1)
		kernels.EncodeRuns(c.fields, values, len(values), a)
		kernels.DecodeRuns(c.page, c.fields, len(values), a)
	}
	for j, v := range values {
		d := float64(c.page[j]) - float64(v)
		sum += float64(d * d)
	}
	return sum
}
