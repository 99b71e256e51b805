#!/usr/bin/env bash
# Succeeds where what the container test depends on was changed by a commit of the last two days before
# HEAD; CI runs the test then. Looking back by time needs no branch to compare with.
set -euo pipefail
cd "$(dirname "$0")/../.."
paths=(Dockerfile .dockerignore .env docker-compose.yml deploy pyproject.toml third_party
  csrc/CMakeLists.txt csrc/lane Makefile service/cli.py service/config.py service/runtime.py
  service/server.py service/routes/health.py tests/deploy)
head_time=$(git log -1 --format=%ct)
found=$(git log --since="$((head_time - 2 * 24 * 3600))" --format=%h -- "${paths[@]}")
[ -n "$found" ]
