package dumps

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// This file reads what torch.save writes: a zip archive of stored members, the
// pickle NAME/data.pkl and one NAME/data/KEY for each storage.

const (
	maxPickle = 16 << 20
	// Containers may nest and share their parts, so that few bytes stand for
	// many: what a walk may visit is bounded.
	maxPickleDepth = 32
	maxPickleItems = 1 << 16
	maxPickleSteps = 1 << 18 // opcodes; a tensor takes about 40
	maxPickleName  = 256     // bytes of a dictionary's key
)

// legacyTorch begins files of PyTorch before 1.6: a pickled magic number.
const legacyTorch = "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"

// torchArchive is an open archive of torch.save.
type torchArchive struct {
	path    string
	size    int64
	prefix  string
	members map[string]*zip.File
	big     bool
	whole   *blob
}

// isTorch reports whether a zip archive is one of torch.save.
func isTorch(path string) bool {
	z, err := zip.OpenReader(path)
	if err != nil {
		return false
	}
	defer z.Close()
	return slices.ContainsFunc(z.File, func(m *zip.File) bool { return isPickleMember(m.Name) })
}

func isPickleMember(name string) bool {
	return strings.HasSuffix(name, "/data.pkl") && strings.Count(name, "/") == 1
}

// torch opens the layers of a .pt or .pth file.
func (op *opener) torch(path string) error {
	f, size, err := openFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	root, a, err := readTorch(f, size, path)
	if err != nil {
		return err
	}
	w := &torchWalk{tensors: map[string]*pickleTensor{}, facts: &FactFile{path: path, Source: "PyTorch file"}}
	if err := w.visit(root, nil); err != nil {
		return formatErrorf(path, -1, "%v", err)
	}
	op.file.blobs = append(op.file.blobs, a.whole)
	if len(w.names) == 0 {
		return &FormatError{Path: path, Offset: -1, Msg: "no tensors in it", kind: errNoLayer}
	}
	embedded := w.facts
	if embedded.Layers == nil {
		embedded = nil // nothing is stated
	}
	if w.text != "" {
		parsed, warnings, err := ParseFacts([]byte(w.text), path)
		if err != nil {
			return err
		}
		op.file.Warnings = append(op.file.Warnings, warnings...)
		embedded = parsed
	}
	return op.layers(path, w.names, embedded, func(name string) (*array, error) { return a.array(name, w.tensors[name]) })
}

// readTorch reads the archive's directory and its pickle.
func readTorch(r io.ReaderAt, size int64, path string) (any, *torchArchive, error) {
	head := make([]byte, len(legacyTorch))
	_, _ = r.ReadAt(head, 0)
	switch {
	case string(head) == legacyTorch:
		e := formatErrorf(path, 0, "written by PyTorch before 1.6, or in its old format: kvq reads the zip form")
		e.hint = "torch.save(torch.load(FILE), NEW) converts it"
		return nil, nil, e
	case head[0] == 0x80:
		return nil, nil, formatErrorf(path, 0, "a bare pickle, not a file of torch.save: refused")
	}
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, nil, formatErrorf(path, -1, "not a file of torch.save: %v", strings.TrimPrefix(err.Error(), "zip: "))
	}
	a := &torchArchive{path: path, size: size, members: map[string]*zip.File{}, whole: fileBlob(path, size)}
	for _, m := range z.File {
		if a.members[m.Name] != nil {
			return nil, nil, formatErrorf(path, -1, "member %s occurs twice", quote(m.Name))
		}
		a.members[m.Name] = m
		if isPickleMember(m.Name) {
			a.prefix = strings.TrimSuffix(m.Name, "data.pkl")
		}
	}
	if a.prefix == "" {
		return nil, nil, formatErrorf(path, -1, "a zip archive without data.pkl: not a file of torch.save")
	}
	if a.members[a.prefix+"constants.pkl"] != nil {
		return nil, nil, formatErrorf(path, -1, "a TorchScript program, not tensors: refused")
	}
	if a.members[a.prefix+"byteorder"] != nil {
		order, err := a.read("byteorder", 16)
		if err != nil {
			return nil, nil, err
		}
		a.big = string(order) == "big"
	}
	data, err := a.read("data.pkl", maxPickle)
	if err != nil {
		return nil, nil, err
	}
	root, err := unpickle(data)
	if err != nil {
		return nil, nil, formatErrorf(path, -1, "data.pkl: %v", err)
	}
	return root, a, nil
}

