package kernels

import (
	"fmt"
	"sort"
	"unsafe"
)

// Outliers stand beside a head's pages, as a stream of their own: pages without them
// are read as ever. A score of a page in codes gets q_c·δ for each, δ the outlier less
// what its code stands for, and an output p_t·δ. It is portable code, so the bits are
// the same everywhere.

// sparse are the outliers of a head's pages, on one side.
type sparse struct {
	ends    []uint32 // entries up to the end of each page
	entries []sparseEntry
}

// A sparseEntry is one outlier of a page.
type sparseEntry struct {
	delta   float32 // the outlier less the value of its code
	channel uint16
	token   uint16 // of the page
}

const sparseEntryBytes = int(unsafe.Sizeof(sparseEntry{}))

// sparseBytes returns the memory that the outliers of so many pages take.
func sparseBytes(s *side, pages int) int {
	if s.format.Outliers == 0 {
		return 0
	}
	return roundUp(4*pages, lineBytes) + roundUp(sparseEntryBytes*s.format.Outliers, lineBytes)
}

// newSparse lays the outliers of so many pages into b, and returns what is left of b.
func newSparse(b []byte, s *side, pages int) (sparse, []byte) {
	n := sparseBytes(s, pages)
	if n == 0 {
		return sparse{}, b
	}
	entries := b[roundUp(4*pages, lineBytes):]
	return sparse{
		ends:    unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(b))), pages),
		entries: unsafe.Slice((*sparseEntry)(unsafe.Pointer(unsafe.SliceData(entries))), s.format.Outliers),
	}, b[n:]
}

// sparse returns the outliers of one side.
func (h *head) sparse(s *side) *sparse {
	if s.key {
		return &h.kOut
	}
	return &h.vOut
}

// page returns the outliers of page i.
func (x *sparse) page(i int) []sparseEntry {
	if len(x.ends) == 0 {
		return nil
	}
	first := uint32(0)
	if i > 0 {
		first = x.ends[i-1]
	}
	return x.entries[first:x.ends[i]]
}

// bytes returns how much of the outliers of the first n pages is read.
func (x *sparse) bytes(pages int) int {
	if len(x.ends) == 0 || pages == 0 {
		return 0
	}
	return 4*pages + sparseEntryBytes*int(x.ends[pages-1])
}

// fill stores the outliers of the pages of e.
func (x *sparse) fill(s *side, pages int, e Encoded) {
	if len(x.ends) == 0 {
		return
	}
	n, row := 0, make([]float32, s.dim)
	for p := range pages {
		n = x.put(s, p, n, p*pageTokens+s.shift, e, row)
	}
}

// put stores the outliers of page p, whose tokens begin at the coded token first of e,
// behind n others, and returns how many there are then. row has room for a row.
func (x *sparse) put(s *side, p, n, first int, e Encoded, row []float32) int {
	decoded := -1
	for _, o := range outliersOf(e.Outliers, first, first+pageTokens) {
		if o.Token != decoded {
			s.decodeRow(row, o.Token, e)
			decoded = o.Token
		}
		x.entries[n] = sparseEntry{o.Value - row[o.Channel], uint16(o.Channel), uint16(o.Token - first)}
		n++
	}
	x.ends[p] = uint32(n)
	return n
}

// outliersOf returns those of the tokens from first up to end.
func outliersOf(all []Outlier, first, end int) []Outlier {
	from := sort.Search(len(all), func(i int) bool { return all[i].Token >= first })
	n := sort.Search(len(all)-from, func(i int) bool { return all[from+i].Token >= end })
	return all[from : from+n]
}

// checkOutliers holds the outliers of so many coded tokens against the format.
func (s *side) checkOutliers(tokens int, all []Outlier) error {
	if len(all) > s.format.Outliers {
		return fmt.Errorf("%d outliers: the cache has room for %d", len(all), s.format.Outliers)
	}
	for i, o := range all {
		if o.Token < 0 || o.Token >= tokens || o.Channel < 0 || o.Channel >= s.dim || i > 0 && o.Token < all[i-1].Token {
			return fmt.Errorf("outlier %d is at token %d, channel %d: want ascending tokens below %d, channels below %d", i, o.Token, o.Channel, tokens, s.dim)
		}
	}
	return nil
}

// sparseScores adds the outliers of K to the scores of a page.
func (w *decodeWorker) sparseScores(b *blockState, entries []sparseEntry) {
	if b.heads == headBlock {
		// Four sums at once do not wait for each other.
		q0, q1, q2, q3 := b.q[:w.row], b.q[w.row:][:w.row], b.q[2*w.row:][:w.row], b.q[3*w.row:][:w.row]
		z := (*[headBlock * pageTokens]float32)(w.z)
		for i := range entries {
			e := &entries[i]
			t, c := e.token%pageTokens, int(e.channel)
			z[t] += float32(q0[c] * e.delta)
			z[pageTokens+t] += float32(q1[c] * e.delta)
			z[2*pageTokens+t] += float32(q2[c] * e.delta)
			z[3*pageTokens+t] += float32(q3[c] * e.delta)
		}
		return
	}
	for h := range b.heads {
		q, z := b.q[h*w.row:][:w.row], (*[pageTokens]float32)(w.z[h*pageTokens:])
		for i := range entries {
			e := &entries[i]
			z[e.token%pageTokens] += float32(q[e.channel] * e.delta)
		}
	}
}

// sparseValues adds the outliers of V to what b has of them: outputs of their own, as
// what a whole head or column shares comes to the others only at the end.
func (w *decodeWorker) sparseValues(b *blockState, entries []sparseEntry) {
	lanes := w.tv.lanes
	for h := range b.heads {
		if r := w.r[h]; r != 1 {
			o := b.sparse[h*lanes:][:lanes]
			w.kern.multiply(o, o, r)
		}
	}
	if b.heads == headBlock {
		o0, o1, o2, o3 := b.sparse[:lanes], b.sparse[lanes:][:lanes], b.sparse[2*lanes:][:lanes], b.sparse[3*lanes:][:lanes]
		p := (*[headBlock * pageTokens]float32)(w.z)
		for i := range entries {
			e := &entries[i]
			t, c := e.token%pageTokens, int(e.channel)
			o0[c] += float32(p[t] * e.delta)
			o1[c] += float32(p[pageTokens+t] * e.delta)
			o2[c] += float32(p[2*pageTokens+t] * e.delta)
			o3[c] += float32(p[3*pageTokens+t] * e.delta)
		}
		return
	}
	for h := range b.heads {
		o, p := b.sparse[h*lanes:][:lanes], (*[pageTokens]float32)(w.z[h*pageTokens:])
		for i := range entries {
			e := &entries[i]
			o[e.channel] += float32(p[e.token%pageTokens] * e.delta)
		}
	}
}
