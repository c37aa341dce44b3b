package dumps

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// Options say what a dump cannot say about itself, and override what it does.
type Options struct {
	Layout Layout // axes of K, V and Q; empty for hsd with a warning when that looks wrong
	DType  DType  // how to read elements whose file names no floating-point type; empty for an error

	// Names of the tensors in safetensors and npz files, in which {layer}
	// stands for the layer's number. Empty for the names of docs/formats.md.
	NameK, NameV, NameQ string

	// What a llama.cpp state file leaves out.
	KVHeads       int    // KV heads of every layer; 0: not known
	SlidingLayers []int  // numbers of the sliding layers; nil: not known
	Seq           *int   // the sequence to read; nil: the only one, or the first with a warning
	Model         *Model // the model it belongs to, which settles all but Seq; nil: not known

	// AllowNonfinite drops the tokens (and query rows) that hold NaN or
	// infinity. Open then reads all of K, V and Q.
	AllowNonfinite bool

	// Facts that override the dump's; nil leaves them alone.
	Scale, Softcap *float64
	Causal         *bool
	Window         *int // of a llama.cpp state with two caches: of its sliding layers
}

func (o Options) check() error {
	if o.Layout != "" {
		if _, err := ParseLayout(string(o.Layout)); err != nil {
			return err
		}
	}
	if o.DType != "" {
		if _, err := ParseDType(string(o.DType)); err != nil {
			return err
		}
	}
	switch {
	case o.Scale != nil && (!(*o.Scale > 0) || math.IsInf(*o.Scale, 0)):
		return &OptionError{"scale", "want a positive number"}
	case o.Softcap != nil && (!(*o.Softcap >= 0) || math.IsInf(*o.Softcap, 0)):
		return &OptionError{"softcap", "want a positive number, or 0 for none"}
	case o.Window != nil && *o.Window < 0:
		return &OptionError{"window", "want a number of tokens, or 0 for none"}
	case o.KVHeads < 0:
		return &OptionError{"kv-heads", "want a positive number"}
	case o.SlidingLayers != nil && (len(o.SlidingLayers) == 0 || slices.Min(o.SlidingLayers) < 0):
		return &OptionError{"sliding-layers", "want layer numbers"}
	case o.Seq != nil && *o.Seq < 0:
		return &OptionError{"seq", "want a number from 0"}
	}
	_, err := o.patterns()
	return err
}

// File is the layers found under one path.
type File struct {
	Path     string
	Layers   []*Layer // in order of number, then name
	Warnings []string // one line each

	blobs []*blob
}

// Close unmaps everything. No layer may be read afterwards.
func (f *File) Close() error {
	var errs []error
	for _, b := range f.blobs {
		errs = append(errs, b.close())
	}
	f.blobs = nil
	return errors.Join(errs...)
}

func (f *File) warn(format string, args ...any) {
	f.Warnings = append(f.Warnings, fmt.Sprintf(format, args...))
}

// Open finds the layer dumps of a file, a directory or a glob pattern. Only
// headers and facts are read, except with Options.AllowNonfinite. Errors wrap
// ErrFormat when a file is at fault, are an *OptionError when an option is,
// and come from the operating system otherwise.
func Open(path string, o Options) (*File, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	paths, skipped, many, err := expand(path)
	if err != nil {
		return nil, err
	}
	return open(path, o, func(op *opener) error {
		for _, p := range skipped {
			op.file.warn("%s: not a regular file: skipped", p)
		}
		return op.paths(paths, many)
	})
}

// OpenParts opens one layer whose K, V and, unless empty, Q are npy files of
// their own.
func OpenParts(k, v, q string, o Options) (*File, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return open(k, o, func(op *opener) error {
		var s npySet
		s.path[K], s.path[V], s.path[Q] = k, v, q
		return op.npy(s)
	})
}

func open(path string, o Options, find func(*opener) error) (*File, error) {
	op := &opener{file: &File{Path: path}, o: o, facts: map[string]*FactFile{}}
	err := find(op)
	if err == nil {
		err = op.finish()
	}
	if err != nil {
		_ = op.file.Close()
		return nil, err
	}
	return op.file, nil
}

var extensions = []string{".npy", ".npz", ".safetensors", kindTorch}

func extension(path string) string {
	ext := strings.ToLower(filepath.Ext(path))
	if ext == ".pth" {
		ext = kindTorch
	}
	if slices.Contains(extensions, ext) {
		return ext
	}
	return ""
}

