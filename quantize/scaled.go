package quantize

import (
	"errors"
	"fmt"
	"math"

	"kvq/kernels"
)

// The schemes with scales work block by block: the rows whose scales can be
// computed without looking at other rows. Within a block they go page by page.

// blockRows returns the rows of a block, of rows rows in all.
func (s *Scheme) blockRows(rows, dim int) int {
	switch {
	case s.Share == PerToken:
		return pageRows(dim)
	case s.Share == PerChannel && s.Group > 0:
		return s.Group
	}
	return max(rows, 1)
}

// pageRows returns the rows of a page.
func pageRows(dim int) int { return max(1, pageElements/dim) }

// firstScale returns the index of the first scale of the block at row.
func (s *Scheme) firstScale(row, dim int) int {
	switch s.Share {
	case PerToken:
		return row * int(groups(int64(dim), s.Group))
	case PerChannel:
		if s.Group > 0 {
			return row / s.Group * dim
		}
	}
	return 0
}

// eachBlock calls f for every block of rows: its first row and end, and the
// range of its scales.
func (s *Scheme) eachBlock(rows, dim int, f func(row, end, scale, scaleEnd int) error) error {
	step := s.blockRows(rows, dim)
	for row := 0; row < rows; row += step {
		end := min(row+step, rows)
		scale := s.firstScale(row, dim)
		if err := f(row, end, scale, scale+int(s.scales(int64(end-row), int64(dim)))); err != nil {
			return err
		}
	}
	return nil
}

// eachPage calls f with the bounds, in values, of each page of n values.
func eachPage(n, dim int, f func(at, end int)) {
	step := pageRows(dim) * dim
	for at := 0; at < n; at += step {
		f(at, min(at+step, n))
	}
}

// eachRun calls f for stretches of a page of n values whose scales lie in runs:
// the bounds of the values, those of their scales, and the length of a run. Not
// for PerChannel, whose scales lie in columns.
func (s *Scheme) eachRun(n, dim int, f func(at, end, scale, scaleEnd, run int)) {
	if s.Share != PerToken {
		f(0, n, 0, 1, n)
		return
	}
	run := s.Group
	if run == 0 {
		run = dim
	}
	if dim%run == 0 {
		f(0, n, 0, n/run, run)
		return
	}
	full := dim / run
	for row := 0; row < n/dim; row++ {
		at, scale := row*dim, row*(full+1)
		f(at, at+full*run, scale, scale+full, run)
		f(at+full*run, at+dim, scale+full, scale+full+1, dim-full*run)
	}
}

