package formula

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// engineLogs are the engines whose logs the table of TestEngineLogs holds. Each
// function prices a row's request through the engine, with available bytes
// (0: the row gives none), and returns the figure that the row's component and
// part name, in bytes, blocks, tokens or times.
func engineLogs() map[string]func(t *testing.T, row map[string]string, available int64) float64 {
	return map[string]func(*testing.T, map[string]string, int64) float64{
		"llama.cpp": llamaCppLog,
		"vllm":      vllmLog,
		"sglang":    sglangLog,
		"trtllm":    trtllmLog,
	}
}

// TestEngineLogs holds the engines against figures that they printed in public
// logs, at the printed precision. KVQ_KVLOGS names another table of the same
// columns.
func TestEngineLogs(t *testing.T) {
	rows := readTSV(t, "testdata/kvlogs_cases.tsv", "KVQ_KVLOGS")
	engines := engineLogs()
	count := map[string]int{}
	for _, row := range rows {
		t.Run(row["id"], func(t *testing.T) {
			price, ok := engines[row["engine"]]
			if !ok {
				t.Fatalf("%s is not in engineLogs", row["engine"])
			}
			count[row["engine"]]++
			want, err := strconv.ParseFloat(row["expected_value"], 64)
			if err != nil {
				t.Fatal(err)
			}
			unit := map[string]float64{"GiB": 1 << 30, "MiB": 1 << 20}[row["unit"]]
			if unit == 0 {
				unit = 1
			}
			if row["check"] == "bracket" {
				low, high := price(t, row, number(t, row, "available_lo"))/unit, price(t, row, number(t, row, "available_hi"))/unit
				if want < low || want > high {
					t.Errorf("%v is not from %v to %v", want, low, high)
				}
				return
			}
			// Formatting rounds the exact binary value half to even.
			decimals := int(number(t, row, "decimals"))
			got := strconv.FormatFloat(price(t, row, number(t, row, "available_bytes"))/unit, 'f', decimals, 64)
			if printed := strconv.FormatFloat(want, 'f', decimals, 64); got != printed {
				t.Errorf("%s %s, want %s", got, row["unit"], printed)
			}
		})
	}
	t.Logf("%d figures: %v", len(rows), count)
}

// logModel is the model of a row's columns.
func logModel(t *testing.T, row map[string]string) *Model {
	t.Helper()
	m := &Model{Name: row["model"], Source: "flags"}
	if n := number(t, row, "layers"); n > 0 {
		m.Geometry = append(m.Geometry, Group{Count: n, Kind: Full, KVHeads: number(t, row, "kv_heads"), HeadDimK: number(t, row, "head_dim_k"), HeadDimV: number(t, row, "head_dim_v")})
	}
	if n := number(t, row, "swa_layers"); n > 0 {
		g := Group{Count: n, Kind: Sliding, Window: max(number(t, row, "swa_window"), 1)}
		for _, c := range []struct {
			to     *int64
			column string
		}{{&g.KVHeads, "kv_heads"}, {&g.HeadDimK, "head_dim_k"}, {&g.HeadDimV, "head_dim_v"}} {
			*c.to = number(t, row, "swa_"+c.column)
			if *c.to == 0 {
				*c.to = number(t, row, c.column)
			}
		}
		m.Geometry = append(m.Geometry, g)
	}
	if n := number(t, row, "rec_layers"); n > 0 {
		m.States = append(m.States, State{Layers: n, ConvElements: number(t, row, "rec_R"), SSMElements: number(t, row, "rec_S"), ConvBytes: number(t, row, "rec_R_bytes"), SSMBytes: number(t, row, "rec_S_bytes")})
	}
	return m
}

