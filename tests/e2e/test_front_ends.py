"""Front ends that die, clients that are cut off, an engine that goes: who loses what, and what not.

With several processes, each scrape may see a random one, and counters go back.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import threading
import time
from collections import Counter
from http.client import HTTPException

import httpx
import numpy as np
import psutil
import pytest

from tests.e2e.raw_http import Closed, RawConnection, head
from tests.e2e.scrape import Scrape
from tests.engines import FakeEngine, expected
from tests.routes.bodies import LARGE, decode, post, rows
from tests.servers import ServerProcess, ServerThread, wait_until

pytestmark = pytest.mark.e2e

WORKERS = 3
CLIENTS = 8
# Of `rows`: small requests and others.
LARGEST = LARGE
# Kills and cuts: TILEMLP_TEST_HARMS=200 for a test of minutes.
HARMS = int(os.environ.get("TILEMLP_TEST_HARMS", "25"))


class Client(threading.Thread):
    """Sends request after request, each with rows of its own, and looks at each answer."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._luck = random.Random(seed)
        self._seed = seed
        self.socket: socket.socket | None = None
        self.found: Counter[str] = Counter()
        self.ending = False

    def run(self) -> None:
        while not self.ending:
            self._use_a_connection()

    def _use_a_connection(self) -> None:
        try:
            with RawConnection(self._url, timeout_s=20) as connection:
                self.socket = connection.socket
                while not self.ending:
                    self._ask(connection)
        except TimeoutError:
            self.found["hung"] += 1
        except (Closed, OSError):
            self.found["lost"] += 1

    def _ask(self, connection: RawConnection) -> None:
        count = self._luck.choice([0, 1, 2, 50, self._luck.randrange(LARGEST)])
        x = rows(count, self._seed * 100_000 + self.found.total())
        connection.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes())
        answer = connection.read()
        if answer.status != 200:
            self.found[f"status {answer.status}: {answer.body!r}"] += 1
        elif answer.body == expected(x, 0).tobytes():
            self.found["right"] += 1
        else:
            self.found["wrong"] += 1

    def cut(self) -> None:
        """Reset the connection, wherever it is."""
        connection = self.socket
        if connection is None:
            return
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            # It is closed already.
            pass


def _counters(scrape: Scrape) -> dict:
    ends = ("_total", "_count", "_sum", "_bucket")
    return {
        key: value
        for key, value in scrape.samples.items()
        if key[0].startswith("mlp_") and key[0].endswith(ends)
    }


def _scrape(url: str) -> Scrape | None:
    """None where the front end that was asked has died meanwhile."""
    try:
        return Scrape(url)
    except (OSError, HTTPException):
        return None


def _lent(thread: ServerThread) -> tuple[int, ...]:
    """What is held of queue and slots."""
    admission, server = thread.runtime.admission, thread.server
    return (
        admission.requests,
        admission.tokens,
        admission.bytes,
        admission._arena.lent_bytes,
        server.answer_bytes,
        thread.in_progress,
    )


