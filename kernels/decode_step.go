package kernels

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"unsafe"
)

// chunkPages is how many pages of one KV head are attended to on their own; the
// partial results of a head are merged in the order of its chunks. It is fixed,
// so that results do not depend on how many threads share the work.
const chunkPages = 16

// DecodeOptions says how a cache is attended to.
type DecodeOptions struct {
	QueryHeads int     // a multiple of the KV heads; query head j reads KV head ⌊j·KVHeads/QueryHeads⌋
	Scale      float64 // of the logits, 1/√head_dim as a rule
	Window     int     // attend to the last Window tokens only; 0: to all
	Threads    int     // workers that share a step; at least 1
}

// A Decoder attends to a cache with one new token at a time: softmax(scale·q·Kᵀ)·V
// for every query head, read straight from the codes. It keeps its workers and
// scratch, so that a step allocates nothing. One goroutine uses it at a time.
//
// Where the cache is int8 or int4 the result is the same bits on every
// instruction set and for every number of threads. It differs from attention over
// the dequantized cache by the rounding of the scaled query and of the scaled
// probabilities to 16 bits: a logit is off by at most Σ|code|·max|q'|/65278. Where
// a side is float16, sums may be fused and differ in their last bits.
type Decoder struct {
	options DecodeOptions
	shape   CacheShape
	k, v    Format
	grouped int // query heads of a KV head
	kern    *decodeKernels
	codec   *codecKernels
	even    bool // no portable code puts scales to the values

	// The step in hand.
	cache   *Cache
	q, out  []float32
	first   int            // first visible token
	chunks  int            // chunks of a head: those of the front, of the pages, of the tail
	items   *parts         // chunks of all heads, head by head
	left    []atomic.Int32 // chunks of each head not yet done
	pending atomic.Int32   // workers still at the step
	partial []partial
	outputs []float32 // of each partial, lanes long

	workers []*decodeWorker
	wake    []chan struct{}
	done    chan struct{}
	closed  sync.WaitGroup
}

// partial is one query head's softmax over one chunk: running maximum in powers
// of two, sum, and where its output stands.
type partial struct {
	top, sum float32
}

// NewDecoder makes a decoder for caches of c's shape and formats. It uses the
// backend that is active now. Close ends its workers.
func NewDecoder(c *Cache, o DecodeOptions) (*Decoder, error) {
	switch {
	case o.QueryHeads < c.shape.Heads || o.QueryHeads%c.shape.Heads != 0:
		return nil, fmt.Errorf("%d query heads over %d KV heads: want a multiple", o.QueryHeads, c.shape.Heads)
	case o.Window < 0 || o.Threads < 1 || o.Threads > 1024:
		return nil, fmt.Errorf("window %d, %d threads: want at least 0 and 1", o.Window, o.Threads)
	case !(math.Abs(o.Scale) <= math.MaxFloat32):
		return nil, fmt.Errorf("scale %v is not finite", o.Scale)
	}
	backend := active.Load()
	d := &Decoder{
		options: o, shape: c.shape, k: c.k.format, v: c.v.format,
		grouped: o.QueryHeads / c.shape.Heads,
		kern:    &backend.decode, codec: &backend.codec, even: c.Fused(),
		left:  make([]atomic.Int32, c.shape.Heads),
		items: newParts(o.Threads),
		done:  make(chan struct{}, 1),
	}
	maxChunks := c.shape.Tokens/(chunkPages*pageTokens) + 3
	d.partial = make([]partial, o.QueryHeads*maxChunks)
	d.outputs = alignedFloats(len(d.partial) * roundUp(c.shape.DimV, laneWidth))
	for range o.Threads {
		d.workers = append(d.workers, newDecodeWorker(d, c, len(d.workers)))
	}
	for _, w := range d.workers[1:] {
		wake := make(chan struct{}, 1)
		d.wake = append(d.wake, wake)
		d.closed.Add(1)
		go func() {
			defer d.closed.Done()
			for range wake {
				w.run()
			}
		}()
	}
	return d, nil
}

// Close ends the decoder's workers.
func (d *Decoder) Close() {
	for _, wake := range d.wake {
		close(wake)
	}
	d.wake = nil
	d.closed.Wait()
}

// Kernel names the path a step takes: fused- and the backend's name, or generic for
// portable code and for formats that no fused kernel reads.
func (d *Decoder) Kernel() string {
	if !d.even {
		return "generic"
	}
	return d.kern.name
}

// Step attends to every token of c, or to the last Window of them. q holds
// QueryHeads rows of DimK, out gets QueryHeads rows of DimV. The queries must be finite.
func (d *Decoder) Step(c *Cache, out, q []float32) error {
	if c.shape != d.shape || c.k.format != d.k || c.v.format != d.v {
		return fmt.Errorf("decode step: the cache is not of the decoder's shape and formats")
	}
	if len(q) != d.options.QueryHeads*d.shape.DimK || len(out) != d.options.QueryHeads*d.shape.DimV {
		return fmt.Errorf("decode step: %d query and %d output elements: want %d and %d", len(q), len(out),
			d.options.QueryHeads*d.shape.DimK, d.options.QueryHeads*d.shape.DimV)
	}
	if c.tokens == 0 {
		return fmt.Errorf("decode step: the cache is empty")
	}
	if i := IndexNonFinite(q); i >= 0 {
		return fmt.Errorf("decode step: query head %d, channel %d is not finite", i/d.shape.DimK, i%d.shape.DimK)
	}
	d.cache, d.out, d.q = c, out, q
	d.first = 0
	if d.options.Window > 0 {
		d.first = max(0, c.tokens-d.options.Window)
	}
	d.chunks = chunksOf(tiles(c.front())) + chunksOf(c.pages) + chunksOf(tiles(c.tail()))
	for i := range d.left {
		d.left[i].Store(int32(d.chunks))
	}
	d.items.reset(d.chunks * d.shape.Heads)
	d.pending.Store(int32(len(d.workers)))
	for _, wake := range d.wake {
		wake <- struct{}{}
	}
	d.workers[0].run()
	<-d.done
	d.cache, d.out, d.q = nil, nil, nil
	return nil
}

