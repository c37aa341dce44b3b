package formula

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

// coded is a Sizer of bits-wide codes packed by row, and a 2-byte scale for
// every group channels of a row: the shape of int8-token and int4-token/32.
type coded struct {
	name        string
	bits, group int64
}

func (s coded) Name() string { return s.name }

func (s coded) Size(heads, tokens, dim int64) (data, metadata int64, err error) {
	var c calc
	rows := c.mul(heads, tokens)
	group := s.group
	if group == 0 {
		group = dim
	}
	return c.mul(rows, ceilDiv(dim*s.bits, 8)), c.mul(rows, ceilDiv(dim, group), 2), c.err
}

// columns is a Sizer of 1-byte codes with a 2-byte scale for every channel of
// every group tokens: the shape of int8-channel/32.
type columns struct{ group int64 }

func (columns) Name() string { return "columns" }

func (s columns) Size(heads, tokens, dim int64) (data, metadata int64, err error) {
	var c calc
	return c.mul(heads, tokens, dim), c.mul(heads, dim, ceilDiv(tokens, s.group), 2), c.err
}

func same(s Sizer) Scheme { return Scheme{Name: s.Name(), K: s, V: s} }

func mustGeometry(t *testing.T, text string) Geometry {
	t.Helper()
	g, err := ParseGeometry(text)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func request(g Geometry, context int64, s Scheme) Request {
	return Request{Model: &Model{Geometry: g, Layers: g.Layers()}, Context: context, Sequences: 1, TP: 1, PP: 1, Scheme: s}
}

// TestWorkedExample is the field's own: 32 layers, 8 KV heads, 128, 32,768
// tokens. 2 x 32 x 8 x 128 x 2 B = 131,072 B a token.
func TestWorkedExample(t *testing.T) {
	g := mustGeometry(t, "32xfull:8x128+128")
	f16 := same(flat{"f16", 2})
	for _, test := range []struct {
		scheme         Scheme
		data, metadata int64
		perToken       float64
	}{
		{f16, 4294967296, 0, 131072},
		// Half of it, and a scale of 2 bytes for each of 2 x 32 x 8 rows a token.
		{same(coded{"int8", 8, 0}), 2147483648, 2 * 32 * 8 * 32768 * 2, 65536 + 1024},
		// A quarter, and four scales a row.
		{same(coded{"int4/32", 4, 32}), 1073741824, 4 * 2 * 32 * 8 * 32768 * 2, 32768 + 4096},
		{Scheme{"int8:int4/32", coded{"int8", 8, 0}, coded{"int4/32", 4, 32}}, 1073741824 + 536870912, 32 * 8 * 32768 * 2 * (1 + 4), 32768 + 16384 + 512 + 2048},
	} {
		row, err := Price(Ideal(), request(g, 32768, test.scheme), &f16, Budget{})
		if err != nil {
			t.Fatal(err)
		}
		r := row.Reservation
		if r.Data != test.data || r.Metadata != test.metadata || row.Total != test.data+test.metadata || r.PerDevice != row.Total {
			t.Errorf("%s: %d + %d = %d, want %d + %d", test.scheme.Name, r.Data, r.Metadata, row.Total, test.data, test.metadata)
		}
		if row.BytesPerToken != test.perToken || row.FixedBytes != 0 {
			t.Errorf("%s: %g a token + %d, want %g", test.scheme.Name, row.BytesPerToken, row.FixedBytes, test.perToken)
		}
		elements := float64(2 * 32 * 8 * 128 * 32768)
		if want := float64(row.Total) * 8 / elements; row.Bits != want {
			t.Errorf("%s: %g bits, want %g", test.scheme.Name, row.Bits, want)
		}
		if want := 4294967296 / float64(row.Total); row.RatioVsF16 != want {
			t.Errorf("%s: ratio %g, want %g", test.scheme.Name, row.RatioVsF16, want)
		}
	}
}

func TestEveryKindKeepsItsTokens(t *testing.T) {
	f16 := same(flat{"f16", 2})
	for _, test := range []struct {
		geometry       string
		tokens, vector int64 // kept of 1000 tokens, and elements of each
	}{
		{"1xfull:3x5+7", 1000, 36},
		{"1xsliding999:1x2+2", 999, 4},
		{"1xsliding1000:1x2+2", 1000, 4},
		{"1xsliding4096:1x2+2", 1000, 4},
		{"1xchunked512:1x2+2", 512, 4},
		{"1xfull:1x576+0", 1000, 576},
		{"1xcompressed/4:1x512+0", 250, 512},
		{"1xcompressed/128:1x512+0", 7, 512},
		{"1xcompressed100/7:1x512+0", 142 + 100, 512},
	} {
		r, err := Ideal().Reserve(request(mustGeometry(t, test.geometry), 1000, f16))
		if err != nil || r.Data != test.tokens*test.vector*2 {
			t.Errorf("%s: %d bytes, %v, want %d", test.geometry, r.Data, err, test.tokens*test.vector*2)
		}
	}
}

func TestIndexKeysKeepTheirType(t *testing.T) {
	g := mustGeometry(t, "61xfull:1x576+0;index:61xfull:1x128+0")
	r, err := Ideal().Reserve(request(g, 1000, same(coded{"int8", 8, 0})))
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(61 * 1000 * (576 + 128*2)); r.Data != want || r.Metadata != 61*1000*2 {
		t.Errorf("%d + %d, want %d + %d", r.Data, r.Metadata, want, 61*1000*2)
	}
	if r.KBytes != 61*1000*578 || r.KElements != 61*1000*576 || r.VBytes != 0 {
		t.Errorf("%+v: index keys are on no side", r)
	}
}

func TestConstantState(t *testing.T) {
	m := &Model{
		Layers: 4, Geometry: mustGeometry(t, "1xfull:2x64+64"),
		States: []State{{Kind: "mamba2", Layers: 3, ConvElements: 300, ConvBytes: 2, SSMElements: 1000, SSMBytes: 4}},
		Cross:  &Cross{Layers: 2, KVHeads: 6, HeadDimK: 64, HeadDimV: 64, Tokens: 1500},
	}
	r, err := Ideal().Reserve(Request{Model: m, Context: 10, Sequences: 5, TP: 1, PP: 1, Scheme: same(coded{"int8", 8, 0})})
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(5 * 3 * (300*2 + 1000*4)); r.State != want {
		t.Errorf("state %d, want %d", r.State, want)
	}
	if want := int64(5 * 2 * 6 * 128 * 1500 * 2); r.Cross != want {
		t.Errorf("cross %d, want %d", r.Cross, want)
	}
	if total, _ := r.Total(); r.PerDevice != total {
		t.Errorf("device %d, total %d", r.PerDevice, total)
	}
}

func TestDevices(t *testing.T) {
	f16 := same(flat{"f16", 2})
	for _, test := range []struct {
		geometry      string
		tp, pp        int64
		total, device int64 // vectors a token
	}{
		{"32xfull:8x1+1", 4, 1, 32 * 8, 32 * 2},
		{"32xfull:8x1+1", 8, 1, 32 * 8, 32},
		{"32xfull:8x1+1", 16, 1, 32 * 16, 32}, // every rank holds a head
		{"32xfull:8x1+1", 3, 1, 32 * 8, 32 * 3},
		{"32xfull:8x1+1", 1, 4, 32 * 8, 8 * 8},
		{"33xfull:8x1+1", 1, 4, 33 * 8, 9 * 8},
		{"32xfull:8x1+1", 4, 4, 32 * 8, 8 * 2},
		{"61xfull:1x2+0", 8, 1, 61 * 8, 61},                       // a latent is on every rank
		{"61xfull:1x2+0;index:61xfull:1x2+0", 8, 1, 122 * 8, 122}, // and so are index keys
	} {
		q := request(mustGeometry(t, test.geometry), 100, f16)
		q.TP, q.PP = test.tp, test.pp
		r, err := Ideal().Reserve(q)
		if err != nil {
			t.Fatal(err)
		}
		if r.Data != test.total*100*4 || r.PerDevice != test.device*100*4 {
			t.Errorf("%s over %dx%d: %d, device %d, want %d, device %d", test.geometry, test.tp, test.pp, r.Data, r.PerDevice, test.total*400, test.device*400)
		}
	}
	q := request(mustGeometry(t, "32xfull:8x1+1"), 100, f16)
	q.PP = 33
	if _, err := Ideal().Reserve(q); err == nil {
		t.Error("33 stages for 32 layers")
	}
}

// TestStagesFollowTheOrder: in gpt-oss full and sliding layers alternate, so
// that of 24 layers in 5 stages the fullest holds 5, three of them full.
func TestStagesFollowTheOrder(t *testing.T) {
	m, _, err := LookupPreset("gpt-oss-20b")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Ideal().Reserve(Request{Model: m, Context: 1000, Sequences: 1, TP: 1, PP: 5, Scheme: f16})
	if err != nil {
		t.Fatal(err)
	}
	// Blocks 0-4 are s f s f s, 5-9 f s f s f.
	if want := int64((3*1000 + 2*128) * 8 * 128 * 2); r.PerDevice != want {
		t.Errorf("fullest stage %d, want %d", r.PerDevice, want)
	}
}

func TestOverflowIsAnError(t *testing.T) {
	g := mustGeometry(t, "32xfull:8x128+128")
	q := request(g, 1e9, same(flat{"f16", 2}))
	row, err := Price(Ideal(), q, nil, Budget{})
	if err != nil || row.Total != 131072e9 {
		t.Errorf("10^9 tokens: %d, %v", row.Total, err)
	}
	q.Sequences = 1e4 // 1.3e18 bytes still fit
	if row, err := Price(Ideal(), q, nil, Budget{}); err != nil || row.Total != 131072e13 {
		t.Errorf("10^9 x 10^4: %d, %v", row.Total, err)
	}
	for _, sequences := range []int64{1e6, math.MaxInt64} {
		q.Sequences = sequences
		if row, err := Price(Ideal(), q, nil, Budget{}); !errors.Is(err, ErrOverflow) {
			t.Errorf("10^9 x %d: %d, %v", sequences, row.Total, err)
		}
	}
	q.Context, q.Sequences = math.MaxInt64, 1
	if row, err := Price(Ideal(), q, nil, Budget{}); !errors.Is(err, ErrOverflow) {
		t.Errorf("MaxInt64 tokens: %d, %v", row.Total, err)
	}
	// The search for the inverse meets sizes beyond int64 and is none the wiser.
	q.Context = 1000
	row, err = Price(Ideal(), q, nil, Budget{Memory: math.MaxInt64 / 2})
	if want := int64(math.MaxInt64/2) / 131072; err != nil || row.MaxContext != want {
		t.Errorf("context for 2^62 bytes: %d, %v, want %d", row.MaxContext, err, want)
	}
}

func randomGeometry(rng *rand.Rand) Geometry {
	var g Geometry
	for range 1 + rng.IntN(4) {
		group := Group{Count: 1 + rng.Int64N(40), Kind: Full, KVHeads: 1 + rng.Int64N(16), HeadDimK: 1 + rng.Int64N(256), HeadDimV: rng.Int64N(256)}
		switch rng.IntN(4) {
		case 0:
			group.Kind, group.Window = Sliding, 1+rng.Int64N(5000)
		case 1:
			group.Kind, group.Window = Chunked, 1+rng.Int64N(9000)
		case 2:
			group.Kind, group.Ratio, group.Window = Compressed, 1+rng.Int64N(130), rng.Int64N(200)
		}
		if len(g) > 0 && rng.IntN(4) == 0 {
			group.Extra, group.Count = []string{Index, Entries}[rng.IntN(2)], min(group.Count, g.Layers())
		}
		g = append(g, group)
	}
	return g
}

func randomScheme(rng *rand.Rand) Scheme {
	sizers := []Sizer{flat{"f16", 2}, flat{"f8", 1}, coded{"int8", 8, 0}, coded{"int4/32", 4, 32}, columns{32}}
	k, v := sizers[rng.IntN(len(sizers))], sizers[rng.IntN(len(sizers))]
	return Scheme{Name: k.Name() + ":" + v.Name(), K: k, V: v}
}

// TestRandomGeometries: the text form reads back; bytes grow with context and
// sequences; the inverses fit at their answer and not at one more; no device
// holds more than the total, and together they hold no less.
func TestRandomGeometries(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	for i := range 300 {
		g := randomGeometry(rng)
		back, err := ParseGeometry(g.String())
		if err != nil || !back.Equal(g) {
			t.Fatalf("%s reads back as %s, %v", g, back, err)
		}
		q := request(g, 1+rng.Int64N(20000), randomScheme(rng))
		q.Sequences = 1 + rng.Int64N(50)
		q.TP = 1 + rng.Int64N(9)
		q.PP = 1 + rng.Int64N(min(4, g.Layers()))
		device := func(context, sequences int64) int64 {
			q := q
			q.Context, q.Sequences = context, sequences
			r, err := Ideal().Reserve(q)
			if err != nil {
				t.Fatalf("%s: %v", g, err)
			}
			return r.PerDevice
		}
		here := device(q.Context, q.Sequences)
		if device(q.Context+1, q.Sequences) < here || device(q.Context, q.Sequences+1) <= here && here > 0 {
			t.Fatalf("%d: %s shrinks", i, g)
		}
		budget := Budget{Memory: 1 + rng.Int64N(3*here+1000), Reserve: rng.Int64N(100), Weights: rng.Int64N(1000)}
		row, err := Price(Ideal(), q, nil, budget)
		if err != nil {
			t.Fatalf("%s: %v", g, err)
		}
		left := budget.Memory - (budget.Weights+q.TP*q.PP-1)/(q.TP*q.PP) - budget.Reserve
		if row.Fits != (here <= left) {
			t.Fatalf("%s: fits %v, %d of %d", g, row.Fits, here, left)
		}
		if n := row.MaxSequences; n > 0 && device(q.Context, n) > left || n < searchLimit && device(q.Context, n+1) <= left {
			t.Fatalf("%s: %d sequences in %d bytes", g, n, left)
		}
		switch n := row.MaxContext; {
		case row.Unbounded:
			if device(1<<40, q.Sequences) > left {
				t.Fatalf("%s: unbounded in %d bytes", g, left)
			}
		case n > 0 && device(n, q.Sequences) > left || device(n+1, q.Sequences) <= left:
			t.Fatalf("%s: context %d in %d bytes", g, n, left)
		}
		if n := row.OutgrowsWeights; n > 0 {
			at := func(context int64) int64 {
				q := q
				q.Context = context
				r, err := Ideal().Reserve(q)
				total, err2 := r.Total()
				if err != nil || err2 != nil {
					t.Fatal(err, err2)
				}
				return total
			}
			if at(n) <= budget.Weights || n > 1 && at(n-1) > budget.Weights {
				t.Fatalf("%s: outgrows %d bytes at %d", g, budget.Weights, n)
			}
		}
		if here > row.Total || here*q.TP*q.PP < row.Total {
			t.Fatalf("%s over %dx%d: device %d, total %d", g, q.TP, q.PP, here, row.Total)
		}
	}
}

// recent keeps the last tokens beyond whole groups of n in 2 bytes, after the
// first sink tokens, and the others in half a byte: the shape of
// int4-channel/32+sink4+recent128.
type recent struct{ n, sink int64 }

func (recent) Name() string                   { return "recent" }
func (s recent) Dips() (period, offset int64) { return s.n, s.sink }
func (s recent) Size(heads, tokens, dim int64) (data, metadata int64, err error) {
	var c calc
	sink := min(tokens, s.sink)
	wide := sink + (tokens-sink)%s.n
	return c.add(c.mul(heads, wide, dim, 2), c.mul(heads, tokens-wide, dim)/2), 0, c.err
}

// TestLongestOverDips compares the search with trying every context.
func TestLongestOverDips(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 2))
	for range 60 {
		window := recent{1 + rng.Int64N(130), rng.Int64N(2) * rng.Int64N(200)}
		scheme := Scheme{Name: "recent", K: window, V: coded{"int4/32", 4, 32}}
		if rng.IntN(2) == 0 {
			scheme.V = recent{1 + rng.Int64N(20), window.sink}
		}
		q := request(mustGeometry(t, []string{"2xfull:1x64+64", "1xfull:2x64+64;3xsliding300:1x64+64", "1xfull:1x64+0;1xcompressed/3:1x64+0"}[rng.IntN(3)]), 10, scheme)
		budget := Budget{Memory: 1 + rng.Int64N(200000)}
		row, err := Price(Ideal(), q, nil, budget)
		if err != nil {
			t.Fatal(err)
		}
		want := int64(0)
		for n := int64(1); n < 8000; n++ {
			q.Context = n
			r, err := Ideal().Reserve(q)
			if err != nil {
				t.Fatal(err)
			}
			if r.PerDevice <= budget.Memory {
				want = n
			}
		}
		if row.MaxContext != want {
			if q.Model.Geometry[len(q.Model.Geometry)-1].Kind == Compressed && window.sink > 0 {
				continue // offsets differ between the layers: the answer fits and the next does not, no more
			}
			t.Errorf("%s %+v in %d bytes: %d, want %d", q.Model.Geometry, scheme, budget.Memory, row.MaxContext, want)
		}
	}
}

