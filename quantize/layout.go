package quantize

import (
	"fmt"
	"strconv"

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
		part(strconv.FormatInt(s.codebookBytes(), 10), "codebook", "f16", "values of the codes, with head 0 only")
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
		part(rows+"·4", "outlier ends", "u32", "outliers up to the end of each row")
	}
	head.Fields = parts
	layouts := []Layout{head}
	if f.Class == Block {
		block := Layout{Unit: fmt.Sprintf("one block of %d channels", f.blockElements(dim)), Formula: blockLayouts[f.Name].formula}
		at := 0
		for _, field := range blockLayouts[f.Name].fields {
			n := field.bytes
			if n == 0 {
				n = kernels.PackedLen(dim, f.Bits)
			}
			block.Fields = append(block.Fields, Field{strconv.Itoa(at), strconv.Itoa(n), field.name, field.kind, field.meaning})
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
		return "one for the tensor, with head 0 only"
	case s.Share == PerHead:
		return "one for the head"
	case s.Share == PerToken && s.Group > 0:
		return "token by token, groups of channels in order"
	case s.Share == PerToken:
		return "one a token"
	case s.Group > 0:
		return "group by group of tokens, channels in order"
	}
	return "one a channel"
}

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
			text += "; window rows in place"
		}
	}
	return text
}

