"""Front ends that are started, anew or in vain, and what they are told from then on."""

from __future__ import annotations

import errno
import json
import os
import threading

import pytest

from tests.e2e.raw_http import RawConnection, head
from tests.engines import FakeEngine
from tests.servers import ServerThread, get, wait_until

pytestmark = pytest.mark.e2e


def test_front_ends_that_cannot_start_end_the_service(monkeypatch):
    monkeypatch.setattr("service.workers.pool._PAUSES_S", (0.05, 0.05))
    monkeypatch.setattr("sys.executable", "/bin/false")
    thread = ServerThread(FakeEngine(), workers=2, wait_ready=False)
    with thread:
        assert thread.wait_exit() == 1


def test_a_front_end_of_other_code_says_so_and_ends(monkeypatch, capfd):
    """As after an upgrade under a running service, which restarts a front end later."""
    monkeypatch.setattr("service.workers.pool._PAUSES_S", (0.05, 0.05))
    with ServerThread(FakeEngine(), workers=1) as thread:
        monkeypatch.setattr("service.workers.process.IDENTITY", "0.0.9-0123456789ab")
        thread.front_ends[0].kill()
        assert thread.wait_exit(20) == 1
    found = capfd.readouterr().err
    sentence = "front end: must be of the same code as the engine's process, 0.0.9-0123456789ab, is"
    assert found.count(sentence) == 2
    assert found.count("restart the service") == 2
    assert "Traceback" not in found


def test_a_front_end_that_dies_in_a_shortage_of_descriptors_is_replaced_after_it(monkeypatch):
    monkeypatch.setattr("service.workers.pool._PAUSES_S", (0.05, 0.05, 60.0))
    refused = []

    def refuse(*_: object, **__: object) -> None:
        refused.append(1)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with ServerThread(FakeEngine(), workers=1) as thread:
        with monkeypatch.context() as patch:
            patch.setattr("service.workers.process.subprocess.Popen", refuse)
            descriptors = len(os.listdir("/proc/self/fd"))
            thread.front_ends[0].kill()
            wait_until(lambda: len(refused) == 2)
        # Of the channel that is gone.
        assert len(os.listdir("/proc/self/fd")) < descriptors
        with RawConnection(thread.url) as waiting:
            waiting.send(head("/health/live", method="GET"))
            assert waiting.read().status == 200
        assert not thread.server.exit_status


def test_a_failure_that_takes_pages_to_describe_is_told_in_short():
    with ServerThread(FakeEngine(), workers=1) as thread:
        (front_end,) = thread.front_ends
        told = threading.Event()

        def fail() -> None:
            thread.runtime.health.self_test(RuntimeError("\U0001f600" * 100_000))
            told.set()

        thread.server._loop.call_soon_threadsafe(fail)
        assert told.wait(5)
        wait_until(lambda: get(thread.url, "/health/ready")[0] == 503)
        assert len(json.loads(get(thread.url, "/health/ready")[1])["error"]) < 1100
        assert thread.front_ends == [front_end]
