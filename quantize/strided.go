package quantize

import (
	"fmt"
	"math"

	"kvq/kernels"
)

// stridedGroup is how many values of a tensor share a scale of a Strided format.
const stridedGroup = 64

// Hugging Face's HQQ cache quantizes along axis 0: the tensor [heads, tokens,
// channels] is reshaped to [64, n], and the 64 values of a column, n apart in the
// tensor, share a scale, neither a token nor a channel.

// stridedScales returns the number of scales of heads of rows×dim values.
func (s *Scheme) stridedScales(heads, rows, dim int) (int, error) {
	n := heads * rows * dim
	if n%stridedGroup != 0 {
		return 0, &SchemeError{Name: s.Name(), Reason: fmt.Sprintf("its groups of %d do not divide %d heads × %d tokens × %d channels", stridedGroup, heads, rows, dim)}
	}
	return n / stridedGroup, nil
}

// observeStrided widens the ranges of the groups that a head's values belong to.
func (c *Coder) observeStrided(calibration *Calibration, head Head, values []float32) error {
	if head.Index >= head.Heads {
		panic("quantize: a Strided format needs to know the tensor's heads")
	}
	rows := len(values) / head.Dim
	n, err := c.scheme.stridedScales(head.Heads, rows, head.Dim)
	if err != nil {
		return err
	}
	seen := Calibration{seen: true, groupLo: make([]float32, n), groupHi: make([]float32, n)}
	for i := range n {
		seen.groupLo[i], seen.groupHi[i] = math.MaxFloat32, -math.MaxFloat32
	}
	at := head.Index * len(values) % n
	for _, v := range values {
		seen.groupLo[at], seen.groupHi[at] = min(seen.groupLo[at], v), max(seen.groupHi[at], v)
		if at++; at == n {
			at = 0
		}
	}
	calibration.Merge(seen)
	return nil
}

// encodeStrided is HQQ without its solver: scale = min((2^B−1)/(max−min), 2e4), 1 for
// ranges up to 1e-4, zero = −min·scale, q = clamp(rne(x·scale + zero)), all in
// float32; 1/scale and zero are stored in f16 afterwards.
func (c *Coder) encodeStrided(e *Encoded, values []float32, calibration *Calibration) error {
	n := len(calibration.groupLo)
	e.Scales, e.Offsets = resize(e.Scales, 2*n), resize(e.Offsets, 2*n)
	e.ZeroPoints, e.Codebook = e.ZeroPoints[:0], e.Codebook[:0]
	c.affine.Scale, c.affine.Offset = resize(c.affine.Scale, n), resize(c.affine.Offset, n)
	bits := c.scheme.Format.Bits
	top := float32(int(1)<<bits - 1)
	for i, lo := range calibration.groupLo {
		scale := float32(1)
		if width := calibration.groupHi[i] - lo; width > 1e-4 {
			scale = min(top/width, 2e4)
		}
		c.affine.Scale[i], c.affine.Offset[i] = scale, float32(-lo*scale)
		if !putF16(e.Scales[2*i:], 1/scale) || !putF16(e.Offsets[2*i:], c.affine.Offset[i]) {
			return &RangeError{Scheme: c.scheme.Name(), Head: e.Index, Group: fmt.Sprintf("group %d of %d", i, n),
				Reason: fmt.Sprintf("from %g to %g, its scale or zero does not fit f16", lo, calibration.groupHi[i])}
		}
	}
	at := e.Index * len(values) % max(n, 1)
	c.fields = resize(c.fields, e.Dim)
	width := c.scheme.codeBytes(e.Dim)
	for row := 0; row < len(values)/e.Dim; row++ {
		for i, v := range values[row*e.Dim : (row+1)*e.Dim] {
			c.fields[i] = nearestCode(float32(v*c.affine.Scale[at])+c.affine.Offset[at], top)
			if at++; at == n {
				at = 0
			}
		}
		kernels.Pack(e.Codes[row*width:(row+1)*width], c.fields, bits)
	}
	return nil
}

// decodeStrided is (q − zero)·(1/scale) with what is stored.
func (c *Coder) decodeStrided(values []float32, e *Encoded) {
	n := len(e.Scales) / 2
	at := e.Index * len(values) % max(n, 1)
	c.fields = resize(c.fields, e.Dim)
	width := c.scheme.codeBytes(e.Dim)
	for row := 0; row < len(values)/e.Dim; row++ {
		kernels.Unpack(c.fields, e.Codes[row*width:(row+1)*width], c.scheme.Format.Bits)
		for i, q := range c.fields {
			zero := kernels.GetF16(e.Offsets[2*at:])
			values[row*e.Dim+i] = (float32(q) - zero) * kernels.GetF16(e.Scales[2*at:])
			if at++; at == n {
				at = 0
			}
		}
	}
}
