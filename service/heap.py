"""What the C library does with memory that requests free, in a process that serves many.

Bodies of some hundred kilobytes come and go at the end of the heap. Left to itself glibc gives it
back to the kernel each time there are 128 KiB of it, and each page is faulted in again for the
next.
"""

from __future__ import annotations

import ctypes

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEPT_BYTES = 64 << 20
# What is larger is mapped on its own, and unmapped when it is freed. glibc finds a value by itself,
# unless it is told any of these.
_MAPPED_BYTES = 4 << 20


def keep_freed_memory() -> None:
    """Keep up to 64 MiB for what comes next; without glibc, nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
