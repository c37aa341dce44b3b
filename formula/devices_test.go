package formula

import (
	"math"
	"strconv"
	"strings"
	"testing"
)

// TestDeviceTable checks the bandwidths against bus width times data rate, which
// the vendors give apart, wherever both are known.
func TestDeviceTable(t *testing.T) {
	seen := map[string]string{}
	checked := 0
	rows := readTSV(t, "devices.tsv", "")
	for i, row := range rows {
		d := Devices()[i]
		if d.Name != row["name"] || d.Memory < 8<<30 || d.Bandwidth < 50e9 || d.Source == "" {
			t.Errorf("%s: %d bytes, %d bytes a second, source %q", row["name"], d.Memory, d.Bandwidth, d.Source)
		}
		for _, alias := range d.Aliases {
			if other, ok := seen[alias]; ok || alias != strings.ToLower(alias) || alias == "" {
				t.Errorf("%s: alias %q is of %q too, or not lower case", d.Name, alias, other)
			}
			seen[alias] = d.Name
			if got, err := LookupDevice(strings.ToUpper(alias)); err != nil || got.Name != d.Name {
				t.Errorf("LookupDevice(%s) = %s, %v: want %s", alias, got.Name, err, d.Name)
			}
		}
		if row["bus_bits"] == "" {
			continue
		}
		checked++
		bits, err := strconv.ParseFloat(row["bus_bits"], 64)
		if err != nil {
			t.Fatal(err)
		}
		rate, err := strconv.ParseFloat(row["gbit_s_per_pin"], 64)
		if err != nil {
			t.Fatal(err)
		}
		if want := bits * rate / 8 * 1e9; math.Abs(float64(d.Bandwidth)-want) > 0.006*want {
			t.Errorf("%s: %d bytes a second, but %g bits x %g Gbit/s give %.0f", d.Name, d.Bandwidth, bits, rate, want)
		}
	}
	if len(rows) < 40 || checked < 40 {
		t.Errorf("%d devices, %d of them checked: want 40 or more", len(rows), checked)
	}
}

func TestLookupDeviceRefuses(t *testing.T) {
	for name, want := range map[string]string{"h9000": "unknown device", "epyc": "could be epyc-7763", "": "unknown device"} {
		if _, err := LookupDevice(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("LookupDevice(%q): %v, want %q", name, err, want)
		}
	}
}

func TestLookupDeviceAsTyped(t *testing.T) {
	for name, want := range map[string]string{
		"RTX4090": "NVIDIA GeForce RTX 4090", "rtx 3090": "NVIDIA GeForce RTX 3090", "RTX_3090_Ti": "NVIDIA GeForce RTX 3090 Ti",
		"A100-80GB": "NVIDIA A100 SXM 80GB", "a100 40gb": "NVIDIA A100 SXM 40GB", "jetson orin": "NVIDIA Jetson AGX Orin 64GB",
		"M4 Max": "Apple M4 Max 128GB", "mi 300x": "AMD Instinct MI300X", "TPU v5e": "Google TPU v5e",
	} {
		if d, err := LookupDevice(name); err != nil || d.Name != want {
			t.Errorf("LookupDevice(%q) = %q, %v, want %q", name, d.Name, err, want)
		}
	}
}
