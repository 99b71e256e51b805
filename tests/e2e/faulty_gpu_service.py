"""The real server on a GPU whose kernels can be made to hang or to fail for good.

Usage: python -m tests.e2e.faulty_gpu_service; settings come from `MLP_…` variables.
"""

from __future__ import annotations

import sys

import torch

from service.config import load_settings
from service.engine.base import Batch
from service.engine.create import create_engine
from service.engine.fused import FusedEngine
from service.kernels.runner import Runner
from service.kernels.transfer import Trip
from service.log import configure_logging
from service.server import serve

# Batches of so many rows, which are too many for a graph that holds its copies too.
HANGS = 777
BREAKS = 778
# Hours.
_CYCLES = 1 << 44


def spoil(engine: FusedEngine) -> None:
    """Put a spinning kernel or a failing assertion before the kernels of a batch."""
    start = engine._passage.start_trip

    def spoilt(runner: Runner, ticket: int, trip: Trip, batch: Batch, keep: object) -> None:
        engine._device.enter()
        if batch.tokens == HANGS:
            torch.cuda._sleep(_CYCLES)
        if batch.tokens == BREAKS:
            torch._assert_async(torch.zeros(1, device="cuda"))
        start(runner, ticket, trip, batch, keep)

    engine._passage.start_trip = spoilt  # type: ignore[method-assign]


if __name__ == "__main__":
    settings = load_settings()
    configure_logging(settings.log_level)
    made, reason = create_engine(
        model=None,
        preset=settings.preset,
        model_name=None,
        layers=None,
        device="auto",
        backend="fused",
        max_batch_tokens=settings.max_batch_tokens,
    )
    assert isinstance(made, FusedEngine)
    spoil(made)
    sys.exit(serve(settings, made, reason))
