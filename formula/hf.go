package formula

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrUnknownArchitecture reports a config.json of an architecture, or with a
// key, whose effect on the cache is not known.
var ErrUnknownArchitecture = errors.New("unknown architecture")

// HFOptions say how to read a config.json.
type HFOptions struct {
	// AssumeFull prices an unknown architecture as if every layer kept every
	// token, K and V apart: an upper bound, as [Model.UpperBound] then says.
	AssumeFull bool
}

// maxHFConfig bounds the file: real ones stay under a megabyte, and parsing takes
// many times the file's size.
const maxHFConfig = 4 << 20

// ReadHF reads the Hugging Face config.json at path, a file or the directory
// that holds one.
func ReadHF(path string, o HFOptions) (*Model, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "config.json")
	}
	f, info, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > maxHFConfig {
		return nil, fmt.Errorf("%s: %d bytes, larger than any config.json", path, info.Size())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxHFConfig))
	if err != nil {
		return nil, err // it names the file
	}
	m, err := ParseHF(data, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	m.Citation = path
	if m.Name == "" {
		m.Name = hfName(path, m.Family)
	}
	return m, nil
}

// hfName names a model after its file, or the folder where that says nothing.
func hfName(path, family string) string {
	name := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".json"), ".config")
	if name == "config" {
		if abs, err := filepath.Abs(path); err == nil {
			name = filepath.Base(filepath.Dir(abs))
		}
	}
	if name == "" || name == "." || name == string(filepath.Separator) {
		return family
	}
	return name
}

// hfLayer is one block of the decoder on the way to a Model.
type hfLayer struct {
	kind          Kind // empty: the block caches no tokens of its own
	window, ratio int64
	heads, k, v   int64
	index         int64 // width of an index key, 0 for none
	entries       int64 // width of a compressed entry beside the window, 0 for none
	entriesRatio  int64 // tokens an entry and an index key, where entries are kept
	state         bool  // holds recurrent or convolution state
	cross         bool  // attends to the encoder or the image only
}

// hfReader derives a Model from the keys of a config.json, in the order of
// hfReader.read. Its fields are what later steps need of earlier ones.
type hfReader struct {
	root, c hfObject // the whole file and its text tower
	family  hfFamily
	assume  bool
	m       *Model

	textType   string // the text tower's model_type
	layers     []hfLayer
	heads      int64 // query heads
	kvHeads    int64
	dimK, dimV int64
	state      State // of one layer; Layers is counted at the end
}

// ParseHF derives the model from the text of a config.json. Where a rule comes
// from is said in docs/planning.md.
func ParseHF(data []byte, o HFOptions) (*Model, error) {
	root, err := parseHFObject(data)
	if err != nil {
		return nil, err
	}
	r := &hfReader{root: root, c: root, assume: o.AssumeFull, m: &Model{Source: "config"}}
	err = r.read()
	if *root.err != nil { // a value of a wrong type explains what comes after it
		return nil, *root.err
	}
	if err != nil {
		return nil, err
	}
	if err := r.m.Validate(); err != nil {
		return nil, err
	}
	return r.m, nil
}

// read fills the model. Values of a wrong type are remembered by the objects
// and reported by ParseHF; errors here are about what the values say together.
func (r *hfReader) read() error {
	r.findTextTower()
	if err := r.findFamily(); err != nil {
		return err
	}
	if err := r.readLayerCount(); err != nil {
		return err
	}
	if err := r.readHeads(); err != nil {
		return err
	}
	if err := r.readLocality(); err != nil {
		return err
	}
	if r.family.rule != nil {
		if err := r.family.rule(r); err != nil {
			return err
		}
	}
	if err := r.applyShared(); err != nil {
		return err
	}
	r.readCross()
	r.readContext()
	r.readDType()
	r.readDraft()
	r.readExperts()
	if err := r.build(); err != nil {
		return err
	}
	return r.refuseUnknownKeys()
}

