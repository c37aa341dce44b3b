package formula

import "fmt"

// MLX is mlx-lm's caches: full layers grow in steps of 256 tokens, sliding
// layers have a ring of at most the window's.
func MLX() Engine {
	return Engine{
		Name:           "mlx",
		Title:          "mlx-lm: steps of 256 tokens, rings for windows",
		Scheme:         mlxScheme,
		DefaultSchemes: []string{"float16", "8bit", "4bit"},
		Reserve:        reserveMLX,
	}
}

// mlxStep is by how many tokens a cache grows.
const mlxStep = 256

// mlxScheme reads float16 or the bits of --kv-bits: groups of 64 with a 16-bit
// scale and bias.
func mlxScheme(name string) (Scheme, error) {
	types := []bitsSide{{name: "float16", bits: 16}, {name: "bfloat16", bits: 16}}
	for _, bits := range []int64{2, 3, 4, 6, 8} {
		types = append(types, bitsSide{name: fmt.Sprintf("%dbit", bits), bits: bits, group: 64, scaleBytes: 4})
	}
	return bitsScheme("mlx", name, types, map[string]string{"f16": "float16", "bf16": "bfloat16", "auto": "float16"})
}

func reserveMLX(req Request) (Reservation, error) {
	s, err := mlxScheme(req.Scheme.Name)
	if err != nil {
		return Reservation{}, err
	}
	req.Scheme = s
	var c calc
	r, _, err := slotRule{
		slots: func(g Group) int64 {
			n := c.roundUp(req.Context, mlxStep)
			switch g.Kind {
			case Sliding, Chunked:
				n = min(n, g.Window)
			case Compressed:
				n = g.Tokens(n)
			}
			return n
		},
		states: req.Sequences,
		cross:  true,
	}.reserve(req)
	if err == nil {
		err = c.err
	}
	for _, g := range req.Model.Geometry {
		if g.Kind == Sliding && s.K.(bitsSide).group > 0 {
			r.Refusal = "mlx-lm does not quantize the rings of sliding layers"
		}
	}
	return r, err
}
