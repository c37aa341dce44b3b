package formula

import (
	"errors"
	"fmt"
	"math/big"
)

// A Budget is the memory of one device and what else it has to hold.
type Budget struct {
	Memory  int64 // of one device; 0 when none was given
	Weights int64 // of the whole model: every device holds an equal part
	Reserve int64 // kept free on every device
}

// Left is what one of so many devices has left for the cache; below zero
// nothing fits.
func (b Budget) Left(devices int64) int64 {
	left := b.Memory - ceilDiv(b.Weights, devices)
	if left < 0 {
		return -1
	}
	return left - b.Reserve
}

// A Row is the price of one scheme.
type Row struct {
	Scheme      Scheme
	Reservation Reservation
	Total       int64 // all sequences, all devices

	// BytesPerToken is (bytes(S+256) - bytes(S))/256 of one sequence, over all
	// devices, so that groups, blocks and windows give their slope. FixedBytes
	// is bytes(S) - S x that, to the nearest byte.
	BytesPerToken float64
	FixedBytes    int64

	// Honest bits an element at this context, metadata included; 0 where
	// nothing is stored on that side or the engine does not tell.
	KBits, VBits, Bits float64
	// RatioVsF16 is the total of f16 over this total; 0 without a baseline.
	RatioVsF16 float64

	// The rest holds only with a memory budget, but for OutgrowsWeights.
	Fits bool
	// MaxContext is the largest context with the sequences given, MaxSequences
	// the most sequences at the context given. Unbounded says of the first
	// that no context is too long, since the cache stops growing.
	MaxContext, MaxSequences int64
	Unbounded                bool
	// OutgrowsWeights is the first context at which the cache of the sequences
	// given is larger than the weights; 0 when it never is, or without weights.
	OutgrowsWeights int64
}

// ErrPrefix is a prefix that the engine has no way to store once.
var ErrPrefix = errors.New("every session keeps its own copy of a shared prefix")

// slopeSpan is over how many tokens the marginal bytes of a token are taken.
const slopeSpan = 256

// searchLimit bounds contexts and sequences in the inverse searches. It is
// beyond any memory, and exact in JSON readers that use floating point.
const searchLimit = 1 << 53

// Price applies an engine's rule to one request. baseline is the scheme that
// RatioVsF16 compares with; nil leaves it out.
func Price(engine Engine, req Request, baseline *Scheme, budget Budget) (Row, error) {
	row := Row{Scheme: req.Scheme}
	if req.Context < 1 || req.Sequences < 1 || req.TP < 1 || req.PP < 1 {
		return row, errors.New("context, sequences and devices are counted from 1")
	}
	if req.Prefix < 0 || req.Prefix > 0 && !engine.SharesPrefix {
		return row, fmt.Errorf("%w in %s", ErrPrefix, engine.Name)
	}
	devices, err := product(req.TP, req.PP)
	if err != nil {
		return row, err
	}
	r, err := engine.Reserve(req)
	if err != nil {
		return row, err
	}
	row.Reservation = r
	if row.Total, err = r.Total(); err != nil {
		return row, err
	}
	if row.BytesPerToken, row.FixedBytes, err = slope(engine, req); err != nil {
		return row, err
	}
	row.KBits, row.VBits = bitsPer(r.KBytes, r.KElements), bitsPer(r.VBytes, r.VElements)
	row.Bits = (float64(r.KBytes) + float64(r.VBytes)) * 8 / (float64(r.KElements) + float64(r.VElements))
	if r.KElements+r.VElements == 0 {
		row.Bits = 0
	}
	if baseline != nil && row.Total > 0 {
		base := req
		base.Scheme = *baseline
		if b, err := engine.Reserve(base); err == nil {
			if total, err := b.Total(); err == nil {
				row.RatioVsF16 = float64(total) / float64(row.Total)
			}
		}
	}
	if budget.Weights > 0 {
		n, err := longest(engine, req, func(r Reservation) (bool, error) {
			total, err := r.Total()
			return total <= budget.Weights, err
		})
		if err != nil {
			return row, err
		}
		if n < searchLimit {
			row.OutgrowsWeights = n + 1
		}
	}
	if budget.Memory == 0 {
		return row, nil
	}
	left := budget.Left(devices)
	fits := func(r Reservation) (bool, error) { return r.Refusal == "" && r.PerDevice <= left, nil }
	row.Fits, _ = fits(r)
	if row.MaxContext, err = longest(engine, req, fits); err != nil {
		return row, err
	}
	if row.MaxContext == searchLimit {
		row.MaxContext, row.Unbounded = 0, true
	}
	row.MaxSequences, err = inverse(engine, searchLimit, func(n int64) Request { req.Sequences = n; return req }, fits)
	return row, err
}

