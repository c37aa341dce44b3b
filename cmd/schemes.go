package cmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"kvq/quantize"
)

func newSchemes(s Streams) *cobra.Command {
	var tokens tokensFlag
	var dim int
	c := &cobra.Command{
		Use:   "schemes [NAME]",
		Short: "list the schemes, or explain one: byte layout and decode formula",
		Long: `schemes lists what keys and values can be stored as: formats with their honest
bits per element (codes and scales over elements, for many tokens), modifiers,
and recipes, which are pairs as engines ship them, with the flags that turn
them on.

A name is codec[-zero][-share[/group]][@type]{+modifier}, a block format, or a
recipe; K:V names both sides of a pair. With a name, schemes explains it: byte
layout, decode formula, honest bits, the engines that run it and their flags,
and where kvq's arithmetic is not theirs.`,
		Example: `  kvq schemes
  kvq schemes q4_0
  kvq schemes kivi2 --tokens 1000 --dim 128
  kvq schemes int4-asym-channel/32+recent128:int4-asym-token/32+recent128`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%d names: want one", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			for _, name := range []string{"tokens", "dim"} {
				if len(args) == 0 && c.Flags().Changed(name) {
					return usagef("--%s needs the name of a scheme", name)
				}
			}
			if dim < 0 || c.Flags().Changed("dim") && dim == 0 {
				return usagef("--dim %d: want at least 1", dim)
			}
			if c.Flags().Changed("tokens") && tokens == 0 {
				return usagef("--tokens 0: want at least 1")
			}
			if len(args) == 0 {
				r, err := listSchemes()
				if err != nil {
					return err
				}
				return out.report(r)
			}
			r, err := explainScheme(args[0], int(tokens), dim)
			if err != nil {
				return err
			}
			return out.report(r)
		},
	}
	c.Flags().Var(&tokens, "tokens", "also show the bytes of one head of so many tokens")
	c.Flags().IntVar(&dim, "dim", 0, "head width (default 128, where the scheme takes it)")
	return c
}

// listDims are the head widths that bits are listed for.
var listDims = []int{64, 128, 256}

// schemesJSON is the JSON of kvq schemes, schema kvq.schemes/1.
type schemesJSON struct {
	Schema    string         `json:"schema"`
	Version   string         `json:"version"`
	Schemes   []schemeJSON   `json:"schemes"`
	Modifiers []modifierJSON `json:"modifiers,omitempty"`
}

type schemeJSON struct {
	Name       string `json:"name"`
	Definition string `json:"definition"`
	K          string `json:"k,omitempty"` // sides of a pair
	V          string `json:"v,omitempty"`
	Online     bool   `json:"online"`
	// Bits are asymptotic, by head width; a pair's are those of both sides.
	Bits        map[string]float64 `json:"bits_per_element"`
	Deployments []deploymentJSON   `json:"deployments,omitempty"`
	Source      string             `json:"source,omitempty"`
	Note        string             `json:"note,omitempty"`
	Sizes       []sizeJSON         `json:"sizes,omitempty"` // of one head at --tokens
	Layouts     []layoutJSON       `json:"layouts,omitempty"`
}

type deploymentJSON struct {
	Engine string `json:"engine"`
	Flags  string `json:"flags"`
	Note   string `json:"note,omitempty"`
}

type sizeJSON struct {
	Side     string  `json:"side"`
	Tokens   int     `json:"tokens"`
	Dim      int     `json:"dim"`
	Data     int64   `json:"data_bytes"`
	Metadata int64   `json:"metadata_bytes"`
	Bits     float64 `json:"bits_per_element"`
}

type modifierJSON struct {
	Modifier   string `json:"modifier"`
	Definition string `json:"definition"`
}

type layoutJSON struct {
	Side    string      `json:"side"`
	Of      string      `json:"of"`
	Formula string      `json:"formula"`
	Fields  []fieldJSON `json:"fields"`
}

type fieldJSON struct {
	Offset  string `json:"offset"`
	Bytes   string `json:"bytes"`
	Name    string `json:"name"`
	Type    string `json:"type"`
	Meaning string `json:"meaning"`
}

