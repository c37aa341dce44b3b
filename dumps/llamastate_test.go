package dumps

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// TestLlamaState compares state files that llama.cpp wrote with what an
// independent reader found in them. KVQ_LLAMASTATE names another folder of
// such files and their expected.tsv.
func TestLlamaState(t *testing.T) {
	folder := filepath.Join("testdata", "llamastate")
	if path := os.Getenv("KVQ_LLAMASTATE"); path != "" {
		folder = path
	}
	columns, rows := readTSV(t, filepath.Join(folder, "expected.tsv"))
	for _, fields := range rows {
		row := map[string]string{}
		for i, name := range columns {
			row[name] = fields[i]
		}
		t.Run(row["file"]+"/"+row["cache"]+"/"+row["layer_in_cache"], func(t *testing.T) {
			var o Options
			if n, err := strconv.Atoi(row["seq"]); err == nil {
				o.Seq = &n
			}
			checkState(t, filepath.Join(folder, row["file"]), o, row)
		})
	}
}

func checkState(t *testing.T, path string, o Options, row map[string]string) {
	number := func(name string) float64 {
		v, err := strconv.ParseFloat(row[name], 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return v
	}
	f := mustOpen(t, path, o)
	var l *Layer
	for _, have := range f.Layers {
		inCache := have.Cache == "" || have.Cache == FullCache
		if have.Number == int(number("layer_in_cache")) && inCache == (row["cache"] == "0") {
			l = have
		}
	}
	if l == nil {
		t.Fatal("no such layer")
	}
	k, v := l.Tensor(K), l.Tensor(V)
	if l.Tokens != int(number("tokens")) || l.KVHeads != 1 || k.Dim != int(number("width")) || l.Facts.FirstPosition != int(number("first_position")) {
		t.Errorf("%d tokens from %d, %d heads of %d", l.Tokens, l.Facts.FirstPosition, l.KVHeads, k.Dim)
	}
	if !contains(f.Warnings, "positions have gaps") && !contains(f.Warnings, "at one position") {
		if last := l.Facts.FirstPosition + l.Tokens - 1; last != int(number("last_position")) {
			t.Errorf("the last position is %d", last)
		}
	}
	if string(k.DType) != row["k_type"] {
		t.Errorf("K is %s", k.DType)
	}
	parts := map[string]Part{"k": K}
	if row["v_type"] != "" {
		parts["v"] = V
		if string(v.DType) != row["v_type"] || v.Fortran != (row["v_transposed"] == "1") {
			t.Errorf("V is %s, transposed: %t", v.DType, v.Fortran)
		}
	}
	for name, p := range parts {
		x := readHead(t, l, p, 0)
		var sum float64
		for _, e := range x {
			sum += math.Abs(float64(e))
		}
		if mean, want := sum/float64(len(x)), number(name+"_mean_abs"); math.Abs(mean-want) > 1e-6*want {
			t.Errorf("%s: mean magnitude %.9g, want %.9g", name, mean, want)
		}
		for i, text := range strings.Fields(row[name+"_first4"]) {
			if want, err := strconv.ParseFloat(text, 64); err != nil || math.Abs(float64(x[i])-want) > 1e-6*math.Abs(want) {
				t.Errorf("%s: element %d is %.9g, want %s", name, i, x[i], text)
			}
		}
	}
}

// readTSV returns the header and the rows of a table.
func readTSV(t *testing.T, path string) (columns []string, rows [][]string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimRight(line, "\r\n"), "\t")
		if columns == nil {
			columns = fields
			continue
		}
		if len(fields) != len(columns) {
			t.Fatalf("%s: a row of %d fields, want %d", path, len(fields), len(columns))
		}
		rows = append(rows, fields)
	}
	if len(rows) == 0 {
		t.Fatalf("%s: no rows", path)
	}
	return columns, rows
}

