package formula

import (
	"fmt"
	"strings"
)

// llamaFamilies maps the model_type of a config.json (a preset's family) to
// the architecture that llama.cpp's converter writes for it (conversion/*.py).
// Empty means that the converter of that version knows no such model.
var llamaFamilies = map[string]string{
	"apertus": "apertus", "arctic": "arctic", "baichuan": "baichuan", "bamba": "granitehybrid", "bloom": "bloom",
	"chatglm": "chatglm", "cohere": "command-r", "cohere2": "cohere2", "cohere2_moe": "cohere2moe", "dbrx": "dbrx",
	"deepseek": "deepseek", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "deepseek_v32": "deepseek32",
	"deepseek_v4": "deepseek4", "dots1": "dots1", "ernie4_5": "ernie4_5", "ernie4_5_moe": "ernie4_5-moe",
	"exaone": "exaone", "exaone4": "exaone4", "exaone_moe": "exaone-moe", "falcon": "falcon", "falcon_h1": "falcon-h1",
	"falcon_mamba": "mamba", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3", "gemma3_text": "gemma3",
	"gemma3n": "gemma3n", "gemma3n_text": "gemma3n", "gemma4": "gemma4", "gemma4_text": "gemma4", "glm": "chatglm",
	"glm4": "glm4", "glm4_moe": "glm4moe", "glm4_moe_lite": "deepseek2", "glm_moe_dsa": "glm-dsa", "gpt2": "gpt2",
	"gpt_bigcode": "starcoder", "gpt_neox": "gptneox", "gpt_oss": "gpt-oss", "granite": "granite",
	"granitemoe": "granitemoe", "granitemoehybrid": "granitehybrid", "grok": "grok", "grok-1": "grok",
	"hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_moe": "hunyuan-moe", "internlm2": "internlm2",
	"jamba": "jamba", "kimi_k2": "deepseek2", "kimi_k25": "deepseek2", "kimi_k3": "kimi-k3", "kimi_linear": "kimi-linear",
	"lfm2": "lfm2", "lfm2_moe": "lfm2moe", "llama": "llama", "llama4": "llama4", "llama4_text": "llama4",
	"mamba": "mamba", "mamba2": "mamba2", "mimo": "qwen2", "mimo_v2_flash": "mimo2", "minicpm": "minicpm",
	"minicpm3": "minicpm3", "minimax_m1": "minimax-01", "minimax_text_01": "minimax-01", "minimax_m2": "minimax-m2",
	"minimax_m3": "minimax-m3", "mistral": "llama", "mistral3": "mistral3", "ministral": "mistral3", "mixtral": "llama",
	"mpt": "mpt", "nemotron": "nemotron", "nemotron-nas": "deci", "nemotron_h": "nemotron_h", "olmo": "olmo",
	"olmo2": "olmo2", "olmo3": "olmo2", "olmoe": "olmoe", "openelm": "openelm", "orion": "orion", "phi": "phi2",
	"phi3": "phi3", "phimoe": "phimoe", "plamo2": "plamo2", "plamo3": "plamo3", "qwen": "qwen", "qwen2": "qwen2",
	"qwen2_moe": "qwen2moe", "qwen2_vl": "qwen2vl", "qwen2_5_vl": "qwen2vl", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
	"qwen3_next": "qwen3next", "qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "qwen3_vl": "qwen3vl",
	"qwen3_vl_moe": "qwen3vlmoe", "rwkv6": "rwkv6", "rwkv7": "rwkv7", "seed_oss": "seed_oss",
	"smallthinker": "smallthinker", "smollm3": "smollm3", "stablelm": "stablelm", "starcoder2": "starcoder2",
	"step3p5": "step35", "step3p7": "step35", "t5": "t5", "umt5": "t5", "mt5": "t5",

	"gptj": "", "opt": "", "internlm": "", "mllama": "", "phi3small": "", "phi4flash": "", "recurrent_gemma": "",
	"step1": "", "step3_text": "", "whisper": "", "zamba": "", "zamba2": "",
}

