package formula

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// This file holds what llama.cpp hard-codes for each architecture, as far as
// it decides the size of a cache. The facts were read in the sources that
// llama-cpp-python 0.3.36 vendors: src/llama-arch.cpp for the names,
// src/models/*.cpp (load_arch_hparams) for the keys that each one reads, and
// src/llama-model.cpp (load_hparams, create_memory) for what all share. A new
// architecture is one row of llamaArchs.

// A llamaMemory names the memory module that an architecture is given.
type llamaMemory int

const (
	attentionMemory   llamaMemory = iota // one cache, or one of each kind where layers slide
	noMemory                             // encoders and diffusion models
	recurrentMemory                      // state only
	hybridMemory                         // attention on some layers, state on others
	hybridIndexMemory                    // hybrid with an indexer's keys
	msaMemory                            // attention with an indexer beside it
	dsaMemory                            // latent attention with a lightning indexer
	dsv4Memory                           // DeepSeek-V4: windowed latents, compressed latents, compressor state
)

// A llamaWindow says how attention.sliding_window is read.
type llamaWindow int

const (
	noWindow       llamaWindow = iota
	windowNeeded               // a missing key is an error
	windowIfSet                // no key or 0: no layer slides
	windowOr                   // a missing key means def
	windowSymbolic             // read, and replaced by def when positive
	windowChunked              // llama4: key 0 turns chunks off, else def
)

// A llamaPattern says which layers slide.
type llamaPattern struct {
	// period: every period-th layer is dense, the last of each run or, with
	// denseFirst, the first. attention.sliding_window_pattern replaces it, as
	// a number or as a list.
	period     int64
	denseFirst bool
	listed     bool // only a list will do
	all        bool // every layer slides, whatever the key says
}

// A llamaState says which keys shape the recurrent state.
type llamaState int

const (
	llamaNoState     llamaState = iota
	llamaSSM                    // Mamba-2, gated DeltaNet: ssm.*
	llamaSSMNoGroups            // Mamba-1: ssm.* without groups
	llamaWKV                    // RWKV: wkv.head_size, token_shift_count
	llamaShortconv              // LFM2: shortconv.l_cache
	llamaKDA                    // Kimi Delta Attention: kda.head_dim, ssm.conv_kernel
	llamaLinear                 // MiniMax-01 lightning attention
)

// A llamaRecurrence says which layers of a hybrid are recurrent.
type llamaRecurrence int

const (
	recurrentNone     llamaRecurrence = iota
	recurrentZeroKV                   // head_count_kv is 0
	recurrentZeroKVFF                 // head_count_kv and feed_forward_length are 0
	recurrentInterval                 // all but every n-th: recurrent_layers, else full_attention_interval
	recurrentAll                      // every layer is both
)

// A llamaArch is one architecture's row.
type llamaArch struct {
	memory     llamaMemory
	windowRule llamaWindow
	swa        llamaPattern
	def        int64 // the window that some rules fall back to
	state      llamaState
	recur      llamaRecurrence
	every      int64 // recurrentInterval: full attention on every n-th layer by default
	mla        llamaMLAKeys
	noFlash    bool // flash attention is forced off
	// rollback: rs-seq multiplies the state (llm_arch_supports_rs_rollback)
	rollback bool
	// ff: layers with a feed-forward length have neither cache nor state
	ff bool
	// own reads what no other field can say
	own func(*llamaModel, *ggufKeys)
	// drafts: beside a state, the next-token-prediction layers run in a context
	// of their own; others would get all their caches a second time
	drafts bool
	// borrows: it has no cache but reads that of the model it drafts for
	borrows bool
}

// A llamaMLAKeys says whether the latent form's keys are read.
type llamaMLAKeys int

const (
	noMLA      llamaMLAKeys = iota
	mlaIfSet                // without the keys K and V are cached per head
	mlaNeeded               //
	mlaLatentV              // needed, and the V width is the latent's
)

var (
	plainArch     = llamaArch{}
	encoderArch   = llamaArch{memory: noMemory}
	diffusionArch = llamaArch{memory: noMemory}
	gatedDelta    = llamaArch{memory: hybridMemory, drafts: true, state: llamaSSM, recur: recurrentInterval, every: 4}
	rwkvArch      = llamaArch{memory: recurrentMemory, state: llamaWKV}
)

