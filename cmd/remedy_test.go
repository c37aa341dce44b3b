package cmd

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"kvq/eval"
)

// TestRemedies reproduces on synthetic keys which remedy cures which failure (the
// table of reference/features.md §3.2): centring cures a constant bias; scales
// per channel, and less so rotation, cure outlier channels; and a bias that RoPE
// has turned takes storing keys as before RoPE.
func TestRemedies(t *testing.T) {
	dir := t.TempDir()
	kl := func(name string, flags []string, schemes ...string) map[string]float64 {
		dump := filepath.Join(dir, name+".safetensors")
		args := append([]string{"synth", "-o", dump, "--tokens", "1024", "--kv-heads", "2", "--query-heads", "2", "--seed", "7"}, flags...)
		if code, _, stderr := run(args...); code != exitOK {
			t.Fatal(stderr)
		}
		args = []string{"eval", "--dump", dump, "--no-bench", "-q", "--format", "json"}
		for _, s := range schemes {
			args = append(args, "--scheme", s+":exact")
		}
		code, out, stderr := run(args...)
		if code != exitOK {
			t.Fatal(stderr)
		}
		var r eval.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		found := map[string]float64{}
		for _, row := range r.Rows {
			if row.KLMean != nil {
				found[row.K] = *row.KLMean
			}
		}
		return found
	}
	check := func(what string, worse, better, least float64) {
		t.Helper()
		if !(worse > least*better) {
			t.Errorf("%s: KL %.3g against %.3g, want at least %g times", what, worse, better, least)
		}
	}
	clean := kl("clean", nil, "q4_0", "q4_0+center", "q4_0+hadamard")
	check("nothing to cure: centring gains nothing", clean["q4_0+center"], clean["q4_0"], 0.8)
	check("nothing to cure: rotation gains nothing", clean["q4_0+hadamard"], clean["q4_0"], 0.8)

	bias := kl("bias", []string{"--key-bias", "5"}, "q4_0", "q4_0+center", "q4_0+hadamard", "int4-asym-channel/32")
	check("a bias hurts", bias["q4_0"], clean["q4_0"], 5)
	check("centring cures a bias", bias["q4_0"], bias["q4_0+center"], 5)
	check("scales per channel cure a bias", bias["q4_0"], bias["int4-asym-channel/32"], 5)
	check("centring leaves what clean keys have", clean["q4_0"], bias["q4_0+center"], 0.7)

	outliers := kl("outliers", []string{"--outlier-channels", "4", "--outlier-scale", "20"}, "int4-token", "int4-channel/32", "int4-token+hadamard", "int4-token+center")
	check("scales per channel cure outlier channels", outliers["int4-token"], outliers["int4-channel/32"], 4)
	check("rotation helps against outlier channels", outliers["int4-token"], outliers["int4-token+hadamard"], 1.3)
	check("centring does not", outliers["int4-token+center"], outliers["int4-token"], 0.7)

	turned := kl("turned", []string{"--key-bias", "5", "--rope", "10000"}, "q4_0", "q4_0+center", "q4_0+prerope+center")
	check("RoPE defeats centring", turned["q4_0+center"], bias["q4_0+center"], 2)
	check("storing keys before RoPE brings it back", turned["q4_0+center"], turned["q4_0+prerope+center"], 2)
}
