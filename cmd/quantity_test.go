package cmd

import "testing"

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
