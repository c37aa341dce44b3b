package cmd

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kvq/formula"
)

// planOf runs kvq plan and decodes its report twice: typed, and as a map that
// shows which keys are there.
func planOf(t *testing.T, args string) (planJSON, map[string]any) {
	t.Helper()
	code, stdout, stderr := run(append(strings.Fields("plan --format json"), strings.Fields(args)...)...)
	if code != exitOK && code != exitNo {
		t.Fatalf("kvq plan %s: exit %d\n%s", args, code, stderr)
	}
	var plan planJSON
	var keys map[string]any
	if err := json.Unmarshal([]byte(stdout), &plan); err != nil {
		t.Fatalf("kvq plan %s: %v\n%s", args, err, stdout)
	}
	if err := json.Unmarshal([]byte(stdout), &keys); err != nil {
		t.Fatal(err)
	}
	return plan, keys
}

func TestPlanWorkedExample(t *testing.T) {
	plan, keys := planOf(t, "--model 8b --ctx 32k --scheme f16,int8 --scheme int4-token/32")
	if m := plan.Model; m.Name != "Llama-3.1-8B" || m.Source != "preset" || m.Layers != 32 || m.KVLayers != 32 || m.KVHeads != 8 || m.HeadDimK != 128 || *m.HeadDimV != 128 {
		t.Errorf("model %+v", m)
	}
	if q := plan.Request; q.Context != 32768 || q.Sequences != 1 || q.Engine != "ideal" || q.TensorParallel != 1 {
		t.Errorf("request %+v", q)
	}
	const rows = 2 * 32 * 8 * 32768 // rows of 128 codes, K and V
	for i, want := range []planRowJSON{
		{Scheme: "f16", Bits: 16, PlanFigures: &PlanFigures{BytesPerToken: 131072, DataBytes: 4294967296}},
		{Scheme: "int8-token", Bits: 8.125, PlanFigures: &PlanFigures{BytesPerToken: 66560, DataBytes: 2147483648, MetadataBytes: rows * 2}},
		{Scheme: "int4-token/32", Bits: 4.5, PlanFigures: &PlanFigures{BytesPerToken: 36864, DataBytes: 1073741824, MetadataBytes: rows * 8}},
	} {
		got := plan.Rows[i]
		total := want.DataBytes + want.MetadataBytes
		if got.Scheme != want.Scheme || got.BytesPerToken != want.BytesPerToken || got.DataBytes != want.DataBytes || got.MetadataBytes != want.MetadataBytes ||
			got.Bits != want.Bits || got.KBits != want.Bits || got.VBits != want.Bits || got.TotalBytes != total || got.BytesPerDevice != total || got.FixedBytes != 0 ||
			got.RatioVsF16 != 4294967296/float64(total) {
			t.Errorf("row %+v, want %+v", got, want)
		}
	}
	row := keys["rows"].([]any)[0].(map[string]any)
	for _, key := range []string{"scheme", "k", "v", "k_bits", "v_bits", "bits_per_element", "bytes_per_token", "fixed_bytes", "data_bytes", "metadata_bytes", "total_bytes", "bytes_per_device", "ratio_vs_f16"} {
		if _, ok := row[key]; !ok {
			t.Errorf("no key %s", key)
		}
	}
	for _, key := range []string{"state_bytes", "cross_bytes", "padding_bytes", "max_context", "max_sequences", "fits"} {
		if v, ok := row[key]; ok {
			t.Errorf("key %s is there: %v", key, v)
		}
	}
	if keys["schema"] != "kvq.plan/1" || keys["warnings"] == nil {
		t.Errorf("schema %v, warnings %v", keys["schema"], keys["warnings"])
	}
}

func TestPlanModelsAgree(t *testing.T) {
	for _, group := range [][]string{
		{"--model 8b", "--geometry 32xfull:8x128+128", "--layers 32 --kv-heads 8 --head-dim 128", "--model meta-llama/Llama-3.1-8B"},
		{"--model deepseek-v3", "--geometry 61xFULL:1x576+0", "--layers 61 --mla-latent 512 --mla-rope 64"},
		{"--model gpt-oss-20b", "--geometry 12xfull:8x64+64;12xsliding128:8x64+64", "--layers 24 --kv-heads 8 --head-dim 64 --sliding-window 128 --swa-layers 12"},
		{"--model mistral-7b-v0.1", "--layers 32 --kv-heads 8 --head-dim 128 --sliding-window 4096"},
	} {
		var want string
		for _, flags := range group {
			plan, _ := planOf(t, flags+" --ctx 20000 --sessions 3 --scheme f16,int8-channel/32:int4-token/32")
			got := plan.Model.Geometry
			for _, r := range plan.Rows {
				got += fmt.Sprintf(" %d+%d", r.DataBytes, r.MetadataBytes)
			}
			if want == "" {
				want = got
			} else if got != want {
				t.Errorf("%s: %s, want %s", flags, got, want)
			}
		}
	}
}

