package eval

import "math"

// Schema is the version of a Report's JSON form.
const Schema = "kvq.eval/1"

// A Report is the outcome of a run: plain data, in the JSON form that other
// tools read. A figure that cannot be computed is nil and absent from JSON.
type Report struct {
	Schema         string          `json:"schema"`
	Version        string          `json:"version,omitempty"`
	CPU            CPU             `json:"cpu"`
	Dumps          []Dump          `json:"dumps"`
	Outliers       []Outliers      `json:"outliers"`
	Rows           []Row           `json:"rows"`
	Summary        []Summary       `json:"summary"`
	Recommendation *Recommendation `json:"recommendation,omitempty"`
	Truth          *Truth          `json:"truth,omitempty"`
	Warnings       []string        `json:"warnings"`
	Checks         []Check         `json:"checks,omitempty"`
}

// CPU says what the run ran on.
type CPU struct {
	ISA      string   `json:"isa"`
	Threads  int      `json:"threads"`
	ReadGBps *float64 `json:"read_gb_s,omitempty"`
}

// A Dump is one layer that was measured.
type Dump struct {
	Name         string   `json:"dump"` // as in rows
	Path         string   `json:"path"`
	Layer        int      `json:"layer"`
	Tokens       int      `json:"tokens"`
	KVHeads      int      `json:"kv_heads"`
	QueryHeads   int      `json:"query_heads"`
	HeadDim      int      `json:"head_dim"`
	HeadDimV     int      `json:"head_dim_v,omitempty"` // where it differs from HeadDim
	DType        string   `json:"dtype"`
	Queries      string   `json:"queries"`
	QueryRows    int      `json:"query_rows"`
	FactsAssumed []string `json:"facts_assumed,omitempty"`

	// What attention was computed with. Reports of older versions lack it.
	Scale   *float64  `json:"scale,omitempty"`
	Causal  *bool     `json:"causal,omitempty"`
	Window  int       `json:"window,omitempty"`
	Chunk   int       `json:"chunk,omitempty"`
	Softcap float64   `json:"softcap,omitempty"`
	Sinks   []float64 `json:"sinks,omitempty"` // a logit per query head
}

// The values of a Dump's and a Row's Queries.
const (
	Captured = "captured" // the model's own queries
	Proxy    = "proxy"    // keys standing in for queries
)

// Exact is the name of a side that is left alone.
const Exact = "exact"

// A Row is one scheme on one layer or, with KVHead, on one head of it.
type Row struct {
	Dump           string  `json:"dump"`
	Scheme         string  `json:"scheme"`
	K              string  `json:"k"`
	V              string  `json:"v"`
	Layer          int     `json:"layer"`
	KVHead         *int    `json:"kv_head,omitempty"`
	Queries        string  `json:"queries"`
	BitsPerElement float64 `json:"bits_per_element"`
	Bytes          int64   `json:"bytes"`
	KBytes         *int64  `json:"k_bytes,omitempty"`
	VBytes         *int64  `json:"v_bytes,omitempty"`
	Online         bool    `json:"online"`
	Pareto         bool    `json:"pareto"`

	KMSE          *float64 `json:"k_mse,omitempty"`
	VMSE          *float64 `json:"v_mse,omitempty"`
	KNMSE         *float64 `json:"k_nmse,omitempty"`
	VNMSE         *float64 `json:"v_nmse,omitempty"`
	KCenteredNMSE *float64 `json:"k_centered_nmse,omitempty"`
	KSQNRdB       *float64 `json:"k_sqnr_db,omitempty"`
	VSQNRdB       *float64 `json:"v_sqnr_db,omitempty"`
	KMaxAbsError  *float64 `json:"k_max_abs_error,omitempty"`
	VMaxAbsError  *float64 `json:"v_max_abs_error,omitempty"`
	KCosine       *float64 `json:"k_cosine,omitempty"`
	VCosine       *float64 `json:"v_cosine,omitempty"`
	KFloorRatio   *float64 `json:"k_floor_ratio,omitempty"`
	VFloorRatio   *float64 `json:"v_floor_ratio,omitempty"`

	KLMean       *float64 `json:"kl_mean,omitempty"`
	KLMeanLo     *float64 `json:"kl_mean_lo,omitempty"`
	KLMeanHi     *float64 `json:"kl_mean_hi,omitempty"`
	KLP50        *float64 `json:"kl_p50,omitempty"`
	KLP90        *float64 `json:"kl_p90,omitempty"`
	KLP99        *float64 `json:"kl_p99,omitempty"`
	KLP999       *float64 `json:"kl_p999,omitempty"`
	KLMax        *float64 `json:"kl_max,omitempty"`
	Top1FlipRate *float64 `json:"top1_flip_rate,omitempty"`
	OutputNMSE   *float64 `json:"output_nmse,omitempty"`
	ResidualNMSE *float64 `json:"residual_nmse,omitempty"`

	DecodeGBps         *float64 `json:"decode_gb_s,omitempty"`
	DecodeUsPerToken   *float64 `json:"decode_us_per_token,omitempty"`
	DecodeRoofline     *float64 `json:"decode_roofline,omitempty"`
	DecodeSpeedupVsF16 *float64 `json:"decode_speedup_vs_f16,omitempty"`
	Kernel             string   `json:"kernel,omitempty"`
	IndistinctFrom     []string `json:"indistinct_from,omitempty"` // rows of this layer whose kl_mean this one's cannot be told from
}