// newSchemeJSON describes a pair but for its definition, with bits at dims.
func newSchemeJSON(pair quantize.Pair, dims ...int) schemeJSON {
	e := schemeJSON{Name: pair.Name(), Online: pair.Online(), Bits: map[string]float64{}}
	if k, v := quantize.SideName(pair.K), quantize.SideName(pair.V); k != v || pair.Recipe != "" {
		e.K, e.V = k, v
	}
	for _, dim := range dims {
		sum, sides, fits := 0.0, 0.0, true
		for _, s := range []*quantize.Scheme{pair.K, pair.V} {
			if s == nil {
				continue
			}
			bits, err := s.AsymptoticBits(dim)
			sum, sides, fits = sum+bits, sides+1, fits && err == nil
		}
		if fits { // a scheme that does not fit this width has no bits there
			e.Bits[fmt.Sprint(dim)] = sum / sides
		}
	}
	for _, d := range pair.Deployments() {
		e.Deployments = append(e.Deployments, deploymentJSON(d))
	}
	return e
}

func listSchemes() (report, error) {
	result := schemesJSON{Schema: "kvq.schemes/1", Version: versionOf()}
	add := func(name, definition, source, note string) error {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			return err
		}
		e := newSchemeJSON(pair, listDims...)
		e.Definition, e.Source, e.Note = definition, source, note
		result.Schemes = append(result.Schemes, e)
		return nil
	}
	for _, f := range quantize.Formats() {
		if err := add(f.Name, f.Doc, f.Source(), ""); err != nil {
			return report{}, err
		}
	}
	formats := result.Schemes
	for _, r := range quantize.Recipes() {
		if err := add(r.Name, r.Doc, r.Source, r.Note); err != nil {
			return report{}, err
		}
	}
	recipes := result.Schemes[len(formats):]

	var others []schemeJSON // that an engine takes for both sides
	known, err := quantize.Set("all")
	if err != nil {
		return report{}, err
	}
	for _, name := range known {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			return report{}, err
		}
		if quantize.SideName(pair.K) == quantize.SideName(pair.V) {
			others = append(others, newSchemeJSON(pair))
		}
	}

	all := &table{columns: []column{{name: "name"}, {name: "definition"}, {name: "k"}, {name: "v"}, {name: "online"},
		{name: "bits_d64"}, {name: "bits_d128"}, {name: "bits_d256"}, {name: "deployments"}, {name: "source"}, {name: "note"}}}
	for _, e := range result.Schemes {
		all.add(append(append([]cell{text(e.Name), text(e.Definition), text(e.K), text(e.V), text(fmt.Sprint(e.Online))}, e.bits(listDims...)...), text(e.flags()), text(e.Source), text(e.Note))...)
	}
	modifiers := &table{title: "Modifiers, from left to right", columns: []column{{header: "modifier"}, {header: "definition"}}}
	for _, m := range quantize.ModifierDocs() {
		result.Modifiers = append(result.Modifiers, modifierJSON{m.Usage, m.Doc})
		modifiers.add(text(m.Usage), text(m.Doc))
	}
	bits := schemeTable("Formats: honest bits per element at head widths 64, 128 and 256", "format", formats, listDims...)
	bits.notes = []string{
		"intB is written codec[-sym|-asym|-zp][-tensor|-head|-token|-channel[/g]][@f16|@bf16|@f32], by default -sym-token@f16; e4m3 and e5m2 have no zero form, by default -tensor@f32; the others stand alone.",
		"'kvq schemes NAME' shows byte layout and decode formula",
	}
	return report{data: all, json: result, tables: []*table{
		bits, modifiers,
		schemeTable("Recipes: pairs as engines ship them, and their bits at head width 128", "recipe", recipes, 128),
		engineTable(formats, recipes, others),
	}}, nil
}

// schemeTable lists schemes for people.
func schemeTable(title, header string, entries []schemeJSON, dims ...int) *table {
	t := &table{title: title, columns: []column{{header: header}, {header: "bits"}, {header: "definition"}}}
	for _, e := range entries {
		var bits []string
		for _, c := range e.bits(dims...) {
			bits = append(bits, c.text)
		}
		if slices.Equal(slices.Compact(slices.Clone(bits)), bits[:1]) {
			bits = bits[:1]
		}
		t.add(text(e.Name), text(strings.Join(bits, " ")), text(e.Definition))
	}
	return t
}

