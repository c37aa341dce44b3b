package dumps

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
)

// Content is one array to be written. Its elements are streamed, so that an
// array larger than memory can be written.
type Content struct {
	Name  string
	DType DType // F16, BF16 or F32; ignored for integers
	Ints  []int // the elements of a list of integers, stored with 32 bits
	Shape []int // of floats
	// Values writes the elements in C order.
	Values func(*Encoder) error
}

// bytes returns the size of the array's data.
func (c Content) bytes() (int64, error) {
	if c.Values == nil {
		for _, v := range c.Ints {
			if int(int32(v)) != v {
				return 0, fmt.Errorf("%s: %d does not fit 32 bits", c.Name, v)
			}
		}
		return 4 * int64(len(c.Ints)), nil
	}
	switch c.DType {
	case F16, BF16, F32:
	default:
		return 0, fmt.Errorf("%s: cannot write type %q", c.Name, string(c.DType))
	}
	return dataSize(c.Shape, c.DType.Size())
}

func (c Content) shape() []int {
	if c.Values == nil {
		return []int{len(c.Ints)}
	}
	return c.Shape
}

// write writes the array's data and checks its length.
func (c Content) write(w io.Writer) error {
	size, err := c.bytes()
	if err != nil {
		return err
	}
	if c.Values == nil {
		var b []byte
		for _, v := range c.Ints {
			b = binary.LittleEndian.AppendUint32(b, uint32(int32(v)))
		}
		_, err := w.Write(b)
		return err
	}
	e := &Encoder{w: w, dtype: c.DType, buf: make([]byte, 0, 1<<16)}
	if err := c.Values(e); err != nil {
		return err
	}
	if err := e.flush(); err != nil {
		return err
	}
	if e.written != size {
		return fmt.Errorf("%s: wrote %d bytes of the %d that its shape says", c.Name, e.written, size)
	}
	return nil
}

// Encoder converts the elements of an array to its type.
type Encoder struct {
	w       io.Writer
	dtype   DType
	buf     []byte
	written int64
}

// Write appends elements, rounded to nearest with ties to even. A finite value
// that f16 cannot hold is an error.
func (e *Encoder) Write(x []float32) error {
	for len(x) > 0 {
		n := min(len(x), (cap(e.buf)-len(e.buf))/e.dtype.Size())
		if n == 0 {
			if err := e.flush(); err != nil {
				return err
			}
			continue
		}
		switch e.dtype {
		case F16:
			for _, v := range x[:n] {
				h := toF16(v)
				if h&0x7fff == 0x7c00 && !math.IsInf(float64(v), 0) {
					return fmt.Errorf("%g is too large for f16", v)
				}
				e.buf = binary.LittleEndian.AppendUint16(e.buf, h)
			}
		case BF16:
			for _, v := range x[:n] {
				e.buf = binary.LittleEndian.AppendUint16(e.buf, toBF16(v))
			}
		default:
			for _, v := range x[:n] {
				e.buf = binary.LittleEndian.AppendUint32(e.buf, math.Float32bits(v))
			}
		}
		x = x[n:]
	}
	return nil
}

func (e *Encoder) flush() error {
	n, err := e.w.Write(e.buf)
	e.written += int64(n)
	e.buf = e.buf[:0]
	return err
}

// toF16 rounds to binary16, to nearest with ties to even; what is too large
// becomes infinite.
func toF16(v float32) uint16 {
	b := math.Float32bits(v)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7e00 // NaN
	case b >= 0x477ff000: // 65520 and more round beyond the largest, 65504
		return sign | 0x7c00
	case b < 0x38800000: // below the least normal, 2^-14
		// Adding 1/2 puts the unit of the sum's last place at 2^-24, the
		// spacing of subnormals: the addition rounds.
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	b += 0xfff + b>>13&1 // to even
	return sign | uint16(b>>13-(127-15)<<10)
}

