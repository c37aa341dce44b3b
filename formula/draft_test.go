package formula

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func preset(t *testing.T, name string) *Model {
	t.Helper()
	m, _, err := LookupPreset(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// part is the component of a reservation with that name.
func (r Reservation) part(name string) Component {
	for _, c := range r.Components {
		if c.Name == name {
			return c
		}
	}
	return Component{}
}

// TestDraftIsACacheApart: a Llama 1B beside an 8B takes its own 32 KiB a token.
func TestDraftIsACacheApart(t *testing.T) {
	q := Request{Model: preset(t, "llama-3.1-8b"), Context: 1000, Sequences: 3, TP: 1, PP: 1, Scheme: f16}
	const target, draft = 3 * 1000 * 32 * 8 * 128 * 2 * 2, 3 * 1000 * 16 * 8 * 64 * 2 * 2
	int8 := same(coded{"int8", 8, 0})
	for _, test := range []struct {
		scheme      *Scheme
		data, scale int64
	}{{nil, draft, 0}, {&int8, draft / 2, 3 * 1000 * 16 * 8 * 2 * 2}} {
		r, err := WithDraft(Ideal(), Draft{preset(t, "llama-3.2-1b"), test.scheme}).Reserve(q)
		if err != nil {
			t.Fatal(err)
		}
		if r.Data != target+test.data || r.Metadata != test.scale || r.PerDevice != r.Data+r.Metadata {
			t.Errorf("%+v, want %d + %d", r, target+test.data, test.scale)
		}
		if p := r.part(DraftKV); p.Bytes != test.data+test.scale || p.K != p.V || p.K+p.V != p.Bytes {
			t.Errorf("draft %+v", p)
		}
		if r.KBytes != target/2 { // bits are the model's own
			t.Errorf("K of %d bytes", r.KBytes)
		}
	}
}

// TestDraftLayersOfTheModel: DeepSeek-V3's one MTP layer caches a latent of
// 576, as each of the 61 others does, on every rank.
func TestDraftLayersOfTheModel(t *testing.T) {
	m := preset(t, "deepseek-v3")
	for _, tp := range []int64{1, 8} {
		q := Request{Model: m, Context: 100, Sequences: 1, TP: tp, PP: 1, Scheme: f16}
		r, err := WithDraft(Ideal(), Draft{}).Reserve(q)
		if err != nil || r.part(DraftKV).Bytes != tp*100*576*2 || r.Data != 62*tp*100*576*2 || r.PerDevice != 62*100*576*2 {
			t.Errorf("tp %d: %+v, %v", tp, r, err)
		}
		// A stage holds all of it: 31 of 61 layers, and the draft's.
		q.PP = 2
		if r, err = WithDraft(Ideal(), Draft{}).Reserve(q); err != nil || r.PerDevice != 32*100*576*2 {
			t.Errorf("two stages: %+v, %v", r, err)
		}
	}
	for _, e := range Engines() {
		q := Request{Model: preset(t, "llama-3.1-8b"), Context: 100, Sequences: 1, TP: 1, PP: 1, Scheme: f16}
		if e.Scheme != nil {
			var err error
			if q.Scheme, err = e.Scheme(e.DefaultSchemes[0]); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := WithDraft(e, Draft{}).Reserve(q); err == nil || !strings.Contains(err.Error(), "no draft (MTP) layers") {
			t.Errorf("%s: draft layers of a model without them: %v", e.Name, err)
		}
	}
}

// TestDraftInVLLM holds drafts against the plans that vLLM made with them.
func TestDraftInVLLM(t *testing.T) {
	eagle := &Model{Name: "EAGLE-3", Layers: 1, Geometry: mustGeometry(t, "1xfull:8x64+64")}
	seen := 0
	for _, row := range readTSV(t, "testdata/vllm_cases.tsv", "KVQ_VLLM") {
		name, what, _ := strings.Cut(row["model"], " + ")
		var d Draft
		switch what {
		case "MTP":
		case "1B draft":
			d.Model = preset(t, "llama-3.2-1b")
		case "EAGLE-3":
			d.Model = eagle
		default:
			continue
		}
		seen++
		s, err := vllmScheme(row["cache_dtype_asked"])
		if err != nil {
			t.Fatal(err)
		}
		q := Request{Model: preset(t, name), Context: number(t, row, "max_model_len"), Sequences: 1, TP: 1, PP: 1, Scheme: s, Options: vllmRowOptions(row)}
		r, err := WithDraft(VLLM(), d).Reserve(q)
		if err != nil {
			t.Fatal(err)
		}
		if total, err := r.Total(); err != nil || total != number(t, row, "request_bytes") || (r.Refusal == "") != (row["fits"] == "yes") {
			t.Errorf("%s %s: %d bytes, %q, %v, want %s", row["id"], row["model"], total, r.Refusal, err, row["request_bytes"])
		}
		elements := int64(2) // bytes an element
		if row["cache_dtype"] == "fp8" {
			elements = 1
		}
		layers := map[string]int64{"MTP": 4 * 512, "1B draft": 16 * 8 * 128, "EAGLE-3": 8 * 128}[what]
		if want := q.Context * layers * elements; r.part(DraftKV).Bytes != want {
			t.Errorf("%s: a draft of %d bytes in %+v, want %d", row["id"], r.part(DraftKV).Bytes, r.Components, want)
		}
	}
	if seen == 0 {
		t.Error("no row has a draft")
	}
	q := Request{Model: preset(t, "8b"), Context: 100, Sequences: 1, TP: 1, PP: 1, Scheme: f16}
	for _, d := range []Draft{{preset(t, "qwen3.5-27b"), nil}, {eagle, &f16}} {
		if _, err := WithDraft(VLLM(), d).Reserve(q); err == nil {
			t.Errorf("%+v: no error", d)
		}
	}
}

// TestPrefixIsStoredOnce compares with the tokens that n sequences keep, told
// apart one by one: token i of sequence s is (0, i) in the prefix and (s, i)
// behind it.
func TestPrefixIsStoredOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 1))
	for range 300 {
		s, n := 1+rng.Int64N(60), 1+rng.Int64N(4)
		p := rng.Int64N(s + 1)
		g := Group{Count: 1 + rng.Int64N(3), Kind: Full, KVHeads: 2, HeadDimK: 3, HeadDimV: 5}
		first, every := int64(0), int64(1) // tokens from first on, one entry for every so many
		switch rng.IntN(3) {
		case 0:
			g.Kind, g.Window = Sliding, 1+rng.Int64N(70)
			first = max(0, s-g.Window)
		case 1:
			g.Kind, g.Ratio = Compressed, 1+rng.Int64N(9)
			every = g.Ratio
		}
		kept := map[[2]int64]bool{}
		for seq := range n {
			for i := first; i+every <= s; i += every {
				owner := seq + 1
				if i+every <= p {
					owner = 0
				}
				kept[[2]int64{owner, i}] = true
			}
		}
		q := request(Geometry{g}, s, f16)
		q.Sequences, q.Prefix = n, p
		r, err := Ideal().Reserve(q)
		if want := int64(len(kept)) * g.Count * 2 * (3 + 5) * 2; err != nil || r.Data != want || r.PerDevice != want {
			t.Fatalf("%s, %d sequences of %d tokens, prefix %d: %d bytes on %d, %v, want %d", g, n, s, p, r.Data, r.PerDevice, err, want)
		}
	}
}

