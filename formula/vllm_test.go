package formula

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// readTSV reads a table with a header; env names another file to read.
func readTSV(t *testing.T, path, env string) []map[string]string {
	t.Helper()
	if other := os.Getenv(env); other != "" {
		path = other
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma, r.LazyQuotes = '\t', true
	lines, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]string
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, name := range lines[0] {
			row[name] = line[i]
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		t.Fatalf("%s: no rows", path)
	}
	return rows
}

// number reads an integer column, 0 where it is empty.
func number(t *testing.T, row map[string]string, column string) int64 {
	t.Helper()
	text := row[column]
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", column, err)
	}
	return n
}

// vllmSpecs reads the column specs: what vLLM's layers asked its planner for.
func vllmSpecs(t *testing.T, text string) []vllmLayers {
	t.Helper()
	var layers []vllmLayers
	for _, entry := range strings.Split(text, "; ") {
		fields := strings.Fields(entry)
		var l vllmLayers
		count, ok := strings.CutSuffix(fields[0], "x")
		n, err := strconv.ParseInt(count, 10, 64)
		if !ok || err != nil {
			t.Fatalf("specs: %q", entry)
		}
		l.Count, l.Kind = n, vllmKind(fields[1])
		for _, f := range fields[2:] {
			key, value, _ := strings.Cut(f, "=")
			n, _ := strconv.ParseInt(value, 10, 64)
			switch key {
			case "block":
				l.Block = n
			case "heads":
				l.Heads = n
			case "k":
				l.DimK = n
			case "v":
				l.DimV = n
			case "dtype":
				l.Store = value
			case "token_bytes":
				l.TokenBytes = n
			case "window", "chunk":
				l.Window = n
			case "padded":
				l.Padded = n
			case "stride_align":
				l.Align = n
			case "tokens_per_state":
				l.Ratio = n
			case "state":
				l.StateBytes = n
			case "checkpoint_blocks":
				l.Checkpoint = n
			case "speculative_blocks":
				l.Speculative = n
			case "page", "shapes":
			default:
				t.Fatalf("specs: unknown field %q", f)
			}
		}
		layers = append(layers, l)
	}
	return layers
}

// TestVLLM holds the planner against plans that vLLM's own code made: from the
// geometry columns through the model and the options to the layers' specs
// (block size, pages, blocks of a state), and from there to groups, blocks,
// tokens and refusals. Rows whose columns do not say all, and those where the
// specs themselves were made up, start at the specs.
func TestVLLM(t *testing.T) {
	rows := readTSV(t, "testdata/vllm_cases.tsv", "KVQ_VLLM")
	derived, sized := 0, 0
	for _, row := range rows {
		t.Run(row["id"], func(t *testing.T) {
			want := vllmSpecs(t, row["specs"])
			req := vllmRowRequest(t, row, want)
			whole := row["columns_complete"] == "yes" && row["source"] != "specs"
			// A model of full layers alone says all with its skipped layers.
			if whole || row["skip_layers"] != "" && !strings.Contains(row["geometry"], ", ") {
				model, o := vllmColumns(t, row)
				if len(model.layers) != len(want) {
					t.Fatalf("layers %+v, want %+v", model.layers, want)
				}
				for i, l := range want {
					// The type's name only tells layers of different types apart, and
					// the alignment of blocks only matters side by side.
					got := model.layers[i]
					got.Store = l.Store
					if !req.blockOutermost || row["state_layers"] != "" {
						got.Align, l.Align = 0, 0
					}
					if got != l {
						t.Errorf("layers %+v, want %+v", got, l)
					}
				}
				if n := number(t, row, "block_size"); model.block != n {
					t.Errorf("block size %d, want %d", model.block, n)
				}
				if n := o.batches * o.batched; n != number(t, row, "max_in_flight_tokens") {
					t.Errorf("%d tokens in flight, want %s", n, row["max_in_flight_tokens"])
				}
				if model.stages != nil && !reflect.DeepEqual(model.stages, req.stages) {
					t.Errorf("stages %v, want %v", model.stages, req.stages)
				}
				req.layers, req.prefixCaching = model.layers, o.prefix
				derived++
				if row["block_size_asked"] == "" {
					sized++
				}
			}
			plan, err := planVLLM(req)
			compareVLLM(t, row, plan, err)
		})
	}
	t.Logf("%d plans, %d of them from the geometry columns, of which %d with a derived block size", len(rows), derived, sized)
}

