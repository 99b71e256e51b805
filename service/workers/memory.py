"""The memory that all processes of a service see: what front ends count, bodies and answers.

    counts      one page or more per front end, which it alone writes
    bodies      slots that front ends receive into
    answers     slots that the engine writes
    rooms       small requests and their answers, bundled

It is a file without a name that lives as long as a process has it open. Its size is fixed and
sealed, so that nobody can pull it away below the others; pages take memory from their first use on.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence

from service.counts import FrontCounts, cells_needed
from service.workers.rooms import rooms_bytes

_PAGE = 4096


class SharedMemory:
    """The mapping, in one of the processes.

    Args:
        descriptor: Of the file, from `create_memory`.
        front_ends: As given to `create_memory`, like the next two.
        arena_bytes: As given to `create_memory`.
        outcomes: As for FrontCounts.

    Attributes:
        descriptor: Of the file.
        bodies: All slots for bodies.
        answers: All slots for answers.
        rooms: All rooms for bundles.
    """

    def __init__(
        self, descriptor: int, front_ends: int, arena_bytes: int, outcomes: Sequence[str]
    ) -> None:
        self.descriptor = descriptor
        self._outcomes = outcomes
        self._counts_bytes = _counts_bytes(outcomes)
        start = front_ends * self._counts_bytes
        self._map = mmap.mmap(descriptor, start + 2 * arena_bytes + rooms_bytes(front_ends))
        self._all = memoryview(self._map)
        self.bodies = self._all[start : start + arena_bytes]
        self.answers = self._all[start + arena_bytes : start + 2 * arena_bytes]
        self.rooms = self._all[start + 2 * arena_bytes :]

    def counts(self, index: int) -> FrontCounts:
        """Of one front end."""
        start = index * self._counts_bytes
        cells = self._all[start : start + 8 * cells_needed(self._outcomes)].cast("d")
        return FrontCounts(self._outcomes, cells)

    def body_offset(self, data: memoryview) -> int | None:
        """Where in `bodies` data begins; None where it lies elsewhere."""
        if data.obj is not self._map:
            return None
        return address(data) - address(self.bodies)


def create_memory(front_ends: int, arena_bytes: int, outcomes: Sequence[str]) -> int:
    """A new file for SharedMemory, all zero.

    Args:
        front_ends: Processes that count.
        arena_bytes: Bytes for bodies, and as many for answers.
        outcomes: As for FrontCounts.

    Returns:
        Its descriptor.
    """
    descriptor = os.memfd_create("tilemlp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    parts = (front_ends * _counts_bytes(outcomes), 2 * arena_bytes, rooms_bytes(front_ends))
    os.ftruncate(descriptor, sum(parts))
    fcntl.fcntl(
        descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    )
    return descriptor


def address(data: memoryview) -> int:
    """Where writable memory lies in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def _counts_bytes(outcomes: Sequence[str]) -> int:
    return -(-8 * cells_needed(outcomes) // _PAGE) * _PAGE