// TestGGMLBlocks holds the block decoders against rows that ggml encoded and
// decoded itself.
func TestGGMLBlocks(t *testing.T) {
	folder := filepath.Join("..", "quantize", "testdata", "ggml")
	for dtype, c := range blockCodecs {
		encoded, err := os.ReadFile(filepath.Join(folder, string(dtype)+".bytes.npy"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := OpenHeads(filepath.Join(folder, string(dtype)+".dequant.npy"), "")
		if err != nil {
			t.Fatal(err)
		}
		defer want.Close()
		rows := make([]float32, want.Tokens*want.Dim)
		if err := want.Read(rows, 0); err != nil {
			t.Fatal(err)
		}
		row := want.Dim / ggmlBlock * c.bytes
		encoded = encoded[len(encoded)-want.Tokens*row:]
		for i := range want.Tokens {
			for from := range want.Dim { // from anywhere in a block
				got := make([]float32, want.Dim-from)
				c.decodeBlocks(got, encoded[i*row:(i+1)*row], from)
				if !reflect.DeepEqual(got, rows[i*want.Dim+from:(i+1)*want.Dim]) {
					t.Fatalf("%s: row %d from %d differs", dtype, i, from)
				}
			}
		}
	}
}

// stateWriter puts state files together by hand.
type stateWriter struct{ bytes.Buffer }

func (w *stateWriter) put(values ...any) *stateWriter {
	for _, v := range values {
		if s, ok := v.(string); ok {
			w.WriteString(s)
			continue
		}
		if n, ok := v.(int); ok {
			v = uint32(n)
		}
		if err := binary.Write(w, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return w
}

// testCell is a cell: its position and sequences.
type testCell struct {
	position  int
	sequences []int
}

// cells writes the cells of one stream. extra bytes follow each count.
func (w *stateWriter) cells(extra int, cells ...testCell) *stateWriter {
	w.put(len(cells))
	for _, c := range cells {
		w.put(c.position, len(c.sequences))
		w.Write(bytes.Repeat([]byte{7}, extra))
		for _, s := range c.sequences {
			w.put(s)
		}
	}
	return w
}

// rows writes a tensor of type f16 whose element is value(part, 0, position, channel).
func (w *stateWriter) rows(p Part, width int, cells ...testCell) *stateWriter {
	w.put(1, uint64(2*width))
	for _, c := range cells {
		for i := range width {
			w.put(half(value(int(p), 0, c.position, i)))
		}
	}
	return w
}

// columns is rows, transposed.
func (w *stateWriter) columns(p Part, width int, cells ...testCell) *stateWriter {
	w.put(1, 2, width)
	for i := range width {
		for _, c := range cells {
			w.put(half(value(int(p), 0, c.position, i)))
		}
	}
	return w
}

func sequenceHead() *stateWriter { return new(stateWriter).put("qsgg", 3, 2, 11, 12) }

func sessionHead(arch string) *stateWriter {
	return new(stateWriter).put("nsgg", 10, 0, len(arch), arch)
}

// checkState compares every element with value at the token's position.
func checkStateValues(t *testing.T, l *Layer, positions ...int) {
	t.Helper()
	for p := K; p <= V; p++ {
		ten := l.Tensor(p)
		if ten == nil {
			continue
		}
		for h := range ten.Heads {
			got := readHead(t, l, p, h)
			for i, v := range got {
				if want := value(int(p), 0, positions[i/ten.Dim], h*ten.Dim+i%ten.Dim); float64(v) != want {
					t.Fatalf("%s head %d token %d channel %d: %g, want %g", p, h, i/ten.Dim, i%ten.Dim, v, want)
				}
			}
		}
	}
}

// One file per feature of the format, put together here: cells out of order,
// several sequences and streams, sliding layers, extra cell records, transposed
// values, latent attention, recurrent state.
func TestStateForms(t *testing.T) {
	one := []testCell{{2, []int{0}}, {0, []int{0}}, {1, []int{0}}}
	mixed := []testCell{{0, []int{0, 4}}, {1, []int{4}}, {1, []int{0}}, {2, []int{4}}}
	four, zero := 4, 0
	window := 2
	for name, test := range map[string]struct {
		file      *stateWriter
		o         Options
		layers    []int // numbers, in order
		heads     int
		positions []int
		warn      string
		check     func(t *testing.T, f *File)
	}{
		"out of order": {
			file: sequenceHead().put(1).cells(0, one...).put(0, 1).rows(K, 6, one...).rows(V, 4, one...),
			o:    Options{KVHeads: 2}, layers: []int{0}, heads: 2, positions: []int{0, 1, 2},
		},
		"transposed": {
			file: sequenceHead().put(1).cells(0, one...).put(1, 2).rows(K, 6, one...).rows(K, 6, one...).columns(V, 4, one...).columns(V, 4, one...),
			o:    Options{KVHeads: 2}, layers: []int{0, 1}, heads: 2, positions: []int{0, 1, 2},
		},
		"extra cell records": {
			file: sessionHead("qwen2vl").put(1).cells(8, one...).put(0, 1).rows(K, 6, one...).rows(V, 6, one...),
			o:    Options{KVHeads: 3}, layers: []int{0}, heads: 3, positions: []int{0, 1, 2},
		},
		"no values": {
			file: sessionHead("deepseek2").put(1).cells(0, one...).put(0, 2).rows(K, 6, one...).rows(K, 6, one...),
			o:    Options{KVHeads: 1}, layers: []int{0, 1}, heads: 1, positions: []int{0, 1, 2}, warn: "no values in it",
		},
		"latent": {
			file: sessionHead("deepseek2").put(1).cells(0, one...).put(0, 1).rows(K, 6, one...),
			o:    Options{Model: &Model{Layers: []ModelLayer{{Number: 3, KVHeads: 1, HeadDimK: 6, HeadDimV: 4}}}}, layers: []int{3}, heads: 1, positions: nil, warn: "stored once",
			check: func(t *testing.T, f *File) {
				if v := f.Layers[0].Tensor(V); v == nil || v.Dim != 4 {
					t.Errorf("V is %+v", v)
				} else if got := readHead(t, f.Layers[0], V, 0); float64(got[5]) != value(int(K), 0, 1, 1) {
					t.Errorf("V of token 1, channel 1 is %g", got[5])
				}
			},
		},
		"first of many sequences": {
			file:   sessionHead("llama").put(1).cells(0, mixed...).put(0, 1).rows(K, 6, mixed...).rows(V, 6, mixed...),
			layers: []int{0}, heads: 1, positions: []int{0, 1}, warn: "holds 2 sequences (0, 4)",
		},
		"chosen sequence": {
			file: sessionHead("llama").put(1).cells(0, mixed...).put(0, 1).rows(K, 6, mixed...).rows(V, 6, mixed...),
			o:    Options{Seq: &four}, layers: []int{0}, heads: 1, positions: []int{0, 1, 2}, warn: "give --kv-heads",
		},
		"streams": {
			file: sessionHead("llama").put(3).cells(0, testCell{9, []int{0}}).put(0, 1).rows(K, 6, testCell{9, nil}).rows(V, 6, testCell{9, nil}).
				put(0).cells(0, testCell{5, []int{4}}, testCell{6, []int{4}}).put(0, 1).rows(K, 6, testCell{5, nil}, testCell{6, nil}).rows(V, 6, testCell{5, nil}, testCell{6, nil}),
			o: Options{Seq: &four}, layers: []int{0}, heads: 1, positions: []int{5, 6},
			check: func(t *testing.T, f *File) {
				if p := f.Layers[0].Facts.FirstPosition; p != 5 {
					t.Errorf("first position %d", p)
				}
			},
		},
		"sliding, pattern unknown": {
			file: sessionHead("gemma3").put(1).cells(0, one...).put(0, 1).rows(K, 6, one...).rows(V, 6, one...).
				put(1).cells(0, one...).put(0, 2).rows(K, 4, one...).rows(K, 4, one...).rows(V, 4, one...).rows(V, 4, one...),
			o: Options{KVHeads: 1}, layers: []int{0, 0, 1}, heads: 1, positions: []int{0, 1, 2}, warn: "which layers slide is not stored",
			check: func(t *testing.T, f *File) {
				if l := f.Layers[1]; l.Cache != SlidingCache || !strings.HasSuffix(l.Name, ":sliding") || l.HeadDimK != 4 || !contains(l.Facts.Assumed, "window") {
					t.Errorf("%+v", l)
				}
			},
		},
		"sliding, pattern and window given": {
			file: sessionHead("gemma3").put(1).cells(0, one...).put(0, 1).rows(K, 6, one...).rows(V, 6, one...).
				put(1).cells(0, one...).put(0, 2).rows(K, 4, one...).rows(K, 4, one...).rows(V, 4, one...).rows(V, 4, one...),
			o: Options{KVHeads: 1, SlidingLayers: []int{0, 2}, Window: &window}, layers: []int{0, 1, 2}, heads: 1, positions: []int{0, 1, 2},
			check: func(t *testing.T, f *File) {
				for i, l := range f.Layers {
					want := window
					if i == 1 {
						want = 0
					}
					if l.Facts.Window != want || strings.Contains(l.Name, ":") {
						t.Errorf("layer %d: window %d, want %d; name %q", i, l.Facts.Window, want, l.Name)
					}
				}
			},
		},
		"hybrid": {
			file: sessionHead("jamba").put(1).cells(0, one...).put(0, 1).rows(K, 6, one...).rows(V, 6, one...).
				put(1, 2, 1, 0).put(0, 8).put(0, uint64(4), "abcd").put(0, uint64(8), "abcdefgh"),
			o: Options{KVHeads: 1, Seq: &zero}, layers: []int{0}, heads: 1, positions: []int{0, 1, 2}, warn: "recurrent state is left out",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := mustOpen(t, filepath.Join(write(t, "slot.bin", test.file.Bytes()), "slot.bin"), test.o)
			var numbers []int
			for _, l := range f.Layers {
				numbers = append(numbers, l.Number)
				if l.KVHeads != test.heads {
					t.Errorf("%d heads", l.KVHeads)
				}
				if test.positions != nil {
					if l.Tokens != len(test.positions) {
						t.Fatalf("%d tokens", l.Tokens)
					}
					checkStateValues(t, l, test.positions...)
				}
			}
			if !reflect.DeepEqual(numbers, test.layers) {
				t.Errorf("layers %v, want %v", numbers, test.layers)
			}
			if test.warn != "" && !contains(f.Warnings, test.warn) {
				t.Errorf("warnings %q, want %q", f.Warnings, test.warn)
			}
			if test.check != nil {
				test.check(t, f)
			}
		})
	}
}

// A token that is not finite is dropped from a state as from any other dump.
func TestStateNonfinite(t *testing.T) {
	cells := []testCell{{2, []int{0}}, {0, []int{0}}, {1, []int{0}}}
	w := sequenceHead().put(1).cells(0, cells...).put(0, 1).rows(K, 6, cells...).rows(V, 6, cells...)
	data := w.Bytes()
	copy(data[len(data)-2:], "\x00\x7e") // V of the last cell, position 1
	path := filepath.Join(write(t, "slot.bin", data), "slot.bin")
	f := mustOpen(t, path, Options{KVHeads: 1, AllowNonfinite: true})
	if l := f.Layers[0]; l.Tokens != 2 || l.DroppedTokens != 1 {
		t.Errorf("%d tokens, %d dropped", l.Tokens, l.DroppedTokens)
	}
	checkStateValues(t, f.Layers[0], 0, 2)
}

func TestStateRefuses(t *testing.T) {
	cell := testCell{0, []int{0}}
	good := func() *stateWriter {
		return sequenceHead().put(1).cells(0, cell).put(0, 1).rows(K, 6, cell).rows(V, 6, cell)
	}
	seven, three := 7, []int{3}
	for name, test := range map[string]struct {
		data []byte
		o    Options
		want string
	}{
		"version":        {new(stateWriter).put("qsgg", 2, 0, 0, 0).Bytes(), Options{}, "state file of version 2, want 3"},
		"session":        {new(stateWriter).put("nsgg", 9, 0, 0, 0).Bytes(), Options{}, "state file of version 9, want 10"},
		"prompt":         {new(stateWriter).put("qsgg", 3, 1000000, 0).Bytes(), Options{}, "the prompt's tokens needs 4000000 bytes, but 4 follow"},
		"no cache":       {sequenceHead().Bytes(), Options{}, "no cache follows"},
		"streams":        {sequenceHead().put(1 << 30).Bytes(), Options{}, "claims 1073741824 streams"},
		"cells":          {sequenceHead().put(1, 1<<30, 0).Bytes(), Options{}, "claims 1073741824 cells"},
		"type":           {sequenceHead().put(1).cells(0, cell).put(0, 1, 12, uint64(144)).Bytes(), Options{}, "K has ggml type 12"},
		"blocks":         {sequenceHead().put(1).cells(0, cell).put(0, 1, 8, uint64(35)).Bytes(), Options{}, "rows of 35 bytes, which are no whole number of q8_0 values"},
		"endless row":    {sequenceHead().put(1).cells(0, cell).put(0, 1, 1, uint64(1<<62)).Bytes(), Options{}, "rows of more bytes"},
		"cut":            {good().Bytes()[:good().Len()-3], Options{}, "cut short: V of layer 0 needs 12 bytes, but 9 follow"},
		"rest":           {good().put("rest of it").Bytes(), Options{}, "10 bytes follow that belong to no cache"},
		"recurrent only": {sessionHead("mamba").put(1, 2, 0, 0, 8).put(0, uint64(4), "abcd").Bytes(), Options{}, `holds recurrent state (architecture "mamba")`},
		"empty":          {sequenceHead().put(1, 0).Bytes(), Options{}, "the cache is empty"},
		"sequence":       {good().Bytes(), Options{Seq: &seven}, "--seq: slot.bin holds no sequence 7, but 0"},
		"heads":          {good().Bytes(), Options{KVHeads: 4}, "--kv-heads: rows of 6 values do not divide into 4 heads"},
		"one cache":      {good().Bytes(), Options{SlidingLayers: three}, "--sliding-layers: slot.bin holds one cache"},
		"another model":  {good().Bytes(), Options{Model: &Model{Source: "x.gguf", Layers: []ModelLayer{{KVHeads: 2, HeadDimK: 2}}}}, "--gguf: layer 0 has 2 KV heads of 2 in x.gguf, but rows of 6 values"},
		"layers":         {good().Bytes(), Options{Model: &Model{Source: "x.gguf"}}, "x.gguf has 0 layers of the kind of which slot.bin holds 1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(filepath.Join(write(t, "slot.bin", test.data), "slot.bin"), test.o)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, want %q", err, test.want)
			}
			var option *OptionError
			if !errors.As(err, &option) && !errors.Is(err, ErrFormat) {
				t.Errorf("%v is neither about the file nor about an option", err)
			}
		})
	}
}

// Cut anywhere, a state is refused.
func TestStateTruncated(t *testing.T) {
	cells := []testCell{{0, []int{0}}, {1, []int{0}}}
	data := sequenceHead().put(1).cells(0, cells...).put(0, 1).rows(K, 4, cells...).rows(V, 4, cells...).Bytes()
	k := len(data) - 12 - 16 // the end of K: without V, a file of latent attention
	for n := range data {
		s, err := readState(bytes.NewReader(data[:n]), int64(n), "slot.bin")
		if (err == nil) != (n == k) {
			t.Errorf("%d of %d bytes: %v, %v", n, len(data), s, err)
		}
	}
}
