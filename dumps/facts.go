package dumps

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Schema identifies version 1 of the attention facts.
const Schema = "kvq.dump/1"

// maxFacts bounds the JSON of a dump's facts.
const maxFacts = 8 << 20

// Facts are what attention needs to know about a layer beyond its tensors.
type Facts struct {
	Model         string
	Source        string
	RoPEApplied   *bool // whether K and Q are as after the rotation; nil when not said
	Scale         float64
	Causal        bool
	Window        int       // tokens that a query sees, itself included; 0 for no window
	Chunk         int       // chunk length of chunked attention; 0 for none
	Softcap       float64   // logits become c·tanh(z/c); 0 for none
	Sinks         []float64 // one logit per query head that joins the denominator; nil for none
	RoPE          *RoPE
	FirstPosition int // RoPE position of token 0
	// Given and Assumed name the facts that were stated and those that were
	// filled in, in the order of the fields above; "kv_heads" is assumed where
	// a file does not store the number, and one head stands in for them.
	Given, Assumed []string
}

// RoPE describes a rotary position embedding.
type RoPE struct {
	Theta  float64 // 0 when not said
	Style  string  // "half" or "interleaved"; empty when not said
	Dims   int     // rotated channels; 0 for all
	Factor float64 // context extension; 0 for none
	// Scaling holds the remaining Hugging Face scaling keys as they were given.
	Scaling map[string]any
}

// MarshalJSON writes the scaling keys beside the others.
func (r RoPE) MarshalJSON() ([]byte, error) {
	m := map[string]any{}
	maps.Copy(m, r.Scaling)
	if r.Theta != 0 {
		m["theta"] = r.Theta
	}
	if r.Style != "" {
		m["style"] = r.Style
	}
	if r.Dims != 0 {
		m["dims"] = r.Dims
	}
	if r.Factor != 0 {
		m["factor"] = r.Factor
	}
	return json.Marshal(m)
}

// FactSet is the facts of one layer, or the defaults of all, as a kvq.dump/1
// object states them: nil means not said.
type FactSet struct {
	Scale         *float64  `json:"scale,omitempty"`
	Causal        *bool     `json:"causal,omitempty"`
	Window        *int      `json:"window,omitempty"`
	Chunk         *int      `json:"chunk,omitempty"`
	Softcap       *float64  `json:"softcap,omitempty"`
	Sinks         []float64 `json:"sinks,omitempty"`
	RoPE          *RoPE     `json:"rope,omitempty"`
	FirstPosition *int      `json:"first_position,omitempty"`
	QPositions    []int     `json:"q_positions,omitempty"`
}

// FactFile is a whole kvq.dump/1 object.
type FactFile struct {
	Schema      string          `json:"schema"`
	Model       string          `json:"model,omitempty"`
	Source      string          `json:"source,omitempty"`
	RoPEApplied *bool           `json:"rope_applied,omitempty"`
	Defaults    FactSet         `json:"defaults,omitzero"`
	Layers      map[int]FactSet `json:"layers,omitempty"`

	path     string
	warnings []string
}