def _harm(thread: ServerThread, clients: list[Client], luck: random.Random) -> None:
    """Kill a front end, or cut half of the clients off."""
    if luck.random() < 0.5:
        wait_until(lambda: thread.front_ends, 30)
        front_ends = thread.front_ends
        if front_ends:
            luck.choice(front_ends).kill()
    else:
        for client in luck.sample(clients, len(clients) // 2):
            client.cut()
    time.sleep(luck.random() * 0.2)


@pytest.mark.timeout(60 + 2 * HARMS)
def test_whoever_dies_loses_only_his_own():
    times = HARMS
    luck = random.Random(times)
    engine = FakeEngine(run_s=0.003, concurrency=2)
    with ServerThread(engine, workers=WORKERS, max_batch_tokens=2 * LARGEST) as thread:
        clients = [Client(thread.url, seed) for seed in range(CLIENTS)]
        for client in clients:
            client.start()
        wait_until(lambda: all(client.found["right"] for client in clients), 20)
        before = _counters(Scrape(thread.url))
        for _ in range(times):
            _harm(thread, clients, luck)
            if (scrape := _scrape(thread.url)) is not None:
                now = _counters(scrape)
                back = {key: (before[key], now[key]) for key in now if now[key] < before[key]}
                assert not back, "counters went back"
                before = now
        for client in clients:
            client.ending = True
        for client in clients:
            client.join(30)
            assert not client.is_alive(), "a client hangs"
        total = sum((client.found for client in clients), Counter())
        assert total.keys() <= {"right", "lost"}, total
        assert total["lost"] > times / 8
        wait_until(lambda: len(thread.front_ends) == WORKERS, 30)
        wait_until(lambda: _lent(thread) == (0,) * 6)
        with httpx.Client(base_url=thread.url, timeout=30) as client:
            for seed in range(50):
                answer = post(client, rows(3, seed))
                np.testing.assert_array_equal(decode(answer), expected(rows(3, seed), 0))
        # An answer is counted before it is sent, so that none is missing; some were not received.
        assert Scrape(thread.url).outcomes("mlp")["ok"] >= total["right"] + 50
        # Clients know that they have their answer before the front end's word of it is here.
        wait_until(lambda: _lent(thread) == (0,) * 6)


def test_counters_add_up_on_every_scrape_and_over_a_restart():
    """32: whichever front end is asked, it tells of all of them."""
    requests, connections = 1000, 10
    with ServerThread(FakeEngine(), workers=WORKERS) as thread:
        clients = [httpx.Client(base_url=thread.url, timeout=30) for _ in range(connections)]
        for number in range(requests):
            assert post(clients[number % connections], rows(1)).status_code == 200
        assert sorted(one.connections for one in thread.front_ends) == [3, 3, 4]
        scrapes = [Scrape(thread.url) for _ in range(2 * WORKERS)]
        scrapes += [_scrape_with(client) for client in clients]
        for scrape in scrapes:
            assert scrape.outcomes("mlp") == {"ok": requests}
            assert scrape("mlp_request_duration_seconds_count", api="mlp") == requests
            for stage in ("receive", "decode", "queue", "encode"):
                assert scrape("mlp_stage_duration_seconds_count", stage=stage) == requests
            # With what the front ends have for themselves, an interpreter each at the least.
            engines = scrape("process_resident_memory_bytes")
            assert scrape("mlp_memory_used_bytes") > engines + WORKERS * (10 << 20)
        before = _counters(scrapes[-1])
        for client in clients:
            client.close()
        for front_end in thread.front_ends:
            pid = front_end.pid
            front_end.kill()
            wait_until(lambda pid=pid: pid not in {one.pid for one in thread.front_ends})
        wait_until(lambda: len(thread.front_ends) == WORKERS, 30)
        assert _counters(Scrape(thread.url)) == before
        with httpx.Client(base_url=thread.url, timeout=30) as client:
            assert post(client, rows(1)).status_code == 200
        assert Scrape(thread.url).outcomes("mlp") == {"ok": requests + 1}


def _scrape_with(client: httpx.Client) -> Scrape:
    """A scrape on a connection that is there, so that each front end is asked."""
    scrape = Scrape.__new__(Scrape)
    scrape.read(client.get("/metrics").text)
    return scrape


def test_clients_are_dealt_out_evenly():
    with ServerThread(FakeEngine(), workers=WORKERS) as thread:
        connections = [RawConnection(thread.url) for _ in range(30)]
        wait_until(lambda: [one.connections for one in thread.front_ends] == [10] * WORKERS)
        for connection in connections[:15]:
            connection.close()
        wait_until(lambda: sum(one.connections for one in thread.front_ends) == 15)
        more = [RawConnection(thread.url) for _ in range(15)]
        wait_until(lambda: [one.connections for one in thread.front_ends] == [10] * WORKERS)
        for connection in (*connections[15:], *more):
            connection.close()


def test_budget_is_one_for_all_front_ends():
    """429 says what waits everywhere, before a byte of the body is sent."""
    engine = FakeEngine()
    engine.gate.clear()
    limits = {"max_batch_tokens": 4, "max_queue_tokens": 10}
    with ServerThread(engine, workers=WORKERS, **limits) as thread:
        x = rows(4)
        request = head("/mlp", length=x.nbytes, x_tensor_dtype="fp32")
        connections = [RawConnection(thread.url) for _ in range(4)]
        connections[0].send(request + x.tobytes())
        wait_until(lambda: len(engine.batches) == 1)
        for connection in connections[1:3]:
            connection.send(request)
        wait_until(lambda: thread.runtime.admission.tokens == 8)
        connections[3].send(request)
        refused = connections[3].read()
        assert refused.status == 429
        assert "8 tokens wait and this request may add 4" in refused.json()["error"]
        assert len({one.connections for one in thread.front_ends}) == 2
        engine.gate.set()
        for connection in connections[1:3]:
            connection.send(x.tobytes())
        for connection in connections[:3]:
            assert connection.read().body == expected(x, 0).tobytes()
            connection.close()
        connections[3].close()


def test_an_engine_process_that_is_killed_takes_the_front_ends_with_it(tmp_path):
    server = ServerProcess(
        tmp_path / "log", command=("-m", "tests.e2e.fake_service", "25"), workers=WORKERS
    )
    with server, RawConnection(server.url) as waiting, RawConnection(server.url) as idle:
        idle.send(head("/health/live", method="GET"))
        assert idle.read().status == 200
        x = rows(1)
        waiting.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes())
        wait_until(lambda: Scrape(server.url)("mlp_batch_requests_count") == 1)
        front_ends = psutil.Process(server.process.pid).children()
        assert len(front_ends) == WORKERS
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait(5)
        answer = waiting.read()
        assert answer.status == 500
        assert answer.json()["code"] == "engine_dead"
        idle.send(head("/health/ready", method="GET"))
        answer = idle.read()
        assert answer.status == 503
        assert "process has ended" in answer.json()["error"]
        assert not psutil.wait_procs(front_ends, timeout=5)[1]
        with pytest.raises(ConnectionRefusedError):
            RawConnection(server.url)


def test_a_front_end_that_hangs_is_ended_and_gives_everything_back(monkeypatch):
    # Long enough for another to start in on a busy machine.
    monkeypatch.setattr("service.workers.pool._HUNG_S", 3.0)
    engine = FakeEngine()
    with ServerThread(engine, workers=1) as thread:
        x = rows(100)
        with RawConnection(thread.url) as upload:
            upload.send(head("/mlp", length=x.nbytes, x_tensor_dtype="fp32") + x.tobytes()[:-1])
            wait_until(lambda: thread.runtime.admission.tokens == 100)
            (front_end,) = thread.front_ends
            os.kill(front_end.pid, signal.SIGSTOP)
            wait_until(lambda: _lent(thread) == (0,) * 6, 20)
            assert upload.is_closed()
        wait_until(lambda: thread.front_ends not in ([], [front_end]), 30)
        with httpx.Client(base_url=thread.url, timeout=30) as client:
            assert post(client, x).status_code == 200
