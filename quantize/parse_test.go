package quantize

import (
	"errors"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"INT8":                            "int8-token",
		"int8-sym":                        "int8-token",
		"int4-sym-channel/32@F16":         "int4-channel/32",
		"int4-zp-tensor@f32":              "int4-zp-tensor@f32",
		"int3-asym":                       "int3-asym-token",
		"e4m3-tensor@f32":                 "e4m3",
		"e5m2@bf16":                       "e5m2@bf16",
		"E4M3-head":                       "e4m3-head",
		"e4m3-RAW":                        "e4m3-raw",
		" f16 ":                           "f16",
		"int4+hadamard":                   "int4-token+hadamard",
		"int4+hadamard32+recent5":         "int4-token+hadamard32+recent5",
		"int4-channel/32+recent64+center": "int4-channel/32+recent64+center",
		"int8:int8-token":                 "int8-token",
		"int8-channel:int4-token/32":      "int8-channel:int4-token/32",
		"exact:int4":                      "exact:int4-token",
		"int4+Center:EXACT":               "int4-token+center:exact",
	} {
		pair, err := ParsePair(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := pair.Name(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestNameErrors(t *testing.T) {
	for name, want := range map[string]string{
		"":                         "a scheme is missing",
		"int8:":                    "a scheme is missing",
		"int7":                     `scheme "int7": no such scheme`,
		"q9_1":                     "no such scheme",
		"int4-chanel":              `unknown sharing or zero form "chanel"`,
		"int4-channel-asym":        `"asym" comes after the sharing`,
		"int4-asym-":               "nothing stands after a -",
		"int4-tensor/32":           "sharing tensor takes no group",
		"int4-token/":              `group "" is not a number`,
		"int4-token/0":             `group "0" is not a number`,
		"int4-token/-3":            `group "-3" is not a number`,
		"int4-token/99999999999":   `group "99999999999" is not a number`,
		"int4@f64":                 `unknown type of scales "f64"`,
		"f16-token":                "f16 stands alone",
		"f16@f32":                  "f16 stands alone",
		"e4m3-asym":                "e4m3 has no zero form",
		"e4m3-raw-token":           "e4m3-raw stands alone",
		"mxfp4-ceil/32":            "mxfp4-ceil stands alone",
		"int4+":                    "unknown modifier",
		"int4+centre":              `unknown modifier "centre"`,
		"int4+center3":             "+center takes no number",
		"int4+sink":                "+sink needs a number of tokens",
		"int4+hadamard33":          "not a power of two",
		"int4+center+center":       "+center stands twice",
		"int4-channel/32+recent33": "not a multiple of the group of 32",
		"exact":                    "both sides are left exact",
		"exact:exact":              "both sides are left exact",
		"int8:int4:int2":           "unknown",
		strings.Repeat("a", 1e6):   "longer than",
	} {
		_, err := ParsePair(name)
		var e *SchemeError
		if !errors.As(err, &e) {
			t.Errorf("%.40s: %v", name, err)
			continue
		}
		if ok := strings.Contains(err.Error(), want); !ok || len(err.Error()) > 2000 {
			t.Errorf("%.40s: %v, want %s", name, err, want)
		}
	}
	for name, hint := range map[string]string{
		"int7": "int", "int4-chanel": "channel", "int4+centre": "center", "e4m4": "e4m3", "int4-asim-token": "asym", "int4@bf61": "bf16",
		"mxfp4-cell": "mxfp4-ceil", "q4_O": "q4_0", "fp8": "e4m3", "zzzzzzzzzzzzzzzz": "kvq schemes lists them",
	} {
		_, err := Lookup(name)
		var e *SchemeError
		if !errors.As(err, &e) || !strings.Contains(e.Hint, hint) {
			t.Errorf("%s: hint of %v does not name %s", name, err, hint)
		}
	}
}

func TestCheckDim(t *testing.T) {
	for name, want := range map[string]string{
		"int4-token/128":   "the group of 128 channels is wider than the head of 64",
		"int4+hadamard128": "blocks of 128 channels do not divide the head of 64",
		"int4-token/64":    "",
		"int4-channel/128": "",
	} {
		err := mustLookup(t, name).CheckDim(64)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
