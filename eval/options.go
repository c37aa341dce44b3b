package eval

import (
	"context"
	"time"
)

// AllQueries as Options.Queries takes every captured query row.
const AllQueries = -1

// DefaultQueries is the number of query positions per head when Options.Queries is 0.
const DefaultQueries = 64

// DefaultOutlierRatio is Options.OutlierRatio when that is 0.
const DefaultOutlierRatio = 4

// Options say what to measure and how.
type Options struct {
	// Schemes are pairs or recipes in quantize's grammar, one-sided ones
	// included ("int4-token:exact"). Rows come in this order. Empty takes
	// DefaultSchemes, of which those that do not fit a layer's shape are left
	// out with a warning; a named one that does not fit is an error.
	Schemes []string
	// Optional has Schemes that do not fit left out too.
	Optional bool

	Queries      int     // query positions per head; 0: DefaultQueries; AllQueries: all
	PerHead      bool    // also a row, and outlier statistics, per KV head
	OutlierRatio float64 // a channel is an outlier from this times the median; 0: DefaultOutlierRatio
	Threads      int     // workers; 0: GOMAXPROCS
	Version      string  // of the program, for the report

	// Bench measures decoding, nil to leave bandwidth out.
	Bench Bench

	// Progress, if set, is called from one goroutine at a time as work gets done.
	Progress func(Progress)

	blockBytes int // 0: blockBytes
}

// Progress is how far a run is. The unit is an amount of arithmetic, so Done
// grows about evenly in time.
type Progress struct {
	Done, Total int64
	Layer       int           // the layer at work, counted from 0
	Layers      int           // how many there are
	Elapsed     time.Duration // since Run began
	Remaining   time.Duration // estimated; 0 while unknown
}

// A Bench measures single-token decode attention over a layer's encoded cache,
// for each of the two-sided schemes (docs/metrics.md §4). The answer has an
// entry per scheme, in order, nil where nothing could be measured.
type Bench func(ctx context.Context, l *Layer, schemes []string) (BenchResult, error)

// A BenchResult is what a Bench measured on one layer.
type BenchResult struct {
	ReadGBps float64 // read bandwidth measured beside the kernels, 10⁹ bytes a second
	Rows     []*Decode
}

// A Decode is the speed of decoding over one scheme's cache.
type Decode struct {
	UsPerToken   float64 // time of one new token over the whole cache of the layer
	GBps         float64 // encoded bytes read ÷ that time
	Roofline     float64 // GBps ÷ read bandwidth
	SpeedupVsF16 float64 // time of the f16 kernel ÷ time; 0: f16 could not be measured
	Kernel       string  // path that ran: fused-avx512, fused-avx2, fused-neon, generic; NoKernel: none, and no figures
}

// NoKernel is the Kernel of a scheme that no paged cache holds.
const NoKernel = "none"