// alignedFloats returns n zero floats that start on a cache line.
func alignedFloats(n int) []float32 {
	b := alignedBytes(4 * n)
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// An arena hands out pieces of one area, each starting at a multiple of 16 bytes, of
// 64 where it is that long.
type arena struct{ left []byte }

func newArena(n int) *arena { return &arena{alignedBytes(n)} }

func (a *arena) bytes(n int) []byte {
	if n >= lineBytes {
		skip := -int(uintptr(unsafe.Pointer(&a.left[0]))) & (lineBytes - 1)
		a.left = a.left[skip:]
	}
	b := a.left[:n:n]
	a.left = a.left[roundUp(n, 16):]
	return b
}

func (a *arena) floats(n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(a.bytes(4*n)))), n)
}

func (a *arena) ints(n int) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(a.bytes(4*n)))), n)
}

func alignedBytes(n int) []byte {
	b := make([]byte, n+2*lineBytes)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (lineBytes - 1)
	return b[skip : skip+n : skip+n]
}

// blockState is what a worker keeps for up to four query heads of the KV head in
// hand: the folded query, and the softmax and output so far in this chunk.
type blockState struct {
	heads int
	q     []float32 // scaled queries, in powers of two a unit of K
	x     []float32 // what K's float tiles multiply: q, times scales that all pages share
	coef  []byte    // folded queries: sets of headBlock·coefBytes
	unit  []float32 // [set][headBlock]
	add   []float32 // [set][headBlock]
	bias  []int32   // [segment][headBlock]
	share []float32 // [group][headBlock]: what a token's offset is multiplied with

	top, sum []float32 // running maximum [head]; sums [head][lane]
	codeSum  []float32 // [head]: Σ of the integer probabilities, in units of the output
	offsets  []float32 // [set][head][lane]: Σ p·offset of V's tokens
	o        []float32 // outputs, block by block of lanes [head]
	sparse   []float32 // outputs of V's outliers [head], a row of lanes each
}

// decodeWorker is one thread's scratch.
type decodeWorker struct {
	d      *Decoder
	number int // of the worker in d
	kern   *decodeKernels
	kTiles *intTiles // of integer K
	vTiles *intTiles
	kFloat *floatTiles // of K in floats
	vFloat *floatTiles
	kWide  *expander // nil where tiles read K's pages as they are
	vWide  *expander
	k, v   layout
	tk, tv layout // of float32 tiles
	head   int    // KV head whose queries are folded; −1: none
	blocks []blockState

	kScale, kOffset, vScale, vOffset []float32 // a page's metadata as float32
	kWeight, vWeight                 []int32   // a page's biases as integers
	vCentre                          []int32   // the bias that all of a head's values have
	z                                []float32 // scores, then probabilities
	sums                             []int32
	r, ones, zeros                   []float32
	vCoef                            []byte
	vUnit, vAdd                      []float32 // [headBlock]
	vSums                            []int32   // [headBlock][biasStride]
	vBias                            []int32   // [headBlock]
	lanes                            []float32 // [head][lane]
	line                             []float32 // one row of values
	turned                           []float32 // what turning keys needs room for
	row                              int       // distance of the rows of queries and of their planes
	ahead                            []byte    // what is left to ask for of the page to come
	piece                            int       // how much of it is asked for at once
}

func newDecodeWorker(d *Decoder, c *Cache, number int) *decodeWorker {
	w := &decodeWorker{d: d, number: number, kern: d.kern, k: c.k.layout, v: c.v.layout, head: -1}
	w.tk, w.tv = c.tk, c.tv
	w.kTiles, w.vTiles = d.kern.intTiles(&c.k), d.kern.intTiles(&c.v)
	w.kFloat, w.vFloat = d.kern.floatTiles(w.k.store), d.kern.floatTiles(w.v.store)
	w.kWide, w.vWide = newExpander(&c.k, d.kern, d.codec), newExpander(&c.v, d.kern, d.codec)
	w.row = roundUp(w.tk.reduced, pageTokens)
	kGroups, vSets := max(1, len(w.k.segments)), max(1, w.v.sets)
	outputs := roundUp(w.tv.lanes, blockWide) * headBlock
	meta := func(s *side) int { return max(s.n, roundUp(s.dim, laneWidth), pageTokens) + blockWide }
	// One dense area holds what every page touches, the parts that all formats use
	// in front: lines that are scattered are lost to the stream of codes between one
	// page and the next.
	a := newArena(headBlock*(pageTokens+valuePlane+laneWidth+w.row*(3+w.k.sets)+outputs+8*laneWidth+2*kGroups+vSets*laneWidth)*4*(d.grouped+headBlock-1) +
		4*(2*meta(&c.k)+2*meta(&c.v))*4 + 8*headBlock*max(w.k.sums, w.v.sums) + 1<<14)
	w.z = a.floats(headBlock * pageTokens)
	w.vCoef = a.bytes(2 * headBlock * valuePlane)
	w.vUnit, w.vBias, w.vAdd, w.r = a.floats(headBlock), a.ints(headBlock), a.floats(headBlock), a.floats(headBlock)
	w.vScale = a.floats(meta(&c.v))
	scaledQuery := c.k.layout.store.scaled() && c.k.whole || c.turner != nil
	if c.turner != nil {
		w.turned = alignedFloats(2 * w.tk.reduced * blockWide)
	}
	for h := 0; h < d.grouped; h += headBlock {
		w.blocks = append(w.blocks, blockState{
			heads:   min(headBlock, d.grouped-h),
			top:     a.floats(headBlock),
			unit:    a.floats(2 * headBlock),
			add:     a.floats(2 * headBlock),
			bias:    a.ints(kGroups * headBlock),
			sum:     a.floats(headBlock * laneWidth),
			coef:    a.bytes(w.k.sets * 2 * headBlock * w.row),
			o:       a.floats(outputs),
			q:       a.floats(headBlock * w.row),
			share:   a.floats(kGroups * headBlock),
			codeSum: a.floats(headBlock),
			offsets: a.floats(vSets * headBlock * laneWidth),
		})
		b := &w.blocks[len(w.blocks)-1]
		if b.x = b.q; scaledQuery {
			b.x = a.floats(headBlock * w.row)
		}
	}
	if c.v.format.Outliers > 0 {
		for i := range w.blocks {
			w.blocks[i].sparse = alignedFloats(headBlock * w.tv.lanes)
		}
	}
	w.kScale, w.kOffset, w.vOffset = a.floats(meta(&c.k)), a.floats(meta(&c.k)), a.floats(meta(&c.v))
	w.kWeight, w.vWeight = a.ints(meta(&c.k)), a.ints(meta(&c.v))
	w.sums = a.ints(headBlock * max(w.k.sums, w.v.sums))
	w.zeros, w.lanes = a.floats(headBlock), a.floats(headBlock*laneWidth)
	w.vSums = a.ints(headBlock * biasStride)
	w.ones = alignedFloats(max(maxDim, w.tk.reduced))
	for i := range w.ones {
		w.ones[i] = 1
	}
	w.line = alignedFloats(roundUp(w.tv.lanes, blockWide))
	w.vCentre = a.ints(pageTokens)
	for i := range w.vCentre {
		w.vCentre[i] = c.v.format.centre()
	}
	for i := range w.kWeight {
		w.kWeight[i] = c.k.format.centre()
	}
	return w
}

