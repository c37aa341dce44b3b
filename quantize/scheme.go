package quantize

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kvq/kernels"
)

// A Class is what a format makes of values.
type Class uint8

// The classes of formats.
const (
	Plain    Class = iota // each value on its own, in a float type
	Scaled                // value/scale in an 8-bit float type, a scale per sharing unit
	Integer               // codes of 2 to 8 bits, a scale per sharing unit
	Codebook              // codes of a table of values in [−1, 1], a scale per sharing unit
	Strided               // codes whose scale 64 values of the tensor share, far from each other
	Block                 // blocks of a row with their scales, as a named format lays them out
)

// A Format is what one element becomes: a row of the registry.
type Format struct {
	Name  string
	Class Class
	Bits  int // of one code
	Doc   string

	largest  float32 // finite value of a Scaled format
	overflow float32 // magnitude from which a Plain format rounds to infinity; 0: never
	instead  string  // what holds such a value
	block    *block  // of a Block format

	book    []float32 // of a Codebook, ascending
	learned bool      // the codebook is made for each tensor, over (max−min)/2 around the middle
	encode  func(dst []byte, x []float32)
	decode  func(dst []float32, src []byte)
}

// formats is the registry of what an element can become.
var formats = []*Format{
	{Name: "f32", Class: Plain, Bits: 32, Doc: "float32, as it is",
		encode: kernels.ToF32, decode: kernels.FromF32},
	{Name: "f16", Class: Plain, Bits: 16, Doc: "IEEE half float",
		overflow: 65520, instead: "bf16 holds it", encode: kernels.ToF16, decode: kernels.FromF16},
	{Name: "bf16", Class: Plain, Bits: 16, Doc: "bfloat16",
		overflow: 0x1.ffp127, instead: "f32 holds it", encode: kernels.ToBF16, decode: kernels.FromBF16},
	{Name: "e4m3-raw", Class: Plain, Bits: 8, Doc: "FP8 E4M3 at scale 1, saturating at 448",
		encode: kernels.ToE4M3, decode: kernels.FromE4M3},
	{Name: "e5m2-raw", Class: Plain, Bits: 8, Doc: "FP8 E5M2 at scale 1, saturating at 57344",
		encode: kernels.ToE5M2, decode: kernels.FromE5M2},
	{Name: "e4m3", Class: Scaled, Bits: 8, Doc: "FP8 E4M3 of x/scale, scale = max|x|/448",
		largest: kernels.MaxE4M3, encode: kernels.ToE4M3, decode: kernels.FromE4M3},
	{Name: "e5m2", Class: Scaled, Bits: 8, Doc: "FP8 E5M2 of x/scale, scale = max|x|/57344",
		largest: kernels.MaxE5M2, encode: kernels.ToE5M2, decode: kernels.FromE5M2},
	{Name: "int8", Class: Integer, Bits: 8, Doc: "8-bit integers"},
	{Name: "int6", Class: Integer, Bits: 6, Doc: "6-bit integers"},
	{Name: "int5", Class: Integer, Bits: 5, Doc: "5-bit integers"},
	{Name: "int4", Class: Integer, Bits: 4, Doc: "4-bit integers"},
	{Name: "int3", Class: Integer, Bits: 3, Doc: "3-bit integers"},
	{Name: "int2", Class: Integer, Bits: 2, Doc: "2-bit integers"},
	{Name: "nf4", Class: Codebook, Bits: 4, Doc: "NF4 of x/max|x|: quantiles of N(0,1)", book: nf4},
	{Name: "nuq4", Class: Codebook, Bits: 4, Doc: "KVQuant: 16 values learned for each tensor", learned: true},
	{Name: "nuq3", Class: Codebook, Bits: 3, Doc: "KVQuant: 8 values learned for each tensor", learned: true},
	{Name: "nuq2", Class: Codebook, Bits: 2, Doc: "KVQuant: 4 values learned for each tensor", learned: true},
	{Name: "hqq4", Class: Strided, Bits: 4, Doc: "HF HQQ, axis 0: 64 values n apart in the tensor"},
	{Name: "hqq2", Class: Strided, Bits: 2, Doc: "HF HQQ, axis 0: 64 values n apart in the tensor"},
	{Name: "q8_0", Class: Block, Bits: 8, Doc: "ggml, 32 channels: f16 scale max|x|/127",
		block: &block{elements: 32, metadata: 2, page: encodeQ8_0, decode: decodeQ8_0}},
	{Name: "q5_1", Class: Block, Bits: 5, Doc: "ggml, 32 channels: f16 scale and minimum",
		block: &block{elements: 32, metadata: 4, page: encodeRanged(5), decode: decodeQ5_1}},
	{Name: "q5_0", Class: Block, Bits: 5, Doc: "ggml, 32 channels: f16 scale, extreme at −16",
		block: &block{elements: 32, metadata: 2, page: encodeSigned(5), decode: decodeQ5_0}},
	{Name: "q4_1", Class: Block, Bits: 4, Doc: "ggml, 32 channels: f16 scale and minimum",
		block: &block{elements: 32, metadata: 4, page: encodeRanged(4), decode: decodeQ4_1}},
	{Name: "q4_0", Class: Block, Bits: 4, Doc: "ggml, 32 channels: f16 scale, extreme at −8",
		block: &block{elements: 32, metadata: 2, page: encodeSigned(4), decode: decodeQ4_0}},
	{Name: "iq4_nl", Class: Block, Bits: 4, Doc: "ggml, 32 channels: f16 scale, uneven codes",
		block: &block{elements: 32, metadata: 2, page: encodeIQ4NL, decode: decodeIQ4NL}},
	{Name: "q8_0-cpu", Class: Block, Bits: 8, Doc: "ggml, q8_0 of its vectorised encoder for CPUs",
		block: &block{elements: 32, metadata: 2, encode: encodeQ8_0Cache, decode: decodeQ8_0}},
	{Name: "iq4_nl-cpu", Class: Block, Bits: 4, Doc: "llama.cpp's caches: iq4_nl without a search",
		block: &block{elements: 32, metadata: 2, encode: encodeIQ4NLCache, decode: decodeIQ4NL}},
	{Name: "mxfp4", Class: Block, Bits: 4, Doc: "OCP, ggml: e2m1, per 32 2^(⌊log2 max⌋−2)",
		block: &block{elements: 32, metadata: 1, page: encodeMXFP4(floorExponent, tiesDown), decode: decodeMXFP4}},
	{Name: "mxfp4-ceil", Class: Block, Bits: 4, Doc: "mxfp4 with 2^⌈log2(max/6)⌉: clips nothing",
		block: &block{elements: 32, metadata: 1, page: encodeMXFP4(ceilExponent, tiesEven), decode: decodeMXFP4}},
	{Name: "mxfp4-round", Class: Block, Bits: 4, Doc: "mxfp4 with 2^round(log2(max/6)): MLX",
		block: &block{elements: 32, metadata: 1, page: encodeMXFP4(roundExponent, tiesEven), decode: decodeMXFP4}},
	{Name: "nvfp4", Class: Block, Bits: 4, Doc: "ggml: e2m1, per 16 an e4m3 scale max|x|/6",
		block: &block{elements: 64, metadata: 4, page: encodeNVFP4, decode: decodeNVFP4}},
	{Name: "nvfp4-ts", Class: Block, Bits: 4, Doc: "GPUs: nvfp4 over the tensor's scale, f32",
		block: &block{elements: 16, metadata: 1, tensor: true, encode: encodeNVFP4TS, decode: decodeNVFP4TS}},
	{Name: "nvfp4-46", Class: Block, Bits: 4, Doc: "vLLM: nvfp4-ts, max/6 or max/4 by their errors",
		block: &block{elements: 16, metadata: 1, tensor: true, encode: encodeNVFP4Search, decode: decodeNVFP4TS}},
	{Name: "q6_0", Class: Block, Bits: 6, Doc: "ik_llama.cpp, 32 channels: refitted f16 scale",
		block: &block{elements: 32, metadata: 2, encode: encodeQ6_0, decode: decodeQ6_0}},
	{Name: "q4_0-ls", Class: Block, Bits: 4, Doc: "ik_llama.cpp: q4_0 with a refitted scale",
		block: &block{elements: 32, metadata: 2, encode: encodeQ4_0LS, decode: decodeQ4_0}},
	{Name: "q8_kv", Class: Block, Bits: 8, Doc: "ik_llama.cpp, a row: f32 scale, sum of codes",
		block: &block{metadata: 8, encode: encodeQ8KV, decode: decodeQ8KV}},
	{Name: "mlx2", Class: Block, Bits: 2, Doc: "MLX affine, 64 channels: f16 scale and edge",
		block: &block{elements: 64, metadata: 4, encode: encodeMLX(2), decode: decodeMLX(2)}},
	{Name: "mlx3", Class: Block, Bits: 3, Doc: "MLX affine, 64 channels: f16 scale and edge",
		block: &block{elements: 64, metadata: 4, encode: encodeMLX(3), decode: decodeMLX(3)}},
	{Name: "mlx4", Class: Block, Bits: 4, Doc: "MLX affine, 64 channels: f16 scale and edge",
		block: &block{elements: 64, metadata: 4, encode: encodeMLX(4), decode: decodeMLX(4)}},
	{Name: "mlx5", Class: Block, Bits: 5, Doc: "MLX affine, 64 channels: f16 scale and edge",
		block: &block{elements: 64, metadata: 4, encode: encodeMLX(5), decode: decodeMLX(5)}},
	{Name: "mlx6", Class: Block, Bits: 6, Doc: "MLX affine, 64 channels: f16 scale and edge",
		block: &block{elements: 64, metadata: 4, encode: encodeMLX(6), decode: decodeMLX(6)}},
	{Name: "mlx8", Class: Block, Bits: 8, Doc: "MLX affine, 64 channels: f16 scale and edge",
		block: &block{elements: 64, metadata: 4, encode: encodeMLX(8), decode: decodeMLX(8)}},
	{Name: "quanto2", Class: Block, Bits: 2, Doc: "HF quanto, 64 channels: f16 scale and −minimum",
		block: &block{elements: 64, metadata: 4, encode: encodeHalfAffine(2, 0), decode: decodeHalfAffine(2)}},
	{Name: "quanto4", Class: Block, Bits: 4, Doc: "HF quanto, 64 channels: f16 scale and −minimum",
		block: &block{elements: 64, metadata: 4, encode: encodeHalfAffine(4, 0), decode: decodeHalfAffine(4)}},
	{Name: "flexgen4", Class: Block, Bits: 4, Doc: "FlexGen, 64 channels: f16 1/step and minimum",
		block: &block{elements: 64, metadata: 4, encode: encodeFlexGen, decode: decodeFlexGen}},
	{Name: "quarot4", Class: Block, Bits: 4, Doc: "QuaRot, a row: f16 scale and −minimum",
		block: &block{metadata: 4, encode: encodeHalfAffine(4, 1e-5), decode: decodeHalfAffine(4)}},
	{Name: "mid2", Class: Block, Bits: 2, Doc: "ExLlamaV3, 32 channels: f16 max, midpoint grid",
		block: &block{elements: 32, metadata: 2, encode: encodeMidpoint(2), decode: decodeMidpoint(2)}},
	{Name: "mid3", Class: Block, Bits: 3, Doc: "ExLlamaV3, 32 channels: f16 max, midpoint grid",
		block: &block{elements: 32, metadata: 2, encode: encodeMidpoint(3), decode: decodeMidpoint(3)}},
	{Name: "mid4", Class: Block, Bits: 4, Doc: "ExLlamaV3, 32 channels: f16 max, midpoint grid",
		block: &block{elements: 32, metadata: 2, encode: encodeMidpoint(4), decode: decodeMidpoint(4)}},
	{Name: "mid5", Class: Block, Bits: 5, Doc: "ExLlamaV3, 32 channels: f16 max, midpoint grid",
		block: &block{elements: 32, metadata: 2, encode: encodeMidpoint(5), decode: decodeMidpoint(5)}},
	{Name: "mid6", Class: Block, Bits: 6, Doc: "ExLlamaV3, 32 channels: f16 max, midpoint grid",
		block: &block{elements: 32, metadata: 2, encode: encodeMidpoint(6), decode: decodeMidpoint(6)}},
	{Name: "mid7", Class: Block, Bits: 7, Doc: "ExLlamaV3, 32 channels: f16 max, midpoint grid",
		block: &block{elements: 32, metadata: 2, encode: encodeMidpoint(7), decode: decodeMidpoint(7)}},
	{Name: "mid8", Class: Block, Bits: 8, Doc: "ExLlamaV3, 32 channels: f16 max, midpoint grid",
		block: &block{elements: 32, metadata: 2, encode: encodeMidpoint(8), decode: decodeMidpoint(8)}},
	{Name: "cubic2", Class: Block, Bits: 2, Doc: "ExLlamaV3, 32 channels: mid2, companded",
		block: &block{elements: 32, metadata: 2, encode: encodeCubic(2), decode: decodeCubic(2)}},
	{Name: "cubic3", Class: Block, Bits: 3, Doc: "ExLlamaV3, 32 channels: mid3, companded",
		block: &block{elements: 32, metadata: 2, encode: encodeCubic(3), decode: decodeCubic(3)}},
	{Name: "cubic4", Class: Block, Bits: 4, Doc: "ExLlamaV3, 32 channels: mid4, companded",
		block: &block{elements: 32, metadata: 2, encode: encodeCubic(4), decode: decodeCubic(4)}},
	{Name: "cubic5", Class: Block, Bits: 5, Doc: "ExLlamaV3, 32 channels: mid5, companded",
		block: &block{elements: 32, metadata: 2, encode: encodeCubic(5), decode: decodeCubic(5)}},
	{Name: "cubic6", Class: Block, Bits: 6, Doc: "ExLlamaV3, 32 channels: mid6, companded",
		block: &block{elements: 32, metadata: 2, encode: encodeCubic(6), decode: decodeCubic(6)}},
	{Name: "cubic7", Class: Block, Bits: 7, Doc: "ExLlamaV3, 32 channels: mid7, companded",
		block: &block{elements: 32, metadata: 2, encode: encodeCubic(7), decode: decodeCubic(7)}},
	{Name: "cubic8", Class: Block, Bits: 8, Doc: "ExLlamaV3, 32 channels: mid8, companded",
		block: &block{elements: 32, metadata: 2, encode: encodeCubic(8), decode: decodeCubic(8)}},
	{Name: "mx16fp4", Class: Block, Bits: 4, Doc: "SGLang: e2m1, per 16 2^⌈log2(max/6)⌉",
		block: &block{elements: 16, metadata: 1, encode: encodeSGLangFP4, decode: decodeSGLangFP4}},
	{Name: "tq2", Class: Block, Bits: 2, Doc: "TurboQuant, a row: f16 norm, Lloyd–Max codes",
		block: &block{metadata: 2, encode: encodeTurbo(2), decode: decodeTurbo(2)}},
	{Name: "tq3", Class: Block, Bits: 3, Doc: "TurboQuant, a row: f16 norm, Lloyd–Max codes",
		block: &block{metadata: 2, encode: encodeTurbo(3), decode: decodeTurbo(3)}},
	{Name: "tq4", Class: Block, Bits: 4, Doc: "TurboQuant, a row: f16 norm, Lloyd–Max codes",
		block: &block{metadata: 2, encode: encodeTurbo(4), decode: decodeTurbo(4)}},
	{Name: "tq3-nc", Class: Block, Bits: 3, Doc: "vLLM: its solver's codes, norm corrected",
		block: &block{metadata: 2, encode: encodeTurboKeys(3), decode: decodeTurboKeys(3)}},
	{Name: "tq4-nc", Class: Block, Bits: 4, Doc: "vLLM: its solver's codes, norm corrected",
		block: &block{metadata: 2, encode: encodeTurboKeys(4), decode: decodeTurboKeys(4)}},
	{Name: "tqv3", Class: Block, Bits: 3, Doc: "vLLM, TurboQuant's values, a row: f16 scale, min",
		block: &block{metadata: 4, encode: encodeTurboValues(3), decode: decodeTurboValues(3)}},
	{Name: "tqv4", Class: Block, Bits: 4, Doc: "vLLM, TurboQuant's values, a row: f16 scale, min",
		block: &block{metadata: 4, encode: encodeTurboValues(4), decode: decodeTurboValues(4)}},
	{Name: "pth-int8", Class: Block, Bits: 8, Doc: "vLLM, a row: f32 scale, halves away from 0",
		block: &block{metadata: 4, encode: encodePTHInt8, decode: decodePTHInt8}},
	{Name: "pth-fp8", Class: Block, Bits: 8, Doc: "vLLM, a row: E4M3 and f32 scale",
		block: &block{metadata: 4, encode: encodePTHFP8, decode: decodePTHFP8}},
	{Name: "pth-int4", Class: Block, Bits: 4, Doc: "vLLM, a row: rotated with signs, f32 scale",
		block: &block{metadata: 4, binary: true, encode: encodePTHInt4, decode: decodePTHInt4}},
}