// expand lists the dump files that a path stands for, and what is named as one
// but is a folder, a pipe or the like; many says that they were found rather
// than named.
func expand(path string) (paths, skipped []string, many bool, err error) {
	st, err := os.Stat(path)
	if err != nil {
		matches, globErr := filepath.Glob(path)
		if !strings.ContainsAny(path, "*?[") || globErr != nil {
			return nil, nil, false, brokenLink(path, err)
		}
		if len(matches) == 0 {
			return nil, nil, false, fmt.Errorf("%s: no file matches", path)
		}
		for _, m := range matches {
			inner, left, dir, err := expand(m)
			if err != nil {
				return nil, nil, false, err
			}
			if dir || extension(m) != "" {
				paths, skipped = append(paths, inner...), append(skipped, left...)
			}
		}
	} else if st.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, nil, false, err
		}
		for _, e := range entries {
			p := filepath.Join(path, e.Name())
			if extension(p) == "" {
				continue
			}
			st, err := os.Stat(p)
			switch {
			case err != nil:
				return nil, nil, false, brokenLink(p, err)
			case st.Mode().IsRegular():
				paths = append(paths, p)
			default:
				skipped = append(skipped, p)
			}
		}
	} else {
		return []string{path}, nil, false, nil
	}
	if len(paths) == 0 {
		msg := "no dump in it: want .npy, .npz, .safetensors or .pt files"
		if len(skipped) > 0 {
			msg += "; " + filepath.Base(skipped[0]) + " is not a regular file"
		}
		return nil, nil, false, &FormatError{Path: path, Offset: -1, Msg: msg, kind: errNoLayer}
	}
	return paths, skipped, true, nil
}

// brokenLink returns err, which came of following path, or, where path is a
// link, says so: the name is there, and its target is not.
func brokenLink(path string, err error) error {
	if st, statErr := os.Lstat(path); statErr == nil && st.Mode()&os.ModeSymlink != 0 {
		return formatErrorf(path, -1, "a link that leads nowhere")
	}
	return err
}

// npySet is the npy files of one layer: either a single array that holds K, V
// and perhaps Q, or one file per part.
type npySet struct {
	base string
	path [parts]string
}

// opener collects the layers of one Open.
type opener struct {
	file  *File
	o     Options
	facts map[string]*FactFile // by path; nil for files that do not exist
	// embedded facts by layer
	embedded  map[*Layer]*FactFile
	dtypeUsed bool
	stateUsed bool
}

// paths opens files that were listed. In a listing, files that hold no layer
// are skipped with a warning.
func (op *opener) paths(paths []string, many bool) error {
	sets := op.group(paths, many)
	for _, s := range sets {
		err := s.open()
		if err != nil && many && errors.Is(err, errNoLayer) {
			op.file.warn("%v: skipped", err)
			continue
		}
		if err != nil {
			return err
		}
	}
	if len(op.file.Layers) == 0 {
		return &FormatError{Path: op.file.Path, Offset: -1, Msg: "no layer dump in it", kind: errNoLayer}
	}
	return nil
}

type set struct {
	path string // for the order
	open func() error
}

// group joins the npy files that belong to one layer: x.npy with x.q.npy, or
// x.k.npy with x.v.npy.
func (op *opener) group(paths []string, many bool) []set {
	var sets []set
	npy := map[string]*npySet{} // by directory and prefix
	var order []string
	at := func(path, prefix string) *npySet {
		key := filepath.Join(filepath.Dir(path), prefix)
		if npy[key] == nil {
			npy[key] = &npySet{}
			order = append(order, key)
		}
		return npy[key]
	}
	for _, path := range paths {
		switch op.kind(path) {
		case ".npz":
			sets = append(sets, set{path, func() error { return op.npz(path) }})
		case ".safetensors":
			sets = append(sets, set{path, func() error { return op.safetensors(path) }})
		case kindTorch:
			sets = append(sets, set{path, func() error { return op.torch(path) }})
		case kindState:
			sets = append(sets, set{path, func() error { return op.state(path) }})
		case ".npy":
			prefix, part, ok := splitRole(stem(path))
			if many && ok {
				at(path, prefix).path[part] = path
			} else {
				at(path, stem(path)).base = path
			}
		default:
			sets = append(sets, set{path, func() error {
				return formatErrorf(path, 0, "not a dump: want a .npy, .npz, .safetensors or .pt file, or a llama.cpp state")
			}})
		}
	}
	for _, key := range order {
		s := npy[key]
		if s.base != "" { // a pattern such as 'layer?.npy' lists x.npy without them
			s.companions()
		}
		first := s.base
		for _, p := range s.path {
			if first == "" || (s.base == "" && p != "" && p < first) {
				first = p
			}
		}
		sets = append(sets, set{first, func() error { return op.npy(*s) }})
	}
	sort.SliceStable(sets, func(i, j int) bool { return sets[i].path < sets[j].path })
	return sets
}

