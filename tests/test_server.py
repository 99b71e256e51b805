"""The life of the service: starting, its self-tests, death of the engine."""

from __future__ import annotations

import json
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from service.config import Settings
from service.engine.base import Gpu
from service.errors import EngineDead, EngineError
from service.runtime import Runtime
from tests.e2e.scrape import Scrape
from tests.engines import FakeEngine
from tests.routes.bodies import post, rows
from tests.servers import ServerThread, get, is_ready, wait_until


def _health(url: str) -> tuple[int, int, str]:
    """Status of live and of ready, and the reason; the v2 twins have to say the same."""
    live, ready = get(url, "/health/live"), get(url, "/health/ready")
    assert [live[0], ready[0]] == [get(url, f"/v2/health/{name}")[0] for name in ("live", "ready")]
    return live[0], ready[0], json.loads(ready[1]).get("error", "")


def test_it_answers_503_until_the_engine_is_warm():
    with ServerThread(FakeEngine(warm_up_s=1.0), wait_ready=False) as thread:
        live, ready, reason = _health(thread.url)
        assert (live, ready) == (200, 503)
        assert "starting" in reason
        assert Scrape(thread.url)("mlp_ready") == 0
        with httpx.Client(base_url=thread.url) as client:
            early = post(client, rows(1))
            assert early.status_code == 503
            assert early.json()["code"] == "unavailable"
            assert "starting" in early.json()["error"]
            wait_until(lambda: is_ready(thread.url))
            assert post(client, rows(1)).status_code == 200
        assert Scrape(thread.url)("mlp_ready") == 1


def test_failed_warm_up_ends_the_process():
    engine = FakeEngine()
    engine.warm_up_error = EngineError("layer 0 must be within 1e-4 of the known answer")
    thread = ServerThread(engine, wait_ready=False)
    with thread:
        wait_until(lambda: not thread.runtime.health.live)
        live, ready, reason = _health(thread.url)
        assert (live, ready) == (503, 503)
        assert "warm-up failed: layer 0" in reason
        assert thread.wait_exit() == 1


def test_stop_during_a_long_warm_up_is_prompt(monkeypatch):
    monkeypatch.setattr("service.runtime._STOP_TIMEOUT_S", 0.3)
    engine = FakeEngine(warm_up_s=20.0)
    thread = ServerThread(engine, wait_ready=False)
    with thread:
        began = time.monotonic()
        thread.server.handle_exit(signal.SIGTERM, None)
        assert thread.wait_exit() == 0
        assert time.monotonic() - began < 3


@pytest.mark.parametrize("fault", [EngineError("layer 3 is off by 0.2"), RuntimeError("odd")])
def test_wrong_self_test_takes_the_service_out_until_it_is_right(fault):
    """18: /health only looks at a flag, and stays 200 while the GPU computes nonsense."""
    engine = FakeEngine()
    with ServerThread(engine, self_test_interval_s=0.05) as thread:
        engine.self_test_error = fault
        wait_until(lambda: not is_ready(thread.url))
        live, ready, reason = _health(thread.url)
        # A restart may not help, so that it is not asked for.
        assert (live, ready) == (200, 503)
        assert str(fault) in reason
        assert Scrape(thread.url)("mlp_engine_healthy") == 0
        with httpx.Client(base_url=thread.url) as client:
            refused = post(client, rows(1))
            assert refused.status_code == 503
            assert str(fault) in refused.json()["error"]
            engine.self_test_error = None
            wait_until(lambda: is_ready(thread.url))
            assert post(client, rows(1)).status_code == 200
        assert Scrape(thread.url)("mlp_engine_healthy") == 1


def test_dead_engine_found_by_the_self_test_ends_the_process():
    engine = FakeEngine()
    thread = ServerThread(engine, self_test_interval_s=0.05)
    with thread:
        engine.self_test_error = EngineDead("illegal memory access")
        wait_until(lambda: not thread.runtime.health.live)
        assert thread.wait_exit() == 1
    assert not engine.closed, "a dead engine must not be touched"


