package dumps

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"runtime"
)

// Synthetic describes made-up layers with chosen failure modes. What it
// generates depends on its fields alone: every platform and number of threads
// gives the same bytes.
//
// The values of K, V and Q are standard normal. On top of that:
//
//   - HeavyTail h > 0: a share h of the values of K and V is 8 times as large.
//   - OutlierChannels n > 0: n channels of K, other ones in every head, are
//     OutlierScale times as large, and Q is as much smaller there, as it is in
//     models: logits keep their spread.
//   - KeyBias b > 0: every channel of K has a constant, drawn from b times the
//     standard normal.
//   - RoPETheta > 1: K and Q are rotated then, in the half style.
//   - Sink s > 0: the key of token 0 is s times as long as others and every
//     query has a part in common with it that makes its logit about 10; its
//     value is a twentieth of others, as in models that rest there.
type Synthetic struct {
	Layers, KVHeads             int
	QueryHeads, Queries         int // 0 for no Q; rows are evenly strided and include the last token
	Tokens, HeadDimK, HeadDimV  int
	DType                       DType // F16, BF16 or F32
	Seed                        uint64
	OutlierChannels             int
	OutlierScale, KeyBias, Sink float64
	HeavyTail, RoPETheta        float64
}

// Check returns an error that names the field of the first impossible value.
func (s Synthetic) Check() error {
	const most = 1 << 16 // fields of the generators' stream numbers
	for _, f := range []struct {
		name       string
		value      int
		least, max int
	}{
		{"layers", s.Layers, 1, most}, {"kv-heads", s.KVHeads, 1, most}, {"query-heads", s.QueryHeads, 0, most},
		{"tokens", s.Tokens, 1, 1 << 30}, {"queries", s.Queries, 0, s.Tokens},
		{"head-dim", s.HeadDimK, 1, most}, {"head-dim-v", s.HeadDimV, 1, most}, {"outlier-channels", s.OutlierChannels, 0, s.HeadDimK},
	} {
		if f.value < f.least || f.value > f.max {
			return &OptionError{f.name, fmt.Sprintf("%d is not between %d and %d", f.value, f.least, f.max)}
		}
	}
	for _, f := range []struct {
		name       string
		value, max float64
	}{
		{"outlier-scale", s.OutlierScale, 1e4}, {"key-bias", s.KeyBias, 1e4}, {"sink", s.Sink, 1e3}, {"heavy-tail", s.HeavyTail, 1}, {"rope", s.RoPETheta, 1e12},
	} {
		if !(f.value >= 0 && f.value <= f.max) {
			return &OptionError{f.name, fmt.Sprintf("%g is not between 0 and %g", f.value, f.max)}
		}
	}
	switch {
	case s.QueryHeads%s.KVHeads != 0:
		return &OptionError{"query-heads", fmt.Sprintf("%d is no multiple of the %d KV heads", s.QueryHeads, s.KVHeads)}
	case (s.QueryHeads == 0) != (s.Queries == 0):
		return &OptionError{"queries", "query heads and query rows go together: give both, or 0 for both"}
	case s.OutlierChannels > 0 && s.OutlierScale == 0:
		return &OptionError{"outlier-scale", "0 would leave nothing of the channels"}
	case s.RoPETheta != 0 && (s.RoPETheta <= 1 || s.HeadDimK%2 != 0):
		return &OptionError{"rope", "want a theta above 1 and an even head_dim"}
	case s.DType != F16 && s.DType != BF16 && s.DType != F32:
		return &OptionError{"dtype", fmt.Sprintf("cannot write %q: want f16, bf16 or f32", string(s.DType))}
	}
	return nil
}

// Positions returns the token at which each query row stands.
func (s Synthetic) Positions() []int {
	p := make([]int, s.Queries)
	for i := range p {
		p[i] = int(int64(i+1)*int64(s.Tokens)/int64(s.Queries)) - 1
	}
	return p
}

