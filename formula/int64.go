package formula

import (
	"errors"
	"math"
	"math/bits"
)

// ErrOverflow reports a size that does not fit in an int64 of bytes.
var ErrOverflow = errors.New("the size exceeds 9,223,372,036,854,775,807 bytes")

// A tally adds up products of non-negative numbers. Once a product or the sum
// leaves int64 it stays at an error, so that a formula reads as a formula and
// is checked once at its end. The zero tally is an empty sum.
type tally struct {
	n   int64
	err error
}

// add adds the product of the factors. A factor below zero is an error too: no
// count of layers, tokens or bytes is negative.
func (t *tally) add(factors ...int64) {
	if t.err != nil {
		return
	}
	p, err := product(factors...)
	if err == nil && t.n > math.MaxInt64-p {
		err = ErrOverflow
	}
	if err != nil {
		t.err = err
		return
	}
	t.n += p
}

// result returns the sum, or 0 and the first error.
func (t *tally) result() (int64, error) {
	if t.err != nil {
		return 0, t.err
	}
	return t.n, nil
}

// product multiplies non-negative factors; the empty product is 1. A zero
// factor gives 0 whatever the others are.
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

// sum adds non-negative numbers.
func sum(terms ...int64) (int64, error) {
	var t tally
	for _, n := range terms {
		t.add(n)
	}
	return t.result()
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