// llamaArchs maps general.architecture to its row.
var llamaArchs = map[string]llamaArch{
	"llama": plainArch, "llama-embed": plainArch, "deci": plainArch, "falcon": plainArch, "gpt2": plainArch,
	"gptneox": plainArch, "mpt": plainArch, "baichuan": plainArch, "starcoder": plainArch, "refact": plainArch,
	"bloom": plainArch, "stablelm": plainArch, "qwen": plainArch, "qwen2": plainArch, "qwen2moe": plainArch,
	"qwen2vl": plainArch, "qwen3": plainArch, "qwen3moe": plainArch, "qwen3vl": plainArch, "qwen3vlmoe": plainArch,
	"qwen3tts": plainArch, "pockettts": plainArch, "phi2": plainArch, "phimoe": plainArch, "plamo": plainArch,
	"codeshell": plainArch, "orion": plainArch, "internlm2": plainArch, "minicpm": plainArch, "minicpm3": plainArch,
	"gemma": plainArch, "starcoder2": plainArch, "xverse": plainArch, "command-r": plainArch, "dbrx": plainArch,
	"olmo": plainArch, "olmoe": plainArch, "openelm": plainArch, "arctic": plainArch, "deepseek": plainArch,
	"deepseek2-ocr": plainArch, "chatglm": plainArch, "glm4": plainArch, "glm4moe": plainArch, "bitnet": plainArch,
	"jais": plainArch, "jais2": plainArch, "nemotron": plainArch, "exaone": plainArch, "granite": plainArch,
	"granitemoe": plainArch, "chameleon": plainArch, "plm": plainArch, "bailingmoe": plainArch, "bailingmoe2": plainArch,
	"dots1": plainArch, "arcee": plainArch, "ernie4_5": plainArch, "ernie4_5-moe": plainArch, "hunyuan-moe": plainArch,
	"hunyuan-dense": plainArch, "hunyuan_vl": plainArch, "hy_v3": plainArch, "smollm3": plainArch, "seed_oss": plainArch,
	"grovemoe": plainArch, "apertus": plainArch, "minimax-m2": plainArch, "cogvlm": plainArch, "pangu-embedded": plainArch,
	"mistral3": plainArch, "paddleocr": plainArch, "maincoder": plainArch, "talkie": plainArch, "hrm_text": plainArch,
	// Phi-3's window is read and then switched off.
	"phi3": plainArch,
	// Only the decoder's self-attention is cached, and an encoder alone still gets a cache.
	"t5": plainArch, "t5encoder": plainArch,

	"grok":          {noFlash: true},
	"nanbeige":      {own: loopedLayers},
	"graniteswitch": {own: routerLayer},

	"bert": encoderArch, "modern-bert": encoderArch, "nomic-bert": encoderArch, "nomic-bert-moe": encoderArch,
	"neo-bert": encoderArch, "jina-bert-v2": encoderArch, "jina-bert-v3": encoderArch, "eurobert": encoderArch,
	"gemma-embedding": encoderArch, "wavtokenizer-dec": encoderArch,
	"dream": diffusionArch, "llada": diffusionArch, "llada-moe": diffusionArch, "rnd1": diffusionArch,

	"llama4":       {windowRule: windowChunked, def: 8192, swa: llamaPattern{period: 4}},
	"afmoe":        {windowRule: windowIfSet, swa: llamaPattern{period: 4}},
	"cohere2":      {windowRule: windowNeeded, swa: llamaPattern{period: 4}},
	"cohere2moe":   {windowRule: windowNeeded, swa: llamaPattern{period: 4, denseFirst: true}},
	"exaone-moe":   {windowRule: windowNeeded, swa: llamaPattern{period: 4}},
	"exaone4":      {own: exaone4Window},
	"gemma2":       {windowRule: windowOr, def: 4096, swa: llamaPattern{period: 2}},
	"gemma3":       {windowRule: windowIfSet, swa: llamaPattern{period: 6}},
	"gemma3n":      {windowRule: windowNeeded, swa: llamaPattern{period: 5}, own: firstLayersCache(20)},
	"gemma4":       {windowRule: windowNeeded, swa: llamaPattern{listed: true}, own: sharedKVLayers},
	"gpt-oss":      {windowRule: windowNeeded, swa: llamaPattern{period: 2}},
	"granite_swa":  {windowRule: windowNeeded, swa: llamaPattern{listed: true}},
	"laguna":       {windowRule: windowIfSet, swa: llamaPattern{period: 4, denseFirst: true}},
	"maple":        {windowRule: windowNeeded, swa: llamaPattern{listed: true}},
	"mellum":       {windowRule: windowIfSet, swa: llamaPattern{period: 4}},
	"mimo2":        {windowRule: windowNeeded, swa: llamaPattern{listed: true}},
	"muse-glimmer": {windowRule: windowNeeded, swa: llamaPattern{period: 4}},
	"olmo2":        {windowRule: windowIfSet, swa: llamaPattern{period: 4}},
	"plamo3":       {windowRule: windowIfSet, swa: llamaPattern{period: 8}},
	"smallthinker": {windowRule: windowSymbolic, def: 4096, swa: llamaPattern{period: 4, denseFirst: true}},
	"spark2_5":     {windowRule: windowNeeded, swa: llamaPattern{listed: true}},
	"step35":       {windowRule: windowNeeded, swa: llamaPattern{listed: true}},

	"mamba":      {memory: recurrentMemory, state: llamaSSMNoGroups},
	"mamba2":     {memory: recurrentMemory, state: llamaSSM},
	"rwkv6":      rwkvArch,
	"rwkv6qwen2": rwkvArch,
	"rwkv7":      rwkvArch,
	"arwkv7":     rwkvArch,

	"jamba":          {memory: hybridMemory, state: llamaSSMNoGroups, recur: recurrentZeroKV},
	"falcon-h1":      {memory: hybridMemory, state: llamaSSM, recur: recurrentAll},
	"plamo2":         {memory: hybridMemory, state: llamaSSM, recur: recurrentZeroKV, own: widthsWithoutHeads},
	"granitehybrid":  {memory: hybridMemory, state: llamaSSM, recur: recurrentZeroKV},
	"lfm2":           {memory: hybridMemory, state: llamaShortconv, recur: recurrentZeroKV, rollback: true, own: slidingUnlessRecurrent},
	"lfm2moe":        {memory: hybridMemory, state: llamaShortconv, recur: recurrentZeroKV, rollback: true},
	"nemotron_h":     {memory: hybridMemory, state: llamaSSM, recur: recurrentZeroKVFF, ff: true, rollback: true},
	"nemotron_h_moe": {memory: hybridMemory, drafts: true, state: llamaSSM, recur: recurrentZeroKVFF, ff: true, rollback: true},
	"qwen3next":      gatedDelta,
	"qwen35":         gatedDelta.rollingBack(),
	"qwen35moe":      gatedDelta.rollingBack(),
	"qwen4exp": {memory: hybridIndexMemory, state: llamaSSM, recur: recurrentInterval, every: 4, rollback: true,
		own: qwen4Embeddings},
	"minimax-01":  {memory: hybridMemory, state: llamaLinear, recur: recurrentInterval, every: 8},
	"kimi-linear": {memory: hybridMemory, state: llamaKDA, recur: recurrentZeroKV, mla: mlaNeeded},
	"kimi-k3":     {memory: hybridMemory, state: llamaKDA, recur: recurrentZeroKV, mla: mlaLatentV, rollback: true},
	"bailingmoe3": {memory: hybridMemory, drafts: true, state: llamaKDA, recur: recurrentZeroKV, mla: mlaNeeded, rollback: true},
	"glm5-next": {memory: hybridIndexMemory, drafts: true, state: llamaKDA, recur: recurrentZeroKV, mla: mlaLatentV, rollback: true,
		own: glm5Indexer},

	"minimax-m3": {memory: msaMemory, own: indexerAfterDense},
	"deepseek2":  {mla: mlaIfSet},
	"mistral4":   {mla: mlaIfSet},
	"deepseek32": {memory: dsaMemory, mla: mlaIfSet, own: indexerEverywhere},
	"glm-dsa":    {memory: dsaMemory, mla: mlaIfSet, own: glmIndexer},
	"hy_v4":      {memory: dsaMemory, mla: mlaNeeded, own: hyIndexer},
	"dots3note":  {memory: dsaMemory, mla: mlaNeeded, windowRule: windowNeeded, swa: llamaPattern{listed: true}, own: dotsIndexer},
	"deepseek4":  {memory: dsv4Memory, windowRule: windowNeeded, swa: llamaPattern{all: true}, rollback: true, own: dsv4Layers},

	"eagle3":           plainArch,
	"dflash":           {own: dflashWindow},
	"gemma4-assistant": {borrows: true},
}

