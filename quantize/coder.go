package quantize

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"kvq/kernels"
)

// A Head is the keys or values of one KV head: Values are [tokens, Dim]
// float32, row by row. Index is its number in the tensor, for errors and for
// what the tensor stores once, with the head of index 0.
type Head struct {
	Index  int
	Dim    int
	Values []float32
	Heads  int // of the tensor; only Strided formats need it
	// Finite says that the caller has made sure of it: Encode then saves a pass
	// over the values that would refuse NaN and infinities.
	Finite bool
	// Rope is what +prerope takes back from keys; nil where it is not known, and
	// for values.
	Rope *Rope
}

// tokens returns the rows of the head.
func (h Head) tokens() int { return len(h.Values) / h.Dim }

// An Encoded is one head as its scheme stores it, each part in the order and
// the type it is stored in (little endian). Encode reuses its memory.
type Encoded struct {
	Scheme      *Scheme
	Index       int // of the head
	Tokens, Dim int

	// Codes are the rows that no window keeps, each starting on a byte.
	Codes []byte
	// Scales, and for Asym Offsets in the same type, for ZP ZeroPoints as int8:
	// one for PerTensor and PerHead; token by token, groups of channels in order,
	// for PerToken; group by group of tokens, channels in order, for PerChannel.
	Scales, Offsets, ZeroPoints []byte
	// Codebook is what a tensor's learned codes stand for, f16.
	Codebook []byte
	// Means are the float32 means of the channels that +center takes out.
	Means []byte
	// Window are the f16 rows that +sink and then +recent keep.
	Window []byte
	// Outliers are the f16 values that +outlier keeps, coded row by coded row,
	// OutlierChannels their channels (uint16), and OutlierEnds for each row the
	// number of outliers up to its end (uint32).
	Outliers, OutlierChannels, OutlierEnds []byte

	sink, recent int // rows of Window
	rope         *Rope
}

// Size returns the bytes of e. What PerTensor stores once counts with head 0.
func (e *Encoded) Size() Size {
	rowData, rowMetadata := e.Scheme.rowBytes(e.Dim)
	rows := int64(len(e.Codes) / (rowData + rowMetadata))
	size := Size{
		Data:     rows*int64(rowData) + int64(len(e.Window)+len(e.Outliers)),
		Metadata: rows*int64(rowMetadata) + int64(len(e.Means)+len(e.OutlierChannels)+len(e.OutlierEnds)),
	}
	if !e.Scheme.sharedScale() || e.Index == 0 {
		size.Metadata += int64(len(e.Scales) + len(e.Offsets) + len(e.ZeroPoints))
	}
	if e.Index == 0 {
		size.Metadata += int64(len(e.Codebook))
	}
	return size
}

// Append appends all bytes of e to dst: codes, scales, offsets, zero points,
// codebook, means, window, outliers, their channels, their ends. What a tensor stores once
// is appended for head 0.
func (e *Encoded) Append(dst []byte) []byte {
	dst = append(dst, e.Codes...)
	if !e.Scheme.sharedScale() || e.Index == 0 {
		dst = append(append(append(dst, e.Scales...), e.Offsets...), e.ZeroPoints...)
	}
	if e.Index == 0 {
		dst = append(dst, e.Codebook...)
	}
	for _, part := range [][]byte{e.Means, e.Window, e.Outliers, e.OutlierChannels, e.OutlierEnds} {
		dst = append(dst, part...)
	}
	return dst
}

// rows returns the range of tokens that are stored as codes.
func (e *Encoded) rows() (first, end int) { return e.sink, e.Tokens - e.recent }

// A Calibration is what a tensor's heads store in common: the range of all
// values, and what a codebook is learned from. The zero value has seen no head.
type Calibration struct {
	lo, hi    float32
	seen      bool
	histogram []int64 // of normalized values

	groupLo, groupHi []float32 // of a Strided format
}

