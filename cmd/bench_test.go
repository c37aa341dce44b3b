package cmd

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"kvq/kernels"
	"kvq/quantize"
)

func TestCPU(t *testing.T) {
	code, stdout, stderr := run("cpu", "--format", "json")
	var got cpuInfoJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || stderr != "" {
		t.Fatalf("exit %d, %v, stderr %q", code, err, stderr)
	}
	if got.Schema != "kvq.cpu/1" || got.Active != string(kernels.Active()) || len(got.Backends) == 0 || got.PageBytes <= 0 {
		t.Errorf("implausible %+v", got)
	}
	for _, b := range got.Backends {
		if b.Available != slices.Contains(kernels.Available(), kernels.ISA(b.ISA)) || b.Available != (len(b.Missing) == 0) {
			t.Errorf("backend %+v, available are %v", b, kernels.Available())
		}
	}
}

// TestCPUISA holds that the kernels in use are those that --isa or KVQ_ISA names.
func TestCPUISA(t *testing.T) {
	defer run("cpu") // back to the best
	for _, args := range [][]string{{"--isa", "generic"}, nil} {
		env := "generic"
		if args != nil {
			env = string(kernels.Available()[0]) // the flag goes first
		}
		var out, errOut strings.Builder
		code := Main(append([]string{"cpu", "--format", "json"}, args...), Streams{In: strings.NewReader(""), Out: &out, Err: &errOut, Getenv: func(key string) string {
			if key == "KVQ_ISA" {
				return env
			}
			return ""
		}})
		var got cpuInfoJSON
		if err := json.Unmarshal([]byte(out.String()), &got); err != nil || code != exitOK || got.Active != "generic" {
			t.Errorf("KVQ_ISA=%s %v: exit %d, %v, %s in use, stderr %q", env, args, code, err, got.Active, errOut.String())
		}
	}
	if code, _, stderr := run("cpu", "--isa", "mmx"); code != exitUsage || !strings.Contains(stderr, "mmx") {
		t.Errorf("--isa mmx: exit %d, stderr %q", code, stderr)
	}
}

// TestBench checks what a figure says about itself; how fast it is nobody can know.
func TestBench(t *testing.T) {
	code, stdout, stderr := run("bench", "-q", "--format", "json", "--ctx", "256", "--kv-heads", "2", "--head-dim", "64", "--heads", "4",
		"--threads", "1,2", "--time", "1ms", "--scheme", "int8-channel:int4-token/32,e4m3-raw", "--level", "dram,l2")
	var got benchJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("exit %d, %v, stderr %q", code, err, stderr)
	}
	if got.Schema != "kvq.bench/1" || len(got.Rows) != 8 {
		t.Fatalf("%d rows of %s, want 8 of kvq.bench/1", len(got.Rows), got.Schema)
	}
	for _, r := range got.Rows {
		if r.Scheme == "int8-channel:int4-token/32" && r.Level == "dram" {
			// Per head: 256 tokens of 64 + 32 bytes, 64 f16 scales of K, two f16 scales a token of V.
			if want := int64(2 * (256*(64+32) + 64*2 + 256*2*2)); r.CacheBytes != want {
				t.Errorf("%d bytes, want %d", r.CacheBytes, want)
			}
		}
		fused := kernels.Active() != kernels.Generic
		if (r.Path == "generic") == fused {
			t.Errorf("%s ran %s", r.Scheme, r.Path)
		}
		if r.UsPerToken <= 0 || r.GBps <= 0 || r.ReadGBps <= 0 || (r.CapShare == nil) == (r.Level == "dram") {
			t.Errorf("implausible %+v", r)
		}
	}
}

// TestBenchWindow checks that only the pages which the window reaches count: of 256
// tokens it leaves 70, so that 2 of 4 pages stay.
func TestBenchWindow(t *testing.T) {
	code, stdout, stderr := run("bench", "-q", "--format", "json", "--ctx", "256", "--window", "70", "--kv-heads", "1", "--head-dim", "64", "--heads", "4",
		"--threads", "1", "--time", "1ms", "--scheme", "int8-token")
	var got benchJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || len(got.Rows) != 1 {
		t.Fatalf("exit %d, %v, stderr %q", code, err, stderr)
	}
	if r := got.Rows[0]; r.Tokens != 128 || r.CacheBytes != 128*2*(64+2) {
		t.Errorf("%d tokens, %d bytes", r.Tokens, r.CacheBytes)
	}
}

