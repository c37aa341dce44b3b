package formula

import (
	"errors"
	"fmt"
)

// A Shape describes a model by a few numbers, as the command line gives them.
// Fields that were not given are 0.
type Shape struct {
	Layers  int64
	KVHeads int64
	HeadDim int64
	// HeadDimV is HeadDim where it is not given.
	HeadDimV int64
	// Window makes WindowLayers of the layers sliding, all of them where the
	// number is not given.
	Window, WindowLayers int64
	// Latent and Rope are the widths of an MLA vector, which needs neither
	// heads nor HeadDim.
	Latent, Rope int64
}

// Geometry returns the shape's groups, full layers first.
func (s Shape) Geometry() (Geometry, error) {
	for name, n := range map[string]int64{
		"layers": s.Layers, "kv-heads": s.KVHeads, "head-dim": s.HeadDim, "head-dim-v": s.HeadDimV,
		"sliding-window": s.Window, "swa-layers": s.WindowLayers, "mla-latent": s.Latent, "mla-rope": s.Rope,
	} {
		if n < 0 {
			return nil, fmt.Errorf("%s: %d is below zero", name, n)
		}
	}
	g := Group{Kind: Full, KVHeads: s.KVHeads, HeadDimK: s.HeadDim, HeadDimV: s.HeadDimV}
	switch {
	case s.Layers == 0:
		return nil, errors.New("the number of layers is missing")
	case s.Latent > 0 && (s.KVHeads > 1 || s.HeadDim > 0 || s.HeadDimV > 0):
		return nil, errors.New("an MLA latent is one vector a token: it goes with neither KV heads nor head widths")
	case s.Latent > 0:
		width, err := sum(s.Latent, s.Rope)
		if err != nil {
			return nil, err
		}
		g.KVHeads, g.HeadDimK = 1, width
	case s.Rope > 0:
		return nil, errors.New("the width of the MLA latent is missing")
	case s.KVHeads == 0:
		return nil, errors.New("the number of KV heads is missing")
	case s.HeadDim == 0:
		return nil, errors.New("the head width is missing")
	case s.HeadDimV == 0:
		g.HeadDimV = s.HeadDim
	}
	if s.Window == 0 && s.WindowLayers > 0 {
		return nil, errors.New("sliding layers need a window")
	}
	if s.WindowLayers > s.Layers {
		return nil, fmt.Errorf("%d sliding layers of %d", s.WindowLayers, s.Layers)
	}
	var geometry Geometry
	sliding := s.WindowLayers
	if s.Window > 0 && sliding == 0 {
		sliding = s.Layers
	}
	if n := s.Layers - sliding; n > 0 {
		g.Count = n
		geometry = append(geometry, g)
	}
	if sliding > 0 {
		g.Count, g.Kind, g.Window = sliding, Sliding, s.Window
		geometry = append(geometry, g)
	}
	for _, group := range geometry {
		if err := group.validate(); err != nil {
			return nil, err
		}
	}
	return geometry, nil
}
