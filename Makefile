# The areas of kernels whose assembly is generated, one file each.
AREAS := codec decode expand metric page
AREAS_ARM64 := codec decode metric

# Versions of tools that are no dependency of the product: they are built on
# their own, so that they never enter go.sum.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@latest

# Every combination that the code is checked for, as GOARCH-tags.
TARGETS := amd64 amd64-purego arm64 arm64-purego riscv64 riscv64-purego
PLATFORMS := linux-amd64 linux-arm64 linux-riscv64 darwin-arm64 windows-amd64

FUZZTIME := 30s
BENCH := .
BIN := $(CURDIR)/.cache/bin

.PHONY: build
build:
	CGO_ENABLED=0 go build -trimpath -o kvq .

# test is what README.md calls: no make, nothing but Go.
.PHONY: test
test:
	go test ./...

.PHONY: test-purego
test-purego:
	go test -tags purego ./...

.PHONY: test-race
test-race:
	go test -race -short -timeout 20m ./...

# test-arm64 runs the kernels' and schemes' tests under qemu-user, on a CPU
# without FEAT_DotProd and on one with it; schemes, the filling of pages and sines
# use nothing that the two have not in common. It needs objdump for arm64 too.
.PHONY: test-arm64
test-arm64:
	KVQ_TEST_REQUIRE_ISA=neon CGO_ENABLED=0 GOARCH=arm64 \
	  go test -short -timeout 20m -exec="qemu-aarch64 -cpu cortex-a53" ./kernels ./quantize
	KVQ_TEST_REQUIRE_ISA=neon,dotprod CGO_ENABLED=0 GOARCH=arm64 \
	  go test -short -timeout 20m -skip 'FillRows|AppendRows|Tilt|SinCos' -exec="qemu-aarch64 -cpu neoverse-n1" ./kernels

# test-amd64 runs tests of kernels under qemu-user on CPUs with AVX2 alone and with
# neither: each must take the path it can run. What the paths compute is tested on every
# machine that has them; the long tests are left to that. qemu has no AVX-512.
EMULATED := Active|Gates|Golden|Codec|Kernels|HardCases|DecodeAppend|Score|Allocations
.PHONY: test-amd64
test-amd64:
	KVQ_TEST_ACTIVE_ISA=avx2 CGO_ENABLED=0 GOARCH=amd64 \
	  go test -short -run '$(EMULATED)' -exec="qemu-x86_64 -cpu Haswell" ./kernels
	KVQ_TEST_ACTIVE_ISA=generic CGO_ENABLED=0 GOARCH=amd64 \
	  go test -short -run '$(EMULATED)' -exec="qemu-x86_64 -cpu qemu64" ./kernels

# test-capture tests the capture script with the libraries it captures from,
# which it installs in an environment of its own.
.PHONY: test-capture
test-capture:
	test -x .venv/bin/python || python3 -m venv .venv
	.venv/bin/python -c "import torch, transformers" 2>/dev/null || .venv/bin/pip install torch "transformers>=5"
	cd dumps/capture && ../../.venv/bin/python -W ignore test_hf.py

# cross builds the product for every platform it is meant for.
.PHONY: cross
cross: $(PLATFORMS:%=cross-%)

cross-%:
	CGO_ENABLED=0 GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) go build -o /dev/null .

.PHONY: lint
lint: fmt vet-all check-fused staticcheck

.PHONY: fmt
fmt:
	@out=$$(gofmt -l .) && test -z "$$out" || { echo "gofmt these:"; echo "$$out"; exit 1; }

.PHONY: vet-all
vet-all: $(TARGETS:%=vet-%)
	go -C kernels/gen vet ./...

vet-%:
	GOARCH=$(word 1,$(subst -, ,$*)) go vet -tags "$(word 2,$(subst -, ,$*))" ./...

# check-fused finds where the compiler rounds once for a product and a sum: the
# same source would give other digits on amd64. Pictures may differ.
.PHONY: check-fused
check-fused:
	@out=$$(GOARCH=arm64 go build -gcflags=-S ./... 2>&1 | grep -E 'FN?M(ADD|SUB)[SD]' | grep -o '([^)]*\.go:[0-9]*)' | grep -v '/pkg/mod/\|/cmd/plot.go' | sort -u); \
	  test -z "$$out" || { echo "write float64(a*b) + c (float32 likewise) at these:"; echo "$$out"; exit 1; }

.PHONY: staticcheck
staticcheck: $(TARGETS:%=staticcheck-%)

$(BIN)/staticcheck: Makefile
	GOBIN=$(BIN) go install $(STATICCHECK)
	@touch $@

staticcheck-%: $(BIN)/staticcheck
	GOARCH=$(word 1,$(subst -, ,$*)) $(BIN)/staticcheck -tags "$(word 2,$(subst -, ,$*))" ./...

.PHONY: vuln
vuln:
	go run $(GOVULNCHECK) ./...

# generate writes the assembly of package kernels from its generators.
.PHONY: generate
generate: $(AREAS:%=generate-amd64-%) $(AREAS_ARM64:%=generate-arm64-%)

generate-%:
	$(eval arch := $(word 1,$(subst -, ,$*)))
	$(eval area := $(word 2,$(subst -, ,$*)))
	go -C kernels/gen run ./$(arch) -area $(area) -pkg kernels -out ../$(area)_$(arch).s -stubs ../$(area)_stubs_$(arch).go

# check-generate regenerates a copy and fails when it differs from what is checked in.
.PHONY: check-generate
check-generate:
	rm -rf .cache/generate && mkdir -p .cache/generate
	cp -R Makefile kernels .cache/generate
	$(MAKE) -C .cache/generate generate
	diff -r kernels .cache/generate/kernels
	rm -rf .cache/generate

# fuzz runs every fuzz target for FUZZTIME. Minimizing is cut short: where
# coverage varies between runs it eats up to a minute per input found.
.PHONY: fuzz
fuzz:
	@for pkg in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
	    echo "$$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1x $$pkg || exit 1; \
	  done; \
	done

.PHONY: bench
bench:
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...
	go run . bench

.PHONY: clean
clean:
	rm -rf kvq .cache
