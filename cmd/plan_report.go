package cmd

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvq/formula"
)

type planJSON struct {
	Schema   string        `json:"schema"`
	Version  string        `json:"version"`
	Model    planModelJSON `json:"model"`
	Request  planRequest   `json:"request"`
	Rows     []planRowJSON `json:"rows"`
	Warnings []string      `json:"warnings"`
	Explain  []string      `json:"explain,omitempty"`
}

type planModelJSON struct {
	Name       string `json:"name,omitempty"`
	Source     string `json:"source"`
	Citation   string `json:"citation,omitempty"`
	HFID       string `json:"hf_id,omitempty"`
	Layers     int64  `json:"layers"`
	KVLayers   int64  `json:"kv_layers"`
	KVHeads    int64  `json:"kv_heads,omitempty"`   // absent where layers differ
	HeadDimK   int64  `json:"head_dim_k,omitempty"` // likewise
	HeadDimV   *int64 `json:"head_dim_v,omitempty"` // 0 for a shared latent
	QueryHeads int64  `json:"query_heads,omitempty"`
	Geometry   string `json:"geometry,omitempty"`
	MaxContext int64  `json:"max_context,omitempty"`
	Params     int64  `json:"params,omitempty"`
	Active     int64  `json:"active_params,omitempty"`
	Confidence string `json:"confidence,omitempty"`
}

func modelJSON(m *formula.Model) planModelJSON {
	j := planModelJSON{
		Name: m.Name, Source: m.Source, Citation: m.Citation, HFID: m.HFID, Layers: m.Layers, KVLayers: m.Geometry.Layers(),
		QueryHeads: m.QueryHeads, Geometry: m.Geometry.String(), MaxContext: m.MaxContext,
		Params: m.Params, Active: m.ActiveParams, Confidence: m.Confidence,
	}
	if heads, k, v, ok := m.Geometry.Uniform(); ok {
		j.KVHeads, j.HeadDimK, j.HeadDimV = heads, k, &v
	}
	return j
}

type planRequest struct {
	Context          int64             `json:"context"`
	Sequences        int64             `json:"sequences"`
	Engine           string            `json:"engine"`
	EngineOptions    map[string]string `json:"engine_options,omitempty"`
	TensorParallel   int64             `json:"tensor_parallel"`
	PipelineParallel int64             `json:"pipeline_parallel"`
	MemoryBytes      int64             `json:"memory_bytes,omitempty"`
	WeightsBytes     int64             `json:"weights_bytes,omitempty"`
	ReserveBytes     int64             `json:"reserve_bytes,omitempty"`
	// Where they were asked for:
	Prefix    int64      `json:"prefix_tokens,omitempty"`
	Draft     *planDraft `json:"draft,omitempty"`
	Device    string     `json:"device,omitempty"`
	Bandwidth int64      `json:"bandwidth_bytes_per_s,omitempty"`
	Sweep     string     `json:"sweep,omitempty"` // what the rows' context or sequences vary: ctx or sessions
}

// planDraft is the draft of speculative decoding.
type planDraft struct {
	Name     string `json:"name"`
	Geometry string `json:"geometry"`
	Scheme   string `json:"scheme,omitempty"` // absent where it is the model's
}

type planRowJSON struct {
	// Where engines are compared: the name, with the setting of a variant.
	Engine       string   `json:"engine,omitempty"`
	LongFixed    *int64   `json:"long_fixed_bytes,omitempty"`
	LongPerToken *float64 `json:"long_bytes_per_token,omitempty"`
	// In a sweep.
	Context   int64   `json:"context,omitempty"`
	Sequences int64   `json:"sequences,omitempty"`
	Scheme    string  `json:"scheme"`
	K         string  `json:"k"`
	V         string  `json:"v"`
	KBits     float64 `json:"k_bits,omitempty"`
	VBits     float64 `json:"v_bits,omitempty"`
	Bits      float64 `json:"bits_per_element,omitempty"`
	// nil where the engine refuses to start before it can tell
	*PlanFigures
	DraftBytes int64 `json:"draft_bytes,omitempty"` // of total_bytes, without padding
	*DecodeFigures
	RatioVsF16   float64                  `json:"ratio_vs_f16,omitempty"`
	Outgrows     int64                    `json:"outgrows_weights_context,omitempty"`
	MaxContext   *int64                   `json:"max_context,omitempty"` // absent where every context fits
	MaxSequences *int64                   `json:"max_sequences,omitempty"`
	Fits         *bool                    `json:"fits,omitempty"`
	Refusal      string                   `json:"refusal,omitempty"`
	Components   map[string]componentJSON `json:"components,omitempty"`
	// Figures that several engines have.
	Cells       any            `json:"cells,omitempty"`
	SWACells    any            `json:"swa_cells,omitempty"`
	Blocks      any            `json:"blocks,omitempty"`
	Tokens      any            `json:"tokens,omitempty"`
	Concurrency any            `json:"concurrency,omitempty"`
	Details     map[string]any `json:"details,omitempty"`
}