func TestPlanLatentHasNoValues(t *testing.T) {
	_, keys := planOf(t, "--model deepseek-v3 --ctx 4k --scheme f16")
	row := keys["rows"].([]any)[0].(map[string]any)
	if v, ok := row["v_bits"]; ok {
		t.Errorf("v_bits %v of a latent", v)
	}
	if v, ok := keys["model"].(map[string]any)["head_dim_v"]; !ok || v != 0.0 {
		t.Errorf("head_dim_v %v, %v", v, ok)
	}
}

func TestPlanMixedModelHidesWhatDiffers(t *testing.T) {
	_, keys := planOf(t, "--model gemma-4-31b --ctx 4k --scheme f16")
	for _, key := range []string{"kv_heads", "head_dim_k", "head_dim_v"} {
		if v, ok := keys["model"].(map[string]any)[key]; ok {
			t.Errorf("%s %v although layers differ", key, v)
		}
	}
}

// TestPlanInverses asks for the largest context and the most sessions, and
// then for exactly those and one more.
func TestPlanInverses(t *testing.T) {
	for _, model := range []string{"--model 8b", "--model gemma3-27b --tp 2", "--model deepseek-v3 --tp 8 --pp 2", "--model qwen3.5-27b"} {
		base := model + " --memory 80GiB --weights 16GiB --reserve 512MiB "
		plan, _ := planOf(t, base+"--ctx 32k --sessions 2")
		for _, r := range plan.Rows {
			fits := func(context, sessions int64) bool {
				p, _ := planOf(t, fmt.Sprintf("%s --ctx %d --sessions %d --scheme %s", base, context, sessions, r.Scheme))
				return *p.Rows[0].Fits
			}
			if !fits(*r.MaxContext, 2) || fits(*r.MaxContext+1, 2) {
				t.Errorf("%s %s: context %d is not the largest", model, r.Scheme, *r.MaxContext)
			}
			if !fits(32768, *r.MaxSequences) || fits(32768, *r.MaxSequences+1) {
				t.Errorf("%s %s: %d sessions are not the most", model, r.Scheme, *r.MaxSequences)
			}
		}
	}
}

