package cmd

import (
	"fmt"
	"math"

	"kvq/dumps"
	"kvq/eval"
)

// newRope presents a rotary embedding to eval, with the frequencies that its
// context extension makes of the plain ones. applied is whether the dump's
// keys are rotated; width is that of a key, tokens the length of the dump.
// Where the frequencies cannot be told there is no embedding, but an error.
func newRope(r *dumps.RoPE, applied bool, width, tokens int) (*eval.Rope, error) {
	dims := r.Dims
	if f, ok := r.Scaling["partial_rotary_factor"].(float64); ok && dims == 0 {
		dims = int(float64(width) * f)
	}
	if dims == 0 {
		dims = width
	}
	if dims > width || dims%2 != 0 {
		return nil, fmt.Errorf("rope: %d rotated channels of %d: want an even number of them", dims, width)
	}
	e := &eval.Rope{Applied: applied, Theta: r.Theta, Style: r.Style, Dims: dims}
	kind, _ := r.Scaling["rope_type"].(string)
	if kind == "" {
		kind, _ = r.Scaling["type"].(string)
	}
	if kind == "" && r.Factor > 1 {
		kind = "linear"
	}
	if kind == "" || kind == "default" || r.Theta == 0 {
		return e, nil
	}
	s := ropeScaling{r, dims}
	plain := make([]float64, dims/2)
	for i := range plain {
		plain[i] = math.Pow(r.Theta, -2*float64(i)/float64(dims))
	}
	var err error
	switch kind {
	case "linear":
		e.Frequencies, err = s.linear(plain)
	case "llama3":
		e.Frequencies, err = s.llama3(plain)
	case "yarn":
		e.Frequencies, err = s.yarn(plain)
	case "longrope", "su":
		e.Frequencies, err = s.longrope(plain, tokens)
	default:
		err = fmt.Errorf("rope type %q is not known: want linear, llama3, yarn or longrope", kind)
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// ropeScaling computes the frequencies of context extensions from the keys of
// a Hugging Face rope_scaling object. Each follows the paper or the model
// report that introduced it.
type ropeScaling struct {
	*dumps.RoPE
	dims int
}

// number returns a scaling key, or its default where that is not NaN.
func (s ropeScaling) number(key string, absent float64) (float64, error) {
	x, ok := s.Scaling[key].(float64)
	if key == "factor" {
		x, ok = s.Factor, s.Factor > 0
	}
	if !ok {
		x = absent
	}
	if math.IsNaN(x) {
		return 0, fmt.Errorf("rope: %s is missing", key)
	}
	return x, nil
}

// numbers returns several keys that have no default.
func (s ropeScaling) numbers(keys ...string) ([]float64, error) {
	var all []float64
	for _, key := range keys {
		x, err := s.number(key, math.NaN())
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

// linear is position interpolation: every frequency is divided by factor.
func (s ropeScaling) linear(plain []float64) ([]float64, error) {
	factor, err := s.number("factor", math.NaN())
	if err != nil {
		return nil, err
	}
	out := make([]float64, len(plain))
	for i, f := range plain {
		out[i] = f / factor
	}
	return out, nil
}

// llama3 divides low frequencies by factor, keeps high ones, and blends
// between (The Llama 3 herd of models).
func (s ropeScaling) llama3(plain []float64) ([]float64, error) {
	v, err := s.numbers("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
	if err != nil {
		return nil, err
	}
	factor, low, high, context := v[0], v[1], v[2], v[3]
	out := make([]float64, len(plain))
	for i, f := range plain {
		// Turns of this pair over the context it was trained on.
		turns := context * f / (2 * math.Pi)
		switch {
		case turns < low:
			out[i] = f / factor
		case turns > high:
			out[i] = f
		default:
			keep := (turns - low) / (high - low)
			out[i] = float64((1-keep)*f)/factor + float64(keep*f)
		}
	}
	return out, nil
}

// yarn is NTK-by-parts (YaRN, Peng et al. 2023, section 3.2): a ramp over the
// pairs from those that turn betaFast times over the original context, which
// are kept, to those that turn betaSlow times, which are divided by factor.
// The factor on the logits is part of the dump's scale.
func (s ropeScaling) yarn(plain []float64) ([]float64, error) {
	v, err := s.numbers("factor", "original_max_position_embeddings")
	if err != nil {
		return nil, err
	}
	fast, _ := s.number("beta_fast", 32)
	slow, _ := s.number("beta_slow", 1)
	factor, context := v[0], v[1]
	pair := func(turns float64) float64 {
		return float64(s.dims) * math.Log(context/(turns*2*math.Pi)) / (2 * math.Log(s.Theta))
	}
	low, high := pair(fast), pair(slow)
	if truncate, ok := s.Scaling["truncate"].(bool); !ok || truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(s.dims-1))
	if low == high {
		high += 0.001
	}
	out := make([]float64, len(plain))
	for i, f := range plain {
		ramp := min(max((float64(i)-low)/(high-low), 0), 1)
		out[i] = float64(f/factor*ramp) + float64(f*(1-ramp))
	}
	return out, nil
}

// longrope divides each frequency by its own factor, from one list up to the
// original context and another beyond it.
func (s ropeScaling) longrope(plain []float64, tokens int) ([]float64, error) {
	context, err := s.number("original_max_position_embeddings", math.NaN())
	if err != nil {
		return nil, err
	}
	key := "short_factor"
	if float64(tokens) > context {
		key = "long_factor"
	}
	list, _ := s.Scaling[key].([]any)
	if len(list) != len(plain) {
		return nil, fmt.Errorf("rope: %s has %d numbers, want one per pair of rotated channels: %d", key, len(list), len(plain))
	}
	out := make([]float64, len(plain))
	for i, f := range plain {
		x, ok := list[i].(float64)
		if !ok || x <= 0 {
			return nil, fmt.Errorf("rope: %s holds something that is no positive number", key)
		}
		out[i] = f / x
	}
	return out, nil
}
