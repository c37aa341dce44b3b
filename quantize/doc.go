// Package quantize stores keys and values under the schemes that serving
// engines use, and says what that costs in bytes.
//
// A Scheme says how one tensor, [heads, tokens, channels] float32, is stored. It
// is data: a format, who shares a scale, the zero form, the type of the stored
// scales, and modifiers. Lookup makes one from its name, Size prices it, and a
// Coder encodes and decodes it head by head. Size is what Encode produces, to
// the byte.
//
// All arithmetic is float32 with true division, rounded to nearest, ties to
// even, on every instruction set. Scales and offsets are rounded to their stored
// type first and codes are computed from the stored values, so decoding sees
// what encoding used.
package quantize
