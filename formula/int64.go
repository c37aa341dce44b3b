package formula

import (
	"errors"
	"math"
	"math/bits"
)

// ErrOverflow reports a size that does not fit in an int64 of bytes.
var ErrOverflow = errors.New("the size exceeds 9,223,372,036,854,775,807 bytes")

// product multiplies non-negative factors; the empty product is 1. A zero
// factor gives 0 whatever the others are. A factor below zero is an error, as
// no count of layers, tokens or bytes is negative.
func product(factors ...int64) (int64, error) {
	p, overflow := uint64(1), false
	for _, f := range factors {
		if f < 0 {
			return 0, ErrOverflow
		}
		if f == 0 {
			return 0, nil
		}
		hi, lo := bits.Mul64(p, uint64(f))
		overflow = overflow || hi != 0 || lo > math.MaxInt64
		p = lo
	}
	if overflow {
		return 0, ErrOverflow
	}
	return int64(p), nil
}

// sum adds non-negative numbers; the empty sum is 0.
func sum(terms ...int64) (int64, error) {
	n := int64(0)
	for _, t := range terms {
		if t < 0 || n > math.MaxInt64-t {
			return 0, ErrOverflow
		}
		n += t
	}
	return n, nil
}

// ceilDiv is a/b rounded up, for a >= 0 and b > 0.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}

// roundUp is the smallest multiple of unit that is at least n.
func roundUp(n, unit int64) (int64, error) { return product(ceilDiv(n, unit), unit) }

// mulDiv is a*b/c rounded down, for a, b >= 0 and 0 < b <= c, whatever a*b is.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q)
}
