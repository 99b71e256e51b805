"""Connections that repeat themselves, which the lane serves: to clients, as any others."""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from service.workers.lane_library import find_library
from tests.e2e.raw_http import RawAnswer, RawConnection, chunked, head
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import FakeEngine, expected
from tests.routes.bodies import JSON, rows
from tests.servers import ServerThread, wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_library() is None, reason="needs liblane.so: make lane"),
]

MARKER = 7777.0


def _request(x: np.ndarray, query: str = "", **headers: object) -> bytes:
    return head(f"/mlp{query}", length=x.nbytes, x_tensor_dtype="fp32", **headers) + x.tobytes()


def _ask(connection: RawConnection, request: bytes) -> RawAnswer:
    connection.send(request)
    return connection.read()


def _ask_anew(thread: ServerThread, request: bytes) -> RawAnswer:
    with RawConnection(thread.url) as connection:
        return _ask(connection, request)


def _maker(answer: RawAnswer) -> str:
    """Who has made the id of a request: the lane has a prefix of its own."""
    return answer.headers["x-request-id"].partition("-")[0]


def _move(thread: ServerThread, connection: RawConnection) -> str:
    """Bring a connection into the lane; returns the prefix of the lane's ids."""
    x = rows(1)
    # Its first answer on a connection comes by the usual way.
    usual = _maker(_ask_anew(thread, _request(x)))
    for _ in range(4):
        answer = _ask(connection, _request(x))
        assert answer.body == expected(x, 0).tobytes()
        if (found := _maker(answer)) != usual:
            return found
    raise AssertionError("the connection does not move into the lane")


def _same(one: RawAnswer, other: RawAnswer) -> bool:
    """Whether two answers differ in nothing but when they were given."""
    changing = {"x-request-id", "date", "server-timing"}
    headers = [
        {name: "" if name in changing else value for name, value in answer.headers.items()}
        for answer in (one, other)
    ]
    return (one.status, one.body) == (other.status, other.body) and headers[0] == headers[1]


@pytest.fixture(scope="module")
def shared() -> Iterator[ServerThread]:
    """For tests that leave it as it was."""
    with ServerThread(FakeEngine(), workers=1) as thread:
        yield thread


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_request_has_the_same_answer_all_along(workers):
    with ServerThread(FakeEngine(), workers=workers) as thread:
        request = _request(rows(3))
        fresh = _ask_anew(thread, request)
        with RawConnection(thread.url) as connection:
            answers = [_ask(connection, request) for _ in range(10)]
        assert fresh.body == expected(rows(3), 0).tobytes()
        assert all(_same(answer, fresh) for answer in answers)
        assert len({answer.headers["x-request-id"] for answer in answers}) == 10
        # The lane has served all but the first ones. (The fresh one may be another front end's.)
        assert len({_maker(answer) for answer in answers}) == 2
        assert len({_maker(answer) for answer in answers[3:]}) == 1
        wait_at_rest(thread.url)
        scrape = Scrape(thread.url)
        assert scrape.outcomes("mlp") == {"ok": 11}
        for stage in ("receive", "decode", "queue", "encode"):
            assert scrape("mlp_stage_duration_seconds_count", stage=stage) == 11
        assert scrape("mlp_request_duration_seconds_count", api="mlp") == 11


def test_two_sizes_in_turns_stay_in_the_lane():
    with ServerThread(FakeEngine(), workers=1) as thread, RawConnection(thread.url) as connection:
        lane = _move(thread, connection)
        found = []
        for number in range(20):
            x = rows(1 + 4 * (number % 2), number)
            answer = _ask(connection, _request(x))
            assert answer.body == expected(x, 0).tobytes()
            found.append(_maker(answer) == lane)
        assert all(found[6:])