// A Zero is how an integer format places zero.
type Zero uint8

// The zero forms of integer formats. Q = 2^(B−1)−1 for B bits.
const (
	// Sym has no offset: scale = max|x|/Q, codes −Q to Q.
	// |x̂−x| <= scale/2 + Q·|stored − exact scale|.
	Sym Zero = iota
	// Asym stores the minimum as offset: scale = (max−min)/(2^B−1).
	// |x̂−x| <= scale/2 + (2^B−1)·|stored − exact scale| + |stored offset − min| + 2^−22·max|x|.
	Asym
	// ZP stores an integer zero point, over a range widened to hold 0:
	// scale = (max−min)/(2^B−1). Rounding the zero point moves the grid by up to
	// half a step, so a value at an end of the range may be clamped by that much more:
	// |x̂−x| <= scale + (2^B−1)·|stored − exact scale|.
	ZP
)

func (z Zero) String() string { return zeroNames[z] }

var zeroNames = []string{"sym", "asym", "zp"}

// A Share is who shares one scale.
type Share uint8

// The sharings. NoShare is that of formats without scales of this kind.
const (
	NoShare    Share = iota
	PerTensor        // all heads
	PerHead          // a KV head
	PerToken         // a token of a head, or Group channels of it
	PerChannel       // a channel of a head, or Group tokens of it
)

