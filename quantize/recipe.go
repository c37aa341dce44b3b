package quantize

import (
	"slices"
	"strings"
)

// A Recipe is a pair as an engine ships it, under a name of its own.
type Recipe struct {
	Name   string
	K, V   string // the sides, by their canonical names
	Engine string
	Flags  string // what turns it on
	Source string // where its definition was read
	Doc    string
}

// recipes is the registry of recipes, engine by engine.
var recipes = []Recipe{
	{"kivi2", "int2-asym-channel/32+recent128", "int2-asym-token/32+recent128", "KIVI",
		"k_bits=2 v_bits=2 group_size=32 residual_length=128", "jy-yuan/KIVI 876b4d2, quant/new_pack.py",
		"K channel/32, V token/32, recent 128 in f16"},
	{"kivi4", "int4-asym-channel/32+recent128", "int4-asym-token/32+recent128", "KIVI",
		"k_bits=4 v_bits=4 group_size=32 residual_length=128", "jy-yuan/KIVI 876b4d2, quant/new_pack.py",
		"K channel/32, V token/32, recent 128 in f16"},
	{"lmdeploy4", "int4-asym-token", "int4-asym-token", "LMDeploy",
		"--quant-policy 4", "lmdeploy docs/en/quantization/kv_quant.md", "per token, 4 bits, f16 scale and minimum"},
	{"lmdeploy8", "int8-asym-token", "int8-asym-token", "LMDeploy",
		"--quant-policy 8", "lmdeploy docs/en/quantization/kv_quant.md", "per token, 8 bits, f16 scale and minimum"},
	{"vllm-int8-pth", "int8-token@f32", "int8-token@f32", "vLLM",
		"--kv-cache-dtype int8_per_token_head", "vllm 001cabc, v1/kv_cache_interface.py", "per token, float32 scale"},
	{"vllm-fp8-pth", "e4m3-token", "e4m3-token", "vLLM",
		"--kv-cache-dtype fp8_per_token_head", "vllm 001cabc, v1/kv_cache_interface.py", "per token, float32 scale"},
	{"vllm-fp8", "e4m3-raw", "e4m3-raw", "vLLM",
		"--kv-cache-dtype fp8", "vllm docs, quantized_kvcache", "scale 1: no scales in the checkpoint"},
	{"trt-nvfp4", "nvfp4-ts", "nvfp4-ts", "TensorRT-LLM",
		"kv_cache_config.dtype=nvfp4", "Model-Optimizer 087d027, kv_cache_auto_quant.py", "per 16 an e4m3 scale, one f32 for the tensor"},
	{"hf-quanto4", "quanto4+recent128", "quanto4+recent128", "transformers",
		`cache_implementation="quantized", nbits=4, axis 0`, "transformers 004999d, cache_utils.py; HF blog 2045",
		"groups of 64 channels, recent 128 in f16"},
	{"hf-quanto2", "quanto2+recent128", "quanto2+recent128", "transformers",
		`cache_implementation="quantized", nbits=2, axis 0`, "transformers 004999d, cache_utils.py; HF blog 2045",
		"groups of 64 channels, recent 128 in f16"},
	{"hf-hqq4", "hqq4+recent128", "hqq4+recent128", "transformers", `cache_implementation="quantized", HQQ, nbits=4, axis 0`,
		"transformers 004999d, cache_utils.py; hqq 0b32d9b, quantize.py", "64 values n apart, recent 128 in f16"},
	{"hf-hqq2", "hqq2+recent128", "hqq2+recent128", "transformers", `cache_implementation="quantized", HQQ, nbits=2, axis 0`,
		"transformers 004999d, cache_utils.py; hqq 0b32d9b, quantize.py", "64 values n apart, recent 128 in f16"},
	{"kvquant4-1%", "nuq4-channel+prerope+outlier1%", "nuq4-token+outlier1%", "KVQuant", "--abits 4 --nuq --include_sparse --sparsity-threshold 0.99",
		"SqueezeAILab/KVQuant 57a2383, simquant_module_quantizer.py", "learned codes, 1% outliers; K before RoPE"},
	{"kvquant3-1%", "nuq3-channel+prerope+outlier1%", "nuq3-token+outlier1%", "KVQuant", "--abits 3 --nuq --include_sparse --sparsity-threshold 0.99",
		"SqueezeAILab/KVQuant 57a2383, simquant_module_quantizer.py", "learned codes, 1% outliers; K before RoPE"},
	{"kvquant2-1%", "nuq2-channel+prerope+outlier1%", "nuq2-token+outlier1%", "KVQuant", "--abits 2 --nuq --include_sparse --sparsity-threshold 0.99",
		"SqueezeAILab/KVQuant 57a2383, simquant_module_quantizer.py", "learned codes, 1% outliers; K before RoPE"},
	{"exl3-2", "mid2+hadamard32", "mid2+hadamard32", "ExLlamaV3", "-cq 2",
		"exllamav3 4f8ad01, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid"},
	{"exl3-3", "mid3+hadamard32", "mid3+hadamard32", "ExLlamaV3", "-cq 3",
		"exllamav3 4f8ad01, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid"},
	{"exl3-4", "mid4+hadamard32", "mid4+hadamard32", "ExLlamaV3", "-cq 4",
		"exllamav3 4f8ad01, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid"},
	{"exl3-5", "mid5+hadamard32", "mid5+hadamard32", "ExLlamaV3", "-cq 5",
		"exllamav3 4f8ad01, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid"},
	{"exl3-6", "mid6+hadamard32", "mid6+hadamard32", "ExLlamaV3", "-cq 6",
		"exllamav3 4f8ad01, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid"},
	{"exl3-7", "mid7+hadamard32", "mid7+hadamard32", "ExLlamaV3", "-cq 7",
		"exllamav3 4f8ad01, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid"},
	{"exl3-8", "mid8+hadamard32", "mid8+hadamard32", "ExLlamaV3", "-cq 8",
		"exllamav3 4f8ad01, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid"},
	{"sglang-fp4", "mx16fp4", "mx16fp4", "SGLang", "--kv-cache-dtype fp4_e2m1",
		"sglang 0dae407, kvfp4_tensor.py", "per 16 channels a power-of-two scale"},
	{"turboquant2", "tq2+hadamard", "tq2+hadamard", "TurboQuant", "2 bits a coordinate",
		"arXiv 2504.19874, without its residual sketch", "rotated, f16 norm, Lloyd–Max codes"},
	{"turboquant3", "tq3+hadamard", "tq3+hadamard", "TurboQuant", "3 bits a coordinate",
		"arXiv 2504.19874, without its residual sketch", "rotated, f16 norm, Lloyd–Max codes"},
	{"turboquant4", "tq4+hadamard", "tq4+hadamard", "TurboQuant", "4 bits a coordinate",
		"arXiv 2504.19874, without its residual sketch", "rotated, f16 norm, Lloyd–Max codes"},
	{"vllm-tq-k8v4", "e4m3-raw", "int4-asym-token", "vLLM", "--kv-cache-dtype turboquant_k8v4",
		"vllm 1471680, turboquant/config.py", "K E4M3 at scale 1, V 4 bits affine"},
	{"vllm-tq-4bit-nc", "tq4-nc+hadamard", "int4-asym-token", "vLLM", "--kv-cache-dtype turboquant_4bit_nc",
		"vllm 1471680, turboquant/config.py", "K rotated Lloyd–Max, V 4 bits affine"},
	{"vllm-tq-k3v4-nc", "tq3-nc+hadamard", "int4-asym-token", "vLLM", "--kv-cache-dtype turboquant_k3v4_nc",
		"vllm 1471680, turboquant/config.py", "K rotated Lloyd–Max, V 4 bits affine"},
	{"vllm-tq-3bit-nc", "tq3-nc+hadamard", "int3-asym-token", "vLLM", "--kv-cache-dtype turboquant_3bit_nc",
		"vllm 1471680, turboquant/config.py", "K rotated Lloyd–Max, V 3 bits affine"},
	{"llama-q8_0-rot", "q8_0+hadamard", "q8_0+hadamard64", "llama.cpp",
		"-ctk q8_0 -ctv q8_0", "llama.cpp PR 21038", "cache rotation: K in one block, V by 64"},
	{"llama-q4_0-rot", "q4_0+hadamard", "q4_0+hadamard64", "llama.cpp",
		"-ctk q4_0 -ctv q4_0", "llama.cpp PR 21038", "cache rotation: K in one block, V by 64"},
}

