package dumps

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// convert writes a selection and opens what was written.
func convert(t *testing.T, s Selection) (*File, []string) {
	t.Helper()
	facts, arrays, warnings, err := s.Contents()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := WriteSafetensors(&b, facts, arrays); err != nil {
		t.Fatal(err)
	}
	return mustOpen(t, filepath.Join(write(t, "out.safetensors", b.Bytes()), "out.safetensors"), Options{}), warnings
}

// TestConvert writes dumps of every form and reads the same values, shapes and
// facts back.
func TestConvert(t *testing.T) {
	for name, o := range map[string]Options{
		"layer12.npy":                            {},
		"smollm2-layer18-allq.npz":               {},
		"torch/strided.pt":                       {},
		"torch/dynamic_sliding.pt":               {},
		"torch/fp8.pt":                           {},
		"torch/param.pt":                         {},
		"torch/dict.pt":                          {},
		"mlx/mlx.safetensors":                    {},
		"mlx/mlx_keep.safetensors":               {},
		"llamastate/smollm2-q8_0-q4_0.llamaseq":  {KVHeads: 3},
		"llamastate/smollm2-f16-vtrans.llamaseq": {KVHeads: 3},
		"llamastate/gemma3-f16.llamastate":       {KVHeads: 1, SlidingLayers: []int{0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16}},
	} {
		t.Run(name, func(t *testing.T) {
			in := mustOpen(t, filepath.Join("testdata", filepath.FromSlash(name)), o)
			out, warnings := convert(t, Selection{Layers: in.Layers})
			if len(warnings) > 0 || len(out.Warnings) > 0 || len(out.Layers) != len(in.Layers) {
				t.Fatalf("%d layers, %q, %q", len(out.Layers), warnings, out.Warnings)
			}
			for i, a := range in.Layers {
				b := out.Layers[i]
				if a.Number != b.Number || a.Tokens != b.Tokens || !reflect.DeepEqual(a.QPositions, b.QPositions) {
					t.Fatalf("layer %d of %d tokens became %d of %d", a.Number, a.Tokens, b.Number, b.Tokens)
				}
				f, g := a.Facts, b.Facts
				f.Given, f.Assumed, g.Given, g.Assumed = nil, nil, nil, nil
				if !reflect.DeepEqual(f, g) {
					t.Errorf("layer %d: facts %+v became %+v", a.Number, f, g)
				}
				for p := K; p <= OWeight; p++ {
					x, y := a.Tensor(p), b.Tensor(p)
					if (x == nil) != (y == nil) {
						t.Fatalf("layer %d: %s came or went", a.Number, p)
					}
					if x == nil {
						continue
					}
					if want := map[DType]DType{F16: F16, BF16: BF16, E4M3: F16}[x.DType]; want != "" && y.DType != want || want == "" && y.DType != F32 {
						t.Errorf("%s of type %s became %s", p, x.DType, y.DType)
					}
					for h := range x.Heads {
						if !reflect.DeepEqual(readHead(t, a, p, h), readHead(t, b, p, h)) {
							t.Fatalf("layer %d: %s of head %d differs", a.Number, p, h)
						}
					}
				}
			}
		})
	}
}

// A slice of tokens takes the queries that stand in it along, with their
// weights, and remembers where it began.
func TestConvertSlice(t *testing.T) {
	in := mustOpen(t, filepath.Join("..", "eval", "testdata", "e2e", "smollm2-three-layers.safetensors"), Options{})
	a := in.Layers[1]
	const from, to = 300, 1000
	out, warnings := convert(t, Selection{Layers: in.Layers[1:2], From: from, To: to})
	if len(warnings) > 0 || len(out.Layers) != 1 {
		t.Fatalf("%d layers, %q", len(out.Layers), warnings)
	}
	b := out.Layers[0]
	if b.Number != a.Number || b.Tokens != to-from || b.Facts.FirstPosition != from || b.Facts.Scale != a.Facts.Scale || !reflect.DeepEqual(b.Facts.RoPE, a.Facts.RoPE) {
		t.Errorf("%+v", b)
	}
	for p := K; p <= V; p++ {
		want := readHead(t, a, p, 2)[from*64 : to*64]
		if !reflect.DeepEqual(readHead(t, b, p, 2), want) {
			t.Errorf("%s differs", p)
		}
	}
	queries, sliced := readHead(t, a, Q, 5), readHead(t, b, Q, 5)
	weights, slicedWeights := readHead(t, a, OWeight, 0), readHead(t, b, OWeight, 0)
	n := 0
	for i, p := range a.QPositions {
		if p < from || p >= to {
			continue
		}
		if b.QPositions[n] != p-from || slicedWeights[n] != weights[i] || !reflect.DeepEqual(sliced[n*64:(n+1)*64], queries[i*64:(i+1)*64]) {
			t.Fatalf("query row %d at %d differs", i, p)
		}
		n++
	}
	if n == 0 || n != b.Queries {
		t.Errorf("%d query rows, want %d", b.Queries, n)
	}
	if !reflect.DeepEqual(readHead(t, a, O, 0), readHead(t, b, O, 0)) {
		t.Error("o differs")
	}
	// Between two queries there is none.
	out, warnings = convert(t, Selection{Layers: in.Layers[1:2], From: a.QPositions[0] + 1, To: a.QPositions[1]})
	if out.Layers[0].Queries != 0 || out.Layers[0].Tensor(O) != nil || !contains(warnings, "no query row stands") {
		t.Errorf("%d query rows, %q", out.Layers[0].Queries, warnings)
	}
}

func TestConvertRefuses(t *testing.T) {
	a := mustOpen(t, filepath.Join("testdata", "torch", "tuple.pt"), Options{}).Layers
	for name, test := range map[string]struct {
		s    Selection
		want string
	}{
		"same number": {Selection{Layers: []*Layer{a[0], a[0]}}, "two layers of this number"},
		"beyond":      {Selection{Layers: a, From: 2, To: 6}, "has 5 tokens, of which 2 to 6 are no part"},
		"nothing":     {Selection{Layers: a, From: 2, To: 2}, "are no part"},
	} {
		if _, _, _, err := test.s.Contents(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	// What cannot be read is noticed while it is written.
	data, err := os.ReadFile(filepath.Join("testdata", "torch", "tuple.pt"))
	if err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, filepath.Join(write(t, "x.pt", data), "x.pt"), Options{}).Layers[0]
	i := l.Tensor(K).offset + 22
	copy(data[i:], "\x00\x7e")
	l = mustOpen(t, filepath.Join(write(t, "x.pt", data), "x.pt"), Options{}).Layers[0]
	facts, arrays, _, err := Selection{Layers: []*Layer{l}}.Contents()
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteSafetensors(new(bytes.Buffer), facts, arrays); err == nil || !strings.Contains(err.Error(), "k head 0, token 1, channel 5 is NaN") {
		t.Errorf("%v", err)
	}
}