// engineTable lists what each engine runs under which flags: by the name of its recipe
// where it has one.
func engineTable(formats, recipes, others []schemeJSON) *table {
	const width = 48 // of flags, beside the longest engine and scheme
	t := &table{title: "Which engine runs what", columns: []column{{header: "engine"}, {header: "scheme"}, {header: "flags"}},
		notes: []string{"'kvq schemes NAME' shows what else an engine needs, and where its arithmetic is not kvq's"}}
	type row struct{ engine, scheme, flags string }
	var rows []row
	seen := map[[4]string]bool{}
	add := func(e schemeJSON, d deploymentJSON) {
		k, v := e.K, e.V
		if k == "" {
			k, v = e.Name, e.Name
		}
		if key := [4]string{d.Engine, d.Flags, k, v}; !seen[key] {
			seen[key] = true
			rows = append(rows, row{d.Engine, e.Name, d.Flags})
		}
	}
	for _, e := range recipes {
		for _, d := range e.Deployments {
			if d.Engine == e.Deployments[0].Engine { // the recipe's own
				add(e, d)
			}
		}
	}
	for _, e := range formats {
		for _, d := range e.Deployments {
			add(e, d)
		}
	}
	for _, e := range others {
		for _, d := range e.Deployments {
			add(e, d)
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		return strings.Compare(strings.ToLower(a.engine), strings.ToLower(b.engine))
	})
	for _, r := range rows {
		flags := r.flags
		if len([]rune(flags)) > width {
			cut := strings.LastIndexByte(flags[:width], ' ')
			flags = flags[:max(cut, 0)] + " …"
		}
		t.add(text(r.engine), text(r.scheme), text(flags))
	}
	return t
}

// explainScheme shows a pair: its bits, engines, and each side's layout and formula,
// at a head width of dim, or one that the pair takes for 0; and with tokens the bytes
// of a head.
func explainScheme(name string, tokens, dim int) (report, error) {
	pair, err := quantize.ParsePair(name)
	if err != nil {
		return report{}, err
	}
	dims := listDims
	if dim != 0 {
		dims = []int{dim}
	}
	e := newSchemeJSON(pair, dims...)
	for _, d := range append([]int{128}, listDims...) {
		if _, ok := e.Bits[fmt.Sprint(d)]; ok && dim == 0 {
			dim = d
		}
	}
	type side struct {
		name   string
		scheme *quantize.Scheme
	}
	sides := []side{{"k", pair.K}, {"v", pair.V}}
	if e.K == "" {
		sides = sides[:1]
		sides[0].name = "both"
	}
	summary := &table{title: e.Name}
	for i, d := range dims {
		header := fmt.Sprint(d)
		if i == 0 {
			header = "bits at d=" + header
		}
		summary.columns = append(summary.columns, column{header: header, right: true})
	}
	summary.columns = append(summary.columns, column{header: "online"})
	online := "no"
	if e.Online {
		online = "yes"
	}
	summary.add(append(e.bits(dims...), text(online))...)
	var layouts []*table
	var definitions, sources []string
	data := &table{columns: []column{{name: "side"}, {name: "of"}, {name: "offset"}, {name: "bytes"}, {name: "name"}, {name: "type"}, {name: "meaning"}, {name: "formula"}}}
	for i, side := range sides {
		if side.scheme == nil {
			continue
		}
		definitions = append(definitions, side.scheme.Format.Doc)
		if source := side.scheme.Format.Source(); source != "" {
			sources = append(sources, source)
		}
		if dim == 0 {
			return report{}, side.scheme.CheckDim(128)
		}
		all, err := side.scheme.Layouts(dim)
		if err != nil {
			return report{}, err
		}
		for _, l := range all {
			title := l.Unit
			if len(sides) > 1 {
				title = side.name + ", " + side.scheme.Name() + ": " + l.Unit
			}
			t := &table{title: title, columns: []column{{header: "offset", right: true}, {header: "bytes", right: true}, {header: "field"}, {header: "type"}, {header: "meaning"}}, notes: []string{l.Formula}}
			described := layoutJSON{Side: side.name, Of: l.Unit, Formula: l.Formula}
			for _, f := range l.Fields {
				t.add(text(f.Offset), text(f.Bytes), text(f.Name), text(f.Type), text(f.Meaning))
				data.add(text(side.name), text(l.Unit), text(f.Offset), text(f.Bytes), text(f.Name), text(f.Type), text(f.Meaning), text(l.Formula))
				described.Fields = append(described.Fields, fieldJSON(f))
			}
			e.Layouts = append(e.Layouts, described)
			if i == 1 && e.K == e.V {
				continue // shown for keys
			}
			if len(sides) > 1 && e.K == e.V {
				t.title = "k and v, " + side.scheme.Name() + ": " + l.Unit
			}
			layouts = append(layouts, t)
		}
	}
	e.Definition, e.Source = strings.Join(slices.Compact(definitions), "; "), strings.Join(slices.Compact(sources), "; ")
	for _, recipe := range quantize.Recipes() {
		if recipe.Name == pair.Recipe {
			e.Definition, e.Source, e.Note = recipe.Doc, recipe.Source, recipe.Note
		}
	}
	summary.notes = append(summary.notes, e.Definition)
	for _, d := range e.Deployments {
		line := d.Engine + ": " + d.Flags
		if d.Note != "" {
			line += " (" + d.Note + ")"
		}
		summary.notes = append(summary.notes, line)
	}
	if e.Note != "" {
		summary.notes = append(summary.notes, "note: "+e.Note)
	}
	if e.Source != "" {
		summary.notes = append(summary.notes, "source: "+e.Source)
	}
	r := report{data: data, tables: []*table{summary}}
	if tokens > 0 {
		if e.Sizes, err = headSizes(pair, e.K == "", tokens, dim); err != nil {
			return report{}, err
		}
		t := &table{title: fmt.Sprintf("One head of %s, %s", plural(int64(tokens), "token"), plural(int64(dim), "channel")),
			columns: []column{{header: "side"}, {header: "data B", right: true}, {header: "metadata B", right: true}, {header: "bits", right: true}}}
		for _, s := range e.Sizes {
			t.add(text(s.Side), count(s.Data), count(s.Metadata), number(s.Bits, 6))
		}
		r.tables = append(r.tables, t)
	}
	r.tables = append(r.tables, layouts...)
	r.json = schemesJSON{Schema: "kvq.schemes/1", Version: versionOf(), Schemes: []schemeJSON{e}}
	return r, nil
}

