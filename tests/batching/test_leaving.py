"""Requests that end before they are answered: deadlines that pass and clients that leave."""

from __future__ import annotations

import asyncio

import pytest

from service.errors import Cancelled, DeadlineExceeded, EngineError
from tests.batching.harness import Harness, answer, has_slot
from tests.batching.virtual_time import VirtualTimeLoop, outcome_of, settle, virtual_time


@virtual_time
async def test_a_deadline_fires_at_its_time_while_a_batch_runs():
    """Triton #7512: a queue timeout of 10 s fired when the running batch ended, after 90 s."""
    harness = Harness()
    harness.submit(8)
    await settle()
    late = harness.submit(1, deadline_s=0.2)
    with pytest.raises(DeadlineExceeded, match=r"^deadline: passed after 0\.200 s in the queue"):
        await answer(late)
    assert harness.loop.time() == pytest.approx(0.2, abs=1e-6)
    assert not has_slot(late)
    assert harness.queued == (0, 0, 0)
    await asyncio.sleep(3)
    harness.started[0].succeed()
    await asyncio.sleep(3)
    assert len(harness.started) == 1, "it was executed after its deadline"


@virtual_time
async def test_one_who_expires_leaves_its_neighbours_waiting():
    harness = Harness()
    harness.submit(8)
    await settle()
    requests = [harness.submit(1), harness.submit(2, deadline_s=1), harness.submit(3)]
    await asyncio.sleep(2)
    assert [request.future.done() for request in requests] == [False, True, False]
    assert isinstance(requests[1].future.exception(), DeadlineExceeded)
    harness.started[0].succeed()
    await settle()
    assert harness.started[1].members == [requests[0], requests[2]]


@virtual_time
async def test_a_deadline_does_not_concern_what_has_started():
    harness = Harness()
    request = harness.submit(1, deadline_s=1)
    await asyncio.sleep(5)
    assert not request.future.done()
    harness.started[0].succeed()
    assert (await answer(request)).batch_tokens == 1


@virtual_time
async def test_without_a_deadline_a_request_waits_as_long_as_it_takes():
    """BentoML #4265: a latency setting refused requests even where batching was off."""
    harness = Harness()
    harness.submit(8)
    await settle()
    patient = harness.submit(1)
    await asyncio.sleep(1e6)
    harness.started[0].succeed()
    await settle()
    harness.started[1].succeed()
    assert (await answer(patient)).queue_s == pytest.approx(1e6)


@pytest.mark.parametrize("ago_s", [0.0, 0.5])
@virtual_time
async def test_a_deadline_that_has_passed_already_is_not_executed(ago_s: float):
    harness = Harness()
    late = harness.submit(1, deadline_s=-ago_s)
    prompt = harness.submit(2, deadline_s=1)
    with pytest.raises(DeadlineExceeded):
        await answer(late)
    await settle()
    assert [batch.members for batch in harness.started] == [[prompt]]


@virtual_time
async def test_a_late_loop_does_not_execute_what_has_expired():
    """Something blocks the loop between the engine's report and the next batch."""
    harness = Harness()
    assert isinstance(harness.loop, VirtualTimeLoop)
    harness.submit(8)
    await settle()
    late = harness.submit(1, deadline_s=1)
    prompt = harness.submit(2, deadline_s=9)
    harness.started[0].succeed()
    harness.loop.call_soon(harness.loop.block, 2)
    with pytest.raises(DeadlineExceeded, match=r"passed after 2\.000 s"):
        await answer(late)
    assert [batch.members for batch in harness.started[1:]] == [[prompt]]


@virtual_time
async def test_a_late_loop_may_find_that_all_have_expired():
    harness = Harness()
    assert isinstance(harness.loop, VirtualTimeLoop)
    harness.submit(8)
    await settle()
    late = [harness.submit(1, deadline_s=1) for _ in range(3)]
    harness.started[0].succeed()
    harness.loop.call_soon(harness.loop.block, 2)
    found = [await outcome_of(request.future) for request in late]
    assert [type(outcome) for outcome in found] == [DeadlineExceeded] * 3
    assert len(harness.started) == 1
    harness.submit(1)
    await settle()
    assert len(harness.started) == 2


