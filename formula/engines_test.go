package formula

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// randomModel is a model of one to three kinds of layers, with recurrent
// states now and then.
func randomModel(r *rand.Rand) *Model {
	pick := func(list ...int64) int64 { return list[r.IntN(len(list))] }
	m := &Model{Name: "random", Source: "flags"}
	if r.IntN(6) == 0 {
		m.Geometry = append(m.Geometry, Group{Count: 1 + r.Int64N(60), Kind: Full, KVHeads: 1, HeadDimK: 576})
	} else {
		for range 1 + r.IntN(3) {
			g := Group{Count: 1 + r.Int64N(60), Kind: Full, KVHeads: pick(1, 2, 4, 8, 16), HeadDimK: pick(64, 96, 128, 192, 256, 512)}
			g.HeadDimV = pick(g.HeadDimK, g.HeadDimK, 64, 128)
			switch r.IntN(4) {
			case 0:
				g.Kind, g.Window = Sliding, pick(128, 500, 512, 1024, 4096)
			case 1:
				g.Kind, g.Window = Chunked, pick(2048, 8192)
			}
			m.Geometry = append(m.Geometry, g)
		}
	}
	if r.IntN(4) == 0 {
		m.States = append(m.States, State{
			Kind: []string{"mamba1", "mamba2", "gdn", "kda", "shortconv"}[r.IntN(5)], Layers: 1 + r.Int64N(60),
			ConvElements: 3 * pick(1024, 6144, 10240), ConvSteps: 3, ConvBytes: 2, SSMElements: pick(0, 131072, 786432), SSMBytes: 4,
		})
	}
	for _, g := range m.Geometry {
		m.Layers += g.Count
	}
	for _, s := range m.States {
		m.Layers += s.Layers
	}
	return m
}

// TestEnginesKeepThePromises checks on random models what must hold of every
// engine: more context or sequences never take less; no engine takes less than
// the sum over layers, nor all devices less than the total; the inverses fit
// and one more does not.
func TestEnginesKeepThePromises(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 20261129))
	priced := map[string]int{}
	for range 600 {
		m := randomModel(r)
		for _, e := range Engines() {
			scheme := f16
			if e.Scheme != nil {
				var err error
				if scheme, err = e.Scheme(e.DefaultSchemes[r.IntN(len(e.DefaultSchemes))]); err != nil {
					t.Fatal(err)
				}
			}
			req := Request{
				Model: m, Context: 1 + r.Int64N(1<<(4+r.IntN(14))), Sequences: 1 + r.Int64N(8),
				TP: int64(1) << r.IntN(4), PP: 1 + r.Int64N(min(3, m.Layers)), Scheme: scheme, Options: Options{},
			}
			total := func(req Request) (Reservation, int64) {
				res, err := e.Reserve(req)
				if err != nil {
					t.Fatalf("%s: %s %v tp %d pp %d %s: %v", e.Name, m.Geometry, m.States, req.TP, req.PP, scheme.Name, err)
				}
				n, err := res.Total()
				if err != nil {
					t.Fatal(err)
				}
				return res, n
			}
			res, n := total(req)
			if res.Refusal != "" {
				continue
			}
			priced[e.Name]++
			where := func(what string) {
				t.Errorf("%s: %s: %s %v context %d sequences %d tp %d pp %d %s", e.Name, what, m.Geometry, m.States, req.Context, req.Sequences, req.TP, req.PP, scheme.Name)
			}
			longer, more := req, req
			longer.Context += 1 + r.Int64N(2000)
			more.Sequences += 1 + r.Int64N(5)
			if res, l := total(longer); l < n && res.Refusal == "" {
				where("a longer context takes less")
			}
			if res, l := total(more); l < n && res.Refusal == "" {
				where("more sequences take less")
			}
			if res.PerDevice*req.TP*req.PP < n {
				where("the devices hold less than the total")
			}
			if ideal, err := Ideal().Reserve(req); err != nil {
				t.Fatal(err)
			} else if least, _ := ideal.Total(); n < least && !retainsLess(e, req) {
				where("less than the sum over layers")
			}
			parts := int64(0)
			for _, p := range res.Components {
				parts += p.Bytes
				if p.Bytes < 0 || p.K+p.V > p.Bytes {
					where("component " + p.Name)
				}
			}
			if res.Components != nil && parts != n {
				where("components do not add up")
			}
			if r.IntN(20) != 0 {
				continue
			}
			memory := int64(1) << (24 + r.IntN(14))
			row, err := Price(e, req, nil, Budget{Memory: memory})
			if err != nil {
				t.Fatal(err)
			}
			fits := func(req Request) bool {
				res, err := e.Reserve(req)
				return err == nil && res.Refusal == "" && res.PerDevice <= memory
			}
			for _, inverse := range []struct {
				most  int64
				with  func(int64) Request
				named string
			}{{row.MaxContext, func(n int64) Request { q := req; q.Context = n; return q }, "context"},
				{row.MaxSequences, func(n int64) Request { q := req; q.Sequences = n; return q }, "sequences"},
			} {
				if row.Unbounded && inverse.named == "context" {
					continue
				}
				if inverse.most > 0 && !fits(inverse.with(inverse.most)) {
					where("the most " + inverse.named + " does not fit")
				}
				if fits(inverse.with(inverse.most + 1)) {
					where("one more than the most " + inverse.named + " fits")
				}
			}
		}
	}
	for _, e := range Engines() {
		if priced[e.Name] < 100 {
			t.Errorf("%s priced only %d models", e.Name, priced[e.Name])
		}
	}
}

