package formula

import (
	"fmt"
	"strings"
)

// A Model is what the planner knows of a transformer: the tensors that its
// layers cache and the constant state beside them. Counts that are 0 and
// strings that are empty are unknown unless the field says otherwise.
type Model struct {
	Name string
	HFID string // repository on the Hugging Face hub
	// Family is the architecture's name where the model came from: model_type
	// of a config.json, general.architecture of a GGUF file.
	Family string

	Params       int64 // all parameters
	ActiveParams int64 // parameters that one token uses; equals Params for a dense model
	// Experts of a layer, and how many of them a token uses; 0 for a dense
	// model, and for presets, whose parameters tell.
	Experts, ExpertsPerToken int64

	Layers     int64 // blocks of the decoder, with those that cache nothing
	QueryHeads int64 // attention heads; 0 where layers differ
	MaxContext int64 // tokens

	Geometry Geometry
	// Order says, block by block, what each of the Layers caches. Engines need
	// it for pipeline stages and for groups of interleaved layers. It is nil
	// where the source does not tell; Model.Blocks then gives a stand-in.
	Order []Block

	MLA    *MLA     // set where the latent can be cached in its expanded form
	States []State  // recurrent and convolution state, one entry a kind of layer
	Cross  *Cross   // keys and values of the encoder's or the image's tokens
	Draft  Geometry // cache of MTP or draft layers, which only speculative decoding uses

	DType string // the config's element type: "bfloat16", "float16"; not the cache's

	// Source is where the model came from, as the JSON report says it:
	// "preset", "config", "gguf", "geometry" or "flags".
	Source string
	// Citation names the document behind it: a repository path, a file.
	Citation   string
	Confidence string // "high", "medium" or "low", for presets
	// Facts says for single figures where they came from, in the order in
	// which they are to be explained.
	Facts []Fact
	Notes []string // what a reader of the figures should know
	// UpperBound says what was not known and assumed to keep every token, which
	// makes the figures an upper bound; empty where nothing was.
	UpperBound string

	gguf    *GGUF // the header it was read from, if one was
	assumed bool  // unknown keys were passed over
}

// A Fact is one figure of a model and where it was found: Name "kv heads",
// Value "8", From "config.json: num_key_value_heads".
type Fact struct{ Name, Value, From string }

// A Block is one block of the decoder. Both lists are empty for a block that
// caches nothing of its own (an MLP, or a layer that reads an earlier layer's
// cache).
type Block struct {
	Groups []int // indices into Model.Geometry; several where a block holds extra tensors
	States []int // indices into Model.States
}

// MLA is the geometry of multi-head latent attention, for engines that cache
// its expanded form: Heads x (NopeDim+RopeDim) for K and Heads x VDim for V in
// place of one vector of Rank+RopeDim.
type MLA struct {
	Rank    int64 // kv_lora_rank
	RopeDim int64 // qk_rope_head_dim
	NopeDim int64 // qk_nope_head_dim; 0 when unknown
	VDim    int64 // v_head_dim; 0 when unknown
	Heads   int64 // query heads; 0 when unknown
}

// A State is the constant state of Layers alike layers. The element counts are
// those of one layer and one sequence on a single device.
type State struct {
	// Kind names the layer: "mamba1", "mamba2", "gdn" (gated DeltaNet), "kda",
	// "lightning", "shortconv", "rglru"; empty when unknown.
	Kind         string
	Layers       int64
	ConvElements int64 // the last inputs of the convolution
	SSMElements  int64 // the recurrent state
	// ConvSteps is how many inputs the convolution keeps (kernel - 1):
	// ConvElements = ConvSteps x channels. 0 when unknown.
	ConvSteps int64
	ConvBytes int64 // bytes an element
	SSMBytes  int64
}

// Bytes is the state of one sequence over all its layers.
func (s State) Bytes() (int64, error) {
	var c calc
	n := c.add(c.mul(s.Layers, s.ConvElements, s.ConvBytes), c.mul(s.Layers, s.SSMElements, s.SSMBytes))
	return n, c.err
}

// Cross is cross attention: Layers layers hold K and V of the encoder's
// tokens, a constant once the encoder has run.
type Cross struct {
	Layers, KVHeads, HeadDimK, HeadDimV int64
	Tokens                              int64 // the encoder's length; 0 where the input decides
}

// Elements is what one encoder token takes over all layers.
func (c Cross) Elements() (int64, error) {
	var calc calc
	n := calc.mul(c.Layers, c.KVHeads, calc.add(c.HeadDimK, c.HeadDimV))
	return n, calc.err
}

// A Sizer is one side of a scheme: it knows what the tensor [heads, tokens,
// dim] of one layer of one sequence takes, codes apart from scales and other
// metadata. Bytes must be exact, not an average.
type Sizer interface {
	Name() string
	Size(heads, tokens, dim int64) (data, metadata int64, err error)
}

// A Dipper is a Sizer whose bytes drop at some lengths, because recent tokens
// are kept in full precision until there are enough of them to encode. A tensor
// of offset + k x period tokens takes no more than any longer one; period 0
// means that bytes never drop.
type Dipper interface {
	Dips() (period, offset int64)
}

