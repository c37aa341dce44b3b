package formula

// A calc evaluates expressions over non-negative numbers and keeps the first
// error, so that an allocation rule reads as one expression and is checked
// once. Its zero value is ready.
type calc struct{ err error }

// mul is the product of the factors, 0 after an error.
func (c *calc) mul(factors ...int64) int64 { return c.keep(product(factors...)) }

// add is the sum of the terms, 0 after an error.
func (c *calc) add(terms ...int64) int64 { return c.keep(sum(terms...)) }

// roundUp is the smallest multiple of unit that is at least n.
func (c *calc) roundUp(n, unit int64) int64 { return c.keep(roundUp(n, unit)) }

func (c *calc) keep(n int64, err error) int64 {
	if c.err == nil {
		c.err = err
	}
	if c.err != nil {
		return 0
	}
	return n
}

// lcm is the least common multiple of two positive numbers.
func (c *calc) lcm(a, b int64) int64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return c.mul(a/x, b)
}
