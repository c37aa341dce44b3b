package kernels

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"slices"
)

// Encoded is one side of one KV head, unpacked: what an encoder has before it
// packs. Rows are tokens.
type Encoded struct {
	// Fields holds tokens·dim codes, one a byte: CodecInt (unsigned fields),
	// CodecE4M3 and CodecE5M2 (their bytes).
	Fields []uint8
	// Values holds tokens·dim values for CodecF32, CodecF16 and CodecBF16, each
	// of them representable in its type.
	Values []float32
	// Scales holds one scale per sharing unit: [1], [tokens][groups],
	// [dim] or [groups of tokens][dim].
	Scales []float32
	// Offsets has the length of Scales: offsets of ZeroAsym, biases (integers in
	// units of a field) of ZeroPoint; nil for ZeroSym and the floating codecs.
	Offsets []float32
	// Sink and Recent are the rows that windows keep out of all this, of the first and
	// of the last tokens: values as attention sees them. Everything above is about the
	// tokens between.
	Sink, Recent []float32
}

// side is one side of a paged cache.
type side struct {
	format Format
	dim    int
	key    bool
	layout layout
	rowLen int // storeRows: bytes of a packed row

	// A page's metadata: n scales, then n offsets, each in the stored type. It
	// stands in the first of every run of `every` pages.
	n, every    int
	offsetsAt   int
	metaBytes   int
	whole       bool
	signed      bool // scales may be negative
	shift       int  // coded tokens that stand before the first page
	offsetBytes int  // bytes of one stored offset: 0, 1, 2 or 4
}

// head is what a KV head has outside its pages.
type head struct {
	// Scales and offsets that the whole head or a whole column shares, padded to
	// the lanes; empty where they stand in the pages.
	kScale, vScale   []float32
	kOffset, vOffset []float32
	pages            []byte
	front, tail      floats
	liveK, liveV     []float32 // the tail's tokens row by row, once something was appended
}

// A Cache is one layer's K and V in the paged form that decode attention reads:
// 64 tokens of one KV head a page, each page [K metadata | V metadata | K codes |
// V codes], pages of a head one after another. Tokens that a side keeps in a window and
// those that fill no page stand in float32 before and behind the pages. It is filled by one goroutine; any number of Decoders may read it.
type Cache struct {
	shape      CacheShape
	k, v       side
	period     int   // pages after which the page layout repeats
	pageAt     []int // offset of each page of a period
	periodSize int
	heads      []head
	origin     int // tokens before the first page, once there are as many
	tokens     int
	pages      int    // of codes
	tk, tv     layout // of a tile of float32 tokens
	saturated  int64
	memory     []byte
	free       func()
}

// NewCache makes an empty cache outside the Go heap. Close gives the memory back.
func NewCache(shape CacheShape, k, v Format) (*Cache, error) {
	if err := shape.check(); err != nil {
		return nil, err
	}
	for _, f := range []Format{k, v} {
		if err := f.check(); err != nil {
			return nil, err
		}
	}
	k, v = k.within(shape.Tokens), v.within(shape.Tokens)
	// Rows on one side mean rows on both: unpacking then has one form to read.
	storeK, storeV := k.tiled(true), v.tiled(false)
	origin, aligned := firstPage(k, v)
	if storeK == storeRows || storeV == storeRows || !aligned {
		storeK, storeV = storeRows, storeRows
		origin = max(k.Sink, v.Sink)
	}
	c := &Cache{shape: shape, k: newSide(k, storeK, true, shape.DimK), v: newSide(v, storeV, false, shape.DimV), origin: origin}
	c.k.shift, c.v.shift = origin-k.Sink, origin-v.Sink
	f := Format{Codec: CodecF32}
	c.tk, c.tv = newLayout(f, storeF32, true, shape.DimK), newLayout(f, storeF32, false, shape.DimV)
	c.arrangePages()
	memory, free, err := mapMemory(c.place(nil))
	if err != nil {
		return nil, err
	}
	c.memory, c.free = memory, free
	runtime.SetFinalizer(c, (*Cache).Close)
	c.heads = make([]head, shape.Heads)
	c.place(memory)
	return c, nil
}

