# build   the environment in .venv, with the package and what the demo needs
# demo    components of 70,000 images within 32 MiB, clusters and topics of 63,436 texts within 256 MiB, told in report.html
# test    everything; ends with the counts
# bench   the headline table of bench/README.md, measured here: 45 minutes, 15 GB of disk, and fio from the system's packages
# rivals  what the other cases of `python -m bench --all` need besides: other libraries in environments of their own
# lint    formats, lints and types
# clean   remove what the others made

PYTHON ?= python3
BIN := .venv/bin
export PIP_QUIET := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
SOURCES := $(shell find crates bindings/python -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml

.PHONY: build demo test bench rivals lint clean
.DELETE_ON_ERROR:

build: .venv/built

.venv/bin/maturin:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "outcore needs Python 3.10 or later; try: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install 'maturin>=1.9,<2'

.venv/built: $(SOURCES) | .venv/bin/maturin
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/maturin develop --release --extras demo
	@touch $@

.venv/tested: pyproject.toml | .venv/built
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/maturin develop --release --quiet --extras demo,test
	@touch $@

demo: build
	$(BIN)/outcore demo

test: build .venv/tested
	.ci/test

bench: build
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/maturin develop --release --quiet --extras demo,bench
	$(BIN)/python -m bench

rivals: build
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/maturin develop --release --quiet --extras demo,bench,rivals
	$(PYTHON) -m venv .venv/rivals
	.venv/rivals/bin/python -m pip install -r bench/rivals.txt

lint: build .venv/tested
	.ci/lint

clean:
	rm -rf .venv target report.html bindings/python/outcore/_native*.so
