package dumps

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// This file reads the KV cache that llama.cpp saves: slots of llama-server,
// llama_state_seq_save_file (magic ggsq) and llama_state_save_file (ggsn). The
// layout, as written by llama_context and llama_kv_cache::state_write:
//
//	u32 magic, u32 version, u32 n, n × i32 token      the prompt
//	u32 length, name of the architecture              ggsn only
//	one cache, or two where layers slide              full-length layers first
//	recurrent state                                   hybrid models only
//
//	cache:   u32 streams, each:
//	  u32 cells                                       0: the stream ends here
//	  cells × {i32 position, u32 n, [8 bytes], n × i32 sequence}
//	  u32 transposed, u32 layers
//	  layers × K {i32 type, u64 bytes of a row, cells × row}
//	  layers × V {the same}                           none where V lives in K (MLA)
//	  or, transposed, V {i32 type, u32 bytes of an element, u32 width, width × cells}
//
// Integers are little-endian. Whether cells have the extra 8 bytes (several
// rotary positions per token), whether there is a V, how many caches there are
// and whether a state follows is not said: the one reading that ends exactly
// with the file is taken.

const (
	stateMagicSequence = "qsgg" // 'ggsq' as a little-endian number
	stateMagicSession  = "nsgg"
	stateVersion       = 3  // of ggsq
	sessionVersion     = 10 // of ggsn

	// Bounds beyond what llama.cpp itself allows (256 sequences).
	maxStreams   = 1 << 16
	maxSequences = 1 << 16
	maxArchName  = 1 << 10
)

// The caches of a model with sliding layers, as Layer.Cache names them.
const (
	FullCache    = "full"
	SlidingCache = "sliding"
)

// Model is what is known of a model beside its files: what a llama.cpp state
// leaves out.
type Model struct {
	Name   string
	Source string       // where it was read, for messages
	Layers []ModelLayer // those that keep K, in order
}

// ModelLayer is one attention layer of a Model.
type ModelLayer struct {
	Number             int
	KVHeads            int
	HeadDimK, HeadDimV int  // V is the first HeadDimV channels of K where a file holds no V
	Sliding            bool // its cache is that of the sliding layers
	Facts              FactSet
}

// stateFile is the metadata of a state file.
type stateFile struct {
	arch      string // empty in the file of one sequence
	caches    []stateCache
	recurrent bool // a recurrent state follows the caches
}

type stateCache []stateStream

// stateStream is the cells of one stream. Streams are separate caches of
// sequences that share nothing.
type stateStream struct {
	cells      []stateCell
	sequences  []int32 // of all cells
	transposed bool
	k, v       []stateTensor // by layer; v is empty where V lives in K
}

type stateCell struct {
	position int32
	from, to int // its part of sequences
}

// stateTensor is the K or V of one layer.
type stateTensor struct {
	dtype  DType
	width  int
	offset int64
	bytes  int64
}

