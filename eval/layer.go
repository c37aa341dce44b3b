package eval

import (
	"fmt"
	"math"
	"slices"

	"kvq/kernels"
	"kvq/quantize"
)

// A Tensor names one of a layer's tensors.
type Tensor string

// The tensors of a layer.
const (
	Keys    Tensor = "k"
	Values  Tensor = "v"
	Queries Tensor = "q"
	Output  Tensor = "o"
)

// A Layer is one attention layer of a dump, as eval reads it. Its tensors stay
// where they are until a head is read.
type Layer struct {
	Dump   string // the dump's name in rows: what --baseline matches on
	Path   string // where it was read from
	Number int    // the layer's number in its model
	DType  string // the dump's own type: f16, bf16, f32, f64, e4m3, e5m2

	Tokens, KVHeads, QueryHeads int
	DimK, DimV                  int

	// QueryRows is the number of captured query rows of each query head, 0
	// without captured queries; QueryHeads then gives the heads all the same
	// (KVHeads when the model's are unknown). QueryPositions says which token
	// each row stands at, in any order.
	QueryRows      int
	QueryPositions []int

	Facts   Facts
	Assumed []string // names of facts that the dump did not state

	// ModelDim is the number of rows of the output projection, 0 when the dump
	// has none; OutputWeight has one entry per query row.
	ModelDim     int
	OutputWeight []float64

	// Read fills dst with one head of a tensor, tokens (or query rows) by
	// channels, row-major. Of Output, head is a query head and dst holds the
	// ModelDim × DimV columns of the projection that this head's output meets.
	// Values are finite. It may be called from several goroutines at once. Its
	// errors name the file.
	Read func(dst []float32, tensor Tensor, head int) error
}

// Facts are what attention needs to know beyond its tensors.
type Facts struct {
	Scale         float64 // multiplies q·k
	Causal        bool
	Window        int       // a query at p sees t > p − Window; 0: no window
	Chunk         int       // a query sees its own chunk of this many tokens; 0: none
	Softcap       float64   // logits become Softcap·tanh(z/Softcap); 0: none
	Sinks         []float64 // a logit per query head that joins the denominator; nil: none
	FirstPosition int       // the model's position of token 0, for RoPE only
	Rope          *Rope     // nil when the dump does not say
}

// A Rope is the rotary embedding that the dump's keys carry.
type Rope struct {
	Applied bool // whether the keys of the dump are rotated
	Theta   float64
	Style   string // "half" or "interleaved"
	Dims    int    // rotated channels, 0: all
	// Frequencies has a rotation per token for each rotated pair of channels,
	// scaling included; nil: Theta^(−2i/Dims).
	Frequencies []float64
}

// KeyRope is what +prerope takes back from the keys, nil where the dump does not say.
func (l *Layer) KeyRope() *quantize.Rope { return l.schemeRope(keys) }

// schemeRope is what +prerope needs of a tensor: nil for values and where the
// dump does not say. Keys that are not rotated have no frequencies.
func (l *Layer) schemeRope(tensor int) *quantize.Rope {
	r := l.Facts.Rope
	if tensor != keys || r == nil {
		return nil
	}
	rope := &quantize.Rope{Interleaved: r.Style == "interleaved", First: l.Facts.FirstPosition}
	if !r.Applied {
		return rope
	}
	if rope.Frequencies = r.Frequencies; rope.Frequencies == nil {
		dims := r.Dims
		if dims == 0 {
			dims = l.DimK
		}
		for i := range dims / 2 {
			rope.Frequencies = append(rope.Frequencies, kernels.Exp(float64(-2*i)/float64(dims)*kernels.Log(r.Theta)))
		}
	}
	return rope
}

// check says what makes a layer impossible to evaluate.
func (l *Layer) check() error {
	switch {
	case l.Tokens <= 0 || l.KVHeads <= 0 || l.DimK <= 0 || l.DimV <= 0:
		return l.errorf("keys [%d, %d, %d] and values of %d channels: nothing to measure", l.KVHeads, l.Tokens, l.DimK, l.DimV)
	case l.QueryHeads <= 0 || l.QueryHeads%l.KVHeads != 0:
		return l.errorf("%d query heads do not share %d KV heads evenly", l.QueryHeads, l.KVHeads)
	case len(l.QueryPositions) != l.QueryRows:
		return l.errorf("%d query rows but %d q_positions", l.QueryRows, len(l.QueryPositions))
	case l.Facts.Sinks != nil && len(l.Facts.Sinks) != l.QueryHeads:
		return l.errorf("%d sinks for %d query heads", len(l.Facts.Sinks), l.QueryHeads)
	case l.Facts.Window < 0 || l.Facts.Chunk < 0 || l.Facts.Softcap < 0:
		return l.errorf("window, chunk and softcap cannot be negative")
	case !finite(l.Facts.Scale) || !finite(l.Facts.Softcap) || !finite(l.Facts.Sinks...):
		return l.errorf("scale, softcap and sinks must be finite")
	case l.ModelDim > 0 && l.QueryRows > 0 && len(l.OutputWeight) != l.QueryRows:
		return l.errorf("%d query rows but %d entries of o_weight", l.QueryRows, len(l.OutputWeight))
	case l.Read == nil:
		return l.errorf("no reader")
	}
	for _, p := range l.QueryPositions {
		if p < 0 || p >= l.Tokens {
			return l.errorf("q_positions holds %d, outside 0..%d", p, l.Tokens-1)
		}
	}
	return nil
}

func finite(x ...float64) bool {
	return !slices.ContainsFunc(x, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
}

func (l *Layer) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: layer %d: %s", l.Dump, l.Number, fmt.Sprintf(format, args...))
}