// ParseFacts reads a kvq.dump/1 object. path is for messages only. An unknown
// key becomes a warning, a value of the wrong type or out of range an error.
func ParseFacts(data []byte, path string) (*FactFile, []string, error) {
	f := &FactFile{path: path}
	if len(data) > maxFacts {
		return nil, nil, formatErrorf(path, -1, "facts of %d bytes are larger than the %d allowed", len(data), maxFacts)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	p := factParser{path: path, warn: func(s string) { f.warnings = append(f.warnings, s) }}
	err := p.object("", data, map[string]reader{
		"schema":       stringInto(&f.Schema),
		"model":        stringInto(&f.Model),
		"source":       stringInto(&f.Source),
		"rope_applied": boolInto(&f.RoPEApplied),
		"defaults":     p.set(&f.Defaults),
		"layers": func(where string, raw []byte) error {
			return p.members(where, raw, func(key string, raw []byte) error {
				n, err := strconv.ParseUint(key, 10, 31)
				if err != nil || strconv.FormatUint(n, 10) != key {
					return p.errorf(where, "has the key %s, want layer numbers", quote(key))
				}
				var s FactSet
				if err := p.set(&s)(where+"."+key, raw); err != nil {
					return err
				}
				if f.Layers == nil {
					f.Layers = map[int]FactSet{}
				}
				f.Layers[int(n)] = s
				return nil
			})
		},
	})
	if err != nil {
		return nil, nil, err
	}
	switch f.Schema {
	case Schema:
	case "":
		f.warnings = append(f.warnings, fmt.Sprintf("%s: facts do not name their schema: taken as %s", path, Schema))
	default:
		return nil, nil, formatErrorf(path, -1, "facts have schema %s, want %q", quote(f.Schema), Schema)
	}
	return f, f.warnings, nil
}

// reader decodes the raw JSON of one fact.
type reader func(where string, raw []byte) error

type factParser struct {
	path    string
	warn    func(string)
	unknown int
}

func (p *factParser) errorf(where, format string, args ...any) error {
	if where == "" {
		where = "the object"
	}
	return formatErrorf(p.path, -1, "facts: %s %s", where, fmt.Sprintf(format, args...))
}

// members calls f for each key of an object, refusing a key given twice.
func (p *factParser) members(where string, raw []byte, f func(key string, raw []byte) error) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	t, err := dec.Token()
	if err != nil {
		return p.errorf(where, "is no JSON: %v", short("it", err))
	}
	if t != json.Delim('{') {
		return p.errorf(where, "is no JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return p.errorf(where, "is no JSON: %v", short("it", err))
		}
		key, _ := t.(string)
		if seen[key] {
			return p.errorf(where, "gives %s twice", quote(key))
		}
		seen[key] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return p.errorf(where, "is no JSON: %v", short("it", err))
		}
		if err := f(key, value); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return p.errorf(where, "is no JSON: %v", short("it", err))
	}
	if _, err := dec.Token(); err != io.EOF {
		return p.errorf(where, "is followed by something else")
	}
	return nil
}

// object reads the keys that it knows and warns about the others. A null says
// the same as leaving the key out.
func (p *factParser) object(where string, raw []byte, keys map[string]reader) error {
	return p.members(where, raw, func(key string, raw []byte) error {
		at := strings.TrimPrefix(where+"."+key, ".")
		read, ok := keys[key]
		if !ok {
			const most = 5
			if p.unknown++; p.unknown <= most {
				p.warn(fmt.Sprintf("%s: facts: unknown key %s ignored", p.path, quote(at)))
			} else if p.unknown == most+1 {
				p.warn(fmt.Sprintf("%s: facts: more unknown keys ignored", p.path))
			}
			return nil
		}
		if string(raw) == "null" {
			return nil
		}
		err := read(at, raw)
		if err != nil && !errors.Is(err, ErrFormat) {
			return p.errorf(at, "%v", err)
		}
		return err
	})
}

// set reads the facts of one layer.
func (p *factParser) set(s *FactSet) reader {
	return func(where string, raw []byte) error {
		return p.object(where, raw, map[string]reader{
			"scale":          numberInto(&s.Scale, positive),
			"causal":         boolInto(&s.Causal),
			"window":         intInto(&s.Window),
			"chunk":          intInto(&s.Chunk),
			"softcap":        numberInto(&s.Softcap, notNegative),
			"sinks":          listInto(&s.Sinks, "numbers"),
			"rope":           p.rope(&s.RoPE),
			"first_position": intInto(&s.FirstPosition),
			"q_positions":    listInto(&s.QPositions, "integers"),
		})
	}
}

// scalingKeys are the Hugging Face rope_scaling keys that are kept as given;
// true marks numbers, false anything.
var scalingKeys = map[string]bool{
	"rope_type": false, "type": false, "truncate": false,
	"short_factor": false, "long_factor": false, "mrope_section": false,
	"low_freq_factor": true, "high_freq_factor": true, "original_max_position_embeddings": true,
	"attention_factor": true, "beta_fast": true, "beta_slow": true,
	"mscale": true, "mscale_all_dim": true, "partial_rotary_factor": true,
}