// readState reads the metadata of a state file.
func readState(r io.ReaderAt, size int64, path string) (*stateFile, error) {
	d := &stateReader{r: r, size: size, path: path}
	d.seek(0)
	magic := d.raw(4, "the magic number")
	version := d.u32("the version")
	session := string(magic) == stateMagicSession
	want := uint32(stateVersion)
	if session {
		want = sessionVersion
	}
	if d.err == nil && !session && string(magic) != stateMagicSequence {
		return nil, formatErrorf(path, 0, "no llama.cpp state file: it begins with %s", quote(string(magic)))
	}
	if d.err == nil && version != want {
		return nil, formatErrorf(path, 4, "a llama.cpp state file of version %d, want %d", version, want)
	}
	tokens := d.u32("the number of prompt tokens")
	d.skip(4*int64(tokens), "the prompt's tokens")
	s := &stateFile{}
	if session {
		n := d.u32("the length of the architecture's name")
		if n > maxArchName {
			d.fail("the architecture's name has %d bytes", n)
		}
		s.arch = string(d.raw(int64(n), "the architecture's name"))
	}
	if d.err != nil {
		return nil, d.err
	}
	begin := d.at
	if begin == size {
		return nil, d.errorf("no cache follows the prompt")
	}
	var worst *FormatError
	note := func(err error) {
		var e *FormatError
		if errors.As(err, &e) && (worst == nil || e.Offset > worst.Offset) {
			worst = e
		}
	}
	for _, form := range []stateForm{{values: true}, {}, {values: true, extra: 8}, {extra: 8}} {
		for _, modules := range []struct {
			caches    int
			recurrent bool
		}{{1, false}, {2, false}, {1, true}, {2, true}, {0, true}} {
			d.err = nil
			d.seek(begin)
			s.caches = s.caches[:0]
			for range modules.caches {
				s.caches = append(s.caches, d.cache(form))
			}
			if modules.recurrent {
				d.recurrent()
			}
			if d.err == nil && d.at < size {
				d.fail("%d bytes follow that belong to no cache: cut, or of a memory module that kvq does not read%s", size-d.at, s.ofArch())
			}
			if d.err != nil {
				if !modules.recurrent { // which nearly anything begins like
					note(d.err)
				}
				continue
			}
			if modules.caches == 0 {
				return nil, formatErrorf(path, begin, "holds recurrent state%s and no attention cache: there are no keys and values in it", s.ofArch())
			}
			s.recurrent = modules.recurrent
			return s, nil
		}
	}
	return nil, worst
}

func (s *stateFile) ofArch() string {
	if s.arch == "" {
		return ""
	}
	return " (architecture " + quote(s.arch) + ")"
}

// stateForm is what a file does not say about its caches.
type stateForm struct {
	values bool  // there is a V
	extra  int64 // further bytes of every cell
}

// stateReader reads a state file from front to back. After the first error
// everything it returns is zero.
type stateReader struct {
	r    io.ReaderAt
	size int64
	path string
	at   int64
	buf  *bufio.Reader
	err  error
}

func (d *stateReader) seek(to int64) {
	d.at = to
	section := io.NewSectionReader(d.r, to, d.size-to)
	if d.buf == nil {
		d.buf = bufio.NewReader(section)
	}
	d.buf.Reset(section)
}

func (d *stateReader) errorf(format string, args ...any) *FormatError {
	return formatErrorf(d.path, d.at, "llama.cpp state: %s", fmt.Sprintf(format, args...))
}

func (d *stateReader) fail(format string, args ...any) {
	if d.err == nil {
		d.err = d.errorf(format, args...)
	}
}

// has checks that n more bytes exist.
func (d *stateReader) has(n int64, what string) bool {
	if left := d.size - d.at; d.err == nil && (n < 0 || n > left) {
		d.fail("cut short: %s needs %d bytes, but %d follow", what, n, left)
	}
	return d.err == nil
}

