// Package capture carries the scripts that capture dumps from running models,
// so that the binary alone is enough to get them onto a machine.
package capture

import _ "embed"

// HF is hf.py: captures a Hugging Face model.
//
//go:embed hf.py
var HF string
