"""The lane: who repeats himself is answered without the interpreter, each with his own rows."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from service.engine.base import Output
from service.workers.records import Kind
from service.workers.rooms import HALF_BYTES
from tests.e2e.raw_http import RawAnswer
from tests.engines import HIDDEN, expected
from tests.workers.lane_harness import (
    Client,
    Harness,
    numbered,
    parse,
    request_head,
    until,
)

# More rows than a room holds.
WIDE = {"max_batch_tokens": 1 << 20, "max_queue_tokens": 1 << 23}


async def _is_answered(
    client: Client, x: np.ndarray, layer: int = 0, output: Output = Output.MLP
) -> RawAnswer:
    answer = await client.read()
    assert answer.status == 200, answer
    assert answer.body == expected(x, layer, output).tobytes()
    return answer


def test_a_head_is_wanted_the_second_time_it_came_and_only_if_it_has_a_meaning(on_lane):
    async def test(harness: Harness) -> None:
        usual, other = request_head(1), request_head(2)
        unusual = request_head(1, x_unusual=1)
        found = [
            [harness.lane.wants(first, *parse(first)) for first in (usual, other, unusual)]
            for _ in range(5)
        ]
        assert found == [[False] * 3] + [[True, True, False]] * 4

    on_lane(test)


def test_a_head_without_a_meaning_is_looked_into_once(on_lane):
    async def test(harness: Harness) -> None:
        asked = []
        harness.lane._find_meaning = lambda *request: asked.append(request)
        first = request_head(1)
        assert not any(harness.lane.wants(first, *parse(first)) for _ in range(5))
        assert len(asked) == 1

    on_lane(test)


def test_a_head_that_is_too_long_or_a_request_that_fits_no_room_is_not_wanted(on_lane):
    async def test(harness: Harness) -> None:
        gated = HALF_BYTES // 2 // (4 * HIDDEN) + 1
        for first in (
            request_head(1, x_long="a" * 3000),
            request_head(65, "?layer=1"),
            request_head(gated, "?output=gated"),
            request_head(0),
        ):
            assert not any(harness.lane.wants(first, *parse(first)) for _ in range(5))

    on_lane(test, max_batch_tokens=64)


def test_requests_of_two_connections_go_as_one_and_each_gets_its_own_rows(on_lane):
    async def test(harness: Harness) -> None:
        busy = await harness.busy()
        asked = [numbered(count, 100 * count) for count in (3, 1, 2)]
        clients = [await harness.ask(x) for x in asked]
        assert harness.counts.gathered == (3, 6, 6 * 4 * HIDDEN)
        harness.finish_all()
        (record,) = harness.said[len(busy) :]
        assert (record.kind, record.tokens, record.body_bytes) == (Kind.BUNDLE, 6, 3)
        assert record.nbytes == 6 * 4 * HIDDEN
        for client, x in zip(clients, asked, strict=True):
            assert (await _is_answered(client, x)).headers["x-rows"] == str(len(x))
        assert harness.counted("ok") == 5
        assert harness.observed() == [5] * 4

    on_lane(test)


def test_the_headers_of_an_answer(on_lane):
    async def test(harness: Harness) -> None:
        x = numbered(2, 1)
        client = await harness.ask(x)
        harness.finish(tokens=40)
        answer = await _is_answered(client, x)
        names = ["date", "x-request-id", "x-mlp-kernel", "x-mlp-batch-tokens", "server-timing"]
        assert list(answer.headers) == [*names, "content-type", "x-rows", "content-length"]
        found = [answer.headers[name] for name in ("date", "x-mlp-kernel", "x-mlp-batch-tokens")]
        assert found == ["today", "kernel", "40"]
        queue, execute = answer.headers["server-timing"].split(", ")
        assert 1.0 <= float(queue.removeprefix("queue;dur=")) < 1000
        assert execute == "execute;dur=2.000"

    on_lane(test)


def test_the_time_in_the_queue_begins_when_a_request_came(on_lane):
    async def test(harness: Harness) -> None:
        busy = await harness.busy()
        client = await harness.ask(numbered(1, 1))
        await asyncio.sleep(0.05)
        harness.finish_all()
        answer = await client.read()
        assert float(answer.headers["server-timing"].split(",")[0][len("queue;dur=") :]) >= 50
        record = harness.said[len(busy)]
        assert 0.05 <= record.second_s < 1

    on_lane(test)


def test_a_request_id_is_repeated_and_those_that_are_made_are_distinct(on_lane):
    async def test(harness: Harness) -> None:
        client, made = harness.connect(), set()
        for _ in range(3):
            for own in ({}, {"x_request_id": "mine"}):
                await harness.send(client, harness.request(numbered(1, 1), **own))
                harness.finish()
                found = (await client.read()).headers["x-request-id"]
                assert (found == "mine") == bool(own)
                made.add(found)
        assert len(made) == 4

    on_lane(test)


@pytest.mark.parametrize("pieces", ["bytes", "head and body", "last byte"])
def test_a_request_in_pieces(on_lane, pieces):
    async def test(harness: Harness) -> None:
        x = numbered(2, 7)
        request, client = harness.request(x), harness.connect()
        cuts = {
            "bytes": range(len(request)),
            "head and body": [0, len(request) - x.nbytes],
            "last byte": [0, len(request) - 1],
        }[pieces]
        for start, end in zip(cuts, [*cuts[1:], len(request)], strict=True):
            assert not harness.said
            await client.send(request[start:end])
            await asyncio.sleep(0.0005)
        await until(lambda: harness.bundles)
        harness.finish()
        await _is_answered(client, x)

    on_lane(test)


def test_pipelined_requests_are_answered_in_order(on_lane):
    async def test(harness: Harness) -> None:
        asked = [numbered(count, 10 * count) for count in (2, 1, 4000, 3, 4000, 1)]
        client = harness.connect()
        sending = asyncio.ensure_future(client.send(b"".join(map(harness.request, asked))))
        for x in asked:
            await until(lambda: harness.bundles)
            assert harness.in_progress.count == 1
            harness.finish()
            await _is_answered(client, x)
        await sending
        assert harness.counted("ok") == len(asked)

    on_lane(test, max_batch_tokens=4096)


def test_an_unknown_head_comes_back_with_what_was_read(on_lane):
    async def test(harness: Harness) -> None:
        known = harness.request(numbered(1, 1))
        for sent in (
            request_head(2) + b"some rows",
            known.replace(b"Host", b"host"),
            b"GET / HTTP/1.1\r\n\r\n",
            b"a" * 3000,
        ):
            client = harness.connect()
            await client.send(sent)
            read = await harness.comes_back(client)
            # A piece that is too long for a head may come in two.
            assert sent.startswith(read)
            assert len(read) == len(sent) or len(read) >= 2048
        assert not harness.said

    on_lane(test)


def test_what_comes_behind_a_request_comes_back_once_that_is_answered(on_lane):
    async def test(harness: Harness) -> None:
        x, rest = numbered(1, 1), request_head(2) + b"some rows"
        client = harness.connect()
        await harness.send(client, harness.request(x) + rest)
        assert not harness.given_back
        harness.finish()
        await _is_answered(client, x)
        assert await harness.comes_back(client) == rest

    on_lane(test)


def test_whoever_would_make_more_wait_than_may_comes_back(on_lane):
    async def test(harness: Harness) -> None:
        busy = await harness.busy()
        waiting = [await harness.ask(numbered(4, 100)) for _ in range(2)]
        late, request = harness.connect(), harness.request(numbered(3, 200))
        await late.send(request)
        assert await harness.comes_back(late) == request
        # There was room for fewer.
        waiting.append(await harness.ask(numbered(2, 300)))
        assert harness.counts.gathered == (3, 10, 10 * 4 * HIDDEN)
        harness.finish_all()
        for client in (*busy, *waiting):
            assert (await client.read()).status == 200

    on_lane(test, max_queue_tokens=80, max_batch_tokens=8)


def test_what_waits_beside_the_lane_leaves_it_less(on_lane):
    class Beside:
        gathered = (1, 9, 0)
        oldest_s = 0.0

        def flush(self) -> None:
            """It has nothing."""

    async def test(harness: Harness) -> None:
        busy = await harness.busy()
        harness.free.join(beside := Beside())
        late, request = harness.connect(), harness.request(numbered(2, 200))
        await late.send(request)
        assert await harness.comes_back(late) == request
        waiting = await harness.ask(numbered(1, 300))
        assert harness.counts.gathered == (2, 10, 4 * HIDDEN)
        beside.gathered = (0, 0, 0)
        harness.finish_all()
        for client in (*busy, waiting):
            assert (await client.read()).status == 200

    on_lane(test, max_queue_tokens=80, max_batch_tokens=8)


def test_groups_are_not_mixed_and_the_oldest_goes_first(on_lane):
    async def test(harness: Harness) -> None:
        busy = await harness.busy()
        kinds = [(1, "mlp"), (0, "gated"), (1, "mlp"), (1, "gated"), (0, "gated"), (0, "mlp")]
        asked = [numbered(index + 1, 10 * index) for index in range(len(kinds))]
        clients = [
            await harness.ask(x, f"?layer={layer}&output={output}")
            for x, (layer, output) in zip(asked, kinds, strict=True)
        ]
        harness.finish_all()
        bundles = [(record.layer, record.tokens) for record in harness.said[len(busy) :]]
        assert bundles == [(1, 1 + 3), (0, 2 + 5), (1, 4), (0, 6)]
        for client, x, (layer, output) in zip(clients, asked, kinds, strict=True):
            await _is_answered(client, x, layer, Output(output))

    on_lane(test)


@pytest.mark.parametrize(
    ("tokens", "query", "limits", "bundles"),
    [
        (3, "", {"max_batch_tokens": 8}, [6, 6, 3]),
        # As many as fit half a room: of rows,
        (4096, "", {**WIDE}, [4 * 4096, 4096]),
        # and of answers.
        (4096, "?output=gated", {**WIDE}, [2 * 4096, 2 * 4096, 4096]),
    ],
)
def test_a_bundle_fits_a_batch_and_a_room(on_lane, tokens, query, limits, bundles):
    async def test(harness: Harness) -> None:
        busy = await harness.busy()
        asked = [numbered(tokens, 10 * index) for index in range(5)]
        clients = [await harness.ask(x, query) for x in asked]
        output = Output.GATED if query else Output.MLP
        reading = [
            asyncio.ensure_future(_is_answered(client, x, output=output))
            for client, x in zip(clients, asked, strict=True)
        ]
        harness.finish_all()
        assert [record.tokens for record in harness.said[len(busy) :]] == bundles
        await asyncio.gather(*reading)

    on_lane(test, **limits)


def test_a_bundle_says_its_deadline(on_lane):
    async def test(harness: Harness) -> None:
        before = harness.lane._clock()
        await harness.ask(numbered(1, 1))
        (record,) = harness.bundles
        assert before + 30 <= record.first_s <= harness.lane._clock() + 30
        harness.finish()

    on_lane(test, request_timeout_s=30)


@pytest.mark.parametrize("state", ["idle", "in a head", "in a body"])
def test_a_lane_that_closes_gives_back_who_is_not_served(on_lane, state):
    async def test(harness: Harness) -> None:
        request, client = harness.request(numbered(1, 1)), harness.connect()
        sent = request[: {"idle": 0, "in a head": 10, "in a body": len(request) - 1}[state]]
        await client.send(sent)
        await asyncio.sleep(0.02)
        harness.lane.set_open(False)
        assert harness.given_back == {client.descriptor: sent}
        assert harness.lane.connections == 0
        assert not harness.lane.wants(request_head(1), *parse(request_head(1)))
        harness.lane.set_open(True)
        assert harness.lane.wants(request_head(1), *parse(request_head(1)))

    on_lane(test)


def test_a_lane_that_closes_gives_back_who_is_served_behind_the_answer(on_lane):
    async def test(harness: Harness) -> None:
        busy, waiting = await harness.busy(), await harness.ask(numbered(1, 1))
        harness.lane.set_open(False)
        assert not harness.given_back
        assert await harness.lane.none_left(0.01) == 3
        none_left = asyncio.ensure_future(harness.lane.none_left(5))
        await asyncio.sleep(0)
        harness.finish_all()
        for client in (*busy, waiting):
            assert (await client.read()).status == 200
            assert await harness.comes_back(client) == b""
        assert await none_left == 0

    on_lane(test)


def test_heads_give_way_to_newer_ones_and_are_known_again(on_lane, monkeypatch):
    monkeypatch.setattr("service.workers.lane._HEADS", 2)

    async def test(harness: Harness) -> None:
        first, *others = [harness.request(numbered(count, count)) for count in (1, 2, 3)]
        client = harness.connect()
        await client.send(first)
        assert await harness.comes_back(client) == first
        for count in (2, 3, 1):
            x = numbered(count, 50 * count)
            client = await harness.ask(x)
            harness.finish()
            await _is_answered(client, x)
        assert len(others) == 2

    on_lane(test)