// within returns the format as a cache of so many tokens has it: a block that the
// tokens cannot fill is the whole column.
func (f Format) within(tokens int) Format {
	if f.blocks() && f.Recent == 0 && f.Group >= tokens {
		f.Group = 0
	}
	return f
}

// place gives the heads their parts of memory, where there is some, and returns how
// much they need: pages head by head, then what stands in float32 head by head.
func (c *Cache) place(memory []byte) int {
	most := max(0, c.shape.Tokens-c.origin-max(c.k.keeps(), c.v.keeps())) / pageTokens
	pages := roundUp(c.pagesBytes(most), lineBytes)
	front := tiles(min(c.origin, c.shape.Tokens))
	tail := tiles(min(max(c.k.format.lag(), c.v.format.lag())+pageTokens, c.shape.Tokens))
	kept := (front + tail) * (c.tk.codeBytes + c.tv.codeBytes)
	if memory != nil {
		for i := range c.heads {
			h := &c.heads[i]
			h.pages = memory[i*pages : (i+1)*pages : (i+1)*pages]
			rest := memory[c.shape.Heads*pages+i*kept:][:kept]
			h.front, rest = newFloats(rest, front, &c.tk, &c.tv)
			h.tail, _ = newFloats(rest, tail, &c.tk, &c.tv)
		}
	}
	return c.shape.Heads * (pages + kept)
}

// keeps returns the fewest tokens that a side's recent window has once it is full.
func (s *side) keeps() int {
	if s.format.blocks() {
		return 0
	}
	return s.format.Recent
}

// pagesBytes returns the length of the first n pages of a head.
func (c *Cache) pagesBytes(n int) int { return n/c.period*c.periodSize + c.pageAt[n%c.period] }

// Close gives the cache's memory back; nothing may use the cache afterwards.
func (c *Cache) Close() {
	if c.free != nil {
		runtime.SetFinalizer(c, nil)
		c.free()
		c.free, c.memory, c.heads = nil, nil, nil
	}
}

func newSide(f Format, store storage, key bool, dim int) side {
	s := side{format: f, dim: dim, key: key, every: 1}
	s.layout = newLayout(f, store, key, dim)
	if store == storeRows {
		s.rowLen = f.rowBytes(dim)
		s.layout.codeBytes = roundUp(s.rowLen*pageTokens, lineBytes)
	}
	if !f.scaled() {
		return s
	}
	padded := roundUp(dim, laneWidth)
	switch {
	case f.Share == ShareToken:
		s.n = f.groups(dim) * pageTokens
	case f.Share == ShareChannel && f.Group > 0 && store == storeRows:
		s.n = ((pageTokens-2)/f.Group + 2) * padded
	case f.Share == ShareChannel && f.Group > 0:
		s.n = max(1, pageTokens/f.Group) * padded
		s.every = max(1, f.Group/pageTokens)
	default:
		s.whole = true
	}
	if s.n > 0 {
		s.offsetsAt = roundUp(s.n*s.metaSize(), lineBytes)
		s.metaBytes = s.offsetsAt
		switch {
		case f.Codec != CodecInt || f.Zero == ZeroSym:
		case f.Zero == ZeroPoint:
			s.offsetBytes = 1
		default:
			s.offsetBytes = s.metaSize()
		}
		s.metaBytes += roundUp(s.n*s.offsetBytes, lineBytes)
	}
	return s
}

// rowBytes returns the length of a packed row of dim codes.
func (f Format) rowBytes(dim int) int {
	if f.Codec == CodecRows {
		return f.Rows.RowBytes()
	}
	return PackedLen(dim, f.elementBits())
}

func (f Format) elementBits() int {
	switch f.Codec {
	case CodecF32:
		return 32
	case CodecF16, CodecBF16:
		return 16
	case CodecE4M3, CodecE5M2:
		return 8
	}
	return f.Bits
}

// metaSize returns the bytes of a stored scale.
func (s *side) metaSize() int {
	if s.format.Meta == MetaF16 {
		return 2
	}
	return 4
}

