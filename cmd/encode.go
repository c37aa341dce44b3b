package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"kvq/dumps"
	"kvq/quantize"
)

// encodeOptions are the flags of kvq encode.
type encodeOptions struct {
	file    string
	schemes []string
	dtype   string
	cpu     cpuFlags
}

func newEncode(s Streams) *cobra.Command {
	var o encodeOptions
	c := &cobra.Command{
		Use:   "encode FILE --scheme NAME -o DIR",
		Short: "write an array's encoded bytes and decoded values",
		Long: `encode gives other implementations something to check against. It stores an npy
array of any shape [.., tokens, d] under a scheme, all leading axes taken as
heads of one tensor, and writes into DIR

  NAME.bytes.npy     the encoded bytes, uint8: head after head, each laid out
                     as kvq schemes NAME says
  NAME.dequant.npy   the values decoded from them, float32, in the array's shape

where / and : of the scheme's name become _. The bytes have the shape
[.., tokens, bytes of a row] where a head is rows alone, else [.., bytes of a
head] or, where heads differ, one axis. A K:V pair takes an array [2, ..], the
keys first.`,
		Example: `  kvq encode x.npy --scheme q4_0 -o vectors
  kvq encode x.npy --scheme int4-asym-channel/32 -o vectors`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("%d files: want one", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			o.file = args[0]
			return runEncode(c.Context(), o, out)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.schemes, "scheme", nil, "`SCHEME` to encode with; repeatable, or a list")
	f.StringVar(&o.dtype, "dtype", "", "how to read elements whose type the file leaves open: bf16, e4m3, e5m2")
	o.cpu.add(f, s)
	return c
}

// encodedFiles is the JSON of kvq encode, schema kvq.encode/1.
type encodedFiles struct {
	Schema  string        `json:"schema"`
	Version string        `json:"version"`
	Rows    []encodedFile `json:"rows"`
}

type encodedFile struct {
	Scheme        string  `json:"scheme"`
	Bytes         string  `json:"bytes_file"`
	Dequant       string  `json:"dequant_file"`
	DataBytes     int64   `json:"data_bytes"`
	MetadataBytes int64   `json:"metadata_bytes"`
	Bits          float64 `json:"bits_per_element"`
}

func runEncode(ctx context.Context, o encodeOptions, out *output) error {
	if out.path == "" || len(o.schemes) == 0 {
		return withHint(usagef("a scheme and a directory are needed"), "kvq encode FILE --scheme NAME -o DIR")
	}
	if err := o.cpu.use(); err != nil {
		return err
	}
	var pairs []quantize.Pair
	for _, name := range o.schemes {
		pair, err := quantize.ParsePair(name)
		if err != nil {
			return err
		}
		if pair.K == nil || pair.V == nil {
			return usagef("--scheme %s: a side left exact has no bytes", name)
		}
		if !slices.ContainsFunc(pairs, func(p quantize.Pair) bool { return p.Name() == pair.Name() }) {
			pairs = append(pairs, pair)
		}
	}
	var dtype dumps.DType
	if o.dtype != "" {
		var err error
		if dtype, err = dumps.ParseDType(o.dtype); err != nil {
			return err
		}
	}
	x, err := dumps.OpenHeads(o.file, dtype)
	if plain := unwrapPath(err); plain != err { // kvq's own errors name the file
		return fmt.Errorf("%s: %w", o.file, plain)
	}
	if err != nil {
		return err
	}
	defer x.Close() // read-only: nothing can be lost
	files := fileSet{dir: out.path}
	defer files.discard()
	if err := files.makeDir(); err != nil {
		return err
	}
	result := encodedFiles{Schema: "kvq.encode/1", Version: versionOf()}
	for _, pair := range pairs {
		file, err := encodeFile(ctx, pair, x, &files)
		var misfit *quantize.SchemeError
		if errors.As(err, &misfit) { // it is not about a file
			return misfit
		}
		var refused valueError
		if errors.As(err, &refused) {
			return fmt.Errorf("%s: %w", o.file, refused.error)
		}
		var unread *dumps.FormatError
		if errors.As(err, &unread) { // nor about the one that was being written
			return unread
		}
		if err != nil {
			return err
		}
		result.Rows = append(result.Rows, file)
	}
	if err := files.keep(); err != nil {
		return err
	}
	t := &table{columns: []column{{header: "scheme", name: "scheme"}, {header: "bits", name: "bits_per_element", right: true},
		{header: "data", name: "data_bytes", right: true}, {header: "metadata", name: "metadata_bytes", right: true}, {header: "bytes", name: "bytes_file"}, {name: "dequant_file"}}}
	for _, r := range result.Rows {
		t.add(text(r.Scheme), bitsCell(r.Bits), count(r.DataBytes), count(r.MetadataBytes), text(r.Bytes), text(r.Dequant))
	}
	out.path = ""
	return out.report(report{tables: []*table{t}, json: result})
}

// A fileSet is the files of one directory that appear all together or not at
// all, and with them the directory.
type fileSet struct {
	dir    string
	made   []string    // directories that were missing, the outermost first
	staged [][2]string // temporary name and name
}

// makeDir makes the directory.
func (s *fileSet) makeDir() error {
	for dir := s.dir; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !os.IsNotExist(err) || dir == filepath.Dir(dir) {
			break
		}
		s.made = slices.Insert(s.made, 0, dir)
	}
	return os.MkdirAll(s.dir, 0o777)
}