func (s Share) String() string { return shareNames[s] }

var shareNames = []string{"", "tensor", "head", "token", "channel"}

// A Meta is the type of stored scales and offsets.
type Meta uint8

// The types of stored scales and offsets.
const (
	MetaF16 Meta = iota
	MetaBF16
	MetaF32
)

func (m Meta) String() string { return metaFormats[m].name }

// Bytes returns the size of one stored scale or offset.
func (m Meta) Bytes() int { return metaFormats[m].bytes }

type metaFormat struct {
	name     string
	bytes    int
	smallest float32 // positive value
	encode   func(dst []byte, x []float32)
	decode   func(dst []float32, src []byte)
}

var metaFormats = []metaFormat{
	{"f16", 2, 0x1p-24, kernels.ToF16, kernels.FromF16},
	{"bf16", 2, 0x1p-133, kernels.ToBF16, kernels.FromBF16},
	{"f32", 4, 0x1p-149, kernels.ToF32, kernels.FromF32},
}

// A Scheme says how one tensor (the keys or the values of one layer) is stored.
// It is read-only once made.
type Scheme struct {
	Format    *Format
	Zero      Zero
	Share     Share
	Group     int // channels (PerToken) or tokens (PerChannel) of one scale; 0: all of them
	Meta      Meta
	Modifiers []Modifier
}

