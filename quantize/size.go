package quantize

import (
	"fmt"
	"math"
	"math/bits"

	"kvq/kernels"
)

// A Shape is that of one tensor: keys or values of one layer.
type Shape struct{ Heads, Tokens, Dim int }

// A Size is the bytes of an encoded tensor. Data are codes and the values kept
// in f16; Metadata are scales, offsets, zero points, means and indices.
type Size struct{ Data, Metadata int64 }

// Total returns all bytes.
func (s Size) Total() int64 { return s.Data + s.Metadata }

// Size returns what Encode produces for all heads of a tensor, to the byte: rows
// of codes that each start on a byte, and every scale, that of a short last
// group included. The error is a *SchemeError where the scheme does not fit the
// shape.
func (s *Scheme) Size(shape Shape) (Size, error) {
	if shape.Heads < 0 || shape.Tokens < 0 {
		return Size{}, fmt.Errorf("shape of %d heads and %d tokens: a count is negative", shape.Heads, shape.Tokens)
	}
	if err := s.CheckDim(shape.Dim); err != nil {
		return Size{}, err
	}
	var n counter
	heads, tokens, dim := int64(shape.Heads), int64(shape.Tokens), int64(shape.Dim)
	sink, recent := s.windows(tokens)
	rows := tokens - sink - recent
	rowData, rowMetadata := s.rowBytes(shape.Dim)
	size := Size{
		Data: n.add(n.mul(heads, rows, int64(rowData)), n.mul(heads, sink+recent, dim, windowBytes)),
	}
	owners := heads
	if s.sharedScale() {
		owners = min(heads, 1)
	}
	size.Metadata = n.add(n.mul(heads, rows, int64(rowMetadata)), n.mul(owners, s.scales(rows, dim), int64(s.scaleBytes())))
	if s.Format.Class == Strided {
		values := n.mul(heads, rows, dim)
		if !n.overflow && values%stridedGroup != 0 {
			_, err := s.stridedScales(shape.Heads, int(rows), shape.Dim)
			return Size{}, err
		}
		size.Metadata = values / stridedGroup * stridedBytes
	}
	if rows > 0 && heads > 0 {
		size.Metadata = n.add(size.Metadata, s.codebookBytes())
	}
	if s.has(Center) {
		size.Metadata = n.add(size.Metadata, n.mul(heads, dim, meanBytes))
	}
	if s.has(Outlier) {
		out := n.mul(heads, s.outliers(&n, rows, dim))
		size.Data = n.add(size.Data, n.mul(out, outlierValueBytes))
		size.Metadata = n.add(size.Metadata, n.add(n.mul(out, outlierChannelBytes), n.mul(heads, rows, outlierRowBytes)))
	}
	if n.overflow {
		return Size{}, fmt.Errorf("shape of %d heads, %d tokens and %d channels: its size overflows 64 bits", shape.Heads, shape.Tokens, shape.Dim)
	}
	return size, nil
}

// Bits returns the honest bits per element at a shape: all bytes over all elements.
func (s *Scheme) Bits(shape Shape) (float64, error) {
	size, err := s.Size(shape)
	if err != nil {
		return 0, err
	}
	elements := float64(shape.Heads) * float64(shape.Tokens) * float64(shape.Dim)
	return 8 * float64(size.Total()) / elements, nil
}

// AsymptoticBits returns the bits per element at head width dim as the tokens
// go to infinity: windows and what is stored once a head count for nothing.
func (s *Scheme) AsymptoticBits(dim int) (float64, error) {
	if err := s.CheckDim(dim); err != nil {
		return 0, err
	}
	rowData, rowMetadata := s.rowBytes(dim)
	bytes := float64(rowData + rowMetadata)
	switch {
	case s.Format.Class == Strided:
		bytes += float64(float64(dim*stridedBytes) / stridedGroup)
	case s.Share == PerToken:
		bytes += float64(s.scales(1, int64(dim)) * int64(s.scaleBytes()))
	case s.Share == PerChannel && s.Group > 0:
		bytes += float64(dim*s.scaleBytes()) / float64(s.Group)
	}
	if s.has(Outlier) {
		row := float64(dim) * float64(s.modifier(Outlier).N) / (100 * percentUnit) // where units grow with the tokens
		var n counter
		switch {
		case s.Share == PerToken:
			row = float64(s.outliers(&n, 1, int64(dim)))
		case s.Share == PerChannel && s.Group > 0:
			row = float64(dim) * float64(s.outliersOf(int64(s.Group))) / float64(s.Group)
		}
		bytes += float64(row*(outlierValueBytes+outlierChannelBytes)) + outlierRowBytes
	}
	return 8 * bytes / float64(dim), nil
}

