package formula

import "fmt"

// TRTLLM is TensorRT-LLM's pool of blocks of tokens (rule T1 of
// docs/planning-engines.md). A window's blocks are those that it can touch.
func TRTLLM() Engine {
	return Engine{
		Name:  "trtllm",
		Title: "TensorRT-LLM's blocks of tokens",
		Options: []Option{
			{"tokens-per-block", "32", "tokens of a block"},
			{"blocks", "as the sequences need", "blocks of the pool, as its log prints them"},
		},
		Scheme:         trtllmScheme,
		DefaultSchemes: []string{"auto", "fp8", "int8", "nvfp4"},
		SharesPrefix:   true,
		Reserve:        reserveTRTLLM,
	}
}

func trtllmScheme(name string) (Scheme, error) {
	return bitsScheme("trtllm", name, []bitsSide{
		{name: "auto", bits: 16}, {name: "bfloat16", bits: 16}, {name: "float16", bits: 16},
		{name: "fp8", bits: 8}, {name: "int8", bits: 8},
		{name: "nvfp4", bits: 4, group: 16, scaleBytes: 1},
	}, map[string]string{"bf16": "bfloat16", "f16": "float16", "e4m3-raw": "fp8"})
}

func reserveTRTLLM(req Request) (Reservation, error) {
	s, err := trtllmScheme(req.Scheme.Name)
	if err != nil {
		return Reservation{}, err
	}
	req.Scheme = s
	o := optionReader{Options: req.Options}
	block := o.int("tokens-per-block", 32, 1)
	pool := o.int("blocks", 0, 1)
	if o.err != nil {
		return Reservation{}, o.err
	}
	var c calc
	// Whole blocks of all but a request's last token are found again.
	shared := min(req.Prefix, req.Context-1) / block
	apart := c.mul(ceilDiv(req.Context, block), req.Sequences)
	needed := apart - c.mul(shared, req.Sequences-1)
	whole := needed
	if pool > 0 {
		whole = pool
	}
	r, _, err := slotRule{
		pooled: true,
		common: func(g Group) int64 {
			if g.Kind != Full {
				return 0
			}
			return shared * block
		},
		slots: func(g Group) int64 {
			n := whole
			switch g.Kind {
			case Sliding, Chunked:
				// A window that does not begin on a block touches one more.
				n = min(max(n, apart), c.mul(c.add(ceilDiv(g.Window, block), 1), req.Sequences))
			case Compressed:
				return c.mul(g.Tokens(c.roundUp(req.Context, block)), req.Sequences)
			}
			return c.mul(n, block)
		},
		states: req.Sequences,
		cross:  true,
	}.reserve(req)
	if err == nil {
		err = c.err
	}
	if err != nil {
		return Reservation{}, err
	}
	if needed > whole {
		r.Refusal = fmt.Sprintf("%d blocks do not fit a pool of %d", needed, whole)
	}
	tokens := c.mul(whole, block)
	r.Details = []Detail{
		{"blocks", "blocks", whole},
		{"tokens", "tokens of the blocks", tokens},
		{"concurrency", fmt.Sprintf("sequences of %s tokens", thousands(req.Context)), roundTo(float64(whole)/float64(ceilDiv(req.Context, block)), 2)},
	}
	return r, c.err
}
