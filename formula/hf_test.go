package formula

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// twoBytes stores two bytes an element, as f16 and bf16 do.
type twoBytes struct{}

func (twoBytes) Name() string { return "f16" }
func (twoBytes) Size(heads, tokens, dim int64) (int64, int64, error) {
	n, err := product(heads, tokens, dim, 2)
	return n, 0, err
}

// idealBytes is the cache of one sequence by the ideal engine, without state
// and cross attention.
func idealBytes(t *testing.T, m *Model, context int64) int64 {
	t.Helper()
	r, err := Ideal().Reserve(Request{Model: m, Context: context, Sequences: 1, TP: 1, PP: 1, Scheme: Scheme{Name: "f16", K: twoBytes{}, V: twoBytes{}}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Data + r.Metadata
}

// TestConfigs holds every column of configs_expected.tsv, which an independent
// program computed from real files, against what the same files give here.
// KVQ_CONFIGS_EXPECTED names another such table; its configs are in the folder
// configs beside it.
func TestConfigs(t *testing.T) {
	table := filepath.Join("testdata", "configs_expected.tsv")
	rows := readTSV(t, table, "KVQ_CONFIGS_EXPECTED")
	if other := os.Getenv("KVQ_CONFIGS_EXPECTED"); other != "" {
		table = other
	}
	for _, row := range rows {
		t.Run(row["file"], func(t *testing.T) {
			m, err := ReadHF(filepath.Join(filepath.Dir(table), "configs", row["file"]), HFOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := describeConfig(t, m, filepath.Join(filepath.Dir(table), "configs", row["file"]))
			for column, want := range row {
				if column == "file" || column == "note" {
					continue
				}
				value, known := got[column]
				if !known {
					t.Errorf("column %s is not checked", column)
				}
				if value != want {
					t.Errorf("%s: %q, want %q", column, value, want)
				}
			}
		})
	}
}

// describeConfig gives a model's figures in the words of configs_expected.tsv.
func describeConfig(t *testing.T, m *Model, path string) map[string]string {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	root, err := parseHFObject(data)
	if err != nil {
		t.Fatal(err)
	}
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	got := map[string]string{
		"model_type": root.text("model_type"), "text_model_type": m.Family,
		"kv_layers": strconv.FormatInt(m.Geometry.Layers(), 10), "geometry": m.Geometry.String(),
		"max_context": number(m.MaxContext), "contexts_above_max": "", "window_or_chunk": "",
		"recurrent_layers": "", "recurrent_kind": "", "conv_state_elements": "", "ssm_state_elements": "", "ssm_dtype_in_config": "",
		"cross_attention_f16": "", "mtp_key": "", "index_key_layers": "", "compressed_layers": "",
	}
	var full, local, index int64
	var compressed []string
	plain := Geometry{}
	for _, g := range m.Geometry {
		switch {
		case g.Extra == Index:
			index += g.Count
		case g.Extra == Entries:
			compressed = append(compressed, fmt.Sprintf("%dx1/%d", g.Count, g.Ratio))
		case g.Kind == Full:
			full += g.Count
			plain = append(plain, g)
		default:
			local += g.Count
			got["window_or_chunk"] = number(g.Window)
			plain = append(plain, g)
		}
	}
	if compressed != nil { // these layers are listed as compressed, not as local
		local = 0
	}
	got["full_layers"], got["local_layers"], got["index_key_layers"] = strconv.FormatInt(full, 10), strconv.FormatInt(local, 10), number(index)
	got["compressed_layers"] = strings.Join(compressed, ";")
	same := func(of func(Group) int64) string {
		for _, g := range plain[1:] {
			// Layers that differ in their heads alone leave the widths as one figure.
			if of(g) != of(plain[0]) {
				return "mixed"
			}
		}
		return strconv.FormatInt(of(plain[0]), 10)
	}
	got["kv_heads"] = same(func(g Group) int64 { return g.KVHeads })
	got["head_dim_k"] = same(func(g Group) int64 { return g.HeadDimK })
	got["head_dim_v"] = same(func(g Group) int64 { return g.HeadDimV })

	var above []string
	for _, context := range []int64{1, 4096, 32768, 131072} {
		got[fmt.Sprintf("bytes_f16_at_%d", context)] = strconv.FormatInt(idealBytes(t, m, context), 10)
		if m.MaxContext > 0 && context > m.MaxContext {
			above = append(above, strconv.FormatInt(context, 10))
		}
	}
	got["contexts_above_max"] = strings.Join(above, ",")
	slope := idealBytes(t, m, 131072+128) - idealBytes(t, m, 131072)
	got["marginal_bytes_per_token_at_131072"] = strconv.FormatInt(slope/128, 10)

	for _, s := range m.States {
		kinds := map[string]string{"gdn": "gated_deltanet", "shortconv": "short_conv", "rglru": "rg_lru"}
		got["recurrent_kind"] = s.Kind
		if kind, ok := kinds[s.Kind]; ok {
			got["recurrent_kind"] = kind
		}
		got["recurrent_layers"] = strconv.FormatInt(s.Layers, 10)
		got["conv_state_elements"] = strconv.FormatInt(s.Layers*s.ConvElements, 10)
		got["ssm_state_elements"] = strconv.FormatInt(s.Layers*s.SSMElements, 10)
		text := root
		if nested, ok := root.object("text_config"); ok {
			text = nested
		}
		for _, key := range []string{"mamba_ssm_cache_dtype", "mamba_ssm_dtype"} {
			if dtype := text.text(key); dtype != "" {
				got["ssm_dtype_in_config"] = dtype
				if size := map[string]int64{"float32": 4, "bfloat16": 2, "float16": 2}[dtype]; s.SSMBytes != size {
					t.Errorf("%s %s: %d bytes an element, want %d", key, dtype, s.SSMBytes, size)
				}
			}
		}
	}
	if c := m.Cross; c != nil {
		elements, err := c.Elements()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case c.Tokens > 0:
			got["cross_attention_f16"] = fmt.Sprintf("fixed:%d", 2*elements*c.Tokens)
		case root.is("is_encoder_decoder"):
			got["cross_attention_f16"] = fmt.Sprintf("per_source_token:%d", 2*elements)
		default:
			got["cross_attention_f16"] = fmt.Sprintf("per_image_token:%d", 2*elements)
		}
	}
	for _, f := range m.Facts {
		if f.Name == "draft layers" {
			key := f.From[strings.LastIndexAny(f.From, " .")+1:]
			got["mtp_key"] = key + "=" + f.Value
		}
	}
	return got
}

// TestHFRules holds each rule of an architecture against the geometry that
// models_geometry.tsv (an independent program's) or an engine's log gives it.
func TestHFRules(t *testing.T) {
	list := func(n int, value func(i int) any) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = fmt.Sprintf("%v", value(i))
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	for name, test := range map[string]struct {
		text, geometry string
		conv, ssm      int64
		ssmBytes       int64 // 0: not looked at
		context        int64
	}{
		"DeepSeek-V3": {text: `{"model_type":"deepseek_v3","num_hidden_layers":61,"num_attention_heads":128,"num_key_value_heads":128,"hidden_size":7168,
			"kv_lora_rank":512,"qk_rope_head_dim":64,"qk_nope_head_dim":128,"v_head_dim":128,"num_nextn_predict_layers":1,"max_position_embeddings":163840}`,
			geometry: "61xfull:1x576+0", context: 163840},
		"DeepSeek-MoE-16B is not MLA": {text: `{"model_type":"deepseek","num_hidden_layers":28,"num_attention_heads":16,"num_key_value_heads":16,"hidden_size":2048,"kv_lora_rank":null}`,
			geometry: "28xfull:16x128+128"},
		"DeepSeek-V3.2": {text: `{"model_type":"deepseek_v32","num_hidden_layers":61,"num_attention_heads":128,"hidden_size":7168,"kv_lora_rank":512,"qk_rope_head_dim":64,
			"index_head_dim":128,"index_n_heads":64,"index_topk":2048}`, geometry: "61xfull:1x576+0;index:61xfull:1x128+0"},
		"GLM-5.2 by frequency": {text: `{"model_type":"glm_moe_dsa","num_hidden_layers":78,"num_attention_heads":64,"head_dim":64,"hidden_size":6144,"kv_lora_rank":512,"qk_rope_head_dim":64,
			"index_head_dim":128,"index_topk_freq":4,"index_skip_topk_offset":3}`, geometry: "78xfull:1x576+0;index:21xfull:1x128+0"},
		"MiniMax-M3": {text: `{"model_type":"minimax_m3","num_hidden_layers":60,"num_attention_heads":64,"num_key_value_heads":4,"head_dim":128,"hidden_size":6144,
			"sparse_attention_config":{"sparse_index_dim":128,"sparse_num_index_heads":4,"sparse_attention_freq":` +
			list(60, func(i int) any { return min(1, i/3) }) + `}}`, geometry: "60xfull:4x128+128;index:57xfull:1x128+0"},
		"Kimi-Linear": {text: `{"model_type":"kimi_linear","num_hidden_layers":27,"num_attention_heads":32,"num_key_value_heads":1,"hidden_size":2304,"kv_lora_rank":512,"qk_rope_head_dim":64,
			"mla_use_nope":true,"linear_attn_config":{"full_attn_layers":[4,8,12,16,20,24,27],"kda_layers":[1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26],
			"num_heads":32,"head_dim":128,"short_conv_kernel_size":4},"model_max_length":1048576}`, geometry: "7xfull:1x576+0", conv: 737280, ssm: 10485760, context: 1048576},
		"Qwen3-Next": {text: `{"model_type":"qwen3_next","num_hidden_layers":48,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,"hidden_size":2048,"full_attention_interval":4,
			"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,"linear_conv_kernel_dim":4}`,
			geometry: "12xfull:2x256+256", conv: 884736, ssm: 18874368, ssmBytes: 4},
		"Zamba-7B-v1": {text: `{"model_type":"zamba","num_hidden_layers":76,"num_attention_heads":16,"num_key_value_heads":16,"hidden_size":3712,"attn_layer_period":6,"attn_layer_offset":4,
			"kv_channels":232,"mamba_d_conv":4,"mamba_d_state":16,"mamba_expand":2,"max_position_embeddings":4096}`,
			geometry: "13xfull:16x464+464", conv: 1692672, ssm: 9027584, context: 4096},
		"Zamba2-2.7B": {text: `{"model_type":"zamba2","num_hidden_layers":54,"num_attention_heads":32,"num_key_value_heads":32,"hidden_size":2560,"attention_head_dim":160,
			"hybrid_layer_ids":[6,12,18,24,30,36,42,47,51],"mamba_d_state":64,"mamba_d_conv":4,"mamba_expand":2,"mamba_headdim":64,"mamba_ngroups":1}`,
			geometry: "9xfull:32x160+160", conv: 850176, ssm: 17694720},
		"Bamba-9B": {text: `{"model_type":"bamba","num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"hidden_size":4096,"attn_layer_indices":[9,18,27],
			"mamba_n_heads":128,"mamba_d_head":"auto","mamba_d_state":128,"mamba_n_groups":1,"mamba_d_conv":4,"mamba_expand":2}`,
			geometry: "3xfull:8x128+128", conv: 734976, ssm: 30408704},
		"Falcon-H1-0.5B": {text: `{"model_type":"falcon_h1","num_hidden_layers":36,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":64,"hidden_size":1024,"attn_layer_indices":null,
			"mamba_d_ssm":1536,"mamba_n_heads":24,"mamba_d_head":64,"mamba_d_state":128,"mamba_n_groups":1,"mamba_d_conv":4}`,
			geometry: "36xfull:2x64+64", conv: 193536, ssm: 7077888},
		"Falcon-H1 without groups: the class's default of 1": {text: `{"model_type":"falcon_h1","num_hidden_layers":36,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":64,"hidden_size":1024,
			"mamba_d_ssm":1536,"mamba_n_heads":24,"mamba_d_head":64,"mamba_d_state":128,"mamba_d_conv":4}`,
			geometry: "36xfull:2x64+64", conv: 193536, ssm: 7077888},
		"MiniMax-Text-01": {text: `{"model_type":"minimax_text_01","num_hidden_layers":80,"num_attention_heads":64,"num_key_value_heads":8,"head_dim":128,"hidden_size":6144,"attn_type_list":` +
			list(80, func(i int) any { return min(1, (i+1)%8/7) }) + `}`, geometry: "10xfull:8x128+128", ssm: 73400320},
		"Nemotron-Nano-9B-v2": {text: `{"model_type":"nemotron_h","num_hidden_layers":56,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"hidden_size":4480,
			"hybrid_override_pattern":"M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-","mamba_num_heads":128,"mamba_head_dim":80,"n_groups":8,"ssm_state_size":128,"conv_kernel":4}`,
			geometry: "4xfull:8x128+128", conv: 995328, ssm: 35389440},
		"Nemotron-NAS": {text: `{"model_type":"nemotron-nas","num_hidden_layers":3,"num_attention_heads":64,"num_key_value_heads":null,"hidden_size":8192,"block_configs":[
			{"attention":{"n_heads_in_group":8,"no_op":false}},{"attention":{"n_heads_in_group":null,"no_op":true}},{"attention":{"n_heads_in_group":null,"replace_with_linear":true}}]}`,
			geometry: "1xfull:8x128+128"},
		"Gemma-3-270M": {text: `{"model_type":"gemma3_text","num_hidden_layers":18,"num_attention_heads":4,"num_key_value_heads":1,"head_dim":256,"hidden_size":640,"sliding_window":512,
			"_sliding_window_pattern":6,"max_position_embeddings":32768}`, geometry: "3xfull:1x256+256;15xsliding512:1x256+256", context: 32768},
		"Gemma-3n-E4B": {text: `{"model_type":"gemma3n","text_config":{"model_type":"gemma3n_text"}}`, geometry: "4xfull:2x256+256;16xsliding512:2x256+256", context: 32768},
		"Gemma-4-E4B": {text: `{"model_type":"gemma4","text_config":{"model_type":"gemma4_text","num_hidden_layers":42,"num_attention_heads":8,"num_key_value_heads":2,"head_dim":256,
			"global_head_dim":512,"num_global_key_value_heads":null,"attention_k_eq_v":false,"num_kv_shared_layers":18,"sliding_window":512,"hidden_size":2560}}`,
			geometry: "4xfull:2x512+512;20xsliding512:2x256+256", context: 131072},
		"Gemma-2-9B": {text: `{"model_type":"gemma2","num_hidden_layers":42,"num_attention_heads":16,"num_key_value_heads":8,"head_dim":256,"hidden_size":3584,"sliding_window":4096,
			"cache_implementation":"hybrid"}`, geometry: "21xfull:8x256+256;21xsliding4096:8x256+256"},
		"Phi-4-mini-flash": {text: `{"model_type":"phi4flash","num_hidden_layers":32,"num_attention_heads":40,"num_key_value_heads":20,"hidden_size":2560,"sliding_window":512,"mb_per_layer":2,
			"mamba_d_conv":4,"mamba_d_state":16,"mamba_expand":2}`, geometry: "1xfull:20x64+64;8xsliding512:20x64+64", conv: 138240, ssm: 737280},
		"Phi-3-mini-4k": {text: `{"model_type":"phi3","num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":32,"hidden_size":3072,"sliding_window":2047}`,
			geometry: "32xsliding2047:32x96+96"},
		"Qwen2 with a window": {text: `{"model_type":"qwen2","num_hidden_layers":4,"num_attention_heads":8,"num_key_value_heads":2,"hidden_size":512,"sliding_window":100,
			"use_sliding_window":true,"max_window_layers":3}`, geometry: "3xfull:2x64+64;1xsliding100:2x64+64"},
		"Qwen2.5-3B": {text: `{"model_type":"qwen2","num_hidden_layers":36,"num_attention_heads":16,"num_key_value_heads":2,"hidden_size":2048,"sliding_window":32768,
			"use_sliding_window":true,"max_window_layers":70}`, geometry: "36xfull:2x128+128"},
		"Falcon-7B": {text: `{"model_type":"falcon","num_hidden_layers":32,"num_attention_heads":71,"num_kv_heads":71,"multi_query":true,"new_decoder_architecture":false,"hidden_size":4544}`,
			geometry: "32xfull:1x64+64"},
		"replit-code-v1.5": {text: `{"model_type":"mpt","n_layers":32,"n_heads":24,"d_model":3072,"attn_config":{"attn_type":"grouped_query_attention","kv_n_heads":8},"max_seq_len":4096}`,
			geometry: "32xfull:8x128+128", context: 4096},
		"Llama 4, listed": {text: `{"model_type":"llama4","text_config":{"model_type":"llama4_text","num_hidden_layers":4,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,
			"attention_chunk_size":8192,"no_rope_layers":[1,0,1,1]}}`, geometry: "1xfull:8x128+128;3xchunked8192:8x128+128"},
		"Llama 4, empty list": {text: `{"model_type":"llama4_text","num_hidden_layers":8,"attention_chunk_size":8192,"no_rope_layers":[]}`,
			geometry: "2xfull:8x128+128;6xchunked8192:8x128+128"},
		"SmolLM3": {text: `{"model_type":"smollm3","num_hidden_layers":36,"num_attention_heads":16,"num_key_value_heads":4,"hidden_size":2048,"no_rope_layers":[1,1,1,0],"sliding_window":null,
			"use_sliding_window":false}`, geometry: "36xfull:4x128+128"},
		"Step-3": {text: `{"model_type":"step3_text","num_hidden_layers":61,"num_attention_heads":64,"num_attention_groups":1,"head_dim":256,"hidden_size":7168,"max_position_embedding":65536}`,
			geometry: "61xfull:1x256+256", context: 65536},
		"MLA beats head_dim": {text: `{"model_type":"mistral3","text_config":{"model_type":"mistral4","num_hidden_layers":36,"num_attention_heads":32,"head_dim":128,"kv_lora_rank":256,"qk_rope_head_dim":64}}`,
			geometry: "36xfull:1x320+0"},
		"bare Infinity": {text: `{"model_type":"llama","num_hidden_layers":1,"num_attention_heads":1,"hidden_size":8,"time_step_limit":[0.0, Infinity],"name":"NaN \" -Infinity"}`,
			geometry: "1xfull:1x8+8"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := ParseHF([]byte(test.text), HFOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := m.Geometry.String(); got != test.geometry {
				t.Errorf("geometry %s, want %s", got, test.geometry)
			}
			var conv, ssm int64
			for _, s := range m.States {
				if test.ssmBytes > 0 && s.SSMBytes != test.ssmBytes {
					t.Errorf("%d bytes an element of the recurrent state, want %d", s.SSMBytes, test.ssmBytes)
				}
			}
			for _, s := range m.States {
				conv += s.Layers * s.ConvElements
				ssm += s.Layers * s.SSMElements
			}
			if conv != test.conv || ssm != test.ssm {
				t.Errorf("state of %d + %d elements, want %d + %d", conv, ssm, test.conv, test.ssm)
			}
			if m.MaxContext != test.context {
				t.Errorf("max context %d, want %d", m.MaxContext, test.context)
			}
		})
	}
}

func TestHFRefuses(t *testing.T) {
	llama := func(more string) string {
		return `{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64` + more + `}`
	}
	for name, test := range map[string]struct{ text, want string }{
		"not json":            {"{", "not a JSON object"},
		"an array":            {"[]", "not a JSON object"},
		"null":                {"null", "not a JSON object"},
		"deep":                {strings.Repeat("[", 1_000_000), "not a JSON object"},
		"deep inside":         {llama(`,"x":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)), "not a JSON object"},
		"no model type":       {`{"num_hidden_layers":2}`, "no model_type"},
		"unknown type":        {`{"model_type":"nosuch","num_hidden_layers":2}`, `model_type "nosuch"`},
		"no layers":           {`{"model_type":"llama"}`, "no layer count"},
		"zero layers":         {`{"model_type":"llama","num_hidden_layers":0}`, "0 layers"},
		"negative layers":     {`{"model_type":"llama","num_hidden_layers":-3}`, "num_hidden_layers: -3 is out of range"},
		"huge layers":         {`{"model_type":"llama","num_hidden_layers":1e18}`, "num_hidden_layers: 1e18 is out of range"},
		"fraction":            {`{"model_type":"llama","num_hidden_layers":2.5}`, "num_hidden_layers: want a whole number, found 2.5"},
		"string for a number": {`{"model_type":"llama","num_hidden_layers":"2"}`, `num_hidden_layers: want a whole number, found "2"`},
		"more KV heads":       {llama(`,"num_key_value_heads":8`), "8 KV heads for 4 query heads"},
		"short list":          {llama(`,"layer_types":["full_attention"]`), "layer_types: 1 entries for 2 layers"},
		"unknown kind":        {llama(`,"layer_types":["full_attention","holographic"]`), `layer 1 is "holographic"`},
		"local, no window":    {llama(`,"layer_types":["full_attention","sliding_attention"]`), "no sliding_window"},
		"unknown cache key":   {llama(`,"kv_window_magic":7`), "kv_window_magic"},
		"type of a tower":     {`{"model_type":"llama","text_config":3}`, "text_config: want an object, found 3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseHF([]byte(test.text), HFOptions{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want one with %q", err, test.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

// TestReadHFLarge: a file that is no config.json is refused by its size.
func TestReadHFLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	var text strings.Builder
	text.WriteString(`{"model_type":"llama"`)
	for i := range 1_000_000 {
		fmt.Fprintf(&text, `,"k%d":1`, i)
	}
	if err := os.WriteFile(path, []byte(text.String()+"}"), 0o666); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ReadHF(path, HFOptions{})
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "larger than any config.json") {
		t.Errorf("error %v", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("allocated %d bytes", n)
	}
}

func TestHFAssumeFull(t *testing.T) {
	text := `{"model_type":"nosuch","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64,"kv_window_magic":7}`
	if _, err := ParseHF([]byte(text), HFOptions{}); !errors.Is(err, ErrUnknownArchitecture) {
		t.Fatalf("error %v, want ErrUnknownArchitecture", err)
	}
	m, err := ParseHF([]byte(text), HFOptions{AssumeFull: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Geometry.String(); got != "2xfull:4x16+16" {
		t.Errorf("geometry %s, want 2xfull:4x16+16", got)
	}
	if !strings.Contains(m.UpperBound, `"nosuch"`) {
		t.Errorf("%q does not say that this is an upper bound", m.UpperBound)
	}
}

func FuzzHF(f *testing.F) {
	files, _ := filepath.Glob("testdata/configs/*.json")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, o := range []HFOptions{{}, {AssumeFull: true}} {
			m, err := ParseHF(data, o)
			if err == nil && m.Validate() != nil {
				t.Errorf("an invalid model: %v", m.Validate())
			}
		}
	})
}

// TestHFExperts reads how many of a mixture's experts a token uses, wherever
// the file says it.
func TestHFExperts(t *testing.T) {
	for text, want := range map[string][2]int64{
		`{"model_type":"dbrx","n_layers":40,"n_heads":48,"d_model":6144,"attn_config":{"kv_n_heads":8},"ffn_config":{"moe_num_experts":16,"moe_top_k":4}}`:                                         {16, 4},
		`{"model_type":"ernie4_5_moe","num_hidden_layers":28,"num_attention_heads":20,"num_key_value_heads":4,"hidden_size":2560,"moe_num_experts":64,"moe_k":6}`:                                  {64, 6},
		`{"model_type":"mixtral","num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"hidden_size":4096,"num_local_experts":8,"num_experts_per_tok":2}`:                        {8, 2},
		`{"model_type":"minimax_m2","num_hidden_layers":2,"num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"num_local_experts":256,"num_experts_per_tok":8,"attn_type_list":[1,1]}`: {256, 8},
		`{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":8,"hidden_size":64}`:                                                                                                    {},
	} {
		m, err := ParseHF([]byte(text), HFOptions{})
		if err != nil {
			t.Errorf("%.30s: %v", text, err)
		} else if got := [2]int64{m.Experts, m.ExpertsPerToken}; got != want {
			t.Errorf("%.30s: %v experts, want %v", text, got, want)
		}
	}
	// A kind of attention that the class does not have is refused.
	if _, err := ParseHF([]byte(`{"model_type":"minimax_m2","num_hidden_layers":2,"num_attention_heads":48,"num_key_value_heads":8,"head_dim":128,"attn_type_list":[1,0]}`), HFOptions{}); err == nil || !strings.Contains(err.Error(), "layer 1 is of type 0") {
		t.Errorf("another kind of attention: %v", err)
	}
}