func TestSlopeOfSteps(t *testing.T) {
	// At 100 tokens columns/32 has 4 scales a channel, at 356 it has 12: 8 x 2 x
	// 16 bytes more over 256 tokens, beside 16 codes a token.
	q := request(mustGeometry(t, "1xfull:1x16+0"), 100, same(columns{32}))
	row, err := Price(Ideal(), q, nil, Budget{})
	if err != nil || row.BytesPerToken != 17 || row.FixedBytes != 1600+4*32-1700 {
		t.Errorf("%g a token + %d, %v", row.BytesPerToken, row.FixedBytes, err)
	}
	// A layer whose window is passed costs nothing more.
	q = request(mustGeometry(t, "1xsliding64:1x16+16"), 100, same(flat{"f16", 2}))
	row, err = Price(Ideal(), q, nil, Budget{Memory: 4096})
	if err != nil || row.BytesPerToken != 0 || row.FixedBytes != 4096 || !row.Unbounded || !row.Fits {
		t.Errorf("%+v, %v", row, err)
	}
}

func TestWeightBytes(t *testing.T) {
	for _, test := range []struct {
		params int64
		bits   string
		want   int64
	}{{8030000000, "16", 16060000000}, {8030000000, "4.5", 4516875000}, {3, "4", 2}, {1, "1", 1}} {
		if got, err := WeightBytes(test.params, test.bits); err != nil || got != test.want {
			t.Errorf("%d x %s bits: %d, %v, want %d", test.params, test.bits, got, err, test.want)
		}
	}
	for _, bits := range []string{"", "0", "-4", "1e3", "4/2", "x", "99999", "NaN"} {
		if n, err := WeightBytes(1000, bits); err == nil {
			t.Errorf("%q bits: %d", bits, n)
		}
	}
}

