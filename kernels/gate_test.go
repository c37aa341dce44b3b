//go:build !purego && (amd64 || arm64)

package kernels

import (
	"bufio"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/cpuid/v2"
)

// baseline are the features that every amd64 machine has, in avo's words.
// (What every arm64 machine has, its generator does not mention.)
var baseline = map[string]bool{"SSE": true, "SSE2": true, "MMX+": true}

// TestGates holds each backend's required CPU features against what the
// generator says that its instructions need ("// Requires:" above each function).
// A function's name ends in the backend it belongs to.
func TestGates(t *testing.T) {
	files, err := filepath.Glob("*_" + runtime.GOARCH + ".s")
	if err != nil || len(files) == 0 {
		t.Fatalf("no assembly found: %v", err)
	}
	gates := map[string]backend{}
	for _, b := range archBackends() {
		gates[strings.ToUpper(string(b.isa))] = b
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var needs []string
		functions := 0
		for lines := bufio.NewScanner(f); lines.Scan(); {
			line := lines.Text()
			if rest, ok := strings.CutPrefix(line, "// Requires: "); ok {
				needs = strings.Split(rest, ", ")
			}
			rest, ok := strings.CutPrefix(line, "TEXT ·")
			if !ok {
				continue
			}
			functions++
			name, _, _ := strings.Cut(rest, "(")
			checkGate(t, file, name, needs, gates)
			needs = nil
		}
		if functions == 0 {
			t.Errorf("%s: no function found", file)
		}
	}
}

func checkGate(t *testing.T, file, name string, needs []string, gates map[string]backend) {
	t.Helper()
	for suffix, b := range gates {
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		have := map[string]bool{}
		for _, id := range b.needs {
			have[id.String()] = true
		}
		for _, need := range needs {
			if !baseline[need] && !have[need] {
				t.Errorf("%s: %s needs %s, which backend %s does not ask for", file, name, need, b.isa)
			}
		}
		return
	}
	t.Errorf("%s: %s: the name ends in no backend", file, name)
}

// TestGateNames fails when cpuid and the generator spell a feature differently:
// TestGates would then compare nothing.
func TestGateNames(t *testing.T) {
	for _, b := range archBackends() {
		for _, id := range b.needs {
			if id == cpuid.UNKNOWN || id.String() == "" {
				t.Errorf("backend %s asks for an unknown feature %d", b.isa, id)
			}
		}
	}
}
