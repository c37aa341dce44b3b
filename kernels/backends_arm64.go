//go:build !purego

package kernels

// archBackends returns the backends written for arm64, best first. Every arm64
// CPU has what neon uses.
func archBackends() []backend {
	neon := generic
	neon.isa = NEON
	neon.codec = neonCodec(neon.codec)
	neon.metric = neonMetric(neon.metric)

	return []backend{neon}
}
