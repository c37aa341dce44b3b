package quantize

import (
	"encoding/binary"
	"fmt"
	"math"

	"kvq/kernels"
)

// A block is how a named format stores a few channels of a row on their own,
// scales included. Bytes are little endian.
type block struct {
	elements int  // channels; 0: the whole row
	metadata int  // bytes of scales, minima and sums in a block
	tensor   bool // one float32 scale of the whole tensor comes on top
	binary   bool // a row must be a power of two

	// encode writes a block; false: its scale does not fit. tensor is the tensor's
	// scale, 0 where there is none.
	encode func(dst []byte, x []float32, tensor float32) bool
	// page, where there is one, writes many blocks at once in encode's place and
	// returns the first whose scale does not fit, or −1.
	page   func(c *Coder, dst []byte, x []float32) int
	decode func(dst []float32, src []byte, tensor float32)
}

// blockElements returns the channels of a block of rows of dim.
func (f *Format) blockElements(dim int) int {
	if f.block.elements == 0 {
		return dim
	}
	return f.block.elements
}

// blockBytes returns the bytes of codes and of metadata of a block.
func (f *Format) blockBytes(dim int) (data, metadata int) {
	return kernels.PackedLen(f.blockElements(dim), f.Bits), f.block.metadata
}

// encodeBlocks fills e's codes from values.
func (c *Coder) encodeBlocks(e *Encoded, values []float32, calibration *Calibration) error {
	f := c.scheme.Format
	e.Scales, e.Offsets, e.ZeroPoints, e.Codebook = e.Scales[:0], e.Offsets[:0], e.ZeroPoints[:0], e.Codebook[:0]
	var tensor float32
	if f.block.tensor && len(values) > 0 {
		tensor = max(calibration.hi, -calibration.lo) / (e2m1Max * kernels.MaxE4M3)
		e.Scales = binary.LittleEndian.AppendUint32(e.Scales, math.Float32bits(tensor))
	}
	n := f.blockElements(e.Dim)
	data, metadata := f.blockBytes(e.Dim)
	size := data + metadata
	step := max(1, pageElements/n)
	for first := 0; first < len(values)/n; first += step {
		blocks := min(step, len(values)/n-first)
		x, dst := values[first*n:(first+blocks)*n], e.Codes[first*size:(first+blocks)*size]
		refused := -1
		if f.block.page != nil {
			refused = f.block.page(c, dst, x)
		} else {
			for i := range blocks {
				if !f.block.encode(dst[i*size:(i+1)*size], x[i*n:(i+1)*n], tensor) {
					refused = i
					break
				}
			}
		}
		if refused >= 0 {
			at := (first + refused) * n
			token, channel := e.sink+at/e.Dim, at%e.Dim
			return &RangeError{Scheme: c.scheme.Name(), Head: e.Index,
				Group:  fmt.Sprintf("token %d, channels %d to %d", token, channel, channel+n-1),
				Reason: "the format's f16 scale cannot hold what they need",
				Hint:   "a format with a wider scale holds them: int8-token/32@f32"}
		}
	}
	return nil
}

// decodeBlocks writes the values of e's codes.
func (c *Coder) decodeBlocks(values []float32, e *Encoded) {
	f := c.scheme.Format
	var tensor float32
	if len(e.Scales) > 0 {
		tensor = math.Float32frombits(binary.LittleEndian.Uint32(e.Scales))
	}
	n := f.blockElements(e.Dim)
	data, metadata := f.blockBytes(e.Dim)
	src := e.Codes
	for at := 0; at < len(values); at += n {
		f.block.decode(values[at:at+n], src[:data+metadata], tensor)
		src = src[data+metadata:]
	}
}