// Name returns the canonical name.
func (s *Scheme) Name() string {
	var b strings.Builder
	b.WriteString(s.Format.Name)
	if s.Zero != Sym && s.Format.Class == Integer {
		b.WriteString("-" + s.Zero.String())
	}
	if s.Share != NoShare && (s.Format.Class != Scaled || s.Share != PerTensor) {
		b.WriteString("-" + s.Share.String())
	}
	if s.Group > 0 {
		b.WriteString("/" + strconv.Itoa(s.Group))
	}
	if s.Share != NoShare && s.Meta != s.Format.defaultMeta() {
		b.WriteString("@" + s.Meta.String())
	}
	for _, m := range s.Modifiers {
		b.WriteString("+" + m.String())
	}
	return b.String()
}

// Formats lists the registry of formats.
func Formats() []*Format { return slices.Clone(formats) }

// A ModifierDoc describes one modifier of the registry.
type ModifierDoc struct{ Usage, Doc string }

// ModifierDocs lists the registry of modifiers.
func ModifierDocs() []ModifierDoc {
	var docs []ModifierDoc
	for _, row := range modifiers {
		usage := "+" + row.name + map[argument]string{optional: "[N]", required: "N", percent: "P%"}[row.argument]
		docs = append(docs, ModifierDoc{usage, row.doc})
	}
	return docs
}

