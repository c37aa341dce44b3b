package formula

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// llamaHeaders returns the GGUF headers beside a table of cases: the files of
// the folder gguf, or of gguf.tar.gz.
func llamaHeaders(t *testing.T, dir string) func(name string) ([]byte, error) {
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
	path := filepath.Join("testdata", "llamacpp", "cases.tsv")
	if other := os.Getenv("KVQ_LLAMACPP"); other != "" {
		path = other
	}
	headers := llamaHeaders(t, filepath.Dir(path))
	engine, err := LookupEngine("llama.cpp")
	if err != nil {
		t.Fatal(err)
	}
	cases := readTable(t, path)
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