AS_JSON = json.dumps({"inputs": rows(1).tolist()}).encode()
UNUSUAL = {
    "another route": head("/health/live", method="GET"),
    "no route": head("/nowhere", method="GET"),
    "json": head("/mlp", length=len(AS_JSON), content_type=JSON) + AS_JSON,
    "an odd length": head("/mlp", length=7, x_tensor_dtype="fp32") + bytes(7),
    "an unknown type": _request(rows(1), content_type="text/plain"),
    "an unknown layer": _request(rows(1), "?layer=77"),
    "no rows": _request(rows(0)),
    "chunked": head("/mlp", Transfer_Encoding="chunked", x_tensor_dtype="fp32")
    + chunked(rows(2).tobytes(), 50),
    "expects": _request(rows(1), Expect="100-continue"),
    "garbage": b"\x16\x03\x01 what is this? \r\n\r\n",
    "bare line ends": _request(rows(1)).replace(b"\r\n", b"\n"),
    "the last": _request(rows(1), Connection="close"),
    "of old": _request(rows(1)).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a long head": _request(rows(1), x_long="a" * 3000),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_answered_as_on_a_fresh_connection(shared, name):
    request = UNUSUAL[name]
    with RawConnection(shared.url) as connection:
        lane = _move(shared, connection)
        with RawConnection(shared.url) as fresh:
            answers = [_ask(one, request) for one in (connection, fresh)]
            if answers[0].status == 100:
                answers = [one.read() for one in (connection, fresh)]
            assert _same(*answers), answers
            if answers[1].headers.get("connection") == "close" or name == "garbage":
                assert fresh.is_closed()
                assert connection.is_closed()
                return
        # And it finds its way back.
        x = rows(1, 5)
        found = [_ask(connection, _request(x)) for _ in range(4)]
        assert {answer.body for answer in found} == {expected(x, 0).tobytes()}
        assert _maker(found[-1]) == lane


@pytest.mark.parametrize("cut", [1, 20, -1, "body"])
@pytest.mark.parametrize("moved", [False, True], ids=["fresh", "in the lane"])
def test_a_request_that_comes_apart(shared, cut, moved):
    with RawConnection(shared.url) as connection:
        if moved:
            _move(shared, connection)
        for number in range(4):
            x = rows(1, number)
            request = _request(x)
            at = len(request) - x.nbytes if cut == "body" else cut
            connection.send(request[:at])
            time.sleep(0.02)
            connection.send(request[at:])
            assert connection.read().body == expected(x, 0).tobytes()


def test_a_request_that_stalls_in_the_lane_is_a_timeout_as_any_other():
    with (
        ServerThread(FakeEngine(), workers=1, receive_timeout_s=0.5) as thread,
        RawConnection(thread.url) as connection,
    ):
        _move(thread, connection)
        assert _ask(connection, _request(rows(1))[:-1]).status == 408
        assert connection.is_closed()
        wait_at_rest(thread.url)


def test_who_has_another_key_is_let_in_by_the_lane_no_more_than_elsewhere():
    x = rows(1)
    with (
        ServerThread(FakeEngine(), workers=1, api_key="right-key") as thread,
        RawConnection(thread.url) as connection,
    ):
        right = _request(x, Authorization="Bearer right-key")
        makers = [_maker(_ask(connection, right)) for _ in range(4)]
        assert len(set(makers)) == 2
        assert _ask(connection, _request(x, Authorization="Bearer wrong-key")).status == 401
        assert _ask(connection, _request(x)).status == 401
        assert _ask(connection, right).status == 200


def test_an_idle_connection_in_the_lane_is_closed_when_it_is_time():
    with (
        ServerThread(FakeEngine(), workers=1, keep_alive_s=1) as thread,
        RawConnection(thread.url) as connection,
    ):
        _move(thread, connection)
        time.sleep(0.6)
        assert _ask(connection, _request(rows(1))).status == 200
        began = time.monotonic()
        assert connection.is_closed()
        assert 0.8 < time.monotonic() - began < 2
        wait_until(lambda: not any(one.connections for one in thread.front_ends))


def test_who_leaves_the_lane_is_forgotten_and_counted():
    engine = FakeEngine()
    with ServerThread(engine, workers=1) as thread:
        with RawConnection(thread.url) as connection:
            _move(thread, connection)
            before = Scrape(thread.url).outcomes("mlp")
            engine.gate.clear()
            connection.send(_request(rows(1)))
            wait_until(lambda: thread.in_progress == 1)
        wait_until(lambda: Scrape(thread.url).outcomes("mlp") == {**before, "cancelled": 1})
        engine.gate.set()
        wait_at_rest(thread.url)
        wait_until(lambda: not thread.in_progress)
        wait_until(lambda: not any(one.connections for one in thread.front_ends))


def test_of_a_bundle_that_fails_only_the_guilty_fails_and_all_are_counted_once():
    engine = FakeEngine()
    engine.fail_marker = MARKER
    with ServerThread(engine, workers=1) as thread, ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(thread.url)) for _ in range(5)]
        for connection in connections:
            _move(thread, connection)
        before, batches = Scrape(thread.url), len(engine.batches)
        asked = [rows(1, number) for number in range(len(connections))]
        asked[3][:] = MARKER
        engine.gate.clear()
        # The first two fill the rooms, the others gather.
        for waiting, (connection, x) in enumerate(zip(connections, asked, strict=True)):
            connection.send(_request(x))
            wait_until(lambda: len(engine.batches) == batches + 1)
            wait_until(lambda count=waiting: Scrape(thread.url)("mlp_queue_requests") == count)
        engine.gate.set()
        for number, (connection, x) in enumerate(zip(connections, asked, strict=True)):
            answer = connection.read()
            if number == 3:
                assert (answer.status, answer.json()["code"]) == (500, "engine_error")
            else:
                assert answer.body == expected(x, 0).tobytes()
        wait_at_rest(thread.url)
        after = Scrape(thread.url)
    ok = before.outcomes("mlp")["ok"] + 4
    assert after.outcomes("mlp") == {"ok": ok, "engine_error": 1}
    for stage in ("receive", "decode"):
        name = "mlp_stage_duration_seconds_count"
        assert after(name, stage=stage) - before(name, stage=stage) == 5, stage


