"""What fails whom: a bad member, a dead engine, and bugs of our own."""

from __future__ import annotations

import asyncio

import pytest

from service.batching import batcher as batcher_module
from service.engine.base import BatchReport
from service.errors import EngineDead, EngineError, ServiceError
from tests.batching.harness import REPORT, Harness, answer, has_slot
from tests.batching.virtual_time import outcome_of, settle, virtual_time


@virtual_time
async def test_a_bad_member_fails_alone():
    """LitServe #340: one member's error was returned to the whole batch."""
    harness = Harness()
    requests = [harness.submit(tokens) for tokens in (1, 2, 3)]
    await settle()
    harness.started[0].end(RuntimeError("marker 7 in the batch"))
    newcomer = harness.submit(2)
    await settle()
    for index in (1, 2, 3):
        batch = harness.started[index]
        assert batch.members == [requests[index - 1]], "retries go alone, in order, and first"
        if index == 2:
            batch.end(RuntimeError("marker 7 in the batch"))
        else:
            batch.succeed()
        await settle()
    assert (await answer(requests[0])).batch_tokens == 1
    with pytest.raises(EngineError, match=r"^engine: marker 7 in the batch$"):
        await answer(requests[1])
    assert (await answer(requests[2])).batch_tokens == 3
    assert harness.started[4].members == [newcomer]
    assert harness.sample("mlp_batches_total", trigger="retry") == 3
    # The wait in the queue ended with the first start, and is counted once.
    assert harness.sample("mlp_stage_duration_seconds_count", stage="queue") == 4
    assert not harness.deaths


@virtual_time
async def test_a_request_that_fails_alone_is_not_retried():
    harness = Harness()
    bad = harness.submit(1)
    await settle()
    harness.started[0].end(RuntimeError("no"))
    assert isinstance(await outcome_of(bad.future), EngineError)
    good = harness.submit(1)
    await settle()
    harness.started[1].succeed()
    await answer(good)
    assert len(harness.started) == 2


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), MemoryError(), ValueError("x"), KeyboardInterrupt(), EngineDead()]
)
@virtual_time
async def test_an_engine_error_is_never_the_clients_fault(error: BaseException):
    """Triton #4540: an ECC error reached clients as a 400."""
    harness = Harness()
    request = harness.submit(1)
    await settle()
    harness.started[0].end(error)
    found = await outcome_of(request.future)
    assert isinstance(found, ServiceError)
    assert found.status == 500


@virtual_time
async def test_retries_use_every_free_place():
    harness = Harness(concurrency=2)
    requests = [harness.submit(tokens) for tokens in (1, 2, 3)]
    await settle()
    harness.started[0].end(RuntimeError("bad member"))
    await settle()
    assert [batch.members for batch in harness.started[1:]] == [[requests[0]], [requests[1]]]


@virtual_time
async def test_a_dead_engine_fails_everything_at_once():
    harness = Harness(delay_s=1, concurrency=2)
    dying = [harness.submit(8), harness.submit(8, layer=1)]
    waiting = [harness.submit(2), harness.submit(3, deadline_s=9)]
    await settle()
    error = EngineDead("CUDA error: an illegal memory access was encountered")
    harness.started[0].end(error)
    await settle()
    for request in (*dying, *waiting):
        found = await outcome_of(request.future)
        assert isinstance(found, EngineDead)
        assert "illegal memory access" in str(found)
    assert harness.deaths == [error]
    assert harness.queued == (0, 0, 0)
    # The other batch may still read its slot; afterwards the slot is returned.
    assert has_slot(dying[1])
    harness.started[1].succeed()
    await settle()
    assert not any(has_slot(request) for request in (*dying, *waiting))
    await asyncio.sleep(20)
    assert len(harness.started) == 2


@virtual_time
async def test_a_dead_engine_refuses_what_comes():
    harness = Harness()
    harness.batcher.fail_all(RuntimeError("warm-up failed"))
    for tokens in (0, 1):
        request = harness.submit(tokens, deadline_s=1)
        with pytest.raises(EngineDead, match=r"^engine: warm-up failed$"):
            await answer(request)
        assert not has_slot(request)
    harness.batcher.drain()
    await asyncio.sleep(2)
    assert not harness.started
    assert harness.queued == (0, 0, 0)


