package dumps

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// mlxFile is a prompt cache with one layer of the given class whose buffers
// have rows rows of 2 heads, row i holding token tokens[i] (−1: nothing). more
// is appended to the metadata, scalars follow K and V as LAYER.2, ….
func mlxFile(class, metadata string, tokens []int, scalars ...int) []byte {
	var data []byte
	rows := len(tokens)
	for p, dim := range []int{6, 4} {
		data = append(data, fill("<f2", false, []int{1, 2, rows, dim}, func(i []int) float64 {
			if tokens[i[2]] < 0 {
				return 0
			}
			return value(p, i[1], tokens[i[2]], i[3])
		})...)
	}
	k, v := 24*rows, 40*rows
	header := fmt.Sprintf(`{"__metadata__":{%s},"0.0":{"dtype":"F16","shape":[1,2,%d,6],"data_offsets":[0,%d]},"0.1":{"dtype":"F16","shape":[1,2,%d,4],"data_offsets":[%d,%d]}`,
		strings.ReplaceAll(metadata, "CLASS", class), rows, k, rows, k, v)
	for i, n := range scalars {
		header += fmt.Sprintf(`,"0.%d":{"dtype":"I32","shape":[],"data_offsets":[%d,%d]}`, i+2, v+4*i, v+4*i+4)
		data = appendElement(data, "<i4", float64(n))
	}
	return safetensorsFile(header+"}", data)
}

const (
	mlxNew = `"1.0":"CLASS","2.0":""`
	mlxOld = `"2.0":"CLASS"`
)

// checkTokens verifies that the rows of a layer are those of tokens.
func checkTokens(t *testing.T, l *Layer, tokens ...int) {
	t.Helper()
	if l.Tokens != len(tokens) {
		t.Fatalf("%d tokens, want %v", l.Tokens, tokens)
	}
	for p := K; p <= V; p++ {
		for h := range l.KVHeads {
			for i, v := range readHead(t, l, p, h) {
				dim := l.Tensor(p).Dim
				if want := value(int(p), h, tokens[i/dim], i%dim); float64(v) != want {
					t.Fatalf("%s head %d, row %d, channel %d: %g, want %g", p, h, i/dim, i%dim, v, want)
				}
			}
		}
	}
}

// TestMLX reads caches that mlx-lm saved (testdata/mlx/make.py), and the
// earlier form, put together here.
func TestMLX(t *testing.T) {
	f := mustOpen(t, filepath.Join("testdata", "mlx", "mlx.safetensors"), Options{})
	if len(f.Layers) != 3 || len(f.Warnings) > 0 {
		t.Fatalf("%d layers, %q", len(f.Layers), f.Warnings)
	}
	checkTokens(t, f.Layers[0], 0, 1, 2, 3, 4) // of a buffer of 256 rows
	checkTokens(t, f.Layers[2], 0, 1, 2, 3, 4)
	rotating := f.Layers[1]
	checkTokens(t, rotating, 1, 2, 3, 4)
	if x := rotating.Facts; x.Window != 4 || x.FirstPosition != 1 || x.Model != "test/model" {
		t.Errorf("%+v", x)
	}
	kept := mustOpen(t, filepath.Join("testdata", "mlx", "mlx_keep.safetensors"), Options{}).Layers[0]
	checkTokens(t, kept, 0, 3, 4, 5)
	if kept.Facts.Window != 0 {
		t.Errorf("%+v", kept.Facts)
	}

	for name, test := range map[string]struct {
		data   []byte
		tokens []int
		check  func(Facts) bool
	}{
		"old, plain":                {mlxFile("KVCache", mlxOld, []int{0, 1, 2}), []int{0, 1, 2}, nil},
		"old, rotating":             {mlxFile("RotatingKVCache", mlxOld+`,"0.0.0":"0","0.0.1":"3","0.0.2":"5","0.0.3":"2"`, []int{3, 4, 2}), []int{2, 3, 4}, func(f Facts) bool { return f.Window == 3 && f.FirstPosition == 2 }},
		"old, five numbers":         {mlxFile("RotatingKVCache", mlxOld+`,"0.0.0":"1","0.0.1":"3","0.0.2":"256","0.0.3":"5","0.0.4":"2"`, []int{0, 4, 3}), []int{0, 3, 4}, nil},
		"rotating, not full":        {mlxFile("RotatingKVCache", mlxNew, []int{0, 1, -1, -1}, 2, 0, 4, 2), []int{0, 1}, nil},
		"rotating, longer":          {mlxFile("RotatingKVCache", mlxNew, []int{1, 2, 3, 4, 5}, 6, 0, 4, 5), []int{1, 2, 3, 4, 5}, func(f Facts) bool { return f.Window == 4 && f.FirstPosition == 1 }},
		"chunked":                   {mlxFile("ChunkedKVCache", mlxNew, []int{4, 5, -1}, 6, 8, 4), []int{4, 5}, func(f Facts) bool { return f.Chunk == 8 && f.FirstPosition == 4 }},
		"concatenated":              {mlxFile("ConcatenateKVCache", mlxNew, []int{0, 1}), []int{0, 1}, nil},
		"without a recurrent layer": {mlxFile("KVCache", mlxNew+`,"1.1":"ArraysCache"`, []int{0, -1}, 1), []int{0}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := mustOpen(t, filepath.Join(write(t, "x.safetensors", test.data), "x.safetensors"), Options{}).Layers[0]
			checkTokens(t, l, test.tokens...)
			if test.check != nil && !test.check(l.Facts) {
				t.Errorf("%+v", l.Facts)
			}
		})
	}

	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"class":         {mlxFile("BatchKVCache", mlxNew, []int{0}), `a "BatchKVCache" of mlx-lm, which kvq does not read`},
		"list":          {mlxFile("CacheList", mlxNew, []int{0}), `a "CacheList" of mlx-lm`},
		"only states":   {mlxFile("MambaCache", mlxNew, []int{0}), "without keys and values"},
		"missing":       {mlxFile("KVCache", mlxNew+`,"1.1":"KVCache"`, []int{0}, 1), `has no tensor "1.0"`},
		"too many":      {mlxFile("KVCache", mlxNew, []int{0}, 7), "claims 7 tokens, but has 1 rows"},
		"negative":      {mlxFile("KVCache", mlxNew, []int{0}, -7), "is -7"},
		"none":          {mlxFile("KVCache", mlxNew, []int{-1}, 0), "holds no tokens"},
		"place":         {mlxFile("RotatingKVCache", mlxNew, []int{0, 1}, 9, 0, 2, 3), "lie beyond its 2 rows"},
		"place in kept": {mlxFile("RotatingKVCache", mlxNew, []int{0, 1}, 9, 2, 2, 1), "lies among its 2 tokens to keep"},
		"old, numbers":  {mlxFile("RotatingKVCache", mlxOld+`,"0.0.0":"1"`, []int{0}), "has 1 numbers in its state"},
		"old, text":     {mlxFile("ChunkedKVCache", mlxOld+`,"0.0.0":"1","0.0.1":"x"`, []int{0}), `holds "x", want a number`},
	} {
		if _, err := Open(filepath.Join(write(t, "x.safetensors", test.data), "x.safetensors"), Options{}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if _, err := Open(filepath.Join("testdata", "mlx", "mlx_quant.safetensors"), Options{}); err == nil || !strings.Contains(err.Error(), `a "QuantizedKVCache" of mlx-lm`) {
		t.Error(err)
	}
}
