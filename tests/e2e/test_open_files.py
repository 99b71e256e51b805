"""Files that a service may have open: how many, and what they are kept for."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.raw_http import RawAnswer, RawConnection, head
from tests.e2e.scrape import Scrape
from tests.routes.sharing import SYSTEM
from tests.servers import ServerProcess, get, wait_until
from tests.shared_objects import shared_object

pytestmark = pytest.mark.e2e

# Of a process that has not asked for more.
SOFT = 512
FEW = 120


def _service(folder: Path, **settings: object) -> ServerProcess:
    command = ("-m", "tests.e2e.fake_service", "0")
    return ServerProcess(folder / "log", command=command, **settings)


@contextmanager
def _soft_limit(files: int) -> Iterator[int]:
    """Of this process and those it starts; gives the hard one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, before[1]))
    try:
        yield before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("workers")
def test_as_many_as_the_system_allows(tmp_path: Path) -> None:
    with _soft_limit(SOFT) as hard:
        server = _service(tmp_path)
    with server:
        process = psutil.Process(server.process.pid)
        for one in (process, *process.children()):
            assert one.rlimit(psutil.RLIMIT_NOFILE) == (hard, hard)


def _post(url: str, path: str, body: bytes) -> RawAnswer:
    """On a connection of its own, without waiting for long."""
    with RawConnection(url, timeout_s=5) as connection:
        connection.send(head(SYSTEM + path, length=len(body)) + body)
        return connection.read()


@pytest.mark.usefixtures("workers")
def test_regions_leave_some_for_connections(tmp_path: Path) -> None:
    with shared_object(4096) as made, _service(tmp_path, client_shared_memory=1) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
        body = json.dumps({"key": made.key, "byte_size": 16}).encode()
        answers = [_post(server.url, f"/region/r{number}/register", body) for number in range(FEW)]
        assert [answer.status for answer in answers] == [200] * 30 + [400] * 90
        assert answers[-1].json()["error"] == (
            "region: at most 30 may be registered where 120 files may be open, they are"
        )
        assert Scrape(server.url)("mlp_shared_memory_regions") == 30
        assert _post(server.url, "/unregister", b"").status == 200
        assert _post(server.url, "/region/r/register", body).status == 200


def test_connections_that_wait_for_one_are_said_once(tmp_path: Path) -> None:
    with _service(tmp_path, workers=1) as server:
        pid = server.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        for episode in (1, 2):
            # They have the lowest numbers, so that there is none for another.
            used = psutil.Process(pid).num_fds()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, before[1]))
            with RawConnection(server.url, timeout_s=10) as waiting:
                waiting.send(head("/health/live", method="GET"))
                wait_until(lambda said=episode: server.log.count("have to wait") == said)
                time.sleep(0.5)  # five attempts
                assert server.log.count("have to wait") == episode
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
                assert waiting.read().status == 200
            assert get(server.url, "/health/live")[0] == 200
