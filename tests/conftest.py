"""For all tests: one process, on however many cores; tests that want front ends say so."""

from __future__ import annotations

import os

os.environ.setdefault("MLP_WORKERS", "0")
