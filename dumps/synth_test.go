package dumps

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

func TestLn(t *testing.T) {
	for x := 1e-300; x < 1e300; x *= 1.37 {
		if got, want := ln(x), math.Log(x); math.Abs(got-want) > 2e-15*max(1, math.Abs(want)) {
			t.Errorf("ln(%g) = %v, want %v", x, got, want)
		}
	}
}

func TestRotations(t *testing.T) {
	for _, theta := range []float64{2, 1e4, 5e5, 1e6} {
		for _, d := range []int{2, 6, 64, 128, 256} {
			for i, r := range rotations(theta, d) {
				for _, position := range []int{0, 1, 1000, 100_000} {
					angle := float64(position) * math.Pow(theta, -2*float64(i)/float64(d))
					got := r.times(position)
					if math.Abs(got.cos-math.Cos(angle)) > 1e-9 || math.Abs(got.sin-math.Sin(angle)) > 1e-9 {
						t.Fatalf("theta %g, d %d, pair %d, position %d: %+v", theta, d, i, position, got)
					}
				}
			}
		}
	}
}

// The first four moments and the tails of what the generator draws.
func TestNormal(t *testing.T) {
	g := normal{src: Synthetic{Seed: 1}.stream(0, K, 0, 0)}
	const n = 1 << 20
	var sum [5]float64
	beyond := map[float64]int{1: 0, 2: 0, 3: 0, 4: 0}
	for range n {
		x := g.next()
		for k, p := 1, x; k <= 4; k, p = k+1, p*x {
			sum[k] += p
		}
		for limit := range beyond {
			if math.Abs(x) > limit {
				beyond[limit]++
			}
		}
	}
	for k, want := range []float64{1: 0, 2: 1, 3: 0, 4: 3} {
		// The variance of x^k is below 96 for k ≤ 4: five standard errors.
		if got := sum[k] / n; k > 0 && math.Abs(got-want) > 5*math.Sqrt(96.0/n) {
			t.Errorf("moment %d: %v, want %v", k, got, want)
		}
	}
	for limit, got := range beyond {
		want := math.Erfc(limit/math.Sqrt2) * n
		if math.Abs(float64(got)-want) > 5*math.Sqrt(want) {
			t.Errorf("beyond %v: %d, want %.0f", limit, got, want)
		}
	}
}

func small() Synthetic {
	return Synthetic{Layers: 2, KVHeads: 2, QueryHeads: 4, Queries: 8, Tokens: 2500, HeadDimK: 16, HeadDimV: 16, DType: F16, Seed: 7}
}

// synthLayer writes s as safetensors and reads its first layer.
func synthLayer(t testing.TB, s Synthetic) *Layer {
	t.Helper()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := WriteSafetensors(&b, s.Facts("test"), slices.Concat(s.Arrays(0, "layers.0."), s.Arrays(1, "layers.1."))); err != nil {
		t.Fatal(err)
	}
	return mustOpen(t, filepath.Join(write(t, "x.safetensors", b.Bytes()), "x.safetensors"), Options{}).Layers[0]
}

// channels returns the mean, root mean square and excess kurtosis of every channel.
func channels(x []float32, dim int) (mean, rms, kurtosis []float64) {
	n := float64(len(x) / dim)
	for c := range dim {
		var m, s2, s4 float64
		for i := c; i < len(x); i += dim {
			m += float64(x[i]) / n
			s2 += float64(x[i]) * float64(x[i]) / n
			s4 += math.Pow(float64(x[i]), 4) / n
		}
		mean, rms, kurtosis = append(mean, m), append(rms, math.Sqrt(s2)), append(kurtosis, s4/s2/s2-3)
	}
	return mean, rms, kurtosis
}

func TestFailureModes(t *testing.T) {
	plain := synthLayer(t, small())
	if plain.Number != 0 || plain.Facts.Scale != 0.25 || !slices.Equal(plain.QPositions, []int{311, 624, 936, 1249, 1561, 1874, 2186, 2499}) {
		t.Errorf("%+v", plain)
	}
	for p := K; p <= Q; p++ {
		x := readHead(t, plain, p, 1)
		if p == Q {
			continue
		}
		mean, rms, kurtosis := channels(x, 16)
		for c := range mean {
			if math.Abs(mean[c]) > 0.1 || math.Abs(rms[c]-1) > 0.1 || math.Abs(kurtosis[c]) > 0.6 {
				t.Errorf("plain %s channel %d: mean %v rms %v kurtosis %v", p, c, mean[c], rms[c], kurtosis[c])
			}
		}
	}

	s := small()
	s.OutlierChannels, s.OutlierScale = 3, 20
	l := synthLayer(t, s)
	for p, want := range []int{3, 0} {
		_, rms, _ := channels(readHead(t, l, Part(p), 0), 16)
		loud := 0
		for _, r := range rms {
			if math.Abs(r-20) < 2 {
				loud++
			} else if math.Abs(r-1) > 0.1 {
				t.Errorf("rms %v", r)
			}
		}
		if loud != want {
			t.Errorf("%s: %d outlier channels, want %d", Part(p), loud, want)
		}
	}

	s = small()
	s.KeyBias = 5
	l = synthLayer(t, s)
	mean, _, _ := channels(readHead(t, l, K, 0), 16)
	energy := 0.0
	for _, m := range mean {
		energy += m * m / 16
	}
	if energy < 8 || energy > 60 { // 25 on average over 16 channels
		t.Errorf("bias energy %v", energy)
	}

	s = small()
	s.HeavyTail = 0.01
	_, _, kurtosis := channels(readHead(t, synthLayer(t, s), V, 0), 16)
	slices.Sort(kurtosis)
	// 1% of values 8 times as large: 3·(0.99 + 0.01·8⁴)/(0.99 + 0.01·8²)² − 3 = 44.4
	if kurtosis[8] < 20 || kurtosis[8] > 90 {
		t.Errorf("kurtosis %v", kurtosis[8])
	}

	s = small()
	s.Sink, s.RoPETheta, s.KeyBias = 6, 1e4, 1
	l = synthLayer(t, s)
	k, v, q := readHead(t, l, K, 0), readHead(t, l, V, 0), readHead(t, l, Q, 1)
	norm := func(x []float32) (s float64) {
		for _, v := range x {
			s += float64(v) * float64(v)
		}
		return math.Sqrt(s)
	}
	if got := norm(k[:16]); math.Abs(got-24) > 0.1 { // 6·√16
		t.Errorf("sink key %v", got)
	}
	if got := norm(v[:16]); got > 0.5 {
		t.Errorf("sink value %v", got)
	}
	logit := 0.0
	for r := range 8 {
		for c := range 16 {
			logit += 0.25 * float64(q[r*16+c]) * float64(k[c]) / 8
		}
	}
	if math.Abs(logit-10) > 8 { // standard error 6/√8 = 2.1
		t.Errorf("sink logit %v", logit)
	}
	if l.Facts.RoPE == nil || l.Facts.RoPE.Theta != 1e4 || !*l.Facts.RoPEApplied {
		t.Errorf("facts %+v", l.Facts)
	}
}

