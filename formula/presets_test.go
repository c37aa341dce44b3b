package formula

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// flat is a Sizer of whole bytes an element and no metadata.
type flat struct {
	name  string
	bytes int64
}

func (f flat) Name() string { return f.name }

func (f flat) Size(heads, tokens, dim int64) (data, metadata int64, err error) {
	data, err = product(heads, tokens, dim, f.bytes)
	return data, 0, err
}

var f16 = Scheme{Name: "f16", K: flat{"f16", 2}, V: flat{"f16", 2}}

// TestPresetsGiveTheBytesOfTheIndependentTable compares every preset with
// figures that another program computed (testdata/models_geometry.tsv).
func TestPresetsGiveTheBytesOfTheIndependentTable(t *testing.T) {
	rows := readTSV(t, "testdata/models_geometry.tsv", "")
	models, err := Presets()
	if err != nil {
		t.Fatal(err)
	}
	if len(models) != len(rows) || len(rows) < 250 {
		t.Fatalf("%d presets, %d rows", len(models), len(rows))
	}
	for i, row := range rows {
		m := models[i]
		if m.Name != row["name"] || m.HFID != row["hf_id"] || m.Geometry.String() != row["geometry"] || m.Confidence != row["confidence"] {
			t.Errorf("row %d: %s (%s) %s, want %s (%s) %s", i, m.Name, m.HFID, m.Geometry, row["name"], row["hf_id"], row["geometry"])
		}
		if m.Citation == "" || m.Layers == 0 {
			t.Errorf("%s: no source or no layers", m.Name)
		}
		tokensOnly := *m // the table's bytes are those of attention alone
		tokensOnly.States, tokensOnly.Cross, tokensOnly.Order = nil, nil, nil
		at := func(tokens int64) int64 {
			r, err := Ideal().Reserve(Request{Model: &tokensOnly, Context: tokens, Sequences: 1, TP: 1, PP: 1, Scheme: f16})
			if err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
			if r.Metadata != 0 || r.PerDevice != r.Data {
				t.Errorf("%s: %+v", m.Name, r)
			}
			return r.Data
		}
		for column, got := range map[string]int64{
			"bytes_f16_at_4096":                  at(4096),
			"bytes_f16_at_32768":                 at(32768),
			"bytes_f16_at_131072":                at(131072),
			"marginal_bytes_per_token_at_131072": (at(131072+128) - at(131072)) / 128,
			"storing_layers":                     m.Geometry.Layers(),
			"max_context":                        m.MaxContext,
		} {
			want, _ := strconv.ParseInt(row[column], 10, 64) // an empty cell is 0
			if got != want {
				t.Errorf("%s: %s = %d, want %d", m.Name, column, got, want)
			}
		}
		var conv, ssm int64
		for _, s := range m.States {
			conv += s.Layers * s.ConvElements
			ssm += s.Layers * s.SSMElements
		}
		wantConv, _ := strconv.ParseInt(row["conv_state_elements"], 10, 64)
		wantSSM, _ := strconv.ParseInt(row["ssm_state_elements"], 10, 64)
		if conv != wantConv || ssm != wantSSM {
			t.Errorf("%s: %d conv and %d ssm elements, want %d and %d", m.Name, conv, ssm, wantConv, wantSSM)
		}
		if row["flag_text"] != "" && !slices.ContainsFunc(m.Notes, func(n string) bool { return strings.Contains(n, row["flag_text"]) }) {
			t.Errorf("%s: the doubt %q is not in its notes", m.Name, row["flag_text"])
		}
	}
}

