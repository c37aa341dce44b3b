package formula

import (
	"fmt"
	"io"
	"os"
)

// readFile reads a file's header with its size at hand; an error about the
// content names the file.
func readFile[T any](path string, read func(r io.Reader, size int64) (T, error)) (T, error) {
	var none T
	f, info, err := openFile(path)
	if err != nil {
		return none, err
	}
	defer f.Close()
	content, err := read(f, info.Size())
	if err != nil {
		return none, fmt.Errorf("%s: %w", path, err)
	}
	return content, nil
}

// openFile opens a regular file. Others are refused before they are opened: a
// named pipe would block, a device might never end.
func openFile(path string) (*os.File, os.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	return f, info, err
}
