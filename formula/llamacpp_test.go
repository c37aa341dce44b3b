package formula

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// llamaHeaders returns the GGUF headers beside a table of cases: the files of
// the folder gguf, or of gguf.tar.gz.
func llamaHeaders(t testing.TB, dir string) func(name string) ([]byte, error) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "gguf")); err == nil {
		return func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, "gguf", name)) }
	}
	f, err := os.Open(filepath.Join(dir, "gguf.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[filepath.Base(h.Name)], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
	return func(name string) ([]byte, error) {
		data, ok := files[name]
		if !ok {
			return nil, fmt.Errorf("%s is not in gguf.tar.gz", name)
		}
		return data, nil
	}
}

// TestLlamaCpp compares with what llama.cpp printed when it created the
// contexts of the table. KVQ_LLAMACPP names another table of the same columns,
// with its headers in the folder gguf beside it.
func TestLlamaCpp(t *testing.T) {
	path := "testdata/llamacpp/cases.tsv"
	cases := readTSV(t, path, "KVQ_LLAMACPP")
	if other := os.Getenv("KVQ_LLAMACPP"); other != "" {
		path = other
	}
	headers := llamaHeaders(t, filepath.Dir(path))
	engine, err := LookupEngine("llama.cpp")
	if err != nil {
		t.Fatal(err)
	}
	models := map[string]*Model{}
	ran := 0
	for i, row := range cases {
		t.Run(fmt.Sprintf("%d-%s", i+1, row["file"]), func(t *testing.T) {
			ran++
			model := models[row["file"]]
			if model == nil {
				data, err := headers(row["file"])
				if err != nil {
					t.Fatal(err)
				}
				g, err := ReadGGUF(bytes.NewReader(data), int64(len(data)))
				if err != nil {
					t.Fatal(err)
				}
				if model, err = g.Model(false); err != nil {
					t.Fatal(err)
				}
				models[row["file"]] = model
			}
			if model.Family != row["arch"] {
				t.Errorf("architecture %s, want %s", model.Family, row["arch"])
			}
			scheme, err := engine.Scheme(row["k_type"] + ":" + row["v_type"])
			if err != nil {
				t.Fatal(err)
			}
			options, err := engine.ParseOptions([]string{fmt.Sprintf("c=%s,np=%s,ub=%s,kvu=%s,fa=%s,swa-full=%s,rs-seq=%s,b=2048",
				row["c"], row["np"], row["ub"], row["kvu"], row["fa"], row["swa_full"], row["rs_seq"])})
			if err != nil {
				t.Fatal(err)
			}
			r, err := engine.Reserve(Request{Model: model, Context: 1, Sequences: 1, TP: 1, PP: 1, Scheme: scheme, Options: options})
			if err != nil {
				t.Fatal(err)
			}
			if r.Refusal != "" {
				t.Errorf("refused: %s", r.Refusal)
			}
			details := map[string]string{}
			for _, d := range r.Details {
				details[d.Key] = fmt.Sprint(d.Value)
			}
			for _, key := range []string{"k_bytes", "v_bytes", "caches", "recurrent_r_bytes", "recurrent_s_bytes", "recurrent_p_bytes", "compressor_state_bytes"} {
				got := details[key]
				if got == "" && key != "caches" {
					got = "0"
				}
				if got != row[key] {
					t.Errorf("%s = %s, llama.cpp printed %s", key, got, row[key])
				}
			}
			total, err := r.Total()
			if err != nil {
				t.Fatal(err)
			}
			want, err := strconv.ParseInt(row["total_bytes"], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			var parts, k, v int64
			for _, c := range r.Components {
				parts, k, v = parts+c.Bytes, k+c.K, v+c.V
			}
			if total != want || parts != want || r.PerDevice != want {
				t.Errorf("total %d, components %d, one device %d: llama.cpp printed %d", total, parts, r.PerDevice, want)
			}
		})
	}
	t.Logf("%d cases", ran)
	if ran == 0 {
		t.Error("no cases")
	}
}

// llamaCppLog prices a row of TestEngineLogs that llama.cpp or a relative
// printed.
func llamaCppLog(t *testing.T, row map[string]string, _ int64) float64 {
	m := logModel(t, row)
	options := Options{"c": "1048576"}
	if n := number(t, row, "n_ctx_total"); n > 0 {
		options["c"] = fmt.Sprint(n + number(t, row, "n_ctx_extra"))
	}
	for option, column := range map[string]string{"np": "n_parallel", "kvu": "unified", "ub": "n_ubatch", "rs-seq": "rs_seq"} {
		if row[column] != "" {
			options[option] = row[column]
		}
	}
	if row["pad_rule"] == "pad32" || row["swa_rule"] == "pad32_ubatch" {
		options["pad"] = "32"
	}
	switch row["swa_rule"] {
	case "ignored", "full":
		options["swa-full"] = "yes"
	case "given": // the log names the cells and not the window
		options["ub"] = "256"
		m.Geometry[len(m.Geometry)-1].Window = max(number(t, row, "swa_cells")-256, 1)
	}
	switch row["mla_form"] {
	case "latent_k_plus_v_copy":
		g := &m.Geometry[0]
		m.MLA = &MLA{Rank: g.HeadDimV, RopeDim: g.HeadDimK - g.HeadDimV}
		g.HeadDimV, options["mla"] = 0, "latent+v"
	case "expanded":
		g := &m.Geometry[0]
		m.MLA = &MLA{Rank: 512, RopeDim: 64, NopeDim: g.HeadDimK - 64, VDim: g.HeadDimV, Heads: g.KVHeads}
		g.KVHeads, g.HeadDimK, g.HeadDimV, options["mla"] = 1, 576, 0, "expanded"
	case "dsa_index_key":
		index := m.Geometry[0]
		index.Extra = Index
		m.Geometry = Geometry{{Count: index.Count, Kind: Full, KVHeads: 1, HeadDimK: 576}, index}
	}
	kType, vType := row["k_type"], row["v_type"]
	if kType == "" {
		kType = "f16"
	}
	if vType == "" || vType == "none" {
		vType = kType
	}
	r := logReserve(t, LlamaCpp(), m, row, 1, kType+":"+vType, options)
	for _, cells := range []string{"cells", "swa_cells"} {
		if want := number(t, row, "expect_"+cells); want > 0 && r.detail(cells) != float64(want) {
			t.Errorf("%s %v, want %d", cells, r.detail(cells), want)
		}
	}
	switch row["part"] {
	case "R":
		return r.detail("recurrent_r_bytes")
	case "S":
		return r.detail("recurrent_s_bytes")
	}
	components := map[string]string{"full": AttentionKV, "swa": SlidingKV, "recurrent": RecurrentState}
	if row["mla_form"] == "dsa_index_key" {
		components["full"] = IndexerKeys
	}
	bytes := int64(0)
	for _, covered := range strings.Split(row["covers"], "+") {
		name := components[covered]
		if name == "" {
			t.Fatalf("covers %q", row["covers"])
		}
		for _, c := range r.Components {
			if c.Name != name {
				continue
			}
			switch row["part"] {
			case "K":
				bytes += c.K
			case "V":
				bytes += c.V
			default:
				bytes += c.Bytes
			}
		}
	}
	return float64(bytes)
}

// TestLlamaCppByLayers: a model that is known by its layers alone, as presets
// and configs are, takes what its GGUF header takes.
func TestLlamaCppByLayers(t *testing.T) {
	headers := llamaHeaders(t, "testdata/llamacpp")
	engine := LlamaCpp()
	seen := map[string]bool{}
	for _, row := range readTSV(t, "testdata/llamacpp/cases.tsv", "") {
		if seen[row["file"]] {
			continue
		}
		seen[row["file"]] = true
		t.Run(row["file"], func(t *testing.T) {
			data, err := headers(row["file"])
			if err != nil {
				t.Fatal(err)
			}
			g, err := readGGUF(data)
			if err != nil {
				t.Fatal(err)
			}
			m, err := g.Model(false)
			if err != nil {
				t.Fatal(err)
			}
			layers := *m
			layers.gguf = nil
			for _, options := range []Options{{}, {"np": "4", "kvu": "yes"}, {"np": "3", "ub": "128", "rs-seq": "2"}, {"swa-full": "yes"}, {"c": "10000", "fa": "off", "np": "2"}} {
				var totals [2]int64
				var caches [2]string
				for i, model := range []*Model{m, &layers} {
					scheme, err := engine.Scheme("f16")
					if err != nil {
						t.Fatal(err)
					}
					r, err := engine.Reserve(Request{Model: model, Context: 6000, Sequences: 1, TP: 1, PP: 1, Scheme: scheme, Options: options})
					if err != nil {
						t.Fatal(err)
					}
					if totals[i], err = r.Total(); err != nil {
						t.Fatal(err)
					}
					for _, d := range r.Details {
						if d.Key == "caches" {
							caches[i] = fmt.Sprint(d.Value)
						}
					}
				}
				if totals[0] != totals[1] {
					t.Errorf("%v: %d by keys, %d by layers\n%s\n%s", options, totals[0], totals[1], caches[0], caches[1])
				}
			}
		})
	}
}

// llamaFile is a header of one architecture with whole-number keys.
func llamaFile(t *testing.T, arch string, keys map[string]uint32) *Model {
	t.Helper()
	f := &ggufFile{order: binary.LittleEndian}
	f.key("general.architecture", ggufString, arch)
	for key, n := range keys {
		f.key(arch+"."+key, ggufUint32, n)
	}
	g, err := readGGUF(f.bytes(3))
	if err != nil {
		t.Fatal(err)
	}
	m, err := g.Model(false)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestLlamaCppOptions holds options that no table covers to closed forms.
func TestLlamaCppOptions(t *testing.T) {
	shape := map[string]uint32{"context_length": 4096, "embedding_length": 512, "block_count": 3, "attention.head_count": 4, "nextn_predict_layers": 1,
		"attention.head_count_kv": 2, "attention.key_length": 80, "attention.value_length": 64}
	latent := map[string]uint32{"context_length": 4096, "embedding_length": 512, "block_count": 2, "attention.head_count": 4, "attention.head_count_kv": 1,
		"attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
		"attention.kv_lora_rank": 512, "rope.dimension_count": 64}
	older := map[string]uint32{"context_length": 4096, "embedding_length": 512, "block_count": 2, "attention.head_count": 4,
		"attention.key_length": 192, "attention.value_length": 128, "attention.kv_lora_rank": 512, "rope.dimension_count": 64}
	const cells = 1024
	for _, c := range []struct {
		name, arch string
		keys       map[string]uint32
		scheme     string
		options    Options
		k, v       float64
		refusal    string
	}{
		{"trunk", "qwen3", shape, "f16", nil, 2 * cells * 2 * 80 * 2, 2 * cells * 2 * 64 * 2, ""},
		{"draft", "qwen3", shape, "f16", Options{"mtp": "yes"}, 3 * cells * 2 * 80 * 2, 3 * cells * 2 * 64 * 2, ""},
		{"model's context", "qwen3", shape, "f16", Options{"c": "0"}, 2 * 4096 * 2 * 80 * 2, 2 * 4096 * 2 * 64 * 2, ""},
		{"pad", "qwen3", shape, "f16", Options{"c": "1000", "pad": "32"}, 2 * 1024 * 2 * 80 * 2, 2 * 1024 * 2 * 64 * 2, ""},
		{"blocks", "qwen3", shape, "q8_0:f16", nil, 2 * cells * 2 * 80 / 32 * 34, 2 * cells * 2 * 64 * 2, "do not divide a head of 80"},
		{"slots", "qwen3", shape, "f16", Options{"np": "257", "c": "1024"}, 2 * 257 * 256 * 2 * 80 * 2, 2 * 257 * 256 * 2 * 64 * 2, "at most 256"},
		{"quantized V", "qwen3", shape, "f16:q4_0", Options{"fa": "off"}, 2 * cells * 2 * 80 * 2, 2 * cells * 2 * 64 / 32 * 18, "needs flash attention"},
		{"latent", "deepseek2", latent, "f16", nil, 2 * cells * 576 * 2, 0, ""},
		{"latent and V", "deepseek2", latent, "f16", Options{"mla": "latent+v"}, 2 * cells * 576 * 2, 2 * cells * 512 * 2, ""},
		{"expanded", "deepseek2", latent, "f16", Options{"mla": "expanded"}, 2 * cells * 4 * 192 * 2, 2 * cells * 4 * 128 * 2, ""},
		{"latent, two types", "deepseek2", latent, "f16:q8_0", nil, 2 * cells * 576 * 2, 0, "same cache type"},
		{"older file", "deepseek2", older, "f16", nil, 2 * cells * 4 * 192 * 2, 2 * cells * 4 * 128 * 2, ""},
		{"older file, latent", "deepseek2", older, "f16", Options{"mla": "latent"}, 2 * cells * 576 * 2, 0, ""},
		{"q8_KV", "deepseek2", latent, "q8_KV", nil, 2 * cells * (576 + 8), 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := LlamaCpp()
			scheme, err := engine.Scheme(c.scheme)
			if err != nil {
				t.Fatal(err)
			}
			r, err := engine.Reserve(Request{Model: llamaFile(t, c.arch, c.keys), Context: cells, Sequences: 1, TP: 1, PP: 1, Scheme: scheme, Options: c.options})
			if err != nil {
				t.Fatal(err)
			}
			if r.detail("k_bytes") != c.k || r.detail("v_bytes") != c.v {
				t.Errorf("K %.0f, V %.0f, want %.0f, %.0f", r.detail("k_bytes"), r.detail("v_bytes"), c.k, c.v)
			}
			if c.refusal == "" && r.Refusal != "" || !strings.Contains(r.Refusal, c.refusal) {
				t.Errorf("refusal %q, want %q", r.Refusal, c.refusal)
			}
		})
	}
}

// TestExplainLlamaCpp: the lines hold the figures of the sum, worked by hand.
func TestExplainLlamaCpp(t *testing.T) {
	m := &Model{Geometry: Geometry{{Count: 2, Kind: Full, KVHeads: 4, HeadDimK: 64, HeadDimV: 32}, {Count: 3, Kind: Sliding, Window: 100, KVHeads: 2, HeadDimK: 64, HeadDimV: 64}},
		States: []State{{Layers: 5, ConvElements: 10, SSMElements: 100, ConvBytes: 2, SSMBytes: 2}}}
	scheme, err := LlamaCpp().Scheme("q8_0:f16")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := LlamaCpp().Explain(Request{Model: m, Context: 1000, Sequences: 2, TP: 1, PP: 1, Scheme: scheme, Options: Options{"ub": "128", "rs-seq": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(lines, "\n")
	for _, want := range []string{
		"2,000 tokens over 2 slots, in multiples of 256: 1,024 cells for each",
		"min(1,024, window 100 x 1 slot + micro-batch 128, in multiples of 256) = 256 cells",
		// 2 layers x 2,048 cells x 256/32 blocks of 34 bytes; x 128 x 2 bytes.
		"2 layers, K 4 x 64 as q8_0, V 4 x 32 as f16: 1,114,112 + 1,048,576 B",
		// 3 layers x 512 cells x 128/32 blocks of 34 bytes; x 128 x 2 bytes.
		"3 layers, K 2 x 64 as q8_0, V 2 x 64 as f16: 208,896 + 393,216 B",
		// 5 layers x 110 elements x 4 bytes x 2 slots x 2 rows.
		"550 elements over 5 layers, float32 of 4 B, x 4 rows = 8,800 B",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
