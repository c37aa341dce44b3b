package cmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"kvq/formula"
	"kvq/kernels"
	"kvq/quantize"
)

// benchOptions are the flags of kvq bench.
type benchOptions struct {
	schemes    []string
	cpu        cpuFlags
	threads    []int
	context    string
	queryHeads int
	kvHeads    int
	headDim    int
	headDimV   int
	window     int64
	levels     []string
	kernels    []string
	model      string
	budget     time.Duration
	wide       bool

	tokens int
	named  bool // schemes were named, not taken from the default set
	shaped bool // heads or widths were given
	about  *formula.Model
}

// benchSchemes is the set of kvq bench without --scheme: f16, and the pairs that
// the targets of docs/benchmarks.md are about.
var benchSchemes = []string{
	"f16", "int8-channel:int8-token", "int8-token/64:int8-token", "int8-token", "int8-channel/32:int8-token/32",
	"int8-channel:int4-token", "int8-channel/32:int4-token/32", "int4-channel:int4-token", "int4-channel/128:int4-token/64",
	"int4-asym-channel/32:int4-asym-token/32", "e4m3-raw",
}

// benchKernels are the rows of kvq bench: fused decode attention; the same done by
// writing the cache out as f16 first; and storing and restoring values.
var benchKernels = []string{"decode", "dequantize-then-f16", "encode", "dequantize"}

func newBench(s Streams) *cobra.Command {
	var o benchOptions
	c := &cobra.Command{
		Use:   "bench",
		Short: "measure decode attention against the read bandwidth",
		Long: `bench runs the attention of one new token over a cache of one layer, stored
under each scheme, and sets its speed beside a pass that only reads the same
memory. Both alternate in one process; figures are medians.

roofline is the share of that read bandwidth. cap is the share of what can be
had: the lower of the read bandwidth and of what the kernel itself reaches on a
cache that stays in the second-level cache, times the threads.

--kernel encode measures how fast float32 values are stored: as rows of codes
(encode), and as pages of keys and of values (encode-k, encode-v). Where a scale
covers a whole head or column they are read twice; -frozen is without the pass
that finds such scales.`,
		Example: `  kvq bench
  kvq bench --scheme int8-channel:int4-token/64 --ctx 128k --threads 1
  kvq bench --level l2,l3,dram --format json -o bench.json
  kvq bench --format html -o bench.html`,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := newOutput(c, s, formatHTML)
			if err != nil {
				return err
			}
			if o.named = c.Flags().Changed("scheme"); !o.named {
				o.schemes = benchSchemes
			}
			for _, flag := range []string{"heads", "kv-heads", "head-dim", "head-dim-v"} {
				if !c.Flags().Changed(flag) {
					continue
				}
				o.shaped = true
				// The default of --heads and --head-dim-v is 0, which nobody means who types it.
				if n, err := c.Flags().GetInt(flag); err == nil && n < 1 {
					return usagef("--%s %d: want at least 1", flag, n)
				}
			}
			return runBench(c.Context(), o, out)
		},
	}
	threads := []int{1}
	if n := runtime.GOMAXPROCS(0); n > 1 {
		threads = append(threads, n)
	}
	f := c.Flags()
	f.StringSliceVar(&o.schemes, "scheme", nil, "`SCHEME` or K:V pair; repeatable, or a list (default: f16, and the pairs of the target table)")
	o.cpu.fromEnv = s.Getenv("KVQ_ISA")
	o.cpu.addISA(f)
	f.IntSliceVar(&o.threads, "threads", threads, "numbers of `THREADS` to measure, a list")
	f.StringVarP(&o.context, "ctx", "c", "32k", "`TOKENS` in the cache")
	f.IntVar(&o.queryHeads, "heads", 0, "query heads (default: 4 for each KV head)")
	f.IntVar(&o.kvHeads, "kv-heads", 8, "KV heads")
	f.IntVar(&o.headDim, "head-dim", 128, "channels of a key")
	f.IntVar(&o.headDimV, "head-dim-v", 0, "channels of a value (default: as a key)")
	f.Var((*tokensFlag)(&o.window), "window", "attend to the last `TOKENS` only")
	f.StringSliceVar(&o.levels, "level", []string{"dram"}, "what the cache streams from: l2, l3, dram, a list")
	f.StringSliceVar(&o.kernels, "kernel", []string{"decode"}, "what to measure: "+strings.Join(benchKernels, ", ")+", a list")
	f.StringVar(&o.model, "model", "", "take heads and widths from this `MODEL`, and estimate the time of its whole cache")
	f.DurationVar(&o.budget, "time", 300*time.Millisecond, "time for each figure")
	f.BoolVar(&o.wide, "wide", false, "show quartiles and sizes too")
	return c
}

func (o *benchOptions) check() error {
	tokens, err := formula.ParseTokens(o.context)
	if err != nil {
		return usagef("--ctx %w", err)
	}
	if tokens > 1<<31 {
		return usagef("--ctx %d: at most %d tokens", tokens, 1<<31)
	}
	o.tokens = int(tokens)
	if err := o.findModel(); err != nil {
		return err
	}
	if o.queryHeads == 0 {
		o.queryHeads = 4 * o.kvHeads
	}
	if o.headDimV == 0 {
		o.headDimV = o.headDim
	}
	switch {
	case o.queryHeads%o.kvHeads != 0:
		return usagef("--heads %d: want a multiple of --kv-heads %d", o.queryHeads, o.kvHeads)
	case o.budget <= 0 || o.budget > time.Hour:
		return usagef("--time %s: want more than 0, an hour at most", o.budget)
	case len(o.threads) == 0 || len(o.levels) == 0 || len(o.schemes) == 0 || len(o.kernels) == 0:
		return usagef("--threads, --level, --kernel and --scheme want at least one entry")
	}
	o.threads, o.levels, o.kernels = distinct(o.threads), distinct(o.levels), distinct(o.kernels)
	for _, n := range o.threads {
		if n < 1 || n > maxThreads {
			return usagef("--threads %d: want 1 to %d", n, maxThreads)
		}
	}
	for _, kernel := range o.kernels {
		if !slices.Contains(benchKernels, kernel) {
			return usagef("--kernel %q: not one of %s", kernel, strings.Join(benchKernels, ", "))
		}
	}
	for _, level := range o.levels {
		if !slices.Contains([]string{"l2", "l3", "dram"}, level) {
			return usagef("--level %q: not one of l2, l3, dram", level)
		}
	}
	o.cpu.threads = 1
	return o.cpu.use()
}

