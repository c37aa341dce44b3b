package formula

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrSafetensors marks a file that is not a valid safetensors header or index.
var ErrSafetensors = errors.New("not a valid safetensors header")

// A Safetensors is what a checkpoint's headers tell of its weights.
type Safetensors struct {
	Bytes   int64 // of all tensors, without headers
	Experts int64 // of those tensors that hold a mixture's experts
	Tensors int64
	Files   []string // the files that were read
	// Claimed: no file of the index was at hand, so that Bytes is what the
	// index says.
	Claimed bool
}

// safetensorsIndex is the name of the file that lists the parts of a checkpoint.
const safetensorsIndex = "model.safetensors.index.json"

// maxSafetensorsHeader is the format's own bound, maxSafetensorsIndex that of
// an index: a million tensors need some 100 MB.
const (
	maxSafetensorsHeader = 100e6
	maxSafetensorsIndex  = 100e6
)

// OpenSafetensors reads the headers of the checkpoint at path: a file, an index
// (*.index.json) with the files it names, or a directory. A directory is read
// by its index, else its model.safetensors, else all its *.safetensors. Tensor
// data is never read. A tensor that two files hold, a file that is missing and
// bytes that no tensor covers are errors.
func OpenSafetensors(path string) (*Safetensors, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if strings.HasSuffix(path, ".json") {
			return openSafetensorsIndex(path)
		}
		return openSafetensorsFiles([]string{path})
	}
	for _, name := range []string{safetensorsIndex, "model.safetensors"} {
		at := filepath.Join(path, name)
		if _, err := os.Stat(at); err == nil {
			return OpenSafetensors(at)
		}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".safetensors" {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: %w", path, ErrNoSafetensors)
	}
	return openSafetensorsFiles(files)
}

// ErrNoSafetensors is a directory without a checkpoint.
var ErrNoSafetensors = errors.New("no *.safetensors in it")

func openSafetensorsFiles(files []string) (*Safetensors, error) {
	s := &Safetensors{Files: files}
	names := map[string]string{}
	for _, file := range files {
		tensors, err := openSafetensorsFile(file)
		if err != nil {
			return nil, err
		}
		for _, t := range tensors {
			if other, twice := names[t.name]; twice {
				return nil, fmt.Errorf("%s: tensor %q is in %s too: are these files of one checkpoint?", file, clip(t.name), other)
			}
			names[t.name] = file
			s.Tensors++
			if s.Bytes, err = sum(s.Bytes, t.end-t.begin); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if strings.Contains(t.name, ".experts.") {
				s.Experts += t.end - t.begin // part of Bytes
			}
		}
	}
	return s, nil
}

// Active is the part of the bytes that one token of the model uses: of the
// experts as many as the model says, everything else whole. ok is false where
// that cannot be told.
func (s *Safetensors) Active(m *Model) (bytes int64, ok bool) {
	if s.Experts == 0 || m.ExpertsPerToken < 1 || m.ExpertsPerToken > m.Experts {
		return s.Bytes, false
	}
	return s.Bytes - s.Experts + mulDiv(s.Experts, m.ExpertsPerToken, m.Experts), true
}

func openSafetensorsFile(path string) ([]safetensor, error) { return readFile(path, readSafetensors) }

// openSafetensorsIndex reads the files of an index. Where none of them is at
// hand the index's own figure has to do.
func openSafetensorsIndex(path string) (*Safetensors, error) {
	f, _, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	total, parts, err := readSafetensorsIndex(io.LimitReader(f, maxSafetensorsIndex))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var files, missing []string
	for _, part := range parts {
		at := filepath.Join(filepath.Dir(path), part)
		if _, err := os.Stat(at); err != nil {
			missing = append(missing, part)
			continue
		}
		files = append(files, at)
	}
	switch {
	case len(missing) > 0 && len(files) > 0:
		return nil, fmt.Errorf("%s: %d of %d files are missing, %s first", path, len(missing), len(parts), missing[0])
	case len(files) == 0 && total == 0:
		return nil, fmt.Errorf("%s: none of its %d files is here, and it does not say their total_size", path, len(parts))
	case len(files) == 0:
		return &Safetensors{Bytes: total, Files: []string{path}, Claimed: true}, nil
	}
	return openSafetensorsFiles(files)
}