// TestBenchKernels checks the rows beside fused decoding, and the estimate for a model.
func TestBenchKernels(t *testing.T) {
	code, stdout, stderr := run("bench", "-q", "--format", "json", "--ctx", "128", "--model", "8b", "--threads", "2", "--time", "1ms",
		"--scheme", "int8-tensor:int4-token", "--kernel", "decode,dequantize-then-f16,encode,dequantize")
	var got benchJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || len(got.Rows) != 6 {
		t.Fatalf("exit %d, %v, %d rows, stderr %q", code, err, len(got.Rows), stderr)
	}
	if got.Geometry != (benchShape{KVHeads: 8, QueryHeads: 32, HeadDimK: 128, HeadDimV: 128}) {
		t.Errorf("geometry %+v", got.Geometry)
	}
	for i, r := range got.Rows {
		// 8 heads of 128 tokens: 128 + 64 bytes of codes and a scale a token of V, one
		// scale for all of K; encoding reads 2·128 float32 a token instead.
		want := int64(8*128*(128+64+2) + 2)
		switch r.Kernel {
		case "encode":
			want = 8 * 128 * 2 * 128 * 4
		case "encode-k", "encode-v":
			want = 8 * 128 * 128 * 4
		}
		if r.Kernel == "decode" {
			want += 7 * 2 // a paged cache keeps the scale with each head
		}
		if r.Kernel != []string{"decode", "dequantize-then-f16", "encode", "encode-k", "encode-v", "dequantize"}[i] || r.CacheBytes != want || r.UsPerToken <= 0 {
			t.Errorf("%s: %d bytes in %v us, want %d", r.Kernel, r.CacheBytes, r.UsPerToken, want)
		}
		if (r.ModelMs != nil) != (r.Kernel == "decode") {
			t.Errorf("%s: model estimate %v", r.Kernel, r.ModelMs)
		}
	}
	// 32 layers of the same cache.
	if r := got.Rows[0]; math.Abs(*r.ModelMs*1e3/r.UsPerToken-32) > 1e-9 {
		t.Errorf("%v ms at %v us a layer", *r.ModelMs, r.UsPerToken)
	}
}

// TestBenchCodecs encodes and decodes what no paged cache holds: groups over all heads,
// and a rotation that is part of the format.
func TestBenchCodecs(t *testing.T) {
	code, stdout, stderr := run("bench", "-q", "--format", "json", "--ctx", "64", "--kv-heads", "2", "--threads", "1", "--time", "1ms",
		"--scheme", "hqq4,pth-int4,cubic8,nuq3-token+tails1%", "--kernel", "encode,dequantize")
	var got benchJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 || len(got.Rows) < 8 {
		t.Fatalf("exit %d, %v, %d rows, stderr %q", code, err, len(got.Rows), stderr)
	}
}

// TestBenchPlot checks that the page of a run draws every scheme.
func TestBenchPlot(t *testing.T) {
	code, stdout, stderr := run("bench", "-q", "--format", "html", "--ctx", "128", "--kv-heads", "1", "--threads", "1", "--time", "1ms", "--scheme", "int8-token,q4_0")
	if code != 0 || !strings.Contains(stdout, "<svg") || strings.Count(stdout, "q4_0") < 2 {
		t.Errorf("exit %d, %d bytes, stderr %q", code, len(stdout), stderr)
	}
}

