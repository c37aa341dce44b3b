package dumps

import (
	"archive/zip"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/edsrzf/mmap-go"
)

// blob is a run of bytes that is mapped into memory when it is first needed:
// a whole file, or the inflated content of one compressed npz member. A stored
// member shares the mapping of its file, and is checked when it is first needed.
type blob struct {
	path string // the file the user named, for errors
	size int64
	open func() (f *os.File, remove bool, err error)

	whole *blob // of the file that a stored member lies in; open is nil then
	check func(file []byte) error

	once sync.Once
	data mmap.MMap
	temp string // a temporary file that could not be removed yet
	err  error
}

func fileBlob(path string, size int64) *blob {
	return &blob{path: path, size: size, open: func() (*os.File, bool, error) {
		f, err := os.Open(path)
		return f, false, err
	}}
}

// inflatedBlob unpacks a compressed npz member into a temporary file: its
// heads can then be read in any order, by many workers, without holding the
// member in memory. skip bytes before the array's data are left out.
func inflatedBlob(path string, member *zip.File, skip, size int64) *blob {
	return &blob{path: path, size: size, open: func() (f *os.File, remove bool, err error) {
		// The member's reader holds the archive's file, so open that again.
		z, err := zip.OpenReader(path)
		if err != nil {
			return nil, false, err
		}
		defer z.Close()
		r, err := reopen(z, member)
		if err != nil {
			return nil, false, formatErrorf(path, -1, "%s: %v", quote(member.Name), err)
		}
		defer r.Close()
		if f, err = os.CreateTemp("", "kvq-*"); err != nil {
			return nil, false, err
		}
		_, err = io.CopyN(io.Discard, r, skip)
		if err == nil {
			_, err = io.CopyN(f, r, size)
		}
		if err == nil {
			// Reading on to the end makes archive/zip verify the checksum.
			if n, e := io.CopyN(io.Discard, r, 1); n != 0 || e != io.EOF {
				err = fmt.Errorf("data does not end where its header says (%v)", e)
			}
		}
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			return nil, false, formatErrorf(path, -1, "%s: cannot inflate: %v", quote(member.Name), err)
		}
		return f, true, nil
	}}
}

// storedBlob is the file of a stored member, whose bytes are held against their
// checksum before any of them is used: one pass in order, ahead of reads in any
// order by many workers. 0 is no checksum, as for archive/zip.
func storedBlob(whole *blob, name string, begin, size int64, checksum uint32) *blob {
	return &blob{path: whole.path, size: size, whole: whole, check: func(file []byte) error {
		if checksum == 0 {
			return nil
		}
		var sum uint32
		for from, end := begin, begin+size; from < end; from += released {
			to := min(from+released, end)
			sum = crc32.Update(sum, crc32.IEEETable, file[from:to])
			release(file, int(from), int(to))
		}
		if sum != checksum {
			return formatErrorf(whole.path, -1, "array %s: its checksum is wrong: the file is damaged", quote(name))
		}
		return nil
	}}
}

func reopen(z *zip.ReadCloser, member *zip.File) (io.ReadCloser, error) {
	for _, m := range z.File {
		if m.Name == member.Name && m.CRC32 == member.CRC32 && m.UncompressedSize64 == member.UncompressedSize64 {
			return m.Open()
		}
	}
	return nil, errors.New("the file changed while it was read")
}

// bytes maps the blob. Touching the result can fault if the file shrinks
// meanwhile: wrap the use in guard.
func (b *blob) bytes() ([]byte, error) {
	b.once.Do(func() { b.err = b.mapIn() })
	return b.data, b.err
}

func (b *blob) mapIn() error {
	if b.whole != nil {
		file, err := b.whole.bytes()
		if err != nil {
			return err
		}
		if err := b.guard(func() error { return b.check(file) }); err != nil {
			return err
		}
		b.data = file
		return nil
	}
	f, temporary, err := b.open()
	if err != nil {
		return err
	}
	defer f.Close() // the mapping outlives the descriptor
	if temporary {
		defer func() {
			// Where open files cannot be removed, Close does it.
			if os.Remove(f.Name()) != nil {
				b.temp = f.Name()
			}
		}()
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() != b.size {
		return formatErrorf(b.path, -1, "the file changed while it was read")
	}
	if b.size > math.MaxInt {
		return fmt.Errorf("%s: too large to map on this machine", b.path)
	}
	m, err := mmap.MapRegion(f, int(b.size), mmap.RDONLY, 0, 0)
	if err != nil {
		return fmt.Errorf("map %s: %w", b.path, err)
	}
	b.data = m
	return nil
}

func (b *blob) close() error {
	b.once.Do(func() { b.err = os.ErrClosed })
	var err error
	if b.data != nil && b.whole == nil {
		err = b.data.Unmap()
		b.data, b.err = nil, os.ErrClosed
	}
	if b.temp != "" {
		err = errors.Join(err, os.Remove(b.temp))
	}
	return err
}

// guard runs f, which touches mapped memory, and turns the fault of a file
// that was cut short by someone else into an error.
func (b *blob) guard(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		r := recover()
		if r == nil {
			return
		}
		if fault, ok := r.(interface {
			runtime.Error
			Addr() uintptr
		}); ok {
			err = formatErrorf(b.path, -1, "reading the mapped file failed: was it cut short meanwhile? (%v)", fault)
			return
		}
		panic(r)
	}()
	return f()
}
