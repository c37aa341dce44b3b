package formula

import (
	"errors"
	"slices"
)

// A vllmGroup is a group of layers that share a block table: layer j of each
// of its specs belongs to it where (j + first) % of == index.
type vllmGroup struct {
	specs     []int   // of the vllmGroups' layers
	first     []int64 // of each spec, 0 where nil: layers of the same page before it
	index, of int64
}

// vllmGroups is how vLLM puts a model's layers into groups (docs/planning-vllm.md §5).
type vllmGroups struct {
	layers []vllmLayers // as planned: blocks and pages may have been unified
	became []int        // for every entry asked for, its place in layers
	groups []vllmGroup
	// padding is how many layers were added so that all groups are as large.
	padding int64
	// merged: the group's page is the sum over its layers, whose specs differ
	// in no more than their page.
	merged bool
}

// A vllmBug is a request that vLLM's planner fails on by mistake: it neither
// plans nor refuses it. The class is the one of its exception.
type vllmBug struct{ class, text string }

func (b *vllmBug) Error() string { return b.text }

// errVLLMHybridOff is a model that needs groups, with the hybrid manager off.
var errVLLMHybridOff = errors.New("without the hybrid KV cache manager every layer must keep the same tokens, and this model's cannot")

// errVLLMPages is a set of pages that no block can hold.
var errVLLMPages = errors.New("its layers' pages have no common size: one of them neither divides the largest nor can be padded")

// vllmRules are the rules that changed between versions (docs/planning-vllm.md §7).
type vllmRules struct {
	engineV1      bool  // concurrency is counted in blocks, not in tokens
	grouping      bool  // the hybrid KV cache manager exists
	spread        int64 // hundredths: a largest bucket below so many times the smallest sets the group size
	padPages      bool  // attention pages that do not divide are padded
	inFlight      bool  // windows reach back over every batch in flight, not one
	promote       bool  // latents beside windows fall back to one full group
	nullBlock     bool  // the null block, layouts, packing and checkpoint blocks
	unknown       bool  // a release later than the rules
	byConcurrency bool  // "KV cache size" is concurrency x length, not the first group's
}

// planVLLMGroups puts the layers into groups.
func planVLLMGroups(c *calc, asked []vllmLayers, rules vllmRules, hybrid, blockOutermost bool) (vllmGroups, error) {
	layers, became := mergeAlike(asked)
	if !hybrid {
		promoted, err := promoteVLLM(c, layers)
		if err != nil {
			return vllmGroups{}, err
		}
		layers, became = mergeAgain(promoted, became)
	}
	whole := vllmGroups{layers: layers, became: became, groups: []vllmGroup{{specs: allOf(layers), of: 1}}}
	if len(layers) == 1 || sameWindow(layers) {
		return whole, nil
	}
	if oneFamily(c, layers) {
		whole.merged = true
		return whole, nil
	}
	pages := map[int64]bool{}
	for _, l := range layers {
		pages[l.page(c)] = true
	}
	if rules.nullBlock && blockOutermost && len(pages) > 1 {
		plan, err := packVLLM(c, layers)
		plan.became = became
		return plan, err
	}
	unified, err := unifyVLLM(c, layers, rules)
	if err != nil {
		if full, ok := fallBackVLLM(c, layers); rules.promote && ok && errors.Is(err, errVLLMPages) {
			whole.layers, whole.merged = full, true
			return whole, nil
		}
		return vllmGroups{}, err
	}
	layers, became = mergeAgain(unified, became)
	plan := splitVLLM(layers, rules)
	plan.became = became
	return plan, nil
}

// mergeAlike joins entries of one spec, each where its first one stands, and
// says where every entry went.
func mergeAlike(layers []vllmLayers) (merged []vllmLayers, became []int) {
	for _, l := range layers {
		at := slices.IndexFunc(merged, l.alike)
		if at < 0 {
			at = len(merged)
			merged = append(merged, l)
		} else {
			merged[at].Count += l.Count
		}
		became = append(became, at)
	}
	return merged, became
}

// mergeAgain merges entries that earlier ones became.
func mergeAgain(layers []vllmLayers, became []int) ([]vllmLayers, []int) {
	merged, then := mergeAlike(layers)
	for i, at := range became {
		became[i] = then[at]
	}
	return merged, became
}

func allOf(layers []vllmLayers) []int {
	all := make([]int, len(layers))
	for i := range all {
		all[i] = i
	}
	return all
}

// sameWindow reports whether the layers are full attention that differs in no
// more than the window of those that were promoted.
func sameWindow(layers []vllmLayers) bool {
	for _, l := range layers {
		l.Window = layers[0].Window
		if l.Kind != vllmFull || !l.alike(layers[0]) {
			return false
		}
	}
	return true
}

// oneFamily reports whether all layers need the same blocks (§5.2 of
// docs/planning-vllm.md): full attention of any form, windows of one length,
// chunks of one length, states of one page, each with one block size.
func oneFamily(c *calc, layers []vllmLayers) bool {
	for _, l := range layers[1:] {
		if !sameFamily(c, layers[0], l) {
			return false
		}
	}
	return true
}

