"""How many files the process may have open: connections, and objects that clients share."""

from __future__ import annotations

import contextlib
import resource
import sys


def raise_open_files_limit() -> None:
    """Allow this process, and those that it starts, as many as the system lets it.

    The soft limit is 1024 for the sake of programs that use select(), of which this is none.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Refused where the hard one is above what the kernel allows a process.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_limit() -> int:
    """How many there may be."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
