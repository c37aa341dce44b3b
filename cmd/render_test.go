package cmd

import (
	"slices"
	"strings"
	"testing"
)

// sampleTable has what renderers must cope with: a name too long for 80
// columns, a broken header, an empty column, separators inside cells.
func sampleTable() *table {
	t := &table{
		title: "keys | values",
		columns: []column{
			{header: "scheme", name: "scheme"},
			{header: "size", name: "total_bytes", right: true},
			{header: "k_centered\n_nmse", name: "k_centered_nmse", right: true},
			{header: "GB/s", name: "decode_gb_s", right: true, optional: true},
			{name: "note"},
		},
		notes: []string{"a note"},
	}
	t.add(text("f16"), unitsIEC.size(4<<30), number(0, 3), absent(), text("a|b"))
	t.add(text(strings.Repeat("long-", 12)+"name"), unitsIEC.size(1000), number(1.2345e-5, 3), absent(), text(`say "x"`))
	t.mark("good")
	return t
}

// The expected texts are typed, not printed by kvq.
func TestRender(t *testing.T) {
	r := report{tables: []*table{sampleTable()}, json: map[string]any{"a": "<b>"}}
	for format, want := range map[string]string{
		formatTable: `
keys | values
scheme       size  k_centered
                        _nmse
f16     4.000 GiB           0
long-long-long-long-long-long-long-long-long-long-long-long-name
           1000 B     1.23e-5
a note
`,
		formatMD: `
**keys | values**

| scheme                                                           |      size | k_centered_nmse |
|:-----------------------------------------------------------------|----------:|----------------:|
| f16                                                              | 4.000 GiB |               0 |
| long-long-long-long-long-long-long-long-long-long-long-long-name |    1000 B |         1.23e-5 |

a note
`,
		formatCSV: `
scheme,total_bytes,k_centered_nmse,decode_gb_s,note
f16,4294967296,0,,a|b
long-long-long-long-long-long-long-long-long-long-long-long-name,1000,1.2345e-05,,"say ""x"""
`,
		formatJSON: "\n{\n  \"a\": \"<b>\"\n}\n",
	} {
		var b strings.Builder
		if err := r.render(&b, format, false); err != nil {
			t.Fatal(err)
		}
		if b.String() != want[1:] {
			t.Errorf("%s:\n%s\nwant\n%s", format, b.String(), want[1:])
		}
	}
	var b strings.Builder
	if err := r.render(&b, formatTable, true); err != nil {
		t.Fatal(err)
	}
	if want := "\n\x1b[32m           1000 B     1.23e-5\x1b[0m\n"; !strings.Contains(b.String(), want) {
		t.Errorf("colour: %q does not hold %q", b.String(), want)
	}
}

// TestScatterOfFewPoints: one point, points of one height and points that a
// logarithmic axis has no place for.
func TestScatterOfFewPoints(t *testing.T) {
	for _, points := range [][]point{
		nil,
		{{8, 0, "int8", true}},
		{{8, 1e-3, "int8", true}},
		{{8, 1e-3, "int8", true}, {4, 1e-3, "int4", false}},
		{{8, 0, "int8", true}, {4, 5e-324, "int4", true}},
		{{8, 1e-300, "int8", true}},
		{{8, 1e-300, "int8", true}, {4, 1e300, "int4", true}},
	} {
		svg, err := scatter{title: "t", points: points}.svg()
		drawn := slices.ContainsFunc(points, func(p point) bool { return p.y >= lowest })
		if err != nil || (len(svg) > 0) != drawn {
			t.Errorf("%v: %d bytes, %v", points, len(svg), err)
		}
	}
}