// arrangePages lays out the pages of one period. Metadata that several pages
// share stands in the first of them.
func (c *Cache) arrangePages() {
	c.period = max(c.k.every, c.v.every)
	for c.period%c.k.every != 0 || c.period%c.v.every != 0 {
		c.period++
	}
	at := 0
	for i := range c.period {
		c.pageAt = append(c.pageAt, at)
		at += c.metaBytes(i, &c.k) + c.metaBytes(i, &c.v) + c.k.layout.codeBytes + c.v.layout.codeBytes
	}
	c.periodSize = at
}

// metaBytes returns how much metadata of side s stands in page i.
func (c *Cache) metaBytes(i int, s *side) int {
	if i%s.every == 0 {
		return s.metaBytes
	}
	return 0
}

// page returns the four parts of page i of a head; metadata is empty where an
// earlier page holds it.
func (c *Cache) page(h *head, i int) (kMeta, vMeta, kCodes, vCodes []byte) {
	nk, nv := c.metaBytes(i, &c.k), c.metaBytes(i, &c.v)
	b := h.pages[c.pagesBytes(i):]
	kMeta, b = b[:nk:nk], b[nk:]
	vMeta, b = b[:nv:nv], b[nv:]
	nk, nv = c.k.layout.codeBytes, c.v.layout.codeBytes
	return kMeta, vMeta, b[:nk:nk], b[nk : nk+nv : nk+nv]
}

// Tokens returns how many tokens the cache holds.
func (c *Cache) Tokens() int { return c.tokens }

// Shape returns the geometry the cache was made for.
func (c *Cache) Shape() CacheShape { return c.shape }

// Bytes returns what one decode step over the whole cache reads: pages with
// their metadata, whole-column scales, and the tokens in float32.
func (c *Cache) Bytes() int64 {
	perHead := c.pagesBytes(c.pages) + (c.front()+c.tail())*4*(c.shape.DimK+c.shape.DimV)
	for _, s := range []*side{&c.k, &c.v} {
		if scale, _ := c.heads[0].whole(s); len(scale) > 0 {
			perHead += s.format.scales(c.tokens, s.dim) * s.metaSize()
			if s.format.Codec == CodecInt && s.format.Zero != ZeroSym {
				perHead += s.format.scales(c.tokens, s.dim) * s.metaSize()
			}
		}
	}
	return int64(perHead) * int64(c.shape.Heads)
}

// Fused says whether both sides are read by a fused kernel; otherwise pages are
// unpacked by portable code first.
func (c *Cache) Fused() bool {
	return c.k.layout.store != storeRows
}

// Fill stores the first `tokens` tokens of one KV head, replacing what it held.
// Every head must be filled with the same number of tokens.
func (c *Cache) Fill(headIndex, tokens int, k, v Encoded) error {
	if headIndex < 0 || headIndex >= len(c.heads) || tokens < 0 || tokens > c.shape.Tokens {
		return fmt.Errorf("fill head %d with %d tokens: the cache has %d heads of %d tokens", headIndex, tokens, len(c.heads), c.shape.Tokens)
	}
	if err := c.k.check(tokens, k); err != nil {
		return fmt.Errorf("keys of head %d: %w", headIndex, err)
	}
	if err := c.v.check(tokens, v); err != nil {
		return fmt.Errorf("values of head %d: %w", headIndex, err)
	}
	c.v.signed = c.v.signed || slices.ContainsFunc(v.Scales, func(x float32) bool { return x < 0 })
	h := &c.heads[headIndex]
	h.kScale, h.kOffset = c.k.wholeMeta(k)
	h.vScale, h.vOffset = c.v.wholeMeta(v)
	c.tokens = tokens
	end := min(c.k.coded(tokens, len(k.Recent)/c.shape.DimK), c.v.coded(tokens, len(v.Recent)/c.shape.DimV))
	c.pages = max(0, end-c.origin) / pageTokens
	for i := range c.pages {
		kMeta, vMeta, kCodes, vCodes := c.page(h, i)
		c.k.store(kMeta, kCodes, i*pageTokens+c.k.shift, k)
		c.v.store(vMeta, vCodes, i*pageTokens+c.v.shift, v)
	}
	h.front.clear()
	h.tail.clear()
	for t := range c.front() {
		c.fillFloat(&h.front, t, t, k, v)
	}
	for t := range c.tail() {
		c.fillFloat(&h.tail, t, c.tokens-c.tail()+t, k, v)
	}
	return nil
}