// TestBenchMemory checks that a context no machine can hold is refused at once.
func TestBenchMemory(t *testing.T) {
	code, stdout, stderr := run("bench", "--ctx", "2000m", "--kv-heads", "64")
	if code != exitFailure || stdout != "" || !strings.Contains(stderr, "available") || !strings.Contains(stderr, "hint") {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestBenchUsage(t *testing.T) {
	for _, args := range [][]string{
		{"--scheme", "int9"}, {"--scheme", "exact:int8"}, {"--kv-heads", "2", "--heads", "3"}, {"--kv-heads", "0"}, {"--ctx", "0"}, {"--threads", "0"},
		{"--level", "l4"}, {"--time", "0s"}, {"--head-dim", "-1"}, {"--isa", "mmx"}, {"--kernel", "fly"}, {"--model", "8b"},
		{"--heads", "0"}, {"--head-dim-v", "0"}, {"--head-dim", "0"}, {"--head-dim", "100000"}, {"--scheme", "f16,hqq4"}, {"--model", "nothing-like-it", "--kv-heads", "1"}, {"--scheme", "int8-token/256"},
	} {
		args = append([]string{"bench", "--ctx", "64", "--kv-heads", "1"}, args...)
		if code, stdout, stderr := run(args...); code != exitUsage || stdout != "" || stderr == "" {
			t.Errorf("%v: exit %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
}

// benchRows runs kvq bench on a small cache, for a moment.
func benchRows(t *testing.T, args string) benchJSON {
	t.Helper()
	code, stdout, stderr := run(append([]string{"bench", "-q", "--format", "json", "--time", "1ms"}, strings.Fields(args)...)...)
	var got benchJSON
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
		t.Fatalf("%s: exit %d, %v, stderr %q", args, code, err, stderr)
	}
	return got
}

// TestBenchBaseline holds that speedups are against the row of f16 where there is one,
// wherever it stands, and that there is one without such a row.
func TestBenchBaseline(t *testing.T) {
	got := benchRows(t, "--ctx 256 --kv-heads 1 --threads 1,2 --scheme int8-token,f16,F16 --kernel decode,dequantize-then-f16,decode")
	if len(got.Rows) != 8 {
		t.Fatalf("%d rows, want those of 2 schemes, kernels and numbers of threads", len(got.Rows))
	}
	base := map[int]float64{}
	for _, r := range got.Rows {
		if r.Scheme == "f16" && r.Kernel == "decode" {
			base[r.Threads] = r.UsPerToken
		}
	}
	for _, r := range got.Rows {
		if r.SpeedupVsF16 == nil || math.Abs(*r.SpeedupVsF16*r.UsPerToken/base[r.Threads]-1) > 1e-12 {
			t.Errorf("%s of %s, %d threads: %v us, %v times as fast as %v us", r.Kernel, r.Scheme, r.Threads, r.UsPerToken, r.SpeedupVsF16, base[r.Threads])
		}
	}
	for _, args := range []string{"--kernel decode", "--kernel dequantize-then-f16"} {
		for _, r := range benchRows(t, "--ctx 256 --kv-heads 1 --threads 1 --scheme int8-token "+args).Rows {
			if r.SpeedupVsF16 == nil {
				t.Errorf("%s: nothing to compare with", args)
			}
		}
	}
}

// TestBenchModels holds the estimate for models whose layers differ, or cache latents,
// against the elements that attention reads of each: at two bytes, those of f16.
func TestBenchModels(t *testing.T) {
	for _, c := range []struct {
		model    string
		ctx      string
		layers   float64 // of the row's shape and length
		beyond   bool
		dimK, dV int
	}{
		{"8b", "256", 32, false, 128, 128},
		{"deepseek-v3", "256", 61, false, 576, 512},
		{"gpt-oss-20b", "256", 12 + 12*128.0/256, false, 64, 64}, // half its layers see 128 tokens
		{"gemma-3-1b", "64k", 4 + 22*512.0/65536, true, 256, 256},
	} {
		got := benchRows(t, "--threads 1 --scheme f16 --model "+c.model+" --ctx "+c.ctx)
		r := got.Rows[0]
		if r.ModelMs == nil || math.Abs(*r.ModelMs*1e3/r.UsPerToken/c.layers-1) > 1e-12 {
			t.Errorf("%s: %v ms, at %v us a layer; want %v layers", c.model, r.ModelMs, r.UsPerToken, c.layers)
		}
		if got.Geometry.HeadDimK != c.dimK || got.Geometry.HeadDimV != c.dV || strings.Contains(strings.Join(got.Warnings, "\n"), "beyond the model's maximum") != c.beyond {
			t.Errorf("%s: %+v, warnings %q", c.model, got.Geometry, got.Warnings)
		}
	}
	if code, _, stderr := run("bench", "--model", "gpt-oss-20b", "--window", "128"); code != exitUsage || !strings.Contains(stderr, "--window") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

// TestBenchBreakEven holds the estimates over the context against their closed form
// for 32 layers alike, whose bytes and time grow with the tokens.
func TestBenchBreakEven(t *testing.T) {
	got := benchRows(t, "--threads 1 --scheme f16,int8-token --model 8b --ctx 512")
	f16, row := got.Rows[0], got.Rows[1]
	if len(row.ModelMsAt) != 4 || f16.SavesFrom != 0 {
		t.Fatalf("%+v, f16 saves from %d", row.ModelMsAt, f16.SavesFrom)
	}
	for i, context := range []int64{1 << 10, 4 << 10, 16 << 10, 64 << 10} {
		at, want := row.ModelMsAt[i], 32*row.UsPerToken/1e3*float64(context)/512
		if at.Context != context || math.Abs(at.Ms/want-1) > 1e-9 {
			t.Errorf("%+v, want %v ms at %d", at, want, context)
		}
	}
	// 32 layers and n tokens: n/512 * 32 * (difference of a layer) is 1 ms or more.
	want := int64(math.Ceil(1e3 * 512 / 32 / (f16.UsPerToken - row.UsPerToken)))
	if want < 1 || want > 131072 {
		want = 0
	}
	if d := row.SavesFrom - want; d < -1 || d > 1 {
		t.Errorf("saves 1 ms from %d tokens, want %d", row.SavesFrom, want)
	}
	var out strings.Builder
	if err := benchReport(got, false).render(&out, formatTable, false); err != nil || !strings.Contains(out.String(), "64k  1 ms off") {
		t.Errorf("%v, %s", err, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > textWidth {
			t.Errorf("wider than %d: %q", textWidth, line)
		}
	}
}

// TestBenchLevels holds that rows say which cache they measured, and that the run
// does not claim another.
func TestBenchLevels(t *testing.T) {
	got := benchRows(t, "--ctx 64k --kv-heads 2 --threads 1 --scheme f16 --level l2")
	if r := got.Rows[0]; r.KVHeads != 1 || r.QueryHeads != 4 || int64(r.Tokens)*2*128*2 != r.CacheBytes || got.Geometry.KVHeads != 0 {
		t.Errorf("%+v of %+v", r, got.Geometry)
	}
	if title := benchTitle(got); strings.Contains(title, "tokens") || strings.Contains(title, "heads") {
		t.Errorf("title %q", title)
	}
}

// TestBenchTable holds what a table says of its columns, that it marks disturbed rows, and its width.
func TestBenchTable(t *testing.T) {
	x := 1.25
	row := benchRow{Kernel: "dequantize-then-f16", Scheme: "int8-channel:int8-token", Level: "dram", Path: "fused-avx512", Threads: 2, UsPerToken: 123456, GBps: 0.0421, ReadGBps: 28.4, Roofline: 0.0015, CapShare: &x, SpeedupVsF16: &x, CyclesPerLine: &x, Disturbed: true}
	b := benchJSON{Geometry: benchShape{KVHeads: 1, QueryHeads: 4, HeadDimK: 576, HeadDimV: 512}, Rows: []benchRow{row}}
	show := func(format string, wide bool) string {
		var out strings.Builder
		if err := benchReport(b, wide).render(&out, format, false); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	shown := show(formatTable, false)
	for line := range strings.Lines(shown) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > textWidth {
			t.Errorf("wider than %d: %q", textWidth, line)
		}
	}
	for _, want := range []string{"*123456", "* other work", "0.042", "0.0015", "1 KV head,", "head_dim 576/512", "thr:", "roofline:", "cap:", "x f16:"} {
		if !strings.Contains(shown, want) {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	if wide := show(formatTable, true); strings.Contains(shown, "cycles") || !strings.Contains(wide, "cycles/line:") {
		t.Errorf("cycles are explained where they are not shown, or the other way round:\n%s%s", shown, wide)
	}
	if md := show(formatMD, false); !strings.Contains(md, "*123456") || !strings.Contains(md, "other work") {
		t.Errorf("no mark in\n%s", md)
	}
	b.Rows[0].CapShare, b.Rows[0].SpeedupVsF16, b.Rows[0].Disturbed = nil, nil, false
	if shown = show(formatTable, false); strings.Contains(shown, "cap:") || strings.Contains(shown, "x f16") || strings.Contains(shown, "*") {
		t.Errorf("explains what is not shown:\n%s", shown)
	}
}

// TestFillCache holds that schemes of every kind have a paged
// cache; package kernels holds what attention over it gives.
func TestFillCache(t *testing.T) {
	shape := kernels.CacheShape{Heads: 2, DimK: 64, DimV: 64, Tokens: 130}
	read := func(dst []float32, key bool, head int) error {
		for i := range dst {
			dst[i] = float32((i*7+head*3)%11-5) / 4
		}
		return nil
	}
	for _, name := range []string{"f32", "f16", "bf16", "e4m3", "e5m2-raw", "int8-tensor", "int6-token", "int3-asym-channel/32", "int4-zp-channel/7", "int8-zp-head@f32", "int4-asym-token/32@bf16", "q8_0", "q4_0:q4_1", "nvfp4-ts", "iq4_nl:q8_kv"} {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			t.Fatal(err)
		}
		cache, err := fillCache(shape, pair, nil, read)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if cache.Tokens() != shape.Tokens {
			t.Errorf("%s: %d tokens", name, cache.Tokens())
		}
		cache.Close()
	}
}

// TestHelpWidth holds that the help of every command keeps to 80 columns, but for
// examples: a command is not broken.
func TestHelpWidth(t *testing.T) {
	_, stdout, _ := run("--help")
	for _, name := range []string{"bench", "capture", "convert", "cpu", "devices", "encode", "eval", "inspect", "models", "plan", "schemes", "synth", "version"} {
		if !strings.Contains(stdout, "\n  "+name+" ") {
			t.Errorf("kvq --help does not list %s", name)
		}
		_, help, _ := run(name, "--help")
		for line := range strings.Lines(help) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 && !strings.HasPrefix(line, "  kvq ") {
				t.Errorf("kvq %s --help: a line of %d columns: %s", name, n, line)
			}
		}
	}
}