type componentJSON struct {
	Bytes  int64 `json:"bytes"`
	KBytes int64 `json:"k_bytes,omitempty"`
	VBytes int64 `json:"v_bytes,omitempty"`
}

// PlanFigures are the bytes of a row. The name is exported because encoding/json
// cannot decode into an embedded pointer otherwise.
type PlanFigures struct {
	BytesPerToken  float64 `json:"bytes_per_token"`
	FixedBytes     int64   `json:"fixed_bytes"`
	DataBytes      int64   `json:"data_bytes"`
	MetadataBytes  int64   `json:"metadata_bytes"`
	StateBytes     int64   `json:"state_bytes,omitempty"`
	CrossBytes     int64   `json:"cross_bytes,omitempty"`
	PaddingBytes   int64   `json:"padding_bytes,omitempty"`
	TotalBytes     int64   `json:"total_bytes"`
	BytesPerDevice int64   `json:"bytes_per_device"`
}

// DecodeFigures are the bound that a bandwidth sets on decode: what a step
// reads of weights and cache on the fullest rank, and at most so many tokens a
// second. Exported for the same reason.
type DecodeFigures struct {
	WeightBytes int64   `json:"decode_weights_bytes"`
	CacheBytes  int64   `json:"decode_cache_bytes"`
	Tokens      float64 `json:"decode_tokens_per_s"`
	PerSequence float64 `json:"decode_tokens_per_s_per_sequence"`
}

// priced tells rows with figures from those of an engine that would not start.
func priced(r formula.Row) bool { return r.Total > 0 || r.Reservation.Refusal == "" }

func rowJSON(r planRow, p *planRun) planRowJSON {
	a := r.Reservation
	j := planRowJSON{
		Scheme: r.Scheme.Name, K: r.Scheme.K.Name(), V: r.Scheme.V.Name(),
		KBits: r.KBits, VBits: r.VBits, Bits: r.Bits,
		RatioVsF16: r.RatioVsF16, Outgrows: r.OutgrowsWeights, Refusal: a.Refusal,
	}
	if priced(r.Row) {
		j.PlanFigures = &PlanFigures{
			BytesPerToken: r.BytesPerToken, FixedBytes: r.FixedBytes,
			DataBytes: a.Data, MetadataBytes: a.Metadata, StateBytes: a.State, CrossBytes: a.Cross, PaddingBytes: a.Padding,
			TotalBytes: r.Total, BytesPerDevice: a.PerDevice,
		}
	}
	switch p.sweep.over {
	case sweepContext:
		j.Context = r.request.Context
	case sweepSessions:
		j.Sequences = r.request.Sequences
	}
	j.DraftBytes = draftBytes(a)
	if p.bandwidth > 0 && priced(r.Row) {
		d := r.decode
		j.DecodeFigures = &DecodeFigures{d.Weights, d.Cache, d.Total, d.PerSequence}
	}
	if a.Refusal != "" {
		j.Fits = new(bool)
	}
	if p.all() {
		j.Engine = r.engine.label()
		if priced(r.Row) {
			j.LongFixed, j.LongPerToken = &r.line.Fixed, &r.line.PerToken
		}
	}
	if p.budget.Memory > 0 {
		fits, context, sequences := r.Fits, r.MaxContext, r.MaxSequences
		j.Fits, j.MaxSequences = &fits, &sequences
		if !r.Unbounded {
			j.MaxContext = &context
		}
	}
	for _, c := range a.Components {
		if j.Components == nil {
			j.Components = map[string]componentJSON{}
		}
		j.Components[c.Name] = componentJSON{c.Bytes, c.K, c.V}
	}
	common := map[string]*any{"cells": &j.Cells, "swa_cells": &j.SWACells, "blocks": &j.Blocks, "tokens": &j.Tokens, "concurrency": &j.Concurrency}
	for _, d := range a.Details {
		if to := common[d.Key]; to != nil {
			*to = d.Value
			continue
		}
		if j.Details == nil {
			j.Details = map[string]any{}
		}
		j.Details[d.Key] = d.Value
	}
	return j
}

