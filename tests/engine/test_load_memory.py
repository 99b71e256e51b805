"""Loading holds the weights once: measured as the peak of a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.checkpoints import mlp_tensors, write_checkpoint

MIB = 1 << 20

# VmHWM is reset first, so that neither imports nor the parent's peak count.
PROGRAM = """
import pathlib, sys, torch
from service.engine.weights import load_model

def status(key):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))

device = torch.device("cpu")
load_model(pathlib.Path(sys.argv[1]), layers=(0,), device=device)
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS")
model = load_model(pathlib.Path(sys.argv[2]), device=device)
print(status("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("shards", [1, 3])
def test_peak_is_the_resident_weights_and_one_tensor(tmp_path: Path, shards: int) -> None:
    tiny = write_checkpoint(tmp_path / "tiny", mlp_tensors())
    tensors = mlp_tensors(hidden_size=1024, intermediate_size=4096, layers=3, dtype=torch.float32)
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors.values()]
    large = write_checkpoint(tmp_path / "large", tensors, shards=shards)
    del tensors
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny), str(large)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    peak = int(done.stdout) * 1024
    assert sum(sizes) <= peak < sum(sizes) + max(sizes) + 12 * MIB
