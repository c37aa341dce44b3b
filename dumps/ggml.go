package dumps

import "fmt"

// The block types of ggml that a llama.cpp state file may hold. Their values
// have been through a codec; no other file can hold them, and no option names
// them. Names and layouts are ggml's: blocks of 32 values beginning with a
// float16 scale and, for q4_1 and q5_1, a float16 offset.
const (
	Q4_0  DType = "q4_0"
	Q4_1  DType = "q4_1"
	Q5_0  DType = "q5_0"
	Q5_1  DType = "q5_1"
	Q8_0  DType = "q8_0"
	IQ4NL DType = "iq4_nl"
)

// ggmlBlock is the number of values in a block.
const ggmlBlock = 32

// blockCodec decodes one block type. Every product and sum is rounded to
// float32 by itself, as ggml's own reference does it.
type blockCodec struct {
	bytes  int
	decode func(dst *[ggmlBlock]float32, src []byte)
}

var blockCodecs = map[DType]blockCodec{
	Q4_0: {18, func(dst *[ggmlBlock]float32, src []byte) {
		scale := scaleAt(src)
		for i, b := range src[2:18] {
			dst[i], dst[i+16] = float32(int(b&15)-8)*scale, float32(int(b>>4)-8)*scale
		}
	}},
	Q4_1: {20, func(dst *[ggmlBlock]float32, src []byte) {
		scale, offset := scaleAt(src), scaleAt(src[2:])
		for i, b := range src[4:20] {
			dst[i], dst[i+16] = float32(float32(b&15)*scale)+offset, float32(float32(b>>4)*scale)+offset
		}
	}},
	Q5_0: {22, func(dst *[ggmlBlock]float32, src []byte) {
		scale := scaleAt(src)
		for i, b := range src[6:22] {
			dst[i] = float32(int(b&15|fifthBit(src[2:], i))-16) * scale
			dst[i+16] = float32(int(b>>4|fifthBit(src[2:], i+16))-16) * scale
		}
	}},
	Q5_1: {24, func(dst *[ggmlBlock]float32, src []byte) {
		scale, offset := scaleAt(src), scaleAt(src[2:])
		for i, b := range src[8:24] {
			dst[i] = float32(float32(b&15|fifthBit(src[4:], i))*scale) + offset
			dst[i+16] = float32(float32(b>>4|fifthBit(src[4:], i+16))*scale) + offset
		}
	}},
	Q8_0: {34, func(dst *[ggmlBlock]float32, src []byte) {
		scale := scaleAt(src)
		for i, b := range src[2:34] {
			dst[i] = float32(int8(b)) * scale
		}
	}},
	IQ4NL: {18, func(dst *[ggmlBlock]float32, src []byte) {
		scale := scaleAt(src)
		for i, b := range src[2:18] {
			dst[i], dst[i+16] = iq4nlLevels[b&15]*scale, iq4nlLevels[b>>4]*scale
		}
	}},
}

// iq4nlLevels are the sixteen values of iq4_nl, in units of its scale.
var iq4nlLevels = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

func scaleAt(src []byte) float32 { return fromF16(uint16(src[0]) | uint16(src[1])<<8) }

// fifthBit returns the highest bit of value i of a 5-bit block, in its place.
func fifthBit(bits []byte, i int) byte { return bits[i/8] >> (i % 8) & 1 << 4 }

// quantized reports whether the type is one of ggml's block types.
func (d DType) quantized() bool { return blockCodecs[d].bytes > 0 }

// ggmlTypes are the types by ggml's numbers, with the bytes of the elements
// that are stored together.
var ggmlTypes = map[int32]DType{0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 6: Q5_0, 7: Q5_1, 8: Q8_0, 20: IQ4NL, 30: BF16}

// rowElements returns how many elements rows of the given bytes hold.
func (d DType) rowElements(bytes int64) (int64, error) {
	unit, count := int64(d.Size()), int64(1)
	if d.quantized() {
		unit, count = int64(blockCodecs[d].bytes), ggmlBlock
	}
	if bytes <= 0 || bytes%unit != 0 {
		return 0, fmt.Errorf("rows of %d bytes, which are no whole number of %s values", bytes, d)
	}
	return bytes / unit * count, nil
}

// decodeBlocks decodes elements [from, from+len(dst)) of a row of blocks.
func (c blockCodec) decodeBlocks(dst []float32, row []byte, from int) {
	var block [ggmlBlock]float32
	for len(dst) > 0 {
		n := from / ggmlBlock
		c.decode(&block, row[n*c.bytes:(n+1)*c.bytes])
		done := copy(dst, block[from%ggmlBlock:])
		dst, from = dst[done:], from+done
	}
}