func planReport(p *planRun, o planOptions) report {
	q := p.request
	j := planJSON{
		Schema: "kvq.plan/1", Version: versionOf(), Model: modelJSON(q.Model),
		Request: planRequest{
			Context: q.Context, Sequences: q.Sequences, Engine: p.engines[0].Name, EngineOptions: p.engines[0].options,
			TensorParallel: q.TP, PipelineParallel: q.PP,
			MemoryBytes: p.budget.Memory, WeightsBytes: p.budget.Weights, ReserveBytes: p.budget.Reserve,
		},
		Warnings: p.warnings,
	}
	if p.all() {
		j.Request.Engine, j.Request.EngineOptions = engineAll, nil
	}
	p.describe(&j.Request, o)
	if j.Warnings == nil {
		j.Warnings = []string{}
	}
	for _, r := range p.rows {
		j.Rows = append(j.Rows, rowJSON(r, p))
	}
	tables := planTables(p, o.units)
	last := tables[len(tables)-1]
	last.notes = append(last.notes, planNotes(p, o.units)...)
	if o.explain {
		j.Explain = explainPlan(p)
		last.notes = append(last.notes, "")
		last.notes = append(last.notes, j.Explain...)
	}
	return report{tables: tables, data: planData(j.Rows, j.Request.Engine), json: j}
}

// describe adds what was asked beyond the cache of a context.
func (p *planRun) describe(j *planRequest, o planOptions) {
	j.Prefix, j.Bandwidth, j.Sweep = p.request.Prefix, p.bandwidth, p.sweep.over
	if p.device != nil {
		j.Device = p.device.Name
	}
	if p.draft != nil {
		name, geometry := p.draftName()
		j.Draft = &planDraft{name, geometry.String(), o.draft.scheme}
	}
}

// draftName names the draft and gives its layers.
func (p *planRun) draftName() (string, formula.Geometry) {
	if m := p.draft.Model; m != nil {
		return modelLabel(m), m.Geometry
	}
	m := p.request.Model
	return "the draft layers of " + modelLabel(m), m.Draft
}

// draftBytes is what of a reservation the draft's cache takes.
func draftBytes(r formula.Reservation) int64 {
	for _, c := range r.Components {
		if c.Name == formula.DraftKV {
			return c.Bytes
		}
	}
	return 0
}

