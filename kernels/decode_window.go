package kernels

import (
	"encoding/binary"
	"math"
)

// Where a head's tokens stand: the first `origin` of them in float32 (the front:
// sinks, and what brings the blocks of tokens behind them to the start of a page),
// then pages of codes, then in float32 what no page holds (the tail: recent windows,
// blocks that are not complete, less than a page). A page has codes of both sides, so
// the side that keeps more tokens decides.

// farthestStart is how many tokens behind the sinks the first page may start: blocks of
// tokens that start nowhere together within them are read row by row.
const farthestStart = 256

// firstPage returns the token at which tiled pages start: the first that neither side
// keeps as a sink and where a block of tokens starts on both. Pages of rows start
// behind the sinks; ok is false where only they will do.
func firstPage(k, v Format) (token int, ok bool) {
	starts := func(f Format, token int) bool { return !f.blocks() || (token-f.Sink)%f.Group == 0 }
	first := max(k.Sink, v.Sink)
	for token := first; token < first+farthestStart; token++ {
		if starts(k, token) && starts(v, token) {
			return token, true
		}
	}
	return first, false
}

// front returns the tokens that stand before the first page.
func (c *Cache) front() int { return min(c.tokens, c.origin) }

// tail returns the tokens that stand behind the last page.
func (c *Cache) tail() int { return c.tokens - c.front() - c.pages*pageTokens }

// windows returns how many of the tokens are sinks and how many are recent: those of
// them that are left once whole windows of blocks are gone.
func (f Format) windows(tokens int) (sink, recent int) {
	sink = min(f.Sink, tokens)
	recent = min(f.Recent, tokens-sink)
	if f.blocks() && f.Recent > 0 {
		recent = (tokens - sink) % f.Recent
	}
	return sink, recent
}

// pagesOf returns how many pages so many tokens fill: those that both sides code, in
// whole blocks.
func (c *Cache) pagesOf(tokens int) int {
	end := tokens
	for _, s := range []*side{&c.k, &c.v} {
		sink, recent := s.format.windows(tokens)
		coded := tokens - sink - recent
		if s.format.blocks() {
			coded -= coded % s.format.Group
		}
		end = min(end, sink+coded)
	}
	return max(0, end-c.origin) / pageTokens
}

// tiles returns how many tiles of 64 tokens n tokens take.
func tiles(n int) int { return (n + pageTokens - 1) / pageTokens }

// chunksOf returns how many chunks n pages or tiles are attended to in.
func chunksOf(n int) int { return (n + chunkPages - 1) / chunkPages }

// floats is a run of tokens in float32 tiles, 64 tokens a tile.
type floats struct {
	k, v   []byte
	kl, vl *layout
}

// newFloats lays a run of n tiles into b, and returns what is left of b.
func newFloats(b []byte, n int, kl, vl *layout) (floats, []byte) {
	nk, nv := n*kl.codeBytes, n*vl.codeBytes
	return floats{b[:nk:nk], b[nk : nk+nv : nk+nv], kl, vl}, b[nk+nv:]
}

// tile returns the keys and values of tile i.
func (f *floats) tile(i int) (k, v []byte) {
	return f.k[i*f.kl.codeBytes:][:f.kl.codeBytes], f.v[i*f.vl.codeBytes:][:f.vl.codeBytes]
}

// put stores the key or the value of the run's token t.
func (f *floats) put(key bool, t int, row []float32) {
	k, v := f.tile(t / pageTokens)
	if key {
		putRow(k, f.kl, true, t%pageTokens, row)
	} else {
		putRow(v, f.vl, false, t%pageTokens, row)
	}
}

// drop takes the first of n tiles away.
func (f *floats) drop(n int) {
	for _, x := range []struct {
		tiles []byte
		size  int
	}{{f.k, f.kl.codeBytes}, {f.v, f.vl.codeBytes}} {
		copy(x.tiles, x.tiles[x.size:n*x.size])
		clear(x.tiles[(n-1)*x.size : n*x.size])
	}
}

// clear zeroes the keys or the values.
func (f *floats) clear(key bool) {
	if key {
		clear(f.k)
	} else {
		clear(f.v)
	}
}

// putRow writes the values of one token into float32 tiles.
func putRow(tiles []byte, l *layout, key bool, token int, row []float32) {
	for _, g := range l.segments {
		if key {
			b, lane := token/blockWide, token%blockWide
			for ch, v := range row {
				binary.LittleEndian.PutUint32(tiles[4*((b*g.steps+ch)*blockWide+lane):], math.Float32bits(v))
			}
			continue
		}
		for b := range g.blocks {
			at := tiles[g.codes+4*(b*g.steps+token)*g.lanes:]
			first := g.lane + b*g.lanes
			for lane, v := range row[min(first, len(row)):min(first+g.lanes, len(row))] {
				binary.LittleEndian.PutUint32(at[4*lane:], math.Float32bits(v))
			}
		}
	}
}
