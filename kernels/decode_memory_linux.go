package kernels

import (
	"fmt"
	"syscall"
	"unsafe"
)

const (
	hugePage     = 2 << 20
	madvHugePage = 14
)

// mapMemory returns n bytes outside the Go heap, aligned to a huge page, advised
// to lie on huge pages and touched, and the function that gives them back.
func mapMemory(n int) ([]byte, func(), error) {
	whole, err := syscall.Mmap(-1, 0, n+hugePage, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes for a decode cache: %w", n, err)
	}
	skip := -int(uintptr(unsafe.Pointer(&whole[0]))) & (hugePage - 1)
	b := whole[skip : skip+n : skip+n]
	// Without huge pages the cache is as right, only slower.
	_ = syscall.Madvise(whole, madvHugePage)
	for i := 0; i < n; i += 4096 {
		b[i] = 0
	}
	return b, func() { _ = syscall.Munmap(whole) }, nil
}
