// Package cmd is the command line of kvq: flags, rendering and exit codes.
package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kvq/dumps"
	"kvq/eval"
	"kvq/quantize"
)

// The exit codes of kvq. There are no others.
const (
	exitOK      = 0
	exitFailure = 1 // I/O, a corrupt file, memory
	exitUsage   = 2 // the command line asks for something that does not exist
	exitNo      = 3 // the question was understood and the answer is "no"
)

// Streams are the process's input, outputs and environment, as Main sees them.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
}

// System returns the process's own streams.
func System() Streams {
	return Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv}
}

// Main runs kvq with the arguments after the program's name and returns its exit code.
func Main(args []string, s Streams) int {
	// What asks a process to end must leave no temporary file behind. One that
	// the parent ignores, as nohup does, stays ignored.
	signals := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}, signal.Ignored)
	ctx, stop := context.WithCancel(context.Background())
	if len(signals) > 0 { // NotifyContext takes none for all
		ctx, stop = signal.NotifyContext(ctx, signals...)
	}
	defer stop()
	// A second signal ends the process at once, whatever it is doing.
	context.AfterFunc(ctx, stop)

	root := newRoot(s)
	root.SetArgs(args)
	ran := watchRun(root)
	help := &keepError{w: s.Out}
	root.SetOut(help)
	c, err := root.ExecuteContextC(ctx)
	if help.err != nil {
		err, *ran = help.err, true // and no mistake in the command line
	}
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if !*ran {
		// Whatever cobra finds wrong before a command runs (an unknown command
		// or flag, an argument too many) is wrong with the command line.
		err = usageError{err}
	}
	fmt.Fprintf(s.Err, "kvq: %s\n", oneLine(err.Error()))
	code := exitCode(err)
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(s.Err, "kvq: hint: %s\n", oneLine(hint))
	} else if code == exitUsage {
		fmt.Fprintf(s.Err, "kvq: hint: run '%s --help'\n", c.CommandPath())
	}
	return code
}

// keepError remembers that writing failed, which cobra's help does not report.
type keepError struct {
	w   io.Writer
	err error
}

func (k *keepError) Write(p []byte) (int, error) {
	n, err := k.w.Write(p)
	if err != nil {
		k.err = err
	}
	return n, err
}

// newRoot returns the command tree. Every command reads the global flags
// through newOutput.
func newRoot(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "kvq",
		Short: "plan the memory of a KV cache, and measure what quantizing it costs and gains",
		Long: `kvq answers one question with evidence: how far can this model's KV cache be
compressed, what does that save, and what does it cost?

Exit codes: 0 success, 1 failure, 2 usage error, 3 the answer is "no".`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(flagError)
	root.Version = versionOf()
	root.SetVersionTemplate("{{.Version}}\n")
	addOutputFlags(root.PersistentFlags())
	root.AddCommand(
		newPlan(s),
		newEval(s),
		newModels(s),
		newDevices(s),
		newSchemes(s),
		newEncode(s),
		newCapture(s),
		newBench(s),
		newCPU(s),
		newInspect(s),
		newConvert(s),
		newSynth(s),
		newVersion(s),
	)
	root.SetHelpCommand(newHelp())
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", textWidth)))
	root.InitDefaultCompletionCmd()
	return root
}