func (k *decodeKernels) intTiles(s *side) *intTiles {
	switch s.layout.store {
	case storeInt4:
		return &k.int4
	case storeLevels:
		table := s.format.levels()
		tiles := k.levels(&table)
		return &tiles
	}
	return &k.int8
}

func (k *decodeKernels) floatTiles(s storage) *floatTiles {
	switch s {
	case storeF16:
		return &k.f16
	case storeBF16:
		return &k.bf16
	case storeE4M3:
		return &k.e4m3
	case storeE5M2:
		return &k.e5m2
	}
	return &k.f32
}

// run takes chunks until none is left. The worker that finishes a head's last
// chunk merges the head.
func (w *decodeWorker) run() {
	d := w.d
	w.head = -1
	for item := d.items.take(w.number); item >= 0; item = d.items.take(w.number) {
		h, chunk := item/d.chunks, item%d.chunks
		w.chunk(h, chunk)
		if d.left[h].Add(-1) == 0 {
			w.mergeHead(h)
		}
	}
	if d.pending.Add(-1) == 0 {
		d.done <- struct{}{}
	}
}

// chunk attends to one chunk of KV head h and leaves its partial result.
func (w *decodeWorker) chunk(h, chunk int) {
	d, c := w.d, w.d.cache
	hd := &c.heads[h]
	// The chunk is part of a run: its token 0, its length in tokens, and its own number in it.
	run, start, length, i := &hd.front, 0, c.front(), chunk
	if n := chunksOf(tiles(length)); i >= n {
		run, start, length, i = nil, length, c.pages*pageTokens, i-n
	}
	if n := chunksOf(tiles(length)); run == nil && i >= n {
		run, start, length, i = &hd.tail, start+length, c.tail(), i-n
	}
	first, last := i*chunkPages, min((i+1)*chunkPages, tiles(length))
	first = max(first, (d.first-start)/pageTokens)
	if d.first >= start+length || first >= last {
		for j := range d.grouped {
			d.partial[(h*d.grouped+j)*d.chunks+chunk] = partial{top: float32(math.Inf(-1))}
		}
		return
	}
	if w.head != h {
		w.foldQueries(h)
		w.head = h
	}
	for i := range w.blocks {
		w.blocks[i].reset()
	}
	if run != nil {
		for p := first; p < last; p++ {
			tileK, tileV := run.tile(p)
			for i := range w.blocks {
				w.floatPage(&w.blocks[i], tileK, tileV, max(0, d.first-start-p*pageTokens), min(pageTokens, length-p*pageTokens))
			}
		}
		w.finish(h, chunk, nil)
		return
	}
	w.attend(hd, first, last)
	w.finish(h, chunk, hd)
}

// keyPath and valuePath are the ways through a page: which of its metadata is read,
// and how scales meet scores and probabilities.
type (
	keyPath   uint8
	valuePath uint8
)

const (
	keyFloat   keyPath = iota // floats, scaled where they were expanded or in the query
	keyScaled                 // floats with a scale per token
	keyWhole                  // scales that a head or a column shares: they are in the query
	keyHalf                   // float16 scales per token or groups of its channels, no offsets
	keyGroups                 // any other scales per token
	keyChannel                // a scale per channel and block of tokens: a new query for each

	valueFloat   valuePath = iota // floats, scaled where they were expanded or at the end
	valueScaled                   // floats with a scale per token
	valueWhole                    // scales that a head or a column shares: the output gets them at the end
	valueToken                    // one float16 scale a token, no zero point
	valueSets                     // any other scales per token
	valueChannel                  // a scale per channel and block of tokens
)

// plainHalves says whether a side's metadata are float16 scales and nothing else.
func (s *side) plainHalves() bool {
	return s.format.Zero == ZeroSym && s.format.Meta == MetaF16 && !s.factored
}