// planTables are the tables for people: the prices, with a budget what fits,
// and with a bandwidth how fast decode can be.
func planTables(p *planRun, u units) []*table {
	q := p.request
	swept := column{header: "tokens", right: true, optional: true}
	if p.sweep.over == sweepSessions {
		swept.header = "sessions"
	}
	prices := &table{columns: []column{
		{header: "engine", optional: true},
		{header: "scheme"},
		swept,
		{header: "fixed", right: true, optional: true},
		{header: "bits", right: true, optional: true},
		{header: "B/token", right: true},
		{header: "metadata", right: true, optional: true},
		{header: "draft", right: true, optional: true},
		{header: "padding", right: true, optional: true},
		{header: "total", right: true},
		{header: "a device", right: true, optional: true},
		{header: "vs f16", right: true, optional: true},
	}}
	prices.title = fmt.Sprintf("%s, %s x %s", modelLabel(q.Model), plural(q.Context, "token"), plural(q.Sequences, "session"))
	switch p.sweep.over {
	case sweepContext:
		prices.title = fmt.Sprintf("%s, %s", modelLabel(q.Model), plural(q.Sequences, "session"))
	case sweepSessions:
		prices.title = fmt.Sprintf("%s, sessions of %s", modelLabel(q.Model), plural(q.Context, "token"))
	}
	if q.Prefix > 0 {
		prices.title += fmt.Sprintf(", %s in common", grouped(q.Prefix))
	}
	if q.TP > 1 || q.PP > 1 {
		prices.title += fmt.Sprintf(", tp %d pp %d", q.TP, q.PP)
	}
	if e := p.engines[0]; !p.all() && e.Name != "ideal" {
		prices.title += ", " + e.Name
	}
	room := &table{title: roomTitle(p, u), columns: []column{
		{header: "engine", optional: true},
		{header: "scheme"},
		swept,
		{header: "a device", right: true, optional: true},
		{header: "max tokens", right: true},
		{header: "max sessions", right: true},
		{header: "fits"},
	}}
	speed := &table{title: speedTitle(p), columns: []column{
		{header: "engine", optional: true},
		{header: "scheme"},
		swept,
		{header: "weights read", right: true, optional: true},
		{header: "cache read", right: true},
		{header: "tokens/s", right: true},
		{header: "a session", right: true, optional: true},
	}}
	some := func(n int64) cell {
		if n == 0 {
			return absent()
		}
		return u.size(n)
	}
	for _, r := range p.rows {
		a := r.Reservation
		device := absent()
		if priced(r.Row) && (q.TP > 1 || q.PP > 1) {
			device = u.size(a.PerDevice)
		}
		saving := absent()
		if r.RatioVsF16 > 0 && !p.all() {
			saving = text(strconv.FormatFloat(r.RatioVsF16, 'f', 2, 64) + "x")
		}
		bits := absent()
		if r.Bits > 0 {
			bits = number(r.Bits, 4)
		}
		token, total := absent(), absent()
		if priced(r.Row) {
			token, total = perToken(r.BytesPerToken), u.size(r.Total)
		}
		engine, fixed := absent(), absent()
		if p.all() {
			engine = text(r.engine.label())
			if priced(r.Row) {
				fixed, token = u.size(r.line.Fixed), perToken(r.line.PerToken)
			}
			bits = absent()
		}
		point := absent()
		switch p.sweep.over {
		case sweepContext:
			point = count(r.request.Context)
		case sweepSessions:
			point = count(r.request.Sequences)
		}
		prices.add(engine, text(r.Scheme.Name), point, fixed, bits, token, some(a.Metadata), some(draftBytes(a)), some(a.Padding), total, device, saving)
		tokens, fits := count(r.MaxContext), "no"
		if r.Unbounded {
			tokens = text("any")
		}
		if r.Fits {
			fits = "yes"
		}
		room.add(engine, text(r.Scheme.Name), point, device, tokens, count(r.MaxSequences), text(fits))
		if a.Refusal != "" {
			prices.mark("bad")
		}
		if !r.Fits {
			room.mark("bad")
		}
		if d := r.decode; p.bandwidth > 0 && priced(r.Row) {
			session := absent()
			if r.request.Sequences > 1 {
				session = number(d.PerSequence, 4)
			}
			speed.add(engine, text(r.Scheme.Name), point, some(d.Weights), u.size(d.Cache), number(d.Total, 4), session)
		}
	}
	prices.spare = []string{"metadata", "vs f16", "padding", "fixed", "B/token"}
	tables := []*table{prices}
	if p.budget.Memory > 0 {
		tables = append(tables, room)
	}
	if len(speed.rows) > 0 {
		tables = append(tables, speed)
	}
	return tables
}

// speedTitle names the device and its bandwidth.
func speedTitle(p *planRun) string {
	title := "decode at most, memory of " + gigabytes(p.bandwidth) + " GB/s"
	if p.device != nil {
		title = "decode at most, " + p.device.Name + ", " + gigabytes(p.bandwidth) + " GB/s"
	}
	return title
}

