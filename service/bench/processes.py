"""Servers under measurement: started as processes, their CPU time and memory read from /proc."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from service.errors import StartError

_LISTENING = re.compile(rb"running on http://[^:]+:(\d+)")


class MeasuredServer:
    """One of the servers of `service.bench.stub`, as a process.

    Args:
        name: Which one.
        workers: Its front ends in processes of their own.

    Attributes:
        port: Where it listens on the loopback interface.
    """

    def __init__(self, name: str, workers: int = 0) -> None:
        self.name = name
        self.workers = workers
        self._process = subprocess.Popen(
            [sys.executable, "-m", "service.bench.stub", name],
            stderr=subprocess.PIPE,
            env={**os.environ, "MLP_WORKERS": str(workers)},
        )
        self.port = self._read_port()

    def _read_port(self) -> int:
        log = self._process.stderr
        assert log is not None
        seen = []
        for line in log:
            seen.append(line.decode(errors="replace"))
            if found := _LISTENING.search(line):
                # Whatever else it logs must not fill the pipe and stop it.
                self._drain = threading.Thread(target=log.read, daemon=True)
                self._drain.start()
                return int(found.group(1))
        raise StartError(f"server: {self.name} did not start:\n{''.join(seen)}")

    def loop_cpu_s(self) -> float:
        """CPU time of the main thread, where the event loop runs: the engine's, with front ends."""
        return _cpu_s(self._tasks / str(self._process.pid))

    def cpu_s(self) -> float:
        """CPU time of its processes, those of front ends too."""
        main = self._process.pid
        children = (self._tasks / str(main) / "children").read_text().split()
        return sum(time.clock_gettime(_clock_of(pid)) for pid in (main, *map(int, children)))

    def resident_bytes(self) -> int:
        """Memory that is resident now."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def _tasks(self) -> Path:
        return Path(f"/proc/{self._process.pid}/task")

    def __enter__(self) -> MeasuredServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._drain.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


def _clock_of(pid: int) -> int:
    """The clock of a process's CPU time, as Linux numbers them (CPUCLOCK_SCHED in its headers)."""
    return (~pid << 3) | 2


def _cpu_s(task: Path) -> float:
    # schedstat counts nanoseconds; stat would count ticks of 10 ms.
    return int((task / "schedstat").read_text().split()[0]) / 1e9
