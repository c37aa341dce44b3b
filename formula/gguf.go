package formula

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrGGUF marks a file that is not a valid GGUF header.
var ErrGGUF = errors.New("not a valid GGUF header")

// ggufMaxArray is the longest array whose values are kept: per-layer arrays
// hold at most 512 entries in llama.cpp, token lists need only their length.
const ggufMaxArray = 4096

// ggufMaxText is the longest string value that is kept; chat templates, the
// longest ones in real files, are not needed.
const ggufMaxText = 4096

// ggufMaxKey is the longest key or tensor name accepted: llama.cpp allows
// 64 bytes for a tensor, converters stay below 100 for a key.
const ggufMaxKey = 1024

// More keys or tensors than these no model has, and reading them would take
// many times the memory of their bytes.
const (
	ggufMaxKeys    = 1 << 14
	ggufMaxTensors = 1 << 17
)

// GGUF is the metadata of a GGUF file, version 2 or 3, of either byte order.
// Tensor data is never read.
type GGUF struct {
	Version int
	// Tensors is the number of tensors listed, over all parts of a split file.
	Tensors int64
	// WeightBytes is the storage of all listed tensors, without alignment.
	// It is -1 when a tensor type is unknown or a part of a split file is
	// not at hand.
	WeightBytes int64
	// Parameters is the number of elements of all listed tensors.
	Parameters int64
	// expertBytes is the part of WeightBytes that holds the experts of
	// mixtures, of which a token uses some.
	expertBytes int64

	values map[string]ggufValue
	names  map[string]bool
}

// ggufValue is one metadata value. Arrays keep their integers only when short.
type ggufValue struct {
	kind  ggufKind
	array bool
	n     int64 // length of an array
	ints  []int64
	float float64
	text  string
}

type ggufKind uint32

