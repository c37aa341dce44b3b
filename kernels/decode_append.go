package kernels

import (
	"fmt"
	"math"
	"slices"
)

// A TokenEncoder makes what a cache stores of tokens of one KV head, keys or values.
// rows hold them one after the other as they were appended, the first is token number
// `token` of the head. What it returns stands until it is called again.
type TokenEncoder interface {
	// Encode returns the codes of tokens that are whole sharing units: one token, or as
	// many as leave a window or fill a block together. Of a side whose scales the head
	// or a column shares, and of plain floats, it returns Values, to be stored under
	// the scales that are there, and with Scales where none have to be.
	Encode(key bool, head, token int, rows []float32) (Encoded, error)
	// Keep sets dst to what a token counts as that a window keeps or whose block is not
	// full yet.
	Keep(dst []float32, key bool, head, token int, row []float32) error
}

// A live is what appending to one side of a head goes on from.
type live struct {
	open   []float32 // the tokens that are not coded yet, as they were appended
	coded  Encoded   // codes of the tokens behind the pages, of the side's `from` on
	frozen []uint8   // codes under scales that there were
	rows   bool      // open holds the tokens from `from` on, and coded none: Fill was given rows
}

// live returns what appending to a side of the head goes on from.
func (h *head) live(s *side) *live {
	if s.key {
		return &h.liveK
	}
	return &h.liveV
}

// unit returns how many tokens are coded at a time, and how many stay open before.
func (f Format) unit() (tokens, open int) {
	switch {
	case f.blocks():
		return max(f.Group, f.Recent), max(f.Group, f.Recent) - 1
	}
	return 1, f.Recent
}

// firstLive returns the coded token that live codes start with: that of the block which
// the next page starts in, or the next block.
func (c *Cache) firstLive(s *side) int {
	from := min(c.pages*pageTokens+s.shift, s.coded)
	if s.format.blocks() {
		from -= from % s.format.Group
	}
	return from
}

// own returns how many codes, scales and outliers the first n coded tokens of e have.
func (s *side) own(e *Encoded, n int) (codes, scales, outliers int) {
	switch {
	case !s.encodes():
		scales = len(e.Scales)
	case n > 0:
		scales = s.format.scales(n, s.dim)
	}
	for outliers < len(e.Outliers) && e.Outliers[outliers].Token < n {
		outliers++
	}
	return n * s.dim, scales, outliers
}

// cut drops what x has of coded tokens before first and from end on, counted from its own.
func (x *live) cut(s *side, first, end int) {
	e := &x.coded
	codes, scales, outliers := s.own(e, first)
	lastCode, lastScale, lastOutlier := s.own(e, end)
	if !s.encodes() {
		scales = 0
	}
	keep := func(v *[]float32, from, to int) {
		if len(*v) > 0 {
			*v = (*v)[:copy(*v, (*v)[from:to])]
		}
	}
	if len(e.Fields) > 0 {
		e.Fields = e.Fields[:copy(e.Fields, e.Fields[codes:lastCode])]
	}
	keep(&e.Values, codes, lastCode)
	keep(&e.Scales, scales, lastScale)
	keep(&e.Offsets, scales, lastScale)
	e.Outliers = e.Outliers[:copy(e.Outliers, e.Outliers[outliers:lastOutlier])]
	for i := range e.Outliers {
		e.Outliers[i].Token -= first
	}
}

// add appends n tokens of e behind the codes of `have` others.
func (x *live) add(s *side, have int, e Encoded) {
	c := &x.coded
	c.Fields = append(c.Fields, e.Fields...)
	if s.format.Codec <= CodecBF16 {
		c.Values = append(c.Values, e.Values...)
	}
	if s.encodes() {
		c.Scales = append(c.Scales, e.Scales...)
		c.Offsets = append(c.Offsets, e.Offsets...)
	}
	for _, o := range e.Outliers {
		o.Token += have
		c.Outliers = append(c.Outliers, o)
	}
}

// keepLive notes what a head that was filled with e goes on from.
func (c *Cache) keepLive(h *head, s *side, e Encoded) {
	x := h.live(s)
	first, scale, outlier := s.own(&e, s.from)
	if !s.encodes() {
		scale = 0
	}
	tail := func(dst, v []float32, from int) []float32 { return append(dst[:0], v[min(from, len(v)):]...) }
	x.coded.Fields = append(x.coded.Fields[:0], e.Fields[min(first, len(e.Fields)):]...)
	x.coded.Values = tail(x.coded.Values, e.Values, first)
	x.coded.Scales = tail(x.coded.Scales, e.Scales, scale)
	x.coded.Offsets = tail(x.coded.Offsets, e.Offsets, scale)
	x.coded.Outliers = append(x.coded.Outliers[:0], e.Outliers[outlier:]...)
	for i := range x.coded.Outliers {
		x.coded.Outliers[i].Token -= s.from
	}
	x.coded.Factor = e.Factor
	x.coded.Book = append(x.coded.Book[:0], e.Book...)
	x.open = append(x.open[:0], e.Open...)
	x.rows = false
}

