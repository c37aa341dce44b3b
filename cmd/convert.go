package cmd

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kvq/dumps"
	"kvq/formula"
)

// convertOptions are the flags of kvq convert.
type convertOptions struct {
	source sourceOptions
	tokens string
}

func newConvert(s Streams) *cobra.Command {
	var o convertOptions
	c := &cobra.Command{
		Use:   "convert IN... -o OUT.safetensors",
		Short: "write dumps of any form as one safetensors file",
		Long: `convert reads whatever kvq reads (npy, npz, safetensors, PyTorch files, MLX
prompt caches, llama.cpp states, directories of them) and writes one
safetensors file with the facts that were stated, as kvq.dump/1. Types are
kept where the form has them. --layer and --tokens write a part of it:
queries that stand elsewhere are left out, and positions count from the first
token kept, which later tokens then take for the beginning.`,
		Example: `  kvq convert slot.bin --gguf model.gguf -o slot.safetensors
  kvq convert cache.pt --layer 0,12 --tokens 0:2048 -o part.safetensors`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			o.source.dumps = append(o.source.dumps, args...)
			if err := o.source.settle(c.Flags()); err != nil {
				return err
			}
			return runConvert(c.Context(), o, out)
		},
	}
	addSourceFlags(c.Flags(), &o.source)
	c.Flags().StringVar(&o.tokens, "tokens", "", "only the tokens `A:B`, from A on and before B; either may be left out")
	return c
}

func runConvert(ctx context.Context, o convertOptions, out *output) error {
	path := out.path
	if strings.ToLower(filepath.Ext(path)) != ".safetensors" {
		return withHint(usagef("-o %s: want a .safetensors file", path), "kvq convert IN -o OUT.safetensors")
	}
	var s dumps.Selection
	var err error
	if s.From, s.To, err = parseTokenRange(o.tokens); err != nil {
		return err
	}
	wanted, err := parseLayers("layer", o.source.layers)
	if err != nil {
		return err
	}
	files, err := o.source.open("", out.warn)
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range files {
			f.Close() // read-only: nothing can be lost
		}
	}()
	if err := out.spare(o.source.inputs(files)...); err != nil {
		return err
	}
	var have []string
	for _, f := range files {
		for _, w := range f.Warnings {
			out.warn("%s", w)
		}
		for _, l := range f.Layers {
			have = append(have, fmt.Sprint(l.Number))
			if !wanted.include(l.Number) {
				continue
			}
			if err := checkLayer(l); err != nil {
				return err
			}
			if slices.Contains(l.Facts.Assumed, "window") && l.Cache != "" {
				out.warn("%s: layer %d: its window is not known, and is written as none", l.Path, l.Number)
			}
			s.Layers = append(s.Layers, l)
		}
	}
	if missing := wanted.unused(); missing != "" {
		return usagef("--layer %s: the dump holds %s", missing, some(have))
	}
	if s.To == 0 && s.From > 0 {
		s.To = s.Layers[0].Tokens
		for _, l := range s.Layers {
			if l.Tokens != s.To {
				return usagef("--tokens %s: layers have different numbers of tokens: say where to end", o.tokens)
			}
		}
	}
	facts, arrays, warnings, err := s.Contents()
	if err != nil {
		return usageError{err}
	}
	for _, w := range warnings {
		out.warn("%s", w)
	}
	var total int64
	for _, a := range arrays {
		size, err := a.Size()
		if err != nil {
			return err
		}
		total += size
	}
	w := &synthWriter{ctx: ctx, progress: out.progress("writing", "B", total)}
	defer w.progress.done()
	if err := w.file(path, func(to io.Writer) error { return dumps.WriteSafetensors(to, facts, arrays) }); err != nil {
		return err
	}
	w.progress.done()
	// What was written is shown as kvq inspect reads it.
	out.path = ""
	return runInspect(sourceOptions{dumps: []string{path}}, out)
}

// parseTokenRange reads A:B; 0, 0 is everything, and an end of 0 the last token.
func parseTokenRange(text string) (from, to int, err error) {
	if text == "" {
		return 0, 0, nil
	}
	a, b, ok := strings.Cut(text, ":")
	bounds := [2]int64{}
	for i, s := range []string{a, b} {
		if s == "" || s == "0" && i == 0 {
			continue
		}
		if bounds[i], err = formula.ParseTokens(s); err != nil {
			ok = false
		}
	}
	if !ok || bounds[1] > 1<<31 || bounds[0] > 1<<31 || b != "" && bounds[0] >= bounds[1] {
		return 0, 0, usagef("--tokens %q: want A:B, such as 0:2048 or 1k:2k", text)
	}
	return int(bounds[0]), int(bounds[1]), nil
}
