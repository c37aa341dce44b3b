package dumps

import (
	"fmt"
	"math"
	"slices"
	"sync"
)

// Layout is the order of a tensor's axes.
type Layout string

const (
	HSD Layout = "hsd" // [heads, tokens, dim]
	SHD Layout = "shd" // [tokens, heads, dim]
)

// ParseLayout reads a layout as typed after --layout.
func ParseLayout(s string) (Layout, error) {
	switch l := Layout(s); l {
	case HSD, SHD:
		return l, nil
	}
	return "", &OptionError{"layout", fmt.Sprintf("%s is no layout: want hsd or shd", quote(s))}
}

// Layer is the dump of one attention layer: K and V, perhaps Q and the output
// projection. Its methods are safe for concurrent use.
type Layer struct {
	Path   string // the file that holds K
	Name   string // the file's base name: how reports call the dump
	Number int

	KVHeads, QueryHeads int // QueryHeads is 0 without Q
	Tokens              int // cached tokens, those dropped left out
	Queries             int // rows of Q, 0 without Q
	HeadDimK, HeadDimV  int
	DType               DType // of K; see Tensor for the others
	Facts               Facts
	QPositions          []int // token at which each row of Q stands; nil without Q
	DroppedTokens       int   // tokens left out because of NaN or infinity
	// Cache is FullCache or SlidingCache where a file keeps the two apart.
	// Number then counts within it, and Name says so, unless it is known which
	// layers slide.
	Cache                string
	tensors              [parts]*Tensor
	positions            *array
	keptTokens, keptRows []int // stored rows, in order, or nil for all
	kvHeadsAssumed       bool  // one head of the whole width is a stand-in
	windowUnknown        bool  // it slides, but not known how far
}

// Tensor describes one tensor of a layer as its file stores it.
type Tensor struct {
	Name      string // in the file; empty where the file holds just one array
	Path      string
	DType     DType
	Shape     []int // as in the file
	Layout    Layout
	Heads     int // 1 for O and OWeight
	Rows      int // tokens of K and V, query rows of Q, as stored
	Dim       int
	Fortran   bool
	BigEndian bool
	Deflated  bool
	Bytes     int64 // of the data, uncompressed

	blob    *blob
	offset  int64
	strides [3]int // of head, row and channel, in elements
}

// Tensor returns the description of one tensor, or nil if the layer lacks it.
func (l *Layer) Tensor(p Part) *Tensor {
	if p < 0 || p >= positions {
		return nil
	}
	return l.tensors[p]
}

// Rows returns the number of rows that ReadHead delivers for a part: Tokens,
// Queries, or what O and OWeight hold.
func (l *Layer) Rows(p Part) int {
	t := l.Tensor(p)
	switch {
	case t == nil:
		return 0
	case p == K || p == V:
		return l.Tokens
	case p == Q || p == OWeight:
		return l.Queries
	}
	return t.Rows
}

// ReadHead converts one head of a tensor to float32, row by row: dst becomes
// [Rows(p), Dim]. Every type converts exactly, but f64 rounds to nearest even.
// O and OWeight have the single head 0. The error of a NaN or an infinity
// names head, token and channel. It panics if dst has another length or the
// tensor or head does not exist.
func (l *Layer) ReadHead(dst []float32, p Part, head int) error {
	return l.ReadRows(dst, p, head, 0, l.Rows(p))
}

// ReadRows is ReadHead for the rows from ≤ i < to only.
func (l *Layer) ReadRows(dst []float32, p Part, head, from, to int) error {
	t := l.Tensor(p)
	if t == nil || head < 0 || head >= t.Heads || from < 0 || from > to || to > l.Rows(p) || len(dst) != (to-from)*t.Dim {
		panic("dumps: no such rows, or dst of another length")
	}
	var kept []int
	switch p {
	case K, V:
		kept = l.keptTokens
	case Q, OWeight:
		kept = l.keptRows
	}
	if kept == nil {
		return t.read(dst, p, head, from, to)
	}
	// Runs of rows that remained neighbours are read together.
	for kept = kept[from:to]; len(kept) > 0; {
		n := 1
		for n < len(kept) && kept[n] == kept[0]+n {
			n++
		}
		if err := t.read(dst[:n*t.Dim], p, head, kept[0], kept[0]+n); err != nil {
			return err
		}
		dst, kept = dst[n*t.Dim:], kept[n:]
	}
	return nil
}