func (a llamaArch) rollingBack() llamaArch { a.rollback = true; return a }

// llamaMaxLayers is LLAMA_MAX_LAYERS of llama-hparams.h.
const llamaMaxLayers = 512

// A llamaModel is what decides the cache of one GGUF file: the hyperparameters
// of llama.cpp under their meaning. Lists have one entry a layer.
type llamaModel struct {
	llamaArch
	name         string
	facts        []Fact // keys that were read
	trainContext int64
	causal       bool
	embedding    int64

	layers    int64 // with the next-token-prediction layers
	nextn     int64 // of them, next-token-prediction
	router    bool  // the last layer routes adapters and is part of the trunk
	heads     []int64
	kvHeads   []int64
	ffn       []int64
	cached    int64 // layers from this one on read an earlier layer's cache
	recurrent []bool

	k, v, kSWA, vSWA int64 // head widths
	kMLA, vMLA       int64 // widths of the expanded form; both 0 without a latent
	latent, ropeDim  int64 // kv_lora_rank and the width that positions rotate

	windowed bool
	window   int64
	sliding  []bool

	convKernel, innerSize, stateSize, groups int64
	wkvHead, tokenShift                      int64
	shortconv                                int64
	kdaHead, linearHead                      int64

	indexerHeads, indexerWidth, indexerTopK, indexerPool int64
	indexed                                              []bool
	ratios                                               []int64
	pleLayers                                            []bool
	pleElements                                          int64
}