// keepRows notes what a head that was filled with rows goes on from.
func (c *Cache) keepRows(h *head, s *side, rows []float32) {
	x := h.live(s)
	x.open, x.rows = append(x.open[:0], rows[s.from*s.dim:]...), true
	x.coded = Encoded{Fields: x.coded.Fields[:0], Values: x.coded.Values[:0], Scales: x.coded.Scales[:0], Offsets: x.coded.Offsets[:0]}
	if s.whole {
		scale, offset := h.whole(s)
		n := s.format.scales(1, s.dim)
		x.coded.Scales = append(x.coded.Scales, scale[:n]...)
		if s.format.offsets() {
			x.coded.Offsets = append(x.coded.Offsets, offset[:n]...)
		}
	}
}

// encodeRows gives a head that was filled with rows the codes of those behind its pages.
func (c *Cache) encodeRows(h *head, s *side) error {
	x := h.live(s)
	rows, unit := x.open, 1
	if s.format.blocks() {
		unit = s.format.Group
	}
	x.rows = false
	for t := s.from; t < s.coded; t += unit {
		n := min(unit, s.coded-t)
		e := Encoded{Rows: rows[(t-s.from)*s.dim:][:n*s.dim]}
		if _, err := c.take(s, h, x, n, &e); err != nil {
			return err
		}
		x.add(s, t-s.from, e)
	}
	open := (s.coded - s.from) * s.dim
	if s.format.blocks() {
		open -= (s.coded - s.from) % s.format.Group * s.dim
	}
	x.open = x.open[:copy(x.open, rows[open:])]
	return nil
}

// Append adds one token: k and v hold a row of each KV head. What it is stored as, and
// what leaves a window or completes a block with it, encode says; pages close when both
// sides have codes for 64 tokens. A cache that was appended to is the one that Fill
// would have made, to the bit, where no sharing unit spans tokens of later.
//
// Scales that a whole head or column shares are those of the prefill: values beyond
// their range saturate, and Saturated counts them; no new outliers are kept. The last
// block of tokens that Fill has stored short is opened again, for which Fill must have
// been given Encoded.Open.
//
// No step may run meanwhile. After an error the cache is as it was.
func (c *Cache) Append(k, v []float32, encode TokenEncoder) error {
	switch {
	case c.tokens >= c.shape.Tokens:
		return fmt.Errorf("append: the cache is full: %d tokens", c.tokens)
	case len(k) != c.shape.Heads*c.shape.DimK || len(v) != c.shape.Heads*c.shape.DimV:
		return fmt.Errorf("append: %d and %d values: want %d and %d", len(k), len(v), c.shape.Heads*c.shape.DimK, c.shape.Heads*c.shape.DimV)
	}
	if i := IndexNonFinite(k); i >= 0 {
		return fmt.Errorf("append: K of head %d, channel %d is not finite", i/c.shape.DimK, i%c.shape.DimK)
	}
	if i := IndexNonFinite(v); i >= 0 {
		return fmt.Errorf("append: V of head %d, channel %d is not finite", i/c.shape.DimV, i%c.shape.DimV)
	}
	sides, rows := [2]*side{&c.k, &c.v}, [2][]float32{k, v}
	for _, s := range sides {
		if err := c.reopen(s, encode); err != nil {
			return fmt.Errorf("append: %w", err)
		}
	}
	// First everything that may fail, out of sight; the counts make it count.
	var leaving [2]int
	var saturated int64
	for i, s := range sides {
		for n := range c.heads {
			left, lost, err := c.appendRow(s, n, rows[i][n*s.dim:][:s.dim], encode)
			if err != nil {
				return fmt.Errorf("append: %s of head %d: %w", [2]string{"K", "V"}[i], n, err)
			}
			leaving[i], saturated = left, saturated+lost
		}
	}
	for i, s := range sides {
		c.leave(s, leaving[i])
	}
	c.saturated += saturated
	c.tokens++
	for c.pages < c.pagesOf(c.tokens) {
		c.closePage()
	}
	return nil
}

// Saturated returns how many appended values lay beyond the range of scales that the
// prefill fixed.
func (c *Cache) Saturated() int64 { return c.saturated }