@pytest.mark.parametrize("state", ["idle", "busy", "in a head"])
def test_a_drain_while_a_connection_is_in_the_lane_ends_well(state, capfd):
    engine = FakeEngine()
    with ServerThread(engine, workers=1) as thread, RawConnection(thread.url) as connection:
        _move(thread, connection)
        request, began = _request(rows(1, 3)), time.monotonic()
        if state == "busy":
            engine.gate.clear()
            connection.send(request)
            wait_until(lambda: thread.in_progress == 1)
        elif state == "in a head":
            connection.send(request[:20])
            time.sleep(0.05)
        thread.server.handle_exit(signal.SIGTERM, None)
        wait_until(lambda: not thread.runtime.health.ready)
        if state == "busy":
            time.sleep(0.2)
            engine.gate.set()
            assert connection.read().body == expected(rows(1, 3), 0).tobytes()
        assert thread.wait_exit() == 0
        assert time.monotonic() - began < 5
        assert connection.is_closed()
    log = capfd.readouterr()
    assert "Traceback" not in log.err + log.out


def test_a_request_that_comes_to_a_service_that_drains_is_refused_as_any_other():
    with (
        ServerThread(FakeEngine(), workers=1, drain_delay_s=1.0) as thread,
        RawConnection(thread.url) as connection,
    ):
        _move(thread, connection)
        thread.server.handle_exit(signal.SIGTERM, None)
        wait_until(lambda: not thread.runtime.health.ready)
        # Until the front end has heard of it.
        time.sleep(0.2)
        answer = _ask(connection, _request(rows(1)))
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert thread.wait_exit() == 0


def test_the_grace_ends_while_the_engine_is_busy_with_a_bundle_of_the_lane(capfd):
    engine = FakeEngine(concurrency=2)
    with (
        ServerThread(engine, workers=1, shutdown_grace_s=0.5) as thread,
        RawConnection(thread.url) as connection,
    ):
        _move(thread, connection)
        engine.gate.clear()
        connection.send(_request(rows(1)))
        wait_until(lambda: thread.in_progress == 1)
        thread.server.handle_exit(signal.SIGTERM, None)
        answer = connection.read()
        assert (answer.status, answer.json()["code"]) == (500, "engine_dead")
        engine.gate.set()
        assert thread.wait_exit() != 0
    assert "KeyError" not in capfd.readouterr().err


def test_many_connections_at_once_each_with_their_own_answers():
    def client_of(number: int) -> set[str]:
        luck, makers = random.Random(number), set()
        with RawConnection(thread.url) as connection:
            for index in range(60):
                x = rows(luck.choice([1, 1, 2, 5, 700]), 1000 * number + index)
                answer = _ask(connection, _request(x))
                assert answer.body == expected(x, 0).tobytes()
                makers.add(_maker(answer))
        return makers

    with (
        ServerThread(FakeEngine(run_s=0.001, concurrency=2), workers=2) as thread,
        ThreadPoolExecutor(12) as pool,
    ):
        makers = set().union(*pool.map(client_of, range(12)))
        # Two of each front end.
        assert len(makers) == 4
        wait_at_rest(thread.url)
        wait_until(lambda: not thread.in_progress)
        scrape = Scrape(thread.url)
        assert scrape.outcomes("mlp") == {"ok": 720}
        for stage in ("receive", "decode", "queue", "encode"):
            assert scrape("mlp_stage_duration_seconds_count", stage=stage) == 720


def test_a_connection_that_has_come_back_is_pushed_back_as_any_other() -> None:
    engine = FakeEngine()
    with ServerThread(engine, workers=1) as thread, RawConnection(thread.url) as connection:
        _move(thread, connection)
        engine.gate.clear()
        # Of a head that is not known, so that it comes back with all of them unanswered.
        strange = _request(rows(1), x_strange="1")
        connection.send(3 * strange)
        with pytest.raises(TimeoutError):
            _flood(connection.socket, _request(rows(140), x_strange="2"), 64 << 20)
        engine.gate.set()


def _flood(client: socket.socket, request: bytes, nbytes: int) -> None:
    """Send that much, if it is taken."""
    client.settimeout(1.0)
    view, sent = memoryview(request), 0
    while sent < nbytes:
        sent += client.send(view[sent % len(view) :])
