// Package cmd is the command line of kvq: flags, rendering and exit codes.
package cmd

import (
	"io"
	"os"
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
func Main(args []string, s Streams) int { return 0 }