// reopen takes a short block of tokens at the end of a side back out of its codes.
func (c *Cache) reopen(s *side, encode TokenEncoder) error {
	if s.opened {
		return nil
	}
	sink, recent := s.format.windows(c.tokens)
	open := recent
	if s.format.blocks() && s.format.Recent == 0 {
		open = (c.tokens - sink) % s.format.Group
	}
	for i := range c.heads {
		x := c.heads[i].live(s)
		if x.rows {
			if err := c.encodeRows(&c.heads[i], s); err != nil {
				return err
			}
		}
		if len(x.open) != open*s.dim {
			return fmt.Errorf("head %d was filled without the %d open tokens of its last block or window", i, open)
		}
		for t := range open - recent {
			token := c.tokens - open + t
			row := c.row(s)
			if err := encode.Keep(row, s.key, i, token, x.open[t*s.dim:][:s.dim]); err != nil {
				return err
			}
			c.putFloat(&c.heads[i], s, token, row)
		}
		x.cut(s, 0, s.coded-(open-recent)-s.from)
	}
	s.coded -= open - recent
	s.opened = true
	return nil
}

// row returns room for a row of a side.
func (c *Cache) row(s *side) []float32 {
	c.scratch = resize(c.scratch, max(c.k.dim, c.v.dim))
	return c.scratch[:s.dim]
}

// putFloat turns a row and puts it where its token stands in float32.
func (c *Cache) putFloat(h *head, s *side, token int, row []float32) {
	s.turn(row, token, h.kMean)
	if token < c.origin {
		h.front.put(s.key, token, row)
	} else {
		h.tail.put(s.key, token-c.origin-c.pages*pageTokens, row)
	}
}

// open returns how many of a side's tokens are not coded yet.
func (c *Cache) open(s *side) int { return c.tokens - min(c.tokens, s.format.Sink) - s.coded }

// appendRow takes in a row of one head, without counting it, and returns how many open
// tokens it completes: their codes stand behind the others then.
func (c *Cache) appendRow(s *side, n int, row []float32, encode TokenEncoder) (leaving int, saturated int64, err error) {
	h := &c.heads[n]
	x, kept := h.live(s), c.row(s)
	x.cut(s, 0, s.coded-s.from) // what an append that failed has left
	if c.tokens < s.format.Sink {
		if err := encode.Keep(kept, s.key, n, c.tokens, row); err != nil {
			return 0, 0, err
		}
		c.putFloat(h, s, c.tokens, kept)
		return 0, 0, nil
	}
	unit, most := s.format.unit()
	open := c.open(s)
	x.open = append(x.open[:open*s.dim], row...)
	if most > 0 {
		if err := encode.Keep(kept, s.key, n, c.tokens, row); err != nil {
			return 0, 0, err
		}
		c.putFloat(h, s, c.tokens, kept)
	}
	if open+1 <= most {
		return 0, 0, nil
	}
	e, err := encode.Encode(s.key, n, c.tokens-open, x.open[:unit*s.dim])
	if err != nil {
		return 0, 0, err
	}
	if saturated, err = c.take(s, h, x, unit, &e); err != nil {
		return 0, 0, err
	}
	x.add(s, s.coded-s.from, e)
	return unit, saturated, nil
}

// take holds the lengths of n appended tokens, encodes them under the scales that the
// head has where they have none of their own, and notes what a head has in common.
func (c *Cache) take(s *side, h *head, x *live, n int, e *Encoded) (saturated int64, err error) {
	if e.Rows != nil {
		if !s.takesRows() || len(e.Rows) != n*s.dim {
			return 0, fmt.Errorf("%d values to be encoded by the cache: want %d, of a side that takes rows", len(e.Rows), n*s.dim)
		}
		switch {
		case s.encodes():
			encoder := c.rowEncoder()
			defer c.release(encoder)
			if *e, err = encoder.encoded(s, h, e.Rows); err != nil {
				return 0, err
			}
		case s.format.Codec == CodecF16:
			if !(AbsMax(e.Rows) < overflowF16) {
				return 0, s.refused(e.Rows)
			}
			c.wide, c.rounded = resize(c.wide, 2*len(e.Rows)), resize(c.rounded, len(e.Rows))
			ToF16(c.wide, e.Rows)
			FromF16(c.rounded, c.wide)
			e.Values = c.rounded
		default:
			e.Values = e.Rows
		}
	}
	if !s.encodes() {
		if s.whole && len(x.coded.Scales) == 0 {
			if len(e.Scales) == 0 {
				return 0, fmt.Errorf("there are no scales yet: fill the cache first")
			}
			x.coded.Scales, x.coded.Offsets = slices.Clone(e.Scales), slices.Clone(e.Offsets)
			h.setWhole(s, x.coded)
		}
		if len(e.Values) != n*s.dim {
			return 0, fmt.Errorf("%d values: want %d", len(e.Values), n*s.dim)
		}
		if s.whole {
			saturated = s.freeze(x, e.Values)
			e.Fields = x.frozen
		}
		e.Outliers = nil
	} else if err := s.checkCodes(n, *e); err != nil {
		return 0, err
	}
	factor, book := h.common(s)
	if *factor == 0 {
		*factor = s.factor(*e)
		*book = s.book(*e)
		x.coded.Factor, x.coded.Book = e.Factor, slices.Clone(e.Book)
	}
	s.factored = s.factored || *factor != 1
	s.signs(e.Scales)
	return saturated, nil
}

