package eval

import (
	"slices"

	"kvq/quantize"
)

// remedies say what a diagnosis suggests, and which changes of a scheme are that.
var remedies = map[string]struct {
	words string
	cures func(from, to *quantize.Scheme) bool
}{
	"outlier-channel": {"scales per channel, or +hadamard", func(from, to *quantize.Scheme) bool {
		return perChannel(from, to) || adds(from, to, quantize.Hadamard)
	}},
	"bias": {"+center, or scales per channel", func(from, to *quantize.Scheme) bool {
		return adds(from, to, quantize.Center) || perChannel(from, to)
	}},
	"outlier-token": {"scales per token, or +sink", func(from, to *quantize.Scheme) bool {
		return sameCodes(from, to) && from.Share != quantize.PerToken && to.Share == quantize.PerToken || adds(from, to, quantize.Sink)
	}},
	"heavy-tail": {"more bits, or +outlier", func(from, to *quantize.Scheme) bool {
		same := from.Zero == to.Zero && from.Share == to.Share && from.Group == to.Group && slices.Equal(from.Modifiers, to.Modifiers)
		return same && from.Format.Class == to.Format.Class && from.Format.Bits < to.Format.Bits || adds(from, to, quantize.Outlier)
	}},
}

// sameCodes reports whether two schemes differ at most in who shares a scale.
func sameCodes(from, to *quantize.Scheme) bool {
	return from.Format == to.Format && from.Zero == to.Zero && slices.Equal(from.Modifiers, to.Modifiers)
}

func perChannel(from, to *quantize.Scheme) bool {
	return sameCodes(from, to) && from.Share == quantize.PerToken && to.Share == quantize.PerChannel
}

// adds reports whether to is from with one modifier of a kind more.
func adds(from, to *quantize.Scheme, kind quantize.ModifierKind) bool {
	n := len(to.Modifiers) - 1
	return n == len(from.Modifiers) && to.Modifiers[n].Kind == kind && slices.Equal(from.Modifiers, to.Modifiers[:n]) &&
		from.Format == to.Format && from.Zero == to.Zero && from.Share == to.Share && from.Group == to.Group
}

// remedy fills in what o's diagnosis suggests and, where rows with and without
// it were measured on this side alone, what it gains the most: the ratio of
// kl_mean for keys and output_nmse for values, of tensor errors for stand-in
// queries.
func (o *Outliers) remedy(rows []Row) {
	remedy, ok := remedies[o.Diagnosis]
	if !ok {
		return
	}
	o.Remedy = remedy.words
	type side struct {
		name   string
		scheme *quantize.Scheme
		cost   float64
	}
	var sides []side
	for i := range rows {
		r := &rows[i]
		name, other, cost, proxy := r.K, r.V, r.KLMean, r.KCenteredNMSE
		if o.Tensor == Values {
			name, other, cost, proxy = r.V, r.K, r.OutputNMSE, r.VNMSE
		}
		if r.Queries == Proxy {
			cost = proxy
		}
		if other != Exact || cost == nil {
			continue
		}
		s, err := quantize.Lookup(name)
		if err != nil {
			continue
		}
		sides = append(sides, side{name, s, *cost})
	}
	for _, from := range sides {
		for _, to := range sides {
			if to.cost <= 0 || !remedy.cures(from.scheme, to.scheme) {
				continue
			}
			if gain := from.cost / to.cost; o.RemedyGain == nil || gain > *o.RemedyGain {
				o.RemedyGain, o.RemedyFrom, o.RemedyTo = figure(gain), from.name, to.name
			}
		}
	}
}