// fillFloat puts a token's decoded keys and values at place `at` of a run.
func (c *Cache) fillFloat(run *floats, at, token int, k, v Encoded) {
	run.put(true, at, c.k.row(token, c.tokens, k))
	run.put(false, at, c.v.row(token, c.tokens, v))
}

// row returns the values of a token among tokens, those of a window or decoded.
func (s *side) row(token, tokens int, e Encoded) []float32 {
	sink, recent := len(e.Sink)/s.dim, len(e.Recent)/s.dim
	switch {
	case token < sink:
		return e.Sink[token*s.dim:][:s.dim]
	case token >= tokens-recent:
		return e.Recent[(token-tokens+recent)*s.dim:][:s.dim]
	}
	row := make([]float32, s.dim)
	s.decodeRow(row, token-sink, e)
	return row
}

// check holds the lengths of e against the format.
func (s *side) check(tokens int, e Encoded) error {
	sink, recent := len(e.Sink)/s.dim, len(e.Recent)/s.dim
	if len(e.Sink)%s.dim != 0 || len(e.Recent)%s.dim != 0 || sink != min(s.format.Sink, tokens) || recent > min(s.format.Recent, tokens-sink) {
		return fmt.Errorf("%d values of sinks and %d of recent tokens: want %d and up to %d rows of %d", len(e.Sink), len(e.Recent), min(s.format.Sink, tokens), s.format.Recent, s.dim)
	}
	tokens -= sink + recent
	n := tokens * s.dim
	codes := len(e.Fields)
	switch {
	case s.format.Codec <= CodecBF16:
		codes = len(e.Values)
	case s.format.Codec == CodecRows:
		n = tokens * s.format.Rows.RowBytes()
	}
	scales := s.format.scales(tokens, s.dim)
	if tokens == 0 {
		scales = len(e.Scales) // what no token has is there or not
	}
	offsets := 0
	if s.format.Codec == CodecInt && s.format.Zero != ZeroSym {
		offsets = scales
	}
	if codes != n || len(e.Scales) != scales || len(e.Offsets) != offsets {
		return fmt.Errorf("%d codes, %d scales, %d offsets: want %d, %d, %d", codes, len(e.Scales), len(e.Offsets), n, scales, offsets)
	}
	return nil
}

// wholeMeta returns the scales and offsets that stand outside the pages, offsets
// as decode wants them (see centred).
func (s *side) wholeMeta(e Encoded) (scale, offset []float32) {
	if !s.whole || len(e.Scales) == 0 {
		return nil, nil
	}
	scale = make([]float32, roundUp(len(e.Scales), blockWide))
	offset = make([]float32, len(scale))
	copy(scale, e.Scales)
	for i := range e.Scales {
		switch {
		case s.format.Codec != CodecInt:
		case s.format.Zero == ZeroSym:
			offset[i] = float32(s.format.centre())
		default:
			offset[i] = e.Offsets[i]
		}
	}
	return scale, offset
}

// unit returns which scale the element (token, channel) has.
func (s *side) unit(token, channel int) int {
	f := s.format
	switch f.Share {
	case ShareToken:
		groups := f.groups(s.dim)
		if groups == 1 {
			return token
		}
		return token*groups + channel/f.Group
	case ShareChannel:
		if f.Group == 0 {
			return channel
		}
		return token/f.Group*s.dim + channel
	}
	return 0
}

// decodeRow writes the decoded values of one token.
func (s *side) decodeRow(dst []float32, token int, e Encoded) {
	if s.format.Codec == CodecRows {
		n := s.format.Rows.RowBytes()
		s.format.Rows.DecodeRow(dst[:s.dim], e.Fields[token*n:(token+1)*n])
		return
	}
	for c := range s.dim {
		i := token*s.dim + c
		if s.format.Codec <= CodecBF16 {
			dst[c] = e.Values[i]
			continue
		}
		u := s.unit(token, c)
		var offset float32
		if len(e.Offsets) > 0 {
			offset = e.Offsets[u]
		}
		dst[c] = s.format.value(e.Fields[i], e.Scales[u], offset)
	}
}

