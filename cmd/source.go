package cmd

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"kvq/dumps"
	"kvq/eval"
)

// sourceOptions say which tensors to read, and how.
type sourceOptions struct {
	dumps   []string // files, directories, patterns
	k, v, q string   // or three files
	layers  []string // numbers and ranges; none for all
	layout  string
	dtype   string
	read    dumps.Options
	gguf    string // the model of llama.cpp state files
	sliding []string
	seq     int

	scale, softcap float64
	window         tokensFlag
	causal         bool
}

// addSourceFlags adds the flags that name tensors.
func addSourceFlags(f *pflag.FlagSet, o *sourceOptions) {
	f.StringArrayVar(&o.dumps, "dump", nil, "layer dump: a `PATH` of a file, a directory or a pattern; repeatable")
	f.StringVar(&o.k, "k", "", "keys `FILE`, with --v")
	f.StringVar(&o.v, "v", "", "values `FILE`, with --k")
	f.StringVar(&o.q, "q", "", "queries `FILE`, with --k and --v")
	f.StringSliceVar(&o.layers, "layer", nil, "only these layers: `N`, N-M or a list of them")
	f.StringVar(&o.layout, "layout", "", "order of the axes: hsd (heads, tokens, dim) or shd; default hsd")
	f.StringVar(&o.dtype, "dtype", "", "type of elements whose file does not say: bf16, f16, e4m3, e5m2")
	f.StringVar(&o.read.NameK, "name-k", "", "tensor `NAME` of the keys, {layer} standing for the layer's number")
	f.StringVar(&o.read.NameV, "name-v", "", "tensor `NAME` of the values")
	f.StringVar(&o.read.NameQ, "name-q", "", "tensor `NAME` of the queries")
	f.IntVar(&o.read.KVHeads, "kv-heads", 0, "KV heads `N` of a llama.cpp state file, which does not store them")
	f.StringVar(&o.gguf, "gguf", "", "the model `FILE` of a llama.cpp state: heads, layer numbers, window, scale")
	f.StringSliceVar(&o.sliding, "sliding-layers", nil, "the sliding layers of a llama.cpp state: `N`, N-M or a list of them")
	f.IntVar(&o.seq, "seq", 0, "the sequence `N` to read of a llama.cpp state that holds several")
	f.BoolVar(&o.read.AllowNonfinite, "allow-nonfinite", false, "drop tokens that hold NaN or infinity instead of failing")
	f.Float64Var(&o.scale, "scale", 0, "attention scale; default: the dump's, else 1/sqrt(head_dim)")
	f.Var(&o.window, "window", "sliding window in `TOKENS`, 0 for none; default: the dump's")
	f.Float64Var(&o.softcap, "softcap", 0, "logit softcap, 0 for none; default: the dump's")
	f.BoolVar(&o.causal, "causal", true, "a query sees no later token; default: the dump's, else true")
	f.Lookup("causal").DefValue = "false" // so that help does not claim a second default
}

// settle turns the flags that were given into read options.
func (o *sourceOptions) settle(f *pflag.FlagSet) error {
	o.read.Layout = dumps.Layout(strings.ToLower(o.layout))
	if o.dtype != "" {
		d, err := dumps.ParseDType(o.dtype)
		if err != nil {
			return err
		}
		o.read.DType = d
	}
	if f.Changed("scale") {
		o.read.Scale = &o.scale
	}
	if f.Changed("softcap") {
		o.read.Softcap = &o.softcap
	}
	if f.Changed("window") {
		window := int(o.window)
		o.read.Window = &window
	}
	if f.Changed("causal") {
		o.read.Causal = &o.causal
	}
	if f.Changed("seq") {
		o.read.Seq = &o.seq
	}
	if f.Changed("kv-heads") && o.read.KVHeads < 1 {
		return usagef("--kv-heads %d: want a number from 1", o.read.KVHeads)
	}
	if o.gguf != "" && (o.read.KVHeads != 0 || o.sliding != nil) {
		return usagef("--gguf says what --kv-heads and --sliding-layers would: give one or the other")
	}
	sliding, err := parseLayers("sliding-layers", o.sliding)
	if err != nil {
		return err
	}
	if o.read.SlidingLayers, err = sliding.numbers("sliding-layers"); err != nil {
		return err
	}
	switch {
	case len(o.dumps) == 0 && o.k == "" && o.v == "" && o.q == "":
		return withHint(usagef("no dump was named"), "--dump FILE, or --k FILE --v FILE; 'kvq synth' makes one to try")
	case len(o.dumps) > 0 && (o.k != "" || o.v != "" || o.q != ""):
		return usagef("--dump and --k, --v, --q exclude each other")
	case len(o.dumps) == 0 && (o.k == "" || o.v == ""):
		return usagef("keys and values go together: --k FILE --v FILE")
	}
	return nil
}

