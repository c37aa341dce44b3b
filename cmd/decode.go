package cmd

import (
	"context"
	"errors"
	"slices"
	"time"

	"kvq/eval"
	"kvq/kernels"
	"kvq/quantize"
)

// errNoCache says that no paged cache stores a scheme: there is no figure to give.
var errNoCache = errors.New("no decode cache holds this scheme")

// decodeFormat says how a paged cache stores so many tokens of one side. Rotations and
// means change values, not storage, but for rope, what +prerope takes back from keys.
func decodeFormat(s *quantize.Scheme, tokens, dim int, rope *quantize.Rope) (kernels.Format, error) {
	f, err := codesFormat(s)
	for _, m := range s.Modifiers {
		switch m.Kind {
		case quantize.Sink:
			f.Sink = m.N
		case quantize.Recent:
			f.Recent = m.N
		case quantize.PreRoPE:
			if rope != nil && len(rope.Frequencies) > 0 {
				f.Rotation = kernels.NewRotation(rope.Frequencies, rope.Interleaved, rope.First)
			}
			// A Hadamard rotation would have to be undone for every key, not in the query.
			hadamard := slices.ContainsFunc(s.Modifiers, func(m quantize.Modifier) bool { return m.Kind == quantize.Hadamard })
			if f.Rotation != nil && (s.Format.Class == quantize.Plain || hadamard) {
				return f, errNoCache
			}
		}
	}
	f.Outliers = s.OutlierCount(tokens, dim)
	return f, err
}

// codesFormat is the format of a side's codes.
func codesFormat(s *quantize.Scheme) (kernels.Format, error) {
	f := kernels.Format{Group: s.Group, Meta: kernels.MetaF32}
	if s.Meta == quantize.MetaF16 {
		f.Meta = kernels.MetaF16
	}
	switch s.Share {
	case quantize.NoShare, quantize.PerTensor:
		f.Share = kernels.ShareTensor
	case quantize.PerHead:
		f.Share = kernels.ShareHead
	case quantize.PerToken:
		f.Share = kernels.ShareToken
	case quantize.PerChannel:
		f.Share = kernels.ShareChannel
	}
	f.Zero = map[quantize.Zero]kernels.Zero{quantize.Sym: kernels.ZeroSym, quantize.Asym: kernels.ZeroAsym, quantize.ZP: kernels.ZeroPoint}[s.Zero]
	switch s.Format.Class {
	case quantize.Integer:
		f.Codec, f.Bits = kernels.CodecInt, s.Format.Bits
		return f, nil
	case quantize.Codebook:
		f.Codec, f.Bits = kernels.CodecBook, s.Format.Bits
		return f, nil
	case quantize.Block:
		f, ok := s.Format.BlockFormat()
		if !ok {
			return kernels.Format{}, errNoCache
		}
		return f, nil
	}
	codecs := map[string]kernels.Codec{
		"f32": kernels.CodecF32, "f16": kernels.CodecF16, "bf16": kernels.CodecBF16,
		"e4m3": kernels.CodecE4M3, "e5m2": kernels.CodecE5M2, "e4m3-raw": kernels.CodecE4M3, "e5m2-raw": kernels.CodecE5M2,
	}
	codec, ok := codecs[s.Format.Name]
	if !ok {
		return kernels.Format{}, errNoCache
	}
	f.Codec = codec
	return f, nil
}

// sideEncoder turns heads of one side into what a paged cache is filled with.
type sideEncoder struct {
	scheme      *quantize.Scheme
	format      kernels.Format
	coder       *quantize.Coder
	rope        *quantize.Rope
	calibration quantize.Calibration
	encoded     quantize.Encoded
	stored      []float32
	out         kernels.Encoded
}

func newSideEncoder(s *quantize.Scheme, tokens, dim int, rope *quantize.Rope) (*sideEncoder, error) {
	f, err := decodeFormat(s, tokens, dim, rope)
	if err != nil {
		return nil, err
	}
	return &sideEncoder{scheme: s, format: f, coder: s.NewCoder(), rope: rope}, nil
}