// Merge adds what other has seen.
func (c *Calibration) Merge(other Calibration) {
	if !other.seen {
		return
	}
	if !c.seen {
		*c = other
		c.histogram = slices.Clone(other.histogram)
		c.groupLo, c.groupHi = slices.Clone(other.groupLo), slices.Clone(other.groupHi)
		return
	}
	c.lo, c.hi = min(c.lo, other.lo), max(c.hi, other.hi)
	for bin, count := range other.histogram {
		c.histogram[bin] += count
	}
	for i, lo := range other.groupLo {
		c.groupLo[i], c.groupHi[i] = min(c.groupLo[i], lo), max(c.groupHi[i], other.groupHi[i])
	}
}

// A Coder encodes and decodes heads under one scheme. It keeps scratch memory:
// one Coder serves one goroutine.
type Coder struct {
	scheme *Scheme
	work   []float32 // a head that modifiers changed
	page   []float32 // one page of values before the codes of 8-bit floats
	book   []float32 // values of the codes of a Codebook
	fields []uint8   // one page of codes, unpacked
	lo, hi []float32 // ranges of a block of scales
	affine kernels.Affine
	runs   *kernels.RunEncoder // made when first needed
	wave   []float64           // one block of a Hadamard transform
	sums   []float64           // one sum a channel
	fit    kernels.LevelFit

	out      []bool // of the coded values: the outliers
	taken    []outlier
	tailLo   []float32 // ranges that +tails fixes, unit by unit
	tailHi   []float32
	middles  []int32  // of e2m1 codes
	bits     []uint32 // magnitudes of a sharing unit
	trial    *Coder   // tries the scales of +clip
	gathered []float32
	scratch  []byte
}

// NewCoder returns a Coder for s.
func (s *Scheme) NewCoder() *Coder { return &Coder{scheme: s} }

// pageElements bounds what is encoded at once: a page of values, its fields and
// codes stay in the second-level cache, and one call of a kernel stays short.
const pageElements = 16384

// Observe adds a head to what the heads of its tensor have in common. A scheme
// that is Calibrated needs all heads observed before the first Encode; the order
// does not matter.
func (c *Coder) Observe(calibration *Calibration, head Head) error {
	e := new(Encoded)
	values, err := c.transform(e, head)
	if err != nil || len(values) == 0 {
		return err
	}
	if c.scheme.Format.Class == Strided {
		return c.observeStrided(calibration, head, values)
	}
	seen := Calibration{lo: values[0], hi: values[0], seen: true}
	if c.scheme.Format.learned {
		seen.histogram = make([]int64, learnedBins)
		e.Codes = resize(e.Codes, len(values)/head.Dim*c.scheme.codeBytes(head.Dim))
		if err := c.encodeScaled(e, values, &seen, true); err != nil {
			return err
		}
		calibration.Merge(seen)
		return nil
	}
	for len(values) > 0 {
		page := values[:min(pageElements, len(values))]
		values = values[len(page):]
		var lo, hi [1]float32
		kernels.MinMaxRuns(lo[:], hi[:], page, len(page))
		seen.lo, seen.hi = min(seen.lo, lo[0]), max(seen.hi, hi[0])
	}
	calibration.Merge(seen)
	return nil
}

// Encode stores a head in e. calibration is what Observe collected, nil unless
// the scheme is Calibrated. Errors name head, token and channel: a *ValueError
// for a value that the scheme cannot hold, a *SchemeError for a head width that
// does not fit.
func (c *Coder) Encode(e *Encoded, head Head, calibration *Calibration) error {
	values, err := c.transform(e, head)
	if err != nil {
		return err
	}
	if c.scheme.Calibrated() && (calibration == nil || !calibration.seen && len(values) > 0) {
		panic("quantize: scheme " + c.scheme.Name() + " encodes before it has observed the tensor")
	}
	e.Codes = resize(e.Codes, len(values)/max(head.Dim, 1)*c.scheme.codeBytes(head.Dim))
	err = c.encodeValues(e, values, calibration)
	if err != nil && c.scheme.checksValues() {
		if i := kernels.IndexNonFinite(values); i >= 0 {
			return c.valueError(e, i, values[i], onlyFinite, "")
		}
	}
	return err
}

