"""What clients see of batching: their own rows, their own errors, in time."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import pytest

from service.batching.policy import select_batch
from tests.e2e.scrape import Scrape, wait_at_rest
from tests.engines import HIDDEN, FakeEngine, expected, spec
from tests.routes.bodies import decode, post, rows, v2_body
from tests.servers import ServerThread, wait_until


class _Crowd:
    """Many clients at once, each a thread with a connection of its own."""

    def __init__(self, thread: ServerThread, clients: int) -> None:
        self.thread = thread
        limits = httpx.Limits(max_connections=clients)
        self.client = httpx.Client(base_url=thread.url, timeout=60, limits=limits)
        self._pool = ThreadPoolExecutor(clients)

    def post(self, x: np.ndarray, **given: str) -> Future[httpx.Response]:
        return self._pool.submit(post, self.client, x, **given)

    def wait_queued(self, requests: int) -> None:
        """Until so many wait in the queue, with their bodies received."""
        admission, batcher = self.thread.runtime.admission, self.thread.runtime.batcher
        wait_until(lambda: admission.requests == requests)
        wait_until(lambda: sum(map(len, list(batcher._groups.values()))) == requests)

    def close(self) -> None:
        self._pool.shutdown()
        self.client.close()


@contextmanager
def _crowd(engine: FakeEngine, clients: int, **settings: object) -> Iterator[_Crowd]:
    with ServerThread(engine, **settings) as thread:
        crowd = _Crowd(thread, clients)
        try:
            yield crowd
        finally:
            engine.gate.set()
            crowd.close()


def _blocked(engine: FakeEngine, crowd: _Crowd) -> Future[httpx.Response]:
    """A request that keeps the engine busy until its gate is opened."""
    engine.gate.clear()
    first = crowd.post(rows(1))
    wait_until(lambda: len(engine.batches) == 1)
    return first


def test_each_client_gets_its_own_rows():
    """2: one of three clients receives all the rows, the other two nothing."""
    engine = FakeEngine()
    counts = [1, 3, 64, 0, 7, 1, 0, 30]
    with _crowd(engine, 10) as crowd:
        first = _blocked(engine, crowd)
        sent = [np.full((n, HIDDEN), 10 * i, "float32") for i, n in enumerate(counts)]
        answers = [crowd.post(x) for x in sent]
        crowd.wait_queued(6)
        engine.gate.set()
        for x, answer in zip(sent, answers, strict=True):
            np.testing.assert_array_equal(decode(answer.result()), expected(x, 0))
        assert first.result().status_code == 200
        found = [int(answer.result().headers["x-mlp-batch-tokens"]) for answer in answers]
    # 28: those without rows were answered beside the batch, which had no part of zero rows.
    assert found == [sum(counts) if n else 0 for n in counts]
    assert [segment.tokens for segment in engine.batches[1].segments] != []
    assert all(segment.tokens for batch in engine.batches for segment in batch.segments)
    assert len(engine.batches) == 2


def test_one_bad_member_fails_alone():
    """1: an exception for one request of a batch is returned to all of them."""
    engine = FakeEngine()
    engine.fail_marker = 666.0
    with _crowd(engine, 17) as crowd:
        _blocked(engine, crowd)
        sent = [rows(2, seed) for seed in range(16)]
        sent[5][1, 3] = 666.0
        answers = [crowd.post(x) for x in sent]
        crowd.wait_queued(16)
        engine.gate.set()
        for index, (x, answer) in enumerate(zip(sent, answers, strict=True)):
            if index == 5:
                assert answer.result().status_code == 500
                assert answer.result().json()["code"] == "engine_error"
            else:
                np.testing.assert_array_equal(decode(answer.result()), expected(x, 0))
        assert Scrape(crowd.thread.url).outcomes("mlp") == {"ok": 16, "engine_error": 1}


def test_one_wrong_width_never_joins_the_batch():
    """1: 15 good answers, and one 400 that names its own problem."""
    engine = FakeEngine()
    with _crowd(engine, 17) as crowd:
        _blocked(engine, crowd)
        sent = [rows(2, seed) for seed in range(15)]
        answers = [crowd.post(x) for x in sent]
        wrong = crowd.post(np.zeros((2, HIDDEN + 1), "float32"))
        # At once, whatever the others wait for.
        assert wrong.result().status_code == 400
        assert "16" in wrong.result().json()["error"]
        engine.gate.set()
        for x, answer in zip(sent, answers, strict=True):
            np.testing.assert_array_equal(decode(answer.result()), expected(x, 0))


def test_nan_rows_stay_with_their_owner():
    """29: a NaN row must not change other rows of its batch."""
    engine = FakeEngine()
    with _crowd(engine, 4) as crowd:
        _blocked(engine, crowd)
        sent = [rows(2, 1), np.full((2, HIDDEN), np.nan, "float32"), rows(2, 2)]
        answers = [crowd.post(x) for x in sent]
        crowd.wait_queued(3)
        engine.gate.set()
        for x, answer in zip(sent, answers, strict=True):
            np.testing.assert_array_equal(decode(answer.result()), expected(x, 0))
    assert len(engine.batches) == 2


def test_batches_are_bounded_in_rows_not_requests():
    """4: max_batch_size counted requests, and 11 requests of 32 rows blew up the GPU's memory."""
    engine = FakeEngine()
    with _crowd(engine, 64, max_batch_tokens=256) as crowd:
        engine.gate.clear()
        answers = [crowd.post(rows(100, seed)) for seed in range(64)]
        wait_until(lambda: len(engine.batches) == 1)
        crowd.wait_queued(64 - len(engine.batches[0].segments))
        engine.gate.set()
        for seed, answer in enumerate(answers):
            np.testing.assert_array_equal(decode(answer.result()), expected(rows(100, seed), 0))
        scrape = Scrape(crowd.thread.url)
    assert max(batch.tokens for batch in engine.batches) == 200
    assert max(scrape.buckets("mlp_batch_tokens")) == 256
    assert scrape("mlp_tokens_total") == 6400
    # The first may have gone alone.
    assert len(engine.batches) in (32, 33)


