package dumps

import _ "embed"

// CaptureHF is the script that captures a Hugging Face model, carried along so
// that the binary alone is enough to get it onto another machine.
//
//go:embed capture/hf.py
var CaptureHF string