// readSafetensorsIndex returns the index's total_size, 0 where it gives none,
// and the names of its files in order, each a plain name: an index does not
// reach outside its folder.
func readSafetensorsIndex(r io.Reader) (total int64, files []string, err error) {
	p := safetensorsParser{dec: json.NewDecoder(r)}
	p.dec.UseNumber()
	known := map[string]bool{}
	err = p.object("index", func(key string) error {
		switch key {
		case "metadata":
			return p.object(key, func(key string) error {
				if key != "total_size" {
					return p.skip()
				}
				var err error
				total, err = p.natural("total_size")
				return err
			})
		case "weight_map":
			return p.object(key, func(tensor string) error {
				file, err := p.text("the file of " + strconv.Quote(clip(tensor)))
				if err != nil || known[file] {
					return err
				}
				if file != filepath.Base(file) || strings.ContainsAny(file, `/\`) || filepath.Ext(file) != ".safetensors" {
					return p.errorf("%q is not the name of a safetensors file beside it", clip(file))
				}
				known[file] = true
				files = append(files, file)
				return nil
			})
		}
		return p.skip()
	})
	if err == nil && len(files) == 0 {
		err = p.errorf("no weight_map that names files")
	}
	if err == nil {
		err = p.end()
	}
	slices.Sort(files)
	return total, files, err
}

// A safetensor is one tensor: its bytes are data[begin:end].
type safetensor struct {
	name       string
	begin, end int64
}

// safetensorsBits are the types whose size is known.
var safetensorsBits = map[string]int64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// readSafetensors reads a header from r, which holds size bytes with the data,
// and checks that the tensors cover the data without gap or overlap. Errors
// wrap [ErrSafetensors]. The header is read as a stream: what is kept is the
// names that it really holds.
func readSafetensors(r io.Reader, size int64) ([]safetensor, error) {
	var pre [8]byte
	if _, err := io.ReadFull(r, pre[:]); err != nil {
		return nil, fmt.Errorf("%w: %d bytes are too few", ErrSafetensors, size)
	}
	length := binary.LittleEndian.Uint64(pre[:])
	switch {
	case length > uint64(max(size-8, 0)):
		return nil, fmt.Errorf("%w: it claims %d bytes and the file has %d: cut short, or another format", ErrSafetensors, length, size)
	case length > maxSafetensorsHeader:
		return nil, fmt.Errorf("%w: it claims %d bytes, beyond the format's %d", ErrSafetensors, length, int64(maxSafetensorsHeader))
	}
	p := safetensorsParser{dec: json.NewDecoder(bufio.NewReader(io.LimitReader(r, int64(length))))}
	p.dec.UseNumber()
	var tensors []safetensor
	err := p.object("header", func(name string) error {
		if name == "__metadata__" {
			return p.object(name, func(key string) error {
				_, err := p.text("metadata " + strconv.Quote(clip(key)))
				return err
			})
		}
		t, err := p.tensor(name)
		tensors = append(tensors, t)
		return err
	})
	if err == nil {
		err = p.end()
	}
	if err != nil {
		return nil, err
	}
	return tensors, covered(tensors, size-8-int64(length))
}

// covered checks that the tensors lie one after another over all of the data.
func covered(tensors []safetensor, size int64) error {
	order := slices.Clone(tensors)
	slices.SortStableFunc(order, func(a, b safetensor) int {
		switch {
		case a.begin < b.begin || a.begin == b.begin && a.end < b.end:
			return -1
		case a.begin == b.begin && a.end == b.end:
			return 0
		}
		return 1
	})
	at := int64(0)
	for _, t := range order {
		switch {
		case t.end > size:
			return fmt.Errorf("%w: tensor %q ends at byte %d of %d: is the file cut short?", ErrSafetensors, clip(t.name), t.end, size)
		case t.begin < at:
			return fmt.Errorf("%w: tensor %q overlaps the one before it", ErrSafetensors, clip(t.name))
		case t.begin > at:
			return fmt.Errorf("%w: %d bytes before tensor %q belong to none", ErrSafetensors, t.begin-at, clip(t.name))
		}
		at = t.end
	}
	if at != size {
		return fmt.Errorf("%w: %d bytes after the last tensor belong to none", ErrSafetensors, size-at)
	}
	return nil
}

// A safetensorsParser walks JSON token by token, so that nothing is built that
// the text does not hold, and a key given twice is seen.
type safetensorsParser struct{ dec *json.Decoder }

func (p *safetensorsParser) errorf(format string, args ...any) error {
	return fmt.Errorf("%w: at byte %d: %s", ErrSafetensors, p.dec.InputOffset(), fmt.Sprintf(format, args...))
}

func (p *safetensorsParser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err != nil {
		return nil, p.errorf("%s", clip(err.Error()))
	}
	return t, nil
}

func (p *safetensorsParser) delim(what string, d json.Delim) error {
	t, err := p.token()
	if err == nil && t != d {
		err = p.errorf("%s: want %v", what, d)
	}
	return err
}

// end checks that nothing but blanks is left.
func (p *safetensorsParser) end() error {
	if _, err := p.dec.Token(); err != io.EOF {
		return p.errorf("something follows the JSON object")
	}
	return nil
}

// object calls member for every key of the object that begins here; member
// reads the value.
func (p *safetensorsParser) object(what string, member func(key string) error) error {
	if err := p.delim(what, '{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		switch {
		case !ok:
			return p.errorf("%s: want a name", what)
		case seen[key]:
			return p.errorf("%q is given twice", clip(key))
		}
		seen[key] = true
		if err := member(key); err != nil {
			return err
		}
	}
	return p.delim(what, '}')
}

// skip passes over one value, however deep.
func (p *safetensorsParser) skip() error {
	for depth := 0; ; {
		t, err := p.token()
		if err != nil {
			return err
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

func (p *safetensorsParser) text(what string) (string, error) {
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

// natural reads a whole number; one written 1.5e9 or 12.0 counts, as some
// indices were saved through a float.
func (p *safetensorsParser) natural(what string) (int64, error) {
	t, err := p.token()
	if err != nil {
		return 0, err
	}
	number, ok := t.(json.Number)
	if !ok {
		return 0, p.errorf("%s is not a number", what)
	}
	if n, err := strconv.ParseInt(number.String(), 10, 64); err == nil && n >= 0 {
		return n, nil
	}
	f, err := strconv.ParseFloat(number.String(), 64)
	if err != nil || f < 0 || f != math.Trunc(f) || f >= 1<<53 {
		return 0, p.errorf("%s: %s is not a natural number", what, clip(number.String()))
	}
	return int64(f), nil
}

// naturals reads a list of at most most whole numbers.
func (p *safetensorsParser) naturals(what string, most int) ([]int64, error) {
	if err := p.delim(what, '['); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.dec.More() {
		n, err := p.natural(what)
		if err != nil {
			return nil, err
		}
		if list = append(list, n); len(list) > most {
			return nil, p.errorf("%s has more than %d numbers", what, most)
		}
	}
	return list, p.delim(what, ']')
}

func (p *safetensorsParser) tensor(name string) (safetensor, error) {
	t := safetensor{name: name}
	var dtype string
	var shape, extent []int64
	err := p.object("tensor "+strconv.Quote(clip(name)), func(key string) (err error) {
		switch key {
		case "dtype":
			dtype, err = p.text("dtype")
		case "shape":
			shape, err = p.naturals("shape", 64)
		case "data_offsets":
			extent, err = p.naturals("data_offsets", 2)
		default:
			err = p.errorf("tensor %q has an unknown key %q", clip(name), clip(key))
		}
		return err
	})
	switch {
	case err != nil:
		return t, err
	case dtype == "" || shape == nil || len(extent) != 2:
		return t, p.errorf("tensor %q lacks dtype, shape or two data_offsets", clip(name))
	case extent[0] > extent[1]:
		return t, p.errorf("tensor %q ends before it begins", clip(name))
	}
	t.begin, t.end = extent[0], extent[1]
	if bits := safetensorsBits[dtype]; bits > 0 {
		n, err := product(append(shape, bits)...)
		if err != nil || n%8 != 0 || n/8 != t.end-t.begin {
			return t, p.errorf("tensor %q is %v of %s, which is not the %d bytes of its data_offsets", clip(name), shape, clip(dtype), t.end-t.begin)
		}
	}
	return t, nil
}
