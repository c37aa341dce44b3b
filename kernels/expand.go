package kernels

import (
	"math"
)

// An expansion is how the codes of a page become what tiles read. Codes keep their true
// width in the page and are widened into scratch that stays in the first-level cache:
// two or three instructions a line of 64 bytes, where a tile has some twenty.
//
// Codes of less than 8 bits are packed in chunks of 512, each of `bits` lines of 64 bytes:
// first a plane of nibbles (4 bits and more), then one of pairs of bits, then one of
// single bits, as the width has them. Byte i of a plane's line holds the codes i, i+64,
// i+128, … of its part of the chunk, lowest bits first, so that shifts and masks are
// enough to unpack it.
type expansion uint8

const (
	asStored expansion = iota // tiles read the page itself
	toBytes                   // integers of less than 8 bits: one a byte
	toValues                  // any code: its value in float32, scale and offset applied
)

// e4m3Half is what tiles want the scales of e4m3 multiplied with: a float16 is made of
// its bits by a shift, and the two have different exponent biases.
const e4m3Half = 256

// packPlanes packs codes, a whole number of chunks of one a byte.
func packPlanes(dst, codes []byte, bits int) {
	clear(dst[:len(codes)/8*bits])
	for ; len(codes) > 0; codes, dst = codes[chunkCodes:], dst[lineBytes*bits:] {
		eachPlane(bits, func(width, low, line int) {
			for i, c := range codes[:chunkCodes] {
				n := i / lineBytes
				part := c >> low & (1<<width - 1)
				dst[lineBytes*(line+n*width/8)+i%lineBytes] |= part << (n * width % 8)
			}
		})
	}
}

// eachPlane calls f for the planes of a width: their own width, their lowest bit in a
// code and their first line in a chunk.
func eachPlane(bits int, f func(width, low, line int)) {
	low := 0
	for _, width := range []int{4, 2, 1} {
		if bits&width != 0 {
			f(width, low, low)
			low += width
		}
	}
}

func expandGeneric(dst, src []byte, bits int) {
	clear(dst)
	for ; len(dst) > 0; dst, src = dst[chunkCodes:], src[lineBytes*bits:] {
		eachPlane(bits, func(width, low, line int) {
			for i := range dst[:chunkCodes] {
				n := i / lineBytes
				part := src[lineBytes*(line+n*width/8)+i%lineBytes] >> (n * width % 8) & (1<<width - 1)
				dst[i] |= part << low
			}
		})
	}
}

func lookUpGeneric(dst []float32, codes []byte, book []float32) {
	for i, c := range codes[:len(dst)] {
		dst[i] = book[c]
	}
}

func scaleLanesGeneric(x, scale, offset []float32, lanes int) {
	for ; len(x) > 0; x = x[lanes:] {
		for i, v := range x[:lanes] {
			x[i] = float32(v*scale[i]) + offset[i]
		}
	}
}

func scaleStepsGeneric(x, scale, offset []float32, lanes int) {
	for s := 0; len(x) > 0; s++ {
		for i, v := range x[:lanes] {
			x[i] = float32(v*scale[s]) + offset[s]
		}
		x = x[lanes:]
	}
}

func widenE8M0Generic(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(src[i]) << 23)
	}
}

// packed returns the bytes of a page's codes as stored; codes is how many there are.
func (s *side) packed(codes int) int {
	if bits := s.format.elementBits(); bits < 8 {
		return codes / 8 * bits
	}
	return codes
}

// levels returns the integers of CodecLevels as tiles read them.
func (f Format) levels() (bytes [16]uint8) {
	for i, v := range f.Levels {
		bytes[i] = uint8(int(v) + int(f.centre()))
	}
	return bytes
}

// An expander widens the pages of one side for one worker.
type expander struct {
	side   *side
	kern   *decodeKernels
	codec  *codecKernels
	codes  []byte      // one a byte, where values are made of them
	tile   []byte      // what tiles read
	values []float32   // the same
	levels [16]float32 // of CodecLevels

	scale, offset, zeros []float32 // of an integer without its scale; zeros for every channel
	centre               []float32
}

func newExpander(s *side, k *decodeKernels, codec *codecKernels) *expander {
	if s.expand == asStored {
		return nil
	}
	x := &expander{side: s, kern: k, codec: codec}
	if s.format.Codec == CodecLevels {
		for i, v := range s.format.Levels {
			x.levels[i] = float32(v)
		}
	}
	if s.expand != toValues {
		x.tile = alignedBytes(s.codes * s.layout.store.size())
		return x
	}
	x.values = alignedFloats(s.codes)
	x.tile = bytesOf(x.values)
	x.codes = alignedBytes(s.codes)
	x.scale, x.offset, x.zeros = []float32{1}, []float32{0}, alignedFloats(max(roundUp(s.dim, blockWide), pageTokens))
	x.centre = []float32{float32(s.format.centre())}
	return x
}

