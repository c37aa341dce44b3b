package formula

import "testing"

// FuzzGeometry: whatever parses is valid, prints canonically and reads back the same.
func FuzzGeometry(f *testing.F) {
	for _, s := range []string{
		"32xfull:8x128+128", "12xfull:8x64+64;12xsliding128:8x64+64", "12xfull:8x128+128;36xchunked8192:8x128+128",
		"43xsliding128:1x512+0;entries:21xcompressed/4:1x512+0;index:21xcompressed/4:1x128+0;entries:20xcompressed/128:1x512+0",
		"61xfull:1x576+0;index:61xfull:1x128+0", "1xcompressed128/4:1x512+0", "x:x+", "9223372036854775807xfull:1x1+1",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ParseGeometry(text)
		if err != nil {
			return
		}
		for _, group := range g {
			if err := group.validate(); err != nil {
				t.Fatalf("%q parsed to an invalid group: %v", text, err)
			}
		}
		back, err := ParseGeometry(g.String())
		if err != nil {
			t.Fatalf("%q prints as %q, which does not parse: %v", text, g, err)
		}
		if !back.Equal(g) {
			t.Fatalf("%q: %v came back as %v", text, g, back)
		}
	})
}

func FuzzQuantity(f *testing.F) {
	for _, s := range []string{"32k", "128K", "1m", "32768", "24GiB", "80G", "24GB", "1.5k", "1e9", "0x10", "1/2", "-1", "9999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseTokens(text); err == nil && n < 1 {
			t.Fatalf("ParseTokens(%q) = %d", text, n)
		}
		if n, err := ParseBytes(text); err == nil && n < 0 {
			t.Fatalf("ParseBytes(%q) = %d", text, n)
		}
	})
}
