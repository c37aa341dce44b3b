package quantize

import (
	"fmt"
	"strconv"
	"strings"

	"kvq/kernels"
)

// A Field is one row of a byte-layout table.
type Field struct {
	Offset, Bytes string // in a head, or in a block of channels for a Block format
	Name, Type    string
	Meaning       string
}

// A Layout is how a scheme lies in memory and how it is read back.
type Layout struct {
	Unit    string // what the table is about: "a head of …", "a block of …"
	Fields  []Field
	Formula string // of a decoded value
}

// Layouts returns the byte layout of a head, and for a Block format that of a
// block, for rows of d channels. Sizes are in terms of S tokens where they
// depend on them.
func (s *Scheme) Layouts(dim int) ([]Layout, error) {
	if err := s.CheckDim(dim); err != nil {
		return nil, err
	}
	rows := "S"
	if s.has(Sink) || s.has(Recent) {
		rows = "R" // coded rows
	}
	var parts []Field
	part := func(bytes, name, kind, meaning string) {
		offset := "0"
		if len(parts) > 0 {
			offset = "behind"
		}
		parts = append(parts, Field{offset, bytes, name, kind, meaning})
	}
	head := Layout{Unit: fmt.Sprintf("one head of S tokens, %d channels", dim), Formula: s.formula()}
	f := s.Format
	part(fmt.Sprintf("%s·%d", rows, s.codeBytes(dim)), "codes", s.codeType(), "rows, each starting on a byte")
	if f.Class == Strided {
		part(fmt.Sprintf("H·%s·%d/64·2", rows, dim), "scales", "f16", "of the tensor's columns, with head 0 only")
		part(fmt.Sprintf("H·%s·%d/64·2", rows, dim), "zeros", "f16", "in the order of the scales")
	}
	if f.Class != Plain && f.Class != Block && f.Class != Strided {
		count := s.scaleCount(rows, dim)
		meta := strconv.Itoa(s.Meta.Bytes())
		part(count+"·"+meta, "scales", s.Meta.String(), s.scaleOrder())
		switch s.Zero {
		case Asym:
			part(count+"·"+meta, "offsets", s.Meta.String(), "in the order of the scales")
		case ZP:
			part(count+"·1", "zero points", "int8", "in the order of the scales")
		}
	}
	if f.learned {
		part(strconv.FormatInt(s.codebookBytes(), 10), "codebook", "f16", "values, with head 0 only")
	}
	if f.Class == Block && f.block.tensor {
		part("4", "tensor scale", "f32", "with head 0 only")
	}
	if s.has(Center) {
		part(strconv.Itoa(dim*meanBytes), "means", "f32", "one a channel")
	}
	if rows == "R" {
		part(fmt.Sprintf("(S−R)·%d", dim*windowBytes), "window", "f16", "sink rows, then recent rows")
	}
	if s.has(Outlier) {
		part("n·2", "outliers", "f16", "row by row, channels ascending")
		part("n·2", "outlier channels", "u16", "in the order of the outliers")
		part(rows+"·4", "outlier ends", "u32", "outliers up to each row's end")
	}
	head.Fields = parts
	layouts := []Layout{head}
	if f.Class == Block {
		layout := f.blockLayout()
		block := Layout{Unit: fmt.Sprintf("one block of %d channels", f.blockElements(dim)), Formula: layout.formula}
		at := 0
		for _, field := range layout.fields {
			n, kind := field.bytes, field.kind
			if n == 0 {
				n = kernels.PackedLen(f.blockElements(dim), f.Bits)
			}
			if kind == "" {
				kind = fmt.Sprintf("u%d", f.Bits)
			}
			block.Fields = append(block.Fields, Field{strconv.Itoa(at), strconv.Itoa(n), field.name, kind, field.meaning})
			at += n
		}
		layouts = append(layouts, block)
	}
	return layouts, nil
}

func (s *Scheme) codeType() string {
	switch s.Format.Class {
	case Integer, Codebook, Strided:
		return fmt.Sprintf("u%d", s.Format.Bits)
	case Block:
		return "blocks"
	}
	return formatType(s.Format)
}

// formatType is the element type of a float format.
func formatType(f *Format) string {
	for _, name := range []string{"e4m3", "e5m2"} {
		if f.Name == name+"-raw" {
			return name
		}
	}
	return f.Name
}