// encode encodes one head. Its result stands until the next call.
func (e *sideEncoder) encode(h quantize.Head) (kernels.Encoded, error) {
	if err := e.coder.Encode(&e.encoded, h, e.calibrated()); err != nil {
		return kernels.Encoded{}, err
	}
	o := &e.out
	first, end := e.encoded.CodedRows()
	n := (end - first) * h.Dim
	if e.scheme.Format.Class == quantize.Plain || n < len(h.Values) {
		e.stored = resize(e.stored, len(h.Values))
		e.coder.Stored(e.stored, &e.encoded)
		o.Sink, o.Recent = e.stored[:first*h.Dim], e.stored[end*h.Dim:]
	}
	if e.format.Rotation != nil {
		o.Means = e.encoded.MeanValues(o.Means)
	}
	o.Outliers = o.Outliers[:0]
	e.encoded.EachOutlier(func(row, channel int, value float32) {
		o.Outliers = append(o.Outliers, kernels.Outlier{Token: row, Channel: channel, Value: value})
	})
	if e.scheme.Format.Class == quantize.Block {
		e.encoded.Blocks(o)
		return *o, nil
	}
	switch e.format.Codec {
	case kernels.CodecF32, kernels.CodecF16, kernels.CodecBF16:
		o.Values = e.stored[first*h.Dim : end*h.Dim]
		return *o, nil
	case kernels.CodecE4M3, kernels.CodecE5M2:
		o.Fields = e.encoded.Codes
	default:
		o.Fields = resize(o.Fields, n)
		e.encoded.Fields(o.Fields, 0)
	}
	o.Scales = e.encoded.ScaleValues(o.Scales)
	if e.scheme.Share == quantize.NoShare {
		o.Scales = append(o.Scales, 1) // the raw formats
	}
	if e.format.Codec == kernels.CodecBook {
		o.Book = e.encoded.Book(o.Book)
	}
	switch {
	case e.format.Codec < kernels.CodecInt:
	case e.format.Zero == kernels.ZeroAsym:
		o.Offsets = e.encoded.OffsetValues(o.Offsets)
	case e.format.Zero == kernels.ZeroPoint:
		o.Offsets = e.encoded.BiasValues(o.Offsets)
	}
	return *o, nil
}

// calibrated returns what the heads have in common, nil where the scheme needs none.
func (e *sideEncoder) calibrated() *quantize.Calibration {
	if !e.scheme.Calibrated() {
		return nil
	}
	return &e.calibration
}

// takesRows says whether the cache encodes values of this side by itself: its rule is
// then the scheme's.
func (e *sideEncoder) takesRows(cache *kernels.Cache, key bool) bool {
	s := e.scheme
	if len(s.Modifiers) > 0 || !cache.TakesRows(key) {
		return false
	}
	return s.Format.Class == quantize.Plain || s.Format.Class == quantize.Integer && s.Share != quantize.PerTensor && s.Meta != quantize.MetaBF16
}

// fill stores one head in a cache.
func (e *sideEncoder) fill(cache *kernels.Cache, key bool, h quantize.Head) error {
	store := cache.FillValues
	if key {
		store = cache.FillKeys
	}
	tokens := len(h.Values) / h.Dim
	if e.takesRows(cache, key) && store(h.Index, tokens, kernels.Encoded{Rows: h.Values}) == nil {
		return nil
	}
	// What the cache refused, the coder refuses too, and says which value it is.
	encoded, err := e.encode(h)
	if err != nil {
		return err
	}
	return store(h.Index, tokens, encoded)
}

// resize returns a slice of n elements, in s's memory if it is large enough.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// tensorReader reads one head of K or V.
type tensorReader func(dst []float32, key bool, head int) error

