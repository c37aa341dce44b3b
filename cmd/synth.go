package cmd

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvq/dumps"
	"kvq/formula"
)

// synthOptions are the flags of kvq synth.
type synthOptions struct {
	dumps.Synthetic
	tokens, dtype string
	command       string // that makes the same dump
}

func newSynth(s Streams) *cobra.Command {
	var o synthOptions
	c := &cobra.Command{
		Use:   "synth -o FILE",
		Short: "write a made-up dump with chosen failure modes",
		Long: `synth writes a dump of made-up keys, values and queries: standard normal, with
the failure modes that are asked for on top. The file's extension names the
format: .safetensors, .npz or .npy (with FILE.q.npy and FILE.kvq.json beside
it). The same flags give the same bytes everywhere.`,
		Example: `  kvq synth -o outlier.npz --outlier-channels 4 --outlier-scale 20
  kvq synth -o bias.safetensors --key-bias 5 --tokens 32k --layers 2
  kvq synth -o tail.npy --heavy-tail 0.01 --sink 6 --rope 500000`,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			if err := o.settle(c.Flags()); err != nil {
				return err
			}
			return runSynth(c.Context(), o, out)
		},
	}
	f := c.Flags()
	f.StringVar(&o.tokens, "tokens", "4096", "cached tokens")
	f.IntVar(&o.Layers, "layers", 1, "layers; more than one takes .npz or .safetensors")
	f.IntVar(&o.KVHeads, "kv-heads", 8, "KV heads")
	f.IntVar(&o.QueryHeads, "query-heads", 32, "query heads, 0 for no queries")
	f.IntVar(&o.Queries, "queries", 256, "query rows per head, evenly strided")
	f.IntVar(&o.HeadDimK, "head-dim", 128, "channels of a key")
	f.IntVar(&o.HeadDimV, "head-dim-v", 0, "channels of a value; default: as many as a key's")
	f.StringVar(&o.dtype, "dtype", "f16", "f16, bf16 or f32")
	f.Uint64Var(&o.Seed, "seed", 1, "of the random numbers")
	f.IntVar(&o.OutlierChannels, "outlier-channels", 0, "channels per KV head whose keys are larger")
	f.Float64Var(&o.OutlierScale, "outlier-scale", 20, "how many times larger")
	f.Float64Var(&o.KeyBias, "key-bias", 0, "size of a constant per key channel, a key's own values having 1")
	f.Float64Var(&o.Sink, "sink", 0, "make token 0 a sink with a key this many times as long as others")
	f.Float64Var(&o.HeavyTail, "heavy-tail", 0, "share of keys' and values' elements that are 8 times as large")
	f.Float64Var(&o.RoPETheta, "rope", 0, "rotate keys and queries with this `THETA`, after the bias")
	return c
}

// settle turns the flags into a checked description.
func (o *synthOptions) settle(f *pflag.FlagSet) error {
	n, err := formula.ParseTokens(o.tokens)
	if err != nil || n > math.MaxInt32 {
		return usagef("--tokens %s: want a number of tokens, such as 4096 or 32k", o.tokens)
	}
	o.Tokens = int(n)
	if o.DType, err = dumps.ParseDType(o.dtype); err != nil {
		return err
	}
	if o.HeadDimV == 0 {
		o.HeadDimV = o.HeadDimK
	}
	switch {
	case o.QueryHeads == 0:
		o.Queries = 0
	case !f.Changed("queries"):
		o.Queries = min(o.Queries, o.Tokens)
	}
	words := []string{"kvq synth"}
	f.Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "output", "format", "color", "quiet":
		default:
			words = append(words, "--"+f.Name+" "+f.Value.String())
		}
	})
	o.command = strings.Join(words, " ")
	return o.Check()
}

func runSynth(ctx context.Context, o synthOptions, out *output) error {
	path := out.path
	if path == "" {
		return withHint(usagef("no file was named"), "kvq synth -o FILE.safetensors, .npz or .npy")
	}
	facts := o.Facts(o.command)
	w := &synthWriter{ctx: ctx}
	element := int64(o.DType.Size())
	total := element * int64(o.Layers) * (int64(o.KVHeads)*int64(o.Tokens)*int64(o.HeadDimK+o.HeadDimV) + int64(o.QueryHeads)*int64(o.Queries)*int64(o.HeadDimK))
	w.progress = out.progress("writing", "B", total)
	defer w.progress.done()

	var arrays []dumps.Content
	var err error
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".safetensors", ".npz":
		for l := range o.Layers {
			prefix := fmt.Sprintf("layers.%d.", l)
			if o.Layers == 1 && ext == ".npz" {
				prefix = ""
			}
			arrays = append(arrays, o.Arrays(l, prefix)...)
		}
		write := dumps.WriteSafetensors
		if ext == ".npz" {
			write = dumps.WriteNPZ
		}
		err = w.file(path, func(to io.Writer) error { return write(to, facts, arrays) })
	case ".npy":
		err = writeSynthNPY(o.Synthetic, path, facts, w)
	default:
		return usagef("-o %s: want a .safetensors, .npz or .npy file", path)
	}
	if err != nil {
		return err
	}
	w.progress.done()
	// What was written is shown as kvq inspect reads it.
	out.path = ""
	return runInspect(sourceOptions{dumps: []string{path}}, out)
}

// writeSynthNPY writes x.npy after the files that complete it, so that a
// failure leaves nothing that looks whole.
func writeSynthNPY(s dumps.Synthetic, path string, facts *dumps.FactFile, w *synthWriter) (err error) {
	if s.Layers != 1 {
		return usagef("-o %s: an npy file holds one layer: write .npz or .safetensors", path)
	}
	kv, err := s.KV(0)
	if err != nil {
		return usageError{err}
	}
	stem := strings.TrimSuffix(path, filepath.Ext(path))
	q, facty := stem+".q.npy", stem+".kvq.json"
	defer func() {
		if err != nil {
			os.Remove(q)
			os.Remove(facty)
		}
	}()
	if s.QueryHeads > 0 {
		facts.Defaults.QPositions = s.Positions()
		if err := w.file(q, func(to io.Writer) error { return dumps.WriteNPY(to, s.Q(0)) }); err != nil {
			return err
		}
	}
	text, err := facts.JSON()
	if err != nil {
		return err
	}
	err = w.file(facty, func(to io.Writer) error {
		_, err := to.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return err
	}
	return w.file(path, func(to io.Writer) error { return dumps.WriteNPY(to, kv) })
}

// synthWriter counts what is written, and stops when it is told to.
type synthWriter struct {
	ctx      context.Context
	progress *progress
	to       io.Writer
	done     int64
}

func (w *synthWriter) file(path string, write func(io.Writer) error) error {
	return writeFile(path, func(to io.Writer) error {
		w.to = to
		return write(w)
	})
}

func (w *synthWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.to.Write(p)
	w.done += int64(n)
	w.progress.set(w.done)
	return n, err
}