// distinct drops what an earlier entry of x repeats.
func distinct[T comparable](x []T) []T {
	var first []T
	for _, v := range x {
		if !slices.Contains(first, v) {
			first = append(first, v)
		}
	}
	return first
}

// visible is how many tokens the measured caches hold: all, or the pages that the window
// reaches. Pages that no step reads would count as read, and keep the others' copies so
// few that they fit a cache.
func (o *benchOptions) visible() int {
	if o.window == 0 {
		return o.tokens
	}
	first := max(0, o.tokens-int(o.window))
	return o.tokens - first/kernels.PageTokens*kernels.PageTokens
}

// memory estimates what a run holds at once: the values of a head, as they are and
// encoded, and the cache of f16 with a copy.
func (o *benchOptions) memory() float64 {
	elements := float64(o.visible()) * float64(o.headDim+o.headDimV)
	need := float64(elements*16) + float64(float64(o.kvHeads)*elements*4)
	if slices.ContainsFunc(o.kernels, func(k string) bool { return k != "decode" }) {
		need += float64(float64(o.kvHeads) * elements * 8)
	}
	return need
}

// findModel takes the shape of --model: that of its largest group of layers.
func (o *benchOptions) findModel() error {
	if o.model == "" {
		return nil
	}
	if o.shaped {
		return usagef("--model says the heads and their width: leave --heads, --kv-heads, --head-dim and --head-dim-v out")
	}
	if o.window != 0 {
		return usagef("--model says which layers have a window: leave --window out")
	}
	m, _, err := formula.LookupPreset(o.model)
	if err != nil {
		return presetError(err)
	}
	var largest formula.Group
	for _, g := range m.Geometry {
		if g.Extra == "" && g.Count > largest.Count {
			largest = g
		}
	}
	if largest.Count == 0 || m.QueryHeads%largest.KVHeads != 0 {
		return usagef("--model %s: no layers with a cache that bench can run", o.model)
	}
	o.about = m
	o.kvHeads, o.queryHeads, o.headDim, o.headDimV = int(largest.KVHeads), int(m.QueryHeads), int(largest.HeadDimK), int(largest.HeadDimV)
	o.headDimV = int(valueDim(largest))
	return nil
}

// valueDim is the width of a value. Those of a latent are its first 512 channels.
func valueDim(g formula.Group) int64 {
	if g.Latent() {
		return min(g.HeadDimK, 512)
	}
	return g.HeadDimV
}

// wholeModel says how many layers of a row's cache take as long as one token's
// attention in all layers of the model, at a context: each layer of the same shape is
// one, any other as much as its bytes are of the row's, both counted as bench stores
// them. It is 0 where the scheme does not fit some layer.
func (o *benchOptions) wholeModel(row benchRow, pair quantize.Pair, context int64) float64 {
	bytes := func(heads, tokens, dimK, dimV int64) (float64, bool) {
		k, errK := pair.K.Size(quantize.Shape{Heads: int(heads), Tokens: int(tokens), Dim: int(dimK)})
		v, errV := pair.V.Size(quantize.Shape{Heads: int(heads), Tokens: int(tokens), Dim: int(dimV)})
		return float64(k.Total() + v.Total()), errK == nil && errV == nil
	}
	measured, ok := bytes(int64(row.KVHeads), int64(row.Tokens), int64(o.headDim), int64(o.headDimV))
	if !ok {
		return 0
	}
	layers := 0.0
	for _, g := range o.about.Geometry {
		if g.Extra == formula.Index {
			continue // read by the indexer, not by attention
		}
		n, ok := bytes(g.KVHeads, g.Tokens(context), g.HeadDimK, valueDim(g))
		if !ok {
			return 0
		}
		layers += float64(float64(g.Count) * n / measured)
	}
	return layers
}

// price estimates the model's decode attention for a row at several contexts, and from
// which context the scheme saves a millisecond against f16, a row of which takes f16Us.
func (o *benchOptions) price(row *benchRow, pair, f16 quantize.Pair, f16Us float64) {
	ms := func(context int64) float64 { return o.wholeModel(*row, pair, context) * row.UsPerToken / 1e3 }
	now := ms(int64(o.tokens))
	if now == 0 {
		return
	}
	row.ModelMs = &now
	most := max(o.about.MaxContext, int64(o.tokens))
	for context := int64(1 << 10); context <= most && len(row.ModelMsAt) < 6; context *= 4 {
		row.ModelMsAt = append(row.ModelMsAt, benchContext{context, ms(context)})
	}
	saves := func(context int64) bool {
		return o.wholeModel(*row, f16, context)*f16Us/1e3-ms(context) >= 1
	}
	if !saves(most) {
		return
	}
	row.SavesFrom = int64(sort.Search(int(most), func(i int) bool { return saves(int64(i)) }))
}

// benchJSON is the result of kvq bench.
type benchJSON struct {
	Schema   string     `json:"schema"`
	Version  string     `json:"version"`
	CPU      benchCPU   `json:"cpu"`
	Geometry benchShape `json:"geometry"`
	Model    string     `json:"model,omitempty"`
	Rows     []benchRow `json:"rows"`
	Warnings []string   `json:"warnings"`
}

type benchCPU struct {
	Name      string  `json:"name,omitempty"`
	ISA       string  `json:"isa"`
	CPUs      int     `json:"cpus"`
	L2Bytes   int64   `json:"l2_bytes,omitempty"`
	L3Bytes   int64   `json:"l3_bytes,omitempty"`
	HugePages string  `json:"huge_pages,omitempty"`
	ClockGHz  float64 `json:"clock_ghz,omitempty"`
}

