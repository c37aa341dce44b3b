package formula

import "math"

// A Decode is the bound that memory bandwidth sets on generating tokens: each
// step has to read the weights that a token uses and everything that attention
// looks at, and no token comes faster than that takes.
//
// The heads and the weights of a stage are read by its tensor parallel ranks at
// the same time; pipeline stages take turns for one sequence, and work on as
// many parts of the sequences at once as there are stages.
type Decode struct {
	Weights int64 // bytes of weights that a rank of each stage reads, over all stages
	Cache   int64 // bytes of cache that the fullest rank of each stage reads, over all stages
	// PerSequence and Total are at most so many tokens a second, of one
	// sequence and of all.
	PerSequence, Total float64
	// Selected: layers with an indexer read a selection of the cache, of which
	// only the index keys are counted.
	Selected bool
}

// BoundDecode bounds decode at the request's context. weights is what one token
// uses of the model's weights in bytes, bandwidth the bytes a second of one
// device. Only what a step cannot do without is counted: the cache as the sum
// over layers has it, without an engine's padding, a shared prefix once, index
// keys in fp8; the experts of one token, whatever the other sequences pick.
func BoundDecode(req Request, weights, bandwidth int64) (Decode, error) {
	m := *req.Model
	var d Decode
	m.Geometry = nil
	for _, g := range req.Model.Geometry {
		if g.Extra != Index && selects(req.Model.Geometry, g) {
			d.Selected = true
			continue
		}
		if g.Extra == Index { // in two bytes an element for some, in one for others
			g.HeadDimK = ceilDiv(g.HeadDimK, 2)
		}
		m.Geometry = append(m.Geometry, g)
	}
	if _, ok := req.Scheme.K.(vllmSide); ok && compressed(req.Model) {
		// vLLM keeps these latents in fp8 whatever is asked for.
		var err error
		if req.Scheme, err = vllmScheme("fp8"); err != nil {
			return d, err
		}
	}
	m.Order = nil // of the groups that are left it says nothing
	stages := req.PP
	req.Model, req.PP = &m, 1
	r, err := reserveIdeal(req)
	if err != nil {
		return d, err
	}
	d.Weights, d.Cache = ceilDiv(weights, req.TP), r.PerDevice
	seconds := (float64(d.Weights) + float64(d.Cache)/float64(min(req.Sequences, stages))) / float64(bandwidth)
	if seconds > 0 {
		d.PerSequence = 1 / seconds
		d.Total = float64(req.Sequences) / seconds
	}
	if math.IsInf(d.Total, 0) {
		return d, ErrOverflow
	}
	return d, nil
}

// selects reports whether an indexer picks what layers of the group read.
func selects(all Geometry, g Group) bool {
	for _, other := range all {
		if other.Extra == Index && other.Kind == g.Kind && other.Ratio == g.Ratio {
			return true
		}
	}
	return false
}

// ActiveWeights is the part of the weights that one token uses, in bytes: the
// share of the parameters that are active, rounded down, all of them where the
// model does not tell.
func (m *Model) ActiveWeights(weights int64) int64 {
	if m.Params <= 0 || m.ActiveParams <= 0 || m.ActiveParams >= m.Params {
		return weights
	}
	return mulDiv(weights, m.ActiveParams, m.Params)
}
