//go:build !purego

package kernels

import "github.com/klauspost/cpuid/v2"

// archBackends returns the backends written for arm64, best first. Every arm64
// CPU has what neon uses.
func archBackends() []backend {
	neon := generic
	neon.isa = NEON
	neon.codec = neonCodec(neon.codec)
	neon.metric = neonMetric(neon.metric)
	neon.decode = neonDecode(neon.decode)
	neon.page.direct = false // portable ones, slower than the codecs above

	dotProd := neon
	dotProd.isa = DotProd
	dotProd.needs = []cpuid.FeatureID{cpuid.ASIMDDP}
	dotProd.decode = dotProdDecode(dotProd.decode)

	return []backend{dotProd, neon}
}
