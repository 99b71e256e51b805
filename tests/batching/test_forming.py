"""How the batcher forms batches: when they leave, with whom, and what is counted and answered."""

from __future__ import annotations

import asyncio

import pytest

from service.engine.base import BatchReport, Output
from service.errors import EngineError
from tests.batching.harness import Harness, answer
from tests.batching.virtual_time import settle, virtual_time


@virtual_time
async def test_a_lone_request_starts_at_once_on_an_idle_engine():
    harness = Harness()
    request = harness.submit(3)
    assert not harness.started, "the engine was called from within submit"
    await settle()
    assert [batch.tokens for batch in harness.started] == [[3]]
    assert harness.sample("mlp_batches_total", trigger="idle") == 1
    assert not request.future.done()
    harness.started[0].succeed()
    assert (await answer(request)).batch_tokens == 3


@virtual_time
async def test_requests_of_one_loop_iteration_leave_together():
    harness = Harness()

    async def client(tokens: int) -> None:
        harness.submit(tokens)

    await asyncio.gather(*map(client, (1, 2, 3)))
    await settle()
    assert [batch.tokens for batch in harness.started] == [[1, 2, 3]]
    assert harness.sample("mlp_batch_requests_sum") == 3


@virtual_time
async def test_what_arrives_while_the_engine_is_busy_leaves_as_one_batch():
    harness = Harness()
    for tokens in (1, 2, 3, 1):
        harness.submit(tokens)
        await settle()
    assert [batch.tokens for batch in harness.started] == [[1]]
    harness.started[0].succeed()
    await settle()
    assert [batch.tokens for batch in harness.started] == [[1], [2, 3, 1]]


@virtual_time
async def test_batches_are_bounded_by_tokens_and_the_rest_follows_in_order():
    harness = Harness(max_tokens=8)
    for tokens in (3, 4, 2, 8, 1):
        harness.submit(tokens)
    await settle()
    for index in range(4):
        harness.started[index].succeed()
        await settle()
    # 3 + 4 + 2 would be 9; the 8 fits with nobody, and the 1 does not pass it.
    assert [batch.tokens for batch in harness.started] == [[3, 4], [2], [8], [1]]
    assert harness.sample("mlp_batches_total", trigger="full") == 3
    assert harness.sample("mlp_batches_total", trigger="idle") == 1


@virtual_time
async def test_groups_are_never_mixed_and_the_oldest_goes_first():
    harness = Harness()
    blocker = harness.submit(1, layer=1)
    await settle()
    for layer, output in ((0, Output.MLP), (1, Output.MLP), (0, Output.GATED), (0, Output.MLP)):
        harness.submit(1, layer=layer, output=output)
        await asyncio.sleep(1)
    for index in range(4):
        harness.started[index].succeed()
        await settle()
    assert blocker.future.done()
    keys = [[member.key for member in batch.members] for batch in harness.started[1:]]
    assert keys == [[(0, Output.MLP)] * 2, [(1, Output.MLP)], [(0, Output.GATED)]]


@virtual_time
async def test_two_requests_within_the_delay_form_one_batch():
    """Ray #36510: its window began at the end of the last batch, so the first never batched."""
    harness = Harness(delay_s=5e-3)
    await asyncio.sleep(1)
    harness.submit(1)
    await asyncio.sleep(2e-3)
    harness.submit(2)
    await asyncio.sleep(1)
    (batch,) = harness.started
    assert batch.tokens == [1, 2]
    assert batch.at == pytest.approx(1 + 5e-3, abs=1e-6), "the delay counts from the first arrival"
    assert harness.sample("mlp_batches_total", trigger="delay") == 1


@virtual_time
async def test_a_lone_request_waits_exactly_the_delay():
    harness = Harness(delay_s=5e-3)
    request = harness.submit(1)
    await asyncio.sleep(1)
    (batch,) = harness.started
    assert batch.at == pytest.approx(5e-3, abs=1e-6)
    batch.succeed()
    assert (await answer(request)).queue_s == pytest.approx(5e-3, abs=1e-6)


@virtual_time
async def test_the_delay_runs_while_the_engine_is_busy():
    harness = Harness(delay_s=5e-3)
    harness.submit(8)
    await settle()
    await asyncio.sleep(1e-3)
    harness.submit(1)
    await asyncio.sleep(9e-3)
    harness.started[0].succeed()
    await settle()
    assert harness.started[1].at == pytest.approx(10e-3, abs=1e-6), "it had waited long enough"


@virtual_time
async def test_a_full_batch_does_not_wait_for_the_delay():
    harness = Harness(max_tokens=4, delay_s=10)
    harness.submit(2)
    await asyncio.sleep(1)
    harness.submit(2)
    await settle()
    (batch,) = harness.started
    assert batch.tokens == [2, 2]
    assert batch.at == pytest.approx(1, abs=1e-6)


@virtual_time
async def test_each_group_has_its_own_delay():
    harness = Harness(delay_s=4, concurrency=2)
    harness.submit(1, layer=0)
    await asyncio.sleep(3)
    harness.submit(1, layer=1)
    await asyncio.sleep(10)
    assert [batch.at for batch in harness.started] == pytest.approx([4, 7], abs=1e-6)


@virtual_time
async def test_after_the_first_has_left_early_the_delay_counts_from_the_next():
    harness = Harness(delay_s=4)
    first = harness.submit(1)
    await asyncio.sleep(3)
    harness.submit(2)
    harness.batcher.cancel(first)
    await asyncio.sleep(10)
    (batch,) = harness.started
    assert batch.tokens == [2]
    assert batch.at == pytest.approx(7, abs=1e-6)
    assert first.future.exception() is not None


