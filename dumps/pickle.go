package dumps

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// A pickle is a program for a small stack machine. This one runs only what
// torch.save writes for containers of tensors: it builds lists, tuples,
// dictionaries and the objects named in pickleGlobals, whose attributes become
// entries; nothing is called. Every opcode and every name that is not listed
// ends the reading with an error that names it.

type (
	pickleGlobal struct{ module, name string }
	pickleTuple  []any
	pickleList   struct{ items []any }
	pickleDict   struct {
		keys, values []any
	}
	// pickleObject is an instance of a listed class.
	pickleObject struct {
		class pickleGlobal
		state *pickleDict
	}
	pickleOpaque  struct{} // a value of no use here
	pickleMark    struct{}
	pickleStorage struct {
		elem element // unknown (size 0) for untyped ones
		key  string
		size int64 // elements, or bytes where untyped
	}
	pickleTensor struct {
		storage       *pickleStorage
		elem          element
		offset        int64
		shape, stride []int64
	}
)

func (g pickleGlobal) String() string { return g.module + "." + g.name }

// globalKind says what may be done with a listed name.
type globalKind int

const (
	globalStorage  globalKind = iota // names a type in a persistent id
	globalDType                      // a value
	globalRebuild                    // makes a tensor
	globalParam                      // returns its first argument
	globalDict                       // makes an empty dictionary
	globalHarmless                   // its value is of no use here
	globalClass                      // an object with attributes
)

// pickleGlobals is all that a file may name.
var pickleGlobals = map[pickleGlobal]struct {
	kind globalKind
	elem element
}{
	{"torch", "HalfStorage"}:            {globalStorage, safetensorsTypes["F16"]},
	{"torch", "BFloat16Storage"}:        {globalStorage, safetensorsTypes["BF16"]},
	{"torch", "FloatStorage"}:           {globalStorage, safetensorsTypes["F32"]},
	{"torch", "DoubleStorage"}:          {globalStorage, safetensorsTypes["F64"]},
	{"torch", "LongStorage"}:            {globalStorage, safetensorsTypes["I64"]},
	{"torch", "IntStorage"}:             {globalStorage, safetensorsTypes["I32"]},
	{"torch", "ShortStorage"}:           {globalStorage, safetensorsTypes["I16"]},
	{"torch", "CharStorage"}:            {globalStorage, safetensorsTypes["I8"]},
	{"torch", "ByteStorage"}:            {globalStorage, safetensorsTypes["U8"]},
	{"torch", "BoolStorage"}:            {globalStorage, safetensorsTypes["BOOL"]},
	{"torch", "UntypedStorage"}:         {globalStorage, element{}},
	{"torch.storage", "UntypedStorage"}: {globalStorage, element{}},

	{"torch", "float16"}:       {globalDType, safetensorsTypes["F16"]},
	{"torch", "bfloat16"}:      {globalDType, safetensorsTypes["BF16"]},
	{"torch", "float32"}:       {globalDType, safetensorsTypes["F32"]},
	{"torch", "float64"}:       {globalDType, safetensorsTypes["F64"]},
	{"torch", "float8_e4m3fn"}: {globalDType, safetensorsTypes["F8_E4M3"]},
	{"torch", "float8_e5m2"}:   {globalDType, safetensorsTypes["F8_E5M2"]},
	{"torch", "int64"}:         {globalDType, safetensorsTypes["I64"]},
	{"torch", "int32"}:         {globalDType, safetensorsTypes["I32"]},
	{"torch", "uint8"}:         {globalDType, safetensorsTypes["U8"]},
	{"torch", "bool"}:          {globalDType, safetensorsTypes["BOOL"]},

	{"torch._utils", "_rebuild_tensor_v2"}: {kind: globalRebuild},
	{"torch._utils", "_rebuild_tensor_v3"}: {kind: globalRebuild},
	{"torch._utils", "_rebuild_parameter"}: {kind: globalParam},
	{"collections", "OrderedDict"}:         {kind: globalDict},
	{"torch", "device"}:                    {kind: globalHarmless},
	{"torch", "Size"}:                      {kind: globalHarmless},

	{"transformers.cache_utils", "DynamicCache"}:              {kind: globalClass},
	{"transformers.cache_utils", "DynamicLayer"}:              {kind: globalClass},
	{"transformers.cache_utils", "DynamicSlidingWindowLayer"}: {kind: globalClass},
}

