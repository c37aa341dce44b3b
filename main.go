// Command kvq plans the memory of a transformer's KV cache and measures what
// quantizing it costs and gains.
package main

import (
	"os"

	"kvq/cmd"
)

func main() { os.Exit(cmd.Main(os.Args[1:], cmd.System())) }
