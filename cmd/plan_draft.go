package cmd

import (
	"os"
	"strings"

	"kvq/formula"
)

// draftOptions are the flags of speculative decoding.
type draftOptions struct {
	model, scheme string
	own           bool // --mtp
}

// findDraft finds the draft model, or sees to the model's own draft layers.
func (p *planRun) findDraft(o draftOptions) (draftFiles, error) {
	var d draftFiles
	switch {
	case o.model == "" && !o.own:
		if o.scheme != "" {
			return d, usagef("--draft-scheme %s: only with --draft or --mtp", o.scheme)
		}
		return d, nil
	case o.model != "" && o.own:
		return d, usagef("--draft %s and --mtp: want one draft", o.model)
	case o.own:
		if m := p.request.Model; len(m.Draft) == 0 {
			return d, withHint(usagef("--mtp: %s has no draft (MTP) layers that kvq knows", modelLabel(m)), "--draft MODEL adds a draft model")
		}
		p.draft = &formula.Draft{}
		return d, nil
	}
	m, files, err := p.draftModel(o.model)
	if err != nil {
		return d, err
	}
	p.draft = &formula.Draft{Model: m}
	return draftFiles{m, files}, nil
}

// draftModel reads a draft by its path, or as a preset.
func (p *planRun) draftModel(name string) (*formula.Model, weightFiles, error) {
	_, err := os.Stat(name)
	switch exists := err == nil; {
	case strings.HasSuffix(strings.ToLower(name), ".gguf"):
		return readGGUF("--draft", name, false)
	case exists || strings.HasSuffix(name, ".json"):
		return readConfig("--draft", name, false)
	}
	m, err := p.preset(name)
	return m, weightFiles{}, err
}

// useDraft has every engine cache the draft too.
func (p *planRun) useDraft(scheme string) error {
	if p.draft == nil {
		return nil
	}
	var with []planEngine
	var without []string
	for _, e := range p.engines {
		d := *p.draft
		if scheme != "" {
			read := readScheme
			if e.Scheme != nil {
				read = e.Scheme
			}
			s, err := read(scheme)
			switch {
			case err != nil && p.all():
				without = append(without, e.label())
				continue
			case err != nil:
				return usageError{err}
			}
			d.Scheme = &s
		}
		e.Engine = formula.WithDraft(e.Engine, d)
		with = append(with, e)
	}
	if len(with) == 0 {
		return usagef("no engine knows --draft-scheme %s", scheme)
	}
	if len(without) > 0 {
		p.warn("left out: %s: --draft-scheme %s is none of their types", strings.Join(without, ", "), scheme)
	}
	p.engines = with
	return nil
}

// modelLabel names a model, or says how many layers it has.
func modelLabel(m *formula.Model) string {
	if m.Name != "" {
		return m.Name
	}
	return plural(m.Layers, "layer")
}
