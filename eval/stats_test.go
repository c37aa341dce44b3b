package eval

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// describe returns the outliers of heads, each [tokens, dim], side by side.
func describe(t *testing.T, dim int, heads ...[]float32) Outliers {
	t.Helper()
	var stats []*headStats
	for _, x := range heads {
		stats = append(stats, newHeadStats(x, dim))
	}
	var buffer []float32
	o, err := outliers(stats, DefaultOutlierRatio, &buffer, func(dst []float32, head int) error {
		copy(dst, heads[head])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func near(t *testing.T, what string, got *float64, want float64) {
	t.Helper()
	if got == nil || math.Abs(*got-want) > 1e-12*math.Abs(want)+1e-12 {
		t.Errorf("%s = %v, want %g", what, got, want)
	}
}

// TestOutliersByHand checks the statistics of a tensor small enough to work out
// on paper: 2 heads of 4 tokens and 2 channels.
func TestOutliersByHand(t *testing.T) {
	o := describe(t, 2,
		[]float32{1, 10, 1, -8, 1, 12, 1, 0.5}, // columns 0 (constant) and 1
		[]float32{2, 1, -2, -1, 2, 1, -2, -1},  // columns 2 and 3
	)
	// Magnitudes 1, 12, 2, 1: median 1.5.
	near(t, "max_median_ratio", o.MaxMedianRatio, 8)
	if !slices.Equal(o.OutlierChannels, []int{1}) || o.OutlierCount != 1 || o.Channels != 4 {
		t.Errorf("outliers %v of %d, want column 1 of 4", o.OutlierChannels, o.Channels)
	}
	// Column 1 has the largest magnitude of tokens 0–2, in token 3 column 2 does.
	near(t, "persistence", o.Persistence, 0.75)
	// Σx² = 4 + 308.25 + 16 + 4, bias 4·1² + 4·(14.5/4)².
	near(t, "bias_energy", o.BiasEnergy, (4+4*3.625*3.625)/332.25)
	// Columns 2 and 3 take two values equally often: excess kurtosis −2; column 0
	// has none.
	d := []float64{10 - 3.625, -8 - 3.625, 12 - 3.625, 0.5 - 3.625}
	var second, fourth float64
	for _, v := range d {
		second += v * v / 4
		fourth += v * v * v * v / 4
	}
	near(t, "kurtosis", o.Kurtosis, median([]float64{fourth/second/second - 3, -2, -2}))
	// Norms: √106, √70, √150, √6.25: median (√106+√70)/2, a quarter of it 2.33 < 2.5.
	if len(o.SinkTokens) != 0 {
		t.Errorf("sink tokens %v, want none", o.SinkTokens)
	}
}

// TestPersistenceChunks holds the bounded way of counting against a plain one.
func TestPersistenceChunks(t *testing.T) {
	const heads, tokens, dim = 3, 700, 24
	r := rand.New(rand.NewPCG(4, 4))
	data := make([][]float32, heads)
	for h := range data {
		data[h] = make([]float32, tokens*dim)
		for i := range data[h] {
			data[h][i] = float32(r.IntN(9) - 4) // many ties
		}
	}
	columns := []int{1, 5, 23, 24, 50, 71}
	var buffer []float32
	got, err := persistence(columns, heads, tokens, dim, nil, &buffer, func(dst []float32, head int) error {
		copy(dst, data[head])
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	hits := 0
	for tok := range tokens {
		var row []float64
		for h := range heads {
			for _, v := range data[h][tok*dim:][:dim] {
				row = append(row, math.Abs(float64(v)))
			}
		}
		for _, c := range columns {
			larger := 0
			for _, v := range row {
				if v > row[c] {
					larger++
				}
			}
			if larger < len(columns) {
				hits++
			}
		}
	}
	if want := float64(hits) / float64(tokens*len(columns)); got != want {
		t.Errorf("persistence %g, want %g", got, want)
	}
}

func TestDiagnosis(t *testing.T) {
	const tokens, dim = 512, 64
	r := rand.New(rand.NewPCG(4, 5))
	for want, change := range map[string]func(x []float32){
		"clean":           func(x []float32) {},
		"outlier-channel": func(x []float32) { each(x, dim, func(row []float32) { row[7] *= 20 }) },
		"bias":            func(x []float32) { each(x, dim, func(row []float32) { row[7] += 40 }) },
		"outlier-token":   func(x []float32) { scaleBy(x[5*dim:6*dim], 1.6); scaleBy(x[5*dim:6*dim], 4) },
		"heavy-tail": func(x []float32) {
			for i := range x { // Student's t with 4 degrees of freedom, cut so that no token stands out
				v := r.NormFloat64() / math.Sqrt((r.ExpFloat64()+r.ExpFloat64())/2)
				x[i] = float32(max(-8, min(8, v)))
			}
		},
	} {
		x := gaussian(tokens, dim)
		change(x)
		if o := describe(t, dim, x); o.Diagnosis != want {
			t.Errorf("%s: diagnosis %q (%+v)", want, o.Diagnosis, o)
		}
	}
}

func each(x []float32, dim int, f func(row []float32)) {
	for row := range slices.Chunk(x, dim) {
		f(row)
	}
}

func scaleBy(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// TestGaussian holds the values that floors are measured on to their distribution.
func TestGaussian(t *testing.T) {
	x := gaussian(2048, 128)
	var sum, squares, fourth float64
	for _, v := range x {
		f := float64(v)
		sum += f
		squares += f * f
		fourth += f * f * f * f
	}
	n := float64(len(x))
	if math.Abs(sum/n) > 0.01 || math.Abs(squares/n-1) > 0.01 || math.Abs(fourth/n-3) > 0.1 {
		t.Errorf("moments %g, %g, %g", sum/n, squares/n, fourth/n)
	}
	if !slices.Equal(x, gaussian(2048, 128)) {
		t.Error("not the same twice")
	}
}

// TestFloors checks floors with a closed form: what uniform steps cost on
// Gaussian values, and figures of independent programs.
func TestFloors(t *testing.T) {
	p, err := newPlan([]string{"int8-tensor", "f32", "mxfp4", "mxfp4-round", "mxfp4-ceil"}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	l := &Layer{KVHeads: 1, Tokens: 4096, DimK: 128, DimV: 128}
	sizes, err := p.sizes(l, func(_ *Layer, reason string) { t.Error(reason) })
	if err != nil {
		t.Fatal(err)
	}
	both, err := p.floors(context.Background(), l, sizes, 2)
	if err != nil {
		t.Fatal(err)
	}
	floors := both[keys]
	var largest float64
	for _, v := range gaussian(floorTokens, 128) {
		largest = max(largest, math.Abs(float64(v)))
	}
	// A step of largest/127 errs by step²/12.
	for i, want := range []float64{largest / 127 * largest / 127 / 12, 0, 1.326e-2, 1.485e-2, 1.332e-2} {
		if math.Abs(floors[i]-want) > 0.01*want {
			t.Errorf("%s: floor %g, want %g within 1%%", p.sides[keys][i].name, floors[i], want)
		}
	}
}