func (p *factParser) rope(dst **RoPE) reader {
	return func(where string, raw []byte) error {
		r := &RoPE{}
		var theta, factor *float64
		var dims *int
		keys := map[string]reader{
			"theta":  numberInto(&theta, positive),
			"factor": numberInto(&factor, positive),
			"dims":   intInto(&dims),
			"style": func(_ string, raw []byte) error {
				if json.Unmarshal(raw, &r.Style) != nil || (r.Style != "half" && r.Style != "interleaved") {
					return errors.New(`is neither "half" nor "interleaved"`)
				}
				return nil
			},
		}
		for key, number := range scalingKeys {
			keys[key] = func(_ string, raw []byte) error {
				var v any
				if err := json.Unmarshal(raw, &v); err != nil {
					return err
				}
				if _, ok := v.(float64); number && !ok {
					return errors.New("is not a number")
				}
				if r.Scaling == nil {
					r.Scaling = map[string]any{}
				}
				r.Scaling[key] = v
				return nil
			}
		}
		if err := p.object(where, raw, keys); err != nil {
			return err
		}
		if theta != nil {
			r.Theta = *theta
		}
		if factor != nil {
			r.Factor = *factor
		}
		if dims != nil {
			r.Dims = *dims
		}
		*dst = r
		return nil
	}
}

func stringInto(dst *string) reader {
	return func(_ string, raw []byte) error {
		if json.Unmarshal(raw, dst) != nil {
			return errors.New("is not a string")
		}
		return nil
	}
}

func boolInto(dst **bool) reader {
	return func(_ string, raw []byte) error {
		var b bool
		if json.Unmarshal(raw, &b) != nil {
			return errors.New("is neither true nor false")
		}
		*dst = &b
		return nil
	}
}

func intInto(dst **int) reader {
	return func(_ string, raw []byte) error {
		var n int
		if json.Unmarshal(raw, &n) != nil || n < 0 || n > math.MaxInt32 {
			return errors.New("is not a natural number")
		}
		*dst = &n
		return nil
	}
}

type sign int

const (
	notNegative sign = iota
	positive
)

func numberInto(dst **float64, s sign) reader {
	return func(_ string, raw []byte) error {
		var v float64
		if json.Unmarshal(raw, &v) != nil {
			return errors.New("is not a number")
		}
		if v < 0 || (s == positive && v == 0) {
			return errors.New("is not a positive number")
		}
		*dst = &v
		return nil
	}
}

// listInto reads a list, sized by its commas so that nothing is overallocated.
func listInto[T int | float64](dst *[]T, what string) reader {
	return func(_ string, raw []byte) error {
		list := make([]T, 0, bytes.Count(raw, []byte(","))+1)
		if json.Unmarshal(raw, &list) != nil || bytes.Contains(raw, []byte("null")) {
			return errors.New("is not a list of " + what)
		}
		*dst = list
		return nil
	}
}

