package eval

import (
	"math/bits"
	"math/rand/v2"
	"slices"
)

// The bootstrap: its resamples, the fewest units it is done for, the seed that
// makes it the same in every run, and the ends of a 95% interval.
const (
	resamples  = 1000
	leastUnits = 8
	bootSeed1  = 0x6b7671
	bootSeed2  = 0x626f6f74
	intervalLo = 0.025
	intervalHi = 0.975
)

// A sample is one unit of resampling: the queries of a head of a layer are not
// independent, so they are drawn together.
type sample struct{ sum, n float64 }

// meanSample returns the mean over all units' queries.
func meanSample(units []sample) float64 {
	var all sample
	for _, u := range units {
		all.sum += u.sum
		all.n += u.n
	}
	return all.sum / all.n
}

// resampleMeans draws as many units as there are, with replacement, and returns
// the mean of each draw; nil of fewer than leastUnits. The draws are the same
// for all sets of as many units, so the means of two schemes can be subtracted.
func resampleMeans(units []sample) []float64 {
	if len(units) < leastUnits {
		return nil
	}
	r := rand.NewPCG(bootSeed1, bootSeed2)
	means := make([]float64, resamples)
	for i := range means {
		var all sample
		for range units {
			n, _ := bits.Mul64(r.Uint64(), uint64(len(units)))
			all.sum += units[n].sum
			all.n += units[n].n
		}
		means[i] = all.sum / all.n
	}
	return means
}

// interval returns the 95% percentile interval of means, nil of none.
func interval(means []float64) (lo, hi *float64) {
	if means == nil {
		return nil, nil
	}
	sorted := slices.Sorted(slices.Values(means))
	return figure(quantile(sorted, intervalLo)), figure(quantile(sorted, intervalHi))
}

// indistinct reports whether the interval of the difference of two schemes'
// means contains 0.
func indistinct(a, b []float64) bool {
	d := make([]float64, len(a))
	for i := range d {
		d[i] = a[i] - b[i]
	}
	slices.Sort(d)
	return quantile(d, intervalLo) <= 0 && quantile(d, intervalHi) >= 0
}