func keyPathOf(s *side) keyPath {
	f := s.format
	switch {
	case s.layout.store.scaled() && f.Share == ShareToken:
		return keyScaled
	case !s.layout.store.integer():
		return keyFloat
	case f.Share == ShareToken && s.plainHalves():
		return keyHalf
	case f.Share == ShareToken:
		return keyGroups
	case f.Share == ShareChannel && f.Group > 0:
		return keyChannel
	}
	return keyWhole
}

func valuePathOf(s *side) valuePath {
	f := s.format
	switch {
	case s.layout.store.scaled() && f.Share == ShareToken:
		return valueScaled
	case !s.layout.store.integer():
		return valueFloat
	case f.Share == ShareToken && f.groups(s.dim) == 1 && f.Zero != ZeroPoint && f.Meta == MetaF16 && !s.factored && !s.signed:
		return valueToken
	case f.Share == ShareToken:
		return valueSets
	case f.Share == ShareChannel && f.Group > 0:
		return valueChannel
	}
	return valueWhole
}

// fetchAhead asks for the next piece of the page to come.
func (w *decodeWorker) fetchAhead() {
	if n := min(w.piece, len(w.ahead)); n > 0 {
		w.kern.fetchFar(w.ahead[:n])
		w.ahead = w.ahead[n:]
	}
}

// fetchOver is how much metadata may stand between the codes of two pages before it
// is fetched at once, in order: a longer gap ends the stream that the machine reads
// ahead, and reading the metadata when it is needed is too late to keep it going.
const fetchOver = 4 * lineBytes

// attend attends to pages first to last of a head: by the backend's stream where that
// knows the formats, but for a page of which the window leaves a part.
func (w *decodeWorker) attend(hd *head, first, last int) {
	if stream := w.kern.stream; stream != nil {
		if w.d.first-w.d.cache.origin > first*pageTokens {
			w.pages(hd, first, first+1)
			first++
		}
		if first == last || stream(w, hd, first, last) {
			return
		}
	}
	w.pages(hd, first, last)
}

