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

from service.engine.base import DType, Segment
from service.engine.cuda_device import CudaDevice
from service.engine.tensors import as_rows
from service.engine.weights import TORCH_DTYPES

# Stays in a core's cache between the copy that fills it and the one that empties it.
PIECE_BYTES = 2 << 20
PIECES = 4
# Smaller inputs share a piece and its one copy: 3 µs of host time each, a memcpy of 64 KiB takes 5.
DIRECT_BYTES = 64 << 10
# So many bytes are copied by Python itself: torch lets others run meanwhile, but wants 8 µs more.
_PLAIN_BYTES = DIRECT_BYTES


class Pieces:
    """Pinned memory for rows of one element type, in pieces that are used in turn.

    Attributes:
        events: One for each piece, recorded behind the last copy from or to it.
        views: The bytes of each piece.
    """

    def __init__(self, device: CudaDevice, dtype: torch.dtype, widest: int) -> None:
        """Pin the memory.

        Args:
            device: The GPU on the other side.
            dtype: Element type of the rows.
            widest: Columns of the widest row; a piece holds at least one.
        """
        nbytes = max(PIECE_BYTES, -(-widest * dtype.itemsize // 64) * 64)
        parts = torch.split(device.pinned(PIECES * nbytes), nbytes)
        self._flat: list[torch.Tensor] = [part.view(dtype) for part in parts]
        self.views: list[memoryview] = [part.numpy().data for part in parts]
        self.events = [device.event() for _ in range(PIECES)]

    def capacity(self, width: int) -> int:
        """Rows of a piece."""
        return self._flat[0].numel() // width

    def rows(self, piece: int, count: int, width: int) -> torch.Tensor:
        """The first rows of a piece, [count, width]."""
        return self._flat[piece][: count * width].view(count, width)


class Upload:
    """Copies the rows of a batch to consecutive rows of one device tensor."""

    def __init__(self, device: CudaDevice, dtype: DType, width: int) -> None:
        """Pin the pieces.

        Args:
            device: The GPU.
            dtype: The resident type.
            width: Columns of a row.
        """
        self.pieces = Pieces(device, TORCH_DTYPES[dtype], width)
        self._device = device
        self._dtype = dtype
        self._width = width
        self._row_bytes = width * dtype.itemsize
        self._capacity = self.pieces.capacity(width)
        self._piece = 0
        self._filled = 0

    def fill_piece(self, segments: Sequence[Segment]) -> None:
        """All rows into the first piece, which holds them; for a graph that copies it."""
        first = 0
        for segment in segments:
            self._fill(0, first, segment)
            first += segment.tokens

    def send(self, segments: Sequence[Segment], x: torch.Tensor) -> None:
        """Enqueue the copies on the current stream.

        Args:
            segments: Their inputs must stay until the stream has got here.
            x: [tokens of all, width] on the device.
        """
        first = 0
        for segment in segments:
            tokens = segment.tokens
            if tokens * self._row_bytes < DIRECT_BYTES and tokens <= self._capacity:
                if self._filled + tokens > self._capacity:
                    self._flush(x, first)
                self._claim()
                self._fill(self._piece, self._filled, segment)
                self._filled += tokens
            else:
                self._send_large(segment, x, first)
            first += tokens
        self._flush(x, first)

    def reset(self) -> None:
        """Forget a batch that failed half way; the device must be idle."""
        self._filled = 0

    def _fill(self, piece: int, first: int, segment: Segment) -> None:
        """A whole segment into rows of a piece."""
        if segment.input_dtype is self._dtype:
            begin = first * self._row_bytes
            view = self.pieces.views[piece]
            view[begin : begin + segment.input.nbytes] = segment.input.cast("B")
        else:
            rows = self.pieces.rows(piece, first + segment.tokens, self._width)[first:]
            rows.copy_(as_rows(segment.input, segment.input_dtype, self._width))

    def _send_large(self, segment: Segment, x: torch.Tensor, first: int) -> None:
        rows = as_rows(segment.input, segment.input_dtype, self._width)
        if (
            segment.input_dtype is self._dtype
            and segment.input.nbytes >= DIRECT_BYTES
            and self._device.is_pinned(rows)
        ):
            self._flush(x, first)
            x[first : first + len(rows)].copy_(rows, non_blocking=True)
        else:
            self._stage(rows, x, first)

    def _stage(self, rows: torch.Tensor, x: torch.Tensor, first: int) -> None:
        done = 0
        while done < len(rows):
            if self._filled == self._capacity:
                self._flush(x, first + done)
            self._claim()
            count = min(self._capacity - self._filled, len(rows) - done)
            piece = self.pieces.rows(self._piece, self._filled + count, self._width)
            piece[self._filled :].copy_(rows[done : done + count])
            self._filled += count
            done += count

    def _claim(self) -> None:
        if self._filled == 0:
            # The piece may still be read by its last copy.
            self.pieces.events[self._piece].synchronize()

    def _flush(self, x: torch.Tensor, end: int) -> None:
        """Send what the piece holds to the rows of x that end at `end`."""
        if not self._filled:
            return
        piece = self.pieces.rows(self._piece, self._filled, self._width)
        x[end - self._filled : end].copy_(piece, non_blocking=True)
        self.pieces.events[self._piece].record()
        self._piece = (self._piece + 1) % PIECES
        self._filled = 0


class Download:
    """Copies consecutive rows of one device tensor into the answers of a batch."""

    def __init__(self, device: CudaDevice, dtype: DType, widest: int) -> None:
        """Pin the pieces.

        Args:
            device: The GPU.
            dtype: The resident type.
            widest: Columns of the widest answer.
        """
        self.pieces = Pieces(device, TORCH_DTYPES[dtype], widest)
        self._dtype = dtype

    def empty_piece(self, segments: Sequence[Segment], width: int) -> None:
        """All answers out of the first piece, which a graph has filled."""
        first = 0
        for segment in segments:
            self._deliver(0, first, segment, 0, segment.tokens, width)
            first += segment.tokens

    def receive(
        self, source: torch.Tensor, segments: Sequence[Segment], end: torch.cuda.Event
    ) -> float:
        """Copy on the current stream, and wait until every answer is complete.

        Args:
            source: [tokens of all, width] on the device, of the resident type.
            segments: Whose outputs are filled.
            end: Recorded behind the last copy, and waited for.

        Returns:
            Seconds of host time after the last copy had ended.
        """
        tokens, width = source.shape
        capacity = self.pieces.capacity(width)
        blocks = [(first, min(first + capacity, tokens)) for first in range(0, tokens, capacity)]
        starts = [0, *accumulate(segment.tokens for segment in segments)]
        for index in range(min(PIECES, len(blocks))):
            self._fetch(index, source, *blocks[index], end)
        for index, (first, last) in enumerate(blocks):
            self.pieces.events[index % PIECES].synchronize()
            arrived = time.perf_counter()
            for part, row, count, at in _parts(starts, first, last):
                self._deliver(index % PIECES, at, segments[part], row, count, width)
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

    def _deliver(  # noqa: PLR0917 - called for every segment
        self, piece: int, at: int, segment: Segment, row: int, count: int, width: int
    ) -> None:
        """Copy `count` rows, from row `at` of a piece to row `row` of a segment's output."""
        nbytes = width * self._dtype.itemsize
        if segment.output_dtype is self._dtype and count * nbytes < _PLAIN_BYTES:
            source = self.pieces.views[piece][at * nbytes : (at + count) * nbytes]
            segment.output.cast("B")[row * nbytes : (row + count) * nbytes] = source
        else:
            rows = as_rows(segment.output, segment.output_dtype, width)
            rows[row : row + count].copy_(self.pieces.rows(piece, at + count, width)[at:])


def _parts(starts: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
    """Which rows of which segments the batch's rows from `first` up to `last` are.

    Args:
        starts: Row of the batch at which each segment begins, and the number of rows.
        first: Row of the batch.
        last: One behind the last.

    Yields:
        Index of a segment, the first of its rows, their number, and where they are, counted from
        `first`.
    """
    index = bisect_right(starts, first) - 1
    row = first
    while row < last:
        until = min(last, starts[index + 1])
        yield index, row - starts[index], until - row, row - first
        row = until
        index += 1