// Recipes lists the registry of recipes.
func Recipes() []Recipe { return slices.Clone(recipes) }

// A Deployment is an engine that runs a pair, and how it is told to.
type Deployment struct{ Engine, Flags string }

// sideFlags are engines that take a type for each side: the name of each
// scheme there, and the flags around the names.
var sideFlags = []struct {
	engine, k, v string
	names        map[string]string // of both sides, by canonical name
	keysOnly     map[string]string
}{
	{"llama.cpp", "-ctk ", " -ctv ", map[string]string{"f32": "f32", "f16": "f16", "bf16": "bf16", "q8_0": "q8_0", "q5_1": "q5_1", "q5_0": "q5_0",
		"q4_1": "q4_1", "q4_0": "q4_0", "iq4_nl": "iq4_nl"}, nil},
	{"ik_llama.cpp", "-ctk ", " -ctv ", map[string]string{"f16": "f16", "bf16": "bf16", "q8_0": "q8_0", "q6_0": "q6_0", "q5_1": "q5_1", "q5_0": "q5_0",
		"q4_1": "q4_1", "q4_0": "q4_0", "iq4_nl": "iq4_nl"}, map[string]string{"q8_kv": "q8_KV"}},
}

// pairFlags are the flags of engines that take one type for both sides.
var pairFlags = []struct{ engine, flags, side string }{
	{"vLLM", "--kv-cache-dtype auto", "f16"},
	{"vLLM", "--kv-cache-dtype bfloat16", "bf16"},
	{"vLLM", "--kv-cache-dtype fp8_e4m3", "e4m3-raw"},
	{"vLLM", "--kv-cache-dtype fp8_e5m2", "e5m2-raw"},
	{"vLLM", "--kv-cache-dtype fp8 (scales in the checkpoint)", "e4m3"},
	{"vLLM", "--kv-cache-dtype int8_per_token_head", "int8-token@f32"},
	{"vLLM", "--kv-cache-dtype fp8_per_token_head", "e4m3-token"},
	{"vLLM", "--kv-cache-dtype nvfp4", "nvfp4-ts"},
	{"SGLang", "--kv-cache-dtype fp8_e4m3", "e4m3-raw"},
	{"SGLang", "--kv-cache-dtype fp8_e5m2", "e5m2-raw"},
	{"TensorRT-LLM", "kv_cache_config.dtype=fp8", "e4m3"},
	{"TensorRT-LLM", "kv_cache_config.dtype=nvfp4", "nvfp4-ts"},
	{"MLX", "--kv-bits 4 --kv-group-size 64", "mlx4"},
	{"MLX", "--kv-bits 8 --kv-group-size 64", "mlx8"},
	{"MLX", "--kv-bits 2 --kv-group-size 64", "mlx2"},
	{"MLX", "--kv-bits 3 --kv-group-size 64", "mlx3"},
	{"MLX", "--kv-bits 6 --kv-group-size 64", "mlx6"},
	{"LMDeploy", "--quant-policy 4", "int4-asym-token"},
	{"LMDeploy", "--quant-policy 8", "int8-asym-token"},
}

