package formula

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A Device is an accelerator, or a CPU with its memory, whose memory bandwidth
// bounds decode.
type Device struct {
	Name      string
	Aliases   []string // what people type, lower case
	Memory    int64    // bytes; the vendors' GB are taken as GiB, as their tools show them
	Bandwidth int64    // bytes a second, the vendor's peak
	Source    string   // the document the figures are from
}

//go:embed devices.tsv
var devicesTable string

// Devices returns the table of devices in its order.
var Devices = sync.OnceValue(func() []Device {
	var devices []Device
	for line := range strings.Lines(devicesTable) {
		column := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if column[0] == "name" {
			continue
		}
		// The table is ours: a test reads every figure of it.
		memory, _ := strconv.ParseInt(column[2], 10, 64)
		bandwidth, _ := strconv.ParseFloat(column[3], 64)
		devices = append(devices, Device{
			Name: column[0], Aliases: strings.Split(column[1], ";"),
			Memory: memory << 30, Bandwidth: int64(bandwidth * 1e9), Source: column[6],
		})
	}
	return devices
})

// Matches reports whether the name or an alias holds the text, in any case.
func (d Device) Matches(text string) bool {
	want := strings.ToLower(strings.TrimSpace(text))
	for _, name := range append([]string{strings.ToLower(d.Name)}, d.Aliases...) {
		if strings.Contains(name, want) {
			return true
		}
	}
	return false
}

// LookupDevice finds a device by alias, name, or words that no other's name
// holds all of. Case, blanks and the signs - _ do not count.
func LookupDevice(text string) (Device, error) {
	plain := strings.NewReplacer("-", "", "_", "", " ", "")
	want := plain.Replace(strings.ToLower(text))
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return strings.ContainsRune("-_ ", r) })
	var found []Device
	for _, d := range Devices() {
		name := strings.ToLower(d.Name)
		for _, alias := range append([]string{name}, d.Aliases...) {
			if plain.Replace(alias) == want {
				return d, nil
			}
		}
		holds := func(word string) bool { return strings.Contains(name, word) }
		if want != "" && !slices.ContainsFunc(words, func(w string) bool { return !holds(w) }) {
			found = append(found, d)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	if len(found) == 0 {
		return Device{}, fmt.Errorf("unknown device %q", text)
	}
	var names []string
	for _, d := range found {
		names = append(names, d.Aliases[0])
	}
	return Device{}, fmt.Errorf("device %q could be %s", text, strings.Join(names, ", "))
}