// speedNotes says what the bound on decode takes for granted.
func speedNotes(p *planRun, u units) []string {
	if p.bandwidth == 0 {
		return nil
	}
	var notes []string
	m, w := p.request.Model, p.weights
	switch {
	case w.bytes == 0:
		notes = append(notes, "no step is faster than reading the cache; weights are not counted")
	case w.active < w.bytes:
		notes = append(notes, fmt.Sprintf("no step is faster than reading the cache and the weights that one token uses: %s of %s", u.format(w.active), u.format(w.bytes)))
	case w.all:
		notes = append(notes, "no step is faster than reading the cache and the weights, all of them: a mixture of experts reads fewer")
	default:
		notes = append(notes, "no step is faster than reading the cache and the weights ("+u.format(w.bytes)+")")
	}
	if q := p.request; q.TP > 1 {
		notes = append(notes, fmt.Sprintf("tensor parallel ranks read at the same time: each 1/%d of the weights, and its heads", q.TP))
	}
	if q := p.request; q.PP > 1 {
		notes = append(notes, fmt.Sprintf("the %d pipeline stages take turns for a session, and work on different ones at once", q.PP))
	}
	if p.rows[0].decode.Selected {
		notes = append(notes, fmt.Sprintf("%s reads a selection of its cache: only what picks it is counted", modelLabel(m)))
	}
	if p.draft != nil {
		notes = append(notes, "a step of the model alone; what it accepts of the draft's guesses comes on top")
	}
	return notes
}

// roomTitle says what a device has for the cache.
func roomTitle(p *planRun, u units) string {
	b := p.budget
	title := "in " + u.format(b.Memory)
	if b.Weights > 0 {
		title += " - weights " + u.format(b.Weights)
		if devices := p.request.TP * p.request.PP; devices > 1 {
			title += fmt.Sprintf(" / %d", devices)
		}
	}
	if b.Reserve > 0 {
		title += " - reserve " + u.format(b.Reserve)
	}
	return title
}

// planData is the table for programs: the rows of the JSON report.
func planData(rows []planRowJSON, engine string) *table {
	t := &table{}
	for _, name := range []string{
		"scheme", "k", "v", "k_bits", "v_bits", "bits_per_element", "bytes_per_token", "fixed_bytes", "data_bytes", "metadata_bytes",
		"state_bytes", "cross_bytes", "padding_bytes", "total_bytes", "bytes_per_device", "ratio_vs_f16", "outgrows_weights_context",
		"max_context", "max_sequences", "fits", "engine", "long_fixed_bytes", "long_bytes_per_token",
		"context", "sequences", "draft_bytes",
		"decode_weights_bytes", "decode_cache_bytes", "decode_tokens_per_s", "decode_tokens_per_s_per_sequence", "refusal",
	} {
		t.columns = append(t.columns, column{name: name})
	}
	whole := func(n int64) cell { return cell{value: strconv.FormatInt(n, 10)} }
	known := func(n int64) cell {
		if n == 0 {
			return absent()
		}
		return whole(n)
	}
	real := func(x float64) cell {
		if x == 0 {
			return absent()
		}
		return cell{value: exact(x)}
	}
	pointer := func(n *int64) cell {
		if n == nil {
			return absent()
		}
		return whole(*n)
	}
	for _, r := range rows {
		fits := absent()
		if r.Fits != nil {
			fits = text(strconv.FormatBool(*r.Fits))
		}
		cells := []cell{text(r.Scheme), text(r.K), text(r.V), real(r.KBits), real(r.VBits), real(r.Bits)}
		if f := r.PlanFigures; f != nil {
			cells = append(cells, cell{value: exact(f.BytesPerToken)}, whole(f.FixedBytes), whole(f.DataBytes), whole(f.MetadataBytes),
				known(f.StateBytes), known(f.CrossBytes), known(f.PaddingBytes), whole(f.TotalBytes), whole(f.BytesPerDevice))
		} else {
			cells = append(cells, make([]cell, 9)...)
		}
		slope := absent()
		if r.LongPerToken != nil {
			slope = cell{value: exact(*r.LongPerToken)}
		}
		cells = append(cells, real(r.RatioVsF16), known(r.Outgrows), pointer(r.MaxContext), pointer(r.MaxSequences), fits,
			text(cmp.Or(r.Engine, engine)), pointer(r.LongFixed), slope, known(r.Context), known(r.Sequences), known(r.DraftBytes))
		if d := r.DecodeFigures; d != nil {
			cells = append(cells, whole(d.WeightBytes), whole(d.CacheBytes), real(d.Tokens), real(d.PerSequence))
		} else {
			cells = append(cells, make([]cell, 4)...)
		}
		t.add(append(cells, text(r.Refusal))...)
	}
	return t
}