// TestPrefixInEngines works blocks and pages out by hand for a layer of 4 bytes
// a token, 3 sequences of 1,000 tokens, 500 of them shared.
func TestPrefixInEngines(t *testing.T) {
	m := &Model{Name: "m", Layers: 1, Geometry: mustGeometry(t, "1xfull:1x16+16")}
	for _, test := range []struct {
		engine  Engine
		options string
		tokens  int64 // that are reserved
	}{
		{SGLang(), "page-size=1", 3000 - 2*500 + 1},
		{SGLang(), "page-size=64", 64*(16+16+16-2*7) + 64 - 64}, // pages of the sum: ceil(2104/64) and the spare one
		{TRTLLM(), "tokens-per-block=32", 32 * (3*32 - 2*15)},
		{VLLM(), "block-size=16", 16 * (3*63 - 2*31)},
		{VLLM(), "block-size=256", 256 * (3*4 - 2*1)},
	} {
		options, err := test.engine.ParseOptions([]string{test.options})
		if err != nil {
			t.Fatal(err)
		}
		s, err := test.engine.Scheme("auto")
		if err != nil {
			t.Fatal(err)
		}
		q := Request{Model: m, Context: 1000, Sequences: 3, Prefix: 500, TP: 1, PP: 1, Scheme: s, Options: options}
		r, err := test.engine.Reserve(q)
		if err != nil {
			t.Fatal(err)
		}
		total, err := r.Total()
		if want := test.tokens * 64; err != nil || total != want || r.PerDevice != want || r.Data > total {
			t.Errorf("%s %s: %d bytes on %d, %v, want %d", test.engine.Name, test.options, total, r.PerDevice, err, want)
		}
	}
	for _, e := range Engines() {
		if _, err := Price(e, Request{Model: m, Context: 10, Sequences: 1, Prefix: 5, TP: 1, PP: 1, Scheme: f16}, nil, Budget{}); (err == nil) != e.SharesPrefix {
			t.Errorf("%s: %v", e.Name, err)
		}
	}
	s, _ := vllmScheme("auto")
	if _, err := VLLM().Reserve(Request{Model: m, Context: 10, Sequences: 1, Prefix: 5, TP: 1, PP: 1, Scheme: s, Options: Options{"prefix-caching": "no"}}); err == nil {
		t.Error("a prefix without prefix caching")
	}
}