// benchShape is what the rows have in common: heads are absent where caches were cut
// to fit a level.
type benchShape struct {
	KVHeads    int `json:"kv_heads,omitempty"`
	QueryHeads int `json:"query_heads,omitempty"`
	HeadDimK   int `json:"head_dim_k"`
	HeadDimV   int `json:"head_dim_v"`
	Window     int `json:"window,omitempty"`
}

type benchRow struct {
	Kernel          string   `json:"kernel"` // decode, dequantize-then-f16, dequantize, encode, encode-k, encode-k-frozen, …
	Scheme          string   `json:"scheme"`
	Path            string   `json:"path"` // fused-avx512, fused-avx2, generic
	ISA             string   `json:"isa"`
	Threads         int      `json:"threads"`
	Level           string   `json:"level"`
	CacheBytes      int64    `json:"cache_bytes"`
	WorkingSetBytes int64    `json:"working_set_bytes"`
	Tokens          int      `json:"tokens"`
	KVHeads         int      `json:"kv_heads"`
	QueryHeads      int      `json:"query_heads"`
	UsPerToken      float64  `json:"us_per_token"`
	UsLow           float64  `json:"us_per_token_q1"`
	UsHigh          float64  `json:"us_per_token_q3"`
	GBps            float64  `json:"gb_s"`
	ReadGBps        float64  `json:"read_gb_s"`
	Roofline        float64  `json:"roofline"`
	L2GBps          *float64 `json:"l2_gb_s,omitempty"`
	CapShare        *float64 `json:"cap_share,omitempty"`
	CyclesPerLine   *float64 `json:"cycles_per_line,omitempty"`    // of 64 bytes, in the second-level cache
	SpeedupVsF16    *float64 `json:"speedup_vs_f16,omitempty"`     // against fused decode of f16 on as many threads
	ModelMs         *float64 `json:"model_ms_per_token,omitempty"` // estimate for the attention of all layers
	// ModelMsAt has the estimate at other contexts, SavesFrom the tokens from which it
	// is at least 1 ms less than that of f16; absent where it never is.
	ModelMsAt       []benchContext `json:"model_ms_at,omitempty"`
	SavesFrom       int64          `json:"saves_1_ms_from_tokens,omitempty"`
	TokensPerSecond float64        `json:"tokens_per_s"`
	Samples         int            `json:"samples"`
	Disturbed       bool           `json:"disturbed,omitempty"`
}

type benchContext struct {
	Context int64   `json:"context"`
	Ms      float64 `json:"ms_per_token"`
}

// bencher measures the schemes of one run.
type bencher struct {
	o      benchOptions
	shape  kernels.CacheShape
	values [2][]float32 // keys and values of one head; every head gets them
	meters map[int]*kernels.Meter
}

func runBench(ctx context.Context, o benchOptions, out *output) error {
	if err := o.check(); err != nil {
		return err
	}
	var pairs []quantize.Pair
	for _, name := range o.schemes {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			return usageError{err}
		}
		if pair.K == nil || pair.V == nil {
			return usagef("--scheme %s: a side left exact is in no cache", name)
		}
		if !slices.ContainsFunc(pairs, func(p quantize.Pair) bool { return p.Name() == pair.Name() }) {
			pairs = append(pairs, pair)
		}
	}
	f16, err := quantize.ParsePair("f16")
	if err != nil {
		return err
	}
	if err := o.probe(f16); err != nil {
		return usagef("--head-dim %d: %w", o.headDim, err)
	}
	var left []string
	pairs = slices.DeleteFunc(pairs, func(pair quantize.Pair) bool {
		problem := o.probe(pair)
		if problem != nil && o.named && err == nil {
			err = misfit(pair, problem)
		}
		if problem != nil {
			left = append(left, pair.Name())
		}
		return problem != nil
	})
	if err != nil {
		return err
	}
	c := kernels.ThisCPU()
	if need := o.memory(); need > float64(c.Available) {
		u, _ := parseUnits("iec")
		return withHint(fmt.Errorf("bench needs about %s for %d tokens, %s is available", u.format(int64(min(need, math.MaxInt64/2))), o.tokens, u.format(c.Available)),
			"fewer tokens measure the same: --ctx 32k")
	}
	b := newBencher(o)
	defer b.close()
	result := benchJSON{
		Schema: "kvq.bench/1", Version: versionOf(),
		CPU:      benchCPU{Name: c.Name, ISA: string(kernels.Active()), CPUs: c.Cores, L2Bytes: c.L2, L3Bytes: c.L3, HugePages: c.HugePages, ClockGHz: kernels.ClockGHz()},
		Geometry: benchShape{o.kvHeads, o.queryHeads, o.headDim, o.headDimV, int(o.window)},
		Rows:     []benchRow{}, Warnings: []string{},
	}
	if len(left) > 0 {
		result.Warnings = append(result.Warnings, "left out, as they do not fit these heads: "+strings.Join(left, ", "))
	}
	if o.about != nil {
		result.Model = o.about.Name
		if limit := o.about.MaxContext; limit > 0 && int64(o.tokens) > limit {
			result.Warnings = append(result.Warnings, fmt.Sprintf("%s tokens are beyond the model's maximum of %s", grouped(int64(o.tokens)), grouped(limit)))
		}
	}
	attends := slices.Contains(o.kernels, "decode") || slices.Contains(o.kernels, "dequantize-then-f16")
	// Levels below memory hold different lengths: there is nothing to compare.
	compare := attends && slices.Contains(o.levels, string(kernels.LevelDRAM))
	steps := len(o.levels) * len(pairs) * len(o.threads) * len(o.kernels)
	bar := out.progress("bench", "figures", int64(steps))
	defer bar.done()
	base := map[int]float64{} // microseconds of fused decode of f16 from memory, by threads
	listed := slices.ContainsFunc(pairs, func(p quantize.Pair) bool { return p.Name() == f16.Name() })
	if compare && (!listed || !slices.Contains(o.kernels, "decode")) {
		rows, err := b.measure(ctx, f16, kernels.LevelDRAM, "decode")
		if err != nil {
			return fmt.Errorf("bench f16: %w", err)
		}
		for _, row := range rows {
			base[row.Threads] = row.UsPerToken
		}
	}
	measured := int64(0)
	for _, level := range o.levels {
		for _, pair := range pairs {
			for _, kernel := range o.kernels {
				rows, err := b.measure(ctx, pair, kernels.Level(level), kernel)
				if err != nil {
					return fmt.Errorf("bench %s: %w", pair.Name(), err)
				}
				for _, row := range rows {
					if row.isBaseline() {
						base[row.Threads] = row.UsPerToken
					}
					if row.L2GBps != nil && result.CPU.ClockGHz > 0 {
						cycles := result.CPU.ClockGHz * 64 / *row.L2GBps
						row.CyclesPerLine = &cycles
					}
					result.Rows = append(result.Rows, row)
				}
				measured += int64(len(o.threads))
				bar.set(measured)
			}
		}
	}
	disturbed := 0
	var names []string
	threads := map[string][]string{} // of disturbed rows, by name
	for i := range result.Rows {
		row := &result.Rows[i]
		if us := base[row.Threads]; us > 0 && row.Level == string(kernels.LevelDRAM) && (row.Kernel == "decode" || row.Kernel == "dequantize-then-f16") {
			speedup := us / row.UsPerToken
			row.SpeedupVsF16 = &speedup
		}
		if o.about != nil && row.Kernel == "decode" && row.Level == string(kernels.LevelDRAM) {
			pair, err := quantize.ParsePair(row.Scheme)
			if err != nil {
				return err
			}
			o.price(row, pair, f16, base[row.Threads])
		}
		if row.KVHeads != o.kvHeads {
			result.Geometry.KVHeads, result.Geometry.QueryHeads = 0, 0
		}
		if row.Disturbed {
			disturbed++
			name := row.Kernel + " of " + row.Scheme
			if len(o.levels) > 1 {
				name += " from " + row.Level
			}
			if _, ok := threads[name]; !ok {
				names = append(names, name)
			}
			threads[name] = append(threads[name], strconv.Itoa(row.Threads))
		}
	}
	switch {
	case disturbed > 1 && disturbed == len(result.Rows):
		result.Warnings = append(result.Warnings, "other work took the CPU during most samples of every row")
	case disturbed > 0:
		for i, name := range names {
			names[i] = fmt.Sprintf("%s (thr %s)", name, strings.Join(threads[name], ", "))
		}
		result.Warnings = append(result.Warnings, fmt.Sprintf("other work took the CPU during most samples of %s: %s", plural(int64(disturbed), "row"), strings.Join(names, ", ")))
	}
	bar.done()
	for _, w := range result.Warnings {
		out.warn("%s", w)
	}
	return out.report(benchReport(result, o.wide))
}

