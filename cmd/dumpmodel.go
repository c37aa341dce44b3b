package cmd

import (
	"fmt"
	"math"
	"strconv"

	"kvq/dumps"
	"kvq/formula"
)

// Architectures whose attention divides logits by the root of the head's width.
// Of others the scale stays assumed.
var plainScale = map[string]bool{
	"llama": true, "mistral3": true, "qwen2": true, "qwen2moe": true, "qwen2vl": true, "qwen3": true, "qwen3moe": true,
	"qwen3vl": true, "qwen3vlmoe": true, "gemma": true, "gemma2": true, "gemma3": true, "phi3": true, "smollm3": true,
	"olmo2": true, "command-r": true, "cohere2": true, "starcoder2": true, "gpt-oss": true, "glm4": true,
}

// How RoPE pairs channels, where the GGUF's metadata say all of it.
var ropeStyles = map[string]string{
	"llama": "interleaved", "mistral3": "interleaved",
	"qwen2": "half", "qwen2moe": "half", "qwen3": "half", "qwen3moe": "half", "gemma3": "half",
}

// readDumpModel reads from a GGUF header what a llama.cpp state leaves out.
func readDumpModel(path string, warn func(format string, args ...any)) (*dumps.Model, error) {
	g, err := formula.OpenGGUF(path)
	if err != nil {
		return nil, ofFile("--gguf", err)
	}
	m, err := g.Model(true)
	if err != nil {
		return nil, fmt.Errorf("--gguf %s: %w", path, err)
	}
	arch := g.Architecture()
	number := func(key string) *float64 {
		v, err := strconv.ParseFloat(g.Format(arch+"."+key), 64)
		if err != nil || !(v > 0) {
			return nil
		}
		return &v
	}
	scale := number("attention.scale")
	if embedding := number("embedding_length"); scale == nil && embedding != nil && m.QueryHeads > 0 &&
		(arch == "gemma2" && m.Layers == 46 || arch == "gemma3" && m.Layers == 62) { // the 27B ones
		scale = inverseRoot(*embedding / float64(m.QueryHeads))
	}
	if m.MLA != nil && scale == nil && m.MLA.NopeDim > 0 {
		scale = inverseRoot(float64(m.MLA.NopeDim + m.MLA.RopeDim))
		if number("rope.scaling.yarn_log_multiplier") != nil {
			warn("%s: the scale leaves out YaRN's factor: --scale gives the model's own", path)
		}
	}
	if g.HasTensor("blk.0.attn_sinks.weight") {
		warn("%s: the model has attention sinks, whose values are not read: attention figures leave them out", path)
	}
	d := &dumps.Model{Name: m.Name, Source: path}
	for i, block := range m.Blocks() {
		for _, at := range block.Groups {
			group := m.Geometry[at]
			if group.Extra != "" {
				continue
			}
			l := dumps.ModelLayer{
				Number: i, KVHeads: int(group.KVHeads), HeadDimK: int(group.HeadDimK), HeadDimV: int(group.HeadDimV),
				Sliding: group.Kind == formula.Sliding || group.Kind == formula.Chunked,
			}
			if group.Latent() && m.MLA != nil {
				l.HeadDimV = int(m.MLA.Rank)
			}
			f := &l.Facts
			window, chunk := 0, 0
			switch group.Kind {
			case formula.Sliding:
				window = int(group.Window)
			case formula.Chunked:
				chunk = int(group.Window)
			}
			f.Window, f.Chunk = &window, &chunk
			f.Scale, f.Softcap = scale, number("attn_logit_softcapping")
			if scale == nil && plainScale[arch] {
				f.Scale = inverseRoot(float64(group.HeadDimK))
			}
			f.RoPE = ggufRope(g, arch, l.Sliding, number)
			d.Layers = append(d.Layers, l)
		}
	}
	return d, nil
}

func inverseRoot(x float64) *float64 {
	y := 1 / math.Sqrt(x)
	return &y
}

// ggufRope is the rotation of a layer, nil where the header does not say all
// of it.
func ggufRope(g *formula.GGUF, arch string, sliding bool, number func(key string) *float64) *dumps.RoPE {
	style := ropeStyles[arch]
	theta := number("rope.freq_base")
	if sliding && arch == "gemma3" {
		if theta = number("rope.freq_base_swa"); theta == nil {
			theta = new(float64)
			*theta = 10000
		}
	}
	scaled, _ := g.Text(arch + ".rope.scaling.type")
	if style == "" || theta == nil || scaled != "" && scaled != "none" || number("rope.scaling.factor") != nil || g.HasTensor("rope_freqs.weight") {
		return nil
	}
	r := &dumps.RoPE{Theta: *theta, Style: style}
	if dims, ok := g.Int(arch + ".rope.dimension_count"); ok {
		r.Dims = int(dims)
	}
	return r
}