@virtual_time
async def test_drain_lets_nobody_wait_for_company():
    harness = Harness(delay_s=10, concurrency=2)
    harness.submit(1)
    await asyncio.sleep(1)
    assert not harness.started
    harness.batcher.drain()
    await settle()
    # One that was accepted just before is still answered, and does not wait either.
    harness.submit(2)
    await settle()
    assert [batch.tokens for batch in harness.started] == [[1], [2]]
    assert harness.sample("mlp_batches_total", trigger="drain") == 2


@virtual_time
async def test_no_more_batches_at_once_than_the_engine_wants():
    harness = Harness(concurrency=2)
    for tokens in (1, 2, 3, 4):
        harness.submit(tokens)
        await settle()
    assert [batch.tokens for batch in harness.started] == [[1], [2]]
    # They may end in another order than they were started in.
    harness.started[1].succeed()
    await settle()
    assert [batch.tokens for batch in harness.started] == [[1], [2], [3, 4]]
    assert not harness.started[0].members[0].future.done()
    assert harness.started[1].members[0].future.done()


@virtual_time
async def test_small_batches_beyond_the_first_wait_for_company():
    harness = Harness(concurrency=3, max_tokens=20, small_tokens=8)
    harness.submit(1)
    await settle()
    harness.submit(2)
    harness.submit(3)
    await settle()
    harness.submit(9, layer=1)
    await settle()
    # The large one is not in its way, and does not count as small.
    assert [batch.tokens for batch in harness.started] == [[1], [9]]
    harness.submit(1)
    harness.started[1].succeed()
    await settle()
    assert [batch.tokens for batch in harness.started] == [[1], [9]]
    harness.started[0].succeed()
    await settle()
    assert [batch.tokens for batch in harness.started] == [[1], [9], [2, 3, 1]]
    # Of another layer there is none that it could wait for.
    harness.submit(2, layer=1)
    await settle()
    assert [batch.tokens for batch in harness.started][3:] == [[2]]
    harness.started[3].succeed()
    await settle()
    # Together with the next it is not small any more.
    harness.submit(4)
    await settle()
    harness.submit(4)
    await settle()
    assert [batch.tokens for batch in harness.started][4:] == [[4, 4]]


@virtual_time
async def test_a_failed_small_batch_makes_room_for_the_next():
    harness = Harness(concurrency=2, small_tokens=8)
    first = harness.submit(1)
    await settle()
    second = harness.submit(2)
    await settle()
    harness.started[0].end(ValueError("bad"))
    await settle()
    assert [batch.tokens for batch in harness.started] == [[1], [2]]
    harness.started[1].succeed()
    await settle()
    assert isinstance(first.future.exception(), EngineError)
    assert second.future.done()


@virtual_time
async def test_an_empty_request_needs_no_engine():
    harness = Harness()
    harness.submit(8)
    await settle()
    empty = harness.submit(0)
    found = await answer(empty)
    assert (bytes(found.data), found.kernel, found.batch_tokens) == (b"", "none", 0)
    assert len(harness.started) == 1
    assert harness.queued == (0, 0, 0)


@virtual_time
async def test_each_member_gets_its_own_output_and_the_times_of_its_batch():
    harness = Harness()
    first = harness.submit(8)
    await settle()
    others = [harness.submit(1), harness.submit(2)]
    await asyncio.sleep(3)
    harness.started[0].succeed()
    await settle()
    await asyncio.sleep(2)
    batch = harness.started[1]
    outputs = [memoryview(bytearray(b"one")), memoryview(bytearray(b"two"))]
    batch.end((_report("fake"), outputs))
    answers = [await answer(request) for request in others]
    assert [bytes(a.data) for a in answers] == [b"one", b"two"]
    assert all(a.data is output for a, output in zip(answers, outputs, strict=True))
    for found in answers:
        assert (found.kernel, found.batch_tokens) == ("fake", 3)
        assert found.queue_s == pytest.approx(3, abs=1e-6)
        assert found.execute_s == pytest.approx(2, abs=1e-6)
    assert (await answer(first)).execute_s == pytest.approx(3, abs=1e-6)


def _report(kernel: str) -> BatchReport:
    return BatchReport(kernel, ((kernel, 0.5), (kernel, 0.25)), {"compute": 0.75}, 0.875)


@virtual_time
async def test_what_is_counted():
    harness = Harness()
    harness.submit(3, output=Output.GATED)
    harness.submit(2, output=Output.GATED)
    await asyncio.sleep(1)
    harness.started[0].end((_report("fake"), [memoryview(b""), memoryview(b"")]))
    await settle()
    harness.submit(4)
    await settle()
    harness.started[1].end(RuntimeError("out of luck"))
    await settle()
    # A failed batch was started, but nothing was computed.
    assert harness.sample("mlp_batch_tokens_sum") == 9
    assert harness.sample("mlp_batch_requests_sum") == 3
    assert harness.sample("mlp_tokens_total") == 5
    assert harness.sample("mlp_flops_total") == 4 * 5 * 2 * 4
    assert harness.sample("mlp_gpu_busy_seconds_total") == 0.875
    assert harness.sample("mlp_kernel_launches_total", kernel="fake") == 2
    assert harness.sample("mlp_kernel_duration_seconds_sum", kernel="fake") == 0.75
    assert harness.sample("mlp_stage_duration_seconds_count", stage="queue") == 3
    assert harness.sample("mlp_stage_duration_seconds_count", stage="compute") == 1
