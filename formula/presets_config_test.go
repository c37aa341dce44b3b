package formula

import (
	"reflect"
	"testing"
)

// presetOfConfig names the preset that each config.json is a copy or a
// fine-tune of.
var presetOfConfig = map[string]string{
	"apertus-8b-science-expert-r1":    "Apertus-8B",
	"baichuan2-13b-chat":              "Baichuan2-13B",
	"bloom-7b1-lucky52":               "BLOOM-7B1",
	"chatglm3-6b-pr28-llamafied":      "ChatGLM3-6B",
	"codeqwen1.5-7b-chat":             "CodeQwen1.5-7B",
	"command-r-plus-fp8-kv":           "Command-R+ (104B)",
	"command-r-v01-japanese-instruct": "Command-R v01 (35B)",
	"command-r7b-12-2024":             "Command-R7B-12-2024",
	"dbrx-base":                       "DBRX",
	"deepseek-v4-pro":                 "DeepSeek-V4-Pro",
	"devstral-small-2-24b":            "Devstral-Small-2-24B",
	"dots.llm1.base":                  "dots.llm1",
	"exaone-3.5-2.4b-mlx4bit":         "EXAONE-3.5-2.4B",
	"exaone-4.0-32b":                  "EXAONE-4.0-32B",
	"falcon-40b":                      "Falcon-40B",
	"flan-t5-xxl":                     "flan-t5-xxl",
	"gemma-3-12b-it-text-only":        "Gemma-3-12B",
	"gemma-3-12b-minimal":             "Gemma-3-12B",
	"gemma-4-31b-it-nvfp4":            "Gemma-4-31B",
	"glm-4-9b-chat":                   "GLM-4-9B-Chat",
	"glm-5.2":                         "GLM-5.2",
	"gpt-oss-20b":                     "gpt-oss-20b",
	"gpt2-xl":                         "gpt2-xl",
	"granite-3.2-2b-instruct":         "Granite-3.1/3.2-2B",
	"hunyuan-large-a52b-instruct":     "Hunyuan-Large (A52B)",
	"jamba-v0.1":                      "Jamba-v0.1 / 1.5-Mini",
	"kimi-k2.5":                       "Kimi-K2.5",
	"lfm2-350m-tts-finetune":          "LFM2-350M",
	"llama-3.1-405b":                  "Llama-3.1-405B",
	"llama-3.1-8b":                    "Llama-3.1-8B",
	"llama-3.2-90b-vision-instruct":   "Llama-3.2-90B-Vision",
	"llama-4-maverick":                "Llama-4-Maverick-17B-128E",
	"mimo-7b-base":                    "MiMo-7B",
	"mimo-v2-flash":                   "MiMo-V2-Flash",
	"minimax-m2.5":                    "MiniMax-M2.5",
	"mistral-nemo-12b-finetune":       "Mistral-Nemo-12B",
	"mixtral-8x22b":                   "Mixtral-8x22B",
	"mpt-30b-chat":                    "MPT-30B",
	"nemotron-3-ultra-550b-a55b":      "Nemotron-3-Ultra-550B-A55B",
	"nemotron-h-56b-base-8k":          "Nemotron-H-56B",
	"olmo-3.1-32b-instruct":           "OLMo-3.1-32B",
	"openelm-270m":                    "OpenELM-270M",
	"opt-6.7b":                        "OPT-6.7B",
	"pythia-2.8b-v0":                  "Pythia-2.8b",
	"qwen2-72b":                       "Qwen2-72B",
	"qwen3-0.6b":                      "Qwen3-0.6B",
	"qwen3-coder-next-e336":           "Qwen3-Coder-Next-80B",
	"qwen3-vl-30b-a3b":                "Qwen3-VL-30B-A3B",
	"qwen3.5-397b-a17b":               "Qwen3.5-397B-A17B",
	"recurrentgemma-9b":               "RecurrentGemma-9B",
	"snowflake-arctic-instruct":       "Snowflake-Arctic",
	"solar-10.7b-v1.0":                "SOLAR-10.7B",
	"starcoder-15b":                   "StarCoder-15B",
	"starcoder2-3b":                   "StarCoder2-3B",
	"step-audio-tts-3b":               "Step-Audio-TTS-3B",
	"whisper-tiny-it":                 "Whisper-tiny",
	"zamba2-1.2b-early":               "Zamba2-1.2B",
}

// TestPresetsMatchTheirConfigs compares every preset with the config.json of
// the same model where one is at hand, part by part.
func TestPresetsMatchTheirConfigs(t *testing.T) {
	rows := readTSV(t, "testdata/configs_expected.tsv", "")
	if len(rows) != len(presetOfConfig) {
		t.Errorf("%d configs, %d named", len(rows), len(presetOfConfig))
	}
	for file, name := range presetOfConfig {
		config, err := ReadHF("testdata/configs/"+file+".config.json", HFOptions{})
		if err != nil {
			t.Error(err)
			continue
		}
		preset, _, err := LookupPreset(name)
		if err != nil || preset.Name != name {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, part := range []struct {
			what      string
			got, want any
		}{
			{"geometry", preset.Geometry.String(), config.Geometry.String()},
			{"layers", preset.Layers, config.Layers},
			{"query heads", preset.QueryHeads, config.QueryHeads},
			{"states", preset.States, config.States},
			{"cross attention", preset.Cross, config.Cross},
			{"latent", preset.MLA, config.MLA},
			{"draft layers", preset.Draft.String(), config.Draft.String()},
			{"blocks", preset.Blocks(), config.Blocks()},
		} {
			if !reflect.DeepEqual(part.got, part.want) {
				t.Errorf("%s: %s is %v, in %s %v", name, part.what, deref(part.got), file, deref(part.want))
			}
		}
	}
}

func deref(v any) any {
	if r := reflect.ValueOf(v); r.Kind() == reflect.Pointer && !r.IsNil() {
		return r.Elem().Interface()
	}
	return v
}
