package kernels

import "math"

// pageKernels are one backend's parts of filling a decode cache with float32 rows:
// they write codes straight into the lines of a page, 16 tokens at a time.
//
// All writers return the bits of the largest magnitude in x, where NaN and infinities
// are above every number; what they wrote is then good for nothing. ahead is what will
// be encoded next: they may bring as many values of it as they encode into the cache.
type pageKernels struct {
	// direct says that these are faster than encoding to fields and moving those.
	direct bool

	int8, int4 pageLines

	// halfKeys writes 16 tokens of columns channels as float16: channel c of token t
	// goes to dst[64·c + 2·t].
	halfKeys func(dst []byte, x, ahead []float32, stride, columns int) uint32
	// halfValues writes steps tokens: channel c of block b of token s goes to
	// dst[b·block + 2·(s·lanes + c)].
	halfValues func(dst []byte, x, ahead []float32, stride int, g valueGrid) uint32

	// scales and scalesHalf turn ranges into the scales that are stored: width/levels,
	// as it is or rounded to float16, but at least the least positive value of that type
	// where the width is not 0. divisor is the same, infinity where the scale is 0. They
	// return whether all scales are finite. The length of all slices is a multiple of 16.
	scales, scalesHalf func(scale, divisor, width []float32, levels float32) bool
}

// pageLines write integer codes. A code is
//
//	clamp(rne((x − offset) / divisor) + bias, lo, hi)
//
// with an infinite divisor where the scale is 0 (a difference that overflows gives lo
// there). Constants stand as in codeConstants.
type pageLines struct {
	// keys write 16 tokens of columns channels: channel c of token t goes to
	// dst[128·(c/4) + 4·t + c%4], for int4 to the low (c%8 < 4) or high half of
	// dst[128·(c/8) + 4·t + c%4]. columns is a multiple of 16.
	keys [codeSources]func(dst []byte, x, ahead []float32, stride, columns int, constants []float32, c codeRange) uint32
	// values write up to 16 tokens in steps of 4 (int8) or 8 (int4): channel c of block b
	// of token t of step s goes to dst[b·block + 4·(s·lanes + c) + t%4], for int4 to the
	// low (t < 4) or high half of it.
	values [codeSources]func(dst []byte, x, ahead []float32, stride int, g valueGrid, constants []float32, c codeRange) uint32
	// rows writes the codes of runs of run values, 8 bits each or two a byte, the first
	// in the low half, with constants of ranges for each run. run is a multiple of 16.
	rows func(dst []byte, x []float32, run int, constants []float32, c codeRange) uint32
}

// A codeSource says what the constants of codes are. For ranges, a kernel makes divisors
// and scales itself, as scalesHalf does from the largest magnitude of the columns of a
// token, and leaves them in the constants; offsets and biases are as for tokens.
type codeSource int

const (
	fromChannels codeSource = iota // one for each column
	fromTokens                     // one for each token
	fromRanges                     // the same, made by the kernel
	codeSources
)

// A codeRange holds the least and the largest code, and what a range is divided by to
// make a scale.
type codeRange struct{ lo, hi, levels float32 }

// A valueGrid is the part of a page of values that one call writes: steps of tokens by
// blocks of 16 or 32 lanes, the blocks block bytes apart.
type valueGrid struct{ lanes, blocks, block, steps int }

// end returns how far the grid reaches, a step of a lane taking size bytes.
func (g valueGrid) end(size int) int {
	return (g.blocks-1)*g.block + g.steps*g.lanes*size
}

const (
	// chunkTokens is how many tokens one call of a page kernel writes.
	chunkTokens = 16
	// maxScales is how many scales a page can have whose groups are multiples of 16 channels.
	maxScales = maxDim / laneWidth * pageTokens
)

// codeConstants are what codes are made with: planes of maxScales divisors, offsets,
// biases and scales. Those of tokens stand group by group, pageTokens each.
type codeConstants [4 * maxScales]float32

func (c *codeConstants) offsets() []float32 { return c[maxScales : 2*maxScales] }
func (c *codeConstants) biases() []float32  { return c[2*maxScales : 3*maxScales] }
func (c *codeConstants) scales() []float32  { return c[3*maxScales:] }

// A RunEncoder encodes packed runs of symmetric codes of 8 or 4 bits. It keeps memory for
// one goroutine.
type RunEncoder struct{ constants codeConstants }

// Encode writes the codes of x, each run of run values with a float16 scale made from
// its largest magnitude: scale = max|x|/(2^(bits−1)−1), rounded to float16, but not to 0
// unless all values are; code = clamp(rne(x/scale) + 2^(bits−1), 1, 2^bits−1). It
// returns false where a value is not finite or a scale overflows, and on a backend
// without kernels for it: codes and scales are then good for nothing. run is a multiple
// of 16, bits is 8 or 4.
func (e *RunEncoder) Encode(codes, scales []byte, x []float32, run, bits int) bool {
	runs := len(scales) / 2
	checkRuns(len(x), run, runs)
	if run%laneWidth != 0 || bits != 8 && bits != 4 || len(codes) != len(x)*bits/8 || len(scales)%2 != 0 {
		panic(errLength)
	}
	k := &active.Load().page
	if !k.direct {
		return false
	}
	lines := &k.int8
	if bits == 4 {
		lines = &k.int4
	}
	f := Format{Codec: CodecInt, Bits: bits}
	r := f.codeRange()
	step := min(maxScales, max(4, maxCall/run))
	fill(e.constants.biases()[:min(step, runs)], float32(f.centre()))
	var most uint32
	for first := 0; first < runs; first += step {
		n := min(step, runs-first)
		at, end := first*run, (first+n)*run
		most = max(most, lines.rows(codes[at*bits/8:end*bits/8], x[at:end], run, e.constants[:], r))
		ToF16(scales[2*first:2*(first+n)], e.constants.scales()[:n])
	}
	return math.Float32frombits(most)/r.levels < overflowF16
}
