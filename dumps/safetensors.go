package dumps

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// maxSafetensorsHeader bounds the JSON header; 100,000 tensors need about 10 MB.
const maxSafetensorsHeader = 16 << 20

// safetensorsTypes maps the format's types; sub-byte and unknown ones have no
// entry and can be listed but not read.
var safetensorsTypes = map[string]element{
	"BOOL": {kind: kindOther, size: 1}, "U8": {kind: kindUint, size: 1}, "I8": {kind: kindInt, size: 1},
	"F8_E4M3": {kind: kindE4M3, size: 1}, "F8_E5M2": {kind: kindE5M2, size: 1}, "F8_E8M0": {kind: kindOther, size: 1},
	"U16": {kind: kindUint, size: 2}, "I16": {kind: kindInt, size: 2},
	"F16": {kind: kindFloat, size: 2}, "BF16": {kind: kindBF16, size: 2},
	"U32": {kind: kindUint, size: 4}, "I32": {kind: kindInt, size: 4}, "F32": {kind: kindFloat, size: 4},
	"U64": {kind: kindUint, size: 8}, "I64": {kind: kindInt, size: 8}, "F64": {kind: kindFloat, size: 8},
	"C64": {kind: kindOther, size: 8},
}

// openSafetensors reads the header of a safetensors file: its tensors in file
// order and its metadata.
func openSafetensors(path string) ([]*array, map[string]string, *blob, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, nil, nil, err
	}
	defer f.Close()
	arrays, metadata, err := readSafetensors(f, size, path)
	if err != nil {
		return nil, nil, nil, err
	}
	b := fileBlob(path, size)
	for _, a := range arrays {
		a.blob = b
	}
	return arrays, metadata, b, nil
}

func readSafetensors(r io.Reader, size int64, path string) ([]*array, map[string]string, error) {
	var pre [8]byte
	if _, err := io.ReadFull(r, pre[:]); err != nil { // so size ≥ 8 below
		return nil, nil, formatErrorf(path, 0, "%v", short("safetensors header", err))
	}
	length := binary.LittleEndian.Uint64(pre[:])
	switch {
	case length > uint64(size-8):
		return nil, nil, formatErrorf(path, 0, "safetensors header claims %d bytes, but the file has %d: cut short, or another format", length, size)
	case length > maxSafetensorsHeader:
		return nil, nil, formatErrorf(path, 0, "safetensors header of %d bytes is larger than the %d allowed", length, maxSafetensorsHeader)
	}
	header := make([]byte, length)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, nil, formatErrorf(path, 8, "%v", short("safetensors header", err))
	}
	p := headerParser{dec: json.NewDecoder(bytes.NewReader(header)), path: path}
	p.dec.UseNumber()
	if err := p.parse(); err != nil {
		return nil, nil, err
	}
	if err := checkExtents(p.arrays, size-8-int64(length), path); err != nil {
		return nil, nil, err
	}
	for _, a := range p.arrays {
		a.offset += 8 + int64(length)
	}
	return p.arrays, p.metadata, nil
}

// checkExtents verifies that the tensors cover the data without gap or overlap.
func checkExtents(arrays []*array, size int64, path string) error {
	byOffset := slices.Clone(arrays)
	slices.SortStableFunc(byOffset, func(a, b *array) int {
		if a.offset != b.offset {
			return int(min(1, max(-1, a.offset-b.offset)))
		}
		return int(min(1, max(-1, a.bytes-b.bytes)))
	})
	end := int64(0)
	for i, a := range byOffset {
		switch {
		case a.bytes > size || a.offset > size-a.bytes:
			return formatErrorf(path, -1, "tensor %s ends at byte %d of the data, but there are only %d: is the file cut short?", quote(a.name), a.offset+a.bytes, size)
		case a.offset < end:
			return formatErrorf(path, -1, "tensors %s and %s overlap", quote(byOffset[i-1].name), quote(a.name))
		case a.offset > end:
			return formatErrorf(path, -1, "%d bytes before tensor %s belong to no tensor", a.offset-end, quote(a.name))
		}
		end += a.bytes
	}
	if end != size {
		return formatErrorf(path, -1, "%d bytes after the last tensor belong to no tensor", size-end)
	}
	return nil
}

