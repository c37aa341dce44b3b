package kernels

import (
	"errors"
	"fmt"
)

// A Codec is the type one element of a side (K or V) is stored in.
type Codec uint8

// The codecs a decode cache stores.
const (
	CodecF32 Codec = iota
	CodecF16
	CodecBF16
	CodecE4M3
	CodecE5M2
	CodecInt    // integers of Format.Bits bits, 2 to 8
	CodecLevels // codes of 4 bits for the integers of Format.Levels
	CodecBook   // codes of Format.Bits bits, 2 to 8, for the values of Encoded.Book
)

// A Zero says where the zero of an integer code lies.
type Zero uint8

// The zero forms, as EncodeBiased and EncodeAsym define them. The last one is that of
// block formats: ShareToken only.
const (
	ZeroSym    Zero = iota // x̂ = scale·(field − 2^(bits−1))
	ZeroAsym               // x̂ = scale·field + offset; CodecBook too
	ZeroPoint              // x̂ = scale·(field − bias), bias an integer per group, 0 to 255
	ZeroMiddle             // x̂ = scale·(field − (2^bits−1)/2)
)

// A Share says which elements have one scale in common.
type Share uint8

// The sharings. ShareTensor and ShareHead differ in what the caller passes, not
// in how a head is read.
const (
	ShareTensor Share = iota
	ShareHead
	ShareToken
	ShareChannel
)

// A Meta is the type scales and offsets are stored in.
type Meta uint8

// The metadata types. A bfloat16 scale is kept as float32 in a paged cache. The last two
// are of scales only.
const (
	MetaF16 Meta = iota
	MetaF32
	MetaE8M0 // 2^(code−127); the code 0 counts as 0
	MetaE4M3
)

// bytes returns the size of a stored scale.
func (m Meta) bytes() int { return [...]int{2, 4, 1, 1}[m] }

// A Format says how one side of a cache is stored.
type Format struct {
	Codec  Codec
	Bits   int       // CodecInt and CodecBook; CodecLevels has 4
	Zero   Zero      // CodecInt and CodecBook
	Share  Share     // of what has scales: all but float32, float16 and bfloat16
	Group  int       // ShareToken: channels a scale; ShareChannel: tokens a scale; 0: all
	Meta   Meta      // of scales and offsets
	Levels *[16]int8 // CodecLevels, ShareToken only: x̂ = scale·Levels[code]; the same pointer wherever two formats are the same

	// The first Sink and the last Recent tokens are not coded. Where blocks of tokens
	// share scales (ShareChannel with a group), they leave the recent window Recent at
	// a time, a multiple of Group.
	Sink, Recent int
	// Outliers is how many values of a head may be kept out of the codes.
	Outliers int
	// Rotation is what the codes of keys were taken before, and what attention to them
	// puts back; nil where they were not. Not for float32, float16 and bfloat16.
	Rotation *Rotation
}

// PageTokens is how many tokens one page of one KV head holds.
const PageTokens = 64

// A CacheShape is the geometry of one layer's cache.
type CacheShape struct {
	Heads  int // KV heads
	DimK   int // channels of a key
	DimV   int // channels of a value
	Tokens int // tokens the cache can hold
}

const (
	pageTokens = PageTokens
	// laneWidth is how many tokens (K) or channels (V) stand side by side in a
	// line of codes; a block is two lines wide where there are enough of them.
	laneWidth = 16
	blockWide = 2 * laneWidth
	// chunkCodes is how many codes are packed into bit planes together.
	chunkCodes = 8 * lineBytes
	// headBlock is how many query heads share one pass over a page's codes.
	headBlock = 4
	// maxDim is the most channels of a key that are multiplied in integers, which are
	// exact in 32 bits up to there; it fixes the stride of the
	// multiplicands of one query head, so that assembly has it in its addresses.
	maxDim = 640
	// mostDim is the largest head dimension: outliers number channels in 16 bits.
	mostDim = 1 << 16
	// lineBytes is a cache line: every part of a page is a multiple of it.
	lineBytes = 64
)

// ErrDecodeShape is wrapped by errors about shapes that no decode cache can hold.
var ErrDecodeShape = errors.New("no decode cache for this shape")

func (s CacheShape) check() error {
	switch {
	case s.Heads < 1 || s.DimK < 1 || s.DimV < 1 || s.Tokens < 1:
		return fmt.Errorf("%w: %d KV heads, head_dim %d and %d, %d tokens: all must be positive", ErrDecodeShape, s.Heads, s.DimK, s.DimV, s.Tokens)
	case s.DimK > mostDim || s.DimV > mostDim:
		return fmt.Errorf("%w: head_dim %d and %d: at most %d", ErrDecodeShape, s.DimK, s.DimV, mostDim)
	case s.Tokens > 1<<31 || s.Heads > 1<<16:
		return fmt.Errorf("%w: %d KV heads of %d tokens", ErrDecodeShape, s.Heads, s.Tokens)
	}
	return nil
}

