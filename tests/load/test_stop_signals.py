"""`tilemlp load` that is stopped: nothing stays behind, here or at the service."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.local_regions import LocalRegions
from service.shared_memory import RegionTable
from tests.e2e.scrape import Scrape
from tests.engines import FakeEngine
from tests.load.test_shared import objects
from tests.servers import ServerThread, wait_until

# As a shell reports it.
INTERRUPTED = 128 + signal.SIGINT


@contextmanager
def service() -> Iterator[ServerThread]:
    """One that takes shared memory, and shall have seen the last of it; so shall this host."""
    before = objects()
    with ServerThread(FakeEngine(), client_shared_memory=True) as thread:
        yield thread
        wait_until(lambda: Scrape(thread.url)("mlp_shared_memory_regions") == 0, 10)
        assert objects() == before


@contextmanager
def load(thread: ServerThread, processes: int) -> Iterator[subprocess.Popen[bytes]]:
    """A long one, as users start it."""
    options = ["--url", thread.url, "--transport", "shm", "--dtype", "fp32", "--quiet"]
    options += ["--duration-s", "60", "--connections", "4", "--processes", str(processes)]
    process = subprocess.Popen(
        [sys.executable, "-m", "service", "load", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A group of its own, to which signals go as from a terminal.
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_as_others_do_and_leaves_nothing_behind(processes: int, number: int) -> None:
    with service() as thread, load(thread, processes) as process:
        table = thread.runtime.region_table
        assert table is not None
        wait_until(lambda: table.count == processes, 30)
        prepared = len(thread.engine.batches)
        wait_until(lambda: len(thread.engine.batches) > prepared + 20, 30)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        # Only to the process that was started, as supervisors do; `timeout` sends both.
        process.send_signal(number)
        output, _ = process.communicate(timeout=10)
        assert process.returncode == (INTERRUPTED if number == signal.SIGINT else -number)
        assert output == b""


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_just_being_registered_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """As on a GPU, where memory is pinned for a while and then known."""
    begun = []
    register = RegionTable.register

    async def slow(self: RegionTable, name: str, key: str, offset: int, nbytes: int) -> None:
        begun.append(name)
        await asyncio.sleep(1.0)
        await register(self, name, key, offset, nbytes)

    monkeypatch.setattr(RegionTable, "register", slow)
    with service() as thread, load(thread, processes) as process:
        wait_until(lambda: len(begun) == processes, 30)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(10) == INTERRUPTED
        assert thread.runtime.region_table.count == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_a_service_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    unregister = LocalRegions.unregister

    async def slow(self: LocalRegions, name: str | None) -> None:
        await asyncio.sleep(6.0)
        await unregister(self, name)

    monkeypatch.setattr(LocalRegions, "unregister", slow)
    before = objects()
    with service() as thread, load(thread, processes) as process:
        wait_until(lambda: thread.runtime.region_table.count == processes, 30)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(10) == INTERRUPTED
        assert time.monotonic() - began < 5.5
        assert objects() == before