// raw returns the next n bytes; callers bound n.
func (d *stateReader) raw(n int64, what string) []byte {
	if !d.has(n, what) {
		return nil
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(d.buf, b); err != nil {
		d.fail("%v", short(what, err))
		return nil
	}
	d.at += n
	return b
}

func (d *stateReader) u32(what string) uint32 {
	var b [4]byte
	if !d.has(4, what) {
		return 0
	}
	if _, err := io.ReadFull(d.buf, b[:]); err != nil {
		d.fail("%v", short(what, err))
		return 0
	}
	d.at += 4
	return binary.LittleEndian.Uint32(b[:])
}

func (d *stateReader) u64(what string) uint64 {
	low := d.u32(what)
	return uint64(low) | uint64(d.u32(what))<<32
}

func (d *stateReader) skip(n int64, what string) {
	if !d.has(n, what) {
		return
	}
	if n <= int64(d.buf.Buffered()) {
		_, _ = d.buf.Discard(int(n)) // buffered: cannot fail
		d.at += n
		return
	}
	d.seek(d.at + n)
}

// count reads a number of things that take at least each bytes.
func (d *stateReader) count(what string, most int, each int64) int {
	n := d.u32(what)
	if d.err == nil && (int64(n) > int64(most) || int64(n) > (d.size-d.at)/each) {
		d.at -= 4
		d.fail("claims %d %s, more than the file can hold", n, what)
		return 0
	}
	return int(n)
}

// cache reads one attention cache.
func (d *stateReader) cache(form stateForm) stateCache {
	n := d.count("streams", maxStreams, 4)
	if d.err == nil && n == 0 {
		d.fail("a cache without streams")
	}
	var c stateCache
	for range n {
		if d.err != nil {
			break
		}
		c = append(c, d.stream(form))
	}
	return c
}

func (d *stateReader) stream(form stateForm) (s stateStream) {
	n := d.count("cells", 1<<31-1, 8+form.extra)
	if n == 0 || d.err != nil {
		return s
	}
	s.cells = make([]stateCell, 0, n)
	for range n {
		c := stateCell{position: int32(d.u32("a cell")), from: len(s.sequences)}
		of := d.count("sequences of a cell", maxSequences, 4)
		d.skip(form.extra, "a cell")
		for range of {
			id := int32(d.u32("a sequence"))
			if id < 0 || id >= maxSequences {
				d.fail("a cell belongs to sequence %d", id)
			}
			s.sequences = append(s.sequences, id)
		}
		if c.position < 0 {
			d.fail("a cell stands at position %d", c.position)
		}
		if d.err != nil {
			return s
		}
		c.to = len(s.sequences)
		s.cells = append(s.cells, c)
	}
	transposed := d.u32("whether V is transposed")
	if transposed > 1 {
		d.fail("whether V is transposed is %d, want 0 or 1", transposed)
	}
	s.transposed = transposed == 1
	layers := d.count("layers", 1<<16, 12)
	if layers == 0 {
		d.fail("a cache without layers")
	}
	for range layers {
		s.k = append(s.k, d.rows("K", n))
	}
	for i := range layers {
		switch {
		case d.err != nil || !form.values:
		case s.transposed:
			s.v = append(s.v, d.columns(n))
		default:
			s.v = append(s.v, d.rows(fmt.Sprintf("V of layer %d", i), n))
		}
	}
	return s
}

func (d *stateReader) dtype(what string) DType {
	number := int32(d.u32("the type of " + what))
	t, ok := ggmlTypes[number]
	if d.err == nil && !ok {
		d.fail("%s has ggml type %d, want f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl", what, number)
	}
	return t
}

// rows reads a tensor that lies token by token.
func (d *stateReader) rows(what string, cells int) stateTensor {
	t := stateTensor{dtype: d.dtype(what)}
	row := d.u64("the row size of " + what)
	if d.err != nil {
		return t
	}
	width, err := t.dtype.rowElements(int64(row))
	if err != nil || row > 1<<40 {
		d.fail("%s has %v", what, cmp.Or(err, errors.New("rows of more bytes than any model's")))
		return t
	}
	t.width, t.offset, t.bytes = int(width), d.at, int64(row)*int64(cells)
	d.skip(t.bytes, what)
	return t
}

// columns reads a transposed V, which lies channel by channel.
func (d *stateReader) columns(cells int) stateTensor {
	t := stateTensor{dtype: d.dtype("V")}
	element, width := d.u32("the element size of V"), d.u32("the width of V")
	if d.err == nil && int(element) != t.dtype.Size() {
		d.fail("transposed V of type %s has elements of %d bytes", t.dtype, element)
	}
	if d.err == nil && (width == 0 || width > 1<<24) {
		d.fail("V is %d wide", width)
	}
	if d.err != nil {
		return t
	}
	t.width, t.offset, t.bytes = int(width), d.at, int64(width)*int64(element)*int64(cells)
	d.skip(t.bytes, "V")
	return t
}

// recurrent passes over the state of a recurrent memory: cells, then tensors
// of some layers up to the end of the file.
func (d *stateReader) recurrent() {
	n := d.count("cells", 1<<31-1, 8)
	if d.err == nil && n == 0 {
		return
	}
	for range n {
		d.u32("a cell")
		of := d.count("sequences of a cell", maxSequences, 4)
		d.skip(4*int64(of), "a cell's sequences")
		if d.err != nil {
			return
		}
	}
	transposed, layers := d.u32("whether the state is transposed"), d.u32("layers")
	if d.err == nil && (transposed > 1 || layers == 0 || layers > 1<<16) {
		d.fail("no recurrent state: %d layers, transposed %d", layers, transposed)
	}
	for d.err == nil && d.at < d.size {
		kind, row := d.u32("the type of a state"), d.u64("the row size of a state")
		if kind > 1<<10 || row == 0 || row > 1<<40 {
			d.fail("no recurrent state: a row of %d bytes of type %d", row, kind)
		}
		d.skip(int64(row)*int64(n), "a state")
	}
}

// state opens the layers of a llama.cpp state file.
func (op *opener) state(path string) error {
	f, size, err := openFile(path)
	if err != nil {
		return err
	}
	s, err := readState(f, size, path)
	f.Close()
	if err != nil {
		return err
	}
	b := fileBlob(path, size)
	op.file.blobs = append(op.file.blobs, b)
	op.stateUsed = true
	sequence, err := op.sequence(s, path)
	if err != nil {
		return err
	}
	a := stateAssembler{op: op, path: path, blob: b, file: s, two: len(s.caches) == 2, types: map[string]bool{}}
	if err := a.pattern(); err != nil {
		return err
	}
	for i, c := range s.caches {
		if err := a.cache(i, c, sequence); err != nil {
			return err
		}
	}
	if len(a.layers) == 0 {
		return formatErrorf(path, -1, "sequence %d has no tokens in it", sequence)
	}
	a.warnings()
	return nil
}

// sequence chooses the sequence to read.
func (op *opener) sequence(s *stateFile, path string) (int, error) {
	seen := map[int32]bool{}
	for _, c := range s.caches {
		for _, stream := range c {
			for _, id := range stream.sequences {
				seen[id] = true
			}
		}
	}
	var have []int
	for id := range seen {
		have = append(have, int(id))
	}
	slices.Sort(have)
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(have[:min(len(have), 20)]), " ", ", "), "[]")
	switch {
	case len(have) == 0:
		return 0, formatErrorf(path, -1, "the cache is empty: no cell belongs to a sequence")
	case op.o.Seq != nil && !slices.Contains(have, *op.o.Seq):
		return 0, &OptionError{"seq", fmt.Sprintf("%s holds no sequence %d, but %s", filepath.Base(path), *op.o.Seq, list)}
	case op.o.Seq != nil:
		return *op.o.Seq, nil
	case len(have) > 1:
		op.file.warn("%s: holds %d sequences (%s); sequence %d is read, --seq chooses another", path, len(have), list, have[0])
	}
	return have[0], nil
}

