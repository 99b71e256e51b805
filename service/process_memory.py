"""What the kernel says of the memory of processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

_ANONYMOUS = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
_RESIDENT = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that it shares with nobody and no file; 0 once it has ended."""
    return _read(pid, _ANONYMOUS)


def used_bytes(children: Iterable[int]) -> int:
    """Memory of this process and of children that share with it all that is not anonymous.

    Args:
        children: Their process ids; those that have ended count nothing.
    """
    return _read(os.getpid(), _RESIDENT) + sum(map(anonymous_bytes, children))


def _read(pid: int, line: re.Pattern[str]) -> int:
    try:
        found = line.search(Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # A process that has ended and is not waited for yet has a file without such lines.
    return 0 if found is None else int(found[1]) << 10