// Facts returns the attention facts of the layers. source says how they were made.
func (s Synthetic) Facts(source string) *FactFile {
	scale, causal, applied := 1/math.Sqrt(float64(s.HeadDimK)), true, s.RoPETheta > 0
	f := &FactFile{Model: "synthetic", Source: source, Defaults: FactSet{Scale: &scale, Causal: &causal}}
	if applied {
		f.RoPEApplied = &applied
		f.Defaults.RoPE = &RoPE{Theta: s.RoPETheta, Style: "half"}
	}
	return f
}

// Arrays returns the tensors of one layer, named prefix+"k" and so on, ready
// for WriteSafetensors or WriteNPZ. Call Check first.
func (s Synthetic) Arrays(layer int, prefix string) []Content {
	list := []Content{s.tensor(layer, K, prefix), s.tensor(layer, V, prefix)}
	if s.QueryHeads > 0 {
		list = append(list, s.tensor(layer, Q, prefix), Content{Name: prefix + positions.String(), Ints: s.Positions()})
	}
	return list
}

// KV returns K and V of one layer as a single array [2, kv_heads, tokens,
// head_dim] for WriteNPY. Their widths must be equal.
func (s Synthetic) KV(layer int) (Content, error) {
	if s.HeadDimK != s.HeadDimV {
		return Content{}, errors.New("npy holds K and V in one array: their widths must be equal")
	}
	k, v := s.tensor(layer, K, ""), s.tensor(layer, V, "")
	return Content{DType: s.DType, Shape: append([]int{2}, k.Shape...), Values: func(e *Encoder) error {
		if err := k.Values(e); err != nil {
			return err
		}
		return v.Values(e)
	}}, nil
}

// Q returns the queries of one layer, [query_heads, queries, head_dim], for WriteNPY.
func (s Synthetic) Q(layer int) Content { return s.tensor(layer, Q, "") }

// synthBlock is how many rows one generator makes: blocks are independent, so
// that they can be made by several threads.
const synthBlock = 1024

func (s Synthetic) tensor(layer int, part Part, prefix string) Content {
	heads, rows, dim := s.KVHeads, s.Tokens, s.HeadDimK
	switch part {
	case V:
		dim = s.HeadDimV
	case Q:
		heads, rows = s.QueryHeads, s.Queries
	}
	return Content{Name: prefix + part.String(), DType: s.DType, Shape: []int{heads, rows, dim}, Values: func(e *Encoder) error {
		blocks := (rows + synthBlock - 1) / synthBlock
		var sh []*synthHead
		for h := range s.KVHeads {
			sh = append(sh, s.head(layer, h))
		}
		positions := s.Positions()
		return ordered(heads*blocks, func(i int, buf []float32) []float32 {
			head, block := i/blocks, i%blocks
			from := block * synthBlock
			n := min(synthBlock, rows-from)
			if buf == nil {
				buf = make([]float32, min(synthBlock, rows)*dim)
			}
			g := normal{src: s.stream(layer, part, head, block)}
			sh[head*s.KVHeads/heads].fill(buf[:n*dim], part, from, positions, &g)
			return buf[:n*dim]
		}, e.Write)
	}}
}

// stream returns the generator of one block. Numbers are scattered (by the
// finalizer of SplitMix64) so that neighbouring blocks have nothing in common.
func (s Synthetic) stream(layer int, part Part, head, block int) *rand.PCG {
	x := uint64(layer)<<48 | uint64(part)<<44 | uint64(head)<<28 | uint64(block)
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return rand.NewPCG(s.Seed, x^x>>31)
}

// ordered produces n blocks on all processors and consumes them in order. A
// consumed buffer, nil at first, is handed to produce again.
func ordered(n int, produce func(i int, buf []float32) []float32, consume func([]float32) error) error {
	ahead := 2 * runtime.GOMAXPROCS(0)
	free := make(chan []float32, ahead)
	queue := make(chan chan []float32, ahead)
	stop := make(chan struct{})
	for range ahead {
		free <- nil
	}
	go func() {
		defer close(queue)
		for i := range n {
			select {
			case <-stop:
				return
			case buf := <-free:
				done := make(chan []float32, 1)
				queue <- done
				go func() { done <- produce(i, buf) }()
			}
		}
	}()
	var err error
	for done := range queue {
		buf := <-done
		if err != nil {
			continue
		}
		if err = consume(buf); err != nil {
			close(stop)
			continue
		}
		free <- buf[:cap(buf)]
	}
	return err
}

