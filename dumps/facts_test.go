package dumps

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFacts(t *testing.T) {
	const text = `{"schema":"kvq.dump/1","model":"M","source":"S","rope_applied":true,"colour":1,
"defaults":{"scale":0.0625,"causal":true,"softcap":50,"window":null},
"layers":{"5":{"rope":{"theta":1000000,"style":"half","dims":64,"factor":8,"rope_type":"llama3","low_freq_factor":1,"odd":0}},
"6":{"window":512,"chunk":64,"sinks":[0.5,-1],"first_position":7,"q_positions":[1,2],"causal":false}}}`
	f, warnings, err := ParseFacts([]byte(text), "kvq.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 2 || !contains(warnings, `"colour"`) || !contains(warnings, `"layers.5.rope.odd"`) {
		t.Errorf("warnings %q", warnings)
	}
	d, five, six := f.Defaults, f.Layers[5], f.Layers[6]
	if f.Model != "M" || f.Source != "S" || !*f.RoPEApplied || *d.Scale != 0.0625 || !*d.Causal || *d.Softcap != 50 || d.Window != nil {
		t.Errorf("%+v", f)
	}
	r := five.RoPE
	if r.Theta != 1e6 || r.Style != "half" || r.Dims != 64 || r.Factor != 8 || r.Scaling["rope_type"] != "llama3" || r.Scaling["low_freq_factor"] != 1.0 {
		t.Errorf("%+v", r)
	}
	if *six.Window != 512 || *six.Chunk != 64 || !slices.Equal(six.Sinks, []float64{0.5, -1}) || *six.FirstPosition != 7 || !slices.Equal(six.QPositions, []int{1, 2}) || *six.Causal {
		t.Errorf("%+v", six)
	}
}

