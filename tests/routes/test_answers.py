"""Answers stay what they were when they were sent, and the metrics beside them are true."""

from __future__ import annotations

import re
import threading
import time

import httpx
import numpy as np

from tests.e2e.raw_http import RawConnection, head
from tests.e2e.scrape import Scrape
from tests.engines import HIDDEN, FakeEngine, expected
from tests.routes.bodies import decode, post, rows
from tests.servers import ServerThread, wait_until


def test_answers_never_lie_in_memory_that_is_reused():
    """3.1: a reused buffer was overwritten 50 ms after its answer was sent; half was another's."""
    x = np.full((40_000, HIDDEN), 7.0, "float32")
    thread = ServerThread(FakeEngine(), max_batch_tokens=40_000)
    with thread, RawConnection(thread.url, receive_buffer=4096) as slow:
        slow.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes())
        wait_until(lambda: Scrape(thread.url).outcomes("mlp") == {"ok": 1})
        with httpx.Client(base_url=thread.url, timeout=30) as client:
            for value in range(20):
                other = np.full((40_000, HIDDEN), value, "float32")
                answer = client.post(
                    "/mlp", content=other.tobytes(), headers={"x-tensor-dtype": "fp32"}
                )
                assert answer.content == expected(other, 0).tobytes()
        assert slow.read().body == expected(x, 0).tobytes()


def test_latencies_can_be_read_from_the_histogram():
    """34: a smallest bucket of 0.3 s makes p99 read 297 ms for a service of 5 ms."""
    for run_s, requests in ((0.02, 15), (1.0, 2)):
        engine = FakeEngine(run_s=run_s)
        with ServerThread(engine) as thread, httpx.Client(base_url=thread.url) as client:
            measured = []
            for _ in range(requests):
                began = time.perf_counter()
                assert post(client, rows(1)).status_code == 200
                measured.append(time.perf_counter() - began)
            buckets = Scrape(thread.url).buckets("mlp_request_duration_seconds", api="mlp")
        median = sorted(measured)[requests // 2]
        bounds = [bound for bound, count in sorted(buckets.items()) for _ in range(int(count))]
        # In its bucket, whose bounds are a factor of 1.6 apart, or in one beside it: the client
        # measures a little more than the service.
        assert bounds[requests // 2] / 1.6**2 < median < bounds[requests // 2] * 1.6


def test_durations_in_server_timing_are_those_of_the_request():
    engine = FakeEngine(run_s=0.3)
    with ServerThread(engine) as thread, httpx.Client(base_url=thread.url) as client:
        began = time.perf_counter()
        timing = post(client, rows(1)).headers["server-timing"]
        took_ms = (time.perf_counter() - began) * 1e3
    queue_ms, execute_ms = map(float, re.findall(r"dur=([\d.]+)", timing))
    assert execute_ms >= 300
    assert queue_ms + execute_ms <= took_ms


def test_scraping_does_not_disturb_traffic():
    """35, in kind: scrapes see consistent numbers that only grow, and no request fails."""
    stop = threading.Event()
    scrapes: list[Scrape] = []
    with ServerThread(FakeEngine()) as thread, httpx.Client(base_url=thread.url) as client:

        def scrape() -> None:
            while not stop.is_set():
                scrapes.append(Scrape(thread.url))

        scraper = threading.Thread(target=scrape)
        scraper.start()
        try:
            for seed in range(200):
                x = rows(seed % 7 + 1, seed)
                np.testing.assert_array_equal(decode(post(client, x)), expected(x, 0))
        finally:
            stop.set()
            scraper.join()
        scrapes.append(Scrape(thread.url))
    totals = [s("mlp_requests_total", api="mlp", outcome="ok") for s in scrapes]
    assert totals == sorted(totals)
    assert totals[-1] == 200
    for one in scrapes:
        ok = one("mlp_requests_total", api="mlp", outcome="ok")
        assert one("mlp_request_duration_seconds_count", api="mlp") == ok
        assert one("mlp_batch_requests_sum") >= ok