// read converts stored rows and refuses what is not finite.
func (t *Tensor) read(dst []float32, p Part, head, from, to int) error {
	return t.convert(dst, head, from, to, func(first int, rows []float32) error {
		if i := indexNonFinite(rows); i >= 0 {
			return t.nonFinite(p, head, first+i/t.Dim, i%t.Dim, rows[i])
		}
		return nil
	})
}

func (t *Tensor) nonFinite(p Part, head, row, channel int, v float32) error {
	what := "infinite"
	switch {
	case math.IsNaN(float64(v)):
		what = "NaN"
	case t.DType == F64:
		what = "infinite, or too large for float32"
	}
	rowName := "token"
	if p != K && p != V {
		rowName = "row"
	}
	offset := int64(-1)
	if !t.Deflated && !t.DType.quantized() {
		offset = t.offset + int64(head*t.strides[0]+row*t.strides[1]+channel*t.strides[2])*int64(t.DType.Size())
	}
	e := formatErrorf(t.Path, offset, "%s head %d, %s %d, channel %d is %s", p, head, rowName, row, channel, what)
	if p == K || p == V || p == Q {
		e.hint = "--allow-nonfinite drops such tokens"
	}
	return e
}

const (
	// released is how many bytes may be touched before their pages are given back.
	released = 4 << 20
	// hot is how many elements are converted before they are looked at, while
	// they are still in the cache.
	hot = 1 << 15
	// gatherRows is how many rows are gathered at a time.
	gatherRows = 256
)

// convert converts stored rows, whatever their values, and shows each block of
// them to check as soon as it is there.
func (t *Tensor) convert(dst []float32, head, from, to int, check func(first int, rows []float32) error) error {
	data, err := t.blob.bytes()
	if err != nil {
		return err
	}
	if c, ok := blockCodecs[t.DType]; ok {
		return t.blob.guard(func() error { return t.convertBlocks(dst, data, c, head, from, to, check) })
	}
	return t.blob.guard(func() error {
		size := t.DType.Size()
		base := int(t.offset) + head*t.strides[0]*size
		begin, step := from, t.strides[1]*size
		width := ((t.Dim-1)*t.strides[2] + 1) * size
		decode, gathered := t.DType.decoder(), (*gatherScratch)(nil)
		block, cost := max(1, hot/t.Dim), step
		if t.strides[2] != 1 || t.BigEndian {
			gathered = gatherPool.Get().(*gatherScratch)
			defer gatherPool.Put(gathered)
			// Neighbouring pages come along with every page that is touched.
			block, cost = gatherRows, 16*t.Dim*size
		}
		for touched := 0; from < to; {
			n := min(block, to-from)
			rows := dst[:n*t.Dim]
			src := data[base+from*step : base+(from+n-1)*step+width]
			switch {
			case gathered != nil:
				t.gather(rows, src, n, decode, gathered)
			case step == width:
				decode(rows, src)
			default:
				for i := range n {
					decode(rows[i*t.Dim:(i+1)*t.Dim], src[i*step:i*step+width])
				}
			}
			if err := check(from, rows); err != nil {
				return err
			}
			dst, from = dst[n*t.Dim:], from+n
			if touched += n * cost; touched >= released || from == to {
				release(data, base+begin*step, base+(from-1)*step+width)
				begin, touched = from, 0
			}
		}
		return nil
	})
}

// convertBlocks is convert for block types, whose rows hold all heads in turn.
func (t *Tensor) convertBlocks(dst []float32, data []byte, c blockCodec, head, from, to int, check func(first int, rows []float32) error) error {
	row := t.strides[1] / ggmlBlock * c.bytes
	begin := int(t.offset) + from*row
	for first := from; first < to; {
		n := min(max(1, hot/t.Dim), to-first)
		rows := dst[:n*t.Dim]
		for i := range n {
			at := int(t.offset) + (first+i)*row
			c.decodeBlocks(rows[i*t.Dim:(i+1)*t.Dim], data[at:at+row], head*t.strides[0])
		}
		if err := check(first, rows); err != nil {
			return err
		}
		dst, first = dst[n*t.Dim:], first+n
		if end := int(t.offset) + first*row; end-begin >= released || first == to {
			release(data, begin, end)
			begin = end
		}
	}
	return nil
}

