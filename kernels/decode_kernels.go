package kernels

// decodeKernels are one backend's parts of fused decode attention. They work on
// one page of 64 tokens and up to four query heads at a time; Decoder puts them
// together.
//
// What a page touches lies close together, because a cache is streamed past it:
// the scores z of a query head are a row of 64; outputs o stand block by block of 32
// channels, in a block four rows of 32. Rows x of queries or probabilities are `row`
// elements apart. Multiplicands have a form of the backend's own, that only the
// folds write and only integer tiles read: two planes of bytes a query head, `plane`
// bytes apart.
type decodeKernels struct {
	// name is what a figure says about the path that ran.
	name string

	// int8 and int4 multiply codes with multiplicands in exact integers.
	int8, int4 intTiles

	// levels are the tiles of int4 for codes that stand for the integers of a table,
	// at most 255.
	levels func(table *[16]uint8) intTiles

	// The float tiles multiply codes with float rows; those of e4m3 count as 2^−8 times
	// their value. f32 rounds a product before it is added; the others may fuse the two:
	// |result − exact| ≤ (steps+1)·2^−24·Σ|code·x| either way.
	f16, bf16, e4m3, e5m2, f32 floatTiles

	// expand unpacks codes of 2 to 7 bits, whole chunks, to one a byte; see expansion.
	expand func(dst, src []byte, bits int)
	// lookUp is dst[i] = book[codes[i]]; the book has 16 values or 256, the number of
	// codes is a multiple of 64.
	lookUp func(dst []float32, codes []byte, book []float32)
	// scaleLanes is x = x·scale[lane] + offset[lane], scaleSteps x = x·scale[step] +
	// offset[step] over whole steps of 16 or 32 lanes.
	scaleLanes, scaleSteps func(x, scale, offset []float32, lanes int)

	// fold turns the float row x, times scale where it is given, into the integers
	//
	//	m[h][i] = rne(x·scale·(limit/amax)),  amax = max_i |x·scale|
	//
	// and returns units[h] = amax/limit and bias[h] = centre·Σ m. A row whose amax is
	// under 2^−100 folds to zeros. n is a multiple of 32; units has room for four heads.
	fold func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, limit float32, centre, heads, n int)

	// foldHalf is fold with the scales as float16; widened has room for them.
	foldHalf func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, half []byte, widened []float32, limit float32, centre, heads, n int)

	// foldWeighted is fold with a weight for each element and a sum for every 32 of
	// them: bias[h·biasStride + i/32] = Σ m·weight.
	foldWeighted func(coef []byte, plane int, units []float32, bias []int32, x []float32, row int, scale []float32, weight []int32, limit float32, heads, n int)

	// scoreToken is z[h][t] = Σ_g (float32(sums[g])·unit[h])·scale[g][t] +
	// offset[g][t]·q[g][h] over the 64 tokens of a page, g ascending, each scale
	// term before its offset term; no offset terms where offset is nil.
	scoreToken func(z []float32, sums []int32, unit, scale, offset, q []float32, heads, groups int)

	// softmax turns a page's scores (in powers of two) into probabilities relative
	// to the running maximum: m' = max(m, max z), r = 2^(m−m'), z = 2^(z−m'),
	// l[lane] = l·r + (z[lane]+z[lane+16]+z[lane+32]+z[lane+48]). m and r have room
	// for four heads.
	softmax func(z, m, r, l []float32, heads int)

	// softmaxFold is softmax followed by fold of the 64 probabilities, times scale
	// where it is given, with planeLimit; bias[h] = centre·Σ of all multiplicands.
	// units too has room for four heads. The planes are 64 bytes apart.
	softmaxFold func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, scale []float32, centre, heads int)

	// softmaxFoldHalf is softmaxFold with the scales as float16, which it leaves
	// widened in scale.
	softmaxFoldHalf func(z, m, r, l []float32, coef []byte, units []float32, bias []int32, half []byte, scale []float32, centre, heads int)

	// accumulateScaled is o[h][lane] = (o·r[h] + (float32(sums)·unit[h])·scale[lane]) + add[h]·offset[lane];
	// the last term is absent where offset is nil.
	accumulateScaled func(o []float32, sums []int32, r, unit, scale, add, offset []float32, heads, lanes, blocks int)

	// laneDot is e[h][lane] = e·r[h] + Σ_i x[h][16i+lane]·w[16i+lane], the sum
	// started at its first product, i ascending. n is a multiple of 16.
	laneDot func(e, x []float32, row int, w, r []float32, heads, n int)

	// widen converts float16 to float32: FromF16 without its preparations, for a page's
	// few scales. The length of dst is a multiple of 16.
	widen func(dst []float32, src []byte)

	// widenE8M0 is dst = 2^(src−127), 0 for the code 0. The length of dst is a multiple of 16.
	widenE8M0 func(dst []float32, src []byte)

	// fetch asks for the lines of b, which is not empty, and does not wait for them.
	fetch func(b []byte)
	// fetchFar asks for them as far as the second-level cache.
	fetchFar func(b []byte)

	// merge is dst = dst·a + src·b; the length is a multiple of 16.
	merge func(dst, src []float32, a, b float32)

	// multiply is dst = src·a and divide dst = src/a; any length.
	multiply, divide func(dst, src []float32, a float32)

	// addChain makes n additions of a cycle each, one after the other; nil where it is
	// not known how long they take.
	addChain func(n int) uint64

	// stream attends to pages first to last of a head like decodeWorker.pages, with
	// less around the assembly, and says whether it did. It is nil where a backend has none.
	stream func(w *decodeWorker, hd *head, first, last int) bool

	// readers are read passes over memory: what a cache cannot be read faster than.
	readers []func(b []byte) uint64
}

