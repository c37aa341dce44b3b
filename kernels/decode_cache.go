package kernels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
)

// Encoded is one side of one KV head, unpacked: what an encoder has before it
// packs. Rows are tokens.
type Encoded struct {
	// Rows holds tokens·dim values that are still to be encoded, by the rules of the
	// cache's own format, where Cache.TakesRows says so. Scales and Offsets may then be
	// given for a whole head or a whole column, and values beyond them saturate; they
	// must be for ShareTensor. All else is left out.
	Rows []float32
	// Fields holds tokens·dim codes, one a byte: unsigned fields of CodecInt, the codes
	// of CodecLevels and CodecBook, the bytes of CodecE4M3 and CodecE5M2.
	Fields []uint8
	// Values holds tokens·dim values for CodecF32, CodecF16 and CodecBF16, each
	// of them representable in its type.
	Values []float32
	// Scales holds one scale per sharing unit: [1], [tokens][groups],
	// [dim] or [groups of tokens][dim].
	Scales []float32
	// Offsets has the length of Scales: offsets of ZeroAsym, biases (integers in
	// units of a field) of ZeroPoint; nil for the others.
	Offsets []float32
	// Sink and Recent are the rows that windows keep out of all this, of the first and
	// of the last tokens: values of the kind that codes stand for. Everything above is
	// about the tokens between.
	Sink, Recent []float32
	// Factor multiplies all scales of the head; 0 stands for 1.
	Factor float32
	// Book holds what the 2^Bits codes of CodecBook stand for.
	Book []float32
	// Means are added to the channels of keys before Format.Rotation; nil for none.
	Means []float32
	// Outliers are values that count in place of those of their codes, token by token.
	Outliers []Outlier
	// Open are the last tokens as they were before they were encoded, which Append needs:
	// those of the recent window and those of a short last block.
	Open []float32
}

// An Outlier is a value kept out of the codes, at a channel of a coded token.
type Outlier struct {
	Token, Channel int
	Value          float32
}

// side is one side of a paged cache.
type side struct {
	format Format
	dim    int
	key    bool
	layout layout // of what tiles read
	expand expansion
	codes  int // codes of a page, those that fill up its last chunk included
	bytes  int // of the codes of a page

	// A page's metadata: n scales, then n offsets, each in the stored type. It
	// stands in the first of every run of `every` pages.
	n, every    int
	offsetsAt   int
	metaBytes   int
	whole       bool
	signed      bool // scales of values may be negative
	shift       int  // coded tokens that stand before the first page
	coded       int  // tokens that are coded: all but those of windows, and of a block that is open
	from        int  // the first of them that the heads' live codes hold
	opened      bool // a block that Fill has stored short is open again
	factored    bool // the stored scales want a factor
	offsetBytes int  // bytes of one stored offset: 0, 1, 2 or 4
}

// head is what a KV head has outside its pages.
type head struct {
	// Scales and offsets that the whole head or a whole column shares, padded to
	// the lanes; empty where they stand in the pages.
	kScale, vScale   []float32
	kOffset, vOffset []float32
	kFactor, vFactor float32   // of the scales in the pages
	kBook, vBook     []float32 // values of the codes of CodecBook, 16 or 256
	pages            []byte
	kOut, vOut       sparse // outliers of the pages
	kMean            []float32
	front, tail      floats
	liveK, liveV     live
}

