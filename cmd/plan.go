package cmd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kvq/formula"
)

// planDefaultSchemes is priced where no --scheme is given.
var planDefaultSchemes = []string{
	"f16", "e4m3-raw", "int8-token", "int8-channel/32:int8-token", "int8-channel/32:int4-token/32",
	"int4-asym-channel/32:int4-asym-token/32", "int2-asym-channel/32:int2-asym-token/32",
	"q8_0", "q8_0:q4_0", "q4_0", "nvfp4",
}

type planOptions struct {
	model       modelOptions
	context     string
	schemes     []string
	sessions    int64
	manySet     bool // --sessions was given
	prefix      string
	sweep, plot string
	draft       draftOptions
	weights     weightOptions
	memory      string
	reserve     string
	device      string
	bandwidth   string
	tp, pp      int64
	engine      string
	engineOpt   []string
	encoder     string
	units       units
	explain     bool
}

// modelOptions are the flags that say which model is meant.
type modelOptions struct {
	preset, config, gguf, geometry string
	assume                         string
	shape                          formula.Shape
	shapeFlags                     []string // those of shape that were given
}

func newPlan(s Streams) *cobra.Command {
	var o planOptions
	var unitsText string
	c := &cobra.Command{
		Use:   "plan",
		Short: "price a KV cache to the byte",
		Long: `Plan prices the KV cache of a model under every storage scheme: as the sum over
its layers, or with --engine as a serving engine reserves it.

The model is one of --model (kvq models lists the names), --config, --gguf,
--geometry, or --layers with --kv-heads and --head-dim, or --mla-latent.
--engine all puts every engine beside the sum over the layers.

With --memory it says what fits on one device: whether the request does, the
largest context and the most sessions. The exit code is then 3 when a scheme
named by --scheme does not fit, or, without --scheme, when none does.

--device or --bandwidth add how many tokens a second reading the memory allows.
--draft and --mtp add the cache of speculative decoding, --prefix stores what
sessions have in common once, --sweep prices a range, and --plot draws it.`,
		Example: `  kvq plan --model 8b --ctx 32k
  kvq plan --model gpt-oss-20b --ctx 128k --memory 24GiB --weights auto
  kvq plan --geometry '12xfull:8x64+64;12xsliding128:8x64+64' --ctx 32k
  kvq plan --layers 61 --mla-latent 512 --mla-rope 64 --ctx 32k --tp 8
  kvq plan --model 70b --ctx 32k --device h100 --memory device --tp 4
  kvq plan --model 8b --sweep ctx=4k..128k --memory 24GiB --plot 8b.svg`,
		Args: noArgs("--model"),
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			if o.units, err = parseUnits(unitsText); err != nil {
				return err
			}
			o.manySet = c.Flags().Changed("sessions")
			for _, name := range shapeFlags {
				if c.Flags().Changed(name) {
					o.model.shapeFlags = append(o.model.shapeFlags, "--"+name)
				}
			}
			return runPlan(o, out)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVarP(&o.model.preset, "model", "m", "", "a preset: alias, name or Hugging Face id (kvq models)")
	f.StringVar(&o.model.config, "config", "", "a Hugging Face config.json, or the `PATH` of its folder")
	f.StringVar(&o.model.gguf, "gguf", "", "a GGUF `FILE`, of which only the header is read")
	f.StringVar(&o.model.geometry, "geometry", "", "groups COUNTxKIND[WINDOW][/RATIO]:HEADSxK+V joined by ';'")
	f.Int64Var(&o.model.shape.Layers, "layers", 0, "layers that cache")
	f.Int64Var(&o.model.shape.KVHeads, "kv-heads", 0, "KV heads of a layer")
	f.Int64Var(&o.model.shape.HeadDim, "head-dim", 0, "width of a head of K, and of V")
	f.Int64Var(&o.model.shape.HeadDimV, "head-dim-v", 0, "width of a head of V where it differs")
	f.Var((*tokensFlag)(&o.model.shape.Window), "sliding-window", "`TOKENS` that sliding layers keep")
	f.Int64Var(&o.model.shape.WindowLayers, "swa-layers", 0, "how many layers slide (default all)")
	f.Int64Var(&o.model.shape.Latent, "mla-latent", 0, "width of the MLA latent (kv_lora_rank)")
	f.Int64Var(&o.model.shape.Rope, "mla-rope", 0, "width of the MLA rope part")
	f.StringVar(&o.model.assume, "assume", "", "'full' prices what a config does not tell as full attention")
	f.StringVarP(&o.context, "ctx", "c", "", "`TOKENS` of a session: 32768, 32k, 1m (default the model's maximum)")
	f.StringVar(&o.encoder, "encoder-tokens", "", "`TOKENS` of the encoder or image that cross attention keeps")
	f.StringSliceVarP(&o.schemes, "scheme", "s", nil, "schemes, K:V where they differ; repeatable (kvq schemes)")
	f.Int64VarP(&o.sessions, "sessions", "n", 1, "sequences held at once")
	f.StringVar(&o.prefix, "prefix", "", "`TOKENS` that all sessions begin with, stored once")
	f.StringVar(&o.sweep, "sweep", "", "`RANGE`: ctx=4k..128k, sessions=1..64 (doubling), with :STEP, or a list")
	f.StringVar(&o.plot, "plot", "", "draw the sweep into `FILE`.svg or .png")
	f.StringVar(&o.draft.model, "draft", "", "draft `MODEL`: a preset, config.json or GGUF file, cached beside the model")
	f.StringVar(&o.draft.scheme, "draft-scheme", "", "`SCHEME` of the draft's cache (default the model's)")
	f.BoolVar(&o.draft.own, "mtp", false, "add the cache of the model's own draft (MTP) layers")
	f.StringVar(&o.memory, "memory", "", "`MEMORY` of one device: 24GiB, 80G (= GiB), 24GB, bytes; or device")
	f.StringVar(&o.weights.size, "weights", "", "`SIZE` of the model's weights, or auto from its files or parameters")
	f.StringVar(&o.weights.bits, "weight-bits", "", "`BITS` a weight for --weights auto (default 16)")
	f.StringVar(&o.weights.safetensors, "safetensors", "", "`PATH` of a checkpoint, file or folder, for --weights auto")
	f.StringVar(&o.reserve, "reserve", "", "`MEMORY` of a device to keep free")
	f.StringVar(&o.device, "device", "", "`NAME` of an accelerator or CPU (kvq devices)")
	f.StringVar(&o.bandwidth, "bandwidth", "", "memory `BANDWIDTH` of one device: 3350GB/s, 3.35TB/s")
	f.Int64Var(&o.tp, "tp", 1, "tensor parallel devices")
	f.Int64Var(&o.pp, "pp", 1, "pipeline parallel devices")
	f.StringVarP(&o.engine, "engine", "e", "ideal", engineFlagHelp())
	f.StringSliceVar(&o.engineOpt, "engine-opt", nil, "`KEY=VALUE` of the engine; repeatable")
	f.StringVar(&unitsText, "units", string(unitsIEC), "iec, si or bytes, for memory in tables")
	f.BoolVar(&o.explain, "explain", false, "show the formula with its numbers and where they came from")
	c.SetHelpFunc(planHelp(c.HelpFunc()))
	return c
}

// shapeFlags are the flags of formula.Shape.
var shapeFlags = []string{"layers", "kv-heads", "head-dim", "head-dim-v", "sliding-window", "swa-layers", "mla-latent", "mla-rope"}

// engineAll names every engine at once.
const engineAll = "all"

func engineFlagHelp() string {
	var names []string
	for _, e := range formula.Engines() {
		names = append(names, e.Name)
	}
	return "`NAME`: " + strings.Join(append(names, engineAll), ", ")
}

// planHelp adds the options of the engine named beside --help.
func planHelp(general func(*cobra.Command, []string)) func(*cobra.Command, []string) {
	return func(c *cobra.Command, args []string) {
		general(c, args)
		name, _ := c.Flags().GetString("engine")
		e, err := formula.LookupEngine(name)
		if err != nil || !c.Flags().Changed("engine") {
			return
		}
		w := c.OutOrStdout()
		fmt.Fprintf(w, "\n%s\n", strings.Join(wrap("Engine "+e.Name+": "+e.Title, textWidth), "\n"))
		for _, o := range e.Options {
			doc := o.Doc
			if o.Default != "" {
				doc += " (default " + o.Default + ")"
			}
			const column = 27
			lines := wrap(doc, textWidth-column)
			fmt.Fprintf(w, "  %-*s%s\n", column-2, o.Name, strings.Join(lines, "\n"+strings.Repeat(" ", column)))
		}
	}
}

// planRun is a plan with everything the flags left open filled in.
type planRun struct {
	request formula.Request // without scheme and options, which are the engine's
	engines []planEngine
	compare bool // --engine all
	named   bool // schemes were named, not taken from the default set
	budget  formula.Budget
	sweep   sweep
	draft   *formula.Draft
	// weights are those of budget and what one token uses of them.
	weights planWeights
	// device is the one named, if one was; bandwidth is its, in bytes a second.
	device    *formula.Device
	bandwidth int64
	// contextFrom says how the context came to be, for --explain.
	contextFrom string
	rows        []planRow
	leftOut     []string // names of the default set that do not go with the model
	warnings    []string
}

// planEngine is an engine with its settings and the schemes it is to price.
type planEngine struct {
	formula.Engine
	variant  string // the setting that makes it one, where engines are compared
	options  formula.Options
	schemes  []formula.Scheme
	baseline *formula.Scheme
}

type planRow struct {
	formula.Row
	engine  planEngine
	request formula.Request
	line    formula.Line   // where engines are compared
	decode  formula.Decode // with a bandwidth
}

// label names the engine, and the setting that makes it a variant.
func (e planEngine) label() string { return strings.TrimSpace(e.Name + " " + e.variant) }

// all reports whether engines are compared.
func (p *planRun) all() bool { return p.compare }

func (p *planRun) warn(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

func runPlan(o planOptions, out *output) error {
	inputs := []string{o.model.config, o.model.gguf, o.weights.safetensors, o.draft.model}
	if o.model.config != "" {
		inputs = append(inputs, filepath.Join(o.model.config, "config.json"))
	}
	if err := out.spare(inputs...); err != nil {
		return err
	}
	p, err := preparePlan(o)
	if err != nil {
		return err
	}
	if err := p.price(); err != nil {
		return err
	}
	if o.plot != "" {
		if err := p.plot(o.plot, o.units); err != nil {
			return err
		}
	}
	for _, w := range p.warnings {
		out.warn("%s", w)
	}
	if err := out.report(planReport(p, o)); err != nil {
		return err
	}
	return p.verdict()
}

// preparePlan turns the flags into a request.
func preparePlan(o planOptions) (*planRun, error) {
	p := &planRun{named: len(o.schemes) > 0}
	m, files, err := p.findModel(o.model)
	if err != nil {
		return nil, err
	}
	for _, missing := range m.Incomplete() {
		p.warn("%s", missing)
	}
	if m.UpperBound != "" {
		p.warn("an upper bound: %s", m.UpperBound)
	}
	for _, n := range []struct {
		flag string
		n    int64
	}{{"sessions", o.sessions}, {"tp", o.tp}, {"pp", o.pp}} {
		if n.n < 1 {
			return nil, usagef("--%s %d: want at least 1", n.flag, n.n)
		}
	}
	p.request = formula.Request{Model: m, Sequences: o.sessions, TP: o.tp, PP: o.pp}
	if err := p.findSweep(o); err != nil {
		return nil, err
	}
	if err := p.findContext(o); err != nil {
		return nil, err
	}
	if err := p.findEncoder(o.encoder); err != nil {
		return nil, err
	}
	drafts, err := p.findDraft(o.draft)
	if err != nil {
		return nil, err
	}
	if err := p.findBudget(o); err != nil {
		return nil, err
	}
	if err := p.findWeights(o.weights, files, drafts); err != nil {
		return nil, err
	}
	if err := p.findEngines(o.engine, o.engineOpt); err != nil {
		return nil, err
	}
	if err := p.useDraft(o.draft.scheme); err != nil {
		return nil, err
	}
	for i := range p.engines {
		if err := p.findSchemes(&p.engines[i], o.schemes); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// findEngines finds the engine, or all of them, with the options each knows.
func (p *planRun) findEngines(name string, settings []string) error {
	if !strings.EqualFold(name, engineAll) {
		e, err := formula.LookupEngine(name)
		if err != nil {
			return usageError{err}
		}
		options, err := e.ParseOptions(settings)
		if err != nil {
			return usageError{err}
		}
		p.engines = []planEngine{{Engine: e, options: options}}
		return nil
	}
	p.compare = true
	for _, e := range formula.Engines() {
		p.engines = append(p.engines, planEngine{Engine: e, options: formula.Options{}})
	}
	// A setting goes to every engine that knows it.
	for _, items := range settings {
		for item := range strings.SplitSeq(items, ",") {
			var unknown error
			known := false
			for _, e := range p.engines {
				options, err := e.ParseOptions([]string{item})
				if err != nil {
					unknown = err
					continue
				}
				known = true
				maps.Copy(e.options, options)
			}
			if !known {
				return usageError{unknown}
			}
		}
	}
	return p.addVariants()
}

// addVariants puts the variants of each engine behind it, save those of a
// setting that was given.
func (p *planRun) addVariants() error {
	var engines []planEngine
	for _, e := range p.engines {
		engines = append(engines, e)
		for _, variant := range e.Variants {
			options, err := e.ParseOptions([]string{variant})
			if err != nil {
				return err
			}
			v := e
			v.variant = variant
			v.options = maps.Clone(e.options)
			given := false
			for key, value := range options {
				_, set := e.options[key]
				given, v.options[key] = given || set, value
			}
			if !given {
				engines = append(engines, v)
			}
		}
	}
	p.engines = engines
	return nil
}

// sameAsBefore reports whether a variant takes what its engine takes.
func (p *planRun) sameAsBefore(e planEngine, q formula.Request, row formula.Row) bool {
	return e.variant != "" && slices.ContainsFunc(p.rows, func(r planRow) bool {
		return r.request.Context == q.Context && r.request.Sequences == q.Sequences && r.engine.Name == e.Name && r.Scheme.Name == row.Scheme.Name && (r.Total == row.Total || !priced(row))
	})
}

// findModel finds the model, and where its weights may be read from.
func (p *planRun) findModel(o modelOptions) (*formula.Model, weightFiles, error) {
	var given []string
	for _, f := range []struct {
		name  string
		given bool
	}{{"--model", o.preset != ""}, {"--config", o.config != ""}, {"--gguf", o.gguf != ""}, {"--geometry", o.geometry != ""}, {strings.Join(o.shapeFlags, " "), len(o.shapeFlags) > 0}} {
		if f.given {
			given = append(given, f.name)
		}
	}
	switch {
	case len(given) == 0:
		return nil, weightFiles{}, withHint(usagef("no model"), "kvq plan --model 8b --ctx 32k; 'kvq models' lists the names")
	case len(given) > 1:
		return nil, weightFiles{}, usagef("%s: want one model, not %d", strings.Join(given, " and "), len(given))
	case o.assume != "" && o.assume != "full":
		return nil, weightFiles{}, usagef("--assume %q: only 'full' is known", o.assume)
	}
	switch {
	case o.preset != "":
		m, err := p.preset(o.preset)
		return m, weightFiles{}, err
	case o.config != "":
		return readConfig("--config", o.config, o.assume == "full")
	case o.gguf != "":
		return readGGUF("--gguf", o.gguf, o.assume == "full")
	case o.geometry != "":
		g, err := formula.ParseGeometry(o.geometry)
		if err != nil {
			return nil, weightFiles{}, usageError{err}
		}
		return &formula.Model{Source: "geometry", Citation: "--geometry", Layers: g.Layers(), Geometry: g}, weightFiles{}, nil
	default:
		g, err := o.shape.Geometry()
		if err != nil {
			return nil, weightFiles{}, usagef("%s: %w", strings.Join(o.shapeFlags, " "), err)
		}
		return &formula.Model{Source: "flags", Citation: strings.Join(o.shapeFlags, " "), Layers: g.Layers(), Geometry: g}, weightFiles{}, nil
	}
}

// preset finds a preset and says when it stands in for a copy of it.
func (p *planRun) preset(name string) (*formula.Model, error) {
	m, variant, err := formula.LookupPreset(name)
	if err != nil {
		return nil, presetError(err)
	}
	if variant {
		p.warn("%s is read as %s: same shape, its maximum context may differ", name, m.Name)
	}
	return m, nil
}

// readConfig reads the config.json after a flag; weights are looked for in its
// folder.
func readConfig(flag, path string, assumeFull bool) (*formula.Model, weightFiles, error) {
	var files weightFiles
	m, err := formula.ReadHF(path, formula.HFOptions{AssumeFull: assumeFull})
	if errors.Is(err, formula.ErrUnknownArchitecture) {
		err = withHint(err, assumeHint)
	}
	if err != nil {
		return nil, files, ofFile(flag, err)
	}
	if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
		files.folder = path
	} else if filepath.Base(path) == "config.json" {
		files.folder = filepath.Dir(path)
	}
	return m, files, nil
}

// readGGUF reads the GGUF header after a flag, weights included.
func readGGUF(flag, path string, assumeFull bool) (*formula.Model, weightFiles, error) {
	g, err := formula.OpenGGUF(path)
	if err != nil {
		return nil, weightFiles{}, ofFile(flag, err)
	}
	m, err := g.Model(assumeFull)
	if errors.Is(err, formula.ErrUnknownArchitecture) {
		err = withHint(err, assumeHint)
	}
	if err != nil {
		return nil, weightFiles{}, fmt.Errorf("%s %s: %w", flag, path, err)
	}
	m.Citation = path
	return m, weightFiles{gguf: path, bytes: max(g.WeightBytes, 0), active: max(g.ActiveWeightBytes(), 0)}, nil
}

// assumeHint goes with a file whose architecture is not known.
const assumeHint = "--assume full prices an upper bound: every layer keeps every token"

// presetError keeps names that no preset answers to apart from a broken table.
func presetError(err error) error {
	var unknown *formula.UnknownModelError
	if errors.As(err, &unknown) {
		return usageError{err}
	}
	return err
}

func (p *planRun) findContext(o planOptions) error {
	limit := p.request.Model.MaxContext
	switch {
	case p.sweep.over == sweepContext:
		p.request.Context, p.contextFrom = slices.Max(p.sweep.points), "--sweep "+o.sweep
	case o.context != "":
		n, err := formula.ParseTokens(o.context)
		if err != nil {
			return usagef("--ctx %w", err)
		}
		p.request.Context, p.contextFrom = n, "--ctx "+o.context
	case limit > 0:
		p.request.Context, p.contextFrom = limit, "the model's maximum"
	default:
		return withHint(usagef("no context: the model does not say its maximum"), "add --ctx TOKENS, as in --ctx 32k")
	}
	if n := p.request.Context; limit > 0 && n > limit {
		p.warn("%s tokens are beyond the model's maximum of %s", grouped(n), grouped(limit))
	}
	if o.prefix == "" {
		return nil
	}
	n, err := formula.ParseTokens(o.prefix)
	if err != nil {
		return usagef("--prefix %w", err)
	}
	if n > p.request.Context {
		return usagef("--prefix %s: longer than the %s tokens of a session", o.prefix, grouped(p.request.Context))
	}
	p.request.Prefix = n
	return nil
}

// findEncoder fills in the length that cross attention keeps.
func (p *planRun) findEncoder(text string) error {
	m := p.request.Model
	switch {
	case text != "" && m.Cross == nil:
		return usagef("--encoder-tokens %s: the model has no cross attention", text)
	case text != "":
		n, err := formula.ParseTokens(text)
		if err != nil {
			return usagef("--encoder-tokens %w", err)
		}
		withTokens := *m
		cross := *m.Cross
		cross.Tokens = n
		withTokens.Cross = &cross
		p.request.Model = &withTokens
	case m.Cross != nil && m.Cross.Tokens == 0:
		n, err := m.Cross.Elements()
		if err != nil {
			return err
		}
		p.warn("cross attention keeps %s elements for each token of the encoder or image, which are not counted: give --encoder-tokens", grouped(n))
	}
	return nil
}

func (p *planRun) findBudget(o planOptions) error {
	if err := p.findDevice(o.device, o.bandwidth); err != nil {
		return err
	}
	for _, f := range []struct {
		flag, text string
		to         *int64
	}{{"memory", o.memory, &p.budget.Memory}, {"reserve", o.reserve, &p.budget.Reserve}} {
		switch {
		case f.text == "":
			continue
		case f.flag == "memory" && strings.EqualFold(f.text, "device"):
			if p.device == nil {
				return withHint(usagef("--memory device: which one?"), "add --device NAME; 'kvq devices' lists them")
			}
			*f.to = p.device.Memory
			continue
		}
		n, err := formula.ParseBytes(f.text)
		if err != nil {
			return usagef("--%s %w", f.flag, err)
		}
		*f.to = n
	}
	if o.memory != "" && p.budget.Memory == 0 {
		return usagef("--memory %s: want more than nothing", o.memory)
	}
	if o.reserve != "" && o.memory == "" {
		return usagef("--reserve %s: only with --memory", o.reserve)
	}
	return nil
}

// findSchemes reads the names, or the engine's default set. With all engines
// each prices the names it knows, or its first default.
func (p *planRun) findSchemes(e *planEngine, names []string) error {
	read := readScheme
	if e.Scheme != nil {
		read = e.Scheme
	}
	defaults := planDefaultSchemes
	if e.DefaultSchemes != nil {
		defaults = e.DefaultSchemes
	}
	switch {
	case !p.named && p.all():
		names = defaults[:1]
	case !p.named:
		names = defaults
	}
	for _, name := range names {
		s, err := read(name)
		switch {
		case err == nil:
			e.schemes = append(e.schemes, s)
		case !p.named:
			return err
		case !p.all():
			return usageError{err}
		}
	}
	for _, name := range []string{"f16", defaults[0]} {
		if s, err := read(name); err == nil {
			e.baseline = &s
			break
		}
	}
	return nil
}

// price fills the rows: for every point of a sweep each engine's schemes. A
// scheme that does not go with the model's shape is an error when it was named
// and left out of the default set.
func (p *planRun) price() error {
	var said warnings
	var first error // of a scheme left out
	for _, request := range p.requests() {
		for _, e := range p.engines {
			for _, s := range e.schemes {
				name := s.Name
				if p.all() {
					name = e.label() + " " + name
				}
				row, err := p.priceOne(e, s, request)
				switch {
				case err == nil && p.sameAsBefore(e, request, row.Row):
					continue
				case err == nil:
					p.rows = append(p.rows, row)
				case errors.Is(err, formula.ErrOverflow):
					return usagef("%s tokens x %s sessions: %w", grouped(request.Context), grouped(request.Sequences), err)
				case errors.Is(err, formula.ErrPrefix) && !p.all():
					return usageError{err}
				case p.named && !p.all():
					return usageError{err}
				default:
					if !slices.Contains(p.leftOut, name) {
						p.leftOut = append(p.leftOut, name)
					}
					if first == nil {
						first = err
					}
					continue
				}
				said.names = append(said.names, name)
				for _, w := range row.Reservation.Warnings {
					said.add(w, name)
				}
				if row.Total == 0 && priced(row.Row) && request.Model.Geometry.Layers() > 0 {
					said.add(grouped(request.Context)+" tokens are too few for anything to be kept", name)
				}
			}
		}
	}
	p.warnings = append(p.warnings, said.lines()...)
	switch {
	case len(p.rows) == 0 && first != nil: // what is wrong is not the scheme
		return usageError{first}
	case len(p.rows) == 0:
		return usagef("no engine knows a scheme that was named")
	case len(p.leftOut) > 0 && p.all():
		p.warn("left out: %s: %v", strings.Join(p.leftOut, ", "), first)
	case len(p.leftOut) > 0:
		p.warn("left out of the default set: %s: %v", strings.Join(p.leftOut, ", "), first)
	}
	return nil
}

// warnings are what engines said of rows, each once.
type warnings struct {
	names []string // of all rows
	texts []string
	of    map[string][]string // the rows that a text is about
}

func (w *warnings) add(text, name string) {
	if w.of == nil {
		w.of = map[string][]string{}
	}
	if _, known := w.of[text]; !known {
		w.texts = append(w.texts, text)
	}
	if !slices.Contains(w.of[text], name) {
		w.of[text] = append(w.of[text], name)
	}
}

// lines names the rows that a warning is about, unless it is about all.
func (w *warnings) lines() []string {
	slices.Sort(w.names)
	rows := len(slices.Compact(w.names))
	var lines []string
	for _, text := range w.texts {
		if names := w.of[text]; len(names) < rows {
			text = strings.Join(names, ", ") + ": " + text
		}
		lines = append(lines, text)
	}
	return lines
}

// priceOne prices one scheme of one engine.
func (p *planRun) priceOne(e planEngine, s formula.Scheme, request formula.Request) (planRow, error) {
	request.Scheme, request.Options = s, e.options
	row := planRow{engine: e, request: request}
	var err error
	if row.Row, err = formula.Price(e.Engine, request, e.baseline, p.budget); err != nil {
		return row, err
	}
	if p.all() {
		if row.line, err = formula.LongLine(e.Engine, request); err != nil {
			return row, err
		}
	}
	if p.bandwidth > 0 {
		row.decode, err = formula.BoundDecode(request, p.weights.active, p.bandwidth)
	}
	return row, err
}

// verdict is nil, or the error of exit code 3. In a sweep a scheme counts as
// fitting where any of its points does.
func (p *planRun) verdict() error {
	fits := map[string]bool{}
	var order []string
	for _, r := range p.rows {
		name := p.rowName(r)
		if _, known := fits[name]; !known {
			order = append(order, name)
		}
		fits[name] = fits[name] || r.Reservation.Refusal == "" && (p.budget.Memory == 0 || r.Fits)
	}
	not := slices.DeleteFunc(slices.Clone(order), func(name string) bool { return fits[name] })
	if len(not) == 0 || !p.named && len(not) < len(order) {
		return nil
	}
	which, any := strings.Join(not, ", "), strings.Join(not, ", ")
	if len(not) == len(order) && len(not) > 1 {
		which, any = fmt.Sprintf("none of %d schemes", len(not)), fmt.Sprintf("any of %d schemes", len(not))
	}
	// The reasons of what an engine refuses, unless some of it starts elsewhere
	// in a sweep.
	var why []string
	refused := 0
	for _, r := range refusals(p) {
		r.names = slices.DeleteFunc(r.names, func(name string) bool { return fits[name] })
		if refused += len(r.names); len(r.names) > 0 {
			why = append(why, r.reason)
		}
	}
	if len(why) == 0 {
		return answerNo("does not fit: %s", which)
	}
	reason := why[0]
	if more := len(why) - 1; more > 0 {
		reason += fmt.Sprintf(" (and %s that the notes give)", plural(int64(more), "further reason"))
	}
	switch {
	case refused < len(not):
		return answerNo("does not fit: %s: %s (the others lack memory)", which, reason)
	case p.all():
		return answerNo("would not start: %s: %s", which, reason)
	}
	return answerNo("%s would not start with %s: %s", p.engines[0].Name, any, reason)
}
