"""Bodies that come and go do not fault their pages in anew each time, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import resource
import sys
from service.heap import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    bodies = [bytes(200_000 + 1000 * i) for i in range(8)]
    del bodies
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is what it sets")
def test_what_is_freed_is_kept():
    def faults(how: str) -> int:
        command = [sys.executable, "-c", _PROGRAM, how]
        return int(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)

    # One time around is 400 pages. The other way shows that there is something to win here.
    assert faults("keep") < 2000
    if faults("leave") < 10_000:
        pytest.skip("this C library keeps what is freed by itself")


_THREADS = """
import threading
from pathlib import Path
from service.heap import keep_freed_memory

keep_freed_memory()
together = threading.Barrier(6)

def work():
    together.wait()
    bodies = [bytearray(3_500_000) for _ in range(15)]
    del bodies
    together.wait()

threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
"""


def test_it_is_bounded_for_each_thread():
    """Threads have heaps of their own, and what is kept counts for each."""
    command = [sys.executable, "-c", _THREADS]
    resident = int(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    assert resident < 200 << 20