const (
	ggufUint8 ggufKind = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

// ggufSizes is the storage of one scalar of each kind; 0 for string and array.
var ggufSizes = [...]int64{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

// OpenGGUF reads the header of the file at path. For one part of a split
// model (NAME-00001-of-00003.gguf) the metadata comes from the part with the
// model's keys and the weights from every part that lies beside it.
func OpenGGUF(path string) (*GGUF, error) {
	g, err := openGGUFPart(path)
	if err != nil {
		return nil, err
	}
	parts, _ := g.Int("split.count")
	if parts <= 1 {
		return g, nil
	}
	m := ggufPart.FindStringSubmatch(filepath.Base(path))
	if m == nil || m[3] != fmt.Sprintf("%05d", parts) {
		g.WeightBytes = -1
		return g, nil
	}
	whole := g
	for i := int64(1); i <= parts; i++ {
		name := filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%s.gguf", m[1], i, m[3]))
		if name == filepath.Clean(path) {
			continue
		}
		part, err := openGGUFPart(name)
		if errors.Is(err, os.ErrNotExist) {
			whole.WeightBytes = -1
			continue
		}
		if err != nil {
			return nil, err
		}
		if part.Architecture() != "" && whole.Architecture() == "" {
			whole, part = part, whole
		}
		whole.join(part)
	}
	return whole, nil
}

var ggufPart = regexp.MustCompile(`^(.+)-(\d{5})-of-(\d{5})\.gguf$`)

func openGGUFPart(path string) (*GGUF, error) { return readFile(path, ReadGGUF) }

// join adds the tensors of another part of the same model.
func (g *GGUF) join(part *GGUF) {
	g.Tensors += part.Tensors
	g.Parameters = max(g.Parameters, g.Parameters+part.Parameters)
	for name := range part.names {
		g.names[name] = true
	}
	switch {
	case g.WeightBytes < 0 || part.WeightBytes < 0 || g.WeightBytes > math.MaxInt64-part.WeightBytes:
		g.WeightBytes = -1
	default:
		g.WeightBytes += part.WeightBytes
		g.expertBytes += part.expertBytes
	}
}

// ReadGGUF reads a header from r, which holds size bytes. Every count and
// length is checked against the bytes that are left before it is believed, so
// memory stays within a small multiple of size. Errors wrap [ErrGGUF].
func ReadGGUF(r io.Reader, size int64) (*GGUF, error) {
	d := &ggufReader{r: bufio.NewReaderSize(r, 1<<16), left: size, order: binary.LittleEndian}
	g := &GGUF{values: map[string]ggufValue{}, names: map[string]bool{}}
	if magic := d.bytes(4); string(magic) != "GGUF" {
		return nil, fmt.Errorf("%w: the file does not start with GGUF", ErrGGUF)
	}
	version := d.uint32("version")
	if version&0xffff == 0 && version != 0 {
		d.order = binary.BigEndian
		version = version >> 24
	}
	if d.err == nil && version != 2 && version != 3 {
		return nil, fmt.Errorf("%w: version %d, versions 2 and 3 are read", ErrGGUF, version)
	}
	g.Version = int(version)
	tensors := d.count("tensor count", 4+8+4+8)
	keys := d.count("key count", 8+4+1)
	if keys > ggufMaxKeys || tensors > ggufMaxTensors {
		d.fail("%d keys and %d tensors are more than any model has", keys, tensors)
	}
	for i := int64(0); i < keys && d.err == nil; i++ {
		key := d.text("key", ggufMaxKey)
		value := d.value(key)
		if _, twice := g.values[key]; twice {
			d.fail("key %q appears twice", key)
		}
		g.values[key] = value
	}
	for i := int64(0); i < tensors && d.err == nil; i++ {
		g.tensor(d)
	}
	if d.err != nil {
		return nil, d.err
	}
	return g, nil
}

// tensor reads one tensor's description and adds its bytes.
func (g *GGUF) tensor(d *ggufReader) {
	name := d.text("tensor name", ggufMaxKey)
	dims := d.uint32("dimensions of tensor " + name)
	if dims > 4 {
		d.fail("tensor %q has %d dimensions, at most 4 are possible", name, dims)
		return
	}
	elements := int64(1)
	for range dims {
		n := d.uint64("shape of tensor " + name)
		if n > math.MaxInt64 || (n > 0 && elements > math.MaxInt64/int64(n)) {
			d.fail("tensor %q has more than 2^63 elements", name)
			return
		}
		elements *= int64(n)
	}
	kind := d.uint32("type of tensor " + name)
	d.uint64("offset of tensor " + name)
	if d.err != nil {
		return
	}
	g.Tensors++
	if g.Parameters += elements; g.Parameters < 0 {
		d.fail("more than 2^63 parameters")
	}
	g.names[name] = true
	t, known := ggmlTypeByNumber(kind)
	if g.WeightBytes < 0 || !known || elements%t.block != 0 ||
		elements/t.block > (math.MaxInt64-g.WeightBytes)/t.size {
		g.WeightBytes = -1
		return
	}
	bytes := elements / t.block * t.size
	g.WeightBytes += bytes
	if strings.Contains(name, "_exps.") {
		g.expertBytes += bytes
	}
}

// ActiveWeightBytes is the part of WeightBytes that one token uses: of a
// mixture's experts as many as the header says, everything else whole.
func (g *GGUF) ActiveWeightBytes() int64 {
	all, _ := g.Int(g.Architecture() + ".expert_count")
	used, _ := g.Int(g.Architecture() + ".expert_used_count")
	if g.WeightBytes < 0 || used < 1 || used >= all {
		return g.WeightBytes
	}
	return g.WeightBytes - g.expertBytes + mulDiv(g.expertBytes, used, all)
}

// Architecture is the value of general.architecture, "" when absent.
func (g *GGUF) Architecture() string {
	s, _ := g.Text("general.architecture")
	return s
}

// Int returns the value of an integer or boolean key.
func (g *GGUF) Int(key string) (int64, bool) {
	v, ok := g.values[key]
	if !ok || v.array || v.kind == ggufString || v.kind == ggufFloat32 || v.kind == ggufFloat64 {
		return 0, false
	}
	return v.ints[0], true
}

// Ints returns the values of an integer or boolean array; ok is false for a
// missing key, another type, or an array of more than 4096 entries.
func (g *GGUF) Ints(key string) (values []int64, ok bool) {
	v, found := g.values[key]
	if !found || !v.array || v.n != int64(len(v.ints)) {
		return nil, false
	}
	return slices.Clone(v.ints), true
}

// Text returns the value of a string key.
func (g *GGUF) Text(key string) (string, bool) {
	v, ok := g.values[key]
	if !ok || v.array || v.kind != ggufString {
		return "", false
	}
	return v.text, true
}

// Len returns the length of an array key of any element type.
func (g *GGUF) Len(key string) (int64, bool) {
	v, ok := g.values[key]
	return v.n, ok && v.array
}

// Has reports whether the key is present.
func (g *GGUF) Has(key string) bool { _, ok := g.values[key]; return ok }

// HasTensor reports whether a tensor of that name is listed.
func (g *GGUF) HasTensor(name string) bool { return g.names[name] }

// Keys lists the keys in order.
func (g *GGUF) Keys() []string {
	keys := make([]string, 0, len(g.values))
	for key := range g.values {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Format returns a value as text, for listings: arrays as their length and,
// when short, their values.
func (g *GGUF) Format(key string) string {
	v, ok := g.values[key]
	switch {
	case !ok:
		return ""
	case v.array && v.n == int64(len(v.ints)) && v.n <= 16:
		return strings.Trim(fmt.Sprint(v.ints), "[]")
	case v.array:
		return fmt.Sprintf("%d values", v.n)
	case v.kind == ggufString:
		return v.text
	case v.kind == ggufFloat32 || v.kind == ggufFloat64:
		return strconv.FormatFloat(v.float, 'g', -1, 64)
	case v.kind == ggufBool:
		return strconv.FormatBool(v.ints[0] != 0)
	}
	return strconv.FormatInt(v.ints[0], 10)
}

// ggufReader reads scalars and keeps the first error; left counts the bytes
// that the file still holds.
type ggufReader struct {
	r     *bufio.Reader
	left  int64
	order binary.ByteOrder
	buf   [8]byte
	err   error
}

func (d *ggufReader) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrGGUF, fmt.Sprintf(format, args...))
	}
}

// bytes returns the next n ≤ 8 bytes, zero after an error.
func (d *ggufReader) bytes(n int64) []byte {
	b := d.buf[:n]
	clear(b)
	if d.err != nil {
		return b
	}
	if n > d.left {
		d.fail("the file ends inside the header")
		return b
	}
	if _, err := io.ReadFull(d.r, b); err != nil {
		clear(b)
		d.readFailed(err)
		return b
	}
	d.left -= n
	return b
}

func (d *ggufReader) readFailed(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		d.fail("the file ends inside the header")
	} else if d.err == nil {
		d.err = err
	}
}

