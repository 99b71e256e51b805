"""A process whose interpreter is stuck ends, and no other does."""

from __future__ import annotations

import asyncio
import faulthandler
import subprocess
import sys
import time

import pytest

from service.heartbeat import keep_beating
from service.runtime import Runtime
from tests.engines import FakeEngine
from tests.servers import ServerThread, wait_until

STUCK = """
import asyncio, ctypes
from service.heartbeat import keep_beating

async def main():
    beating = asyncio.create_task(keep_beating(1.0))
    await asyncio.sleep({well_s})
    print("well", flush=True)
    if {ends}:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
    # With the interpreter's lock, unlike time.sleep.
    ctypes.PyDLL(None).usleep(5_000_000)
    print("woke up", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("ends", [False, True])
def test_only_a_loop_that_stands_still_ends_the_process(ends: bool) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", STUCK.format(well_s=2.5, ends=ends)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    took_s = time.monotonic() - began
    if ends:
        assert (done.returncode, done.stdout) == (0, "well\nwoke up\n")
    else:
        assert (done.returncode, done.stdout) == (1, "well\n")
        assert "in main" in done.stderr
        assert took_s < 2.5 + 5


def test_it_goes_on_for_as_long_as_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(
        faulthandler,
        "dump_traceback_later",
        lambda limit_s, exit, file: calls.append((limit_s, exit, file)),
    )
    monkeypatch.setattr(
        faulthandler, "cancel_dump_traceback_later", lambda: calls.append("cancelled")
    )

    async def beat() -> None:
        task = asyncio.create_task(keep_beating(0.04))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(beat())
    assert calls[:3] == [(0.04, True, sys.__stderr__)] * 3
    assert calls[-1] == "cancelled"


def test_without_a_place_for_tracebacks_it_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "__stderr__", None)
    asyncio.run(keep_beating(0.01))
    assert "there is no stderr" in caplog.text


@pytest.mark.parametrize("gpu", [False, True])
def test_a_service_on_a_gpu_beats_until_it_stops(
    monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    beats: list[object] = []

    async def beat(limit_s: float) -> None:
        beats.append(limit_s)
        try:
            await asyncio.Event().wait()
        finally:
            beats.append("stopped")

    monkeypatch.setattr("service.runtime.keep_beating", beat)
    begin = Runtime.__init__

    def begin_on_gpu(self: Runtime, *args: object, **options: object) -> None:
        begin(self, *args, **options)  # type: ignore[arg-type]
        # Stands for a GPU: a CPU may take any time for a batch.
        self._hang_timeout_s = 7.0 if gpu else 0.0

    monkeypatch.setattr(Runtime, "__init__", begin_on_gpu)
    with ServerThread(FakeEngine()):
        wait_until(lambda: beats == ([27.0] if gpu else []))
    assert beats == ([27.0, "stopped"] if gpu else [])
