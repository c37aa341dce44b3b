package formula

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// SGLang is SGLang's token pools: size + page_size slots a layer, rows of one
// token, a second and smaller pool for windowed layers (rules S1 to S7 of
// docs/planning-engines.md).
func SGLang() Engine {
	return Engine{
		Name:  "sglang",
		Title: "SGLang's token pools, as its logs of 2025 and 2026 print them",
		Options: []Option{
			{"page-size", "1", "tokens of a page; 64 beside a sparse-attention indexer, 256 for DeepSeek-V4"},
			{"swa-ratio", "0.8", "slots of the windowed layers' pool over those of the full layers', as --swa-full-tokens-ratio; 0.1 for DeepSeek-V4"},
			{"tokens", "context times sequences", "tokens of the pool, as max_total_num_tokens in the log"},
			{"mamba-slots", "sequences", "recurrent states kept beside the spare one, as max_mamba_cache_size"},
			{"mamba-ssm-dtype", "float32", "type of recurrent states: float32, bfloat16 or float16"},
		},
		Scheme:         sglangScheme,
		DefaultSchemes: []string{"auto", "fp8_e4m3", "fp4_e2m1"},
		SharesPrefix:   true,
		Reserve:        reserveSGLang,
	}
}

func sglangScheme(name string) (Scheme, error) {
	return bitsScheme("sglang", name, []bitsSide{
		{name: "auto", bits: 16}, {name: "bfloat16", bits: 16}, {name: "float16", bits: 16},
		{name: "fp8_e4m3", bits: 8}, {name: "fp8_e5m2", bits: 8},
		// One scale byte for 16 values.
		{name: "fp4_e2m1", bits: 4, group: 16, scaleBytes: 1},
	}, map[string]string{"bf16": "bfloat16", "f16": "float16", "fp8": "fp8_e4m3", "e4m3-raw": "fp8_e4m3", "e5m2": "fp8_e5m2", "fp4": "fp4_e2m1"})
}

// sparseLatent is a latent of 512 + 64 beside an indexer in fp8: 512 fp8
// values, 4 float32 scales, the rope part in 16 bits.
type sparseLatent struct{ bitsSide }

// Size is codes and scales of [heads, tokens, 576].
func (s sparseLatent) Size(heads, tokens, dim int64) (data, metadata int64, err error) {
	if dim != 576 {
		return s.bitsSide.Size(heads, tokens, dim)
	}
	var c calc
	return c.mul(heads, tokens, 640), c.mul(heads, tokens, 16), c.err
}

// sglangTwoPools reports whether SGLang gives the windowed layers of a family
// a pool of their own. It lists architectures; in all others every layer keeps
// every token. A family that is not known is taken to be on the list.
func sglangTwoPools(family string) bool {
	family = strings.ToLower(family)
	return family == "" || slices.ContainsFunc([]string{
		"llama4", "deepseek_v4", "gpt_oss", "gpt-oss", "mimo_v2", "step3p5", "step3p7", "gemma4", "diffusion_gemma", "laguna", "mellum",
	}, func(f string) bool { return strings.HasPrefix(family, f) })
}

// times is n x ratio rounded down, as the engine computes it in floating point.
func times(c *calc, ratio float64, n int64) int64 {
	if n > 1<<53 {
		c.keep(0, ErrOverflow)
		return 0
	}
	return int64(float64(n) * ratio)
}

// leastTimes is the least n whose share is at least want.
func leastTimes(c *calc, ratio float64, want int64) int64 {
	if float64(want)/ratio > 1<<53 {
		return c.keep(0, ErrOverflow)
	}
	n := int64(float64(want) / ratio)
	for n > 0 && times(c, ratio, n-1) >= want {
		n--
	}
	for times(c, ratio, n) < want && c.err == nil {
		n++
	}
	return n
}