// findTextTower descends to the object that holds the decoder's keys. Vision
// and audio towers hold keys of the same names, so nothing is searched.
func (r *hfReader) findTextTower() {
	for _, key := range []string{"thinker_config", "text_config", "llm_config", "language_config"} {
		if nested, ok := r.c.object(key); ok {
			r.c = nested
			r.note("text tower in %s", strings.TrimSuffix(nested.path, "."))
		}
	}
}

func (r *hfReader) note(format string, args ...any) {
	r.m.Notes = append(r.m.Notes, fmt.Sprintf(format, args...))
}

// fact records a figure and the keys behind it.
func (r *hfReader) fact(name string, value int64, from string) {
	r.m.Facts = append(r.m.Facts, Fact{Name: name, Value: fmt.Sprint(value), From: from})
}

// findFamily looks the text tower's model_type up, or the whole file's.
func (r *hfReader) findFamily() error {
	whole := r.root.text("model_type")
	r.textType = r.c.text("model_type")
	if r.textType == "" {
		r.textType = whole
	}
	r.m.Family = r.textType
	family, ok := hfFamilies()[r.textType]
	if !ok && r.textType != whole {
		family, ok = hfFamilies()[whole]
	}
	switch {
	case ok:
		r.family = family
	case r.textType == "" && *r.c.err == nil:
		return fmt.Errorf("no model_type: not the config.json of a transformers model")
	case *r.c.err != nil:
		return *r.c.err
	case !r.assume:
		return fmt.Errorf("%w: model_type %q", ErrUnknownArchitecture, r.textType)
	default:
		r.m.UpperBound = fmt.Sprintf("model_type %q is not known, every layer is taken to keep every token", r.textType)
	}
	return nil
}

// integer returns the first of the keys that is there, else the class's
// default of the first that has one.
func (r *hfReader) integer(keys ...string) (n int64, from string) {
	if n, key := r.c.first(keys...); key != "" {
		return n, "config.json: " + r.c.path + key
	}
	for _, key := range keys {
		if n, ok := r.family.defaults[key]; ok {
			return n, "class default of " + r.textType + ": " + key
		}
	}
	return 0, ""
}

// maxHFLayers bounds the blocks, each of which takes memory here.
const maxHFLayers = 1 << 16

func (r *hfReader) readLayerCount() error {
	keys := r.family.layerKeys
	if keys == nil {
		keys = []string{"num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers", "decoder_layers", "num_decoder_layers"}
	}
	n, from := r.integer(keys...)
	if r.family.typesKey != "" || from == "" {
		if list := len(r.c.strings(r.typesKey())); list > 0 && (from == "" || r.family.typesKey != "") {
			n, from = int64(list), "config.json: length of "+r.c.path+r.typesKey()
		}
	}
	if from == "" && r.c.isString("hybrid_override_pattern") {
		n, from = int64(len(r.c.text("hybrid_override_pattern"))), "config.json: length of hybrid_override_pattern"
	}
	if from == "" {
		return fmt.Errorf("no layer count: none of %s is there", strings.Join(keys, ", "))
	}
	if n < 1 || n > maxHFLayers {
		return fmt.Errorf("%d layers (from %s): want 1 to %d", n, from, maxHFLayers)
	}
	r.layers = make([]hfLayer, n*max(1, r.family.cachesPerLayer))
	r.fact("layers", n, from)
	return nil
}

// typesKey is the key of the per-layer list of kinds.
func (r *hfReader) typesKey() string {
	if r.c.isList("layer_types") {
		return "layer_types"
	}
	if r.c.isList("layers_block_type") {
		return "layers_block_type"
	}
	return "layer_types"
}

