package formula

import (
	_ "embed"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// presetTable has one row a model. Its columns after the geometry:
//
//	order    what each block caches, repeated over the layers: a letter is a group
//	         of the geometry (a the first), a digit a recurrent state, - nothing;
//	         {ab0} is a block with several
//	state    kind:layers:convxbytes:ssmxbytes:steps, the elements of one layer
//	mla      kv_lora_rank:rope:nope:v:heads, 0 where unknown
//	cross    layers:heads:k:v:tokens, 0 tokens where the input decides
//	draft    the geometry of MTP layers
//	aliases  names that people type, joined by commas
//	notes    joined by " | "
//
//go:embed presets.tsv
var presetTable string

// preset columns
const (
	colName = iota
	colHFID
	colFamily
	colParams
	colActive
	colLayers
	colQueryHeads
	colGeometry
	colOrder
	colState
	colMLA
	colCross
	colDraft
	colMaxContext
	colDType
	colConfidence
	colAliases
	colSource
	colNotes
	presetColumns
)

// presetRows calls yield for every row of the table until it returns false.
func presetRows(yield func(row []string) bool) {
	header := true
	for line := range strings.Lines(presetTable) {
		if header {
			header = false
			continue
		}
		if !yield(strings.Split(strings.TrimSuffix(line, "\n"), "\t")) {
			return
		}
	}
}

// Presets returns every model of the table, in its order.
func Presets() ([]*Model, error) {
	var models []*Model
	for row := range presetRows {
		m, err := parsePreset(row)
		if err != nil {
			return nil, err
		}
		models = append(models, m)
	}
	return models, nil
}

// PresetAliases returns the short names of the preset called name.
func PresetAliases(name string) []string {
	for row := range presetRows {
		if row[colName] == name {
			return splitAliases(row[colAliases])
		}
	}
	return nil
}

func splitAliases(cell string) []string {
	if cell == "" {
		return nil
	}
	return strings.Split(cell, ",")
}

// LookupPreset finds a model by, in this order: an alias, the preset's name,
// its Hugging Face id, the id without its owner, the same without endings such
// as -Instruct, a unique prefix of any of them. Case, blanks and the signs
// - _ : ( ) / do not count. variant is true where an ending was dropped: the
// shape is that of the model returned, the maximum context may differ. An
// unknown or ambiguous name gives an error whose Hint lists the nearest names.
func LookupPreset(name string) (m *Model, variant bool, err error) {
	wanted := fold(name)
	if wanted == "" {
		return nil, false, &UnknownModelError{Name: name}
	}
	_, base, owned := strings.Cut(name, "/")
	if !owned {
		base = name
	}
	// found[i] holds the rows that match by rule i.
	const rules = 6
	var found [rules][][]string
	for row := range presetRows {
		if len(row) != presetColumns {
			return nil, false, fmt.Errorf("preset table: a row of %d columns", len(row))
		}
		short := row[colHFID][strings.IndexByte(row[colHFID], '/')+1:]
		// A name with an owner is only read as a model of that owner.
		ours := !owned || strings.HasPrefix(strings.ToLower(row[colHFID]), strings.ToLower(name[:len(name)-len(base)]))
		stem := fold(trimVariant(base))
		matches := [rules]bool{
			slices.ContainsFunc(splitAliases(row[colAliases]), func(a string) bool { return fold(a) == wanted }),
			fold(row[colName]) == wanted,
			fold(row[colHFID]) == wanted,
			fold(short) == wanted,
			ours && (fold(trimVariant(row[colName])) == stem || fold(trimVariant(short)) == stem || slices.ContainsFunc(splitAliases(row[colAliases]), func(a string) bool { return fold(a) == stem })),
			strings.HasPrefix(fold(row[colName]), wanted) || strings.HasPrefix(fold(row[colHFID]), wanted) || strings.HasPrefix(fold(short), wanted),
		}
		for i, ok := range matches {
			if ok {
				found[i] = append(found[i], row)
				break
			}
		}
	}
	for i, rows := range found {
		switch {
		case len(rows) == 1:
			m, err := parsePreset(rows[0])
			return m, i == 4, err
		case len(rows) > 1:
			e := &UnknownModelError{Name: name, Ambiguous: true}
			for _, row := range rows {
				e.Near = append(e.Near, row[colName])
			}
			return nil, false, e
		}
	}
	return nil, false, &UnknownModelError{Name: name, Near: nearest(wanted)}
}

// UnknownModelError is a name that no preset, or more than one, answers to.
type UnknownModelError struct {
	Name      string
	Ambiguous bool
	Near      []string // candidates, best first
}

func (e *UnknownModelError) Error() string {
	if e.Ambiguous {
		return fmt.Sprintf("model %q could be any of %d models", clip(e.Name), len(e.Near))
	}
	return fmt.Sprintf("unknown model %q", clip(e.Name))
}

// Hint lists the candidates.
func (e *UnknownModelError) Hint() string {
	near := e.Near
	more := ""
	if len(near) > 8 {
		more, near = fmt.Sprintf(" and %d more", len(near)-8), near[:8]
	}
	switch {
	case len(near) == 0:
		return "'kvq models' lists the names"
	case e.Ambiguous:
		return "one of " + strings.Join(near, ", ") + more
	default:
		return "did you mean " + strings.Join(near, ", ") + "? 'kvq models' lists the names"
	}
}

// fold is the form in which names are compared.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case strings.ContainsRune("-_:()/ ", r):
			return -1
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

// trimVariant drops the endings by which tuned copies of one shape differ.
func trimVariant(name string) string {
	for {
		trimmed := name
		for _, ending := range []string{"-instruct", "-it", "-chat", "-base", "-hf", "-pt", "-thinking", "-bf16", "-fp8", ":instruct", ":latest"} {
			if len(name) > len(ending) && strings.EqualFold(name[len(name)-len(ending):], ending) {
				trimmed = name[:len(name)-len(ending)]
			}
		}
		if trimmed == name {
			return name
		}
		name = trimmed
	}
}

// nearest returns the names with the fewest edits to wanted, at most five.
func nearest(wanted string) []string {
	type candidate struct {
		name  string
		edits int
	}
	var all []candidate
	if len(wanted) > 64 {
		return nil
	}
	for row := range presetRows {
		best := -1
		short := row[colHFID][strings.IndexByte(row[colHFID], '/')+1:]
		for _, name := range append([]string{row[colName], short}, splitAliases(row[colAliases])...) {
			if n := edits(wanted, fold(name)); best < 0 || n < best {
				best = n
			}
		}
		if best <= max(1, len(wanted)/3) {
			all = append(all, candidate{row[colName], best})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return a.edits - b.edits })
	var names []string
	for _, c := range all[:min(5, len(all))] {
		names = append(names, c.name)
	}
	return names
}

// edits is the number of insertions, deletions and replacements between two
// names (Levenshtein).
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func parsePreset(row []string) (*Model, error) {
	if len(row) != presetColumns {
		return nil, fmt.Errorf("preset table: a row of %d columns", len(row))
	}
	m := &Model{
		Name: row[colName], HFID: row[colHFID], Family: row[colFamily],
		DType: row[colDType], Source: "preset", Citation: row[colSource], Confidence: row[colConfidence],
	}
	fail := func(err error) (*Model, error) { return nil, fmt.Errorf("preset %s: %w", m.Name, err) }
	if row[colNotes] != "" {
		m.Notes = strings.Split(row[colNotes], " | ")
	}
	var err error
	if m.Params, err = billions(row[colParams]); err != nil {
		return fail(err)
	}
	if m.ActiveParams, err = billions(row[colActive]); err != nil {
		return fail(err)
	}
	for _, f := range []struct {
		text string
		to   *int64
	}{{row[colLayers], &m.Layers}, {row[colQueryHeads], &m.QueryHeads}, {row[colMaxContext], &m.MaxContext}} {
		if f.text == "" {
			continue
		}
		if *f.to, err = strconv.ParseInt(f.text, 10, 64); err != nil {
			return fail(err)
		}
	}
	if row[colGeometry] != "" { // a model of states alone has none
		if m.Geometry, err = ParseGeometry(row[colGeometry]); err != nil {
			return fail(err)
		}
	}
	if row[colDraft] != "" {
		if m.Draft, err = ParseGeometry(row[colDraft]); err != nil {
			return fail(err)
		}
	}
	if row[colState] != "" {
		s, err := parsePresetState(row[colState])
		if err != nil {
			return fail(err)
		}
		m.States = []State{s}
	}
	if row[colMLA] != "" {
		n, err := numbers(row[colMLA], 5)
		if err != nil {
			return fail(err)
		}
		m.MLA = &MLA{Rank: n[0], RopeDim: n[1], NopeDim: n[2], VDim: n[3], Heads: n[4]}
	}
	if row[colCross] != "" {
		n, err := numbers(row[colCross], 5)
		if err != nil {
			return fail(err)
		}
		m.Cross = &Cross{Layers: n[0], KVHeads: n[1], HeadDimK: n[2], HeadDimV: n[3], Tokens: n[4]}
	}
	if row[colOrder] != "" {
		if m.Order, err = parseOrder(row[colOrder], m.Layers); err != nil {
			return fail(err)
		}
	}
	return m, m.Validate()
}

func parsePresetState(text string) (State, error) {
	kind, rest, _ := strings.Cut(text, ":")
	n, err := numbers(strings.ReplaceAll(rest, "x", ":"), 6)
	if err != nil {
		return State{}, err
	}
	s := State{Kind: kind, Layers: n[0], ConvElements: n[1], ConvBytes: n[2], SSMElements: n[3], SSMBytes: n[4], ConvSteps: n[5]}
	return s, nil
}

// numbers reads want whole numbers joined by ':'.
func numbers(text string, want int) ([]int64, error) {
	parts := strings.Split(text, ":")
	if len(parts) != want {
		return nil, fmt.Errorf("%q: want %d numbers", text, want)
	}
	n := make([]int64, want)
	for i, p := range parts {
		var err error
		if n[i], err = strconv.ParseInt(p, 10, 64); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// billions reads a decimal number of billions exactly; empty is 0.
func billions(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		return 0, fmt.Errorf("%q billions of parameters", text)
	}
	r.Mul(r, big.NewRat(1e9, 1))
	if !r.IsInt() || !r.Num().IsInt64() {
		return 0, fmt.Errorf("%q billions of parameters is not a whole number", text)
	}
	return r.Num().Int64(), nil
}

// parseOrder reads the order column and repeats it over the layers.
func parseOrder(pattern string, layers int64) ([]Block, error) {
	var unit []Block
	var open *Block
	for _, c := range pattern {
		b := open
		if b == nil {
			b = new(Block)
		}
		switch {
		case c == '{' && open == nil:
			open = b
			continue
		case c == '}' && open != nil:
			open = nil
		case c >= 'a' && c <= 'z':
			b.Groups = append(b.Groups, int(c-'a'))
		case c >= '0' && c <= '9':
			b.States = append(b.States, int(c-'0'))
		case c == '-' && open == nil:
		default:
			return nil, fmt.Errorf("order %q: unexpected %q", pattern, c)
		}
		if open == nil {
			unit = append(unit, *b)
		}
	}
	if open != nil || len(unit) == 0 {
		return nil, fmt.Errorf("order %q: not complete", pattern)
	}
	order := make([]Block, layers)
	for i := range order {
		order[i] = unit[i%len(unit)]
	}
	return order, nil
}
