package dumps

import (
	"errors"
	"fmt"
	"strconv"
)

// ErrFormat is wrapped by every error about the content of a file: it is
// truncated, contradicts itself, or does not hold what a dump needs.
var ErrFormat = errors.New("malformed dump")

// errNoLayer is wrapped (beside ErrFormat) by the error for a well-formed file
// that holds no layer dump. Directories and globs skip such files.
var errNoLayer = errors.New("no layer dump")

// FormatError says which file is wrong, where, and what to do about it.
type FormatError struct {
	Path   string
	Offset int64  // byte in the file where the fault was noticed; −1 if it has no place
	Msg    string // one line, lower case, no full stop
	hint   string
	kind   error // nil or a further sentinel, for errors.Is
}

// Error returns "path: message (byte offset)".
func (e *FormatError) Error() string {
	s := e.Path + ": " + e.Msg
	if e.Offset >= 0 {
		s += fmt.Sprintf(" (byte %d)", e.Offset)
	}
	return s
}

// Unwrap makes errors.Is(err, ErrFormat) true.
func (e *FormatError) Unwrap() []error {
	if e.kind != nil {
		return []error{ErrFormat, e.kind}
	}
	return []error{ErrFormat}
}

// OptionError says that an option, not a file, is wrong.
type OptionError struct {
	Option string // flag name without dashes, such as "layout"
	Msg    string
}

func (e *OptionError) Error() string { return "--" + e.Option + ": " + e.Msg }

func formatErrorf(path string, offset int64, format string, args ...any) *FormatError {
	return &FormatError{Path: path, Offset: offset, Msg: fmt.Sprintf(format, args...)}
}

// Hint says what to do about the error, if there is something to be said.
func (e *FormatError) Hint() string { return e.hint }

// quote renders a name found in a file: escaped, and short whatever its length.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strconv.Quote(s)
}
