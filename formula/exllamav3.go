package formula

import "fmt"

// ExLlamaV3 is exllamav3's cache: pages of 256 tokens, every layer at the
// full length, K and V in bits of their own.
func ExLlamaV3() Engine {
	return Engine{
		Name:           "exllamav3",
		Title:          "exllamav3: pages of 256 tokens",
		Scheme:         exllamaScheme,
		DefaultSchemes: []string{"fp16", "8", "8:4", "4"},
		Reserve:        reserveExLlamaV3,
	}
}

// exllamaPage is the tokens of a page.
const exllamaPage = 256

// exllamaScheme reads fp16 or 2 to 8 bits, K:V apart: groups of 32 with an
// fp16 scale.
func exllamaScheme(name string) (Scheme, error) {
	types := []bitsSide{{name: "fp16", bits: 16}}
	for bits := int64(2); bits <= 8; bits++ {
		types = append(types, bitsSide{name: fmt.Sprint(bits), bits: bits, group: 32, scaleBytes: 2})
	}
	return bitsScheme("exllamav3", name, types, map[string]string{"f16": "fp16", "float16": "fp16", "auto": "fp16"})
}

func reserveExLlamaV3(req Request) (Reservation, error) {
	s, err := exllamaScheme(req.Scheme.Name)
	if err != nil {
		return Reservation{}, err
	}
	req.Scheme = s
	var c calc
	tokens := c.roundUp(req.Context, exllamaPage)
	r, _, err := slotRule{
		slots: func(g Group) int64 {
			if g.Kind == Compressed {
				return g.Tokens(tokens)
			}
			return tokens
		},
		states: req.Sequences,
		cross:  true,
	}.reserve(req)
	r.Details = []Detail{{"blocks", "pages", c.mul(tokens/exllamaPage, req.Sequences)}, {"tokens", "tokens of the pages", c.mul(tokens, req.Sequences)}}
	if err == nil {
		err = c.err
	}
	return r, err
}
