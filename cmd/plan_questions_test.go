package cmd

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/png"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot/vg"
)

// TestParseSweep works the points out by hand.
func TestParseSweep(t *testing.T) {
	for text, want := range map[string][]int64{
		"ctx=4k..32k":               {4096, 8192, 16384, 32768},
		"ctx=3..20":                 {3, 6, 12, 20},
		"CONTEXT=8k..20k:4k":        {8192, 12288, 16384, 20480},
		"sessions=1..10:4":          {1, 5, 9, 10},
		"sessions=5":                {5},
		"sessions=7,1..2,9..9":      {7, 1, 2, 9},
		"ctx=1..2:1000000000000000": {1, 2},
		"ctx=4611686018427387904..9223372036854775806": {1 << 62, math.MaxInt64 - 1},
	} {
		s, err := parseSweep(text)
		if err != nil || !slices.Equal(s.points, want) {
			t.Errorf("%s: %v, %v, want %v", text, s.points, err, want)
		}
	}
	for _, text := range []string{"", "ctx", "ctx=", "ctx=1k..", "ctx=..1k", "ctx=0..4", "ctx=-1..4", "ctx=1..4:", "ctx=1..4:0", "ctx=1..4:-1", "ctx=4..1", "ctx=1...4", "tokens=1..4", "ctx=1,", "ctx=1..1001:1,2", "ctx=1..1000:1,1..1000:1"} {
		if s, err := parseSweep(text); err == nil {
			t.Errorf("%q: %v", text, s)
		}
	}
}

// TestPlanSweepAgrees: a row of a sweep is the row of its point alone.
func TestPlanSweepAgrees(t *testing.T) {
	const flags = "--model gpt-oss-20b --scheme f16,int8-token --memory 24GiB --weights auto --device 4090 --draft gpt-oss-20b --prefix 512"
	for over, sweep := range map[string]string{"ctx": " --sessions 3 --sweep ctx=1k..8k", "sessions": " --ctx 2k --sweep sessions=1..9"} {
		plan, _ := planOf(t, flags+sweep)
		if len(plan.Rows) != 2*len(map[string][]int{"ctx": {1, 2, 4, 8}, "sessions": {1, 2, 4, 8, 9}}[over]) || plan.Request.Sweep != over {
			t.Errorf("%s: %d rows, %+v", sweep, len(plan.Rows), plan.Request)
		}
		for _, r := range plan.Rows {
			context, sessions := r.Context, int64(3)
			if over == "sessions" {
				context, sessions = 2048, r.Sequences
			}
			alone, _ := planOf(t, fmt.Sprintf("%s --ctx %d --sessions %d --scheme %s", strings.Replace(flags, "--scheme f16,int8-token ", "", 1), context, sessions, r.Scheme))
			r.Context, r.Sequences = 0, 0
			if got, want := fmt.Sprintf("%+v %+v %+v", r.PlanFigures, r.DecodeFigures, *r.MaxContext), fmt.Sprintf("%+v %+v %+v", alone.Rows[0].PlanFigures, alone.Rows[0].DecodeFigures, *alone.Rows[0].MaxContext); got != want {
				t.Errorf("%s at %d x %d: %s, alone %s", r.Scheme, context, sessions, got, want)
			}
		}
	}
}

// TestPlanDecodeOfMixtures: DeepSeek-V3 uses 37 of 671 billion parameters, and
// a session more reads only its cache.
func TestPlanDecodeOfMixtures(t *testing.T) {
	for sessions := int64(1); sessions < 4; sessions++ {
		plan, _ := planOf(t, fmt.Sprintf("--model deepseek-v3 --ctx 1k --scheme f16 --weight-bits 8 --bandwidth 1TB/s --tp 8 --sessions %d", sessions))
		d := plan.Rows[0].DecodeFigures
		cache := sessions * 61 * 576 * 2 * 1024
		want := float64(sessions) * 1e12 / (37e9/8 + float64(cache))
		if d.WeightBytes != 37e9/8 || d.CacheBytes != cache || math.Abs(d.Tokens/want-1) > 1e-12 || math.Abs(d.PerSequence*float64(sessions)/want-1) > 1e-12 {
			t.Errorf("%d sessions: %+v, want %g tokens/s", sessions, d, want)
		}
		if plan.Request.WeightsBytes != 671e9 {
			t.Errorf("weights %d", plan.Request.WeightsBytes)
		}
	}
}

