package eval

import (
	"context"
	"errors"
	"sync"
)

// parallel calls do for 0…n−1 on some goroutines, numbered from 0, each taking
// the lowest number left. After the first error no more are taken, and the
// context that do gets is cancelled; it returns the error of the lowest number.
func parallel(ctx context.Context, goroutines, n int, do func(ctx context.Context, worker, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	next, failed := 0, n
	var failure error
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() != nil {
			return n
		}
		next++
		return next - 1
	}
	var group sync.WaitGroup
	for worker := range min(goroutines, n) {
		group.Go(func() {
			for i := take(); i < n; i = take() {
				if err := do(ctx, worker, i); err != nil {
					mu.Lock()
					if i < failed && !errors.Is(err, context.Canceled) {
						failed, failure = i, err
					}
					mu.Unlock()
					cancel(err)
					return
				}
			}
		})
	}
	group.Wait()
	if failure == nil {
		return context.Cause(ctx)
	}
	return failure
}
