package formula

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
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

// TestVLLM holds the planner against plans that vLLM's own code made.
func TestVLLM(t *testing.T) {
	for _, row := range readTSV(t, "testdata/vllm_cases.tsv", "KVQ_VLLM") {
		t.Run(row["id"], func(t *testing.T) {
			req := vllmRequest{
				layers:         vllmSpecs(t, row["specs"]),
				rules:          currentVLLM(),
				hybrid:         row["hybrid"] == "yes",
				blockOutermost: strings.HasPrefix(row["kv_layout"], "B"),
				prefixCaching:  row["mamba_cache_mode"] == "align",
				inFlight:       number(t, row, "max_in_flight_tokens"),
				encoderTokens:  number(t, row, "max_encoder_tokens"),
				available:      number(t, row, "available_bytes"),
				maxModelLen:    number(t, row, "max_model_len"),
				autoFit:        row["auto_fit"] == "yes",
			}
			if row["stages"] != "" {
				for _, stage := range strings.Split(row["stages"], " | ") {
					counts := make([]int64, len(req.layers))
					for _, l := range vllmSpecs(t, stage) {
						for i := range req.layers {
							if req.layers[i].alike(l) {
								counts[i] = l.Count
							}
						}
					}
					req.stages = append(req.stages, counts)
				}
			}
			plan, err := planVLLM(req)
			compareVLLM(t, row, plan, err)
		})
	}
}

func currentVLLM() vllmRules {
	return vllmRules{grouping: true, spread: 150, padPages: true, inFlight: true, promote: true, nullBlock: true, tokensByTime: true}
}

func compareVLLM(t *testing.T, row map[string]string, plan vllmPlan, err error) {
	t.Helper()
	switch row["error_class"] {
	case "AssertionError", "TypeError", "ValueError":
		var bug *vllmBug
		if !errors.As(err, &bug) || bug.class != row["error_class"] {
			t.Errorf("got %v, want the bug %s", err, row["error_class"])
		}
		return
	case "hybrid_off_impossible":
		if !errors.Is(err, errVLLMHybridOff) {
			t.Errorf("got %v, want %v", err, errVLLMHybridOff)
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
		for _, s := range g.specs {
			l := plan.layers[s]
			share := g.share(0, l.Count)
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
