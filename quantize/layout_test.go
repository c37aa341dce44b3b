package quantize

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestLayouts: every format has a layout, the fields of a block add up to its
// bytes, and a head's parts are those that Encode fills.
func TestLayouts(t *testing.T) {
	for _, f := range Formats() {
		s := mustLookup(t, f.Name)
		layouts, err := s.Layouts(128)
		if err != nil {
			t.Fatal(err)
		}
		if f.Class != Block {
			continue
		}
		sum := 0
		for _, field := range layouts[1].Fields {
			n, err := strconv.Atoi(field.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if at, _ := strconv.Atoi(field.Offset); at != sum {
				t.Errorf("%s: field %s at %s, want %d", f.Name, field.Name, field.Offset, sum)
			}
			sum += n
		}
		if data, metadata := f.blockBytes(128); sum != data+metadata {
			t.Errorf("%s: fields of %d bytes, block of %d", f.Name, sum, data+metadata)
		}
	}
	layouts, err := mustLookup(t, "int4-asym-channel/32+center+recent64+outlier1%").Layouts(64)
	if err != nil || len(layouts[0].Fields) != 8 {
		t.Errorf("%+v, %v", layouts, err)
	}
}

// TestRecipes: every recipe parses, keeps its name, and its sides are canonical.
func TestRecipes(t *testing.T) {
	for _, r := range Recipes() {
		pair, err := ParsePair(r.Name)
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		if pair.Name() != r.Name || pair.K.Name() != r.K || pair.V.Name() != r.V {
			t.Errorf("%s: %s = %s:%s, want %s:%s", r.Name, pair.Name(), pair.K.Name(), pair.V.Name(), r.K, r.V)
		}
		if d := pair.Deployments(); len(d) == 0 || d[0].Engine != r.Engine || d[0].Flags != r.Flags {
			t.Errorf("%s: deployments %v", r.Name, d)
		}
	}
	for _, e := range pairFlags {
		if s := mustLookup(t, e.side); s.Name() != e.side {
			t.Errorf("%s is not canonical: %s", e.side, s.Name())
		}
	}
	for name, want := range map[string]string{"q8_0:q4_0": "-ctk q8_0 -ctv q4_0", "f16": "-ctk f16 -ctv f16", "q8_kv:q8_0": "-ctk q8_KV -ctv q8_0"} {
		pair, err := ParsePair(name)
		if err != nil {
			t.Fatal(err)
		}
		if d := pair.Deployments(); len(d) == 0 || d[0].Flags != want {
			t.Errorf("%s: %v, want %s", name, d, want)
		}
	}
	if pair, err := ParsePair("int4-channel:int2-token"); err != nil || len(pair.Deployments()) != 0 {
		t.Errorf("nobody ships int4-channel:int2-token: %v, %v", pair.Deployments(), err)
	}
}

// TestSets: every engine of the registry has a set, all of whose names parse.
func TestSets(t *testing.T) {
	for _, r := range Recipes() {
		set, err := Set(strings.ToUpper(r.Engine))
		if err != nil || !slices.Contains(set, r.Name) {
			t.Errorf("%s: %v, %v, without %s", r.Engine, set, err, r.Name)
		}
	}
	set, err := Set("llama.cpp")
	want := []string{"f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "iq4_nl-cpu", "q8_0:q4_0",
		"q8_0+hadamard:q4_0+hadamard64", "q8_0+hadamard:f16",
		"llama-q8_0-rot", "llama-q5_1-rot", "llama-q5_0-rot", "llama-q4_1-rot", "llama-q4_0-rot", "llama-iq4_nl-rot"}
	if err != nil || !slices.Equal(set, want) {
		t.Errorf("llama.cpp: %v, %v", set, err)
	}
	all, err := Set("all")
	if err != nil || len(all) < len(Formats())+len(Recipes()) {
		t.Errorf("all: %v, %v", all, err)
	}
	for _, name := range all {
		if _, err := ParsePair(name); err != nil {
			t.Error(err)
		}
	}
	if _, err := Set("vlm"); err == nil {
		t.Error("there is a set vlm")
	}
}

// TestLayoutsDocumented: docs/schemes.md has a row for each Block format, or its
// family, with its fields in their order.
func TestLayoutsDocumented(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("..", "docs", "schemes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "### Their bytes")
	section, _, ok := strings.Cut(section, "### Their encoders")
	if !ok {
		t.Fatal("no section on bytes")
	}
	for _, f := range Formats() {
		if f.Class != Block {
			continue
		}
		row := ""
		for line := range strings.Lines(section) {
			names, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
			family := strings.Replace(f.Name, strconv.Itoa(f.Bits), "B", 1)
			if strings.Contains(names, "`"+f.Name+"`") || strings.Contains(names, "`"+family+"`") {
				row = line
			}
		}
		for _, field := range f.blockLayout().fields {
			want := field.name + " " + field.kind
			if field == codesInOrder {
				want = "codes in order"
			}
			_, rest, found := strings.Cut(row, want)
			if !found {
				t.Errorf("%s: no %q, or out of order, in %q", f.Name, want, row)
				break
			}
			row = rest
		}
	}
	for _, v := range nf4 {
		if !strings.Contains(string(doc), strconv.FormatFloat(float64(v), 'g', -1, 64)) {
			t.Errorf("nf4's %v is not documented", v)
		}
	}
	for bits, values := range lloydMax {
		for _, v := range values {
			if !strings.Contains(string(doc), strconv.FormatFloat(float64(v), 'f', 6, 64)[:6]) {
				t.Errorf("tq%d's %v is not documented", bits, v)
			}
		}
	}
}