func (f Format) check() error {
	switch {
	case f.Codec > CodecBook || f.Zero > ZeroMiddle || f.Share > ShareChannel || f.Meta > MetaE4M3 || f.Group < 0,
		f.Codec == CodecLevels && (f.Levels == nil || f.Zero != ZeroSym || f.Share != ShareToken),
		f.Codec == CodecBook && f.Zero > ZeroAsym,
		f.Zero > ZeroPoint && f.Share != ShareToken,
		f.Meta > MetaF32 && (f.Zero != ZeroSym || f.Share != ShareToken):
		return fmt.Errorf("unknown cache format %+v", f)
	case (f.Codec == CodecInt || f.Codec == CodecBook) && (f.Bits < 2 || f.Bits > 8):
		return fmt.Errorf("%d-bit codes: a cache holds 2 to 8 bits", f.Bits)
	case f.Group > 0 && f.Share != ShareToken && f.Share != ShareChannel:
		return fmt.Errorf("a group of %d needs scales per token or per channel", f.Group)
	}
	if f.Outliers < 0 {
		return fmt.Errorf("%d outliers: want at least 0", f.Outliers)
	}
	if f.Sink < 0 || f.Recent < 0 || f.blocks() && f.Recent%f.Group != 0 {
		return fmt.Errorf("windows of the first %d and the last %d tokens: want none that is negative, and whole groups of %d", f.Sink, f.Recent, f.Group)
	}
	return nil
}

// scaled says whether the format has scales at all.
func (f Format) scaled() bool { return f.Codec >= CodecE4M3 }

// blocks says whether blocks of tokens share scales.
func (f Format) blocks() bool { return f.scaled() && f.Share == ShareChannel && f.Group > 0 }

// lag returns the most tokens behind the coded ones: those of the recent window and
// of a block that is not yet complete.
func (f Format) lag() int {
	if f.blocks() {
		return max(f.Group, f.Recent) - 1
	}
	return f.Recent
}

// offsets says whether groups have offsets or zero points of their own.
func (f Format) offsets() bool {
	return (f.Codec == CodecInt || f.Codec == CodecBook) && (f.Zero == ZeroAsym || f.Zero == ZeroPoint)
}

// shifted says whether values have an offset that is added in float32: of all zero
// forms but the symmetric one and the zero point, which is a part of the integer sums.
func (f Format) shifted() bool { return f.Zero != ZeroSym && f.Zero != ZeroPoint }

// centre is the code that stands for zero in a symmetric format, and the point
// that the other forms are brought to, so that multiplicands meet codes of
// either sign: the rounding of the query then costs half as much.
func (f Format) centre() int32 {
	switch f.Codec {
	case CodecInt:
		return 1 << (f.Bits - 1)
	case CodecLevels:
		return 128
	}
	return 0
}

// top is the largest code that integer tiles meet.
func (f Format) top() int {
	if f.Codec == CodecLevels {
		return 255
	}
	return 1<<f.Bits - 1
}

// elementBits returns the bits of one stored code.
func (f Format) elementBits() int {
	switch f.Codec {
	case CodecF32:
		return 32
	case CodecF16, CodecBF16:
		return 16
	case CodecE4M3, CodecE5M2:
		return 8
	case CodecLevels:
		return 4
	}
	return f.Bits
}

// groups returns how many scales one row (ShareToken) or column (ShareChannel)
// of n elements has.
func (f Format) groups(n int) int {
	if f.Group == 0 || f.Group >= n {
		return 1
	}
	return (n + f.Group - 1) / f.Group
}

// scales returns how many scales a head of the given size has.
func (f Format) scales(tokens, dim int) int {
	if !f.scaled() {
		return 0
	}
	switch f.Share {
	case ShareToken:
		return tokens * f.groups(dim)
	case ShareChannel:
		return dim * f.groups(tokens)
	}
	return 1
}

// storage is what tiles read: how codes lie in a page, or in the scratch that a page is
// expanded to.
type storage uint8

const (
	storeF32 storage = iota
	storeF16
	storeBF16
	storeE4M3
	storeE5M2
	storeInt8
	storeInt4
	storeLevels // as int4
)

// step returns how many channels (K) or tokens (V) one step of a tile reduces.
func (s storage) step() int {
	switch s {
	case storeInt8:
		return 4
	case storeInt4, storeLevels:
		return 8
	}
	return 1
}

// stepBytes returns the bytes of codes one step reads over the given lanes.
func (s storage) stepBytes(lanes int) int {
	switch s {
	case storeF16, storeBF16:
		return 2 * lanes
	case storeE4M3, storeE5M2:
		return lanes
	}
	return 4 * lanes
}

// size returns the bytes of one code, of all but int4.
func (s storage) size() int {
	switch s {
	case storeF32:
		return 4
	case storeF16, storeBF16:
		return 2
	}
	return 1
}

// integer says whether codes are multiplied in integers.
func (s storage) integer() bool { return s >= storeInt8 }

// scaled says whether codes are floats that want scales.
func (s storage) scaled() bool { return s == storeE4M3 || s == storeE5M2 }