// Validate checks what the rest of the package takes for granted.
func (m *Model) Validate() error {
	if len(m.Geometry) == 0 && len(m.States) == 0 && m.Cross == nil {
		return fmt.Errorf("model %s: no layer of it caches anything", m.label())
	}
	for i, g := range m.Geometry {
		if err := g.validate(); err != nil {
			return fmt.Errorf("model %s: group %d: %w", m.label(), i+1, err)
		}
	}
	for _, s := range m.States {
		if s.Layers < 1 || s.Layers > maxLayers || s.ConvElements < 0 || s.SSMElements < 0 || s.ConvElements+s.SSMElements <= 0 ||
			(s.ConvElements > 0 && s.ConvBytes < 1) || (s.SSMElements > 0 && s.SSMBytes < 1) {
			return fmt.Errorf("model %s: recurrent state of %d layers has no size", m.label(), s.Layers)
		}
	}
	if c := m.Cross; c != nil && (c.Layers < 1 || c.KVHeads < 1 || c.HeadDimK < 1 || c.HeadDimV < 0 || c.Tokens < 0) {
		return fmt.Errorf("model %s: cross attention of %d layers has no size", m.label(), c.Layers)
	}
	if m.Layers < 0 || m.Layers > maxLayers {
		return fmt.Errorf("model %s: %d layers (at most %d)", m.label(), m.Layers, maxLayers)
	}
	if m.Order == nil {
		return nil
	}
	if int64(len(m.Order)) != m.Layers {
		return fmt.Errorf("model %s: an order of %d blocks for %d layers", m.label(), len(m.Order), m.Layers)
	}
	groups, states := make([]int64, len(m.Geometry)), make([]int64, len(m.States))
	for i, b := range m.Order {
		for _, g := range b.Groups {
			if g < 0 || g >= len(groups) {
				return fmt.Errorf("model %s: block %d names group %d of %d", m.label(), i, g, len(groups))
			}
			groups[g]++
		}
		for _, s := range b.States {
			if s < 0 || s >= len(states) {
				return fmt.Errorf("model %s: block %d names state %d of %d", m.label(), i, s, len(states))
			}
			states[s]++
		}
	}
	for i, n := range groups {
		if n != m.Geometry[i].Count {
			return fmt.Errorf("model %s: the order has %d layers of group %s", m.label(), n, m.Geometry[i])
		}
	}
	for i, n := range states {
		if n != m.States[i].Layers {
			return fmt.Errorf("model %s: the order has %d layers with state, not %d", m.label(), n, m.States[i].Layers)
		}
	}
	return nil
}

// Incomplete says what is known to be missing from the figures: convolutions
// of recurrent layers whose width the source does not tell.
func (m *Model) Incomplete() []string {
	var missing []string
	for _, s := range m.States {
		convolves := s.Kind == "mamba1" || s.Kind == "mamba2" || s.Kind == "gdn" || s.Kind == "kda" || s.Kind == "rglru"
		if convolves && s.ConvElements == 0 {
			missing = append(missing, fmt.Sprintf("%s: the convolution state of %d %s layers is not known and not counted", m.label(), s.Layers, s.Kind))
		}
	}
	return missing
}

func (m *Model) label() string {
	if m.Name != "" {
		return m.Name
	}
	return strings.TrimSpace(m.Source + " " + m.Geometry.String())
}

// StateBytes is the recurrent and convolution state of one sequence, in the
// types that the states name.
func (m *Model) StateBytes() (int64, error) {
	var c calc
	n := int64(0)
	for _, s := range m.States {
		n = c.add(n, c.keep(s.Bytes()))
	}
	return n, c.err
}

// Blocks returns Order, or where the order is unknown a stand-in: layers of
// each group and state spread evenly over the depth, extra tensors on the
// first layers that hold a cache.
func (m *Model) Blocks() []Block {
	if m.Order != nil {
		return m.Order
	}
	layers := max(m.Layers, m.Geometry.Layers())
	for _, s := range m.States {
		layers = max(layers, s.Layers)
	}
	blocks := make([]Block, layers)
	// Layers that cache tokens come in the order in which their group falls
	// due: after i of n layers a group of c has had floor(c*(i+1)/n).
	var attend []int
	total := m.Geometry.Layers()
	given := make([]int64, len(m.Geometry))
	for i := range total {
		best, lag := -1, int64(0)
		for g, group := range m.Geometry {
			if group.Extra != "" || given[g] == group.Count {
				continue
			}
			if l := group.Count*(i+1) - given[g]*total; best < 0 || l > lag {
				best, lag = g, l
			}
		}
		given[best]++
		at := int((i*2 + 1) * layers / (2 * total))
		attend = append(attend, at)
		blocks[at].Groups = append(blocks[at].Groups, best)
	}
	for g, group := range m.Geometry {
		if group.Extra == "" {
			continue
		}
		for i := range min(int(group.Count), len(attend)) {
			at := attend[i]
			blocks[at].Groups = append(blocks[at].Groups, g)
		}
	}
	for s, state := range m.States {
		left := state.Layers
		// A model with fewer states than layers keeps them where no token is cached.
		for pass := 0; pass < 2 && left > 0; pass++ {
			for i := range blocks {
				if free := len(blocks[i].Groups) == 0 && len(blocks[i].States) == 0; left > 0 && free == (pass == 0) && !has(blocks[i].States, s) {
					blocks[i].States = append(blocks[i].States, s)
					left--
				}
			}
		}
	}
	return blocks
}

func has(list []int, n int) bool {
	for _, v := range list {
		if v == n {
			return true
		}
	}
	return false
}
