//go:build !linux

package kernels

import "unsafe"

// mapMemory returns n zero bytes aligned to a cache line. Other systems place
// large pages on their own account or not at all, so the Go heap serves as well.
func mapMemory(n int) ([]byte, func(), error) {
	b := make([]byte, n+lineBytes)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (lineBytes - 1)
	return b[skip : skip+n : skip+n], func() {}, nil
}
