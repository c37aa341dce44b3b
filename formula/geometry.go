package formula

import (
	"fmt"
	"strconv"
	"strings"
)

// A Kind says how many of a sequence's S tokens a layer keeps.
type Kind string

// The kinds of layers.
const (
	Full       Kind = "full"       // S
	Sliding    Kind = "sliding"    // min(S, Window)
	Chunked    Kind = "chunked"    // min(S, Window), the chunk size
	Compressed Kind = "compressed" // floor(S/Ratio), plus min(S, Window) where a window is given
)

// Extra tensors that layers hold besides those another group counts.
const (
	Index   = "index"   // keys of a sparse-attention indexer: 2 bytes an element whatever the scheme
	Entries = "entries" // compressed latents beside a sliding window
)

// A Group is Count layers alike.
type Group struct {
	// Extra is empty for layers, or Index or Entries for a further tensor on
	// layers that another group already counts.
	Extra    string
	Count    int64
	Kind     Kind
	Window   int64 // tokens; 0 when the kind has none
	Ratio    int64 // tokens an entry, for Compressed
	KVHeads  int64
	HeadDimK int64
	HeadDimV int64 // 0 when K and V share one latent
}

// A Geometry is a model's groups. Its text form, the same in presets, flags
// and JSON, is the groups joined by ';', each
//
//	[index:|entries:]COUNTxKIND[WINDOW][/RATIO]:HEADSxK+V
//
// as in 12xfull:8x64+64;12xsliding128:8x64+64. V is 0 for a shared latent.
type Geometry []Group

// String returns the text form of one group.
func (g Group) String() string {
	var b strings.Builder
	if g.Extra != "" {
		b.WriteString(g.Extra + ":")
	}
	fmt.Fprintf(&b, "%dx%s", g.Count, g.Kind)
	if g.Window != 0 {
		fmt.Fprintf(&b, "%d", g.Window)
	}
	if g.Ratio != 0 {
		fmt.Fprintf(&b, "/%d", g.Ratio)
	}
	fmt.Fprintf(&b, ":%dx%d+%d", g.KVHeads, g.HeadDimK, g.HeadDimV)
	return b.String()
}

// String returns the text form, which ParseGeometry reads back.
func (g Geometry) String() string {
	parts := make([]string, len(g))
	for i, group := range g {
		parts[i] = group.String()
	}
	return strings.Join(parts, ";")
}

// Latent reports whether K and V share one vector.
func (g Group) Latent() bool { return g.HeadDimV == 0 }

// Describe says in words what the group's layers keep.
func (g Group) Describe() string {
	var tokens string
	switch g.Kind {
	case Sliding:
		tokens = fmt.Sprintf("of the last %d tokens", g.Window)
	case Chunked:
		tokens = fmt.Sprintf("of a chunk of up to %d tokens", g.Window)
	case Compressed:
		tokens = fmt.Sprintf("for every %d tokens", g.Ratio)
		if g.Window > 0 {
			tokens += fmt.Sprintf(", and of the last %d", g.Window)
		}
	default:
		tokens = "of every token"
	}
	what := fmt.Sprintf("%d KV heads, K %d and V %d wide", g.KVHeads, g.HeadDimK, g.HeadDimV)
	switch {
	case g.Extra == Index:
		what = fmt.Sprintf("an index key %d wide", g.HeadDimK)
	case g.Latent() && g.KVHeads == 1:
		what = fmt.Sprintf("one vector %d wide for K and V", g.HeadDimK)
	case g.KVHeads == 1:
		what = fmt.Sprintf("1 KV head, K %d and V %d wide", g.HeadDimK, g.HeadDimV)
	}
	return fmt.Sprintf("%d layers, %s, %s", g.Count, what, tokens)
}

// Tokens is how many vectors a layer keeps of a sequence of s tokens.
func (g Group) Tokens(s int64) int64 {
	switch g.Kind {
	case Sliding, Chunked:
		return min(s, g.Window)
	case Compressed:
		return s/g.Ratio + min(s, g.Window)
	default:
		return s
	}
}

// shared is how many of the vectors that a layer keeps of s tokens belong to a
// prefix of p tokens: those that sequences with that prefix have in common.
func (g Group) shared(s, p int64) int64 {
	p = min(p, s)
	switch g.Kind {
	case Sliding, Chunked:
		return min(s, g.Window) - min(s-p, g.Window)
	case Compressed:
		return p/g.Ratio + min(s, g.Window) - min(s-p, g.Window)
	default:
		return p
	}
}

// Layers counts the layers that keep tokens; extra tensors add none.
func (g Geometry) Layers() int64 {
	n := int64(0)
	for _, group := range g {
		if group.Extra == "" {
			n += group.Count
		}
	}
	return n
}

// Uniform returns the KV heads and widths that all layers share, extra tensors
// aside; ok is false when they differ or there are no layers.
func (g Geometry) Uniform() (heads, dimK, dimV int64, ok bool) {
	for _, group := range g {
		if group.Extra != "" {
			continue
		}
		if ok && (group.KVHeads != heads || group.HeadDimK != dimK || group.HeadDimV != dimV) {
			return 0, 0, 0, false
		}
		heads, dimK, dimV, ok = group.KVHeads, group.HeadDimK, group.HeadDimV, true
	}
	return heads, dimK, dimV, ok
}

