"""Connections on which no request is under way: closed in time, whatever comes on them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from tests.e2e.raw_http import Closed, RawConnection, head
from tests.engines import FakeEngine, expected
from tests.routes.bodies import LARGE, rows
from tests.servers import ServerThread, wait_until

KEEP_ALIVE_S = 1
BODY_LIMIT = 512 << 10


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "2 workers"])
def thread(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    with ServerThread(
        FakeEngine(),
        workers=request.param,
        keep_alive_s=KEEP_ALIVE_S,
        max_body_bytes=BODY_LIMIT,
    ) as one:
        yield one


def _request(tokens: int) -> bytes:
    x = rows(tokens)
    return head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes()


_GET = head("/health/live", method="GET")
_REFUSED = {
    404: head("/nothing", length=1_000_000),
    405: head("/health/live", length=1_000_000),
    413: head("/mlp", length=1_000_000),
}


def _seconds_open(connection: RawConnection, drop: bytes) -> float:
    """How long the service keeps a connection on which `drop` comes again and again."""
    connection.socket.settimeout(0.1)
    began = time.monotonic()
    while time.monotonic() - began < 5 * KEEP_ALIVE_S:
        with contextlib.suppress(ConnectionError):
            connection.send(drop)
        if connection.is_closed():
            break
    return time.monotonic() - began


@pytest.mark.parametrize(
    "request_",
    [b"", _GET, _request(1), _request(LARGE)],
    ids=["none", "without a body", "small", "large"],
)
def test_empty_lines_are_no_request(thread, request_):
    """A single one kept the connection open for ever."""
    with RawConnection(thread.url) as connection:
        if request_:
            connection.send(request_)
            assert connection.read().status == 200
        assert 0.7 * KEEP_ALIVE_S < _seconds_open(connection, b"\r\n") < 3 * KEEP_ALIVE_S


@pytest.mark.parametrize("status", list(_REFUSED))
def test_the_rest_of_a_refused_body_has_as_long_as_an_idle_connection(thread, status):
    """One byte of it kept the connection open for ever."""
    with RawConnection(thread.url) as connection:
        connection.send(_REFUSED[status])
        assert connection.read().status == status
        assert 0.7 * KEEP_ALIVE_S < _seconds_open(connection, b"x") < 3 * KEEP_ALIVE_S


@pytest.mark.parametrize("status", list(_REFUSED))
def test_behind_the_rest_of_a_refused_body_a_connection_is_idle_anew(thread, status):
    with RawConnection(thread.url) as connection:
        connection.send(_REFUSED[status])
        assert connection.read().status == status
        time.sleep(0.7 * KEEP_ALIVE_S)
        connection.send(bytes(1_000_000))
        time.sleep(0.7 * KEEP_ALIVE_S)
        connection.send(_GET)
        assert connection.read().status == 200


@pytest.mark.parametrize("path", ["/nothing", "/health/live", "/mlp"])
def test_who_reads_nothing_before_all_is_sent_gets_the_refusal(thread, path):
    # Far more than the sockets hold.
    body = bytes(32 << 20)
    with RawConnection(thread.url) as connection:
        connection.send(head(path, length=len(body)))
        connection.send(body)
        assert connection.read().status in (404, 405, 413)
        connection.send(_GET)
        assert connection.read().status == 200


def test_who_sends_no_http_of_ours_gets_the_refusal_too(thread):
    """Closed at once, a connection with bytes that were not read is reset."""
    length = 32 << 20
    upgrade = head("/mlp", length=length, connection="Upgrade", upgrade="h2c")
    for start in (upgrade, b"\0" * 100):
        with RawConnection(thread.url) as connection:
            connection.send(start)
            connection.send(bytes(length))
            assert connection.read().status == 400
            assert connection.is_closed()


def test_no_more_than_so_much_of_a_refused_body_is_read(monkeypatch):
    """Gigabytes of it were, for as long as they came."""
    limit = 4 << 20
    monkeypatch.setattr("service.http_protocol.MAX_REST_BYTES", limit)
    with ServerThread(FakeEngine(), workers=0) as thread:
        for length, closed in ((limit - 1, False), (10**12, True)):
            with RawConnection(thread.url) as connection:
                connection.send(head("/nothing", length=length))
                assert connection.read().status == 404
                # Far more than the sockets hold beyond it.
                sent = 0
                with contextlib.suppress(ConnectionError):
                    while sent < min(length, 32 * limit):
                        connection.send(bytes(min(limit // 4, length - sent)))
                        sent += limit // 4
                assert (sent < length) == closed
                with contextlib.suppress(ConnectionError):
                    connection.send(_GET)
                if closed:
                    assert sent < 32 * limit
                    with pytest.raises(Closed):
                        connection.read()
                else:
                    assert connection.read().status == 200


@pytest.mark.parametrize("tokens", [2, LARGE])
def test_a_request_that_has_begun_behind_another_is_not_idle(tokens):
    """It was cut off where its headers came later than the first's answer by the idle time."""
    engine = FakeEngine()
    engine.gate.clear()
    with (
        ServerThread(engine, workers=0, keep_alive_s=KEEP_ALIVE_S) as thread,
        RawConnection(thread.url) as connection,
    ):
        connection.send(_request(tokens) + _GET[:20])
        wait_until(lambda: len(engine.batches) == 1)
        engine.gate.set()
        assert connection.read().body == expected(rows(tokens), 0).tobytes()
        time.sleep(1.7 * KEEP_ALIVE_S)
        connection.send(_GET[20:])
        assert connection.read().status == 200


@pytest.mark.parametrize("tokens", [2, LARGE])
def test_headers_that_are_not_read_yet_are_not_late(tokens, monkeypatch):
    """Behind a request that waits for its turn nothing is read, for as long as the first takes."""
    monkeypatch.setattr("service.http_protocol.HEADER_TIMEOUT_S", 0.2)
    engine = FakeEngine()
    engine.gate.clear()
    with (
        ServerThread(engine, workers=0) as thread,
        RawConnection(thread.url) as connection,
    ):
        connection.send(_request(tokens) + _request(2) + _GET[:20])
        wait_until(lambda: len(engine.batches) == 1)
        connection.send(_GET[20:])
        time.sleep(1.0)
        engine.gate.set()
        for count in (tokens, 2):
            assert connection.read().body == expected(rows(count), 0).tobytes()
        assert connection.read().status == 200
