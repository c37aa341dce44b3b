package kernels

import (
	"errors"
	"fmt"
	"math"
)

// TakesRows says whether Fill encodes float32 rows of this side by itself: float16 and
// integers of 8 or 4 bits, as fused kernels read them, with head_dim and groups of
// channels that are multiples of 16, where the backend has kernels for it.
func (c *Cache) TakesRows(key bool) bool {
	if key {
		return c.k.takesRows()
	}
	return c.v.takesRows()
}

func (s *side) takesRows() bool {
	f := s.format
	switch {
	case !active.Load().page.direct, s.expand != asStored, s.dim%laneWidth != 0, f.Sink+f.Recent+f.Outliers+s.shift > 0, f.Rotation != nil:
		return false
	case f.Codec == CodecF16:
		return true
	}
	return f.Codec == CodecInt && f.Zero <= ZeroPoint && f.Meta <= MetaF32 && (f.Share != ShareToken || f.Group%laneWidth == 0)
}

// Freezes says whether a whole head or a whole column of this side shares a scale, which
// then stays that of the first Fill for what is appended.
func (c *Cache) Freezes(key bool) bool {
	if key {
		return c.k.whole
	}
	return c.v.whole
}

// Refill encodes rows in the place of a head's keys or values under the scales that
// Fill has given it, as Append does with a page: values beyond them saturate.
func (c *Cache) Refill(headIndex int, key bool, rows []float32) error {
	s := &c.v
	if key {
		s = &c.k
	}
	if headIndex < 0 || headIndex >= len(c.heads) || !s.whole || !s.takesRows() || len(rows) != c.tokens*s.dim {
		return fmt.Errorf("refill head %d with %d values: no such rows or scales", headIndex, len(rows))
	}
	h := &c.heads[headIndex]
	if scales, _ := h.whole(s); len(scales) == 0 {
		return fmt.Errorf("refill head %d: it has no scales yet: fill the cache first", headIndex)
	}
	e := c.rowEncoder()
	defer c.release(e)
	return c.fillRows(e, h, s, rows)
}

// A rowEncoder is what rows are encoded with; a cache keeps those that it needs.
type rowEncoder struct {
	constants    codeConstants
	lo, hi       [maxScales]float32 // ranges, in the order of the constants
	rowLo, rowHi [maxScales]float32 // token by token, where a token has several
	half         [2 * maxScales]byte
	fields       []uint8
	values       []float32
}

// errRow is what the rows of a head cannot be encoded for; refused says more.
var errRow = errors.New("a value or the scale of some values cannot be stored")

// refused names what is wrong with rows.
func (s *side) refused(rows []float32) error {
	if i := IndexNonFinite(rows); i >= 0 {
		return fmt.Errorf("token %d, channel %d is not finite", i/s.dim, i%s.dim)
	}
	return errRow
}

// overflowF16 is the magnitude from which a value rounds to a float16 infinity.
const overflowF16 = 65520

// codeRange returns the range of the codes, and what a range of values is divided by to
// make a scale: the largest magnitude for ZeroSym, the width for the others. They are
// nothing for what has no integer codes.
func (f Format) codeRange() codeRange {
	if f.Bits == 0 {
		return codeRange{}
	}
	top := float32(int(1)<<f.Bits - 1)
	if f.Zero == ZeroSym {
		return codeRange{1, top, float32(int(1)<<(f.Bits-1) - 1)}
	}
	return codeRange{0, top, top}
}

// fillRows encodes rows as the pages of a head, and what is left behind them as its
// tail. Scales that the whole head or a whole column shares are those in h.
func (c *Cache) fillRows(e *rowEncoder, h *head, s *side, rows []float32) error {
	e.begin(s, h)
	for i := range c.pages {
		if !e.storePage(c, h, s, i, rows, i*pageTokens) {
			return s.refused(rows)
		}
	}
	if !e.storeTail(h, s, rows, c.pages*pageTokens) {
		return s.refused(rows)
	}
	c.keepRows(h, s, rows)
	return nil
}

