package kernels

import "sync/atomic"

// parts shares the items 0 to n−1 among workers. Each takes a run of neighbours in
// order, so that memory is read in one stream a worker, and at its end what the
// others have left.
type parts struct {
	n    int
	runs []takenRun
}

// takenRun is how many of a worker's own items are taken; alone on its cache line.
type takenRun struct {
	taken atomic.Int64
	_     [lineBytes - 8]byte
}

func newParts(workers int) *parts { return &parts{runs: make([]takenRun, workers)} }

// reset starts over with n items. No worker takes any meanwhile.
func (p *parts) reset(n int) {
	p.n = n
	for i := range p.runs {
		p.runs[i].taken.Store(0)
	}
}

// take returns an item for the worker, or −1 when none is left.
func (p *parts) take(worker int) int {
	for i := range p.runs {
		k := (worker + i) % len(p.runs)
		first, last := k*p.n/len(p.runs), (k+1)*p.n/len(p.runs)
		// The load keeps a counter that is used up from growing.
		if r := &p.runs[k].taken; int(r.Load()) < last-first {
			if item := first + int(r.Add(1)) - 1; item < last {
				return item
			}
		}
	}
	return -1
}
