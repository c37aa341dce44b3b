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
	Doc    string // in a few words
	Note   string // what a user should know, and where kvq's arithmetic is not the engine's
}

// Notes that recipes share.
const (
	noteKIVI = "KIVI computes in half precision: about one code in 1,600 at 2 bits and in 320 at 4 bits is a neighbour of kvq's, " +
		"which raises the squared error by less than 0.02%."
	noteHF = "With cache_implementation=\"quantized\". transformers quantizes a prompt whole, so nothing of it stays in f16. While decoding, up to 127 new tokens do; then the " +
		"whole cache is decoded and quantized again, which kvq does not repeat."
	noteQuanto = noteHF + " Arithmetic is that of a model in f16. Groups are 64 values of the flattened tensor: here the head width " +
		"must divide by 64."
	noteHQQ = noteHF + " The 64 values of a group lie n apart in the tensor, so heads, tokens and channels must divide by 64. " +
		"hqq 0.2.8 then improves the zero by its solver, 20 steps at most, which kvq leaves out: 7% of the squared error of Gaussian values."
	noteKVQuant = "Percentiles and codebooks are those of the tensor at hand, where KVQuant has them from calibration; its codebook is " +
		"k-means weighted by Fisher information, which dumps do not carry, and of values it shares a range over all heads of a " +
		"token, here over one head. --first_few_fp16 N is +sinkN; --cap_outliers, off by default, is left out."
	noteTurboQuant = "vLLM leaves the first and the last two layers of dense models alone. GPUs below compute capability 8.9 store " +
		"FP8 keys as e4b15 instead."
	noteExLlama = "Rotation and codes are computed in float32 on the GPU, here in float64 rounded once. Caches are whole pages of 256 " +
		"tokens. K and V take bits of their own: -cq 8,4. -cca 0.65 compands the grid: cubicN+hadamard32."
	noteLMDeploy = "Per head and token. TurboMind computes in the model's type and moves the minimum to a multiple of the scale in " +
		"recent versions; the PyTorch engine stores −minimum/scale instead and rounds halves up. kvq has the plain affine form of both. " +
		"--quant-policy 42, a TurboQuant of its own, is not among kvq's schemes."
	noteNVFP4 = "The tensor's scale is max|x|/2688 here; engines read it from a checkpoint calibrated with ModelOpt or llm-compressor, " +
		"vLLM takes 1 without one. GPUs multiply by approximate reciprocals."
	noteFP8Tensor = "The scale is max|x|/448 of the tensor at hand; engines read one from the checkpoint."
	notePTH       = "Runs on vLLM's Triton attention backend alone."
)

