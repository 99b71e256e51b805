"""Resident memory is steady under load."""

from __future__ import annotations

import os

import pytest

from service.bench.clients import run_round
from service.bench.processes import MeasuredServer
from service.bench.stub import HIDDEN_SIZE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

ROW_BYTES = 2 * HIDDEN_SIZE


def test_memory_does_not_grow_over_50_000_requests() -> None:
    body = os.urandom(ROW_BYTES)
    with MeasuredServer("tilemlp") as server:
        run_round(server.port, body, clients=8, requests=10_000)
        before = server.resident_bytes()
        assert run_round(server.port, body, clients=8, requests=50_000).errors == 0
        growth = server.resident_bytes() - before
    # A leak of one small object per request would be 3 MB and more; 0 to 1.1 MiB were seen.
    assert growth < 5 << 19, f"resident memory grew by {growth / 2**20:.1f} MiB"


def test_large_bodies_take_what_is_in_flight_and_no_more() -> None:
    """Slots, answers and the allocator's slack for 8 bodies of 1 MiB, however many pass."""
    body = os.urandom(585 * ROW_BYTES)
    with MeasuredServer("tilemlp") as server:
        empty = server.resident_bytes()
        assert run_round(server.port, body, clients=8, requests=2_000).errors == 0
        growth = server.resident_bytes() - empty
    # 2,000 bodies are 2 GiB; seen here were 70 to 90 MiB.
    assert growth < 160 << 20, f"resident memory grew by {growth / 2**20:.1f} MiB"
