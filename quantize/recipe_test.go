package quantize

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// expectSide decodes one head under a recipe's side from definitions of its own:
// modifiers by the matrix and by rows, the codec element by element. The ggml
// formats, whose definition are the vectors of testdata/ggml, stand for themselves.
// ok is false for sides that other tests cover.
func expectSide(t *testing.T, side string, values []float32, dim int) (want []float64, ok bool) {
	t.Helper()
	parts := strings.Split(side, "+")
	rows := len(values) / dim
	coded, rotate := values, 0
	for _, m := range parts[1:] {
		switch {
		case strings.HasPrefix(m, "hadamard"):
			if rotate, _ = strconv.Atoi(m[len("hadamard"):]); rotate == 0 {
				rotate = dim & -dim
			}
			coded = rotated(coded, dim, rotate)
		case m == "recent128":
			keep := min(128, rows)
			if strings.Contains(parts[0], "-channel/") {
				keep = rows % 128
			}
			coded = coded[:(rows-keep)*dim]
		default:
			return nil, false
		}
	}
	inner := tensor{dim, [][]float32{coded}}
	var decoded []float64
	if ref, isBlock := frameworkReferences()[parts[0]]; isBlock {
		n := ref.elements
		if n == 0 {
			n = dim
		}
		for at := 0; at < len(coded); at += n {
			block := make([]float64, n)
			for i := range block {
				block[i] = float64(coded[at+i])
			}
			decoded = append(decoded, ref.values(block)...)
		}
	} else if f := formatNamed(parts[0]); f != nil && f.Class == Block {
		_, out := encodeAll(t, mustLookup(t, parts[0]), inner)
		for _, v := range out[0] {
			decoded = append(decoded, float64(v))
		}
	} else if f := formatNamed(strings.Split(parts[0], "-")[0]); parts[0] == "e4m3-raw" {
		for _, v := range coded {
			decoded = append(decoded, roundTo("e4m3", float64(v)))
		}
	} else if f != nil && (f.Class == Integer || f.Class == Scaled) {
		ref, ranges := refParse(parts[0]), map[[3]int]refRange{}
		for i, v := range coded {
			key := ref.unit(0, i/dim, i%dim)
			u, seen := ranges[key]
			if !seen {
				u = refRange{math.Inf(1), math.Inf(-1), 0}
			}
			ranges[key] = refRange{math.Min(u.lo, float64(v)), math.Max(u.hi, float64(v)), math.Max(u.abs, math.Abs(float64(v)))}
		}
		for i, v := range coded {
			_, value := ref.code(float64(v), ref.scaleOf(ranges[ref.unit(0, i/dim, i%dim)]))
			decoded = append(decoded, value)
		}
	} else {
		return nil, false
	}
	if rotate > 0 {
		back := make([]float32, len(decoded))
		for i, v := range decoded {
			back[i] = float32(v)
		}
		for i, v := range rotated(back, dim, rotate) {
			decoded[i] = float64(v)
		}
	}
	for _, v := range values[len(decoded):] {
		decoded = append(decoded, float64(half(v)))
	}
	return decoded, true
}

// TestRecipeDefinitions holds recipes as a whole against definitions of their own.
func TestRecipeDefinitions(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 1))
	const dim, rows = 128, 300
	x := newTensor(1, rows, dim, func(h, t, c int) float64 { return r.NormFloat64() * (1 + float64(c%7)) })
	covered := 0
	for _, recipe := range Recipes() {
		for _, side := range []string{recipe.K, recipe.V} {
			want, ok := expectSide(t, side, x.heads[0], dim)
			if !ok {
				continue
			}
			covered++
			_, decoded := encodeAll(t, mustLookup(t, side), x)
			// A rotated value may differ in its last bit from the matrix product and
			// then, on the edge of two codes, take the other: rarely.
			different := 0
			for i, v := range want {
				if math.Abs(float64(decoded[0][i])-v) > 1e-5*(1+math.Abs(v)) {
					different++
				}
			}
			limit := 0
			if strings.Contains(side, "hadamard") {
				limit = 3 * dim // rows: one other code changes all of a rotated block
			}
			if different > limit {
				t.Errorf("%s: %s differs in %d of %d values", recipe.Name, side, different, len(want))
			}
		}
	}
	if covered < 40 {
		t.Errorf("only %d sides have a definition here", covered)
	}
}

// TestKIVIInHalf holds the note of the KIVI recipes to KIVI's own arithmetic, which is in
// half precision (quant/new_pack.py): minimum and maximum, scale = (max − min)/top, code =
// round((x − min)/scale), each rounded to f16.
func TestKIVIInHalf(t *testing.T) {
	const tokens, dim, group = 4096, 64, 32
	half := func(v float64) float64 { return roundTo("f16", v) }
	r := rand.New(rand.NewPCG(12, 1))
	values := make([]float32, tokens*dim)
	for i := range values {
		values[i] = float32(half(r.NormFloat64() + float64(i%dim)/8))
	}
	for _, c := range []struct {
		bits  int
		most  float64 // of codes that differ
		error float64
	}{{2, 1.0 / 1000, 1e-4}, {4, 1.0 / 200, 4e-4}} {
		s := mustLookup(t, "int"+strconv.Itoa(c.bits)+"-asym-token/32")
		e := new(Encoded)
		coder := s.NewCoder()
		if err := coder.Encode(e, Head{Dim: dim, Values: values}, nil); err != nil {
			t.Fatal(err)
		}
		fields, decoded := make([]uint8, len(values)), make([]float32, len(values))
		e.Fields(fields, 0)
		coder.Decode(decoded, e)
		top := math.Ldexp(1, c.bits) - 1
		differ, theirs, ours := 0, 0.0, 0.0
		for at := 0; at < len(values); at += group {
			lo, hi := math.Inf(1), math.Inf(-1)
			for _, v := range values[at : at+group] {
				lo, hi = math.Min(lo, float64(v)), math.Max(hi, float64(v))
			}
			scale := half(half(hi-lo) / top)
			for i, v := range values[at : at+group] {
				code := math.RoundToEven(math.Min(math.Max(half(half(float64(v)-lo)/scale), 0), top))
				switch d := code - float64(fields[at+i]); {
				case math.Abs(d) > 1:
					t.Fatalf("%d bits, value %d: code %g and %d", c.bits, at+i, code, fields[at+i])
				case d != 0:
					differ++
				}
				x := float64(v)
				theirs += (code*scale + lo - x) * (code*scale + lo - x)
				ours += (float64(decoded[at+i]) - x) * (float64(decoded[at+i]) - x)
			}
		}
		part := float64(differ) / float64(len(values))
		t.Logf("%d bits: %.3g of the codes differ, squared error %.6f times", c.bits, part, theirs/ours)
		if part > c.most || math.Abs(theirs/ours-1) > c.error {
			t.Errorf("%d bits: %.3g of the codes differ, squared error %.6f times", c.bits, part, theirs/ours)
		}
	}
}
