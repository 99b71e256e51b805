"""Pooled buffers that request bodies are received into.

Bodies live in power-of-two size classes and go back to a free list: a 4 MiB body would otherwise
map and fault in a thousand fresh pages per request. The engine reads straight from these slots;
nothing that a client receives ever lies in one.
"""

from __future__ import annotations

from collections.abc import Callable

from service.engine.base import Buffer

_SMALLEST = 1 << 12


class Arena:
    """Free lists of slots by size class.

    How much is out at a time is the business of admission; the arena only bounds what it keeps.

    Args:
        keep_bytes: Free slots kept for reuse at most; what comes back beyond it is dropped.
        allocate: Makes the memory of a slot, of exactly so many bytes.
    """

    def __init__(self, keep_bytes: int, allocate: Callable[[int], Buffer] = bytearray) -> None:
        self._keep_bytes = keep_bytes
        self._allocate = allocate
        self._free_bytes = 0
        self._free: dict[int, list[Buffer]] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes in slots that wait for reuse."""
        return self._free_bytes

    def acquire(self, nbytes: int) -> Slot:
        """A slot for nbytes; its earlier content is undefined and must be overwritten."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length()) if nbytes else _SMALLEST
        free = self._free.get(size)
        if free:
            self._free_bytes -= size
            return Slot(self, free.pop(), nbytes)
        return Slot(self, self._allocate(size), nbytes)

    def take_back(self, block: Buffer) -> None:
        """Called by a slot that is released."""
        size = len(block)
        if self._free_bytes + size <= self._keep_bytes:
            self._free.setdefault(size, []).append(block)
            self._free_bytes += size


class Slot:
    """One buffer of the arena, held until `release`.

    Attributes:
        view: Writable, exactly as long as was asked for, so that no earlier body shows through.
    """

    __slots__ = ("_arena", "_block", "view")

    def __init__(self, arena: Arena, block: Buffer, nbytes: int) -> None:
        self._arena = arena
        self._block: Buffer | None = block
        self.view = memoryview(block)[:nbytes]

    def release(self) -> None:
        """Give the buffer back; safe to call again."""
        block, self._block = self._block, None
        if block is not None:
            self._arena.take_back(block)