// Deployments lists the engines that run a pair exactly as it is defined here.
// A recipe names its own engine first.
func (p Pair) Deployments() []Deployment {
	var found []Deployment
	for _, r := range recipes {
		if p.Recipe == r.Name || p.Recipe == "" && SideName(p.K) == r.K && SideName(p.V) == r.V {
			found = append(found, Deployment{r.Engine, r.Flags})
		}
	}
	add := func(d Deployment) {
		if !slices.Contains(found, d) {
			found = append(found, d)
		}
	}
	k, v := SideName(p.K), SideName(p.V)
	for _, e := range sideFlags {
		nameK, okK := e.names[k]
		nameV, okV := e.names[v]
		if only, ok := e.keysOnly[k]; ok {
			nameK, okK = only, true
		}
		if okK && okV {
			add(Deployment{e.engine, e.k + nameK + e.v + nameV})
		}
	}
	for _, e := range pairFlags {
		if k == e.side && v == e.side {
			add(Deployment{e.engine, e.flags})
		}
	}
	return found
}

// recipeNamed returns the recipe of a lower-case name.
func recipeNamed(name string) *Recipe {
	i := slices.IndexFunc(recipes, func(r Recipe) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &recipes[i]
}

// pair parses the sides of a recipe.
func (r *Recipe) pair() (Pair, error) {
	pair, err := ParsePair(r.K + ":" + r.V)
	pair.Recipe = r.Name
	return pair, err
}

// recipeSide is the error for a recipe where one side is asked for.
func (p parser) recipeSide(text string) error {
	base, _, _ := strings.Cut(text, "+")
	r := recipeNamed(base)
	if r == nil {
		return nil
	}
	return p.fail("its sides are "+r.K+" and "+r.V, "%s is a recipe: a whole pair, which stands alone", r.Name)
}

// Set returns the names of what an engine can run: its recipes, the types that it
// takes for one side or both, and of llama.cpp's the pair q8_0:q4_0; "all" is
// every format and recipe of the registry. Engines are named in any case. The
// error is a *SchemeError that lists the names.
func Set(engine string) ([]string, error) {
	engines := []string{"all"}
	var set []string
	add := func(of string, names ...string) {
		if !slices.Contains(engines, of) {
			engines = append(engines, of)
		}
		if strings.EqualFold(of, engine) || strings.EqualFold("all", engine) {
			for _, name := range names {
				if !slices.Contains(set, name) {
					set = append(set, name)
				}
			}
		}
	}
	for _, f := range formats {
		if s, err := Lookup(f.Name); err == nil {
			add("all", s.Name())
		}
	}
	for _, e := range sideFlags {
		for _, f := range formats {
			if e.names[f.Name] != "" {
				add(e.engine, f.Name)
			}
		}
		add(e.engine, "q8_0:q4_0")
		for k := range e.keysOnly {
			add(e.engine, k+":q8_0")
		}
	}
	for _, e := range pairFlags {
		named := slices.ContainsFunc(recipes, func(r Recipe) bool { return r.Engine == e.engine && r.K == e.side && r.V == e.side })
		if !named {
			add(e.engine, e.side)
		}
	}
	for _, r := range recipes {
		add(r.Engine, r.Name)
	}
	if len(set) == 0 {
		return nil, &SchemeError{Name: engine, Reason: "no such set", Hint: "sets are " + strings.Join(engines, ", ")}
	}
	return set, nil
}
