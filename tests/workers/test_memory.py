"""Memory that two processes see: who has which part of it, and that nobody can take it away."""

from __future__ import annotations

import os

import pytest

from service.counts import FrontCounts, add_up
from service.errors import outcomes
from service.workers.memory import SharedMemory, create_memory

ARENA = 1 << 16


@pytest.fixture
def two() -> tuple[SharedMemory, SharedMemory]:
    descriptor = create_memory(2, ARENA, outcomes())
    yield tuple(SharedMemory(descriptor, 2, ARENA, outcomes()) for _ in range(2))
    os.close(descriptor)


def test_both_see_the_same_and_the_parts_do_not_overlap(two):
    ours, theirs = two
    counts = [ours.counts(index) for index in range(2)]
    counts[0].request_ended("mlp", "ok", 1e-3)
    ours.bodies[:] = b"b" * ARENA
    ours.answers[:] = b"a" * ARENA
    assert theirs.bodies == b"b" * ARENA
    assert theirs.answers == b"a" * ARENA
    assert [theirs.counts(i).requests("mlp", "ok") for i in range(2)] == [1, 0]
    assert theirs.counts(1).durations["mlp"].count == 0


def test_where_rows_lie_is_found_without_being_told(two):
    ours, _ = two
    assert ours.body_offset(ours.bodies[100:200][5:].cast("B")) == 105
    assert ours.body_offset(memoryview(bytearray(10))) is None
    assert ours.body_offset(two[1].bodies[:10]) is None


def test_its_size_is_sealed(two):
    for size in (0, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(two[0].descriptor, size)


def test_counts_add_up():
    fronts = [FrontCounts(outcomes()) for _ in range(3)]
    for times, front in enumerate(fronts, start=1):
        for _ in range(times):
            front.request_ended("v2", "ok", 2e-3)
            front.request_ended("mlp", "queue_full", 5.0)
            front.stage("decode", 1e-3)
    total = add_up(outcomes(), fronts)
    assert total.requests("v2", "ok") == total.requests("mlp", "queue_full") == 6
    assert (total.durations["v2"].count, total.durations["mlp"].count) == (6, 0)
    assert total.stages["decode"].sum == pytest.approx(6e-3)
    assert total.last_ok_unix_s == fronts[2].last_ok_unix_s


def test_a_new_writer_goes_on_where_the_last_one_ended():
    counts = FrontCounts(outcomes())
    counts.request_ended("mlp", "ok", 1.0)
    counts.connection_closed()
    counts.restart()
    assert counts.connections_closed == 0
    assert counts.requests("mlp", "ok") == 1