def test_metadata_and_metrics_say_what_runs_and_why():
    with ServerThread(FakeEngine()) as thread:
        thread.runtime.reason = "torch finds no GPU"
        _, body = get(thread.url, "/v2")
        found = json.loads(body)
        assert (found["backend"], found["device"]) == ("fake", "nowhere")
        assert found["reason"] == "torch finds no GPU"
    metrics = Runtime(Settings(), FakeEngine(), reason="torch finds no GPU").metrics
    assert 'reason="torch finds no GPU"' in metrics.render().decode()


class GpuEngine(FakeEngine):
    """Like one on a GPU, whose batches and self-tests end soon or never."""

    gpus = (Gpu(0, "GPU-none"),)

    def __init__(self) -> None:
        super().__init__()
        self.testing = threading.Event()
        self.testing.set()

    def self_test(self) -> None:
        assert self.testing.wait(30)


def test_a_hung_batch_ends_the_process():
    engine = GpuEngine()
    thread = ServerThread(engine, hang_timeout_s=0.3)
    with thread, httpx.Client(base_url=thread.url) as client:
        assert post(client, rows(1)).status_code == 200
        engine.gate.clear()
        answer = post(client, rows(2))
        assert (answer.status_code, answer.json()["code"]) == (500, "engine_dead")
        assert "batch of 2 tokens did not end within 0.3 s" in answer.json()["error"]
        assert not thread.runtime.health.live
        assert thread.wait_exit() == 1
    engine.gate.set()
    assert not engine.closed


def test_a_hung_self_test_ends_the_process_of_an_idle_service():
    engine = GpuEngine()
    thread = ServerThread(engine, hang_timeout_s=0.1, self_test_interval_s=0.05)
    with thread:
        engine.testing.clear()
        wait_until(lambda: not thread.runtime.health.live)
        assert "self-test did not end within 0.2 s" in thread.runtime.health.reason
        assert thread.wait_exit() == 1
    engine.testing.set()


def test_on_a_cpu_a_batch_may_take_any_time():
    engine = FakeEngine(run_s=0.5)
    with (
        ServerThread(engine, hang_timeout_s=0.1) as thread,
        httpx.Client(base_url=thread.url) as client,
    ):
        assert post(client, rows(1)).status_code == 200


def test_dead_engine_is_used_no_more():
    """17: after a device-side assert each request fails, and live and ready stay 200 for ever."""
    engine = FakeEngine()
    thread = ServerThread(engine)
    with thread, ThreadPoolExecutor(4) as pool, httpx.Client(base_url=thread.url) as client:
        engine.gate.clear()
        in_flight = pool.submit(post, client, rows(1))
        wait_until(lambda: len(engine.batches) == 1)
        queued = [pool.submit(post, client, rows(2)) for _ in range(3)]
        wait_until(lambda: thread.runtime.admission.requests == 3)
        engine.fail_next = EngineDead("CUDA error: device-side assert triggered")
        died = time.monotonic()
        engine.gate.set()
        for answer in [in_flight, *queued]:
            assert answer.result().status_code == 500
            assert answer.result().json()["code"] == "engine_dead"
            assert "device-side assert" in answer.result().json()["error"]
        live, ready, reason = _health(thread.url)
        assert (live, ready) == (503, 503)
        assert time.monotonic() - died < 1
        assert "device-side assert" in reason
        late = post(client, rows(1))
        assert late.status_code == 503
        assert "device-side assert" in late.json()["error"]
        scrape = Scrape(thread.url)
        assert scrape("mlp_engine_healthy") == 0
        assert scrape.outcomes("mlp") == {"engine_dead": 4, "unavailable": 1}
        assert thread.wait_exit() == 1
    assert len(engine.batches) == 1
    assert not engine.closed
