//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package dumps

import (
	"os"

	"golang.org/x/sys/unix"
)

// release tells the kernel that data[from:to] of a mapping will not be needed
// soon, so that the pages read so far do not count as resident memory. Whole
// pages around the range go too: another reader faults them in again.
func release(data []byte, from, to int) {
	page := os.Getpagesize()
	from -= from % page
	to = min((to+page-1)/page*page, len(data))
	if from < to {
		_ = unix.Madvise(data[from:to], unix.MADV_DONTNEED) // advice: nothing depends on it
	}
}
