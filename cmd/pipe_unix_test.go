//go:build unix

package cmd

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestNamedPipes: opening a pipe that nobody writes to would block for ever.
func TestNamedPipes(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.npy")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	dump := filepath.Join(dir, "x.npz")
	if code, _, stderr := run("synth", "-o", dump, "--tokens", "8", "--kv-heads", "1", "--query-heads", "1", "--head-dim", "8", "--queries", "8"); code != exitOK {
		t.Fatal(stderr)
	}
	for _, args := range []string{
		"plan --config PIPE", "plan --gguf PIPE", "plan --model 8b --weights auto --safetensors PIPE", "plan --model 8b --draft PIPE",
		"eval --dump PIPE", "eval --k PIPE --v PIPE", "inspect PIPE", "encode PIPE --scheme int8 -o " + dir,
		"eval --no-bench --dump " + dump + " --scheme int8 --baseline PIPE",
	} {
		done := make(chan string, 1)
		go func() {
			code, _, stderr := run(strings.Fields(strings.ReplaceAll(args, "PIPE", pipe))...)
			if code != exitFailure || !strings.Contains(stderr, "not a regular file") {
				t.Errorf("kvq %s: exit code %d, stderr %q", args, code, stderr)
			}
			done <- stderr
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("kvq %s: waits for the pipe", args)
		}
	}
}
