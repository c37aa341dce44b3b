package cmd

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kvq/eval"
	"kvq/quantize"
)

func f64(x float64) *float64 { return &x }

func sampleReport() *eval.Report {
	layer := 5
	row := func(k, v, scheme string, bits, damage float64) eval.Row {
		r := eval.Row{Dump: "layer5.npy", Layer: 5, Scheme: scheme, K: k, V: v, Queries: eval.Captured, BitsPerElement: bits,
			Bytes: int64(bits * 65536), Online: k != "int8-channel" && k != "int4-channel",
			KLMean: f64(damage), KLP99: f64(damage * 30), OutputNMSE: f64(damage * 2), Top1FlipRate: f64(0.01)}
		if k != eval.Exact {
			r.KCenteredNMSE = f64(damage / 3)
		}
		if v != eval.Exact {
			r.VNMSE = f64(damage / 7)
			if k == eval.Exact {
				r.KLMean, r.KLP99 = f64(0), f64(0)
			}
		}
		return r
	}
	rows := []eval.Row{
		row("f16", "exact", "f16:exact", 16, 0),
		row("int8-token", "exact", "int8-token:exact", 8.25, 1.234e-3),
		row("int4-asym-channel/32", "exact", "int4-asym-channel/32:exact", 5, 1.234e-2),
		row("exact", "int8-token", "exact:int8-token", 8.25, 1.234e-4),
		row("f16", "f16", "f16", 16, 0),
		row("int8-token", "int8-token", "int8-token", 8.25, 1.234e-3),
		row("int8-channel", "int4-token/64", "int8-channel:int4-token/64", 6.127, 4.5678e-3),
		row("int4-asym-channel/32", "int4-asym-token/32", "int4-asym-channel/32:int4-asym-token/32", 5, 0.123),
	}
	rows[4].Pareto, rows[6].Pareto = true, true
	for i := range rows[4:] {
		rows[4+i].DecodeGBps = f64(34.567)
	}
	rows[5].IndistinctFrom = []string{"int8-channel:int4-token/64"}
	return &eval.Report{
		Schema: eval.Schema, CPU: eval.CPU{ISA: "avx512", Threads: 2, ReadGBps: f64(36.2)},
		Dumps: []eval.Dump{{Path: "d/layer5.npy", Layer: 5, Tokens: 4096, KVHeads: 1, QueryHeads: 4, HeadDim: 256, DType: "f16", Queries: eval.Captured, QueryRows: 256, FactsAssumed: []string{"scale"}}},
		Outliers: []eval.Outliers{
			{Dump: "layer5.npy", Layer: 5, Tensor: eval.Keys, Diagnosis: "outlier-channel", Remedy: "quantize per channel, or rotate with +hadamard", RemedyGain: f64(12.34), RemedyFrom: "int4-token", RemedyTo: "int4-channel",
				SinkTokens: []int{0}, Channels: 256, MaxMedianRatio: f64(27.04), OutlierChannels: []int{5, 57}, OutlierCount: 2, Persistence: f64(0.981), BiasEnergy: f64(0.61), Kurtosis: f64(38)},
			{Dump: "layer5.npy", Layer: 5, Tensor: eval.Values, Diagnosis: "clean", SinkTokens: []int{}, Channels: 256, MaxMedianRatio: f64(2.2), BiasEnergy: f64(0.01), Kurtosis: f64(-0.3)},
		},
		Rows:           rows,
		Recommendation: &eval.Recommendation{Scheme: "int8-channel:int4-token/64", Why: "fewest bits whose kl_mean stays below 0.01 and whose output_nmse stays below 0.01", Flags: map[string]string{"llama.cpp": "-ctk q8_0 -ctv q4_0"}},
		Checks:         []eval.Check{{Check: "kl_mean>0.01", Scheme: "int8-token", Layer: &layer, Value: f64(0.013), Failed: true}, {Check: "kl_mean>0.01", Scheme: "f16", Layer: &layer, Value: f64(0)}},
	}
}

// TestEvalReport compares with golden files that were read line by line when
// they were made: every number is one of sampleReport's, rounded to the digits
// that a table shows. KVQ_UPDATE=1 rewrites them.
func TestEvalReport(t *testing.T) {
	for _, format := range []string{formatTable, formatMD, formatCSV} {
		var b strings.Builder
		if err := evalReport(sampleReport(), evalView{}).render(&b, format, false); err != nil {
			t.Fatal(err)
		}
		if format == formatTable {
			for line := range strings.Lines(b.String()) {
				if len(line) > textWidth+1 {
					t.Errorf("%d columns: %s", len(line)-1, line)
				}
			}
		}
		golden(t, "evalreport."+format, b.String())
	}
}

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if os.Getenv("KVQ_UPDATE") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs from what is printed:\n%s", path, got)
	}
}