// read says what tiles read this format as, and how a page gets there.
func (f Format) read(key bool, dim int) (storage, expansion) {
	switch f.Codec {
	case CodecF32:
		return storeF32, asStored
	case CodecF16:
		return storeF16, asStored
	case CodecBF16:
		return storeBF16, asStored
	case CodecBook:
		return storeF32, toValues
	case CodecE4M3, CodecE5M2:
		if f.Share == ShareToken && f.groups(dim) > 1 || f.Share == ShareChannel && f.Group > 0 {
			return storeF32, toValues
		}
		if f.Codec == CodecE4M3 {
			return storeE4M3, asStored
		}
		return storeE5M2, asStored
	}
	store, expand := storeInt8, toBytes
	switch {
	case f.Codec == CodecLevels:
		store, expand = storeLevels, asStored
	case f.Bits == 8:
		expand = asStored
	case f.Bits == 4:
		store, expand = storeInt4, asStored
	}
	// A token's groups must be whole steps of K, whole lines of V's lanes; a
	// channel's groups must be whole blocks of K's lanes, whole half pages of V.
	fits := true
	switch {
	case f.Group == 0 || f.Share == ShareToken && f.groups(dim) == 1:
	case f.Share == ShareToken && key:
		fits = f.Group%store.step() == 0
	case f.Share == ShareToken:
		fits = f.Group%laneWidth == 0
	case f.Share == ShareChannel:
		fits = f.Group == blockWide || f.Group%pageTokens == 0
	}
	if !fits {
		return storeF32, toValues
	}
	return store, expand
}

// A segment is a run of a page's codes that one call multiplies: blocks of lanes
// side by side, each reduced over the same range with the same multiplicands.
type segment struct {
	set    int // which set of multiplicands
	group  int // which group of the reduction, in token/g (K) and channel/g (V)
	first  int // first channel (K) or token (V) of the reduction
	steps  int
	lane   int // first token (K) or channel (V) of the lanes
	lanes  int // lanes of a block: 16 or 32
	blocks int
	codes  int // offset of the codes in the side's part of the page
	sums   int // offset of the results, in elements per query head
}

// A layout is how one side of a page is cut into segments.
type layout struct {
	store     storage
	reduced   int // padded length of the reduction
	lanes     int // padded number of lanes
	sets      int // sets of multiplicands a page needs
	segments  []segment
	codeBytes int
	sums      int // results of a page per query head
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// newLayout cuts a page of a side with dim channels.
func newLayout(f Format, store storage, key bool, dim int) layout {
	padded := roundUp(dim, laneWidth)
	l := layout{store: store, sets: 1}
	integer := store.integer()
	perToken := integer && f.Share == ShareToken && f.groups(dim) > 1
	halves := integer && f.Share == ShareChannel && f.Group == blockWide
	if key {
		l.reduced, l.lanes = padded, pageTokens
		switch {
		case perToken:
			for g := 0; g*f.Group < dim; g++ {
				n := roundUp(min(f.Group, dim-g*f.Group), store.step())
				l.add(segment{group: g, first: g * f.Group, steps: n / store.step(), lanes: blockWide, blocks: 2})
			}
		case halves:
			l.sets = 2
			for half := range 2 {
				l.add(segment{set: half, steps: padded / store.step(), lane: half * blockWide, lanes: blockWide, blocks: 1})
			}
		default:
			l.add(segment{steps: padded / store.step(), lanes: blockWide, blocks: 2})
		}
		return l
	}
	l.reduced, l.lanes = pageTokens, padded
	switch {
	case perToken:
		l.sets = f.groups(dim)
		for g := range l.sets {
			l.addLanes(segment{set: g, steps: pageTokens / store.step()}, g*f.Group, min((g+1)*f.Group, padded))
		}
	case halves:
		for half := range 2 {
			l.addLanes(segment{group: half, first: half * blockWide, steps: blockWide / store.step()}, 0, padded)
		}
	default:
		l.addLanes(segment{steps: pageTokens / store.step()}, 0, padded)
	}
	return l
}

// addLanes adds s over the lanes from to to: blocks of 32, then one of 16.
func (l *layout) addLanes(s segment, from, to int) {
	if blocks := (to - from) / blockWide; blocks > 0 {
		s.lane, s.lanes, s.blocks = from, blockWide, blocks
		l.add(s)
	}
	if (to-from)%blockWide != 0 {
		s.lane, s.lanes, s.blocks = to-laneWidth, laneWidth, 1
		l.add(s)
	}
}

func (l *layout) add(s segment) {
	s.codes, s.sums = l.codeBytes, l.sums
	l.codeBytes += s.blocks * s.steps * l.store.stepBytes(s.lanes)
	l.sums += s.blocks * s.lanes
	l.segments = append(l.segments, s)
}

// apart returns segments of one block each.
func apart(segments []segment, store storage) []segment {
	var parts []segment
	for _, s := range segments {
		n := s.blocks
		s.blocks = 1
		for range n {
			parts = append(parts, s)
			s.lane, s.codes, s.sums = s.lane+s.lanes, s.codes+s.steps*store.stepBytes(s.lanes), s.sums+s.lanes
		}
	}
	return parts
}
