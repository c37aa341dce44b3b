package cmd

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestREADME runs the blocks of README.md and docs/*.md that start with
// "$ kvq": what they show must be what kvq prints. A line "..." in a block
// stands for any lines, and a block marked <!-- not compared --> on the line
// above it only has to succeed, because it shows what differs between machines.
func TestREADME(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, "../README.md") {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range transcripts(string(raw)) {
			found++
			t.Run(filepath.Base(page)+"/"+b.command, func(t *testing.T) {
				t.Chdir("..")
				args, err := shellFields(b.command)
				if err != nil {
					t.Fatal(err)
				}
				code, stdout, stderr := run(args[1:]...)
				if code != exitOK && code != exitNo {
					t.Fatalf("exit code %d: %s", code, stderr)
				}
				if b.compared && !matchTranscript(b.output, stdout+stderr) {
					t.Errorf("%s shows\n%s\nkvq prints\n%s", page, b.output, stdout+stderr)
				}
			})
		}
	}
	if found == 0 {
		t.Error("no transcript was found")
	}
}

type transcript struct {
	command, output string
	compared        bool
}

var fence = regexp.MustCompile("(?ms)^(<!-- not compared -->\n)?```[a-z]*\n(\\$ kvq .*?)^```")

// transcripts returns the commands of a page's blocks and what follows each.
func transcripts(page string) []transcript {
	var all []transcript
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		for _, part := range strings.Split(m[2], "$ kvq ")[1:] {
			command, output, _ := strings.Cut(part, "\n")
			all = append(all, transcript{"kvq " + command, output, m[1] == ""})
		}
	}
	return all
}

// shellFields splits a command line at spaces outside single quotes.
func shellFields(s string) ([]string, error) {
	var fields []string
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			fields = append(fields, part)
		} else {
			fields = append(fields, strings.Fields(part)...)
		}
	}
	return fields, nil
}

// matchTranscript compares line by line; "..." matches any number of lines.
func matchTranscript(want, got string) bool {
	parts := strings.Split("\n"+strings.TrimRight(want, "\n")+"\n", "\n...\n")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(p)
	}
	return regexp.MustCompile(`(?s)\A` + strings.Join(parts, `\n(?:.*\n)?`) + `\z`).MatchString("\n" + strings.TrimRight(got, "\n") + "\n")
}
