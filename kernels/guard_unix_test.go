//go:build unix

package kernels

import (
	"syscall"
	"testing"
	"unsafe"
)

// guarded returns n bytes between two pages that cannot be read or written, at
// the end of their page (head false) or at its start (head true): one byte too
// far crashes the test.
func guarded(t *testing.T, n int, head bool) []byte {
	t.Helper()
	page := syscall.Getpagesize()
	inner := (n + page - 1) / page * page
	mem, err := syscall.Mmap(-1, 0, inner+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(mem) })
	for _, guard := range [][]byte{mem[:page], mem[page+inner:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	if head {
		return mem[page : page+n : page+n]
	}
	return mem[page+inner-n : page+inner : page+inner]
}

// guardedFloats is guarded for n float32.
func guardedFloats(t *testing.T, n int, head bool) []float32 {
	t.Helper()
	if n == 0 {
		return nil
	}
	b := guarded(t, 4*n, head)
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n)
}