// misfit is the usage error of a scheme that a run cannot measure.
func misfit(pair quantize.Pair, problem error) error {
	var named *quantize.SchemeError
	switch {
	case errors.As(problem, &named): // it says which scheme
		return problem
	case errors.Is(problem, errNoCache):
		return withHint(usagef("--scheme %s: %w", pair.Name(), problem),
			"it has no form in the pages that decode reads: --kernel encode,dequantize measures its codec")
	}
	return usagef("--scheme %s: %w", pair.Name(), problem)
}

// probe tells whether the asked kernels can run on a pair, by a page of one head.
func (o *benchOptions) probe(pair quantize.Pair) error {
	if err := pair.K.CheckDim(o.headDim); err != nil {
		return err
	}
	if err := pair.V.CheckDim(o.headDimV); err != nil {
		return err
	}
	var rope *quantize.Rope
	if pair.Name() != "f16" { // against which all widths are checked first
		if !slices.Contains(o.kernels, "decode") {
			return nil
		}
		rope = benchRope(o.headDim)
	}
	shape := kernels.CacheShape{Heads: 1, DimK: o.headDim, DimV: o.headDimV, Tokens: min(o.visible(), kernels.PageTokens)}
	cache, err := fillCache(shape, pair, rope, func(dst []float32, _ bool, _ int) error {
		for i := range dst {
			dst[i] = float32(i%7) - 3
		}
		return nil
	})
	if err != nil {
		return err
	}
	cache.Close()
	return nil
}

func newBencher(o benchOptions) *bencher {
	b := &bencher{o: o, shape: kernels.CacheShape{Heads: o.kvHeads, DimK: o.headDim, DimV: o.headDimV, Tokens: o.visible()}, meters: map[int]*kernels.Meter{}}
	// Decode time does not depend on the values, so one head serves for all.
	r := rand.New(rand.NewPCG(1, 2))
	for i, dim := range []int{o.headDim, o.headDimV} {
		b.values[i] = make([]float32, b.shape.Tokens*dim)
		for j := range b.values[i] {
			b.values[i][j] = float32(r.NormFloat64())
		}
	}
	return b
}

func (b *bencher) close() {
	for _, m := range b.meters {
		m.Close()
	}
}

func (b *bencher) meter(threads int) (*kernels.Meter, error) {
	if m := b.meters[threads]; m != nil {
		return m, nil
	}
	m, err := kernels.NewMeter(threads)
	if err == nil {
		b.meters[threads] = m
	}
	return m, err
}

func (b *bencher) options(shape kernels.CacheShape) kernels.DecodeOptions {
	return kernels.DecodeOptions{QueryHeads: b.o.queryHeads / b.o.kvHeads * shape.Heads, Scale: 1 / math.Sqrt(float64(b.o.headDim)), Window: int(b.o.window)}
}

// benchRope is the rotary embedding that +prerope takes back from the values of bench:
// of all channels, of base 10,000.
func benchRope(dim int) *quantize.Rope {
	r := new(quantize.Rope)
	for i := range dim / 2 {
		r.Frequencies = append(r.Frequencies, math.Pow(10000, -2*float64(i)/float64(dim)))
	}
	return r
}