// TestPlanDraftWeights: what is left for the cache has room for both models.
func TestPlanDraftWeights(t *testing.T) {
	plan, _ := planOf(t, "--model 8b --draft llama-3.2-1b --ctx 1k --scheme f16 --memory 40GB --weights auto")
	if want := int64(8.03e9*2 + 1.24e9*2); plan.Request.WeightsBytes != want {
		t.Errorf("weights %d, want %d", plan.Request.WeightsBytes, want)
	}
	// Of what is left both caches take 131,072 + 32,768 bytes a token.
	if got, want := *plan.Rows[0].MaxContext, int64(40e9-18.54e9)/163840; got != want {
		t.Errorf("%d tokens, want %d", got, want)
	}
	plan, _ = planOf(t, "--model 8b --draft "+gguf(t, "cohere2-v3.gguf")+" --ctx 1k --scheme f16")
	if d := plan.Request.Draft; d == nil || d.Geometry == "" || plan.Rows[0].DraftBytes == 0 {
		t.Errorf("%+v, %d bytes", d, plan.Rows[0].DraftBytes)
	}
}

// TestChartIsDrawn: a picture of the size that was asked for, with every curve
// in it, whatever the values.
func TestChartIsDrawn(t *testing.T) {
	c := chart{title: "t", x: "tokens", y: "KV cache", units: unitsIEC, budget: 3e6, budgetLabel: "memory 3 MB"}
	for i := range 9 {
		c.curves = append(c.curves, curve{name: fmt.Sprint("curve ", i), points: []xy{{1, 1e6 + float64(i)}, {4096, 1e7 * float64(i+1)}}, cross: 100 * float64(i), crossLabel: fmt.Sprint(100 * i)})
	}
	flat := chart{units: unitsSI, curves: []curve{{name: "flat", points: []xy{{7, 5}, {8, 5}}}}}
	for _, c := range []chart{c, flat} {
		var raster, vector bytes.Buffer
		if err := c.write(&raster, ".png"); err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(&raster)
		if err != nil {
			t.Fatal(err)
		}
		if size := img.Bounds().Size(); size.X != 1440 || size.Y != 806 {
			t.Errorf("%v pixels", size)
		}
		inks := map[any]bool{}
		for x := range img.Bounds().Dx() {
			for y := range img.Bounds().Dy() {
				inks[img.At(x, y)] = true
			}
		}
		for i := range min(len(c.curves), len(chartColors)) {
			if !inks[any(chartColors[i])] {
				t.Errorf("no pixel in the colour of curve %d", i)
			}
		}
		if err := c.write(&vector, ".svg"); err != nil {
			t.Fatal(err)
		}
		var texts []string
		for d := xml.NewDecoder(&vector); ; {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if chars, ok := token.(xml.CharData); ok {
				texts = append(texts, string(chars))
			}
		}
		for _, line := range c.curves {
			if !slices.Contains(texts, line.name) || line.cross > 0 && !slices.Contains(texts, line.crossLabel) {
				t.Errorf("%q or %q is missing among %q", line.name, line.crossLabel, texts)
			}
		}
	}
}

// TestCurvesLookDifferent: no two of 28 curves have one colour and one dash,
// whether or not they lie on each other.
func TestCurvesLookDifferent(t *testing.T) {
	for _, step := range []float64{0, 0.001, 1} {
		var c chart
		for i := range len(chartColors) * len(chartDashes) {
			c.curves = append(c.curves, curve{points: []xy{{1, 1 + step*float64(i)}}})
		}
		seen := map[string]bool{}
		for i, style := range c.styles() {
			if look := fmt.Sprint(style.Color, style.Dashes); seen[look] {
				t.Errorf("step %g: curve %d looks like an earlier one", step, i)
			} else {
				seen[look] = true
			}
		}
	}
}

// TestSpread: labels keep their order and distance, and stay where they are
// wanted unless that is too close.
func TestSpread(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 4))
	for range 500 {
		wanted := make([]vg.Length, 1+r.IntN(12))
		for i := range wanted {
			wanted[i] = vg.Length(r.Float64() * 300)
		}
		slices.Sort(wanted)
		got := spread(wanted, 12, 0, 300)
		apart := true
		for i := range got {
			if i > 0 && got[i]-got[i-1] < 12-1e-9 {
				t.Fatalf("%v: %v", wanted, got)
			}
			apart = apart && (i == 0 || wanted[i]-wanted[i-1] >= 12)
			if got[i] < -1e-9 || got[i] > 300+1e-9 {
				t.Fatalf("%v: %v is outside", wanted, got)
			}
		}
		if apart && !slices.Equal(got, wanted) {
			t.Fatalf("%v were moved to %v", wanted, got)
		}
	}
}