// TestVLLMRandomSpecs holds the planner against plans of vLLM 0.33.0's own code
// for specs that no model has: four kinds of layers at once, pages that do not
// divide, block sizes that differ, every layout, stages cut anywhere.
func TestVLLMRandomSpecs(t *testing.T) {
	for _, row := range readTSV(t, "testdata/vllm_random.tsv", "KVQ_VLLM_RANDOM") {
		t.Run(row["id"], func(t *testing.T) {
			plan, err := planVLLM(vllmRowRequest(t, row, vllmSpecs(t, row["specs"])))
			compareVLLM(t, row, plan, err)
		})
	}
}

// vllmRowRequest is a row's request for layers that ask for these specs.
func vllmRowRequest(t *testing.T, row map[string]string, specs []vllmLayers) vllmRequest {
	t.Helper()
	return vllmRequest{
		layers:         specs,
		stages:         vllmRowStages(t, row, specs),
		rules:          mustVLLMRules(t, row["vllm"]),
		hybrid:         row["hybrid"] == "yes",
		blockOutermost: strings.HasPrefix(row["kv_layout"], "B"),
		prefixCaching:  row["mamba_cache_mode"] == "align",
		inFlight:       number(t, row, "max_in_flight_tokens"),
		encoderTokens:  number(t, row, "max_encoder_tokens"),
		available:      number(t, row, "available_bytes"),
		maxModelLen:    number(t, row, "max_model_len"),
		autoFit:        row["auto_fit"] == "yes",
	}
}

// vllmRowStages is how many layers of each spec the stages hold; nil is one stage.
func vllmRowStages(t *testing.T, row map[string]string, specs []vllmLayers) [][]int64 {
	t.Helper()
	if row["stages"] == "" {
		return nil
	}
	var stages [][]int64
	for _, stage := range strings.Split(row["stages"], " | ") {
		counts := make([]int64, len(specs))
		for _, l := range vllmSpecs(t, stage) {
			at := slices.IndexFunc(specs, l.alike)
			if at < 0 {
				t.Fatalf("stages: %q is not one of the specs", stage)
			}
			counts[at] += l.Count
		}
		stages = append(stages, counts)
	}
	return stages
}