// fill makes a cache of the given shape, whose every head holds the first tokens of b.values.
func (b *bencher) fill(shape kernels.CacheShape, pair quantize.Pair) (*kernels.Cache, error) {
	return fillCache(shape, pair, benchRope(shape.DimK), func(dst []float32, key bool, _ int) error {
		i := 1
		if key {
			i = 0
		}
		copy(dst, b.values[i])
		return nil
	})
}

// measure runs one kernel of one pair at one level for every number of threads.
func (b *bencher) measure(ctx context.Context, pair quantize.Pair, level kernels.Level, kernel string) ([]benchRow, error) {
	switch kernel {
	case "decode":
		return b.measureDecode(ctx, pair, level)
	case "encode":
		return b.measureEncode(ctx, pair, level)
	}
	var rows []benchRow
	for _, threads := range b.o.threads {
		shape, err := b.shapeFor(pair, level, threads)
		if err != nil {
			return nil, err
		}
		c, err := b.newCodecRun(pair, shape, threads, kernel)
		if err != nil {
			return nil, err
		}
		m, err := b.meter(threads)
		if err != nil {
			c.close()
			return nil, err
		}
		f, err := m.Run(ctx, c.bytes, level, b.o.budget, c.step)
		c.close()
		if err != nil {
			return nil, err
		}
		rows = append(rows, b.row(f, kernel, pair, shape))
	}
	return rows, nil
}

// codecRun restores a layer of values, its heads shared by threads.
type codecRun struct {
	bytes   int64 // stored bytes that one step reads
	step    func() error
	decoder *kernels.Decoder
	cache   *kernels.Cache
}

func (c *codecRun) close() {
	if c.decoder != nil {
		c.decoder.Close()
		c.cache.Close()
	}
}

// shareOut runs the work of n units on threads goroutines.
func shareOut(threads, n int, work func(thread, unit int) error) error {
	failed := make([]error, threads)
	var wait sync.WaitGroup
	for t := range threads {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := t; i < n && failed[t] == nil; i += threads {
				failed[t] = work(t, i)
			}
		}()
	}
	wait.Wait()
	return errors.Join(failed...)
}

// newCodecRun prepares dequantize or dequantize-then-f16. Every head of both
// sides has values of its own, so that a step streams them.
func (b *bencher) newCodecRun(pair quantize.Pair, shape kernels.CacheShape, threads int, kernel string) (*codecRun, error) {
	type unit struct {
		coder       *quantize.Coder
		calibration *quantize.Calibration
		encoded     quantize.Encoded
		head        quantize.Head
		half        []byte
	}
	var units []*unit
	c := &codecRun{}
	for i, s := range []*quantize.Scheme{pair.K, pair.V} {
		dim := []int{shape.DimK, shape.DimV}[i]
		var rope *quantize.Rope
		if i == 0 {
			rope = benchRope(dim)
		}
		var calibration *quantize.Calibration
		if s.Calibrated() {
			calibration = new(quantize.Calibration)
		}
		for h := range shape.Heads {
			u := &unit{coder: s.NewCoder(), calibration: calibration, head: quantize.Head{Index: h, Heads: shape.Heads, Dim: dim, Values: slices.Clone(b.values[i][:shape.Tokens*dim]), Rope: rope}}
			if calibration != nil {
				if err := u.coder.Observe(calibration, u.head); err != nil {
					return nil, err
				}
			}
			units = append(units, u)
		}
	}
	for _, u := range units {
		if err := u.coder.Encode(&u.encoded, u.head, u.calibration); err != nil {
			return nil, err
		}
		c.bytes += u.encoded.Size().Total()
		u.half = make([]byte, 2*len(u.head.Values))
	}
	each := func(work func(u *unit) error) error {
		return shareOut(threads, len(units), func(_, i int) error { return work(units[i]) })
	}
	switch kernel {
	case "dequantize":
		c.step = func() error {
			return each(func(u *unit) error { u.coder.Decode(u.head.Values, &u.encoded); return nil })
		}
		return c, nil
	}
	f16, err := quantize.ParsePair("f16")
	if err != nil {
		return nil, err
	}
	if c.cache, err = b.fill(shape, f16); err != nil {
		return nil, err
	}
	options := b.options(shape)
	options.Threads = threads
	if c.decoder, err = kernels.NewDecoder(c.cache, options); err != nil {
		c.cache.Close()
		return nil, err
	}
	q, out := make([]float32, options.QueryHeads*shape.DimK), make([]float32, options.QueryHeads*shape.DimV)
	c.step = func() error {
		if err := each(func(u *unit) error {
			u.coder.Decode(u.head.Values, &u.encoded)
			kernels.ToF16(u.half, u.head.Values)
			return nil
		}); err != nil {
			return err
		}
		return c.decoder.Step(c.cache, out, q)
	}
	return c, nil
}

// measureEncode measures how fast float32 values are stored: as rows of codes with
// their scales, which is what eval and encode make (encode), and as the pages of a
// cache, keys and values on their own (encode-k, encode-v). Scales of a whole head or
// column take a pass over all values first; what follows it, and what appending pages
// under the prefill's scales costs, has rows of its own (encode-k-frozen, …).
func (b *bencher) measureEncode(ctx context.Context, pair quantize.Pair, level kernels.Level) ([]benchRow, error) {
	values, err := quantize.ParsePair("f32") // what a step reads must fit the level
	if err != nil {
		return nil, err
	}
	var rows []benchRow
	for _, threads := range b.o.threads {
		shape, err := b.shapeFor(values, level, threads)
		if err != nil {
			return nil, err
		}
		of, err := b.measureEncodeBy(ctx, pair, shape, level, threads)
		if err != nil {
			return nil, err
		}
		rows = append(rows, of...)
	}
	return rows, nil
}

