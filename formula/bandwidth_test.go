package formula

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestBoundDecode works the bound out by hand: an H100 reads 3.35e12 bytes a
// second, Llama-3.1-8B has 16.06e9 bytes of weights and 131,072 a token.
func TestBoundDecode(t *testing.T) {
	f16 := same(flat{"f16", 2})
	for _, test := range []struct {
		geometry               string
		context, n, tp, pp     int64
		weights, bandwidth     int64
		wantWeights, wantCache int64
		one, all               float64
	}{
		{"32xfull:8x128+128", 1000, 1, 1, 1, 16060e6, 3350e9, 16060e6, 131072e3, 3350e9 / (16060e6 + 131072e3), 3350e9 / (16060e6 + 131072e3)},
		// Four sessions read the weights once.
		{"32xfull:8x128+128", 1000, 4, 1, 1, 16060e6, 3350e9, 16060e6, 4 * 131072e3, 3350e9 / (16060e6 + 4*131072e3), 4 * 3350e9 / (16060e6 + 4*131072e3)},
		// Ranks read their parts at once; latents are on each of them.
		{"32xfull:8x128+128", 1000, 1, 4, 1, 16000, 1e6, 4000, 131072e3 / 4, 1e6 / (4000 + 131072e3/4.), 1e6 / (4000 + 131072e3/4.)},
		{"61xfull:1x576+0", 1000, 2, 8, 1, 8e6, 1e6, 1e6, 2 * 61 * 576 * 2 * 1000, 1e6 / (1e6 + 2*61*576*2*1000), 2e6 / (1e6 + 2*61*576*2*1000)},
		// Stages take turns for one session, and share two among them.
		{"2xfull:1x1+1", 1000, 1, 1, 2, 1000, 1e6, 1000, 8000, 1e6 / 9000., 1e6 / 9000.},
		{"2xfull:1x1+1", 1000, 2, 1, 2, 1000, 1e6, 1000, 16000, 1e6 / 9000., 2e6 / 9000.},
		// Of what an indexer picks from, only its keys are read for sure.
		{"3xfull:1x576+0;index:3xfull:1x128+0;2xsliding10:1x4+4", 100, 1, 1, 1, 0, 1e6, 0, 3*100*128 + 2*10*16, 1e6 / (3*100*128 + 2*10*16.), 1e6 / (3*100*128 + 2*10*16.)},
	} {
		q := request(mustGeometry(t, test.geometry), test.context, f16)
		q.Sequences, q.TP, q.PP = test.n, test.tp, test.pp
		d, err := BoundDecode(q, test.weights, test.bandwidth)
		if err != nil || d.Weights != test.wantWeights || d.Cache != test.wantCache ||
			math.Abs(d.PerSequence/test.one-1) > 1e-12 || math.Abs(d.Total/test.all-1) > 1e-12 {
			t.Errorf("%+v: %+v, %v", test, d, err)
		}
	}
}

// TestBoundDecodeIsMonotone: nothing that is read more makes a token cheaper,
// and more sessions never take from the sum.
func TestBoundDecodeIsMonotone(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 3))
	for range 300 {
		q := request(randomGeometry(rng), 1+rng.Int64N(20000), randomScheme(rng))
		q.Sequences, q.TP, q.PP = 1+rng.Int64N(20), 1+rng.Int64N(9), 1+rng.Int64N(4)
		weights := 1 + rng.Int64N(1e9)
		bound := func(q Request, weights int64) Decode {
			d, err := BoundDecode(q, weights, 1e9)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		here := bound(q, weights)
		more, longer := q, q
		more.Sequences += 1 + rng.Int64N(9)
		longer.Context += 1 + rng.Int64N(1000)
		m, l, heavy := bound(more, weights), bound(longer, weights), bound(q, 2*weights)
		if m.Total < here.Total || l.Total > here.Total || heavy.Total >= here.Total {
			t.Errorf("%s: %+v, more sessions %+v, longer %+v, heavier %+v", q.Model.Geometry, here, m, l, heavy)
		}
		if q.PP == 1 && m.PerSequence > here.PerSequence {
			t.Errorf("%s: %+v, more sessions %+v", q.Model.Geometry, here, m)
		}
	}
}

func TestActiveWeights(t *testing.T) {
	for _, test := range []struct{ params, active, weights, want int64 }{
		{100, 25, 1000, 250}, {100, 100, 1000, 1000}, {0, 0, 1000, 1000}, {100, 0, 1000, 1000},
		{671e9, 37e9, 1342e9, 74e9}, {3, 1, math.MaxInt64, math.MaxInt64 / 3},
	} {
		if got := (&Model{Params: test.params, ActiveParams: test.active}).ActiveWeights(test.weights); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}
