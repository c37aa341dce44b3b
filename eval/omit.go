package eval

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"kvq/quantize"
)

// An omission is a reason why a scheme has no row on some layers.
type omission struct {
	reason string
	where  []place
}

func (o omission) places() string {
	first := o.where[0].String()
	if more := len(o.where) - 1; more > 0 {
		return fmt.Sprintf("%s and %d more", first, more)
	}
	return first
}

// omit notes that a scheme is left out of a layer: said once for all layers.
func (t *table) omit(l *Layer, reason string) {
	where := place{l.Dump, l.Number}
	i := slices.IndexFunc(t.omitted, func(o omission) bool { return o.reason == reason })
	if i < 0 {
		t.omitted = append(t.omitted, omission{reason, []place{where}})
	} else if o := &t.omitted[i]; !slices.Contains(o.where, where) { // keys and values may share a reason
		o.where = append(o.where, where)
	}
}

// omitRefused notes the sides that could not be encoded: those that need what
// the dump does not say, and those that cannot hold its values.
func (t *table) omitRefused(m *measurement) {
	for tensor, sides := range m.plan.sides {
		var names []string
		var first error
		for side, s := range sides {
			err := m.refusal(tensor, side)
			if err == nil {
				continue
			}
			var misfit *quantize.SchemeError
			if errors.As(err, &misfit) {
				t.omit(m.layer, err.Error())
				continue
			}
			if names = append(names, s.name); first == nil {
				first = err
			}
		}
		switch len(names) {
		case 0:
		case 1:
			t.omit(m.layer, fmt.Sprintf("%s: %v", tensors[tensor], first))
		default:
			t.warn("%s: layer %d: %s: %v: left out, as are %s", m.layer.Dump, m.layer.Number, tensors[tensor], first, strings.Join(names[1:], ", "))
		}
	}
}