// fillCache encodes a layer's keys and values under a pair into a new paged cache.
// rope is what +prerope takes back from the keys, nil where nobody knows.
func fillCache(shape kernels.CacheShape, pair quantize.Pair, rope *quantize.Rope, read tensorReader) (*kernels.Cache, error) {
	if pair.K == nil || pair.V == nil {
		return nil, errNoCache
	}
	sides := [2]*sideEncoder{}
	dims := [2]int{shape.DimK, shape.DimV}
	for i, s := range []*quantize.Scheme{pair.K, pair.V} {
		var err error
		if err = s.CheckDim(dims[i]); err != nil {
			return nil, err
		}
		if sides[i], err = newSideEncoder(s, shape.Tokens, dims[i], [2]*quantize.Rope{rope, nil}[i]); err != nil {
			return nil, err
		}
	}
	var values [2][]float32
	for i, dim := range dims {
		values[i] = make([]float32, shape.Tokens*dim)
	}
	for i, side := range sides {
		for h := 0; side.scheme.Calibrated() && h < shape.Heads; h++ {
			if err := read(values[i], i == 0, h); err != nil {
				return nil, err
			}
			if err := side.coder.Observe(&side.calibration, quantize.Head{Index: h, Dim: dims[i], Values: values[i], Rope: side.rope}); err != nil {
				return nil, err
			}
		}
	}
	cache, err := kernels.NewCache(shape, sides[0].format, sides[1].format)
	if err != nil {
		return nil, err
	}
	for h := range shape.Heads {
		for i, side := range sides {
			if err = read(values[i], i == 0, h); err == nil {
				err = side.fill(cache, i == 0, quantize.Head{Index: h, Dim: dims[i], Values: values[i], Rope: side.rope})
			}
			if err != nil {
				cache.Close()
				return nil, err
			}
		}
	}
	return cache, nil
}

// evalBenchTime is how long eval measures each scheme of a layer.
const evalBenchTime = 60 * time.Millisecond

// decodeBench measures decoding over the encoded caches of a layer, beside f16 of
// the same geometry.
func decodeBench(threads int) eval.Bench {
	return func(ctx context.Context, l *eval.Layer, schemes []string) (eval.BenchResult, error) {
		result := eval.BenchResult{Rows: make([]*eval.Decode, len(schemes))}
		meter, err := kernels.NewMeter(threads)
		if err != nil {
			return result, err
		}
		defer meter.Close()
		shape := kernels.CacheShape{Heads: l.KVHeads, DimK: l.DimK, DimV: l.DimV, Tokens: l.Tokens}
		options := kernels.DecodeOptions{QueryHeads: l.QueryHeads, Scale: l.Facts.Scale, Window: l.Facts.Window}
		read := func(dst []float32, key bool, head int) error {
			if key {
				return l.Read(dst, eval.Keys, head)
			}
			return l.Read(dst, eval.Values, head)
		}
		measure := func(name string) (kernels.Figure, error) {
			pair, err := quantize.ParsePair(name)
			if err != nil {
				return kernels.Figure{}, err
			}
			cache, err := fillCache(shape, pair, l.KeyRope(), read)
			if err != nil {
				return kernels.Figure{}, err
			}
			defer cache.Close()
			return meter.Decode(ctx, cache, options, kernels.LevelDRAM, evalBenchTime)
		}
		f16, err := measure("f16")
		if err != nil && ctx.Err() != nil {
			return result, err
		}
		result.ReadGBps = f16.ReadGBs
		for i, name := range schemes {
			figure := f16
			if name != "f16" {
				if figure, err = measure(name); err != nil {
					if ctx.Err() != nil {
						return result, err
					}
					result.Rows[i] = &eval.Decode{Kernel: eval.NoKernel}
					continue
				}
			}
			d := &eval.Decode{UsPerToken: figure.Micros, GBps: figure.GBs, Roofline: figure.Roofline, Kernel: figure.Kernel}
			if f16.Micros > 0 {
				d.SpeedupVsF16 = f16.Micros / figure.Micros
			}
			result.Rows[i] = d
		}
		return result, nil
	}
}