// encodeScaled fills e's codes and scales from values; when it only observes, it
// adds the normalized values to the calibration instead of encoding them.
func (c *Coder) encodeScaled(e *Encoded, values []float32, calibration *Calibration, observe bool) error {
	s, dim := c.scheme, e.Dim
	rows := len(values) / dim
	n := int(s.scales(int64(rows), int64(dim)))
	e.Scales = resize(e.Scales, n*s.Meta.Bytes())
	e.Offsets, e.ZeroPoints = e.Offsets[:0], e.ZeroPoints[:0]
	switch s.Zero {
	case Asym:
		e.Offsets = resize(e.Offsets, n*s.Meta.Bytes())
	case ZP:
		e.ZeroPoints = resize(e.ZeroPoints, n)
	}
	e.Codebook = e.Codebook[:0]
	if s.Format.Class == Codebook && !observe && rows > 0 {
		c.setBook(e, calibration)
	}
	rowBytes := s.codeBytes(dim)
	run := s.directRun(dim)
	return s.eachBlock(rows, dim, func(row, end, scale, scaleEnd int) error {
		block := values[row*dim : end*dim]
		if run > 0 {
			if c.runs == nil {
				c.runs = new(kernels.RunEncoder)
			}
			if c.runs.Encode(e.Codes[row*rowBytes:end*rowBytes], e.Scales[2*scale:2*scaleEnd], block, run, s.Format.Bits) {
				return nil
			}
			// What follows says what is wrong.
		}
		var out []bool
		if s.has(Outlier) {
			out = c.out[row*dim : end*dim]
		}
		c.lo, c.hi = resize(c.lo, scaleEnd-scale), resize(c.hi, scaleEnd-scale)
		if s.Share == PerTensor {
			c.lo[0], c.hi[0] = calibration.lo, calibration.hi
			if !s.ranged() {
				c.hi[0] = max(c.hi[0], -c.lo[0])
			}
		} else if s.modifier(Outlier).Tails && s.Share != PerToken {
			copy(c.lo, c.tailLo[scale:scaleEnd])
			copy(c.hi, c.tailHi[scale:scaleEnd])
			if !s.ranged() {
				for i, lo := range c.lo {
					c.hi[i] = max(c.hi[i], -lo, lo)
				}
			}
		} else {
			c.ranges(block, dim)
			if s.checksValues() && !c.finite(block) {
				return errNonFinite
			}
		}
		if s.has(Clip) {
			c.clip(block, out, dim)
		}
		if err := c.storeScales(e, row, scale, scaleEnd); err != nil {
			return err
		}
		if observe {
			c.observeCodes(calibration.histogram, block, out, dim)
			return nil
		}
		c.encodeBlock(e.Codes[row*rowBytes:end*rowBytes], block, dim)
		return nil
	})
}

// errNonFinite says that a block holds a value that is not finite; Encode says which.
var errNonFinite = errors.New("a value that is not finite")

// finite reports whether the block is whose ranges were taken.
func (c *Coder) finite(block []float32) bool {
	if c.scheme.ranged() { // whose minima and maxima pass NaNs over
		return kernels.IndexNonFinite(block) < 0
	}
	return kernels.AbsMax(c.hi) <= math.MaxFloat32
}

// directRun returns the length of the runs that one kernel takes the ranges of, scales
// and encodes; 0 where the scheme needs more steps.
func (s *Scheme) directRun(dim int) int {
	run := s.Group
	if run == 0 {
		run = dim
	}
	if s.Format.Class != Integer || s.Format.Bits != 8 && s.Format.Bits != 4 || s.Zero != Sym || s.Meta != MetaF16 ||
		s.Share != PerToken || len(s.Modifiers) > 0 || run%16 != 0 || dim%run != 0 {
		return 0
	}
	return run
}

// ranged reports whether scales come from both ends of a range, not from the
// largest magnitude.
func (s *Scheme) ranged() bool { return s.Zero != Sym }

// ranges sets c.lo and c.hi to the extremes of each sharing unit of block, or
// c.hi to the largest magnitudes for a scheme that is not ranged.
func (c *Coder) ranges(block []float32, dim int) {
	s := c.scheme
	clear(c.hi)
	if s.Share == PerChannel {
		if s.ranged() {
			copy(c.lo, block[:dim])
			copy(c.hi, block[:dim])
		}
		eachPage(len(block), dim, func(at, end int) {
			if s.ranged() {
				kernels.MinMaxColumns(c.lo, c.hi, block[at:end])
			} else {
				kernels.AbsMaxColumns(c.hi, block[at:end])
			}
		})
		return
	}
	if s.Share == PerHead {
		c.lo[0], c.hi[0] = block[0], block[0]
		if !s.ranged() {
			c.hi[0] = 0
		}
		eachPage(len(block), dim, func(at, end int) {
			page := block[at:end]
			if s.ranged() {
				var lo, hi [1]float32
				kernels.MinMaxRuns(lo[:], hi[:], page, len(page))
				c.lo[0], c.hi[0] = min(c.lo[0], lo[0])+0, max(c.hi[0], hi[0])+0
			} else {
				c.hi[0] = max(c.hi[0], kernels.AbsMax(page))
			}
		})
		return
	}
	s.eachRun(len(block), dim, func(at, end, scale, scaleEnd, run int) {
		if s.ranged() {
			kernels.MinMaxRuns(c.lo[scale:scaleEnd], c.hi[scale:scaleEnd], block[at:end], run)
		} else {
			kernels.AbsMaxRuns(c.hi[scale:scaleEnd], block[at:end], run)
		}
	})
}

