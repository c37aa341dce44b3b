package kernels

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/klauspost/cpuid/v2"
)

// A Level is the level of the memory hierarchy that a figure streams from.
type Level string

// The levels of a measurement.
const (
	LevelL2   Level = "l2"
	LevelL3   Level = "l3"
	LevelDRAM Level = "dram"
)

// A Figure is one measured kernel. Times are medians over samples that alternate
// with a read pass over the same memory; quartiles stand beside them.
type Figure struct {
	Kernel          string  // the path that ran
	Threads         int     // workers that shared a step
	Level           Level   // where the working set lies
	CacheBytes      int64   // bytes one step reads, metadata included
	WorkingSetBytes int64   // bytes of all copies that the steps rotate over
	Micros          float64 // one step, in microseconds
	MicrosLow       float64 // its lower quartile
	MicrosHigh      float64 // its upper quartile
	GBs             float64 // CacheBytes/Micros, in 10^9 bytes a second
	ReadGBs         float64 // what a read pass over the same memory reached beside it
	Roofline        float64 // GBs/ReadGBs
	Samples         int     // samples kept
	Dropped         int     // samples dropped because a thread lost its CPU
	Disturbed       bool    // so many were that the figure holds them too
}

// A Meter measures decode steps and read passes. It keeps its memory, so that
// schemes measured one after another rotate over the same working set.
type Meter struct {
	threads int
	memory  []byte
	free    func()
	read    func([]byte) uint64
	pieces  *parts // of a read pass
	sink    []uint64
}

// minSamples is how many samples a figure wants, time permitting.
const minSamples = 7

// NewMeter returns a meter for steps shared by the given number of threads. Its
// memory is taken when something is measured. Close gives it back.
func NewMeter(threads int) (*Meter, error) {
	if threads < 1 || threads > 1024 {
		return nil, fmt.Errorf("%d threads: want 1 to 1024", threads)
	}
	return &Meter{threads: threads, pieces: newParts(threads), sink: make([]uint64, threads*8)}, nil
}

// Close gives the meter's memory back.
func (m *Meter) Close() {
	if m.free != nil {
		m.free()
		m.memory, m.free = nil, nil
	}
}

// LastLevelCache returns the bytes of the last-level cache that the CPU reports,
// 32 MiB where it reports none.
func LastLevelCache() int64 {
	if n := cpuid.CPU.Cache.L3; n > 0 {
		return int64(n)
	}
	if n := cpuid.CPU.Cache.L2; n > 0 && cpuid.CPU.Cache.L3 == 0 {
		return int64(n)
	}
	return 32 << 20
}

// level2 returns the bytes of a core's second-level cache, 512 KiB where unknown.
func level2() int64 {
	if n := cpuid.CPU.Cache.L2; n > 0 {
		return int64(n)
	}
	return 512 << 10
}

// WorkingSet returns how much memory a figure of the level rotates over: from
// memory, the least of four times the last-level cache, 2 GiB and half of what is free.
func WorkingSet(level Level, threads int) int64 {
	switch level {
	case LevelL2:
		return level2() / 2 * int64(threads)
	case LevelL3:
		return LastLevelCache() / 2
	}
	return min(4*LastLevelCache(), 2<<30, availableMemory()/2)
}

// reserve makes the meter's memory at least n bytes.
func (m *Meter) reserve(n int) error {
	if len(m.memory) >= n {
		return nil
	}
	m.Close()
	var err error
	m.memory, m.free, err = mapMemory(roundUp(n, 4096))
	return err
}

