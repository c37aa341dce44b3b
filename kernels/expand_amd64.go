//go:build !purego

package kernels

// expandAsm is one instruction set's assembly of what widens codes.
type expandAsm struct {
	planes                 [8]func(dst, src *byte, chunks int) // by the bits of a code
	lookUp, gather         func(dst *float32, codes *byte, book *float32, n int)
	scaleLanes, scaleSteps [2]func(x, scale, offset *float32, steps int) // by lanes: 16, 32
	widenE8M0              func(dst *float32, src *byte, n int)
}

// into puts wrappers that hold lengths into k.
func (a expandAsm) into(k *decodeKernels) {
	k.expand = func(dst, src []byte, bits int) {
		mustHold(len(dst) > 0 && len(dst)%chunkCodes == 0 && len(src) >= len(dst)/8*bits)
		a.planes[bits](&dst[0], &src[0], len(dst)/chunkCodes)
	}
	k.lookUp = func(dst []float32, codes []byte, book []float32) {
		mustHold(len(dst) > 0 && len(dst)%lineBytes == 0 && len(codes) >= len(dst) && (len(book) == 16 || len(book) == 256))
		if len(book) == 16 {
			a.lookUp(&dst[0], &codes[0], &book[0], len(dst))
		} else {
			a.gather(&dst[0], &codes[0], &book[0], len(dst))
		}
	}
	k.scaleLanes = func(x, scale, offset []float32, lanes int) {
		mustHold(len(x) > 0 && len(x)%lanes == 0 && len(scale) >= lanes && len(offset) >= lanes)
		a.scaleLanes[lanes/blockWide](&x[0], &scale[0], &offset[0], len(x)/lanes)
	}
	k.scaleSteps = func(x, scale, offset []float32, lanes int) {
		steps := len(x) / lanes
		mustHold(steps > 0 && len(x)%lanes == 0 && len(scale) >= steps && len(offset) >= steps)
		a.scaleSteps[lanes/blockWide](&x[0], &scale[0], &offset[0], steps)
	}
	k.widenE8M0 = func(dst []float32, src []byte) {
		mustHold(len(dst) > 0 && len(dst)%laneWidth == 0 && len(src) >= len(dst))
		a.widenE8M0(&dst[0], &src[0], len(dst))
	}
}

var expandAVX2 = expandAsm{
	planes: [8]func(dst, src *byte, chunks int){2: expand2AVX2, 3: expand3AVX2, 4: expand4AVX2, 5: expand5AVX2, 6: expand6AVX2, 7: expand7AVX2},
	lookUp: lookUpAVX2, gather: gatherAVX2,
	scaleLanes: [2]func(x, scale, offset *float32, steps int){scaleLanesx1AVX2, scaleLanesx2AVX2},
	scaleSteps: [2]func(x, scale, offset *float32, steps int){scaleStepsx1AVX2, scaleStepsx2AVX2},
	widenE8M0:  widenE8M0AVX2,
}

var expandAVX512 = expandAsm{
	planes: [8]func(dst, src *byte, chunks int){2: expand2AVX512, 3: expand3AVX512, 4: expand4AVX512, 5: expand5AVX512, 6: expand6AVX512, 7: expand7AVX512},
	lookUp: lookUpAVX512, gather: gatherAVX512,
	scaleLanes: [2]func(x, scale, offset *float32, steps int){scaleLanesx1AVX512, scaleLanesx2AVX512},
	scaleSteps: [2]func(x, scale, offset *float32, steps int){scaleStepsx1AVX512, scaleStepsx2AVX512},
	widenE8M0:  widenE8M0AVX512,
}