// planLlamaModel lays out what llama.cpp would allocate for a model that is
// known by its layers rather than by a GGUF file.
func planLlamaModel(m *Model, l llamaOptions) (plan, draft *llamaPlan, err error) {
	p := &llamaPlan{name: m.Name, trainContext: m.MaxContext, causal: true, rollback: true, layers: m.Layers}
	a := llamaAdapter{model: m, plan: p, mla: l.mla, windows: true}
	family := strings.ToLower(m.Family)
	arch, listed := llamaFamilies[family]
	if _, named := llamaArchs[family]; !listed && named {
		arch = family // llama.cpp's own name, of a GGUF file
	}
	switch {
	case arch != "":
		row := llamaArchs[arch]
		p.noFlash, p.rollback = row.noFlash, row.rollback
		a.windows, a.indexV = row.slides(), row.memory == msaMemory
	case listed:
		p.warnings = append(p.warnings, fmt.Sprintf("llama.cpp converts no %s model: priced by the rules that other models follow", family))
	case family != "":
		p.warnings = append(p.warnings, fmt.Sprintf("whether llama.cpp takes %s models is not known: priced by the rules that other models follow", family))
	}
	if err := a.checkMLA(); err != nil {
		return nil, nil, err
	}
	if err := a.lay(m.Geometry, m.Blocks()); err != nil {
		return nil, nil, err
	}
	for i, b := range m.Blocks() {
		for _, s := range b.States {
			state := m.States[s]
			p.states = append(p.states, llamaLayerState{index: int64(i), r: state.ConvElements, s: state.SSMElements})
		}
	}
	if m.Cross != nil && arch != "" {
		p.warnings = append(p.warnings, "llama.cpp keeps no cross-attention cache: it computes those keys and values again for each batch")
	} else {
		p.cross = m.Cross
	}
	if !l.mtp {
		return p, nil, nil
	}
	if len(m.Draft) == 0 {
		return nil, nil, fmt.Errorf("engine option mtp: %s has no next-token-prediction layers", m.label())
	}
	d := *p
	d.caches, d.states, d.warnings, d.cross = nil, nil, nil, nil
	a.plan = &d
	if err := a.lay(m.Draft, (&Model{Geometry: m.Draft}).Blocks()); err != nil {
		return nil, nil, err
	}
	for i := range d.caches {
		d.caches[i].role = DraftKV
	}
	return p, &d, nil
}

// slides reports whether the architecture has windows that llama.cpp applies.
func (a llamaArch) slides() bool {
	return a.windowRule != noWindow || a.own != nil && (a.memory == attentionMemory || a.state == llamaShortconv)
}

// llamaAdapter sorts a model's groups into llama.cpp's caches.
type llamaAdapter struct {
	model   *Model
	plan    *llamaPlan
	mla     string
	windows bool // sliding layers keep their window
	indexV  bool // the cache of index keys gets a V of one head as well
}

func (a *llamaAdapter) checkMLA() error {
	latent := false
	for _, g := range a.model.Geometry {
		latent = latent || g.Latent() && g.Extra == "" && g.Kind == Full
	}
	x := a.model.MLA
	switch {
	case a.mla == "" || a.mla == mlaLatent && latent:
		return nil
	case !latent:
		return fmt.Errorf("engine option mla: %s has no latent", a.model.label())
	case a.mla == mlaLatentCopy && (x == nil || x.Rank < 1):
		return fmt.Errorf("engine option mla: the rank of the latent is unknown for %s", a.model.label())
	case a.mla == mlaExpanded && (x == nil || x.Heads < 1 || x.NopeDim < 1 || x.VDim < 1):
		return fmt.Errorf("engine option mla: the heads' widths are unknown for %s", a.model.label())
	}
	return nil
}

// layer is one layer of a group under the option mla.
func (a *llamaAdapter) layer(g Group) llamaLayer {
	l := llamaLayer{kvHeads: g.KVHeads, k: g.HeadDimK, v: g.HeadDimV}
	if x := a.model.MLA; g.Latent() && g.Extra == "" && g.Kind == Full && x != nil {
		switch a.mla {
		case mlaLatentCopy:
			l.v = x.Rank
		case mlaExpanded:
			l = llamaLayer{kvHeads: x.Heads, k: x.NopeDim + x.RopeDim, v: x.VDim}
		}
	}
	return l
}

