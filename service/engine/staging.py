"""Rows between a batch's segments and the device, through small pieces of pinned memory.

A copy is asynchronous only where its host side is pinned. Large inputs and answers in pinned memory
are copied from and to where they are; the rest passes through pieces that are reused: while one is
copied over PCIe, the next is filled or emptied. Element types are converted there, so
only the resident type crosses the bus.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
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
# From here on other threads get the interpreter while bytes are copied.
_LONG_BYTES = 64 << 10


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
        self._fill_part(piece, first, segment, 0, segment.tokens)

    def _fill_part(self, piece: int, at: int, segment: Segment, row: int, count: int) -> None:
        """`count` rows of a segment, from `row` on, into rows of a piece from `at` on."""
        if segment.input_dtype is self._dtype:
            size = self._row_bytes
            target = self.pieces.views[piece][at * size : (at + count) * size]
            source = segment.input.cast("B")[row * size : (row + count) * size]
            _copy_bytes(target, source)
        else:
            rows = as_rows(segment.input, segment.input_dtype, self._width)[row : row + count]
            target_rows = self.pieces.rows(piece, at + count, self._width)[at:]
            target_rows.copy_(rows)

    def _send_large(self, segment: Segment, x: torch.Tensor, first: int) -> None:
        if segment.input_dtype is self._dtype and segment.input.nbytes >= DIRECT_BYTES:
            rows = as_rows(segment.input, segment.input_dtype, self._width)
            if self._device.is_pinned(rows):
                self._flush(x, first)
                x[first : first + len(rows)].copy_(rows, non_blocking=True)
                return
        done = 0
        while done < segment.tokens:
            if self._filled == self._capacity:
                self._flush(x, first + done)
            self._claim()
            count = min(self._capacity - self._filled, segment.tokens - done)
            self._fill_part(self._piece, self._filled, segment, done, count)
            self._filled += count
            done += count

    def _claim(self) -> None:
        """The piece may still be read by its last copy."""
        if self._filled == 0:
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
        self._device = device
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
        width = source.shape[1]
        capacity = self.pieces.capacity(width)
        starts = [0, *accumulate(segment.tokens for segment in segments)]
        blocks = [
            (first, min(first + capacity, until))
            for start, until in self._send_direct(source, segments, starts)
            for first in range(start, until, capacity)
        ]
        ends = [None] * (len(blocks) - 1) + [end]
        for index in range(min(PIECES, len(blocks))):
            self._fetch(index, source, *blocks[index], ends[index])
        if not blocks:
            end.record()
            end.synchronize()
            return 0.0
        for index, (first, last) in enumerate(blocks):
            self.pieces.events[index % PIECES].synchronize()
            arrived = time.perf_counter()
            for part, row, count, at in _parts(starts, first, last):
                self._deliver(index % PIECES, at, segments[part], row, count, width)
            if index + PIECES < len(blocks):
                after = index + PIECES
                self._fetch(after, source, *blocks[after], ends[after])
        end.synchronize()
        return time.perf_counter() - arrived

    def _send_direct(
        self, source: torch.Tensor, segments: Sequence[Segment], starts: Sequence[int]
    ) -> Iterator[tuple[int, int]]:
        """Enqueue the copies of large answers in pinned memory; yields the rows between them."""
        rest = 0
        for segment, first in zip(segments, starts, strict=False):
            if segment.output_dtype is not self._dtype or segment.output.nbytes < DIRECT_BYTES:
                continue
            rows = as_rows(segment.output, segment.output_dtype, source.shape[1])
            if self._device.is_pinned(rows):
                rows.copy_(source[first : first + len(rows)], non_blocking=True)
                if rest < first:
                    yield rest, first
                rest = first + len(rows)
        if rest < len(source):
            yield rest, len(source)

    def _fetch(
        self, index: int, source: torch.Tensor, first: int, last: int, end: torch.cuda.Event | None
    ) -> None:
        """Enqueue the copy of one block of rows into its piece; the last one records `end`."""
        piece = self.pieces.rows(index % PIECES, last - first, source.shape[1])
        piece.copy_(source[first:last], non_blocking=True)
        self.pieces.events[index % PIECES].record()
        if end is not None:
            end.record()

    def _deliver(  # noqa: PLR0917 - called for every segment
        self, piece: int, at: int, segment: Segment, row: int, count: int, width: int
    ) -> None:
        """Copy `count` rows, from row `at` of a piece to row `row` of a segment's output."""
        if segment.output_dtype is self._dtype:
            size = width * self._dtype.itemsize
            source = self.pieces.views[piece][at * size : (at + count) * size]
            target = segment.output.cast("B")[row * size : (row + count) * size]
            _copy_bytes(target, source)
        else:
            rows = as_rows(segment.output, segment.output_dtype, width)[row : row + count]
            rows.copy_(self.pieces.rows(piece, at + count, width)[at:])


def _copy_bytes(target: memoryview, source: memoryview) -> None:
    if len(source) < _LONG_BYTES:
        target[:] = source
    else:
        # numpy copies without the interpreter's lock, and unlike torch in this thread alone.
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))


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
