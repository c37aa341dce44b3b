package formula

import (
	"fmt"
	"slices"
	"strings"
)

// A vllmKind says which tokens a layer keeps for vLLM's planner.
type vllmKind string

const (
	vllmFull       vllmKind = "full"    // all of them, heads with their own K and V
	vllmMLA        vllmKind = "mla"     // all, one latent vector each
	vllmIndex      vllmKind = "index"   // all, one key of a sparse-attention indexer each
	vllmSliding    vllmKind = "swa"     // the last Window
	vllmSlidingMLA vllmKind = "swa-mla" // the last Window, one latent vector each
	vllmChunked    vllmKind = "chunk"   // those of the chunk of Window that the newest is in
	vllmState      vllmKind = "state"   // none: a recurrent state
	vllmCross      vllmKind = "cross"   // the encoder's
)

// keepsAll reports whether the planner takes the kind for full attention.
func (k vllmKind) keepsAll() bool { return k == vllmFull || k == vllmMLA || k == vllmIndex }

// slides reports whether blocks behind a window are freed.
func (k vllmKind) slides() bool { return k == vllmSliding || k == vllmSlidingMLA }

// vllmLayers are the layers of a model that have one cache spec on one rank:
// what vLLM's planner compares when it looks for layers that can share blocks.
type vllmLayers struct {
	Count int64
	Kind  vllmKind

	Heads      int64  // KV heads of a rank
	DimK, DimV int64  // elements of a head
	Store      string // type of what is stored, by torch's name
	TokenBytes int64  // one token in one layer of one rank
	Ratio      int64  // tokens of the request that one stored vector stands for; 0 is 1
	// Window is the sliding window or the chunk in tokens. A full layer has
	// one where it was promoted from a windowed layer.
	Window int64

	StateBytes  int64 // one state of one layer of one rank
	Checkpoint  int64 // further blocks that prefix caching keeps as checkpoints
	Speculative int64 // further blocks, one a speculative token

	Block  int64 // tokens a page holds
	Padded int64 // bytes that the page is padded to; 0: it is not
	// Align is what the distance of two blocks is a multiple of, in bytes; 0 is 1.
	Align int64
}

// held is what a page holds without padding (docs/planning-vllm.md §2).
func (l vllmLayers) held(c *calc) int64 {
	if l.Kind == vllmState {
		return l.StateBytes
	}
	return c.mul(l.Block/max(l.Ratio, 1), l.TokenBytes)
}

// page is what a page takes.
func (l vllmLayers) page(c *calc) int64 {
	if l.Padded > 0 {
		return l.Padded
	}
	return l.held(c)
}

// stride is the distance of two pages of a layer, where each layer has its own
// region.
func (l vllmLayers) stride(c *calc) int64 { return c.roundUp(l.page(c), max(l.Align, 1)) }

// alike reports whether both have one spec, however many layers have it.
func (l vllmLayers) alike(other vllmLayers) bool {
	l.Count = other.Count
	return l == other
}

// A vllmCacheType is one value of vLLM's --kv-cache-dtype (docs/planning-vllm.md
// §2). The bytes are those of one token.
type vllmCacheType struct {
	name  string
	store string // by torch's name
	// data and metadata are one side of one head of so many elements.
	data, metadata func(dim int64, value bool) int64
	// latent is a whole MLA latent of 512 + 64 where its width does not give
	// it, latentScales what of it are scales.
	latent, latentScales int64
	// sm100: only that device stores it.
	sm100 bool
	// noMLA: no backend of vLLM stores latents in this type.
	noMLA bool
	// even: K and V of a head are one slot, padded to an even number of bytes.
	even bool
}

