"""The GPU's parts of a benchmark, played by the CPU."""

from __future__ import annotations

import torch

from service.kernels import reference
from service.kernels.launcher import Launcher
from service.kernels.timing import Steadiness, Visit

GPU = {"gpu": "NVIDIA H200", "multiprocessors": 132, "cuda": "13.0", "driver": "580.1"}
GPU["power_limit_watts"] = 700.0
# What a dispatch table of it says of itself.
CARD = {name: GPU[name] for name in ("gpu", "multiprocessors")}


class CpuLauncher(Launcher):
    """Chooses with the real library and computes in FP32."""

    def __init__(self, library) -> None:
        super().__init__(library)
        self.choices = []

    def __call__(self, x, weight, out, activation="silu", *options) -> None:
        self.choices.extend(options[:1])
        out.copy_(reference.gated(x, weight, activation, torch.float32))


class Counted:
    """Runs the calls of one pass once; every further one is a microsecond slower."""

    made = 0

    def __init__(self, calls, watts_and_mhz=None) -> None:
        for call in calls:
            call()
        Counted.made += 1
        self.us = float(Counted.made)

    def visit(self, steadiness: Steadiness) -> Visit:
        return Visit(self.us, 650.0, 1400.0)
