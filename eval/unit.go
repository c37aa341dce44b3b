package eval

import (
	"math"

	"kvq/kernels"
)

// Limits of the form that works with differences: past them a row is worked out
// again from its perturbed probabilities themselves.
const (
	maxDelta = 20   // largest difference of logits, relative to the most attended token's
	minMass  = 0.05 // least sum of perturbed probabilities, relative to the same
)

// A lossHead is what storing one head's keys loses for the block's rows.
type lossHead struct {
	kl    []float64 // of each row
	flips int
	delta []float64 // Δ of each row, [panels·lanes, width]

	// pairs holds for each pair the part of Δ that the keys decide; the pair's
	// own Δ is that plus keep times what the values lose under exact keys.
	pairs [][]float64
	keep  []float64 // of each row
}

// keyPass is one worker's memory for keys' losses.
type keyPass struct {
	delta  []float32   // [tile, lanes]
	sums   [][]float64 // of values under perturbed weights: exact ones, then a pair's errors
	second []float64   // sums of a row, [panels·lanes], as in kernels.TiltSums
	first  []float64
	flip   []bool
	large  []float64 // largest difference of a row
	peak   []float64
	shift  [][lanes]float32
	out    []float64 // lossHead.delta
}

// loss measures what keys with errors e lose for the rows of h. Each of errs
// are the errors of a pair's values, [tokens, width]. e has room for whole
// blocks of kernels.ScoreTokens rows. decoded returns the keys themselves.
func (b *block) loss(w *keyPass, h *head, e []float32, errs [][]float32, decoded func() []float32) *lossHead {
	dim, width := b.layer.DimK, padded(b.layer.DimV)
	rows := len(h.panels) * lanes
	w.delta = resize(w.delta, tileTokens*lanes)
	for len(w.sums) <= len(errs) {
		w.sums = append(w.sums, nil)
	}
	for i := range errs {
		w.sums[i+1] = zeroed(w.sums[i+1], rows*width)
	}
	w.sums[0] = zeroed(w.sums[0], rows*width)
	w.second, w.first = zeroed(w.second, rows), zeroed(w.first, rows)
	w.large, w.flip = zeroed(w.large, rows), zeroed(w.flip, rows)
	w.shift = resize(w.shift, len(h.panels))
	for i := range h.panels {
		w.shift[i] = h.panels[i].shifts(e, dim, b.layer.Facts.Softcap)
	}
	b.tiles(h, func(i int, p *panel, t, n int) {
		delta := b.differences(w, p, e, t, n)
		var sums kernels.TiltSums
		kernels.Tilt(delta, tile(p, p.p, t, n), &w.shift[i], &sums)
		for r := range p.rows {
			row := i*lanes + r
			w.second[row] += float64(sums.Second[r])
			w.first[row] += float64(sums.First[r])
			w.large[row] = max(w.large[row], float64(sums.Delta[r]))
			probability := tile(p, p.p, t, n)
			band := p.topP[r] * (closeShare + float32(closeLog*(max(w.shift[i][r], -w.shift[i][r])+sums.Delta[r])))
			w.flip[row] = w.flip[row] || b.overtaken(p, r, t, sums.Top[r], p.topP[r], band, decoded, delta, func(i int) float32 {
				return probability[i] + delta[i]
			})
		}
		w.weigh(i, delta, h.v[t*width:][:n*width], errs, t, n, width)
	})

	loss := &lossHead{kl: make([]float64, rows), keep: make([]float64, rows), pairs: make([][]float64, len(errs))}
	for j := range errs {
		loss.pairs[j] = make([]float64, rows*width)
	}
	w.out = resize(w.out, rows*width)
	loss.delta = w.out
	again := make([]bool, len(h.panels))
	for i := range h.panels {
		p := &h.panels[i]
		for r := range p.rows {
			row := i*lanes + r
			s := float64(w.shift[i][r])
			first := w.first[row] - float64(p.sinkP[r]*s)
			tilt := w.second[row] + float64(p.sinkP[r]*second(-s)) + first // Σ p·(e^δ − 1)
			mass := 1 + tilt
			if w.large[row] > maxDelta || mass < minMass {
				again[i] = true
				loss.kl[row] = math.NaN()
				continue
			}
			loss.kl[row] = max(kernels.Log1p(tilt)-first, 0)
			loss.keep[row] = 1 / mass
			out := p.out[r*width:][:width]
			x := w.sums[0][row*width:][:width]
			for c := range x {
				x[c] -= float64(tilt * out[c])
			}
			loss.settle(w, row, width, mass, nil)
		}
	}
	b.lossLarge(w, h, e, errs, decoded, loss, again)
	for i := range h.panels {
		for r := range h.panels[i].rows {
			row := i*lanes + r
			if w.flip[row] {
				loss.flips++
			}
		}
	}
	return loss
}

