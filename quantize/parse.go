package quantize

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Lookup returns the scheme of one side from its name, in any case. The error
// is a *SchemeError.
func Lookup(name string) (*Scheme, error) {
	p := parser{name: name}
	s, err := p.side(strings.ToLower(strings.TrimSpace(name)))
	if err == nil && s == nil {
		return nil, p.fail("", `"exact" leaves a side alone and stores nothing`)
	}
	return s, err
}

// ParsePair returns the pair "K:V" of a name; one name means both sides, and a
// recipe's name its pair. The error is a *SchemeError.
func ParsePair(name string) (Pair, error) {
	p := parser{name: name}
	if r := recipeNamed(strings.ToLower(strings.TrimSpace(name))); r != nil {
		return r.pair()
	}
	left, right, two := strings.Cut(strings.ToLower(strings.TrimSpace(name)), ":")
	k, err := p.side(left)
	if err != nil {
		return Pair{}, err
	}
	v := k
	if two {
		if v, err = p.side(right); err != nil {
			return Pair{}, err
		}
	}
	if k == nil && v == nil {
		return Pair{}, p.fail("", "both sides are left exact: there is nothing to do")
	}
	return Pair{K: k, V: v}, nil
}

// maxNumber bounds the numbers of a name, so that sizes cannot overflow from one alone.
const maxNumber = 1 << 30

// maxName bounds the length of one side, so that no name takes long to refuse.
const maxName = 200

// A parser reads one name; it is kept whole for its errors.
type parser struct{ name string }

func (p parser) fail(hint, format string, args ...any) error {
	return &SchemeError{Name: shorten(p.name), Reason: fmt.Sprintf(format, args...), Hint: hint}
}

// shorten keeps the error of an absurdly long name to one line.
func shorten(name string) string {
	if len(name) <= maxName {
		return name
	}
	return strings.ToValidUTF8(name[:maxName], "") + "…"
}

// side reads a scheme or "exact", which is nil.
func (p parser) side(text string) (*Scheme, error) {
	if len(text) > maxName {
		return nil, p.fail("", "the name is longer than %d characters", maxName)
	}
	if text == "exact" {
		return nil, nil
	}
	if err := p.recipeSide(text); err != nil {
		return nil, err
	}
	parts := strings.Split(text, "+")
	s, err := p.base(parts[0])
	if err != nil {
		return nil, err
	}
	for _, part := range parts[1:] {
		m, err := p.modifier(part)
		if err != nil {
			return nil, err
		}
		if err := p.combine(s, m); err != nil {
			return nil, err
		}
		s.Modifiers = append(s.Modifiers, m)
	}
	return s, nil
}