// recipes is the registry of recipes, engine by engine.
var recipes = []Recipe{
	{"kivi2", "int2-asym-channel/32+recent128", "int2-asym-token/32+recent128", "KIVI",
		"k_bits=2 v_bits=2 group_size=32 residual_length=128", "jy-yuan/KIVI 876b4d2, quant/new_pack.py and models/llama_kivi.py",
		"K channel/32, V token/32, recent 128 in f16", noteKIVI},
	{"kivi4", "int4-asym-channel/32+recent128", "int4-asym-token/32+recent128", "KIVI",
		"k_bits=4 v_bits=4 group_size=32 residual_length=128", "jy-yuan/KIVI 876b4d2, quant/new_pack.py and models/llama_kivi.py",
		"K channel/32, V token/32, recent 128 in f16", noteKIVI},
	{"hf-quanto4", "quanto4", "quanto4", "transformers",
		`cache_config={"backend": "quanto", "nbits": 4}`,
		"transformers 004999d, cache_utils.py; optimum-quanto 0.2.7, max_optimizer.py and quantize.py", "groups of 64 channels", noteQuanto},
	{"hf-quanto2", "quanto2", "quanto2", "transformers",
		`cache_config={"backend": "quanto", "nbits": 2}`,
		"transformers 004999d, cache_utils.py; optimum-quanto 0.2.7, max_optimizer.py and quantize.py", "groups of 64 channels", noteQuanto},
	{"hf-hqq4", "hqq4", "hqq4", "transformers", `cache_config={"backend": "HQQ", "nbits": 4}`,
		"transformers 004999d, cache_utils.py; hqq 0.2.8, core/quantize.py", "axis 0: 64 values n apart", noteHQQ},
	{"hf-hqq2", "hqq2", "hqq2", "transformers", `cache_config={"backend": "HQQ", "nbits": 2}`,
		"transformers 004999d, cache_utils.py; hqq 0.2.8, core/quantize.py", "axis 0: 64 values n apart", noteHQQ},
	{"lmdeploy4", "int4-asym-token", "int4-asym-token", "LMDeploy",
		"--quant-policy 4", "lmdeploy 01e82af, pytorch/kernels/cuda/fill_kv_cache.py; docs/en/quantization/kv_quant.md",
		"per token, 4 bits, f16 scale and minimum", noteLMDeploy},
	{"lmdeploy8", "int8-asym-token", "int8-asym-token", "LMDeploy",
		"--quant-policy 8", "lmdeploy 01e82af, pytorch/kernels/cuda/fill_kv_cache.py; docs/en/quantization/kv_quant.md",
		"per token, 8 bits, f16 scale and minimum", noteLMDeploy},
	{"vllm-int8-pth", "pth-int8", "pth-int8", "vLLM", "--kv-cache-dtype int8_per_token_head",
		"vllm 055e47c, v1/attention/ops/triton_reshape_and_cache_flash.py; vllm PR 45361", "per token and head, f32 scale",
		notePTH + " Before PR 45361 (June 2026) codes were truncated, not rounded. int8-token@f32 differs in ties alone."},
	{"vllm-fp8-pth", "pth-fp8", "pth-fp8", "vLLM", "--kv-cache-dtype fp8_per_token_head",
		"vllm 055e47c, v1/attention/ops/triton_reshape_and_cache_flash.py", "per token and head, f32 scale",
		notePTH + " e4m3-token differs by the rounding of a reciprocal."},
	{"vllm-int4-pth", "pth-int4", "pth-int4", "vLLM", "--kv-cache-dtype int4_per_token_head",
		"vllm 055e47c, v1/attention/ops/int4_per_token_head.py; vllm PR 40835", "rotated with signs, zero point in the scale",
		notePTH + " The head width must be a power of two. The transform rounds to the model's type there, once to float32 here."},
	{"vllm-fp8", "e4m3-raw", "e4m3-raw", "vLLM", "--kv-cache-dtype fp8",
		"vllm 002f10e, config/cache.py; docs, features/quantization/quantized_kvcache.md", "scale 1: no scales in the checkpoint",
		"With scales in the checkpoint it is e4m3. Values beyond 448 saturate."},
	{"vllm-nvfp4", "nvfp4-ts", "nvfp4-ts", "vLLM", "--kv-cache-dtype nvfp4",
		"vllm 5d11149, csrc/nvfp4_kv_cache_kernels.cu", "per 16 an e4m3 scale, one f32 for the tensor", noteNVFP4},
	{"vllm-nvfp4-46", "nvfp4-46", "nvfp4-46", "vLLM", "--kv-cache-dtype nvfp4_4over6",
		"vllm 5d11149, csrc/nvfp4_kv_cache_kernels.cu", "nvfp4 with the better of two scales", noteNVFP4},
	{"vllm-tq-k8v4", "e4m3-raw", "tqv4", "vLLM", "--kv-cache-dtype turboquant_k8v4",
		"vllm 1471680, turboquant/config.py; 0135d08, triton_turboquant_store.py", "K E4M3 at scale 1, V 4 bits affine", noteTurboQuant},
	{"vllm-tq-4bit-nc", "tq4-nc+hadamard", "tqv4", "vLLM", "--kv-cache-dtype turboquant_4bit_nc",
		"vllm 1471680, turboquant/config.py; 0135d08, triton_turboquant_store.py", "K rotated Lloyd–Max, V 4 bits affine", noteTurboQuant},
	{"vllm-tq-k3v4-nc", "tq3-nc+hadamard", "tqv4", "vLLM", "--kv-cache-dtype turboquant_k3v4_nc",
		"vllm 1471680, turboquant/config.py; 0135d08, triton_turboquant_store.py", "K rotated Lloyd–Max, V 4 bits affine", noteTurboQuant},
	{"vllm-tq-3bit-nc", "tq3-nc+hadamard", "tqv3", "vLLM", "--kv-cache-dtype turboquant_3bit_nc",
		"vllm 1471680, turboquant/config.py; 0135d08, triton_turboquant_store.py", "K rotated Lloyd–Max, V 3 bits affine", noteTurboQuant},
	{"trt-nvfp4", "nvfp4-ts", "nvfp4-ts", "TensorRT-LLM",
		"kv_cache_config.dtype=nvfp4", "TensorRT-LLM docs, features/quantization; Model-Optimizer 087d027, kv_cache_auto_quant.py",
		"per 16 an e4m3 scale, one f32 for the tensor", noteNVFP4},
	{"trt-fp8", "e4m3", "e4m3", "TensorRT-LLM",
		"kv_cache_config.dtype=fp8", "TensorRT-LLM docs, features/quantization", "E4M3 of x over the tensor's scale", noteFP8Tensor},
	{"sglang-fp4", "mx16fp4", "mx16fp4", "SGLang", "--kv-cache-dtype fp4_mx_block16",
		"sglang 0dae407, layers/quantization/kvfp4_tensor.py", "per 16 channels a power-of-two scale",
		"Older releases call it fp4_e2m1."},
	{"exl3-2", "mid2+hadamard32", "mid2+hadamard32", "ExLlamaV3", "-cq 2",
		"exllamav3 80fd9ee, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid", noteExLlama},
	{"exl3-3", "mid3+hadamard32", "mid3+hadamard32", "ExLlamaV3", "-cq 3",
		"exllamav3 80fd9ee, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid", noteExLlama},
	{"exl3-4", "mid4+hadamard32", "mid4+hadamard32", "ExLlamaV3", "-cq 4",
		"exllamav3 80fd9ee, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid", noteExLlama},
	{"exl3-5", "mid5+hadamard32", "mid5+hadamard32", "ExLlamaV3", "-cq 5",
		"exllamav3 80fd9ee, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid", noteExLlama},
	{"exl3-6", "mid6+hadamard32", "mid6+hadamard32", "ExLlamaV3", "-cq 6",
		"exllamav3 80fd9ee, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid", noteExLlama},
	{"exl3-7", "mid7+hadamard32", "mid7+hadamard32", "ExLlamaV3", "-cq 7",
		"exllamav3 80fd9ee, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid", noteExLlama},
	{"exl3-8", "mid8+hadamard32", "mid8+hadamard32", "ExLlamaV3", "-cq 8",
		"exllamav3 80fd9ee, exllamav3_ext/cache/q_cache_kernels.cuh", "rotated by 32, f16 max, midpoint grid", noteExLlama},
	{"turboquant2", "tq2+hadamard", "tq2+hadamard", "TurboQuant", "2 bits a coordinate",
		"arXiv 2504.19874, without its residual sketch", "rotated, f16 norm, Lloyd–Max codes", noteTurboPaper},
	{"turboquant3", "tq3+hadamard", "tq3+hadamard", "TurboQuant", "3 bits a coordinate",
		"arXiv 2504.19874, without its residual sketch", "rotated, f16 norm, Lloyd–Max codes", noteTurboPaper},
	{"turboquant4", "tq4+hadamard", "tq4+hadamard", "TurboQuant", "4 bits a coordinate",
		"arXiv 2504.19874, without its residual sketch", "rotated, f16 norm, Lloyd–Max codes", noteTurboPaper},
	{"kvquant4-1%", "nuq4-channel+prerope+tails1%", "nuq4-token+tails1%", "KVQuant", "--abits 4 --nuq --include_sparse --sparsity-threshold 0.99",
		"SqueezeAILab/KVQuant 57a2383, simquant_module_quantizer.py", "learned codes, 1% outliers; K before RoPE", noteKVQuant},
	{"kvquant3-1%", "nuq3-channel+prerope+tails1%", "nuq3-token+tails1%", "KVQuant", "--abits 3 --nuq --include_sparse --sparsity-threshold 0.99",
		"SqueezeAILab/KVQuant 57a2383, simquant_module_quantizer.py", "learned codes, 1% outliers; K before RoPE", noteKVQuant},
	{"kvquant2-1%", "nuq2-channel+prerope+tails1%", "nuq2-token+tails1%", "KVQuant", "--abits 2 --nuq --include_sparse --sparsity-threshold 0.99",
		"SqueezeAILab/KVQuant 57a2383, simquant_module_quantizer.py", "learned codes, 1% outliers; K before RoPE", noteKVQuant},
	{"quarot", "quarot4+hadamard", "quarot4+hadamard", "QuaRot", "MultiLayerPagedKVCache4Bit",
		"spcl/QuaRot 0f6acd8, quarot/transformers/kv_cache.py", "rotated, per token 4 bits affine",
		"V's rotation is folded into the projections of a model that QuaRot has converted; here it is applied."},
	{"flexgen", "flexgen4", "flexgen4", "FlexGen", "--compress-cache",
		"FMInference/FlexGen, flexgen/compression.py", "groups of 64 channels, 4 bits affine",
		"Arithmetic is that of f16."},
	{"llama-q8_0-rot", "q8_0+hadamard", "q8_0+hadamard64", "llama.cpp",
		"-ctk q8_0 -ctv q8_0", sourceRotation, "rotated, which is llama.cpp's default", noteRotation},
	{"llama-q5_1-rot", "q5_1+hadamard", "q5_1+hadamard64", "llama.cpp",
		"-ctk q5_1 -ctv q5_1", sourceRotation, "rotated, which is llama.cpp's default", noteRotation},
	{"llama-q5_0-rot", "q5_0+hadamard", "q5_0+hadamard64", "llama.cpp",
		"-ctk q5_0 -ctv q5_0", sourceRotation, "rotated, which is llama.cpp's default", noteRotation},
	{"llama-q4_1-rot", "q4_1+hadamard", "q4_1+hadamard64", "llama.cpp",
		"-ctk q4_1 -ctv q4_1", sourceRotation, "rotated, which is llama.cpp's default", noteRotation},
	{"llama-q4_0-rot", "q4_0+hadamard", "q4_0+hadamard64", "llama.cpp",
		"-ctk q4_0 -ctv q4_0", sourceRotation, "rotated, which is llama.cpp's default", noteRotation},
	{"llama-iq4_nl-rot", "iq4_nl-cpu+hadamard", "iq4_nl-cpu+hadamard64", "llama.cpp",
		"-ctk iq4_nl -ctv iq4_nl", sourceRotation, "rotated, which is llama.cpp's default", noteRotation},
}

