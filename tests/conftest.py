"""For all tests: one process, and the GPU's memory for whoever needs it next."""

from __future__ import annotations

import os
import sys

import pytest

# On however many cores; tests that want front ends say so.
os.environ.setdefault("MLP_WORKERS", "0")


@pytest.fixture(scope="module", autouse=True)
def _device_memory_back():
    """What torch keeps for the next tensors, the tests of servers need for processes of theirs."""
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