func (d *ggufReader) uint32(string) uint32 { return d.order.Uint32(d.bytes(4)) }
func (d *ggufReader) uint64(string) uint64 { return d.order.Uint64(d.bytes(8)) }

// count reads a number of records of at least width bytes each.
func (d *ggufReader) count(what string, width int64) int64 {
	n := d.uint64(what)
	if d.err == nil && (n > math.MaxInt64 || int64(n) > d.left/width) {
		d.fail("%s %d does not fit in the %d bytes left", what, n, d.left)
	}
	if d.err != nil {
		return 0
	}
	return int64(n)
}

func (d *ggufReader) skip(n int64) {
	if d.err != nil {
		return
	}
	if n > d.left {
		d.fail("the file ends inside the header")
		return
	}
	d.left -= n
	for n > 0 {
		step := min(n, 1<<30)
		if _, err := d.r.Discard(int(step)); err != nil {
			d.readFailed(err)
			return
		}
		n -= step
	}
}

// text reads a string. One longer than limit is skipped and, as a value, kept
// as "".
func (d *ggufReader) text(what string, limit int64) string {
	n := d.count("length of "+what, 1)
	if n > limit {
		if limit == ggufMaxKey {
			d.fail("%s of %d bytes, at most %d are possible", what, n, limit)
			return ""
		}
		d.skip(n)
		return ""
	}
	b := make([]byte, n)
	if d.err != nil {
		return ""
	}
	if _, err := io.ReadFull(d.r, b); err != nil {
		d.readFailed(err)
		return ""
	}
	d.left -= n
	return string(b)
}

