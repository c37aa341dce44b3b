package cmd

import (
	"math"
	"strconv"
	"strings"
	"testing"
)

func TestParseTokens(t *testing.T) {
	for in, want := range map[string]int64{
		"32768": 32768, "32k": 32768, "128K": 131072, "1m": 1048576, "1M": 1048576,
		"1.5k": 1536, " 8k ": 8192, "0": 0, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := parseTokens(in); err != nil || got != want {
			t.Errorf("parseTokens(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "k", "-1", "1.3k", "1g", "1e3", "0x10", "9223372036854775808", "9007199254740992k", "1.", "1..5k", "32 k k", strings.Repeat("9", 1e6)} {
		got, err := parseTokens(in)
		if in == "1." {
			if err != nil || got != 1 {
				t.Errorf("parseTokens(%q) = %d, %v", in, got, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("parseTokens(%.20q) = %d, want an error", in, got)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"24GiB": 24 << 30, "80G": 80 << 30, "80g": 80 << 30, "24GB": 24e9, "24gb": 24e9,
		"512MiB": 512 << 20, "1kB": 1000, "1KB": 1000, "1k": 1024, "1Ki": 1024, "123": 123,
		"123B": 123, "1.5GiB": 3 << 29, "0.1GiB": 107374182, "16 GiB": 16 << 30, "1T": 1 << 40, "2PB": 2e15,
	} {
		if got, err := parseBytes(in); err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "GiB", "-1G", "1X", "1GiBs", "24Gb/s", "9000000P", "1e9", "NaN", "∞"} {
		if got, err := parseBytes(in); err == nil {
			t.Errorf("parseBytes(%q) = %d, want an error", in, got)
		}
	}
}

// FuzzQuantity checks that no input panics, that what is accepted is not
// negative, and that whole numbers mean themselves.
func FuzzQuantity(f *testing.F) {
	for _, s := range []string{"32k", "128K", "1m", "24GiB", "80G", "24GB", "1.5GiB", "9223372036854775807", "", ".", "1e400k"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, parse := range []func(string) (int64, error){parseTokens, parseBytes} {
			n, err := parse(s)
			if err != nil {
				continue
			}
			if n < 0 {
				t.Errorf("%q gave %d", s, n)
			}
			if plain, err := strconv.ParseUint(s, 10, 63); err == nil && int64(plain) != n {
				t.Errorf("%q gave %d", s, n)
			}
		}
	})
}

func TestFormats(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{unitsIEC.format(4294967296), "4.000 GiB"},
		{unitsIEC.format(1023), "1023 B"},
		{unitsIEC.format(1024), "1.000 KiB"},
		{unitsIEC.format(131072), "128.0 KiB"},
		{unitsIEC.format(1<<20 - 1), "1024 KiB"},
		{unitsIEC.format(0), "0 B"},
		{unitsSI.format(24e9), "24.00 GB"},
		{unitsBytes.format(4294967296), "4,294,967,296"},
		{grouped(-1234567), "-1,234,567"},
		{grouped(999), "999"},
		{significant(0, 3), "0"},
		{significant(0.012345, 3), "0.0123"},
		{significant(1.2345e-5, 3), "1.23e-5"},
		{significant(9.9996e-4, 3), "0.00100"},
		{significant(27.04, 3), "27.0"},
		{significant(123456, 3), "123456"},
		{significant(99.96, 3), "100"},
		{significant(1e10, 3), "1.00e10"},
		{significant(-0.5, 3), "-0.500"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