// trunk is the number of layers without next-token prediction.
func (m *llamaModel) trunk() int64 { return m.layers - m.nextn }

func (m *llamaModel) isMLA() bool { return m.kMLA > 0 && m.vMLA > 0 }

// widths returns the head widths of one layer.
func (m *llamaModel) widths(layer int64) (k, v int64) {
	if m.sliding[layer] {
		return m.kSWA, m.vSWA
	}
	return m.k, m.v
}

// readLlamaModel reads the keys that llama.cpp would. With assume, keys of a
// cache that it does not know are passed over instead of refused, and an
// unknown architecture is taken to attend to everything in every layer.
func readLlamaModel(g *GGUF, assume bool) (*llamaModel, error) {
	name := g.Architecture()
	if name == "" {
		return nil, fmt.Errorf("%w: no general.architecture key", ErrGGUF)
	}
	arch, known := llamaArchs[name]
	switch {
	case !known && !assume:
		return nil, fmt.Errorf("%w: GGUF architecture %q", ErrUnknownArchitecture, name)
	case !known:
		arch = plainArch
	}
	m := &llamaModel{llamaArch: arch, name: name}
	k := &ggufKeys{g: g, arch: name}
	m.common(k)
	if k.err == nil {
		m.attention(k)
	}
	if k.err == nil {
		m.recurrence(k)
	}
	if k.err == nil && m.own != nil {
		m.own(m, k)
	}
	if k.err == nil && !assume {
		k.refuseUnknown()
	}
	m.facts = k.read
	return m, k.err
}

// common reads what load_hparams reads for every architecture.
func (m *llamaModel) common(k *ggufKeys) {
	m.trainContext = k.need("context_length")
	m.embedding = k.need("embedding_length")
	if m.name == "wavtokenizer-dec" {
		m.embedding = k.need("features_length")
	}
	m.causal = k.or("attention.causal", 1) != 0
	m.layers = k.need("block_count")
	m.nextn = k.or("nextn_predict_layers", 0)
	if k.err != nil {
		return
	}
	if m.layers < 1 || m.layers > llamaMaxLayers {
		k.fail("block_count", "%d layers, llama.cpp takes 1 to %d", m.layers, llamaMaxLayers)
		return
	}
	if m.nextn > m.layers {
		k.fail("nextn_predict_layers", "%d of %d layers", m.nextn, m.layers)
		return
	}
	m.cached = m.layers
	m.ffn, m.heads = make([]int64, m.layers), make([]int64, m.layers)
	m.sliding, m.recurrent = make([]bool, m.layers), make([]bool, m.layers)
	m.indexed = make([]bool, m.layers)
	k.perLayer("feed_forward_length", m.ffn)
	k.perLayer("attention.head_count", m.heads)
	m.kvHeads = slices.Clone(m.heads)
	k.perLayer("attention.head_count_kv", m.kvHeads)
	if m.heads[0] > 0 {
		m.k = k.or("attention.key_length", m.embedding/m.heads[0])
		m.v = k.or("attention.value_length", m.embedding/m.heads[0])
	}
	m.kSWA = k.or("attention.key_length_swa", m.k)
	m.vSWA = k.or("attention.value_length_swa", m.v)
}