// headSizes are the bytes of one head: those of each side, where they differ, and both.
func headSizes(pair quantize.Pair, same bool, tokens, dim int) ([]sizeJSON, error) {
	var sizes []sizeJSON
	both := sizeJSON{Side: "both", Tokens: tokens, Dim: dim}
	heads := 0
	for _, side := range []struct {
		name   string
		scheme *quantize.Scheme
	}{{"k", pair.K}, {"v", pair.V}} {
		if side.scheme == nil {
			continue
		}
		size, err := side.scheme.Size(quantize.Shape{Heads: 1, Tokens: tokens, Dim: dim})
		if err != nil {
			return nil, err
		}
		heads++
		both.Data, both.Metadata = both.Data+size.Data, both.Metadata+size.Metadata
		sizes = append(sizes, sizeJSON{side.name, tokens, dim, size.Data, size.Metadata, headBits(size, 1, tokens, dim)})
	}
	both.Bits = headBits(quantize.Size{Data: both.Data, Metadata: both.Metadata}, heads, tokens, dim)
	if same {
		sizes = nil
	}
	return append(sizes, both), nil
}

// headBits are the bits per element of some heads.
func headBits(size quantize.Size, heads, tokens, dim int) float64 {
	return 8 * float64(size.Total()) / (float64(heads) * float64(tokens) * float64(dim))
}

// bits are the cells of the bits at each head width.
func (e schemeJSON) bits(dims ...int) []cell {
	var cells []cell
	for _, dim := range dims {
		if bits, ok := e.Bits[fmt.Sprint(dim)]; ok {
			cells = append(cells, cell{strconv.FormatFloat(bits, 'g', 6, 64), exact(bits)})
		} else {
			cells = append(cells, absent())
		}
	}
	return cells
}

// flags lists the engines that run a scheme and their flags in one line.
func (e schemeJSON) flags() string {
	var all []string
	for _, d := range e.Deployments {
		all = append(all, d.Engine+": "+d.Flags)
	}
	return strings.Join(all, "; ")
}