// stateAssembler makes layers of a state file.
type stateAssembler struct {
	op        *opener
	path      string
	blob      *blob
	file      *stateFile
	two       bool
	model     [2][]ModelLayer // of each cache, where a model is known
	numbers   [2][]int        // of each cache's layers, where known
	layers    []*Layer
	types     map[string]bool
	rotated   bool
	repeated  bool
	gaps      bool
	noValues  bool
	latent    bool
	noWindow  bool
	headsOpen bool
}

// pattern settles which layers of the model each cache holds.
func (a *stateAssembler) pattern() error {
	counts := [2]int{}
	total := 0
	for i, c := range a.file.caches {
		for _, s := range c {
			counts[i] = max(counts[i], len(s.k))
		}
		total += counts[i]
	}
	if m := a.op.o.Model; m != nil {
		for _, l := range m.Layers {
			at := 0
			if a.two && l.Sliding {
				at = 1
			}
			a.model[at] = append(a.model[at], l)
			a.numbers[at] = append(a.numbers[at], l.Number)
		}
		for i, n := range counts {
			if have := len(a.model[i]); n > 0 && have != n {
				return &OptionError{"gguf", fmt.Sprintf("%s has %d layers of the kind of which %s holds %d: is it another model?",
					m.Source, have, filepath.Base(a.path), n)}
			}
		}
		return nil
	}
	sliding := a.op.o.SlidingLayers
	if sliding == nil {
		return nil
	}
	switch {
	case !a.two:
		return &OptionError{"sliding-layers", filepath.Base(a.path) + " holds one cache: none of its layers slides"}
	case counts[1] > 0 && len(sliding) != counts[1]:
		return &OptionError{"sliding-layers", fmt.Sprintf("%d layers, but %s holds %d sliding layers", len(sliding), filepath.Base(a.path), counts[1])}
	case slices.Max(sliding) >= total:
		return &OptionError{"sliding-layers", fmt.Sprintf("layer %d, but %s holds layers 0 to %d", slices.Max(sliding), filepath.Base(a.path), total-1)}
	}
	for n := range total {
		at := 0
		if slices.Contains(sliding, n) {
			at = 1
		}
		a.numbers[at] = append(a.numbers[at], n)
	}
	return nil
}