// encodeValues stores what the modifiers left to be encoded.
func (c *Coder) encodeValues(e *Encoded, values []float32, calibration *Calibration) error {
	switch c.scheme.Format.Class {
	case Plain:
		e.Scales, e.Offsets, e.ZeroPoints, e.Codebook = e.Scales[:0], e.Offsets[:0], e.ZeroPoints[:0], e.Codebook[:0]
		return c.encodeFloats(e, e.Codes, values, e.sink, c.scheme.Format)
	case Block:
		return c.encodeBlocks(e, values, calibration)
	case Strided:
		return c.encodeStrided(e, values, calibration)
	}
	return c.encodeScaled(e, values, calibration, false)
}

// checksValues reports whether encoding comes across values that are not finite, so that
// no pass of its own need look for them: the ranges of scales show them, and the
// largest magnitude of a page.
func (s *Scheme) checksValues() bool {
	switch s.Format.Class {
	case Plain:
		return len(s.Modifiers) == 0 && s.Format.overflow > 0
	case Integer, Scaled:
		return len(s.Modifiers) == 0 && s.Share != PerTensor
	}
	return false
}

// Decode writes the values of e, [tokens, dim], to dst.
func (c *Coder) Decode(dst []float32, e *Encoded) {
	if len(dst) != e.Tokens*e.Dim || e.Scheme != c.scheme {
		panic("quantize: Decode into another shape or with another scheme")
	}
	c.decodeRows(dst, e)
	c.restore(dst, e)
}

// Stored writes the values of e to dst, [tokens, dim], as attention over the stored
// tensor meets them: those of codes, windows and outliers, without turning back what
// modifiers made of the values. The rows of a window get the modifiers that stand to
// its right, so that one query meets all tokens alike.
func (c *Coder) Stored(dst []float32, e *Encoded) {
	c.decodeRows(dst, e)
	first, end := e.rows()
	for i := len(c.scheme.Modifiers) - 1; i >= 0; i-- {
		var rows []float32
		switch c.scheme.Modifiers[i].Kind {
		case Outlier:
			c.putOutliers(dst[first*e.Dim:end*e.Dim], e)
		case Sink:
			rows = dst[:first*e.Dim]
			kernels.FromF16(rows, e.Window[:len(rows)*windowBytes])
		case Recent:
			rows = dst[end*e.Dim:]
			kernels.FromF16(rows, e.Window[first*e.Dim*windowBytes:])
		}
		for _, m := range c.scheme.Modifiers[i+1:] {
			switch m.Kind {
			case Center:
				means := e.MeanValues(nil)
				for row := range eachRow(rows, e.Dim) {
					for i := range row {
						row[i] -= means[i]
					}
				}
			case Hadamard:
				c.hadamard(rows, e.Dim, m.N)
			}
		}
	}
}

// decodeRows writes the values of e's codes to the coded rows of dst.
func (c *Coder) decodeRows(dst []float32, e *Encoded) {
	first, end := e.rows()
	values := dst[first*e.Dim : end*e.Dim]
	switch c.scheme.Format.Class {
	case Plain:
		c.scheme.Format.decode(values, e.Codes)
	case Block:
		c.decodeBlocks(values, e)
	case Strided:
		c.decodeStrided(values, e)
	default:
		c.decodeScaled(values, e)
	}
}

// onlyFinite is why a NaN or an infinity is refused.
const onlyFinite = "only finite values can be stored"