// Decode measures the step that o describes over copies of the filled cache c,
// for about the given time. From memory, the copies fill the working set of
// WorkingSet; at the other levels c is read over and over, and must be small enough.
func (m *Meter) Decode(ctx context.Context, c *Cache, o DecodeOptions, level Level, budget time.Duration) (Figure, error) {
	o.Threads = m.threads
	d, err := NewDecoder(c, o)
	if err != nil {
		return Figure{}, err
	}
	defer d.Close()
	size := c.span()
	stride := roundUp(size, hugeAlign)
	copies := 1
	if level == LevelDRAM {
		copies = max(1, int((WorkingSet(level, m.threads)+int64(stride)-1)/int64(stride)))
	}
	if err := m.reserve(copies * stride); err != nil {
		return Figure{}, err
	}
	caches := make([]*Cache, copies)
	for i := range caches {
		caches[i] = c.copyInto(m.memory[i*stride:][:size])
	}
	q := make([]float32, o.QueryHeads*c.shape.DimK)
	for i := range q {
		q[i] = float32(math.Sin(float64(i)))
	}
	out := make([]float32, o.QueryHeads*c.shape.DimV)
	at := 0
	step := func(n int) error {
		for range n {
			if err := d.Step(caches[at], out, q); err != nil {
				return err
			}
			at = (at + 1) % copies
		}
		return nil
	}
	f := Figure{Kernel: d.Kernel(), Threads: m.threads, Level: level, CacheBytes: c.Bytes(), WorkingSetBytes: int64(copies) * c.Bytes()}
	read := func(n int) {
		for i := range n {
			m.pass(caches[(at+i)%copies].memory)
		}
	}
	err = m.alternate(ctx, &f, budget, step, read, int64(size))
	return f, err
}

// Run measures any other work that reads the given bytes once a step: encoding,
// decoding, whole attention. It alternates with a read pass over as many bytes.
func (m *Meter) Run(ctx context.Context, bytes int64, level Level, budget time.Duration, step func() error) (Figure, error) {
	if bytes < 512 || bytes > 1<<40 {
		return Figure{}, fmt.Errorf("%d bytes a step: want 512 to 1 TiB", bytes)
	}
	whole := max(int(bytes), int(WorkingSet(level, m.threads)))
	if err := m.reserve(whole); err != nil {
		return Figure{}, err
	}
	f := Figure{Threads: m.threads, Level: level, CacheBytes: bytes, WorkingSetBytes: bytes}
	at := 0
	err := m.alternate(ctx, &f, budget, func(n int) error {
		for range n {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	}, func(n int) {
		for range n {
			if at+int(bytes) > len(m.memory) {
				at = 0
			}
			m.pass(m.memory[at : at+int(bytes)])
			at += int(bytes)
		}
	}, bytes)
	return f, err
}

// ClockGHz measures how fast one core runs now, 0 where no kernel of the backend knows
// an instruction of one cycle. It takes a few milliseconds.
func ClockGHz() float64 {
	chain := active.Load().decode.addChain
	if chain == nil {
		return 0
	}
	const n = 64 << 10
	best := 0.0
	for range 200 {
		start := time.Now()
		chain(n)
		best = max(best, n/float64(time.Since(start).Nanoseconds()))
	}
	return best
}

// reader returns the read loop that is fastest here, trying each once.
func (m *Meter) reader() func([]byte) uint64 {
	if m.read != nil {
		return m.read
	}
	readers := active.Load().decode.readers
	best := time.Duration(math.MaxInt64)
	chosen := readers[0]
	for round := 0; round < 3 && len(readers) > 1; round++ {
		for _, read := range readers {
			m.read = read
			start := time.Now()
			m.pass(m.memory)
			if t := time.Since(start); t < best {
				best, chosen = t, read
			}
		}
	}
	m.read = chosen
	return chosen
}

// pass reads b once, shared by the meter's threads as a decode step shares its chunks,
// in calls short enough for the scheduler.
func (m *Meter) pass(b []byte) {
	const piece = 256 << 10
	read := m.reader()
	m.pieces.reset((len(b) + piece - 1) / piece)
	work := func(worker int) {
		var sum uint64
		for i := m.pieces.take(worker); i >= 0; i = m.pieces.take(worker) {
			sum += read(b[i*piece : min((i+1)*piece, len(b))])
		}
		m.sink[worker*8] += sum
	}
	var wait sync.WaitGroup
	for i := 1; i < m.threads; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			work(i)
		}()
	}
	work(0)
	wait.Wait()
}

