package dumps

import (
	"fmt"
	"os"
)

// array is one named array of a file, as its header describes it.
type array struct {
	path    string
	name    string
	elem    element
	shape   []int
	stride  []int // in elements; nil for C or Fortran order
	fortran bool
	blob    *blob
	offset  int64 // of the data in the blob
	bytes   int64
	deflate bool // stored compressed
}

// strides returns the distance between neighbours along each axis, in elements.
func (a *array) strides() []int {
	if a.stride != nil {
		return a.stride
	}
	s := make([]int, len(a.shape))
	n := 1
	for i := range s {
		axis := len(s) - 1 - i
		if a.fortran {
			axis = i
		}
		s[axis] = n
		n *= a.shape[axis]
	}
	return s
}

// errorf returns an error about this array.
func (a *array) errorf(format string, args ...any) *FormatError {
	offset := a.offset
	if a.deflate {
		offset = -1 // offsets of inflated bytes are of no use to anyone
	}
	return formatErrorf(a.path, offset, "%s %s", a.label(), fmt.Sprintf(format, args...))
}

func (a *array) label() string {
	if a.name == "" {
		return "array"
	}
	return "tensor " + quote(a.name)
}

// ints reads a one-dimensional array of exactly n integers.
func (a *array) ints(n int) ([]int, error) {
	if a.elem.kind != kindInt && a.elem.kind != kindUint {
		return nil, a.errorf("has type %s, want integers", quote(a.elem.name))
	}
	switch a.elem.size {
	case 1, 2, 4, 8:
	default:
		return nil, a.errorf("has type %s, want integers", quote(a.elem.name))
	}
	if len(a.shape) != 1 || a.shape[0] != n {
		return nil, a.errorf("has shape %s, want [%d]: one per query row", shapeString(a.shape), n)
	}
	data, err := a.blob.bytes()
	if err != nil {
		return nil, err
	}
	out := make([]int, n)
	step := a.strides()[0]
	err = a.blob.guard(func() error {
		size := a.elem.size
		for i := range out {
			var u uint64
			for j := range size {
				b := data[a.offset+int64(i*step*size+j)]
				if a.elem.big {
					u = u<<8 | uint64(b)
				} else {
					u |= uint64(b) << (8 * j)
				}
			}
			v := int64(u)
			if a.elem.kind == kindInt {
				v = int64(u<<(64-8*size)) >> (64 - 8*size)
			}
			if int64(int(v)) != v || (a.elem.kind == kindUint && v < 0) {
				return a.errorf("has a value, %d of %d, that does not fit", i, n)
			}
			out[i] = int(v)
		}
		return nil
	})
	return out, err
}

// openNPY reads the header of an npy file.
func openNPY(path string) (*array, *blob, error) {
	f, size, err := openFile(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	h, err := readNPYHeader(f)
	if err != nil {
		return nil, nil, formatErrorf(path, -1, "%v", err)
	}
	want, err := h.bytes()
	if err != nil {
		return nil, nil, formatErrorf(path, 0, "npy header: %v", err)
	}
	if have := size - h.length; want != have {
		return nil, nil, formatErrorf(path, h.length, "header says %s of type %s, %d bytes, but %d follow",
			shapeString(h.shape), h.elem.name, want, have)
	}
	b := fileBlob(path, size)
	return &array{path: path, elem: h.elem, shape: h.shape, fortran: h.fortran,
		blob: b, offset: h.length, bytes: want}, b, nil
}

// openFile opens a regular, non-empty file.
func openFile(path string) (*os.File, int64, error) {
	st, err := os.Stat(path) // before Open, which would wait for a pipe's writer
	if err != nil {
		return nil, 0, brokenLink(path, err)
	}
	if !st.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s: not a regular file", path)
	}
	if st.Size() == 0 {
		return nil, 0, formatErrorf(path, -1, "the file is empty")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	return f, st.Size(), nil
}
