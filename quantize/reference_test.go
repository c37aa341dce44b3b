package quantize

import (
	"math"
	"strconv"
	"strings"
)

// The reference of the tests: schemes.md's definitions written down directly,
// element by element, from the name of the scheme, in float64 with every
// operation rounded to float32 where the definition says float32. It shares no
// code with the package.

// refScheme is a name taken apart.
type refScheme struct {
	codec       string
	bits        int
	zero, share string
	group       int
	meta        string
}

func refParse(name string) refScheme {
	name, meta, _ := strings.Cut(name, "@")
	name, group, _ := strings.Cut(name, "/")
	parts := strings.Split(name, "-")
	r := refScheme{codec: parts[0], zero: "sym", meta: meta}
	r.group, _ = strconv.Atoi(group)
	if strings.HasPrefix(r.codec, "int") {
		r.bits = int(r.codec[3] - '0')
		r.share = "token"
		if r.meta == "" {
			r.meta = "f16"
		}
	} else {
		r.bits = map[string]int{"f32": 32, "f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8}[r.codec]
		r.share = "tensor"
		if r.meta == "" {
			r.meta = "f32"
		}
	}
	for _, part := range parts[1:] {
		switch part {
		case "raw":
			r.share = "raw"
		case "sym", "asym", "zp":
			r.zero = part
		default:
			r.share = part
		}
	}
	if r.codec[0] == 'f' || r.codec[0] == 'b' {
		r.share = "raw"
	}
	return r
}

// unit returns a key that equals for elements that share a scale.
func (r refScheme) unit(head, token, channel int) [3]int {
	g := r.group
	if g == 0 {
		g = math.MaxInt
	}
	switch r.share {
	case "tensor":
		return [3]int{}
	case "head":
		return [3]int{head}
	case "token":
		return [3]int{head, token, channel / g}
	case "channel":
		return [3]int{head, channel, token / g}
	}
	panic(r.share)
}

// roundFloat rounds v to a float of the given significant bits (hidden one
// included) and least normal exponent, ties to even: no overflow.
func roundFloat(v float64, digits, minExp int) float64 {
	if v == 0 {
		return v
	}
	_, e := math.Frexp(v) // v = f·2^e, f in [.5, 1)
	unit := math.Ldexp(1, max(e-digits, minExp-digits+1))
	return math.RoundToEven(v/unit) * unit
}

func roundTo(format string, v float64) float64 {
	switch format {
	case "f32":
		return roundFloat(v, 24, -126)
	case "f16":
		return roundFloat(v, 11, -14)
	case "bf16":
		return roundFloat(v, 8, -126)
	case "e4m3":
		return math.Max(-448, math.Min(448, roundFloat(v, 4, -6)))
	case "e5m2":
		return math.Max(-57344, math.Min(57344, roundFloat(v, 3, -14)))
	}
	panic(format)
}

var refSmallest = map[string]float64{"f16": 0x1p-24, "bf16": 0x1p-133, "f32": 0x1p-149}

func f32(v float64) float64 { return float64(float32(v)) }

// refScale is what one sharing unit stores, with the exact values beside it.
type refScale struct{ scale, offset, zeroPoint, exactScale, exactOffset float64 }

// refRange is the range of one sharing unit.
type refRange struct{ lo, hi, abs float64 }

func (r refScheme) scaleOf(u refRange) refScale {
	var width, levels float64
	lo := u.lo
	switch {
	case r.bits == 8 && r.codec == "e4m3":
		width, levels = u.abs, 448
	case r.bits == 8 && r.codec == "e5m2":
		width, levels = u.abs, 57344
	case r.zero == "sym":
		width, levels = u.abs, math.Ldexp(1, r.bits-1)-1
	case r.zero == "asym":
		width, levels = f32(u.hi-u.lo), math.Ldexp(1, r.bits)-1
	case r.zero == "zp":
		lo = math.Min(u.lo, 0)
		width, levels = f32(math.Max(u.hi, 0)-lo), math.Ldexp(1, r.bits)-1
	}
	s := refScale{exactScale: width / levels}
	s.scale = roundTo(r.meta, f32(width/levels))
	if s.scale == 0 && width > 0 {
		s.scale = refSmallest[r.meta]
	}
	switch r.zero {
	case "asym":
		s.exactOffset = lo
		s.offset = roundTo(r.meta, lo)
	case "zp":
		least := -math.Ldexp(1, r.bits-1)
		if s.scale > 0 {
			s.zeroPoint = math.Max(least, math.Min(-least-1, least-math.RoundToEven(f32(lo/s.scale))))
		}
	}
	return s
}

// code returns the signed code of x and the value it decodes to; a float codec
// has no code.
func (r refScheme) code(x float64, s refScale) (code int, value float64) {
	quotient := 0.0
	if s.scale != 0 {
		quotient = f32(f32(x-s.offset) / s.scale)
	}
	if r.codec[0] == 'e' {
		return 0, f32(roundTo(r.codec, quotient) * s.scale)
	}
	lo, hi := -math.Ldexp(1, r.bits-1), math.Ldexp(1, r.bits-1)-1
	switch r.zero {
	case "sym":
		lo = -hi
	case "asym":
		lo, hi = 0, math.Ldexp(1, r.bits)-1
	}
	q := math.RoundToEven(quotient)
	if r.zero == "zp" {
		if s.scale == 0 {
			return 0, 0
		}
		q += s.zeroPoint
	}
	q = math.Max(lo, math.Min(hi, q))
	return int(q), f32(f32(s.scale*(q-s.zeroPoint)) + s.offset)
}

// bound is what |x̂ − x| may be, from schemes.md §2 and §3. The last term pays
// for the roundings of quotient, product and sum.
func (r refScheme) bound(x float64, s refScale, largest float64) float64 {
	slack := math.Ldexp(largest, -22)
	switch {
	case r.codec == "e4m3":
		// Half a unit of the last of 4 digits, or of the denormals' 2^-9.
		return math.Max(math.Abs(x)/16, s.scale/1024)*1.0001 + 448*math.Abs(s.scale-s.exactScale) + slack
	case r.codec == "e5m2":
		return math.Max(math.Abs(x)/8, s.scale/131072)*1.0001 + 57344*math.Abs(s.scale-s.exactScale) + slack
	case r.zero == "asym":
		return s.scale/2 + (math.Ldexp(1, r.bits)-1)*math.Abs(s.scale-s.exactScale) + math.Abs(s.offset-s.exactOffset) + slack
	case r.zero == "zp":
		return s.scale + (math.Ldexp(1, r.bits)-1)*math.Abs(s.scale-s.exactScale) + slack
	}
	return s.scale/2 + (math.Ldexp(1, r.bits-1)-1)*math.Abs(s.scale-s.exactScale) + slack
}
