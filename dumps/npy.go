package dumps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

const npyMagic = "\x93NUMPY"

// maxNPYHeader bounds the header of an npy array. NumPy itself refuses more
// than 10,000 bytes unless told otherwise.
const maxNPYHeader = 1 << 16

// maxDims is NumPy's limit.
const maxDims = 64

// npyHeader is the header of one npy array.
type npyHeader struct {
	elem    element
	fortran bool
	shape   []int
	length  int64 // bytes of the header: where the data begins
}

// bytes returns the size of the array's data.
func (h npyHeader) bytes() (int64, error) { return dataSize(h.shape, h.elem.size) }

// readNPYHeader reads the header at the beginning of r. The error has no path.
func readNPYHeader(r io.Reader) (npyHeader, error) {
	var pre [12]byte
	if _, err := io.ReadFull(r, pre[:10]); err != nil {
		return npyHeader{}, short("npy header", err)
	}
	if string(pre[:6]) != npyMagic {
		return npyHeader{}, errors.New("not an npy array: it lacks the magic \\x93NUMPY")
	}
	major := pre[6]
	length, begin := int64(binary.LittleEndian.Uint16(pre[8:])), int64(10)
	switch major {
	case 1:
	case 2, 3:
		if _, err := io.ReadFull(r, pre[10:]); err != nil {
			return npyHeader{}, short("npy header", err)
		}
		length, begin = int64(binary.LittleEndian.Uint32(pre[8:])), 12
	default:
		return npyHeader{}, fmt.Errorf("npy version %d.%d is not known", major, pre[7])
	}
	if length > maxNPYHeader {
		return npyHeader{}, fmt.Errorf("npy header claims %d bytes, more than the %d of any real one", length, maxNPYHeader)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return npyHeader{}, short("npy header", err)
	}
	h, err := parseNPYDict(string(text))
	if err != nil {
		return npyHeader{}, err
	}
	h.length = begin + length
	return h, nil
}

func short(what string, err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%s is cut short", what)
	}
	return err
}

// parseNPYDict reads the Python dictionary of an npy header: exactly the keys
// descr, fortran_order and shape, in any order.
func parseNPYDict(s string) (npyHeader, error) {
	p := npyParser{rest: s}
	var h npyHeader
	seen := map[string]bool{}
	if !p.take('{') {
		return h, p.errorf("a dictionary")
	}
	for !p.take('}') {
		key, ok := p.str()
		if !ok || !p.take(':') {
			return h, p.errorf("a key")
		}
		if seen[key] {
			return h, fmt.Errorf("npy header gives %s twice", quote(key))
		}
		seen[key] = true
		switch key {
		case "descr":
			if p.peek() == '[' {
				return h, errors.New("npy array is structured (has fields): want plain numbers")
			}
			d, ok := p.str()
			if !ok {
				return h, p.errorf("a type after descr")
			}
			var err error
			if h.elem, err = parseDescr(d); err != nil {
				return h, err
			}
		case "fortran_order":
			w := p.word()
			if w != "True" && w != "False" {
				return h, p.errorf("True or False after fortran_order")
			}
			h.fortran = w == "True"
		case "shape":
			shape, err := p.shape()
			if err != nil {
				return h, err
			}
			h.shape = shape
		default:
			return h, fmt.Errorf("npy header has an unknown key %s", quote(key))
		}
		if !p.take(',') && p.peek() != '}' {
			return h, p.errorf("a comma")
		}
	}
	if strings.Trim(p.rest, " \t\r\n\x00") != "" {
		return h, p.errorf("the end")
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			return h, fmt.Errorf("npy header lacks %q", key)
		}
	}
	return h, nil
}

// npyParser scans the few Python literals that occur in npy headers.
type npyParser struct{ rest string }

func (p *npyParser) errorf(want string) error {
	return fmt.Errorf("npy header: want %s at %s", want, quote(strings.TrimSpace(p.rest)))
}

// peek returns the next byte that is not a blank, or 0.
func (p *npyParser) peek() byte {
	p.rest = strings.TrimLeft(p.rest, " \t\r\n")
	if p.rest == "" {
		return 0
	}
	return p.rest[0]
}

func (p *npyParser) take(c byte) bool {
	if p.peek() != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// str scans a quoted string; npy headers never hold escapes.
func (p *npyParser) str() (string, bool) {
	q := p.peek()
	if q != '\'' && q != '"' {
		return "", false
	}
	s, rest, ok := strings.Cut(p.rest[1:], string(q))
	if !ok || strings.ContainsRune(s, '\\') {
		return "", false
	}
	p.rest = rest
	return s, true
}

// word scans letters, digits and signs.
func (p *npyParser) word() string {
	p.peek()
	n := strings.IndexAny(p.rest, " \t\r\n,:{}()[]'\"")
	if n < 0 {
		n = len(p.rest)
	}
	w := p.rest[:n]
	p.rest = p.rest[n:]
	return w
}

func (p *npyParser) shape() ([]int, error) {
	if !p.take('(') {
		return nil, p.errorf("a tuple after shape")
	}
	shape := []int{}
	for !p.take(')') {
		w := strings.TrimSuffix(p.word(), "L") // Python 2 wrote long integers so
		n, err := strconv.ParseInt(w, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt {
			return nil, fmt.Errorf("npy header: %s is no length in shape", quote(w))
		}
		if shape = append(shape, int(n)); len(shape) > maxDims {
			return nil, fmt.Errorf("npy header: more than %d dimensions", maxDims)
		}
		if !p.take(',') && p.peek() != ')' {
			return nil, p.errorf("a comma in shape")
		}
	}
	return shape, nil
}

// parseDescr reads a numpy type string: byte order, kind, bytes per element.
func parseDescr(s string) (element, error) {
	e := element{name: s}
	order, rest := byte('|'), s
	if s != "" && strings.IndexByte("<>=|", s[0]) >= 0 {
		order, rest = s[0], s[1:]
	}
	if rest == "" {
		return e, fmt.Errorf("npy type %s is not known", quote(s))
	}
	n, err := strconv.ParseUint(rest[1:], 10, 24)
	if rest[0] == 'O' {
		return e, errors.New("npy array holds Python objects (a pickle), which kvq does not run: save plain numbers")
	}
	if err != nil {
		return e, fmt.Errorf("npy type %s is not known", quote(s))
	}
	e.size = int(n)
	e.big = order == '>'
	switch rest[0] {
	case 'f':
		e.kind = kindFloat
		if n == 1 {
			e.kind = kindRaw // how some libraries name their 8-bit floats
		}
	case 'i':
		e.kind = kindInt
	case 'u':
		e.kind = kindUint
	case 'V':
		e.kind = kindRaw
	case 'S', 'a':
		e.kind = kindBytes
	case 'U':
		e.kind, e.size = kindUnicode, 4*int(n)
	case 'b', 'c', 'm', 'M':
	default:
		return e, fmt.Errorf("npy type %s is not known", quote(s))
	}
	return e, nil
}

// dataSize returns the bytes of an array, checked for overflow.
func dataSize(shape []int, itemSize int) (int64, error) {
	n := uint64(itemSize)
	empty := n == 0
	for _, d := range shape {
		empty = empty || d == 0
	}
	if empty {
		return 0, nil
	}
	for _, d := range shape {
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, fmt.Errorf("shape %s overflows", shapeString(shape))
		}
		n = lo
	}
	return int64(n), nil
}

// shapeString renders a shape as [2, 3, 2048, 64].
func shapeString(shape []int) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == 8 {
			b.WriteString("…")
			break
		}
		b.WriteString(strconv.Itoa(d))
	}
	return b.String() + "]"
}
