//go:build purego || (!amd64 && !arm64)

package kernels

// archBackends is empty: this build has no assembly.
func archBackends() []backend { return nil }