// writeSafetensors writes a file of one tensor of so many bytes.
func writeSafetensors(t *testing.T, path string, n int) {
	t.Helper()
	header := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n)
	data := append([]byte{byte(len(header)), 0, 0, 0, 0, 0, 0, 0}, header...)
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(data, make([]byte, n)...), 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestPlanWeightsFromCheckpoints: --weights auto reads the headers beside the
// config, or those of --safetensors; what cannot be read is an error.
func TestPlanWeightsFromCheckpoints(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	writeSafetensors(t, at("model/model.safetensors"), 160)
	writeSafetensors(t, at("other/a.safetensors"), 320)
	for name, text := range map[string]string{
		"model/config.json":                 `{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"hidden_size":128,"head_dim":64,"max_position_embeddings":2048,"torch_dtype":"bfloat16"}`,
		"model/notes.txt":                   "These notes are not a checkpoint.",
		"lone/config.json":                  "",
		"bad/x.safetensors":                 "version https://git-lfs.example/spec/v1",
		"list/model.safetensors.index.json": `{"metadata":{"total_size":640},"weight_map":{"w":"model-00001-of-00001.safetensors"}}`,
	} {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o777); err != nil {
			t.Fatal(err)
		}
		if name == "lone/config.json" {
			data, err := os.ReadFile("../formula/testdata/configs/qwen3-0.6b.config.json")
			if err != nil {
				t.Fatal(err)
			}
			text = string(data)
		}
		if err := os.WriteFile(at(name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		args    string // names below dir begin with @
		weights int64
		stderr  string
	}{
		{"--config @model --weights auto", 160, ""},
		{"--config @model/config.json --weights auto", 160, ""},
		{"--config @model --bandwidth 1GB/s", 160, ""},
		{"--config @model --safetensors @other", 320, ""},
		{"--config @model --safetensors @other/a.safetensors --weights AUTO", 320, ""},
		{"--config @model --safetensors @list", 640, ""},
		{"--model 8b --safetensors @other --memory 1GiB", 320, ""},
		{"--model 8b --weights auto", 16060000000, ""},
		{"--config @lone --weights auto", 0, "the parameters of the model are not known"},
		{"--config @model --safetensors @bad", 0, "x.safetensors: not a valid safetensors header"},
		{"--config @model --safetensors @model/notes.txt", 0, "notes.txt: not a valid safetensors header"},
		{"--config @model --safetensors @lone", 0, "no *.safetensors"},
		{"--config @model --safetensors @nowhere", 0, "no such file"},
		{"--config @model --safetensors @other --weights 3GiB", 0, "only with --weights auto"},
		{"--config @model --safetensors @other --weight-bits 4", 0, "--weight-bits 4"},
	} {
		args := strings.ReplaceAll(test.args, "@", dir+"/") + " --ctx 1k --scheme f16"
		if test.stderr != "" {
			code, stdout, stderr := run(append([]string{"plan"}, strings.Fields(args)...)...)
			if code == exitOK || code == exitNo || stdout != "" || !strings.Contains(stderr, test.stderr) {
				t.Errorf("%s: exit %d: %s", test.args, code, stderr)
			}
			continue
		}
		if plan, _ := planOf(t, args); plan.Request.WeightsBytes != test.weights {
			t.Errorf("%s: %d bytes, want %d", test.args, plan.Request.WeightsBytes, test.weights)
		}
	}
}

// TestNarrow: spare columns give way in text, in their order, and only as many
// as it takes; Markdown and programs see all.
func TestNarrow(t *testing.T) {
	build := func(widths ...int) *table {
		x := &table{columns: []column{{header: "name", name: "name"}}, spare: []string{"c2", "c1", "none"}}
		cells := []cell{text("a name")}
		for i, n := range widths {
			h := fmt.Sprint("c", i)
			x.columns = append(x.columns, column{header: h, name: h})
			cells = append(cells, text(strings.Repeat("x", n)))
		}
		x.add(cells...)
		return x
	}
	for _, test := range []struct {
		widths []int
		want   string // of the headers
	}{
		{[]int{20, 20, 20}, "c0 c1 c2"},
		{[]int{20, 20, 30}, "c0 c1 c2"}, // 4 + 3 x 2 + 70 = 80: the name has a line of its own
		{[]int{20, 20, 31}, "c0 c1"},
		{[]int{40, 40, 20}, "c0"},
		{[]int{90, 1, 1}, "c0"},
	} {
		x := build(test.widths...)
		var text, md, csv strings.Builder
		for _, write := range []error{x.writeMarkdown(&md, false), x.writeText(&text, false), x.writeSeparated(&csv, formatCSV)} {
			if write != nil {
				t.Fatal(write)
			}
		}
		headers, _, _ := strings.Cut(text.String(), "\n")
		if got := strings.Join(strings.Fields(headers)[1:], " "); got != test.want {
			t.Errorf("%v: %q, want %q", test.widths, got, test.want)
		}
		if gone := test.want != "c0 c1 c2"; gone != strings.Contains(text.String(), "no room for c2") {
			t.Errorf("%v: %s", test.widths, text.String())
		}
		if !strings.Contains(md.String(), "c2") || !strings.Contains(csv.String(), "c2") {
			t.Errorf("%v: %s%s", test.widths, md.String(), csv.String())
		}
	}
}