// A Cache is one layer's K and V in the paged form that decode attention reads:
// 64 tokens of one KV head a page, each page [K metadata | V metadata | K codes |
// V codes], pages of a head one after another. Tokens that a side keeps in a window and
// those that fill no page stand in float32 before and behind the pages. Goroutines may fill
// heads of their own, and any number of Decoders read it.
type Cache struct {
	shape      CacheShape
	k, v       side
	period     int   // pages after which the page layout repeats
	pageAt     []int // offset of each page of a period
	periodSize int
	heads      []head
	origin     int // tokens before the first page, once there are as many
	tokens     int
	pages      int         // of codes
	tk, tv     layout      // of a tile of float32 tokens
	turner     *turner     // of keys that are stored before their rotation
	filling    *sync.Mutex // guards what heads that are filled at once have in common
	idle       []*rowEncoder
	saturated  int64
	scratch    []float32 // a row
	wide       []byte    // codes of a page, or half a row
	rounded    []float32
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
	if r := k.Rotation; r != nil && (!k.scaled() || 2*len(r.frequencies) > shape.DimK) || v.Rotation != nil {
		return nil, fmt.Errorf("rotary embeddings are of keys that have codes, and of no more than their %d channels", shape.DimK)
	}
	k, v = k.within(shape.Tokens), v.within(shape.Tokens)
	origin, aligned := firstPage(k, v)
	c := &Cache{shape: shape, k: newSide(k, aligned, true, shape.DimK), v: newSide(v, aligned, false, shape.DimV), origin: origin, filling: new(sync.Mutex)}
	c.k.shift, c.v.shift = origin-k.Sink, origin-v.Sink
	f := Format{Codec: CodecF32}
	c.tk, c.tv = newLayout(f, storeF32, true, shape.DimK), newLayout(f, storeF32, false, shape.DimV)
	c.arrangePages()
	c.turner = newTurner(k.Rotation, origin, shape.Tokens/pageTokens)
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
	kept := (front+tail)*(c.tk.codeBytes+c.tv.codeBytes) + sparseBytes(&c.k, most) + sparseBytes(&c.v, most)
	if memory != nil {
		for i := range c.heads {
			h := &c.heads[i]
			h.pages = memory[i*pages : (i+1)*pages : (i+1)*pages]
			rest := memory[c.shape.Heads*pages+i*kept:][:kept]
			h.kOut, rest = newSparse(rest, &c.k, most)
			h.vOut, rest = newSparse(rest, &c.v, most)
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

// newSide lays out a side. Where pages are not aligned, blocks of tokens that share scales
// begin anywhere in them.
func newSide(f Format, aligned, key bool, dim int) side {
	store, expand := f.read(key, dim)
	if f.blocks() && !aligned || f.Rotation != nil || key && dim > maxDim && store.integer() {
		store, expand = storeF32, toValues
	}
	s := side{format: f, dim: dim, key: key, every: 1, expand: expand}
	s.layout = newLayout(f, store, key, dim)
	s.bytes = s.layout.codeBytes
	if expand != asStored {
		s.codes = roundUp(s.layout.codeBytes/store.size(), lineBytes)
		if f.elementBits() < 8 {
			s.codes = roundUp(s.codes, chunkCodes)
		}
		s.bytes = s.packed(s.codes)
		if !key {
			// Between two short calls a piece of the next page is asked for.
			s.layout.segments = apart(s.layout.segments, store)
		}
	}
	if !f.scaled() {
		return s
	}
	padded := roundUp(dim, laneWidth)
	switch {
	case f.Share == ShareToken:
		s.n = f.groups(dim) * pageTokens
	case f.blocks() && (!aligned || f.Group != blockWide && f.Group%pageTokens != 0):
		s.n = ((pageTokens-2)/f.Group + 2) * padded
	case f.blocks():
		s.n = max(1, pageTokens/f.Group) * padded
		s.every = max(1, f.Group/pageTokens)
	default:
		s.whole = true
	}
	if s.n > 0 {
		s.offsetsAt = roundUp(s.n*s.format.Meta.bytes(), lineBytes)
		s.metaBytes = s.offsetsAt
		switch {
		case !f.offsets():
		case f.Zero == ZeroPoint:
			s.offsetBytes = 1
		default:
			s.offsetBytes = f.Meta.bytes()
		}
		s.metaBytes += roundUp(s.n*s.offsetBytes, lineBytes)
	}
	return s
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
		at += c.pageBytes(i)
	}
	c.periodSize = at
}

// pageBytes returns the length of page i.
func (c *Cache) pageBytes(i int) int {
	return c.metaBytes(i, &c.k) + c.metaBytes(i, &c.v) + c.k.bytes + c.v.bytes
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
	nk, nv = c.k.bytes, c.v.bytes
	return kMeta, vMeta, b[:nk:nk], b[nk : nk+nv : nk+nv]
}

// Tokens returns how many tokens the cache holds.
func (c *Cache) Tokens() int { return c.tokens }

// Shape returns the geometry the cache was made for.
func (c *Cache) Shape() CacheShape { return c.shape }

// Bytes returns what one decode step over the whole cache reads: pages with
// their metadata and outliers, whole-column scales, and the tokens in float32.
func (c *Cache) Bytes() int64 {
	outliers := 0
	for i := range c.heads {
		outliers += c.heads[i].kOut.bytes(c.pages) + c.heads[i].vOut.bytes(c.pages)
	}
	perHead := c.pagesBytes(c.pages) + (c.front()+c.tail())*4*(c.shape.DimK+c.shape.DimV)
	for _, s := range []*side{&c.k, &c.v} {
		if scale, _ := c.heads[0].whole(s); len(scale) > 0 {
			perHead += s.format.scales(c.tokens, s.dim) * s.format.Meta.bytes()
			if s.format.offsets() {
				perHead += s.format.scales(c.tokens, s.dim) * s.format.Meta.bytes()
			}
		}
	}
	return int64(perHead)*int64(c.shape.Heads) + int64(outliers)
}

// Fused says whether a fused kernel reads both sides; otherwise portable code puts scales
// to the values that tiles read.
func (c *Cache) Fused() bool { return c.k.even() && c.v.even() }

// Fill stores the first `tokens` tokens of one KV head, replacing what it held.
// Every head must be filled with the same number of tokens; several goroutines may
// fill different heads at once. After an error a head must be filled anew.
func (c *Cache) Fill(headIndex, tokens int, k, v Encoded) error {
	if err := c.FillKeys(headIndex, tokens, k); err != nil {
		return err
	}
	return c.FillValues(headIndex, tokens, v)
}

// FillKeys is the part of Fill that stores keys.
func (c *Cache) FillKeys(headIndex, tokens int, k Encoded) error {
	if err := c.fill(headIndex, tokens, &c.k, k); err != nil {
		return fmt.Errorf("keys of head %d: %w", headIndex, err)
	}
	return nil
}

// FillValues is the part of Fill that stores values.
func (c *Cache) FillValues(headIndex, tokens int, v Encoded) error {
	if err := c.fill(headIndex, tokens, &c.v, v); err != nil {
		return fmt.Errorf("values of head %d: %w", headIndex, err)
	}
	return nil
}

// fill stores one side of a head.
func (c *Cache) fill(headIndex, tokens int, s *side, e Encoded) error {
	if headIndex < 0 || headIndex >= len(c.heads) || tokens < 0 || tokens > c.shape.Tokens {
		return fmt.Errorf("%d tokens: the cache has %d heads of %d tokens", tokens, len(c.heads), c.shape.Tokens)
	}
	if err := s.check(tokens, e); err != nil {
		return err
	}
	h := &c.heads[headIndex]
	encoder := c.rowEncoder()
	defer c.release(encoder)
	if e.Rows != nil && s.whole && len(e.Scales) == 0 {
		var err error
		if e, err = encoder.wholeScales(s, e.Rows); err != nil {
			return err
		}
	}
	h.setWhole(s, e)
	c.share(h, s, tokens, e)
	if e.Rows != nil {
		return c.fillRows(encoder, h, s, e.Rows)
	}
	c.fillSide(h, s, e)
	return nil
}

// share keeps what all heads have in common of what one is filled with.
func (c *Cache) share(h *head, s *side, tokens int, e Encoded) {
	c.filling.Lock()
	defer c.filling.Unlock()
	if c.tokens != tokens {
		c.tokens, c.pages = tokens, c.pagesOf(tokens)
	}
	// Heads that are filled at once may read these already, and have the same.
	sink, recent := s.format.windows(tokens)
	if coded := tokens - sink - recent; s.coded != coded || s.opened {
		s.coded, s.opened = coded, false
	}
	if from := c.firstLive(s); s.from != from {
		s.from = from
	}
	s.signs(e.Scales)
	if s.key {
		h.kMean = slices.Clone(e.Means)
	}
	factor, book := h.common(s)
	*factor = s.factor(e)
	if *factor != 1 {
		s.factored = true
	}
	*book = s.book(e)
}

// common returns the places of what a side's pages of a head have in common.
func (h *head) common(s *side) (factor *float32, book *[]float32) {
	if s.key {
		return &h.kFactor, &h.kBook
	}
	return &h.vFactor, &h.vBook
}

// signs notes whether scales of values are negative somewhere.
func (s *side) signs(scales []float32) {
	if !s.key && slices.ContainsFunc(scales, func(x float32) bool { return x < 0 }) {
		s.signed = true
	}
}

// sidePage returns the parts of page i that belong to one side.
func (c *Cache) sidePage(h *head, s *side, i int) (meta, codes []byte) {
	kMeta, vMeta, kCodes, vCodes := c.page(h, i)
	if s.key {
		return kMeta, kCodes
	}
	return vMeta, vCodes
}

// fillSide stores one side of a head: its pages with their outliers, and in float32 the
// tokens before and behind them.
func (c *Cache) fillSide(h *head, s *side, e Encoded) {
	var wide []byte
	for i := range c.pages {
		meta, codes := c.sidePage(h, s, i)
		s.store(meta, codes, i*pageTokens+s.shift, e, &wide)
	}
	h.sparse(s).fill(s, c.pages, e)
	c.keepLive(h, s, e)
	h.front.clear(s.key)
	for t := range c.front() {
		h.front.put(s.key, t, s.row(t, c.tokens, e))
	}
	h.tail.clear(s.key)
	for t := range c.tail() {
		h.tail.put(s.key, t, s.row(c.tokens-c.tail()+t, c.tokens, e))
	}
}

// row returns the values of a token among tokens, those of a window or decoded.
func (s *side) row(token, tokens int, e Encoded) []float32 {
	sink, recent := len(e.Sink)/s.dim, len(e.Recent)/s.dim
	row := make([]float32, s.dim)
	switch {
	case token < sink:
		copy(row, e.Sink[token*s.dim:])
	case token >= tokens-recent:
		copy(row, e.Recent[(token-tokens+recent)*s.dim:])
	default:
		s.codedRow(row, token-sink, e)
	}
	s.turn(row, token, e.Means)
	return row
}

// codedRow writes what a coded token of e decodes to, its outliers as they are.
func (s *side) codedRow(row []float32, token int, e Encoded) {
	s.decodeRow(row, token, e)
	for _, o := range outliersOf(e.Outliers, token, token+1) {
		row[o.Channel] = o.Value
	}
}

// turn makes of a row what attention sees of a key: with its mean and rotation.
func (s *side) turn(row []float32, token int, means []float32) {
	if r := s.format.Rotation; r != nil {
		for c, mean := range means {
			row[c] += mean
		}
		r.turn(row, token)
	}
}

// check holds the lengths of e against the format.
func (s *side) check(tokens int, e Encoded) error {
	if e.Rows != nil {
		return s.checkRows(tokens, e)
	}
	sink, recent := s.format.windows(tokens)
	if len(e.Sink) != sink*s.dim || len(e.Recent) != recent*s.dim {
		return fmt.Errorf("%d values of sinks and %d of recent tokens: want %d and %d", len(e.Sink), len(e.Recent), sink*s.dim, recent*s.dim)
	}
	tokens -= sink + recent
	if err := s.checkOutliers(tokens, e.Outliers); err != nil {
		return err
	}
	if len(e.Open) > (s.format.lag()+1)*s.dim || len(e.Open)%s.dim != 0 {
		return fmt.Errorf("%d values of open tokens: want rows of %d, %d at most", len(e.Open), s.dim, s.format.lag()+1)
	}
	if len(e.Means) != 0 && (s.format.Rotation == nil || len(e.Means) != s.dim) {
		return fmt.Errorf("%d means: want %d, of keys that are rotated", len(e.Means), s.dim)
	}
	return s.checkCodes(tokens, e)
}

// checkCodes holds the codes of so many coded tokens against the format.
func (s *side) checkCodes(tokens int, e Encoded) error {
	n := tokens * s.dim
	codes := len(e.Fields)
	if s.format.Codec <= CodecBF16 {
		codes = len(e.Values)
	}
	scales := s.format.scales(tokens, s.dim)
	if tokens == 0 {
		scales = len(e.Scales) // what no token has is there or not
	}
	offsets := 0
	if s.format.offsets() {
		offsets = scales
	}
	if tokens > 0 && s.format.Codec == CodecBook && len(e.Book) != 1<<s.format.Bits {
		return fmt.Errorf("a book of %d values: want %d", len(e.Book), 1<<s.format.Bits)
	}
	if codes != n || len(e.Scales) != scales || len(e.Offsets) != offsets {
		return fmt.Errorf("%d codes, %d scales, %d offsets: want %d, %d, %d", codes, len(e.Scales), len(e.Offsets), n, scales, offsets)
	}
	return nil
}

// checkRows is check for values that are still to be encoded.
func (s *side) checkRows(tokens int, e Encoded) error {
	switch {
	case !s.takesRows():
		return errors.New("this format is not encoded from rows")
	case len(e.Rows) != tokens*s.dim:
		return fmt.Errorf("%d values: want %d", len(e.Rows), tokens*s.dim)
	case len(e.Scales) == 0 && !(s.whole && s.format.Share == ShareTensor):
		return nil
	}
	scales, offsets := s.format.scales(tokens, s.dim), 0
	if s.format.offsets() {
		offsets = scales
	}
	if !s.whole || len(e.Scales) != scales || len(e.Offsets) != offsets {
		return fmt.Errorf("%d scales, %d offsets for rows: want %d, %d of a whole head or column", len(e.Scales), len(e.Offsets), scales, offsets)
	}
	return nil
}

// setWhole keeps the scales and offsets that stand outside the pages: offsets of
// ZeroAsym, biases of the others. What one scale covers has it in every lane of a block.
func (h *head) setWhole(s *side, e Encoded) {
	scale, offset := h.whole(s)
	n := 0
	if s.whole {
		n = roundUp(len(e.Scales), blockWide)
	}
	scale, offset = resize(scale, n), resize(offset, n)
	clear(scale)
	clear(offset)
	factor := s.factor(e)
	for i, v := range e.Scales[:min(n, len(e.Scales))] {
		scale[i] = float32(v * factor)
		switch {
		case s.format.offsets():
			offset[i] = e.Offsets[i]
		case s.format.Codec == CodecInt:
			offset[i] = float32(s.format.centre())
		}
	}
	if n > 0 && len(e.Scales) == 1 {
		fill(scale, scale[0])
		fill(offset, offset[0])
	}
	if s.key {
		h.kScale, h.kOffset = scale, offset
	} else {
		h.vScale, h.vOffset = scale, offset
	}
}

// book returns the values of the codes as tiles look them up, 16 or 256 of them.
func (s *side) book(e Encoded) []float32 {
	if s.format.Codec != CodecBook {
		return nil
	}
	book := make([]float32, 16)
	if s.format.Bits > 4 {
		book = make([]float32, 256)
	}
	copy(book, e.Book)
	return book
}

// factor returns what tiles want the stored scales multiplied with.
func (s *side) factor(e Encoded) float32 {
	factor := e.Factor
	if factor == 0 {
		factor = 1
	}
	if s.layout.store == storeE4M3 {
		factor *= e4m3Half
	}
	return factor
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
	factor := e.Factor
	if factor == 0 {
		factor = 1
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
		scale := float32(e.Scales[u] * factor)
		if s.format.Codec == CodecBook {
			dst[c] = float32(scale*e.Book[e.Fields[i]]) + offset
			continue
		}
		dst[c] = s.format.value(e.Fields[i], scale, offset)
	}
}

// value decodes one field of a format without a book.
func (f Format) value(field uint8, scale, offset float32) float32 {
	switch {
	case f.Codec == CodecE4M3:
		return scale * fromE4M3(field)
	case f.Codec == CodecE5M2:
		return scale * fromF16(uint16(field)<<8)
	case f.Zero == ZeroAsym:
		return float32(scale*float32(field)) + offset
	case f.Codec == CodecLevels:
		return scale * float32(f.Levels[field&15])
	case f.Zero == ZeroPoint:
		return scale * (float32(field) - offset)
	case f.Zero == ZeroMiddle:
		return scale * (float32(2*int(field)-f.top()) / 2)
	}
	return scale * float32(int32(field)-f.centre())
}

// store writes the page whose tokens begin at the coded token first of e: its metadata,
// where it has its own, and its codes. It keeps what room it needs in wide.
func (s *side) store(meta, codes []byte, first int, e Encoded, wide *[]byte) {
	if len(meta) > 0 {
		clear(meta)
		s.storeMeta(meta, first, e)
	}
	if s.expand != asStored {
		s.storeNarrow(codes, first, e, wide)
		return
	}
	clear(codes)
	switch s.layout.store {
	case storeF32:
		s.layout.each(s.key, s.dim, func(at, token, channel int) {
			v := e.Values[(first+token)*s.dim+channel]
			binary.LittleEndian.PutUint32(codes[at:], math.Float32bits(v))
		})
	case storeBF16:
		s.layout.each(s.key, s.dim, func(at, token, channel int) {
			v := e.Values[(first+token)*s.dim+channel]
			binary.LittleEndian.PutUint16(codes[at:], bf16(v))
		})
	case storeF16:
		s.layout.each(s.key, s.dim, func(at, token, channel int) {
			v := e.Values[(first+token)*s.dim+channel]
			binary.LittleEndian.PutUint16(codes[at:], f16(v))
		})
	case storeInt8, storeE4M3, storeE5M2:
		s.layout.each(s.key, s.dim, func(at, token, channel int) {
			codes[at] = e.Fields[(first+token)*s.dim+channel]
		})
	case storeInt4, storeLevels:
		s.layout.each(s.key, s.dim, func(at, token, channel int) {
			codes[at>>1] |= e.Fields[(first+token)*s.dim+channel] << (4 * (at & 1))
		})
	}
}

// storeNarrow writes the codes of a page that are expanded before tiles read them.
func (s *side) storeNarrow(codes []byte, first int, e Encoded, room *[]byte) {
	wide, size := codes, s.layout.store.size()
	narrow := s.format.elementBits() < 8
	if narrow {
		*room = resize(*room, s.codes)
		wide = *room
		clear(wide)
	} else {
		clear(codes)
	}
	s.layout.each(s.key, s.dim, func(at, token, channel int) {
		wide[at/size] = e.Fields[(first+token)*s.dim+channel]
	})
	if narrow {
		packPlanes(codes, wide, s.format.elementBits())
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
						case storeF16, storeBF16:
							at += 2 * lane
						case storeE4M3, storeE5M2:
							at += lane
						case storeInt8:
							at += 4*lane + j
						case storeInt4, storeLevels:
							at = 2*(base+4*lane+j%4) + j/4
						}
						f(at, token, channel)
					}
				}
			}
		}
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
	switch s.format.Meta {
	case MetaF16:
		binary.LittleEndian.PutUint16(meta[2*slot:], f16(scale))
	case MetaE8M0:
		meta[slot] = uint8(math.Float32bits(scale) >> 23)
	case MetaE4M3:
		meta[slot] = E4M3(scale)
	default:
		binary.LittleEndian.PutUint32(meta[4*slot:], math.Float32bits(scale))
	}
}

func (s *side) putOffset(meta []byte, slot int, offset float32) {
	at := meta[s.offsetsAt:]
	switch {
	case s.offsetBytes == 1:
		at[slot] = uint8(offset)
	case s.offsetBytes == 2:
		binary.LittleEndian.PutUint16(at[2*slot:], f16(offset))
	case s.offsetBytes == 4:
		binary.LittleEndian.PutUint32(at[4*slot:], math.Float32bits(offset))
	}
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}