// vllmColumns takes a row's columns for a model and its options.
func vllmColumns(t *testing.T, row map[string]string) (vllmModel, vllmOptions) {
	t.Helper()
	tp := number(t, row, "tp")
	m := &Model{Name: row["model"], MaxContext: number(t, row, "max_model_len"), Source: "flags"}
	if strings.Contains(row["specs"], "dtype=float16") {
		m.DType = "float16"
	}
	for _, part := range strings.Split(row["geometry"], ", ") {
		var count int64
		var kind string
		if _, err := fmt.Sscanf(part, "%d %s", &count, &kind); err != nil {
			t.Fatalf("geometry %q: %v", part, err)
		}
		at := len(m.Geometry)
		block := Block{Groups: []int{at}}
		switch kind {
		case "full", "swa", "chunk":
			g := Group{
				Count: count, Kind: map[string]Kind{"full": Full, "swa": Sliding, "chunk": Chunked}[kind],
				KVHeads: number(t, row, kind+"_kv_heads_total"), HeadDimK: number(t, row, kind+"_head_dim_k"), HeadDimV: number(t, row, kind+"_head_dim_v"),
			}
			if kind == "swa" {
				g.Window = number(t, row, "swa_window")
			} else if kind == "chunk" {
				g.Window = number(t, row, "chunk_size")
			}
			m.Geometry = append(m.Geometry, g)
		case "mla":
			m.Geometry = append(m.Geometry, Group{Count: count, Kind: Full, KVHeads: 1, HeadDimK: number(t, row, "mla_width")})
		case "index": // 128 values, and a scale where the width is given with it
			m.Geometry = append(m.Geometry, Group{Extra: Index, Count: count, Kind: Full, KVHeads: 1, HeadDimK: 128})
		case "state":
			m.States = append(m.States, vllmColumnState(t, row, count, tp))
			block = Block{States: []int{len(m.States) - 1}}
		default:
			t.Fatalf("geometry %q: unknown kind", part)
		}
		for range count {
			m.Order = append(m.Order, block)
		}
	}
	if stages := vllmRowStages(t, row, vllmSpecs(t, row["specs"])); stages != nil {
		kinds := m.Order
		m.Order = nil
		for _, counts := range stages {
			first := int64(0)
			for i, n := range counts { // entry i is the layers of one kind, as in the geometry
				for range n {
					m.Order = append(m.Order, kinds[first])
				}
				first += vllmSpecs(t, row["specs"])[i].Count
			}
		}
	}
	m.Layers = int64(len(m.Order))
	if strings.Contains(row["attn_backends"], "KIMI_K3") {
		m.Family = "kimi_k3"
	}
	scheme, err := vllmScheme(row["cache_dtype"])
	if err != nil {
		t.Fatal(err)
	}
	options := vllmRowOptions(row)
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	req := Request{Model: m, Context: number(t, row, "max_model_len"), Sequences: 1, TP: tp, PP: number(t, row, "pp"), Scheme: scheme, Options: options}
	side := scheme.K.(vllmSide)
	o, err := parseVLLMOptions(req, side.vllmCacheType)
	if err != nil {
		t.Fatal(err)
	}
	if outermost := strings.HasPrefix(row["kv_layout"], "B"); o.outermost != outermost {
		t.Errorf("block-outermost %v, want %v", o.outermost, outermost)
	}
	model, err := vllmLayersOf(req, o, side.vllmCacheType)
	if err != nil {
		t.Fatal(err)
	}
	return model, o
}

// vllmRowOptions are a row's request as --engine-opt has it.
func vllmRowOptions(row map[string]string) Options {
	options := Options{"version": row["vllm"], "gpu": row["gpu"]}
	for option, column := range map[string]string{
		"block-size": "block_size_asked", "max-num-batched-tokens": "max_num_batched_tokens", "async-scheduling": "async_scheduling",
		"prefix-caching": "prefix_caching", "max-model-len": "max_model_len", "available": "available_bytes", "hybrid": "hybrid",
		"kv-layout": "layout_asked", "speculative-tokens": "num_speculative_tokens",
	} {
		if row[column] != "" {
			options[option] = row[column]
		}
	}
	if !strings.HasPrefix(row["cache_dtype"], "turboquant") && row["skip_layers"] != "" {
		options["skip-layers"] = strings.ReplaceAll(row["skip_layers"], ",", "+")
	}
	return options
}