// TestPromisesWithDraftAndPrefix checks on random models what must hold with a
// draft and a shared prefix too: more context, more sequences and a shorter
// prefix never take less; without a prefix nothing is shared; the components
// add up; the inverses fit and one more does not.
func TestPromisesWithDraftAndPrefix(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 2))
	priced := map[string]int{}
	for range 300 {
		m, draft := randomModel(r), randomModel(r)
		draft.States = nil
		for _, e := range Engines() {
			if !e.SharesPrefix {
				continue
			}
			scheme := f16
			if e.Scheme != nil {
				var err error
				if scheme, err = e.Scheme(e.DefaultSchemes[r.IntN(len(e.DefaultSchemes))]); err != nil {
					t.Fatal(err)
				}
			}
			with := WithDraft(e, Draft{Model: draft})
			q := Request{Model: m, Context: 1 + r.Int64N(1<<(4+r.IntN(14))), Sequences: 1 + r.Int64N(8), TP: int64(1) << r.IntN(3), PP: 1 + r.Int64N(min(2, m.Layers)), Scheme: scheme, Options: Options{}}
			q.Prefix = r.Int64N(q.Context + 1)
			if e.Name == "vllm" {
				q.Options["prefix-caching"] = "yes"
			}
			total := func(e Engine, q Request) (Reservation, int64) {
				res, err := e.Reserve(q)
				if err != nil {
					t.Fatalf("%s: %s %v + %s: %v", e.Name, m.Geometry, m.States, draft.Geometry, err)
				}
				n, err := res.Total()
				if err != nil {
					t.Fatal(err)
				}
				return res, n
			}
			res, n := total(with, q)
			if res.Refusal != "" {
				continue
			}
			priced[e.Name]++
			where := func(what string) {
				t.Errorf("%s: %s: %s %v + %s context %d prefix %d sequences %d tp %d pp %d %s", e.Name, what, m.Geometry, m.States, draft.Geometry, q.Context, q.Prefix, q.Sequences, q.TP, q.PP, scheme.Name)
			}
			longer, more, shorter, alone := q, q, q, q
			longer.Context += 1 + r.Int64N(2000)
			more.Sequences += 1 + r.Int64N(5)
			shorter.Prefix = r.Int64N(q.Prefix + 1)
			alone.Sequences = 1
			if _, l := total(with, longer); l < n {
				where("a longer context takes less")
			}
			if _, l := total(with, more); l < n {
				where("more sequences take less")
			}
			if _, l := total(with, shorter); l < n {
				where("a shorter prefix takes less")
			}
			shorter, alone.Prefix = alone, 0
			if _, a := total(with, shorter); true {
				if _, b := total(with, alone); a != b {
					where("one sequence shares something")
				}
			}
			parts := int64(0)
			for _, p := range res.Components {
				parts += p.Bytes
				if p.Bytes < 0 || p.K+p.V > p.Bytes {
					where("component " + p.Name)
				}
			}
			if parts != n || res.part(DraftKV).Bytes == 0 && q.Context > 1 {
				where("components do not add up")
			}
			if res.PerDevice*q.TP*q.PP < n {
				where("the devices hold less than the total")
			}
			if r.IntN(10) != 0 {
				continue
			}
			memory := int64(1) << (24 + r.IntN(14))
			row, err := Price(with, q, nil, Budget{Memory: memory})
			if err != nil {
				t.Fatal(err)
			}
			fits := func(q Request) bool {
				res, err := with.Reserve(q)
				return err == nil && res.Refusal == "" && res.PerDevice <= memory
			}
			at := func(context, sequences int64) Request { q := q; q.Context, q.Sequences = context, sequences; return q }
			if k := row.MaxContext; !row.Unbounded && (k > 0 && !fits(at(k, q.Sequences)) || fits(at(k+1, q.Sequences))) {
				where("the most context")
			}
			if k := row.MaxSequences; k < searchLimit && (k > 0 && !fits(at(q.Context, k)) || fits(at(q.Context, k+1))) {
				where("the most sequences")
			}
		}
	}
	for _, name := range []string{"ideal", "vllm", "sglang", "trtllm"} {
		if priced[name] < 100 {
			t.Errorf("%s priced only %d models", name, priced[name])
		}
	}
}
