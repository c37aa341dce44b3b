package formula

import "testing"

func TestParseGeometryReadsEveryPart(t *testing.T) {
	got, err := ParseGeometry(" 43xSliding128:1x512+0; entries:21xcompressed/4:1x512+0;index:21xcompressed/4:1x128+0;2xchunked8192:8x128+64 ;1xcompressed128/4:1x512+0")
	if err != nil {
		t.Fatal(err)
	}
	want := Geometry{
		{Count: 43, Kind: Sliding, Window: 128, KVHeads: 1, HeadDimK: 512},
		{Extra: Entries, Count: 21, Kind: Compressed, Ratio: 4, KVHeads: 1, HeadDimK: 512},
		{Extra: Index, Count: 21, Kind: Compressed, Ratio: 4, KVHeads: 1, HeadDimK: 128},
		{Count: 2, Kind: Chunked, Window: 8192, KVHeads: 8, HeadDimK: 128, HeadDimV: 64},
		{Count: 1, Kind: Compressed, Window: 128, Ratio: 4, KVHeads: 1, HeadDimK: 512},
	}
	if !got.Equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if text := "43xsliding128:1x512+0;entries:21xcompressed/4:1x512+0;index:21xcompressed/4:1x128+0;2xchunked8192:8x128+64;1xcompressed128/4:1x512+0"; got.String() != text {
		t.Errorf("String() = %s, want %s", got, text)
	}
	if n := got.Layers(); n != 46 {
		t.Errorf("Layers() = %d, want 46: extra tensors are on layers already counted", n)
	}
}

func TestParseGeometryRefuses(t *testing.T) {
	for _, text := range []string{
		"", ";", "32xfull:8x128", "32xfull", "32full:8x128+128", "0xfull:8x128+128", "32xfull:0x128+128",
		"32xfull:8x0+128", "32xfull:8x128+-1", "-1xfull:8x128+128", "32xfull4096:8x128+128", "32xfull/4:8x128+128",
		"32xsliding:8x128+128", "32xsliding0:8x128+128", "32xsliding128/4:8x128+128", "32xchunked:8x128+128",
		"32xcompressed:1x512+0", "32xcompressed/0:1x512+0", "32xcompressed/:1x512+0", "32xwide:8x128+128", "index:1xfull:1x128+0",
		"keys:1xfull:1x128+0", "1xfull:1x1+0;index:2xfull:1x128+0", "99999999999999999999xfull:8x128+128",
		"2000000xfull:8x128+128", "32xfull:8x128+128;", "+32xfull:8x128+128", "32xfull:8x 128+128",
	} {
		if g, err := ParseGeometry(text); err == nil {
			t.Errorf("ParseGeometry(%q) = %v, want an error", text, g)
		}
	}
}
