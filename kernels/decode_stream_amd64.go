//go:build !purego

package kernels

import "unsafe"

type (
	softmaxFunc     = func(z, m, r, l *float32, heads int)
	softmaxFoldFunc = func(z, m, r, l *float32, coef *byte, units *float32, bias *int32, limit float32, centre, heads int)
	softmaxHalfFunc = func(z, m, r, l *float32, coef *byte, units *float32, bias *int32, half *byte, scale *float32, limit float32, centre, heads int)
	foldHalfFunc    = func(coef *byte, plane int, units *float32, bias *int32, x *float32, scale *byte, row int, limit float32, centre, n int)
)

// A streamTable holds the assembly that attends to whole pages, by the number of
// query heads.
type streamTable struct {
	int8, int4  intAssembly
	f16, bf16   floatAssembly
	e4m3, e5m2  floatAssembly
	softmax     [headBlock]softmaxFunc
	softmaxFold [headBlock]softmaxFoldFunc
	softmaxHalf [headBlock]softmaxHalfFunc
	foldHalf    [headBlock]foldHalfFunc // nil: decodeKernels.foldHalf
	fetch       func(b *byte, lines int)
	widen       func(dst *float32, src *byte, n int)
	merge       func(dst, src *float32, a, b float32, n int)
	laneDot     func(e, x *float32, row int, weight, r *float32, heads, n int)
}

// maxBlocks is how many blocks of query heads, and maxValues how many segments of V,
// stream has room for.
const (
	maxBlocks = 8
	maxValues = maxDim/blockWide + 4
)

// blockCalls is what the kernels of a page are called with for one block of query
// heads: the functions and the places that stay the same from page to page.
type blockCalls struct {
	heads                     int
	unitBytes                 int // of a multiplicand
	score                     scoreFunc
	scoreHalf, scoreHalfAdd   scoreHalfFunc
	value                     [2]scoreFunc
	floatScore                floatScoreFunc
	floatValue                [2]floatValueFunc
	softmax                   softmaxFunc
	softmaxFold               softmaxFoldFunc
	softmaxHalf               softmaxHalfFunc
	foldHalf                  foldHalfFunc
	q, x, unit, add, top, sum *float32
	o, offsets, share         *float32
	coef                      *byte
	bias                      *int32
}

// valueCalls is where one segment of V stands, and which set of multiplicands it takes.
type valueCalls struct{ set, codes, out, wide, blocks int32 }

// halves says whether a side's metadata are float16 scales, alone or with float16 offsets.
func (s *side) halves() bool {
	return s.plainHalves() || s.asymmetric() && s.format.Meta == MetaF16 && s.offsetBytes == 2 && !s.factored
}

// asymmetric says whether the side's values have offsets of their own.
func (s *side) asymmetric() bool { return s.format.Codec == CodecInt && s.format.Zero == ZeroAsym }

// streams says whether stream knows the formats of a cache.
func streams(k, v *side) bool {
	for _, s := range []*side{k, v} {
		if s.expand != asStored || s.layout.store == storeF32 || s.layout.store == storeLevels || s.format.Outliers > 0 {
			return false
		}
	}
	switch keyPathOf(k) {
	case keyScaled:
		return false
	case keyGroups:
		if !k.halves() {
			return false
		}
	case keyChannel:
		if !k.halves() || k.layout.reduced%blockWide != 0 {
			return false
		}
	}
	switch valuePathOf(v) {
	case valueToken, valueSets:
		return v.halves()
	case valueWhole:
		return v.format.Zero != ZeroPoint || v.format.Share != ShareChannel
	}
	return valuePathOf(v) == valueFloat
}