// storePage encodes the 64 rows from token at on as one page. It returns whether it
// could.
func (e *rowEncoder) storePage(c *Cache, h *head, s *side, page int, rows []float32, at int) bool {
	meta, codes := c.sidePage(h, s, page)
	chunk := chunkTokens * s.dim
	// Ranges of whole tokens are taken in the order of memory, four tokens ahead.
	linear := !s.key && s.source() == fromRanges && s.format.groups(s.dim) == 1
	var most float32
	for t := 0; t < pageTokens; t += chunkTokens {
		x := rows[(at+t)*s.dim:]
		if s.source() != fromRanges {
			made, fits := e.chunkScales(s, t, at+t, x)
			if !fits {
				return false
			}
			if made > 0 && s.format.Share == ShareChannel {
				e.storeScales(s, meta, t/blockWide*s.dim, made)
			}
		}
		ahead := x
		if !linear && len(x) >= 2*chunk {
			ahead = x[chunk:]
		}
		most = max(most, e.storeCodes(s, codes, t, x, ahead))
	}
	if s.format.scaled() && s.format.Share == ShareToken {
		e.storeScales(s, meta, 0, s.format.groups(s.dim)*pageTokens)
	}
	return s.holds(most)
}

// encoded encodes n rows that are whole sharing units of a side that has scales in its
// pages. What it returns stands until the encoder is used again.
func (e *rowEncoder) encoded(s *side, h *head, rows []float32) (Encoded, error) {
	e.begin(s, h)
	groups := s.dim
	_, fits := e.chunkScales(s, 0, 0, rows)
	if !fits || !finite(AbsMax(rows)) {
		return Encoded{}, s.refused(rows)
	}
	e.values, e.fields = resize(e.values, len(rows)), resize(e.fields, len(rows))
	e.roundTrip(s, e.values, e.fields, rows, 0)
	made := Encoded{Fields: e.fields}
	scales, offsets := e.constants.scales(), e.constants.offsets()
	if s.format.Zero == ZeroPoint {
		offsets = e.constants.biases()
	}
	step := 1
	if s.format.Share == ShareToken { // one token: its groups are a page's tokens apart
		groups, step = s.format.groups(s.dim), pageTokens
	}
	for g := range groups {
		e.rowLo[g], e.rowHi[g] = scales[g*step], offsets[g*step]
	}
	made.Scales = e.rowLo[:groups]
	if s.format.offsets() {
		made.Offsets = e.rowHi[:groups]
	}
	return made, nil
}

// chunkScales makes the scales that begin with the chunk at the head of rows: token t
// of its page and the given one of the head. It returns how many it made, or false for
// fits.
func (e *rowEncoder) chunkScales(s *side, t, token int, rows []float32) (made int, fits bool) {
	switch {
	case s.whole || !s.format.scaled():
	case s.format.Share == ShareToken:
		return chunkTokens, e.tokenScales(s, t, rows[:min(chunkTokens*s.dim, len(rows))])
	case token%s.format.Group == 0:
		return s.dim, e.channelScales(s, rows[:min(s.format.Group*s.dim, len(rows))])
	}
	return 0, true
}

// holds says whether values up to a magnitude can be stored.
func (s *side) holds(most float32) bool {
	switch {
	case s.format.Codec == CodecF16:
		return most < overflowF16
	case s.source() == fromRanges:
		return most/s.format.codeRange().levels < overflowF16
	}
	return finite(most)
}

// rowEncoder takes an encoder out of those that lie idle, or makes one.
func (c *Cache) rowEncoder() *rowEncoder {
	c.filling.Lock()
	defer c.filling.Unlock()
	n := len(c.idle)
	if n == 0 {
		return new(rowEncoder)
	}
	e := c.idle[n-1]
	c.idle = c.idle[:n-1]
	return e
}

// release puts an encoder back.
func (c *Cache) release(e *rowEncoder) {
	c.filling.Lock()
	defer c.filling.Unlock()
	c.idle = append(c.idle, e)
}

// wholeScales makes the scales of a head that has them outside its pages.
func (e *rowEncoder) wholeScales(s *side, rows []float32) (Encoded, error) {
	n := s.dim
	var fits bool
	if s.format.Share == ShareChannel {
		fits = e.channelScales(s, rows)
	} else {
		n = 1
		fits = e.headScale(s, rows)
	}
	if !fits {
		return Encoded{}, s.refused(rows)
	}
	made := Encoded{Rows: rows, Scales: e.constants.scales()[:n]}
	switch s.format.Zero {
	case ZeroAsym:
		made.Offsets = e.constants.offsets()[:n]
	case ZeroPoint:
		made.Offsets = e.constants.biases()[:n]
	}
	return made, nil
}

