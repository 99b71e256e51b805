"""Rows between a batch's segments and the device, through small pieces of pinned memory.

A copy is asynchronous only where its host side is pinned. Large inputs that lie in pinned memory
are copied from where they are; the rest, and every answer, passes through pieces that are reused:
while one is copied over PCIe, the next is filled or emptied. Element types are converted there, so
only the resident type crosses the bus.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch

from service.engine.cuda_device import CudaDevice

# Stays in a core's cache between the copy that fills it and the one that empties it.
PIECE_BYTES = 2 << 20
PIECES = 4
# Smaller inputs share a piece and its one copy: 3 µs of host time each, a memcpy of 64 KiB takes 5.
DIRECT_BYTES = 64 << 10


class Pieces:
    """Pinned memory for rows of one element type, in pieces that are used in turn.

    Attributes:
        events: One for each piece, recorded behind the last copy from or to it.
    """

    def __init__(self, device: CudaDevice, dtype: torch.dtype, widest: int) -> None:
        """Pin the memory.

        Args:
            device: The GPU on the other side.
            dtype: Element type of the rows.
            widest: Columns of the widest row; a piece holds at least one.
        """
        nbytes = max(PIECE_BYTES, -(-widest * dtype.itemsize // 64) * 64)
        whole = device.pinned(PIECES * nbytes)
        self._flat: list[torch.Tensor] = [part.view(dtype) for part in torch.split(whole, nbytes)]
        self.events = [device.event() for _ in range(PIECES)]

    def capacity(self, width: int) -> int:
        """Rows of a piece."""
        return self._flat[0].numel() // width

    def rows(self, piece: int, count: int, width: int) -> torch.Tensor:
        """The first rows of a piece, [count, width]."""
        return self._flat[piece][: count * width].view(count, width)


class Upload:
    """Copies the rows of a batch to consecutive rows of one device tensor."""

    def __init__(self, device: CudaDevice, dtype: torch.dtype, width: int) -> None:
        self.pieces = Pieces(device, dtype, width)
        self._device = device
        self._dtype = dtype
        self._width = width
        self._capacity = self.pieces.capacity(width)
        self._piece = 0
        self._filled = 0

    def fill_piece(self, inputs: Sequence[torch.Tensor]) -> None:
        """All rows into the first piece, which holds them; for a graph that copies it."""
        first = 0
        for rows in inputs:
            self.pieces.rows(0, first + len(rows), self._width)[first:].copy_(rows)
            first += len(rows)

    def send(self, inputs: Sequence[torch.Tensor], x: torch.Tensor) -> None:
        """Enqueue the copies on the current stream.

        Args:
            inputs: Host rows, [tokens, width] each, of any type; they must stay until the stream
                has got here.
            x: [tokens of all, width] on the device.
        """
        first = 0
        for rows in inputs:
            if self._is_direct(rows):
                self._flush(x, first)
                x[first : first + len(rows)].copy_(rows, non_blocking=True)
            else:
                self._stage(rows, x, first)
            first += len(rows)
        self._flush(x, first)

    def _is_direct(self, rows: torch.Tensor) -> bool:
        return (
            rows.dtype == self._dtype
            and rows.numel() * rows.itemsize >= DIRECT_BYTES
            and self._device.is_pinned(rows)
        )

    def _stage(self, rows: torch.Tensor, x: torch.Tensor, first: int) -> None:
        done = 0
        while done < len(rows):
            if self._filled == self._capacity:
                self._flush(x, first + done)
            if self._filled == 0:
                # The piece may still be read by the copy before last.
                self.pieces.events[self._piece].synchronize()
            count = min(self._capacity - self._filled, len(rows) - done)
            piece = self.pieces.rows(self._piece, self._filled + count, self._width)
            piece[self._filled :].copy_(rows[done : done + count])
            self._filled += count
            done += count

    def _flush(self, x: torch.Tensor, end: int) -> None:
        """Send what the piece holds to the rows of x that end at `end`."""
        if not self._filled:
            return
        piece = self.pieces.rows(self._piece, self._filled, self._width)
        x[end - self._filled : end].copy_(piece, non_blocking=True)
        self.pieces.events[self._piece].record()
        self._piece = (self._piece + 1) % PIECES
        self._filled = 0

    def reset(self) -> None:
        """Forget a batch that failed half way; the device must be idle."""
        self._filled = 0


class Download:
    """Copies consecutive rows of one device tensor into the answers of a batch."""

    def __init__(self, device: CudaDevice, dtype: torch.dtype, widest: int) -> None:
        self.pieces = Pieces(device, dtype, widest)

    def empty_piece(self, outputs: Sequence[torch.Tensor]) -> None:
        """All answers out of the first piece, which a graph has filled."""
        width = outputs[0].shape[1]
        first = 0
        for rows in outputs:
            rows.copy_(self.pieces.rows(0, first + len(rows), width)[first:])
            first += len(rows)

    def receive(
        self, source: torch.Tensor, outputs: Sequence[torch.Tensor], end: torch.cuda.Event
    ) -> float:
        """Copy on the current stream, and wait until every answer is complete.

        Args:
            source: [tokens, width] on the device, of the resident type.
            outputs: Host rows, [tokens, width] each, of any type.
            end: Recorded behind the last copy, and waited for.

        Returns:
            Seconds of host time after the last copy had ended.
        """
        tokens, width = source.shape
        capacity = self.pieces.capacity(width)
        blocks = [(first, min(first + capacity, tokens)) for first in range(0, tokens, capacity)]
        starts = [0, *accumulate(map(len, outputs))]
        for index in range(min(PIECES, len(blocks))):
            self._fetch(index, source, *blocks[index], end)
        for index, (first, last) in enumerate(blocks):
            self.pieces.events[index % PIECES].synchronize()
            arrived = time.perf_counter()
            piece = self.pieces.rows(index % PIECES, last - first, width)
            for rows, part in _parts(outputs, starts, first, last):
                rows.copy_(piece[part])
            if index + PIECES < len(blocks):
                self._fetch(index + PIECES, source, *blocks[index + PIECES], end)
        end.synchronize()
        return time.perf_counter() - arrived

    def _fetch(
        self, index: int, source: torch.Tensor, first: int, last: int, end: torch.cuda.Event
    ) -> None:
        """Enqueue the copy of one block of rows into its piece."""
        piece = self.pieces.rows(index % PIECES, last - first, source.shape[1])
        piece.copy_(source[first:last], non_blocking=True)
        self.pieces.events[index % PIECES].record()
        if last == len(source):
            end.record()


def _parts(
    outputs: Sequence[torch.Tensor], starts: Sequence[int], first: int, end: int
) -> Iterator[tuple[torch.Tensor, slice]]:
    """Which rows of which answers the batch's rows from `first` to `end` are.

    Args:
        outputs: The answers.
        starts: Row of the batch at which each begins, and the number of rows.
        first: Row of the batch.
        end: One behind the last.

    Yields:
        Rows of an answer, and where they are, counted from `first`.
    """
    index = bisect_right(starts, first) - 1
    row = first
    while row < end:
        begin, until = starts[index], min(end, starts[index + 1])
        yield outputs[index][row - begin : until - begin], slice(row - first, until - first)
        row = until
        index += 1
