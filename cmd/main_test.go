package cmd

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"kvq/formula"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"kvq": func() { os.Exit(Main(os.Args[1:], System())) },
	})
}

// run runs kvq in this process and returns its exit code and outputs.
func run(args ...string) (code int, stdout, stderr string) {
	var out, errOut bytes.Buffer
	code = Main(args, Streams{
		In: strings.NewReader(""), Out: &out, Err: &errOut,
		Getenv: func(string) string { return "" },
	})
	return code, out.String(), errOut.String()
}

// TestScripts runs testdata/script. KVQ_UPDATE=1 rewrites the expected outputs
// in them, which are then to be read, not trusted.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       os.Getenv("KVQ_UPDATE") != "",
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			root, err := filepath.Abs("..")
			if err != nil {
				return err
			}
			e.Setenv("KVQ_ROOT", root)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// exits CODE kvq ARGS...: testscript's ! only tells zero from the rest.
			"exits": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: exits CODE PROGRAM [ARGS...]")
				}
				err := ts.Exec(args[1], args[2:]...)
				got := "0"
				if exit, ok := err.(*exec.ExitError); ok {
					got = exit.ProcessState.String()[len("exit status "):]
				} else if err != nil {
					ts.Fatalf("%v", err)
				}
				if got != args[0] {
					ts.Fatalf("exit code %s, want %s\n%s", got, args[0], ts.ReadFile("stderr"))
				}
			},
		},
	})
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		args   string
		code   int
		stderr string // a part of it; "" means that it is empty
	}{
		{"", exitOK, ""},
		{"version", exitOK, ""},
		{"version --format JSON", exitOK, ""},
		{"help version", exitOK, ""},
		{"--help", exitOK, ""},
		{"completion bash", exitOK, ""},
		{"verson", exitUsage, `hint: did you mean 'kvq version'?`},
		{"help verson", exitUsage, `unknown command "verson"`},
		{"completion fsh", exitUsage, `unknown command "fsh"`},
		{"version extra", exitUsage, `unexpected argument "extra": kvq version takes none`},
		{"version --no-such-flag", exitUsage, "unknown flag: --no-such-flag"},
		{"version --format", exitUsage, "flag needs an argument"},
		{"version --format yaml", exitUsage, `--format "yaml": not one of table, md`},
		{"version --color sometimes", exitUsage, `--color "sometimes"`},
		{"version -o testdata", exitFailure, "testdata: is a directory"},
		{"version -o testdata/no/such/dir", exitFailure, "no such file"},
	} {
		code, _, stderr := run(strings.Fields(test.args)...)
		if code != test.code {
			t.Errorf("kvq %s: exit code %d, want %d (%s)", test.args, code, test.code, stderr)
		}
		if test.stderr == "" && stderr != "" || !strings.Contains(stderr, test.stderr) {
			t.Errorf("kvq %s: stderr %q, want %q", test.args, stderr, test.stderr)
		}
		for line := range strings.Lines(stderr) {
			if !strings.HasPrefix(line, "kvq: ") || strings.HasSuffix(line, ".\n") {
				t.Errorf("kvq %s: stderr line %q", test.args, line)
			}
		}
	}
}

// TestHelpReportsWriteErrors: help that nobody could read is no success.
func TestHelpReportsWriteErrors(t *testing.T) {
	for _, args := range []string{"", "--help", "eval --help", "help eval", "--version", "completion bash"} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		write.Close() // writing to it fails
		var stderr bytes.Buffer
		code := Main(strings.Fields(args), Streams{In: strings.NewReader(""), Out: write, Err: &stderr, Getenv: func(string) string { return "" }})
		read.Close()
		if code != exitFailure || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("kvq %s: exit code %d, stderr %q", args, code, stderr.String())
		}
	}
}

