package kernels

import (
	"os"
	"strings"
	"testing"
	"unsafe"
)

// eachBackend runs test once for every backend of this CPU, in one process.
func eachBackend(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	before := Active()
	t.Cleanup(func() { Use(before) })
	for _, isa := range Available() {
		if err := Use(isa); err != nil {
			t.Fatal(err)
		}
		t.Run("isa="+string(isa), test)
	}
}

// TestRequiredISA fails where a backend that the environment demands did not
// come up: without it a test of all backends passes by testing none.
func TestRequiredISA(t *testing.T) {
	required := os.Getenv("KVQ_TEST_REQUIRE_ISA")
	if required == "" {
		t.Skip("KVQ_TEST_REQUIRE_ISA is not set")
	}
	for isa := range strings.SplitSeq(required, ",") {
		if err := Use(ISA(isa)); err != nil {
			t.Error(err)
		}
	}
	Use(Available()[0])
}

// TestActiveISA fails where this CPU is not given the backend that the environment
// names: emulated models of CPUs show that a lesser one gets what it can run.
func TestActiveISA(t *testing.T) {
	want := os.Getenv("KVQ_TEST_ACTIVE_ISA")
	if want == "" {
		t.Skip("KVQ_TEST_ACTIVE_ISA is not set")
	}
	if got := Available()[0]; got != ISA(want) {
		t.Errorf("the best backend of this CPU is %s: want %s", got, want)
	}
}

func TestUseRefusesUnknown(t *testing.T) {
	before := Active()
	if err := Use("sse9"); err == nil || Active() != before {
		t.Errorf("Use(sse9) = %v, active %s: want an error and %s", err, Active(), before)
	}
}

// asFloats returns b's memory as float32.
func asFloats(b []byte) []float32 {
	if len(b) < 4 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4)
}

// asBytes returns x's memory as bytes.
func asBytes(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
}
