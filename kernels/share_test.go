package kernels

import (
	"slices"
	"sync"
	"testing"
)

// TestParts takes items with one worker and with several at once: each item comes
// once, a worker that is alone gets its own run first, in order.
func TestParts(t *testing.T) {
	for workers := 1; workers <= 5; workers++ {
		p := newParts(workers)
		for _, n := range []int{0, 1, 3, 4, 100, 1000} {
			p.reset(n)
			got := make([][]int, workers)
			var wait sync.WaitGroup
			for w := range workers {
				wait.Add(1)
				go func() {
					defer wait.Done()
					for item := p.take(w); item >= 0; item = p.take(w) {
						got[w] = append(got[w], item)
					}
				}()
			}
			wait.Wait()
			all := slices.Concat(got...)
			slices.Sort(all)
			for i, item := range all {
				if i != item {
					t.Fatalf("%d workers, %d items: item %d came as number %d", workers, n, item, i)
				}
			}
			if len(all) != n {
				t.Fatalf("%d workers: %d items of %d", workers, len(all), n)
			}
		}
		p.reset(10 * workers)
		for i := range 10 {
			if item := p.take(workers - 1); item != 10*(workers-1)+i {
				t.Errorf("%d workers: the last took item %d as its %dth", workers, item, i)
			}
		}
	}
}
