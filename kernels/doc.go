// Package kernels holds the inner loops of kvq: codecs, reductions, metric sums
// and decode attention, each as portable Go and as assembly for the instruction
// sets that have it. It is the only package that uses unsafe or asks for CPU
// features.
//
// The portable Go of the generic backend is the definition. Every other backend
// gives the same bits for every function whose documentation does not state a
// bound instead:
//
//   - integers are exact;
//   - a float multiplication and the addition after it round separately (no
//     fused multiply-add), and sums have a fixed number of lanes and a fixed
//     order, given at each function;
//   - rounding is to nearest, ties to even; division is true division;
//     denormals are kept.
//
// Slices of one call must not overlap unless a function says so. A length that
// does not fit panics: it is an error of the caller, never of the data.
package kernels
