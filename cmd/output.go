package cmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The formats of --format. html exists where a command has a report for it.
const (
	formatTable = "table"
	formatMD    = "md"
	formatCSV   = "csv"
	formatTSV   = "tsv"
	formatJSON  = "json"
	formatHTML  = "html"
)

func addOutputFlags(f *pflag.FlagSet) {
	f.String("format", formatTable, "table, md, csv, tsv, json; html where a report exists")
	f.StringP("output", "o", "", "write the result to `FILE`, all of it or nothing")
	f.String("color", "auto", "auto, always or never")
	f.BoolP("quiet", "q", false, "no progress bar, warnings or notes")
}

// output is where a command's result goes and in which form. Results go to
// standard output or to the file of -o; everything else to standard error.
type output struct {
	streams  Streams
	format   string
	path     string // of -o, "" for standard output
	color    bool
	quiet    bool
	terminal bool // standard error is one: progress bars make sense
}

// newOutput reads the global flags. extra names the formats that this command
// offers beyond the common ones.
func newOutput(c *cobra.Command, s Streams, extra ...string) (*output, error) {
	f := c.Flags()
	o := &output{streams: s}
	// The flags are defined on the root command, so reading them cannot fail.
	o.format, _ = f.GetString("format")
	o.path, _ = f.GetString("output")
	o.quiet, _ = f.GetBool("quiet")
	o.format = strings.ToLower(o.format)
	formats := append([]string{formatTable, formatMD, formatCSV, formatTSV, formatJSON}, extra...)
	if !slices.Contains(formats, o.format) {
		return nil, usagef("--format %q: not one of %s", o.format, strings.Join(formats, ", "))
	}
	color, _ := f.GetString("color")
	switch color {
	case "always":
		o.color = true
	case "never":
	case "auto":
		o.color = o.path == "" && s.Getenv("NO_COLOR") == "" && s.Getenv("TERM") != "dumb" && isTerminal(s.Out)
	default:
		return nil, usagef("--color %q: not one of auto, always, never", color)
	}
	o.terminal = isTerminal(s.Err)
	return o, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}

// report writes r in the asked format.
func (o *output) report(r report) error {
	return o.write(func(w io.Writer) error { return r.render(w, o.format, o.color) })
}

// write collects what render produces and hands it over only when it is
// complete: a failure leaves standard output empty and the file of -o as it was.
func (o *output) write(render func(io.Writer) error) error {
	var b bytes.Buffer
	if err := render(&b); err != nil {
		return err
	}
	if o.path == "" {
		_, err := o.streams.Out.Write(b.Bytes())
		return err
	}
	return writeFile(o.path, func(w io.Writer) error {
		_, err := w.Write(b.Bytes())
		return err
	})
}

// spare fails where -o names a file that the command reads, which writing
// would destroy.
func (o *output) spare(inputs ...string) error {
	if o.path == "" {
		return nil
	}
	out, err := os.Stat(o.path)
	if err != nil || !out.Mode().IsRegular() {
		return nil // nothing to lose, or not by us
	}
	for _, path := range inputs {
		if in, err := os.Stat(path); err == nil && os.SameFile(in, out) {
			return usagef("-o %s: that is the input", o.path)
		}
	}
	return nil
}

// warn prints a warning: the result stands, but the reader should know.
func (o *output) warn(format string, args ...any) { o.say("warning: ", format, args) }

// note prints what is worth knowing and no cause for doubt.
func (o *output) note(format string, args ...any) { o.say("note: ", format, args) }

// hint prints what the user could do next.
func (o *output) hint(format string, args ...any) { o.say("hint: ", format, args) }

func (o *output) say(kind, format string, args []any) {
	if !o.quiet {
		fmt.Fprintf(o.streams.Err, "kvq: %s%s\n", kind, oneLine(fmt.Sprintf(format, args...)))
	}
}

// progress is a bar with rate and remaining time on a terminal's standard
// error, and nothing elsewhere. It is for one goroutine at a time.
type progress struct {
	bar   *progressbar.ProgressBar
	scale int64
}

// progress starts a bar of total steps. Steps are counted in thousands,
// millions or more of unit where there are many.
func (o *output) progress(what, unit string, total int64) *progress {
	p := &progress{scale: 1}
	if !o.terminal || o.quiet || total <= 0 {
		return p
	}
	prefix := ""
	for _, next := range []string{"k", "M", "G", "T"} {
		if total/p.scale < 1_000_000 {
			break
		}
		p.scale *= 1000
		prefix = next
	}
	p.bar = progressbar.NewOptions64(total/p.scale,
		progressbar.OptionSetWriter(o.streams.Err),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWidth(24),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetItsString(prefix+unit),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
	return p
}

// set says that done of the total steps are done.
func (p *progress) set(done int64) {
	if p.bar != nil {
		_ = p.bar.Set64(done / p.scale) // a bar that cannot be drawn is no failure
	}
}

// done removes the bar, if one was ever started.
func (p *progress) done() {
	if p != nil && p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
}

// writeFile writes a file that appears whole or not at all: it is written
// beside its name and renamed. Devices, pipes and symbolic links are written
// through, as a shell redirection would. Missing directories are an error.
func writeFile(path string, write func(io.Writer) error) error {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSymlink != 0 {
		// /dev/stdout names a pipe by a link that leads to no path.
		target, err := filepath.EvalSymlinks(path)
		if pipe, statErr := os.Stat(path); err != nil && (statErr != nil || pipe.Mode().IsRegular()) {
			return err
		}
		if err == nil {
			path = target
		}
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("write %s: is a directory", path)
	case err == nil && !info.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		if err := write(f); err != nil {
			f.Close()
			return err
		}
		return f.Close()
	}
	temp, err := writeBeside(path, info, write)
	if err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		os.Remove(temp)
		return err
	}
	return nil
}

// writeBeside writes a whole file under a temporary name in path's directory,
// to be renamed, and leaves none where that fails. info is of the file that it
// will replace, nil for none.
func writeBeside(path string, info os.FileInfo, write func(io.Writer) error) (temp string, err error) {
	mode := os.FileMode(0o666)
	if info != nil {
		mode = info.Mode().Perm()
	}
	f, err := createBeside(path, mode)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	if info != nil { // an existing file keeps its permissions, whatever the umask
		if err := f.Chmod(mode); err != nil {
			return "", err
		}
	}
	return f.Name(), f.Close()
}

// createBeside creates a new file in path's directory. os.CreateTemp would
// give it mode 0600, which renaming would keep.
func createBeside(path string, mode os.FileMode) (*os.File, error) {
	for i := 0; ; i++ {
		name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.%d.tmp", filepath.Base(path), os.Getpid(), i))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if !os.IsExist(err) || i == 1000 {
			if err != nil {
				// The temporary name means nothing to the user.
				return nil, fmt.Errorf("write %s: %w", path, unwrapPath(err))
			}
			return f, nil
		}
	}
}

// unwrapPath drops the operation and file name of an os error.
func unwrapPath(err error) error {
	if e, ok := err.(*os.PathError); ok {
		return e.Err
	}
	return err
}

// ofFile says after which flag the file of an error was named.
func ofFile(flag string, err error) error {
	if e, ok := err.(*os.PathError); ok {
		return fmt.Errorf("%s %s: %w", flag, e.Path, e.Err)
	}
	return fmt.Errorf("%s %w", flag, err)
}

// writeJSON writes v indented, with <, > and & as they are.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