// cache adds the layers of one cache.
func (a *stateAssembler) cache(index int, c stateCache, sequence int) error {
	var stream *stateStream
	var order []int
	for i := range c {
		rows := c[i].rows(int32(sequence))
		if len(rows) == 0 {
			continue
		}
		if stream != nil {
			return formatErrorf(a.path, -1, "sequence %d lies in two streams of one cache", sequence)
		}
		stream, order = &c[i], rows
	}
	if stream == nil {
		if a.two {
			a.op.file.warn("%s: sequence %d has no tokens in the cache of the %s layers", a.path, sequence, cacheName(index))
		}
		return nil
	}
	position := func(i int) int { return int(stream.cells[order[i]].position) }
	for i := 1; i < len(order); i++ {
		switch step := position(i) - position(i-1); {
		case step == 0:
			a.repeated = true
		case step > 1:
			a.gaps = true
		}
	}
	whole := len(order) == len(stream.cells) && slices.IsSorted(order)
	for i := range stream.k {
		l := &Layer{Path: a.path, Name: filepath.Base(a.path), Number: i, Tokens: len(order)}
		if !whole {
			l.keptTokens = order
		}
		if a.two {
			l.Cache = cacheName(index)
		}
		if numbers := a.numbers[index]; numbers != nil {
			l.Number = numbers[i]
		} else if a.two {
			l.Name += ":" + l.Cache
		}
		if err := a.layer(l, index, i, stream, position(0)); err != nil {
			return err
		}
	}
	return nil
}

func cacheName(index int) string {
	if index == 1 {
		return SlidingCache
	}
	return FullCache
}

// rows returns the cells of a sequence in order of their positions.
func (s *stateStream) rows(sequence int32) []int {
	var rows []int
	for i, c := range s.cells {
		if slices.Contains(s.sequences[c.from:c.to], sequence) {
			rows = append(rows, i)
		}
	}
	slices.SortStableFunc(rows, func(a, b int) int { return cmp.Compare(s.cells[a].position, s.cells[b].position) })
	return rows
}