// read returns a small member.
func (a *torchArchive) read(name string, most uint64) ([]byte, error) {
	m, err := a.stored(name)
	if err != nil {
		return nil, err
	}
	if m.UncompressedSize64 > most {
		return nil, formatErrorf(a.path, -1, "%s has %d bytes, more than the %d allowed", name, m.UncompressedSize64, most)
	}
	r, err := m.Open()
	if err == nil {
		defer r.Close()
		var data []byte
		if data, err = io.ReadAll(r); err == nil { // as many as the file holds: stored
			return data, nil
		}
	}
	return nil, formatErrorf(a.path, -1, "%s: %v", name, strings.TrimPrefix(err.Error(), "zip: "))
}

// stored returns a member, which must lie in the file as it is.
func (a *torchArchive) stored(name string) (*zip.File, error) {
	m := a.members[a.prefix+name]
	switch {
	case m == nil:
		return nil, formatErrorf(a.path, -1, "%s is missing from the archive", quote(name))
	case m.Method != zip.Store || m.Flags&1 != 0:
		return nil, formatErrorf(a.path, -1, "%s is compressed or encrypted, which torch.save never does: refused", quote(name))
	case m.CompressedSize64 != m.UncompressedSize64 || m.UncompressedSize64 > uint64(a.size):
		return nil, formatErrorf(a.path, -1, "%s claims %d bytes in a file of %d", quote(name), m.UncompressedSize64, a.size)
	}
	return m, nil
}

// array describes a tensor's place in the file.
func (a *torchArchive) array(name string, t *pickleTensor) (*array, error) {
	fail := func(format string, args ...any) (*array, error) {
		return nil, formatErrorf(a.path, -1, "tensor %s: %s", quote(name), fmt.Sprintf(format, args...))
	}
	m, err := a.stored("data/" + t.storage.key)
	if err != nil {
		return nil, err
	}
	begin, err := m.DataOffset()
	if err != nil {
		return fail("%v", err)
	}
	bytes := int64(m.UncompressedSize64)
	if begin > a.size || bytes > a.size-begin {
		return fail("its %d bytes end beyond the end of the file", bytes)
	}
	elem := t.elem
	if elem.size == 0 {
		return fail("its type is not said")
	}
	elem.big = a.big && elem.size > 1
	unit := int64(max(t.storage.elem.size, 1)) // untyped storages count bytes
	if t.storage.size > bytes/unit || t.storage.size*unit != bytes {
		return fail("its storage of %d elements holds %d bytes", t.storage.size, bytes)
	}
	out := &array{path: a.path, name: name, elem: elem, blob: a.whole, offset: begin + t.offset*int64(elem.size)}
	held := bytes / int64(elem.size)
	last, count := t.offset, int64(1)
	for i, n := range t.shape {
		out.shape = append(out.shape, int(n))
		stride := int(t.stride[i])
		if n == 1 { // of no use, and anything
			stride = 1
		}
		out.stride = append(out.stride, stride)
		if n == 0 {
			count = 0
		}
		if count == 0 {
			continue
		}
		if n > held/count || n > 1 && t.stride[i] > held {
			return fail("shape %s needs more than the %d elements of its storage", shapeString(out.shape), held)
		}
		count *= n
		last += (n - 1) * t.stride[i]
		if last < 0 || last >= held {
			return fail("shape %s reaches beyond the %d elements of its storage", shapeString(out.shape), held)
		}
	}
	if t.offset > held {
		return fail("begins beyond the %d elements of its storage", held)
	}
	out.bytes = count * int64(elem.size)
	return out, nil
}

// torchWalk collects the tensors of nested containers under names such as
// layers.3.k, whatever the containers are.
type torchWalk struct {
	names   []string
	tensors map[string]*pickleTensor
	facts   *FactFile
	text    string // of an entry kvq
	visited int
}