func reserveSGLang(req Request) (Reservation, error) {
	s, err := sglangScheme(req.Scheme.Name)
	if err != nil {
		return Reservation{}, err
	}
	req.Scheme = s
	indexed, windowed, latent, full := false, false, false, false
	window := int64(0) // the longest
	for _, g := range req.Model.Geometry {
		indexed = indexed || g.Extra == Index
		full = full || g.Kind == Full
		latent = latent || g.Latent()
		if g.Kind == Sliding || g.Kind == Chunked {
			windowed, window = true, max(window, g.Window)
		}
	}
	v4 := compressed(req.Model)
	_, asked := req.Options["swa-ratio"]
	windowed = windowed && (full || v4) && (asked || sglangTwoPools(req.Model.Family))
	if k := s.K.(bitsSide); indexed && latent && k.bits == 8 {
		req.Scheme.K = sparseLatent{k}
	}
	page, ratio := int64(1), 0.8
	switch {
	case v4:
		page, ratio = 256, 0.1
	case indexed:
		page = 64
	}
	o := optionReader{Options: req.Options}
	page = o.int("page-size", page, 1)
	if text, ok := req.Options["swa-ratio"]; ok {
		r, err := strconv.ParseFloat(text, 64)
		if err != nil || !(r > 0 && r <= 1) {
			err = fmt.Errorf("engine option swa-ratio: %q is not a number above 0 and at most 1", text)
		}
		ratio = keepFirst(&o.err, r, err)
	}
	given := o.tokens("tokens", 0)
	slots := o.int("mamba-slots", req.Sequences, 1)
	stateBytes := map[string]int64{"float32": 4, "bfloat16": 2, "float16": 2}[o.text("mamba-ssm-dtype", "float32", "float32", "bfloat16", "float16")]
	if o.err != nil {
		return Reservation{}, o.err
	}
	var c calc
	// The radix cache finds whole pages of all but a request's last token.
	shared := min(req.Prefix, req.Context-1) / page * page
	needed := c.mul(req.Context, req.Sequences) - c.mul(shared, req.Sequences-1)
	tokens := given
	if given == 0 {
		tokens = c.roundUp(needed, page)
		if windowed {
			// The windowed pool has to hold every sequence's window, and more
			// than a window and a page for one to be let in.
			least := c.add(window, page, 1)
			for _, g := range req.Model.Geometry {
				if g.Kind == Sliding || g.Kind == Chunked {
					least = max(least, c.mul(g.Tokens(req.Context), req.Sequences))
				}
			}
			tokens = max(tokens, c.roundUp(leastTimes(&c, ratio, c.roundUp(least, page)), page))
		}
	}
	small := times(&c, ratio, tokens) / page * page
	if c.err != nil {
		return Reservation{}, c.err
	}
	rows, windowRows := c.add(tokens, page), c.add(small, page)
	if !windowed {
		windowRows = rows
	}
	r, pools, err := slotRule{
		pooled: true,
		common: func(g Group) int64 {
			if g.Kind != Full && (windowed || g.Kind == Compressed) {
				return 0
			}
			return g.shared(req.Context, shared)
		},
		slots: func(g Group) int64 {
			switch g.Kind {
			case Sliding, Chunked:
				return windowRows
			case Compressed:
				return c.add(max(rows, c.mul(req.Context, req.Sequences))/g.Ratio, c.mul(g.Window, req.Sequences))
			}
			return rows
		},
		indexKey: func(dim int64) (int64, int64) {
			if latent {
				return dim, ceilDiv(dim, 128) * 4
			}
			return c.mul(dim, elementBytes), 0
		},
		states: c.add(max(slots, req.Sequences), 1), stateBytes: stateBytes,
		cross: true,
	}.reserve(req)
	if err == nil {
		err = c.err
	}
	if err != nil {
		return Reservation{}, err
	}
	detail := func(key, label string, n int64) {
		if n > 0 {
			r.Details = append(r.Details, Detail{key, label, n})
		}
	}
	detail("tokens", "max_total_num_tokens", tokens)
	detail("blocks", "pages", tokens/page)
	if windowed {
		detail("swa_tokens", "tokens of the windowed pool", small)
	}
	r.Details = append(r.Details, Detail{"concurrency", fmt.Sprintf("sequences of %s tokens", thousands(req.Context)), roundTo(float64(tokens)/float64(req.Context), 2)})
	detail("k_pool_bytes", "K size of a rank", pools.k)
	detail("v_pool_bytes", "V size of a rank", pools.v)
	detail("swa_k_pool_bytes", "K size of a rank, windowed layers", pools.windowK)
	detail("swa_v_pool_bytes", "V size of a rank, windowed layers", pools.windowV)
	detail("index_pool_bytes", "index keys of a rank", pools.index)
	detail("state_pool_bytes", "states of a rank", pools.state)
	switch {
	case needed > tokens:
		r.Refusal = fmt.Sprintf("%d tokens do not fit a pool of %d", needed, tokens)
	case windowed && small <= window+page:
		r.Refusal = fmt.Sprintf("a windowed pool of %d tokens cannot take one prefill of %d and a page of %d", small, window, page)
	}
	if f := strings.ToLower(req.Model.Family); strings.HasPrefix(f, "gemma3n") || strings.HasPrefix(f, "gemma4") {
		shared := int64(0)
		for _, b := range req.Model.Order {
			if len(b.Groups)+len(b.States) == 0 {
				shared++
			}
		}
		if shared > 0 {
			r.Warnings = append(r.Warnings, fmt.Sprintf("sglang allocates the %d layers that read an earlier layer's cache too, which is not counted here", shared))
		}
	}
	return r, nil
}
