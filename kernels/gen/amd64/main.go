// Command amd64 writes the AVX2 and AVX-512 assembly of package kernels.
//
// One area of kernels is generated a run, because avo builds one file at a time:
//
//	go -C kernels/gen run ./amd64 -area codec -pkg kernels -out ../codec_amd64.s -stubs ../codec_stubs_amd64.go
//
// `make generate` runs it for every area.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	. "github.com/mmcloughlin/avo/build"
)

// areas emit the kernels of one file each. An area's name is the name of its file.
var areas = map[string]func(){
	"codec":  codec,
	"decode": decode,
	"expand": expand,
	"metric": metric,
	"page":   page,
}

func main() {
	area := flag.String("area", "", "which kernels to write: "+strings.Join(names(), ", "))
	flag.Parse()
	emit, ok := areas[*area]
	if !ok {
		fmt.Fprintf(os.Stderr, "amd64: unknown area %q: want one of %s\n", *area, strings.Join(names(), ", "))
		os.Exit(2)
	}
	ConstraintExpr("!purego")
	emit()
	Generate()
	for _, output := range []string{"out", "stubs"} {
		if err := nameCommand(flag.Lookup(output).Value.String()); err != nil {
			fmt.Fprintln(os.Stderr, "amd64:", err)
			os.Exit(1)
		}
	}
}

// nameCommand puts into a written file's first line the command that works from
// the repository's top: avo assumes a generator of one file, run in its folder.
func nameCommand(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text = bytes.Replace(text, []byte("go run main.go"), []byte("go -C kernels/gen run ./amd64"), 1)
	return os.WriteFile(path, text, 0o644)
}

func names() []string {
	var all []string
	for name := range areas {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