// scaleCount is the number of scales of a head in terms of its rows.
func (s *Scheme) scaleCount(rows string, dim int) string {
	switch s.Share {
	case PerToken:
		return fmt.Sprintf("%s·%d", rows, groups(int64(dim), s.Group))
	case PerChannel:
		if s.Group > 0 {
			return fmt.Sprintf("⌈%s/%d⌉·%d", rows, s.Group, dim)
		}
		return strconv.Itoa(dim)
	}
	return "1"
}

func (s *Scheme) scaleOrder() string {
	switch {
	case s.Share == PerTensor:
		return "one, with head 0 only"
	case s.Share == PerHead:
		return "one for the head"
	case s.Share == PerToken && s.Group > 0:
		return "by token, then group of channels"
	case s.Share == PerToken:
		return "one a token"
	case s.Group > 0:
		return "by group of tokens, then channel"
	}
	return "one a channel"
}

// windowInPlace is what a window adds to a formula.
const windowInPlace = "; window rows in place"

// formula says how a stored code becomes a value.
func (s *Scheme) formula() string {
	text := ""
	switch s.Format.Class {
	case Plain:
		text = "x̂ = value of the code"
	case Scaled:
		text = "x̂ = scale·value of the code"
	case Strided:
		text = "x̂ = (q − zero)·scale, of column (flat index in the tensor) mod n"
	case Codebook:
		text = "x̂ = scale·value of the code"
		if s.Format.learned {
			text += " + offset"
		}
	case Block:
		text = "x̂ as in the block below"
	case Integer:
		half := 1 << (s.Format.Bits - 1)
		switch s.Zero {
		case Sym:
			text = fmt.Sprintf("x̂ = scale·(field − %d)", half)
		case Asym:
			text = "x̂ = scale·field + offset, product and sum rounded one after the other"
		case ZP:
			text = fmt.Sprintf("x̂ = scale·(field − (zero point + %d))", half)
		}
	}
	for i := len(s.Modifiers) - 1; i >= 0; i-- {
		switch s.Modifiers[i].Kind {
		case Center:
			text += "; + mean of the channel"
		case Hadamard:
			text += "; rotated back by Walsh–Hadamard"
		case PreRoPE:
			text += "; rotated by RoPE"
		case Outlier:
			text += "; outliers in place"
		case Sink, Recent:
			if !strings.Contains(text, windowInPlace) { // once for both
				text += windowInPlace
			}
		}
	}
	return text
}

// A blockLayout is how a Block format lays out one block.
type blockLayout struct {
	fields  []blockField
	formula string
}

