// Package dumps reads and writes captured K, V and Q tensors.
//
// Open lists the layers of a file, a directory or a glob pattern from their
// headers; Layer.ReadHead converts one head to float32 when it is asked for.
// Files are mapped into memory and their pages given back after use, so a dump
// may be larger than the machine's memory.
//
// The formats (npy, npz, safetensors, files of torch.save, prompt caches of
// mlx-lm, states of llama.cpp), how tensors and layers are named, and
// the attention facts of schema kvq.dump/1 are described in docs/formats.md.
// No input makes this package panic or allocate more than a small multiple of
// the bytes that the input really holds: whatever is wrong with a file is a
// FormatError, which wraps ErrFormat.
package dumps