// RoPE comes last: undone, the keys are those without it.
func TestSynthRoPE(t *testing.T) {
	s := small()
	s.KeyBias, s.DType = 2, F32
	before := readHead(t, synthLayer(t, s), K, 1)
	s.RoPETheta = 1e4
	after := readHead(t, synthLayer(t, s), K, 1)
	for _, position := range []int{0, 1, 1023, 1024, 2499} {
		for i := range 8 {
			sin, cos := math.Sincos(float64(position) * math.Pow(1e4, -float64(i)/8))
			x, y := float64(before[position*16+i]), float64(before[position*16+i+8])
			if math.Abs(x*cos-y*sin-float64(after[position*16+i])) > 1e-5 || math.Abs(x*sin+y*cos-float64(after[position*16+i+8])) > 1e-5 {
				t.Errorf("position %d, pair %d", position, i)
			}
		}
	}
}

// Golden: kvq's own output on amd64, so that other platforms and numbers of
// threads are held to the same bytes.
func TestSynthGolden(t *testing.T) {
	s := small()
	s.OutlierChannels, s.OutlierScale, s.KeyBias, s.HeavyTail, s.Sink, s.RoPETheta, s.DType = 2, 15, 1.5, 0.02, 4, 5e5, F32
	const want = "329d501faade385e"
	for _, threads := range []int{1, 3} {
		old := runtime.GOMAXPROCS(threads)
		var b bytes.Buffer
		err := WriteSafetensors(&b, s.Facts("golden"), s.Arrays(1, ""))
		runtime.GOMAXPROCS(old)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b.Bytes())
		if got := hex.EncodeToString(sum[:8]); got != want {
			t.Errorf("%d threads: %s, want %s", threads, got, want)
		}
	}
}

func TestSynthCheck(t *testing.T) {
	for name, change := range map[string]func(*Synthetic){
		"layers": func(s *Synthetic) { s.Layers = 0 }, "tokens": func(s *Synthetic) { s.Tokens = -1 },
		"query-heads": func(s *Synthetic) { s.QueryHeads = 3 }, "queries": func(s *Synthetic) { s.Queries = 3000 },
		"outlier-channels": func(s *Synthetic) { s.OutlierChannels = 17 }, "heavy-tail": func(s *Synthetic) { s.HeavyTail = math.NaN() },
		"rope": func(s *Synthetic) { s.RoPETheta = 0.5 }, "dtype": func(s *Synthetic) { s.DType = E4M3 },
	} {
		s := small()
		change(&s)
		var oe *OptionError
		if err := s.Check(); !errors.As(err, &oe) || oe.Option != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A writer that fails ends the generators.
func TestSynthWriteError(t *testing.T) {
	s := small()
	f, err := os.Create(filepath.Join(t.TempDir(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := WriteSafetensors(f, nil, s.Arrays(0, "")); err == nil {
		t.Error("no error")
	}
	s.OutlierChannels, s.OutlierScale, s.Tokens = 1, 1e4, 1<<16
	if err := WriteNPY(&bytes.Buffer{}, s.tensor(0, K, "")); err != nil {
		t.Errorf("60,000 fits f16: %v", err)
	}
	s.KeyBias = 1e4
	s.OutlierScale = 1e4
	s.OutlierChannels = 16
	if err := WriteNPY(&bytes.Buffer{}, s.tensor(0, K, "")); err == nil {
		t.Error("beyond f16: no error")
	}
}

func BenchmarkSynth(b *testing.B) {
	s := Synthetic{Layers: 1, KVHeads: 8, Tokens: 4096, HeadDimK: 128, HeadDimV: 128, DType: F16}
	b.SetBytes(2 * 8 * 4096 * 128 * 2)
	for b.Loop() {
		if err := WriteSafetensors(discard{}, nil, s.Arrays(0, "")); err != nil {
			b.Fatal(err)
		}
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
