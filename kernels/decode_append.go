package kernels

import (
	"fmt"
	"math"
)

// A PageEncoder encodes 64 tokens of one KV head, rows of DimK and DimV values, with
// scales of their own, or returns them as Rows where the cache takes those. What it
// returns for a side whose scales the whole head or column shares, or that is a plain
// float type, is not looked at; nor are Factor and Book of a head that was filled
// before: its pages have them in common.
type PageEncoder func(head int, k, v []float32) (Encoded, Encoded, error)

// Appends says whether tokens can be appended to the cache: not where a block of
// tokens that shares a scale is no part of a page.
func (c *Cache) Appends() bool {
	for _, s := range []*side{&c.k, &c.v} {
		f := s.format
		if f.Sink > 0 || f.Recent > 0 || f.Outliers > 0 || f.blocks() && (f.Group > pageTokens || pageTokens%f.Group != 0) {
			return false
		}
	}
	return true
}

// Append adds one token: k and v hold a row of each KV head. It stays float32 until
// 64 tokens make a page, which encode then stores. Scales that a whole head or column
// shares are those of the prefill: values beyond their range saturate, and Saturated
// counts them. No step may run meanwhile. After an error the cache is as it was, but
// for heads of a page that encode refused: fill it anew then.
func (c *Cache) Append(k, v []float32, encode PageEncoder) error {
	switch {
	case !c.Appends():
		return fmt.Errorf("append: blocks of %d and %d tokens that share scales are not whole parts of a page of %d", c.k.format.Group, c.v.format.Group, pageTokens)
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
	tail := c.tail()
	for i := range c.heads {
		h := &c.heads[i]
		for _, s := range []*side{&c.k, &c.v} {
			if scales, _ := h.whole(s); s.whole && len(scales) == 0 {
				return fmt.Errorf("append: head %d has no scales yet: fill the cache first", i)
			}
		}
		if h.liveK == nil {
			h.liveK, h.liveV = make([]float32, pageTokens*c.shape.DimK), make([]float32, pageTokens*c.shape.DimV)
			for t := range tail {
				h.tail.get(true, t, h.liveK[t*c.shape.DimK:][:c.shape.DimK])
				h.tail.get(false, t, h.liveV[t*c.shape.DimV:][:c.shape.DimV])
			}
		}
		rowK, rowV := k[i*c.shape.DimK:][:c.shape.DimK], v[i*c.shape.DimV:][:c.shape.DimV]
		copy(h.liveK[tail*c.shape.DimK:], rowK)
		copy(h.liveV[tail*c.shape.DimV:], rowV)
		h.tail.put(true, tail, rowK)
		h.tail.put(false, tail, rowV)
	}
	if tail+1 == pageTokens {
		if err := c.closePage(encode); err != nil {
			return err
		}
		c.pages++
	}
	c.tokens++
	return nil
}

// Saturated returns how many appended values lay beyond the range of scales that the
// prefill fixed.
func (c *Cache) Saturated() int64 { return c.saturated }

// closePage turns the tails, 64 tokens of every head, into pages.
func (c *Cache) closePage(encode PageEncoder) error {
	for i := range c.heads {
		h := &c.heads[i]
		var k, v Encoded
		if c.k.encodes() || c.v.encodes() {
			var err error
			if k, v, err = encode(i, h.liveK, h.liveV); err != nil {
				return fmt.Errorf("append: head %d: %w", i, err)
			}
		}
		for _, x := range []struct {
			side *side
			rows []float32
			e    *Encoded
		}{{&c.k, h.liveK, &k}, {&c.v, h.liveV, &v}} {
			if err := c.storePage(h, x.side, x.rows, x.e); err != nil {
				return fmt.Errorf("append: head %d: %w", i, err)
			}
			if x.side.key && h.kFactor == 0 {
				h.kFactor = x.side.factor(*x.e)
				h.kBook = x.side.book(*x.e)
			}
			if !x.side.key && h.vFactor == 0 {
				h.vFactor = x.side.factor(*x.e)
				h.vBook = x.side.book(*x.e)
			}
			c.k.factored, c.v.factored = c.k.factored || h.kFactor != 1, c.v.factored || h.vFactor != 1
			x.side.signs(x.e.Scales)
		}
	}
	return nil
}

// storePage stores 64 rows as the next page of a head: as e has them encoded, or by
// themselves where the page has no scales of its own or e leaves it to the cache.
func (c *Cache) storePage(h *head, s *side, rows []float32, e *Encoded) error {
	encoder := c.rowEncoder()
	defer c.release(encoder)
	if s.takesRows() && (s.encodes() && e.Rows != nil || !s.encodes() && !s.saturates(encoder, rows, h)) {
		encoder.begin(s, h)
		if !encoder.storePage(c, h, s, c.pages, rows, 0) {
			return s.refused(rows)
		}
		return nil
	}
	if !s.encodes() {
		c.saturated += s.freeze(e, rows, h)
	} else if err := s.check(pageTokens, *e); err != nil {
		return err
	}
	meta, codes := c.sidePage(h, s, c.pages)
	s.store(meta, codes, 0, *e)
	return nil
}

// saturates says whether some value of rows lies beyond the scales that h has.
func (s *side) saturates(e *rowEncoder, rows []float32, h *head) bool {
	if s.format.Codec != CodecInt {
		return false
	}
	lo, hi := e.lo[:s.dim], e.hi[:s.dim]
	copy(lo, rows)
	copy(hi, rows)
	MinMaxColumns(lo, hi, rows)
	r := s.format.codeRange()
	for c := range lo {
		if s.frozenField(h, c, lo[c]) < r.lo || s.frozenField(h, c, hi[c]) > r.hi {
			return true
		}
	}
	return false
}

// frozenField is the field of a value of channel c under the scales that h has, before
// it is held to the range of fields.
func (s *side) frozenField(h *head, c int, x float32) float32 {
	scale, offset := h.wholeUnit(s, c)
	switch {
	case s.format.Zero == ZeroAsym && scale > 0:
		return float32(math.RoundToEven(float64((x - offset) / scale)))
	case s.format.Zero == ZeroAsym:
		return 0
	case scale > 0:
		return float32(math.RoundToEven(float64(x/scale))) + offset
	}
	return offset
}

// wholeUnit returns the scale and the offset that channel c has outside the pages.
func (h *head) wholeUnit(s *side, c int) (scale, offset float32) {
	scales, offsets := h.whole(s)
	if s.format.Share != ShareChannel {
		c = 0
	}
	return scales[c], offsets[c]
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

// freeze encodes a page of rows under the scales that the head already has, and
// returns how many values saturate.
func (s *side) freeze(e *Encoded, rows []float32, h *head) (saturated int64) {
	f := s.format
	if f.Codec < CodecE4M3 {
		e.Values = rows
		return 0
	}
	e.Fields = make([]uint8, len(rows))
	r := f.codeRange()
	for i, x := range rows {
		c := i % s.dim
		scale, offset := h.wholeUnit(s, c)
		switch f.Codec {
		case CodecE4M3, CodecE5M2:
			e.Fields[i], saturated = s.freezeFloat(x, scale/s.factor(Encoded{}), saturated)
			continue
		case CodecBook:
			e.Fields[i], saturated = s.freezeBook((x-offset)/scale, h, saturated)
			continue
		}
		field := s.frozenField(h, c, x)
		if field < r.lo || field > r.hi {
			saturated++
		}
		e.Fields[i] = uint8(min(max(field, r.lo), r.hi))
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
	var code [1]byte
	largest := float32(MaxE4M3)
	if s.format.Codec == CodecE4M3 {
		ToE4M3(code[:], []float32{x})
	} else {
		largest = MaxE5M2
		ToE5M2(code[:], []float32{x})
	}
	if x > largest || x < -largest {
		saturated++
	}
	return code[0], saturated
}

// freezeBook finds the code whose value is nearest to x; what is no number is code 0.
func (s *side) freezeBook(x float32, h *head, saturated int64) (uint8, int64) {
	book := h.vBook
	if s.key {
		book = h.kBook
	}
	code, low, high := 0, book[0], book[0]
	for i, v := range book[:1<<s.format.Bits] {
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