// layer settles the heads and facts of layer i of a cache and adds it.
func (a *stateAssembler) layer(l *Layer, index, i int, s *stateStream, first int) error {
	facts := &FactFile{path: a.path, Source: "llama.cpp state file", RoPEApplied: new(bool)}
	*facts.RoPEApplied = true
	facts.Defaults.FirstPosition = &first
	k := s.k[i]
	for p, all := range [][]stateTensor{s.k, s.v} {
		if len(all) > 0 && all[i].dtype.quantized() {
			facts.Source += fmt.Sprintf(", %s stored as %s and so no reference", Part(p), all[i].dtype)
		}
	}
	l.KVHeads = max(a.op.o.KVHeads, 1)
	l.kvHeadsAssumed = a.op.o.KVHeads == 0
	wideV := 0
	if layers := a.model[index]; layers != nil {
		m := layers[i]
		l.KVHeads, l.kvHeadsAssumed, wideV = m.KVHeads, false, m.HeadDimV
		facts.Model = a.op.o.Model.Name
		facts.Defaults = facts.Defaults.merge(m.Facts)
		if m.KVHeads*m.HeadDimK != k.width {
			return &OptionError{"gguf", fmt.Sprintf("layer %d has %d KV heads of %d in %s, but rows of %d values in %s: is it another model?",
				m.Number, m.KVHeads, m.HeadDimK, a.op.o.Model.Source, k.width, filepath.Base(a.path))}
		}
	} else if l.Cache == SlidingCache {
		l.windowUnknown = a.op.o.Window == nil
		a.noWindow = a.noWindow || l.windowUnknown
	}
	a.headsOpen = a.headsOpen || l.kvHeadsAssumed
	tensor := func(t stateTensor, transposed bool) (*Tensor, error) {
		if t.width%l.KVHeads != 0 {
			return nil, &OptionError{"kv-heads", fmt.Sprintf("rows of %d values do not divide into %d heads", t.width, l.KVHeads)}
		}
		cells := len(s.cells)
		dim := t.width / l.KVHeads
		out := &Tensor{Path: a.path, DType: t.dtype, Shape: []int{cells, t.width}, Layout: SHD, Heads: l.KVHeads, Rows: cells, Dim: dim,
			Fortran: transposed, Bytes: t.bytes, blob: a.blob, offset: t.offset, strides: [3]int{dim, t.width, 1}}
		if transposed {
			out.strides = [3]int{dim * cells, 1, cells}
		}
		if t.dtype.quantized() {
			a.types[string(t.dtype)] = true
			a.rotated = a.rotated || dim%64 == 0
		}
		return out, nil
	}
	var err error
	if l.tensors[K], err = tensor(k, false); err != nil {
		return err
	}
	l.HeadDimK, l.DType = l.tensors[K].Dim, k.dtype
	switch {
	case len(s.v) > 0:
		if l.tensors[V], err = tensor(s.v[i], s.transposed); err != nil {
			return err
		}
		l.HeadDimV = l.tensors[V].Dim
	case wideV > 0 && wideV <= l.HeadDimK:
		v := *l.tensors[K]
		v.Dim = wideV
		l.tensors[V], l.HeadDimV, a.latent = &v, wideV, true
	default:
		a.noValues = true
	}
	a.layers = append(a.layers, l)
	a.op.add(l, facts)
	return nil
}

// warnings says once what holds for the file.
func (a *stateAssembler) warnings() {
	warn := func(format string, args ...any) {
		a.op.file.warn("%s: %s", a.path, fmt.Sprintf(format, args...))
	}
	if len(a.types) > 0 {
		var names []string
		for t := range a.types {
			names = append(names, t)
		}
		slices.Sort(names)
		rotation := ""
		if a.rotated {
			rotation = " (and probably through a Hadamard rotation, which llama.cpp applies where head_dim is a multiple of 64)"
		}
		warn("a quantized state (%s): these values have been through a codec already%s and cannot serve as the reference; save the slot with -ctk f16 -ctv f16",
			strings.Join(names, ", "), rotation)
	}
	if a.headsOpen {
		warn("the number of KV heads is not stored: give --kv-heads N or --gguf MODEL")
	}
	if a.two && a.numbers[0] == nil {
		warn("which layers slide is not stored: layers are numbered within the cache of their kind; give --gguf MODEL or --sliding-layers")
	}
	if a.noWindow {
		warn("the window of the sliding layers is not stored: give --window or --gguf MODEL")
	}
	if a.noValues {
		warn("no values in it: they live in the keys (MLA), and how many channels are theirs is not stored; --gguf MODEL says it")
	}
	if a.latent {
		warn("values are the first channels of the keys (MLA), stored once: schemes of K and V are applied to them apart")
	}
	if a.file.recurrent {
		warn("a hybrid model: its recurrent state is left out, only attention layers are read")
	}
	if a.repeated {
		warn("several tokens stand at one position: they are taken in the order of the file")
	}
	if a.gaps {
		warn("positions have gaps: windows count the tokens that are there")
	}
}