func vllmCacheTypes() []vllmCacheType {
	bits := func(n int64) func(int64, bool) int64 {
		return func(dim int64, _ bool) int64 { return ceilDiv(dim*n, 8) }
	}
	none := func(int64, bool) int64 { return 0 }
	// One float32 scale for each of K and V.
	perTokenHead := func(int64, bool) int64 { return 4 }
	// K and V of TurboQuant have their own bit widths; V carries an fp16 scale
	// and zero point, K an fp16 norm unless it is plain fp8.
	turbo := func(k, v int64) (data, metadata func(int64, bool) int64) {
		data = func(dim int64, value bool) int64 {
			if value {
				return ceilDiv(dim*v, 8)
			}
			return ceilDiv(dim*k, 8)
		}
		metadata = func(_ int64, value bool) int64 {
			switch {
			case value:
				return 4
			case k == 8:
				return 0
			}
			return 2
		}
		return data, metadata
	}
	types := []vllmCacheType{
		{name: "auto", store: "bfloat16", data: bits(16), metadata: none},
		{name: "bfloat16", store: "bfloat16", data: bits(16), metadata: none},
		{name: "float16", store: "float16", data: bits(16), metadata: none},
		{name: "fp8", store: "uint8", data: bits(8), metadata: none},
		{name: "fp8_e4m3", store: "uint8", data: bits(8), metadata: none},
		{name: "fp8_e5m2", store: "uint8", data: bits(8), metadata: none},
		{name: "fp8_ds_mla", store: "uint8", data: bits(8), metadata: none, latent: 656, latentScales: 16},
		{name: "nvfp4_ds_mla", store: "uint8", data: bits(4), metadata: none, latent: 352, latentScales: 32, sm100: true},
		{name: "int8_per_token_head", store: "int8", data: bits(8), metadata: perTokenHead, noMLA: true},
		{name: "fp8_per_token_head", store: "uint8", data: bits(8), metadata: perTokenHead, noMLA: true},
		{name: "int4_per_token_head", store: "uint8", data: bits(4), metadata: perTokenHead, noMLA: true},
		{name: "nvfp4", store: "uint8", data: bits(4), metadata: func(dim int64, _ bool) int64 { return dim / 16 }, noMLA: true, sm100: true},
	}
	for _, t := range []struct {
		name string
		k, v int64
	}{{"turboquant_k8v4", 8, 4}, {"turboquant_4bit_nc", 4, 4}, {"turboquant_k3v4_nc", 3, 4}, {"turboquant_3bit_nc", 3, 3}} {
		data, metadata := turbo(t.k, t.v)
		types = append(types, vllmCacheType{name: t.name, store: "uint8", data: data, metadata: metadata, noMLA: true, even: true})
	}
	return types
}

// lookupVLLMCacheType finds a type by vLLM's name, or by the name that kvq has
// for what is the same bytes.
func lookupVLLMCacheType(name string) (vllmCacheType, error) {
	lower := strings.ToLower(name)
	switch lower {
	case "f16", "half":
		lower = "float16"
	case "bf16":
		lower = "bfloat16"
	case "e4m3-raw":
		lower = "fp8_e4m3"
	case "e5m2":
		lower = "fp8_e5m2"
	}
	var names []string
	for _, t := range vllmCacheTypes() {
		if t.name == lower {
			return t, nil
		}
		names = append(names, t.name)
	}
	return vllmCacheType{}, fmt.Errorf("vllm has no cache type %q (%s)", name, strings.Join(names, ", "))
}

func (t vllmCacheType) turboQuant() bool { return strings.HasPrefix(t.name, "turboquant_") }

// quantized reports whether layers can be left out of the type.
func (t vllmCacheType) quantized() bool { return t.store != "bfloat16" && t.store != "float16" }

// fp8 reports whether the type is plain fp8, which some backends read in
// larger blocks only.
func (t vllmCacheType) fp8() bool {
	return slices.Contains([]string{"fp8", "fp8_e4m3", "fp8_e5m2"}, t.name)
}

// head is one token of one head, K and V.
func (t vllmCacheType) head(dimK, dimV int64) int64 {
	n := t.data(dimK, false) + t.metadata(dimK, false)
	if dimV > 0 {
		n += t.data(dimV, true) + t.metadata(dimV, true)
	}
	if t.even {
		n += n % 2
	}
	return n
}

// vllmLatent is the width of DeepSeek's latents.
const vllmLatent = 576