// source is the layers that a run reads, of files that stay open.
type source struct {
	layers   []*eval.Layer
	warnings []string
	files    []*dumps.File
}

func (s *source) close() {
	for _, f := range s.files {
		f.Close() // read-only: nothing can be lost
	}
}

func (s *source) warn(format string, args ...any) {
	s.warnings = append(s.warnings, fmt.Sprintf(format, args...))
}

// openSource opens the named dumps and picks the layers asked for.
func openSource(o sourceOptions) (_ *source, err error) {
	s := &source{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	wanted, err := parseLayers("layer", o.layers)
	if err != nil {
		return nil, err
	}
	if s.files, err = o.open("--dump ", s.warn); err != nil {
		return nil, err
	}
	var have []string
	names := map[string]int{}
	for _, f := range s.files {
		s.warnings = append(s.warnings, f.Warnings...)
		for _, l := range f.Layers {
			have = append(have, fmt.Sprint(l.Number))
			if !wanted.include(l.Number) {
				continue
			}
			layer, err := newLayer(l, s.warn)
			if err != nil {
				return nil, err
			}
			names[fmt.Sprint(layer.Dump, layer.Number)]++
			s.layers = append(s.layers, layer)
		}
	}
	if missing := wanted.unused(); missing != "" {
		return nil, usagef("--layer %s: the dump holds %s", missing, some(have))
	}
	// Files of the same name in different folders are told apart by their path.
	for _, l := range s.layers {
		if names[fmt.Sprint(l.Dump, l.Number)] > 1 {
			l.Dump = l.Path
		}
	}
	return s, nil
}

// open opens everything that is named. flag says, in a message, where the
// names were given.
func (o sourceOptions) open(flag string, warn func(format string, args ...any)) (files []*dumps.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close() // read-only: nothing can be lost
			}
			files = nil
		}
	}()
	if o.gguf != "" {
		if o.read.Model, err = readDumpModel(o.gguf, warn); err != nil {
			return nil, err
		}
	}
	if len(o.dumps) == 0 {
		f, err := dumps.OpenParts(o.k, o.v, o.q, o.read)
		var missing *fs.PathError
		if errors.As(err, &missing) {
			// Which flag it was is plain from the path, unless one file is all three.
			for _, part := range []struct{ flag, path string }{{"--k", o.k}, {"--v", o.v}, {"--q", o.q}} {
				if part.path == missing.Path {
					return files, ofFile(part.flag, missing)
				}
			}
		}
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	for _, path := range o.dumps {
		f, err := openDump(flag, path, o.read)
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	dumps.Distinct(files)
	return files, nil
}

// inputs names the files that were opened.
func (o sourceOptions) inputs(files []*dumps.File) []string {
	names := append([]string{o.k, o.v, o.q, o.gguf}, o.dumps...)
	for _, f := range files {
		for _, l := range f.Layers {
			names = append(names, l.Path)
		}
	}
	return names
}

// some lists a few of many.
func some(names []string) string {
	const most = 12
	names = slices.Compact(names)
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return "layer " + strings.Join(names, ", ")
}

// openDump opens a file, a directory or a pattern. flag says, in a message,
// where the name was given.
func openDump(flag, path string, o dumps.Options) (*dumps.File, error) {
	f, err := dumps.Open(path, o)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%s%s: %w", flag, path, unwrapPath(err))
	}
	return f, err
}

// layerSet is what --layer asks for; empty means every layer.
type layerSet []layerRange

type layerRange struct {
	text     string
	from, to int
	used     bool
}

// parseLayers reads the numbers and ranges given after a flag.
func parseLayers(flag string, list []string) (layerSet, error) {
	var set layerSet
	for _, text := range list {
		r := layerRange{text: text}
		_, err := fmt.Sscanf(text+"\n", "%d-%d\n", &r.from, &r.to)
		if err != nil {
			_, err = fmt.Sscanf(text+"\n", "%d\n", &r.from)
			r.to = r.from
		}
		if err != nil || r.from < 0 || r.to < r.from {
			return nil, usagef("--%s %q: want a number or a range such as 0-7", flag, text)
		}
		set = append(set, r)
	}
	return set, nil
}