// Equal reports whether both list the same groups in the same order.
func (g Geometry) Equal(other Geometry) bool {
	if len(g) != len(other) {
		return false
	}
	for i := range g {
		if g[i] != other[i] {
			return false
		}
	}
	return true
}

// maxLayers bounds the layers of a geometry: large enough for any model, and
// small enough that a typo does not pass for one.
const maxLayers = 1 << 16

func (g Group) validate() error {
	windowed := g.Kind == Sliding || g.Kind == Chunked
	switch {
	case g.Extra != "" && g.Extra != Index && g.Extra != Entries:
		return fmt.Errorf("unknown prefix %q (index, entries)", g.Extra)
	case g.Kind != Full && !windowed && g.Kind != Compressed:
		return fmt.Errorf("unknown kind %q (full, sliding, chunked, compressed)", g.Kind)
	case g.Count < 1 || g.Count > maxLayers:
		return fmt.Errorf("%d layers (1 to %d)", g.Count, maxLayers)
	case windowed && g.Window < 1:
		return fmt.Errorf("%s needs a number of tokens, as in %s4096", g.Kind, g.Kind)
	case g.Kind == Full && g.Window != 0:
		return fmt.Errorf("full layers have no window")
	case g.Kind == Compressed && g.Ratio < 1:
		return fmt.Errorf("compressed needs a ratio, as in compressed/4")
	case g.Kind != Compressed && g.Ratio != 0:
		return fmt.Errorf("only compressed layers have a ratio")
	case g.Window < 0:
		return fmt.Errorf("a window of %d tokens", g.Window)
	case g.KVHeads < 1:
		return fmt.Errorf("%d KV heads", g.KVHeads)
	case g.HeadDimK < 1:
		return fmt.Errorf("a K width of %d", g.HeadDimK)
	case g.HeadDimV < 0:
		return fmt.Errorf("a V width of %d", g.HeadDimV)
	}
	return nil
}

// ParseGeometry reads the text form in any case, with blanks around groups.
// Errors name the group by its position and text.
func ParseGeometry(text string) (Geometry, error) {
	var geometry Geometry
	total := int64(0)
	for i, part := range strings.Split(text, ";") {
		part = strings.ToLower(strings.TrimSpace(part))
		if i >= maxGroups {
			return nil, fmt.Errorf("geometry: more than %d groups", maxGroups)
		}
		group, err := parseGroup(part)
		if err != nil {
			return nil, fmt.Errorf("geometry: group %d %q: %w", i+1, clip(part), err)
		}
		if group.Extra == "" {
			total += group.Count
		}
		geometry = append(geometry, group)
	}
	switch {
	case total == 0:
		return nil, fmt.Errorf("geometry: only extra tensors, no layers they belong to")
	case total > maxLayers:
		return nil, fmt.Errorf("geometry: more than %d layers", maxLayers)
	}
	for i, group := range geometry {
		if group.Extra != "" && group.Count > total {
			return nil, fmt.Errorf("geometry: group %d %q: extra tensors on %d of %d layers", i+1, group, group.Count, total)
		}
	}
	return geometry, nil
}

// maxGroups bounds the groups of a geometry: one for each layer of the deepest
// model with room to spare.
const maxGroups = 4096

// clip shortens text for an error message.
func clip(text string) string {
	if len(text) > 60 {
		return text[:60] + "..."
	}
	return text
}

func parseGroup(text string) (Group, error) {
	var g Group
	shape := "COUNTxKIND[WINDOW][/RATIO]:HEADSxK+V"
	for _, extra := range []string{Index, Entries} {
		if rest, ok := strings.CutPrefix(text, extra+":"); ok {
			g.Extra, text = extra, rest
			break
		}
	}
	layers, widths, ok := strings.Cut(text, ":")
	if !ok {
		return g, fmt.Errorf("no ':' (want %s)", shape)
	}
	count, kind, ok := strings.Cut(layers, "x")
	if !ok {
		return g, fmt.Errorf("no 'x' after the layer count (want %s)", shape)
	}
	kind, ratio, hasRatio := strings.Cut(kind, "/")
	digits := strings.IndexAny(kind, "0123456789")
	window := ""
	if digits >= 0 {
		kind, window = kind[:digits], kind[digits:]
	}
	g.Kind = Kind(kind)
	heads, dims, ok := strings.Cut(widths, "x")
	if !ok {
		return g, fmt.Errorf("no 'x' after the KV heads (want %s)", shape)
	}
	dimK, dimV, ok := strings.Cut(dims, "+")
	if !ok {
		return g, fmt.Errorf("no '+' between the K and the V width (want %s; V is 0 for a shared latent)", shape)
	}
	fields := []struct {
		name, text string
		to         *int64
		present    bool
		low        int64
	}{
		{"layer count", count, &g.Count, true, 1},
		{"window", window, &g.Window, window != "", 1},
		{"ratio", ratio, &g.Ratio, hasRatio, 1},
		{"KV heads", heads, &g.KVHeads, true, 1},
		{"K width", dimK, &g.HeadDimK, true, 1},
		{"V width", dimV, &g.HeadDimV, true, 0},
	}
	for _, f := range fields {
		if !f.present {
			continue
		}
		n, err := strconv.ParseUint(f.text, 10, 63)
		if err != nil || int64(n) < f.low {
			return g, fmt.Errorf("%s %q is not a whole number from %d", f.name, clip(f.text), f.low)
		}
		*f.to = int64(n)
	}
	return g, g.validate()
}