// planNotes says what was understood of the flags and what the figures mean.
func planNotes(p *planRun, u units) []string {
	var notes []string
	if a := p.rows[0].Reservation; a.State > 0 || a.Cross > 0 {
		var parts []string
		if a.State > 0 {
			parts = append(parts, "recurrent state "+u.format(a.State))
		}
		if a.Cross > 0 {
			parts = append(parts, "cross attention "+u.format(a.Cross))
		}
		notes = append(notes, "totals hold "+strings.Join(parts, " and "))
	}
	if p.draft != nil {
		name, geometry := p.draftName()
		notes = append(notes, fmt.Sprintf("totals hold the draft's cache: %s, %s", name, geometry))
	}
	if len(p.request.Model.Geometry) == 0 {
		notes = append(notes, "no layer keeps tokens: neither the scheme nor the context changes anything")
	} else if !p.all() && slices.ContainsFunc(p.rows, func(r planRow) bool { return priced(r.Row) && r.BytesPerToken == 0 }) {
		notes = append(notes, "B/token -: the next 256 tokens add nothing, since windows are full or blocks have room")
	}
	if p.budget.Weights > 0 {
		for _, r := range p.rows {
			if r.OutgrowsWeights > 0 && p.sweep.over == "" {
				notes = append(notes, fmt.Sprintf("%s outgrows the weights (%s) at %s tokens", r.Scheme.Name, u.format(p.budget.Weights), grouped(r.OutgrowsWeights)))
				break
			}
		}
	}
	for _, r := range refusals(p) {
		notes = append(notes, strings.Join(r.names, ", ")+": "+r.reason)
	}
	notes = append(notes, speedNotes(p, u)...)
	if len(p.rows) == 1 {
		for _, d := range p.rows[0].Reservation.Details {
			notes = append(notes, d.Label+": "+detailText(d, u))
		}
	}
	return notes
}

// detailText shows an engine's own figure as the tables show theirs.
func detailText(d formula.Detail, u units) string {
	n, whole := d.Value.(int64)
	switch {
	case whole && strings.HasSuffix(d.Key, "_bytes"):
		return u.format(n)
	case whole:
		return grouped(n)
	}
	return fmt.Sprint(d.Value)
}

// A refusal is why an engine would not start, and with which of the rows.
type refusal struct {
	reason string
	names  []string
}

func refusals(p *planRun) (all []refusal) {
	for _, r := range p.rows {
		reason, name := r.Reservation.Refusal, p.rowName(r)
		if reason == "" {
			continue
		}
		i := slices.IndexFunc(all, func(other refusal) bool { return other.reason == reason })
		if i < 0 {
			i, all = len(all), append(all, refusal{reason: reason})
		}
		if !slices.Contains(all[i].names, name) { // a sweep has many rows of one
			all[i].names = append(all[i].names, name)
		}
	}
	return all
}

// rowName tells the rows of a report apart, but for the points of a sweep.
func (p *planRun) rowName(r planRow) string {
	if p.all() {
		return r.engine.label() + " " + r.Scheme.Name
	}
	return r.Scheme.Name
}

func plural(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return grouped(n) + " " + noun
}

// perToken shows whole bytes with thousands, and one decimal otherwise. Where
// every layer's window is full a token adds nothing, which is no price of 0.
func perToken(x float64) cell {
	if x == 0 {
		return cell{"-", "0"}
	}
	if x == float64(int64(x)) {
		return cell{grouped(int64(x)), exact(x)}
	}
	whole, fraction, _ := strings.Cut(strconv.FormatFloat(x, 'f', 1, 64), ".")
	n, _ := strconv.ParseInt(whole, 10, 64)
	return cell{grouped(n) + "." + fraction, exact(x)}
}

