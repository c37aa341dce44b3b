package kernels

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// availableMemory returns the bytes that can be had without swapping.
func availableMemory() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 4 << 30
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib int64
		if _, err := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 4 << 30
}

// lostCPU counts how often a thread of this process was taken off its CPU.
func lostCPU() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return int64(usage.Nivcsw)
}

func pageSize() int64 { return int64(os.Getpagesize()) }

// hugePageMode returns the choice in force between always, madvise and never.
func hugePageMode() string {
	text, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), "[")
	mode, _, _ := strings.Cut(rest, "]")
	return mode
}
