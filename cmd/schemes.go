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
	return &cobra.Command{
		Use:   "schemes [NAME]",
		Short: "list the schemes, or explain one: byte layout and decode formula",
		Long: `schemes lists what keys and values can be stored as: formats with their honest
bits per element (codes and scales over elements, for many tokens), modifiers,
and recipes, which are pairs as engines ship them, with the flags that turn
them on.

A name is codec[-zero][-share[/group]][@type]{+modifier}, a block format, or a
recipe; K:V names both sides of a pair. With a name, schemes explains it.`,
		Example: `  kvq schemes
  kvq schemes q4_0
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
			if len(args) == 0 {
				r, err := listSchemes()
				if err != nil {
					return err
				}
				return out.report(r)
			}
			r, err := explainScheme(args[0])
			if err != nil {
				return err
			}
			return out.report(r)
		},
	}
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
	Layouts     []layoutJSON       `json:"layouts,omitempty"`
}

type deploymentJSON struct {
	Engine string `json:"engine"`
	Flags  string `json:"flags"`
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

// newSchemeJSON describes a pair but for its definition.
func newSchemeJSON(pair quantize.Pair) schemeJSON {
	e := schemeJSON{Name: pair.Name(), Online: pair.Online(), Bits: map[string]float64{}}
	if k, v := quantize.SideName(pair.K), quantize.SideName(pair.V); k != v || pair.Recipe != "" {
		e.K, e.V = k, v
	}
	for _, dim := range listDims {
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
		e.Deployments = append(e.Deployments, deploymentJSON{d.Engine, d.Flags})
	}
	return e
}

func listSchemes() (report, error) {
	result := schemesJSON{Schema: "kvq.schemes/1", Version: versionOf()}
	add := func(name, definition, source string) error {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			return err
		}
		e := newSchemeJSON(pair)
		e.Definition, e.Source = definition, source
		result.Schemes = append(result.Schemes, e)
		return nil
	}
	for _, f := range quantize.Formats() {
		if err := add(f.Name, f.Doc, ""); err != nil {
			return report{}, err
		}
	}
	formats := result.Schemes
	for _, r := range quantize.Recipes() {
		if err := add(r.Name, r.Doc, r.Source); err != nil {
			return report{}, err
		}
	}
	recipes := result.Schemes[len(formats):]

	all := &table{columns: []column{{name: "name"}, {name: "definition"}, {name: "k"}, {name: "v"}, {name: "online"},
		{name: "bits_d64"}, {name: "bits_d128"}, {name: "bits_d256"}, {name: "deployments"}, {name: "source"}}}
	for _, e := range result.Schemes {
		all.add(append(append([]cell{text(e.Name), text(e.Definition), text(e.K), text(e.V), text(fmt.Sprint(e.Online))}, e.bits()...), text(e.flags()), text(e.Source))...)
	}
	modifiers := &table{title: "Modifiers, from left to right", columns: []column{{header: "modifier"}, {header: "definition"}}}
	for _, m := range quantize.ModifierDocs() {
		result.Modifiers = append(result.Modifiers, modifierJSON{m.Usage, m.Doc})
		modifiers.add(text(m.Usage), text(m.Doc))
	}
	bits := schemeTable("Formats: honest bits per element at head widths 64, 128 and 256", "format", formats)
	bits.notes = []string{
		"intB is written codec[-sym|-asym|-zp][-tensor|-head|-token|-channel[/g]][@f16|@bf16|@f32], by default -sym-token@f16; e4m3 and e5m2 have no zero form, by default -tensor@f32; the others stand alone.",
		"'kvq schemes NAME' shows byte layout and decode formula",
	}
	return report{data: all, json: result, tables: []*table{
		bits, modifiers,
		schemeTable("Recipes: pairs as engines ship them", "recipe", recipes),
		engineTable(result.Schemes),
	}}, nil
}

// schemeTable lists schemes for people.
func schemeTable(title, header string, entries []schemeJSON) *table {
	t := &table{title: title, columns: []column{{header: header}, {header: "bits"}, {header: "definition"}}}
	for _, e := range entries {
		var bits []string
		for _, c := range e.bits() {
			bits = append(bits, c.text)
		}
		if slices.Equal(slices.Compact(slices.Clone(bits)), bits[:1]) {
			bits = bits[:1]
		}
		t.add(text(e.Name), text(strings.Join(bits, " ")), text(e.Definition))
	}
	return t
}

// engineTable lists who ships what under which flags.
func engineTable(entries []schemeJSON) *table {
	t := &table{title: "Who ships it", columns: []column{{header: "scheme"}, {header: "engine"}, {header: "flags"}}}
	for _, e := range entries {
		for _, d := range e.Deployments {
			t.add(text(e.Name), text(d.Engine), text(d.Flags))
		}
	}
	return t
}

// explainScheme shows a pair: each side's layout and formula.
func explainScheme(name string) (report, error) {
	pair, err := quantize.ParsePair(name)
	if err != nil {
		return report{}, err
	}
	e := newSchemeJSON(pair)
	dim := 128
	if _, ok := e.Bits[fmt.Sprint(dim)]; !ok {
		dim = 0
		for _, d := range listDims {
			if _, ok := e.Bits[fmt.Sprint(d)]; ok {
				dim = d
			}
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
	var definitions []string
	summary := &table{title: e.Name, columns: []column{{header: "bits at d=64", right: true}, {header: "128", right: true}, {header: "256", right: true}, {header: "online"}}}
	summary.add(append(e.bits(), text(fmt.Sprint(e.Online)))...)
	r := report{tables: []*table{summary}}
	data := &table{columns: []column{{name: "side"}, {name: "of"}, {name: "offset"}, {name: "bytes"}, {name: "name"}, {name: "type"}, {name: "meaning"}, {name: "formula"}}}
	for _, side := range sides {
		if side.scheme == nil {
			continue
		}
		definitions = append(definitions, side.scheme.Format.Doc)
		if dim == 0 {
			return report{}, side.scheme.CheckDim(128)
		}
		layouts, err := side.scheme.Layouts(dim)
		if err != nil {
			return report{}, err
		}
		for _, l := range layouts {
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
			r.tables = append(r.tables, t)
			e.Layouts = append(e.Layouts, described)
		}
	}
	e.Definition = strings.Join(slices.Compact(definitions), "; ")
	for _, recipe := range quantize.Recipes() {
		if recipe.Name == pair.Recipe {
			e.Definition, e.Source = recipe.Doc, recipe.Source
		}
	}
	summary.notes = append(summary.notes, e.Definition)
	for _, d := range e.Deployments {
		summary.notes = append(summary.notes, d.Engine+": "+d.Flags)
	}
	if e.Source != "" {
		summary.notes = append(summary.notes, "source: "+e.Source)
	}
	r.data = data
	r.json = schemesJSON{Schema: "kvq.schemes/1", Version: versionOf(), Schemes: []schemeJSON{e}}
	return r, nil
}

// bits are the cells of the bits at each head width.
func (e schemeJSON) bits() []cell {
	var cells []cell
	for _, dim := range listDims {
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
