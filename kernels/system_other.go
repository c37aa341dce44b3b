//go:build !linux

package kernels

import "os"

// availableMemory is a guess where the system is not asked.
func availableMemory() int64 { return 4 << 30 }

// lostCPU counts nothing where the system is not asked.
func lostCPU() int64 { return 0 }

func pageSize() int64 { return int64(os.Getpagesize()) }

func hugePageMode() string { return "" }
