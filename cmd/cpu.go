package cmd

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kvq/kernels"
)

// cpuInfoJSON is the result of kvq cpu.
type cpuInfoJSON struct {
	Schema         string        `json:"schema"`
	Version        string        `json:"version"`
	Name           string        `json:"name,omitempty"`
	Vendor         string        `json:"vendor,omitempty"`
	Arch           string        `json:"arch"`
	CPUs           int           `json:"cpus"`
	Features       []string      `json:"features"`
	Active         string        `json:"active"`
	Backends       []backendJSON `json:"backends"`
	L1DataBytes    int64         `json:"l1_data_bytes,omitempty"`
	L2Bytes        int64         `json:"l2_bytes,omitempty"`
	L3Bytes        int64         `json:"l3_bytes,omitempty"`
	CacheLineBytes int64         `json:"cache_line_bytes,omitempty"`
	PageBytes      int64         `json:"page_bytes"`
	HugePages      string        `json:"huge_pages,omitempty"`
	AvailableBytes int64         `json:"available_bytes"`
}

type backendJSON struct {
	ISA       string   `json:"isa"`
	Available bool     `json:"available"`
	Needs     []string `json:"needs"`
	Missing   []string `json:"missing,omitempty"`
}

func newCPU(s Streams) *cobra.Command {
	o := cpuFlags{fromEnv: s.Getenv("KVQ_ISA"), threads: 1}
	c := &cobra.Command{
		Use:   "cpu",
		Short: "show the CPU, its caches, and the kernels that run on it",
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			if err := o.use(); err != nil {
				return err
			}
			return out.report(cpuReport(kernels.ThisCPU()))
		},
	}
	o.addISA(c.Flags())
	return c
}

func cpuReport(c kernels.CPU) report {
	v := cpuInfoJSON{
		Schema: "kvq.cpu/1", Version: versionOf(), Name: c.Name, Vendor: c.Vendor, Arch: c.Arch, CPUs: c.Cores, Features: c.Features,
		Active: string(kernels.Active()), L1DataBytes: c.L1Data, L2Bytes: c.L2, L3Bytes: c.L3, CacheLineBytes: c.CacheLine,
		PageBytes: c.PageSize, HugePages: c.HugePages, AvailableBytes: c.Available,
	}
	facts := &table{columns: []column{{header: "fact", name: "fact"}, {header: "value", name: "value"}}}
	fact := func(name, value string) {
		if value != "" {
			facts.add(text(name), text(value))
		}
	}
	size := func(name string, n int64) {
		if n > 0 {
			facts.add(text(name), unitsIEC.size(n))
		}
	}
	fact("CPU", c.Name)
	facts.add(text("CPUs"), count(int64(c.Cores)))
	size("L1 data cache", c.L1Data)
	size("L2 cache", c.L2)
	size("L3 cache", c.L3)
	size("page", c.PageSize)
	fact("huge pages", c.HugePages)
	size("available memory", c.Available)
	kern := &table{columns: []column{{header: "kernels", name: "isa"}, {header: "runs here", name: "available"}, {header: "lacking", name: "missing"}}}
	for _, isa := range kernels.Built() {
		b := backendJSON{ISA: string(isa), Available: slices.Contains(kernels.Available(), isa), Needs: kernels.Needs(isa)}
		for _, need := range b.Needs {
			if !slices.Contains(c.Features, need) {
				b.Missing = append(b.Missing, need)
			}
		}
		if b.Needs == nil {
			b.Needs = []string{}
		}
		v.Backends = append(v.Backends, b)
		runs := "no"
		if b.Available {
			runs = "yes"
		}
		if isa == kernels.Active() {
			runs = "yes, in use"
		}
		kern.add(text(string(isa)), text(runs), text(strings.Join(b.Missing, " ")))
	}
	return report{tables: []*table{facts, kern}, json: v}
}