// intTiles multiply codes with multiplicands:
//
//	sum[b][h][lane] = Σ_i code[b][i][lane]·m[h][first+i] − bias[h]
//
// over steps·4 (int8) or steps·8 (int4) values of i, in exact integers modulo 2^32,
// for blocks of 16 or 32 lanes; scores always have 32.
type intTiles struct {
	// sums stores them as they are.
	sums func(sums []int32, codes, coef []byte, plane int, bias []int32, heads, lanes, blocks, steps, first int)
	// score is z[h][lane] = float32(sum)·unit[h] + add[h].
	score func(z []float32, codes, coef []byte, plane int, bias []int32, unit, add []float32, heads, blocks, steps, first int)
	// scoreHalf is z[h][lane] = (float32(sum)·unit[h])·scale[lane], the scales in
	// float16; scoreHalfAdd adds that to z.
	scoreHalf, scoreHalfAdd func(z []float32, codes, coef []byte, plane int, bias []int32, unit []float32, scale []byte, heads, blocks, steps, first int)
	// value is o[h][lane] = o·r[h] + float32(sum)·unit[h].
	value func(o []float32, codes, coef []byte, plane int, bias []int32, r, unit []float32, heads, lanes, blocks, steps, first int)
}

// floatTiles multiply codes with the float rows x:
//
//	sum[h][lane] = Σ_i code[i][lane]·x[h][i]
//
// one i a step, i ascending, from zero.
type floatTiles struct {
	// score stores them, in blocks of 32 lanes.
	score func(z []float32, codes []byte, x []float32, row, heads, blocks, steps int)
	// value is o[h][lane] = o·r[h] + sum, in blocks of 16 or 32 lanes.
	value func(o []float32, codes []byte, x []float32, row int, r []float32, heads, lanes, blocks, steps int)
}

const (
	// valueRow is the length of a row of outputs in a block, valueBlock of a block.
	valueRow   = blockWide
	valueBlock = headBlock * valueRow
	// valuePlane is the distance of the planes of V's multiplicands.
	valuePlane = pageTokens
	// biasStride is the distance of two query heads' bias sums: one every 32 multiplicands.
	biasStride = maxDim / blockWide
	// planeLimit is the largest multiplicand: 127·256 + 127, so that both of its
	// byte planes are signed bytes.
	planeLimit = 32639
	// log2e turns a logit into a power of two.
	log2e = 1.4426950408889634
)