// defaultMeta is the type of stored scales when a name does not say.
func (f *Format) defaultMeta() Meta {
	if f.Class == Scaled {
		return MetaF32
	}
	return MetaF16
}

// Online reports whether the scheme can be built while decoding, token by
// token, without changing what is stored: not when a scale or mean depends on
// tokens yet to come. Groups of tokens can once a recent window keeps their
// tokens until the group is full.
func (s *Scheme) Online() bool {
	if s.has(Center) || s.Calibrated() {
		return false
	}
	switch s.Share {
	case PerHead:
		return false
	case PerChannel:
		return s.Group > 0 && s.has(Recent)
	}
	return true
}

// Calibrated reports whether encoding a head needs to have seen all heads of
// the tensor before: see Coder.Observe.
func (s *Scheme) Calibrated() bool { return s.sharedScale() || s.Format.learned }

// sharedScale reports whether scales belong to the tensor and are stored with head 0.
func (s *Scheme) sharedScale() bool {
	return s.Share == PerTensor || s.Format.Class == Strided || s.Format.block != nil && s.Format.block.tensor
}

func (s *Scheme) has(kind ModifierKind) bool {
	return slices.ContainsFunc(s.Modifiers, func(m Modifier) bool { return m.Kind == kind })
}

// modifier returns the modifier of a kind, the zero value when the scheme does not
// have it.
func (s *Scheme) modifier(kind ModifierKind) Modifier {
	for _, m := range s.Modifiers {
		if m.Kind == kind {
			return m
		}
	}
	return Modifier{}
}

