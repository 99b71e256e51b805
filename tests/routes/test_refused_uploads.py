"""Who is refused while still uploading reads why, also where the connection is closed behind it."""

from __future__ import annotations

import time

import pytest

from service.errors import EngineError
from tests.e2e.raw_http import RawConnection, head
from tests.e2e.scrape import wait_at_rest
from tests.engines import FakeEngine
from tests.servers import ServerThread

_KEY = "correct-horse"
# Far more than the sockets hold, so that the client is still sending when it is refused.
_LENGTH = 16 << 20
_REFUSALS = {
    401: {"authorization": "Bearer nonsense"},
    404: {"path": "/mlp?model=other"},
    406: {"accept": "text/html"},
    413: {"length": _LENGTH + 1},
    415: {"content_type": "text/csv"},
    429: {},
}


@pytest.fixture(scope="module")
def thread():
    """A service whose queue is full by a request that never sends its body."""
    settings = {"max_body_bytes": _LENGTH, "max_queue_bytes": 24 << 20, "api_key": _KEY}
    with ServerThread(FakeEngine(), **settings) as thread, RawConnection(thread.url) as first:
        first.send(head("/mlp", length=_LENGTH, authorization=f"Bearer {_KEY}"))
        yield thread
    assert thread.runtime.admission.requests == 0


def _head(status: int, **headers: object) -> bytes:
    given = {"path": "/mlp", "length": _LENGTH, "authorization": f"Bearer {_KEY}"}
    return head(**{**given, **_REFUSALS[status], **headers})


@pytest.mark.parametrize("status", list(_REFUSALS))
@pytest.mark.parametrize("version", ["close", "HTTP/1.0"])
def test_closing_client_reads_why(thread, status, version):
    """urllib and nginx's default close after each request, and would see a reset instead."""
    data = _head(status, connection="close")
    if version == "HTTP/1.0":
        data = _head(status).replace(b"HTTP/1.1", b"HTTP/1.0")
    for _ in range(3):
        with RawConnection(thread.url) as connection:
            connection.send(data)
            # As a client that reads nothing before it has sent everything.
            connection.send(bytes(_REFUSALS[status].get("length", _LENGTH)))
            assert connection.read().status == status
            assert connection.is_closed()


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_the_answer_does_not_wait_for_the_body(thread, connection):
    with RawConnection(thread.url) as client:
        began = time.monotonic()
        client.send(_head(429, connection=connection))
        assert client.read().status == 429
        assert time.monotonic() - began < 0.5


def test_closing_client_that_sends_no_body_is_let_go(thread):
    with RawConnection(thread.url) as client:
        client.send(_head(429, connection="close"))
        assert client.read().status == 429
        began = time.monotonic()
        assert client.is_closed()
        assert time.monotonic() - began < 5


def test_service_that_is_not_ready_says_so_and_closes():
    """22: new requests are answered 503 during the drain, whatever they upload."""
    with ServerThread(FakeEngine()) as thread:
        thread.runtime.health.self_test(EngineError("layer 3 is off"))
        for _ in range(3):
            with RawConnection(thread.url) as connection:
                connection.send(head("/mlp", length=_LENGTH))
                connection.send(bytes(_LENGTH))
                answer = connection.read()
                assert answer.status == 503
                assert "layer 3 is off" in answer.json()["error"]
                assert answer.headers["connection"] == "close"
                assert connection.is_closed()
        wait_at_rest(thread.url)