const (
	sourceRotation = "llama.cpp PR 21038, src/llama-kv-cache.cpp"
	noteRotation   = "llama.cpp rotates quantized caches on its own when the head width divides by 64, K in the largest block and V by 64; " +
		"LLAMA_ATTN_ROT_DISABLE=1 turns it off, which the plain types are. Not for MLA."
	noteTurboPaper = "The paper's random rotation is here the Walsh–Hadamard transform. No engine ships exactly this; vllm-tq-… is what vLLM does."
)

const sourceOFP8 = "OCP 8-bit floating point specification (OFP8) 1.0"

// sources are where the definitions of Block, Codebook and 8-bit float formats were read, by the
// names of formats or what these begin with.
var sources = []struct{ formats, source string }{
	{"q8_0-cpu", "ggml d99724f, src/ggml-cpu"}, {"iq4_nl-cpu", "ggml d99724f, src/ggml-cpu"},
	{"mxfp4-round", "mlx 0e18bb0, mlx/backend/cpu/quantized.cpp"}, {"mxfp4-ceil", "OCP microscaling formats, with another exponent"},
	{"nvfp4-", "vllm 5d11149, csrc/nvfp4_kv_cache_kernels.cu"},
	{"q4_0-ls", "ik_llama.cpp 4abda3b, ggml-cuda/cpy-utils.cuh; PRs 1547 and 1556"}, {"q6_0", "ik_llama.cpp 8337e4c"}, {"q8_kv", "ik_llama.cpp 8337e4c"},
	{"q8_0", "ggml d99724f, src/ggml-quants.c"}, {"q5_", "ggml d99724f, src/ggml-quants.c"}, {"q4_", "ggml d99724f, src/ggml-quants.c"},
	{"iq4_nl", "ggml d99724f, src/ggml-quants.c"},
	{"mxfp4", "ggml d99724f, src/ggml-quants.c"}, {"nvfp4", "ggml d99724f, src/ggml-quants.c"},
	{"e4m3", sourceOFP8}, {"e5m2", sourceOFP8},
	{"nf4", "QLoRA, arXiv 2305.14314; bitsandbytes"}, {"nuq", "SqueezeAILab/KVQuant 57a2383, simquant_module_quantizer.py"},
	{"mlx", "mlx 0e18bb0, mlx/backend/cpu/quantized.cpp; mlx-lm 0.32.2, models/cache.py"},
	{"cubic", "exllamav3 7f90512, exllamav3_ext/cache/lmq.cuh"}, {"mid", "exllamav3 80fd9ee, exllamav3_ext/cache/q_cache_kernels.cuh"},
}