// value decodes one field.
func (f Format) value(field uint8, scale, offset float32) float32 {
	switch {
	case f.Codec == CodecE4M3:
		return scale * fromE4M3(field)
	case f.Codec == CodecE5M2:
		return scale * fromF16(uint16(field)<<8)
	case f.Zero == ZeroAsym:
		return float32(scale*float32(field)) + offset
	case f.Zero == ZeroPoint:
		return scale * (float32(field) - offset)
	}
	return scale * float32(int32(field)-f.centre())
}

// store writes the page whose tokens begin at the coded token first of e: its metadata,
// where it has its own, and its codes.
func (s *side) store(meta, codes []byte, first int, e Encoded) {
	if len(meta) > 0 {
		clear(meta)
		s.storeMeta(meta, first, e)
	}
	clear(codes)
	switch s.layout.store {
	case storeRows:
		for t := range pageTokens {
			s.storeRow(codes[t*s.rowLen:][:s.rowLen], first+t, e)
		}
	case storeF16:
		s.layout.each(s.key, s.dim, func(at, token, channel int) {
			v := e.Values[(first+token)*s.dim+channel]
			binary.LittleEndian.PutUint16(codes[at:], f16(v))
		})
	case storeInt8:
		s.layout.each(s.key, s.dim, func(at, token, channel int) {
			codes[at] = e.Fields[(first+token)*s.dim+channel]
		})
	case storeInt4:
		s.layout.each(s.key, s.dim, func(at, token, channel int) {
			codes[at>>1] |= e.Fields[(first+token)*s.dim+channel] << (4 * (at & 1))
		})
	}
}

// each calls f with the place of every element of a page: its byte, or for int4
// twice its byte plus 1 for the high half.
func (l *layout) each(key bool, dim int, f func(at, token, channel int)) {
	step := l.store.step()
	for _, g := range l.segments {
		for b := range g.blocks {
			for s := range g.steps {
				base := g.codes + (b*g.steps+s)*l.store.stepBytes(g.lanes)
				for lane := range g.lanes {
					for j := range step {
						token, channel := g.first+s*step+j, g.lane+b*g.lanes+lane
						if key {
							token, channel = channel, token
						}
						if channel >= dim {
							continue
						}
						at := base
						switch l.store {
						case storeF32:
							at += 4 * lane
						case storeF16:
							at += 2 * lane
						case storeInt8:
							at += 4*lane + j
						case storeInt4:
							at = 2*(base+4*lane+j%4) + j/4
						}
						f(at, token, channel)
					}
				}
			}
		}
	}
}

// storeRow packs one token's codes, least significant bit first.
func (s *side) storeRow(row []byte, token int, e Encoded) {
	at := token * s.dim
	switch s.format.Codec {
	case CodecF32:
		ToF32(row, e.Values[at:at+s.dim])
	case CodecF16:
		ToF16(row, e.Values[at:at+s.dim])
	case CodecBF16:
		ToBF16(row, e.Values[at:at+s.dim])
	case CodecRows:
		copy(row, e.Fields[token*s.rowLen:])
	default:
		Pack(row, e.Fields[at:at+s.dim], s.format.elementBits())
	}
}

// storeMeta writes the scales and offsets of a page.
func (s *side) storeMeta(meta []byte, first int, e Encoded) {
	put := func(slot, u int) {
		s.putScale(meta, slot, e.Scales[u])
		if s.offsetBytes > 0 {
			s.putOffset(meta, slot, e.Offsets[u])
		}
	}
	f := s.format
	if f.Share == ShareToken {
		groups := f.groups(s.dim)
		for t := range pageTokens {
			for g := range groups {
				put(g*pageTokens+t, (first+t)*groups+g)
			}
		}
		return
	}
	padded := roundUp(s.dim, laneWidth)
	for set := range s.n / padded {
		g := first/f.Group + set
		if g*s.dim >= len(e.Scales) {
			break
		}
		for c := range s.dim {
			put(set*padded+c, g*s.dim+c)
		}
	}
}

