package formula

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
)

// hfObject is a JSON object of a config.json, read key by key. The first value
// of a wrong type is remembered and ends the reading in one place. It keeps the
// raw text: parsers that map attributes onto one another have been seen to
// return another key's value.
type hfObject struct {
	path   string // of the keys: "" or "text_config."
	values map[string]json.RawMessage
	used   map[string]bool
	err    *error
}

// parseHFObject reads data as one object. Python writes Infinity and NaN as
// bare words into files that are otherwise JSON; they become null.
func parseHFObject(data []byte) (hfObject, error) {
	var values map[string]json.RawMessage
	data = nullNonFinite(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")))
	if err := json.Unmarshal(data, &values); err != nil {
		return hfObject{}, fmt.Errorf("not a JSON object: %w", err)
	}
	if values == nil {
		return hfObject{}, fmt.Errorf("not a JSON object: null")
	}
	return hfObject{values: values, used: map[string]bool{}, err: new(error)}, nil
}

// nullNonFinite replaces the words NaN, Infinity and -Infinity outside strings.
func nullNonFinite(data []byte) []byte {
	if !bytes.Contains(data, []byte("Infinity")) && !bytes.Contains(data, []byte("NaN")) {
		return data
	}
	out := make([]byte, 0, len(data))
	inString := false
scan:
	for i := 0; i < len(data); i++ {
		if inString && data[i] == '\\' && i+1 < len(data) {
			out = append(out, data[i], data[i+1])
			i++
			continue
		}
		if data[i] == '"' {
			inString = !inString
		}
		if !inString {
			for _, word := range []string{"-Infinity", "Infinity", "NaN"} {
				if bytes.HasPrefix(data[i:], []byte(word)) {
					out = append(out, "null"...)
					i += len(word) - 1
					continue scan
				}
			}
		}
		out = append(out, data[i])
	}
	return out
}

// fail remembers the first error.
func (o hfObject) fail(key, format string, args ...any) {
	if *o.err == nil {
		*o.err = fmt.Errorf("%s%s: %s", o.path, key, fmt.Sprintf(format, args...))
	}
}

// raw returns a key's text; ok is false when it is absent or null.
func (o hfObject) raw(key string) (value json.RawMessage, ok bool) {
	value, ok = o.values[key]
	if ok {
		o.used[key] = true
	}
	return value, ok && string(value) != "null"
}

// has reports whether the key is there and not null.
func (o hfObject) has(key string) bool {
	_, ok := o.raw(key)
	return ok
}

// object returns a nested object; its keys' path begins with this key.
func (o hfObject) object(key string) (nested hfObject, ok bool) {
	value, ok := o.raw(key)
	if !ok {
		return hfObject{}, false
	}
	nested = hfObject{path: o.path + key + ".", used: map[string]bool{}, err: o.err}
	if json.Unmarshal(value, &nested.values) != nil {
		o.fail(key, "want an object, found %s", shortened(value))
		return hfObject{}, false
	}
	return nested, true
}

// maxHFInt bounds the counts and sizes of a config: far above any model, and
// small enough that the products of a few stay inside int64 checks.
const maxHFInt = 1 << 40

// integer returns a whole number from 0 to 2^40; ok is false when the key is
// absent. A float with no fraction counts: some files were saved through one.
func (o hfObject) integer(key string) (n int64, ok bool) {
	value, ok := o.raw(key)
	if !ok {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil || f != math.Trunc(f) {
		o.fail(key, "want a whole number, found %s", shortened(value))
		return 0, false
	}
	if f < 0 || f > maxHFInt {
		o.fail(key, "%s is out of range", shortened(value))
		return 0, false
	}
	return int64(f), true
}

// first returns the first of the keys that is there, and its name.
func (o hfObject) first(keys ...string) (n int64, key string) {
	for _, key := range keys {
		if n, ok := o.integer(key); ok {
			return n, key
		}
	}
	return 0, ""
}

// boolean returns a flag; ok is false when the key is absent.
func (o hfObject) boolean(key string) (set, ok bool) {
	value, ok := o.raw(key)
	if !ok {
		return false, false
	}
	if json.Unmarshal(value, &set) != nil {
		o.fail(key, "want true or false, found %s", shortened(value))
		return false, false
	}
	return set, true
}

// is reports whether a flag is there and true.
func (o hfObject) is(key string) bool {
	set, _ := o.boolean(key)
	return set
}

// text returns a string, empty when the key is absent.
func (o hfObject) text(key string) string {
	value, ok := o.raw(key)
	if !ok {
		return ""
	}
	var s string
	if json.Unmarshal(value, &s) != nil {
		o.fail(key, "want a string, found %s", shortened(value))
	}
	return s
}

// isString reports whether the key holds a string.
func (o hfObject) isString(key string) bool {
	value, ok := o.raw(key)
	return ok && value[0] == '"'
}

// isList reports whether the key holds an array.
func (o hfObject) isList(key string) bool {
	value, ok := o.raw(key)
	return ok && value[0] == '['
}

// integers returns an array of whole numbers, nil when the key is absent.
func (o hfObject) integers(key string) []int64 {
	value, ok := o.raw(key)
	if !ok {
		return nil
	}
	var list []float64
	if json.Unmarshal(value, &list) != nil {
		o.fail(key, "want an array of whole numbers, found %s", shortened(value))
		return nil
	}
	ints := make([]int64, len(list))
	for i, f := range list {
		if f != math.Trunc(f) || f < 0 || f > maxHFInt {
			o.fail(key, "entry %d: %g is not a count", i, f)
			return nil
		}
		ints[i] = int64(f)
	}
	return ints
}

// strings returns an array of strings, nil when the key is absent.
func (o hfObject) strings(key string) []string {
	value, ok := o.raw(key)
	if !ok {
		return nil
	}
	var list []string
	if json.Unmarshal(value, &list) != nil {
		o.fail(key, "want an array of strings, found %s", shortened(value))
	}
	return list
}

// objects returns an array of objects, nil when the key is absent.
func (o hfObject) objects(key string) []hfObject {
	value, ok := o.raw(key)
	if !ok {
		return nil
	}
	var list []map[string]json.RawMessage
	if json.Unmarshal(value, &list) != nil {
		o.fail(key, "want an array of objects, found %s", shortened(value))
		return nil
	}
	all := make([]hfObject, len(list))
	for i, values := range list {
		all[i] = hfObject{path: fmt.Sprintf("%s%s[%d].", o.path, key, i), values: values, used: map[string]bool{}, err: o.err}
	}
	return all
}

// shortened is a value as an error shows it: one line, not the whole file.
func shortened(value []byte) string {
	const most = 40
	text := string(bytes.Join(bytes.Fields(value), []byte(" ")))
	if len(text) > most {
		text = text[:most] + "…"
	}
	return text
}