// unpickler runs one pickle.
type unpickler struct {
	data  []byte
	at    int
	stack []any
	memo  map[uint32]any
}

// unpickle returns what a pickle stands for. An opcode of one byte can make a
// value of a hundred, so that their number is bounded.
func unpickle(data []byte) (any, error) {
	u := &unpickler{data: data, memo: map[uint32]any{}}
	for steps := 0; ; steps++ {
		if steps == maxPickleSteps {
			return nil, fmt.Errorf("the pickle has more than %d opcodes: refused (byte %d of the pickle)", maxPickleSteps, u.at)
		}
		op, err := u.take(1)
		if err != nil {
			return nil, err
		}
		if op[0] == '.' {
			return u.pop()
		}
		if err := u.step(op[0]); err != nil {
			return nil, fmt.Errorf("%w (byte %d of the pickle)", err, u.at)
		}
	}
}

// take returns the next n bytes.
func (u *unpickler) take(n uint64) ([]byte, error) {
	if n > uint64(len(u.data)-u.at) {
		return nil, fmt.Errorf("the pickle is cut short at byte %d", u.at)
	}
	b := u.data[u.at : u.at+int(n)]
	u.at += int(n)
	return b, nil
}

// number reads a little-endian length or index of n bytes.
func (u *unpickler) number(n int) (uint64, error) {
	b, err := u.take(uint64(n))
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[:], b)
	return binary.LittleEndian.Uint64(wide[:]), nil
}

func (u *unpickler) push(v any) error {
	u.stack = append(u.stack, v)
	return nil
}

func (u *unpickler) pop() (any, error) {
	if len(u.stack) == 0 {
		return nil, fmt.Errorf("the pickle takes from an empty stack")
	}
	v := u.stack[len(u.stack)-1]
	u.stack = u.stack[:len(u.stack)-1]
	return v, nil
}

// popMark returns what was pushed since the last mark.
func (u *unpickler) popMark() ([]any, error) {
	for i := len(u.stack) - 1; i >= 0; i-- {
		if _, ok := u.stack[i].(pickleMark); ok {
			items := append([]any(nil), u.stack[i+1:]...)
			u.stack = u.stack[:i]
			return items, nil
		}
	}
	return nil, fmt.Errorf("the pickle lacks a mark")
}

// step runs one opcode.
func (u *unpickler) step(op byte) error {
	switch op {
	case 0x80: // PROTO
		_, err := u.take(1)
		return err
	case 0x95: // FRAME
		_, err := u.take(8)
		return err
	case '(':
		return u.push(pickleMark{})
	case '0': // POP
		_, err := u.pop()
		return err
	case '1': // POP_MARK
		_, err := u.popMark()
		return err
	case 'N':
		return u.push(nil)
	case 0x88, 0x89:
		return u.push(op == 0x88)
	case 'K', 'M', 'J', 0x8a:
		return u.integer(op)
	case 'G':
		b, err := u.take(8)
		if err != nil {
			return err
		}
		return u.push(math.Float64frombits(binary.BigEndian.Uint64(b)))
	case 0x8c, 'X', 0x8d, 'C', 'B', 0x8e: // strings and bytes
		return u.text(op)
	case ')':
		return u.push(pickleTuple{})
	case 0x85, 0x86, 0x87:
		n := int(op - 0x84)
		if len(u.stack) < n {
			return fmt.Errorf("the pickle takes from an empty stack")
		}
		items := append(pickleTuple(nil), u.stack[len(u.stack)-n:]...)
		u.stack = u.stack[:len(u.stack)-n]
		return u.push(items)
	case 't':
		items, err := u.popMark()
		if err != nil {
			return err
		}
		return u.push(pickleTuple(items))
	case ']':
		return u.push(&pickleList{})
	case '}':
		return u.push(&pickleDict{})
	case 'a', 'e':
		return u.extend(op == 'e')
	case 's', 'u':
		return u.set(op == 'u')
	case 'h', 'j', 'q', 'r', 0x94:
		return u.remember(op)
	case 'c', 0x93:
		return u.global(op)
	case 'Q':
		return u.persistent()
	case 'R':
		return u.reduce()
	case 0x81:
		return u.object()
	case 'b':
		return u.build()
	}
	return fmt.Errorf("the pickle uses opcode 0x%02x, which no container of tensors needs: refused", op)
}