def test_layers_and_outputs_are_not_mixed():
    engine = FakeEngine(spec(layers=(0, 1)))
    queries = ["?layer=0", "?layer=1", "?layer=0&output=gated", "?layer=1&output=gated"]
    with _crowd(engine, 13) as crowd:
        engine.gate.clear()
        first = crowd.post(rows(1), query=queries[0])
        wait_until(lambda: len(engine.batches) == 1)
        answers = [crowd.post(rows(2, i), query=queries[i % 4]) for i in range(12)]
        crowd.wait_queued(12)
        engine.gate.set()
        widths = [decode(answer.result()).shape[1] for answer in answers]
        assert first.result().status_code == 200
    assert widths == [HIDDEN, HIDDEN, 2 * HIDDEN, 2 * HIDDEN] * 3
    assert sorted((b.layer, b.output.value, b.tokens) for b in engine.batches[1:]) == [
        (0, "gated", 6),
        (0, "mlp", 6),
        (1, "gated", 6),
        (1, "mlp", 6),
    ]


def test_a_bug_in_forming_batches_ends_no_more_than_those_who_wait(monkeypatch):
    """7: the batching task dies of an exception, and all later requests hang."""
    raised = threading.Event()

    def buggy(*args: object, **kwargs: object) -> object:
        if not raised.is_set():
            raised.set()
            raise ZeroDivisionError("policy")
        return select_batch(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr("service.batching.batcher.select_batch", buggy)
    with ServerThread(FakeEngine()) as thread, httpx.Client(base_url=thread.url) as client:
        victim = post(client, rows(1))
        assert victim.status_code == 500
        assert victim.json()["code"] == "engine_error"
        assert post(client, rows(1)).status_code == 200
        assert client.get("/health/live").status_code == 200
        wait_at_rest(thread.url)


def test_a_batcher_that_cannot_go_on_takes_the_service_down(monkeypatch):
    """7: … while the app says RUNNING. If the batcher is broken, live must say so."""
    thread = ServerThread(FakeEngine())
    with thread, httpx.Client(base_url=thread.url) as client:

        def broken(*_: object) -> None:
            raise ZeroDivisionError("batcher")

        monkeypatch.setattr(thread.runtime.metrics, "batch_started", broken)
        answer = post(client, rows(1))
        assert answer.status_code == 500
        assert answer.json()["code"] == "engine_dead"
        assert thread.wait_exit() == 1
    assert not thread.runtime.health.live


@pytest.mark.parametrize("api", ["mlp", "v2"])
def test_deadline_passes_on_time_while_the_engine_is_busy(api):
    """11: a timeout of 10 s only fires when the running batch ends, after 90 s."""
    engine = FakeEngine()
    with _crowd(engine, 2) as crowd:
        first = _blocked(engine, crowd)
        began = time.monotonic()
        if api == "mlp":
            late = post(crowd.client, rows(3), x_request_timeout_ms="200")
        else:
            body, headers = v2_body(rows(3), parameters={"timeout": 200_000})
            late = crowd.client.post("/v2/models/tiny/infer", content=body, headers=headers)
        took_s = time.monotonic() - began
        assert late.status_code == 504
        assert late.json()["code"] == "deadline"
        assert 0.2 <= took_s < 1.0
        wait_at_rest(crowd.thread.url)
        engine.gate.set()
        assert first.result().status_code == 200
        assert post(crowd.client, rows(2)).status_code == 200
    assert [batch.tokens for batch in engine.batches] == [1, 2], "it was executed later"


def test_a_request_can_only_shorten_the_deadline():
    engine = FakeEngine()
    with _crowd(engine, 2, request_timeout_s=0.2) as crowd:
        _blocked(engine, crowd)
        began = time.monotonic()
        assert post(crowd.client, rows(1), x_request_timeout_ms="60000").status_code == 504
        assert time.monotonic() - began < 1.5
        waited = re.search(r"passed after (\d\.\d+) s", post(crowd.client, rows(1)).json()["error"])
        assert waited is not None
        assert 0.2 <= float(waited.group(1)) < 1


def test_a_lone_slow_request_is_never_rejected():
    """12: max_latency_ms rejected requests with 503 although nothing else was going on."""
    engine = FakeEngine(run_s=1.0)
    with ServerThread(engine) as thread, httpx.Client(base_url=thread.url) as client:
        answer = post(client, rows(1))
        assert answer.status_code == 200
        timing = answer.headers["server-timing"]
        assert float(timing.partition("execute;dur=")[2]) >= 1000


def test_delay_counts_from_the_first_arrival_also_after_idling():
    """15: a window that counts from the last batch's end never batches the first after a pause."""
    engine = FakeEngine()
    with _crowd(engine, 2, max_queue_delay_s=1.0) as crowd:
        began = time.monotonic()
        answers = [crowd.post(rows(2))]
        crowd.wait_queued(1)
        answers.append(crowd.post(rows(3)))
        for answer in answers:
            assert answer.result().headers["x-mlp-batch-tokens"] == "5"
        assert 1.0 <= time.monotonic() - began < 2.0
        scrape = Scrape(crowd.thread.url)
    assert scrape("mlp_batches_total", trigger="delay") == 1
    assert scrape("mlp_batch_requests_sum") == 2


def test_a_lone_request_waits_no_longer_than_the_delay():
    """15: … and one without company leaves when its time is up."""
    engine = FakeEngine()
    with _crowd(engine, 1, max_queue_delay_s=0.3) as crowd:
        answer = post(crowd.client, rows(1))
        queue_ms = float(re.findall(r"queue;dur=([\d.]+)", answer.headers["server-timing"])[0])
    assert 300 <= queue_ms < 800


def test_without_a_delay_nobody_waits():
    engine = FakeEngine()
    with ServerThread(engine) as thread, httpx.Client(base_url=thread.url) as client:
        times = [
            float(re.findall(r"queue;dur=([\d.]+)", answer.headers["server-timing"])[0])
            for answer in (post(client, rows(1)) for _ in range(20))
        ]
    assert sorted(times)[10] < 50