// base reads codec [-zero] [-share[/group]] [@meta].
func (p parser) base(text string) (*Scheme, error) {
	if text == "" {
		return nil, p.fail("", "a scheme is missing")
	}
	if f := formatNamed(text); f != nil && fixed(f) {
		return &Scheme{Format: f}, nil
	}
	body, meta, hasMeta := strings.Cut(text, "@")
	body, group, hasGroup := strings.Cut(body, "/")
	words := strings.Split(body, "-")
	f := formatNamed(words[0])
	// A format's own name may have a - in it.
	if len(words) > 1 {
		if longer := formatNamed(words[0] + "-" + words[1]); longer != nil {
			f, words = longer, words[1:]
		}
	}
	sibling := func(name string) bool { return f != nil && strings.HasPrefix(name, f.Name+"-") }
	misspelt := f != nil && fixed(f) && len(words) > 1 && slices.ContainsFunc(formatNames(), sibling) &&
		!slices.Contains(zeroNames, words[1]) && !slices.Contains(shareNames, words[1])
	if f == nil || misspelt {
		return nil, p.unknown("scheme", text, schemeNames())
	}
	if fixed(f) {
		return nil, p.fail("", "%s stands alone: it takes no zero form, sharing, group or type of scales", f.Name)
	}
	s := &Scheme{Format: f, Share: PerToken, Meta: f.defaultMeta()}
	if f.Class == Scaled {
		s.Share = PerTensor
	}
	if f.learned {
		s.Zero = Asym
	}
	words = words[1:]
	if len(words) > 0 && slices.Contains(zeroNames, words[0]) {
		if f.Class != Integer {
			return nil, p.fail("", "%s has no zero form: %s is for integers", f.Name, words[0])
		}
		s.Zero = Zero(slices.Index(zeroNames, words[0]))
		words = words[1:]
	}
	if len(words) > 0 {
		share := slices.Index(shareNames[1:], words[0])
		switch {
		case share >= 0:
			s.Share = Share(share + 1)
		case words[0] == "":
			return nil, p.fail("", "nothing stands after a -")
		default:
			return nil, p.unknown("sharing or zero form", words[0], append(slices.Clone(zeroNames), shareNames[1:]...))
		}
		words = words[1:]
	}
	if len(words) > 0 {
		return nil, p.fail("the order is codec-zero-share/group@type, for example int4-asym-channel/32@f32",
			"%q comes after the sharing", words[0])
	}
	if f.learned && s.Share == PerTensor {
		return nil, p.fail("share within a head: -head, -token or -channel", "%s learns its values from scaled ones, so the whole tensor cannot share the scale", f.Name)
	}
	if hasGroup {
		if s.Share != PerToken && s.Share != PerChannel {
			return nil, p.fail("token/g shares over g channels, channel/g over g tokens", "sharing %s takes no group", s.Share)
		}
		g, ok := number(group)
		if !ok {
			return nil, p.fail("", "group %q is not a number from 1 to %d", group, maxNumber)
		}
		s.Group = g
	}
	if hasMeta {
		m := slices.IndexFunc(metaFormats, func(row metaFormat) bool { return row.name == meta })
		if m < 0 {
			return nil, p.unknown("type of scales", meta, metaNames())
		}
		s.Meta = Meta(m)
	}
	return s, nil
}

// fixed reports whether a format is a whole scheme by itself.
func fixed(f *Format) bool { return f.Class == Plain || f.Class == Block || f.Class == Strided }

func formatNamed(name string) *Format {
	for _, f := range formats {
		if f.Name == name {
			return f
		}
	}
	return nil
}

func formatNames() []string {
	var names []string
	for _, f := range formats {
		names = append(names, f.Name)
	}
	return names
}

// schemeNames are the names that a scheme or a pair can begin with.
func schemeNames() []string {
	names := formatNames()
	for _, r := range recipes {
		names = append(names, r.Name)
	}
	return names
}

func metaNames() []string {
	var names []string
	for _, m := range metaFormats {
		names = append(names, m.name)
	}
	return names
}

// modifier reads one modifier without its +.
func (p parser) modifier(text string) (Modifier, error) {
	word := strings.TrimRight(text, "0123456789.%")
	argument := text[len(word):]
	for _, row := range modifiers {
		if row.name != word {
			continue
		}
		m := Modifier{Kind: row.kind, Tails: row.name == tails}
		if row.argument == percent {
			n, ok := millionths(strings.TrimSuffix(argument, "%"))
			if !ok || !strings.HasSuffix(argument, "%") {
				return m, p.fail(fmt.Sprintf("for example +%s1%% or +%s0.5%%", word, word), "+%s needs a percentage above 0 and below 100", word)
			}
			m.N = n
			return m, nil
		}
		n, ok := number(argument)
		switch {
		case argument == "" && row.argument == required:
			return m, p.fail(fmt.Sprintf("for example +%s4", word), "+%s needs a number of tokens", word)
		case argument != "" && row.argument == none:
			return m, p.fail("", "+%s takes no number", word)
		case argument != "" && !ok:
			return m, p.fail("", "%q in +%s is not a number from 1 to %d", argument, text, maxNumber)
		case row.kind == Hadamard && argument != "" && (n < 2 || n&(n-1) != 0):
			return m, p.fail("", "+hadamard%d: the block is not a power of two", n)
		}
		m.N = n
		return m, nil
	}
	var names []string
	for _, row := range modifiers {
		names = append(names, row.name)
	}
	return Modifier{}, p.unknown("modifier", word, names)
}

