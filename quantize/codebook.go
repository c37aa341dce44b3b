package quantize

import (
	"kvq/kernels"
)

// nf4 are the values of NF4: quantiles of N(0,1) over the largest, zero among
// them (QLoRA, Dettmers et al. 2023; bitsandbytes).
var nf4 = []float32{
	-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
	-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
	0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
	0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
}

// learnedBins is the resolution at which the values of a tensor are counted to
// learn its codebook, over [−1, 1].
const learnedBins = 8192

// unit returns the index of the scale of value i of a block, of the block's scales.
func (s *Scheme) unit(i, dim int) int {
	switch s.Share {
	case PerChannel:
		return i % dim
	case PerToken:
		if s.Group == 0 {
			return i / dim
		}
		return i/dim*int(groups(int64(dim), s.Group)) + i%dim/s.Group
	}
	return 0
}

// normalized returns value i of a block over its scale, less its offset.
func (c *Coder) normalized(v float32, unit int) float32 {
	if c.scheme.Zero == Asym {
		v -= c.affine.Offset[unit]
	}
	return quotient(v, c.affine.Scale[unit])
}

// observeCodes counts the normalized values of a block; outliers do not count.
func (c *Coder) observeCodes(histogram []int64, block []float32, out []bool, dim int) {
	for i, v := range block {
		if out != nil && out[i] {
			continue
		}
		u := c.normalized(v, c.scheme.unit(i, dim))
		histogram[min(max(int(float32(u+1)*(learnedBins/2)), 0), learnedBins-1)]++
	}
}

// nearest returns the code of the codebook's value nearest to u, the lower of two
// that are equally near.
func (c *Coder) nearest(u float32) (code int) {
	for code < len(c.book)-1 && u > (c.book[code]+c.book[code+1])/2 {
		code++
	}
	return code
}

// encodeCodes writes the codes of values.
func (c *Coder) encodeCodes(fields []uint8, values []float32, dim int) {
	for i, v := range values {
		fields[i] = uint8(c.nearest(c.normalized(v, c.scheme.unit(i, dim))))
	}
}

// decodeCodes is scale·value (+ offset).
func (c *Coder) decodeCodes(values []float32, fields []uint8, dim int) {
	for i, code := range fields {
		unit := c.scheme.unit(i, dim)
		values[i] = float32(c.book[code] * c.affine.Scale[unit])
		if c.scheme.Zero == Asym {
			values[i] += c.affine.Offset[unit]
		}
	}
}

// learn returns n values that leave a small squared error on what a histogram
// counted: Lloyd's iteration from the quantiles, in float64, the same everywhere.
func learn(histogram []int64, n int) []float32 {
	center := func(bin int) float64 { return float64((float64(bin)+0.5)*2/learnedBins) - 1 }
	var total int64
	for _, count := range histogram {
		total += count
	}
	centers := make([]float64, n)
	var seen int64
	next := 0
	for bin, count := range histogram {
		seen += count
		for next < n && 2*int64(n)*seen >= (2*int64(next)+1)*total {
			centers[next] = center(bin)
			next++
		}
	}
	for range 200 {
		sums, counts := make([]float64, n), make([]int64, n)
		code := 0
		for bin, count := range histogram {
			for code < n-1 && center(bin) > (centers[code]+centers[code+1])/2 {
				code++
			}
			sums[code] += float64(float64(count) * center(bin))
			counts[code] += count
		}
		moved := false
		for i := range centers {
			if counts[i] > 0 && sums[i]/float64(counts[i]) != centers[i] {
				centers[i] = sums[i] / float64(counts[i])
				moved = true
			}
		}
		if !moved {
			break
		}
	}
	book := make([]float32, n)
	for i, v := range centers {
		book[i] = float32(v)
	}
	return book
}

// setBook takes the codebook of the scheme: its format's own, or what the tensor
// taught, stored in f16 first.
func (c *Coder) setBook(e *Encoded, calibration *Calibration) {
	f := c.scheme.Format
	if e.Codebook = e.Codebook[:0]; !f.learned {
		c.book = f.book
		return
	}
	book := learn(calibration.histogram, 1<<f.Bits)
	e.Codebook = resize(e.Codebook, codebookValueBytes*len(book))
	kernels.ToF16(e.Codebook, book)
	c.loadBook(e)
}

// loadBook reads the codebook that e was encoded with.
func (c *Coder) loadBook(e *Encoded) {
	if !c.scheme.Format.learned {
		c.book = c.scheme.Format.book
		return
	}
	c.book = resize(c.book, len(e.Codebook)/codebookValueBytes)
	kernels.FromF16(c.book, e.Codebook)
}

// codebookValueBytes is the size of a stored value of a learned codebook, f16.
const codebookValueBytes = 2

// codebookBytes returns the bytes of a tensor's learned codebook.
func (s *Scheme) codebookBytes() int64 {
	if !s.Format.learned {
		return 0
	}
	return codebookValueBytes << s.Format.Bits
}
