package kernels

// A Rotation is the rotary embedding of keys that are stored without it: the channels
// of a pair are turned by position·frequency.
//
//	q·R(s+j)·k = (R(−s)·q)·(R(j)·k)
//
// A page of keys is turned by the places j of its tokens in it, the same for every page,
// and the queries, page by page, by where it starts.
type Rotation struct {
	frequencies []float64
	interleaved bool
	first       int
}

// NewRotation returns the rotation of pairs (i, i+n), or (2i, 2i+1) where interleaved, by
// frequencies in radians a token; first is the position of token 0. Channels behind
// the pairs are not turned.
func NewRotation(frequencies []float64, interleaved bool, first int) *Rotation {
	return &Rotation{frequencies, interleaved, first}
}

// pair returns the channels of pair i.
func (r *Rotation) pair(i int) (a, b int) {
	if r.interleaved {
		return 2 * i, 2*i + 1
	}
	return i, i + len(r.frequencies)
}

// turn rotates the key of a token, in float64, rounded once.
func (r *Rotation) turn(row []float32, token int) {
	for i, f := range r.frequencies {
		sin, cos := SinCos(float64(float64(r.first+token) * f))
		a, b := r.pair(i)
		x, y := float64(row[a]), float64(row[b])
		row[a] = float32(float64(x*cos) - float64(y*sin))
		row[b] = float32(float64(x*sin) + float64(y*cos))
	}
}

// A turner turns the pages of a cache and its queries.
type turner struct {
	*Rotation
	// Of every page, pair by pair: the angle of its first token.
	pageCos, pageSin []float32
	// Of the two blocks of a page, pair by pair: the angles of its 32 tokens.
	cos, sin [2][]float32
}

// newTurner makes the tables of so many pages, the first at token origin.
func newTurner(r *Rotation, origin, pages int) *turner {
	if r == nil {
		return nil
	}
	t := &turner{Rotation: r}
	n := len(r.frequencies)
	angle := func(position, i int) (cos, sin float32) {
		s, c := SinCos(float64(float64(position) * r.frequencies[i]))
		return float32(c), float32(s)
	}
	t.pageCos, t.pageSin = make([]float32, pages*n), make([]float32, pages*n)
	for p := range pages {
		for i := range n {
			t.pageCos[p*n+i], t.pageSin[p*n+i] = angle(r.first+origin+p*pageTokens, i)
		}
	}
	for b := range t.cos {
		t.cos[b], t.sin[b] = alignedFloats(n*blockWide), alignedFloats(n*blockWide)
		for at := range t.cos[b] {
			t.cos[b][at], t.sin[b][at] = angle(b*blockWide+at%blockWide, at/blockWide)
		}
	}
	return t
}

// queries turns n queries of a row each back by where page p starts.
func (t *turner) queries(dst, q []float32, row, n, p int) {
	pairs := len(t.frequencies)
	cos, sin := t.pageCos[p*pairs:][:pairs], t.pageSin[p*pairs:][:pairs]
	for ; n > 0; n-- {
		for i, c := range cos {
			a, b := t.pair(i)
			x, y := q[a], q[b]
			dst[a] = float32(x*c) + float32(y*sin[i])
			dst[b] = float32(y*c) - float32(x*sin[i])
		}
		copy(dst[2*pairs:row], q[2*pairs:row])
		if n > 1 {
			dst, q = dst[row:], q[row:]
		}
	}
}

// turnKeys turns the keys of a page of float32 tiles, which outliers and means join first.
func (w *decodeWorker) turnKeys(x, means []float32, entries []sparseEntry) {
	t := w.d.cache.turner
	for _, e := range entries {
		token := int(e.token) % pageTokens
		x[(token/blockWide*w.k.reduced+int(e.channel))*blockWide+token%blockWide] += e.delta
	}
	pairs, lines := 1, len(t.frequencies) // at once, and how often
	if !t.interleaved {
		pairs, lines = lines, pairs
	}
	n := pairs * blockWide
	one, two := w.turned[:n], w.turned[n:2*n]
	for block := range t.cos {
		if n := len(means); n > 0 {
			at := x[block*w.k.reduced*blockWide:][:n*blockWide]
			w.kern.scaleSteps(at, w.ones[:n], means, blockWide)
		}
		for i := range lines {
			first, second := t.pair(i)
			a := x[(block*w.k.reduced+first)*blockWide:][:n]
			b := x[(block*w.k.reduced+second)*blockWide:][:n]
			cos, sin := t.cos[block][i*n:][:n], t.sin[block][i*n:][:n]
			columns := w.d.codec.multiplyColumns
			columns(one, a, sin, n)
			columns(two, b, sin, n)
			columns(a, a, cos, n)
			columns(b, b, cos, n)
			w.kern.merge(a, two, 1, -1)
			w.kern.merge(b, one, 1, 1)
		}
	}
}