// alternate runs samples of steps and read passes in turn and fills in f.
func (m *Meter) alternate(ctx context.Context, f *Figure, budget time.Duration, step func(int) error, read func(int), size int64) error {
	m.reader()
	const sampleTime = 2 * time.Millisecond
	start := time.Now()
	if err := step(1); err != nil {
		return err
	}
	once := time.Since(start)
	n := 1
	if once < sampleTime {
		n = int(sampleTime/max(once, time.Microsecond)) + 1
		if err := step(n); err != nil {
			return err
		}
	}
	read(1)
	// A step slower than the whole budget gets two samples, all others more.
	var times, speeds, allTimes, allSpeeds []float64
	for start := time.Now(); len(allTimes) < 2 || time.Since(start) < budget; {
		if err := ctx.Err(); err != nil {
			return err
		}
		lost := lostCPU()
		t0 := time.Now()
		if err := step(n); err != nil {
			return err
		}
		t1 := time.Now()
		read(n)
		t2 := time.Now()
		us := float64(t1.Sub(t0).Nanoseconds()) / 1e3 / float64(n)
		gbs := float64(int64(n)*size) / float64(t2.Sub(t1).Nanoseconds())
		allTimes, allSpeeds = append(allTimes, us), append(allSpeeds, gbs)
		if lostCPU() == lost {
			times, speeds = append(times, us), append(speeds, gbs)
		}
	}
	f.Dropped = len(allTimes) - len(times)
	if len(times) < min(minSamples, len(allTimes)) {
		f.Dropped, f.Disturbed = 0, true
		times, speeds = allTimes, allSpeeds
	}
	slices.Sort(times)
	slices.Sort(speeds)
	f.Samples = len(times)
	f.Micros, f.MicrosLow, f.MicrosHigh = quantile(times, 0.5), quantile(times, 0.25), quantile(times, 0.75)
	f.GBs = float64(f.CacheBytes) / f.Micros / 1e3
	f.ReadGBs = quantile(speeds, 0.5)
	f.Roofline = f.GBs / f.ReadGBs
	return nil
}

// quantile interpolates between the order statistics of sorted x.
func quantile(x []float64, p float64) float64 {
	at := float64(p * float64(len(x)-1))
	i := int(at)
	if i+1 >= len(x) {
		return x[len(x)-1]
	}
	return x[i] + float64((x[i+1]-x[i])*(at-float64(i)))
}

// MapBytes returns n zeros outside the Go heap, on huge pages where the system has them,
// and the function that gives them back.
func MapBytes(n int) ([]byte, func(), error) {
	if n < 1 || n > math.MaxInt/2 {
		return nil, nil, fmt.Errorf("%d bytes", n)
	}
	return mapMemory(n)
}

// MapFloats is MapBytes for n float32.
func MapFloats(n int) ([]float32, func(), error) {
	if n < 1 || n > math.MaxInt/8 {
		return nil, nil, fmt.Errorf("%d floats", n)
	}
	memory, free, err := mapMemory(4 * n)
	if err != nil {
		return nil, nil, err
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), n), free, nil
}

// hugeAlign separates copies of a cache, so that each starts on a huge page's cache line.
const hugeAlign = 4096

// span returns the bytes of memory that the cache's pages and tails take.
func (c *Cache) span() int { return len(c.memory) }

// copyInto returns a cache with the contents of c in the given memory, which must
// be span long and start on a cache line. Closing it gives nothing back.
func (c *Cache) copyInto(memory []byte) *Cache {
	copy(memory, c.memory)
	n := *c
	n.memory, n.free = memory, nil
	n.filling, n.idle = new(sync.Mutex), nil
	n.heads = slices.Clone(c.heads)
	n.place(memory)
	return &n
}