func TestPlanExitCodes(t *testing.T) {
	for _, test := range []struct {
		args   string
		code   int
		stderr string // a part of it
	}{
		{"--model 8b --ctx 32k", exitOK, ""},
		{"--model 8b", exitOK, ""},
		{"--model 8b --ctx 256k", exitOK, "beyond the model's maximum of 131,072"},
		{"--model 8b --ctx 32k --memory 80GiB --weights auto --scheme f16", exitOK, ""},
		{"--model 8b --ctx 32k --memory 80GiB", exitOK, "no --weights"},
		{"--model 8b --ctx 32k --memory 3GiB --weights 0", exitOK, ""},                               // int4 fits
		{"--model 8b --ctx 32k --memory 3GiB --weights 0 --scheme f16", exitNo, "does not fit: f16"}, // named
		{"--model 8b --ctx 32k --memory 3GiB --weights 0 --scheme int4,f16", exitNo, "not fit: f16"}, // one of two
		{"--model 8b --ctx 32k --memory 100MiB --weights 0", exitNo, "does not fit: none of"},        // no scheme does
		{"--model 8b --ctx 32k --memory 8GiB --weights 16GiB --scheme f16", exitNo, "does not fit"},  // weights alone
		{"--model 8b --ctx 32k --memory 20GiB --weights 16GiB --scheme f16", exitOK, ""},             // exactly
		{"--model 8b --ctx 32769 --memory 20GiB --weights 16GiB --scheme f16", exitNo, "not fit"},    // one more
		{"--model 8b --ctx 32k --memory 20GiB --weights 16GiB --reserve 1 --scheme f16", exitNo, ""}, // a byte less
		{"--model meta-llama/llama-3.1-8b-instruct --ctx 1k", exitOK, "is read as Llama-3.1-8B"},     //
		{"--model lama-3.1-8b", exitUsage, "did you mean Llama-3.1-8B"},                              //
		{"--model pythia --ctx 1k", exitUsage, "one of Pythia-70m"},                                  //
		{"", exitUsage, "no model"},                                                              //
		{"--model 8b --geometry 1xfull:1x1+1", exitUsage, "want one model"},                      //
		{"--geometry 1xful:1x1+1 --ctx 1k", exitUsage, `unknown kind "ful"`},                     //
		{"--geometry 1xfull:1x1+1", exitUsage, "--ctx"},                                          //
		{"--layers 32 --ctx 1k", exitUsage, "KV heads"},                                          //
		{"--kv-heads 32 --ctx 1k", exitUsage, "layers"},                                          //
		{"--layers 32 --kv-heads 8 --head-dim 128 --swa-layers 3 --ctx 1k", exitUsage, "window"}, //
		{"--model flan-t5-xl", exitUsage, "--ctx"},                                               //
		{"--model flan-t5-xl --ctx 512", exitOK, "--encoder-tokens"},                             //
		{"--model flan-t5-xl --ctx 512 --encoder-tokens 512", exitOK, ""},                        //
		{"--model 8b --encoder-tokens 512", exitUsage, "no cross attention"},                     //
		{"--model 8b --ctx 0", exitUsage, "--ctx"},                                               //
		{"--model 8b --ctx -5", exitUsage, "--ctx"},                                              //
		{"--model 8b --ctx 1e9", exitUsage, "--ctx"},                                             //
		{"--model 8b --ctx 10G --sessions 1000000", exitUsage, "exceeds"},                        //
		{"--model 8b --sessions 0", exitUsage, "--sessions"},                                     //
		{"--model 8b --tp 0", exitUsage, "--tp"},                                                 //
		{"--model 8b --ctx 1k --pp 33", exitUsage, "33 pipeline stages"},                         //
		{"--model 8b --memory 24apples", exitUsage, "--memory"},                                  //
		{"--model 8b --memory 0", exitUsage, "--memory"},                                         //
		{"--model 8b --reserve 1GiB", exitUsage, "--reserve"},                                    //
		{"--model 8b --weights heavy", exitUsage, "--weights"},                                   //
		{"--model 8b --weights auto --weight-bits x", exitUsage, "--weight-bits"},                //
		{"--model deepseek-v4-pro --weights auto", exitUsage, "parameters"},                      //
		{"--model 8b --scheme q9", exitUsage, "q9"},                                              //
		{"--model 8b --scheme int8-token/256", exitUsage, "256"},                                 //
		{"--model 8b --engine nope", exitUsage, "ideal"},                                         //
		{"--model 8b --engine-opt block=16", exitUsage, "block"},                                 //
		{"--model 8b --units metric", exitUsage, "--units"},                                      //
		{"--config /nonexistent/config.json", exitFailure, "no such file"},                       //
		{"8b", exitUsage, ""}, //
	} {
		code, stdout, stderr := run(append([]string{"plan"}, strings.Fields(test.args)...)...)
		if code != test.code || !strings.Contains(stderr, test.stderr) {
			t.Errorf("kvq plan %s: exit %d, want %d, with %q\n%s", test.args, code, test.code, test.stderr, stderr)
		}
		if (code == exitOK || code == exitNo) == (stdout == "") {
			t.Errorf("kvq plan %s: exit %d and %d bytes of result", test.args, code, len(stdout))
		}
	}
}

// TestPlanReadsQuantitiesAsPeopleWriteThem compares requests that mean the same.
// TestPlanMarksUpperBounds: what is assumed about a file is said beside the figures.
func TestPlanMarksUpperBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	for text, want := range map[string]string{
		`{"model_type":"nosuch","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64}`:                    `model_type "nosuch"`,
		`{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64,"kv_window_magic":7}`: "kv_window_magic",
	} {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		args := []string{"plan", "--config", path, "--ctx", "4k", "--scheme", "f16", "--format", "json"}
		if code, _, stderr := run(args...); code != exitFailure || !strings.Contains(stderr, want) || !strings.Contains(stderr, "hint: --assume full") {
			t.Errorf("%s: exit code %d, stderr %q", text, code, stderr)
		}
		code, stdout, stderr := run(append(args, "--assume", "full")...)
		if code != exitOK || !strings.Contains(stderr, "warning: an upper bound: ") || !strings.Contains(stderr, want) || !strings.Contains(stdout, "an upper bound: ") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", text, code, stdout, stderr)
		}
	}
}