// attention reads the windows and the latent form.
func (m *llamaModel) attention(k *ggufKeys) {
	window, set := int64(0), false
	if m.windowRule != noWindow {
		window, set = k.get("attention.sliding_window")
	}
	switch m.windowRule {
	case windowNeeded:
		m.window, m.windowed = k.need("attention.sliding_window"), true
	case windowIfSet:
		m.window, m.windowed = window, window > 0
	case windowOr:
		m.window, m.windowed = m.def, true
		if set {
			m.window = window
		}
	case windowSymbolic:
		m.window, m.windowed = m.def, window > 0
	case windowChunked:
		m.window, m.windowed = m.def, !set || window > 0
	}
	if m.windowed {
		m.slide(k, m.swa)
	}
	if m.mla == noMLA {
		return
	}
	m.latent, m.ropeDim = k.need("attention.kv_lora_rank"), k.or("rope.dimension_count", 0)
	if m.mla == mlaIfSet {
		m.kMLA, m.vMLA = k.or("attention.key_length_mla", 0), k.or("attention.value_length_mla", 0)
	} else {
		m.kMLA, m.vMLA = k.need("attention.key_length_mla"), k.need("attention.value_length_mla")
	}
	if m.mla == mlaLatentV {
		m.v = m.latent
	}
}

// slide marks the sliding layers.
func (m *llamaModel) slide(k *ggufKeys, p llamaPattern) {
	if p.all {
		for i := range m.sliding {
			m.sliding[i] = true
		}
		return
	}
	const key = "attention.sliding_window_pattern"
	if list, ok := k.list(key); ok {
		for i := range min(len(list), len(m.sliding)) {
			m.sliding[i] = list[i] != 0
		}
		return
	}
	if p.listed {
		k.fail(key, "missing, or not a list with an entry for each layer")
		return
	}
	period := k.or(key, p.period)
	if !k.g.Has(k.arch + "." + key) {
		k.read = append(k.read, Fact{Name: key, Value: strconv.FormatInt(period, 10), From: "llama.cpp's rule for " + m.name})
	}
	for i := range m.trunk() {
		switch {
		case period == 0:
			m.sliding[i] = true
		case p.denseFirst:
			m.sliding[i] = i%period != 0
		default:
			m.sliding[i] = i%period < period-1
		}
	}
}

// recurrence reads the state's shape and which layers have it.
func (m *llamaModel) recurrence(k *ggufKeys) {
	switch m.state {
	case llamaSSM, llamaSSMNoGroups:
		m.convKernel, m.innerSize, m.stateSize = k.need("ssm.conv_kernel"), k.need("ssm.inner_size"), k.need("ssm.state_size")
		if m.state == llamaSSM {
			m.groups = k.need("ssm.group_count")
		}
	case llamaWKV:
		m.wkvHead, m.tokenShift = k.need("wkv.head_size"), k.or("token_shift_count", 2)
	case llamaShortconv:
		m.shortconv = k.need("shortconv.l_cache")
	case llamaKDA:
		m.convKernel, m.kdaHead = k.need("ssm.conv_kernel"), k.need("kda.head_dim")
	case llamaLinear:
		m.linearHead = m.k
	}
	list := make([]int64, m.layers)
	switch m.recur {
	case recurrentNone:
		if m.memory == recurrentMemory {
			m.mark(func(int64) bool { return true })
		}
	case recurrentAll:
		m.mark(func(int64) bool { return true })
	case recurrentZeroKV:
		m.mark(func(i int64) bool { return i < m.trunk() && m.kvHeads[i] == 0 })
	case recurrentZeroKVFF:
		m.mark(func(i int64) bool { return i < m.trunk() && m.kvHeads[i] == 0 && m.ffn[i] == 0 })
	case recurrentInterval:
		if k.perLayer("attention.recurrent_layers", list) {
			m.mark(func(i int64) bool { return list[i] != 0 })
			return
		}
		every := k.or("full_attention_interval", m.every)
		if every == 0 {
			k.fail("full_attention_interval", "0")
			return
		}
		m.mark(func(i int64) bool { return i < m.trunk() && (i+1)%every != 0 })
	}
}

func (m *llamaModel) mark(recurrent func(layer int64) bool) {
	for i := range m.recurrent {
		m.recurrent[i] = recurrent(int64(i))
	}
}

// firstLayersCache: the layers from n on reuse an earlier layer's cache.
func firstLayersCache(n int64) func(*llamaModel, *ggufKeys) {
	return func(m *llamaModel, _ *ggufKeys) { m.cached = n }
}

// sharedKVLayers is the same for a number of last layers that the file gives.
func sharedKVLayers(m *llamaModel, k *ggufKeys) {
	m.kSWA, m.vSWA = k.need("attention.key_length_swa"), k.need("attention.value_length_swa")
	shared := k.or("attention.shared_kv_layers", 0)
	if shared > m.layers {
		k.fail("attention.shared_kv_layers", "%d of %d layers", shared, m.layers)
		return
	}
	if m.cached = m.layers - shared; m.cached < 2 {
		k.fail("attention.shared_kv_layers", "%d of %d layers keep a cache of their own, llama.cpp needs 2", m.cached, m.layers)
	}
}