// readFactFile reads a facts file if it exists.
func readFactFile(path string) (*FactFile, []string, error) {
	st, err := os.Stat(path)
	if err != nil {
		if err = brokenLink(path, err); errors.Is(err, fs.ErrNotExist) {
			return nil, nil, nil
		}
		return nil, nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: not a regular file", path)
	}
	if st.Size() > maxFacts {
		return nil, nil, formatErrorf(path, -1, "facts of %d bytes are larger than the %d allowed", st.Size(), maxFacts)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	return ParseFacts(data, path)
}

// merge lays b over a: what b states wins.
func (a FactSet) merge(b FactSet) FactSet {
	override(&a.Scale, b.Scale)
	override(&a.Causal, b.Causal)
	override(&a.Window, b.Window)
	override(&a.Chunk, b.Chunk)
	override(&a.Softcap, b.Softcap)
	override(&a.RoPE, b.RoPE)
	override(&a.FirstPosition, b.FirstPosition)
	if b.Sinks != nil {
		a.Sinks = b.Sinks
	}
	if b.QPositions != nil {
		a.QPositions = b.QPositions
	}
	return a
}

func override[T any](a **T, b *T) {
	if b != nil {
		*a = b
	}
}

// applyFacts settles the facts of the layer from the files that speak about it,
// least specific first, and the options that override them.
func (l *Layer) applyFacts(files []*FactFile, o Options) error {
	f := &l.Facts
	var s FactSet
	stated := false
	where := l.Path
	for _, file := range files {
		if file == nil {
			continue
		}
		stated = true
		f.Model, f.Source = cmp.Or(file.Model, f.Model), cmp.Or(file.Source, f.Source)
		if file.RoPEApplied != nil {
			f.RoPEApplied = file.RoPEApplied
		}
		one := file.Layers[l.Number]
		if one.QPositions != nil || file.Defaults.QPositions != nil || one.Sinks != nil || file.Defaults.Sinks != nil {
			where = file.path
		}
		s = s.merge(file.Defaults).merge(one)
	}
	given := FactSet{Scale: o.Scale, Causal: o.Causal, Window: o.Window, Softcap: o.Softcap}
	if l.Cache == FullCache {
		given.Window = nil
	}
	s = s.merge(given)

	settle := func(name string, given, assumable bool) {
		if given {
			f.Given = append(f.Given, name)
		} else if assumable {
			f.Assumed = append(f.Assumed, name)
		}
	}
	f.Scale, f.Causal = 1/math.Sqrt(float64(l.HeadDimK)), true
	if s.Scale != nil {
		f.Scale = *s.Scale
	}
	if s.Causal != nil {
		f.Causal = *s.Causal
	}
	if s.Window != nil {
		f.Window = *s.Window
	}
	if s.Chunk != nil {
		f.Chunk = *s.Chunk
	}
	if s.Softcap != nil {
		f.Softcap = *s.Softcap
	}
	if s.FirstPosition != nil {
		f.FirstPosition = *s.FirstPosition
	}
	f.Sinks, f.RoPE = s.Sinks, s.RoPE
	settle("kv_heads", false, l.kvHeadsAssumed)
	settle("scale", s.Scale != nil, true)
	settle("causal", s.Causal != nil, true)
	// A dump that states facts at all would have stated a window.
	settle("window", s.Window != nil, !stated || l.windowUnknown)
	settle("chunk", s.Chunk != nil, false)
	settle("softcap", s.Softcap != nil, false)
	settle("sinks", s.Sinks != nil, false)
	settle("rope", s.RoPE != nil, false)
	settle("first_position", s.FirstPosition != nil, false)

	if f.Sinks != nil {
		heads := l.QueryHeads
		if heads == 0 {
			heads = len(f.Sinks) / l.KVHeads * l.KVHeads
		}
		if len(f.Sinks) != heads || heads == 0 {
			return formatErrorf(where, -1, "facts: layer %d: sinks has %d numbers, want one per query head", l.Number, len(f.Sinks))
		}
	}
	if l.Tensor(Q) == nil {
		return nil
	}
	positioned := l.QPositions != nil || s.QPositions != nil
	if l.QPositions == nil && s.QPositions != nil {
		if len(s.QPositions) != l.Queries {
			return formatErrorf(where, -1, "facts: layer %d: q_positions has %d numbers, but the layer has %d query rows", l.Number, len(s.QPositions), l.Queries)
		}
		l.QPositions = slices.Clone(s.QPositions)
	}
	if l.QPositions == nil {
		l.QPositions = make([]int, l.Queries)
		for i := range l.QPositions {
			l.QPositions[i] = l.Tokens - l.Queries + i
		}
	}
	settle("q_positions", positioned, l.Queries < l.Tokens)
	for i, p := range l.QPositions {
		if p < 0 || p >= l.Tokens {
			return formatErrorf(where, -1, "layer %d: q_positions: row %d stands at %d, but there are %d tokens", l.Number, i, p, l.Tokens)
		}
	}
	return nil
}