// lossLarge works out the rows of the panels in again whose kl is not known
// yet from the perturbed probabilities themselves, with a running maximum of
// their logarithms, so that nothing overflows or vanishes.
func (b *block) lossLarge(w *keyPass, h *head, e []float32, errs [][]float32, decoded func() []float32, loss *lossHead, again []bool) {
	width := padded(b.layer.DimV)
	w.peak = resize(w.peak, len(h.panels)*lanes)
	redo := func(i int, p *panel, r int) bool { return again[i] && r < p.rows && math.IsNaN(loss.kl[i*lanes+r]) }
	for i := range h.panels {
		if !again[i] {
			continue
		}
		p := &h.panels[i]
		for j := range len(errs) + 1 {
			clear(w.sums[j][i*lanes*width:][:lanes*width])
		}
		for r := range lanes {
			row := i*lanes + r
			w.peak[row] = -1e30
			w.second[row], w.first[row] = 0, 0
			if redo(i, p, r) {
				w.flip[row] = false
			}
		}
	}
	b.tiles(h, func(i int, p *panel, t, n int) {
		if !again[i] {
			return
		}
		delta := b.differences(w, p, e, t, n)
		logp := tile(p, p.logp, t, n)
		var peaks kernels.PeakSums
		kernels.Peak(delta, tile(p, p.p, t, n), logp, &w.shift[i], &peaks)
		shift := w.shift[i]
		for r := range p.rows {
			row := i*lanes + r
			w.first[row] += float64(peaks.First[r])
			if redo(i, p, r) {
				w.flip[row] = w.flip[row] || b.overtaken(p, r, t, peaks.Top[r], p.topLogP[r], closeLogLarge, decoded, delta, func(i int) float32 {
					return logp[i] + (delta[i] - shift[r])
				})
			}
			// The peak that Rise subtracts together with the shift, as rounded.
			top := float64(shift[r]+peaks.Top[r]) - float64(shift[r])
			if top > w.peak[row] {
				scale := kernels.Exp(w.peak[row] - top)
				w.peak[row] = top
				w.second[row] *= scale
				for j := range len(errs) + 1 {
					sum := w.sums[j][row*width:][:width]
					for c := range sum {
						sum[c] *= scale
					}
				}
			}
		}
		for r := range lanes {
			shift[r] = float32(float64(shift[r]) + w.peak[i*lanes+r])
		}
		var sum [lanes]float32
		kernels.Rise(delta, logp, &shift, &sum)
		for r := range p.rows {
			w.second[i*lanes+r] += float64(sum[r])
		}
		w.weigh(i, delta, h.v[t*width:][:n*width], errs, t, n, width)
	})
	for i := range h.panels {
		p := &h.panels[i]
		for r := range lanes {
			if !redo(i, p, r) {
				continue
			}
			row := i*lanes + r
			s := float64(w.shift[i][r])
			mass := w.second[row] + kernels.Exp(p.sinkL[r]-s-w.peak[row])
			first := w.first[row] - float64(p.sinkP[r]*s)
			loss.kl[row] = max(kernels.Log(mass)+w.peak[row]-first, 0)
			loss.settle(w, row, width, mass, p.out[r*width:][:width])
		}
	}
}

// settle divides a row's sums by its mass: Δ of the keys alone is x/mass − out,
// that of a pair (x+y)/mass − out.
func (loss *lossHead) settle(w *keyPass, row, width int, mass float64, out []float64) {
	x := w.sums[0][row*width:][:width]
	for j := range len(loss.pairs) + 1 {
		dst := loss.delta
		if j > 0 {
			dst = loss.pairs[j-1]
		}
		dst = dst[row*width:][:width]
		for c := range dst {
			sum := x[c]
			if j > 0 {
				sum += w.sums[j][row*width+c]
			}
			dst[c] = sum / mass
			if out != nil {
				dst[c] -= out[c]
			}
		}
	}
}

