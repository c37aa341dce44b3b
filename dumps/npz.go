package dumps

import (
	"archive/zip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// Members that inflate to more than bombFloor bytes and more than bombRatio
// times their compressed size are refused: captured floats deflate to about
// nine tenths, and even a half-empty buffer stays far below this.
const (
	bombFloor = 16 << 20
	bombRatio = 100
)

// archive is an open npz file: names first, headers on demand.
type archive struct {
	path    string
	file    *os.File
	size    int64
	names   []string
	members map[string]*zip.File
	whole   *blob
	blobs   []*blob
}

func openNPZ(path string) (*archive, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, err
	}
	a, err := readNPZ(f, size, path)
	if err != nil {
		f.Close()
		return nil, err
	}
	a.file = f
	return a, nil
}

func readNPZ(r io.ReaderAt, size int64, path string) (*archive, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, formatErrorf(path, -1, "not a readable npz (zip) archive: %v", strings.TrimPrefix(err.Error(), "zip: "))
	}
	a := &archive{path: path, size: size, members: map[string]*zip.File{}, whole: fileBlob(path, size)}
	a.blobs = []*blob{a.whole}
	for _, m := range z.File {
		name, ok := strings.CutSuffix(m.Name, ".npy")
		if !ok {
			continue
		}
		if a.members[name] != nil {
			return nil, formatErrorf(path, -1, "array %s occurs twice", quote(name))
		}
		a.members[name] = m
		a.names = append(a.names, name)
	}
	return a, nil
}

// array reads the header of one member.
func (a *archive) array(name string) (*array, error) {
	m := a.members[name]
	fail := func(format string, args ...any) (*array, error) {
		return nil, formatErrorf(a.path, -1, "array %s: %s", quote(name), fmt.Sprintf(format, args...))
	}
	if m.Flags&1 != 0 {
		return fail("is encrypted")
	}
	if m.Method != zip.Store && m.Method != zip.Deflate {
		return fail("is compressed with method %d: want stored or deflate", m.Method)
	}
	if m.Method == zip.Store && m.CompressedSize64 != m.UncompressedSize64 {
		return fail("is stored, yet has two sizes (%d and %d)", m.CompressedSize64, m.UncompressedSize64)
	}
	if m.UncompressedSize64 > bombFloor && m.UncompressedSize64/bombRatio > m.CompressedSize64 {
		return fail("would inflate from %d to %d bytes, more than %d times: refused", m.CompressedSize64, m.UncompressedSize64, bombRatio)
	}
	r, err := m.Open()
	if err != nil {
		return fail("%v", err)
	}
	defer r.Close()
	h, err := readNPYHeader(r)
	if err != nil {
		return fail("%v", err)
	}
	size, err := h.bytes()
	if err != nil {
		return fail("npy header: %v", err)
	}
	if uint64(h.length)+uint64(size) != m.UncompressedSize64 {
		return fail("header says %s of type %s, %d bytes, but the member holds %d",
			shapeString(h.shape), h.elem.name, size, int64(m.UncompressedSize64)-h.length)
	}
	arr := &array{path: a.path, name: name, elem: h.elem, shape: h.shape, fortran: h.fortran, bytes: size}
	if m.Method == zip.Deflate {
		arr.deflate = true
		arr.blob = inflatedBlob(a.path, m, h.length, size)
		a.blobs = append(a.blobs, arr.blob)
		return arr, nil
	}
	begin, err := m.DataOffset()
	if err != nil {
		return fail("%v", err)
	}
	arr.offset = begin + h.length
	if arr.offset > a.size || size > a.size-arr.offset {
		return fail("its %d bytes end beyond the end of the file", size)
	}
	arr.blob = storedBlob(a.whole, name, begin, h.length+size, m.CRC32)
	a.blobs = append(a.blobs, arr.blob)
	return arr, nil
}

// text reads a 0-d (or one-element) string array.
func (a *archive) text(name string) ([]byte, error) {
	fail := func(format string, args ...any) ([]byte, error) {
		return nil, formatErrorf(a.path, -1, "array %s: %s", quote(name), fmt.Sprintf(format, args...))
	}
	arr, err := a.array(name)
	if err != nil {
		return nil, err
	}
	for _, d := range arr.shape {
		if d != 1 {
			return fail("has shape %s, want a 0-d string array", shapeString(arr.shape))
		}
	}
	if arr.elem.kind != kindBytes && arr.elem.kind != kindUnicode {
		return fail("has type %s, want a string", quote(arr.elem.name))
	}
	if arr.bytes > 4*maxFacts {
		return fail("holds %d bytes, more than the %d that facts may have", arr.bytes, maxFacts)
	}
	r, err := a.members[name].Open()
	if err != nil {
		return fail("%v", err)
	}
	defer r.Close()
	raw := make([]byte, arr.bytes)
	_, err = io.CopyN(io.Discard, r, int64(a.members[name].UncompressedSize64)-arr.bytes)
	if err == nil {
		_, err = io.ReadFull(r, raw)
	}
	if err == nil {
		if _, e := io.CopyN(io.Discard, r, 1); e != io.EOF { // at the end archive/zip verifies the checksum
			err = e
		}
	}
	if err != nil {
		return fail("%v", err)
	}
	if arr.elem.kind == kindBytes {
		return []byte(strings.TrimRight(string(raw), "\x00")), nil
	}
	s, err := utf32(raw, arr.elem.big)
	if err != nil {
		return fail("%v", err)
	}
	return s, nil
}

// utf32 converts numpy's fixed-width UTF-32, padded with zeros, to UTF-8.
func utf32(raw []byte, big bool) ([]byte, error) {
	order := binary.ByteOrder(binary.LittleEndian)
	if big {
		order = binary.BigEndian
	}
	end := len(raw)
	for end >= 4 && order.Uint32(raw[end-4:]) == 0 {
		end -= 4
	}
	out := make([]byte, 0, end/4)
	for i := 0; i+4 <= end; i += 4 {
		c := order.Uint32(raw[i:])
		if c > utf8.MaxRune || !utf8.ValidRune(rune(c)) {
			return nil, errors.New("is not valid UTF-32")
		}
		out = utf8.AppendRune(out, rune(c))
	}
	return out, nil
}