// storeScales stores scales, offsets and zero points of the ranges of the block
// at row, from index scale on, and leaves in c.affine what decoding will see.
func (c *Coder) storeScales(e *Encoded, row, scale, scaleEnd int) error {
	width := c.scheme.Meta.Bytes()
	var offsets, points []byte
	switch c.scheme.Zero {
	case Asym:
		offsets = e.Offsets[scale*width : scaleEnd*width]
	case ZP:
		points = e.ZeroPoints[scale:scaleEnd]
	}
	if i, what, value := c.computeScales(e.Scales[scale*width:scaleEnd*width], offsets, points); i >= 0 {
		return c.rangeError(e, row, i, what, value)
	}
	return nil
}

// computeScales turns the ranges in c.lo and c.hi, which it uses up, into stored
// scales and, as the zero form has them, offsets and zero points, and fills
// c.affine from what is stored. The first that its type cannot hold is returned:
// its index, or −1, what it is and its value.
func (c *Coder) computeScales(scales, offsets, points []byte) (refused int, what string, value float32) {
	s := c.scheme
	levels := s.levels()
	if s.Zero == ZP {
		for i := range c.lo {
			c.lo[i], c.hi[i] = min(c.lo[i], 0), max(c.hi[i], 0)
		}
	}
	if s.Format.learned {
		for i, lo := range c.lo {
			c.lo[i], c.hi[i] = float32(c.hi[i]+lo)/2, c.hi[i]-lo
		}
	} else if s.ranged() {
		// The range takes the place of the largest magnitude; lo is still needed.
		for i, lo := range c.lo {
			c.hi[i] -= lo
		}
	}
	stored := resize(c.affine.Scale, len(c.hi))
	for i, width := range c.hi {
		stored[i] = width / levels
	}
	c.affine.Scale = stored
	width := s.Meta.Bytes()
	meta := metaFormats[s.Meta]
	meta.encode(scales, stored)
	meta.decode(stored, scales)
	for i, v := range stored {
		if v == 0 && c.hi[i] > 0 {
			stored[i] = meta.smallest
			meta.encode(scales[i*width:(i+1)*width], stored[i:i+1])
		}
		if v > math.MaxFloat32 {
			return i, "scale", c.hi[i] / levels
		}
	}
	switch s.Zero {
	case Asym:
		offsets = offsets[:len(scales)]
		meta.encode(offsets, c.lo)
		c.affine.Offset = resize(c.affine.Offset, len(stored))
		meta.decode(c.affine.Offset, offsets)
		for i, v := range c.affine.Offset {
			if !(v >= -math.MaxFloat32 && v <= math.MaxFloat32) {
				return i, "offset", c.lo[i]
			}
		}
	case ZP:
		least := -float32(int(1) << (s.Format.Bits - 1))
		for i, lo := range c.lo {
			point := least
			if stored[i] != 0 {
				point = min(max(least-float32(math.RoundToEven(float64(lo/stored[i]))), least), -least-1)
			}
			points[i] = byte(int8(point))
		}
	}
	c.loadConstants(points)
	return -1, "", 0
}

// levels is what a range, or the largest magnitude, is divided by.
func (s *Scheme) levels() float32 {
	switch {
	case s.Format.Class == Scaled:
		return s.Format.largest
	case s.Format.learned:
		return 2
	case s.Format.Class == Codebook:
		return 1
	case s.Zero == Sym:
		return float32(int(1)<<(s.Format.Bits-1) - 1)
	}
	return float32(int(1)<<s.Format.Bits - 1)
}