// lay adds the caches of a geometry: the full layers, the sliding ones, the
// indexer's keys, or for compressed latents the five caches of DeepSeek-V4.
func (a *llamaAdapter) lay(geometry Geometry, blocks []Block) error {
	p := a.plan
	base, swa := llamaCache{role: AttentionKV}, llamaCache{role: SlidingKV, cells: windowCells}
	csa, hca := llamaCache{role: AttentionKV, cells: csaCells}, llamaCache{role: AttentionKV, cells: hcaCells}
	index := llamaCache{role: IndexerKeys, latent: true}
	compressed := false
	for _, g := range geometry {
		l := a.layer(g)
		compressed = compressed || g.Kind == Compressed
		if g.Extra != "" {
			continue
		}
		p.oneType = p.oneType || g.Latent()
		p.kWidths, p.vWidths = append(p.kWidths, l.k), append(p.vWidths, l.v)
		base.vWidest = max(base.vWidest, l.kvHeads*l.v)
		if g.Window > 0 && a.windows {
			if p.window > 0 && p.window != g.Window {
				p.warnings = append(p.warnings, fmt.Sprintf("llama.cpp has one window for all layers: the larger of %d and %d is taken", p.window, g.Window))
			}
			p.window = max(p.window, g.Window)
		}
	}
	swa.vWidest = base.vWidest
	ignored := int64(0)
	for i, b := range blocks {
		for _, at := range b.Groups {
			g := geometry[at]
			l := a.layer(g)
			l.index = int64(i)
			to := &base
			switch {
			case g.Extra == Index:
				to = &index
				if a.indexV {
					l.v = p.vWidths[0]
					index.vWidest = max(index.vWidest, l.v)
				}
				if g.Kind == Compressed {
					index.cells = csaCells
				}
			case g.Kind == Compressed && g.Ratio == dsv4CSARatio:
				to = &csa
			case g.Kind == Compressed && g.Ratio == dsv4HCARatio:
				to = &hca
			case g.Kind == Compressed:
				return fmt.Errorf("llama.cpp compresses by %d or %d, not by %d", dsv4CSARatio, dsv4HCARatio, g.Ratio)
			case g.Window > 0 && a.windows:
				to = &swa
			case g.Window > 0:
				ignored = max(ignored, g.Window)
			}
			to.latent = to.latent || g.Latent() && l.v == 0
			to.layers = append(to.layers, l)
			if g.Kind == Compressed && g.Window > 0 && g.Extra == "" {
				swa.layers = append(swa.layers, l)
			}
		}
	}
	if ignored > 0 {
		p.warnings = append(p.warnings, fmt.Sprintf("llama.cpp ignores the window of %d tokens of this model: every layer keeps the whole context", ignored))
	}
	if compressed {
		p.caches = []llamaCache{base, swa, csa, hca, index}
		for i := range p.caches {
			p.caches[i].perSequence = true
		}
		a.compressors(csa, hca, index)
		return nil
	}
	for _, c := range []llamaCache{base, index, swa} {
		if len(c.layers) > 0 {
			p.caches = append(p.caches, c)
		}
	}
	return nil
}

// compressors adds the running state of the layers with compressed latents.
func (a *llamaAdapter) compressors(csa, hca, index llamaCache) {
	widths := map[int64]int64{}
	for _, l := range index.layers {
		widths[l.index] = l.k
	}
	for _, l := range csa.layers {
		a.plan.states = append(a.plan.states, llamaLayerState{index: l.index, comp: dsv4CompressorElements(dsv4CSARatio, l.k, widths[l.index])})
	}
	for _, l := range hca.layers {
		a.plan.states = append(a.plan.states, llamaLayerState{index: l.index, comp: dsv4CompressorElements(dsv4HCARatio, l.k, 0)})
	}
}