func TestPlanReadsQuantitiesAsPeopleWriteThem(t *testing.T) {
	for _, group := range [][]string{
		{"--ctx 32k", "--ctx 32K", "--ctx 32768", "--ctx 32_768"},
		{"--ctx 1m", "--ctx 1M", "--ctx 1048576"},
		{"--ctx 1k --memory 24GiB", "--ctx 1k --memory 24G", "--ctx 1k --memory 25769803776", "--ctx 1k --memory 24gib"},
		{"--ctx 1k --memory 24GB", "--ctx 1k --memory 24000000000"},
	} {
		var want planRequest
		for i, flags := range group {
			plan, _ := planOf(t, "--model 8b --weights 0 --scheme int2-token "+flags)
			got := plan.Request
			if i == 0 {
				want = got
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %+v, want %+v", flags, got, want)
			}
		}
	}
}

// TestPlanOfEveryPreset: no preset is priced at nothing, at a maximum of its
// own where it has one, and tables keep to 80 columns.
func TestPlanOfEveryPreset(t *testing.T) {
	skipIfShort(t)
	models, err := formula.Presets()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		args := []string{"plan", "--model", m.Name, "--memory", "24GiB", "--weights", "1GiB", "--sessions", "4", "--tp", "2"}
		if m.MaxContext == 0 {
			args = append(args, "--ctx", "512")
		}
		code, stdout, stderr := run(args...)
		if code != exitOK && code != exitNo {
			t.Errorf("%s: exit %d\n%s", m.Name, code, stderr)
		}
		for line := range strings.Lines(stdout) {
			if len(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%s: %d columns: %s", m.Name, len(line), line)
			}
		}
		code, stdout, _ = run(append(args, "--format", "csv")...)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		header := strings.Split(lines[0], ",")
		for _, line := range lines[1:] {
			for i, field := range strings.Split(line, ",") {
				// Only a model of states alone keeps no tokens.
				if name := header[i]; field == "0" && (name == "total_bytes" || name == "data_bytes" && len(m.Geometry) > 0 || name == "bytes_per_device") {
					t.Errorf("%s: %s is 0: exit %d, %s", m.Name, name, code, line)
				}
			}
		}
	}
}

// TestPlanExplainReplication: a latent has one head, however many devices keep it.
func TestPlanExplainReplication(t *testing.T) {
	_, stdout, _ := run("plan", "--geometry", "1xfull:1x576+0;index:1xfull:1x128+0", "--ctx", "1000", "--tp", "4", "--scheme", "f16", "--explain")
	for _, want := range []string{"4 heads (the model's 1, replicated over 4", "index keys of 128 on each of 4 devices: 1,024,000 B", "1 layer x 1 sequence x 4,608,000 B"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}

func TestPlanExplainNamesItsNumbers(t *testing.T) {
	_, stdout, _ := run(strings.Fields("plan --model gpt-oss-20b --ctx 32k --scheme f16 --sessions 2 --weights auto --explain")...)
	for _, part := range []string{
		"12xfull:8x64+64", "32,768", "12xsliding128:8x64+64", "1,610,612,736", // 2 x 12 x 32768 x 8 x 128 x 2
		"openai/gpt-oss-20b", "confidence high", "--ctx 32k", "20,900,000,000 parameters of 16 bits",
	} {
		if !strings.Contains(stdout, part) {
			t.Errorf("no %q in\n%s", part, stdout)
		}
	}
}

// TestPlanComparesEngines holds the comparison against figures worked out from
// the engines' rules (gpt-oss-20b, one request of 131,072 tokens; GiB).
func TestPlanComparesEngines(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		options string
		engine  string
		want    string
	}{
		{"max-num-batched-tokens=8192", "ideal", "3.003"},
		{"max-num-batched-tokens=8192", "llama.cpp", "3.018"},
		{"max-num-batched-tokens=8192", "vllm", "3.378"},
		{"max-num-batched-tokens=8192,async-scheduling=off", "vllm", "3.191"},
		{"hybrid=no", "vllm", "6.000"},
		{"max-num-batched-tokens=8192", "vllm hybrid=no", "6.000"},
	} {
		plan, _ := planOf(t, "--model gpt-oss-20b --ctx 131072 --engine all --engine-opt "+test.options)
		engines := map[string]int{}
		for _, r := range plan.Rows {
			engines[r.Engine]++
		}
		for _, e := range formula.Engines() {
			if plan.Request.Engine != "all" || engines[e.Name] != 1 {
				t.Errorf("%+v: %s in %v", plan.Request, e.Name, engines)
			}
		}
		// 6.000 GiB without the hybrid manager is a row of its own where the option is open.
		if _, ok := engines["vllm hybrid=no"]; ok == strings.Contains(test.options, "hybrid") {
			t.Errorf("%s: %v", test.options, engines)
		}
		for _, r := range plan.Rows {
			sum := int64(0)
			for _, c := range r.Components {
				sum += c.Bytes
			}
			if sum != r.TotalBytes {
				t.Errorf("%s: components of %d bytes, %d in total", r.Engine, sum, r.TotalBytes)
			}
			if r.TotalBytes < plan.Rows[0].TotalBytes && r.Engine != "transformers" { // keeps W-1 of a window
				t.Errorf("%s: %d bytes are less than ideal", r.Engine, r.TotalBytes)
			}
			if r.Engine == test.engine {
				if got := fmt.Sprintf("%.3f", float64(r.TotalBytes)/gib); got != test.want {
					t.Errorf("%s %s: %s GiB, want %s", r.Engine, test.options, got, test.want)
				}
			}
		}
	}
	for args, want := range map[string]int{
		"--model 8b --engine all --engine-opt nothing=1":              exitUsage,
		"--model 8b --engine ALL --ctx 1k --scheme q8_0":              exitOK,
		"--model 8b --engine all --ctx 1k --scheme nope":              exitUsage,
		"--model 8b --engine all --ctx 128k --memory 1G --weights 0":  exitNo,
		"--model 8b --engine all --ctx 128k --memory 80G --weights 0": exitOK,
	} {
		if code, _, stderr := run(append([]string{"plan"}, strings.Fields(args)...)...); code != want {
			t.Errorf("kvq plan %s: exit %d, want %d\n%s", args, code, want, stderr)
		}
	}
}