// measureEncodeBy is measureEncode for one number of threads. The values and caches are
// its own: those of several numbers at once are more than the run was found to fit.
func (b *bencher) measureEncodeBy(ctx context.Context, pair quantize.Pair, shape kernels.CacheShape, level kernels.Level, threads int) ([]benchRow, error) {
	m, err := b.meter(threads)
	if err != nil {
		return nil, err
	}
	runs, err := b.encodeRuns(pair, shape, threads)
	if err != nil {
		return nil, err
	}
	defer runs.close()
	var rows []benchRow
	for _, run := range runs.of {
		f, err := m.Run(ctx, run.bytes, level, b.o.budget, run.step)
		if err != nil {
			return nil, err
		}
		rows = append(rows, b.row(f, run.name, pair, shape))
	}
	return rows, nil
}

// encodeRuns are ways to encode a layer.
type encodeRuns struct {
	of []struct {
		name  string
		bytes int64 // of the values
		step  func() error
	}
	cache *kernels.Cache
	free  []func()
}

func (r *encodeRuns) close() {
	if r.cache != nil {
		r.cache.Close()
	}
	for _, free := range r.free {
		free()
	}
}

// encodeRuns prepares what measureEncode measures. Every head of both sides has values
// of its own, so that a step streams them.
func (b *bencher) encodeRuns(pair quantize.Pair, shape kernels.CacheShape, threads int) (*encodeRuns, error) {
	r := &encodeRuns{}
	add := func(name string, bytes int, step func() error) {
		r.of = append(r.of, struct {
			name  string
			bytes int64
			step  func() error
		}{name, int64(bytes), step})
	}
	dims := []int{shape.DimK, shape.DimV}
	sides := []*quantize.Scheme{pair.K, pair.V}
	var heads [2][]quantize.Head
	var encoders [2][]*sideEncoder // one a thread
	paged := true
	for i, dim := range dims {
		var rope *quantize.Rope
		if i == 0 {
			rope = benchRope(dim)
		}
		n := shape.Tokens * dim
		all, free, err := kernels.MapFloats(shape.Heads * n)
		if err != nil {
			r.close()
			return nil, err
		}
		r.free = append(r.free, free)
		for h := range shape.Heads {
			x := all[h*n : (h+1)*n]
			copy(x, b.values[i])
			heads[i] = append(heads[i], quantize.Head{Index: h, Dim: dim, Values: x, Heads: shape.Heads, Rope: rope})
		}
		for t := range threads {
			e, err := newSideEncoder(sides[i], shape.Tokens, dim, rope)
			if errors.Is(err, errNoCache) {
				e, err, paged = &sideEncoder{scheme: sides[i], coder: sides[i].NewCoder()}, nil, false
			}
			if err == nil && t == 0 && sides[i].Calibrated() {
				for _, h := range heads[i] {
					err = errors.Join(err, e.coder.Observe(&e.calibration, h))
				}
			}
			if err != nil {
				r.close()
				return nil, err
			}
			if t > 0 {
				e.calibration = encoders[i][0].calibration
			}
			encoders[i] = append(encoders[i], e)
		}
	}
	encoded := make([]quantize.Encoded, 2*shape.Heads)
	encode := func(t, i int) error {
		side := i / shape.Heads
		e := encoders[side][t]
		return e.coder.Encode(&encoded[i], heads[side][i%shape.Heads], e.calibrated())
	}
	for i := range encoded { // codes go to memory like that of the values
		if err := encode(0, i); err != nil {
			r.close()
			return nil, err
		}
		memory, free, err := kernels.MapBytes(max(1, len(encoded[i].Codes)))
		if err != nil {
			r.close()
			return nil, err
		}
		r.free = append(r.free, free)
		encoded[i].Codes = memory
	}
	add("encode", 4*shape.Heads*shape.Tokens*(shape.DimK+shape.DimV), func() error {
		return shareOut(threads, len(encoded), encode)
	})
	if !paged {
		return r, nil
	}
	var err error
	if r.cache, err = kernels.NewCache(shape, encoders[0][0].format, encoders[1][0].format); err != nil {
		r.close()
		return nil, err
	}
	for i, side := range []string{"k", "v"} {
		bytes := 4 * shape.Heads * shape.Tokens * dims[i]
		add("encode-"+side, bytes, func() error {
			return shareOut(threads, shape.Heads, func(t, h int) error { return encoders[i][t].fill(r.cache, i == 0, heads[i][h]) })
		})
		if !r.cache.Freezes(i == 0) || !encoders[i][0].takesRows(r.cache, i == 0) {
			continue
		}
		add("encode-"+side+"-frozen", bytes, func() error {
			return shareOut(threads, shape.Heads, func(_, h int) error { return r.cache.Refill(h, i == 0, heads[i][h].Values) })
		})
	}
	return r, nil
}

// row is a figure of a cache of the given shape as a row.
func (b *bencher) row(f kernels.Figure, kernel string, pair quantize.Pair, shape kernels.CacheShape) benchRow {
	return benchRow{
		Kernel: kernel, Scheme: pair.Name(), Path: f.Kernel, ISA: string(kernels.Active()), Threads: f.Threads, Level: string(f.Level),
		CacheBytes: f.CacheBytes, WorkingSetBytes: f.WorkingSetBytes,
		Tokens: shape.Tokens, KVHeads: shape.Heads, QueryHeads: b.options(shape).QueryHeads,
		UsPerToken: f.Micros, UsLow: f.MicrosLow, UsHigh: f.MicrosHigh, GBps: f.GBs, ReadGBps: f.ReadGBs, Roofline: f.Roofline,
		TokensPerSecond: 1e6 / f.Micros, Samples: f.Samples, Disturbed: f.Disturbed,
	}
}