// begin makes the constants that no row changes.
func (e *rowEncoder) begin(s *side, h *head) {
	offsets, biases := e.constants.offsets(), e.constants.biases()
	clear(offsets)
	clear(biases)
	if s.format.Zero == ZeroSym {
		fill(biases, float32(s.format.centre()))
	}
	if !s.whole {
		return
	}
	scale, offset := h.whole(s)
	n := 1
	if s.format.Share == ShareChannel {
		n = s.dim
	}
	copy(e.constants.scales()[:n], scale)
	switch s.format.Zero {
	case ZeroAsym:
		copy(offsets[:n], offset)
	case ZeroPoint:
		copy(biases[:n], offset)
	}
	for i, v := range e.constants.scales()[:n] {
		e.constants[i] = v
		if !(v > 0) {
			e.constants[i] = float32(math.Inf(1))
		}
	}
	if n == 1 { // which the tokens of a page have in common
		for plane := range 3 {
			fill(e.constants[plane*maxScales:][:pageTokens], e.constants[plane*maxScales])
		}
	}
}

// tokenScales makes the constants of up to a chunk of tokens, the first of which is
// token t of its page.
func (e *rowEncoder) tokenScales(s *side, t int, x []float32) bool {
	n := len(x) / s.dim
	groups, run := s.format.groups(s.dim), s.dim
	ranged := s.format.Zero != ZeroSym
	lo, hi := e.lo[t:], e.hi[t:]
	if groups > 1 {
		lo, hi, run = e.rowLo[:], e.rowHi[:], s.format.Group
	}
	if s.dim%run == 0 {
		ranges(lo[:n*groups], hi[:n*groups], x, run, ranged)
	} else {
		full := s.dim / run
		for t := range n {
			row, at := x[t*s.dim:(t+1)*s.dim], t*groups
			ranges(lo[at:at+full], hi[at:at+full], row[:full*run], run, ranged)
			ranges(lo[at+full:at+groups], hi[at+full:at+groups], row[full*run:], s.dim-full*run, ranged)
		}
	}
	if groups > 1 {
		byGroup(e.hi[t:], hi, n, groups)
		if ranged {
			byGroup(e.lo[t:], lo, n, groups)
		}
	}
	for g := range groups {
		at := g*pageTokens + t
		clear(e.lo[at+n : at+chunkTokens])
		clear(e.hi[at+n : at+chunkTokens])
		if !e.makeScales(s.format, at, chunkTokens) {
			return false
		}
	}
	return true
}

// byGroup brings what n tokens have for each group from the order of tokens to that of
// groups.
func byGroup(to, from []float32, n, groups int) {
	for g := range groups {
		to := to[g*pageTokens : g*pageTokens+n]
		for t := range to {
			to[t] = from[t*groups+g]
		}
	}
}

// ranges sets hi to the largest magnitude of each run, or lo and hi to its ends.
func ranges(lo, hi, x []float32, run int, ranged bool) {
	if ranged {
		MinMaxRuns(lo, hi, x, run)
	} else {
		AbsMaxRuns(hi, x, run)
	}
}

// channelScales makes the constants of the columns of rows.
func (e *rowEncoder) channelScales(s *side, rows []float32) bool {
	lo, hi := e.lo[:s.dim], e.hi[:s.dim]
	clear(lo)
	clear(hi)
	ranged := s.format.Zero != ZeroSym
	if ranged {
		copy(lo, rows)
		copy(hi, rows)
	}
	for step := chunkTokens * s.dim; len(rows) > 0; {
		x := rows[:min(step, len(rows))]
		rows = rows[len(x):]
		if ranged {
			MinMaxColumns(lo, hi, x)
		} else {
			AbsMaxColumns(hi, x)
		}
	}
	return e.makeScales(s.format, 0, s.dim)
}

