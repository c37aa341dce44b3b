package cmd

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"kvq/dumps"
)

func newInspect(s Streams) *cobra.Command {
	var o sourceOptions
	c := &cobra.Command{
		Use:   "inspect FILE...",
		Short: "show what dumps hold: layers, tensors, attention facts",
		Long: `inspect lists the layers of dump files (npy, npz, safetensors, PyTorch files,
MLX prompt caches, llama.cpp states), of directories of them or patterns. It
reads headers and facts only, unless --allow-nonfinite asks which tokens to
leave out. Facts that the dump does not state are marked as assumed.`,
		Example: `  kvq inspect layer12.npy
  kvq inspect captures/ --format json
  kvq inspect cache.safetensors --name-k 'key.{layer}' --name-v 'value.{layer}'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			o.dumps = append(o.dumps, args...)
			if err := o.settle(c.Flags()); err != nil {
				return err
			}
			return runInspect(o, out)
		},
	}
	addSourceFlags(c.Flags(), &o)
	return c
}

func runInspect(o sourceOptions, out *output) error {
	wanted, err := parseLayers("layer", o.layers)
	if err != nil {
		return err
	}
	files, err := o.open("", out.warn)
	if err != nil {
		return err
	}
	if err := out.spare(o.inputs(files)...); err != nil {
		return err
	}
	var in inspection
	for _, f := range files {
		in.add(f, wanted)
	}
	if missing := wanted.unused(); missing != "" {
		return usagef("--layer %s: no such layer", missing)
	}
	for _, f := range in.Files {
		for _, w := range f.Warnings {
			out.warn("%s", w)
		}
	}
	return out.report(in.report())
}

// inspection is the JSON of kvq inspect, schema kvq.inspect/1.
type inspection struct {
	Schema  string          `json:"schema"`
	Version string          `json:"version"`
	Files   []inspectedFile `json:"files"`
}

type inspectedFile struct {
	Path     string           `json:"path"`
	Layers   []inspectedLayer `json:"layers"`
	Warnings []string         `json:"warnings"`
}

type inspectedLayer struct {
	Layer         int               `json:"layer"`
	Path          string            `json:"path"`
	Cache         string            `json:"cache,omitempty"` // full or sliding, where a file keeps them apart
	Tokens        int               `json:"tokens"`
	StoredRows    int               `json:"stored_rows,omitempty"` // of K, where not all hold tokens
	DroppedTokens int               `json:"dropped_tokens,omitempty"`
	KVHeads       int               `json:"kv_heads,omitempty"` // absent where the file does not store it
	QueryHeads    int               `json:"query_heads,omitempty"`
	HeadDimK      int               `json:"head_dim_k"`
	HeadDimV      int               `json:"head_dim_v"`
	Tensors       []inspectedTensor `json:"tensors"`
	Facts         inspectedFacts    `json:"facts"`
	FactsGiven    []string          `json:"facts_given"`
	FactsAssumed  []string          `json:"facts_assumed"`
}

type inspectedTensor struct {
	Tensor     string `json:"tensor"`
	Name       string `json:"name,omitempty"`
	Path       string `json:"path"`
	Shape      []int  `json:"shape"`
	DType      string `json:"dtype"`
	Layout     string `json:"layout,omitempty"`
	Order      string `json:"order"`
	BigEndian  bool   `json:"big_endian,omitempty"`
	Compressed bool   `json:"compressed,omitempty"`
	Bytes      int64  `json:"bytes"`
}

type inspectedFacts struct {
	Model         string      `json:"model,omitempty"`
	Source        string      `json:"source,omitempty"`
	RoPEApplied   *bool       `json:"rope_applied,omitempty"`
	Scale         float64     `json:"scale"`
	Causal        bool        `json:"causal"`
	Window        int         `json:"window,omitempty"`
	Chunk         int         `json:"chunk,omitempty"`
	Softcap       float64     `json:"softcap,omitempty"`
	Sinks         []float64   `json:"sinks,omitempty"`
	RoPE          *dumps.RoPE `json:"rope,omitempty"`
	FirstPosition int         `json:"first_position,omitempty"`
	QPositions    []int       `json:"q_positions,omitempty"`
}

// add describes a file's wanted layers and closes it.
func (in *inspection) add(f *dumps.File, wanted layerSet) {
	defer f.Close() // read-only: nothing can be lost
	file := inspectedFile{Path: f.Path, Layers: []inspectedLayer{}, Warnings: append([]string{}, f.Warnings...)}
	for _, l := range f.Layers {
		if wanted.include(l.Number) {
			file.Layers = append(file.Layers, inspectLayer(l))
		}
	}
	in.Schema, in.Version = "kvq.inspect/1", versionOf()
	in.Files = append(in.Files, file)
}

func inspectLayer(l *dumps.Layer) inspectedLayer {
	f := l.Facts
	il := inspectedLayer{
		Layer: l.Number, Path: l.Path, Cache: l.Cache, Tokens: l.Tokens, DroppedTokens: l.DroppedTokens,
		KVHeads: l.KVHeads, QueryHeads: l.QueryHeads, HeadDimK: l.HeadDimK, HeadDimV: l.HeadDimV,
		Facts: inspectedFacts{
			Model: f.Model, Source: f.Source, RoPEApplied: f.RoPEApplied, Scale: f.Scale, Causal: f.Causal, Window: f.Window,
			Chunk: f.Chunk, Softcap: f.Softcap, Sinks: f.Sinks, RoPE: f.RoPE, FirstPosition: f.FirstPosition, QPositions: l.QPositions,
		},
		FactsGiven: append([]string{}, f.Given...), FactsAssumed: append([]string{}, f.Assumed...),
	}
	if rows := l.Tensor(dumps.K).Rows; rows > l.Tokens+l.DroppedTokens {
		il.StoredRows = rows
	}
	if slices.Contains(il.FactsAssumed, "kv_heads") {
		il.KVHeads = 0
	}
	for p := dumps.K; p <= dumps.OWeight; p++ {
		t := l.Tensor(p)
		if t == nil {
			continue
		}
		it := inspectedTensor{
			Tensor: p.String(), Name: t.Name, Path: t.Path, Shape: t.Shape, DType: string(t.DType),
			Order: "c", BigEndian: t.BigEndian, Compressed: t.Deflated, Bytes: t.Bytes,
		}
		if t.Fortran {
			it.Order = "fortran"
		}
		if p <= dumps.Q {
			it.Layout = string(t.Layout)
		}
		il.Tensors = append(il.Tensors, it)
	}
	return il
}

// report shows every file. Layers that differ only in their number share rows.
func (in *inspection) report() report {
	r := report{json: in, data: in.data()}
	for _, f := range in.Files {
		if len(f.Layers) == 0 {
			continue // all of them were in another file
		}
		several := slices.ContainsFunc(f.Layers, func(l inspectedLayer) bool { return l.Path != f.Layers[0].Path })
		t := &table{title: f.Path, columns: []column{
			{header: "layer"}, {header: "tensor"}, {header: "shape"}, {header: "type"}, {header: "layout"}, {header: "size", right: true},
		}}
		for _, g := range groupLayers(f.Layers) {
			first := f.Layers[g[0]]
			about := "layer "
			if len(g) > 1 {
				about = "layers "
			}
			about += layerRanges(f.Layers, g)
			if first.Cache != "" {
				about = first.Cache + " cache, " + about
			}
			if several {
				about = filepath.Base(first.Path) + ", " + about
			}
			for i, it := range first.Tensors {
				var bytes int64
				for _, n := range g {
					bytes += f.Layers[n].Tensors[i].Bytes
				}
				label := ""
				if i == 0 {
					label = layerRanges(f.Layers, g)
				}
				t.add(text(label), text(it.Tensor), text(shapeText(it.Shape)), text(it.DType), text(it.storage()), unitsIEC.size(bytes))
			}
			for _, line := range first.notes() {
				t.notes = append(t.notes, about+": "+line)
			}
		}
		r.tables = append(r.tables, t)
	}
	return r
}

// data is one row per tensor, for csv and tsv.
func (in *inspection) data() *table {
	t := &table{columns: []column{
		{name: "path"}, {name: "layer"}, {name: "tensor"}, {name: "name"}, {name: "shape"}, {name: "dtype"},
		{name: "layout"}, {name: "order"}, {name: "bytes"}, {name: "facts_assumed"},
	}}
	for _, f := range in.Files {
		for _, l := range f.Layers {
			for _, it := range l.Tensors {
				t.add(text(it.Path), count(int64(l.Layer)), text(it.Tensor), text(it.Name), text(shapeText(it.Shape)), text(it.DType),
					text(it.Layout), text(it.Order), count(it.Bytes), text(strings.Join(l.FactsAssumed, " ")))
			}
		}
	}
	return t
}

// storage says how a tensor lies in its file.
func (it inspectedTensor) storage() string {
	var words []string
	if it.Layout != "" {
		words = append(words, it.Layout)
	}
	if it.Order == "fortran" {
		words = append(words, "Fortran")
	}
	if it.BigEndian {
		words = append(words, "big-endian")
	}
	if it.Compressed {
		words = append(words, "compressed")
	}
	return strings.Join(words, ", ")
}

func shapeText(shape []int) string {
	return strings.ReplaceAll(fmt.Sprint(shape), " ", ", ")
}

// notes says in words what a layer's facts are.
func (l inspectedLayer) notes() []string {
	f := l.Facts
	var parts []string
	say := func(fact, format string, args ...any) {
		s := fmt.Sprintf(format, args...)
		if slices.Contains(l.FactsAssumed, fact) {
			s += " (assumed)"
		}
		parts = append(parts, s)
	}
	say("scale", "scale %s", significant(f.Scale, 4))
	if f.Causal {
		say("causal", "causal")
	} else {
		say("causal", "not causal")
	}
	if f.Window > 0 {
		say("window", "window %s", grouped(int64(f.Window)))
	} else {
		say("window", "no window")
	}
	if f.Chunk > 0 {
		say("chunk", "chunks of %s", grouped(int64(f.Chunk)))
	}
	if f.Softcap > 0 {
		say("softcap", "softcap %s", significant(f.Softcap, 4))
	}
	if f.Sinks != nil {
		say("sinks", "%d sink logits", len(f.Sinks))
	}
	if f.RoPE != nil {
		s := "rope"
		if f.RoPE.Theta > 0 {
			s += " theta " + strconv.FormatFloat(f.RoPE.Theta, 'f', -1, 64)
		}
		if f.RoPEApplied != nil && !*f.RoPEApplied {
			s += ", not applied yet"
		}
		say("rope", "%s", s)
	}
	if f.FirstPosition > 0 {
		say("first_position", "first position %s", grouped(int64(f.FirstPosition)))
	}
	lines := []string{strings.Join(parts, ", ")}
	if l.StoredRows > 0 {
		lines = append(lines, fmt.Sprintf("%s in %s rows", plural(int64(l.Tokens), "token"), grouped(int64(l.StoredRows))))
	}
	switch {
	case l.KVHeads == 0:
		lines = append(lines, "the number of KV heads is not stored")
	case !slices.ContainsFunc(l.Tensors, func(t inspectedTensor) bool { return t.Layout == string(dumps.HSD) }):
		lines = append(lines, fmt.Sprintf("%s of %d", plural(int64(l.KVHeads), "KV head"), l.HeadDimK))
	}
	switch n := len(f.QPositions); n {
	case 0:
		lines = append(lines, "no queries: attention figures can only be a proxy")
	default:
		parts = nil
		say("q_positions", "%s query rows at tokens %s to %s", grouped(int64(n)), grouped(int64(slices.Min(f.QPositions))), grouped(int64(slices.Max(f.QPositions))))
		lines = append(lines, parts...)
	}
	if l.DroppedTokens > 0 {
		lines = append(lines, fmt.Sprintf("%s tokens with NaN or infinity left out", grouped(int64(l.DroppedTokens))))
	}
	if about := strings.Trim(f.Model+": "+f.Source, ": "); about != "" {
		lines = append(lines, about)
	}
	return lines
}

// groupLayers joins layers that would be described alike.
func groupLayers(layers []inspectedLayer) [][]int {
	var groups [][]int
	byText := map[string]int{}
	for i, l := range layers {
		var b strings.Builder
		fmt.Fprintln(&b, filepath.Base(l.Path), l.Cache, l.notes(), l.DroppedTokens)
		for _, it := range l.Tensors {
			fmt.Fprintln(&b, it.Tensor, it.Shape, it.DType, it.storage())
		}
		g, ok := byText[b.String()]
		if !ok {
			g = len(groups)
			byText[b.String()] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], i)
	}
	return groups
}

// layerRanges writes the numbers of some layers as 0-3, 7.
func layerRanges(layers []inspectedLayer, group []int) string {
	var parts []string
	for i := 0; i < len(group); {
		first, last := layers[group[i]].Layer, layers[group[i]].Layer
		for i++; i < len(group) && layers[group[i]].Layer == last+1; i++ {
			last++
		}
		s := strconv.Itoa(first)
		if last > first {
			s += "-" + strconv.Itoa(last)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, ", ")
}