// measureDecode runs fused attention of one pair at one level.
func (b *bencher) measureDecode(ctx context.Context, pair quantize.Pair, level kernels.Level) ([]benchRow, error) {
	resident, err := b.resident(ctx, pair)
	if err != nil {
		return nil, err
	}
	var rows []benchRow
	for _, threads := range b.o.threads {
		shape, err := b.shapeFor(pair, level, threads)
		if err != nil {
			return nil, err
		}
		cache, err := b.fill(shape, pair)
		if err != nil {
			return nil, err
		}
		m, err := b.meter(threads)
		if err != nil {
			cache.Close()
			return nil, err
		}
		f, err := m.Decode(ctx, cache, b.options(shape), level, b.o.budget)
		cache.Close()
		if err != nil {
			return nil, err
		}
		rows = append(rows, b.row(f, "decode", pair, shape))
	}
	if level != kernels.LevelDRAM {
		return rows, nil
	}
	// A kernel that was disturbed in L2 would look the better from memory: the faster
	// of two measurements counts.
	again, err := b.resident(ctx, pair)
	if err != nil {
		return nil, err
	}
	l2 := max(resident.GBs, again.GBs)
	for i := range rows {
		r := &rows[i]
		share := r.GBps / min(r.ReadGBps, float64(r.Threads)*l2)
		r.L2GBps, r.CapShare = &l2, &share
	}
	return rows, nil
}

// resident measures one thread on a cache that stays in the second-level cache:
// what the kernel does when memory is no limit.
func (b *bencher) resident(ctx context.Context, pair quantize.Pair) (kernels.Figure, error) {
	shape, err := b.shapeFor(pair, kernels.LevelL2, 1)
	if err != nil {
		return kernels.Figure{}, err
	}
	cache, err := b.fill(shape, pair)
	if err != nil {
		return kernels.Figure{}, err
	}
	defer cache.Close()
	m, err := b.meter(1)
	if err != nil {
		return kernels.Figure{}, err
	}
	return m.Decode(ctx, cache, b.options(shape), kernels.LevelL2, min(b.o.budget, 100*time.Millisecond))
}

// shapeFor returns the cache that fits the level: the full one from memory, half of
// the last-level cache, or one head a thread that takes half of its own cache.
func (b *bencher) shapeFor(pair quantize.Pair, level kernels.Level, threads int) (kernels.CacheShape, error) {
	shape := b.shape
	if level == kernels.LevelDRAM {
		return shape, nil
	}
	if level == kernels.LevelL2 {
		shape.Heads = threads
	}
	perToken := 0.0
	for i, s := range []*quantize.Scheme{pair.K, pair.V} {
		bits, err := s.Bits(quantize.Shape{Heads: 1, Tokens: shape.Tokens, Dim: []int{shape.DimK, shape.DimV}[i]})
		if err != nil {
			return shape, err
		}
		perToken += float64(bits / 8 * float64([]int{shape.DimK, shape.DimV}[i]))
	}
	fits := float64(kernels.WorkingSet(level, threads)) / (perToken * float64(shape.Heads))
	shape.Tokens = min(shape.Tokens, max(kernels.PageTokens, int(fits)/kernels.PageTokens*kernels.PageTokens))
	return shape, nil
}

func benchReport(b benchJSON, wide bool) report {
	u, _ := parseUnits("iec")
	t := &table{
		title: benchTitle(b),
		columns: []column{
			{header: "scheme", name: "scheme"}, {header: kernelHeader(b), name: "kernel"}, {header: "thr", name: "threads", right: true}, {header: levelHeader(b), name: "level"},
			{header: "us", name: "us_per_token", right: true}, {header: wideHeader(wide, "quartiles"), right: true}, {header: wideHeader(wide, "cache"), name: "cache_bytes", right: true},
			{header: "GB/s", name: "gb_s", right: true}, {header: "read", name: "read_gb_s", right: true},
			{header: wideHeader(wide, "cycles\n/line"), name: "cycles_per_line", right: true, optional: true},
			{header: "roof-\nline", name: "roofline", right: true}, {header: "cap", name: "cap_share", right: true, optional: true},
			{header: "x f16", name: "speedup_vs_f16", right: true, optional: true},
			{header: "model\nms", name: "model_ms_per_token", right: true, optional: true}, {header: "path", name: "path", optional: true},
			{name: "working_set_bytes"}, {header: wideHeader(wide, "tokens"), name: "tokens", right: true},
			{header: wideHeader(wide, "KV\nheads"), name: "kv_heads", right: true}, {header: wideHeader(wide, "query\nheads"), name: "query_heads", right: true},
			{name: "tokens_per_s"}, {name: "samples"}, {name: "us_per_token_q1"}, {name: "us_per_token_q3"}, {name: "l2_gb_s"}, {name: "isa"}, {name: "disturbed"},
		},
		wide:  wide,
		spare: []string{"path", "read", "cap"},
	}
	optional := func(x *float64, digits int) cell {
		if x == nil {
			return absent()
		}
		return fixed(*x, digits)
	}
	disturbed, capped, compared, cycles := false, false, false, false
	for _, r := range b.Rows {
		us := number(r.UsPerToken, 4)
		if r.Disturbed {
			us.text = "*" + us.text
		}
		disturbed, capped, compared = disturbed || r.Disturbed, capped || r.CapShare != nil, compared || r.SpeedupVsF16 != nil
		cycles = cycles || wide && r.CyclesPerLine != nil
		t.add(text(r.Scheme), text(r.Kernel), count(int64(r.Threads)), text(r.Level), us,
			text(significant(r.UsLow, 4)+"-"+significant(r.UsHigh, 4)), u.size(r.CacheBytes), atLeastOneDigit(r.GBps, 1), atLeastOneDigit(r.ReadGBps, 1), optional(r.CyclesPerLine, 1), atLeastOneDigit(r.Roofline, 2),
			optional(r.CapShare, 2), optional(r.SpeedupVsF16, 2), optional(r.ModelMs, 2), text(r.Path),
			count(r.WorkingSetBytes), count(int64(r.Tokens)), count(int64(r.KVHeads)), count(int64(r.QueryHeads)),
			number(r.TokensPerSecond, 4), count(int64(r.Samples)), number(r.UsLow, 4), number(r.UsHigh, 4), optional(r.L2GBps, 2), text(r.ISA), text(strconv.FormatBool(r.Disturbed)))
	}
	size := func(n int64) string {
		if n == 0 {
			return "unknown"
		}
		return u.format(n)
	}
	legend := "thr: threads. us: median of one step. read: 10^9 bytes a second of a pass that only reads the same memory, measured in turn with the step. roofline: GB/s over read."
	if capped {
		legend += " cap: GB/s over the lower of read and of the kernel's own rate in L2, times the threads."
	}
	if cycles {
		legend += " cycles/line: clock cycles for 64 bytes in L2, one thread."
	}
	if compared {
		legend += " x f16: how many times as fast as fused decode of f16 on as many threads, "
		if slices.ContainsFunc(b.Rows, func(r benchRow) bool { return r.isBaseline() }) {
			legend += "the row of f16."
		} else {
			legend += "measured once, before the rows."
		}
	}
	t.notes = append(t.notes, fmt.Sprintf("%s, %s; L2 %s, L3 %s, huge pages %s.", orUnknown(b.CPU.Name), b.CPU.ISA, size(b.CPU.L2Bytes), size(b.CPU.L3Bytes), orUnknown(b.CPU.HugePages)), legend)
	if disturbed {
		t.notes = append(t.notes, "* other work took the CPU during most samples of this row: do not rely on it.")
	}
	if slices.ContainsFunc(b.Rows, func(r benchRow) bool { return r.ModelMs != nil }) {
		t.notes = append(t.notes, "model ms: an estimate of one token's attention in all layers of "+b.Model+": the us of the row for each layer of its shape, for others by their bytes. Every cached token is read; keys and values are stored apart, those of a latent too.")
	}
	tables := []*table{t}
	if whole := wholeModelTable(b); whole != nil {
		tables = append(tables, whole)
	}
	return report{title: "kvq bench", tables: tables, json: b, plots: benchPlots(b)}
}