// blockLayouts are the layouts of the Block formats; 0 bytes stand for the codes of
// a row.
var blockLayouts = map[string]struct {
	fields  []blockField
	formula string
}{
	"q8_0":        {[]blockField{{2, "d", "f16", "scale"}, {32, "qs", "int8", "codes"}}, "x̂ = d·q"},
	"q5_1":        {[]blockField{{2, "d", "f16", "scale"}, {2, "m", "f16", "minimum"}, {4, "qh", "u32", "bit j: fifth bit of channel j"}, {16, "qs", "u4×2", nibbles32}}, "x̂ = d·q + m"},
	"q5_0":        {[]blockField{{2, "d", "f16", "scale"}, {4, "qh", "u32", "bit j: fifth bit of channel j"}, {16, "qs", "u4×2", nibbles32}}, "x̂ = d·(q − 16)"},
	"q4_1":        {[]blockField{{2, "d", "f16", "scale"}, {2, "m", "f16", "minimum"}, {16, "qs", "u4×2", nibbles32}}, "x̂ = d·q + m"},
	"q4_0":        {[]blockField{{2, "d", "f16", "scale"}, {16, "qs", "u4×2", nibbles32}}, "x̂ = d·(q − 8)"},
	"iq4_nl":      {[]blockField{{2, "d", "f16", "scale"}, {16, "qs", "u4×2", nibbles32}}, "x̂ = d·v[q], v = −127 −104 −83 −65 −49 −35 −22 −10 1 13 25 38 53 69 89 113"},
	"mxfp4":       {[]blockField{{1, "e", "e8m0", "scale 2^(e−127)"}, {16, "qs", "e2m1×2", nibbles32}}, "x̂ = 2^(e−127)·e2m1(q)"},
	"mxfp4-ceil":  {[]blockField{{1, "e", "e8m0", "scale 2^(e−127)"}, {16, "qs", "e2m1×2", nibbles32}}, "x̂ = 2^(e−127)·e2m1(q)"},
	"mxfp4-round": {[]blockField{{1, "e", "e8m0", "scale 2^(e−127)"}, {16, "qs", "e2m1×2", nibbles32}}, "x̂ = 2^(e−127)·e2m1(q)"},
	"nvfp4":       {[]blockField{{4, "d", "ue4m3×4", "a scale for each 16 channels"}, {32, "qs", "e2m1×2", "8 bytes for each 16 channels, j low and j+8 high"}}, "x̂ = d·e2m1(q)"},
	"nvfp4-ts":    {[]blockField{{1, "d", "e4m3", "scale"}, {8, "qs", "e2m1×2", "channel j low nibble, j+8 high"}}, "x̂ = (d·tensor scale)·e2m1(q)"},
	"q6_0":        {[]blockField{{2, "d", "f16", "scale"}, {8, "qh", "u2×4", "upper bits of channels j, j+16, j+8, j+24"}, {16, "qs", "u4×2", nibbles32}}, "x̂ = d·(q − 32)"},
	"q8_kv":       {[]blockField{{4, "d", "f32", "scale"}, {4, "sum", "int32", "sum of the codes"}, {0, "qs", "int8", "codes"}}, "x̂ = d·q"},
	"mlx2":        {[]blockField{{2, "scale", "f16", "signed"}, {2, "bias", "f16", "the edge that is exact"}, {16, "codes", "u2", "channel by channel"}}, "x̂ = scale·q + bias"},
	"mlx3":        {[]blockField{{2, "scale", "f16", "signed"}, {2, "bias", "f16", "the edge that is exact"}, {24, "codes", "u3", "channel by channel"}}, "x̂ = scale·q + bias"},
	"mlx4":        {[]blockField{{2, "scale", "f16", "signed"}, {2, "bias", "f16", "the edge that is exact"}, {32, "codes", "u4", "channel by channel"}}, "x̂ = scale·q + bias"},
	"mlx6":        {[]blockField{{2, "scale", "f16", "signed"}, {2, "bias", "f16", "the edge that is exact"}, {48, "codes", "u6", "channel by channel"}}, "x̂ = scale·q + bias"},
	"mlx8":        {[]blockField{{2, "scale", "f16", "signed"}, {2, "bias", "f16", "the edge that is exact"}, {64, "codes", "u8", "channel by channel"}}, "x̂ = scale·q + bias"},
	"quanto2":     {[]blockField{{2, "scale", "f16", ""}, {2, "zero", "int16", "zero point"}, {16, "codes", "u2", "channel by channel"}}, "x̂ = scale·(q − zero)"},
	"quanto4":     {[]blockField{{2, "scale", "f16", ""}, {2, "zero", "int16", "zero point"}, {32, "codes", "u4", "channel by channel"}}, "x̂ = scale·(q − zero)"},
	"mid2":        {[]blockField{{2, "max", "f16", "largest magnitude"}, {8, "codes", "u2", "channel by channel"}}, "x̂ = max·((2q + 1)/4 − 1)"},
	"mid3":        {[]blockField{{2, "max", "f16", "largest magnitude"}, {12, "codes", "u3", "channel by channel"}}, "x̂ = max·((2q + 1)/8 − 1)"},
	"mid4":        {[]blockField{{2, "max", "f16", "largest magnitude"}, {16, "codes", "u4", "channel by channel"}}, "x̂ = max·((2q + 1)/16 − 1)"},
	"mid5":        {[]blockField{{2, "max", "f16", "largest magnitude"}, {20, "codes", "u5", "channel by channel"}}, "x̂ = max·((2q + 1)/32 − 1)"},
	"mid6":        {[]blockField{{2, "max", "f16", "largest magnitude"}, {24, "codes", "u6", "channel by channel"}}, "x̂ = max·((2q + 1)/64 − 1)"},
	"mid7":        {[]blockField{{2, "max", "f16", "largest magnitude"}, {28, "codes", "u7", "channel by channel"}}, "x̂ = max·((2q + 1)/128 − 1)"},
	"mid8":        {[]blockField{{2, "max", "f16", "largest magnitude"}, {32, "codes", "u8", "channel by channel"}}, "x̂ = max·((2q + 1)/256 − 1)"},
	"mx16fp4":     {[]blockField{{1, "e", "e8m0", "scale 2^(e−127)"}, {8, "codes", "e2m1", "channel by channel"}}, "x̂ = 2^(e−127)·e2m1(q)"},
	"tq2":         {[]blockField{{2, "norm", "f16", ""}, {0, "codes", "u2", "channel by channel"}}, "x̂ = norm·c[q]/√d, c the Lloyd–Max values of N(0,1)"},
	"tq2-nc":      {[]blockField{{2, "norm", "f16", ""}, {0, "codes", "u2", "channel by channel"}}, "x̂ = norm·c[q]/√d, c the Lloyd–Max values of N(0,1)"},
	"tq3":         {[]blockField{{2, "norm", "f16", ""}, {0, "codes", "u3", "channel by channel"}}, "x̂ = norm·c[q]/√d, c the Lloyd–Max values of N(0,1)"},
	"tq3-nc":      {[]blockField{{2, "norm", "f16", ""}, {0, "codes", "u3", "channel by channel"}}, "x̂ = norm·c[q]/√d, c the Lloyd–Max values of N(0,1)"},
	"tq4":         {[]blockField{{2, "norm", "f16", ""}, {0, "codes", "u4", "channel by channel"}}, "x̂ = norm·c[q]/√d, c the Lloyd–Max values of N(0,1)"},
	"tq4-nc":      {[]blockField{{2, "norm", "f16", ""}, {0, "codes", "u4", "channel by channel"}}, "x̂ = norm·c[q]/√d, c the Lloyd–Max values of N(0,1)"},
}

// A blockField is a field of a block.
type blockField struct {
	bytes               int
	name, kind, meaning string
}

const nibbles32 = "channel j low nibble, j+16 high"