func TestQuantities(t *testing.T) {
	for text, want := range map[string]int64{"32k": 32768, "128K": 131072, "1m": 1048576, "32768": 32768, " 32_768 ": 32768, "1.5k": 1536, "131,072": 131072, "1,048,576": 1048576, "10M": 10485760} {
		if got, err := ParseTokens(text); err != nil || got != want {
			t.Errorf("ParseTokens(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]int64{"24GiB": 24 << 30, "80G": 80 << 30, "24GB": 24e9, "24 gb": 24e9, "1024": 1024, "1.5KiB": 1536, "0": 0, "512b": 512, "2T": 2 << 40, "0.3KB": 300} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "k", "-1", "1e3", "0x10", "1/2", "1.2.3", "99999999999999999999", "9223372036854775807k", "3 apples", "3.3", "1.5", "1,00", "1,0000", "0,5", ",100", "inf", "nan"} {
		if n, err := ParseTokens(text); err == nil {
			t.Errorf("ParseTokens(%q) = %d", text, n)
		}
		if n, err := ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d", text, n)
		}
	}
	for text, want := range map[string]int64{"3350GB/s": 3350e9, "3.35 TB/s": 3350e9, "204.8gb": 204800e6, "900G": 900e9, "1TiB/S": 1 << 40, "3350000000000": 3350e9} {
		if got, err := ParseBandwidth(text); err != nil || got != want {
			t.Errorf("ParseBandwidth(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "/s", "900", "0GB/s", "-1GB/s", "1kB/s", "GB/s", "1GB/s/s", "1e9TB/s", "9999999999TB/s"} {
		if n, err := ParseBandwidth(text); err == nil {
			t.Errorf("ParseBandwidth(%q) = %d", text, n)
		}
	}
	if _, err := ParseTokens("0"); err == nil {
		t.Error("0 tokens")
	}
}
