package cmd

import (
	"path/filepath"
	"reflect"
	"testing"
)

// A converted dump gives the very figures of the one it was made of.
func TestConvertKeepsFigures(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.safetensors")
	in := filepath.Join("..", "dumps", "testdata", "layer12.npy")
	if code, _, stderr := run("convert", in, "-o", out); code != exitOK || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	schemes := []string{"int4-token", "int8-channel:exact"}
	a, b := evaluate(t, in, "12", "64", schemes), evaluate(t, out, "12", "64", schemes)
	for i := range a.Rows {
		a.Rows[i].Dump = b.Rows[i].Dump
	}
	if !reflect.DeepEqual(a.Rows, b.Rows) || !reflect.DeepEqual(a.Dumps[0].FactsAssumed, b.Dumps[0].FactsAssumed) {
		t.Errorf("%+v became %+v", a.Rows, b.Rows)
	}
}

func TestParseTokenRange(t *testing.T) {
	for text, want := range map[string][2]int{"": {0, 0}, "0:2048": {0, 2048}, "1k:2K": {1024, 2048}, ":7": {0, 7}, "7:": {7, 0}, ":": {0, 0}} {
		from, to, err := parseTokenRange(text)
		if err != nil || [2]int{from, to} != want {
			t.Errorf("%q: %d to %d, %v", text, from, to, err)
		}
	}
	for _, text := range []string{"5", "5:5", "5:4", "-1:3", "a:b", "1:2:3", "1:99999999999999999999"} {
		if _, _, err := parseTokenRange(text); exitCode(err) != exitUsage {
			t.Errorf("%q: %v, want a usage error", text, err)
		}
	}
}
