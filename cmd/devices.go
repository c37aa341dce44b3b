package cmd

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"kvq/formula"
)

func newDevices(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "devices [PATTERN]",
		Short: "list accelerators and CPUs with their memory and bandwidth",
		Long: `Devices lists what kvq plan --device knows: the memory and the peak memory
bandwidth of accelerators and CPUs, as their vendors state them.

With a pattern it lists those whose name holds it.`,
		Example: `  kvq devices
  kvq devices rtx`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%d patterns: want one", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			return runDevices(strings.Join(args, ""), out)
		},
	}
}

type devicesJSON struct {
	Schema  string       `json:"schema"`
	Version string       `json:"version"`
	Devices []deviceJSON `json:"devices"`
}

type deviceJSON struct {
	Name      string   `json:"name"`
	Aliases   []string `json:"aliases"`
	Memory    int64    `json:"memory_bytes"`
	Bandwidth int64    `json:"bandwidth_bytes_per_s"`
	Source    string   `json:"source"`
}

func runDevices(pattern string, out *output) error {
	t := &table{columns: []column{
		{header: "device", name: "name"},
		{header: "--device", name: "aliases"},
		{header: "memory", name: "memory_bytes", right: true},
		{header: "GB/s", right: true},
		{name: "bandwidth_bytes_per_s"},
		{name: "source"},
	}}
	j := devicesJSON{Schema: "kvq.devices/1", Version: versionOf()}
	for _, d := range formula.Devices() {
		if !d.Matches(pattern) {
			continue
		}
		j.Devices = append(j.Devices, deviceJSON{d.Name, d.Aliases, d.Memory, d.Bandwidth, d.Source})
		bandwidth := count(d.Bandwidth)
		t.add(text(d.Name), cell{d.Aliases[0], strings.Join(d.Aliases, " ")}, unitsIEC.size(d.Memory),
			text(gigabytes(d.Bandwidth)), bandwidth, text(d.Source))
	}
	if len(j.Devices) == 0 {
		return withHint(usagef("no device matches %q", pattern), "'kvq devices' lists them")
	}
	return out.report(report{tables: []*table{t}, json: j})
}

// gigabytes shows a bandwidth in GB/s: whole where it is.
func gigabytes(bytes int64) string {
	whole, tenth := bytes/1e9, bytes%1e9/1e8
	if tenth == 0 {
		return grouped(whole)
	}
	return fmt.Sprintf("%s.%d", grouped(whole), tenth)
}

// findDevice reads --device and --bandwidth, which overrides the device's.
func (p *planRun) findDevice(name, bandwidth string) error {
	if name != "" {
		d, err := formula.LookupDevice(name)
		if err != nil {
			return withHint(usageError{err}, "'kvq devices' lists them; --bandwidth and --memory describe any other")
		}
		p.device, p.bandwidth = &d, d.Bandwidth
	}
	if bandwidth == "" {
		return nil
	}
	n, err := formula.ParseBandwidth(bandwidth)
	if err != nil {
		return withHint(usagef("--bandwidth %w", err), "as in --bandwidth 3350GB/s")
	}
	p.bandwidth = n
	return nil
}