// TestPlanReadsGGUF prices a header as llama.cpp itself did
// (formula/testdata/llamacpp/cases.tsv), and takes weights from its tensors.
func TestPlanReadsGGUF(t *testing.T) {
	path := gguf(t, "cohere2-v3.gguf")
	plan, _ := planOf(t, "--gguf "+path+" --ctx 4096 --engine llama.cpp --engine-opt c=4096,np=1,ub=512,kvu=yes --scheme f16")
	if r := plan.Rows[0]; r.TotalBytes != 100663296 || r.Components["attention_kv"].Bytes+r.Components["swa_kv"].Bytes != 100663296 {
		t.Errorf("%+v", r)
	}
	if m := plan.Model; m.Source != "gguf" || m.Citation != path || m.KVLayers != 12 {
		t.Errorf("%+v", m)
	}
	if code, _, stderr := run("plan", "--gguf", path+".absent", "--ctx", "4k"); code != exitFailure || !strings.Contains(stderr, "no such file") {
		t.Errorf("exit %d: %s", code, stderr)
	}
	if code, _, stderr := run("plan", "--gguf", "plan_test.go", "--ctx", "4k"); code != exitFailure || !strings.Contains(stderr, "plan_test.go") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

// gguf unpacks one header of formula's test data.
func gguf(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open("../formula/testdata/llamacpp/gguf.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if filepath.Base(h.Name) != name {
			continue
		}
		path := filepath.Join(t.TempDir(), name)
		data, err := io.ReadAll(archive)
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
}

func TestModels(t *testing.T) {
	for _, test := range []struct {
		args string
		code int
		part string // of stdout, or of stderr when the code is not 0
	}{
		{"", exitOK, "Llama-3.1-8B"},
		{"8b", exitOK, "meta-llama/Llama-3.1-8B"},
		{"qwen3.5*", exitOK, "Qwen3.5-397B-A17B"},
		{"deepseek-ai/*", exitOK, "DeepSeek-R1"},
		{"nemotron", exitOK, "Nemotron-H-56B"},
		{"nope", exitUsage, "unknown model"},
		{"qwen3-9b", exitUsage, "Qwen3-8B, "},
		{"nope*", exitUsage, "no model matches"},
		{"[", exitUsage, "["},
		{"a b", exitUsage, "want one"},
	} {
		args := []string{"models"}
		if test.args != "" {
			args = append(args, strings.Split(test.args, " ")...)
		}
		code, stdout, stderr := run(args...)
		text := stdout
		if code != exitOK {
			text = stderr
		}
		if code != test.code || !strings.Contains(text, test.part) {
			t.Errorf("kvq models %s: exit %d, want %d with %q\n%s", test.args, code, test.code, test.part, text)
		}
	}
	_, stdout, _ := run("models")
	for line := range strings.Lines(stdout) {
		if len(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	_, stdout, _ = run("models", "--format", "json")
	var list modelsJSON
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list.Models) < 250 {
		t.Fatalf("%d models, %v", len(list.Models), err)
	}
	for _, m := range list.Models {
		bounded := m.MaxContext > 0 || m.Family == "t5" || m.Geometry == "" // a state has no end
		if m.Source != "preset" || m.Citation == "" || m.Geometry == "" && len(m.States) == 0 || !bounded {
			t.Errorf("%+v", m)
		}
	}
}