// widthsWithoutHeads: the widths are read even where the first layer, a
// recurrent one, has no heads to derive them from.
func widthsWithoutHeads(m *llamaModel, k *ggufKeys) {
	m.k, m.v = k.or("attention.key_length", m.k), k.or("attention.value_length", m.v)
}

// exaone4Window: only the 64-layer model slides.
func exaone4Window(m *llamaModel, k *ggufKeys) {
	if m.trunk() == 64 {
		m.windowed, m.window = true, k.or("attention.sliding_window", 4096)
		m.slide(k, llamaPattern{period: 4})
	}
}

// slidingUnlessRecurrent: every attention layer slides when a window is set.
func slidingUnlessRecurrent(m *llamaModel, k *ggufKeys) {
	m.window = k.or("attention.sliding_window", 0)
	m.windowed = m.window > 0
	for i := range m.trunk() {
		m.sliding[i] = m.windowed && !m.recurrent[i]
	}
}

// loopedLayers: the blocks run num_loops times, each pass with a cache of its own.
func loopedLayers(m *llamaModel, k *ggufKeys) {
	loops, physical := k.or("num_loops", 1), m.trunk()
	if loops < 1 || physical*loops > llamaMaxLayers {
		k.fail("num_loops", "%d passes over %d layers, llama.cpp takes 1 to %d layers in all", loops, physical, llamaMaxLayers)
		return
	}
	if loops == 1 {
		return
	}
	m.layers = physical * loops
	m.cached = m.layers
	repeat := func(list []int64) []int64 {
		out := make([]int64, m.layers)
		for i := range out {
			out[i] = list[int64(i)%physical]
		}
		return out
	}
	m.heads, m.kvHeads, m.ffn = repeat(m.heads), repeat(m.kvHeads), repeat(m.ffn)
	m.sliding, m.recurrent, m.indexed = make([]bool, m.layers), make([]bool, m.layers), make([]bool, m.layers)
}

// routerLayer: one more layer of a single head keeps each token's adapter.
func routerLayer(m *llamaModel, k *ggufKeys) {
	n := m.trunk()
	if n >= llamaMaxLayers {
		k.fail("block_count", "%d layers and a router, llama.cpp takes %d", n, llamaMaxLayers)
		return
	}
	m.layers, m.nextn, m.router = n+1, 1, true
	m.cached = m.layers
	m.heads = append(m.heads[:n:n], 1)
	m.kvHeads = append(m.kvHeads[:n:n], 1)
	m.ffn = append(m.ffn[:n:n], 0)
	m.sliding, m.recurrent, m.indexed = make([]bool, n+1), make([]bool, n+1), make([]bool, n+1)
}

// dflashWindow: a DeepSeek-V4 draft slides on every layer, another one on
// those its list names.
func dflashWindow(m *llamaModel, k *ggufKeys) {
	if k.or("hyper_connection.count", 0) > 0 {
		m.windowed, m.window = true, k.need("attention.sliding_window")
		m.slide(k, llamaPattern{all: true})
		return
	}
	m.window = k.or("attention.sliding_window", 0)
	if m.windowed = m.window > 0; m.windowed {
		m.slide(k, llamaPattern{listed: true})
	}
}

func indexerNeeded(m *llamaModel, k *ggufKeys) {
	m.indexerHeads = k.need("attention.indexer.head_count")
	m.indexerWidth = k.need("attention.indexer.key_length")
	m.indexerTopK = k.need("attention.indexer.top_k")
}

// indexerAfterDense: the leading dense layers have no indexer.
func indexerAfterDense(m *llamaModel, k *ggufKeys) {
	indexerNeeded(m, k)
	for i := k.or("leading_dense_block_count", 0); i < m.layers; i++ {
		m.indexed[i] = true
	}
}

// indexerEverywhere: every layer of the trunk owns an indexer.
func indexerEverywhere(m *llamaModel, k *ggufKeys) {
	indexerNeeded(m, k)
	for i := range m.indexed {
		m.indexed[i] = true
	}
}

// indexerTypes marks the layers whose type is "full"; the others reuse the
// choice of the last one that is.
func (m *llamaModel) indexerTypes(k *ggufKeys) {
	types := make([]int64, m.trunk())
	if k.perLayer("attention.indexer.types", types) {
		for i, t := range types {
			m.indexed[i] = t != 0
		}
	}
}