func (s *side) putScale(meta []byte, slot int, scale float32) {
	if s.metaSize() == 2 {
		binary.LittleEndian.PutUint16(meta[2*slot:], f16(scale))
	} else {
		binary.LittleEndian.PutUint32(meta[4*slot:], math.Float32bits(scale))
	}
}

func (s *side) putOffset(meta []byte, slot int, offset float32) {
	at := meta[s.offsetsAt:]
	switch s.offsetBytes {
	case 1:
		at[slot] = uint8(offset)
	case 2:
		binary.LittleEndian.PutUint16(at[2*slot:], f16(offset))
	case 4:
		binary.LittleEndian.PutUint32(at[4*slot:], math.Float32bits(offset))
	}
}

// metaValue reads one scale and its offset as they were stored.
func (s *side) metaValue(meta []byte, slot int) (scale, offset float32) {
	if s.metaSize() == 2 {
		scale = fromF16(binary.LittleEndian.Uint16(meta[2*slot:]))
	} else {
		scale = math.Float32frombits(binary.LittleEndian.Uint32(meta[4*slot:]))
	}
	at := meta[s.offsetsAt:]
	switch s.offsetBytes {
	case 1:
		offset = float32(at[slot])
	case 2:
		offset = fromF16(binary.LittleEndian.Uint16(at[2*slot:]))
	case 4:
		offset = math.Float32frombits(binary.LittleEndian.Uint32(at[4*slot:]))
	}
	return scale, offset
}

// unpackRow decodes token t of page p of a side that is stored in rows. scale and
// offset are the page's own, or those of the whole head; fields, sc, bias and off
// are scratch of dim elements.
func (s *side) unpackRow(row []float32, codes []byte, scale, offset []float32, p, t int, x *rowScratch) {
	f := s.format
	packed := codes[t*s.rowLen:][:s.rowLen]
	switch f.Codec {
	case CodecF32:
		FromF32(row, packed)
		return
	case CodecF16:
		FromF16(row, packed)
		return
	case CodecBF16:
		FromBF16(row, packed)
		return
	case CodecRows:
		f.Rows.DecodeRow(row, packed)
		return
	}
	sc, off := x.scale[:s.dim], x.offset[:s.dim]
	switch {
	case f.Share == ShareToken:
		group := f.Group
		if group == 0 {
			group = s.dim
		}
		for g := 0; g*group < s.dim; g++ {
			fill(sc[g*group:min((g+1)*group, s.dim)], scale[g*pageTokens+t])
			fill(off[g*group:min((g+1)*group, s.dim)], offset[g*pageTokens+t])
		}
	case f.Share == ShareChannel:
		at := 0
		if f.Group > 0 {
			first := p*pageTokens + s.shift
			at = ((first+t)/f.Group - first/f.Group) * roundUp(s.dim, laneWidth)
		}
		copy(sc, scale[at:])
		copy(off, offset[at:])
	default:
		fill(sc, scale[0])
		fill(off, offset[0])
	}
	switch f.Codec {
	case CodecE4M3:
		FromE4M3(row, packed)
		MultiplyColumns(row, row, sc)
		return
	case CodecE5M2:
		FromE5M2(row, packed)
		MultiplyColumns(row, row, sc)
		return
	}
	fields := x.fields[:s.dim]
	Unpack(fields, packed, f.Bits)
	a := Affine{Scale: sc, Bias: off, Offset: x.zero[:s.dim]}
	switch f.Zero {
	case ZeroAsym:
		a.Bias, a.Offset = a.Offset, a.Bias
	case ZeroSym:
		fill(off, float32(f.centre()))
	}
	DecodeColumns(row, fields, a)
}

// rowScratch is what unpackRow works in, maxDim elements each; zero stays zero.
type rowScratch struct {
	scale, offset, zero []float32
	fields              []uint8
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}
