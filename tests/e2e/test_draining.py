"""Stopping: what was accepted is answered, the rest refused, and nothing keeps the process."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.e2e.raw_http import RawConnection, head
from tests.e2e.scrape import Scrape
from tests.engines import FakeEngine, expected
from tests.routes.bodies import LARGE, decode, post, rows
from tests.servers import ServerThread, get, wait_until

pytestmark = pytest.mark.usefixtures("workers")


class _Busy:
    """A service whose engine is blocked on the first of some requests."""

    def __init__(self, thread: ServerThread, engine: FakeEngine, requests: int) -> None:
        self.thread, self.engine = thread, engine
        self._pool = ThreadPoolExecutor(max(1, requests))
        self._client = httpx.Client(base_url=thread.url, timeout=30)
        engine.gate.clear()
        self.answers = [self._pool.submit(post, self._client, rows(2, i)) for i in range(requests)]
        wait_until(lambda: thread.in_progress == requests)
        wait_until(lambda: len(engine.batches) == 1)

    def __enter__(self) -> _Busy:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.gate.set()
        self._pool.shutdown()
        self._client.close()

    def stop(self) -> None:
        self.thread.server.handle_exit(signal.SIGTERM, None)
        wait_until(lambda: not self.thread.runtime.health.ready)


def test_drain_answers_what_was_accepted_and_refuses_the_rest():
    """22: SIGTERM drops queued answers, or closes the port before the balancer notices."""
    engine = FakeEngine()
    x = rows(4)
    request = head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes()
    with (
        ServerThread(engine, drain_delay_s=0.5) as thread,
        RawConnection(thread.url) as half,
        _Busy(thread, engine, 1) as busy,
    ):
        half.send(request[:-100])
        wait_until(lambda: thread.runtime.admission.requests == 1)
        busy.stop()
        assert get(thread.url, "/health/live")[0] == 200
        status, body = get(thread.url, "/health/ready")
        assert status == 503
        assert b"draining" in body
        with RawConnection(thread.url) as late:
            late.send(request)
            refused = late.read()
            assert refused.status == 503
            assert "draining" in refused.json()["error"]
            assert refused.headers["connection"] == "close"
        # The upload that was accepted may go on.
        half.send(request[-100:])
        engine.gate.set()
        np.testing.assert_array_equal(decode(busy.answers[0].result()), expected(rows(2), 0))
        assert half.read().body == expected(x, 0).tobytes()
        assert thread.wait_exit() == 0
    with pytest.raises(OSError, match="refused"):
        get(thread.url, "/health/live")
    assert engine.closed


def test_drain_beyond_its_grace_answers_500_and_exits_1():
    """A hung batch must keep neither its clients nor the process."""
    engine = FakeEngine()
    with ServerThread(engine, shutdown_grace_s=0.5) as thread, _Busy(thread, engine, 3) as busy:
        began = time.monotonic()
        busy.stop()
        for answer in busy.answers:
            assert answer.result().status_code == 500
            assert "shutdown_grace_s 0.5" in answer.result().json()["error"]
        assert thread.wait_exit() == 1
        assert 0.5 <= time.monotonic() - began < 4


@pytest.mark.parametrize("tokens", [4, LARGE])
def test_a_body_that_never_ends_is_refused_at_the_end_of_the_grace(caplog, tokens):
    """One client that stalls must not make the service's end look like a failure."""
    engine = FakeEngine()
    x = rows(tokens)
    with (
        ServerThread(engine, shutdown_grace_s=0.5) as thread,
        RawConnection(thread.url) as half,
    ):
        half.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes()[:-100])
        wait_until(lambda: thread.runtime.admission.requests == 1)
        thread.server.handle_exit(signal.SIGTERM, None)
        refused = half.read()
        assert refused.status == 503
        assert refused.json()["error"] == (
            "draining: the body did not arrive before the service ends"
        )
        assert half.is_closed()
        assert thread.wait_exit() == 0
    assert "engine is dead" not in caplog.text
    assert "Traceback" not in caplog.text


def test_the_port_closes_after_the_delay_however_long_the_last_answers_take():
    engine = FakeEngine()
    with ServerThread(engine, drain_delay_s=0.2) as thread, _Busy(thread, engine, 1) as busy:
        busy.stop()

        def is_closed() -> bool:
            try:
                return get(thread.url, "/health/live")[0] != 200
            except OSError:
                return True

        wait_until(is_closed)
        assert not busy.answers[0].done()
        engine.gate.set()
        assert busy.answers[0].result().status_code == 200
        assert thread.wait_exit() == 0


def test_second_signal_ends_it_at_once():
    engine = FakeEngine()
    with ServerThread(engine) as thread, _Busy(thread, engine, 2) as busy:
        busy.stop()
        began = time.monotonic()
        thread.server.handle_exit(signal.SIGTERM, None)
        assert thread.wait_exit() == 1
        assert time.monotonic() - began < 2
        for answer in busy.answers:
            assert answer.exception() or answer.result().status_code == 500


def test_idle_service_stops_at_once():
    engine = FakeEngine()
    with ServerThread(engine) as thread, RawConnection(thread.url) as idle:
        idle.send(head("/health/live", method="GET"))
        assert idle.read().status == 200
        began = time.monotonic()
        thread.server.handle_exit(signal.SIGINT, None)
        assert thread.wait_exit() == 0
        assert time.monotonic() - began < 2
        assert idle.is_closed()
    assert engine.closed


def test_slow_reader_gets_its_whole_answer_within_the_grace():
    """22: an answer is complete when the client has it, not when the transport has."""
    x = rows(60_000)
    thread = ServerThread(FakeEngine(), max_batch_tokens=60_000)
    with thread, RawConnection(thread.url, receive_buffer=4096) as slow:
        slow.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes())
        wait_until(lambda: Scrape(thread.url).outcomes("mlp") == {"ok": 1})
        thread.server.handle_exit(signal.SIGTERM, None)
        time.sleep(2.5)  # longer than a server waits that only closes its connections
        assert thread.thread.is_alive()
        assert slow.read().body == expected(x, 0).tobytes()
        assert thread.wait_exit() == 0


def test_peer_that_never_reads_is_left_behind_at_the_end_of_the_grace():
    x = rows(60_000)
    thread = ServerThread(FakeEngine(), max_batch_tokens=60_000, shutdown_grace_s=1.0)
    with thread, RawConnection(thread.url, receive_buffer=4096) as deaf:
        deaf.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes())
        wait_until(lambda: Scrape(thread.url).outcomes("mlp") == {"ok": 1})
        began = time.monotonic()
        thread.server.handle_exit(signal.SIGTERM, None)
        assert thread.wait_exit() == 1
        assert time.monotonic() - began < 5


def test_hung_batch_of_a_client_that_left_does_not_keep_the_process(monkeypatch):
    monkeypatch.setattr("service.runtime._STOP_TIMEOUT_S", 0.3)
    engine = FakeEngine()
    engine.gate.clear()
    with ServerThread(engine) as thread:
        with RawConnection(thread.url) as connection:
            x = rows(1)
            connection.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes())
            wait_until(lambda: len(engine.batches) == 1)
        wait_until(lambda: not thread.in_progress)
        began = time.monotonic()
        thread.server.handle_exit(signal.SIGTERM, None)
        assert thread.wait_exit() == 0
        assert time.monotonic() - began < 3
        engine.gate.set()
