package eval

import (
	"math"
	"slices"
)

// headStats are what one head of a tensor tells without any scheme.
type headStats struct {
	tokens, dim int

	// Of each channel over tokens.
	sum, squares []float64 // Σ x, Σ x²
	absMax       []float64 // max |x|
	spread       []float64 // max |x − mean|
	kurtosis     []float64 // excess; NaN for a constant channel

	// Of each token over channels: Σ x², as it is and centred.
	energy, centered []float64
}

// newHeadStats measures one head x, [tokens, dim].
func newHeadStats(x []float32, dim int) *headStats {
	tokens := len(x) / dim
	s := &headStats{
		tokens: tokens, dim: dim,
		sum: make([]float64, dim), squares: make([]float64, dim),
		absMax: make([]float64, dim), spread: make([]float64, dim), kurtosis: make([]float64, dim),
		energy: make([]float64, tokens), centered: make([]float64, tokens),
	}
	lo, hi := slices.Clone(x[:dim]), slices.Clone(x[:dim])
	for t := range tokens {
		var energy [16]float64
		for c, v := range x[t*dim:][:dim] {
			f := float64(v)
			square := float64(f * f)
			energy[c%16] += square
			s.sum[c] += f
			s.squares[c] += square
			lo[c], hi[c] = min(lo[c], v), max(hi[c], v)
		}
		// In the order of kernels.Errors, so that a value decoded to 0 cancels exactly.
		for step := 8; step > 0; step /= 2 {
			for i := range step {
				energy[i] += energy[i+step]
			}
		}
		s.energy[t] = energy[0]
	}
	mean := s.means()
	second, fourth := make([]float64, dim), make([]float64, dim)
	for t := range tokens {
		var energy float64
		for c, v := range x[t*dim:][:dim] {
			d := float64(v) - mean[c]
			square := float64(d * d)
			energy += square
			second[c] += square
			fourth[c] += float64(square * square)
		}
		s.centered[t] = energy
	}
	n := float64(tokens)
	for c := range dim {
		s.absMax[c] = max(math.Abs(float64(lo[c])), math.Abs(float64(hi[c])))
		s.spread[c] = max(float64(hi[c])-mean[c], mean[c]-float64(lo[c]))
		s.kurtosis[c] = fourth[c]*n/float64(second[c]*second[c]) - 3
	}
	return s
}

// means returns the mean of each channel.
func (s *headStats) means() []float64 {
	mean := make([]float64, s.dim)
	for c := range mean {
		mean[c] = s.sum[c] / float64(s.tokens)
	}
	return mean
}

// totalEnergy returns Σ x² and, with each channel centred, Σ (x − mean)².
func (s *headStats) totalEnergy() (raw, centered float64) {
	for t := range s.energy {
		raw += s.energy[t]
		centered += s.centered[t]
	}
	return raw, centered
}

// biasEnergy returns Σ_c S·mean².
func (s *headStats) biasEnergy() float64 {
	var sum float64
	for _, v := range s.sum {
		sum += float64(v*v) / float64(s.tokens)
	}
	return sum
}

// outlierColumns returns the columns of several heads side by side whose
// magnitude is at least ratio times the median, and the largest ratio.
func outlierColumns(magnitudes []float64, ratio float64) (columns []int, maxMedianRatio float64) {
	m := median(magnitudes)
	columns = []int{}
	for c, a := range magnitudes {
		if m > 0 && a >= float64(ratio*m) {
			columns = append(columns, c)
		}
	}
	return columns, slices.Max(magnitudes) / m
}

// median returns the median of x, the mean of the middle two of an even count,
// NaN of none.
func median(x []float64) float64 {
	if len(x) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(x))
	m := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[m]
	}
	return (sorted[m-1] + sorted[m]) / 2
}

// persistenceBytes bounds the memory of persistence.
const persistenceBytes = 32 << 20

