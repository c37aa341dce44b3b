package formula

import "fmt"

// planLlamaModel lays out what llama.cpp would allocate for a model that is
// known by its layers rather than by a GGUF file.
func planLlamaModel(m *Model, l llamaOptions) (plan, draft *llamaPlan, err error) {
	return nil, nil, fmt.Errorf("llama.cpp: only models of GGUF files are planned so far (--gguf FILE)")
}