// longest is the largest context whose reservation is ok, searchLimit when
// every one is, 0 when none is.
func longest(engine Engine, req Request, ok func(Reservation) (bool, error)) (int64, error) {
	at := func(context int64) Request { req.Context = context; return req }
	period, offset := dips(req)
	if period == 0 {
		return inverse(engine, searchLimit, at, ok)
	}
	// Over whole periods bytes never drop; the last fitting context lies
	// within a period of the last that fits there.
	k, err := inverse(engine, searchLimit/period, func(k int64) Request { return at(offset + k*period) }, ok)
	if err != nil || k == searchLimit/period {
		return searchLimit, err
	}
	for n := offset + (k+1)*period - 1; n > 0 && n >= offset+k*period; n-- {
		if good, err := check(engine, at(n), ok); good || err != nil {
			return n, err
		}
	}
	// Not even the first tokens that are always kept fit.
	return inverse(engine, offset, at, ok)
}

// maxPeriod bounds how many contexts longest tries one by one.
const maxPeriod = 1 << 16

// dips returns a period and offset of contexts after which the bytes of the
// whole request never drop below what they are there; period 0 when they never
// drop at all, or too irregularly to tell.
func dips(req Request) (period, offset int64) {
	for _, s := range []Sizer{req.Scheme.K, req.Scheme.V} {
		d, ok := s.(Dipper)
		if !ok {
			continue
		}
		p, o := d.Dips()
		if p == 0 {
			continue
		}
		for _, g := range req.Model.Geometry {
			step, start := p, o
			if g.Kind == Compressed {
				var err1, err2 error
				step, err1 = product(p, g.Ratio)
				start, err2 = product(o, g.Ratio)
				if g.Window > 0 || err1 != nil || err2 != nil {
					return 0, 0
				}
			}
			if period != 0 && start != offset {
				return 0, 0
			}
			var c calc
			period, offset = c.lcm(max(period, 1), step), start
			if c.err != nil || period > maxPeriod || offset > searchLimit/2 {
				return 0, 0
			}
		}
	}
	return period, offset
}

// inverse searches the largest n up to limit whose reservation is ok, 0 when
// none is.
func inverse(engine Engine, limit int64, request func(n int64) Request, ok func(Reservation) (bool, error)) (int64, error) {
	var failed error
	n := largest(limit, func(n int64) bool {
		good, err := check(engine, request(n), ok)
		if failed == nil {
			failed = err
		}
		return good
	})
	return n, failed
}

// check reports whether a reservation is ok. A size beyond int64 never is.
func check(engine Engine, req Request, ok func(Reservation) (bool, error)) (bool, error) {
	r, err := engine.Reserve(req)
	good := false
	if err == nil {
		good, err = ok(r)
	}
	if errors.Is(err, ErrOverflow) {
		return false, nil
	}
	return good && err == nil, err
}

// slope is the marginal bytes of a token of one sequence, and what is left of
// bytes(S) without S times that.
func slope(engine Engine, req Request) (perToken float64, fixed int64, err error) {
	req.Sequences = 1
	at := func(tokens int64) (int64, error) {
		req.Context = tokens
		r, err := engine.Reserve(req)
		if err != nil {
			return 0, err
		}
		return r.Total()
	}
	context := req.Context
	here, err := at(context)
	if err != nil {
		return 0, 0, err
	}
	further, err := sum(context, slopeSpan)
	if err != nil {
		return 0, 0, err
	}
	there, err := at(further)
	if err != nil {
		return 0, 0, fmt.Errorf("%d tokens further on: %w", slopeSpan, err)
	}
	rise := there - here
	// S x rise may pass int64 although its 256th part does not.
	grown := new(big.Int).Mul(big.NewInt(rise), big.NewInt(context))
	grown.Add(grown, big.NewInt(slopeSpan/2)).Rsh(grown, 8) // floor(x/256 + 1/2)
	left := grown.Sub(big.NewInt(here), grown)
	if !left.IsInt64() {
		return 0, 0, ErrOverflow
	}
	return float64(rise) / slopeSpan, left.Int64(), nil
}

func bitsPer(bytes, elements int64) float64 {
	if elements == 0 {
		return 0
	}
	return float64(bytes) * 8 / float64(elements)
}

// WeightBytes is the size of params parameters of so many bits each, exactly,
// rounded up to a byte. bits is decimal text, as in "4.5".
func WeightBytes(params int64, bits string) (int64, error) {
	r, ok := new(big.Rat), len(bits) <= 20
	for _, c := range bits {
		ok = ok && (c == '.' || c >= '0' && c <= '9')
	}
	if ok {
		r, ok = r.SetString(bits)
	}
	if !ok || r.Sign() <= 0 || r.Cmp(big.NewRat(1024, 1)) > 0 {
		return 0, fmt.Errorf("%q is not a number of bits", clip(bits))
	}
	r.Mul(r, big.NewRat(params, 8))
	n, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	if !n.IsInt64() {
		return 0, ErrOverflow
	}
	return n.Int64(), nil
}
