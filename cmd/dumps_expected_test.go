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
	"kvq/quantize"
)

// skipIfShort leaves a comparison of whole dumps, or of the whole registry, out of
// the runs under the race detector and in an emulator, which call for -short: the
// same code runs there on a little.
func skipIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("compares whole dumps or the whole registry: not with -short")
	}
}

// TestDumpsExpected compares evaluations of captured tensors with the figures
// of an independent double-precision program. KVQ_DUMPS_EXPECTED names another
// table of the same columns, its dumps in the folder dumps beside it.
func TestDumpsExpected(t *testing.T) {
	skipIfShort(t)
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
					have := fieldsOf(t, rowNamed(t, r, row[3]))
					for c, name := range columns[4:] {
						compareFigure(t, name, row[4+c], have, pairs)
					}
				})
			}
		})
	}
}

// TestAllLayers compares evaluations of a model's layers, output projections
// included, with the figures of an independent double-precision program. The
// folder holds a dump of three of them; KVQ_ALLLAYERS names another folder with a
// dump and such a table.
func TestAllLayers(t *testing.T) {
	skipIfShort(t)
	folder := filepath.Join("..", "eval", "testdata", "e2e")
	if path := os.Getenv("KVQ_ALLLAYERS"); path != "" {
		folder = path
	}
	dump, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	if err != nil || len(dump) != 1 {
		t.Fatalf("%s: want one dump, found %q (%v)", folder, dump, err)
	}
	columns, rows := readTSV(t, filepath.Join(folder, "layers_expected.tsv"))
	type run struct{ layer, queries string }
	of := map[run][][]string{}
	var runs []run
	for _, row := range rows {
		key := run{row[0], row[1]}
		if of[key] == nil {
			runs = append(runs, key)
		}
		of[key] = append(of[key], row)
	}
	for _, key := range runs {
		t.Run("layer="+key.layer+"/queries="+key.queries, func(t *testing.T) {
			var schemes []string
			for _, row := range of[key] {
				schemes = append(schemes, row[2])
			}
			r := evaluate(t, dump[0], key.layer, key.queries, schemes)
			pairs := float64(r.Dumps[0].QueryRows * r.Dumps[0].QueryHeads)
			for _, row := range of[key] {
				t.Run(row[2], func(t *testing.T) {
					have := fieldsOf(t, rowNamed(t, r, row[2]))
					for c, name := range columns[3:] {
						compareFigure(t, name, row[3+c], have, pairs)
					}
				})
			}
		})
	}
}

// rowNamed returns the row of a scheme.
func rowNamed(t *testing.T, r *eval.Report, scheme string) eval.Row {
	t.Helper()
	pair, err := quantize.ParsePair(scheme)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(r.Rows, func(row eval.Row) bool { return row.Scheme == pair.Name() })
	if i < 0 {
		t.Fatalf("no row of %s", scheme)
	}
	return r.Rows[i]
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
	case name == "residual_nmse": // small by nature: a share of the whole residual stream
		tolerance = 1e-3*math.Abs(want) + 1e-12
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

// TestTruth ranks the layers' figures against what the same schemes did to the
// whole model. With all layers (KVQ_ALLLAYERS) they must rank and predict as
// docs/metrics.md says; the three layers at hand do a little worse.
func TestTruth(t *testing.T) {
	skipIfShort(t)
	folder, whole := filepath.Join("..", "eval", "testdata", "e2e"), false
	if path := os.Getenv("KVQ_ALLLAYERS"); path != "" {
		folder, whole = path, true
	}
	dump, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	if err != nil || len(dump) != 1 {
		t.Fatalf("%s: want one dump, found %q (%v)", folder, dump, err)
	}
	code, stdout, stderr := run("eval", "--dump", dump[0], "--truth", filepath.Join(folder, "truth.tsv"), "--no-bench", "--format", "json", "-q")
	if code != exitOK {
		t.Fatal(stderr)
	}
	var r eval.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	_, rows := readTSV(t, filepath.Join(folder, "truth.tsv"))
	if n := len(r.Truth.Rows) + len(r.Truth.LeftOut); n != len(rows) {
		t.Errorf("%d schemes, want %d", n, len(rows))
	}
	s, f := r.Truth.Spearman, r.Truth.Fit
	t.Logf("keys by kl_mean %.4f, values by output_nmse %.4f, all by output_nmse %.4f, by residual_sum %.4f; %d of %d within 1.5x, %d within 2x",
		*s.KeysKLMean, *s.ValuesOutputNMSE, *s.AllOutputNMSE, *s.AllResidualSum, f.Within1_5, f.Schemes, f.Within2)
	keys, all, residual, within := 0.98, 0.97, 0.98, 0.95
	if !whole {
		keys, all, residual, within = 0.98, 0.95, 0.97, 0.85
	}
	if *s.KeysKLMean < keys || *s.AllOutputNMSE < all || *s.AllResidualSum < residual || float64(f.Within1_5) < within*float64(f.Schemes) {
		t.Errorf("want at least %g by kl_mean among keys, %g by output_nmse and %g by residual_sum among all, %g of the schemes within 1.5x", keys, all, residual, within)
	}
	if len(r.Truth.LeftOut) > 0 {
		t.Logf("left out: %q", r.Truth.LeftOut)
	}
}
