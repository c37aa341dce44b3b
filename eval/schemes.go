package eval

import "slices"

// controls are the schemes that store a dump of a type without loss.
var controls = map[string]string{"f32": "f32", "f64": "f32", "f16": "f16", "bf16": "bf16", "e4m3": "e4m3-raw", "e5m2": "e5m2-raw"}

// DefaultSchemes returns the pairs measured when none is named: each single
// scheme on the keys alone, then on the values alone, then the pairs. A control
// in which a dump's own type loses nothing comes first where the list has none.
func DefaultSchemes(dtypes ...string) []string {
	sides := []string{"f16", "bf16", "e4m3", "e4m3-raw", "e5m2"}
	for _, t := range dtypes {
		if control := controls[t]; control != "" && !slices.Contains(sides, control) {
			sides = slices.Insert(sides, 0, control)
		}
	}
	for _, format := range []string{"int8", "int4"} {
		for _, zero := range []string{"", "-asym"} {
			for _, share := range []string{"tensor", "head", "token", "token/32", "channel", "channel/32"} {
				sides = append(sides, format+zero+"-"+share)
			}
		}
	}
	sides = append(sides, "int6-token", "int3-asym-channel/32", "int2-asym-token/32", "int2-asym-channel/32",
		"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "mxfp4", "nvfp4")

	var names []string
	for _, s := range sides {
		names = append(names, s+":"+Exact)
	}
	for _, s := range sides {
		names = append(names, Exact+":"+s)
	}
	return append(names,
		"f16", "e4m3-raw", "int8-token",
		"int8-channel/32:int8-token", "int8-channel/32:int4-token/32",
		"int4-asym-channel/32:int4-asym-token/32", "int2-asym-channel/32:int2-asym-token/32",
		"q8_0", "q8_0:q4_0", "q4_0", "nvfp4",
		"int4-token/32", "int3-asym-channel/32:int3-asym-token/32")
}