// vllmIndexKey is one indexer key of DeepSeek-V3.2 and GLM-5: 128 fp8 values
// and a float32 scale, whatever the cache type.
const vllmIndexKey = 132

// A vllmRefused is a request that vLLM turns down before it plans.
type vllmRefused struct{ text string }

func (r *vllmRefused) Error() string { return r.text }

// stored sets what the layers store under the type: Store and TokenBytes. Index
// layers have theirs already.
func (t vllmCacheType) stored(c *calc, l vllmLayers) (vllmLayers, error) {
	switch {
	case l.Kind == vllmState || l.Kind == vllmIndex:
		return l, nil
	case l.Kind == vllmMLA && t.noMLA:
		return l, &vllmRefused{fmt.Sprintf("none of its attention backends for MLA stores latents as %s", t.name)}
	case t.latent > 0 && (l.Kind != vllmMLA || l.DimK != vllmLatent):
		return l, &vllmRefused{fmt.Sprintf("%s stores latents of 512 + 64 only", t.name)}
	}
	l.Store = t.store
	if l.Kind == vllmMLA && t.latent > 0 {
		l.TokenBytes = t.latent
		return l, nil
	}
	l.TokenBytes = c.mul(l.Heads, t.head(l.DimK, l.DimV))
	return l, nil
}

// vllmBlockRule is what the block size depends on (docs/planning-vllm.md §3).
type vllmBlockRule struct {
	Asked      int64 // --block-size; 0: not given
	Kernel     int64 // smallest block that every attention backend takes
	StateStep  int64 // alignment of the state's checkpoints; 1: none
	LatentStep int64 // beside states, MLA blocks are a multiple of so much; 0 is 1
	// WideToken is one token of the layers left unquantized, QuantToken one of
	// the others as the alignment prices it; 0: no layer is left out.
	WideToken, QuantToken int64
}

// set gives every layer its block and pads the states and the windowed layers
// that were left unquantized to the page of the others.
func (r vllmBlockRule) set(c *calc, layers []vllmLayers) (block int64) {
	block = r.Kernel
	if r.Asked > 0 {
		block = r.Asked
	}
	var token, state int64 // the first attention layer's token, the largest state
	latent := false
	for _, l := range layers {
		switch {
		case l.Kind == vllmState:
			state = max(state, l.StateBytes)
		case token == 0 && l.Kind != vllmIndex && l.Kind != vllmCross:
			token, latent = l.TokenBytes, l.Kind == vllmMLA
		}
	}
	if r.QuantToken > 0 {
		token = r.QuantToken
	}
	var page int64 // of states, 0 where none is padded
	if state > 0 && token > 0 {
		step := max(r.Kernel, block)
		if latent {
			step = max(step, r.LatentStep)
		}
		step = c.lcm(step, max(r.StateStep, 1))
		if stride := c.mul(step, token); stride > 0 {
			block = max(block, c.roundUp(c.mul(ceilDiv(state, stride), step), r.Kernel))
		}
		page = c.mul(block, token)
	}
	var shared int64  // page of layers left unquantized, 0 where none is padded
	const kernel = 16 // smallest block of the backends that layers are left to
	if r.WideToken > r.QuantToken {
		// Until a quantized page covers a wide one of the smallest block.
		step := max(kernel, block)
		if stride := c.mul(step, r.QuantToken); stride > 0 {
			block = max(block, c.mul(step, ceilDiv(max(c.mul(kernel, r.WideToken), page), stride)))
		}
		shared = c.mul(block, r.QuantToken)
		if page > 0 {
			page = shared
		}
	}
	for i := range layers {
		l := &layers[i]
		l.Block = block
		switch {
		case l.Kind == vllmState && page != state:
			l.Padded = page
		case l.Kind == vllmSliding && shared > 0:
			// The largest block of the kernel's steps whose page the shared one
			// holds; the page is padded to it.
			l.Block = max(shared/max(l.TokenBytes, 1)/kernel, 1) * kernel
			l.Padded = shared
		}
	}
	return block
}