// skipStrings passes over n strings. A vocabulary has hundreds of thousands:
// those that lie whole in the buffer are passed over together.
func (d *ggufReader) skipStrings(n int64, key string) {
	for n > 0 && d.err == nil {
		buffer, _ := d.r.Peek(min(d.r.Buffered(), int(min(d.left, math.MaxInt32))))
		used := 0
		for n > 0 && len(buffer)-used >= 8 {
			length := d.order.Uint64(buffer[used:])
			if length > uint64(len(buffer)-used-8) {
				break
			}
			used += 8 + int(length)
			n--
		}
		d.skip(int64(used))
		if n > 0 { // the next one crosses the buffer's end, or starts a new one
			d.skip(d.count("length of a string in "+key, 1))
			n--
		}
	}
}

func (d *ggufReader) value(key string) ggufValue {
	v := ggufValue{kind: ggufKind(d.uint32("type of " + key))}
	if v.kind == ggufArray {
		v.array, v.kind = true, ggufKind(d.uint32("element type of "+key))
	}
	if d.err != nil {
		return v
	}
	if int(v.kind) >= len(ggufSizes) {
		d.fail("key %q has the unknown type %d", key, uint32(v.kind))
		return v
	}
	if v.kind == ggufArray {
		d.fail("key %q is an array of arrays", key)
		return v
	}
	if !v.array {
		v.scalar(d, key)
		return v
	}
	v.n = d.count("length of "+key, max(ggufSizes[v.kind], 1))
	switch {
	case v.kind == ggufString:
		d.skipStrings(v.n, key)
	case v.kind == ggufFloat32 || v.kind == ggufFloat64 || v.n > ggufMaxArray:
		d.skip(v.n * ggufSizes[v.kind])
	default:
		v.ints = make([]int64, v.n)
		for i := range v.ints {
			v.ints[i] = d.integer(v.kind, key)
		}
	}
	return v
}

func (v *ggufValue) scalar(d *ggufReader, key string) {
	switch v.kind {
	case ggufString:
		v.text = d.text(key, ggufMaxText)
	case ggufFloat32:
		v.float = float64(math.Float32frombits(d.uint32(key)))
	case ggufFloat64:
		v.float = math.Float64frombits(d.uint64(key))
	default:
		v.ints = []int64{d.integer(v.kind, key)}
	}
}

func (d *ggufReader) integer(kind ggufKind, key string) int64 {
	switch kind {
	case ggufUint8:
		return int64(d.bytes(1)[0])
	case ggufInt8:
		return int64(int8(d.bytes(1)[0]))
	case ggufBool:
		return int64(min(d.bytes(1)[0], 1))
	case ggufUint16:
		return int64(d.order.Uint16(d.bytes(2)))
	case ggufInt16:
		return int64(int16(d.order.Uint16(d.bytes(2))))
	case ggufUint32:
		return int64(d.uint32(key))
	case ggufInt32:
		return int64(int32(d.uint32(key)))
	case ggufInt64:
		return int64(d.uint64(key))
	}
	n := d.uint64(key)
	if n > math.MaxInt64 {
		d.fail("key %q holds %d, more than 2^63", key, n)
	}
	return int64(n)
}