// combine says why m cannot follow what s already has.
func (p parser) combine(s *Scheme, m Modifier) error {
	name := "+" + m.name()
	if s.has(m.Kind) {
		if other := s.modifier(m.Kind).name(); other != m.name() {
			return p.fail("", "+%s and %s both take outliers out: one of them will do", other, name)
		}
		return p.fail("", "%s stands twice", name)
	}
	switch {
	case m.Kind == PreRoPE && len(s.Modifiers) > 0:
		return p.fail("put +prerope first", "+prerope undoes the rotation of positions, which holds for keys as they are and not after +%s", s.Modifiers[0])
	case s.has(Clip):
		return p.fail("put +clip last", "+clip chooses the range of what is encoded: nothing can come after it")
	case s.has(Outlier) && (m.Kind == Sink || m.Kind == Recent):
		outlier := "+" + s.modifier(Outlier).name()
		return p.fail("put "+outlier+" behind "+name, "%s keeps outliers of coded rows, and the rows of %s are not coded: it has to say first which they are", outlier, name)
	case s.has(Outlier) && m.Kind != Clip:
		outlier := "+" + s.modifier(Outlier).name()
		return p.fail("put "+outlier+" behind "+name, "%s takes the outliers of what is encoded: %s would change it afterwards", outlier, name)
	case s.Format.Class == Plain && (m.Kind == Outlier || m.Kind == Clip):
		return p.fail("", "%s has no scale: %s has no range to shrink", s.Format.Name, name)
	case s.Share == PerTensor && (m.Kind == Outlier || m.Kind == Clip):
		return p.fail("share within a head: -head, -token or -channel", "%s works on one sharing unit at a time, and this one is the whole tensor", name)
	case s.Format.learned && m.Kind == Clip:
		return p.fail("", "%s learns its values over the whole range: a clipped one would be another codebook", s.Format.Name)
	case s.Format.Class == Strided && (m.Kind == Outlier || m.Kind == Clip):
		return p.fail("", "%s's groups run across the heads: %s works within one", s.Format.Name, name)
	case s.Format.Class == Block && (m.Kind == Outlier || m.Kind == Clip):
		return p.fail("", "%s fixes how a block's scale follows from its values: %s would be another format", s.Format.Name, name)
	case m.Kind == Recent && s.Share == PerChannel && s.Group > 0 && m.N%s.Group != 0:
		return p.fail("", "+recent%d is not a multiple of the group of %d tokens: groups leave the window whole", m.N, s.Group)
	}
	return nil
}

// otherNames are what people call formats elsewhere.
var otherNames = map[string]string{
	"fp8": "e4m3 or e4m3-raw", "fp8_e4m3": "e4m3-raw", "fp8_e5m2": "e5m2-raw", "fp16": "f16", "half": "f16", "float16": "f16",
	"bfloat16": "bf16", "fp32": "f32", "float32": "f32", "fp4": "nvfp4 or mxfp4", "q8": "q8_0", "q5": "q5_0 or q5_1", "q4": "q4_0 or q4_1", "kivi": "kivi2 or kivi4",
}

// unknown is the error for a word that is not one of names, with the nearest of
// them as a hint.
func (p parser) unknown(kind, word string, names []string) error {
	hint := otherNames[word]
	if hint == "" {
		var best []string
		distance := len(word)/2 + 2
		for _, name := range names {
			switch d := editDistance(word, name); {
			case d < distance:
				best, distance = []string{name}, d
			case d == distance && len(best) > 0 && len(best) < 3:
				best = append(best, name)
			}
		}
		hint = strings.Join(best, " or ")
	}
	switch {
	case hint != "":
		hint = "did you mean " + hint
	case len(names) > 12:
		hint = "kvq schemes lists them"
	default:
		hint = "known are " + strings.Join(names, ", ")
	}
	if kind == "scheme" && strings.EqualFold(word, p.name) { // the error says it already
		return p.fail(hint, "no such scheme")
	}
	return p.fail(hint, "unknown %s %q", kind, word)
}

// number reads a positive decimal integer without sign or leading zero.
func number(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil && n > 0 && n <= maxNumber && text[0] != '0'
}

// millionths reads a decimal percentage with up to six digits after the point.
func millionths(text string) (int, bool) {
	whole, fraction, _ := strings.Cut(text, ".")
	if len(whole) == 0 || len(whole) > 2 || len(fraction) > 6 {
		return 0, false
	}
	n, err := strconv.ParseUint(whole+fraction+strings.Repeat("0", 6-len(fraction)), 10, 32)
	return int(n), err == nil && n > 0
}

// editDistance is the Levenshtein distance in bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
