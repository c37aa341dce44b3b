package kernels

// codecKernels are one backend's reductions, encoders and decoders.
type codecKernels struct {
	absMax func(x []float32) float32
}

// AbsMax returns the largest |x[i]|, 0 for an empty slice. x holds no NaN.
func AbsMax(x []float32) float32 { return active.Load().codec.absMax(x) }