// glmIndexer: by default GLM-5.2, told by its context of 2^20, has indexers on
// layers 0 and 1 and then on every fourth from layer 2 to 78; earlier models
// have one on every layer.
func glmIndexer(m *llamaModel, k *ggufKeys) {
	indexerNeeded(m, k)
	for i := range m.indexed {
		m.indexed[i] = m.trainContext < 1<<20 || i < 2 || i <= 78 && (i-2)%4 == 0
	}
	m.indexerTypes(k)
}

func hyIndexer(m *llamaModel, k *ggufKeys) {
	m.indexerHeads = k.or("attention.indexer.head_count", 0)
	m.indexerWidth = k.or("attention.indexer.key_length", 0)
	m.indexerTopK = k.or("attention.indexer.top_k", 0)
	if m.indexerTopK > 0 {
		m.indexerTypes(k)
		if m.nextn > 0 {
			k.fail("nextn_predict_layers", "%d layers beside an indexer, which llama.cpp aborts on", m.nextn)
		}
	}
}

func dotsIndexer(m *llamaModel, k *ggufKeys) {
	indexerNeeded(m, k)
	types, ok := k.list("attention.indexer.types")
	if !ok {
		k.fail("attention.indexer.types", "missing, or not a list with an entry for each layer")
		return
	}
	for i := range min(int64(len(types)), m.layers) {
		m.indexed[i] = types[i] != 0
	}
}

func glm5Indexer(m *llamaModel, k *ggufKeys) {
	indexerNeeded(m, k)
	m.indexerPool = k.need("attention.indexer.kpool")
	for i := range m.indexed {
		m.indexed[i] = true
	}
	m.indexerTypes(k)
}

// qwen4Embeddings: the n-gram embedding keeps the last inputs of its
// convolution, dilated by the n-gram's size, over all hyper connections.
func qwen4Embeddings(m *llamaModel, k *ggufKeys) {
	indexerNeeded(m, k)
	streams := k.need("hyper_connection.count")
	m.pleLayers = make([]bool, m.layers)
	layers, _ := k.list("ple.layers")
	for _, i := range layers {
		if i < 0 || i >= m.layers || !m.recurrent[i] {
			k.fail("ple.layers", "layer %d has no recurrent state", i)
			return
		}
		m.pleLayers[i] = true
	}
	if len(layers) == 0 {
		return
	}
	ngram, heads, kernel := k.need("ple.ngram_size"), k.need("ple.heads_per_ngram"), k.need("ple.conv_kernel")
	if ngram < 2 || heads < 1 || kernel < 1 {
		k.fail("ple", "n-grams of %d, %d heads, kernel %d", ngram, heads, kernel)
		return
	}
	n, err := product(kernel-1, ngram, streams, m.embedding)
	if err != nil {
		k.fail("ple", "%v", err)
	}
	m.pleElements = n
}

// dsv4Layers reads the compression of each layer. Next-token-prediction layers
// count only when the file holds their tensors.
func dsv4Layers(m *llamaModel, k *ggufKeys) {
	if m.nextn > 0 && !k.g.HasTensor(fmt.Sprintf("blk.%d.nextn.eh_proj.weight", m.trunk())) {
		m.nextn = 0
	}
	indexerNeeded(m, k)
	ratios, ok := k.list("attention.compress_ratios")
	if !ok || int64(len(ratios)) < m.layers {
		k.fail("attention.compress_ratios", "missing, or shorter than the %d layers", m.layers)
		return
	}
	m.ratios = ratios[:m.layers]
}

// ggufKeys reads the keys of one architecture and keeps the first error.
type ggufKeys struct {
	g    *GGUF
	arch string
	err  error
	read []Fact // the keys that were found, in the order in which they were asked for
}

// found notes a key that decides something.
func (k *ggufKeys) found(key string) {
	full := k.arch + "." + key
	for _, f := range k.read {
		if f.Name == key {
			return
		}
	}
	k.read = append(k.read, Fact{Name: key, Value: k.g.Format(full), From: "GGUF key " + full})
}

func (k *ggufKeys) fail(key, format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf("GGUF key %s.%s: %s", k.arch, key, fmt.Sprintf(format, args...))
	}
}