// pages attends to pages first to last of a head. It is one function, and asks the
// cache's description nothing inside the loop: while codes stream past, every other
// line that is touched between two pages may cost the machine its place in the
// stream that it reads ahead.
func (w *decodeWorker) pages(hd *head, first, last int) {
	d, c, kern, kTiles, vTiles := w.d, w.d.cache, w.kern, w.kTiles, w.vTiles
	z, r, coef, bias, unit, row := w.z, w.r, w.vCoef, w.vBias, w.vUnit, w.row
	kPath, vPath := keyPathOf(&c.k), valuePathOf(&c.v)
	kSegments, vSegments := w.k.segments, w.v.segments
	kBytes, vBytes := c.k.bytes, c.v.bytes
	kFloat, vFloat, kWide, vWide := w.kFloat, w.vFloat, w.kWide, w.vWide
	kOffsets, vOffsets := c.k.format.Zero != ZeroSym, c.v.format.Zero != ZeroSym
	columnPoint := vPath == valueWhole && c.v.format.Share == ShareChannel && c.v.format.Zero == ZeroPoint
	centre := int(w.vCentre[0])
	// Plain float16 scales are folded as they are, unless a vector of 32 reads past them.
	kFormat, vFormat := c.k.format, c.v.format
	kHalves := c.k.plainHalves() && w.k.reduced%blockWide == 0
	vHalves := c.v.plainHalves()
	// Scales of values that are made whole: the page's, or what the head shares.
	kScale, kOffset, vScale, vOffset := w.kScale, w.kOffset, w.vScale, w.vOffset
	if c.k.whole {
		kScale, kOffset = hd.kScale, hd.kOffset
		if c.k.expand == toValues && kFormat.Codec == CodecInt {
			kOffset = w.kOffset[:len(kScale)]
			for i, scale := range kScale {
				kOffset[i] = centredOffset(scale, hd.kOffset[i], kFormat)
			}
		}
	}
	if c.v.whole {
		vScale, vOffset = hd.vScale, hd.vOffset
	}
	pieces := len(kSegments) + len(vSegments) // of a page, each asked for after a tile
	for p := first; p < last; p++ {
		nk, nv := c.metaBytes(p, &c.k), c.metaBytes(p, &c.v)
		page := hd.pages[(p/c.period)*c.periodSize+c.pageAt[p%c.period]:]
		kMeta, vMeta := page[:nk], page[nk:nk+nv]
		kCodes, vCodes := page[nk+nv:nk+nv+kBytes], page[nk+nv+kBytes:nk+nv+kBytes+vBytes]
		if nk+nv > fetchOver {
			kern.fetch(page[:nk+nv])
		}
		// A page that shares an earlier page's metadata needs it only where this
		// chunk did not start there.
		if p == first && nk == 0 && c.k.n > 0 {
			kMeta, _, _, _ = c.page(hd, p-p%c.k.every)
		}
		if p == first && nv == 0 && c.v.n > 0 {
			_, vMeta, _, _ = c.page(hd, p-p%c.v.every)
		}
		if (kPath == keyGroups || kPath == keyChannel || kPath <= keyScaled) && len(kMeta) > 0 {
			if kPath == keyChannel && kHalves {
				w.foldHalves(kMeta, kFormat)
			} else {
				w.readMeta(&c.k, kMeta, w.kScale, w.kOffset, w.kWeight, hd.kFactor)
				if kPath == keyChannel {
					w.foldPage(&c.k)
				}
			}
		}
		if (vPath == valueSets && !vHalves || vPath == valueChannel || vPath == valueToken && vOffsets || vPath <= valueScaled) && len(vMeta) > 0 {
			w.readMeta(&c.v, vMeta, w.vScale, w.vOffset, w.vWeight, hd.vFactor)
		}
		if kWide != nil {
			kCodes = kWide.page(kCodes, kScale, kOffset, hd.kBook, p)
		}
		if vWide != nil {
			vCodes = vWide.page(vCodes, vScale, vOffset, hd.vBook, p)
		}
		kOut, vOut := hd.kOut.page(p), hd.vOut.page(p)
		if c.turner != nil {
			w.turnKeys(kWide.values, hd.kMean, kOut)
			kOut = nil
		}
		// Widening reads a page in one go, and what the machine reads ahead on its own is
		// little beside that: the next page is asked for while tiles work on this one.
		w.ahead = nil
		if p+1 < last && (kWide != nil || vWide != nil) {
			at := nk + nv + kBytes + vBytes
			n := c.pageBytes(p + 1)
			w.ahead = page[at : at+n]
			w.piece = roundUp((n+pieces-1)/pieces, lineBytes)
		}
		for i := range w.blocks {
			b := &w.blocks[i]
			switch kPath {
			case keyFloat, keyScaled:
				if c.turner != nil {
					c.turner.queries(b.x, b.q, row, b.heads, p)
				}
				n := len(kCodes) / 2
				for k := range 2 { // blocks of 32 tokens
					kFloat.score(z[k*blockWide:], kCodes[k*n:], b.x, row, b.heads, 1, kSegments[0].steps)
					w.fetchAhead()
				}
				if kPath == keyFloat {
					break
				}
				w.d.codec.multiplyColumns(z[:b.heads*pageTokens], z[:b.heads*pageTokens], w.kScale[:pageTokens], pageTokens)
			case keyHalf:
				kTiles.scoreHalf(z, kCodes, b.coef, row, b.bias, b.unit, kMeta, b.heads, 2, kSegments[0].steps, 0)
				w.fetchAhead()
				for i := 1; i < len(kSegments); i++ {
					s := &kSegments[i]
					kTiles.scoreHalfAdd(z, kCodes[s.codes:], b.coef, row, b.bias[i*headBlock:], b.unit, kMeta[2*pageTokens*i:], b.heads, 2, s.steps, s.first)
					w.fetchAhead()
				}
			case keyGroups:
				for i := range kSegments {
					s := &kSegments[i]
					kTiles.sums(w.sums[s.sums*b.heads:], kCodes[s.codes:], b.coef, row, b.bias[i*headBlock:], b.heads, s.lanes, s.blocks, s.steps, s.first)
					w.fetchAhead()
				}
				if kOffsets {
					kern.scoreToken(z, w.sums, b.unit, w.kScale, w.kOffset, b.share, b.heads, len(kSegments))
				} else {
					kern.scoreToken(z, w.sums, b.unit, w.kScale, nil, nil, b.heads, len(kSegments))
				}
			default:
				for i := range kSegments {
					s := &kSegments[i]
					at := s.set * headBlock
					kTiles.score(z[s.lane:], kCodes[s.codes:], b.coef[at*2*row:], row, b.bias[i*headBlock:], b.unit[at:], b.add[at:], b.heads, s.blocks, s.steps, 0)
					w.fetchAhead()
				}
			}
			if kOut != nil {
				w.sparseScores(b, kOut)
			}
			if low := d.first - c.origin - p*pageTokens; low > 0 {
				w.mask(b, low, pageTokens)
			}
			inTiles := true // codes are multiplied behind the switch
			switch vPath {
			case valueFloat, valueScaled:
				kern.softmax(z, b.top, r, b.sum, b.heads)
				if vPath == valueScaled {
					if len(b.sparse) > 0 {
						w.sparseValues(b, vOut)
					}
					w.d.codec.multiplyColumns(z[:b.heads*pageTokens], z[:b.heads*pageTokens], w.vScale[:pageTokens], pageTokens)
				}
				for i := range vSegments {
					s := &vSegments[i]
					vFloat.value(b.o[outputAt(s.lane):], vCodes[s.codes:], z, pageTokens, r, b.heads, s.lanes, s.blocks, s.steps)
					w.fetchAhead()
				}
				inTiles = false
			case valueSets, valueChannel:
				kern.softmax(z, b.top, r, b.sum, b.heads)
				if vPath == valueSets {
					w.valueSets(b, vFormat, vHalves, vMeta, vCodes)
				} else {
					w.valueChannels(b, &c.v, vCodes)
				}
				inTiles = false
			case valueToken:
				kern.softmaxFoldHalf(z, b.top, r, b.sum, coef, unit, bias, vMeta, w.vScale, centre, b.heads)
				if vOffsets {
					kern.laneDot(b.offsets, z, pageTokens, w.vOffset, r, b.heads, pageTokens)
				}
			default:
				kern.softmaxFold(z, b.top, r, b.sum, coef, unit, bias, nil, centre, b.heads)
				if columnPoint {
					for j := range b.heads {
						b.codeSum[j] = float32(b.codeSum[j]*r[j]) + float32(float32(bias[j]/int32(centre))*unit[j])
					}
				}
			}
			for i := 0; inTiles && i < len(vSegments); i++ {
				s := &vSegments[i]
				vTiles.value(b.o[outputAt(s.lane):], vCodes[s.codes:], coef, valuePlane, bias, r, unit, b.heads, s.lanes, s.blocks, s.steps, 0)
				w.fetchAhead()
			}
			if len(b.sparse) > 0 && vPath != valueScaled {
				w.sparseValues(b, vOut)
			}
		}
	}
}

