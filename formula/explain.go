package formula

import (
	"fmt"
	"strconv"
	"strings"
)

// explainIdeal writes the sum of one request with its numbers in it.
func explainIdeal(req Request) ([]string, error) {
	var lines []string
	var c calc
	total := int64(0)
	var terms []string
	sequences := counted(req.Sequences, "sequence")
	for _, g := range req.Model.Geometry {
		prefix, l, err := idealLayers(g, req)
		if err != nil {
			return nil, err
		}
		kept, shared := g.Tokens(req.Context), g.shared(req.Context, req.Prefix)
		lines = append(lines, fmt.Sprintf("%s: a layer keeps %s = %s vectors", g, g.rule(), thousands(kept)))
		if shared > 0 {
			one := c.add(prefix.k.data, prefix.k.metadata, prefix.v.data, prefix.v.metadata, prefix.index)
			bytes := c.mul(g.Count, one)
			total = c.add(total, bytes)
			terms = append(terms, thousands(bytes))
			lines = append(lines, fmt.Sprintf("  %s of them are the prefix's, stored once: %s x %s B = %s B", thousands(shared), counted(g.Count, "layer"), thousands(one), thousands(bytes)))
		}
		if kept == shared {
			continue
		}
		one := c.add(l.k.data, l.k.metadata, l.v.data, l.v.metadata, l.index)
		bytes := c.mul(g.Count, one, req.Sequences)
		total = c.add(total, bytes)
		terms = append(terms, thousands(bytes))
		tokens := thousands(kept - shared)
		if l.index > 0 {
			where := ""
			if req.TP > 1 {
				where = fmt.Sprintf(" on each of %d devices", req.TP)
			}
			lines = append(lines, fmt.Sprintf("  index keys of %d%s: %s B", g.HeadDimK, where, thousands(l.index)))
		}
		for _, side := range []struct {
			name, scheme string
			dim          int64
			size         sideSize
		}{{"K", req.Scheme.K.Name(), g.HeadDimK, l.k}, {"V", req.Scheme.V.Name(), g.HeadDimV, l.v}} {
			if side.size.elements == 0 {
				continue
			}
			n := side.size.elements / max(1, kept-shared) / side.dim
			heads := counted(n, "head")
			if n > g.KVHeads { // more devices than heads, or a latent
				heads += fmt.Sprintf(" (the model's %d, replicated over %d devices)", g.KVHeads, req.TP)
			}
			line := fmt.Sprintf("  %s as %s: %s x %s x %d elements = %s B", side.name, side.scheme, heads, tokens, side.dim, thousands(side.size.data))
			if side.size.metadata > 0 {
				line += fmt.Sprintf(" + %s B metadata", thousands(side.size.metadata))
			}
			lines = append(lines, line)
		}
		lines = append(lines, fmt.Sprintf("  %s x %s x %s B = %s B", counted(g.Count, "layer"), sequences, thousands(one), thousands(bytes)))
	}
	for _, s := range req.Model.States {
		one := c.keep(s.Bytes())
		bytes := c.mul(one, req.Sequences)
		total = c.add(total, bytes)
		terms = append(terms, thousands(bytes))
		lines = append(lines,
			fmt.Sprintf("state of %s (%s): constant", counted(s.Layers, "layer"), s.Kind),
			fmt.Sprintf("  %s x %s x (%s x %d B conv + %s x %d B recurrent) = %s B", sequences, counted(s.Layers, "layer"),
				thousands(s.ConvElements), s.ConvBytes, thousands(s.SSMElements), s.SSMBytes, thousands(bytes)))
	}
	if x := req.Model.Cross; x != nil {
		bytes := c.mul(x.Layers, max(x.KVHeads, req.TP), c.add(x.HeadDimK, x.HeadDimV), elementBytes, x.Tokens, req.Sequences)
		total = c.add(total, bytes)
		terms = append(terms, thousands(bytes))
		lines = append(lines,
			fmt.Sprintf("cross attention of %d layers: constant", x.Layers),
			fmt.Sprintf("  %s x %s tokens x %d layers x %d heads x (%d + %d) x %d B = %s B", sequences, thousands(x.Tokens), x.Layers, max(x.KVHeads, req.TP), x.HeadDimK, x.HeadDimV, elementBytes, thousands(bytes)))
	}
	if len(terms) > 1 {
		lines = append(lines, strings.Join(terms, " + ")+" = "+thousands(total)+" B")
	}
	return lines, c.err
}

// rule says how many tokens a layer of the group keeps.
func (g Group) rule() string {
	switch g.Kind {
	case Sliding, Chunked:
		return fmt.Sprintf("min(S, %s)", thousands(g.Window))
	case Compressed:
		if g.Window > 0 {
			return fmt.Sprintf("floor(S/%d) + min(S, %s)", g.Ratio, thousands(g.Window))
		}
		return fmt.Sprintf("floor(S/%d)", g.Ratio)
	}
	return "S"
}

// counted writes 1 sequence, 1,000 sequences.
func counted(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return thousands(n) + " " + noun
}

// thousands writes 4294967296 as 4,294,967,296.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
