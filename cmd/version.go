package cmd

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versionOf returns the module version the binary was built from: a tag, or
// for a build from a checkout what the Go command derived from its commit.
func versionOf() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

type versionJSON struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersion(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			return runVersion(out)
		},
	}
}

func runVersion(out *output) error {
	v := versionJSON{"kvq.version/1", versionOf(), runtime.Version(), runtime.GOOS, runtime.GOARCH}
	t := &table{columns: []column{{header: "kvq", name: "version"}, {header: "go", name: "go"}, {header: "system", name: "system"}}}
	t.add(text(v.Version), text(v.Go), text(v.OS+"/"+v.Arch))
	return out.report(report{tables: []*table{t}, json: v})
}