// toBF16 rounds to bfloat16, to nearest with ties to even.
func toBF16(v float32) uint16 {
	b := math.Float32bits(v)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40 // NaN stays NaN
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// WriteNPY writes one array as an npy file, version 1. BF16, which npy cannot
// name, becomes V2: reading it back takes --dtype bf16.
func WriteNPY(w io.Writer, c Content) error {
	b := bufio.NewWriterSize(w, 1<<16)
	if _, err := b.Write(npyPreamble(npyDescr(c), c.shape())); err != nil {
		return err
	}
	if err := c.write(b); err != nil {
		return err
	}
	return b.Flush()
}

// WriteNPYBytes writes an npy file of uint8; data writes the elements.
func WriteNPYBytes(w io.Writer, shape []int, data func(io.Writer) error) error {
	b := bufio.NewWriterSize(w, 1<<16)
	if _, err := b.Write(npyPreamble("|u1", shape)); err != nil {
		return err
	}
	if err := data(b); err != nil {
		return err
	}
	return b.Flush()
}

func npyDescr(c Content) string {
	switch {
	case c.Values == nil:
		return "<i4"
	case c.DType == F16:
		return "<f2"
	case c.DType == BF16:
		return "<V2"
	}
	return "<f4"
}

// npyPreamble returns everything before the data, padded as the format asks.
func npyPreamble(descr string, shape []int) []byte {
	var dims strings.Builder
	for _, d := range shape {
		fmt.Fprintf(&dims, "%d, ", d)
	}
	tuple := strings.TrimSuffix(dims.String(), " ")
	if len(shape) != 1 { // Python wants the comma of a single element only
		tuple = strings.TrimSuffix(tuple, ",")
	}
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, tuple)
	dict += strings.Repeat(" ", 63-(len(npyMagic)+4+len(dict))%64) + "\n"
	b := append([]byte(npyMagic), 1, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(dict)))
	return append(b, dict...)
}

// WriteNPZ writes arrays, and facts unless nil, as a stored (uncompressed)
// npz archive.
func WriteNPZ(w io.Writer, facts *FactFile, arrays []Content) error {
	b := bufio.NewWriterSize(w, 1<<16)
	z := zip.NewWriter(b)
	for _, c := range arrays {
		m, err := z.CreateHeader(&zip.FileHeader{Name: c.Name + ".npy", Method: zip.Store})
		if err != nil {
			return err
		}
		if err := WriteNPY(m, c); err != nil {
			return err
		}
	}
	if facts != nil {
		text, err := facts.JSON()
		if err != nil {
			return err
		}
		runes := []rune(string(text))
		data := npyPreamble(fmt.Sprintf("<U%d", len(runes)), nil)
		for _, r := range runes {
			data = binary.LittleEndian.AppendUint32(data, uint32(r))
		}
		m, err := z.CreateHeader(&zip.FileHeader{Name: "kvq.npy", Method: zip.Store})
		if err != nil {
			return err
		}
		if _, err := m.Write(data); err != nil {
			return err
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	return b.Flush()
}

// WriteSafetensors writes arrays, and facts unless nil, as a safetensors file.
// Names must differ. The data lies in the order given, after a header that is
// padded to a multiple of 8 bytes.
func WriteSafetensors(w io.Writer, facts *FactFile, arrays []Content) error {
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int    `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	var h strings.Builder
	h.WriteByte('{')
	member := func(name string, value any) error {
		k, err := json.Marshal(name)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if h.Len() > 1 {
			h.WriteByte(',')
		}
		h.Write(k)
		h.WriteByte(':')
		h.Write(v)
		return nil
	}
	if facts != nil {
		text, err := facts.JSON()
		if err != nil {
			return err
		}
		if err := member("__metadata__", map[string]string{"kvq": string(text)}); err != nil {
			return err
		}
	}
	names := map[string]bool{}
	end := int64(0)
	for _, c := range arrays {
		size, err := c.bytes()
		if err != nil {
			return err
		}
		if names[c.Name] || c.Name == "__metadata__" {
			return fmt.Errorf("%s: name given twice", c.Name)
		}
		names[c.Name] = true
		dtype := strings.ToUpper(string(c.DType))
		if c.Values == nil {
			dtype = "I32"
		}
		if err := member(c.Name, entry{dtype, c.shape(), [2]int64{end, end + size}}); err != nil {
			return err
		}
		end += size
	}
	h.WriteByte('}')
	h.WriteString(strings.Repeat(" ", (8-h.Len()%8)%8))
	b := bufio.NewWriterSize(w, 1<<16)
	if _, err := b.Write(binary.LittleEndian.AppendUint64(nil, uint64(h.Len()))); err != nil {
		return err
	}
	if _, err := b.WriteString(h.String()); err != nil {
		return err
	}
	for _, c := range arrays {
		if err := c.write(b); err != nil {
			return err
		}
	}
	return b.Flush()
}

// JSON returns the kvq.dump/1 object.
func (f *FactFile) JSON() ([]byte, error) {
	g := *f
	g.Schema = Schema
	return json.Marshal(g)
}
