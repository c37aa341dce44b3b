package kernels

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/klauspost/cpuid/v2"
)

// An ISA names a backend: the instruction set its kernels are written for.
type ISA string

// The backends. A machine has those whose CPU features it has; generic always.
const (
	Generic ISA = "generic"
	AVX2    ISA = "avx2"
	AVX512  ISA = "avx512"
	NEON    ISA = "neon"    // every arm64 CPU
	DotProd ISA = "dotprod" // arm64 with FEAT_DotProd
)

// backend is the kernels of one ISA, an area of them in each field. A backend
// starts as a copy of the next weaker one and replaces what it does better, so
// no function is ever nil.
type backend struct {
	isa    ISA
	needs  []cpuid.FeatureID // covers the "Requires:" lines of this backend's assembly
	codec  codecKernels
	metric metricKernels
	decode decodeKernels
	page   pageKernels
}

// generic is the definition of every kernel, and what runs where nothing better can.
var generic = backend{isa: Generic, codec: genericCodec, metric: genericMetric, decode: genericDecode, page: genericPage}

// all are the backends of this build, best first; generic is the last.
var all = append(archBackends(), generic)

// active is what the exported functions call. Use changes it; it is atomic only
// so that a test that switches backends beside running workers is no data race.
var active = func() *atomic.Pointer[backend] {
	p := new(atomic.Pointer[backend])
	p.Store(&backends()[0])
	return p
}()

// backends returns those of all that this CPU can run, best first.
func backends() []backend {
	var can []backend
	for _, b := range all {
		if cpuid.CPU.Supports(b.needs...) {
			can = append(can, b)
		}
	}
	return can
}

// Available lists what this CPU can run, best first. Generic is always the last.
func Available() []ISA {
	var names []ISA
	for _, b := range backends() {
		names = append(names, b.isa)
	}
	return names
}

// Active returns the backend in use: the best one, unless Use changed it.
func Active() ISA { return active.Load().isa }

// Use switches every kernel to the backend of isa. It fails for a name that
// this build does not know and for one that this CPU cannot run.
func Use(isa ISA) error {
	can := backends()
	for i := range can {
		if can[i].isa == isa {
			active.Store(&can[i])
			return nil
		}
	}
	var names []string
	for _, b := range can {
		names = append(names, string(b.isa))
	}
	return fmt.Errorf("instruction set %q cannot run here: this machine has %s", isa, strings.Join(names, ", "))
}