// stream attends to pages first to last of a head like decodeWorker.pages, and says
// whether it did: it knows the formats whose metadata assembly takes as it stands.
// Everything the kernels are called with is on its stack, so that a page touches few
// lines besides its codes; lengths are held once, before the first page.
func (t *streamTable) stream(w *decodeWorker, hd *head, first, last int) bool {
	c := w.d.cache
	k, v := &c.k, &c.v
	if len(w.blocks) > maxBlocks || len(w.v.segments) > maxValues || !streams(k, v) {
		return false
	}
	kPath, vPath, asymmetric := keyPathOf(k), valuePathOf(v), v.asymmetric()
	var allCalls [maxBlocks]blockCalls
	calls := allCalls[:len(w.blocks)]
	for i := range calls {
		calls[i] = t.calls(w, &w.blocks[i])
	}
	var allValues [maxValues]valueCalls
	values := allValues[:len(w.v.segments)]
	for i, s := range w.v.segments {
		values[i] = valueCalls{int32(s.set), int32(s.codes), int32(outputAt(s.lane)), int32(s.lanes / blockWide), int32(s.blocks)}
	}
	_, _, lastK, lastV := c.page(hd, last-1)
	mustHold(len(lastK) == k.bytes && len(lastV) == v.bytes && len(w.z) >= headBlock*pageTokens && len(w.r) >= headBlock &&
		len(w.kScale) >= max(w.k.reduced, pageTokens) && len(w.kOffset) >= max(w.k.reduced, pageTokens) && len(w.lanes) >= headBlock*laneWidth && len(w.zeros) >= headBlock &&
		len(w.vCoef) >= 2*headBlock*valuePlane && len(w.vUnit) >= headBlock && len(w.vBias) >= headBlock && len(w.vScale) >= pageTokens)
	z, r, coef, unit, bias, vScale := &w.z[0], &w.r[0], &w.vCoef[0], &w.vUnit[0], &w.vBias[0], &w.vScale[0]
	row, vCentre := w.row, int(w.vCentre[0])
	kBytes, vBytes, kMetaBytes, vMetaBytes := k.bytes, v.bytes, k.metaBytes, v.metaBytes
	kSteps, vSteps := w.k.segments[0].steps, w.v.segments[0].steps

	// K's metadata stands in every `every`th page, V's in each.
	every, turn := k.every, first%k.every
	if kPath == keyChannel && turn > 0 {
		meta, _, _, _ := c.page(hd, first-turn)
		for i := range calls {
			t.foldChannels(w, &calls[i], k, 0, unsafe.Pointer(&meta[0]))
		}
	}
	at := unsafe.Pointer(&hd.pages[first/c.period*c.periodSize+c.pageAt[first%c.period]])
	for range last - first {
		kMeta := at
		if turn == 0 {
			at = unsafe.Add(at, kMetaBytes)
		}
		vMeta := at
		at = unsafe.Add(at, vMetaBytes)
		if gap := uintptr(at) - uintptr(kMeta); gap > fetchOver {
			t.fetch((*byte)(kMeta), int(gap/lineBytes))
		}
		kCodes := at
		vCodes := unsafe.Add(at, kBytes)
		at = unsafe.Add(vCodes, vBytes)
		for i := range calls {
			b := &calls[i]
			switch kPath {
			case keyFloat:
				b.floatScore(z, (*byte)(kCodes), b.x, row, 2, kSteps)
			case keyHalf:
				b.scoreHalf(z, (*byte)(kCodes), b.coef, row, b.bias, b.unit, (*byte)(kMeta), 2, kSteps)
				for i := 1; i < len(w.k.segments); i++ {
					b.scoreGroup(w, i, kMeta, kCodes)
				}
			case keyGroups:
				b.scoreHalf(z, (*byte)(kCodes), b.coef, row, b.bias, b.unit, (*byte)(kMeta), 2, kSteps)
				t.addOffsets(w, b, k, 0, kMeta)
				for i := 1; i < len(w.k.segments); i++ {
					b.scoreGroup(w, i, kMeta, kCodes)
					t.addOffsets(w, b, k, i, kMeta)
				}
			case keyChannel:
				for i := range w.k.segments {
					s := &w.k.segments[i]
					if turn == 0 {
						t.foldChannels(w, b, k, i, kMeta)
					}
					b.score(floatAt(z, s.lane), (*byte)(unsafe.Add(kCodes, s.codes)), b.coef, row, b.bias, b.unit, b.add, s.blocks, s.steps)
				}
			default:
				b.score(z, (*byte)(kCodes), b.coef, row, b.bias, b.unit, b.add, 2, kSteps)
			}
			switch vPath {
			case valueToken:
				b.softmaxHalf(z, b.top, r, b.sum, coef, unit, bias, (*byte)(vMeta), vScale, planeLimit, vCentre, b.heads)
				if asymmetric {
					t.laneDot(b.offsets, z, pageTokens, t.offsets(w, v, 0, pageTokens, vMeta), r, b.heads, pageTokens)
				}
			case valueWhole:
				b.softmaxFold(z, b.top, r, b.sum, coef, unit, bias, planeLimit, vCentre, b.heads)
			default:
				b.softmax(z, b.top, r, b.sum, b.heads)
			}
			set := int32(-1)
			for i := range values {
				s := &values[i]
				codes, out := (*byte)(unsafe.Add(vCodes, s.codes)), floatAt(b.o, int(s.out))
				if vPath == valueFloat {
					b.floatValue[s.wide](out, codes, z, pageTokens, r, int(s.blocks), vSteps)
					continue
				}
				if vPath == valueSets && s.set != set {
					set = s.set
					b.fold(w, coef, valuePlane, unit, bias, z, pageTokens, unsafe.Add(vMeta, 2*pageTokens*set), planeLimit, vCentre, pageTokens)
					if asymmetric {
						t.laneDot(floatAt(b.offsets, int(set)*headBlock*laneWidth), z, pageTokens, t.offsets(w, v, int(set)*pageTokens, pageTokens, vMeta), r, b.heads, pageTokens)
					}
				}
				b.value[s.wide](out, codes, coef, valuePlane, bias, r, unit, int(s.blocks), vSteps)
			}
		}
		if turn++; turn == every {
			turn = 0
		}
	}
	return true
}