func (r *hfReader) readHeads() error {
	if r.family.noAttention {
		return nil
	}
	perLayer := r.c.isList("num_query_heads") // OpenELM
	if !perLayer {
		var from string
		r.heads, from = r.integer("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
		if from == "" {
			return fmt.Errorf("no num_attention_heads")
		}
		if r.heads < 1 {
			return fmt.Errorf("%d attention heads (from %s)", r.heads, from)
		}
		r.fact("query heads", r.heads, from)
	}
	if rank, ok := r.c.integer("kv_lora_rank"); ok && rank > 0 && !r.family.noLatent {
		return r.readLatent(rank)
	}
	if !r.c.isList("num_kv_heads") {
		n, from, err := r.readKVHeads()
		if err != nil {
			return err
		}
		r.kvHeads = n
		r.fact("KV heads", n, from)
	}
	dim, from, err := r.readHeadDim()
	if err != nil {
		return err
	}
	const widest = 1 << 30 // as schemes take it
	if dim > widest {
		return fmt.Errorf("head_dim %d is more than %d (from %s)", dim, widest, from)
	}
	r.dimK, r.dimV = dim, dim
	r.fact("head_dim", dim, from)
	if v, ok := r.c.integer("v_head_dim"); ok && v > 0 && r.family.valueDim {
		r.dimV = v
		r.fact("head_dim of V", v, "config.json: "+r.c.path+"v_head_dim")
	}
	for i := range r.layers {
		r.layers[i] = hfLayer{kind: Full, heads: r.kvHeads, k: r.dimK, v: r.dimV}
	}
	if perLayer {
		return r.readHeadLists()
	}
	return nil
}

// readLatent is multi-head latent attention: one vector a token that K and V
// share. The file's KV heads and head sizes mean nothing for the cache.
func (r *hfReader) readLatent(rank int64) error {
	rope, _ := r.integer("qk_rope_head_dim")
	nope, _ := r.integer("qk_nope_head_dim")
	v, _ := r.integer("v_head_dim")
	r.m.MLA = &MLA{Rank: rank, RopeDim: rope, NopeDim: nope, VDim: v, Heads: r.heads}
	r.kvHeads, r.dimK, r.dimV = 1, rank+rope, 0
	for i := range r.layers {
		r.layers[i] = hfLayer{kind: Full, heads: 1, k: rank + rope}
	}
	r.fact("latent", rank+rope, "config.json: "+r.c.path+"kv_lora_rank + qk_rope_head_dim")
	return nil
}

// readKVHeads follows the order in which engines try the keys; none of them
// means as many KV heads as query heads.
func (r *hfReader) readKVHeads() (n int64, from string, err error) {
	if r.family.kvHeads != nil {
		if n, from, err = r.family.kvHeads(r); from != "" || err != nil {
			return n, from, err
		}
	}
	n, from = r.integer("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups", "num_query_groups")
	if from == "" {
		n, from = r.heads, "no KV head key: as many as query heads"
	}
	if n < 1 || n > r.heads && r.heads > 0 {
		return 0, "", fmt.Errorf("%d KV heads for %d query heads (from %s)", n, r.heads, from)
	}
	return n, from, nil
}

func (r *hfReader) readHeadDim() (n int64, from string, err error) {
	keys := append([]string{"head_dim", "hidden_size_per_head"}, r.family.headDimKeys...)
	keys = append(keys, "attention_head_dim", "d_kv")
	for _, key := range keys {
		if n, from := r.integer(key); n > 0 { // a missing one may be written as 0
			return n, from, nil
		}
	}
	hidden, from := r.integer("hidden_size", "n_embd", "d_model", "model_dim")
	if from == "" {
		return 0, "", fmt.Errorf("no head_dim and no hidden_size to derive it from")
	}
	hidden *= max(1, r.family.streams)
	if r.heads < 1 || hidden/r.heads < 1 {
		return 0, "", fmt.Errorf("hidden size %d over %d heads gives no head_dim", hidden, r.heads)
	}
	return hidden / r.heads, from + " / attention heads", nil
}

// readHeadLists is OpenELM's: heads layer by layer.
func (r *hfReader) readHeadLists() error {
	kv := r.c.integers("num_kv_heads")
	r.c.integers("num_query_heads")
	if len(kv) < len(r.layers) {
		return fmt.Errorf("num_kv_heads: %d entries for %d layers", len(kv), len(r.layers))
	}
	for i := range r.layers {
		r.layers[i].heads = kv[i]
	}
	return nil
}

// readLocality finds which layers keep only a window, from the keys that mean
// the same wherever they stand; the family's rule comes after it.
func (r *hfReader) readLocality() error {
	if r.family.noAttention {
		return nil
	}
	if list := r.c.strings(r.typesKey()); list != nil && !r.family.ownTypes {
		for _, key := range []string{"full_attention_interval", "attn_layer_period", "attn_layer_offset", "attn_layer_indices", "attn_type_list",
			"full_attn_idxs", "hybrid_override_pattern", "global_attn_every_n_layers", "no_rope_layers", "layers_block_type"} {
			r.c.has(key) // known, and overruled by the list
		}
		return r.applyTypes(list)
	}
	if r.family.window != nil {
		return r.family.window(r)
	}
	return nil
}

// windowSize is the number of tokens that local layers keep, 0 where the file
// names none.
func (r *hfReader) windowSize() int64 {
	n, _ := r.integer("sliding_window", "sliding_window_size", "attention_window_size")
	return n
}

// applyTypes reads a per-layer list of kinds, which wins over every other key.
// Entries past the last layer belong to draft layers.
func (r *hfReader) applyTypes(list []string) error {
	key := r.typesKey()
	if len(list) < len(r.layers) {
		return fmt.Errorf("%s: %d entries for %d layers", key, len(list), len(r.layers))
	}
	for i := range r.layers {
		switch list[i] {
		case "full_attention", "attention", "global", "deepseek_sparse_attention":
		case "sliding_attention", "sliding_window_attention", "local":
			if err := r.makeSliding(i, r.windowSize()); err != nil {
				return err
			}
		case "chunked_attention":
			size, _ := r.integer("attention_chunk_size")
			if size < 1 {
				return fmt.Errorf("%s: layer %d is chunked but there is no attention_chunk_size", key, i)
			}
			r.layers[i].kind, r.layers[i].window = Chunked, size
		case "linear_attention", "mamba", "mamba2", "conv", "recurrent", "kda", "m":
			r.makeState(i)
		case "hybrid", "g":
			// Attention beside the state in one layer, as Zamba2 has it.
			r.layers[i].state = true
		case "moe", "mlp", "dense", "sparse":
			r.layers[i] = hfLayer{}
		default:
			return fmt.Errorf("%w: %s: layer %d is %q", ErrUnknownArchitecture, key, i, list[i])
		}
	}
	return nil
}

func (r *hfReader) makeSliding(layer int, window int64) error {
	if window < 1 {
		return fmt.Errorf("layer %d is local but there is no sliding_window", layer)
	}
	r.layers[layer].kind, r.layers[layer].window = Sliding, window
	return nil
}

// makeState turns a layer into one that keeps state and no tokens.
func (r *hfReader) makeState(layer int) { r.layers[layer] = hfLayer{state: true} }

// slideWhere makes the layers for which local is true sliding. Without a
// window in the file nothing is local.
func (r *hfReader) slideWhere(local func(layer int) bool) error {
	window := r.windowSize()
	if window == 0 {
		return nil
	}
	for i := range r.layers {
		if local(i) {
			if err := r.makeSliding(i, window); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyShared empties the layers that read an earlier layer's cache.
func (r *hfReader) applyShared() error {
	if n, ok := r.c.integer("num_kv_shared_layers"); ok || r.family.defaults["num_kv_shared_layers"] > 0 {
		if !ok {
			n = r.family.defaults["num_kv_shared_layers"]
		}
		if n >= int64(len(r.layers)) && n > 0 {
			return fmt.Errorf("num_kv_shared_layers %d of %d layers: nothing would be stored", n, len(r.layers))
		}
		for i := len(r.layers) - int(n); i < len(r.layers); i++ {
			r.layers[i] = hfLayer{}
		}
		if n > 0 {
			r.note("the last %d layers store nothing: each reads the last earlier layer of its kind", n)
		}
	}
	factor, ok := r.c.integer("cla_share_factor")
	if r.c.is("use_cla") && ok {
		if factor < 1 {
			return fmt.Errorf("cla_share_factor: want 1 or more")
		}
		for i := range r.layers {
			if int64(i)%factor != 0 {
				r.layers[i] = hfLayer{}
			}
		}
		r.note("use_cla: of every %d layers the first stores, the others read it", factor)
	}
	return nil
}

// readCross is cross attention: a constant once the encoder or the image is in.
func (r *hfReader) readCross() {
	var cross Cross
	for _, l := range r.layers {
		if l.cross {
			cross.Layers++
		}
	}
	if cross.Layers == 0 && !r.root.is("is_encoder_decoder") && !r.c.is("is_encoder_decoder") {
		return
	}
	if cross.Layers == 0 {
		cross.Layers = int64(len(r.layers))
	}
	cross.KVHeads, cross.HeadDimK, cross.HeadDimV = r.kvHeads, r.dimK, r.dimV
	cross.Tokens, _ = r.integer("max_source_positions")
	r.m.Cross = &cross
}

// readContext takes the smallest of the keys that limit the context, except
// that model_max_length decides alone where it is there (Cohere).
func (r *hfReader) readContext() {
	if n, ok := r.c.integer("model_max_length"); ok && n > 0 && n < maxHFInt {
		r.setContext(n, "model_max_length")
		return
	}
	smallest, from := int64(0), ""
	for _, key := range []string{"max_position_embeddings", "max_position_embedding", "n_positions", "max_seq_len", "seq_length",
		"max_target_positions", "max_sequence_length", "max_seq_length", "seq_len", "n_ctx", "max_context_length"} {
		if key == "max_position_embeddings" && r.family.noPositions {
			continue
		}
		if n, ok := r.c.integer(key); ok && n > 0 && (from == "" || n < smallest) {
			smallest, from = n, key
		}
	}
	if from != "" {
		r.setContext(smallest, from)
		return
	}
	if n := r.family.defaults["max_position_embeddings"]; n > 0 {
		r.m.MaxContext = n
		r.fact("max context", n, "class default of "+r.textType)
	}
}

func (r *hfReader) setContext(n int64, key string) {
	r.m.MaxContext = n
	r.fact("max context", n, "config.json: "+r.c.path+key)
}

// readDType finds the element type the weights were saved in, and what the
// file says about the type of the cache.
func (r *hfReader) readDType() {
	for _, o := range []hfObject{r.root, r.c} {
		for _, key := range []string{"dtype", "torch_dtype"} {
			if r.m.DType == "" && o.isString(key) {
				r.m.DType = strings.TrimPrefix(o.text(key), "torch.")
			}
		}
	}
	if q, ok := r.root.object("quantization_config"); ok && q.has("kv_cache_scheme") {
		r.note("quantization_config has a kv_cache_scheme: an engine that honours it keeps 1 byte an element")
	}
}

// readExperts finds how many of a mixture's experts a token uses, which says
// nothing of the cache but what a step reads of the weights. Lists, one entry
// a layer, are passed over.
func (r *hfReader) readExperts() {
	c := r.c
	if nested, ok := c.object("ffn_config"); ok { // DBRX's
		c = nested
	}
	number := func(keys ...string) int64 {
		for _, key := range keys {
			if !c.has(key) || c.isList(key) {
				continue
			}
			if n, ok := c.integer(key); ok {
				return n
			}
		}
		return 0
	}
	all := number("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
	used := number("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")
	if used > 0 && used < all {
		r.m.Experts, r.m.ExpertsPerToken = all, used
		r.fact("experts", all, fmt.Sprintf("config.json, %d of them for each token", used))
	}
}

// readDraft notes the layers that only speculative decoding uses. Their own
// cache is one of the model's plain layers each, full where there is one, else
// sliding (DeepSeek-V4: its compression ratio there is 0).
func (r *hfReader) readDraft() {
	n, key := r.c.first("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "n_predict")
	if n < 1 || n > maxHFLayers {
		return
	}
	r.note("%d draft (MTP) layers (%s) are apart: only speculative decoding keeps their cache", n, key)
	r.fact("draft layers", n, "config.json: "+r.c.path+key)
	for _, kind := range []Kind{Full, Sliding} {
		for i := len(r.layers) - 1; i >= 0; i-- {
			if l := r.layers[i]; l.kind == kind {
				r.m.Draft = Geometry{{Count: n, Kind: kind, Window: l.window, KVHeads: l.heads, HeadDimK: l.k, HeadDimV: l.v}}
				return
			}
		}
	}
}

// refuseUnknownKeys fails for a key that is not known and by its name could
// change the cache, unless its value switches it off.
func (r *hfReader) refuseUnknownKeys() error {
	keys := slices.Sorted(maps.Keys(r.c.values))
	for _, key := range keys {
		if r.c.used[key] || hfHarmless()[key] || !hfSuspicious(key) || hfOff(r.c.values[key]) {
			continue
		}
		if r.assume {
			if r.m.UpperBound == "" {
				r.m.UpperBound = fmt.Sprintf("key %s%s is not known for model_type %q and passed over", r.c.path, key, r.textType)
			}
			return nil
		}
		return fmt.Errorf("%w: key %s%s could change the cache and is not known for model_type %q", ErrUnknownArchitecture, r.c.path, key, r.textType)
	}
	return nil
}

// build groups the layers: full ones first, then sliding, chunked, compressed,
// each in the order in which they first appear; extra tensors after them.
func (r *hfReader) build() error {
	m := r.m
	m.Layers = int64(len(r.layers))
	m.QueryHeads = r.heads
	m.Order = make([]Block, len(r.layers))

	place := func(layer int, g Group) {
		at := slices.IndexFunc(m.Geometry, func(have Group) bool { g.Count = have.Count; return have == g })
		if at < 0 {
			g.Count = 0
			m.Geometry = append(m.Geometry, g)
			at = len(m.Geometry) - 1
		}
		m.Geometry[at].Count++
		m.Order[layer].Groups = append(m.Order[layer].Groups, at)
	}
	for _, kind := range []Kind{Full, Sliding, Chunked, Compressed} {
		for i, l := range r.layers {
			if l.kind == kind && !l.cross {
				place(i, Group{Kind: kind, Window: l.window, Ratio: l.ratio, KVHeads: l.heads, HeadDimK: l.k, HeadDimV: l.v})
			}
		}
	}
	// Extra tensors: ratio by ratio, entries before their index keys.
	for _, ratio := range r.entryRatios() {
		for i, l := range r.layers {
			if l.entries > 0 && l.entriesRatio == ratio {
				place(i, Group{Extra: Entries, Kind: Compressed, Ratio: ratio, KVHeads: 1, HeadDimK: l.entries})
			}
		}
		for i, l := range r.layers {
			if l.index > 0 && l.entriesRatio == ratio {
				kind := Full
				if ratio > 0 {
					kind = Compressed
				}
				place(i, Group{Extra: Index, Kind: kind, Ratio: ratio, KVHeads: 1, HeadDimK: l.index})
			}
		}
	}
	return r.buildState()
}

// entryRatios are the compression ratios in use, ascending; 0 stands for
// tensors that are not compressed.
func (r *hfReader) entryRatios() []int64 {
	var ratios []int64
	for _, l := range r.layers {
		if (l.entries > 0 || l.index > 0) && !slices.Contains(ratios, l.entriesRatio) {
			ratios = append(ratios, l.entriesRatio)
		}
	}
	slices.Sort(ratios)
	return ratios
}

func (r *hfReader) buildState() error {
	for i, l := range r.layers {
		if l.state {
			r.state.Layers++
			r.m.Order[i].States = []int{0}
		}
	}
	if r.state.Layers == 0 {
		return nil
	}
	if r.family.state == nil {
		return fmt.Errorf("%w: model_type %q has recurrent layers of unknown shape", ErrUnknownArchitecture, r.textType)
	}
	layers := r.state.Layers
	if err := r.family.state(r); err != nil {
		return err
	}
	r.state.Layers = layers
	r.m.States = []State{r.state}
	return nil
}