// Kinds of files beside those named by their extension: what torch.save
// writes, whatever its name, and llama.cpp's states, which have no extension.
const (
	kindTorch = ".pt"
	kindState = "llama.cpp state"
)

// kind returns the extension that a file has or, by its first bytes, should have.
func (op *opener) kind(path string) string {
	if ext := extension(path); ext != "" {
		return ext
	}
	f, _, err := openFile(path)
	if err != nil {
		return ".npy" // whose reader reports the error
	}
	defer f.Close()
	head := make([]byte, 9)
	n, _ := io.ReadFull(f, head)
	switch head := string(head[:n]); {
	case strings.HasPrefix(head, npyMagic):
		return ".npy"
	case strings.HasPrefix(head, "PK\x03\x04") && isTorch(path), strings.HasPrefix(head, legacyTorch[:4]):
		return kindTorch
	case strings.HasPrefix(head, "PK\x03\x04"):
		return ".npz"
	case n == 9 && head[8] == '{':
		return ".safetensors"
	case strings.HasPrefix(head, stateMagicSequence), strings.HasPrefix(head, stateMagicSession):
		return kindState
	}
	return ""
}

// stem is a file's name without directory and last extension.
func stem(path string) string {
	base := filepath.Base(path)
	return strings.TrimSuffix(base, filepath.Ext(base))
}

// companions finds the files beside x.npy that complete it.
func (s *npySet) companions() {
	ext := filepath.Ext(s.base)
	for role, part := range roles {
		p := strings.TrimSuffix(s.base, ext) + "." + role + ext
		if _, err := os.Lstat(p); err == nil && part != K && part != V && s.path[part] == "" {
			s.path[part] = p
		}
	}
}

// npy opens one layer that lies in npy files.
func (op *opener) npy(s npySet) error {
	var arrays [parts]*array
	for p, path := range s.path {
		if path == "" {
			continue
		}
		a, b, err := openNPY(path)
		if err != nil {
			return err
		}
		op.file.blobs = append(op.file.blobs, b)
		arrays[p] = a
	}
	if s.base == "" {
		for _, p := range []Part{K, V} {
			if arrays[p] == nil {
				for _, a := range arrays {
					if a != nil {
						return &FormatError{Path: a.path, Offset: -1, Msg: fmt.Sprintf("no %s beside it", p), kind: errNoLayer}
					}
				}
			}
		}
		l, err := op.assemble(arrays, [parts]*Tensor{}, -1)
		if err != nil {
			return err
		}
		op.add(l, nil)
		return nil
	}
	a, b, err := openNPY(s.base)
	if err != nil {
		return err
	}
	op.file.blobs = append(op.file.blobs, b)
	if arrays[K] != nil || arrays[V] != nil {
		op.file.warn("%s: k and v are taken from it, not from the files beside it", s.base)
		arrays[K], arrays[V] = nil, nil
	}
	tensors, err := op.split(a)
	if err != nil {
		return err
	}
	if tensors[Q] != nil && arrays[Q] != nil {
		op.file.warn("%s: q is taken from %s, not from the third part of the array", s.base, filepath.Base(arrays[Q].path))
	}
	l, err := op.assemble(arrays, tensors, -1)
	if err != nil {
		return err
	}
	op.add(l, nil)
	return nil
}

