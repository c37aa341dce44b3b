package formula

import (
	"fmt"
	"strings"
	"sync"
)

// hfFamily is what a model_type means beyond the keys of its file. The zero
// family is a decoder whose layers all keep every token.
type hfFamily struct {
	defaults    map[string]int64 // of the transformers class, for keys that a file leaves out
	layerKeys   []string         // where the layer count is, if not in the usual keys
	headDimKeys []string         // spellings of head_dim that only this family means so
	typesKey    string           // set where the per-layer list rules over the layer count

	streams        int64 // attention over so many concatenated hidden states; 0 is 1
	cachesPerLayer int64 // attention blocks a layer; 0 is 1
	valueDim       bool  // v_head_dim is the cached width of V
	noLatent       bool  // kv_lora_rank does not shape the cache
	noAttention    bool  // no layer attends: state only
	noPositions    bool  // max_position_embeddings does not limit the context
	ownTypes       bool  // the per-layer list is read by rule

	kvHeads func(*hfReader) (n int64, from string, err error) // before the usual keys; from is empty to go on
	window  func(*hfReader) error                             // which layers are local, without a per-layer list
	rule    func(*hfReader) error                             // everything else
	state   func(*hfReader) error                             // shape of one layer's recurrent state
}

// hfFamilies maps every model_type that is known to its family. A new
// architecture is one row, or one word in the row it behaves like.
var hfFamilies = sync.OnceValue(func() map[string]hfFamily {
	rows := []struct {
		types  string
		family hfFamily
	}{
		// Every layer full, whatever a window key says: these classes do not read one.
		{"llama apertus arcee baichuan bloom cohere codegen ernie4_5 ernie4_5_moe exaone glm glm4 glm4_moe glm4v_text glm4v_moe_text " +
			"gpt2 gpt_neox gpt_neox_japanese gptj gemma granite granitemoe granitemoeshared grok grok-1 helium hunyuan hunyuan_v1_dense hunyuan_v1_moe " +
			"internlm internlm2 internlm3 jais minicpm mllama nemotron olmo olmo2 olmoe opt orion persimmon phi phi-msft phi3small " +
			"seed_oss solar stablelm stablelm_epoch telechat xglm xverse yayi aquila bailing_moe step1 arctic mixformer-sequential " +
			"gpt_bigcode_mha llama_text llava internvl_chat deci phimoe", hfFamily{}},
		{"deepseek deepseek_v2 deepseek_v3 kimi_k2 kimi_k25 glm4_moe_lite mistral4 minicpm3", hfFamily{}},
		{"deepseek_v32 glm_moe_dsa", hfFamily{rule: sparseIndexRule}},
		{"longcat_flash", hfFamily{cachesPerLayer: 2}},

		{"chatglm", hfFamily{headDimKeys: []string{"kv_channels"}, kvHeads: multiQueryGroups}},
		{"qwen", hfFamily{headDimKeys: []string{"kv_channels"}}},
		{"falcon RefinedWeb RefinedWebModel", hfFamily{kvHeads: falconKVHeads}},
		{"gpt_bigcode", hfFamily{kvHeads: multiQueryOne}},
		{"mpt", hfFamily{kvHeads: attnConfigKVHeads}},
		{"dbrx", hfFamily{kvHeads: attnConfigKVHeads}},
		{"openelm", hfFamily{}},
		{"nemotron-nas", hfFamily{kvHeads: blocksDecide, rule: nasBlocks}},
		{"step3 step3_text step3_vl", hfFamily{}},
		{"step3p5 step3p7", hfFamily{window: everyLayer, rule: stepLocalHeads}},
		{"mllama_text_model", hfFamily{rule: crossLayers}},

		{"mistral ministral ministral3 mistral3 mixtral starcoder2 phi3 phi4_multimodal phi4mm", hfFamily{window: everyLayer}},
		{"qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text qwen3 qwen3_moe qwen3_vl_text qwen3_vl_moe_text qwen3_omni_moe_text mimo",
			hfFamily{defaults: map[string]int64{"max_window_layers": 28}, window: gatedWindow}},
		{"dots1", hfFamily{defaults: map[string]int64{"num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 32, "max_window_layers": 62}, window: splitWindow}},
		{"smollm3", hfFamily{window: smolWindow}},
		{"gemma2", hfFamily{defaults: map[string]int64{"sliding_window": 4096, "head_dim": 256}, window: alternating}},
		{"gemma3_text gemma3", hfFamily{
			defaults: map[string]int64{"num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 6, "max_position_embeddings": 131072},
			window:   patternWindow}},
		{"gemma3n_text gemma3n", hfFamily{
			defaults: map[string]int64{"num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512, "sliding_window_pattern": 5, "num_kv_shared_layers": 15, "max_position_embeddings": 32768},
			window:   patternWindow}},
		{"gemma4_text gemma4 gemma4_unified_text", hfFamily{
			defaults: map[string]int64{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512, "sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 131072},
			window:   patternWindow, rule: gemma4Global}},
		{"cohere2 cohere2_moe", hfFamily{defaults: map[string]int64{"sliding_window_pattern": 4, "sliding_window": 4096}, window: patternWindow}},
		{"exaone4 exaone_moe", hfFamily{window: patternWindow}},
		{"olmo3", hfFamily{defaults: map[string]int64{"sliding_window_pattern": 4, "sliding_window": 4096}, window: patternWindow}},
		{"afmoe", hfFamily{window: everyNth("global_attn_every_n_layers", 4)}},
		{"gpt_oss", hfFamily{defaults: map[string]int64{"head_dim": 64, "sliding_window": 128}, window: alternating}},
		{"llama4_text llama4", hfFamily{
			defaults: map[string]int64{"num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192},
			window:   chunkedRope}},
		{"mimo_v2 mimo_v2_flash", hfFamily{valueDim: true, window: hybridPattern, rule: localHeads}},

		{"deepseek_v4", hfFamily{
			defaults: map[string]int64{"num_hidden_layers": 43, "head_dim": 512, "sliding_window": 128, "index_head_dim": 128, "num_key_value_heads": 1},
			ownTypes: true, rule: compressedLayers}},
		{"minimax_m3 minimax_m3_text minimax_m3_vl", hfFamily{rule: nestedIndex}},

		{"recurrent_gemma", hfFamily{window: blockTypes, state: rgLRUState}},
		{"jamba", hfFamily{window: attentionPeriod, state: mamba1State}},
		{"bamba", hfFamily{defaults: map[string]int64{"mamba_n_groups": 1}, window: attentionIndices, state: mamba2State}},
		{"granitemoehybrid", hfFamily{defaults: map[string]int64{"mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_d_state": 256}, window: attentionIndices, state: mamba2State}},
		{"falcon_h1", hfFamily{defaults: map[string]int64{"mamba_n_groups": 1}, rule: parallelState, state: mamba2State}},
		{"nemotron_h nemotron_h_moe", hfFamily{typesKey: "layers_block_type", defaults: map[string]int64{"num_attention_heads": 32, "n_groups": 8, "conv_kernel": 4}, window: overridePattern, state: mamba2State}},
		{"zamba", hfFamily{streams: 2, window: zambaHybrids, rule: everyState, state: mamba1State}},
		{"zamba2", hfFamily{streams: 2, defaults: map[string]int64{"mamba_ngroups": 1, "mamba_expand": 2, "mamba_d_conv": 4, "mamba_headdim": 64},
			window: hybridIDs, rule: everyState, state: mamba2State}},
		{"qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text", hfFamily{defaults: map[string]int64{"linear_conv_kernel_dim": 4, "full_attention_interval": 4}, window: fullInterval, state: deltaState}},
		{"kimi_linear kimi_k3", hfFamily{rule: kimiLinear, state: kdaState}},
		{"minimax_m2", hfFamily{window: onlySoftmax}},
		{"minimax minimax_text_01 minimax_m1", hfFamily{defaults: map[string]int64{"num_key_value_heads": 8}, window: typeList, state: lightningState}},
		{"lfm2 lfm2_moe lfm2_vl", hfFamily{window: fullIndices, state: shortConvState}},
		{"phi4flash", hfFamily{ownTypes: true, rule: yoco, state: mamba1State}},
		{"mamba falcon_mamba", hfFamily{noAttention: true, rule: everyState, state: mamba1State}},
		{"mamba2", hfFamily{noAttention: true, rule: everyState, state: mamba2State}},

		{"t5 mt5 umt5", hfFamily{layerKeys: []string{"num_decoder_layers", "num_layers"}, noPositions: true}},
		{"whisper bart mbart marian pegasus", hfFamily{layerKeys: []string{"decoder_layers"}}},
	}
	families := map[string]hfFamily{}
	for _, row := range rows {
		for modelType := range strings.FieldsSeq(row.types) {
			families[modelType] = row.family
		}
	}
	return families
})

// hfSuspicious reports whether a key by its name could be about the cache.
func hfSuspicious(key string) bool {
	for _, other := range []string{"vision", "image", "video", "audio", "token"} {
		if strings.Contains(key, other) {
			return false
		}
	}
	if strings.HasPrefix(key, "kv_") || strings.HasPrefix(key, "swa_") || strings.HasPrefix(key, "index_") {
		return true
	}
	for _, word := range []string{"cache", "window", "sliding", "chunk", "shared_kv", "kv_share", "latent", "mamba", "ssm_", "linear_attn", "recurrent",
		"compress", "indexer", "cla_", "layer_types", "block_types", "block_configs", "layer_pattern", "override_pattern", "cross_attention",
		"attn_layer", "full_attn", "full_attention", "sparse_attention", "global_attn", "attn_type", "lru_", "remove_tail_layer"} {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}

// hfHarmless are keys that sound like the cache and do not shape it, or shape
// it only for the families that read them.
var hfHarmless = sync.OnceValue(func() map[string]bool {
	harmless := map[string]bool{}
	for key := range strings.FieldsSeq(`
		use_cache cache_implementation use_cache_quantization use_cache_kernel
		chunk_size chunk_size_feed_forward attention_chunk_size add_cross_attention cross_attention_hidden_size
		sliding_window sliding_window_size sliding_window_pattern _sliding_window_pattern max_window_layers use_sliding_window attention_window_size
		window_attention window_size swa_rope_theta swa_num_attention_heads
		index_topk index_n_heads index_head_dim index_topk_pattern index_share_for_mtp_iteration indexer_rope_interleave
		mlp_layer_types moe_latent_size moe_layer_pattern mtp_hybrid_override_pattern cla_share_factor use_cla kv_channels kv_lora_rank
		compress_rope_theta linear_attn_config latent_moe_use_norm
		mamba_act_fn mamba_chunk_size mamba_conv_bias mamba_proj_bias mamba_dt_rank mamba_hidden_act mamba_inner_layernorms mamba_intermediate
		mamba_norm_before_gate mamba_rms_norm mamba_use_mlp mamba_d_ssm mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_headdim
		mamba_head_dim mamba_n_groups mamba_n_heads mamba_ngroups mamba_num_groups mamba_num_heads mamba_state_dim n_mamba_heads
		mamba_ssm_cache_dtype mamba_ssm_dtype use_mamba_kernels
		ssm_cfg ssm_in_multiplier ssm_multipliers ssm_out_multiplier ssm_state_size`) {
		harmless[key] = true
	}
	return harmless
})

// hfOff reports whether a value switches its key off.
func hfOff(value []byte) bool {
	switch string(value) {
	case "null", "false", "0", `""`, "[]", "{}", "0.0":
		return true
	}
	return false
}

// KV heads.

// multiQueryGroups is ChatGLM's: num_key_value_heads, if any, does not count.
func multiQueryGroups(r *hfReader) (int64, string, error) {
	if !r.c.is("multi_query_attention") {
		return 0, "", nil
	}
	n, from := r.integer("multi_query_group_num")
	return n, from, nil
}

// falconKVHeads: the new decoder counts num_kv_heads, the old one shares one
// head when multi_query is set, whatever num_kv_heads says.
func falconKVHeads(r *hfReader) (int64, string, error) {
	if r.c.is("new_decoder_architecture") {
		n, from := r.integer("num_kv_heads", "n_head_kv", "num_attention_heads", "n_head")
		return n, from, nil
	}
	if multi, ok := r.c.boolean("multi_query"); !ok || multi { // the class's default is true
		return 1, "multi_query of " + r.textType, nil
	}
	return r.heads, "multi_query false: as many as query heads", nil
}

// multiQueryOne is GPTBigCode's: one head unless multi_query is false.
func multiQueryOne(r *hfReader) (int64, string, error) {
	if multi, ok := r.c.boolean("multi_query"); !ok || multi {
		return 1, "multi_query of " + r.textType, nil
	}
	return r.heads, "multi_query false: as many as query heads", nil
}

// attnConfigKVHeads is DBRX's and MPT's: nested, and ruled by attn_type in MPT.
func attnConfigKVHeads(r *hfReader) (int64, string, error) {
	attn, ok := r.c.object("attn_config")
	if !ok {
		return 0, "", nil
	}
	switch kind := attn.text("attn_type"); kind {
	case "multiquery_attention":
		return 1, "config.json: attn_config.attn_type " + kind, nil
	case "multihead_attention":
		return r.heads, "config.json: attn_config.attn_type " + kind, nil
	}
	if n, ok := attn.integer("kv_n_heads"); ok {
		return n, "config.json: attn_config.kv_n_heads", nil
	}
	return 0, "", nil
}

// blocksDecide stands in for the KV heads of Nemotron-NAS, which are per block;
// a null num_key_value_heads means that there, not MHA.
func blocksDecide(r *hfReader) (int64, string, error) {
	if r.c.has("block_configs") {
		return r.heads, "config.json: block_configs, block by block", nil
	}
	return 0, "", nil
}

// nasBlocks reads Nemotron-NAS's blocks: no_op and replace_with_linear store nothing.
func nasBlocks(r *hfReader) error {
	blocks := r.c.objects("block_configs")
	if blocks == nil {
		return nil
	}
	if len(blocks) < len(r.layers) {
		return fmt.Errorf("block_configs: %d entries for %d layers", len(blocks), len(r.layers))
	}
	for i := range r.layers {
		attn, ok := blocks[i].object("attention")
		if !ok {
			return fmt.Errorf("%w: block_configs[%d] has no attention", ErrUnknownArchitecture, i)
		}
		if attn.is("no_op") || attn.is("replace_with_linear") {
			r.layers[i] = hfLayer{}
			continue
		}
		group, ok := attn.integer("n_heads_in_group")
		if !ok || group < 1 || r.heads%group != 0 {
			return fmt.Errorf("block_configs[%d].attention.n_heads_in_group: %d does not divide %d heads", i, group, r.heads)
		}
		r.layers[i].heads = r.heads / group
		if n, ok := attn.integer("window_length"); ok && n > 0 {
			if err := r.makeSliding(i, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// Windows.

// everyLayer: a sliding_window with no pattern holds for every layer.
func everyLayer(r *hfReader) error { return r.slideWhere(func(int) bool { return true }) }

// gatedWindow is Qwen's: off unless use_sliding_window, and then local from
// layer max_window_layers on.
func gatedWindow(r *hfReader) error {
	if !r.c.is("use_sliding_window") {
		return nil
	}
	return splitWindow(r)
}

// splitWindow: the first max_window_layers layers are full, the rest local.
func splitWindow(r *hfReader) error {
	if set, ok := r.c.boolean("use_sliding_window"); ok && !set {
		return nil
	}
	full, _ := r.integer("max_window_layers")
	return r.slideWhere(func(i int) bool { return int64(i) >= full })
}

// smolWindow is SmolLM3's: layers without RoPE are local, if a window is in use.
func smolWindow(r *hfReader) error {
	if !r.c.is("use_sliding_window") {
		return nil
	}
	rope := r.c.integers("no_rope_layers")
	interval, _ := r.integer("no_rope_layer_interval")
	return r.slideWhere(func(i int) bool {
		if i < len(rope) {
			return rope[i] == 0
		}
		return interval > 0 && (int64(i)+1)%interval == 0
	})
}

// alternating: layers 0, 2, 4, … are local.
func alternating(r *hfReader) error { return r.slideWhere(func(i int) bool { return i%2 == 0 }) }

// patternWindow: every n-th layer is full, the last of each n; or a string of L
// and G repeated.
func patternWindow(r *hfReader) error {
	for _, key := range []string{"sliding_window_pattern", "_sliding_window_pattern"} {
		if !r.c.isString(key) {
			continue
		}
		pattern := r.c.text(key)
		if pattern == "" || strings.Trim(pattern, "LG") != "" {
			return fmt.Errorf("%w: %s %q: want L and G", ErrUnknownArchitecture, key, pattern)
		}
		return r.slideWhere(func(i int) bool { return pattern[i%len(pattern)] == 'L' })
	}
	n, from := r.integer("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
	if from == "" {
		return r.slideWhere(func(int) bool { return r.windowSize() > 0 })
	}
	if n < 1 {
		return fmt.Errorf("sliding_window_pattern: want 1 or more")
	}
	return r.slideWhere(func(i int) bool { return (int64(i)+1)%n != 0 })
}

// everyNth: full on every n-th layer, n from a key or its class default.
func everyNth(key string, otherwise int64) func(*hfReader) error {
	return func(r *hfReader) error {
		n, from := r.integer(key)
		if from == "" {
			n = otherwise
		}
		if n < 1 {
			return fmt.Errorf("%s: want 1 or more", key)
		}
		return r.slideWhere(func(i int) bool { return (int64(i)+1)%n != 0 })
	}
}

// chunkedRope is Llama 4's: layers with RoPE attend in chunks, those without it
// see everything. no_rope_layers is 1 where RoPE is used.
func chunkedRope(r *hfReader) error {
	size, _ := r.integer("attention_chunk_size")
	if raw, ok := r.c.values["attention_chunk_size"]; ok && string(raw) == "null" || size == 0 {
		return nil
	}
	rope := r.c.integers("no_rope_layers")
	if len(rope) > 0 && len(rope) < len(r.layers) {
		return fmt.Errorf("no_rope_layers: %d entries for %d layers", len(rope), len(r.layers))
	}
	interval, from := r.integer("no_rope_layer_interval")
	if from == "" {
		interval = 4
	}
	for i := range r.layers {
		chunked := interval < 1 || (int64(i)+1)%interval != 0
		if len(rope) > 0 {
			chunked = rope[i] != 0
		}
		if chunked {
			r.layers[i].kind, r.layers[i].window = Chunked, size
		}
	}
	return nil
}

// hybridPattern is MiMo-V2's: 1 is local. Its attention_chunk_size is not used.
func hybridPattern(r *hfReader) error {
	r.c.integer("attention_chunk_size")
	pattern := r.c.integers("hybrid_layer_pattern")
	if pattern == nil {
		return nil
	}
	if len(pattern) < len(r.layers) {
		return fmt.Errorf("hybrid_layer_pattern: %d entries for %d layers", len(pattern), len(r.layers))
	}
	return r.slideWhere(func(i int) bool { return pattern[i] == 1 })
}

// localHeads gives the local layers of MiMo-V2 their own heads and widths.
func localHeads(r *hfReader) error {
	heads, hasHeads := r.c.integer("swa_num_key_value_heads")
	k, hasK := r.c.integer("swa_head_dim")
	v, hasV := r.c.integer("swa_v_head_dim")
	for i := range r.layers {
		l := &r.layers[i]
		if l.kind != Sliding {
			continue
		}
		if hasHeads {
			l.heads = heads
		}
		if hasK {
			l.k = k
		}
		if hasV {
			l.v = v
		}
	}
	return nil
}

// stepLocalHeads is Step-3.5's: attention_other_setting is the local layers' own.
func stepLocalHeads(r *hfReader) error {
	other, ok := r.c.object("attention_other_setting")
	if !ok {
		return nil
	}
	heads, hasHeads := other.integer("num_attention_groups")
	dim, hasDim := other.integer("head_dim")
	for i := range r.layers {
		l := &r.layers[i]
		if l.kind == Sliding && hasHeads {
			l.heads = heads
		}
		if l.kind == Sliding && hasDim {
			l.k, l.v = dim, dim
		}
	}
	return nil
}

// gemma4Global gives full layers their own width, and where V starts from the
// K projection their own KV heads too. Both tensors are stored all the same.
func gemma4Global(r *hfReader) error {
	dim, _ := r.integer("global_head_dim")
	heads, own := r.c.integer("num_global_key_value_heads")
	own = own && r.c.is("attention_k_eq_v")
	if r.c.is("attention_k_eq_v") {
		r.note("K = V on full layers is counted as two tensors: K is normalised and rotated after the split")
	}
	for i := range r.layers {
		l := &r.layers[i]
		if l.kind != Full {
			continue
		}
		if dim > 0 {
			l.k, l.v = dim, dim
		}
		if own {
			l.heads = heads
		}
	}
	return nil
}

// Extra tensors.

// sparseIndexRule adds DSA's index keys: on every layer, or on those that
// indexer_types or index_topk_freq name.
func sparseIndexRule(r *hfReader) error {
	width, ok := r.c.integer("index_head_dim")
	if !ok || width == 0 {
		return nil
	}
	types := r.c.strings("indexer_types")
	if types != nil && len(types) < len(r.layers) {
		return fmt.Errorf("indexer_types: %d entries for %d layers", len(types), len(r.layers))
	}
	freq, hasFreq := r.c.integer("index_topk_freq")
	offset, _ := r.c.integer("index_skip_topk_offset")
	for i := range r.layers {
		own := true
		switch {
		case types != nil && types[i] != "full" && types[i] != "shared":
			return fmt.Errorf("%w: indexer_types: layer %d is %q", ErrUnknownArchitecture, i, types[i])
		case types != nil:
			own = types[i] == "full"
		case hasFreq && freq > 1:
			own = int64(i) < offset || (int64(i)-offset+1)%freq == 0
		}
		if own {
			r.layers[i].index = width
		}
	}
	return nil
}

// nestedIndex is MiniMax-M3's: index keys beside plain GQA.
func nestedIndex(r *hfReader) error {
	sparse, ok := r.c.object("sparse_attention_config")
	if !ok {
		return nil
	}
	width, _ := sparse.integer("sparse_index_dim")
	var where []int64
	if sparse.isList("sparse_attention_freq") {
		where = sparse.integers("sparse_attention_freq")
		if len(where) < len(r.layers) {
			return fmt.Errorf("sparse_attention_freq: %d entries for %d layers", len(where), len(r.layers))
		}
	}
	for i := range r.layers {
		if where == nil || where[i] != 0 {
			r.layers[i].index = width
		}
	}
	return nil
}

// compressedLayers is DeepSeek-V4's: every layer keeps a window of latents; by
// its ratio a layer adds one entry for so many tokens, and where that is 4 an
// index key beside each.
func compressedLayers(r *hfReader) error {
	ratios := r.c.integers("compress_ratios")
	if len(ratios) < len(r.layers) {
		return fmt.Errorf("compress_ratios: %d entries for %d layers", len(ratios), len(r.layers))
	}
	window := r.windowSize()
	width, _ := r.integer("index_head_dim")
	for i := range r.layers {
		r.layers[i] = hfLayer{kind: Sliding, window: window, heads: r.kvHeads, k: r.dimK}
		switch ratio := ratios[i]; ratio {
		case 0:
		case 4:
			r.layers[i].entries, r.layers[i].entriesRatio, r.layers[i].index = r.dimK, ratio, width
		case 128:
			r.layers[i].entries, r.layers[i].entriesRatio = r.dimK, ratio
		default:
			return fmt.Errorf("%w: compress_ratios: layer %d has ratio %d (0, 4 and 128 are known)", ErrUnknownArchitecture, i, ratio)
		}
	}
	r.dimV = 0
	return nil
}

// crossLayers is Mllama's: these layers hold keys of the image, not of the text.
func crossLayers(r *hfReader) error {
	for _, i := range r.c.integers("cross_attention_layers") {
		if i >= int64(len(r.layers)) {
			return fmt.Errorf("cross_attention_layers: layer %d of %d", i, len(r.layers))
		}
		r.layers[i].cross = true
	}
	return nil
}

// Hybrids: which layers attend.

// blockTypes is RecurrentGemma's: block_types repeated over the layers, its
// attention local.
func blockTypes(r *hfReader) error {
	types := r.c.strings("block_types")
	if types == nil {
		types = r.c.strings("_block_types")
	}
	if len(types) == 0 {
		types = []string{"recurrent", "recurrent", "attention"}
	}
	for i := range r.layers {
		switch kind := types[i%len(types)]; kind {
		case "recurrent":
			r.makeState(i)
		case "attention":
			if err := r.makeSliding(i, r.windowSize()); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: block_types: %q", ErrUnknownArchitecture, kind)
		}
	}
	return nil
}

// attendWhere leaves attention on the layers for which attends is true and
// state on the others.
func (r *hfReader) attendWhere(attends func(layer int) bool) {
	for i := range r.layers {
		if !attends(i) {
			r.makeState(i)
		}
	}
}

// attentionPeriod is Jamba's: attention when i % period is the offset.
func attentionPeriod(r *hfReader) error {
	period, _ := r.integer("attn_layer_period")
	offset, _ := r.integer("attn_layer_offset")
	if period < 1 {
		return fmt.Errorf("attn_layer_period: want 1 or more")
	}
	r.attendWhere(func(i int) bool { return int64(i)%period == offset })
	return nil
}

// zambaHybrids is Zamba-1's: two plain layers and a hybrid, then a hybrid where
// (i - 3) % period is the offset.
func zambaHybrids(r *hfReader) error {
	period, _ := r.integer("attn_layer_period")
	offset, _ := r.integer("attn_layer_offset")
	if period < 1 {
		return fmt.Errorf("attn_layer_period: want 1 or more")
	}
	for i := range r.layers {
		if hybrid := i == 2 || i > 2 && int64(i-3)%period == offset; !hybrid {
			r.makeState(i)
		}
	}
	return nil
}

// hybridIDs is Zamba2's: a shared attention block on the layers of hybrid_layer_ids.
func hybridIDs(r *hfReader) error {
	hybrid, err := r.layerSet("hybrid_layer_ids")
	if err != nil {
		return err
	}
	if hybrid == nil {
		return fmt.Errorf("no layers_block_type and no hybrid_layer_ids: which layers attend is not known")
	}
	r.attendWhere(func(i int) bool { return hybrid[i] })
	return nil
}

// layerSet reads a list of layer numbers, nil when the key is absent.
func (r *hfReader) layerSet(key string) (map[int]bool, error) {
	list := r.c.integers(key)
	if list == nil {
		return nil, nil
	}
	set := map[int]bool{}
	for _, i := range list {
		if i >= int64(len(r.layers)) {
			return nil, fmt.Errorf("%s: layer %d of %d", key, i, len(r.layers))
		}
		set[int(i)] = true
	}
	return set, nil
}

// everyState: each layer keeps state, whatever else it keeps.
func everyState(r *hfReader) error {
	for i := range r.layers {
		r.layers[i].state = true
	}
	return nil
}

// attentionIndices is Bamba's: attention on the layers of attn_layer_indices.
func attentionIndices(r *hfReader) error {
	attends, err := r.layerSet("attn_layer_indices")
	if err != nil || attends == nil {
		return err
	}
	r.attendWhere(func(i int) bool { return attends[i] })
	return nil
}

// parallelState is Falcon-H1's: attention beside Mamba, in every layer unless
// attn_layer_indices names some.
func parallelState(r *hfReader) error {
	attends, err := r.layerSet("attn_layer_indices")
	if err != nil {
		return err
	}
	if attends != nil {
		r.attendWhere(func(i int) bool { return attends[i] })
	}
	return everyState(r)
}

// overridePattern is Nemotron-H's: M state, * attention, - MLP, E experts.
func overridePattern(r *hfReader) error {
	pattern := r.c.text("hybrid_override_pattern")
	if pattern == "" {
		return fmt.Errorf("no layers_block_type and no hybrid_override_pattern: which layers attend is not known")
	}
	if len(pattern) != len(r.layers) {
		r.note("hybrid_override_pattern has %d layers, the file says %d: the pattern counts", len(pattern), len(r.layers))
		plain := hfLayer{kind: Full, heads: r.kvHeads, k: r.dimK, v: r.dimV}
		r.layers = make([]hfLayer, len(pattern))
		for i := range r.layers {
			r.layers[i] = plain
		}
	}
	for i, kind := range []byte(pattern) {
		switch kind {
		case '*':
		case 'M':
			r.makeState(i)
		case '-', 'E':
			r.layers[i] = hfLayer{}
		default:
			return fmt.Errorf("%w: hybrid_override_pattern: layer %d is %q", ErrUnknownArchitecture, i, kind)
		}
	}
	return nil
}

// fullInterval is Qwen3-Next's: full on every n-th layer, linear on the others.
func fullInterval(r *hfReader) error {
	n, _ := r.integer("full_attention_interval")
	if n < 1 {
		return fmt.Errorf("full_attention_interval: want 1 or more")
	}
	r.attendWhere(func(i int) bool { return (int64(i)+1)%n == 0 })
	return nil
}

// kimiLinear reads linear_attn_config: layers are numbered from 1, or from the
// base that kda_layer_index_base gives.
func kimiLinear(r *hfReader) error {
	linear, ok := r.c.object("linear_attn_config")
	if !ok {
		return fmt.Errorf("no linear_attn_config: which layers attend is not known")
	}
	base, ok := linear.integer("kda_layer_index_base")
	if !ok {
		if base, ok = r.c.integer("kda_layer_index_base"); !ok {
			base = 1
		}
	}
	full, kda := linear.integers("full_attn_layers"), linear.integers("kda_layers")
	if full == nil && kda == nil {
		return fmt.Errorf("linear_attn_config names neither full_attn_layers nor kda_layers")
	}
	attends := map[int]bool{}
	for _, i := range full {
		attends[int(i-base)] = true
	}
	if full == nil {
		for i := range r.layers {
			attends[i] = true
		}
		for _, i := range kda {
			delete(attends, int(i-base))
		}
	}
	r.attendWhere(func(i int) bool { return attends[i] })
	return nil
}

// typeList is MiniMax-01's: 1 is softmax attention, 0 lightning attention.
func typeList(r *hfReader) error {
	list := r.c.integers("attn_type_list")
	if list == nil {
		r.note("no attn_type_list: the class's default alternates, which no released model does")
		r.attendWhere(func(i int) bool { return i%2 == 1 })
		return nil
	}
	if len(list) < len(r.layers) {
		return fmt.Errorf("attn_type_list: %d entries for %d layers", len(list), len(r.layers))
	}
	r.attendWhere(func(i int) bool { return list[i] == 1 })
	return nil
}

// onlySoftmax is MiniMax-M2's: the same list, in which every layer attends.
func onlySoftmax(r *hfReader) error {
	for i, kind := range r.c.integers("attn_type_list") {
		if kind != 1 {
			return fmt.Errorf("attn_type_list: layer %d is of type %d, and only softmax attention (1) is known of model_type %q", i, kind, r.textType)
		}
	}
	return nil
}

// fullIndices is LFM2's older form: full_attn_idxs.
func fullIndices(r *hfReader) error {
	attends, err := r.layerSet("full_attn_idxs")
	if err != nil {
		return err
	}
	if attends == nil {
		return fmt.Errorf("no layer_types and no full_attn_idxs: which layers attend is not known")
	}
	r.attendWhere(func(i int) bool { return attends[i] })
	return nil
}

// yoco is Phi-4-mini-flash's, which its code lays out: odd layers attend, those
// of the first half in a window; the first after the half keeps all tokens, and
// the later ones read its cache. Even layers up to the half are Mamba-1.
func yoco(r *hfReader) error {
	half := len(r.layers) / 2
	window := int64(512)
	if r.c.isList("sliding_window") {
		if list := r.c.integers("sliding_window"); len(list) > 1 {
			window = list[1]
		}
	} else if n, ok := r.c.integer("sliding_window"); ok {
		window = n
	}
	for i := range r.layers {
		switch odd := i%2 == 1; {
		case odd && i < half:
			if err := r.makeSliding(i, window); err != nil {
				return err
			}
		case odd && i == half+1:
		case !odd && i <= half:
			r.makeState(i)
		default:
			r.layers[i] = hfLayer{}
		}
	}
	r.note("layers after %d read the cache of layer %d", half+1, half+1)
	return nil
}

// State shapes of one layer and one sequence.

// stateBytes sets the element sizes: conv in the model's type, the recurrent
// part in the type the file or the class names, else the model's.
func (r *hfReader) stateBytes() {
	r.state.ConvBytes, r.state.SSMBytes = 2, 2
	if strings.HasPrefix(r.textType, "nemotron_h") {
		r.state.SSMBytes = 4 // mamba_ssm_cache_dtype of the class
	}
	switch r.ssmType() {
	case "":
	case "float32":
		r.state.SSMBytes = 4
	default:
		r.state.SSMBytes = 2
	}
}

// ssmType is the type that the file names for the recurrent part, empty for none.
func (r *hfReader) ssmType() (name string) {
	for _, key := range []string{"mamba_ssm_cache_dtype", "mamba_ssm_dtype", "ssm_dtype"} {
		if r.c.isString(key) {
			name = r.c.text(key)
		}
	}
	return name
}

// stateOf multiplies the parts of a shape; a part that is 0 is missing.
func (r *hfReader) stateOf(kind string, steps, channels, ssm int64) error {
	r.stateBytes()
	if steps < 0 || channels < 0 || steps > 0 && channels == 0 {
		return fmt.Errorf("%s layers: the shape of the convolution state is not in the file", kind)
	}
	conv, err := product(steps, channels)
	if err != nil {
		return err
	}
	if conv == 0 && ssm == 0 {
		return fmt.Errorf("%s layers: the shape of the state is not in the file", kind)
	}
	r.state.Kind, r.state.ConvSteps, r.state.ConvElements, r.state.SSMElements = kind, steps, conv, ssm
	return nil
}

// convSteps is the kernel less one.
func (r *hfReader) convSteps(keys ...string) int64 {
	n, from := r.integer(keys...)
	if from == "" {
		return 3 // every Mamba class's default kernel is 4
	}
	return n - 1
}

func mamba1State(r *hfReader) error {
	hidden, _ := r.integer("hidden_size", "d_model")
	expand, from := r.integer("mamba_expand", "expand")
	if from == "" {
		expand = 2
	}
	inner := hidden * expand
	if n, ok := r.c.integer("intermediate_size"); ok && r.family.noAttention {
		inner = n
	}
	n, from := r.integer("mamba_d_state", "state_size")
	if from == "" {
		n = 16
	}
	ssm, err := product(inner, n)
	if err != nil {
		return err
	}
	return r.stateOf("mamba1", r.convSteps("mamba_d_conv", "conv_kernel"), inner, ssm)
}

func mamba2State(r *hfReader) error {
	hidden, _ := r.integer("hidden_size")
	heads, _ := r.integer("mamba_num_heads", "mamba_n_heads")
	if r.family.noAttention {
		heads, _ = r.integer("num_heads")
	}
	var dim int64
	if !r.c.isString("mamba_d_head") { // "auto" is inner / heads
		dim, _ = r.integer("mamba_head_dim", "mamba_d_head", "mamba_headdim")
		if r.family.noAttention {
			dim, _ = r.integer("head_dim")
		}
	}
	expand, from := r.integer("mamba_expand", "expand", "expansion_factor")
	if from == "" {
		expand = 2
	}
	inner := hidden * expand
	if n, ok := r.c.integer("mamba_d_ssm"); ok && n > 0 {
		inner = n
	} else if heads > 0 && dim > 0 {
		inner = heads * dim
	}
	groups, from := r.integer("n_groups", "mamba_n_groups", "mamba_ngroups")
	if from == "" { // the classes' defaults
		groups = 1
		if r.textType == "mamba2" || strings.HasPrefix(r.textType, "nemotron_h") {
			groups = 8
		}
	}
	size, _ := r.integer("ssm_state_size", "mamba_d_state", "state_size")
	ssm, err := product(inner, size)
	if err != nil {
		return err
	}
	return r.stateOf("mamba2", r.convSteps("conv_kernel", "mamba_d_conv", "conv_dimension"), inner+2*groups*size, ssm)
}

func deltaState(r *hfReader) error {
	keyHeads, _ := r.integer("linear_num_key_heads")
	keyDim, _ := r.integer("linear_key_head_dim")
	valueHeads, _ := r.integer("linear_num_value_heads")
	valueDim, _ := r.integer("linear_value_head_dim")
	ssm, err := product(valueHeads, valueDim, keyDim)
	if err != nil {
		return err
	}
	if err := r.stateOf("gdn", r.convSteps("linear_conv_kernel_dim"), 2*keyHeads*keyDim+valueHeads*valueDim, ssm); err != nil {
		return err
	}
	if r.ssmType() == "" {
		r.state.SSMBytes = 4 // the reference implementation's, whatever the model's type
	}
	return nil
}

func kdaState(r *hfReader) error {
	linear, ok := r.c.object("linear_attn_config")
	if !ok {
		return nil
	}
	heads, _ := linear.integer("num_heads")
	dim, _ := linear.integer("head_dim")
	kernel, ok := linear.integer("short_conv_kernel_size")
	if !ok {
		kernel = 4
	}
	ssm, err := product(heads, dim, dim)
	if err != nil {
		return err
	}
	if err := r.stateOf("kda", kernel-1, 3*heads*dim, ssm); err != nil {
		return err
	}
	r.state.SSMBytes = 4 // always float32
	return nil
}

func lightningState(r *hfReader) error {
	ssm, err := product(r.heads, r.dimK, r.dimK)
	if err != nil {
		return err
	}
	return r.stateOf("lightning", 0, 0, ssm)
}

func shortConvState(r *hfReader) error {
	dim, _ := r.integer("conv_dim", "hidden_size", "block_dim")
	kernel, from := r.integer("conv_L_cache")
	if from == "" {
		kernel = 3
	}
	return r.stateOf("shortconv", kernel-1, dim, 0)
}

// rgLRUState is RecurrentGemma's: one vector of lru_width, kept in float32.
func rgLRUState(r *hfReader) error {
	width, _ := r.integer("lru_width", "hidden_size")
	if err := r.stateOf("rglru", r.convSteps("conv1d_width"), width, width); err != nil {
		return err
	}
	r.state.SSMBytes = 4
	return nil
}
