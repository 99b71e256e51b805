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
# Of each heap, and threads have heaps of their own.
_KEPT_BYTES = 16 << 20
# What is larger is mapped on its own, and unmapped when it is freed. glibc works its way up to this
# by itself, unless it is told either of these.
_MAPPED_BYTES = 32 << 20


def keep_freed_memory() -> None:
    """Keep up to 16 MiB of a heap for what comes next; without glibc, nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