// retainsLess is where an engine keeps less than the sum over layers by rule:
// transformers drops the oldest token of a window between steps.
func retainsLess(e Engine, req Request) bool {
	if e.Name != "transformers" {
		return false
	}
	for _, g := range req.Model.Geometry {
		if g.Kind == Sliding && req.Context >= g.Window {
			return true
		}
	}
	return false
}

// TestEnginesNeverOverflowInSilence prices more than any memory holds.
func TestEnginesNeverOverflowInSilence(t *testing.T) {
	m, _, err := LookupPreset("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range Engines() {
		scheme := f16
		if e.Scheme != nil {
			if scheme, err = e.Scheme(e.DefaultSchemes[0]); err != nil {
				t.Fatal(err)
			}
		}
		for _, size := range [][2]int64{{1e9, 1e6}, {1 << 53, 1 << 53}, {1<<63 - 1, 1}, {1, 1<<63 - 1}} {
			res, err := e.Reserve(Request{Model: m, Context: size[0], Sequences: size[1], TP: 1, PP: 1, Scheme: scheme, Options: Options{}})
			if err == nil {
				_, err = res.Total()
			}
			if err == nil && res.Refusal == "" || err != nil && !errors.Is(err, ErrOverflow) {
				t.Errorf("%s: %v: %v", e.Name, size, err)
			}
		}
	}
}

func TestLookupEngine(t *testing.T) {
	for name, want := range map[string]string{
		"vLLM": "vllm", "llama.cpp": "llama.cpp", "llamacpp": "llama.cpp", "llama_cpp": "llama.cpp", "LLaMA-cpp": "llama.cpp",
		"TensorRT-LLM": "trtllm", "trt-llm": "trtllm", "ExLlamaV3": "exllamav3",
	} {
		if e, err := LookupEngine(name); err != nil || e.Name != want {
			t.Errorf("%s is %q, %v, want %s", name, e.Name, err, want)
		}
	}
	for _, name := range []string{"", "llama", "vllm2"} {
		if e, err := LookupEngine(name); err == nil {
			t.Errorf("%q is %s", name, e.Name)
		}
	}
}

// TestRecurrentStateTypes prices a state under each engine's own default: the
// reference implementation and SGLang keep float32 where the config names no
// type, vLLM the model's 16 bits.
func TestRecurrentStateTypes(t *testing.T) {
	next, _, err := LookupPreset("Qwen3-Next-80B-A3B")
	if err != nil {
		t.Fatal(err)
	}
	const wide, narrow = 36 * (24576*2 + 524288*4), 36 * (24576*2 + 524288*2)
	for _, c := range []struct {
		engine  Engine
		scheme  string
		options Options
		want    int64
	}{
		{Ideal(), "f16", nil, wide},
		{Transformers(), "f16", nil, wide},
		{SGLang(), "auto", nil, wide},
		{SGLang(), "auto", Options{"mamba-ssm-dtype": "bfloat16"}, narrow},
		{VLLM(), "auto", Options{"prefix-caching": "no"}, narrow},
		{VLLM(), "auto", Options{"prefix-caching": "no", "mamba-ssm-cache-dtype": "float32"}, wide},
	} {
		scheme := f16
		if c.engine.Scheme != nil {
			if scheme, err = c.engine.Scheme(c.scheme); err != nil {
				t.Fatal(err)
			}
		}
		r, err := c.engine.Reserve(Request{Model: next, Context: 4096, Sequences: 1, TP: 1, PP: 1, Scheme: scheme, Options: c.options})
		if err != nil {
			t.Errorf("%s: %v", c.engine.Name, err)
		} else if r.State != c.want {
			t.Errorf("%s %v: %d bytes of state, want %d", c.engine.Name, c.options, r.State, c.want)
		}
	}
}

// TestIncomplete holds that a convolution of unknown width is said to be missing.
func TestIncomplete(t *testing.T) {
	m := Model{Name: "X", States: []State{{Kind: "mamba2", Layers: 3, SSMElements: 8, SSMBytes: 2}, {Kind: "lightning", Layers: 2, SSMElements: 8, SSMBytes: 2}}}
	if got := m.Incomplete(); len(got) != 1 || got[0] != "X: the convolution state of 3 mamba2 layers is not known and not counted" {
		t.Errorf("%q", got)
	}
}
