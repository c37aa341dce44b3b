AREAS := codec

# generate writes the assembly of package kernels from its generators.
.PHONY: generate
generate: $(AREAS:%=generate-%)

generate-%:
	go -C kernels/gen run ./amd64 -area $* -pkg kernels -out ../$*_amd64.s -stubs ../$*_stubs_amd64.go
