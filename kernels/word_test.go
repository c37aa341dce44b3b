package kernels

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// TestWords disassembles the words that stand in the arm64 assembly for
// instructions the Go assembler lacks, and compares each with the comment beside
// it. The tests of all backends prove what the words compute; this proves that
// what a reader sees is what runs.
func TestWords(t *testing.T) {
	tool := disassembler()
	if tool == "" {
		if strings.Contains(os.Getenv("KVQ_TEST_REQUIRE_ISA"), "neon") {
			t.Fatal("no objdump for arm64: install binutils-aarch64-linux-gnu")
		}
		t.Skip("no objdump for arm64")
	}
	files, err := filepath.Glob("*_arm64.s")
	if err != nil || len(files) == 0 {
		t.Fatalf("no assembly found: %v", err)
	}
	word := regexp.MustCompile(`(?m)^\tWORD \$0x([0-9a-f]{8}) // (.+)$`)
	var code []byte
	var comments []string
	seen := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := word.FindAllSubmatch(text, -1)
		if all := bytes.Count(text, []byte("WORD")); len(found) != all {
			t.Errorf("%s: %d of %d words have a comment", file, len(found), all)
		}
		for _, m := range found {
			if seen[string(m[0])] {
				continue
			}
			seen[string(m[0])] = true
			w, err := strconv.ParseUint(string(m[1]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			code = binary.LittleEndian.AppendUint32(code, uint32(w))
			comments = append(comments, string(m[2]))
		}
	}
	path := filepath.Join(t.TempDir(), "words")
	if err := os.WriteFile(path, code, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool, "-D", "-b", "binary", "-m", "aarch64", path).Output()
	if err != nil {
		t.Fatalf("%s: %v", tool, err)
	}
	line := regexp.MustCompile(`(?m)^ *[0-9a-f]+:\t[0-9a-f]{8} \t(.+)$`)
	decoded := line.FindAllSubmatch(out, -1)
	if len(decoded) != len(comments) {
		t.Fatalf("%s decoded %d of %d words", tool, len(decoded), len(comments))
	}
	for i, m := range decoded {
		if got := strings.Join(strings.Fields(string(m[1])), " "); got != comments[i] {
			t.Errorf("%x is %q, its comment says %q", code[4*i:4*i+4], got, comments[i])
		}
	}
}

func disassembler() string {
	tools := []string{"aarch64-linux-gnu-objdump"}
	if runtime.GOARCH == "arm64" {
		tools = append(tools, "objdump")
	}
	for _, tool := range tools {
		if path, err := exec.LookPath(tool); err == nil {
			return path
		}
	}
	return ""
}