func (w *torchWalk) visit(v any, path []string) error {
	if w.visited++; w.visited > maxPickleItems {
		return errors.New("its containers hold more than any cache needs: refused")
	}
	if len(path) > maxPickleDepth {
		return errors.New("its containers are nested too deep, or hold themselves: refused")
	}
	switch v := v.(type) {
	case *pickleTensor:
		name := strings.Join(roleLast(path), ".")
		if w.tensors[name] != nil {
			return fmt.Errorf("two tensors are called %s", quote(name))
		}
		w.names = append(w.names, name)
		w.tensors[name] = v
	case pickleTuple:
		return w.items(v, path)
	case *pickleList:
		return w.items(v.items, path)
	case *pickleObject:
		w.sliding(v, path)
		return w.entries(v.state, path)
	case *pickleDict:
		return w.entries(v, path)
	case string:
		if len(path) == 1 && path[0] == "kvq" {
			w.text = v
		}
	}
	return nil
}

// items visits a list or tuple. Two tensors, or two before something else, are
// the K and V of a layer, unless the container itself is called K or V.
func (w *torchWalk) items(items []any, path []string) error {
	pair := len(items) == 2 || len(items) == 3
	for i := 0; i < 2 && pair; i++ {
		_, pair = items[i].(*pickleTensor)
	}
	if n := len(path); pair && n > 0 && roleNames[strings.ToLower(path[n-1])] != "" {
		pair = false
	}
	for i, item := range items {
		name := strconv.Itoa(i)
		switch {
		case pair && i < 2:
			name = Part(i).String()
		case pair: // the window of a layer, as a tensor
			continue
		}
		if err := w.visit(item, append(slices.Clone(path), name)); err != nil {
			return err
		}
	}
	return nil
}

func (w *torchWalk) entries(d *pickleDict, path []string) error {
	for i, key := range d.keys {
		var name string
		switch key := key.(type) {
		case string:
			name = key
		case int64:
			name = strconv.FormatInt(key, 10)
		default:
			continue
		}
		if len(name) > maxPickleName {
			return fmt.Errorf("an entry has a name of %d bytes: refused", len(name))
		}
		if strings.HasPrefix(name, "_") { // private attributes
			continue
		}
		if err := w.visit(d.values[i], append(slices.Clone(path), name)); err != nil {
			return err
		}
	}
	return nil
}

// sliding notes the window of a layer that keeps only what the window sees.
func (w *torchWalk) sliding(o *pickleObject, path []string) {
	if o.class.name != "DynamicSlidingWindowLayer" || len(path) == 0 {
		return
	}
	number, err := strconv.Atoi(path[len(path)-1])
	if err != nil {
		return
	}
	attribute := func(name string) int {
		for i, key := range o.state.keys {
			if n, ok := o.state.values[i].(int64); key == name && ok && n > 0 && n < 1<<31 {
				return int(n)
			}
		}
		return 0
	}
	window, total := attribute("sliding_window"), attribute("cumulative_length")
	if window == 0 {
		return
	}
	s := FactSet{Window: &window}
	for i, key := range o.state.keys {
		if t, ok := o.state.values[i].(*pickleTensor); ok && key == "keys" && len(t.shape) > 1 {
			if first := total - int(t.shape[len(t.shape)-2]); first > 0 {
				s.FirstPosition = &first
			}
		}
	}
	if w.facts.Layers == nil {
		w.facts.Layers = map[int]FactSet{}
	}
	w.facts.Layers[number] = s
}

// roleNames are further names of K, V and Q in caches.
var roleNames = map[string]string{
	"keys": "k", "key_cache": "k", "key_states": "k", "values": "v", "value_cache": "v", "value_states": "v", "queries": "q",
	"k": "k", "key": "k", "v": "v", "value": "v", "q": "q", "query": "q",
}

// roleLast puts a path into the form of tensor names, the part last: key_cache.3
// becomes 3.k.
func roleLast(path []string) []string {
	path = slices.Clone(path)
	n := len(path)
	if n == 0 {
		return path
	}
	last := path[n-1]
	if role, ok := roleNames[strings.ToLower(last)]; ok {
		path[n-1] = role
	} else if n > 1 {
		_, err := strconv.Atoi(last)
		if role, ok := roleNames[strings.ToLower(path[n-2])]; ok && err == nil {
			path[n-2], path[n-1] = last, role
		}
	}
	return path
}