// valueSets adds a page's values to b's outputs where groups of channels have scales
// of their own for each token: a set of multiplicands for every group.
func (w *decodeWorker) valueSets(b *blockState, f Format, halves bool, meta, codes []byte) {
	kern := w.kern
	set := -1
	for i := range w.v.segments {
		s := &w.v.segments[i]
		if s.set != set {
			set = s.set
			at := set * pageTokens
			switch {
			case halves:
				kern.foldHalf(w.vCoef, valuePlane, w.vUnit, w.vBias, w.z, pageTokens, meta[2*at:], w.vScale, planeLimit, int(f.centre()), b.heads, pageTokens)
			case f.Zero == ZeroPoint:
				kern.foldWeighted(w.vCoef, valuePlane, w.vUnit, w.vSums, w.z, pageTokens, w.vScale[at:], w.vWeight[at:], planeLimit, b.heads, pageTokens)
				for j := range b.heads {
					w.vBias[j] = w.vSums[j*biasStride] + w.vSums[j*biasStride+1]
				}
			default:
				kern.fold(w.vCoef, valuePlane, w.vUnit, w.vBias, w.z, pageTokens, w.vScale[at:], planeLimit, int(f.centre()), b.heads, pageTokens)
			}
			if f.shifted() {
				kern.laneDot(b.offsets[set*headBlock*laneWidth:], w.z, pageTokens, w.vOffset[at:at+pageTokens], w.r, b.heads, pageTokens)
			}
		}
		w.vTiles.value(b.o[outputAt(s.lane):], codes[s.codes:], w.vCoef, valuePlane, w.vBias, w.r, w.vUnit, b.heads, s.lanes, s.blocks, s.steps, 0)
		w.fetchAhead()
	}
}

// valueChannels adds a page's values to b's outputs where a channel has a scale for
// a block of tokens.
func (w *decodeWorker) valueChannels(b *blockState, v *side, codes []byte) {
	f, kern := v.format, w.kern
	kern.foldWeighted(w.vCoef, valuePlane, w.vUnit, w.vSums, w.z, pageTokens, nil, w.vCentre, planeLimit, b.heads, pageTokens)
	r := w.r
	for i := range w.v.segments {
		s := &w.v.segments[i]
		n := s.steps * w.v.store.step()
		for j := range b.heads {
			w.vBias[j] = sumBias(w.vSums[j*biasStride+s.first/blockWide:], n)
		}
		w.vTiles.sums(w.sums, codes[s.codes:], w.vCoef, valuePlane, w.vBias, b.heads, s.lanes, s.blocks, s.steps, s.first)
		at := s.group*w.v.lanes + s.lane
		var offset []float32
		switch f.Zero {
		case ZeroPoint: // the sum of the rounded probabilities
			offset = w.vOffset[at:]
			for j := range b.heads {
				w.vAdd[j] = float32(float32(w.vBias[j]/f.centre()) * w.vUnit[j])
			}
		case ZeroAsym:
			offset = w.vOffset[at:]
			kern.laneDot(w.lanes, w.z[s.first:], pageTokens, w.ones, w.zeros, b.heads, n)
			for j := range b.heads {
				w.vAdd[j] = sumLanes(w.lanes[j*laneWidth:])
			}
		}
		if s.group > 0 {
			r = w.ones
		}
		w.fetchAhead()
		kern.accumulateScaled(b.o[outputAt(s.lane):], w.sums, r, w.vUnit, w.vScale[at:], w.vAdd, offset, b.heads, s.lanes, s.blocks)
	}
}

// outputAt is where the outputs of blocks of lanes begin.
func outputAt(lane int) int { return lane/valueRow*valueBlock + lane%valueRow }

func (b *blockState) reset() {
	for i := range b.top {
		b.top[i] = float32(math.Inf(-1))
	}
	clear(b.sum)
	clear(b.codeSum)
	clear(b.offsets)
	clear(b.o)
	clear(b.sparse)
}

// foldQueries scales the queries of KV head h and, where K's codes are integers
// under scales that all pages have in common, turns them into multiplicands.
func (w *decodeWorker) foldQueries(h int) {
	d := w.d
	scale := float32(d.options.Scale * log2e)
	dim := d.shape.DimK
	folds := d.cache.pages > 0
	if v := &d.cache.v; folds && v.whole && v.format.Zero == ZeroPoint && v.format.Share != ShareChannel {
		for i := range w.vCentre {
			w.vCentre[i] = int32(d.cache.heads[h].vOffset[0])
		}
	}
	for i := range w.blocks {
		b := &w.blocks[i]
		for j := range b.heads {
			q := d.q[(h*d.grouped+i*headBlock+j)*dim:][:dim]
			w.kern.multiply(b.q[j*w.row:][:dim], q, scale)
		}
		s, hd := &d.cache.k, &d.cache.heads[h]
		if folds && w.k.store.scaled() && s.whole {
			for j := range b.heads {
				w.scaleQuery(b.x[j*w.row:][:dim], b.q[j*w.row:][:dim], s, hd)
			}
		}
		if !folds || !w.k.store.integer() {
			continue
		}
		if s.format.Share == ShareChannel && s.format.Group > 0 {
			continue // folded page by page
		}
		w.foldWhole(b, s, hd)
	}
}

// scaleQuery multiplies a query with the scales that all pages of a head share.
func (w *decodeWorker) scaleQuery(dst, q []float32, s *side, hd *head) {
	if s.format.Share == ShareChannel {
		w.d.codec.multiplyColumns(dst, q, hd.kScale[:len(q)], len(q))
	} else {
		w.kern.multiply(dst, q, hd.kScale[0])
	}
}