// Source returns where the definition of a format was read: "" for formats that are
// their own definition.
func (f *Format) Source() string {
	for _, row := range sources {
		if strings.HasPrefix(f.Name, row.formats) {
			return row.source
		}
	}
	for _, r := range recipes {
		for _, side := range []string{r.K, r.V} {
			if base, _, _ := strings.Cut(side, "+"); base == f.Name {
				return r.Source
			}
		}
	}
	return ""
}

// Recipes lists the registry of recipes.
func Recipes() []Recipe { return slices.Clone(recipes) }

// A Deployment is an engine that runs a pair, and how it is told to.
type Deployment struct {
	Engine, Flags string
	Note          string // what else it needs; may be empty
}

// A sideEngine takes a type for each side.
type sideEngine struct {
	engine string
	// flags returns the flags of a pair and what they need; ok is false for a pair that
	// the engine does not take.
	flags func(k, v string) (flags, note string, ok bool)
	set   []string // pairs of Set beyond what recipes name
}

var sideEngines = []sideEngine{
	{"llama.cpp", llamaFlags, []string{"f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "iq4_nl-cpu", "q8_0:q4_0",
		"q8_0+hadamard:q4_0+hadamard64", "q8_0+hadamard:f16"}},
	{"ik_llama.cpp", ikFlags, []string{"f16", "bf16", "q8_0", "q6_0", "q5_1", "q5_0", "q4_1", "q4_0-ls", "iq4_nl-cpu", "q8_0:q4_0-ls", "q8_kv:q8_0",
		"q8_0:iq4_nl-cpu", "q6_0+hadamard:q6_0", "q4_0-ls+hadamard"}},
	{"ExLlamaV3", exllamaFlags, []string{"mid8+hadamard32:mid4+hadamard32", "cubic4+hadamard32"}},
}

