"""The lane when clients, the engine or the clock misbehave: nobody pays for it but who did."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time

import numpy as np
import pytest

from service.errors import DeadlineExceeded, EngineDead, EngineError, QueueFull, Unavailable
from service.workers.records import Kind, Record
from tests.engines import HIDDEN, expected
from tests.workers.lane_harness import Client, Harness, numbered, request_head, until

# In which a client does not read, and that no kernel keeps: 192 KiB.
TALL = 3072


def _hurry(client: Client) -> None:
    """Leave by a reset."""
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.leave()


def _close(client: Client) -> None:
    client.leave()


def _half_close(client: Client) -> None:
    """Whoever sends no more has left, as in the usual way."""
    client.socket.shutdown(socket.SHUT_WR)


LEAVES = pytest.mark.parametrize("leave", [_close, _hurry, _half_close])


@LEAVES
def test_a_client_that_leaves_while_it_waits_is_in_no_bundle(on_lane, leave):
    async def test(harness: Harness) -> None:
        busy = await harness.busy()
        clients = [await harness.ask(numbered(1, number)) for number in range(3)]
        leave(clients[1])
        await until(lambda: harness.counted("cancelled") == 1)
        assert harness.counts.gathered == (2, 2, 2 * 4 * HIDDEN)
        harness.finish_all()
        assert [record.tokens for record in harness.said[len(busy) :]] == [2]
        for number in (0, 2):
            answer = await clients[number].read()
            assert answer.body == expected(numbered(1, number), 0).tobytes()
        assert not harness.cancels()
        assert harness.counts.connections_closed == 1

    on_lane(test)


def test_a_client_that_leaves_as_the_last_that_waits_is_not_counted_as_waiting(on_lane):
    async def test(harness: Harness) -> None:
        await harness.busy()
        (await harness.ask(numbered(1, 1))).leave()
        await until(lambda: harness.counted("cancelled") == 1)
        await asyncio.sleep(0.01)
        assert harness.counts.gathered == (0, 0, 0)
        harness.finish_all()

    on_lane(test)


@LEAVES
def test_a_client_that_leaves_while_its_bundle_travels_leaves_the_others_theirs(on_lane, leave):
    async def test(harness: Harness) -> None:
        await harness.busy()
        clients = [await harness.ask(numbered(2, 10 * number)) for number in range(3)]
        harness.finish()
        harness.finish()
        leave(clients[0])
        await until(lambda: harness.counted("cancelled") == 1)
        harness.finish()
        for number in (1, 2):
            answer = await clients[number].read()
            assert answer.body == expected(numbered(2, 10 * number), 0).tobytes()
        assert not harness.cancels()

    on_lane(test)


@pytest.mark.parametrize("ends", ["answered", "failed", "dead"])
def test_a_bundle_that_nobody_wants_is_cancelled_once(on_lane, ends):
    async def test(harness: Harness) -> None:
        await harness.busy()
        clients = [await harness.ask(numbered(1, number)) for number in range(2)]
        harness.finish()
        harness.finish()
        (record,) = harness.bundles
        for client in clients:
            assert not harness.cancels()
            client.leave()
            await asyncio.sleep(0.01)
        assert harness.cancels() == [record.request]
        harness.lane.tick()
        if ends == "answered":
            harness.finish()
        elif ends == "failed":
            harness.fail(EngineError("engine: cancelled"))
        else:
            # Nobody is left to hear of it, and the room may be in use.
            harness.fail(EngineDead("engine: dead"))
            harness.free.give(record.offset)
        assert len(harness.cancels()) == 1
        assert harness.counted("cancelled") == 2
        assert harness.given_back.keys().isdisjoint(one.descriptor for one in clients)

    on_lane(test)


def test_a_bundle_of_several_that_fails_gives_its_requests_back_whole(on_lane):
    async def test(harness: Harness) -> None:
        await harness.busy()
        requests = [harness.request(numbered(count, 10 * count)) for count in (1, 2, 3)]
        clients = [harness.connect() for _ in requests]
        # What is sent ahead comes back with it.
        requests[1] += b"POST /other"
        for client, request in zip(clients, requests, strict=True):
            await harness.send(client, request)
        clients[2].leave()
        harness.finish()
        harness.finish()
        await until(lambda: harness.counted("cancelled") == 1)
        harness.fail(EngineError("engine: a bad row"))
        assert list(harness.given_back) == [client.descriptor for client in clients[:2]]
        assert list(harness.given_back.values()) == requests[:2]
        assert harness.counted("engine_error") == 0

    on_lane(test)


@pytest.mark.parametrize(
    ("error", "status", "closes"),
    [
        (EngineError("engine: a bad row"), 500, False),
        (QueueFull("queue: full"), 429, False),
        (Unavailable("draining"), 503, True),
    ],
)
def test_a_bundle_of_one_that_fails_is_answered_with_the_error(on_lane, error, status, closes):
    async def test(harness: Harness) -> None:
        x = numbered(1, 1)
        client = await harness.ask(x, x_request_id="mine")
        harness.fail(error)
        answer = await client.read()
        assert (answer.status, answer.headers["x-request-id"]) == (status, "mine")
        assert answer.headers["date"] == "today"
        assert answer.json() == {"error": str(error), "code": error.code}
        assert harness.counted(error.code) == 1
        if closes:
            # It says so in a header.
            assert answer.headers["connection"] == "close"
            assert await client.is_closed()
            return
        await harness.send(client, harness.request(x))
        harness.finish()
        assert (await client.read()).body == expected(x, 0).tobytes()

    on_lane(test)


def test_who_waits_for_too_long_is_refused_and_the_others_are_not(on_lane):
    async def test(harness: Harness) -> None:
        busy = await harness.busy()
        late = [await harness.ask(numbered(1, 1), f"?layer={layer}") for layer in range(2)]
        await asyncio.sleep(0.25)
        early = await harness.ask(numbered(1, 2))
        harness.lane.tick()
        assert harness.counts.gathered[0] == 3
        await asyncio.sleep(0.1)
        harness.lane.tick()
        for client in late:
            answer = await client.read()
            assert (answer.status, answer.json()["code"]) == (504, "deadline")
            assert "0.300 s" in answer.json()["error"]
        assert harness.counted("deadline") == 2
        assert harness.counts.gathered == (1, 1, 4 * HIDDEN)
        harness.finish_all()
        for client in (*busy, early):
            assert (await client.read()).status == 200

    on_lane(test, request_timeout_s=0.3)


def test_the_last_that_is_refused_is_not_counted_as_waiting(on_lane):
    async def test(harness: Harness) -> None:
        await harness.busy()
        late = await harness.ask(numbered(1, 1))
        await asyncio.sleep(0.06)
        harness.lane.tick()
        assert (await late.read()).status == 504
        assert harness.counts.gathered == (0, 0, 0)
        harness.finish_all()

    on_lane(test, request_timeout_s=0.05)


def test_of_a_bundle_that_is_too_late_only_those_who_are_late_are_refused(on_lane):
    async def test(harness: Harness) -> None:
        await harness.busy()
        late = await harness.ask(numbered(1, 1))
        await asyncio.sleep(0.25)
        x, y, early = numbered(2, 2), numbered(3, 3), harness.connect()
        sent_s = time.monotonic()
        await harness.send(early, harness.request(x) + harness.request(y))
        harness.finish()
        harness.finish()
        await asyncio.sleep(0.1)
        harness.fail(DeadlineExceeded("deadline: of the bundle"))
        answer = await late.read()
        assert (answer.status, answer.json()["code"]) == (504, "deadline")
        # Others wait on, no longer than they would have, with what they have sent ahead.
        assert harness.bundles[0].first_s == pytest.approx(sent_s + 0.3, abs=0.05)
        harness.finish()
        assert (await early.read()).body == expected(x, 0).tobytes()
        await until(lambda: bool(harness.bundles))
        harness.finish()
        assert (await early.read()).body == expected(y, 0).tobytes()
        assert harness.held == harness.nothing

    on_lane(test, request_timeout_s=0.3)


def test_a_dead_engine_ends_all_with_its_error_and_nobody_comes_any_more(on_lane):
    async def test(harness: Harness) -> None:
        clients = [*await harness.busy(), await harness.ask(numbered(1, 1))]
        idle = harness.connect()
        dead, other = harness.bundles
        harness.fail(EngineDead("engine: dead"))
        for client in clients:
            answer = await client.read()
            assert (answer.status, answer.json()["code"]) == (500, "engine_dead")
        assert harness.counted("engine_dead") == 3
        assert set(harness.given_back) == {one.descriptor for one in (*clients, idle)}
        assert not harness.lane.wants(request_head(1), b"/mlp", {})
        # It may have been computed all the same; nobody else knows of that bundle.
        done = Record(Kind.DONE, request=other.request, tokens=1, text=b"kernel")
        assert harness.lane.done(done)
        for record in (dead, other):
            if record.offset not in harness.free._free:
                harness.free.give(record.offset)

    on_lane(test)


def test_an_error_of_a_bundle_that_is_not_the_lanes(on_lane):
    async def test(harness: Harness) -> None:
        assert not harness.lane.failed(99, EngineError("engine: of somebody else"))
        assert not harness.lane.done(Record(Kind.DONE, request=99))

    on_lane(test)


def test_who_reads_slowly_gets_his_answer_though_the_room_is_in_use_again(on_lane):
    async def test(harness: Harness) -> None:
        x = np.random.default_rng(1).normal(size=(TALL, HIDDEN)).astype(np.float32)
        slow, fast = harness.connect(buffers=4096), harness.connect()
        await harness.send(slow, harness.request(x))
        harness.finish()
        assert harness.in_progress.count == 0
        for number in range(3):
            other = numbered(TALL, number)
            await harness.send(fast, harness.request(other))
            harness.finish()
            assert (await fast.read()).body == expected(other, 0).tobytes()
        assert (await slow.read()).body == expected(x, 0).tobytes()
        # And may ask again.
        await harness.send(slow, harness.request(x))
        harness.finish()
        assert (await slow.read()).body == expected(x, 0).tobytes()

    on_lane(test, rooms=1)


def test_what_a_slow_reader_has_sent_ahead_is_served_behind_his_answer(on_lane):
    async def test(harness: Harness) -> None:
        x, then = numbered(TALL, 1), numbered(1, 7)
        slow = harness.connect(buffers=4096)
        await harness.send(slow, harness.request(x) + harness.request(then))
        harness.finish()
        await asyncio.sleep(0.02)
        assert not harness.bundles
        assert (await slow.read()).body == expected(x, 0).tobytes()
        await until(lambda: harness.bundles)
        harness.finish()
        assert (await slow.read()).body == expected(then, 0).tobytes()

    on_lane(test)


@LEAVES
def test_a_slow_reader_that_leaves_is_closed_and_who_only_sends_no_more_is_answered(on_lane, leave):
    async def test(harness: Harness) -> None:
        x = numbered(TALL, 1)
        slow = harness.connect(buffers=4096)
        await harness.send(slow, harness.request(x))
        harness.finish()
        leave(slow)
        if leave is _half_close:
            await asyncio.sleep(0.01)
            assert (await slow.read()).body == expected(x, 0).tobytes()
            assert await slow.is_closed()
        await until(lambda: harness.counts.connections_closed == 1)
        assert harness.lane.connections == 0

    on_lane(test)


def test_a_lane_that_closes_waits_for_a_slow_reader(on_lane):
    async def test(harness: Harness) -> None:
        x = numbered(TALL, 1)
        slow = harness.connect(buffers=4096)
        await harness.send(slow, harness.request(x))
        harness.finish()
        harness.lane.set_open(False)
        assert await harness.lane.none_left(0.05) == 1
        assert (await slow.read()).body == expected(x, 0).tobytes()
        assert await harness.comes_back(slow) == b""

    on_lane(test)


def test_a_client_that_does_not_take_its_answer_is_cut(on_lane):
    async def test(harness: Harness) -> None:
        slow = harness.connect(buffers=4096)
        await harness.send(slow, harness.request(numbered(TALL, 1)))
        await asyncio.sleep(0.15)
        harness.finish()
        harness.lane.tick()
        # Its time begins with the answer.
        assert harness.lane.connections == 1
        await asyncio.sleep(0.15)
        harness.lane.tick()
        assert harness.lane.connections == 0
        assert harness.counts.connections_closed == 1

    on_lane(test, receive_timeout_s=0.1)


def test_an_idle_connection_is_closed_and_one_that_is_served_is_not(on_lane):
    async def test(harness: Harness) -> None:
        idle, served = harness.connect(), await harness.ask(numbered(1, 1))
        harness.lane.tick()
        assert harness.lane.connections == 2
        await asyncio.sleep(1.05)
        harness.lane.tick()
        assert await idle.is_closed()
        assert harness.lane.connections == 1
        harness.finish()
        harness.lane.tick()
        assert (await served.read()).status == 200
        assert harness.lane.connections == 1
        assert harness.counts.connections_closed == 1

    on_lane(test, keep_alive_s=1)


@pytest.mark.parametrize("end", [20, -1])
def test_who_stalls_in_the_middle_of_a_request_comes_back_with_what_was_read(
    on_lane, monkeypatch, end
):
    monkeypatch.setattr("service.workers.lane._STALL_S", 0.05)

    async def test(harness: Harness) -> None:
        client, sent = harness.connect(), harness.request(numbered(1, 1))[:end]
        await client.send(sent)
        await asyncio.sleep(0.01)
        harness.lane.tick()
        assert not harness.given_back
        await asyncio.sleep(0.06)
        harness.lane.tick()
        assert harness.given_back == {client.descriptor: sent}

    on_lane(test)


def test_bare_line_ends_come_back_once_they_stall(on_lane, monkeypatch):
    monkeypatch.setattr("service.workers.lane._STALL_S", 0.05)

    async def test(harness: Harness) -> None:
        sent = harness.request(numbered(1, 1)).replace(b"\r\n", b"\n")
        client = harness.connect()
        await client.send(sent)
        await asyncio.sleep(0.07)
        harness.lane.tick()
        assert harness.given_back == {client.descriptor: sent}

    on_lane(test)


@LEAVES
@pytest.mark.parametrize("sent", [0, 20, -1])
def test_a_client_that_leaves_between_or_within_requests(on_lane, leave, sent):
    async def test(harness: Harness) -> None:
        client, part = harness.connect(), harness.request(numbered(1, 1))[:sent]
        await client.send(part)
        await asyncio.sleep(0.01)
        leave(client)
        await until(lambda: harness.lane.connections == 0)
        # Whoever had begun is seen to, and counted, where others are.
        reset = leave is _hurry
        if part and not reset:
            assert harness.given_back == {client.descriptor: part}
        elif not part:
            assert harness.counts.connections_closed == 1

    on_lane(test)


def test_a_connection_that_has_ended_is_not_watched_though_others_still_have_it(on_lane):
    """Who has given it still has it open for a moment, and the kernel would go on telling of it."""

    async def test(harness: Harness) -> None:
        client = harness.connect()
        kept = os.dup(client.descriptor)
        _half_close(client)
        await until(lambda: harness.lane.connections == 0)
        watched = harness.watched()
        # Whatever comes now, would come to what is not there any more.
        os.close(kept)
        assert watched == 0

    on_lane(test)


def test_a_client_that_resets_in_the_middle_of_a_request_comes_back(on_lane):
    async def test(harness: Harness) -> None:
        client, request = harness.connect(), harness.request(numbered(2, 1))
        await client.send(request[:-5])
        await until(lambda: harness.lane._state.connections == 1)
        await asyncio.sleep(0.05)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.leave()
        # Where it is counted as one whose client has left.
        assert await harness.comes_back(client) == request[:-5]

    on_lane(test)
