// Package formula prices a KV cache: what a model keeps for every token, what
// an exact sum over its layers needs, and what a serving engine reserves for
// it. Everything is a pure function on plain values in int64 bytes, and every
// product and sum is checked for overflow.
package formula