// loadConstants fills in what c.affine needs beside the stored scales and offsets.
func (c *Coder) loadConstants(points []byte) {
	s, a, n := c.scheme, &c.affine, len(c.affine.Scale)
	if s.Format.Class != Integer {
		return
	}
	a.Lo, a.Hi = s.FieldRange()
	a.Bias = resize(a.Bias, n)
	s.biases(a.Bias, points)
	if s.Zero != Asym {
		a.Offset = resize(a.Offset, n)
		clear(a.Offset)
	}
}

// FieldRange returns the least and the largest stored field of an Integer format.
func (s *Scheme) FieldRange() (lo, hi float32) {
	if s.Zero == Sym {
		lo = 1
	}
	return lo, float32(int(1)<<s.Format.Bits - 1)
}

// loadScales reads back what storeScales stored.
func (c *Coder) loadScales(e *Encoded, scale, scaleEnd int) {
	s := c.scheme
	meta, width := metaFormats[s.Meta], s.Meta.Bytes()
	c.affine.Scale = resize(c.affine.Scale, scaleEnd-scale)
	meta.decode(c.affine.Scale, e.Scales[scale*width:scaleEnd*width])
	if s.Zero == Asym {
		c.affine.Offset = resize(c.affine.Offset, scaleEnd-scale)
		meta.decode(c.affine.Offset, e.Offsets[scale*width:scaleEnd*width])
	}
	var points []byte
	if s.Zero == ZP {
		points = e.ZeroPoints[scale:scaleEnd]
	}
	c.loadConstants(points)
}

// encodeBlock writes the codes of a block whose scales are in c.affine.
func (c *Coder) encodeBlock(codes []byte, block []float32, dim int) {
	s := c.scheme
	rowBytes := s.codeBytes(dim)
	eachPage(len(block), dim, func(at, end int) {
		values := block[at:end]
		bytes := codes[at/dim*rowBytes : end/dim*rowBytes]
		if s.Format.Class == Scaled {
			c.page = resize(c.page, len(values))
			if s.Share == PerChannel {
				kernels.DivideColumns(c.page, values, c.affine.Scale)
			} else {
				s.eachRun(len(values), dim, func(at, end, scale, scaleEnd, run int) {
					kernels.DivideRuns(c.page[at:end], values[at:end], c.affine.Scale[scale:scaleEnd], run)
				})
			}
			s.Format.encode(bytes, c.page)
			return
		}
		fields := bytes
		if s.Format.Bits != 8 {
			c.fields = resize(c.fields, len(values))
			fields = c.fields
		}
		if s.Format.Class == Codebook {
			c.encodeCodes(fields, values, dim)
		} else if s.Share == PerChannel {
			kernels.EncodeColumns(fields, values, c.affine)
		} else {
			s.eachRun(len(values), dim, func(at, end, scale, scaleEnd, run int) {
				kernels.EncodeRuns(fields[at:end], values[at:end], run, part(c.affine, scale, scaleEnd))
			})
		}
		if s.Format.Bits != 8 {
			packRows(bytes, fields, dim, s.Format.Bits)
		}
	})
}

// decodeScaled writes the values of e's codes.
func (c *Coder) decodeScaled(values []float32, e *Encoded) {
	s, dim := c.scheme, e.Dim
	if s.Format.Class == Codebook {
		c.loadBook(e)
	}
	rowBytes := s.codeBytes(dim)
	s.eachBlock(len(values)/dim, dim, func(row, end, scale, scaleEnd int) error {
		c.loadScales(e, scale, scaleEnd)
		block := values[row*dim : end*dim]
		codes := e.Codes[row*rowBytes : end*rowBytes]
		eachPage(len(block), dim, func(at, end int) {
			c.decodePage(block[at:end], codes[at/dim*rowBytes:end/dim*rowBytes], dim)
		})
		return nil
	})
}