@virtual_time
async def test_who_leaves_the_queue_is_never_executed():
    harness = Harness()
    harness.submit(8)
    await settle()
    gone, here = harness.submit(1), harness.submit(2)
    harness.batcher.cancel(gone)
    with pytest.raises(Cancelled, match="before its batch started"):
        await answer(gone)
    assert not has_slot(gone)
    assert harness.queued == (1, 2, 16)
    harness.started[0].succeed()
    await settle()
    assert harness.started[1].members == [here]


@virtual_time
async def test_the_last_of_a_group_may_leave():
    harness = Harness(delay_s=1)
    gone = harness.submit(1, layer=1)
    await settle()
    harness.batcher.cancel(gone)
    assert isinstance(await outcome_of(gone.future), Cancelled)
    await asyncio.sleep(5)
    assert not harness.started


@virtual_time
async def test_who_leaves_while_running_keeps_its_slot_until_the_batch_ends():
    harness = Harness()
    gone, here = harness.submit(1), harness.submit(2)
    await settle()
    harness.batcher.cancel(gone)
    with pytest.raises(Cancelled, match="while it ran"):
        await answer(gone)
    assert has_slot(gone), "the engine still reads it"
    harness.started[0].succeed()
    assert (await answer(here)).batch_tokens == 3
    assert not has_slot(gone)
    assert not has_slot(here)


@virtual_time
async def test_who_leaves_before_its_retry_is_not_executed_again():
    harness = Harness()
    requests = [harness.submit(tokens) for tokens in (1, 2, 3)]
    await settle()
    harness.started[0].end(RuntimeError("bad member"))
    await settle()
    assert harness.started[1].members == [requests[0]]
    harness.batcher.cancel(requests[1])
    assert isinstance(await outcome_of(requests[1].future), Cancelled)
    harness.started[1].succeed()
    await settle()
    assert harness.started[2].members == [requests[2]]
    assert not has_slot(requests[1])


@virtual_time
async def test_who_leaves_before_its_batch_fails_is_not_retried():
    harness = Harness()
    requests = [harness.submit(tokens) for tokens in (1, 2)]
    await settle()
    harness.batcher.cancel(requests[0])
    harness.started[0].end(RuntimeError("bad member"))
    await settle()
    assert [batch.members for batch in harness.started[1:]] == [[requests[1]]]
    assert not has_slot(requests[0])
    assert isinstance(await outcome_of(requests[0].future), Cancelled)


@virtual_time
async def test_leaving_after_the_end_changes_nothing():
    harness = Harness()
    request = harness.submit(1)
    await settle()
    harness.started[0].succeed()
    found = await answer(request)
    harness.batcher.cancel(request)
    assert request.future.result() is found
    failed = harness.submit(1)
    await settle()
    harness.started[1].end(RuntimeError("no"))
    assert isinstance(await outcome_of(failed.future), EngineError)
    harness.batcher.cancel(failed)
    harness.batcher.cancel(failed)
    assert harness.queued == (0, 0, 0)


@pytest.mark.parametrize("state", ["queued", "running", "in retry"])
@virtual_time
async def test_a_client_whose_task_is_cancelled(state: str):
    """As by a server that ends a connection: the await is cancelled, and with it the future."""
    harness = Harness()
    blocker = harness.submit(8)
    await settle()
    neighbour, request = harness.submit(1), harness.request(2)

    async def client() -> None:
        future = harness.batcher.submit(request)
        try:
            await future
        finally:
            harness.batcher.cancel(request)

    task = asyncio.ensure_future(client())
    await settle()
    if state != "queued":
        harness.started[0].succeed()
        await settle()
    if state == "in retry":
        harness.started[1].end(RuntimeError("bad member"))
        await settle()
    task.cancel()
    assert isinstance(await outcome_of(task), asyncio.CancelledError)
    harness.started[-1].succeed()
    await settle()
    if state == "queued":
        harness.started[-1].succeed()
    for other in (blocker, neighbour):
        assert (await answer(other)).kernel == "fake"
    executed = [batch for batch in harness.started if request in batch.members]
    assert len(executed) == (0 if state == "queued" else 1)
    assert not has_slot(request)
    assert harness.queued == (0, 0, 0)
