# `make serve` and `make test` are all a newcomer needs; both make .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE_FLAGS ?=
TOOLS := build/deploy-tools
LANE_WARNINGS := -Wall -Wextra -Wpedantic -Wconversion -Wno-sign-conversion -Werror
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: serve test lint types unit lane kernels kernel-tools venv readme dashboard deploy-tools bench locks container-test clean

serve: $(VENV)/.serve lane
	$(BIN)/tilemlp serve $(SERVE_FLAGS)

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy
	@# The dashboard's SDK needs Python 3.11; with 3.10 it is not installed.
	@if $(BIN)/python -c 'import grafana_foundation_sdk' 2>/dev/null; then \
	  $(BIN)/mypy --python-version 3.11 -p deploy.grafana; fi

# Coverage is measured in the servers that tests start as well, hence the combine.
unit: $(VENV)/.dev lane
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --fail-under=95

venv: $(VENV)/.dev

# build/lane/liblane.so, through which front ends serve clients that repeat themselves. A C++ compiler
# is all it needs; where there is none, all requests go the long way.
lane: build/lane/liblane.so

build/lane/liblane.so: csrc/lane/lane.cpp csrc/lane/lane.h
	@mkdir -p build/lane
	@if command -v $(CXX) >/dev/null; then \
	  $(CXX) -std=c++17 -O2 -fPIC -shared -fvisibility=hidden $(LANE_WARNINGS) -Wl,--no-undefined \
	    -static-libstdc++ -static-libgcc -o $@ $<; \
	else echo "no C++ compiler: liblane.so is not built"; fi

# The fused Hopper kernels, build/csrc/libswiglu.so; needs CMake and nvcc 12.8 to 13.x. Fails on
# register spills, serialised WGMMAs and calls in a kernel.
kernels: kernel-tools
	cmake -S csrc -B build/csrc -DPython3_EXECUTABLE=$(abspath $(BIN)/python)
	cmake --build build/csrc --parallel 2

# What reads the compiled kernels for those checks.
kernel-tools: $(VENV)/.dev
	$(BIN)/python -m pip install -q -c constraints.txt nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm

# What README.md says of settings, metrics and measurements, and docs/paper.md, rendered from code
# and results.
readme: $(VENV)/.dev
	$(BIN)/python -m service.readme README.md
	$(BIN)/tilemlp bench paper --render

# deploy/grafana/dashboards/tilemlp.json, from the code beside it.
dashboard: $(VENV)/.dev
	$(BIN)/python -m deploy.grafana.build

# promtool and prometheus for the tests of deploy/, which skip without them: Debian's and Ubuntu's
# package, unpacked rather than installed, because installed it starts a daemon.
deploy-tools:
	@command -v promtool && command -v prometheus || $(MAKE) $(TOOLS)/usr/bin/promtool

$(TOOLS)/usr/bin/promtool:
	mkdir -p $(TOOLS)
	cd $(TOOLS) && { apt-get download -q prometheus \
	  || { $(SUDO) apt-get update -q && apt-get download -q prometheus; }; }
	dpkg -x $(TOOLS)/prometheus_*.deb $(TOOLS)
	rm $(TOOLS)/prometheus_*.deb
	touch $@

bench: $(VENV)/.dev
	$(BIN)/tilemlp bench service

# The packages that the images install, with hashes; TORCH_SOURCE='--find-links DIR' for a CPU wheel
# of PyTorch that lies on disk.
locks: $(VENV)/.dev
	deploy/container/lock.sh

# Builds the images and brings the compose file up, with podman; apt-get installs that where missing.
container-test: $(VENV)/.dev
	deploy/container/test.sh

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
