package kernels

import "math"

var genericCodec = codecKernels{
	absMax: absMaxGeneric,
}

func absMaxGeneric(x []float32) float32 {
	var largest float32
	for _, v := range x {
		largest = max(largest, float32(math.Abs(float64(v))))
	}
	return largest
}
