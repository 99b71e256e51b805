"""A batch that never ends: found out in time, and only then."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import EngineDead
from tests.batching.harness import Harness, answer, has_slot
from tests.batching.virtual_time import outcome_of, settle, virtual_time

SENTENCE = r"^engine: batch of 3 tokens did not end within 2 s$"


@virtual_time
async def test_a_batch_that_hangs_ends_the_engine_and_everybody_hears_of_it():
    harness = Harness(hang_timeout_s=2.0, max_tokens=3)
    running, waiting = harness.submit(3), harness.submit(2)
    await settle()
    await asyncio.sleep(1.999)
    assert harness.deaths == []
    for request in (running, waiting):
        with pytest.raises(EngineDead, match=SENTENCE):
            await answer(request)
    assert harness.loop.time() == pytest.approx(2.0)
    assert [type(error) for error in harness.deaths] == [EngineDead]
    # The kernel may still read it.
    assert has_slot(running)
    assert not has_slot(waiting)
    harness.started[0].succeed()
    await settle()
    assert len(harness.deaths) == 1
    with pytest.raises(EngineDead):
        await answer(running)


@virtual_time
async def test_each_batch_has_the_whole_time():
    harness = Harness(hang_timeout_s=2.0, max_tokens=1, concurrency=2)
    requests = [harness.submit(1) for _ in range(4)]
    await settle()
    for index in range(4):
        await asyncio.sleep(1.5 if index % 2 == 0 else 0.0)
        harness.started[index].succeed()
        await settle()
    for request in requests:
        assert (await answer(request)).kernel == "fake"
    await asyncio.sleep(100)
    assert harness.deaths == []


@virtual_time
async def test_the_second_of_two_batches_is_noticed_too():
    harness = Harness(hang_timeout_s=2.0, max_tokens=3, concurrency=2)
    harness.submit(1)
    await settle()
    await asyncio.sleep(1.0)
    hung = harness.submit(3)
    await settle()
    harness.started[0].succeed()
    with pytest.raises(EngineDead, match=SENTENCE):
        await answer(hung)
    assert harness.loop.time() == pytest.approx(3.0)


@virtual_time
async def test_without_a_timeout_a_batch_may_take_any_time():
    harness = Harness()
    request = harness.submit(3)
    await settle()
    await asyncio.sleep(1e6)
    harness.started[0].succeed()
    await settle()
    assert (await outcome_of(request.future)).kernel == "fake"