// foldWhole folds the queries of block b under scales that the whole head shares,
// or under none (scales per token).
func (w *decodeWorker) foldWhole(b *blockState, s *side, hd *head) {
	f, n := s.format, roundUp(w.k.reduced, blockWide)
	var scale []float32
	if f.Share == ShareChannel {
		scale = hd.kScale
	}
	limit := planeLimitOf(f, w.k.reduced)
	switch {
	case f.Zero == ZeroPoint && f.Share == ShareChannel:
		weight := w.kWeight[:n]
		for c := range weight {
			weight[c] = int32(hd.kOffset[c])
		}
		w.kern.foldWeighted(b.coef, w.row, b.unit, w.vSums, b.q, w.row, scale, weight, limit, b.heads, n)
		for j := range b.heads {
			b.bias[j] = sumBias(w.vSums[j*biasStride:], n)
		}
	case f.Zero == ZeroPoint && f.Share != ShareToken:
		w.kern.fold(b.coef, w.row, b.unit, b.bias, b.q, w.row, scale, limit, int(hd.kOffset[0]), b.heads, n)
	default:
		w.kern.fold(b.coef, w.row, b.unit, b.bias, b.q, w.row, scale, limit, int(f.centre()), b.heads, n)
	}
	for j := range b.heads {
		b.add[j] = 0
		q := b.q[j*w.row:][:s.dim]
		switch f.Share {
		case ShareToken:
			w.foldGroups(b, s, j, q)
			continue
		case ShareChannel:
			if f.Zero == ZeroAsym {
				var sum float64
				for c, v := range q {
					sum += float64(float64(v) * float64(centredOffset(hd.kScale[c], hd.kOffset[c], f)))
				}
				b.add[j] = float32(sum)
			}
		default:
			if f.Zero == ZeroAsym {
				b.add[j] = float32(sumOf(q) * float64(centredOffset(hd.kScale[0], hd.kOffset[0], f)))
			}
			b.unit[j] *= hd.kScale[0]
		}
	}
}

// foldGroups sets the biases of the groups of a token: the codes' centre times the
// sum of the group's multiplicands; and what the offset of a group is multiplied
// with: the sum of the queries, for zero points that of the rounded integers.
func (w *decodeWorker) foldGroups(b *blockState, s *side, j int, q []float32) {
	f := s.format
	var amax float32
	for _, v := range q {
		amax = max(amax, float32(math.Abs(float64(v))))
	}
	var factor float32
	if amax >= smallestFold {
		factor = planeLimitOf(f, w.k.reduced) / amax
	}
	group := f.Group
	if len(w.k.segments) == 1 && f.Zero == ZeroSym {
		return // fold has done it
	}
	if group == 0 {
		group = s.dim
	}
	for g := range w.k.segments {
		part := q[min(g*group, s.dim):min((g+1)*group, s.dim)]
		var units int32
		for _, v := range part {
			units += int32(math.RoundToEven(float64(float32(v * factor))))
		}
		b.bias[g*headBlock+j] = units * f.centre()
		if f.Zero == ZeroPoint {
			b.share[g*headBlock+j] = float32(units) * b.unit[j]
		} else {
			b.share[g*headBlock+j] = float32(sumOf(part))
		}
	}
}

func sumOf(x []float32) float64 {
	var sum float64
	for _, v := range x {
		sum += float64(v)
	}
	return sum
}

func sumBias(parts []int32, n int) int32 {
	var sum int32
	for _, v := range parts[:(n+blockWide-1)/blockWide] {
		sum += v
	}
	return sum
}

// planeLimitOf is the largest multiplicand over a reduction of n codes: n codes of
// the full range must not leave 32 bits.
func planeLimitOf(f Format, n int) float32 {
	return float32(min(planeLimit, math.MaxInt32/(n*f.top())))
}

// centredOffset is what is added to scale·(field − centre).
func centredOffset(scale, offset float32, f Format) float32 {
	if f.Zero == ZeroPoint {
		return scale * (float32(f.centre()) - offset)
	}
	return float32(scale*float32(f.centre())) + offset
}

// readMeta widens a page's metadata: scales times factor; the offsets that bring the
// other zero forms to the centre; and for ZeroPoint the biases as integers.
func (w *decodeWorker) readMeta(s *side, meta []byte, scale, offset []float32, weight []int32, factor float32) {
	scale, at := scale[:s.n], meta[s.offsetsAt:]
	switch s.format.Meta {
	case MetaF16:
		w.kern.widen(scale, meta)
	case MetaE8M0:
		w.kern.widenE8M0(scale, meta)
	case MetaE4M3:
		w.d.codec.fromE4M3(scale, meta[:s.n])
	default:
		copy(scale, floatsOf(meta[:4*s.n]))
	}
	if factor != 1 {
		w.kern.multiply(scale, scale, factor)
	}
	offset = offset[:s.n]
	switch s.format.Zero {
	case ZeroSym:
		return
	case ZeroPoint:
		for i, b := range at[:s.n] {
			weight[i] = int32(b)
			offset[i] = float32(scale[i] * float32(s.format.centre()-int32(b)))
		}
		return
	case ZeroMiddle:
		w.kern.multiply(offset, scale, 0.5)
		return
	}
	if s.offsetBytes == 2 {
		w.kern.widen(offset, at)
	} else {
		copy(offset, floatsOf(at[:4*s.n]))
	}
	if s.format.centre() != 0 {
		w.kern.merge(offset, scale, 1, float32(s.format.centre()))
	}
}

func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