// split takes K, V and perhaps Q out of an array [2|3, heads, tokens, dim].
func (op *opener) split(a *array) (tensors [parts]*Tensor, err error) {
	shape, strides := a.shape, a.strides()
	if len(shape) == 5 && shape[0] == 1 {
		shape, strides = shape[1:], strides[1:]
	}
	if n := len(shape); (n != 4 && n != 5) || (shape[0] != 2 && shape[0] != 3) {
		e := a.errorf("has shape %s, want [2, kv_heads, tokens, head_dim] with K and V", shapeString(a.shape))
		e.kind = errNoLayer
		if len(shape) == 3 || len(shape) == 4 {
			e.hint = "give separate arrays as --k FILE --v FILE [--q FILE]"
		}
		return tensors, e
	}
	for i := range shape[0] {
		t, used, err := newTensorAt(a, Part(i), op.layout(), op.o.DType, shape[1:], strides[1:], i*strides[0])
		if err != nil {
			return tensors, err
		}
		t.Bytes = a.bytes / int64(shape[0])
		op.dtypeUsed = op.dtypeUsed || used
		tensors[i] = t
	}
	return tensors, nil
}

func (op *opener) layout() Layout {
	if op.o.Layout == "" {
		return HSD
	}
	return op.o.Layout
}

func (op *opener) npz(path string) error {
	z, err := openNPZ(path)
	if err != nil {
		return err
	}
	defer z.file.Close()
	defer func() { op.file.blobs = append(op.file.blobs, z.blobs...) }()
	names := slices.DeleteFunc(slices.Clone(z.names), func(s string) bool { return s == "kvq" })
	var facts []byte
	if len(names) < len(z.names) {
		if facts, err = z.text("kvq"); err != nil {
			return err
		}
	}
	return op.named(path, names, facts, z.array)
}

func (op *opener) safetensors(path string) error {
	arrays, metadata, b, err := openSafetensors(path)
	if err != nil {
		return err
	}
	op.file.blobs = append(op.file.blobs, b)
	byName := map[string]*array{}
	var names []string
	for _, a := range arrays {
		byName[a.name] = a
		names = append(names, a.name)
	}
	if cache := newMLX(path, metadata, byName); cache != nil {
		return op.mlx(cache)
	}
	var facts []byte
	if text, ok := metadata["kvq"]; ok {
		facts = []byte(text)
	}
	return op.named(path, names, facts, func(name string) (*array, error) { return byName[name], nil })
}

// named opens the layers of a file with named tensors and perhaps facts.
func (op *opener) named(path string, names []string, facts []byte, get func(string) (*array, error)) error {
	var embedded *FactFile
	if facts != nil {
		f, warnings, err := ParseFacts(facts, path)
		if err != nil {
			return err
		}
		embedded = f
		op.file.Warnings = append(op.file.Warnings, warnings...)
	}
	return op.layers(path, names, embedded, get)
}

// layers opens the layers that named tensors make up.
func (op *opener) layers(path string, names []string, embedded *FactFile, get func(string) (*array, error)) error {
	patterns, err := op.o.patterns()
	if err != nil {
		return err
	}
	groups, unused, err := groupNames(names, patterns)
	if err != nil {
		return formatErrorf(path, -1, "%v", err)
	}
	if len(groups) == 0 {
		e := &FormatError{Path: path, Offset: -1, Msg: "no tensors named k and v in it", kind: errNoLayer,
			hint: "name them with --name-k and --name-v, {layer} standing for the layer's number"}
		if len(patterns) > 0 {
			e.Msg = "no tensors match the given names"
		}
		if len(names) > 0 {
			e.Msg += "; it holds " + list(names)
		}
		return e
	}
	if len(unused) > 0 {
		op.file.warn("%s: ignored %s", path, list(unused))
	}
	for _, g := range groups {
		var arrays [parts]*array
		for p := range parts {
			if g.has[p] {
				if arrays[p], err = get(g.names[p]); err != nil {
					return err
				}
			}
		}
		number := g.number
		if number < 0 && len(groups) > 1 {
			number = len(op.file.Layers)
		}
		l, err := op.assemble(arrays, [parts]*Tensor{}, number)
		if err != nil {
			return err
		}
		op.add(l, embedded)
	}
	return nil
}

