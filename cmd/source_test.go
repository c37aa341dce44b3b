package cmd

import (
	"math"
	"reflect"
	"testing"

	"kvq/dumps"
	"kvq/eval"
)

func TestParseLayers(t *testing.T) {
	set, err := parseLayers("layer", []string{"3", "8-10"})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]bool{0: false, 2: false, 3: true, 4: false, 8: true, 10: true, 11: false} {
		if set.include(n) != want {
			t.Errorf("layer %d: %v, want %v", n, !want, want)
		}
	}
	if got := set.unused(); got != "" {
		t.Errorf("unused: %q", got)
	}
	if set, _ := parseLayers("layer", []string{"5"}); set.include(6) || set.unused() != "5" {
		t.Error("an absent layer goes unnoticed")
	}
	if set, _ := parseLayers("layer", nil); !set.include(7) {
		t.Error("no --layer must mean every layer")
	}
	for _, bad := range []string{"", "x", "-1", "3-1", "1-2-3", "1,2", "1 2", "9999999999999999999"} {
		if _, err := parseLayers("layer", []string{bad}); exitCode(err) != exitUsage {
			t.Errorf("--layer %q: %v, want a usage error", bad, err)
		}
	}
}

// TestRopeFrequencies compares with values of a separate program written after
// the reference implementation of Hugging Face (double precision). The
// parameters are those of Llama 3.1 8B and of gpt-oss.
func TestRopeFrequencies(t *testing.T) {
	for name, test := range map[string]struct {
		rope  dumps.RoPE
		width int
		want  map[int]float64
	}{
		"llama3": {dumps.RoPE{Theta: 500000, Factor: 8, Scaling: map[string]any{
			"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192.0,
		}}, 128, map[int]float64{0: 1.0, 20: 0.016560440080994446, 30: 0.0013718935677611381, 34: 0.00017850781276799638, 40: 3.428102195952591e-05, 63: 3.068925988914511e-07}},
		"yarn": {dumps.RoPE{Theta: 150000, Factor: 32, Scaling: map[string]any{
			"rope_type": "yarn", "original_max_position_embeddings": 4096.0,
		}}, 64, map[int]float64{0: 1.0, 8: 0.050813274815461475, 12: 0.007015713910504388, 16: 0.0005809475019311124, 20: 1.818833668168956e-05, 31: 3.0235114281192144e-07}},
		"yarn, not truncated": {dumps.RoPE{Theta: 150000, Factor: 32, Scaling: map[string]any{
			"rope_type": "yarn", "original_max_position_embeddings": 4096.0, "truncate": false,
		}}, 64, map[int]float64{8: 0.050813274815461475, 12: 0.006794959489732219, 16: 0.00045648391922324086, 20: 1.818833668168956e-05}},
		"linear": {dumps.RoPE{Theta: 10000, Factor: 4}, 4, map[int]float64{0: 0.25, 1: 0.0025}},
		"longrope": {dumps.RoPE{Theta: 10000, Scaling: map[string]any{
			"rope_type": "longrope", "original_max_position_embeddings": 4096.0, "short_factor": []any{1.0, 2.0}, "long_factor": []any{4.0, 8.0},
		}}, 4, map[int]float64{0: 0.25, 1: 0.00125}}, // 8,192 tokens are beyond the original context
	} {
		r, err := newRope(&test.rope, true, test.width, 8192)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i, want := range test.want {
			if got := r.Frequencies[i]; math.Abs(got-want) > 1e-12*want {
				t.Errorf("%s: pair %d turns by %v, want %v", name, i, got, want)
			}
		}
	}
	for name, bad := range map[string]dumps.RoPE{
		"unknown":         {Theta: 1e4, Scaling: map[string]any{"rope_type": "mystery"}},
		"without factor":  {Theta: 1e4, Scaling: map[string]any{"rope_type": "linear"}},
		"odd":             {Theta: 1e4, Dims: 3},
		"too wide":        {Theta: 1e4, Dims: 66},
		"factors missing": {Theta: 1e4, Scaling: map[string]any{"rope_type": "su", "original_max_position_embeddings": 4096.0}},
	} {
		if _, err := newRope(&bad, true, 64, 10); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestNewLayer checks what the adapter passes on, with the sample dump.
func TestNewLayer(t *testing.T) {
	src, err := openSource(sourceOptions{dumps: []string{"../dumps/testdata/layer12.npy"}})
	if err != nil {
		t.Fatal(err)
	}
	defer src.close()
	l := src.layers[0]
	if l.Dump != "layer12.npy" || l.Number != 12 || l.Tokens != 2048 || l.KVHeads != 3 || l.QueryHeads != 9 ||
		l.DimK != 64 || l.DimV != 64 || l.QueryRows != 64 || len(l.QueryPositions) != 64 || l.DType != "f16" {
		t.Errorf("%+v", l)
	}
	if !l.Facts.Causal || l.Facts.Scale != 0.125 { // 1/sqrt(64)
		t.Errorf("%+v", l.Facts)
	}
	k, v := make([]float32, 2048*64), make([]float32, 2048*64)
	if err := l.Read(k, eval.Keys, 2); err != nil {
		t.Fatal(err)
	}
	if err := l.Read(v, eval.Values, 2); err != nil {
		t.Fatal(err)
	}
	if reflect.DeepEqual(k, v) {
		t.Error("keys and values are the same")
	}
	if err := l.Read(make([]float32, 64*64), eval.Queries, 8); err != nil {
		t.Error(err)
	}
}