// calls collects what the kernels are called with for block b, and holds its lengths.
func (t *streamTable) calls(w *decodeWorker, b *blockState) blockCalls {
	k, v, n := &t.int8, &t.int8, b.heads-1
	if w.k.store == storeInt4 {
		k = &t.int4
	}
	if w.v.store == storeInt4 {
		v = &t.int4
	}
	kFloat, vFloat := t.floats(w.k.store), t.floats(w.v.store)
	mustHold(len(b.q) >= rows(b.heads, w.row, w.k.reduced) && len(b.x) >= rows(b.heads, w.row, w.k.reduced) && len(b.coef) >= 2*b.heads*w.row && w.row >= w.k.reduced &&
		len(b.bias) >= len(w.k.segments)*headBlock && len(b.unit) >= headBlock && len(b.add) >= headBlock && len(b.top) >= headBlock &&
		len(b.sum) >= b.heads*laneWidth && len(b.o) >= w.v.lanes*headBlock && len(b.offsets) >= w.v.sets*headBlock*laneWidth && len(b.share) >= len(w.k.segments)*headBlock)
	return blockCalls{
		heads: b.heads, unitBytes: k.unit,
		score: k.score[n], scoreHalf: k.scoreHalf[n], scoreHalfAdd: k.scoreHalfAdd[n], floatScore: kFloat.score[n],
		value: [2]scoreFunc{v.value[0][n], v.value[1][n]}, floatValue: [2]floatValueFunc{vFloat.value[0][n], vFloat.value[1][n]},
		softmax: t.softmax[n], softmaxFold: t.softmaxFold[n], softmaxHalf: t.softmaxHalf[n], foldHalf: t.foldHalf[n],
		q: &b.q[0], x: &b.x[0], unit: &b.unit[0], add: &b.add[0], top: &b.top[0], sum: &b.sum[0], o: &b.o[0], offsets: &b.offsets[0], share: &b.share[0], coef: &b.coef[0], bias: &b.bias[0],
	}
}

