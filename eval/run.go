package eval

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"kvq/kernels"
)

// Run measures every scheme on every layer, one layer at a time. It stops at
// the first error, and when ctx is cancelled. A name that is no scheme, or does
// not fit a layer's shape, is a *quantize.SchemeError.
func Run(ctx context.Context, layers []*Layer, o Options) (*Report, error) {
	if len(layers) == 0 {
		return nil, errors.New("no layer to measure")
	}
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.Queries == 0 {
		o.Queries = DefaultQueries
	}
	if o.OutlierRatio == 0 {
		o.OutlierRatio = DefaultOutlierRatio
	}
	if o.blockBytes == 0 {
		o.blockBytes = blockBytes
	}
	p, err := newPlan(o.Schemes, o.Optional, layers)
	if err != nil {
		return nil, err
	}
	r := &Report{
		Schema:   Schema,
		Version:  o.Version,
		CPU:      CPU{ISA: string(kernels.Active()), Threads: o.Threads},
		Dumps:    []Dump{},
		Outliers: []Outliers{},
		Rows:     []Row{},
		Summary:  []Summary{},
		Warnings: []string{},
	}
	meter := &meter{report: o.Progress, began: time.Now(), layers: len(layers)}
	for _, l := range layers {
		if err := l.check(); err != nil {
			return nil, err
		}
		meter.total += p.work(l) * int64(len(selectQueries(l, o.Queries))) * int64(l.Tokens)
	}
	t := &table{plan: p, report: r, options: &o, combos: make([]pooled, len(p.combos))}
	for i, l := range layers {
		sizes, err := p.sizes(l, t.omit)
		if err != nil {
			return nil, err
		}
		meter.layer = i
		m, err := measure(ctx, l, p, &o, sizes, meter.add)
		if err != nil {
			return nil, err
		}
		if err := t.add(ctx, m); err != nil {
			return nil, err
		}
	}
	t.finish()
	return r, nil
}

// meter reports progress.
type meter struct {
	report      func(Progress)
	began       time.Time
	layer       int
	layers      int
	mu          sync.Mutex
	done, total int64
}

func (m *meter) add(work int64) {
	if m.report == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done += work
	p := Progress{Done: m.done, Total: m.total, Layer: m.layer, Layers: m.layers, Elapsed: time.Since(m.began)}
	if m.done > 0 {
		p.Remaining = time.Duration(float64(p.Elapsed) / float64(m.done) * float64(m.total-m.done))
	}
	m.report(p)
}