// transform checks a head and applies the modifiers from left to right: it
// fills e's shape, means and window and returns the values that remain to be
// encoded. They are the head's own where no modifier changes them.
func (c *Coder) transform(e *Encoded, head Head) ([]float32, error) {
	if err := c.scheme.CheckDim(head.Dim); err != nil {
		return nil, err
	}
	if len(head.Values)%head.Dim != 0 {
		panic("quantize: a head of broken rows")
	}
	e.Scheme, e.Index, e.Tokens, e.Dim = c.scheme, head.Index, head.tokens(), head.Dim
	sink, recent := c.scheme.windows(int64(e.Tokens))
	e.sink, e.recent = int(sink), int(recent)
	e.Means = e.Means[:0]
	e.Window = resize(e.Window, (e.sink+e.recent)*e.Dim*windowBytes)
	if !head.Finite && !c.scheme.checksValues() {
		if i := kernels.IndexNonFinite(head.Values); i >= 0 {
			return nil, c.valueError(e, i, head.Values[i], onlyFinite, "")
		}
	}
	e.Outliers, e.OutlierChannels, e.OutlierEnds = e.Outliers[:0], e.OutlierChannels[:0], e.OutlierEnds[:0]
	e.rope = head.Rope
	values, changed := head.Values, false
	first, end := 0, e.Tokens // rows that no modifier has taken out yet
	for _, m := range c.scheme.Modifiers {
		if !changed && m.Kind.changes() {
			c.work = append(c.work[:0], values...)
			values, changed = c.work, true
		}
		rows := values[first*e.Dim : end*e.Dim]
		switch m.Kind {
		case Center:
			c.center(e, rows)
		case Hadamard:
			c.hadamard(rows, e.Dim, m.N)
		case PreRoPE:
			if e.rope == nil {
				return nil, &SchemeError{Name: c.scheme.Name(), Reason: "+prerope needs keys whose rotary embedding is known",
					Hint: "it is for the K side, and the dump must state its rope facts"}
			}
			e.rope.rotate(rows, e.Dim, first, -1)
		case Outlier:
			if err := c.takeOutliers(e, rows); err != nil {
				return nil, err
			}
		case Sink:
			first = e.sink
			if err := c.keep(e, values, 0, e.sink, 0); err != nil {
				return nil, err
			}
		case Recent:
			end = e.Tokens - e.recent
			if err := c.keep(e, values, end, e.Tokens, e.sink); err != nil {
				return nil, err
			}
		}
	}
	return values[first*e.Dim : end*e.Dim], nil
}

// restore undoes the modifiers from right to left on decoded values.
func (c *Coder) restore(dst []float32, e *Encoded) {
	first, end := e.rows()
	for i := len(c.scheme.Modifiers) - 1; i >= 0; i-- {
		m := c.scheme.Modifiers[i]
		rows := dst[first*e.Dim : end*e.Dim]
		switch m.Kind {
		case Center:
			c.uncenter(e, rows)
		case Hadamard:
			c.hadamard(rows, e.Dim, m.N)
		case PreRoPE:
			e.rope.rotate(rows, e.Dim, first, 1)
		case Outlier:
			c.putOutliers(rows, e)
		case Sink:
			first = 0
			kernels.FromF16(dst[:e.sink*e.Dim], e.Window[:e.sink*e.Dim*windowBytes])
		case Recent:
			end = e.Tokens
			kernels.FromF16(dst[(e.Tokens-e.recent)*e.Dim:], e.Window[e.sink*e.Dim*windowBytes:])
		}
	}
}

// keep stores rows [first, end) of values in f16 as the window's rows from row on.
func (c *Coder) keep(e *Encoded, values []float32, first, end, row int) error {
	return c.encodeFloats(e, e.Window[row*e.Dim*windowBytes:], values[first*e.Dim:end*e.Dim], first, formatNamed("f16"))
}

