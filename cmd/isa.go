package cmd

import (
	"runtime"
	"strings"

	"github.com/spf13/pflag"

	"kvq/kernels"
)

// cpuFlags say what runs the kernels.
type cpuFlags struct {
	isa     string
	fromEnv string // $KVQ_ISA
	threads int
}

// add adds --isa and --threads. Only here is the environment asked for an
// instruction set; package kernels never looks.
func (o *cpuFlags) add(f *pflag.FlagSet, s Streams) {
	o.fromEnv = s.Getenv("KVQ_ISA")
	o.addISA(f)
	f.IntVar(&o.threads, "threads", runtime.GOMAXPROCS(0), "number of `THREADS`")
}

func (o *cpuFlags) addISA(f *pflag.FlagSet) {
	f.StringVar(&o.isa, "isa", "", "instruction set: "+isaNames()+"; default: the best, or $KVQ_ISA")
}

// maxThreads is more than any machine has cores.
const maxThreads = 1024

// use checks the flags and switches to the instruction set.
func (o *cpuFlags) use() error {
	if o.threads < 1 || o.threads > maxThreads {
		return usagef("--threads %d: want 1 to %d", o.threads, maxThreads)
	}
	from, name := "--isa", o.isa
	if name == "" {
		from, name = "$KVQ_ISA", o.fromEnv
	}
	if name == "" {
		name = string(kernels.Available()[0])
	}
	if err := kernels.Use(kernels.ISA(strings.ToLower(name))); err != nil {
		return usagef("%s: %w", from, err)
	}
	return nil
}

func isaNames() string {
	var names []string
	for _, isa := range kernels.Available() {
		names = append(names, string(isa))
	}
	return strings.Join(names, ", ")
}