// synthHead is what the rows of one KV head, and the query heads that read it,
// have in common.
type synthHead struct {
	s        Synthetic
	gain     []float64 // of K's channels
	bias     []float64
	sink     []float64 // unit vector, or nil
	rotation []turn    // per pair of channels, of one position; nil without RoPE
}

// partParameters numbers the streams that synthHead is drawn from.
const partParameters = parts

func (s Synthetic) head(layer, head int) *synthHead {
	g := normal{src: s.stream(layer, partParameters, head, 0)}
	h := &synthHead{s: s, gain: make([]float64, s.HeadDimK), bias: make([]float64, s.HeadDimK)}
	for c := range h.gain {
		h.gain[c] = 1
	}
	for _, c := range g.choose(s.HeadDimK, s.OutlierChannels) {
		h.gain[c] = s.OutlierScale
	}
	for c := range h.bias {
		h.bias[c] = float64(s.KeyBias * g.next())
	}
	if s.Sink > 0 {
		h.sink = make([]float64, s.HeadDimK)
		sum := 0.0
		for c := range h.sink {
			h.sink[c] = g.next()
			sum += float64(h.sink[c] * h.sink[c])
		}
		for c := range h.sink {
			h.sink[c] /= math.Sqrt(sum)
		}
	}
	if s.RoPETheta > 0 {
		h.rotation = rotations(s.RoPETheta, s.HeadDimK)
	}
	return h
}

// fill makes the rows from, from+1, … of a part. All arithmetic is float64
// with one rounding per operation, which is the same on every platform.
func (h *synthHead) fill(dst []float32, part Part, from int, positions []int, g *normal) {
	s := h.s
	dim := s.HeadDimK
	if part == V {
		dim = s.HeadDimV
	}
	row := make([]float64, dim)
	spin := rotor{step: h.rotation, at: make([]turn, len(h.rotation)), position: -2}
	for r := 0; len(dst) > 0; r++ {
		position := from + r
		if part == Q {
			position = positions[from+r]
		}
		for c := range row {
			row[c] = g.next()
			if part != Q && s.HeavyTail > 0 && g.uniform() < s.HeavyTail {
				row[c] *= 8
			}
		}
		switch part {
		case K:
			for c := range row {
				row[c] = float64(row[c]*h.gain[c]) + h.bias[c]
			}
		case Q:
			for c := range row {
				row[c] /= h.gain[c]
			}
		}
		if part != V && h.rotation != nil {
			spin.rotate(row, position)
		}
		if h.sink != nil {
			h.rest(row, part, position)
		}
		for c, v := range row {
			dst[c] = float32(v)
		}
		dst = dst[dim:]
	}
}

// rest makes token 0 a sink.
func (h *synthHead) rest(row []float64, part Part, position int) {
	length := float64(h.s.Sink * math.Sqrt(float64(h.s.HeadDimK)))
	switch {
	case part == Q:
		// scale · length · along = Sink · along: a logit of 10 for the common part
		along := 10 / h.s.Sink
		for c := range row {
			row[c] += float64(along * h.sink[c])
		}
	case part == K && position == 0:
		for c := range row {
			row[c] = float64(length * h.sink[c])
		}
	case part == V && position == 0:
		for c := range row {
			row[c] *= 0.05
		}
	}
}

// turn is a rotation by some angle.
type turn struct{ cos, sin float64 }

func (a turn) then(b turn) turn {
	return turn{float64(a.cos*b.cos) - float64(a.sin*b.sin), float64(a.cos*b.sin) + float64(a.sin*b.cos)}
}

// times repeats a rotation n times.
func (a turn) times(n int) turn {
	r := turn{1, 0}
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			r = r.then(a)
		}
		a = a.then(a)
	}
	return r
}

