package cmd

import (
	"io"

	"github.com/spf13/cobra"

	"kvq/dumps"
)

func newCapture(s Streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "capture",
		Short: "print the scripts that capture dumps from running models",
	}
	c.AddCommand(&cobra.Command{
		Use:   "hf",
		Short: "print hf.py, which captures a Hugging Face model",
		Long: `Print hf.py: one Python file that runs a model over a text with transformers and
writes keys, values and queries, as attention gets them, with the facts that
attention needs:

  kvq capture hf -o hf.py
  python hf.py --model ID_OR_DIR --text FILE --layers 0,12 -o dump.safetensors
  kvq eval --dump dump.safetensors`,
		RunE: func(c *cobra.Command, _ []string) error {
			out, err := newOutput(c, s)
			if err != nil {
				return err
			}
			return out.write(func(w io.Writer) error {
				_, err := io.WriteString(w, dumps.CaptureHF)
				return err
			})
		},
	})
	return c
}