// TestFlagValues: a flag's value that cannot be read gets one line in kvq's own
// words, and an empty one is never taken for a flag that was not given.
func TestFlagValues(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"plan", "--model", "8b", "--tp", "1.5"}, `--tp "1.5": want a whole number`},
		{[]string{"plan", "--model", "8b", "--tp", "99999999999999999999"}, `--tp "99999999999999999999": out of range`},
		{[]string{"plan", "--model", "8b", "--sessions", "many"}, `--sessions "many": want a whole number`},
		{[]string{"eval", "--dump", "x.npy", "--scale", "x"}, `--scale "x": want a number`},
		{[]string{"eval", "--dump", "x.npy", "--causal=maybe"}, `--causal "maybe": want true or false`},
		{[]string{"eval", "--dump", "x.npy", "--window", "-3"}, `--window "-3" is not a number of tokens`},
		{[]string{"eval", "--dump", "x.npy", "--threads", "9223372036854775807"}, `--threads 9223372036854775807: want 1 to 1024`},
		{[]string{"plan", "--model", "8b", "--sweep", "sessions=0..4"}, `"0" is not a number of sessions`},
		{[]string{"plan", "--model", "8b", "--ctx", ""}, "--ctx: its value is empty"},
		{[]string{"plan", "--model", "8b", "--memory", "", "--weights", "16GiB"}, "--memory: its value is empty"},
		{[]string{"plan", "--model", "8b", "--scheme", ""}, "--scheme: its value is empty"},
		{[]string{"plan", "--model", ""}, "--model: its value is empty"},
		{[]string{"plan", "--model", "8b", "-o", ""}, "--output: its value is empty"},
		{[]string{"eval", "--dump", ""}, "--dump: its value is empty"},
		{[]string{"plan", "8b"}, "hint: kvq plan --model 8b"},
		{[]string{"eval", "layer12.npy"}, "hint: kvq eval --dump layer12.npy"},
		{[]string{"version", "8b"}, `unexpected argument "8b": kvq version takes none`},
	} {
		code, stdout, stderr := run(test.args...)
		if code != exitUsage || stdout != "" || !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") > 2 {
			t.Errorf("kvq %q: exit code %d, want %d; stdout %q, stderr %q, want %q", test.args, code, exitUsage, stdout, stderr, test.want)
		}
	}
}

// TestOutputSparesInput: -o must not replace what the command reads, under
// whatever name; an earlier report may be replaced.
func TestOutputSparesInput(t *testing.T) {
	dir := t.TempDir()
	dump, config, link := filepath.Join(dir, "x.npz"), filepath.Join(dir, "config.json"), filepath.Join(dir, "link")
	if code, _, stderr := run("synth", "-o", dump, "--tokens", "8", "--kv-heads", "1", "--query-heads", "1", "--head-dim", "8", "--queries", "8"); code != exitOK {
		t.Fatal(stderr)
	}
	text := `{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":4,"hidden_size":64}`
	if err := os.WriteFile(config, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(config, link); err != nil {
		t.Skip(err)
	}
	before, err := os.ReadFile(dump)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"plan", "--config", config, "--ctx", "4k", "-o", config},
		{"plan", "--config", dir, "--ctx", "4k", "-o", config},
		{"plan", "--config", config, "--ctx", "4k", "-o", link},
		{"plan", "--model", "8b", "--ctx", "4k", "--draft", config, "-o", config},
		{"inspect", dump, "-o", dump},
		{"inspect", filepath.Join(dir, "*.npz"), "-o", dump},
		{"eval", "--no-bench", "--dump", dump, "--scheme", "int8", "-o", dump},
	} {
		if code, _, stderr := run(args...); code != exitUsage || !strings.Contains(stderr, "that is the input") {
			t.Errorf("kvq %q: exit code %d, stderr %q", args, code, stderr)
		}
	}
	after, _ := os.ReadFile(dump)
	kept, _ := os.ReadFile(config)
	if !bytes.Equal(after, before) || string(kept) != text {
		t.Error("an input was replaced")
	}
	report := filepath.Join(dir, "base.json")
	for range 2 {
		if code, _, stderr := run("eval", "--no-bench", "--dump", dump, "--scheme", "int8", "--format", "json", "-o", report); code != exitOK {
			t.Error(stderr)
		}
	}
	if text, _ := os.ReadFile(report); !strings.Contains(string(text), `"warnings": []`) {
		t.Errorf("%s: want an empty list of warnings", text)
	}
	// A gate must not replace what it is held against, nor convert its source.
	truth, tensors := filepath.Join(dir, "truth.tsv"), filepath.Join(dir, "x.safetensors")
	if err := os.WriteFile(truth, []byte("pair\tlogit_kl_mean\nint8\t0.1\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := run("convert", dump, "-o", tensors); code != exitOK {
		t.Fatal(stderr)
	}
	linked := filepath.Join(dir, "linked.safetensors")
	for link, target := range map[string]string{filepath.Join(dir, "base.link"): report, linked: tensors} {
		if err := os.Symlink(target, link); err != nil {
			t.Skip(err)
		}
	}
	gate := []string{"eval", "--no-bench", "--dump", dump, "--scheme", "int4-token", "--format", "json"}
	for _, c := range []struct {
		kept string
		args []string
	}{
		{report, append(gate[:len(gate):len(gate)], "--baseline", report, "-o", report)},
		{report, append(gate[:len(gate):len(gate)], "--baseline", filepath.Join(dir, "base.link"), "-o", report)},
		{report, append(gate[:len(gate):len(gate)], "--baseline", report, "-o", filepath.Join(dir, "base.link"))},
		{truth, append(gate[:len(gate):len(gate)], "--truth", truth, "-o", truth)},
		{tensors, []string{"convert", tensors, "--tokens", "0:4", "-o", tensors}},
		{tensors, []string{"convert", linked, "--tokens", "0:4", "-o", tensors}},
		{tensors, []string{"convert", dir, "--tokens", "0:4", "-o", linked}},
	} {
		before, err := os.ReadFile(c.kept)
		if err != nil {
			t.Fatal(err)
		}
		if code, _, stderr := run(c.args...); code != exitUsage || !strings.Contains(stderr, "that is the input") {
			t.Errorf("kvq %q: exit code %d, stderr %q", c.args, code, stderr)
		}
		if after, _ := os.ReadFile(c.kept); !bytes.Equal(after, before) {
			t.Errorf("kvq %q replaced %s", c.args, c.kept)
		}
	}
}