// sameFamily reports whether b can join a family that begins with a.
func sameFamily(c *calc, a, b vllmLayers) bool {
	if a.Block != b.Block {
		return false
	}
	switch {
	case a.Kind.keepsAll():
		return b.Kind.keepsAll()
	case a.Kind == vllmSliding:
		return b.Kind.slides() && a.Window == b.Window
	case a.Kind == vllmState:
		return b.Kind == vllmState && a.Speculative == b.Speculative && a.Checkpoint == b.Checkpoint && a.page(c) == b.page(c)
	case a.Kind == vllmCross:
		return b.Kind == vllmCross
	}
	return b.Kind == a.Kind && a.Window == b.Window
}

// promoteVLLM turns windowed layers into full ones, for block allocation only
// (§5.7): nothing happens where all layers need the same blocks anyway, and
// windows stay windows where no layer is full.
func promoteVLLM(c *calc, layers []vllmLayers) ([]vllmLayers, error) {
	if len(layers) == 1 || oneFamily(c, layers) {
		return layers, nil
	}
	out := slices.Clone(layers)
	full, latentWindow, block := false, false, int64(0)
	windows, chunks := map[int64]bool{}, map[int64]bool{}
	for _, l := range layers {
		switch {
		case l.Kind.keepsAll():
			if full && block != l.Block {
				block = 0
			} else if !full {
				block = l.Block
			}
			full = true
		case l.Kind == vllmSliding:
			windows[l.Window] = true
		case l.Kind == vllmChunked:
			chunks[l.Window] = true
		case l.Kind == vllmSlidingMLA:
			latentWindow = true
		}
	}
	if full && latentWindow {
		return nil, &vllmBug{"TypeError", "vLLM 0.33.0 stops with a TypeError on windowed latents without the hybrid KV cache manager"}
	}
	if full {
		for i := range out {
			l := &out[i]
			if l.Kind != vllmSliding && l.Kind != vllmChunked {
				continue
			}
			l.Kind = vllmFull
			if block > 0 {
				l.Block = block
			}
			if l.Padded > 0 {
				l.Padded = max(l.Padded, l.held(c))
			}
		}
		// Comparing the specs takes all windows to be one before it takes
		// the rest to be equal, and stops where they are not.
		if (len(windows) > 1 || len(chunks) > 1) && onlyHeads(layers) {
			return nil, &vllmBug{"ValueError", "vLLM 0.33.0 stops on windows of different lengths beside full layers without the hybrid KV cache manager: it wants one window size"}
		}
	}
	if !oneFamily(c, out) {
		return nil, errVLLMHybridOff
	}
	return out, nil
}

// onlyHeads reports whether every layer is attention with heads of its own.
func onlyHeads(layers []vllmLayers) bool {
	for _, l := range layers {
		if l.Kind != vllmFull && l.Kind != vllmSliding && l.Kind != vllmChunked {
			return false
		}
	}
	return true
}

// unifyVLLM gives all layers the largest page (§5.4).
func unifyVLLM(c *calc, layers []vllmLayers, rules vllmRules) ([]vllmLayers, error) {
	largest := int64(0)
	for _, l := range layers {
		largest = max(largest, l.page(c))
	}
	out := slices.Clone(layers)
	for i := range out {
		l := &out[i]
		page := l.page(c)
		if page == largest || page == 0 {
			continue
		}
		switch {
		case l.Kind == vllmState:
			l.Padded = largest
		case largest%page == 0:
			l.Block = c.mul(l.Block, largest/page)
			if l.page(c) != largest { // a padded page does not grow with its block
				return nil, &vllmBug{"AssertionError", "vLLM 0.33.0 stops with an AssertionError: a padded page of this model would have to grow"}
			}
		case rules.padPages && l.Kind != vllmMLA && l.Kind != vllmIndex:
			l.Padded = largest
		default:
			return nil, errVLLMPages
		}
	}
	return out, nil
}

// fallBackVLLM is the whole model as full attention in one group, for latents
// beside plain sliding windows.
func fallBackVLLM(c *calc, layers []vllmLayers) ([]vllmLayers, bool) {
	latent, window := false, false
	for _, l := range layers {
		switch l.Kind {
		case vllmMLA, vllmIndex:
			latent = true
		case vllmSliding:
			window = true
		case vllmSlidingMLA, vllmChunked:
			return nil, false
		}
	}
	if !latent || !window {
		return nil, false
	}
	full, err := promoteVLLM(c, layers)
	return full, err == nil
}

// splitVLLM cuts the layers of each spec into groups of a common size (§5.5).
func splitVLLM(layers []vllmLayers, rules vllmRules) vllmGroups {
	smallest, largest := layers[0].Count, int64(0)
	for _, l := range layers {
		smallest, largest = min(smallest, l.Count), max(largest, l.Count)
	}
	size := smallest
	if largest*100 < smallest*rules.spread {
		size = largest
	}
	plan := vllmGroups{layers: layers}
	for i, l := range layers {
		n := ceilDiv(l.Count, size)
		plan.padding += n*size - l.Count
		for j := range n {
			plan.groups = append(plan.groups, vllmGroup{specs: []int{i}, index: j, of: n})
		}
	}
	return plan
}