func (u *unpickler) integer(op byte) error {
	size := map[byte]int{'K': 1, 'M': 2, 'J': 4}[op]
	if op == 0x8a { // LONG1
		n, err := u.number(1)
		if err != nil {
			return err
		}
		if n > 8 {
			return fmt.Errorf("the pickle holds an integer of %d bytes", n)
		}
		size = int(n)
	}
	v, err := u.number(size)
	if err != nil {
		return err
	}
	if shift := 64 - 8*size; (op == 'J' || op == 0x8a) && size > 0 {
		return u.push(int64(v<<shift) >> shift)
	}
	return u.push(int64(v))
}

func (u *unpickler) text(op byte) error {
	n, err := u.number(map[byte]int{0x8c: 1, 'C': 1, 'X': 4, 'B': 4, 0x8d: 8, 0x8e: 8}[op])
	if err != nil {
		return err
	}
	b, err := u.take(n)
	if err != nil {
		return err
	}
	if op == 'C' || op == 'B' || op == 0x8e {
		return u.push(pickleOpaque{})
	}
	if !utf8.Valid(b) {
		return fmt.Errorf("the pickle holds a string that is not UTF-8")
	}
	return u.push(string(b))
}

// extend appends to the list below.
func (u *unpickler) extend(many bool) error {
	items, err := u.operands(many, 1)
	if err != nil {
		return err
	}
	if len(u.stack) > 0 {
		if l, ok := u.stack[len(u.stack)-1].(*pickleList); ok {
			l.items = append(l.items, items...)
			return nil
		}
	}
	return fmt.Errorf("the pickle appends to something else than a list")
}

// set adds entries to the dictionary below.
func (u *unpickler) set(many bool) error {
	items, err := u.operands(many, 2)
	if err != nil {
		return err
	}
	if len(u.stack) > 0 && len(items)%2 == 0 {
		if d, ok := u.stack[len(u.stack)-1].(*pickleDict); ok {
			for i := 0; i < len(items); i += 2 {
				d.keys, d.values = append(d.keys, items[i]), append(d.values, items[i+1])
			}
			return nil
		}
	}
	return fmt.Errorf("the pickle sets entries of something else than a dictionary")
}

// operands returns the items since the mark, or the last n.
func (u *unpickler) operands(many bool, n int) ([]any, error) {
	if many {
		return u.popMark()
	}
	if len(u.stack) < n {
		return nil, fmt.Errorf("the pickle takes from an empty stack")
	}
	items := append([]any(nil), u.stack[len(u.stack)-n:]...)
	u.stack = u.stack[:len(u.stack)-n]
	return items, nil
}

// remember puts the top of the stack into the memo, or takes from it.
func (u *unpickler) remember(op byte) error {
	index := uint64(len(u.memo)) // MEMOIZE
	if op != 0x94 {
		var err error
		if index, err = u.number(map[byte]int{'h': 1, 'q': 1, 'j': 4, 'r': 4}[op]); err != nil {
			return err
		}
	}
	if op == 'h' || op == 'j' {
		v, ok := u.memo[uint32(index)]
		if !ok {
			return fmt.Errorf("the pickle recalls %d, which it never stored", index)
		}
		return u.push(v)
	}
	if len(u.stack) == 0 {
		return fmt.Errorf("the pickle stores from an empty stack")
	}
	u.memo[uint32(index)] = u.stack[len(u.stack)-1]
	return nil
}

// global pushes a name, if it is listed.
func (u *unpickler) global(op byte) error {
	var g pickleGlobal
	if op == 'c' {
		for _, part := range []*string{&g.module, &g.name} {
			end := u.at
			for end < len(u.data) && u.data[end] != '\n' {
				end++
			}
			b, err := u.take(uint64(end-u.at) + 1)
			if err != nil {
				return err
			}
			*part = string(b[:len(b)-1])
		}
	} else {
		parts, err := u.operands(false, 2)
		if err != nil {
			return err
		}
		module, ok1 := parts[0].(string)
		name, ok2 := parts[1].(string)
		if !ok1 || !ok2 {
			return fmt.Errorf("the pickle names something by no string")
		}
		g = pickleGlobal{module, name}
	}
	if _, ok := pickleGlobals[g]; !ok {
		return fmt.Errorf("the pickle names %s, which is not on the list of what tensors need: refused", quote(g.String()))
	}
	return u.push(g)
}