// gatherScratch is a column of a block of rows, raw and converted.
type gatherScratch struct {
	raw    [gatherRows * 8]byte
	values [gatherRows]float32
}

var gatherPool = sync.Pool{New: func() any { return new(gatherScratch) }}

// gather converts n ≤ gatherRows rows of any stride and byte order, column by
// column; so few rows that dst stays in the cache. src begins at the first.
func (t *Tensor) gather(dst []float32, src []byte, n int, decode decoder, s *gatherScratch) {
	size := t.DType.Size()
	for c := range t.Dim {
		at := c * t.strides[2] * size
		for i := range n {
			copy(s.raw[i*size:(i+1)*size], src[at:at+size])
			at += t.strides[1] * size
		}
		if t.BigEndian {
			swapBytes(s.raw[:n*size], size)
		}
		decode(s.values[:n], s.raw[:n*size])
		for i, v := range s.values[:n] {
			dst[i*t.Dim+c] = v
		}
	}
}

// swapBytes reverses the bytes of every element.
func swapBytes(b []byte, size int) {
	for ; len(b) >= size; b = b[size:] {
		slices.Reverse(b[:size])
	}
}

// newTensor interprets an array as [heads, rows, dim] in the given layout,
// with an optional leading batch of 1.
func newTensor(a *array, p Part, layout Layout, option DType) (t *Tensor, usedOption bool, err error) {
	return newTensorAt(a, p, layout, option, a.shape, a.strides(), 0)
}

// newTensorAt is newTensor for a part of the array: the axes of shape and
// strides, beginning at element first.
func newTensorAt(a *array, p Part, layout Layout, option DType, shape, strides []int, first int) (*Tensor, bool, error) {
	d, used := a.elem.float(option)
	if d == "" {
		e := a.errorf("has type %s, want f16, bf16, f32, f64, e4m3 or e5m2", quote(a.elem.name))
		if (a.elem.kind == kindRaw || a.elem.kind == kindUint) && a.elem.size <= 2 && a.elem.size > 0 {
			e.Msg = fmt.Sprintf("%s has type %s, which does not say how its bits are to be read", a.label(), quote(a.elem.name))
			e.hint = map[int]string{1: "add --dtype e4m3 or --dtype e5m2", 2: "if it is bfloat16, add --dtype bf16"}[a.elem.size]
		}
		return nil, false, e
	}
	for len(shape) > axes(p) && shape[0] == 1 {
		shape, strides = shape[1:], strides[1:]
	}
	if len(shape) != axes(p) {
		e := a.errorf("has shape %s, want %d dimensions for %s", shapeString(a.shape), axes(p), p)
		if len(shape) == axes(p)+1 && p <= Q {
			e = a.errorf("has shape %s: a batch of %d, and kvq reads one sequence at a time", shapeString(a.shape), shape[0])
		}
		return nil, false, e
	}
	for _, n := range shape {
		if n == 0 {
			return nil, false, a.errorf("has shape %s: nothing in it", shapeString(a.shape))
		}
	}
	t := &Tensor{Name: a.name, Path: a.path, DType: d, Shape: a.shape, Layout: layout, Heads: 1,
		Fortran: a.fortran, BigEndian: a.elem.big && d.Size() > 1, Deflated: a.deflate,
		Bytes: a.bytes, blob: a.blob, offset: a.offset + int64(first*d.Size())}
	switch {
	case p == OWeight:
		t.Rows, t.Dim = shape[0], 1
		t.strides = [3]int{0, strides[0], 1}
	case p == O:
		t.Rows, t.Dim = shape[0], shape[1]
		t.strides = [3]int{0, strides[0], strides[1]}
	case layout == SHD:
		t.Rows, t.Heads, t.Dim = shape[0], shape[1], shape[2]
		t.strides = [3]int{strides[1], strides[0], strides[2]}
	default:
		t.Heads, t.Rows, t.Dim = shape[0], shape[1], shape[2]
		t.strides = [3]int(strides)
	}
	return t, used, nil
}

// axes returns the number of dimensions a part has.
func axes(p Part) int {
	switch p {
	case O:
		return 2
	case OWeight:
		return 1
	}
	return 3
}
