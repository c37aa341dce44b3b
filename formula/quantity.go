package formula

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"
)

// ParseTokens reads a number of tokens as people write it: 32768, 32,768,
// 32_768, 32k or 128K (x 1024), 1m (x 1024 x 1024), 1.5k. The result is a whole number
// from 1.
func ParseTokens(text string) (int64, error) {
	n, err := parseQuantity(text, map[string]int64{
		"": 1, "k": 1 << 10, "ki": 1 << 10, "m": 1 << 20, "mi": 1 << 20, "g": 1 << 30, "gi": 1 << 30,
	})
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of tokens: %w", text, err)
	}
	if n < 1 {
		return 0, fmt.Errorf("%q is not a number of tokens: want at least 1", text)
	}
	return n, nil
}

// ParseBytes reads an amount of memory: bytes, or with a unit. GiB and G (and
// K, M, T likewise) are powers of 1024, GB powers of 1000.
func ParseBytes(text string) (int64, error) {
	n, err := parseQuantity(text, map[string]int64{
		"": 1, "b": 1,
		"k": 1 << 10, "ki": 1 << 10, "kib": 1 << 10, "kb": 1e3,
		"m": 1 << 20, "mi": 1 << 20, "mib": 1 << 20, "mb": 1e6,
		"g": 1 << 30, "gi": 1 << 30, "gib": 1 << 30, "gb": 1e9,
		"t": 1 << 40, "ti": 1 << 40, "tib": 1 << 40, "tb": 1e12,
		"p": 1 << 50, "pi": 1 << 50, "pib": 1 << 50, "pb": 1e15,
	})
	if err != nil {
		return 0, fmt.Errorf("%q is not an amount of memory: %w", text, err)
	}
	return n, nil
}

// minBandwidth is a bandwidth that no memory falls short of: whoever types less
// forgot the unit.
const minBandwidth = 1e6

// ParseBandwidth reads bytes a second, as in 3350GB/s, 3.35TB/s or 204.8GB.
// G, GB and so on are powers of 1000, as vendors mean them; GiB is not.
func ParseBandwidth(text string) (int64, error) {
	amount := strings.TrimSpace(text)
	if end := len(amount) - len("/s"); end > 0 && strings.EqualFold(amount[end:], "/s") {
		amount = amount[:end]
	}
	n, err := parseQuantity(amount, map[string]int64{
		"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
		"m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12, "tb": 1e12,
	})
	if err != nil {
		return 0, fmt.Errorf("%q is not a bandwidth: %w", text, err)
	}
	if n < minBandwidth {
		return 0, fmt.Errorf("%q is not a bandwidth: %d bytes a second are too few, is a unit missing?", text, n)
	}
	return n, nil
}

// grouped is a number with thousands separators, as kvq prints it.
var grouped = regexp.MustCompile(`^[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?$`)

// parseQuantity reads a non-negative decimal number and one of the units, in
// any case, and rounds half to even to a whole number. Without a unit it must
// be whole.
func parseQuantity(text string, units map[string]int64) (int64, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	end := strings.LastIndexAny(s, "0123456789.") + 1
	number, unit := strings.ReplaceAll(s[:end], "_", ""), strings.TrimSpace(s[end:])
	factor, ok := units[unit]
	if !ok {
		return 0, fmt.Errorf("unknown unit %q", clip(unit))
	}
	if grouped.MatchString(number) {
		number = strings.ReplaceAll(number, ",", "")
	}
	// big.Rat would take exponents, fractions and any number of digits.
	if number == "" || len(number) > 40 || strings.Trim(number, "0123456789.") != "" || strings.Count(number, ".") > 1 {
		return 0, errors.New("want a number such as 32768 or 1.5, and a unit if any")
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, errors.New("want a number such as 32768 or 1.5, and a unit if any")
	}
	r.Mul(r, new(big.Rat).SetInt64(factor))
	quotient, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if factor == 1 && rest.Sign() != 0 {
		return 0, errors.New("want a whole number where there is no unit")
	}
	if half := new(big.Int).Lsh(rest, 1).Cmp(r.Denom()); half > 0 || half == 0 && quotient.Bit(0) == 1 {
		quotient.Add(quotient, big.NewInt(1))
	}
	if !quotient.IsInt64() || quotient.Int64() == math.MaxInt64 {
		return 0, errors.New("too large")
	}
	return quotient.Int64(), nil
}
