package main

import (
	"fmt"
	"slices"
	"strings"
)

// asm collects a file of functions and their Go declarations.
type asm struct {
	text, stubs strings.Builder

	body     strings.Builder // of the function in hand
	features map[string]bool // that the body's instructions need
	args     map[string]arg
	vecs     pool
	gps      pool
	labels   int
}

// vec is a vector register, gp a general one. Both are numbers until printed, so
// that a helper for a missing instruction can compute its word.
type (
	vec int
	gp  int
)

func (v vec) String() string { return fmt.Sprintf("V%d", int(v)) }
func (r gp) String() string  { return fmt.Sprintf("R%d", int(r)) }

// f is the name of the register for the mnemonics of scalar loads and stores.
func (v vec) f() string { return fmt.Sprintf("F%d", int(v)) }

// arg is a parameter on the caller's stack.
type arg struct {
	kind   string
	offset int
}

var argSizes = map[string]int{"*float32": 8, "*float64": 8, "*int32": 8, "*uint8": 8, "*byte": 8, "int": 8, "uint64": 8, "float32": 4}

// function emits a function named name: parameters "dst, x *float32, n int" as in
// Go, an optional result "ret uint64", a comment for the declaration.
func (a *asm) function(name, params, result, doc string, body func()) {
	a.args, a.features = map[string]arg{}, map[string]bool{}
	a.vecs, a.gps = newPool("vector", 0, 31), newPool("general", 0, 17, 19, 26) // R18 and R27 up are the platform's and Go's
	a.body.Reset()
	a.labels = 0
	offset := 0
	place := func(names []string, kind string) {
		size, ok := argSizes[kind]
		if !ok {
			panic(fmt.Sprintf("%s: parameter of unknown type %q", name, kind))
		}
		for _, n := range names {
			offset = (offset + size - 1) / size * size
			a.args[n] = arg{kind, offset}
			offset += size
		}
	}
	var names []string
	for _, field := range strings.Split(params, ", ") {
		n, kind, typed := strings.Cut(field, " ")
		if names = append(names, n); typed {
			place(names, kind)
			names = nil
		}
	}
	declared := "(" + params + ")"
	offset = (offset + 7) / 8 * 8
	if result != "" {
		n, kind, _ := strings.Cut(result, " ")
		place([]string{n}, kind)
		declared += " (" + result + ")"
	}
	body()
	var needs []string
	for f := range a.features {
		needs = append(needs, f)
	}
	slices.Sort(needs)
	fmt.Fprintf(&a.text, "\n// func %s%s\n", name, declared)
	if len(needs) > 0 {
		fmt.Fprintf(&a.text, "// Requires: %s\n", strings.Join(needs, ", "))
	}
	fmt.Fprintf(&a.text, "TEXT ·%s(SB), NOSPLIT, $0-%d\n%s\tRET\n", name, offset, a.body.String())
	fmt.Fprintf(&a.stubs, "\n// %s %s\n//\n//go:noescape\nfunc %s%s\n", name, doc, name, declared)
}

// op emits an instruction that the Go assembler knows, operands in its order:
// sources first.
func (a *asm) op(mnemonic string, operands ...any) {
	var s []string
	for _, o := range operands {
		s = append(s, fmt.Sprint(o))
	}
	fmt.Fprintf(&a.body, "\t%s %s\n", mnemonic, strings.Join(s, ", "))
}

// word emits an instruction that the Go assembler lacks, with its decoded form.
func (a *asm) word(w uint32, decoded string, args ...any) {
	fmt.Fprintf(&a.body, "\tWORD $0x%08x // %s\n", w, fmt.Sprintf(decoded, args...))
}

func (a *asm) label(name string) { fmt.Fprintf(&a.body, "\n%s:\n", name) }

// comment explains what follows.
func (a *asm) comment(text string) { fmt.Fprintf(&a.body, "\t// %s\n", text) }

// newLabel returns a label that the function does not have yet.
func (a *asm) newLabel(kind string) string {
	a.labels++
	return fmt.Sprintf("%s%d", kind, a.labels)
}

// loop runs body while n, a count that is not 0 and a multiple of step, goes down to 0.
func (a *asm) loop(n gp, step int, body func()) {
	l := a.newLabel("loop")
	a.label(l)
	body()
	a.op("SUBS", imm(step, 0, 4095), n, n)
	a.op("BNE", l)
}

// whileAtLeast runs body while n is at least step, taking step away each time.
func (a *asm) whileAtLeast(n gp, step int, body func()) {
	l, end := a.newLabel("while"), a.newLabel("end")
	a.label(l)
	a.op("CMP", imm(step, 0, 4095), n)
	a.op("BLT", end)
	body()
	a.op("SUB", imm(step, 0, 4095), n, n)
	a.op("JMP", l)
	a.label(end)
}

// imm is an immediate operand within bounds.
func imm(v, lo, hi int) string {
	mustBe(v >= lo && v <= hi, "immediate %d is outside %d..%d", v, lo, hi)
	return fmt.Sprintf("$%d", v)
}

func mustBe(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Sprintf(format, args...))
	}
}

// pool hands out registers, lowest first.
type pool struct {
	kind string
	free []int
}

func newPool(kind string, bounds ...int) pool {
	p := pool{kind: kind}
	for i := 0; i < len(bounds); i += 2 {
		for r := bounds[i]; r <= bounds[i+1]; r++ {
			p.free = append(p.free, r)
		}
	}
	return p
}

func (p *pool) take() int {
	mustBe(len(p.free) > 0, "no %s register is left", p.kind)
	r := p.free[0]
	p.free = p.free[1:]
	return r
}

func (p *pool) give(r int) {
	at, found := slices.BinarySearch(p.free, r)
	mustBe(!found, "%s register %d is given back twice", p.kind, r)
	p.free = slices.Insert(p.free, at, r)
}

// vec takes a vector register until the function ends or release.
func (a *asm) vec() vec { return vec(a.vecs.take()) }

func (a *asm) vecsOf(n int) []vec {
	var v []vec
	for range n {
		v = append(v, a.vec())
	}
	return v
}

func (a *asm) gp() gp { return gp(a.gps.take()) }

// release gives registers back.
func (a *asm) release(v ...vec) {
	for _, r := range v {
		a.vecs.give(int(r))
	}
}

func (a *asm) releaseGP(r ...gp) {
	for _, g := range r {
		a.gps.give(int(g))
	}
}

// param loads a pointer or an integer parameter.
func (a *asm) param(name string) gp {
	p, ok := a.args[name]
	mustBe(ok && argSizes[p.kind] == 8, "no pointer or integer parameter %q", name)
	r := a.gp()
	a.op("MOVD", fmt.Sprintf("%s+%d(FP)", name, p.offset), r)
	return r
}

// paramAll loads a float32 parameter into every lane.
func (a *asm) paramAll(name string) vec {
	p, ok := a.args[name]
	mustBe(ok && p.kind == "float32", "no float32 parameter %q", name)
	v := a.vec()
	a.op("FMOVS", fmt.Sprintf("%s+%d(FP)", name, p.offset), v.f())
	a.dup4s(v, v, 0)
	return v
}

// result stores r as the function's result.
func (a *asm) result(name string, r gp) {
	a.op("MOVD", r, fmt.Sprintf("%s+%d(FP)", name, a.args[name].offset))
}
