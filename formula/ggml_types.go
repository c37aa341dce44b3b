package formula

import (
	"fmt"
	"strings"
)

// ggmlType is the storage of one ggml type: size bytes hold block elements.
// A type with rowBytes adds that many bytes of scales to every row of a head.
type ggmlType struct {
	number   uint32
	name     string
	block    int64
	size     int64
	scales   int64 // of size: scales and minima, for the cache types
	rowBytes int64
	cache    bool // accepted for --cache-type-k and --cache-type-v
}

// ggmlTypes lists the types a GGUF file may hold (ggml.h, ggml-common.h) and
// after them the ones that only the ik_llama.cpp fork has.
var ggmlTypes = []ggmlType{
	{number: 0, name: "f32", block: 1, size: 4, cache: true},
	{number: 1, name: "f16", block: 1, size: 2, cache: true},
	{number: 2, name: "q4_0", block: 32, scales: 2, size: 18, cache: true},
	{number: 3, name: "q4_1", block: 32, scales: 4, size: 20, cache: true},
	{number: 6, name: "q5_0", block: 32, scales: 2, size: 22, cache: true},
	{number: 7, name: "q5_1", block: 32, scales: 4, size: 24, cache: true},
	{number: 8, name: "q8_0", block: 32, scales: 2, size: 34, cache: true},
	{number: 9, name: "q8_1", block: 32, size: 36},
	{number: 10, name: "q2_K", block: 256, size: 84},
	{number: 11, name: "q3_K", block: 256, size: 110},
	{number: 12, name: "q4_K", block: 256, size: 144},
	{number: 13, name: "q5_K", block: 256, size: 176},
	{number: 14, name: "q6_K", block: 256, size: 210},
	{number: 15, name: "q8_K", block: 256, size: 292},
	{number: 16, name: "iq2_xxs", block: 256, size: 66},
	{number: 17, name: "iq2_xs", block: 256, size: 74},
	{number: 18, name: "iq3_xxs", block: 256, size: 98},
	{number: 19, name: "iq1_s", block: 256, size: 50},
	{number: 20, name: "iq4_nl", block: 32, scales: 2, size: 18, cache: true},
	{number: 21, name: "iq3_s", block: 256, size: 110},
	{number: 22, name: "iq2_s", block: 256, size: 82},
	{number: 23, name: "iq4_xs", block: 256, size: 136},
	{number: 24, name: "i8", block: 1, size: 1},
	{number: 25, name: "i16", block: 1, size: 2},
	{number: 26, name: "i32", block: 1, size: 4},
	{number: 27, name: "i64", block: 1, size: 8},
	{number: 28, name: "f64", block: 1, size: 8},
	{number: 29, name: "iq1_m", block: 256, size: 56},
	{number: 30, name: "bf16", block: 1, size: 2, cache: true},
	{number: 34, name: "tq1_0", block: 256, size: 54},
	{number: 35, name: "tq2_0", block: 256, size: 66},
	{number: 39, name: "mxfp4", block: 32, size: 17},
	{number: 40, name: "nvfp4", block: 64, size: 36},
	{number: 41, name: "q1_0", block: 128, size: 18},
	{number: 42, name: "q2_0", block: 64, size: 18},
	{number: 133, name: "q6_0", block: 32, scales: 2, size: 26, cache: true},
	{number: 151, name: "q8_KV", block: 1, size: 1, rowBytes: 8, cache: true},
}

func ggmlTypeByNumber(n uint32) (ggmlType, bool) {
	for _, t := range ggmlTypes {
		if t.number == n {
			return t, true
		}
	}
	return ggmlType{}, false
}

// ggmlCacheType finds a type that llama.cpp (or a fork) accepts for its cache.
func ggmlCacheType(name string) (ggmlType, bool) {
	for _, t := range ggmlTypes {
		if t.cache && strings.EqualFold(t.name, name) {
			return t, true
		}
	}
	return ggmlType{}, false
}

// ggmlCacheTypes names the accepted types, for messages.
func ggmlCacheTypes() []string {
	var names []string
	for _, t := range ggmlTypes {
		if t.cache {
			names = append(names, t.name)
		}
	}
	return names
}

// Name returns the type's name, as llama.cpp prints it.
func (t ggmlType) Name() string { return t.name }

// Size returns the bytes of [heads, tokens, dim], with rows over all heads as
// llama.cpp stores them: codes and, apart, scales. A row must be whole blocks.
func (t ggmlType) Size(heads, tokens, dim int64) (data, metadata int64, err error) {
	var c calc
	row := c.mul(heads, dim)
	if c.err == nil && row%t.block != 0 {
		return 0, 0, fmt.Errorf("cache type %s stores blocks of %d, and a row has %d elements", t.name, t.block, row)
	}
	blocks := c.mul(row/t.block, tokens)
	data = c.mul(blocks, t.size-t.scales)
	metadata = c.add(c.mul(blocks, t.scales), c.mul(heads, tokens, t.rowBytes))
	c.add(data, metadata)
	return data, metadata, c.err
}

// quantized reports whether elements are stored in blocks with shared scales.
func (t ggmlType) quantized() bool { return t.block > 1 || t.rowBytes > 0 }