// wholeModelTable is the decode attention of a whole model over its context, nil where
// there is no estimate of it.
func wholeModelTable(b benchJSON) *table {
	t := &table{
		title:   "attention of one token in all layers of " + b.Model + ", in ms: an estimate from the us above",
		columns: []column{{header: "scheme"}, {header: "thr", right: true}},
		notes:   []string{"1 ms off: the tokens from which a scheme saves at least 1 ms a token against f16; -: up to the longest context it does not."},
	}
	for _, r := range b.Rows {
		if len(r.ModelMsAt) == 0 {
			continue
		}
		cells := []cell{text(r.Scheme), count(int64(r.Threads))}
		for i, at := range r.ModelMsAt {
			if len(t.rows) == 0 {
				t.columns = slices.Insert(t.columns, 2+i, column{header: strconv.FormatInt(at.Context>>10, 10) + "k", right: true})
			}
			cells = append(cells, number(at.Ms, 3))
		}
		if len(t.rows) == 0 {
			t.columns = append(t.columns, column{header: "1 ms off", right: true})
		}
		saves := absent()
		if r.SavesFrom > 0 {
			saves = count(r.SavesFrom)
		}
		t.add(append(cells, saves)...)
	}
	if len(t.rows) == 0 {
		return nil
	}
	return t
}

// isBaseline tells whether the others' speedups are against this row.
func (r benchRow) isBaseline() bool {
	return r.Scheme == "f16" && r.Kernel == "decode" && r.Level == string(kernels.LevelDRAM)
}

// atLeastOneDigit is a real number with the given digits after the point, and with two
// that count where these would be zeros.
func atLeastOneDigit(x float64, decimals int) cell {
	if x < math.Pow10(-decimals) {
		return number(x, 2)
	}
	return fixed(x, decimals)
}

// benchTitle says what all rows have in common.
func benchTitle(b benchJSON) string {
	g := b.Geometry
	width := strconv.Itoa(g.HeadDimK)
	if g.HeadDimV != g.HeadDimK {
		width += "/" + strconv.Itoa(g.HeadDimV)
	}
	if levelHeader(b) != "" {
		return "one token over one layer: head_dim " + width + ", caches cut to fit their level"
	}
	return fmt.Sprintf("one token over one layer: %s, %s, %s, head_dim %s", rowTokens(b), plural(int64(g.KVHeads), "KV head"), plural(int64(g.QueryHeads), "query head"), width)
}

// benchPlots draws, for each number of threads, the rate of every scheme from memory
// over the size of its cache, under the line of the read bandwidth beside it.
func benchPlots(b benchJSON) []scatter {
	var plots []scatter
	at := map[int]int{}
	for _, r := range b.Rows {
		if r.Kernel != "decode" || r.Level != string(kernels.LevelDRAM) {
			continue
		}
		i, ok := at[r.Threads]
		if !ok {
			i = len(plots)
			at[r.Threads] = i
			plots = append(plots, scatter{
				title: fmt.Sprintf("decode from memory, %s (line: read bandwidth)", plural(int64(r.Threads), "thread")),
				x:     "cache, MiB", y: "GB/s",
			})
		}
		x := float64(r.CacheBytes) / (1 << 20)
		plots[i].points = append(plots[i].points, point{x: x, y: r.GBps, label: r.Scheme}, point{x: x, y: r.ReadGBps, marked: true})
	}
	return plots
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// rowTokens says how many tokens the longest cache of the run holds, or the window.
func rowTokens(b benchJSON) string {
	n := 0
	for _, r := range b.Rows {
		n = max(n, r.Tokens)
	}
	if w := b.Geometry.Window; w > 0 && w < n {
		return "the last " + plural(int64(w), "token")
	}
	return plural(int64(n), "token")
}

// kernelHeader hides the kernel where all rows are decode attention.
func kernelHeader(b benchJSON) string {
	for _, r := range b.Rows {
		if r.Kernel != "decode" {
			return "kernel"
		}
	}
	return ""
}

// levelHeader hides the level where all rows stream from memory.
func levelHeader(b benchJSON) string {
	for _, r := range b.Rows {
		if r.Level != string(kernels.LevelDRAM) {
			return "level"
		}
	}
	return ""
}

func wideHeader(wide bool, header string) string {
	if wide {
		return header
	}
	return ""
}