// CheckDim reports whether the scheme can store rows of dim channels.
func (s *Scheme) CheckDim(dim int) error {
	fail := func(hint, format string, args ...any) error {
		return &SchemeError{Name: s.Name(), Reason: fmt.Sprintf(format, args...), Hint: hint}
	}
	switch {
	case dim <= 0 || dim > maxNumber:
		return fmt.Errorf("head width %d is not from 1 to %d", dim, maxNumber)
	case s.Share == PerToken && s.Group > dim:
		return fail("leave the group out to share over the whole row",
			"the group of %d channels is wider than the head of %d", s.Group, dim)
	case s.Format.Class == Block && dim%s.Format.blockElements(dim) != 0:
		return fail("", "its blocks of %d channels do not divide the head of %d", s.Format.block.elements, dim)
	case s.Format.Class == Block && s.Format.block.binary && dim&(dim-1) != 0:
		return fail("", "it rotates the whole row: the head of %d is no power of two", dim)
	case s.has(Outlier) && dim > math.MaxUint16+1:
		return fail("", "+outlier numbers channels in 16 bits: the head has %d", dim)
	case s.has(Hadamard) && dim%max(s.modifier(Hadamard).N, 1) != 0:
		return fail(fmt.Sprintf("+hadamard alone takes %d", hadamardBlock(dim)),
			"blocks of %d channels do not divide the head of %d", s.modifier(Hadamard).N, dim)
	}
	return nil
}

// Bytes of what modifiers store.
const (
	windowBytes = 2 // a value of a token kept in f16
	meanBytes   = 4 // a channel's mean, float32

	stridedBytes     = 4 // a scale and a zero of a Strided format, f16
	tensorScaleBytes = 4 // the scale of a tensor beside a Block format's own
)

// rowBytes returns the bytes of one row of codes, and those of the metadata that
// a Block format has among them.
func (s *Scheme) rowBytes(dim int) (data, metadata int) {
	if s.Format.Class == Block {
		data, metadata = s.Format.blockBytes(dim)
		blocks := dim / s.Format.blockElements(dim)
		return blocks * data, blocks * metadata
	}
	return kernels.PackedLen(dim, s.Format.Bits), 0
}

// codeBytes returns the bytes of one row of Codes.
func (s *Scheme) codeBytes(dim int) int {
	data, metadata := s.rowBytes(dim)
	return data + metadata
}

// scaleBytes returns the bytes of one scale with its offset or zero point.
func (s *Scheme) scaleBytes() int {
	if s.Format.Class == Block {
		return tensorScaleBytes
	}
	switch s.Zero {
	case Asym:
		return 2 * s.Meta.Bytes()
	case ZP:
		return s.Meta.Bytes() + 1
	}
	return s.Meta.Bytes()
}

// scales returns how many scales rows of dim channels have: of one head, or of
// the tensor for PerTensor.
func (s *Scheme) scales(rows, dim int64) int64 {
	if rows == 0 {
		return 0
	}
	if s.Format.Class == Block && s.Format.block.tensor {
		return 1
	}
	switch s.Share {
	case PerTensor, PerHead:
		return 1
	case PerToken:
		return rows * groups(dim, s.Group)
	case PerChannel:
		return groups(rows, s.Group) * dim
	}
	return 0
}

// groups returns the number of groups of g in n, a short last one included; g 0
// is one group of all.
func groups(n int64, g int) int64 {
	if g == 0 {
		return 1
	}
	return (n + int64(g) - 1) / int64(g)
}

// windows returns how many tokens +sink and +recent keep in f16. Groups of
// tokens leave the recent window N at a time, as in KIVI.
func (s *Scheme) windows(tokens int64) (sink, recent int64) {
	sink = min(int64(s.modifier(Sink).N), tokens)
	if n := int64(s.modifier(Recent).N); n > 0 {
		rest := tokens - sink
		if s.Share == PerChannel && s.Group > 0 {
			return sink, rest % n
		}
		return sink, min(n, rest)
	}
	return sink, 0
}

// hadamardBlock returns the largest power of two that divides dim.
func hadamardBlock(dim int) int { return 1 << bits.TrailingZeros(uint(dim)) }

// A counter adds and multiplies counts that are not negative and remembers overflow.
type counter struct{ overflow bool }

func (c *counter) mul(factors ...int64) int64 {
	product := uint64(1)
	for _, f := range factors {
		hi, lo := bits.Mul64(product, uint64(f))
		if hi != 0 || int64(lo) < 0 {
			c.overflow = true
			return 0
		}
		product = lo
	}
	return int64(product)
}

func (c *counter) add(a, b int64) int64 {
	if a+b < 0 {
		c.overflow = true
		return 0
	}
	return a + b
}
