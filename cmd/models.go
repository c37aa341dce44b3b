package cmd

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"kvq/formula"
)

func newModels(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "models [PATTERN]",
		Short: "list the model presets, or explain one",
		Long: `Models lists the models that kvq plan --model knows, with the KV cache of one
token and of the model's whole context at 16 bits.

With a name (an alias, the preset's name or its Hugging Face id) it explains
that model; with anything else it lists the models whose names contain it.
* and ? stand for any text and any character.`,
		Example: `  kvq models
  kvq models 'qwen3*'
  kvq models 8b`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%d patterns: want one", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			pattern := ""
			if len(args) > 0 {
				pattern = args[0]
			}
			return runModels(pattern, out)
		},
	}
}

type modelsJSON struct {
	Schema  string           `json:"schema"`
	Version string           `json:"version"`
	Models  []modelEntryJSON `json:"models"`
}

type modelEntryJSON struct {
	planModelJSON
	Family            string      `json:"family,omitempty"`
	Aliases           []string    `json:"aliases,omitempty"`
	DType             string      `json:"dtype,omitempty"`
	BytesPerToken     float64     `json:"bytes_per_token_f16"`
	BytesAtMaxContext int64       `json:"bytes_f16_at_max_context,omitempty"`
	States            []stateJSON `json:"states,omitempty"`
	StateBytes        int64       `json:"state_bytes,omitempty"`
	Cross             *crossJSON  `json:"cross,omitempty"`
	Draft             string      `json:"draft_geometry,omitempty"`
	Notes             []string    `json:"notes,omitempty"`
}

type stateJSON struct {
	Kind         string `json:"kind,omitempty"`
	Layers       int64  `json:"layers"`
	ConvElements int64  `json:"conv_elements_per_layer"`
	ConvBytes    int64  `json:"conv_bytes_per_element"`
	SSMElements  int64  `json:"ssm_elements_per_layer"`
	SSMBytes     int64  `json:"ssm_bytes_per_element"`
}

type crossJSON struct {
	Layers   int64 `json:"layers"`
	Elements int64 `json:"elements_per_encoder_token"`
	Tokens   int64 `json:"encoder_tokens,omitempty"`
}

func runModels(pattern string, out *output) error {
	models, err := matchModels(pattern)
	if err != nil {
		return err
	}
	if pattern != "" && !strings.ContainsAny(pattern, "*?") {
		m, variant, err := formula.LookupPreset(pattern)
		if err != nil && len(models) == 0 {
			return presetError(err)
		}
		// A name in its own right comes before a part of other names.
		if err == nil && (!variant || len(models) == 0) {
			if len(models) > 1 {
				out.hint("%d names contain it: kvq models '*%s*'", len(models), pattern)
			}
			r, err := explainModel(m)
			if err != nil {
				return err
			}
			return out.report(r)
		}
	}
	if len(models) == 0 {
		return withHint(usagef("no model matches %q", pattern), "'kvq models' lists the names")
	}
	r, err := listModels(models)
	if err != nil {
		return err
	}
	return out.report(r)
}

// matchModels returns the presets of which a name contains the pattern, or
// with * and ? is matched by it.
func matchModels(pattern string) ([]*formula.Model, error) {
	all, err := formula.Presets()
	if err != nil || pattern == "" {
		return all, err
	}
	glob := strings.ToLower(pattern)
	if !strings.ContainsAny(pattern, "*?") {
		glob = "*" + glob + "*"
	}
	// An owner's slash is a letter like any other here.
	glob = strings.NewReplacer("/", " ", "[", "\\[", "\\", "\\\\").Replace(glob)
	var models []*formula.Model
	for _, m := range all {
		for _, name := range append(formula.PresetAliases(m.Name), m.Name, m.HFID) {
			ok, err := path.Match(glob, strings.ReplaceAll(strings.ToLower(name), "/", " "))
			if err != nil {
				return nil, usagef("pattern %q: %w", pattern, err)
			}
			if ok {
				models = append(models, m)
				break
			}
		}
	}
	return models, nil
}

// modelEntry prices a preset at 16 bits.
func modelEntry(m *formula.Model) (modelEntryJSON, error) {
	e := modelEntryJSON{
		planModelJSON: modelJSON(m), Family: m.Family, Aliases: formula.PresetAliases(m.Name),
		DType: m.DType, Draft: m.Draft.String(), Notes: m.Notes,
	}
	context := m.MaxContext
	if context == 0 {
		context = 1
	}
	row, err := priceF16(m, context)
	if err != nil {
		return e, err
	}
	e.BytesPerToken, e.StateBytes = row.BytesPerToken, row.Reservation.State
	if m.MaxContext > 0 {
		e.BytesAtMaxContext = row.Total
	}
	for _, s := range m.States {
		e.States = append(e.States, stateJSON{s.Kind, s.Layers, s.ConvElements, s.ConvBytes, s.SSMElements, s.SSMBytes})
	}
	if m.Cross != nil {
		n, err := m.Cross.Elements()
		if err != nil {
			return e, err
		}
		e.Cross = &crossJSON{m.Cross.Layers, n, m.Cross.Tokens}
	}
	return e, nil
}

// priceF16 is the ideal cache of one session in f16.
func priceF16(m *formula.Model, context int64) (formula.Row, error) {
	f16, err := readScheme("f16")
	if err != nil {
		return formula.Row{}, err
	}
	row, err := formula.Price(formula.Ideal(), formula.Request{Model: m, Context: context, Sequences: 1, TP: 1, PP: 1, Scheme: f16}, nil, formula.Budget{})
	if err != nil {
		return row, fmt.Errorf("model %s: %w", m.Name, err)
	}
	return row, nil
}

