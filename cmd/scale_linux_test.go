package cmd

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// BenchmarkEvalLargeLayer runs kvq eval, in a process of its own, on a layer of
// 32,768 tokens, 8 KV heads and 32 query heads of 128 channels with the whole
// default set. It reports the seconds, the peak memory and the limit for it:
// 1.5 times the dump and 300 MiB.
func BenchmarkEvalLargeLayer(b *testing.B) {
	dir := b.TempDir()
	kvq, dump := filepath.Join(dir, "kvq"), filepath.Join(dir, "layer0.safetensors")
	command := func(name string, args ...string) *exec.Cmd {
		c := exec.Command(name, args...)
		c.Stderr = os.Stderr
		return c
	}
	if err := command("go", "build", "-o", kvq, "kvq").Run(); err != nil {
		b.Fatal(err)
	}
	if err := command(kvq, "synth", "-o", dump, "--tokens", "32k", "--outlier-channels", "4", "-q").Run(); err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(dump)
	if err != nil {
		b.Fatal(err)
	}
	const mib = 1 << 20
	for b.Loop() {
		c := command(kvq, "eval", "--dump", dump, "--no-bench", "-q")
		if err := c.Run(); err != nil {
			b.Fatal(err)
		}
		usage := c.ProcessState.SysUsage().(*syscall.Rusage)
		b.ReportMetric(float64(usage.Maxrss)/1024, "peak-MiB") // Linux counts it in KiB
		b.ReportMetric(1.5*float64(info.Size())/mib+300, "limit-MiB")
		b.ReportMetric(c.ProcessState.UserTime().Seconds(), "user-s")
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/run")
	b.ReportMetric(0, "ns/op")
}
