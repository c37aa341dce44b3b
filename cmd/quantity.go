package cmd

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"kvq/formula"
)

// tokensFlag is a flag's number of tokens, 0 for none: 4096, 4k, 1m.
type tokensFlag int64

func (t *tokensFlag) Set(text string) error {
	if strings.TrimSpace(text) == "0" {
		*t = 0
		return nil
	}
	n, err := formula.ParseTokens(text)
	*t = tokensFlag(n)
	return err
}

func (t *tokensFlag) String() string { return strconv.FormatInt(int64(*t), 10) }
func (t *tokensFlag) Type() string   { return "tokens" }

// units says how tables show memory.
type units string

// The units of --units.
const (
	unitsIEC   units = "iec"   // KiB, MiB, GiB
	unitsSI    units = "si"    // kB, MB, GB
	unitsBytes units = "bytes" // exact bytes
)

func parseUnits(s string) (units, error) {
	switch u := units(strings.ToLower(s)); u {
	case unitsIEC, unitsSI, unitsBytes:
		return u, nil
	}
	return "", usagef("--units %q: not one of iec, si, bytes", s)
}

// format shows n bytes with four significant digits and a unit, or exactly.
func (u units) format(n int64) string {
	base, names := 1024.0, []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	switch u {
	case unitsBytes:
		return grouped(n)
	case unitsSI:
		base, names = 1000, []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}
	}
	if n < 0 {
		return "-" + u.format(-n)
	}
	x, i := float64(n), 0
	for x >= base && i < len(names)-1 {
		x /= base
		i++
	}
	if i == 0 {
		return strconv.FormatInt(n, 10) + " B"
	}
	// 1023.96 KiB would show as 1024.0 KiB or 1024 KiB; that is 1 MiB's job only
	// when it is exact, so the digits stay with the smaller unit.
	return significant(x, 4) + " " + names[i]
}

// grouped writes an integer with thousands separators: 4,294,967,296.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// significant shows x with the given number of significant digits: plain
// where that is short, else with an exponent. Only an exact zero shows as 0.
func significant(x float64, digits int) string {
	switch {
	case x == 0:
		return "0"
	case math.IsNaN(x) || math.IsInf(x, 0):
		return fmt.Sprint(x)
	}
	// Rounding may carry into the next power of ten, so it decides first.
	e := strconv.FormatFloat(x, 'e', digits-1, 64)
	exp, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
	switch {
	case exp < -3 || exp >= 7:
		mantissa := e[:strings.IndexByte(e, 'e')]
		return mantissa + "e" + strconv.Itoa(exp)
	case exp >= digits-1:
		return strconv.FormatFloat(x, 'f', 0, 64)
	default:
		return strconv.FormatFloat(x, 'f', digits-1-exp, 64)
	}
}

// exact writes x so that reading it back gives x.
func exact(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// text is a cell that reads the same for people and programs.
func text(s string) cell { return cell{s, s} }

// count is a whole number.
func count(n int64) cell { return cell{grouped(n), strconv.FormatInt(n, 10)} }

// number is a real number, shown with the given significant digits.
func number(x float64, digits int) cell { return cell{significant(x, digits), exact(x)} }

// fixed is a real number, shown with the given digits after the point.
func fixed(x float64, decimals int) cell {
	s := strconv.FormatFloat(x, 'f', decimals, 64)
	if strings.Trim(s, "-0.") == "" {
		s = strings.TrimPrefix(s, "-")
	}
	return cell{s, exact(x)}
}

// size is an amount of memory, exact in bytes for programs.
func (u units) size(n int64) cell { return cell{u.format(n), strconv.FormatInt(n, 10)} }

// absent is a figure that does not exist: a dash for people, empty for programs.
func absent() cell { return cell{"-", ""} }