@pytest.mark.parametrize("last", ["succeeds", "fails", "dies too"])
@virtual_time
async def test_the_engine_dies_once(last: str):
    harness = Harness(concurrency=2)
    requests = [harness.submit(tokens) for tokens in (4, 4, 3, 3)]
    await settle()
    first = EngineDead("first")
    harness.started[0].end(first)
    await settle()
    batch = harness.started[1]
    if last == "succeeds":
        batch.succeed()
    else:
        batch.end(RuntimeError("launch failed") if last == "fails" else EngineDead("second"))
    await settle()
    harness.batcher.fail_all(RuntimeError("told again"))
    assert harness.deaths == [first]
    for request in requests:
        assert isinstance(await outcome_of(request.future), EngineDead)
        assert not has_slot(request)


@virtual_time
async def test_the_engine_dies_in_a_retry():
    harness = Harness()
    requests = [harness.submit(tokens) for tokens in (1, 2, 3)]
    await settle()
    harness.started[0].end(RuntimeError("bad member"))
    await settle()
    harness.started[1].end(EngineDead("poisoned"))
    await settle()
    assert len(harness.started) == 2, "a dead engine was used again"
    for request in requests:
        assert isinstance(await outcome_of(request.future), EngineDead)
        assert not has_slot(request)


@virtual_time
async def test_a_hung_engine_keeps_its_slots():
    """Whoever finds out that the engine hangs says so by fail_all; it may yet wake up and read."""
    harness = Harness()
    request = harness.submit(1)
    gone = harness.submit(1)
    await settle()
    harness.batcher.cancel(gone)
    assert isinstance(await outcome_of(gone.future), ServiceError)
    harness.batcher.fail_all(RuntimeError("no answer for 60 s"))
    assert isinstance(await outcome_of(request.future), EngineDead)
    assert has_slot(request)


@virtual_time
async def test_an_exception_in_batch_formation_fails_those_who_wait_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Ray #66140: it killed the batching task, and every later request hung."""
    harness = Harness()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no such batch")

    victims = [harness.submit(1), harness.submit(2, layer=1, deadline_s=1)]
    with monkeypatch.context() as patch:
        patch.setattr(batcher_module, "select_batch", broken)
        for victim in victims:
            with pytest.raises(EngineError, match="batch formation: ZeroDivisionError"):
                await answer(victim)
            assert not has_slot(victim)
    assert "batch formation failed" in caplog.text
    assert harness.queued == (0, 0, 0)
    later = harness.submit(3)
    await asyncio.sleep(5)
    harness.started[0].succeed()
    assert (await answer(later)).batch_tokens == 3
    assert not harness.deaths


@virtual_time
async def test_a_start_that_raises_is_fatal():
    harness = Harness(max_tokens=4)
    broken = RuntimeError("can't start new thread")

    def start(*_: object) -> None:
        raise broken

    harness.batcher._start = start
    requests = [harness.submit(tokens) for tokens in (4, 4)]
    for request in requests:
        with pytest.raises(EngineDead, match="can't start new thread"):
            await answer(request)
    assert harness.deaths == [broken]
    assert harness.queued == (0, 0, 0)
    assert isinstance(await outcome_of(harness.submit(1).future), EngineDead)
    # The loop's handler gets it too, so that the traceback is logged.
    assert harness.loop.errors == [broken]
    harness.loop.errors.clear()


@pytest.mark.parametrize("bug", ["unknown kernel", "unknown stage", "an output too few"])
@virtual_time
async def test_a_report_that_makes_no_sense_is_fatal_and_nobody_hangs(bug: str):
    harness = Harness()
    members = [harness.submit(tokens) for tokens in (4, 4)]
    waiting = harness.submit(5)
    await settle()
    report, outputs = REPORT, [memoryview(b""), memoryview(b"")]
    if bug == "unknown kernel":
        report = BatchReport("new", (("new", 0.1),))
    elif bug == "unknown stage":
        report = BatchReport("fake", (), {"lunch": 0.1})
    else:
        outputs.pop()
    harness.started[0].end((report, outputs))
    await settle()
    found = [await outcome_of(request.future) for request in (*members, waiting)]
    # The first member had its output before the second was missed.
    expected = found[1:] if bug == "an output too few" else found
    assert all(isinstance(outcome, EngineDead) for outcome in expected)
    assert len(harness.deaths) == 1
    assert harness.loop.errors == harness.deaths
    harness.loop.errors.clear()
    await settle()
    assert len(harness.started) == 1