// A vllmBucket is layers of one family whose pages may differ (§5.3).
type vllmBucket struct {
	specs []int
	first []int64 // layers of the same page before those of each spec
	// layers counts them by page size, in the order of appearance.
	pages, layers []int64
	balanced      bool // as many layers of each page size
}

func (b vllmBucket) repeats() int64 { return slices.Max(b.layers) }

func (b vllmBucket) count() int64 {
	n := int64(0)
	for _, l := range b.layers {
		n += l
	}
	return n
}

// widest is the bytes of the largest of n groups.
func (b vllmBucket) widest(c *calc, n int64) int64 {
	total := int64(0)
	for i, page := range b.pages {
		total = c.add(total, c.mul(ceilDiv(b.layers[i], n), page))
	}
	return total
}

// packVLLM lays groups of differing pages side by side in blocks (§5.3).
func packVLLM(c *calc, layers []vllmLayers) (vllmGroups, error) {
	var buckets []vllmBucket
next:
	for i, l := range layers {
		for j := range buckets {
			if sameFamily(c, layers[buckets[j].specs[0]], l) {
				buckets[j].specs = append(buckets[j].specs, i)
				continue next
			}
		}
		buckets = append(buckets, vllmBucket{specs: []int{i}})
	}
	floor := int64(0)
	for i := range buckets {
		b := &buckets[i]
		for _, s := range b.specs {
			page := layers[s].page(c)
			at := slices.Index(b.pages, page)
			if at < 0 {
				at = len(b.pages)
				b.pages, b.layers = append(b.pages, page), append(b.layers, 0)
			}
			b.first = append(b.first, b.layers[at])
			b.layers[at] += layers[s].Count
		}
		b.balanced = slices.Min(b.layers) == slices.Max(b.layers)
		if b.balanced && len(b.pages) > 1 {
			floor = max(floor, b.repeats())
		}
	}
	repeats := int64(0)
	if floor > 0 {
		var counts []int64
		for _, b := range buckets {
			if b.balanced {
				counts = append(counts, b.repeats())
			}
		}
		repeats = leastPadding(counts, floor)
	}
	split := func(b vllmBucket) int64 {
		if b.balanced && repeats > 0 {
			return ceilDiv(b.repeats(), repeats)
		}
		return 1
	}
	// Buckets that go down to one layer a group rather than widen the block.
	shrinks := func(b vllmBucket) bool {
		kind := layers[b.specs[0]].Kind
		return kind == vllmState || repeats == 0 && kind.slides()
	}
	width := int64(0)
	for _, b := range buckets {
		n := split(b)
		if shrinks(b) {
			n = b.count()
		}
		width = max(width, b.widest(c, n))
	}
	plan := vllmGroups{layers: layers, merged: true}
	for _, b := range buckets {
		n := split(b)
		if page := layers[b.specs[0]].page(c); shrinks(b) && page > 0 {
			n = max(n, ceilDiv(b.count(), max(width/page, 1)))
		}
		switch repeats := slices.Min(b.layers); {
		case n > 1 && n > repeats:
			return vllmGroups{}, &vllmBug{"StopIteration", "vLLM 0.33.0 stops with a StopIteration: splitting windows of several pages leaves groups empty"}
		case n > 1 && !b.balanced:
			return vllmGroups{}, &vllmBug{"AssertionError", "vLLM 0.33.0 stops with an AssertionError: splitting windows of unequal pages leaves layers out"}
		}
		for j := range n {
			plan.groups = append(plan.groups, vllmGroup{specs: b.specs, first: b.first, index: j, of: n})
		}
	}
	return plan, nil
}

// leastPadding is the d of at least floor for which rounding every count up to
// a multiple of d adds least; the largest of several.
func leastPadding(counts []int64, floor int64) int64 {
	best, least := floor, int64(-1)
	for d := floor; d <= slices.Max(counts); d++ {
		added := int64(0)
		for _, n := range counts {
			added += ceilDiv(n, d)*d - n
		}
		if least < 0 || added <= least {
			best, least = d, added
		}
	}
	return best
}

// share is how many layers of its i-th spec, of which a stage holds those from
// lo to hi, are in the group.
func (g vllmGroup) share(i int, lo, hi int64) int64 {
	if g.first != nil {
		lo, hi = lo+g.first[i], hi+g.first[i]
	}
	upTo := func(n int64) int64 { // layers j < n with j % of == index
		return (n + g.of - 1 - g.index) / g.of
	}
	return upTo(hi) - upTo(lo)
}

// kinds names the group's kinds, as in "index+mla".
func (p vllmGroups) kinds(g vllmGroup) string {
	var out string
	seen := map[vllmKind]bool{}
	for i, s := range g.specs {
		if k := p.layers[s].Kind; !seen[k] && g.share(i, 0, p.layers[s].Count) > 0 {
			seen[k] = true
			if out != "" {
				out += "+"
			}
			out += string(k)
		}
	}
	return out
}