func floatsOf(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// foldHalves folds the queries of every block under a page's float16 scales per channel.
func (w *decodeWorker) foldHalves(meta []byte, f Format) {
	n := w.k.reduced
	for i := range w.blocks {
		b := &w.blocks[i]
		for set := range w.k.sets {
			at := set * headBlock
			w.kern.foldHalf(b.coef[at*2*w.row:], w.row, b.unit[at:], b.bias[at:], b.q, w.row, meta[2*set*n:], w.kScale, planeLimitOf(f, n), int(f.centre()), b.heads, n)
		}
	}
}

// foldPage folds the queries of every block under the scales per channel in hand.
func (w *decodeWorker) foldPage(s *side) {
	f := s.format
	n := w.k.reduced
	folded := roundUp(n, blockWide) // past n the query is zero
	for i := range w.blocks {
		b := &w.blocks[i]
		for set := range w.k.sets {
			at := set * n
			coef, unit, bias := b.coef[set*2*headBlock*w.row:], b.unit[set*headBlock:], b.bias[set*headBlock:]
			if f.Zero == ZeroPoint {
				w.kern.foldWeighted(coef, w.row, unit, w.vSums, b.q, w.row, w.kScale[at:], w.kWeight[at:], planeLimitOf(f, n), b.heads, folded)
				for j := range b.heads {
					bias[j] = sumBias(w.vSums[j*biasStride:], n)
				}
			} else {
				w.kern.fold(coef, w.row, unit, bias, b.q, w.row, w.kScale[at:], planeLimitOf(f, n), int(f.centre()), b.heads, folded)
			}
			clear(b.add[set*headBlock:][:headBlock])
			if f.Zero == ZeroAsym {
				w.kern.laneDot(w.lanes, b.q, w.row, w.kOffset[at:at+n], w.zeros, b.heads, n)
				for j := range b.heads {
					b.add[set*headBlock+j] = sumLanes(w.lanes[j*laneWidth:])
				}
			}
		}
	}
}

// mask drops the tokens of a page outside low ≤ t < high.
func (w *decodeWorker) mask(b *blockState, low, high int) {
	for h := range b.heads {
		row := w.z[h*pageTokens:][:pageTokens]
		for t := range row {
			if t < low || t >= high {
				row[t] = float32(math.Inf(-1))
			}
		}
	}
}

// floatPage attends with block b to one page of float32 tiles.
func (w *decodeWorker) floatPage(b *blockState, tileK, tileV []byte, low, high int) {
	w.kern.f32.score(w.z, tileK, b.q, w.row, b.heads, 2, w.tk.segments[0].steps)
	if low > 0 || high < pageTokens {
		w.mask(b, low, high)
	}
	w.kern.softmax(w.z, b.top, w.r, b.sum, b.heads)
	for i := range w.tv.segments {
		s := &w.tv.segments[i]
		w.kern.f32.value(b.o[outputAt(s.lane):], tileV[s.codes:], w.z, pageTokens, w.r, b.heads, s.lanes, s.blocks, s.steps)
	}
}

// finish applies what V's whole head or column shares and leaves the partials of
// a chunk. hd is nil for a chunk that was read as float32.
func (w *decodeWorker) finish(h, chunk int, hd *head) {
	d := w.d
	lanes := w.tv.lanes
	for i := range w.blocks {
		b := &w.blocks[i]
		for j := range b.heads {
			at := (h*d.grouped+i*headBlock+j)*d.chunks + chunk
			p := &d.partial[at]
			p.top, p.sum = b.top[j], sumLanes(b.sum[j*laneWidth:])
			o := d.outputs[at*lanes:][:lanes]
			for c := 0; c < lanes; c += valueRow {
				copy(o[c:], b.o[c*headBlock+j*valueRow:][:valueRow])
			}
			if v := &d.cache.v; hd != nil && v.format.scaled() && v.expand != toValues {
				w.unscale(o, b, j, p.sum, hd)
			}
			if hd != nil && len(b.sparse) > 0 {
				w.kern.merge(o, b.sparse[j*lanes:][:lanes], 1, 1)
			}
		}
	}
}

// unscale applies V's shared scales and offsets to the output o of head j.
func (w *decodeWorker) unscale(o []float32, b *blockState, j int, sum float32, hd *head) {
	f := w.d.v
	switch {
	case f.Share == ShareToken && f.shifted():
		for i := range w.v.segments {
			s := &w.v.segments[i]
			add := sumLanes(b.offsets[(s.set*headBlock)*laneWidth+j*laneWidth:])
			for c := range o[s.lane : s.lane+s.blocks*s.lanes] {
				o[s.lane+c] += add
			}
		}
	case f.Share == ShareToken || f.Group > 0:
	case f.Share == ShareChannel:
		for c := range o {
			o[c] *= hd.vScale[c]
			switch f.Zero {
			case ZeroAsym:
				o[c] += float32(sum * centredOffset(hd.vScale[c], hd.vOffset[c], f))
			case ZeroPoint:
				o[c] += float32(b.codeSum[j] * centredOffset(hd.vScale[c], hd.vOffset[c], f))
			}
		}
	default:
		for c := range o {
			o[c] *= hd.vScale[0]
			if f.Zero == ZeroAsym {
				o[c] += float32(sum * centredOffset(hd.vScale[0], hd.vOffset[0], f))
			}
		}
	}
}

// mergeHead joins the chunks of KV head h in order and writes its outputs.
func (w *decodeWorker) mergeHead(h int) {
	d := w.d
	lanes := w.tv.lanes
	for j := h * d.grouped; j < (h+1)*d.grouped; j++ {
		parts := d.partial[j*d.chunks : (j+1)*d.chunks]
		top := float32(math.Inf(-1))
		for _, p := range parts {
			top = max(top, p.top)
		}
		acc := w.line[:lanes]
		clear(acc)
		var sum float32
		for i, p := range parts {
			if math.IsInf(float64(p.top), -1) {
				continue
			}
			factor := exp2(p.top - top)
			sum += float32(p.sum * factor)
			at := (j*d.chunks + i) * lanes
			w.kern.merge(acc, d.outputs[at:at+lanes], 1, factor)
		}
		w.kern.divide(d.out[j*d.shape.DimV:][:d.shape.DimV], acc[:d.shape.DimV], sum)
	}
}