func TestFactErrors(t *testing.T) {
	in := func(layer string) string {
		return `{"schema":"kvq.dump/1","layers":{"0":{` + layer + `}}}`
	}
	for text, want := range map[string]string{
		``:                                       "cut short",
		`[]`:                                     "no JSON object",
		`{"schema":"kvq.dump/2"}`:                `want "kvq.dump/1"`,
		`{"schema":1}`:                           "schema is not a string",
		`{"schema":"kvq.dump/1"} x`:              "followed by",
		`{"rope_applied":"yes"}`:                 "rope_applied is neither",
		`{"layers":[]}`:                          "layers is no JSON object",
		`{"layers":{"five":{}}}`:                 "want layer numbers",
		`{"layers":{"05":{}}}`:                   "want layer numbers",
		`{"layers":{"1":{},"1":{}}}`:             "twice",
		`{"defaults":3}`:                         "defaults is no JSON object",
		in(`"scale":"big"`):                      "layers.0.scale is not a number",
		in(`"scale":0`):                          "positive",
		in(`"scale":1e999`):                      "not a number",
		in(`"softcap":-1`):                       "positive",
		in(`"causal":1`):                         "neither true nor false",
		in(`"window":1.5`):                       "natural number",
		in(`"window":-1`):                        "natural number",
		in(`"chunk":"x"`):                        "natural number",
		in(`"sinks":[1,"2"]`):                    "list of numbers",
		in(`"sinks":[1,null]`):                   "list of numbers",
		in(`"q_positions":[0.5]`):                "list of integers",
		in(`"q_positions":7`):                    "list of integers",
		in(`"rope":{"style":"whole"}`):           "half",
		in(`"rope":{"theta":"1"}`):               "theta is not a number",
		in(`"rope":{"beta_fast":"1"}`):           "beta_fast is not a number",
		`{"a":` + strings.Repeat("[", 1<<20):     "no JSON",
		`{"a":` + strings.Repeat(`{"a":`, 1<<20): "no JSON",
		`{"a":"` + strings.Repeat("x", maxFacts) + `"}`: "larger than",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, _, err := ParseFacts([]byte(text), "kvq.json")
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 300 {
			t.Errorf("%.60s: got %v, want … %s", text, err, want)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 60<<20 || time.Since(start) > time.Second {
			t.Errorf("%.60s: %d bytes in %v", text, used, time.Since(start))
		}
	}
	// Unknown keys are counted, not listed without end.
	var b strings.Builder
	b.WriteString(`{"schema":"kvq.dump/1"`)
	for i := range 100_000 {
		fmt.Fprintf(&b, `,"x%d":0`, i)
	}
	if _, warnings, err := ParseFacts([]byte(b.String()+"}"), "kvq.json"); err != nil || len(warnings) > 10 {
		t.Errorf("%d warnings, %v", len(warnings), err)
	}
}

// Which facts a layer gets, and which of them are reported as assumed.
func TestFactsOfLayers(t *testing.T) {
	shape := []int{2, 1, 4, 9}
	dump := npyFile(1, "<f4", "False", pyShape(shape), make([]byte, 2*4*9*4))
	scale, window, no, softcap := 0.5, 2, false, 30.0
	for _, c := range []struct {
		name, shared, own string
		o                 Options
		want              func(Facts) bool
		given, assumed    string
	}{
		{"nothing known", "", "", Options{}, func(f Facts) bool { return f.Scale == 1.0/3 && f.Causal && f.Window == 0 }, "", "scale causal window q_positions"},
		{"causal only", `{"schema":"kvq.dump/1","defaults":{"causal":true}}`, "", Options{},
			func(f Facts) bool { return f.Scale == 1.0/3 && f.Causal }, "causal", "scale q_positions"},
		{"own over shared", `{"schema":"kvq.dump/1","model":"A","defaults":{"causal":false,"scale":4},"layers":{"3":{"window":7}}}`,
			`{"schema":"kvq.dump/1","defaults":{"scale":2},"layers":{"3":{"q_positions":[1,3],"sinks":[0.5,1]}}}`, Options{},
			func(f Facts) bool {
				return f.Scale == 2 && !f.Causal && f.Window == 7 && f.Model == "A" && len(f.Sinks) == 2
			},
			"scale causal window sinks q_positions", ""},
		{"flags over all", "", `{"schema":"kvq.dump/1","defaults":{"scale":2,"window":9}}`, Options{Scale: &scale, Window: &window, Causal: &no, Softcap: &softcap},
			func(f Facts) bool { return f.Scale == 0.5 && f.Window == 2 && !f.Causal && f.Softcap == 30 }, "scale causal window softcap", "q_positions"},
	} {
		files := []any{"layer3.npy", dump, "layer3.q.npy", roleArray(Q, 2, 2, 9)}
		if c.shared != "" {
			files = append(files, "kvq.json", c.shared)
		}
		if c.own != "" {
			files = append(files, "layer3.kvq.json", c.own)
		}
		l := mustOpen(t, filepath.Join(write(t, files...), "layer3.npy"), c.o).Layers[0]
		if !c.want(l.Facts) || strings.Join(l.Facts.Given, " ") != c.given || strings.Join(l.Facts.Assumed, " ") != c.assumed {
			t.Errorf("%s: %+v", c.name, l.Facts)
		}
	}
	for own, want := range map[string]string{
		`{"schema":"kvq.dump/1","layers":{"3":{"sinks":[1]}}}`:             "one per query head",
		`{"schema":"kvq.dump/1","layers":{"3":{"q_positions":[1]}}}`:       "2 query rows",
		`{"schema":"kvq.dump/1","layers":{"3":{"q_positions":[1,4]}}}`:     "stands at 4",
		`{"schema":"kvq.dump/1","layers":{"3":{"q_positions":[1,-1]}}}`:    "stands at -1",
		`{"schema":"kvq.dump/1","layers":{"3":{"q_positions":[1,2,3,4]}}}`: "4 numbers",
	} {
		dir := write(t, "layer3.npy", dump, "layer3.q.npy", roleArray(Q, 2, 2, 9), "layer3.kvq.json", own)
		_, err := Open(filepath.Join(dir, "layer3.npy"), Options{})
		if !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "layer3.kvq.json") {
			t.Errorf("%s: %v", own, err)
		}
	}
	dir := write(t, "layer3.npy", dump, "layer3.kvq.json", `{"schema":"kvq.dump/1","layers":{"4":{}}}`)
	if f := mustOpen(t, filepath.Join(dir, "layer3.npy"), Options{}); !contains(f.Warnings, "none of its layers") {
		t.Errorf("%q", f.Warnings)
	}
	var oe *OptionError
	nan, neg := math.NaN(), -1
	for _, o := range []Options{{Scale: &nan}, {Softcap: &nan}, {Window: &neg}, {Layout: "hds"}, {DType: "f8"}} {
		if _, err := Open(filepath.Join(dir, "layer3.npy"), o); !errors.As(err, &oe) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
