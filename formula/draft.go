package formula

import (
	"fmt"
	"maps"
)

// A Draft guesses tokens ahead in speculative decoding and caches them as the
// model does.
type Draft struct {
	// Model is the draft model; nil stands for the model's own draft layers
	// (MTP), which Model.Draft lists.
	Model *Model
	// Scheme is how the draft's cache is stored; nil is the model's scheme.
	Scheme *Scheme
}

// WithDraft returns the engine with the draft's cache in every reservation and
// explanation. vLLM puts it into the groups of the model's layers; llama.cpp
// has a rule of its own for draft layers. Elsewhere it is a cache apart: of the
// same context and sequences, its heads split over the same ranks, and with
// pipeline stages whole on one of them, here the fullest.
func WithDraft(e Engine, d Draft) Engine {
	plain := e
	e.Reserve = func(req Request) (Reservation, error) {
		with, ok, err := plain.within(req, d)
		switch {
		case err != nil:
			return Reservation{}, err
		case ok:
			return plain.Reserve(with)
		}
		own, err := d.request(req)
		if err != nil {
			return Reservation{}, err
		}
		r, err := plain.Reserve(req)
		if err != nil {
			return r, err
		}
		draft, err := plain.Reserve(own)
		if err != nil {
			return r, fmt.Errorf("draft: %w", err)
		}
		return r.withDraft(draft)
	}
	if plain.Explain != nil {
		e.Explain = func(req Request) ([]string, error) {
			with, ok, err := plain.within(req, d)
			switch {
			case err != nil:
				return nil, err
			case ok:
				return plain.Explain(with)
			}
			own, err := d.request(req)
			if err != nil {
				return nil, err
			}
			lines, err := plain.Explain(req)
			if err != nil {
				return nil, err
			}
			more, err := plain.Explain(own)
			lines = append(lines, "draft "+own.Model.label()+":")
			for _, l := range more {
				lines = append(lines, "  "+l)
			}
			return lines, err
		}
	}
	return e
}

func (e Engine) within(req Request, d Draft) (Request, bool, error) {
	if e.inside == nil {
		return req, false, nil
	}
	return e.inside(req, d)
}

// request is the draft's own.
func (d Draft) request(req Request) (Request, error) {
	m := req.Model
	if req.Model = d.Model; d.Model == nil {
		if len(m.Draft) == 0 {
			return req, noDraftLayers(m)
		}
		req.Model = &Model{
			Name: m.label() + " draft layers", Family: m.Family, DType: m.DType, Source: m.Source, Citation: m.Citation,
			MaxContext: m.MaxContext, Layers: m.Draft.Layers(), QueryHeads: m.QueryHeads, Geometry: m.Draft, MLA: m.MLA,
		}
	}
	req.PP = 1
	if d.Scheme != nil {
		req.Scheme = *d.Scheme
	}
	return req, nil
}

func noDraftLayers(m *Model) error {
	return fmt.Errorf("%s has no draft (MTP) layers", m.label())
}

// withDraft adds a reservation of a draft. Its bytes are one component, its
// padding apart; the sides and their elements stay the model's, so that bits
// do not mix two caches.
func (r Reservation) withDraft(d Reservation) (Reservation, error) {
	var c calc
	part := Component{Name: DraftKV, K: d.KBytes, V: d.VBytes}
	part.Bytes = c.add(d.Data, d.Metadata, d.State, d.Cross)
	if c.add(part.K, part.V) > part.Bytes {
		part.K, part.V = 0, 0
	}
	r.Data, r.Metadata = c.add(r.Data, d.Data), c.add(r.Metadata, d.Metadata)
	r.State, r.Cross = c.add(r.State, d.State), c.add(r.Cross, d.Cross)
	r.Padding, r.PerDevice = c.add(r.Padding, d.Padding), c.add(r.PerDevice, d.PerDevice)
	parts := map[string]*Component{DraftKV: &part, PaddingBytes: {Name: PaddingBytes, Bytes: r.Padding}}
	for _, p := range r.Components {
		if p.Name != PaddingBytes {
			parts[p.Name] = &p
		}
	}
	if r.Components != nil {
		r.Components = listComponents(parts)
	}
	if r.Line != nil {
		r.Line = nil // measured over both caches instead
	}
	if r.Refusal == "" && d.Refusal != "" {
		r.Refusal = "draft: " + d.Refusal
	}
	for _, w := range d.Warnings {
		r.Warnings = append(r.Warnings, "draft: "+w)
	}
	return r, c.err
}

// draftInVLLM puts the draft's layers among the model's: vLLM caches both in
// one pool, in one type, and guesses at least one token.
func draftInVLLM(req Request, d Draft) (Request, bool, error) {
	m := *req.Model
	switch {
	case d.Scheme != nil:
		return req, false, fmt.Errorf("vllm stores the draft's cache in the model's type: leave out its scheme")
	case d.Model == nil && len(m.Draft) == 0:
		return req, false, noDraftLayers(&m)
	case d.Model != nil && (len(d.Model.States) > 0 || d.Model.Cross != nil):
		return req, false, fmt.Errorf("draft %s: recurrent states and cross attention of a draft are not known for vllm", d.Model.label())
	case d.Model != nil:
		m.Draft = d.Model.Geometry
	}
	req.Model = &m
	req.Options = withDefault(req.Options, "speculative-tokens", "1", "0")
	return req, true, nil
}

// draftInLlamaCpp gives the model's own draft layers the context that the
// option mtp stands for; a draft model has a context like any model's.
func draftInLlamaCpp(req Request, d Draft) (Request, bool, error) {
	switch {
	case d.Model != nil:
		return req, false, nil
	case d.Scheme != nil:
		return req, false, fmt.Errorf("llama.cpp's draft layers are priced in the model's types only: leave out their scheme")
	case req.Model.gguf == nil && len(req.Model.Draft) == 0:
		return req, false, noDraftLayers(req.Model)
	}
	req.Options = withDefault(req.Options, "mtp", "yes", "no")
	return req, true, nil
}

// withDefault sets a key that is absent or as good as absent.
func withDefault(o Options, key, value, none string) Options {
	if given, ok := o[key]; ok && given != none {
		return o
	}
	o = maps.Clone(o)
	if o == nil {
		o = Options{}
	}
	o[key] = value
	return o
}