// rotor rotates the rows of successive positions.
type rotor struct {
	step     []turn // of one position, per pair of channels
	at       []turn // of position
	position int
}

// rotate turns channel i with channel i + d/2, for every i < d/2.
func (o *rotor) rotate(row []float64, position int) {
	half := len(row) / 2
	for i, step := range o.step {
		if position == o.position+1 {
			o.at[i] = o.at[i].then(step)
		} else {
			o.at[i] = step.times(position)
		}
		t, x, y := o.at[i], row[i], row[i+half]
		row[i] = float64(x*t.cos) - float64(y*t.sin)
		row[i+half] = float64(y*t.cos) + float64(x*t.sin)
	}
	o.position = position
}

// rotations returns the rotation of one position per pair i: by the angle
// theta^(−2i/d). The root theta^(2/d) is found by bisection and sine and cosine
// by their series, since the standard library's differ between platforms in
// the last bit.
func rotations(theta float64, d int) []turn {
	lo, hi := 1.0, theta
	for {
		mid := (lo + hi) / 2
		if mid <= lo || mid >= hi {
			break
		}
		if power(mid, d/2) < theta {
			lo = mid
		} else {
			hi = mid
		}
	}
	out := make([]turn, d/2)
	angle := 1.0
	for i := range out {
		out[i] = turnBy(angle)
		angle /= hi
	}
	return out
}

// power returns x^n, which may overflow to infinity.
func power(x float64, n int) float64 {
	r := 1.0
	for i := bits.Len(uint(n)) - 1; i >= 0; i-- {
		r = float64(r * r)
		if n>>i&1 != 0 {
			r = float64(r * x)
		}
	}
	return r
}

// turnBy sums the series of cosine and sine for an angle of at most 1.
func turnBy(a float64) turn {
	t := turn{cos: 1}
	term := 1.0
	for n := 1; n <= 24; n++ {
		term = float64(term*a) / float64(n)
		switch n % 4 {
		case 0:
			t.cos += term
		case 1:
			t.sin += term
		case 2:
			t.cos -= term
		case 3:
			t.sin -= term
		}
	}
	return t
}

// normal draws from the standard normal distribution by Marsaglia's polar
// method, with its own logarithm.
type normal struct {
	src   *rand.PCG
	spare float64
	full  bool
}

// uniform returns a number in [0, 1).
func (g *normal) uniform() float64 { return float64(g.src.Uint64()>>11) * 0x1p-53 }

func (g *normal) next() float64 {
	if g.full {
		g.full = false
		return g.spare
	}
	for {
		// In [−1, 1), exactly.
		x := float64(int64(g.src.Uint64())>>11) * 0x1p-52
		y := float64(int64(g.src.Uint64())>>11) * 0x1p-52
		s := float64(x*x) + float64(y*y)
		if s > 0 && s < 1 {
			m := math.Sqrt(-2 * ln(s) / s)
			g.spare, g.full = float64(y*m), true
			return float64(x * m)
		}
	}
}

// choose returns k different numbers below n.
func (g *normal) choose(n, k int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	for i := range k {
		j := i + int(float64(g.uniform()*float64(n-i)))
		all[i], all[j] = all[j], all[i]
	}
	return all[:k]
}

// ln returns the natural logarithm of a positive number to about 1e-15: with
// x = 2^e·m, m in [√½, √2), and f = (m−1)/(m+1), it is
// e·ln 2 + 2·(f + f³/3 + f⁵/5 + …).
func ln(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m *= 2
		e--
	}
	f := (m - 1) / (m + 1)
	z := float64(f * f)
	sum := float64(z * (1. / 21))
	sum = float64(z * (1./19 + sum))
	sum = float64(z * (1./17 + sum))
	sum = float64(z * (1./15 + sum))
	sum = float64(z * (1./13 + sum))
	sum = float64(z * (1./11 + sum))
	sum = float64(z * (1./9 + sum))
	sum = float64(z * (1./7 + sum))
	sum = float64(z * (1./5 + sum))
	sum = float64(z * (1./3 + sum))
	return float64(float64(e)*math.Ln2) + float64(2*f*(1+sum))
}