// tiles visits the tiles of every panel, panels within tiles, so that a tile of
// keys and values serves all panels while it is in the cache.
func (b *block) tiles(h *head, visit func(i int, p *panel, t, n int)) {
	for t := 0; t < b.layer.Tokens; t += tileTokens {
		for i := range h.panels {
			p := &h.panels[i]
			if t >= p.lo && t < p.hi {
				visit(i, p, t, min(tileTokens, p.hi-t))
			}
		}
	}
}

// differences returns the differences of the logits of n tokens from t.
func (b *block) differences(w *keyPass, p *panel, e []float32, t, n int) []float32 {
	dim := b.layer.DimK
	whole := (n + kernels.ScoreTokens - 1) / kernels.ScoreTokens * kernels.ScoreTokens
	kernels.Scores(w.delta[:whole*lanes], e[t*dim:][:whole*dim], p.q, dim)
	delta := w.delta[:n*lanes]
	if p.capped != nil {
		for i, c := range tile(p, p.capped, t, n) {
			if i%lanes < p.rows {
				delta[i] = capDifference(delta[i], c, b.layer.Facts.Softcap)
			}
		}
	}
	return delta
}

// weigh adds a tile's values, and the errors of the pairs' values, under the
// weights of panel i.
func (w *keyPass) weigh(i int, weights, v []float32, errs [][]float32, t, n, width int) {
	size := lanes * width
	kernels.WeightedSum(w.sums[0][i*size:][:size], weights, v, width)
	for j, e := range errs {
		kernels.WeightedSum(w.sums[j+1][i*size:][:size], weights, e[t*width:][:n*width], width)
	}
}

// What is too close to the most attended token to be told from it by float32
// differences of logits: a share of its probability, and of the differences. Far
// larger differences have a distance of their own, in logits.
const (
	closeShare    float32 = 2e-6
	closeLog      float32 = 1e-5
	closeLogLarge float32 = 1e-3
)

// overtaken reports whether one of the tokens of a tile, from t on, is attended
// to more than the row's most attended one, or as much and comes before it. top
// is the largest value of the tile, most that of the most attended token, which
// the shift leaves as it was. Values within band of most are settled by the
// decoded keys themselves, so that equal keys tie.
func (b *block) overtaken(p *panel, r, t int, top, most, band float32, decoded func() []float32, delta []float32, value func(i int) float32) bool {
	switch {
	case top < most-band:
		return false
	case top > most+band:
		return true
	}
	var best float64
	known := false
	for i := r; i < len(delta); i += lanes {
		token := t + i/lanes
		if token == p.top[r] || !(value(i) >= most-band) {
			continue
		}
		if !known {
			best, known = b.logit(p, r, decoded(), p.top[r]), true
		}
		if z := b.logit(p, r, decoded(), token); z > best || z == best && token < p.top[r] {
			return true
		}
	}
	return false
}

// logit returns a row's logit of a token from decoded keys.
func (b *block) logit(p *panel, r int, keys []float32, token int) float64 {
	dim, softcap := b.layer.DimK, b.layer.Facts.Softcap
	var z float64
	for c, x := range keys[token*dim:][:dim] {
		z += float64(float64(x) * float64(p.q[c*lanes+r]))
	}
	if softcap > 0 {
		z = softcap * kernels.Tanh(z/softcap)
	}
	return z
}

// second returns e^x − 1 − x.
func second(x float64) float64 {
	if math.Abs(x) > 0.01 {
		return kernels.Expm1(x) - x
	}
	p := 1.0 / 720
	for _, c := range [...]float64{1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5} {
		p = float64(p*x) + c
	}
	return float64(x*x) * p
}

// valueLoss adds Δ = Σ p·(v̂ − v) of each row of h under exact keys to delta.
func (b *block) valueLoss(delta []float64, h *head, errs []float32) {
	width := padded(b.layer.DimV)
	size := lanes * width
	b.tiles(h, func(i int, p *panel, t, n int) {
		kernels.WeightedSum(delta[i*size:][:size], tile(p, p.p, t, n), errs[t*width:][:n*width], width)
	})
}

// zeroed returns n zeros, in s where it is large enough.
func zeroed[T any](s []T, n int) []T {
	s = resize(s, n)
	clear(s)
	return s
}
