"""Small requests that travel together: each gets its own rows, and nobody pays for a neighbour."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import numpy as np
import pytest

from service.batching.request import Answer, PendingRequest
from service.engine.base import Output
from service.errors import Cancelled, DeadlineExceeded, EngineDead, EngineError, QueueFull
from service.workers.records import Kind
from tests.workers.bundle_pair import NOTHING, Pair, numbered


def _run(test: Callable[[Pair], Awaitable[None]], **settings: object) -> None:
    async def with_pair() -> None:
        pair = Pair(**settings)
        await pair.turn()
        await test(pair)
        await pair.turn()
        assert pair.held == NOTHING

    asyncio.run(with_pair())


def _first_values(request: PendingRequest) -> list[float]:
    """Of each row of the answer."""
    answer = request.future.result()
    return list(np.frombuffer(answer.data, np.float32).reshape(request.tokens, -1)[:, 0])


def test_what_is_ready_in_one_turn_goes_as_one_and_each_gets_its_rows_in_order():
    async def test(pair: Pair) -> None:
        requests = [pair.request(numbered(count, 10 * count)) for count in (1, 3, 2)]
        await pair.turn()
        (record,) = pair.said
        assert (record.tokens, record.body_bytes) == (6, 3)
        ((members, _),) = pair.batches
        assert [(one.tokens, one.requests) for one in members] == [(6, 3)]
        assert pair.held == (0, 0, 0, 0, 0, 0, 1)
        await pair.finish()
        assert [_first_values(one) for one in requests] == [[10], [30, 31, 32], [20, 21]]
        answer = requests[0].future.result()
        assert (answer.batch_tokens, answer.kernel) == (6, "fake")

    _run(test)


def test_requests_of_different_kinds_do_not_share_a_bundle():
    async def test(pair: Pair) -> None:
        one = pair.request(numbered(1, 1))
        other = pair.request(numbered(1, 2), output=Output.GATED)
        await pair.turn()
        assert [record.tokens for record in pair.said] == [1, 1]
        await pair.finish()
        await pair.finish()
        assert _first_values(one) == [1]
        assert _first_values(other) == [2]

    _run(test)


def test_what_comes_while_both_rooms_are_under_way_gathers_and_is_counted():
    async def test(pair: Pair) -> None:
        first = []
        for number in range(2):
            first.append(pair.request(numbered(1, number)))
            await pair.turn()
        later = [pair.request(numbered(2, 10 * number)) for number in range(1, 6)]
        await pair.turn()
        assert len(pair.said) == 2
        assert pair.counts.gathered == (5, 10, 10 * 4 * 16)
        assert pair.metrics.registry.get_sample_value("mlp_batch_requests_count") == 1
        await pair.finish()
        assert (pair.said[-1].body_bytes, pair.counts.gathered) == (5, (0, 0, 0))
        while pair.batches:
            await pair.finish()
        assert [_first_values(one)[0] for one in [*first, *later]] == [0, 1, 10, 20, 30, 40, 50]
        # Requests are counted, not bundles.
        samples = pair.metrics.registry.get_sample_value
        assert samples("mlp_batch_requests_sum") == 7
        assert samples("mlp_stage_duration_seconds_count", {"stage": "queue"}) == 7

    _run(test)


def test_random_mixes():
    async def test(pair: Pair) -> None:
        luck = random.Random(3)
        number, asked = 0, []
        for _ in range(400):
            if luck.random() < 0.6:
                count = luck.choice([1, 1, 1, 2, 30])
                output = luck.choice([Output.MLP, Output.MLP, Output.GATED])
                request = pair.request(numbered(count, number), output=output)
                if request is not None:
                    asked.append((request, number, luck.random() < 0.1))
                number += count
            elif luck.random() < 0.5:
                await pair.turn(luck.randrange(3))
            elif pair.batches:
                await pair.finish()
            for request, _, leaves in asked[-3:]:
                if leaves and not request.future.done():
                    pair.bundles.cancel(request, request.lease)
        while pair.batches:
            await pair.finish()
        assert len(asked) > 150
        for request, first, leaves in asked:
            if not leaves or request.future.exception() is None:
                assert _first_values(request) == list(range(first, first + request.tokens))
            else:
                assert isinstance(request.future.exception(), Cancelled)

    _run(test, concurrency=2, max_batch_tokens=64)


def test_a_bundle_fits_a_batch_and_the_rest_goes_next():
    async def test(pair: Pair) -> None:
        requests = [pair.request(numbered(3, number)) for number in range(3)]
        await pair.turn()
        assert [record.tokens for record in pair.said] == [6, 3]
        await pair.finish()
        await pair.finish()
        assert [_first_values(one)[0] for one in requests] == [0, 1, 2]

    _run(test, max_batch_tokens=8)


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        # An eighth of the limits,
        ({"max_queue_tokens": 80, "max_batch_tokens": 8}, 10),
        ({"max_queue_bytes": 1 << 15, "max_body_bytes": 1024}, (1 << 15) // 8 // 64),
        # unless a batch or a body of the largest size would find no room any more,
        ({"max_queue_tokens": 80, "max_batch_tokens": 75}, 5),
        ({"max_queue_tokens": 8, "max_batch_tokens": 8}, 0),
        ({"max_queue_bytes": 1024 + 64 * 2, "max_body_bytes": 1024}, 2),
        # and nothing where requests wait for company, for which they have to be in the queue.
        ({"max_queue_tokens": 80, "max_batch_tokens": 8, "max_queue_delay_s": 5.0}, 0),
    ],
)
def test_no_more_gathers_than_was_set_aside(limits, taken):
    async def test(pair: Pair) -> None:
        for number in range(2):
            pair.request(numbered(1, number))
            await pair.turn()
        gathered = [pair.request(numbered(1, number)) for number in range(100)]
        assert sum(one is not None for one in gathered) == taken
        while pair.batches:
            await pair.finish()

    _run(test, **limits)


def test_a_bundle_that_fails_is_taken_apart_and_only_the_guilty_fails():
    async def test(pair: Pair) -> None:
        good, bad = pair.request(numbered(1, 1)), pair.request(numbered(1, 2))
        await pair.turn()
        await pair.finish(RuntimeError("one bad row"))
        assert [request for request, _ in pair.alone] == [good, bad]
        assert not good.future.done()
        answer = Answer(memoryview(b"good"), "fake", 1, 0.0, 0.0)
        pair.alone[0][1].set_result(answer)
        pair.alone[1][1].set_exception(EngineError("engine: bad row"))
        await pair.turn()
        assert good.future.result() is answer
        assert str(bad.future.exception()) == "engine: bad row"

    _run(test)


def test_what_gathers_is_waiting_in_the_queue_to_whoever_looks_at_stages():
    async def test(pair: Pair) -> None:
        requests = [pair.request(numbered(1, 1))]
        await pair.turn()
        requests += [pair.request(numbered(1, number)) for number in range(2, 6)]
        await pair.turn()
        requests += [pair.request(numbered(1, number)) for number in range(6, 9)]
        await asyncio.sleep(0.05)
        while pair.batches:
            await pair.finish()
        waited_s = [request.future.result().queue_s for request in requests]
        assert waited_s[0] < 0.05 < min(waited_s[1:])
        found = pair.metrics.registry.get_sample_value
        stage = {"stage": "queue"}
        assert found("mlp_stage_duration_seconds_count", stage) == len(requests)
        assert found("mlp_stage_duration_seconds_sum", stage) == pytest.approx(sum(waited_s))

    _run(test)


def test_an_answer_that_came_alone_in_a_slot_is_taken_out_of_it():
    """Who asked has no way to say when it has been sent."""

    async def test(pair: Pair) -> None:
        request, left = pair.request(numbered(1, 1)), pair.request(numbered(1, 2))
        await pair.turn()
        await pair.finish(RuntimeError("a bad row"))
        pair.bundles.cancel(left, left.lease)
        slot, released = bytearray(b"good"), []
        for _, future in pair.alone:
            release = partial(released.append, len(released))
            future.set_result(Answer(memoryview(slot), "fake", 1, 0.1, 0.2, release))
            await pair.turn()
        slot[:] = b"next"
        assert len(released) == 2
        answer = request.future.result()
        assert bytes(answer.data) == b"good"
        assert (answer.queue_s, answer.execute_s, answer.release) == (0.1, 0.2, None)

    _run(test)


def test_one_alone_that_fails_has_failed():
    async def test(pair: Pair) -> None:
        request = pair.request(numbered(1, 1))
        await pair.turn()
        await pair.finish(RuntimeError("bad row"))
        assert str(request.future.exception()) == "engine: bad row"
        assert not pair.alone

    _run(test)


def test_a_bundle_that_is_refused_is_decided_on_one_by_one():
    async def test(pair: Pair) -> None:
        # The ledger is full but for one row.
        lease = pair.admission.admit(9, 64)
        requests = [pair.request(numbered(1, number)) for number in range(2)]
        await pair.turn()
        assert [request for request, _ in pair.alone] == requests
        for _, future in pair.alone:
            future.set_exception(QueueFull("queue: full"))
        await pair.turn()
        assert all(isinstance(one.future.exception(), QueueFull) for one in requests)
        single = pair.request(numbered(1, 3))
        await pair.turn()
        await pair.finish()
        assert _first_values(single) == [3]
        lease.release()

    _run(test, max_queue_tokens=10, max_batch_tokens=10)


def test_who_leaves_while_he_gathers_is_not_sent():
    async def test(pair: Pair) -> None:
        for number in range(2):
            pair.request(numbered(1, number))
            await pair.turn()
        stays, leaves = pair.request(numbered(1, 7)), pair.request(numbered(2, 8))
        pair.bundles.cancel(leaves, leaves.lease)
        assert isinstance(leaves.future.exception(), Cancelled)
        assert pair.counts.gathered == (1, 1, 64)
        while pair.batches:
            await pair.finish()
        assert _first_values(stays) == [7]
        assert pair.said[-1].tokens == 1

    _run(test)


def test_who_leaves_as_the_last_that_gathers_leaves_nothing_behind():
    async def test(pair: Pair) -> None:
        for number in range(2):
            pair.request(numbered(1, number))
            await pair.turn()
        leaves = pair.request(numbered(1, 2), timeout_s=10)
        pair.bundles.cancel(leaves, leaves.lease)
        # Another kind waits, and the deadlines of all are looked at.
        stays = pair.request(numbered(1, 3), output=Output.GATED, timeout_s=10)
        while pair.batches:
            await pair.finish()
        assert _first_values(stays) == [3]

    _run(test, request_timeout_s=10.0)


def test_a_bundle_is_given_up_when_the_last_has_left():
    async def test(pair: Pair) -> None:
        running = pair.request(numbered(1, 0))
        await pair.turn()
        leavers = [pair.request(numbered(1, number)) for number in (1, 2)]
        await pair.turn()
        for leaver in leavers:
            assert [record.kind for record in pair.said] == [Kind.BUNDLE, Kind.BUNDLE]
            pair.bundles.cancel(leaver, leaver.lease)
        assert pair.said[-1].kind == Kind.CANCEL
        await pair.finish()
        assert not pair.batches
        assert _first_values(running) == [0]
        assert all(isinstance(one.future.exception(), Cancelled) for one in leavers)

    _run(test)


def test_a_room_whose_clients_have_left_is_used_again_when_the_engine_is_through():
    async def test(pair: Pair) -> None:
        leaver = pair.request(numbered(1, 1))
        await pair.turn()
        pair.bundles.cancel(leaver, leaver.lease)
        await pair.turn()
        # Nobody waits for it, but it is read and written.
        assert len(pair.desk) == 0
        later = []
        for number in (2, 3):
            later.append(pair.request(numbered(1, number)))
            await pair.turn()
        assert [record.kind for record in pair.said].count(Kind.BUNDLE) == 2
        while pair.batches:
            await pair.finish()
        assert [_first_values(one) for one in later] == [[2], [3]]

    _run(test)


def test_time_in_the_queue_counts_while_requests_gather():
    async def test(pair: Pair) -> None:
        for number in range(2):
            pair.request(numbered(1, number))
            await pair.turn()
        waits = pair.request(numbered(1, 2), timeout_s=0.05)
        await pair.turn()
        await asyncio.sleep(0.1)
        assert isinstance(waits.future.exception(), DeadlineExceeded)
        assert "not executed" in str(waits.future.exception())
        assert pair.counts.gathered == (0, 0, 0)
        while pair.batches:
            await pair.finish()

    _run(test, request_timeout_s=0.05)


def test_who_has_time_left_when_a_bundle_expires_gathers_again():
    async def test(pair: Pair) -> None:
        pair.request(numbered(1, 0), timeout_s=10)
        await pair.turn()
        late = pair.request(numbered(1, 1), timeout_s=0.1)
        in_time = pair.request(numbered(1, 2), timeout_s=10)
        await pair.turn()
        await asyncio.sleep(0.15)
        assert isinstance(late.future.exception(), DeadlineExceeded)
        assert [record.tokens for record in pair.said] == [1, 2, 1]
        while pair.batches:
            await pair.finish()
        assert _first_values(in_time) == [2]

    _run(test, request_timeout_s=0.1)


@pytest.mark.parametrize(("timeout_s", "taken"), [(None, True), (9.5, True), (0.01, False)])
def test_who_is_in_a_hurry_travels_alone(timeout_s, taken):
    async def test(pair: Pair) -> None:
        request = pair.request(numbered(1, 1), timeout_s=timeout_s)
        assert (request is not None) is taken
        await pair.turn()
        if taken:
            await pair.finish()

    _run(test, request_timeout_s=10.0)


def test_a_dead_engine_ends_all_that_gathers_or_travels():
    async def test(pair: Pair) -> None:
        requests = []
        for number in range(4):
            requests.append(pair.request(numbered(1, number)))
            await pair.turn()
        pair.bundles.fail_all(EngineDead("engine: gone"))
        assert all(isinstance(one.future.exception(), EngineDead) for one in requests)
        assert pair.counts.gathered == (0, 0, 0)
        assert pair.request(numbered(1, 9)) is None
        # What is heard of them afterwards is nobody's any more.
        while pair.batches:
            await pair.finish()

    _run(test)


def test_an_engine_that_dies_with_a_bundle_ends_all_of_them():
    async def test(pair: Pair) -> None:
        requests = []
        for number in range(4):
            requests.append(pair.request(numbered(1, number)))
            await pair.turn()
        await pair.finish(EngineDead("illegal memory access"))
        assert all(isinstance(one.future.exception(), EngineDead) for one in requests)
        # Nothing more is sent to it.
        assert [record.kind for record in pair.said] == [Kind.BUNDLE, Kind.BUNDLE]

    _run(test)


def test_without_rooms_nothing_is_taken():
    async def test() -> None:
        pair = Pair()
        # They are told of in a later turn.
        assert pair.request(numbered(1, 9)) is None
        await pair.turn()
        assert pair.request(numbered(1, 9)) is not None
        pair.bundles.fail_all(EngineDead("engine: gone"))

    asyncio.run(test())