// leave counts the tokens that were coded, and shows them as their codes.
func (c *Cache) leave(s *side, n int) {
	if n == 0 {
		return
	}
	_, most := s.format.unit()
	sink := min(c.tokens, s.format.Sink)
	for i := range c.heads {
		h := &c.heads[i]
		x := h.live(s)
		for t := range n {
			row := c.row(s)
			s.codedRow(row, s.coded-s.from+t, x.coded)
			c.putFloat(h, s, sink+s.coded+t, row)
		}
		if most > 0 {
			x.open = x.open[:copy(x.open, x.open[n*s.dim:])]
		}
	}
	s.coded += n
}

// closePage moves the first 64 tokens of the tails into pages.
func (c *Cache) closePage() {
	tail := c.tail()
	for i := range c.heads {
		h := &c.heads[i]
		for _, s := range [2]*side{&c.k, &c.v} {
			x := h.live(s)
			first := c.pages*pageTokens + s.shift - s.from
			meta, codes := c.sidePage(h, s, c.pages)
			s.store(meta, codes, first, x.coded, &c.wide)
			if out := h.sparse(s); len(out.ends) > 0 {
				n := 0
				if c.pages > 0 {
					n = int(out.ends[c.pages-1])
				}
				out.put(s, c.pages, n, first, x.coded, c.row(s))
			}
		}
		h.tail.drop(tiles(tail))
	}
	c.pages++
	for _, s := range [2]*side{&c.k, &c.v} {
		from := c.firstLive(s)
		for i := range c.heads {
			c.heads[i].live(s).cut(s, from-s.from, s.coded-s.from)
		}
		s.from = from
	}
}

// encodes says whether a page of the side has scales of its own.
func (s *side) encodes() bool { return s.format.scaled() && !s.whole }

// whole returns the scales and offsets of a side that a head holds outside its pages.
func (h *head) whole(s *side) (scale, offset []float32) {
	if s.key {
		return h.kScale, h.kOffset
	}
	return h.vScale, h.vOffset
}

// freeze encodes rows under the scales that there are, into x.frozen, and returns how
// many values saturate.
func (s *side) freeze(x *live, rows []float32) (saturated int64) {
	f := s.format
	x.frozen = resize(x.frozen, len(rows))
	r := f.codeRange()
	for i, v := range rows {
		u := 0
		if f.Share == ShareChannel {
			u = i % s.dim
		}
		scale, offset := x.coded.Scales[u], float32(f.centre())
		if f.offsets() {
			offset = x.coded.Offsets[u]
		}
		switch f.Codec {
		case CodecE4M3, CodecE5M2:
			x.frozen[i], saturated = s.freezeFloat(v, scale, saturated)
			continue
		case CodecBook:
			if !f.offsets() {
				offset = 0
			}
			x.frozen[i], saturated = freezeBook((v-offset)/scale, x.coded.Book, saturated)
			continue
		}
		var field float32
		switch {
		case f.Zero == ZeroAsym && scale > 0:
			field = float32(math.RoundToEven(float64((v - offset) / scale)))
		case f.Zero == ZeroAsym:
		case scale > 0:
			field = float32(math.RoundToEven(float64(v/scale))) + offset
		default:
			field = offset
		}
		if field < r.lo || field > r.hi {
			saturated++
		}
		x.frozen[i] = uint8(min(max(field, r.lo), r.hi))
	}
	return saturated
}

// freezeFloat encodes one value of an 8-bit float.
func (s *side) freezeFloat(x, scale float32, saturated int64) (uint8, int64) {
	if scale > 0 {
		x /= scale
	} else {
		x = 0
	}
	code, largest := uint8(0), float32(MaxE4M3)
	if s.format.Codec == CodecE4M3 {
		code = E4M3(x)
	} else {
		code, largest = f8(x, 15, 2, MaxE5M2), MaxE5M2
	}
	if x > largest || x < -largest {
		saturated++
	}
	return code, saturated
}

// freezeBook finds the code whose value is nearest to x; what is no number is code 0.
func freezeBook(x float32, book []float32, saturated int64) (uint8, int64) {
	code, low, high := 0, book[0], book[0]
	for i, v := range book {
		low, high = min(low, v), max(high, v)
		if abs32(x-v) < abs32(x-book[code]) {
			code = i
		}
	}
	if x < low || x > high {
		saturated++
	}
	return uint8(code), saturated
}
