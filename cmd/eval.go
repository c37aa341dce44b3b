package cmd

import (
	"context"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"kvq/eval"
	"kvq/quantize"
)

// evalOptions are the flags of kvq eval.
type evalOptions struct {
	source       sourceOptions
	schemes      []string
	set          string
	queries      string
	cpu          cpuFlags
	noBench      bool
	perHead      bool
	outlierRatio float64
	view         evalView

	failIf     []string
	baseline   string
	tolerance  string
	allowProxy bool
	truth      string
}

func newEval(s Streams) *cobra.Command {
	var o evalOptions
	c := &cobra.Command{
		Use:   "eval --dump PATH",
		Short: "measure what storing captured K and V under each scheme costs",
		Long: `eval stores the captured keys and values of a dump under quantization schemes
and reports what attention loses and what decoding gains. Without --scheme it
runs a default set: each scheme on the keys alone, on the values alone, and
pairs of both.

Exit code 3 when a --fail-if or --baseline check does not hold.`,
		Example: `  kvq eval --dump layer12.npy
  kvq eval --dump captures/ --scheme int8-channel:int4 --fail-if 'kl_mean>0.01'
  kvq eval --dump captures/ --format json -o base.json
  kvq eval --dump captures/ --baseline base.json --tolerance 2%
  kvq eval --dump all.safetensors --truth all.safetensors.truth.tsv`,
		Args: noArgs("--dump"),
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := newOutput(c, s, formatHTML)
			if err != nil {
				return err
			}
			if err := o.source.settle(c.Flags()); err != nil {
				return err
			}
			return runEval(c.Context(), o, out)
		},
	}
	f := c.Flags()
	addSourceFlags(f, &o.source)
	f.StringVar(&o.set, "set", "", "run what an `ENGINE` can deploy, as llama.cpp or vllm, or all formats and recipes; what does not fit is left out")
	f.StringSliceVar(&o.schemes, "scheme", nil, "`SCHEME` or K:V pair, 'exact' leaving a side alone; repeatable, or a list")
	f.StringVar(&o.queries, "queries", strconv.Itoa(eval.DefaultQueries), "query positions per head: `N` or all")
	o.cpu.add(f, s)
	f.BoolVar(&o.noBench, "no-bench", false, "leave decode bandwidth out")
	f.BoolVar(&o.perHead, "per-head", false, "also a row for each KV head")
	f.Float64Var(&o.outlierRatio, "outlier-ratio", eval.DefaultOutlierRatio, "a channel is an outlier from this `RATIO` to the median channel")
	f.BoolVar(&o.view.perLayer, "per-layer", false, "show every layer, not only the worst")
	f.BoolVar(&o.view.wide, "wide", false, "show every figure, whatever the width")
	f.StringArrayVar(&o.failIf, "fail-if", nil, "exit 3 if this holds in any row, as in 'kl_mean>0.01'; repeatable; needs --scheme")
	f.StringVar(&o.baseline, "baseline", "", "exit 3 if a figure is worse than in this `FILE`, an earlier --format json")
	f.StringVar(&o.tolerance, "tolerance", "0", "how much worse than the baseline is still accepted: 2% or 0.02")
	f.StringVar(&o.truth, "truth", "", "rank the figures against a `FILE` of what schemes did to the whole model: columns pair and logit_kl_mean")
	f.BoolVar(&o.allowProxy, "allow-proxy", false, "let checks rest on attention figures of stand-in queries")
	return c
}

func runEval(ctx context.Context, o evalOptions, out *output) error {
	if o.set != "" {
		if len(o.schemes) > 0 {
			return usagef("--set and --scheme: want one of them")
		}
		var err error
		if o.schemes, err = quantize.Set(o.set); err != nil {
			return withHint(usagef("--set %s: no such set", o.set), "%s", hintOf(err))
		}
	}
	options := eval.Options{
		Schemes: o.schemes, Optional: o.set != "", PerHead: o.perHead, OutlierRatio: o.outlierRatio,
		Threads: o.cpu.threads, Version: versionOf(),
	}
	var err error
	if options.Queries, err = parseQueries(o.queries); err != nil {
		return err
	}
	if !(o.outlierRatio > 1) {
		return usagef("--outlier-ratio %g: want more than 1", o.outlierRatio)
	}
	if err := out.spare(o.baseline, o.truth); err != nil {
		return err
	}
	gate, err := newGate(o)
	if err != nil {
		return err
	}
	for _, name := range o.schemes {
		if _, err := quantize.ParsePair(name); err != nil {
			return err
		}
	}
	var truth *eval.TruthTable
	if o.truth != "" {
		if truth, err = readTruth(o.truth); err != nil {
			return err
		}
		options.Schemes = truth.Schemes(o.schemes)
		options.Optional = options.Optional || len(o.schemes) == 0
	}
	if err := o.cpu.use(); err != nil {
		return err
	}
	src, err := openSource(o.source)
	if err != nil {
		return err
	}
	defer src.close()
	if err := out.spare(o.source.inputs(src.files)...); err != nil {
		return err
	}
	if !o.noBench {
		options.Bench = decodeBench(o.cpu.threads)
	}
	// Nearly all memory of a run is large buffers that it reuses: letting the heap
	// double before each collection would double the peak for nothing.
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	var bar *progress
	options.Progress = func(p eval.Progress) {
		if bar == nil {
			bar = out.progress(fmt.Sprintf("evaluating %d layers", p.Layers), "MAC", p.Total)
		}
		bar.set(p.Done)
	}
	r, err := eval.Run(ctx, src.layers, options)
	bar.done()
	if err != nil {
		return err
	}
	r.Warnings = append(src.warnings, r.Warnings...)
	if r.Warnings == nil {
		r.Warnings = []string{} // the list is empty, not unknown
	}
	if truth != nil {
		if err := compareTruth(r, truth, o.schemes); err != nil {
			return err
		}
	}
	failed, err := gate.check(r, out)
	if err != nil {
		return err
	}
	for _, w := range r.Warnings {
		out.warn("%s", w)
	}
	o.view.engine = o.set
	if err := out.report(evalReport(r, o.view)); err != nil {
		return err
	}
	return failed
}

// parseQueries reads --queries.
func parseQueries(s string) (int, error) {
	if strings.EqualFold(s, "all") {
		return eval.AllQueries, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, usagef("--queries %q: want a number from 1, or all", s)
	}
	return n, nil
}
