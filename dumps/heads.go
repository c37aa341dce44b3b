package dumps

// Heads is an npy array of any [.., tokens, dim], its leading axes taken
// together as heads.
type Heads struct {
	Shape              []int
	Count, Tokens, Dim int

	tensor *Tensor
	blob   *blob
}

// OpenHeads opens an npy file as heads. dtype says how to read elements whose
// type the file leaves open; "" for none. Errors are as Open's.
func OpenHeads(path string, dtype DType) (*Heads, error) {
	a, b, err := openNPY(path)
	if err != nil {
		return nil, err
	}
	h, err := newHeads(a, dtype)
	if err != nil {
		_ = b.close()
		return nil, err
	}
	h.blob = b
	return h, nil
}

func newHeads(a *array, dtype DType) (*Heads, error) {
	n := len(a.shape)
	if n < 2 {
		return nil, a.errorf("has shape %s, want [.., tokens, dim]", shapeString(a.shape))
	}
	if n > 3 && a.fortran {
		return nil, a.errorf("has shape %s in Fortran order: more than three axes must be in C order", shapeString(a.shape))
	}
	heads := 1
	for _, axis := range a.shape[:n-2] {
		heads *= axis // bounded: the file holds that many elements
	}
	strides := a.strides()
	leading := strides[n-2] * a.shape[n-2]
	if n == 3 {
		leading = strides[0]
	}
	t, _, err := newTensorAt(a, K, HSD, dtype, []int{heads, a.shape[n-2], a.shape[n-1]}, []int{leading, strides[n-2], strides[n-1]}, 0)
	if err != nil {
		return nil, err
	}
	return &Heads{Shape: a.shape, Count: heads, Tokens: t.Rows, Dim: t.Dim, tensor: t}, nil
}

// Read converts head i to float32, whatever its values: dst becomes [Tokens, Dim].
func (h *Heads) Read(dst []float32, i int) error {
	if i < 0 || i >= h.Count || len(dst) != h.Tokens*h.Dim {
		panic("dumps: no such head, or dst of another length")
	}
	return h.tensor.convert(dst, i, 0, h.Tokens, func(int, []float32) error { return nil })
}

// Close unmaps the file.
func (h *Heads) Close() error { return h.blob.close() }
