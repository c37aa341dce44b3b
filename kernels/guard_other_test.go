//go:build !unix

package kernels

import "testing"

// guarded returns n bytes; pages that cannot be read stand around them only
// where the system has a portable way to ask for them.
func guarded(t *testing.T, n int, head bool) []byte {
	t.Helper()
	return make([]byte, n)
}

// guardedFloats is guarded for n float32.
func guardedFloats(t *testing.T, n int, head bool) []float32 {
	t.Helper()
	return make([]float32, n)
}
