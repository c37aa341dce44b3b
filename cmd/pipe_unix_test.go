//go:build unix

package cmd

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestInterrupt holds that kvq bench ends when it is interrupted, and says so.
func TestInterrupt(t *testing.T) {
	// Until Main listens, a signal would end this process.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt)
	defer signal.Stop(caught)
	done := make(chan struct{})
	go func() {
		defer close(done)
		code, stdout, stderr := run("bench", "--ctx", "64", "--kv-heads", "1", "--threads", "1", "--time", "1h", "--scheme", "f16")
		if code != exitFailure || stdout != "" || stderr != "kvq: interrupted\n" {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	}()
	for end := time.After(30 * time.Second); ; {
		select {
		case <-done:
			return
		case <-end:
			t.Fatal("it runs on")
		case <-time.After(50 * time.Millisecond):
			if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSignals holds that what asks a process to end leaves no file behind.
func TestSignals(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(sig) {
			continue
		}
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		// Of 8 TiB: it does not end by itself.
		c := exec.CommandContext(ctx, "kvq", "synth", "-o", filepath.Join(dir, "x.safetensors"), "--tokens", "1g", "--kv-heads", "16", "--query-heads", "0")
		var stderr strings.Builder
		c.Stderr = &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for range 200 {
			if entries, _ := os.ReadDir(dir); len(entries) > 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if err := c.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait() // its state says more
		entries, _ := os.ReadDir(dir)
		if code := c.ProcessState.ExitCode(); code != exitFailure || len(entries) > 0 || stderr.String() != "kvq: interrupted\n" {
			t.Errorf("%v: exit code %d (%v), left %v, stderr %q", sig, code, c.ProcessState, entries, stderr.String())
		}
	}
}

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
