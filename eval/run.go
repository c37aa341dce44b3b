package eval

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"kvq/kernels"
)

// Run measures every scheme on every layer, one layer at a time. It stops at
// the first error, and when ctx is cancelled.
func Run(ctx context.Context, layers []*Layer, o Options) (*Report, error) {
	if len(layers) == 0 {
		return nil, errors.New("no layer to measure")
	}
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	for _, l := range layers {
		if err := l.check(); err != nil {
			return nil, err
		}
	}
	r := &Report{
		Schema:  Schema,
		Version: o.Version,
		CPU:     CPU{ISA: string(kernels.Active()), Threads: o.Threads},
	}
	return r, fmt.Errorf("measuring is not there yet")
}