// cacheTypes are the types of llama.cpp's caches by kvq's names; those of
// ik_llama.cpp have q6_0 and, for keys, q8_KV in addition.
var cacheTypes = map[string]string{"f32": "f32", "f16": "f16", "bf16": "bf16", "q8_0": "q8_0", "q8_0-cpu": "q8_0", "q5_1": "q5_1",
	"q5_0": "q5_0", "q4_1": "q4_1", "q4_0": "q4_0", "iq4_nl": "iq4_nl", "iq4_nl-cpu": "iq4_nl"}

// llamaFlags are the flags of llama.cpp, which rotates quantized sides, all or none.
func llamaFlags(k, v string) (flags, note string, ok bool) {
	baseK, rotK := strings.CutSuffix(k, "+hadamard")
	baseV, rotV := strings.CutSuffix(v, "+hadamard64")
	typeK, okK := cacheTypes[baseK]
	typeV, okV := cacheTypes[baseV]
	plain := func(name string) bool { return name == "f32" || name == "f16" || name == "bf16" }
	if !okK || !okV || rotK && plain(typeK) || rotV && plain(typeV) {
		return "", "", false
	}
	rotated := rotK || rotV
	if rotated && (!rotK && !plain(typeK) || !rotV && !plain(typeV)) {
		return "", "", false
	}
	flags = "-ctk " + typeK + " -ctv " + typeV
	var notes []string
	if !rotated && !(plain(typeK) && plain(typeV)) {
		notes = append(notes, "LLAMA_ATTN_ROT_DISABLE=1 where the head width divides by 64: else it is rotated")
	}
	if !plain(typeV) {
		notes = append(notes, "needs flash attention")
	}
	fast := func(name string) bool { return plain(name) || name == "q8_0" || name == "q4_0" }
	switch {
	case typeK == "iq4_nl" || typeV == "iq4_nl":
		notes = append(notes, "CUDA has no kernel and computes attention on the CPU")
		if k == "iq4_nl" || v == "iq4_nl" {
			notes = append(notes, "its caches are encoded as iq4_nl-cpu")
		}
	case typeK != typeV || !fast(typeK):
		notes = append(notes, "on CUDA a build with GGML_CUDA_FA_ALL_QUANTS, else attention runs on the CPU")
	}
	return flags, strings.Join(notes, "; "), true
}

