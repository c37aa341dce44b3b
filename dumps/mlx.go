package dumps

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// This file reads the prompt caches of mlx-lm: safetensors whose tensors are
// called LAYER.INDEX after their place in each layer's state, and whose
// metadata name each layer's class. Two forms exist, told apart by metadata:
//
//	            classes    state after K and V              further state
//	until 2025  2.LAYER    none                             0.LAYER.INDEX, text
//	later       1.LAYER    LAYER.2, LAYER.3, … as scalars   none
//
// The later form has an empty 2.0. A buffer may be longer than what is used of
// it; a rotating one may hold its tokens out of order.

// mlxFields are the further state of a class, in order; "" is passed over.
var mlxFields = map[string][]string{
	"KVCache":            {"offset"},
	"ConcatenateKVCache": {},
	"RotatingKVCache":    {"offset", "keep", "max_size", "idx"},
	"ChunkedKVCache":     {"offset", "chunk_size", "start_position"},
}

// mlxOldFields is the same for the earlier form, by the number of texts.
var mlxOldFields = map[string]map[int][]string{
	"RotatingKVCache": {4: {"keep", "max_size", "offset", "idx"}, 5: {"keep", "max_size", "", "offset", "idx"}},
	"ChunkedKVCache":  {2: {"chunk_size", "start_position"}},
	"KVCache":         {},
}

// mlxStates are classes of layers without keys and values.
var mlxStates = []string{"ArraysCache", "MambaCache"}

// mlxCache is a prompt cache's metadata.
type mlxCache struct {
	path     string
	metadata map[string]string
	arrays   map[string]*array
	classes  []string
	old      bool
	model    string
}

// newMLX recognises a prompt cache; it returns nil for other files.
func newMLX(path string, metadata map[string]string, arrays map[string]*array) *mlxCache {
	c := &mlxCache{path: path, metadata: metadata, arrays: arrays}
	group := "1."
	if metadata["2.0"] != "" {
		group, c.old = "2.", true
	}
	for i := 0; ; i++ {
		class, ok := metadata[group+strconv.Itoa(i)]
		if !ok || !strings.HasSuffix(class, "Cache") && !strings.HasSuffix(class, "CacheList") {
			break
		}
		c.classes = append(c.classes, class)
	}
	if len(c.classes) == 0 {
		return nil
	}
	c.model = metadata["0.model"]
	if c.old {
		c.model = metadata["1.model"]
	}
	return c
}

// mlx opens the layers of a prompt cache.
func (op *opener) mlx(c *mlxCache) error {
	var skipped []int
	for i, class := range c.classes {
		if slices.Contains(mlxStates, class) {
			skipped = append(skipped, i)
			continue
		}
		if _, ok := mlxFields[class]; !ok {
			return formatErrorf(c.path, -1, "layer %d is a %s of mlx-lm, which kvq does not read: want KVCache, RotatingKVCache or ChunkedKVCache", i, quote(class))
		}
		if err := op.mlxLayer(c, i, class); err != nil {
			return err
		}
	}
	if len(skipped) > 0 {
		op.file.warn("%s: %d of %d layers hold a recurrent state and no keys and values: left out", c.path, len(skipped), len(c.classes))
	}
	if len(op.file.Layers) == 0 {
		return &FormatError{Path: c.path, Offset: -1, Msg: "an mlx-lm prompt cache without keys and values", kind: errNoLayer}
	}
	return nil
}

func (op *opener) mlxLayer(c *mlxCache, number int, class string) error {
	var arrays [parts]*array
	for p := K; p <= V; p++ {
		name := fmt.Sprintf("%d.%d", number, p)
		if arrays[p] = c.arrays[name]; arrays[p] == nil {
			return formatErrorf(c.path, -1, "layer %d, a %s, has no tensor %s", number, class, quote(name))
		}
	}
	state, err := c.state(number, class)
	if err != nil {
		return err
	}
	l, err := op.assemble(arrays, [parts]*Tensor{}, number)
	if err != nil {
		return err
	}
	order, facts, err := mlxOrder(class, state, l.Tokens)
	if err != nil {
		return formatErrorf(c.path, -1, "layer %d, a %s: %v", number, class, err)
	}
	if n := len(order); n < l.Tokens || !slices.IsSorted(order) {
		l.keptTokens, l.Tokens = order, n
	}
	facts.path, facts.Model, facts.Source = c.path, c.model, "mlx-lm prompt cache"
	op.add(l, facts)
	return nil
}