// numbers lists every layer of the set.
func (s layerSet) numbers(flag string) (list []int, err error) {
	for _, r := range s {
		if r.to-r.from > 1<<16 {
			return nil, usagef("--%s %s: more layers than any model has", flag, r.text)
		}
		for n := r.from; n <= r.to; n++ {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

func (s layerSet) include(n int) bool {
	in := len(s) == 0
	for i := range s {
		if s[i].from <= n && n <= s[i].to {
			s[i].used, in = true, true
		}
	}
	return in
}

func (s layerSet) unused() string {
	for _, r := range s {
		if !r.used {
			return r.text
		}
	}
	return ""
}

// checkLayer refuses a layer of which too little is known to use it.
func checkLayer(l *dumps.Layer) error {
	switch {
	case slices.Contains(l.Facts.Assumed, "kv_heads"):
		return withHint(usagef("%s: how many KV heads the rows of %d values hold is not stored in it", l.Path, l.HeadDimK), "--kv-heads N, or --gguf MODEL")
	case l.Tensor(dumps.V) == nil:
		return withHint(usagef("%s: layer %d has no values: they live in the keys (MLA), and how many channels are theirs is not stored", l.Path, l.Number), "--gguf MODEL")
	}
	return nil
}

// newLayer presents a dumped layer to eval.
func newLayer(l *dumps.Layer, warn func(format string, args ...any)) (*eval.Layer, error) {
	f := l.Facts
	if err := checkLayer(l); err != nil {
		return nil, err
	}
	e := &eval.Layer{
		Dump: l.Name, Path: l.Path, Number: l.Number, DType: string(l.DType),
		Tokens: l.Tokens, KVHeads: l.KVHeads, QueryHeads: l.QueryHeads,
		DimK: l.HeadDimK, DimV: l.HeadDimV,
		QueryRows: l.Queries, QueryPositions: l.QPositions,
		Facts: eval.Facts{
			Scale: f.Scale, Causal: f.Causal, Window: f.Window, Chunk: f.Chunk,
			Softcap: f.Softcap, Sinks: f.Sinks, FirstPosition: f.FirstPosition,
		},
		Assumed: f.Assumed,
	}
	if e.QueryHeads == 0 {
		e.QueryHeads = max(l.KVHeads, len(f.Sinks))
	}
	if f.RoPE != nil {
		rope, err := newRope(f.RoPE, f.RoPEApplied == nil || *f.RoPEApplied, l.HeadDimK, l.Tokens)
		if err != nil {
			warn("%s: layer %d: %v; +prerope cannot be had", l.Path, l.Number, err)
		}
		e.Facts.Rope = rope
	}
	parts := map[eval.Tensor]dumps.Part{eval.Keys: dumps.K, eval.Values: dumps.V, eval.Queries: dumps.Q}
	e.Read = func(dst []float32, tensor eval.Tensor, head int) error {
		if tensor == eval.Output {
			return readProjection(dst, l, head)
		}
		return l.ReadHead(dst, parts[tensor], head)
	}
	if o := l.Tensor(dumps.O); o != nil && l.Tensor(dumps.OWeight) != nil && l.Queries > 0 {
		if o.Dim != l.QueryHeads*l.HeadDimV {
			return nil, fmt.Errorf("%s: layer %d: o is [%d, %d], want %d columns: one per query head and value channel", l.Path, l.Number, o.Rows, o.Dim, l.QueryHeads*l.HeadDimV)
		}
		weights := make([]float32, l.Rows(dumps.OWeight))
		if err := l.ReadHead(weights, dumps.OWeight, 0); err != nil {
			return nil, err
		}
		e.ModelDim = o.Rows
		e.OutputWeight = make([]float64, len(weights))
		for i, w := range weights {
			e.OutputWeight[i] = float64(w)
		}
	}
	return e, nil
}

// readProjection reads the columns of the output projection that one query
// head's output meets, a few rows at a time: the whole can be large.
func readProjection(dst []float32, l *dumps.Layer, head int) error {
	o := l.Tensor(dumps.O)
	width := l.HeadDimV
	const rows = 64
	block := make([]float32, min(rows, o.Rows)*o.Dim)
	for from := 0; from < o.Rows; from += rows {
		n := min(rows, o.Rows-from)
		if err := l.ReadRows(block[:n*o.Dim], dumps.O, 0, from, from+n); err != nil {
			return err
		}
		for i := range n {
			copy(dst[(from+i)*width:][:width], block[i*o.Dim+head*width:])
		}
	}
	return nil
}