// TestHelpFits: help keeps to the width of a terminal.
func TestHelpFits(t *testing.T) {
	helps := [][]string{{"--help"}, {"capture", "hf", "--help"}}
	for _, c := range newRoot(System()).Commands() {
		if c.Name() != "completion" {
			helps = append(helps, []string{c.Name(), "--help"})
		}
	}
	for _, e := range formula.Engines() {
		helps = append(helps, []string{"plan", "--engine", e.Name, "--help"})
	}
	for _, args := range helps {
		code, stdout, stderr := run(args...)
		if code != exitOK || stdout == "" {
			t.Errorf("kvq %q: exit code %d, %s", args, code, stderr)
		}
		for line := range strings.Lines(stdout) {
			if len([]rune(strings.TrimSuffix(line, "\n"))) > textWidth {
				t.Errorf("kvq %q: %q", args, line)
			}
		}
	}
}

// TestImports holds the direction of the packages: no edge that is not listed.
func TestImports(t *testing.T) {
	allowed := map[string][]string{
		"kvq":          {"kvq/cmd"},
		"kvq/cmd":      {"kvq/dumps", "kvq/eval", "kvq/formula", "kvq/kernels", "kvq/quantize"},
		"kvq/eval":     {"kvq/kernels", "kvq/quantize"},
		"kvq/quantize": {"kvq/kernels"},
		"kvq/kernels":  {"unsafe", "github.com/klauspost/cpuid/v2"},
		"kvq/formula":  {},
		"kvq/dumps":    {},
	}
	only := map[string]string{
		"unsafe":                            "kvq/kernels",
		"github.com/klauspost/cpuid/v2":     "kvq/kernels",
		"github.com/olekukonko/tablewriter": "kvq/cmd",
		"gonum.org/v1/plot":                 "kvq/cmd",
		"github.com/spf13/cobra":            "kvq/cmd",
		"github.com/schollz/progressbar/v3": "kvq/cmd",
		"github.com/rogpeppe/go-internal":   "",
		"C":                                 "",
	}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "kvq/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		from := fields[0]
		// A package below a package has the rights of that package.
		part := strings.Join(strings.SplitN(from, "/", 3)[:min(2, strings.Count(from, "/")+1)], "/")
		edges, ok := allowed[part]
		if !ok {
			t.Errorf("package %s has no place in the layout", from)
			continue
		}
		seen++
		for _, to := range fields[1:] {
			ours := to == "kvq" || strings.HasPrefix(to, "kvq/")
			inside := to == part || strings.HasPrefix(to, part+"/")
			if ours && !inside && !slices.Contains(edges, to) {
				t.Errorf("%s imports %s", from, to)
			}
			for prefix, owner := range only {
				if (to == prefix || strings.HasPrefix(to, prefix+"/")) && part != owner {
					t.Errorf("%s imports %s, which is for %q only", from, to, owner)
				}
			}
		}
	}
	if seen < len(allowed) {
		t.Errorf("go list named %d packages, want at least %d", seen, len(allowed))
	}
}