// headerParser walks the JSON header token by token: nothing is built that the
// header does not really hold, and a name given twice is seen.
type headerParser struct {
	dec      *json.Decoder
	path     string
	arrays   []*array
	metadata map[string]string
}

func (p *headerParser) errorf(format string, args ...any) error {
	return formatErrorf(p.path, 8+p.dec.InputOffset(), "safetensors header: %s", fmt.Sprintf(format, args...))
}

func (p *headerParser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err != nil {
		return nil, p.errorf("%v", short("JSON", err))
	}
	return t, nil
}

func (p *headerParser) delim(d json.Delim) error {
	t, err := p.token()
	if err == nil && t != d {
		err = p.errorf("want %v", d)
	}
	return err
}

// object calls member for every key of the object that begins here.
func (p *headerParser) object(member func(key string) error) error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return p.errorf("want a name")
		}
		if seen[key] {
			return p.errorf("%s is given twice", quote(key))
		}
		seen[key] = true
		if err := member(key); err != nil {
			return err
		}
	}
	return p.delim('}')
}

func (p *headerParser) str(what string) (string, error) {
	t, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", p.errorf("%s is not a string", what)
	}
	return s, nil
}

// naturals reads an array of at most most natural numbers.
func (p *headerParser) naturals(what string, most int) ([]int64, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	var out []int64
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		n, ok := t.(json.Number)
		if !ok {
			return nil, p.errorf("%s holds something else than numbers", what)
		}
		v, err := strconv.ParseInt(n.String(), 10, 64)
		if err != nil || v < 0 || v > math.MaxInt {
			return nil, p.errorf("%s holds %s, want natural numbers", what, quote(n.String()))
		}
		if out = append(out, v); len(out) > most {
			return nil, p.errorf("%s has more than %d numbers", what, most)
		}
	}
	return out, p.delim(']')
}

func (p *headerParser) parse() error {
	err := p.object(func(name string) error {
		if name == "__metadata__" {
			return p.object(func(key string) error {
				s, err := p.str("metadata " + quote(key))
				if p.metadata == nil {
					p.metadata = map[string]string{}
				}
				p.metadata[key] = s
				return err
			})
		}
		return p.tensor(name)
	})
	if err != nil {
		return err
	}
	if _, err := p.dec.Token(); err != io.EOF {
		return p.errorf("something follows the JSON object")
	}
	return nil
}

func (p *headerParser) tensor(name string) error {
	a := &array{path: p.path, name: name}
	var shape, extent []int64
	err := p.object(func(key string) (err error) {
		switch key {
		case "dtype":
			a.elem.name, err = p.str("dtype of " + quote(name))
		case "shape":
			shape, err = p.naturals("shape of "+quote(name), maxDims)
			a.shape = make([]int, len(shape))
			for i, d := range shape {
				a.shape[i] = int(d)
			}
		case "data_offsets":
			extent, err = p.naturals("data_offsets of "+quote(name), 2)
		default:
			err = p.errorf("tensor %s has an unknown key %s", quote(name), quote(key))
		}
		return err
	})
	if err != nil {
		return err
	}
	if a.elem.name == "" || a.shape == nil || len(extent) != 2 {
		return p.errorf("tensor %s lacks dtype, shape or two data_offsets", quote(name))
	}
	if extent[0] > extent[1] {
		return p.errorf("tensor %s ends before it begins", quote(name))
	}
	a.offset, a.bytes = extent[0], extent[1]-extent[0]
	if e, ok := safetensorsTypes[a.elem.name]; ok {
		a.elem.kind, a.elem.size = e.kind, e.size
		want, err := dataSize(a.shape, e.size)
		if err != nil {
			return p.errorf("tensor %s: %v", quote(name), err)
		}
		if want != a.bytes {
			return p.errorf("tensor %s is %s of %s, %d bytes, but its offsets hold %d", quote(name), shapeString(a.shape), a.elem.name, want, a.bytes)
		}
	}
	p.arrays = append(p.arrays, a)
	return nil
}