// encodeFloats stores values, rows from token first on, in a float format.
func (c *Coder) encodeFloats(e *Encoded, dst []byte, values []float32, first int, f *Format) error {
	width := f.Bits / 8
	for at := 0; at < len(values); at += pageElements {
		page := values[at:min(at+pageElements, len(values))]
		if f.overflow > 0 && !(kernels.AbsMax(page) < f.overflow) {
			i := slices.IndexFunc(page, func(v float32) bool { return !(v > -f.overflow && v < f.overflow) })
			return c.valueError(e, first*e.Dim+at+i, page[i], fmt.Sprintf("%s holds magnitudes below %g", f.Name, f.overflow), f.instead)
		}
		f.encode(dst[at*width:(at+len(page))*width], page)
	}
	return nil
}

// center subtracts from each channel of rows its mean, a float64 sum in the
// order of tokens, stored in float32.
func (c *Coder) center(e *Encoded, rows []float32) {
	e.Means = resize(e.Means, e.Dim*meanBytes)
	c.sums = resize(c.sums, e.Dim)
	clear(c.sums)
	for row := range eachRow(rows, e.Dim) {
		for i, v := range row {
			c.sums[i] += float64(v)
		}
	}
	tokens := max(len(rows)/e.Dim, 1)
	for i, sum := range c.sums {
		binary.LittleEndian.PutUint32(e.Means[i*meanBytes:], math.Float32bits(float32(sum/float64(tokens))))
	}
	means := e.MeanValues(nil)
	for row := range eachRow(rows, e.Dim) {
		for i := range row {
			row[i] -= means[i]
		}
	}
}

// uncenter adds the means back to rows.
func (c *Coder) uncenter(e *Encoded, rows []float32) {
	means := e.MeanValues(nil)
	for row := range eachRow(rows, e.Dim) {
		for i := range row {
			row[i] += means[i]
		}
	}
}

// eachRow yields rows of dim values.
func eachRow(values []float32, dim int) func(func([]float32) bool) {
	return func(yield func([]float32) bool) {
		for ; len(values) > 0; values = values[dim:] {
			if !yield(values[:dim]) {
				return
			}
		}
	}
}

// hadamard transforms each block of n channels of rows (0: the largest power of
// two that divides dim) by the orthonormal Walsh–Hadamard matrix in Sylvester's
// order, which is its own inverse: in float64, rounded once.
func (c *Coder) hadamard(rows []float32, dim, n int) {
	if n == 0 {
		n = hadamardBlock(dim)
	}
	c.wave = resize(c.wave, n)
	w := c.wave
	scale := 1 / math.Sqrt(float64(n))
	for block := range eachRow(rows, n) {
		for i, v := range block {
			w[i] = float64(v)
		}
		walshHadamard(w)
		for i := range block {
			block[i] = float32(w[i] * scale)
		}
	}
}

// walshHadamard transforms w, whose length is a power of two, by the Walsh–Hadamard
// matrix of ones in Sylvester's order.
func walshHadamard(w []float64) {
	for half := 1; half < len(w); half *= 2 {
		for base := 0; base < len(w); base += 2 * half {
			a, b := w[base:base+half], w[base+half:base+2*half]
			for i := range a {
				a[i], b[i] = a[i]+b[i], a[i]-b[i]
			}
		}
	}
}

// resize returns s with length n, keeping its memory when it is large enough.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// A ValueError is a value that a scheme cannot hold.
type ValueError struct {
	Scheme               string
	Head, Token, Channel int
	Value                float32
	Reason               string
	Hint                 string // what to do; may be empty
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("scheme %s: head %d, token %d, channel %d is %g: %s", e.Scheme, e.Head, e.Token, e.Channel, e.Value, e.Reason)
}

// valueError is the error for value i of the head.
func (c *Coder) valueError(e *Encoded, i int, v float32, reason, hint string) error {
	return &ValueError{Scheme: c.scheme.Name(), Head: e.Index, Token: i / e.Dim, Channel: i % e.Dim, Value: v, Reason: reason, Hint: hint}
}
