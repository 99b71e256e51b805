"""Bytes of files into tensors, by as many threads as it takes to keep up with a bus.

One thread copies some 5 GB/s out of the page cache, a tenth of what PCIe takes. On their way to a
GPU they fill page-locked pieces, which one thread alone has copied: CUDA's calls of many threads
hold each other up.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import torch

# A small layer is a piece or two for each thread.
PIECE_BYTES = 4 << 20
THREADS = 8


@dataclass(frozen=True, slots=True)
class Read:
    """What to read.

    Attributes:
        file: Where from.
        offset: Of the first byte.
        target: Contiguous, on any device; it is filled.
    """

    file: Path
    offset: int
    target: torch.Tensor


def read_all(reads: Sequence[Read]) -> None:
    """Fill all targets, which are on one device.

    Raises:
        OSError: a file cannot be read, or ends before its target is full.
    """
    with ExitStack() as stack, ThreadPoolExecutor(THREADS) as pool:
        files = [OpenFile(read.file, stack) for read in reads]
        pieces = [
            Piece(file, offset, target)
            for file, read in zip(files, reads, strict=True)
            for offset, target in split(read)
        ]
        try:
            if reads[0].target.device.type == "cpu":
                for _ in pool.map(lambda piece: piece.read_to(piece.target), pieces):
                    pass
            else:
                _read_to_gpu(pieces, pool)
        finally:
            # After an error too: nothing may write to a target that is let go.
            pool.shutdown(cancel_futures=True)


def split(read: Read) -> Iterator[tuple[int, torch.Tensor]]:
    """Offset and bytes of the pieces of a read."""
    flat = read.target.view(-1).view(torch.uint8)
    at = read.offset
    for piece in torch.split(flat, PIECE_BYTES):
        yield at, piece
        at += piece.numel()


class OpenFile:
    """A file that a stack closes."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        stack.callback(os.close, self._descriptor)

    def read(self, offset: int, target: torch.Tensor) -> None:
        """Fill bytes on the host from an offset on.

        Raises:
            OSError: it cannot be read, or ends before.
        """
        view = target.numpy().data
        done = 0
        while done < view.nbytes:
            count = os.preadv(self._descriptor, [view[done:]], offset + done)
            if not count:
                raise OSError(f"{self._path} ends at {offset + done} bytes")
            done += count


class Piece(NamedTuple):
    """A part of a read.

    Attributes:
        target: Bytes, on any device.
    """

    file: OpenFile
    offset: int
    target: torch.Tensor

    def read_to(self, host: torch.Tensor) -> None:
        """Read it to the beginning of host memory."""
        self.file.read(self.offset, host[: self.target.numel()])


class Buffer:
    """Page-locked memory that pieces pass through, one after the other."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._memory = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def fill(self, piece: Piece, pool: ThreadPoolExecutor) -> None:
        """Have a piece read, once the one before has left."""
        self._copied.synchronize()
        self._piece, self._read = piece, pool.submit(piece.read_to, self._memory)

    def send(self) -> None:
        """Wait until it is read, and have it copied to where it belongs."""
        self._read.result()
        target = self._piece.target
        with torch.cuda.stream(self._stream):
            target.copy_(self._memory[: target.numel()], non_blocking=True)
            self._copied.record(self._stream)


def _read_to_gpu(pieces: Sequence[Piece], pool: ThreadPoolExecutor) -> None:
    device = pieces[0].target.device
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    # Whoever made the targets may have enqueued something that still writes to their memory.
    stream.wait_stream(torch.cuda.current_stream(device))
    # While one for each thread is filled, as many are copied.
    buffers = [Buffer(stream) for _ in range(min(2 * THREADS, len(pieces)))]
    turns = cycle(buffers)
    to_send: deque[Buffer] = deque()
    try:
        for piece in pieces:
            if len(to_send) == THREADS:
                to_send.popleft().send()
            buffer = next(turns)
            buffer.fill(piece, pool)
            to_send.append(buffer)
        for buffer in to_send:
            buffer.send()
    finally:
        stream.synchronize()