// decodePage writes the values of a page of codes whose scales are in c.affine.
func (c *Coder) decodePage(values []float32, codes []byte, dim int) {
	s := c.scheme
	if s.Format.Class == Scaled {
		s.Format.decode(values, codes)
		if s.Share == PerChannel {
			kernels.MultiplyColumns(values, values, c.affine.Scale)
			return
		}
		s.eachRun(len(values), dim, func(at, end, scale, scaleEnd, run int) {
			kernels.MultiplyRuns(values[at:end], values[at:end], c.affine.Scale[scale:scaleEnd], run)
		})
		return
	}
	fields := codes
	if s.Format.Bits != 8 {
		c.fields = resize(c.fields, len(values))
		fields = c.fields
		unpackRows(fields, codes, dim, s.Format.Bits)
	}
	if s.Format.Class == Codebook {
		c.decodeCodes(values, fields, dim)
		return
	}
	if s.Share == PerChannel {
		kernels.DecodeColumns(values, fields, c.affine)
		return
	}
	s.eachRun(len(values), dim, func(at, end, scale, scaleEnd, run int) {
		kernels.DecodeRuns(values[at:end], fields[at:end], run, part(c.affine, scale, scaleEnd))
	})
}

// part returns the entries [first, end) of a.
func part(a kernels.Affine, first, end int) kernels.Affine {
	a.Scale, a.Bias, a.Offset = a.Scale[first:end], a.Bias[first:end], a.Offset[first:end]
	return a
}

// packRows packs rows of dim fields, each from a byte on.
func packRows(dst []byte, fields []uint8, dim, bits int) {
	if dim*bits%8 == 0 {
		kernels.Pack(dst, fields, bits)
		return
	}
	width := kernels.PackedLen(dim, bits)
	for ; len(fields) > 0; fields, dst = fields[dim:], dst[width:] {
		kernels.Pack(dst[:width], fields[:dim], bits)
	}
}

// unpackRows is the inverse of packRows.
func unpackRows(fields []uint8, src []byte, dim, bits int) {
	if dim*bits%8 == 0 {
		kernels.Unpack(fields, src, bits)
		return
	}
	width := kernels.PackedLen(dim, bits)
	for ; len(fields) > 0; fields, src = fields[dim:], src[width:] {
		kernels.Unpack(fields[:dim], src[:width], bits)
	}
}

// A RangeError is a sharing unit whose scale or offset its stored type cannot hold.
type RangeError struct {
	Scheme string
	Head   int
	Group  string // which tokens and channels
	Reason string
	Hint   string // what to do; may be empty
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("scheme %s: head %d, %s: %s", e.Scheme, e.Head, e.Group, e.Reason)
}

// rangeError is the error for scale i of the block that starts at row of the codes.
func (c *Coder) rangeError(e *Encoded, row, i int, what string, value float32) error {
	s := c.scheme
	first := row + e.sink
	var group string
	switch s.Share {
	case PerTensor:
		group = "the whole tensor"
	case PerHead:
		group = "the whole head"
	case PerToken:
		perRow := int(groups(int64(e.Dim), s.Group))
		group = fmt.Sprintf("token %d", first+i/perRow)
		if s.Group > 0 {
			channel := i % perRow * s.Group
			group += fmt.Sprintf(", channels %d to %d", channel, min(channel+s.Group, e.Dim)-1)
		}
	case PerChannel:
		group = fmt.Sprintf("channel %d", i)
		if s.Group > 0 {
			group += fmt.Sprintf(", tokens %d to %d", first, min(first+s.Group, e.Tokens-e.recent)-1)
		}
	}
	err := &RangeError{Scheme: s.Name(), Head: e.Index, Group: group,
		Reason: fmt.Sprintf("its %s %g does not fit %s", what, value, s.Meta)}
	if s.Meta != MetaF32 {
		err.Hint = "store it wider: @f32"
	}
	return err
}
