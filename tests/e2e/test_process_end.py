"""How the process ends, seen from outside: statuses, and what clients get meanwhile."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest

from tests.e2e.fake_service import FATAL
from tests.e2e.raw_http import Closed, RawConnection, head
from tests.engines import HIDDEN, expected
from tests.routes.bodies import rows
from tests.servers import ServerProcess, get, is_ready, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("workers")]


def _fake_service(tmp_path, run_s: float, **settings: object) -> ServerProcess:
    command = ("-m", "tests.e2e.fake_service", str(run_s))
    return ServerProcess(tmp_path / "log", command=command, **settings)


def _request(x: np.ndarray) -> bytes:
    return head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes()


def _wait_running(server: ServerProcess) -> None:
    wait_until(lambda: b"mlp_batch_requests_count 1.0" in get(server.url, "/metrics")[1])


class _ClosedLoop(threading.Thread):
    """One client that sends request after request until nobody answers any more."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__()
        self._url = url
        self._seed = seed
        self.found: Counter[str] = Counter()
        self.refused_at = 0.0

    def run(self) -> None:
        while not self.refused_at:
            self._use_a_connection()

    def _use_a_connection(self) -> None:
        try:
            with RawConnection(self._url) as connection:
                while self._ask(connection, rows(2, 1000 * self._seed + self.found.total())):
                    pass
        except ConnectionRefusedError:
            self.refused_at = time.monotonic()
        except (Closed, ConnectionResetError, BrokenPipeError) as error:
            # The port may close between connecting and sending; never within an answer.
            cut = isinstance(error, Closed) and str(error) != "after b''"
            self.found["cut" if cut else "closed"] += 1

    def _ask(self, connection: RawConnection, x: np.ndarray) -> bool:
        """Whether the connection can be used again."""
        connection.send(_request(x))
        answer = connection.read()
        if answer.status == 200:
            right = answer.body == expected(x, 0).tobytes()
            self.found["right" if right else "wrong"] += 1
        else:
            found = answer.json()
            self.found[f"{answer.status} {found['code']}"] += 1
            assert "draining" in found["error"]
        return answer.headers.get("connection") != "close"


def test_sigterm_under_load_drops_nothing_that_was_accepted(tmp_path):
    """22: SIGTERM drops queued answers, or closes the port before the balancer notices."""
    unready_at = 0.0
    with _fake_service(tmp_path, 0.05, drain_delay_s=1.0, shutdown_grace_s=20) as server:
        clients = [_ClosedLoop(server.url, seed) for seed in range(32)]
        for client in clients:
            client.start()
        wait_until(lambda: all(client.found["right"] for client in clients), 20)
        server.process.send_signal(signal.SIGTERM)
        signalled = time.monotonic()
        while not unready_at:
            if get(server.url, "/health/ready")[0] == 503:
                unready_at = time.monotonic()
        # Still alive, so that nobody kills it for draining.
        assert get(server.url, "/health/live")[0] == 200
        assert server.process.wait(20) == 0
        assert time.monotonic() - signalled < 20
        for client in clients:
            client.join(20)
    total = sum((client.found for client in clients), Counter())
    assert total["right"] >= 32
    assert total["503 unavailable"] >= 32
    assert total.keys() <= {"right", "503 unavailable", "closed"}, total
    first_refused = min(client.refused_at for client in clients)
    assert unready_at < first_refused - 0.5
    assert "Traceback" not in server.log


def test_second_sigterm_ends_it_at_once(tmp_path):
    with _fake_service(tmp_path, 25.0) as server, RawConnection(server.url) as client:
        client.send(_request(rows(1)))
        _wait_running(server)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_ready(server.url))
        began = time.monotonic()
        assert server.terminate() == 1
        assert time.monotonic() - began < 5


def test_drain_beyond_its_grace_is_status_1(tmp_path):
    with (
        _fake_service(tmp_path, 25.0, shutdown_grace_s=1.0) as server,
        RawConnection(server.url) as client,
    ):
        client.send(_request(rows(1)))
        _wait_running(server)
        began = time.monotonic()
        assert server.terminate() == 1
        assert time.monotonic() - began < 8
        answer = client.read()
    assert answer.status == 500
    assert "shutdown_grace_s" in answer.json()["error"]


def test_ending_while_torch_computes_is_no_abort(tmp_path):
    """Python's exit unwinds the engine's thread through C++ frames: SIGABRT, and a core dump."""
    with (
        ServerProcess(tmp_path / "log", device="cpu") as server,
        RawConnection(server.url) as client,
    ):
        client.send(_request(np.zeros((8192, 896), "float32")))
        _wait_running(server)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not is_ready(server.url))
        assert server.terminate() == 1
    assert "terminate called" not in server.log


def test_dead_engine_ends_the_process_for_the_supervisor(tmp_path):
    """17: after a device-side assert each request fails, and live and ready stay 200 for ever."""
    with _fake_service(tmp_path, 0.3, self_test_interval_s=0) as server:
        blocker, fatal, queued, probe = (RawConnection(server.url) for _ in range(4))
        with blocker, fatal, queued, probe:
            blocker.send(_request(rows(1)))
            _wait_running(server)
            fatal.send(_request(np.full((1, HIDDEN), FATAL, "float32")))
            queued.send(_request(rows(1)))
            assert blocker.read().status == 200
            for client in (fatal, queued):
                answer = client.read()
                assert answer.status == 500
                assert answer.json()["code"] == "engine_dead"
                assert "illegal memory access" in answer.json()["error"]
            died = time.monotonic()
            for path in ("/health/live", "/health/ready", "/v2/health/live", "/v2/health/ready"):
                probe.send(head(path, method="GET"))
                answer = probe.read()
                assert answer.status == 503
                assert "illegal memory access" in answer.json()["error"]
            assert time.monotonic() - died < 1
            probe.send(_request(rows(1)))
            assert probe.read().status == 503
            assert server.process.wait(5) == 1
    assert "USED AFTER DEATH" not in server.log
