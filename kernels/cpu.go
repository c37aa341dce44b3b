package kernels

import (
	"runtime"
	"slices"

	"github.com/klauspost/cpuid/v2"
)

// A CPU is what this machine says of itself. Sizes are bytes, 0 where unknown.
type CPU struct {
	Name      string
	Vendor    string
	Arch      string
	Cores     int      // logical CPUs that this process may use
	Features  []string // those of cpuid that it has, sorted
	L1Data    int64
	L2        int64
	L3        int64
	CacheLine int64
	PageSize  int64
	HugePages string // how large pages are given out, as the system words it; "" where unknown
	Available int64  // memory that can be had without swapping
}

// ThisCPU describes the machine.
func ThisCPU() CPU {
	known := func(n int) int64 { return int64(max(n, 0)) }
	c := CPU{
		Name: cpuid.CPU.BrandName, Vendor: cpuid.CPU.VendorString, Arch: runtime.GOARCH, Cores: runtime.NumCPU(),
		Features: cpuid.CPU.FeatureSet(),
		L1Data:   known(cpuid.CPU.Cache.L1D), L2: known(cpuid.CPU.Cache.L2), L3: known(cpuid.CPU.Cache.L3),
		CacheLine: known(cpuid.CPU.CacheLine), PageSize: pageSize(), HugePages: hugePageMode(), Available: availableMemory(),
	}
	slices.Sort(c.Features)
	return c
}

// Needs lists the CPU features that the backend of isa asks for, nil for one this
// build does not have.
func Needs(isa ISA) []string {
	for _, b := range all {
		if b.isa == isa {
			var names []string
			for _, f := range b.needs {
				names = append(names, f.String())
			}
			return names
		}
	}
	return nil
}

// Built lists the backends of this build, best first, whether this CPU can run them or not.
func Built() []ISA {
	var names []ISA
	for _, b := range all {
		names = append(names, b.isa)
	}
	return names
}
