package formula

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
)

// An Engine prices a cache by the allocation rules of one serving engine. To
// add one, write a function that returns it in a file of its own and list that
// function in Engines.
type Engine struct {
	Name  string
	Title string // one line: what it is, which versions the rules hold for
	// Options are what --engine-opt accepts; Reserve sees no other key.
	Options []Option
	// Scheme reads a cache type that the engine names itself. It is nil for an
	// engine that stores whatever scheme kvq knows; a Request then holds the
	// scheme as the caller found it.
	Scheme func(name string) (Scheme, error)
	// DefaultSchemes is priced where no scheme is named; nil means kvq's set.
	DefaultSchemes []string
	// SharesPrefix: the engine stores what sequences have in common once. A
	// Request to another one must have no Prefix.
	SharesPrefix bool
	// Reserve is a pure function. Its bytes never shrink when the context or
	// the number of sequences grows, save for schemes that keep a window of
	// recent tokens in full precision.
	Reserve func(Request) (Reservation, error)
	// Variants are settings of Options, key=value joined by commas, to show
	// beside the defaults where engines are compared.
	Variants []string
	// Explain writes the formula of a request with its numbers in it, a line
	// each; nil leaves it to the components and details of the Reservation.
	Explain func(Request) ([]string, error)

	// inside turns a request into one whose cache holds the draft's as well;
	// nil or false where the engine gives a draft a cache apart.
	inside func(Request, Draft) (Request, bool, error)
}

// An Option documents one key of --engine-opt.
type Option struct {
	Name    string
	Default string // as shown to the user; empty when there is none
	Doc     string // one line, lower case
}

// A Scheme is how K and V are stored. Name is the pair's name as rows carry it.
type Scheme struct {
	Name string
	K, V Sizer
}

// A Request is what an engine is asked to hold.
type Request struct {
	Model     *Model
	Context   int64 // tokens of each sequence
	Sequences int64
	Prefix    int64 // how many of the tokens are the same in every sequence, at their beginning
	TP, PP    int64 // tensor and pipeline parallel ranks, 1 for a single device
	Scheme    Scheme
	Options   Options
}

// A Reservation is what the engine takes, in bytes over all sequences and all
// devices: Data, Metadata, State, Cross and Padding add up to the total.
type Reservation struct {
	Data     int64 // codes, and values kept in 16 bits
	Metadata int64 // scales, offsets, means, indices
	State    int64 // recurrent and convolution state
	Cross    int64 // cross-attention cache
	Padding  int64 // reserved and never filled
	// PerDevice is the total of the fullest device.
	PerDevice int64
	// KBytes and VBytes are what the scheme stored on each side (data and
	// metadata, without index keys), KElements and VElements how many numbers
	// that holds. They give bits per element; an engine that does not tell
	// leaves them 0.
	KBytes, VBytes, KElements, VElements int64
	// Components are the same bytes by what they hold; an engine that does not
	// tell leaves them nil.
	Components []Component
	Details    []Detail
	// Line is what one long sequence takes, for an engine whose blocks are too
	// large for the bytes of the next few tokens to tell; nil otherwise.
	Line *Line
	// Refusal says why the engine would not start with this request: empty
	// when it would.
	Refusal  string
	Warnings []string
}

// A Line is Fixed + PerToken x S bytes over all devices, which a sequence of S
// tokens takes once its windows are full, up to one block of each group.
type Line struct {
	Fixed    int64
	PerToken float64
}

// LongLine is the line of one sequence of the request: the engine's own, or
// measured over the next 2^20 tokens, which all pads and pages divide.
func LongLine(e Engine, req Request) (Line, error) {
	req.Sequences = 1
	r, err := e.Reserve(req)
	if err != nil {
		return Line{}, err
	}
	if r.Line != nil {
		return *r.Line, nil
	}
	here, err := r.Total()
	if err != nil {
		return Line{}, err
	}
	const span = 1 << 20
	context := req.Context
	if req.Context, err = sum(context, span); err != nil {
		return Line{}, err
	}
	if r, err = e.Reserve(req); err != nil {
		return Line{}, err
	}
	there, err := r.Total()
	if err != nil {
		return Line{}, err
	}
	perToken := float64(there-here) / span
	return Line{Fixed: here - int64(math.Round(perToken*float64(context))), PerToken: perToken}, nil
}

// The names of components.
const (
	AttentionKV    = "attention_kv"    // layers that keep every token, latents too
	SlidingKV      = "swa_kv"          // layers with a window or chunks
	RecurrentState = "recurrent_state" // state of recurrent and convolution layers
	IndexerKeys    = "indexer"
	CrossKV        = "cross"
	DraftKV        = "draft" // layers that only speculative decoding uses
	PaddingBytes   = "padding"
)