// blockLayouts are the layouts of the Block formats. Families of them, which differ
// in the bits of a code alone, have theirs by the first letters of their names.
var blockLayouts = map[string]blockLayout{
	"q8_0":     {[]blockField{scaleF16, {32, "qs", "int8", "codes"}}, "x̂ = d·q"},
	"q5_1":     {[]blockField{scaleF16, {2, "m", "f16", "minimum"}, fifthBits, nibbles(16)}, "x̂ = d·q + m"},
	"q5_0":     {[]blockField{scaleF16, fifthBits, nibbles(16)}, "x̂ = d·(q − 16)"},
	"q4_1":     {[]blockField{scaleF16, {2, "m", "f16", "minimum"}, nibbles(16)}, "x̂ = d·q + m"},
	"q4_0":     {[]blockField{scaleF16, nibbles(16)}, "x̂ = d·(q − 8)"},
	"iq4_nl":   {[]blockField{scaleF16, nibbles(16)}, "x̂ = d·v[q], v = −127 −104 −83 −65 −49 −35 −22 −10 1 13 25 38 53 69 89 113"},
	"mxfp4":    {[]blockField{{1, "e", "e8m0", "scale 2^(e−127)"}, {16, "qs", "e2m1×2", "channel j low nibble, j+16 high"}}, "x̂ = 2^(e−127)·e2m1(q)"},
	"nvfp4":    {[]blockField{{4, "d", "ue4m3×4", "a scale for each 16 channels"}, {32, "qs", "e2m1×2", "8 bytes for each 16 channels, j low and j+8 high"}}, "x̂ = d·e2m1(q)"},
	"nvfp4-ts": {[]blockField{{1, "d", "e4m3", "scale"}, {8, "qs", "e2m1×2", "channel j low nibble, j+8 high"}}, "x̂ = (d·tensor scale)·e2m1(q)"},
	"q6_0":     {[]blockField{scaleF16, {8, "qh", "u2×4", "upper bits of channels j, j+16, j+8, j+24"}, nibbles(16)}, "x̂ = d·(q − 32)"},
	"q8_kv":    {[]blockField{{4, "d", "f32", "scale"}, {4, "sum", "int32", "sum of the codes"}, {0, "qs", "int8", "codes"}}, "x̂ = d·q"},
	"mlx":      {[]blockField{{2, "scale", "f16", "signed"}, {2, "bias", "f16", "the edge that is exact"}, codesInOrder}, "x̂ = scale·q + bias"},
	"quanto":   {[]blockField{codesInOrder, {2, "scale", "f16", ""}, {2, "shift", "f16", "minus the minimum"}}, "x̂ = scale·q − shift"},
	"flexgen":  {[]blockField{codesInOrder, {2, "steps", "f16", "15/(max − min)"}, {2, "min", "f16", ""}}, "x̂ = q/steps + min"},
	"mid":      {[]blockField{{2, "max", "f16", "largest magnitude"}, codesInOrder}, "x̂ = max·t, t = (2q + 1)/2^B − 1"},
	"cubic":    {[]blockField{{2, "max", "f16", "largest magnitude"}, codesInOrder}, "x̂ = max·(0.65·t + 0.35·t³), t = (2q + 1)/2^B − 1"},
	"mx16fp4":  {[]blockField{{1, "e", "e8m0", "scale 2^(e−127)"}, {0, "codes", "e2m1", "channel by channel"}}, "x̂ = 2^(e−127)·e2m1(q)"},
	"tq":       {[]blockField{{2, "norm", "f16", "of the row"}, codesInOrder}, "x̂ = norm·c[q]/√d, c the Lloyd–Max values of N(0,1)"},
	"tq-nc":    {[]blockField{codesInOrder, {2, "norm", "f16", "of the row"}}, "x̂ = norm·c[q]/‖c[q]‖, over the row; c by vLLM's solver"},
	"tqv":      {[]blockField{codesInOrder, {2, "scale", "f16", ""}, {2, "min", "f16", ""}}, "x̂ = scale·q + min"},
	"pth-int8": {[]blockField{{0, "codes", "int8", ""}, {4, "scale", "f32", ""}}, "x̂ = q·scale"},
	"pth-fp8":  {[]blockField{{0, "codes", "e4m3", ""}, {4, "scale", "f32", ""}}, "x̂ = q·scale"},
	"pth-int4": {[]blockField{codesInOrder, {4, "scale", "f32", "its lowest four bits are the zero point"}}, "x̂ = signs·H(scale·(q − zero))/d"},
}

// The layouts of formats that store what others do.
var sameLayout = map[string]string{
	"q8_0-cpu": "q8_0", "iq4_nl-cpu": "iq4_nl", "q4_0-ls": "q4_0", "mxfp4-ceil": "mxfp4", "mxfp4-round": "mxfp4", "nvfp4-46": "nvfp4-ts", "quarot": "quanto",
}

// blockLayout returns the layout of a Block format.
func (f *Format) blockLayout() blockLayout {
	family := strings.Replace(f.Name, strconv.Itoa(f.Bits), "", 1)
	for _, name := range []string{f.Name, sameLayout[f.Name], family, sameLayout[family]} {
		if layout, ok := blockLayouts[name]; ok {
			return layout
		}
	}
	panic("quantize: no layout of " + f.Name)
}

// A blockField is a field of a block; 0 bytes, or no type, stand for codes of the
// format's bits, those of the whole block.
type blockField struct {
	bytes               int
	name, kind, meaning string
}

// Fields that many blocks have.
var (
	scaleF16     = blockField{2, "d", "f16", "scale"}
	fifthBits    = blockField{4, "qh", "u32", "bit j: fifth bit of channel j"}
	codesInOrder = blockField{0, "codes", "", "channel by channel"}
)

func nibbles(bytes int) blockField {
	return blockField{bytes, "qs", "u4×2", fmt.Sprintf("channel j low nibble, j+%d high", bytes)}
}
