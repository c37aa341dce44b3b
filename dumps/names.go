package dumps

import (
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// Part names one tensor of a layer.
type Part int

// The tensors of a layer dump. O is the attention's output projection and
// OWeight one weight per query row (see docs/metrics.md, residual_nmse).
const (
	K Part = iota
	V
	Q
	O
	OWeight
	positions // q_positions: integers, read at Open
	parts
)

var partNames = [parts]string{"k", "v", "q", "o", "o_weight", "q_positions"}

func (p Part) String() string { return partNames[p] }

// roles maps the last component of a tensor's or file's name, in lower case.
var roles = map[string]Part{
	"k": K, "key": K, "v": V, "value": V, "q": Q, "query": Q,
	"o": O, "o_weight": OWeight, "q_positions": positions,
}

// splitRole splits "layers.5.k" into "layers.5" and K.
func splitRole(name string) (prefix string, p Part, ok bool) {
	for role, part := range roles {
		n := len(name) - len(role)
		if n < 0 || !strings.EqualFold(name[n:], role) {
			continue
		}
		if n == 0 {
			return "", part, true
		}
		if strings.IndexByte("._/-", name[n-1]) >= 0 {
			return name[:n-1], part, true
		}
	}
	return "", 0, false
}

var layerPattern = regexp.MustCompile(`^(?:layer)?_?(\d{1,9})(?:$|[._/-])`)

// layerNumber finds the last layer number in a file's stem or a tensor's
// prefix: digits, perhaps after "layer", between separators or the ends.
// Neighbouring numbers may share a separator. It returns −1 for none.
func layerNumber(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if i > 0 && strings.IndexByte("._/-", s[i-1]) < 0 {
			continue
		}
		if m := layerPattern.FindStringSubmatch(s[i:]); m != nil {
			n, _ := strconv.Atoi(m[1])
			return n
		}
	}
	return -1
}

// pattern matches tensor names such as "key_cache.{layer}".
type pattern struct {
	part         Part
	before       string
	after        string
	hasLayerHole bool
}

const layerHole = "{layer}"

func (o Options) patterns() ([]pattern, error) {
	var out []pattern
	for _, p := range []struct {
		part Part
		text string
	}{{K, o.NameK}, {V, o.NameV}, {Q, o.NameQ}} {
		if p.text == "" {
			continue
		}
		before, after, found := strings.Cut(p.text, layerHole)
		if strings.Contains(after, layerHole) {
			return nil, &OptionError{"name-" + p.part.String(), fmt.Sprintf("%s has {layer} more than once", quote(p.text))}
		}
		out = append(out, pattern{p.part, before, after, found})
	}
	return out, nil
}

// match returns the layer number in a name, −1 if the pattern has none.
func (p pattern) match(name string) (number int, ok bool) {
	if !p.hasLayerHole {
		return -1, name == p.before
	}
	digits, ok := strings.CutPrefix(name, p.before)
	if !ok {
		return 0, false
	}
	if digits, ok = strings.CutSuffix(digits, p.after); !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 30) // refuses signs
	return int(n), err == nil
}

// group is the tensors of one layer within a file, by name.
type group struct {
	number int // −1 where the names hold none
	prefix string
	names  [parts]string // "" for absent
	has    [parts]bool
}

// groupNames sorts the names of a file's tensors into layers, in order of
// their numbers and then their first appearance. Names that play no part are
// returned as unused.
func groupNames(names []string, patterns []pattern) (groups []*group, unused []string, err error) {
	byKey := map[string]*group{}
	add := func(name, key, prefix string, number int, part Part) error {
		g := byKey[key]
		if g == nil {
			g = &group{number: number, prefix: prefix}
			byKey[key] = g
			groups = append(groups, g)
		}
		if g.has[part] {
			return fmt.Errorf("tensors %s and %s are both %s of one layer: say which with --name-%s", quote(g.names[part]), quote(name), part, part)
		}
		g.has[part], g.names[part] = true, name
		return nil
	}
	taken := map[Part]bool{}
	for _, p := range patterns {
		taken[p.part] = true
	}
next:
	for _, name := range names {
		for _, p := range patterns {
			number, ok := p.match(name)
			if !ok {
				continue
			}
			key := "" // without a hole: the file's only layer
			if number >= 0 {
				key = "#" + strconv.Itoa(number)
			}
			if err := add(name, key, "", number, p.part); err != nil {
				return nil, nil, err
			}
			continue next
		}
		prefix, part, ok := splitRole(name)
		if !ok || taken[part] {
			unused = append(unused, name)
			continue
		}
		number, key := layerNumber(prefix), prefix
		if number >= 0 {
			key = "#" + strconv.Itoa(number)
		}
		if err := add(name, key, prefix, number, part); err != nil {
			return nil, nil, err
		}
	}
	complete := groups[:0]
	for _, g := range groups {
		if g.has[K] && g.has[V] {
			complete = append(complete, g)
			continue
		}
		for p := range parts {
			if g.has[p] {
				unused = append(unused, g.names[p])
			}
		}
	}
	sort.SliceStable(complete, func(i, j int) bool { return complete[i].number < complete[j].number })
	return complete, unused, nil
}