// state reads the numbers of a layer's further state, those that are there.
func (c *mlxCache) state(number int, class string) (map[string]int, error) {
	state := map[string]int{}
	if c.old {
		var texts []string
		for {
			text, ok := c.metadata[fmt.Sprintf("0.%d.%d", number, len(texts))]
			if !ok {
				break
			}
			texts = append(texts, text)
		}
		fields, ok := mlxOldFields[class][len(texts)]
		if !ok && len(texts) > 0 {
			return nil, formatErrorf(c.path, -1, "layer %d, a %s, has %d numbers in its state, which kvq does not know", number, class, len(texts))
		}
		for i, field := range fields {
			n, err := strconv.Atoi(texts[i])
			if err != nil || n < 0 || n > 1<<40 {
				return nil, formatErrorf(c.path, -1, "layer %d, a %s: its state holds %s, want a number", number, class, quote(texts[i]))
			}
			state[field] = n
		}
		return state, nil
	}
	for i, field := range mlxFields[class] {
		a := c.arrays[fmt.Sprintf("%d.%d", number, i+2)]
		if a == nil {
			continue // a version without it
		}
		if len(a.shape) != 0 {
			return nil, a.errorf("has shape %s, want one number", shapeString(a.shape))
		}
		scalar := *a
		scalar.shape = []int{1}
		n, err := scalar.ints(1)
		if err != nil {
			return nil, err
		}
		if n[0] < 0 || n[0] > 1<<40 {
			return nil, a.errorf("is %d", n[0])
		}
		state[field] = n[0]
	}
	return state, nil
}

// mlxOrder returns the rows of a layer's buffer that hold tokens, oldest first,
// and what the state says about attention.
func mlxOrder(class string, state map[string]int, rows int) (order []int, facts *FactFile, err error) {
	facts = &FactFile{RoPEApplied: new(bool)}
	*facts.RoPEApplied = true
	add := func(from, to int) {
		for i := from; i < to; i++ {
			order = append(order, i)
		}
	}
	offset, known := state["offset"]
	if !known {
		offset = rows
	}
	first := 0
	switch class {
	case "RotatingKVCache":
		keep, size := state["keep"], state["max_size"]
		idx, ok := state["idx"]
		switch {
		case !ok:
			idx = rows
		case idx > rows || keep > rows:
			return nil, nil, fmt.Errorf("its place %d or its %d tokens to keep lie beyond its %d rows", idx, keep, rows)
		}
		switch {
		case idx == rows:
			add(0, rows)
		case idx < offset && keep <= idx:
			add(0, keep)
			add(idx, rows)
			add(keep, idx)
		case idx < offset:
			return nil, nil, fmt.Errorf("its place %d lies among its %d tokens to keep", idx, keep)
		default:
			add(0, idx)
		}
		if keep == 0 && size > 0 {
			window := size
			facts.Defaults.Window = &window
			first = offset - len(order)
		}
	case "ChunkedKVCache":
		first = state["start_position"]
		add(0, min(rows, offset-first))
		if size := state["chunk_size"]; size > 0 {
			facts.Defaults.Chunk = &size
		}
	default:
		if offset > rows {
			return nil, nil, fmt.Errorf("it claims %d tokens, but has %d rows", offset, rows)
		}
		add(0, offset)
	}
	if len(order) == 0 {
		return nil, nil, fmt.Errorf("it holds no tokens")
	}
	if first > 0 {
		facts.Defaults.FirstPosition = &first
	}
	return order, facts, nil
}
