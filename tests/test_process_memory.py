"""What is counted of the memory of processes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

from service.process_memory import anonymous_bytes, used_bytes

MIB = 1 << 20
_CHILD = """
import sys
own = bytearray(32 << 20)
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_children_have_for_themselves_is_counted_until_they_end():
    before = used_bytes(())
    with subprocess.Popen(
        [sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        own = anonymous_bytes(child.pid)
        assert 32 * MIB <= own < 64 * MIB
        assert used_bytes([child.pid]) - used_bytes(()) == own
        child.kill()
        # Ended, and not waited for.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert anonymous_bytes(child.pid) == 0
    assert anonymous_bytes(child.pid) == 0
    assert used_bytes(()) - before < 8 * MIB


def test_shared_memory_is_counted_in_the_process_that_has_it():
    before, own = used_bytes(()), anonymous_bytes(os.getpid())
    with mmap.mmap(-1, 32 * MIB) as shared:
        shared.write(bytes(32 * MIB))
        assert used_bytes(()) - before > 30 * MIB
        assert anonymous_bytes(os.getpid()) - own < 8 * MIB
