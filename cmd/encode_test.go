package cmd

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEncodeAllOrNothing: what fails leaves the directory as it was, or makes
// none, and its message is about the array.
func TestEncodeAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.npy"), filepath.Join(dir, "bad.npy")
	array := npy("<f4", "(2, 4, 32)", floats(2*4*32))
	if err := os.WriteFile(good, array, 0o666); err != nil {
		t.Fatal(err)
	}
	array = bytes.Clone(array)
	binary.LittleEndian.PutUint32(array[len(array)-4:], 0x7fc00000)
	if err := os.WriteFile(bad, array, 0o666); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "new", "vectors")
	for _, c := range []struct{ file, schemes, want string }{
		{bad, "f32,int8-token", "kvq: " + bad + ": "},
		{bad, "int8-tensor", "kvq: " + bad + ": "},
		{bad, "f32,e4m3", "kvq: " + bad + ": "},
		{good, "f32,int4-token/64", "kvq: " + good + ": scheme "},
	} {
		code, stdout, stderr := run("encode", c.file, "--scheme", c.schemes, "-o", out)
		if code == exitOK || stdout != "" || !strings.HasPrefix(stderr, c.want) {
			t.Errorf("%s of %s: exit code %d, stdout %q, stderr %q, want %q", c.schemes, c.file, code, stdout, stderr, c.want)
		}
		if _, err := os.Stat(filepath.Dir(out)); !os.IsNotExist(err) {
			t.Errorf("%s of %s: the directory stayed: %v", c.schemes, c.file, err)
		}
	}
	code, stdout, stderr := run("encode", good, "--scheme", "f32,int8-token,f32:f32,f32", "-o", out, "--format", "json")
	var result encodedFiles
	if err := json.Unmarshal([]byte(stdout), &result); code != exitOK || err != nil || len(result.Rows) != 2 {
		t.Fatalf("exit code %d, %v, rows %+v, stderr %q", code, err, result.Rows, stderr)
	}
	before, err := os.ReadFile(result.Rows[0].Bytes)
	if err != nil || !bytes.HasSuffix(before, floats(2*4*32)) {
		t.Errorf("%v: the bytes of f32 are not the array's", err)
	}
	if code, _, _ := run("encode", bad, "--scheme", "f32,int8-token", "-o", out); code != exitFailure {
		t.Errorf("exit code %d", code)
	}
	after, _ := os.ReadFile(result.Rows[0].Bytes)
	if entries, _ := os.ReadDir(out); !bytes.Equal(after, before) || len(entries) != 4 {
		t.Errorf("a failure changed the files of before: %v", entries)
	}
}