// ikFlags are the flags of ik_llama.cpp, which rotates a side on request.
func ikFlags(k, v string) (flags, note string, ok bool) {
	baseK, rotK := strings.CutSuffix(k, "+hadamard")
	baseV, rotV := strings.CutSuffix(v, "+hadamard")
	name := func(base string) string {
		switch base {
		case "q6_0":
			return base
		case "q4_0-ls":
			return "q4_0"
		case "f32":
			return ""
		}
		return cacheTypes[base]
	}
	typeK, typeV := name(baseK), name(baseV)
	if baseK == "q8_kv" {
		typeK = "q8_KV"
	}
	if typeK == "" || typeV == "" {
		return "", "", false
	}
	flags = "-ctk " + typeK + " -ctv " + typeV
	if rotK {
		flags += " -khad"
	}
	if rotV {
		flags += " -vhad"
	}
	either := func(of ...string) bool { return slices.Contains(of, baseK) || slices.Contains(of, baseV) }
	var notes []string
	if typeK == "q8_KV" {
		notes = append(notes, "for CPUs alone")
	}
	if either("q5_0", "q5_1") {
		notes = append(notes, "not for flash attention on CPUs")
	}
	if either("q4_0") {
		notes = append(notes, "its scales are refitted since March 2026: q4_0-ls")
	}
	if either("iq4_nl") {
		notes = append(notes, "its caches are encoded as iq4_nl-cpu")
	}
	if either("q6_0") {
		notes = append(notes, "CUDA does not refit its scale")
	}
	if rotK || rotV {
		notes = append(notes, "head widths 64, 128 and 256")
	}
	return flags, strings.Join(notes, "; "), true
}

// exllamaFlags are the flags of ExLlamaV3, which takes bits for each side.
func exllamaFlags(k, v string) (flags, note string, ok bool) {
	bits := func(side string) (grid, bits string) {
		base, rotated := strings.CutSuffix(side, "+hadamard32")
		for _, grid := range []string{"mid", "cubic"} {
			if bits, ok := strings.CutPrefix(base, grid); ok && rotated {
				return grid, bits
			}
		}
		return "", ""
	}
	gridK, bitsK := bits(k)
	gridV, bitsV := bits(v)
	if gridK == "" || gridK != gridV {
		return "", "", false
	}
	flags = "-cq " + bitsK
	if bitsK != bitsV {
		flags += "," + bitsV
	}
	if gridK == "cubic" {
		flags += " -cca 0.65"
	}
	return flags, "", true
}

