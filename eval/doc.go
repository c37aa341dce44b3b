// Package eval measures what storing a layer's keys and values under a scheme
// costs: tensor errors, what attention loses, outlier statistics, and what
// follows from them (Pareto marks, a recommendation, gates). docs/metrics.md
// defines every figure.
//
// The figures do not depend on the CPU, the instruction set or the number of
// threads: kernels have one definition, and partial results merge in a fixed
// order in float64.
package eval
