"""Slots in one buffer of fixed size, such as memory that processes share.

A buddy system: blocks are powers of two, a larger one is halved where a small one is needed, and
halves are joined again only when nothing else fits, so that in the steady state a slot is one
list's pop. The block that was used last is used first: its pages are there and perhaps cached.
"""

from __future__ import annotations

from service.errors import QueueFull

_SMALLEST = 1 << 12


class Blocks:
    """A buffer that is lent in pieces.

    Args:
        memory: A power of two of bytes, at least 4096.
        what: What it is for, for the sentence that says it is full.

    Attributes:
        size: Bytes of the buffer.
        lent_bytes: Bytes of the slots that are lent.
    """

    def __init__(self, memory: memoryview, what: str) -> None:
        size = memory.nbytes
        if size < _SMALLEST or size & (size - 1):
            raise ValueError(f"memory: must be a power of two from {_SMALLEST} on, is {size} bytes")
        self._memory = memory
        self._what = what
        self._free: dict[int, list[int]] = {size: [0]}
        self._joinable = False
        self.size = size
        self.lent_bytes = 0

    def acquire(self, nbytes: int) -> Block:
        """A slot for nbytes; its earlier content must be overwritten.

        Raises:
            QueueFull: no piece of that size is free.
        """
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length()) if nbytes else _SMALLEST
        offset = self._take(size)
        if offset is None and self._joinable:
            self._join()
            offset = self._take(size)
        if offset is None:
            raise QueueFull(
                f"{self._what}: {self.lent_bytes} of {self.size} bytes are lent and "
                f"this request needs {size} in one piece; try again later"
            )
        self.lent_bytes += size
        return Block(self, offset, size, self._memory[offset : offset + nbytes])

    def take_back(self, offset: int, size: int) -> None:
        """Called by a block that is released."""
        self.lent_bytes -= size
        self._joinable = True
        self._free.setdefault(size, []).append(offset)

    def _take(self, size: int) -> int | None:
        if free := self._free.get(size):
            return free.pop()
        larger = size
        while not self._free.get(larger):
            larger <<= 1
            if larger > self.size:
                return None
        offset = self._free[larger].pop()
        while larger > size:
            larger >>= 1
            self._free.setdefault(larger, []).append(offset + larger)
        return offset

    def _join(self) -> None:
        self._joinable = False
        size = _SMALLEST
        while size < self.size:
            left = set(self._free.get(size, ()))
            pairs = [offset for offset in left if not offset & size and offset | size in left]
            if pairs:
                left.difference_update(pairs, [offset | size for offset in pairs])
                self._free[size] = list(left)
                self._free.setdefault(size << 1, []).extend(pairs)
            size <<= 1


class Block:
    """A piece of the buffer, held until `release`.

    Attributes:
        offset: Where it begins in the buffer.
        view: Exactly as long as was asked for.
    """

    __slots__ = ("_blocks", "_size", "offset", "view")

    def __init__(self, blocks: Blocks, offset: int, size: int, view: memoryview) -> None:
        self._blocks: Blocks | None = blocks
        self._size = size
        self.offset = offset
        self.view = view

    def release(self) -> None:
        """Give it back; safe to call again."""
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.take_back(self.offset, self._size)