// pairFlags are the flags of engines that take one type for both sides, where no
// recipe of the same sides has them.
var pairFlags = []struct{ engine, flags, side, note string }{
	{"vLLM", "--kv-cache-dtype float16", "f16", ""},
	{"vLLM", "--kv-cache-dtype bfloat16", "bf16", ""},
	{"vLLM", "--kv-cache-dtype fp8_e4m3", "e4m3-raw", ""},
	{"vLLM", "--kv-cache-dtype fp8_e5m2", "e5m2-raw", ""},
	{"vLLM", "--kv-cache-dtype fp8", "e4m3", "with scales in the checkpoint"},
	{"vLLM", "--kv-cache-dtype fp8", "e4m3-head", "with scales per head in the checkpoint, by llm-compressor"},
	{"vLLM", "--kv-cache-dtype int8_per_token_head", "int8-token@f32", "it rounds halves away from zero"},
	{"vLLM", "--kv-cache-dtype fp8_per_token_head", "e4m3-token", "it multiplies by the scale's reciprocal"},
	{"LMDeploy", "--backend pytorch --quant-policy fp8", "e4m3-raw", "scale 1 without scales in the checkpoint"},
	{"LMDeploy", "--backend pytorch --quant-policy fp8_e5m2", "e5m2-raw", "scale 1 without scales in the checkpoint"},
	{"SGLang", "--kv-cache-dtype bf16", "bf16", ""},
	{"SGLang", "--kv-cache-dtype fp8_e4m3", "e4m3-raw", ""},
	{"SGLang", "--kv-cache-dtype fp8_e5m2", "e5m2-raw", ""},
	{"SGLang", "--kv-cache-dtype nvfp4", "nvfp4-ts", "with scales in the checkpoint"},
	{"MLX", "--kv-bits 4 --quantized-kv-start 0", "mlx4", noteMLX},
	{"MLX", "--kv-bits 8 --quantized-kv-start 0", "mlx8", noteMLX},
	{"MLX", "--kv-bits 2 --quantized-kv-start 0", "mlx2", noteMLX},
	{"MLX", "--kv-bits 3 --quantized-kv-start 0", "mlx3", noteMLX},
	{"MLX", "--kv-bits 5 --quantized-kv-start 0", "mlx5", noteMLX},
	{"MLX", "--kv-bits 6 --quantized-kv-start 0", "mlx6", noteMLX},
}

const noteMLX = "without --quantized-kv-start it starts at token 5,000"

// Deployments lists the engines that run a pair as it is defined here, but for what
// the notes of their recipes say. A recipe's own engine comes first.
func (p Pair) Deployments() []Deployment {
	var found []Deployment
	add := func(engine, flags, note string) {
		same := func(d Deployment) bool { return d.Engine == engine && d.Flags == flags }
		if i := slices.IndexFunc(found, same); i >= 0 {
			if note != "" {
				found[i].Note = note
			}
			return
		}
		found = append(found, Deployment{engine, flags, note})
	}
	k, v := SideName(p.K), SideName(p.V)
	if r := recipeNamed(p.Recipe); r != nil {
		add(r.Engine, r.Flags, "")
	}
	for _, r := range recipes {
		if k == r.K && v == r.V {
			add(r.Engine, r.Flags, "")
		}
	}
	for _, e := range sideEngines {
		if flags, note, ok := e.flags(k, v); ok {
			add(e.engine, flags, note)
		}
	}
	for _, e := range pairFlags {
		if k == e.side && v == e.side {
			add(e.engine, e.flags, e.note)
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
// takes for both sides, and some pairs of types; "all" is every format and recipe of
// the registry. Engines are named in any case. The error is a *SchemeError that lists
// the names.
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
	for _, e := range sideEngines {
		add(e.engine, e.set...)
	}
	for _, e := range pairFlags {
		add(e.engine, e.side)
	}
	for _, r := range recipes {
		add(r.Engine, r.Name)
	}
	if len(set) == 0 {
		return nil, &SchemeError{Name: engine, Reason: "no such set", Hint: "sets are " + strings.Join(engines, ", ")}
	}
	return set, nil
}