// explainPlan writes each scheme's formula with its numbers, and where the
// numbers came from.
func explainPlan(p *planRun) []string {
	var lines []string
	for _, r := range p.rows {
		name := p.rowName(r)
		switch p.sweep.over {
		case sweepContext:
			name += " of " + plural(r.request.Context, "token")
		case sweepSessions:
			name += " for " + plural(r.request.Sequences, "session")
		}
		lines = append(lines, name+":")
		if r.engine.Explain != nil {
			explained, err := r.engine.Explain(r.request)
			if err != nil {
				explained = []string{err.Error()}
			}
			for _, l := range explained {
				lines = append(lines, "  "+l)
			}
			lines = append(lines, explainMetadata(r)...)
			lines = append(lines, explainDecode(p, r)...)
			continue
		}
		for _, c := range r.Reservation.Components {
			lines = append(lines, fmt.Sprintf("  %s: %s B", c.Name, grouped(c.Bytes)))
		}
		for _, d := range r.Reservation.Details {
			lines = append(lines, fmt.Sprintf("  %s: %v", d.Label, d.Value))
		}
		lines = append(lines, explainMetadata(r)...)
		lines = append(lines, explainDecode(p, r)...)
	}
	m := p.request.Model
	lines = append(lines, "where the numbers came from:")
	lines = append(lines, fmt.Sprintf("  geometry %s: %s", m.Geometry, modelOrigin(m)))
	for _, f := range m.Facts {
		lines = append(lines, fmt.Sprintf("  %s %s: %s", f.Name, f.Value, f.From))
	}
	lines = append(lines, fmt.Sprintf("  context %s: %s", grouped(p.request.Context), p.contextFrom))
	if p.budget.Weights > 0 {
		lines = append(lines, fmt.Sprintf("  weights %s B: %s", grouped(p.budget.Weights), p.weights.from))
	}
	if w := p.weights; p.bandwidth > 0 && w.active < w.bytes && m.ActiveParams > 0 {
		lines = append(lines, fmt.Sprintf("  weights of one token %s B: %s of %s parameters", grouped(w.active), grouped(m.ActiveParams), grouped(m.Params)))
	} else if p.bandwidth > 0 && w.active < w.bytes {
		lines = append(lines, fmt.Sprintf("  weights of one token %s B: of the experts' tensors those of one token", grouped(w.active)))
	}
	switch d := p.device; {
	case d != nil && p.bandwidth == d.Bandwidth:
		lines = append(lines, fmt.Sprintf("  bandwidth %s B/s, memory %s B: %s, %s", grouped(d.Bandwidth), grouped(d.Memory), d.Name, d.Source))
	case p.bandwidth > 0:
		lines = append(lines, fmt.Sprintf("  bandwidth %s B/s: --bandwidth", grouped(p.bandwidth)))
	}
	for _, n := range m.Notes {
		lines = append(lines, "  note: "+n)
	}
	return lines
}

// explainMetadata says what a row's scales and the like cost.
func explainMetadata(r planRow) []string {
	a := r.Reservation
	if a.Metadata == 0 || r.Total == 0 {
		return nil
	}
	line := fmt.Sprintf("  metadata %s B: %s%% of the total", grouped(a.Metadata), significant(float64(100*float64(a.Metadata))/float64(r.Total), 3))
	if n := a.KElements + a.VElements; n > 0 {
		line += fmt.Sprintf(", %s bits an element", significant(float64(8*float64(a.Metadata))/float64(n), 3))
	}
	return []string{line}
}

// explainDecode writes the bound on decode with its numbers.
func explainDecode(p *planRun, r planRow) []string {
	if p.bandwidth == 0 || !priced(r.Row) {
		return nil
	}
	d, q := r.decode, r.request
	cache := grouped(d.Cache) + " B of cache"
	if parts := min(q.Sequences, q.PP); parts > 1 {
		cache += fmt.Sprintf(" / %d stages at work", parts)
	}
	return []string{fmt.Sprintf("  decode: %s x %s B/s / (%s B of weights + %s) = at most %s tokens/s", plural(q.Sequences, "session"),
		grouped(p.bandwidth), grouped(d.Weights), cache, significant(d.Total, 4))}
}

// modelOrigin says where a model's figures came from.
func modelOrigin(m *formula.Model) string {
	if m.Source != "preset" {
		return m.Citation
	}
	return fmt.Sprintf("preset %s (%s), confidence %s, %s", m.Name, m.HFID, m.Confidence, m.Citation)
}