// persistent pushes the storage that a persistent id names.
func (u *unpickler) persistent() error {
	v, err := u.pop()
	if err != nil {
		return err
	}
	id, ok := v.(pickleTuple)
	if !ok || len(id) < 5 || id[0] != "storage" {
		return fmt.Errorf("the pickle refers to something else than a storage")
	}
	class, ok1 := id[1].(pickleGlobal)
	key, ok2 := id[2].(string)
	size, ok3 := id[4].(int64)
	if !ok1 || pickleGlobals[class].kind != globalStorage || !ok2 || !ok3 || size < 0 {
		return fmt.Errorf("the pickle describes a storage that kvq does not read")
	}
	return u.push(&pickleStorage{elem: pickleGlobals[class].elem, key: key, size: size})
}

// reduce "calls" a listed name.
func (u *unpickler) reduce() error {
	operands, err := u.operands(false, 2)
	if err != nil {
		return err
	}
	g, ok1 := operands[0].(pickleGlobal)
	args, ok2 := operands[1].(pickleTuple)
	if !ok1 || !ok2 {
		return fmt.Errorf("the pickle calls something that has no name")
	}
	switch pickleGlobals[g].kind {
	case globalRebuild:
		t, err := rebuildTensor(args)
		if err != nil {
			return err
		}
		return u.push(t)
	case globalParam:
		if len(args) > 0 {
			return u.push(args[0])
		}
	case globalDict:
		if len(args) == 0 {
			return u.push(&pickleDict{})
		}
	case globalHarmless:
		return u.push(pickleOpaque{})
	}
	return fmt.Errorf("the pickle calls %s: refused", quote(g.String()))
}

// rebuildTensor reads the arguments (storage, offset, shape, stride,
// requires_grad, hooks[, dtype, metadata]).
func rebuildTensor(args pickleTuple) (*pickleTensor, error) {
	t := &pickleTensor{}
	ok := len(args) >= 6
	if ok {
		t.storage, _ = args[0].(*pickleStorage)
		t.offset, ok = args[1].(int64)
		shape, stride := false, false
		t.shape, shape = naturals(args[2])
		t.stride, stride = naturals(args[3])
		ok = ok && t.storage != nil && t.offset >= 0 && shape && stride && len(t.shape) == len(t.stride) && len(t.shape) <= maxDims
	}
	if !ok {
		return nil, fmt.Errorf("the pickle describes a tensor that kvq does not read")
	}
	t.elem = t.storage.elem
	if len(args) >= 7 {
		if g, is := args[6].(pickleGlobal); is && pickleGlobals[g].kind == globalDType {
			t.elem = pickleGlobals[g].elem
		}
	}
	return t, nil
}

// naturals converts a tuple of natural numbers.
func naturals(v any) ([]int64, bool) {
	tuple, ok := v.(pickleTuple)
	if !ok {
		return nil, false
	}
	out := make([]int64, len(tuple))
	for i, item := range tuple {
		n, ok := item.(int64)
		if !ok || n < 0 || n > math.MaxInt {
			return nil, false
		}
		out[i] = n
	}
	return out, true
}

// object makes an instance of a listed class, without calling it.
func (u *unpickler) object() error {
	operands, err := u.operands(false, 2)
	if err != nil {
		return err
	}
	g, ok := operands[0].(pickleGlobal)
	if !ok || pickleGlobals[g].kind != globalClass {
		return fmt.Errorf("the pickle makes an object of %s: refused", quote(fmt.Sprint(operands[0])))
	}
	return u.push(&pickleObject{class: g, state: &pickleDict{}})
}

// build sets the attributes of the object below.
func (u *unpickler) build() error {
	state, err := u.pop()
	if err != nil {
		return err
	}
	if len(u.stack) == 0 {
		return fmt.Errorf("the pickle takes from an empty stack")
	}
	switch target := u.stack[len(u.stack)-1].(type) {
	case *pickleObject:
		if d, ok := state.(*pickleDict); ok {
			target.state = d
			return nil
		}
	case *pickleDict: // attributes of an OrderedDict are of no use
		return nil
	}
	return fmt.Errorf("the pickle sets the state of something that has none: refused")
}