func TestPresetNamesAreFound(t *testing.T) {
	for name, want := range map[string]string{
		"8b": "Llama-3.1-8B", "8B": "Llama-3.1-8B", "70b": "Llama-3.1-70B", "405b": "Llama-3.1-405B", "1b": "Llama-3.2-1B", "3b": "Llama-3.2-3B",
		"qwen3-8b": "Qwen3-8B", "gemma3-27b": "Gemma-3-27B", "gpt-oss-20b": "gpt-oss-20b", "deepseek-v3": "DeepSeek-V3", "llama3.1-8b": "Llama-3.1-8B",
		"mistral-7b": "Mistral-7B-v0.3", "phi-4": "Phi-4", "qwen3:8b": "Qwen3-8B", "4b": "Qwen3-4B", "14b": "Qwen3-14B", "32b": "Qwen3-32B", "72b": "Qwen2.5-72B", "27b": "Gemma-3-27B",
		"20b": "gpt-oss-20b", "120b": "gpt-oss-120b", "671b": "DeepSeek-V3", "meta-llama/Meta-Llama-3.1-70B-Instruct": "Llama-3.1-70B", "Llama 3.1 8B": "Llama-3.1-8B",
		"meta-llama/llama-3.1-8b": "Llama-3.1-8B", "META-LLAMA/LLAMA-3.1-8B-INSTRUCT": "Llama-3.1-8B", "gemma-3-27b-it": "Gemma-3-27B",
		"google/gemma-3-27b-it": "Gemma-3-27B", "kimi-k2": "Kimi-K2-Instruct", "qwen3-30b": "Qwen3-30B-A3B", "DeepSeek-V2 (236B)": "DeepSeek-V2 (236B)",
		"gemma-2b": "Gemma-2B", "gemma-2-2b": "Gemma-2-2B", "llama-3-8b": "Llama-3-8B", "jamba-mini": "Jamba-v0.1 / 1.5-Mini", "Qwen/Qwen2.5-7B-Instruct": "Qwen2.5-7B",
		"llama-3.3": "Llama-3.3-70B", "Mistral-7B-Instruct-v0.3": "Mistral-7B-v0.3", "qwen2.5-72b-instruct": "Qwen2.5-72B",
	} {
		m, _, err := LookupPreset(name)
		if err != nil {
			t.Errorf("%s: %v (%v)", name, err, err.(*UnknownModelError).Near)
		} else if m.Name != want {
			t.Errorf("%s is %s, want %s", name, m.Name, want)
		}
	}
	if _, variant, _ := LookupPreset("meta-llama/Llama-3.1-8B-Instruct"); !variant {
		t.Error("a dropped -Instruct is not reported")
	}
	if _, variant, _ := LookupPreset("google/gemma-3-27b-it"); variant {
		t.Error("an exact id is reported as a variant")
	}
}

func TestEveryPresetIsFoundByItsNames(t *testing.T) {
	models, err := Presets()
	if err != nil {
		t.Fatal(err)
	}
	aliases := map[string]string{}
	for _, m := range models {
		for _, name := range append(PresetAliases(m.Name), m.Name, m.HFID, strings.ToUpper(m.HFID)) {
			got, _, err := LookupPreset(name)
			if err != nil || got.Name != m.Name {
				t.Errorf("%s: found %v, %v, want %s", name, got, err, m.Name)
			}
		}
		for _, a := range PresetAliases(m.Name) {
			if other := aliases[fold(a)]; other != "" {
				t.Errorf("alias %s: %s and %s", a, other, m.Name)
			}
			aliases[fold(a)] = m.Name
		}
	}
}

func TestUnknownNamesGetHints(t *testing.T) {
	for name, want := range map[string]string{"lama-3.1-8b": "Llama-3.1-8B", "qwen3-9b": "Qwen3-8B", "gpt-oss-21b": "gpt-oss-20b", "pythia": "Pythia-70m", "deepsek-v3": "DeepSeek-V3"} {
		_, _, err := LookupPreset(name)
		unknown, ok := err.(*UnknownModelError)
		if !ok || !strings.Contains(unknown.Hint(), want) {
			t.Errorf("%s: %v, hint %v, want %s in it", name, err, unknown, want)
		}
	}
	for _, name := range []string{"", "-", "zzzzzzzz", strings.Repeat("x", 100000)} {
		if m, _, err := LookupPreset(name); err == nil {
			t.Errorf("%.20q is %s", name, m.Name)
		}
	}
}
