# Two commands do everything: `make quickstart` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)

.PHONY: help quickstart test test-slow check format docs notebooks wheel bench fuzz torture test-gpu clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##\(.*\)/  make \1 \t\2/p' Makefile

# Torch goes first: with it in place nothing else pulls another build.
$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about a minute the first time)"
	@$(INSTALL) $(TORCH)
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@$(INSTALL) -e ".[dev,data,export,edge,nir,serve,camera,docs]"
	@touch $@

quickstart: $(VENV)/.installed  ## simulate gestures, train, evaluate, fuse, verify and predict, with a report at the end
	@BIN=$(BIN) sh examples/quickstart.sh

test: $(VENV)/.installed-dev  ## the test suite, on the CPU
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu and not slow"

test-slow: $(VENV)/.installed-dev  ## the tests that compile whole networks, start processes or a browser, or run long
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow and not gpu"

check: $(VENV)/.installed-dev  ## style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.installed-dev  ## format the code and fix lint errors
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.installed-dev  ## build the documentation as a site, _site/index.html; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "_site/index.html"

notebooks: $(VENV)/.installed-dev  ## run the notebooks of examples/ and store their outputs in them
	@$(BIN)/python -m tools.run_notebooks

wheel: $(VENV)/.installed  ## build dist/*.whl for Linux x86-64, with the C++ operators compiled for three processor levels
	@rm -rf build
	@RIPE_PREBUILT=all $(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

bench: $(VENV)/.installed  ## time inference and a training step, and reading and binning events, on the CPU
	@$(BIN)/ripe bench infer --batches 1
	@$(BIN)/ripe bench train
	@$(BIN)/python benchmarks/read_events.py

SECONDS ?= 600
JOBS ?= 2
fuzz: $(VENV)/.installed-dev  ## fuzz all readers and parsers for SECONDS=600; GUIDED=--guided uses coverage
	@$(BIN)/python -m fuzz --seconds $(SECONDS) --jobs $(JOBS) $(GUIDED)

SHARE ?= 1
torture: $(VENV)/.installed-dev  ## fault injection for all commands that write files; SHARE=0.02 takes about a minute
	@$(BIN)/python -m torture --share $(SHARE)

test-gpu: $(VENV)/.installed-dev  ## the tests that need a CUDA device; the log goes to benchmarks/results/DATE-gpu-tests.log
	@PYTHON=$(BIN)/python bash benchmarks/gpu_tests.sh

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
