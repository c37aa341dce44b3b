package cmd

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kvq/dumps"
	"kvq/eval"
)

// TestDumpsExpected compares evaluations of captured tensors with the figures
// of an independent double-precision program. KVQ_DUMPS_EXPECTED names another
// table of the same columns, its dumps in the folder dumps beside it.
func TestDumpsExpected(t *testing.T) {
	table, folder := filepath.Join("..", "eval", "testdata", "dumps_expected.tsv"), filepath.Join("..", "dumps", "testdata")
	if path := os.Getenv("KVQ_DUMPS_EXPECTED"); path != "" {
		table, folder = path, filepath.Join(filepath.Dir(path), "dumps")
	}
	columns, rows := readTSV(t, table)
	type run struct{ file, layer, queries string }
	var runs []run
	of := map[run][][]string{}
	for _, row := range rows {
		key := run{row[0], row[1], row[2]}
		if of[key] == nil {
			runs = append(runs, key)
		}
		of[key] = append(of[key], row)
	}
	for _, key := range runs {
		t.Run(key.file+"/layer="+key.layer+"/queries="+key.queries, func(t *testing.T) {
			var schemes []string
			for _, row := range of[key] {
				schemes = append(schemes, row[3])
			}
			r := evaluate(t, filepath.Join(folder, key.file), key.layer, key.queries, schemes)
			pairs := float64(r.Dumps[0].QueryRows * r.Dumps[0].QueryHeads)
			for _, row := range of[key] {
				t.Run(row[3], func(t *testing.T) {
					i := slices.IndexFunc(r.Rows, func(have eval.Row) bool { return have.Scheme == row[3] })
					if i < 0 {
						t.Fatal("no such row")
					}
					have := fieldsOf(t, r.Rows[i])
					for c, name := range columns[4:] {
						compareFigure(t, name, row[4+c], have, pairs)
					}
				})
			}
		})
	}
}

// compareFigure holds a figure of a row against what is expected of it.
func compareFigure(t *testing.T, name, expected string, have map[string]float64, pairs float64) {
	got, ok := have[name]
	if expected == "" || strings.HasSuffix(name, "_bytes") && expected == "0" {
		if ok {
			t.Errorf("%s = %g where the side is exact", name, got)
		}
		return
	}
	want, err := strconv.ParseFloat(expected, 64)
	if err != nil {
		t.Fatal(err)
	}
	tolerance := 1e-3*math.Abs(want) + 1e-8
	switch {
	case name == "top1_flip_rate":
		tolerance = 2.001 / pairs
	case strings.HasSuffix(name, "_bytes"):
		tolerance = 0
	}
	if !ok || !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s = %.9g (there: %t), want %.9g within %.3g", name, got, ok, want, tolerance)
	}
}

// evaluate runs schemes on one layer of a dump.
func evaluate(t *testing.T, path, layer, queries string, schemes []string) *eval.Report {
	t.Helper()
	src, err := openSource(sourceOptions{dumps: []string{path}, layers: []string{layer}, read: dumps.Options{}})
	if err != nil {
		t.Fatal(err)
	}
	defer src.close()
	n, err := parseQueries(queries)
	if err != nil {
		t.Fatal(err)
	}
	r, err := eval.Run(context.Background(), src.layers, eval.Options{Schemes: schemes, Queries: n})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fieldsOf returns the numbers of a row by their JSON names.
func fieldsOf(t *testing.T, row eval.Row) map[string]float64 {
	t.Helper()
	text, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	fields := map[string]float64{}
	for name, v := range all {
		if f, ok := v.(float64); ok {
			fields[name] = f
		}
	}
	return fields
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
