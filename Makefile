# `make serve` and `make test` are all a newcomer needs; both make .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE_FLAGS ?=
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: serve test lint types unit kernels venv readme bench clean

serve: $(VENV)/.serve
	$(BIN)/tilemlp serve $(SERVE_FLAGS)

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# Coverage is measured in the servers that tests start as well, hence the combine.
unit: $(VENV)/.dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --fail-under=95

venv: $(VENV)/.dev

# The fused Hopper kernels, build/csrc/libswiglu.so; needs CMake and nvcc 12.8 to 13.x. Fails on
# register spills, serialised WGMMAs and calls in a kernel.
kernels: $(VENV)/.dev
	$(BIN)/python -m pip install -q -c constraints.txt nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm
	cmake -S csrc -B build/csrc -DPython3_EXECUTABLE=$(abspath $(BIN)/python)
	cmake --build build/csrc --parallel 2

# What README.md says of settings, metrics and measurements, rendered from code and results.
readme: $(VENV)/.dev
	$(BIN)/python -m service.readme README.md

bench: $(VENV)/.dev
	$(BIN)/tilemlp bench service

clean:
	rm -rf $(VENV) .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "$(PYTHON) must be 3.10 or newer; try make PYTHON=python3.12"; exit 1; }
	@# Debian and Ubuntu ship venv apart from Python.
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "installing python3-venv"; \
	  $(SUDO) apt-get update -q && $(SUDO) apt-get install -y -q python3-venv; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.serve