// list renders some names for a message.
func list(names []string) string {
	const most = 3
	quoted := make([]string, 0, most)
	for _, n := range names[:min(most, len(names))] {
		quoted = append(quoted, quote(n))
	}
	s := strings.Join(quoted, ", ")
	if more := len(names) - most; more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// assemble makes a layer of arrays and of tensors made already, and checks
// that they fit together. number is −1 if the file's name decides.
func (op *opener) assemble(arrays [parts]*array, tensors [parts]*Tensor, number int) (*Layer, error) {
	for p := K; p < positions; p++ {
		if arrays[p] == nil {
			continue
		}
		t, used, err := newTensor(arrays[p], p, op.layout(), op.o.DType)
		if err != nil {
			return nil, err
		}
		op.dtypeUsed = op.dtypeUsed || used
		tensors[p] = t
	}
	k, v, q := tensors[K], tensors[V], tensors[Q]
	l := &Layer{Path: k.Path, Name: filepath.Base(k.Path), Number: number, KVHeads: k.Heads, Tokens: k.Rows,
		HeadDimK: k.Dim, HeadDimV: v.Dim, DType: k.DType, tensors: tensors, positions: arrays[positions]}
	fail := func(t *Tensor, format string, args ...any) (*Layer, error) {
		e := formatErrorf(t.Path, -1, format, args...)
		if op.o.Layout == "" && t != tensors[O] && t != tensors[OWeight] {
			e.hint = "the axes are taken as [heads, tokens, dim]; --layout shd says otherwise"
		}
		return nil, e
	}
	if v.Heads != k.Heads || v.Rows != k.Rows {
		return fail(v, "k is %d heads × %d tokens, but v is %d × %d", k.Heads, k.Rows, v.Heads, v.Rows)
	}
	if q != nil {
		l.QueryHeads, l.Queries = q.Heads, q.Rows
		switch {
		case q.Dim != k.Dim:
			return fail(q, "q has %d channels, but k has %d", q.Dim, k.Dim)
		case q.Heads%k.Heads != 0:
			return fail(q, "q has %d heads, which is no multiple of the %d KV heads", q.Heads, k.Heads)
		case q.Rows > k.Rows:
			return fail(q, "q has %d rows, more than the %d tokens", q.Rows, k.Rows)
		}
	}
	if op.o.Layout == "" && k.Heads > k.Rows && k.Rows > 1 {
		op.file.warn("%s: %d heads × %d tokens: if the axes are [tokens, heads, dim], say --layout shd", k.Path, k.Heads, k.Rows)
	}
	if l.positions != nil && q == nil {
		op.file.warn("%s: q_positions without q ignored", k.Path)
		l.positions = nil
	}
	if o, w := tensors[O], tensors[OWeight]; o != nil || w != nil {
		switch {
		case q == nil:
			op.file.warn("%s: o and o_weight without q ignored", k.Path)
			l.tensors[O], l.tensors[OWeight] = nil, nil
		case o == nil || w == nil:
			op.file.warn("%s: o and o_weight are of use only together: ignored", k.Path)
			l.tensors[O], l.tensors[OWeight] = nil, nil
		case o.Dim != q.Heads*v.Dim:
			return fail(o, "o has %d columns, want query heads × width of v = %d", o.Dim, q.Heads*v.Dim)
		case w.Rows != q.Rows:
			return fail(w, "o_weight has %d values, but q has %d rows", w.Rows, q.Rows)
		}
	}
	return l, nil
}

func (op *opener) add(l *Layer, embedded *FactFile) {
	if op.embedded == nil {
		op.embedded = map[*Layer]*FactFile{}
	}
	op.embedded[l] = embedded
	if l.Number < 0 {
		if l.Number = layerNumber(stem(l.Path)); l.Number < 0 {
			l.Number = len(op.file.Layers)
		}
	}
	op.file.Layers = append(op.file.Layers, l)
}

// finish settles facts and positions, drops what is not finite, and sorts.
func (op *opener) finish() error {
	if op.o.DType != "" && !op.dtypeUsed {
		op.file.warn("--dtype %s was not needed: the tensors name their own type", op.o.DType)
	}
	if op.o.KVHeads > 0 && !op.stateUsed {
		op.file.warn("--kv-heads was not needed: the shape says it")
	}
	for _, l := range op.file.Layers {
		shared, err := op.factFile(filepath.Join(filepath.Dir(l.Path), "kvq.json"))
		if err != nil {
			return err
		}
		own, err := op.factFile(strings.TrimSuffix(l.Path, filepath.Ext(l.Path)) + ".kvq.json")
		if err != nil {
			return err
		}
		if l.positions != nil {
			if l.QPositions, err = l.positions.ints(l.Queries); err != nil {
				return err
			}
		}
		if err := l.applyFacts([]*FactFile{shared, op.embedded[l], own}, op.o); err != nil {
			return err
		}
		if op.o.AllowNonfinite {
			if err := op.drop(l); err != nil {
				return err
			}
		}
	}
	for path, f := range op.facts {
		if f != nil && filepath.Base(path) != "kvq.json" {
			op.checkNumbers(f)
		}
	}
	sort.SliceStable(op.file.Layers, func(i, j int) bool { return op.file.Layers[i].Number < op.file.Layers[j].Number })
	return nil
}

// checkNumbers warns when the facts of a single file speak of other layers
// than it holds: most likely a number was mistaken.
func (op *opener) checkNumbers(f *FactFile) {
	if len(f.Layers) == 0 {
		return
	}
	for _, l := range op.file.Layers {
		if _, ok := f.Layers[l.Number]; ok {
			return
		}
	}
	op.file.warn("%s: none of its layers is in the dump", f.path)
}

func (op *opener) factFile(path string) (*FactFile, error) {
	if f, ok := op.facts[path]; ok {
		return f, nil
	}
	f, warnings, err := readFactFile(path)
	if err != nil {
		return nil, err
	}
	op.facts[path] = f
	op.file.Warnings = append(op.file.Warnings, warnings...)
	return f, nil
}

// drop finds the tokens of K and V that are not finite in any head, and leaves
// them out, together with the query rows that stand at them or are not finite
// themselves.
func (op *opener) drop(l *Layer) error {
	badStored, badRows := make([]bool, l.Tensor(K).Rows), make([]bool, l.Queries)
	for p, bad := range map[Part][]bool{K: badStored, V: badStored, Q: badRows} {
		if t := l.Tensor(p); t != nil {
			if err := t.markNonFinite(bad); err != nil {
				return err
			}
		}
	}
	stored := func(token int) int {
		if l.keptTokens == nil {
			return token
		}
		return l.keptTokens[token]
	}
	badTokens := make([]bool, l.Tokens)
	for i := range badTokens {
		badTokens[i] = badStored[stored(i)]
	}
	for i, p := range l.QPositions {
		badRows[i] = badRows[i] || badTokens[p]
	}
	tokens, rows := keep(badTokens), keep(badRows)
	if len(tokens) == 0 {
		return formatErrorf(l.Path, -1, "layer %d: every token holds NaN or infinity", l.Number)
	}
	if l.Queries > 0 && len(rows) == 0 {
		return formatErrorf(l.Path, -1, "layer %d: every query row holds NaN or infinity, or stands at such a token", l.Number)
	}
	droppedRows := l.Queries - len(rows)
	l.DroppedTokens = l.Tokens - len(tokens)
	if l.DroppedTokens+droppedRows == 0 {
		return nil
	}
	op.file.warn("%s: layer %d: dropped %d of %d tokens and %d of %d query rows that hold NaN or infinity; positions were closed up",
		l.Path, l.Number, l.DroppedTokens, l.Tokens, droppedRows, l.Queries)
	renumbered := make([]int, l.Tokens)
	for i, t := range tokens {
		renumbered[t] = i
	}
	positions := make([]int, len(rows))
	for i, r := range rows {
		positions[i] = renumbered[l.QPositions[r]]
	}
	kept := make([]int, len(tokens))
	for i, t := range tokens {
		kept[i] = stored(t)
	}
	l.keptTokens, l.keptRows = kept, rows
	l.Tokens = len(tokens)
	if l.Queries > 0 {
		l.Queries, l.QPositions = len(rows), positions
	}
	return nil
}

func keep(bad []bool) []int {
	var kept []int
	for i, b := range bad {
		if !b {
			kept = append(kept, i)
		}
	}
	return kept
}

// markNonFinite marks the rows that are not finite in some head.
func (t *Tensor) markNonFinite(bad []bool) error {
	block := max(1, hot/t.Dim)
	buf := make([]float32, min(block, t.Rows)*t.Dim)
	for head := range t.Heads {
		for from := 0; from < t.Rows; from += block {
			n := min(block, t.Rows-from)
			err := t.convert(buf[:n*t.Dim], head, from, from+n, func(first int, rows []float32) error {
				for {
					i := indexNonFinite(rows)
					if i < 0 {
						return nil
					}
					bad[first+i/t.Dim] = true
					first += i/t.Dim + 1
					rows = rows[(i/t.Dim+1)*t.Dim:]
				}
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
