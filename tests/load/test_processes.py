import os
import signal
import threading
import time

import pytest

from service.errors import StartError
from service.load.options import LoadOptions
from service.load.plan import make_loads, make_plans
from service.load.prepare import prepare
from service.load.processes import run_plans
from service.load.run import run_load
from service.load.runner import run_async
from tests.load.fake_server import FakeServer


def plans_of(server, **changes):
    options = LoadOptions(url=server.url, warm_up_s=0.0, timeout_s=2.0, **changes)
    prepared = run_async(prepare(options))
    return make_plans(options, make_loads(options)[0], prepared.payloads, prepared.expected)


def test_several_processes_share_the_connections_and_add_up():
    with FakeServer() as server:
        options = LoadOptions(
            url=server.url, connections=5, processes=2, duration_s=0.5, warm_up_s=0.1, quiet=True
        )
        result = run_load(options).results[0]
    assert result.ok
    assert len({r.peer for r in server.mlp_requests()[8:]}) == 5
    assert result.sent == result.statuses["200"] == len(server.mlp_requests()) - 8
    assert 0 < result.latency.count < result.sent
    assert result.kernels == {"fake": round(result.requests_per_s * 0.5)}
    assert len(result.cpu_shares) == 2


def test_a_watched_load_reports_and_runs_elsewhere():
    reports = []
    with FakeServer() as server:
        tally = run_plans(plans_of(server, duration_s=1.2, connections=2), reports.append)
    sent = [report.sent for report in reports]
    assert len(sent) >= 2
    assert sent == sorted(sent)
    assert sent[-1] <= tally.sent == len(server.mlp_requests()) - 8
    assert tally.errors == 0


def test_processes_that_cannot_connect_are_one_sentence():
    with FakeServer() as server:
        plans = plans_of(server, processes=2, duration_s=0.2)
    with pytest.raises(StartError, match=r"connections: 4 to 127.0.0.1:\d+ cannot be made: "):
        run_plans(plans)


def test_one_process_that_cannot_connect_is_one_sentence():
    with FakeServer() as server:
        plans = plans_of(server, duration_s=0.2)
    with pytest.raises(StartError, match=r"connections: 8 to 127.0.0.1:\d+ cannot be made: "):
        run_plans(plans)


def children():
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="finds the process in /proc")
def test_a_process_that_dies_ends_the_load_and_the_others():
    with FakeServer() as server:
        plans = plans_of(server, processes=2, duration_s=20.0)
        before = set(children())

        def kill_one():
            deadline = time.monotonic() + 10
            while len(server.mlp_requests()) < 20 and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(load_processes()[0], signal.SIGKILL)

        def load_processes():
            found = []
            for pid in set(children()) - before:
                with open(f"/proc/{pid}/cmdline", encoding="ascii") as file:
                    if "spawn_main" in file.read():
                        found.append(pid)
            return found

        killer = threading.Thread(target=kill_one)
        killer.start()
        started = time.monotonic()
        with pytest.raises(StartError, match=r"load process \d ended before it was done"):
            run_plans(plans)
        killer.join()
        assert time.monotonic() - started < 15
        assert load_processes() == []