func (t *streamTable) floats(s storage) *floatAssembly {
	switch s {
	case storeBF16:
		return &t.bf16
	case storeE4M3:
		return &t.e4m3
	case storeE5M2:
		return &t.e5m2
	}
	return &t.f16
}

// scoreGroup adds to the scores what the i-th group of channels gives.
func (b *blockCalls) scoreGroup(w *decodeWorker, i int, meta, codes unsafe.Pointer) {
	s := &w.k.segments[i]
	b.scoreHalfAdd(&w.z[0], (*byte)(unsafe.Add(codes, s.codes)), (*byte)(unsafe.Add(unsafe.Pointer(b.coef), s.first*b.unitBytes)), w.row,
		(*int32)(unsafe.Add(unsafe.Pointer(b.bias), 4*headBlock*i)), b.unit, (*byte)(unsafe.Add(meta, 2*pageTokens*i)), 2, s.steps)
}

// addOffsets adds to the scores the offsets of the i-th group of channels.
func (t *streamTable) addOffsets(w *decodeWorker, b *blockCalls, k *side, i int, meta unsafe.Pointer) {
	offset := t.offsets(w, k, i*pageTokens, pageTokens, meta)
	for h := range b.heads {
		t.merge(floatAt(&w.z[0], h*pageTokens), offset, 1, *floatAt(b.share, i*headBlock+h), pageTokens)
	}
}

// foldChannels folds the query under the scales per channel of one half of a page, or of
// all of it. The halves take turns with the same multiplicands: these are fewer lines,
// and codes stream between the two folds.
func (t *streamTable) foldChannels(w *decodeWorker, b *blockCalls, k *side, half int, meta unsafe.Pointer) {
	n, f := w.k.reduced, k.format
	b.fold(w, b.coef, w.row, b.unit, b.bias, b.q, w.row, unsafe.Add(meta, 2*n*half), planeLimitOf(f, n), int(f.centre()), n)
	if k.asymmetric() {
		t.laneDot(&w.lanes[0], b.q, w.row, t.offsets(w, k, n*half, n, meta), &w.zeros[0], b.heads, n)
		for j := range b.heads {
			*floatAt(b.add, j) = sumLanes(w.lanes[j*laneWidth:])
		}
	}
}

// offsets returns n centred offsets of a page from at on, as readMeta makes them. They
// stand in scratch that all of a page's share.
func (t *streamTable) offsets(w *decodeWorker, s *side, at, n int, meta unsafe.Pointer) *float32 {
	scale, offset := &w.kScale[0], &w.kOffset[0]
	t.widen(offset, (*byte)(unsafe.Add(meta, s.offsetsAt+2*at)), n)
	t.widen(scale, (*byte)(unsafe.Add(meta, 2*at)), n)
	t.merge(offset, scale, 1, float32(s.format.centre()), n)
	return offset
}

// floatAt is the place n elements behind p.
func floatAt(p *float32, n int) *float32 { return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*n)) }

// fold is decodeKernels.foldHalf.
func (b *blockCalls) fold(w *decodeWorker, coef *byte, plane int, unit *float32, bias *int32, x *float32, row int, half unsafe.Pointer, limit float32, centre, n int) {
	if b.foldHalf != nil {
		b.foldHalf(coef, plane, unit, bias, x, (*byte)(half), row, limit, centre, n)
		return
	}
	w.kern.foldHalf(unsafe.Slice(coef, 2*b.heads*plane), plane, unsafe.Slice(unit, headBlock), unsafe.Slice(bias, b.heads),
		unsafe.Slice(x, rows(b.heads, row, n)), row, unsafe.Slice((*byte)(half), 2*n), w.kScale, limit, centre, b.heads, n)
}