// page widens the codes of page p. For toValues scale and offset are the page's, as
// readMeta leaves them, or those of the whole head, and book is the head's.
func (x *expander) page(codes []byte, scale, offset []float32, book []float32, p int) []byte {
	f := x.side.format
	if x.side.expand == toBytes {
		x.kern.expand(x.tile, codes, f.Bits)
		return x.tile
	}
	if bits := f.elementBits(); bits < 8 {
		x.kern.expand(x.codes, codes, bits)
		codes = x.codes
	}
	x.scaled(codes, scale, offset, book, p)
	return x.tile
}

// convert turns the codes from one place to another into their values without a scale.
func (x *expander) convert(codes []byte, book []float32, from, to int) []float32 {
	values, codes := x.values[from:to], codes[from:to]
	switch x.side.format.Codec {
	case CodecE4M3:
		x.codec.fromE4M3(values, codes)
	case CodecE5M2:
		x.codec.fromE5M2(values, codes)
	case CodecLevels:
		x.kern.lookUp(values, codes, x.levels[:])
	case CodecBook:
		x.kern.lookUp(values, codes, book)
	default:
		x.codec.decodeRuns(values, codes, len(values), Affine{Scale: x.scale, Bias: x.centre, Offset: x.offset})
	}
	return values
}

// even says whether the scales of toValues are the same along lines of lanes or along
// steps; where they are not, portable code applies them.
func (s *side) even() bool {
	f := s.format
	switch {
	case s.expand != toValues || f.Group == 0:
	case s.key && f.Share == ShareChannel:
		return f.Group%blockWide == 0 && s.shift%blockWide == 0
	case !s.key && f.Share == ShareToken && f.groups(s.dim) > 1:
		return f.Group%blockWide == 0
	}
	return true
}

// scaled leaves the values of page p, times their scales and with their offsets, block by
// block, each while it is in the first-level cache.
func (x *expander) scaled(codes []byte, scale, offset []float32, book []float32, p int) {
	s, f := x.side, x.side.format
	if f.Zero == ZeroSym {
		offset = nil
	}
	// of returns n offsets from at on.
	of := func(at, n int) []float32 {
		if offset == nil {
			return x.zeros[:n]
		}
		return offset[at : at+n]
	}
	padded, first := roundUp(s.dim, laneWidth), p*pageTokens+s.shift
	// set is where the scales of a token's block of tokens begin.
	set := func(t int) int {
		if f.Share != ShareChannel || f.Group == 0 {
			return 0
		}
		return ((first+t)/f.Group - first/f.Group) * padded
	}
	group := f.Group
	if group == 0 {
		group = padded
	}
	if !s.even() {
		x.convert(codes, book, 0, len(x.values))
		s.layout.each(s.key, s.dim, func(at, token, channel int) {
			u := set(token) + channel
			if f.Share == ShareToken {
				u = channel/group*pageTokens + token
			}
			x.values[at/4] = float32(x.values[at/4]*scale[u]) + of(u, 1)[0]
		})
		return
	}
	for i := range s.layout.segments {
		g := &s.layout.segments[i]
		for b := range g.blocks {
			n := g.steps * g.lanes
			from := g.codes/4 + b*n
			block := x.convert(codes, book, from, from+n)
			lane := g.lane + b*g.lanes
			// along returns the part of the block from step on.
			along := func(from, to int) []float32 { return block[from*g.lanes : to*g.lanes] }
			switch {
			case f.Share == ShareToken && s.key:
				for c := 0; c < s.dim; c += group {
					at := c/group*pageTokens + lane
					x.kern.scaleLanes(along(c, min(c+group, g.steps)), scale[at:at+g.lanes], of(at, g.lanes), g.lanes)
				}
			case f.Share == ShareToken:
				at := 0
				if f.groups(s.dim) > 1 {
					at = lane / group * pageTokens
				}
				x.kern.scaleSteps(block, scale[at:at+g.steps], of(at, g.steps), g.lanes)
			case f.Share == ShareChannel && s.key:
				at := set(lane)
				x.kern.scaleSteps(block, scale[at:at+g.steps], of(at, g.steps), g.lanes)
			case f.Share == ShareChannel:
				for t := 0; t < pageTokens; {
					next := pageTokens
					if f.Group > 0 {
						next = min(next, (first+t)/f.Group*f.Group+f.Group-first)
					}
					at := set(t) + lane
					x.kern.scaleLanes(along(t, next), scale[at:at+g.lanes], of(at, g.lanes), g.lanes)
					t = next
				}
			default:
				x.kern.scaleLanes(block, scale[:g.lanes], of(0, g.lanes), g.lanes)
			}
		}
	}
}