// makeScales turns the n ranges from number `from` on, both multiples of 16, into scales
// and constants. It returns false where the type of the scales cannot hold one, or a
// range is not finite.
func (e *rowEncoder) makeScales(f Format, from, n int) bool {
	k := &active.Load().page
	lo, hi := e.lo[from:from+n], e.hi[from:from+n]
	scales := k.scales
	if f.Meta == MetaF16 {
		scales = k.scalesHalf
	}
	if f.Zero != ZeroSym {
		for i := range lo {
			if f.Zero == ZeroPoint {
				lo[i], hi[i] = min(lo[i], 0), max(hi[i], 0)
			}
			hi[i] -= lo[i]
		}
	}
	if !scales(e.constants.scales()[from:from+n], e.constants[from:from+n], hi, f.codeRange().levels) {
		return false
	}
	switch f.Zero {
	case ZeroAsym:
		offsets := e.constants.offsets()[from : from+n]
		if f.Meta != MetaF16 {
			copy(offsets, lo)
			break
		}
		ToF16(e.half[:2*n], lo)
		FromF16(offsets, e.half[:2*n])
		return finite(AbsMax(offsets))
	case ZeroPoint:
		biases := e.constants.biases()[from : from+n]
		for i, v := range lo {
			biases[i] = zeroPoint(v, e.constants.scales()[from+i], f)
		}
	}
	return true
}

// zeroPoint returns the bias of a range that starts at lo: the field that stands for 0.
func zeroPoint(lo, scale float32, f Format) float32 {
	if scale == 0 {
		return 0
	}
	return min(max(-float32(math.RoundToEven(float64(lo/scale))), 0), f.codeRange().hi)
}

// headScale makes the constant of a scale that all rows share.
func (e *rowEncoder) headScale(s *side, rows []float32) bool {
	clear(e.lo[:laneWidth])
	clear(e.hi[:laneWidth])
	if len(rows) > 0 && s.format.Zero != ZeroSym {
		e.lo[0], e.hi[0] = rows[0], rows[0]
	}
	for step := chunkTokens * s.dim; len(rows) > 0; {
		x := rows[:min(step, len(rows))]
		rows = rows[len(x):]
		if s.format.Zero == ZeroSym {
			e.hi[0] = max(e.hi[0], AbsMax(x))
			continue
		}
		MinMaxRuns(e.rowLo[:1], e.rowHi[:1], x, len(x))
		e.lo[0], e.hi[0] = min(e.lo[0], e.rowLo[0])+0, max(e.hi[0], e.rowHi[0])+0
	}
	return e.makeScales(s.format, 0, laneWidth)
}

// storeScales stores n scales and offsets from a slot of the page on.
func (e *rowEncoder) storeScales(s *side, meta []byte, slot, n int) {
	size := s.format.Meta.bytes()
	putFloats(meta[size*slot:][:size*n], e.constants.scales()[:n])
	switch at := meta[s.offsetsAt:]; {
	case s.offsetBytes == 0:
	case s.format.Zero == ZeroAsym:
		putFloats(at[size*slot:][:size*n], e.constants.offsets()[:n])
	default:
		for i, bias := range e.constants.biases()[:n] {
			at[slot+i] = uint8(bias)
		}
	}
}

// putFloats writes x as float16 or float32, whichever dst has room for.
func putFloats(dst []byte, x []float32) {
	if len(dst) == 2*len(x) {
		ToF16(dst, x)
		return
	}
	ToF32(dst, x)
}

// source says who makes the constants of the side's codes.
func (s *side) source() codeSource {
	switch f := s.format; {
	case f.Share == ShareChannel:
		return fromChannels
	case f.Share == ShareToken && f.Zero == ZeroSym && f.Meta == MetaF16 && (s.key || s.dim%blockWide == 0 && f.Group%blockWide == 0):
		return fromRanges // for which one segment must have all lanes of a token's group
	}
	return fromTokens
}