// modelTable is a table of models: a few columns for people, all for programs.
func modelTable() *table {
	return &table{columns: []column{
		{header: "model", name: "name"},
		{name: "hf_id"}, {name: "family"},
		{header: "params", name: "params", right: true}, {name: "active_params"},
		{name: "layers"},
		{header: "KV layers", name: "kv_layers", right: true},
		{name: "query_heads"}, {name: "kv_heads"}, {name: "head_dim_k"}, {name: "head_dim_v"},
		{header: "B/token", name: "bytes_per_token_f16", right: true},
		{name: "state_bytes"},
		{header: "max tokens", name: "max_context", right: true},
		{header: "full", name: "bytes_f16_at_max_context", right: true},
		{name: "geometry"}, {name: "dtype"}, {name: "confidence"}, {name: "aliases"}, {name: "citation"},
	}}
}

func (e modelEntryJSON) cells() []cell {
	optional := func(n int64) cell {
		if n == 0 {
			return absent()
		}
		return count(n)
	}
	full := absent()
	if e.BytesAtMaxContext > 0 {
		full = unitsIEC.size(e.BytesAtMaxContext)
	}
	dimV := cell{}
	if e.HeadDimV != nil {
		dimV = count(*e.HeadDimV)
	}
	return []cell{
		text(e.Name), text(e.HFID), text(e.Family),
		parameters(e.Params), optional(e.Active), count(e.Layers), count(e.KVLayers),
		optional(e.QueryHeads), optional(e.KVHeads), optional(e.HeadDimK), dimV,
		perToken(e.BytesPerToken), optional(e.StateBytes), optional(e.MaxContext), full,
		text(e.Geometry), text(e.DType), text(e.Confidence), text(strings.Join(e.Aliases, " ")), text(e.Citation),
	}
}

// parameters shows a number of parameters as people say it: 8.03B, 135M.
func parameters(n int64) cell {
	value := strconv.FormatInt(n, 10)
	switch {
	case n == 0:
		return absent()
	case n < 1e9:
		return cell{significant(float64(n)/1e6, 3) + "M", value}
	}
	return cell{strconv.FormatFloat(float64(n)/1e9, 'g', 4, 64) + "B", value}
}

func listModels(models []*formula.Model) (report, error) {
	j := modelsJSON{Schema: "kvq.models/1", Version: versionOf()}
	t := modelTable()
	for _, m := range models {
		e, err := modelEntry(m)
		if err != nil {
			return report{}, err
		}
		j.Models = append(j.Models, e)
		t.add(e.cells()...)
	}
	t.notes = []string{"", "KV cache of one session at 16 bits: B/token is what a token adds at the model's",
		"maximum (- where every window is full), full the whole cache there"}
	return report{tables: []*table{t}, json: j}, nil
}

// explainModel shows everything known of one model.
func explainModel(m *formula.Model) (report, error) {
	e, err := modelEntry(m)
	if err != nil {
		return report{}, err
	}
	data := modelTable()
	data.add(e.cells()...)
	t := &table{title: m.Name, columns: []column{{header: "at 16 bits"}, {header: "one session", right: true}, {header: "bytes", right: true}}}
	for _, tokens := range []int64{1, 4096, 32768, m.MaxContext} {
		if tokens == 0 || m.MaxContext > 0 && tokens > m.MaxContext {
			continue
		}
		row, err := priceF16(m, tokens)
		if err != nil {
			return report{}, err
		}
		label := plural(tokens, "token")
		if tokens == m.MaxContext {
			label += " (maximum)"
		}
		t.add(text(label), unitsIEC.size(row.Total), count(row.Total))
		if tokens == m.MaxContext {
			break
		}
	}
	var lines []string
	say := func(name, format string, args ...any) {
		lines = append(lines, name+": "+fmt.Sprintf(format, args...))
	}
	say("Hugging Face id", "%s (%s)", m.HFID, m.Family)
	if len(e.Aliases) > 0 {
		say("also called", "%s", strings.Join(e.Aliases, ", "))
	}
	if m.Params > 0 {
		active := ""
		if m.ActiveParams > 0 && m.ActiveParams != m.Params {
			active = ", " + parameters(m.ActiveParams).text + " active"
		}
		say("parameters", "%s%s", parameters(m.Params).text, active)
	}
	say("layers", "%d, of which %d keep tokens", m.Layers, e.KVLayers)
	if m.QueryHeads > 0 {
		say("query heads", "%d", m.QueryHeads)
	}
	say("geometry", "%s", e.Geometry)
	for _, g := range m.Geometry {
		say("  "+g.String(), "%s", g.Describe())
	}
	for _, s := range m.States {
		n, _ := s.Bytes()
		say("state", "%d %s layers, %s B a session: conv %s elements of %d B and recurrent %s of %d B a layer",
			s.Layers, s.Kind, grouped(n), grouped(s.ConvElements), s.ConvBytes, grouped(s.SSMElements), s.SSMBytes)
	}
	if e.Cross != nil {
		length := "the length of the input"
		if e.Cross.Tokens > 0 {
			length = grouped(e.Cross.Tokens)
		}
		say("cross attention", "%d layers, %s elements for each of the encoder's tokens (%s)", e.Cross.Layers, grouped(e.Cross.Elements), length)
	}
	if e.Draft != "" {
		say("draft layers", "%s, only with speculative decoding", e.Draft)
	}
	if m.DType != "" {
		say("dtype of the config", "%s", m.DType)
	}
	say("source", "%s", m.Citation)
	say("confidence", "%s", m.Confidence)
	for _, n := range m.Notes {
		say("note", "%s", n)
	}
	t.notes = append([]string{""}, lines...)
	return report{tables: []*table{t}, data: data, json: modelsJSON{Schema: "kvq.models/1", Version: versionOf(), Models: []modelEntryJSON{e}}}, nil
}
