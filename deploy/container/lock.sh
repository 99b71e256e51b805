#!/usr/bin/env bash
# Writes the lists of packages, with hashes, that the images install: `make locks`.
#
# Versions are those of constraints.txt, and what it doesn't name is resolved anew. TORCH_SOURCE tells
# uv where PyTorch's CPU wheel is; `--find-links DIR` for one that lies on disk.
set -euo pipefail
cd "$(dirname "$0")/../.."
uv=${UV:-.venv/bin/uv}
read -ra torch_source <<< "${TORCH_SOURCE:---torch-backend=cpu}"
export UV_CUSTOM_COMPILE_COMMAND="make locks"

lock() {
  "$uv" pip compile --quiet --constraint constraints.txt --generate-hashes --no-annotate \
    "$@"
}
x86_64=(--python-platform x86_64-manylinux_2_28)
# The Pythons of the images: that of the python image and Ubuntu 24.04's.
lock "${x86_64[@]}" --python-version 3.11 "${torch_source[@]}" pyproject.toml -o deploy/container/cpu.lock
lock "${x86_64[@]}" --python-version 3.12 pyproject.toml -o deploy/container/gpu.lock
lock --universal --python-version 3.11 deploy/container/build.in -o deploy/container/build.lock