// vllmColumnState reads the shapes of one rank, with the convolution
// lengthened by the speculative tokens, back into the model's own.
func vllmColumnState(t *testing.T, row map[string]string, layers, tp int64) State {
	t.Helper()
	s := State{Layers: layers}
	for i, tensor := range strings.Split(row["state_shapes"], "+") {
		shape, dtype, _ := strings.Cut(tensor, ":")
		bytes := map[string]int64{"bfloat16": 2, "float16": 2, "float32": 4}[dtype]
		elements, first := int64(1), int64(0)
		for _, d := range strings.Split(shape, "x") {
			n, err := strconv.ParseInt(d, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if first == 0 {
				first = n
			}
			elements *= n
		}
		if i == 0 {
			s.ConvSteps = first - number(t, row, "num_speculative_tokens")
			s.ConvElements, s.ConvBytes = elements/first*s.ConvSteps*tp, bytes
		} else {
			s.SSMElements, s.SSMBytes = elements*tp, bytes
		}
	}
	for backend, kind := range map[string]string{"GDN_ATTN": "gdn", "MAMBA1_ATTN": "mamba1", "MAMBA2_ATTN": "mamba2", "SHORT_CONV_ATTN": "shortconv", "KIMI_K3_KDA": "kda"} {
		if strings.Contains(row["attn_backends"], backend) {
			s.Kind = kind
		}
	}
	if s.Kind == "gdn" && row["mla_layers"] != "" {
		s.Kind = "kda" // Kimi-Linear runs on the same backend
	}
	return s
}

func mustVLLMRules(t *testing.T, version string) vllmRules {
	t.Helper()
	rules, err := vllmRulesOf(version)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func compareVLLM(t *testing.T, row map[string]string, plan vllmPlan, err error) {
	t.Helper()
	switch class := row["error_class"]; class {
	case "", "no_memory", "max_model_len_too_long":
	case "hybrid_off_impossible":
		if !errors.Is(err, errVLLMHybridOff) {
			t.Errorf("got %v, want %v", err, errVLLMHybridOff)
		}
		return
	case "NotImplementedError":
		if !errors.Is(err, errVLLMPages) {
			t.Errorf("got %v, want %v", err, errVLLMPages)
		}
		return
	default:
		var bug *vllmBug
		if !errors.As(err, &bug) || bug.class != class {
			t.Errorf("got %v, want the bug %s", err, class)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var c calc
	var pages, layers, kinds, sizes, blocks []string
	for i, g := range plan.groups {
		page, n := int64(0), int64(0)
		for k, s := range g.specs {
			l := plan.layers[s]
			share := g.share(k, 0, l.Count)
			n += share
			if plan.merged {
				page += share * l.page(&c)
			} else {
				page = l.page(&c)
			}
		}
		pages = append(pages, fmt.Sprint(page))
		layers = append(layers, fmt.Sprint(n))
		kinds = append(kinds, plan.kinds(g))
		sizes = append(sizes, fmt.Sprint(plan.layers[g.specs[0]].Block))
		blocks = append(blocks, fmt.Sprint(plan.blocks[i]))
	}
	width := int64(0)
	for _, w := range plan.bytesPerBlock {
		width = max(width, w)
	}
	got := map[string]string{
		"page_size_bytes":             strings.Join(pages, ","),
		"num_groups":                  fmt.Sprint(len(plan.groups)),
		"layers_per_group":            strings.Join(layers, ","),
		"group_kinds":                 strings.Join(kinds, ","),
		"group_block_sizes":           strings.Join(sizes, ","),
		"padding_layers":              fmt.Sprint(plan.padding),
		"bytes_per_block":             fmt.Sprint(width),
		"blocks_per_request_by_group": strings.Join(blocks, ","),
		"blocks_per_request":          fmt.Sprint(plan.total),
		"request_bytes":               fmt.Sprint(width * plan.total),
		"check_bytes":                 fmt.Sprint(number(t, row, "available_bytes") - width),
		"max_model_len_final":         fmt.Sprint(plan.maxModelLen),
		"fits":                        map[bool]string{true: "yes", false: "no"}[plan.refusal == nil],
	}
	if r := plan.refusal; r != nil {
		got["error_class"] = r.class
		if r.class == "max_model_len_too_long" {
			got["needed_gib"], got["available_gib"] = vllmGiB(r.needed), vllmGiB(r.available)
		}
		got["estimated_max_model_len"] = ""
		if r.estimate > 0 {
			got["estimated_max_model_len"] = fmt.Sprint(r.estimate)
		}
	} else {
		got["error_class"] = ""
		captures := !strings.Contains(row["group_kinds"], "state") || plan.numBlocks >= number(t, row, "max_num_seqs")
		if row["max_num_seqs"] != "" {
			got["mamba_max_num_seqs_error"] = map[bool]string{true: "no", false: "yes"}[captures]
		}
		got["num_blocks"] = fmt.Sprint(plan.numBlocks)
		got["kv_cache_tokens"] = fmt.Sprint(plan.tokens)
		got["max_concurrency_printed"] = fmt.Sprintf("%.2f", plan.concurrency)
		f, err := strconv.ParseFloat(row["max_concurrency"], 64)
		if err != nil || f != plan.concurrency {
			t.Errorf("max_concurrency: got %v, want %s", plan.concurrency, row["max_concurrency"])
		}
	}
	for column, value := range got {
		if row[column] != value {
			t.Errorf("%s: got %q, want %q", column, value, row[column])
		}
	}
}
