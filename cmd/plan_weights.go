package cmd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"kvq/formula"
)

// weightOptions are the flags that say what a model's weights take.
type weightOptions struct {
	size        string // --weights
	bits        string
	safetensors string
}

// planWeights are the weights of a plan: all of them, and what one token uses.
type planWeights struct {
	bytes, active int64
	from          string // where the figure came from
	// all: nothing tells which parameters a token uses, so every one counts.
	all bool
}

// weightFiles are the places where a model's weights may be read: the tensors
// of its GGUF file, or a folder with a checkpoint.
type weightFiles struct {
	gguf          string
	bytes, active int64 // of gguf
	folder        string
}

// draftFiles are a draft model and its weights, if there is one.
type draftFiles struct {
	model *formula.Model
	weightFiles
}

// findWeights fills in the weights of the model, and with auto those of a draft.
func (p *planRun) findWeights(o weightOptions, files weightFiles, draft draftFiles) error {
	m := p.request.Model
	auto := strings.EqualFold(o.size, "auto") || o.size == "" && (o.bits != "" || o.safetensors != "")
	switch {
	case o.size != "" && !auto:
		n, err := formula.ParseBytes(o.size)
		if err != nil {
			return usagef("--weights %w", err)
		}
		for flag, text := range map[string]string{"--weight-bits": o.bits, "--safetensors": o.safetensors} {
			if text != "" {
				return usagef("%s %s: only with --weights auto", flag, text)
			}
		}
		p.weights = weightsOf(m, files, n, "--weights "+o.size)
	case o.bits != "" && o.safetensors != "":
		return usagef("--weight-bits %s: the files of --safetensors say what weights take", o.bits)
	case !auto && p.bandwidth == 0:
		if p.budget.Memory > 0 {
			p.warn("no --weights: all memory is taken to be free for the cache")
		}
		return nil
	default:
		w, err := autoWeights(m, files, o)
		switch {
		case errors.Is(err, errNoWeights) && !auto:
			p.warn("no --weights, and %v: the bound on decode counts the cache alone", err)
			return nil
		case errors.Is(err, errNoWeights):
			return withHint(usagef("--weights auto: %w", err), "give their size, as in --weights 16GiB, or --safetensors PATH")
		case err != nil:
			return err
		}
		if draft.model != nil {
			d, err := autoWeights(draft.model, draft.weightFiles, weightOptions{bits: o.bits})
			switch {
			case errors.Is(err, errNoWeights):
				p.warn("the weights of the draft are not counted: %v", err)
			case err != nil:
				return fmt.Errorf("draft: %w", err)
			}
			w.bytes += d.bytes // both far below 2^62: parameters are checked, files are real
			if d.bytes > 0 {
				w.from += ", and of the draft " + d.from
			}
		}
		p.weights = w
	}
	p.budget.Weights = p.weights.bytes
	return nil
}

// errNoWeights says that nothing tells the size of a model's weights.
var errNoWeights = errors.New("the parameters of the model are not known")

// weightsOf finds which part of the weights one token uses.
func weightsOf(m *formula.Model, files weightFiles, bytes int64, from string) planWeights {
	w := planWeights{bytes: bytes, from: from, active: m.ActiveWeights(bytes), all: m.Params == 0 || m.ActiveParams == 0}
	if files.bytes > 0 {
		w.active, w.all = int64(float64(bytes)*(float64(files.active)/float64(files.bytes))), false
	}
	return w
}

// autoWeights is what files say the weights take, or else the parameters.
func autoWeights(m *formula.Model, files weightFiles, o weightOptions) (planWeights, error) {
	folder := files.folder
	if o.safetensors != "" {
		folder = o.safetensors
	}
	switch {
	case o.bits != "":
	case o.safetensors == "" && files.bytes > 0:
		w := weightsOf(m, files, files.bytes, "the tensors of "+files.gguf)
		w.active = files.active
		return w, nil
	case folder != "":
		s, err := formula.OpenSafetensors(folder)
		if err == nil {
			from := "the tensors of " + s.Files[0]
			if len(s.Files) > 1 {
				from = fmt.Sprintf("the tensors of %d files in %s", len(s.Files), filepath.Dir(s.Files[0]))
			}
			if s.Claimed {
				from = "the total_size of " + s.Files[0]
			}
			w := weightsOf(m, weightFiles{}, s.Bytes, from)
			if active, ok := s.Active(m); ok {
				w.active, w.all = active, false
			}
			return w, nil
		}
		// Without an order to read it a folder need not hold a checkpoint.
		if o.safetensors != "" || !errors.Is(err, formula.ErrNoSafetensors) && !errors.Is(err, os.ErrNotExist) {
			return planWeights{}, err
		}
	}
	if m.Params == 0 {
		return planWeights{}, errNoWeights
	}
	bits := o.bits
	if bits == "" {
		bits = "16"
	}
	n, err := formula.WeightBytes(m.Params, bits)
	if err != nil {
		return planWeights{}, usagef("--weight-bits %w", err)
	}
	return weightsOf(m, weightFiles{}, n, fmt.Sprintf("%s parameters of %s bits", grouped(m.Params), bits)), nil
}