// persistence returns the mean over outlier columns of the share of tokens in
// which the column's magnitude is among the k largest of its token, k being the
// number of outlier columns: fewer than k others are larger. Columns are those
// of heads side by side; read fills the buffer with one head's values, which are
// centred where means are given. NaN without outliers.
func persistence(columns []int, heads, tokens, dim int, means [][]float64, buffer *[]float32, read func(dst []float32, head int) error) (float64, error) {
	k := len(columns)
	if k == 0 {
		return math.NaN(), nil
	}
	span := min(tokens, max(1, persistenceBytes/(k*8)))
	largest := make([]float32, span*k) // of each token, ascending
	own := make([]float32, span*k)     // magnitudes of the outlier columns
	*buffer = resize(*buffer, tokens*dim)
	x := *buffer
	row := make([]float32, dim)
	hits := 0
	for from := 0; from < tokens; from += span {
		n := min(span, tokens-from)
		for i := range largest {
			largest[i] = -1
		}
		for head := range heads {
			if heads > 1 || from == 0 {
				if err := read(x, head); err != nil {
					return 0, err
				}
			}
			first, _ := slices.BinarySearch(columns, head*dim)
			for t := range n {
				for c, v := range x[(from+t)*dim:][:dim] {
					if means != nil {
						v = float32(float64(v) - means[head][c])
					}
					row[c] = float32(math.Abs(float64(v)))
				}
				top := largest[t*k:][:k]
				for _, v := range row {
					if v > top[0] {
						i, _ := slices.BinarySearch(top, v)
						copy(top, top[1:i])
						top[i-1] = v
					}
				}
				for i := first; i < k && columns[i] < (head+1)*dim; i++ {
					own[t*k+i] = row[columns[i]-head*dim]
				}
			}
		}
		for i, v := range own[:n*k] {
			if v >= largest[i/k*k] {
				hits++
			}
		}
	}
	return float64(hits) / float64(tokens*k), nil
}

// Thresholds of the diagnosis.
const (
	persistentShare = 0.5
	biasShare       = 0.5
	tokenRatio      = 4
	heavyKurtosis   = 3
)

// outliers describes heads of one tensor side by side. read fills one of them.
func outliers(heads []*headStats, ratio float64, buffer *[]float32, read func(dst []float32, head int) error) (Outliers, error) {
	tokens, dim := heads[0].tokens, heads[0].dim
	var absMax, spread, kurtosis []float64
	var means [][]float64
	norm, centeredNorm := make([]float64, tokens), make([]float64, tokens)
	var bias, energy float64
	for _, h := range heads {
		absMax, spread = append(absMax, h.absMax...), append(spread, h.spread...)
		for _, k := range h.kurtosis {
			if !math.IsNaN(k) {
				kurtosis = append(kurtosis, k)
			}
		}
		means = append(means, h.means())
		bias += h.biasEnergy()
		raw, _ := h.totalEnergy()
		energy += raw
		for t := range tokens {
			norm[t] += h.energy[t]
			centeredNorm[t] += h.centered[t]
		}
	}
	for t := range tokens {
		norm[t], centeredNorm[t] = math.Sqrt(norm[t]), math.Sqrt(centeredNorm[t])
	}
	columns, maxRatio := outlierColumns(absMax, ratio)
	share, err := persistence(columns, len(heads), tokens, dim, nil, buffer, read)
	if err != nil {
		return Outliers{}, err
	}
	o := Outliers{
		SinkTokens:      []int{},
		Channels:        len(absMax),
		MaxMedianRatio:  figure(maxRatio),
		OutlierChannels: columns,
		OutlierCount:    len(columns),
		Persistence:     figure(share),
		BiasEnergy:      ratioOf(bias, energy),
		Kurtosis:        figure(median(kurtosis)),
	}
	m := median(norm)
	for t, n := range norm {
		if m > 0 && (n >= tokenRatio*m || n <= m/tokenRatio) {
			o.SinkTokens = append(o.SinkTokens, t)
		}
	}
	o.Diagnosis = "clean"
	centeredColumns, _ := outlierColumns(spread, ratio)
	centeredShare, err := persistence(centeredColumns, len(heads), tokens, dim, means, buffer, read)
	if err != nil {
		return Outliers{}, err
	}
	m = median(centeredNorm)
	switch {
	case centeredShare >= persistentShare:
		o.Diagnosis = "outlier-channel"
	case o.BiasEnergy != nil && *o.BiasEnergy >= biasShare:
		o.Diagnosis = "bias"
	case m > 0 && slices.Max(centeredNorm) >= tokenRatio*m:
		o.Diagnosis = "outlier-token"
	case o.Kurtosis != nil && *o.Kurtosis >= heavyKurtosis:
		o.Diagnosis = "heavy-tail"
	}
	return o, nil
}