// write writes one file under a temporary name.
func (s *fileSet) write(path string, write func(io.Writer) error) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // links are written through
	}
	info, err := os.Stat(path)
	if err != nil {
		info = nil
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("write %s: not a regular file", path)
	}
	temp, err := writeBeside(path, info, write)
	if err == nil {
		s.staged = append(s.staged, [2]string{temp, path})
	}
	return err
}

// keep gives all files their names.
func (s *fileSet) keep() error {
	for len(s.staged) > 0 {
		if err := os.Rename(s.staged[0][0], s.staged[0][1]); err != nil {
			return err
		}
		s.staged = s.staged[1:]
	}
	return nil
}

// discard removes what keep did not keep.
func (s *fileSet) discard() {
	for _, f := range s.staged {
		os.Remove(f[0])
	}
	for _, dir := range slices.Backward(s.made) {
		os.Remove(dir) // fails where files were kept
	}
}

// encodeFile writes one scheme's two files.
func encodeFile(ctx context.Context, pair quantize.Pair, x *dumps.Heads, files *fileSet) (encodedFile, error) {
	dir := files.dir
	name := strings.NewReplacer("/", "_", ":", "_").Replace(pair.Name())
	file := encodedFile{Scheme: pair.Name(), Bytes: filepath.Join(dir, name+".bytes.npy"), Dequant: filepath.Join(dir, name+".dequant.npy")}
	sides := []*quantize.Scheme{pair.K}
	if quantize.SideName(pair.K) != quantize.SideName(pair.V) {
		if x.Shape[0] != 2 || len(x.Shape) < 3 {
			return file, withHint(usagef("--scheme %s: its sides differ, and the array is not [2, ..] of keys and values", pair.Name()), "name one side")
		}
		sides = append(sides, pair.V)
	}
	e := arrayEncoder{ctx: ctx}
	err := files.write(file.Dequant, func(w io.Writer) error {
		return dumps.WriteNPY(w, dumps.Content{DType: dumps.F32, Shape: x.Shape, Values: func(to *dumps.Encoder) error {
			heads := x.Count / len(sides)
			for i, s := range sides {
				if err := e.tensor(s, x, i*heads, (i+1)*heads, to); err != nil {
					return err
				}
			}
			return nil
		}})
	})
	if err != nil {
		return file, err
	}
	err = files.write(file.Bytes, func(w io.Writer) error {
		return dumps.WriteNPYBytes(w, e.shape(x), func(w io.Writer) error {
			_, err := w.Write(e.bytes)
			return err
		})
	})
	file.DataBytes, file.MetadataBytes = e.size.Data, e.size.Metadata
	file.Bits = 8 * float64(e.size.Total()) / (float64(x.Count) * float64(x.Tokens) * float64(x.Dim))
	return file, err
}

// valueError says why an array cannot be encoded: nothing is wrong with the
// file that was being written.
type valueError struct{ error }

// arrayEncoder collects what the heads of an array encode to.
type arrayEncoder struct {
	ctx   context.Context
	bytes []byte
	size  quantize.Size
	heads []int // bytes of each
	rows  bool  // heads are rows of one size and nothing else
}

// tensor encodes heads [first, end) of x as one tensor and writes what they decode to.
func (a *arrayEncoder) tensor(s *quantize.Scheme, x *dumps.Heads, first, end int, to *dumps.Encoder) error {
	values, decoded := make([]float32, x.Tokens*x.Dim), make([]float32, x.Tokens*x.Dim)
	coder := s.NewCoder()
	var calibration quantize.Calibration
	if s.Calibrated() {
		for i := first; i < end; i++ {
			if err := cmp.Or(a.ctx.Err(), x.Read(values, i)); err != nil {
				return err
			}
			if err := coder.Observe(&calibration, quantize.Head{Index: i - first, Dim: x.Dim, Values: values, Heads: end - first}); err != nil {
				return valueError{err}
			}
		}
	}
	var e quantize.Encoded
	a.rows = true
	for i := first; i < end; i++ {
		if err := cmp.Or(a.ctx.Err(), x.Read(values, i)); err != nil {
			return err
		}
		if err := coder.Encode(&e, quantize.Head{Index: i - first, Dim: x.Dim, Values: values, Heads: end - first}, &calibration); err != nil {
			return valueError{err}
		}
		before := len(a.bytes)
		a.bytes = e.Append(a.bytes)
		a.heads = append(a.heads, len(a.bytes)-before)
		a.rows = a.rows && len(e.Codes) == len(a.bytes)-before
		size := e.Size()
		a.size.Data += size.Data
		a.size.Metadata += size.Metadata
		coder.Decode(decoded, &e)
		if err := to.Write(decoded); err != nil {
			return err
		}
	}
	return nil
}

// shape is that of the array's bytes.
func (a *arrayEncoder) shape(x *dumps.Heads) []int {
	leading := slices.Clone(x.Shape[:len(x.Shape)-2])
	switch per := a.heads[0]; {
	case len(slices.Compact(slices.Clone(a.heads))) > 1:
		return []int{len(a.bytes)}
	case a.rows:
		return append(leading, x.Tokens, per/x.Tokens)
	default:
		return append(leading, per)
	}
}