// A ModifierKind is a change to values or storage around a format.
type ModifierKind uint8

// The modifiers.
const (
	Hadamard ModifierKind = iota
	Center
	Sink
	Recent
	PreRoPE
	Outlier
	Clip
)

// changes reports whether a modifier changes values that are then encoded.
func (k ModifierKind) changes() bool {
	return k == Hadamard || k == Center || k == PreRoPE || k == Outlier
}

// A Modifier is one "+…" of a name.
type Modifier struct {
	Kind ModifierKind
	N    int // Hadamard: block of channels, 0 the default; Sink, Recent: tokens; Outlier: millionths of a percent
	// Tails says that an Outlier takes half of the values from each end of a unit's
	// range: "+tails".
	Tails bool
}

// modifiers is the registry of modifiers.
var modifiers = []modifierRow{
	{Hadamard, "hadamard", optional, "orthonormal Walsh–Hadamard over blocks of N channels"},
	{Center, "center", none, "subtract each channel's mean over tokens, stored in float32"},
	{Sink, "sink", required, "keep the first N tokens in f16"},
	{Recent, "recent", required, "keep the last N tokens in f16"},
	{PreRoPE, "prerope", none, "store keys as they were before RoPE"},
	{Outlier, "outlier", percent, "keep the P% largest of each sharing unit in f16"},
	{Outlier, tails, percent, "keep both ends of each unit's range, P% in all, in f16"},
	{Clip, "clip", none, "shrink each range by the best of {1, .95, …, .5}, least squares"},
}

type modifierRow struct {
	kind     ModifierKind
	name     string
	argument argument
	doc      string
}

type argument uint8

const (
	none argument = iota
	optional
	required
	percent
)

func (m Modifier) String() string {
	name := m.name()
	switch {
	case m.Kind == Outlier:
		return name + strconv.FormatFloat(float64(m.N)/percentUnit, 'f', -1, 64) + "%"
	case m.N == 0:
		return name
	}
	return name + strconv.Itoa(m.N)
}

// name returns the modifier's word.
func (m Modifier) name() string {
	if m.Tails {
		return tails
	}
	return modifiers[slices.IndexFunc(modifiers, func(row modifierRow) bool { return row.kind == m.Kind })].name
}

// tails is the word of an Outlier of both ends.
const tails = "tails"

// percentUnit is one percent in the unit of an Outlier's N.
const percentUnit = 1_000_000

// A Pair says how keys and values are stored; a nil side is left exact.
type Pair struct {
	K, V   *Scheme
	Recipe string // the name of the recipe that it was asked for by, if any
}

// Name returns the recipe's name or the canonical name: one scheme where both
// sides are the same.
func (p Pair) Name() string {
	if p.Recipe != "" {
		return p.Recipe
	}
	k, v := SideName(p.K), SideName(p.V)
	if k == v {
		return k
	}
	return k + ":" + v
}

// SideName returns the canonical name of a side of a pair, "exact" for nil.
func SideName(s *Scheme) string {
	if s == nil {
		return "exact"
	}
	return s.Name()
}

// Online reports whether both sides can be built token by token.
func (p Pair) Online() bool {
	return (p.K == nil || p.K.Online()) && (p.V == nil || p.V.Online())
}

// A SchemeError is a name that is no scheme, or a scheme that does not fit a
// shape: an error of usage.
type SchemeError struct {
	Name   string // as typed
	Reason string
	Hint   string // what to do; may be empty
}

func (e *SchemeError) Error() string {
	return fmt.Sprintf("scheme %q: %s", e.Name, e.Reason)
}
