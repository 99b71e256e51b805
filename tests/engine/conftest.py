"""What several tests of engines start from."""

from __future__ import annotations

import pytest
import torch

from service.engine import host_memory
from service.engine.base import Output
from tests.engine.batches import make_model
from tests.engine.fused_engines import LARGEST_GRAPH, LARGEST_TRIP, MAX_TOKENS, Made


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("service.engine.buckets.GRAPH_BYTES", LARGEST_GRAPH * 48 * 2)
    trip_flops = make_model().spec.flops(Output.MLP, LARGEST_TRIP)
    monkeypatch.setattr("service.engine.buckets.TRIP_FLOPS", trip_flops)
    monkeypatch.setattr(host_memory, "PIECE_BYTES", LARGEST_GRAPH * 48 * 2)

    def made(*, slots: int = 2, dtype: torch.dtype = torch.bfloat16) -> Made:
        one = Made(make_model(dtype=dtype), slots)
        one.engine.warm_up(MAX_TOKENS)
        one.gate_up.sizes.clear()
        one.device.replays = 0
        return one

    return made