// watchRun reports through its result whether a command was reached. Commands
// that say nothing about arguments take none; those that only hold others show
// their help, and refuse names they do not know instead of ignoring them.
func watchRun(root *cobra.Command) *bool {
	ran := new(bool)
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		switch {
		case !c.Runnable():
			c.Args = cobra.ArbitraryArgs
			c.RunE = func(c *cobra.Command, args []string) error {
				if len(args) > 0 {
					return unknownCommand(c, args[0])
				}
				return c.Help()
			}
		case c.Args == nil:
			c.Args = noArgs("")
		}
		if run := c.RunE; run != nil {
			c.RunE = func(c *cobra.Command, args []string) error {
				if err := refuseEmptyFlags(c.Flags()); err != nil {
					return err
				}
				*ran = true
				return run(c, args)
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(root)
	return ran
}

// noArgs refuses arguments. Where one is what people type for a flag's value,
// flag names it.
func noArgs(flag string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		err := usagef("unexpected argument %q: %s takes none", args[0], c.CommandPath())
		if flag != "" {
			return withHint(err, "%s %s %s", c.CommandPath(), flag, args[0])
		}
		return err
	}
}

// refuseEmptyFlags fails for a flag that was given an empty value, as a script
// does whose variable is not set: taking the default then would answer another
// question.
func refuseEmptyFlags(f *pflag.FlagSet) (err error) {
	f.Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == ""
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values := list.GetSlice()
			empty = len(values) == 0 || slices.Contains(values, "")
		}
		if empty && err == nil {
			err = usagef("--%s: its value is empty", f.Name)
		}
	})
	return err
}

// flagError says what a flag's value should have been.
func flagError(_ *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	name, value := invalid.GetFlag().Name, invalid.GetValue()
	want := ""
	switch invalid.GetFlag().Value.Type() {
	case "int", "int64", "uint64", "intSlice":
		want = "a whole number"
	case "float64":
		want = "a number"
	case "bool":
		want = "true or false"
	default:
		return fmt.Errorf("--%s %w", name, errors.Unwrap(invalid))
	}
	if errors.Is(err, strconv.ErrRange) {
		return fmt.Errorf("--%s %q: out of range", name, value)
	}
	return fmt.Errorf("--%s %q: want %s", name, value, want)
}

// newHelp replaces cobra's help command, which succeeds for unknown topics.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "explain a command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			if err != nil || found == nil || len(rest) > 0 {
				return unknownCommand(c.Root(), strings.Join(args, " "))
			}
			return found.Help()
		},
	}
}

func unknownCommand(c *cobra.Command, name string) error {
	err := usagef("unknown command %q", name)
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(name); len(near) > 0 {
		path := c.CommandPath()
		return withHint(err, "did you mean '%s %s'?", path, strings.Join(near, "' or '"+path+" "))
	}
	return err
}

// usageError is a mistake in the command line itself.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usagef returns a usage error: exit code 2.
func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// noError says that the question was answered, and the answer is "no".
type noError struct{ error }

func (e noError) Unwrap() error { return e.error }

// answerNo returns the error for a check that did not hold or a scheme that
// does not fit: exit code 3.
func answerNo(format string, args ...any) error { return noError{fmt.Errorf(format, args...)} }

// hintError adds what the user can do about an error.
type hintError struct {
	error
	hint string
}

func (e hintError) Unwrap() error { return e.error }
func (e hintError) Hint() string  { return e.hint }

// withHint adds a hint, printed on a line of its own, to err.
func withHint(err error, format string, args ...any) error {
	return hintError{err, fmt.Sprintf(format, args...)}
}

// hintOf returns the hint that an error of this or another package carries.
func hintOf(err error) string {
	var hinted interface{ Hint() string }
	var scheme *quantize.SchemeError
	var scale *quantize.RangeError
	var value *quantize.ValueError
	var check *eval.UsageError
	switch {
	case errors.As(err, &hinted):
		return hinted.Hint()
	case errors.As(err, &scheme):
		return scheme.Hint
	case errors.As(err, &scale):
		return scale.Hint
	case errors.As(err, &value):
		return value.Hint
	case errors.As(err, &check):
		return check.Hint
	}
	return ""
}

// exitCode is the only place that turns errors into exit codes.
func exitCode(err error) int {
	var usage usageError
	var no noError
	var scheme *quantize.SchemeError // a name that was typed
	var option *dumps.OptionError    // a flag's value
	var check *eval.UsageError       // a check that cannot be asked
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage), errors.As(err, &scheme), errors.As(err, &option), errors.As(err, &check):
		return exitUsage
	case errors.As(err, &no):
		return exitNo
	default:
		return exitFailure
	}
}

// oneLine keeps a message that quotes hostile input on one printable line.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
