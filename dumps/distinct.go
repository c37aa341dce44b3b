package dumps

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Distinct drops every layer that is an earlier one again: a file named twice,
// by a pattern or folder too, or through a link. The file that loses layers
// gets a warning.
func Distinct(files []*File) {
	ids := &identities{of: map[string]int{}}
	first := map[string]*Layer{}
	for _, f := range files {
		warned := map[string]bool{}
		f.Layers = slices.DeleteFunc(f.Layers, func(l *Layer) bool {
			key, ok := ids.key(l)
			before := first[key]
			if !ok || before == nil {
				first[key] = l
				return false
			}
			if !warned[l.Path] {
				warned[l.Path] = true
				how := "named more than once"
				if before.Path != l.Path {
					how = "the same file as " + before.Path
				}
				f.warn("%s: %s: counted once", l.Path, how)
			}
			return true
		})
	}
}

// identities numbers files, so that links and other spellings of a path agree.
type identities struct {
	of    map[string]int
	files []os.FileInfo
}

// id is the number of a file, −1 where it cannot be looked at any more.
func (s *identities) id(path string) int {
	if id, ok := s.of[path]; ok {
		return id
	}
	id := -1
	if st, err := os.Stat(path); err == nil {
		id = slices.IndexFunc(s.files, func(f os.FileInfo) bool { return os.SameFile(f, st) })
		if id < 0 {
			id = len(s.files)
			s.files = append(s.files, st)
		}
	}
	s.of[path] = id
	return id
}

// key says where a layer's tensors lie; ok is false where that is not known.
func (s *identities) key(l *Layer) (key string, ok bool) {
	var b strings.Builder
	for p, t := range l.tensors {
		if t == nil {
			continue
		}
		id := s.id(t.Path)
		if id < 0 {
			return "", false
		}
		fmt.Fprintf(&b, "%d %d %q %d\n", p, id, t.Name, t.offset)
	}
	return b.String(), true
}
