package formula

// Transformers is the dynamic cache of Hugging Face transformers, without a
// serving engine: tensors as long as the tokens, of any type. A sliding layer
// retains the last W-1 tokens between steps; a latent is cached in its
// expanded form, a K and V for every query head, where the model tells its
// widths.
func Transformers() Engine {
	return Engine{
		Name:  "transformers",
		Title: "Hugging Face transformers: DynamicCache, or StaticCache of the context",
		Options: []Option{
			{"cache", "dynamic", "dynamic, or static: allocated for the whole context, windows included"},
		},
		Reserve: reserveTransformers,
	}
}

func reserveTransformers(req Request) (Reservation, error) {
	kind, err := req.Options.String("cache", "dynamic", "dynamic", "static")
	if err != nil {
		return Reservation{}, err
	}
	model := *req.Model
	model.Geometry = nil
	var warnings []string
	for _, g := range req.Model.Geometry {
		if mla := model.MLA; g.Latent() && g.Extra == "" && g.Kind == Full {
			if mla == nil || mla.Heads == 0 || mla.NopeDim == 0 || mla.VDim == 0 {
				warnings = append(warnings, "transformers caches K and V of every query head in place of the latent, whose widths this model does not give")
			} else {
				g.KVHeads, g.HeadDimK, g.HeadDimV = mla.Heads, mla.NopeDim+mla.RopeDim, mla.VDim
			}
		}
		model.Geometry = append(model.Geometry, g)
	}
	req.Model = &model
	tokens := func(g Group) int64 {
		if g.Kind == Sliding && kind == "dynamic" {
			return min(req.Context, max(g.Window-1, 1))
		}
		return g.Tokens(req.Context)
	}
	r, _, err := slotRule{
		slots:  tokens,
		held:   tokens,
		states: req.Sequences,
		cross:  true,
	}.reserve(req)
	r.Warnings = append(r.Warnings, warnings...)
	return r, err
}