// get returns a number of at most 2^31-1: none is larger in a real file, and
// products of two of them cannot overflow.
func (k *ggufKeys) get(key string) (int64, bool) {
	full := k.arch + "." + key
	if !k.g.Has(full) {
		return 0, false
	}
	n, ok := k.g.Int(full)
	if !ok {
		k.fail(key, "not a whole number")
		return 0, false
	}
	if !k.inRange(key, n) {
		return 0, false
	}
	k.found(key)
	return n, true
}

func (k *ggufKeys) inRange(key string, n int64) bool {
	if n < 0 || n > math.MaxInt32 {
		k.fail(key, "%d is not between 0 and 2^31-1", n)
		return false
	}
	return true
}

func (k *ggufKeys) or(key string, def int64) int64 {
	if n, ok := k.get(key); ok {
		return n
	}
	return def
}

func (k *ggufKeys) need(key string) int64 {
	n, ok := k.get(key)
	if !ok {
		k.fail(key, "missing")
	}
	return n
}

// list returns a list of numbers; ok is false when the key is missing or
// holds a single number.
func (k *ggufKeys) list(key string) (values []int64, ok bool) {
	values, ok = k.g.Ints(k.arch + "." + key)
	for _, n := range values {
		if !k.inRange(key, n) {
			return nil, false
		}
	}
	if ok {
		k.found(key)
	}
	return values, ok
}

// perLayer fills values from a list of exactly that length or from one number
// for all, and reports whether the key is present.
func (k *ggufKeys) perLayer(key string, values []int64) bool {
	if _, isArray := k.g.Len(k.arch + "." + key); isArray {
		list, ok := k.list(key)
		if !ok {
			k.fail(key, "not a list of whole numbers")
			return false
		}
		if len(list) != len(values) {
			k.fail(key, "%d entries for %d layers", len(list), len(values))
			return false
		}
		copy(values, list)
		return true
	}
	n, ok := k.get(key)
	if !ok {
		return false
	}
	for i := range values {
		values[i] = n
	}
	return true
}

// Architectures describe what they cache under cacheKeyPrefixes and in keys
// with one of cacheKeyWords. knownCacheKeys are those that the version read
// knows (LLM_KV names of llama-arch.cpp), whether or not they matter to the size.
var (
	cacheKeyPrefixes = []string{"attention.", "ssm.", "kda.", "wkv.", "shortconv."}
	cacheKeyWords    = []string{"kv", "cache", "window", "recurrent", "loop"}
	knownCacheKeys   = strings.Fields(`
		attention.head_count attention.head_count_kv attention.max_alibi_bias attention.clamp_kqv
		attention.key_length attention.value_length attention.layer_norm_epsilon attention.layer_norm_rms_epsilon
		attention.group_norm_epsilon attention.group_norm_groups attention.causal attention.q_lora_rank
		attention.kv_lora_rank attention.decay_lora_rank attention.iclr_lora_rank
		attention.value_residual_mix_lora_rank attention.gate_lora_rank attention.relative_buckets_count
		attention.sliding_window attention.sliding_window_pattern attention.rope_pattern attention.scale
		attention.output_scale attention.value_scale attention.temperature_length attention.temperature_scale
		attention.key_length_mla attention.value_length_mla attention.key_length_swa attention.value_length_swa
		attention.key_length_mla_swa attention.value_length_mla_swa attention.kv_lora_rank_swa
		attention.indexer.head_count attention.indexer.key_length attention.indexer.top_k
		attention.indexer.block_size attention.indexer.local_blocks attention.indexer.types
		attention.indexer.kpool attention.indexer.kpool_select_tail attention.output_group_count
		attention.output_lora_rank attention.compress_rope_freq_base attention.compress_ratios
		attention.shared_kv_layers attention.recurrent_layers
		ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank ssm.group_count ssm.dt_b_c_rms
		kda.head_dim kda.safe_gate kda.gate_lower_bound wkv.head_size shortconv.l_cache
		num_loops skip_loop_final_norm`)
)

// refuseUnknown fails on a key that may change the cache in a way unknown here.
func (k *ggufKeys) refuseUnknown() {
	for _, full := range k.g.Keys() {
		key, mine := strings.CutPrefix(full, k.arch+".")
		// Encoders of images and sound cache nothing.
		if !mine || slices.Contains(knownCacheKeys, key) || strings.HasPrefix(key, "vision.") || strings.HasPrefix(key, "audio.") {
			continue
		}
		if slices.ContainsFunc(cacheKeyPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) ||
			slices.ContainsFunc(cacheKeyWords, func(word string) bool { return strings.Contains(key, word) }) {
			k.err = fmt.Errorf("%w: GGUF key %s could change the cache", ErrUnknownArchitecture, full)
			return
		}
	}
}