// A Component is one part of a reservation, over all sequences and devices.
type Component struct {
	Name  string
	Bytes int64
	// K and V are the sides of Bytes, both 0 where it has none: a latent is
	// all K, a state and padding are neither.
	K, V int64
}

// A Detail is one figure in the engine's own terms: cells, blocks, the line it
// would log.
type Detail struct {
	Key   string // snake_case with its unit, for JSON
	Label string // for people
	Value any    // int64, float64, bool or string
}

// Total is the sum of the components.
func (r Reservation) Total() (int64, error) {
	return sum(r.Data, r.Metadata, r.State, r.Cross, r.Padding)
}

// Engines lists the engines, ideal first.
func Engines() []Engine {
	return []Engine{
		Ideal(),
		LlamaCpp(),
		VLLM(),
		SGLang(),
		TRTLLM(),
		Transformers(),
		MLX(),
		ExLlamaV3(),
	}
}

// LookupEngine finds an engine by its name, in any case and with or without
// its signs.
func LookupEngine(name string) (Engine, error) {
	// llamacpp, llama-cpp, tensorrt-llm and the like: the signs do not count.
	plain := strings.NewReplacer(".", "", "-", "", "_", "", " ", "", "tensorrt", "trt")
	var names []string
	for _, e := range Engines() {
		if plain.Replace(strings.ToLower(name)) == plain.Replace(e.Name) {
			return e, nil
		}
		names = append(names, e.Name)
	}
	return Engine{}, fmt.Errorf("unknown engine %q (%s)", name, strings.Join(names, ", "))
}

// Options are the --engine-opt settings of one request, by lower-case key.
type Options map[string]string

// ParseOptions reads key=value settings, each item possibly several of them
// joined by commas, and refuses keys that the engine does not document.
func (e Engine) ParseOptions(items []string) (Options, error) {
	options := Options{}
	for _, item := range items {
		for _, setting := range strings.Split(item, ",") {
			setting = strings.TrimSpace(setting)
			if setting == "" {
				continue
			}
			key, value, ok := strings.Cut(setting, "=")
			key = strings.ToLower(strings.TrimSpace(key))
			if !ok {
				return nil, fmt.Errorf("engine option %q: no '=' (want key=value)", setting)
			}
			if !e.hasOption(key) {
				return nil, fmt.Errorf("engine %s has no option %q (%s)", e.Name, key, e.optionNames())
			}
			options[key] = strings.TrimSpace(value)
		}
	}
	return options, nil
}

func (e Engine) hasOption(key string) bool {
	for _, o := range e.Options {
		if o.Name == key {
			return true
		}
	}
	return false
}

func (e Engine) optionNames() string {
	if len(e.Options) == 0 {
		return "it has none"
	}
	names := make([]string, len(e.Options))
	for i, o := range e.Options {
		names[i] = o.Name
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}

// Tokens reads a number of tokens as people write them (4096, 32k), def where
// the key is absent.
func (o Options) Tokens(key string, def int64) (int64, error) { return o.amount(key, def, ParseTokens) }

// amount is what parse makes of an option, def where the key is absent.
func (o Options) amount(key string, def int64, parse func(string) (int64, error)) (int64, error) {
	text, ok := o[key]
	if !ok {
		return def, nil
	}
	n, err := parse(text)
	if err != nil {
		return 0, fmt.Errorf("engine option %s: %w", key, err)
	}
	return n, nil
}

// Int reads a whole number of at least low, def where the key is absent.
func (o Options) Int(key string, def, low int64) (int64, error) {
	return o.amount(key, def, func(text string) (int64, error) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < low {
			return 0, fmt.Errorf("%q is not a whole number from %d", text, low)
		}
		return n, nil
	})
}

// Bytes reads an amount of memory (24GiB), def where the key is absent.
func (o Options) Bytes(key string, def int64) (int64, error) { return o.amount(key, def, ParseBytes) }

// Bool reads yes/no, on/off, true/false or 1/0, def where the key is absent.
func (o Options) Bool(key string, def bool) (bool, error) {
	text, ok := o[key]
	if !ok {
		return def, nil
	}
	switch strings.ToLower(text) {
	case "yes", "on", "true", "1":
		return true, nil
	case "no", "off", "false", "0":
		return false, nil
	}
	return false, fmt.Errorf("engine option %s: %q is neither yes nor no", key, text)
}

// String reads one of the values listed, in any case, or any text when none is
// listed; def where the key is absent.
func (o Options) String(key, def string, values ...string) (string, error) {
	text, ok := o[key]
	if !ok {
		return def, nil
	}
	for _, v := range values {
		if strings.EqualFold(v, text) {
			return v, nil
		}
	}
	if len(values) > 0 {
		return "", fmt.Errorf("engine option %s: %q is not one of %s", key, text, strings.Join(values, ", "))
	}
	return text, nil
}