// logReserve prices a row's request.
func logReserve(t *testing.T, e Engine, m *Model, row map[string]string, context int64, scheme string, options Options) Reservation {
	t.Helper()
	s, err := e.Scheme(scheme)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	r, err := e.Reserve(Request{Model: m, Context: context, Sequences: 1, TP: max(number(t, row, "tp"), 1), PP: 1, Scheme: s, Options: options})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// detail is one figure of a reservation in the engine's terms, 0 where it has
// none of that key.
func (r Reservation) detail(key string) float64 {
	for _, d := range r.Details {
		if d.Key == key {
			switch v := d.Value.(type) {
			case int64:
				return float64(v)
			case float64:
				return v
			}
		}
	}
	return 0
}

var vllmRelease = regexp.MustCompile(`\d+\.\d+(\.\d+)?`)

func vllmLog(t *testing.T, row map[string]string, available int64) float64 {
	// The row names a release, the engine's generation, or a month.
	version := vllmRelease.FindString(row["variant"])
	switch {
	case strings.Contains(row["variant"], "0.6.x"), version == "" && strings.Contains(row["variant"], "V0"):
		version = "0.6"
	case strings.Contains(row["variant"], "Apr 2025"):
		version = "0.8"
	case version == "":
		version = "0.11"
	}
	options := Options{"version": version}
	for option, column := range map[string]string{"block-size": "block_size", "max-num-batched-tokens": "max_num_batched_tokens"} {
		if row[column] != "" {
			options[option] = row[column]
		}
	}
	scheme := map[string]string{"bf16": "auto", "f16": "auto", "fp8": "fp8"}[row["k_type"]]
	m := logModel(t, row)
	context := max(number(t, row, "max_model_len"), number(t, row, "tokens"), 1)
	if row["num_blocks"] != "" { // so many blocks, whatever memory they are
		r := logReserve(t, VLLM(), m, row, context, scheme, options)
		available = number(t, row, "num_blocks") * int64(r.detail("bytes_per_block"))
	}
	if available > 0 {
		options["available"] = fmt.Sprint(available)
	}
	r := logReserve(t, VLLM(), m, row, context, scheme, options)
	switch row["component"] {
	case "attention_kv":
		return float64(r.PerDevice)
	case "blocks", "tokens", "concurrency":
		return r.detail(row["component"])
	}
	t.Fatalf("component %q", row["component"])
	return 0
}

func sglangLog(t *testing.T, row map[string]string, _ int64) float64 {
	m := logModel(t, row)
	scheme := map[string]string{"bf16": "auto", "f16": "auto", "fp8": "fp8_e4m3", "fp4": "fp4_e2m1", "": "auto"}[row["k_type"]]
	sparse := strings.HasPrefix(row["mla_form"], "fp8_ds_mla_656")
	if sparse { // the row's width is in bytes
		m.Geometry[0].HeadDimK, scheme = 576, "fp8_e4m3"
		m.Geometry = append(m.Geometry, Group{Extra: Index, Count: m.Geometry[0].Count, Kind: Full, KVHeads: 1, HeadDimK: 128})
	}
	options := Options{}
	for option, column := range map[string]string{"page-size": "page_size", "tokens": "tokens", "mamba-slots": "slots"} {
		if row[column] != "" {
			options[option] = row[column]
		}
	}
	r := logReserve(t, SGLang(), m, row, 1, scheme, options)
	if row["swa_tokens"] != "" && r.detail("swa_tokens") != float64(number(t, row, "swa_tokens")) {
		t.Errorf("%v tokens of windowed layers, want %s", r.detail("swa_tokens"), row["swa_tokens"])
	}
	var keys []string
	for _, pool := range []struct{ covers, key string }{{"full", ""}, {"swa", "swa_"}} {
		if strings.Contains(row["covers"], pool.covers) {
			if row["part"] != "V" {
				keys = append(keys, pool.key+"k_pool_bytes")
			}
			if row["part"] != "K" {
				keys = append(keys, pool.key+"v_pool_bytes")
			}
		}
	}
	if row["component"] == "recurrent_state" {
		keys = []string{"state_pool_bytes"}
	}
	if strings.HasSuffix(row["mla_form"], "+indexer_132") {
		keys = append(keys, "index_pool_bytes")
	}
	total := 0.0
	for _, key := range keys {
		total += r.detail(key)
	}
	return total
}

func trtllmLog(t *testing.T, row map[string]string, _ int64) float64 {
	options := Options{}
	for option, column := range map[string]string{"tokens-per-block": "block_size", "blocks": "num_blocks"} {
		if row[column] != "" {
			options[option] = row[column]
		}
	}
	scheme := map[string]string{"bf16": "auto", "f16": "auto", "fp8": "fp8"}[row["k_type"]]
	r := logReserve(t, TRTLLM(), logModel(t, row), row, max(number(t, row, "tokens"), 1), scheme, options)
	if row["component"] == "tokens" {
		return r.detail("tokens")
	}
	return float64(r.PerDevice)
}
