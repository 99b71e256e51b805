"""What is refused, when, and that what it held comes back."""

from __future__ import annotations

import gzip
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.e2e.raw_http import RawConnection, chunked, head
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import HIDDEN, FakeEngine, expected
from tests.routes.bodies import JSON, RAW, decode, encode, post, rows, v2_body, v2_decode
from tests.servers import ServerThread, is_ready

_ROW_BYTES = HIDDEN * 4
_LIMIT = 64 << 10


@pytest.fixture(scope="module")
def small():
    """A service with a body limit of 64 KiB = 1024 FP32 rows."""
    thread = ServerThread(FakeEngine(), max_body_bytes=_LIMIT, max_json_bytes=32 << 10)
    with thread, httpx.Client(base_url=thread.url) as client:
        yield client


def _fp32(path: str, **headers: object) -> bytes:
    return head(path, x_tensor_dtype="fp32", **headers)


def test_body_of_exactly_the_limit_is_served(small):
    """25: a small silent default limit, and a 413 that nobody understands."""
    x = rows(_LIMIT // _ROW_BYTES)
    answer = small.post("/mlp", content=x.tobytes(), headers={"x-tensor-dtype": "fp32"})
    np.testing.assert_array_equal(decode(answer), expected(x, 0))


def test_body_of_one_byte_more_is_413_naming_limit_and_setting(small):
    with RawConnection(str(small.base_url)) as connection:
        connection.send(_fp32("/mlp", length=_LIMIT + 1))
        answer = connection.read()
    assert answer.status == 413
    assert answer.json()["code"] == "too_large"
    for word in ("65536", "65537", "max_body_bytes", "MLP_MAX_BODY_BYTES"):
        assert word in answer.json()["error"]


@pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 413)])
def test_body_without_a_length_has_the_same_limit(small, extra, status):
    body = rows(_LIMIT // _ROW_BYTES).tobytes() + bytes(extra)
    with RawConnection(str(small.base_url)) as connection:
        connection.send(_fp32("/mlp", transfer_encoding="chunked") + chunked(body))
        answer = connection.read()
        assert answer.status == status
        if status == 413:
            assert "MLP_MAX_BODY_BYTES" in answer.json()["error"]
        else:
            assert answer.body == expected(rows(1024), 0).tobytes()
    wait_at_rest(str(small.base_url))


def test_refused_body_leaves_the_connection_usable(small):
    with RawConnection(str(small.base_url)) as connection:
        body = bytes(4 * _LIMIT)
        connection.send(_fp32("/mlp", length=len(body)))
        assert connection.read().status == 413
        connection.send(body)
        x = rows(1)
        connection.send(_fp32("/mlp", length=x.nbytes) + x.tobytes())
        answer = connection.read()
    assert (answer.status, answer.body) == (200, expected(x, 0).tobytes())


def test_expect_continue_is_answered_before_a_good_upload(small):
    x = rows(2)
    with RawConnection(str(small.base_url)) as connection:
        connection.send(_fp32("/mlp", length=x.nbytes, expect="100-continue"))
        assert connection.read().status == 100
        connection.send(x.tobytes())
        assert connection.read().body == expected(x, 0).tobytes()


@pytest.mark.parametrize(
    ("length", "headers", "status"),
    [
        (_LIMIT + 1, {}, 413),
        (_ROW_BYTES, {"content_type": "text/csv"}, 415),
        (_ROW_BYTES + 1, {}, 400),
        (_ROW_BYTES, {"accept": "text/html"}, 406),
    ],
)
def test_expect_continue_saves_the_upload_of_what_is_refused(small, length, headers, status):
    with RawConnection(str(small.base_url)) as connection:
        connection.send(_fp32("/mlp", length=length, expect="100-continue", **headers))
        assert connection.read().status == status


def test_more_rows_than_a_batch_holds_are_refused_at_once():
    """5 and 6: a request too large for any batch goes round the queue for ever."""
    engine = FakeEngine()
    with ServerThread(engine, max_batch_tokens=8, max_queue_tokens=64) as thread:
        with httpx.Client(base_url=thread.url) as client:
            for media_type in (RAW, JSON):
                began = time.monotonic()
                answer = post(client, rows(9), media_type)
                assert time.monotonic() - began < 1
                assert answer.status_code == 413
                assert "at most 8 rows, has 9" in answer.json()["error"]
                assert "MLP_MAX_BATCH_TOKENS" in answer.json()["error"]
            body, headers = v2_body(rows(9))
            answer = client.post("/v2/models/tiny/infer", content=body, headers=headers)
            assert answer.status_code == 413
            assert not engine.batches
            assert decode(post(client, rows(8))).shape == (8, HIDDEN)
        wait_at_rest(thread.url)


def test_json_has_a_limit_of_its_own(small):
    body, _ = encode(np.full((700, HIDDEN), 1.0, "float32"), JSON)
    assert 32 << 10 < len(body) < _LIMIT
    answer = small.post("/mlp", content=body, headers={"content-type": JSON})
    assert answer.status_code == 413
    assert "MLP_MAX_JSON_BYTES" in answer.json()["error"]
    v2, _ = v2_body(np.full((700, HIDDEN), 1.0, "float32"), binary=False)
    answer = small.post("/v2/models/tiny/infer", content=v2)
    assert answer.status_code == 413
    wait_at_rest(str(small.base_url))


@pytest.mark.parametrize("path", ["/mlp", "/v2/models/tiny/infer"])
def test_full_queue_is_429_at_once_and_the_service_stays_ready(path):
    """14: a full queue that answers 503 looks like a dead server; one that blocks is worse."""
    engine = FakeEngine()
    thread = ServerThread(engine, max_queue_tokens=64, max_batch_tokens=64, max_body_bytes=4096)
    with thread, RawConnection(thread.url) as first, RawConnection(thread.url) as second:
        # Admitted with all the tokens there are; its body never comes.
        first.send(_fp32("/mlp", length=4096))
        _wait_queue(thread.url, tokens=64)
        began = time.monotonic()
        second.send(_fp32(path, length=_ROW_BYTES * 2, expect="100-continue"))
        answer = second.read()
        took_s = time.monotonic() - began
        assert is_ready(thread.url)
        first.send(rows(64).tobytes())
        assert first.read().status == 200
        # The refused client can try again on the same connection, behind the body it announced.
        second.send(rows(2).tobytes() + _fp32("/mlp", length=_ROW_BYTES) + rows(1).tobytes())
        assert second.read().status == 200
    assert answer.status == 429
    assert answer.json()["code"] == "queue_full"
    assert "max_queue_tokens" in answer.json()["error"]
    assert int(answer.headers["retry-after"]) >= 1
    # 50 ms on an idle machine.
    assert took_s < 0.5


def test_queue_is_bounded_in_bytes_too():
    thread = ServerThread(FakeEngine(), max_queue_bytes=10_000, max_body_bytes=8192)
    with thread, RawConnection(thread.url) as first, RawConnection(thread.url) as second:
        first.send(_fp32("/mlp", length=8192))
        _wait_queue(thread.url, tokens=128)
        second.send(_fp32("/mlp", length=8192))
        answer = second.read()
    assert answer.status == 429
    assert "max_queue_bytes 10000" in answer.json()["error"]


def test_running_requests_hold_no_budget():
    """Limits bound what waits: while the engine works, as much again may queue."""
    engine = FakeEngine()
    engine.gate.clear()
    thread = ServerThread(engine, max_queue_tokens=64, max_batch_tokens=64)
    with thread, RawConnection(thread.url) as first, RawConnection(thread.url) as second:
        body = _fp32("/mlp", length=64 * _ROW_BYTES) + rows(64).tobytes()
        first.send(body)
        assert engine.started.acquire(timeout=10)
        second.send(body)
        _wait_queue(thread.url, tokens=64)
        engine.gate.set()
        assert [first.read().status, second.read().status] == [200, 200]


@pytest.mark.parametrize("sent", [0, 1, 127])
def test_body_that_never_arrives_is_408_and_gives_everything_back(sent):
    thread = ServerThread(
        FakeEngine(), receive_timeout_s=0.3, max_queue_tokens=2, max_batch_tokens=2
    )
    with thread, RawConnection(thread.url) as connection:
        connection.send(_fp32("/mlp", length=128) + rows(2).tobytes()[:sent])
        _wait_queue(thread.url, tokens=2)
        answer = connection.read()
        assert answer.status == 408
        assert answer.json()["code"] == "receive_timeout"
        assert "receive_timeout_s 0.3" in answer.json()["error"]
        # The rest may still come, so that the connection cannot be used again.
        assert answer.headers["connection"] == "close"
        assert connection.is_closed()
        assert Scrape(thread.url).queue() == (0, 0, 0)
        assert thread.runtime.admission._arena.free_bytes == 4096
        again = httpx.post(
            f"{thread.url}/mlp", content=rows(2).tobytes(), headers={"x-tensor-dtype": "fp32"}
        )
        assert again.status_code == 200


def test_large_body_is_received_in_linear_time():
    """24: 100 MB took 17.5 s because bytes were joined again for every piece."""
    with ServerThread(FakeEngine()) as thread, RawConnection(thread.url) as connection:
        body = bytes(64 << 20)
        times = []
        for _ in range(3):
            began = time.monotonic()
            # Refused after it was received, so that only receiving is measured.
            connection.send(_fp32("/mlp", length=len(body), x_tensor_shape="1,16"))
            connection.send(body)
            assert connection.read().status == 400
            times.append(time.monotonic() - began)
    # 0.06 s here; joined again for each of 256 pieces it would be 8 GiB of copies.
    assert min(times) < 1.5


def _wait_queue(url: str, tokens: int) -> None:
    deadline = time.monotonic() + 10
    while Scrape(url)("mlp_queue_tokens") != tokens:
        assert time.monotonic() < deadline, Scrape(url).queue()


def test_v2_small_body_is_served_under_a_small_limit(small):
    x = rows(3)
    body, headers = v2_body(x)
    answer = small.post("/v2/models/tiny/infer", content=body, headers=headers)
    np.testing.assert_array_equal(v2_decode(answer), expected(x, 0))


def test_an_answer_that_would_be_too_much_json_is_refused_before_it_is_computed():
    """One request of 14 MB was answered with 500 MB of JSON."""
    engine = FakeEngine()
    body = rows(2000).tobytes()
    headers = {"content-type": RAW, "x-tensor-dtype": "fp32"}
    with ServerThread(engine, max_json_bytes=100_000) as server:
        as_json = {**headers, "accept": "application/json"}
        answer = httpx.post(f"{server.url}/mlp", content=body, headers=as_json)
        assert answer.status_code == 413
        assert "about 384000; ask for application/octet-stream" in answer.json()["error"]
        assert engine.batches == []
        assert httpx.post(f"{server.url}/mlp", content=body, headers=headers).status_code == 200


def test_small_compressed_bodies_do_not_fill_the_queue():
    """They were reserved at the most that DEFLATE can make of them: 429 with an empty queue."""
    body = gzip.compress(rows(64).tobytes())
    headers = {"content-type": RAW, "x-tensor-dtype": "fp32", "content-encoding": "gzip"}
    limits = {"max_batch_tokens": 128, "max_queue_tokens": 4096}
    with ServerThread(FakeEngine(), **limits) as server, ThreadPoolExecutor(16) as pool:

        def post(_: int) -> int:
            return httpx.post(f"{server.url}/mlp", content=body, headers=headers).status_code

        assert set(pool.map(post, range(96))) == {200}
        assert server.runtime.admission.tokens == server.runtime.admission.bytes == 0