// storeCodes writes the codes of a chunk, the first token of which is token t of the
// page, and returns the largest magnitude.
func (e *rowEncoder) storeCodes(s *side, codes []byte, t int, x, ahead []float32) float32 {
	k := &active.Load().page
	lines := &k.int8
	if s.layout.store == storeInt4 {
		lines = &k.int4
	}
	source, constants := s.source(), e.constants[t:]
	if source == fromChannels {
		constants = e.constants[:]
	}
	keys, values := lines.keys[source], lines.values[source]
	r := s.format.codeRange()
	most := uint32(0)
	step := s.layout.store.step()
	for _, g := range s.layout.segments {
		size := s.layout.store.stepBytes(g.lanes)
		if s.key {
			row := t - g.lane
			if row < 0 || row >= g.blocks*blockWide {
				continue
			}
			dst := codes[g.codes+row/blockWide*g.steps*size+row%blockWide*size/blockWide:]
			if s.layout.store == storeF16 {
				most = max(most, k.halfKeys(dst, x, ahead, s.dim, g.steps))
			} else {
				most = max(most, keys(dst, x[g.first:], ahead[g.first*chunkTokens:], s.dim, g.steps*step, constants[g.group*pageTokens:], r))
			}
			continue
		}
		row := t - g.first
		if row < 0 || row >= g.steps*step {
			continue
		}
		grid := valueGrid{lanes: g.lanes, blocks: g.blocks, block: g.steps * size, steps: chunkTokens / step}
		dst := codes[g.codes+row/step*size:]
		x, ahead := x[g.lane:], ahead[g.lane*chunkTokens:]
		switch {
		case s.layout.store == storeF16:
			most = max(most, k.halfValues(dst, x, ahead, s.dim, grid))
		case source == fromChannels:
			most = max(most, values(dst, x, ahead, s.dim, grid, constants[g.lane:], r))
		default:
			most = max(most, values(dst, x, ahead, s.dim, grid, constants[g.set*pageTokens:], r))
		}
	}
	return math.Float32frombits(most)
}

// storeTail writes the values that the codes of the last rows, from token at on, stand
// for into the tail's tiles. It returns whether they can be stored.
func (e *rowEncoder) storeTail(h *head, s *side, rows []float32, at int) bool {
	h.front.clear(s.key)
	h.tail.clear(s.key)
	var most float32
	for t := 0; at+t < len(rows)/s.dim; t += chunkTokens {
		x := rows[(at+t)*s.dim:]
		if _, fits := e.chunkScales(s, t%pageTokens, at+t, x); !fits {
			return false
		}
		x = x[:min(chunkTokens*s.dim, len(x))]
		most = max(most, AbsMax(x))
		e.values, e.fields = resize(e.values, len(x)), resize(e.fields, 2*len(x))
		if s.format.Codec == CodecF16 {
			ToF16(e.fields, x)
			FromF16(e.values, e.fields)
		} else {
			e.roundTrip(s, e.values, e.fields[:len(x)], x, t%pageTokens)
		}
		for i := range len(x) / s.dim {
			h.tail.put(s.key, t+i, e.values[i*s.dim:(i+1)*s.dim])
		}
	}
	return s.holds(most)
}

// roundTrip sets values to what the codes of x stand for, the first row of which is
// token t of its page.
func (e *rowEncoder) roundTrip(s *side, values []float32, fields []uint8, x []float32, t int) {
	constants := func(from, n int) Affine {
		a := Affine{Scale: e.constants.scales()[from : from+n], Offset: e.constants.offsets()[from : from+n], Bias: e.constants.biases()[from : from+n]}
		r := s.format.codeRange()
		a.Lo, a.Hi = r.lo, r.hi
		return a
	}
	switch {
	case s.format.Share == ShareChannel:
		a := constants(0, s.dim)
		EncodeColumns(fields, x, a)
		DecodeColumns(values, fields, a)
		return
	case s.whole:
		a := constants(0, 1)
		EncodeRuns(fields, x, len(x), a)
		DecodeRuns(values, fields, len(x), a)
		return
	}
	run := s.dim
	if s.format.Group > 0 {
		run = s.format.Group
	}
	for i := range len(x) / s.dim {
		for channel := 0; channel < s.dim; channel += run {
			from, end := i*s.dim+channel, i*s.dim+min(channel+run, s.dim)
			a := constants(channel/run*pageTokens+t+i, 1)
			EncodeRuns(fields[from:end], x[from:end], end-from, a)
			DecodeRuns(values[from:end], fields[from:end], end-from, a)
		}
	}
}

// resize returns a slice of n elements, in x's memory if it is large enough.
func resize[T any](x []T, n int) []T {
	if cap(x) < n {
		return make([]T, n)
	}
	return x[:n]
}
