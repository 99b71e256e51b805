"""Servers under measurement: started as processes, their CPU time and memory read from /proc."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from service.errors import StartError

_LISTENING = re.compile(rb"running on http://[^:]+:(\d+)")


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Seconds of processors since a server began.

    Attributes:
        main_s: Of its main process: the engine's, with front ends.
        user_s: Of its other processes, in their own code.
        system_s: Of those, in the kernel.
    """

    main_s: float
    user_s: float
    system_s: float


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
        pids = (self._process.pid, *self._children())
        return sum(time.clock_gettime(_clock_of(pid)) for pid in pids)

    def times(self) -> ProcessorTimes:
        """Where that was spent; by the kernel's ticks, of 10 ms."""
        children = [_ticks_s(pid) for pid in self._children()]
        return ProcessorTimes(
            main_s=sum(_ticks_s(self._process.pid)),
            user_s=sum(user_s for user_s, _ in children),
            system_s=sum(system_s for _, system_s in children),
        )

    def resident_bytes(self) -> int:
        """Memory that is resident now."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _children(self) -> list[int]:
        main = self._process.pid
        return list(map(int, (self._tasks / str(main) / "children").read_text().split()))

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


def _ticks_s(pid: int) -> tuple[float, float]:
    """Seconds of a process in its own code, and in the kernel."""
    # Behind the name, which may hold spaces: field 3 of proc(5) on.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return int(fields[11]) * tick_s, int(fields[12]) * tick_s
