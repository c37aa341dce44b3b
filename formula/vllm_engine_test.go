package formula

import (
	"fmt"
	"strings"
	"testing"
)

// reserveWith prices one request of a preset on an engine, with options as
// --engine-opt has them.
func reserveWith(t *testing.T, e Engine, model, scheme string, context int64, options string) Reservation {
	t.Helper()
	m, _, err := LookupPreset(model)
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.Scheme(scheme)
	if err != nil {
		t.Fatal(err)
	}
	o, err := e.ParseOptions([]string{options})
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Reserve(Request{Model: m, Context: context, Sequences: 1, TP: 1, PP: 1, Scheme: s, Options: o})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestVLLMOnAPreset holds the whole path from a preset against the figures of
// the same request in GiB that an independent program gave.
func TestVLLMOnAPreset(t *testing.T) {
	for _, c := range []struct{ options, want string }{
		{"max-num-batched-tokens=8192", "3.378"},
		{"max-num-batched-tokens=8192,async-scheduling=no", "3.191"},
		{"max-num-batched-tokens=8192,version=0.25.1", "3.191"},
		{"hybrid=no", "6.000"},
	} {
		r := reserveWith(t, VLLM(), "gpt-oss-20b", "auto", 131072, c.options)
		total, err := r.Total()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%.3f", float64(total)/(1<<30)); got != c.want {
			t.Errorf("%s: %s GiB, want %s", c.options, got, c.want)
		}
		var parts int64
		for _, p := range r.Components {
			parts += p.Bytes
		}
		if parts != total {
			t.Errorf("%s: components add up to %d of %d bytes", c.options, parts, total)
		}
	}
}

// TestVLLMFromPresets plans rows of the table from the preset of their name:
// what the columns cannot say (compressed latents, the order of the layers)
// and what they can must come out alike.
func TestVLLMFromPresets(t *testing.T) {
	planned := 0
	for _, row := range readTSV(t, "testdata/vllm_cases.tsv", "KVQ_VLLM") {
		// A row of a log's model names the log; MTP layers are the preset's draft.
		name, _, _ := strings.Cut(row["model"], " (")
		m, _, err := LookupPreset(strings.TrimSuffix(name, " + MTP"))
		if err != nil || row["source"] != "model" {
			continue
		}
		t.Run(row["id"]+"/"+m.Name, func(t *testing.T) {
			scheme, err := vllmScheme(row["cache_dtype"]) // what is asked for or, with auto, what the checkpoint asks for
			if err != nil {
				t.Fatal(err)
			}
			side := scheme.K.(vllmSide)
			req := Request{Model: m, Context: number(t, row, "max_model_len"), Sequences: 1, TP: number(t, row, "tp"), PP: number(t, row, "pp"), Scheme: scheme, Options: vllmRowOptions(row)}
			if row["auto_fit"] == "yes" {
				fitted := *m
				fitted.MaxContext = req.Context
				req.Model = &fitted
				req.Options["max-model-len"] = "-1"
			}
			o, err := parseVLLMOptions(req, side.vllmCacheType)
			if err != nil {
				t.Fatal(err)
			}
			_, plan, err := planVLLMModel(req, o, side.vllmCacheType)
			compareVLLM(t, row, plan, err)
		})
		planned++
	}
	t.Logf("%d plans from presets", planned)
}

// TestVLLMBlocksOfOlderReleases derives the blocks that logs of hybrids show:
// 960 tokens for Kimi-Linear over two ranks (K151), 784 for Qwen3.5-27B (K152).
func TestVLLMBlocksOfOlderReleases(t *testing.T) {
	for _, c := range []struct {
		model, version string
		tp             int64
		block          float64
	}{{"Kimi-Linear-48B-A3B", "0.11", 2, 960}, {"Qwen3.5-27B", "0.19", 1, 784}} {
		m, _, err := LookupPreset(c.model)
		if err != nil {
			t.Fatal(err)
		}
		s, err := vllmScheme("auto")
		if err != nil {
			t.Fatal(err)
		}
		r, err := reserveVLLM(Request{Model: m, Context: 4096, Sequences: 1, TP: c.tp, PP: 1, Scheme: s, Options: Options{"version": c.version}})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.detail("block_size"); got != c.block {
			t.Errorf("%s at %s: blocks of %v tokens, want %v", c.model, c.version, got, c.block)
		}
	}
}
