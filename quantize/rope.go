package quantize

import "kvq/kernels"

// A Rope is the rotary embedding that keys carry: channel pairs turned by
// position·frequency.
type Rope struct {
	// Frequencies are the radians per token of each pair; channels behind the
	// pairs are not rotated. None: the keys are not rotated at all.
	Frequencies []float64
	Interleaved bool // pairs (2i, 2i+1); otherwise (i, i+len(Frequencies))
	First       int  // the position of token 0
}

// rotate turns rows of dim channels, the first at token: forwards (direction 1)
// as the model did, or back (−1). In float64, rounded once.
func (r *Rope) rotate(rows []float32, dim, token int, direction float64) {
	n := len(r.Frequencies)
	position := float64(r.First + token)
	for row := range eachRow(rows, dim) {
		for i, f := range r.Frequencies {
			sin, cos := kernels.SinCos(float64(position * f))
			sin *= direction
			a, b := &row[i], &row[n+i]
			if r.Interleaved {
				a, b = &row[2*i], &row[2*i+1]
			}
			x, y := float64(*a), float64(*b)
			*a = float32(float64(x*cos) - float64(y*sin))
			*b = float32(float64(x*sin) + float64(y*cos))
		}
		position++
	}
}
