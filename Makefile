# Everything happens inside this folder: the environment in .venv, caches in .cache, results in results/.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export MPLCONFIGDIR := $(CURDIR)/.cache/matplotlib
# Nearly all of a first run is compilation; the second takes it from here.
export JAX_COMPILATION_CACHE_DIR := $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS := 0
export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES := -1
# Python's bytecode too, whatever the environment says.
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/python
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench test-oldest clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(VENV)/.bench  ## install, run the main job, print a table and write results/demo/figure.png
	$(BIN)/python -m benchmarks run demo

test: $(VENV)/.dev  ## install and run the tests
	$(BIN)/python -m pytest

# The types are checked on the package as a wheel installs it, so a file missing from the wheel fails here.
check: $(VENV)/.dev  ## lint, formatting, static types of the installed package and of the benchmarks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build $(VENV)/wheel
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --target $(VENV)/wheel .
	cd $(VENV) && MYPYPATH=wheel:.. bin/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache \
		-p latensor.base -p latensor.moments -p latensor.decompose -p latensor.models -p latensor.inference \
		-p benchmarks

format: $(VENV)/.dev  ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.peers  ## every benchmark in its quick form
	$(BIN)/python -m benchmarks run all --quick

# tests/oldest.txt pins every dependency to its lower bound in pyproject.toml. No compilation cache: with the one of jax
# 0.5.3 programs come back wrong.
test-oldest:  ## the tests with the oldest dependencies that we support
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet -e '.[dev,bench]' -c tests/oldest.txt
	JAX_ENABLE_COMPILATION_CACHE=false .venv-oldest/bin/python -m pytest

clean:  ## remove the environments, caches and results
	rm -rf .venv .venv-oldest .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist results *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else 1)' || \
		{ echo "latensor needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras: an up-to-date stamp makes the second call start at once.
$(VENV)/.dev: pyproject.toml setup.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[dev,bench]'
	@touch $@

$(VENV)/.bench: pyproject.toml setup.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	@touch $@

$(VENV)/.peers: pyproject.toml setup.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[bench,peers]'
	@touch $@
