package formula

import (
	"fmt"
	"os"
)

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
