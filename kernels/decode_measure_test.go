package kernels

import (
	"context"
	"testing"
	"time"
)

// TestMeter measures a small cache at every level and checks what does not depend
// on the machine's speed.
func TestMeter(t *testing.T) {
	shape := CacheShape{Heads: 1, DimK: 64, DimV: 64, Tokens: 512}
	f := Format{Codec: CodecInt, Bits: 8, Share: ShareToken}
	x := newDecodeCase(t, 1, shape, 512, f, f, DecodeOptions{QueryHeads: 4})
	for threads := 1; threads <= 2; threads++ {
		m, err := NewMeter(threads)
		if err != nil {
			t.Fatal(err)
		}
		for _, level := range []Level{LevelL2, LevelL3} {
			got, err := m.Decode(context.Background(), x.cache, x.options, level, time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			// 512 tokens of 2·64 bytes and two f16 scales.
			if want := int64(512 * (2*64 + 4)); got.CacheBytes != want || got.WorkingSetBytes != want {
				t.Errorf("%s: %d bytes a step over %d, want %d", level, got.CacheBytes, got.WorkingSetBytes, want)
			}
			if got.Micros <= 0 || got.MicrosLow > got.Micros || got.Micros > got.MicrosHigh || got.ReadGBs <= 0 || got.Samples < 2 {
				t.Errorf("%s: implausible %+v", level, got)
			}
		}
		m.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	m, _ := NewMeter(1)
	defer m.Close()
	if _, err := m.Decode(ctx, x.cache, x.options, LevelL2, time.Hour); err == nil {
		t.Error("a cancelled measurement went on")
	}
}