// TestEvalHTML checks that the page holds the figures and the plots, and
// fetches nothing.
func TestEvalHTML(t *testing.T) {
	var b strings.Builder
	if err := evalReport(sampleReport(), evalView{}).render(&b, formatHTML, false); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{"<title>kvq eval", "outlier-channel", "int8-channel:int4-token/64", "4.11e-4", "<svg", "</svg>", "</html>"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, unwanted := range []string{"<script", "src=", "url(", "<?xml"} {
		if strings.Contains(page, unwanted) {
			t.Errorf("the page holds %q", unwanted)
		}
	}
}

// TestEvalSets runs what each engine offers: all of it that fits the dump, and the
// recommendation names the engine's flags and, in text, what else it needs.
func TestEvalSets(t *testing.T) {
	dump := filepath.Join(t.TempDir(), "x.safetensors")
	if code, _, stderr := run("synth", "-o", dump, "--tokens", "256", "--kv-heads", "2", "--query-heads", "4", "--head-dim", "64", "--rope", "10000", "--key-bias", "1"); code != exitOK {
		t.Fatal(stderr)
	}
	for _, engine := range []string{"llama.cpp", "ik_llama.cpp", "vLLM", "SGLang", "TensorRT-LLM", "transformers", "LMDeploy", "ExLlamaV3", "MLX", "KIVI", "KVQuant", "QuaRot", "FlexGen", "TurboQuant"} {
		names, err := quantize.Set(engine)
		if err != nil {
			t.Fatal(err)
		}
		code, out, stderr := run("eval", "--dump", dump, "--set", strings.ToLower(engine), "--no-bench", "-q", "--format", "json")
		if code != exitOK {
			t.Fatalf("%s: %s", engine, stderr)
		}
		var r eval.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, row := range r.Rows {
			seen[row.Scheme] = true
		}
		for _, name := range names {
			pair, err := quantize.ParsePair(name)
			if err != nil {
				t.Fatal(err)
			}
			if !seen[pair.Name()] && pair.K.Format.Class != quantize.Plain {
				t.Errorf("%s: no row of %s", engine, name)
			}
		}
		if len(names) > 1 && (r.Recommendation == nil || r.Recommendation.Flags[engine] == "") {
			t.Errorf("%s: recommended %+v", engine, r.Recommendation)
		}
	}
	code, out, stderr := run("eval", "--dump", dump, "--scheme", "q5_1", "--scheme", "q4_0", "--no-bench", "-q")
	if code != exitOK {
		t.Fatal(stderr)
	}
	words := strings.Join(strings.Fields(out), " ")
	for _, part := range []string{"recommended: q5_1", "llama.cpp: -ctk q5_1 -ctv q5_1 (LLAMA_ATTN_ROT_DISABLE=1 where the head width divides by 64", "GGML_CUDA_FA_ALL_QUANTS"} {
		if !strings.Contains(words, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	// An engine's set shows its flags alone; a scheme alone is judged, and has its flags.
	for _, c := range []struct{ args, want, not string }{
		{"--set sglang", "SGLang: --kv-cache-dtype", "vLLM:"},
		{"--set lmdeploy", "LMDeploy: --backend pytorch", "vLLM:"},
		{"--set quarot", "quarot: does not keep kl_mean ≤ 0.01", "recommended"},
		{"--set quarot", "QuaRot: MultiLayerPagedKVCache4Bit", "recommended"},
		{"--scheme e4m3-token", "vLLM: --kv-cache-dtype fp8_per_token_head", "recommended"},
		{"--scheme e4m3-token", "e4m3-token: keeps kl_mean ≤ 0.01", "recommended"},
		{"--scheme mlx8,mlx4", "MLX: --kv-bits 8", "nvfp4"},
	} {
		_, out, _ := run(append([]string{"eval", "--dump", dump, "--no-bench", "-q"}, strings.Fields(c.args)...)...)
		if words := strings.Join(strings.Fields(out), " "); !strings.Contains(words, c.want) || strings.Contains(words, c.not) {
			t.Errorf("%s: want %q and no %q:\n%s", c.args, c.want, c.not, out)
		}
	}
	if code, out, stderr := run("eval", "--dump", dump, "--set", "all", "--no-bench", "-q"); code != exitOK || strings.Count(out, "\n") < 100 {
		t.Errorf("all: %d, %s\n%s", code, stderr, out)
	}
	if code, _, stderr := run("eval", "--dump", dump, "--set", "none"); code != exitUsage || !strings.Contains(stderr, "sets are all, llama.cpp") {
		t.Errorf("an unknown set: %d, %s", code, stderr)
	}
}

// TestEvalWithoutCache: what no paged cache holds has no decode figure, and the report
// says so, for people and programs.
func TestEvalWithoutCache(t *testing.T) {
	dump := filepath.Join(t.TempDir(), "x.safetensors")
	if code, _, stderr := run("synth", "-o", dump, "--tokens", "128", "--kv-heads", "2", "--query-heads", "2", "--head-dim", "64", "--rope", "10000"); code != exitOK {
		t.Fatal(stderr)
	}
	without := []string{"hqq4", "pth-int4", "q4_0+prerope+hadamard:q4_0"}
	args := []string{"eval", "--dump", dump, "-q", "--scheme", "q4_0," + strings.Join(without, ",")}
	code, out, stderr := run(args...)
	words := strings.Join(strings.Fields(out), " ")
	if want := "no decode figure, because no paged cache holds it: " + strings.Join(without, ", "); code != exitOK || !strings.Contains(words, want) {
		t.Errorf("%d, %s: no %q in\n%s", code, stderr, want, out)
	}
	if code, out, stderr = run(append(args, "--format", "json")...); code != exitOK {
		t.Fatal(stderr)
	}
	var r eval.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if none := slices.Contains(without, row.Scheme); none != (row.Kernel == eval.NoKernel) || none != (row.DecodeGBps == nil) {
			t.Errorf("%s: kernel %q, %v GB/s", row.Scheme, row.Kernel, row.DecodeGBps)
		}
	}
	if _, out, _ := run("eval", "--dump", dump, "-q", "--scheme", "q4_0", "--no-bench"); strings.Contains(out, "paged cache") {
		t.Errorf("without decoding:\n%s", out)
	}
}
