"""Bodies that the kernel writes into their slots, and answers that it reads out of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from tests.e2e.raw_http import RawConnection, head
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import FakeEngine, expected
from tests.routes.bodies import rows
from tests.servers import ServerThread, wait_until

pytestmark = pytest.mark.usefixtures("workers")

# 3.84 MB.
TOKENS = 60_000


@pytest.fixture
def thread() -> Iterator[ServerThread]:
    with ServerThread(FakeEngine(), max_batch_tokens=TOKENS, max_queue_tokens=20 * TOKENS) as one:
        yield one


def _request(x: np.ndarray, **headers: object) -> bytes:
    return head("/mlp", length=x.nbytes, x_tensor_dtype="fp32", **headers) + x.tobytes()


def _assert_right(connection: RawConnection, x: np.ndarray) -> None:
    answer = connection.read()
    assert answer.status == 200
    assert answer.body == expected(x, 0).tobytes()


def test_what_comes_right_behind_a_large_body_is_another_request(thread):
    """The parser has not seen the end of the first, and must begin anew with the second."""
    requests = [rows(count, count) for count in (TOKENS, 3, 20_000, 20_001, 0, TOKENS)]
    with RawConnection(thread.url) as connection, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(connection.send, b"".join(map(_request, requests)))
        for x in requests:
            _assert_right(connection, x)
        sending.result()
        connection.send(head("/health/ready", method="GET"))
        assert connection.read().status == 200


@pytest.mark.parametrize("first", [1, 50_000, 200_000])
def test_a_body_in_pieces(thread, first):
    x = rows(10_000)
    message = _request(x)
    start = len(message) - x.nbytes
    with RawConnection(thread.url) as connection:
        connection.send(message[: start + first])
        for at in range(start + first, len(message), 150_001):
            time.sleep(0.01)
            connection.send(message[at : at + 150_001])
        _assert_right(connection, x)


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(thread):
    x = rows(TOKENS)
    with RawConnection(thread.url) as connection:
        for _ in range(2):
            message = _request(x, expect="100-continue")
            connection.send(message[: len(message) - x.nbytes])
            assert connection.read().status == 100
            connection.send(x.tobytes())
            _assert_right(connection, x)


def test_a_body_that_stops_is_408_and_its_slot_is_safe_from_what_comes_later(workers):
    x, other = rows(TOKENS, 1), rows(TOKENS, 2)
    with ServerThread(
        FakeEngine(), max_batch_tokens=TOKENS, max_queue_tokens=20 * TOKENS, receive_timeout_s=0.5
    ) as thread:
        with RawConnection(thread.url) as stopped, RawConnection(thread.url) as next_one:
            message = _request(x)
            stopped.send(message[:1_000_000])
            answer = stopped.read()
            assert answer.status == 408
            assert answer.headers["connection"] == "close"
            wait_at_rest(thread.url)
            # The same slot, most likely.
            request = _request(other)
            next_one.send(request[:2_000_000])
            with contextlib.suppress(OSError):
                stopped.send(message[1_000_000:])
            next_one.send(request[2_000_000:])
            _assert_right(next_one, other)
            assert stopped.is_closed()
        assert Scrape(thread.url).outcomes("mlp") == {"receive_timeout": 1, "ok": 1}


def test_a_client_that_leaves_within_a_large_body(thread):
    message = _request(rows(TOKENS))
    for part in (300_000, 2_000_000, len(message) - 1):
        with RawConnection(thread.url) as connection:
            connection.send(message[:part])
            wait_until(lambda: thread.runtime.admission.tokens == TOKENS)
        wait_at_rest(thread.url)
    wait_until(lambda: Scrape(thread.url).outcomes("mlp") == {"cancelled": 3})


def test_a_client_that_leaves_within_a_large_answer_is_no_error(workers, capfd):
    x = rows(TOKENS)
    with ServerThread(FakeEngine(), max_batch_tokens=TOKENS) as thread:
        for _ in range(4):
            with RawConnection(thread.url, receive_buffer=4096) as connection:
                connection.send(_request(x))
                assert connection.socket.recv(1000).startswith(b"HTTP/1.1 200")
        wait_until(lambda: thread.in_progress == 0)
        wait_at_rest(thread.url)
    assert "Traceback" not in capfd.readouterr().err


def test_a_slow_reader_gets_its_own_bytes_whatever_others_do_meanwhile(thread):
    """3.1: a slot that is used anew while the transport still reads it gives others' bytes."""
    slow_x = rows(TOKENS, 77)
    with RawConnection(thread.url, receive_buffer=4096) as slow:
        slow.send(_request(slow_x))
        wait_until(lambda: Scrape(thread.url).outcomes("mlp") == {"ok": 1})
        with RawConnection(thread.url) as busy:
            for seed in range(10):
                x = rows(TOKENS, seed)
                busy.send(_request(x))
                _assert_right(busy, x)
        _assert_right(slow, slow_x)
        slow.send(_request(rows(2)))
        _assert_right(slow, rows(2))
    wait_until(lambda: thread.in_progress == 0)
    if thread.workers:
        assert thread.server.answer_bytes == 0


def test_slots_are_lent_to_a_client_that_does_not_read_for_a_while_only(workers):
    if not workers:
        pytest.skip("answers have memory of their own there")
    x = rows(TOKENS)
    limits = {"max_batch_tokens": TOKENS, "max_queue_bytes": 4 << 20, "max_body_bytes": 4 << 20}
    engine = FakeEngine()
    with ServerThread(engine, receive_timeout_s=1.0, **limits) as thread, ExitStack() as stack:
        # Two slots of 4 MiB for answers: one may be held, beyond that they are taken out.
        for _ in range(4):
            deaf = stack.enter_context(RawConnection(thread.url, receive_buffer=4096))
            deaf.send(_request(x))
            # The queue has room for one request, and the memory for one answer besides a held one.
            assert engine.started.acquire(timeout=10)
            wait_until(lambda: thread.server.answer_bytes <= 4 << 20)
        with RawConnection(thread.url) as reader:
            reader.send(_request(x))
            _assert_right(reader, x)
        # What is taken out goes back with the next message.
        wait_until(lambda: thread.server.answer_bytes <= 4 << 20)
        wait_until(lambda: thread.server.answer_bytes == 0, 5)