// Pair reports whether both sides of the row are quantized.
func (r *Row) Pair() bool { return r.K != Exact && r.V != Exact }

// A Summary is one scheme over every layer.
type Summary struct {
	Scheme         string   `json:"scheme"`
	K              string   `json:"k"`
	V              string   `json:"v"`
	Layers         int      `json:"layers"`
	Queries        string   `json:"queries"`
	Bytes          int64    `json:"bytes"`
	BitsPerElement float64  `json:"bits_per_element"`
	Online         bool     `json:"online"`
	Pareto         bool     `json:"pareto"`
	KCenteredNMSE  *float64 `json:"k_centered_nmse,omitempty"` // mean over layers, as below
	VNMSE          *float64 `json:"v_nmse,omitempty"`
	KLMean         *float64 `json:"kl_mean,omitempty"`
	KLMeanLo       *float64 `json:"kl_mean_lo,omitempty"`
	KLMeanHi       *float64 `json:"kl_mean_hi,omitempty"`
	KLP99          *float64 `json:"kl_p99,omitempty"` // maximum over layers
	Top1FlipRate   *float64 `json:"top1_flip_rate,omitempty"`
	OutputNMSE     *float64 `json:"output_nmse,omitempty"`
	ResidualSum    *float64 `json:"residual_sum,omitempty"`
	LogitKLLow     *float64 `json:"logit_kl_low,omitempty"` // range to expect of the whole model
	LogitKLHigh    *float64 `json:"logit_kl_high,omitempty"`
	WorstLayer     *int     `json:"worst_layer,omitempty"`
	IndistinctFrom []string `json:"indistinct_from,omitempty"`
}

// Outliers are the statistics of one tensor of a layer, pooled over its heads
// or, with KVHead, of one head.
type Outliers struct {
	Dump            string   `json:"dump"`
	Layer           int      `json:"layer"`
	Tensor          Tensor   `json:"tensor"`
	KVHead          *int     `json:"kv_head,omitempty"`
	Diagnosis       string   `json:"diagnosis"`
	Remedy          string   `json:"remedy,omitempty"`      // what the diagnosis suggests, in words
	RemedyGain      *float64 `json:"remedy_gain,omitempty"` // error of RemedyFrom ÷ error of RemedyTo, where both were run
	RemedyFrom      string   `json:"remedy_from,omitempty"`
	RemedyTo        string   `json:"remedy_to,omitempty"`
	SinkTokens      []int    `json:"sink_tokens"`
	Channels        int      `json:"channels"`
	MaxMedianRatio  *float64 `json:"max_median_ratio,omitempty"`
	OutlierChannels []int    `json:"outlier_channels"`
	OutlierCount    int      `json:"outlier_count"`
	Persistence     *float64 `json:"persistence,omitempty"`
	BiasEnergy      *float64 `json:"bias_energy,omitempty"`
	Kurtosis        *float64 `json:"kurtosis,omitempty"`
}

// A Recommendation is what the figures suggest, or of one scheme alone what they say.
type Recommendation struct {
	Scheme string            `json:"scheme"`
	Why    string            `json:"why"`
	Alone  bool              `json:"alone,omitempty"` // nothing else was measured: a verdict, no choice
	Flags  map[string]string `json:"flags,omitempty"` // engine → its flags
	Needs  map[string]string `json:"needs,omitempty"` // engine → what else it needs
}

// A Check is one --fail-if condition or baseline comparison on one row.
type Check struct {
	Check    string   `json:"check"`
	Dump     string   `json:"dump,omitempty"`
	Scheme   string   `json:"scheme"`
	Layer    *int     `json:"layer,omitempty"` // absent for a summary
	KVHead   *int     `json:"kv_head,omitempty"`
	Value    *float64 `json:"value,omitempty"`
	Baseline *float64 `json:"baseline,omitempty"`
	Failed   bool     `json:"failed"`
	Note     string   `json:"note,omitempty"`
}

// figure is x, or nil where x is not a number that a report can hold.
func figure(x float64) *float64 {
	switch {
	case math.IsNaN(x), math.IsInf(x, 0):
		return nil
	case x == 0:
		x = 0 // not -0
	}
	return &x
}

// ratioOf is a/b, or nil where that is no number.
func ratioOf(a, b float64) *float64 { return figure(a / b) }
