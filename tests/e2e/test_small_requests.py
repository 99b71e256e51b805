"""Small requests, which pass by ASGI and travel in bundles: served as any others are."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from service.engine.base import Output
from tests.e2e.raw_http import RawConnection, head
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import FakeEngine, expected
from tests.routes.bodies import (
    JSON,
    LARGE,
    NPY,
    RAW,
    SMALL,
    decode,
    post,
    rows,
    v2_body,
    v2_decode,
)
from tests.servers import ServerThread, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("workers")]

CLIENTS = 12
# Whatever rows there are, no other holds it.
MARKER = 7777.0
# Headers as they should be, and targets that only uvicorn's own look at them refuses.
STRANGE_TARGETS = ["http://x:y/mlp", "http://x", "http:///mlp", "/\xff", "/" + "a" * 70_000]


def _request(x: np.ndarray, **headers: object) -> bytes:
    return head("/mlp", length=x.nbytes, x_tensor_dtype="fp32", **headers) + x.tobytes()


def _ask(client: httpx.Client, luck: random.Random, seed: int, sizes: list[int]) -> str:
    """One request of any kind; what became of it."""
    x = rows(luck.choice(sizes), seed, luck.choice(["float32", "float16"]))
    if len(x) and luck.random() < 0.03:
        x[0, 0] = MARKER
    output = luck.choice(list(Output))
    if luck.random() < 0.3:
        body, headers = v2_body(x, output=output.value)
        answer = client.post("/v2/models/tiny/infer", content=body, headers=headers)
        found = None if answer.status_code != 200 else v2_decode(answer)
    else:
        media_type = luck.choice([RAW, RAW, NPY, JSON])
        answer = post(client, x, media_type, f"?output={output.value}", x_request_id=str(seed))
        assert answer.headers["x-request-id"] == str(seed)
        found = None if answer.status_code != 200 else decode(answer)
    if len(x) and x[0, 0] == MARKER:
        return "failed" if answer.status_code == 500 else f"{answer.status_code} of the guilty"
    if found is None:
        return f"{answer.status_code}: {answer.text}"
    right = np.array_equal(found, expected(x, 0, output).astype(found.dtype))
    if "x-mlp-batch-tokens" in answer.headers:
        right = right and int(answer.headers["x-mlp-batch-tokens"]) >= len(x)
    return "right" if right else "wrong"


@pytest.mark.parametrize(
    ("sizes", "batch", "each"),
    [
        ([0, 1, 1, 1, 2, 40], 200, 60),
        ([1, 1, 700, 1500, SMALL // 2, SMALL - 1, SMALL, SMALL + 1, LARGE], 3 * SMALL, 20),
    ],
    ids=["small", "about the limit"],
)
def test_random_mixes_each_with_its_own_answer_and_counted_once(sizes, batch, each):
    engine = FakeEngine(run_s=0.002, concurrency=2)
    engine.fail_marker = MARKER

    def client_of(number: int) -> list[str]:
        luck = random.Random(number)
        with httpx.Client(base_url=thread.url, timeout=60) as client:
            return [_ask(client, luck, 1000 * number + index, sizes) for index in range(each)]

    with (
        ServerThread(engine, max_batch_tokens=batch) as thread,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        found = [one for each in pool.map(client_of, range(CLIENTS)) for one in each]
        assert set(found) == {"right", "failed"}
        wait_at_rest(thread.url)
        wait_until(lambda: not thread.in_progress)
        scrape = Scrape(thread.url)
    ok = sum(scrape.outcomes(api)["ok"] for api in ("mlp", "v2"))
    failed = sum(scrape.outcomes(api)["engine_error"] for api in ("mlp", "v2"))
    assert (ok, failed) == (found.count("right"), found.count("failed"))
    for stage in ("receive", "decode"):
        assert scrape("mlp_stage_duration_seconds_count", stage=stage) == CLIENTS * each


def test_batches_count_requests():
    engine = FakeEngine()
    engine.gate.clear()
    with ServerThread(engine) as thread:
        connections = [RawConnection(thread.url) for _ in range(30)]
        x = rows(1)
        # One that the engine is busy with, so that all others queue, however they were bundled.
        connections[0].send(_request(x))
        wait_until(lambda: len(engine.batches) == 1)
        for connection in connections[1:]:
            connection.send(_request(x))
        wait_until(lambda: Scrape(thread.url)("mlp_queue_requests") == 29)
        engine.gate.set()
        for connection in connections:
            assert connection.read().body == expected(x, 0).tobytes()
            connection.close()
        scrape = Scrape(thread.url)
    assert scrape("mlp_batch_requests_sum") == scrape("mlp_batch_tokens_sum") == 30
    assert scrape("mlp_stage_duration_seconds_count", stage="queue") == 30


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.03])
def test_headers_and_body_that_come_apart(pause_s):
    with ServerThread(FakeEngine()) as thread, RawConnection(thread.url) as connection:
        for seed in range(5):
            x = rows(3, seed)
            request = _request(x)
            for piece in (request[:40], request[40:-80], request[-80:-7], request[-7:]):
                connection.send(piece)
                time.sleep(pause_s)
            assert connection.read().body == expected(x, 0).tobytes()
        assert Scrape(thread.url).outcomes("mlp") == {"ok": 5}


def test_pipelined_with_others_they_are_answered_in_order():
    with ServerThread(FakeEngine(run_s=0.01)) as thread, RawConnection(thread.url) as connection:
        asked = [rows(count, count) for count in (1, LARGE, 2, 4)]
        health = head("/health/live", method="GET")
        connection.send(b"".join(_request(x) + health for x in asked))
        for x in asked:
            assert connection.read().body == expected(x, 0).tobytes()
            assert connection.read().status == 200


@pytest.mark.parametrize("tokens", [2, LARGE])
def test_who_leaves_with_several_under_way_has_none_computed(tokens, capfd):
    """Only the last that was parsed heard of it: the next was computed and logged as a failure."""
    engine = FakeEngine()
    with ServerThread(engine, max_queue_delay_s=1.0) as thread:
        with RawConnection(thread.url) as connection:
            connection.send(_request(rows(tokens)) * 3)
            assert connection.read().status == 200
            wait_until(lambda: Scrape(thread.url)("mlp_queue_requests") == 1)
        wait_until(lambda: Scrape(thread.url).outcomes("mlp").get("cancelled") == 1)
        wait_at_rest(thread.url)
        assert len(engine.batches) == 1
        assert Scrape(thread.url).outcomes("mlp") == {"ok": 1, "cancelled": 1}
    assert "Exception" not in capfd.readouterr().err


def test_the_last_on_a_connection():
    with ServerThread(FakeEngine()) as thread, RawConnection(thread.url) as connection:
        x = rows(1)
        connection.send(_request(x) + _request(x, Connection="close"))
        for closing in (None, "close"):
            answer = connection.read()
            assert answer.body == expected(x, 0).tobytes()
            assert answer.headers.get("connection") == closing
        assert connection.is_closed()


@pytest.mark.parametrize("last", [1, LARGE])
def test_a_connection_is_closed_when_it_is_idle_and_not_before(last):
    with (
        ServerThread(FakeEngine(run_s=0.1), keep_alive_s=1) as thread,
        RawConnection(thread.url) as connection,
    ):
        for count in (1, 1, 1, last):
            connection.send(_request(rows(count)))
            assert connection.read().status == 200
            time.sleep(0.4)
        began = time.monotonic()
        assert connection.is_closed()
        assert 0.3 < time.monotonic() - began < 1.5


def test_who_leaves_between_headers_and_body_is_counted():
    with ServerThread(FakeEngine()) as thread:
        connection = RawConnection(thread.url)
        connection.send(_request(rows(1))[:-1])
        connection.close()
        wait_until(lambda: Scrape(thread.url).outcomes("mlp") == {"cancelled": 1})
        wait_at_rest(thread.url)


def test_a_body_that_does_not_come_is_a_timeout():
    with (
        ServerThread(FakeEngine(), receive_timeout_s=0.2) as thread,
        RawConnection(thread.url) as connection,
    ):
        connection.send(_request(rows(1))[:-1])
        assert connection.read().status == 408
        wait_at_rest(thread.url)


def test_a_key_that_was_right_lets_nobody_else_in():
    x = rows(1)
    with (
        ServerThread(FakeEngine(), api_key="right-key") as thread,
        RawConnection(thread.url) as connection,
    ):
        for key, status in (("right-key", 200), ("wrong-key", 401), ("right-key", 200)):
            connection.send(_request(x, Authorization=f"Bearer {key}"))
            assert connection.read().status == status
        connection.send(_request(x))
        assert connection.read().status == 401


def test_the_date_and_all_headers_of_the_usual_way():
    with ServerThread(FakeEngine()) as thread, httpx.Client(base_url=thread.url) as client:
        small, usual = post(client, rows(1)), post(client, rows(LARGE))
        assert set(small.headers) == set(usual.headers)
        assert small.headers["x-tensor-shape"] == "1,16"


@pytest.mark.parametrize("complete", [True, False], ids=["whole", "half"])
def test_a_target_that_cannot_be_read_is_refused_though_the_body_comes_apart(complete, capfd):
    """It was answered only where it came in one piece; else the connection stayed open for ever."""
    with ServerThread(FakeEngine()) as thread:
        for target in STRANGE_TARGETS:
            request = head(target, length=20) + bytes(20)
            for asked_before in (False, True):
                with RawConnection(thread.url, timeout_s=5) as connection:
                    if asked_before:
                        connection.send(head("/health/live", method="GET"))
                        assert connection.read().status == 200
                    connection.send(request[:-10])
                    time.sleep(0.03)
                    if complete:
                        with contextlib.suppress(ConnectionError):
                            connection.send(request[-10:])
                    answer = connection.read()
                    assert answer.status == 400
                    assert answer.json()["error"] == "request: Invalid HTTP request received."
                    assert connection.is_closed()
        with RawConnection(thread.url) as connection:
            connection.send(_request(rows(1)))
            assert connection.read().status == 200
    assert "Traceback" not in capfd.readouterr().err


def test_who_leaves_behind_a_target_that_cannot_be_read_is_forgotten(monkeypatch, caplog):
    """Such connections counted as open until the end of the grace, and made that a failure."""
    monkeypatch.setattr("service.http_small._HOLD_S", 30.0)
    with ServerThread(FakeEngine()) as thread:
        for target in STRANGE_TARGETS * 4:
            with RawConnection(thread.url) as connection:
                connection.send(head(target, length=20) + bytes(10))
        wait_until(lambda: not any(one.connections for one in thread.front_ends))
        time.sleep(0.1)
        began = time.monotonic()
        thread.server.handle_exit(signal.SIGTERM, None)
        assert thread.wait_exit() == 0
        assert time.monotonic() - began < 3
    assert "cut" not in caplog.text


def test_the_end_of_the_service_refuses_a_target_that_cannot_be_read(monkeypatch, caplog):
    monkeypatch.setattr("service.http_small._HOLD_S", 30.0)
    with ServerThread(FakeEngine()) as thread, RawConnection(thread.url) as connection:
        connection.send(head(STRANGE_TARGETS[0], length=20) + bytes(10))
        time.sleep(0.2)
        thread.server.handle_exit(signal.SIGTERM, None)
        assert connection.read().status == 400
        assert connection.is_closed()
        assert thread.wait_exit() == 0
    assert "Traceback" not in caplog.text
