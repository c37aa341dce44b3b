package quantize

import (
	"errors"
	"testing"
)

// FuzzScheme: every name is a scheme whose canonical name gives itself again, or
// a *SchemeError.
func FuzzScheme(f *testing.F) {
	for _, seed := range []string{
		"int8", "int4-asym-channel/32@f32+recent128:e4m3-head", "exact:int3-zp-tensor", "int4-token/64+hadamard32+center+sink4",
		"f16:bf16", "e5m2-raw", "int4-chanel", "int4-token/0", "+", ":", "@", "int8-token+recent", "INT2-ASYM",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		pair, err := ParsePair(name)
		if err != nil {
			if e := new(SchemeError); !errors.As(err, &e) {
				t.Fatalf("%q: %T", name, err)
			}
			return
		}
		canonical := pair.Name()
		again, err := ParsePair(canonical)
		if err != nil || again.Name() != canonical {
			t.Fatalf("%q is %q, which is %q, %v", name, canonical, again.Name(), err)
		}
		for _, s := range []*Scheme{pair.K, pair.V} {
			if s == nil {
				continue
			}
			if size, err := s.Size(Shape{2, 100, 64}); err == nil && size.Total() <= 0 {
				t.Fatalf("%q: size %+v", canonical, size)
			}
		}
	})
}
