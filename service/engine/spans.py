"""Where the rows of a batch's requests are in host memory, for copies that know bytes alone.

Only the resident type crosses the bus. Rows of another type are converted in memory of their own.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from service.engine.base import Buffer, DType, Segment, host_rows
from service.engine.tensors import as_rows
from service.engine.weights import TORCH_DTYPES
from service.kernels.transfer import pack_spans


class Spans(NamedTuple):
    """One direction of a batch.

    Attributes:
        packed: Address and length of each request's rows, of the resident type.
        converted: Requests whose rows are of another type, with those of the resident one. They
            must be kept until the copies are over.
    """

    packed: bytes
    converted: Sequence[tuple[Segment, torch.Tensor]]


def input_spans(
    segments: Sequence[Segment], dtype: DType, width: int, allocate: Callable[[int], Buffer]
) -> Spans:
    """The rows that requests sent, converted where they need to be.

    Args:
        segments: The requests.
        dtype: The resident type.
        width: Columns of a row.
        allocate: Makes the memory for converted rows.
    """
    where: list[int] = []
    converted: list[tuple[Segment, torch.Tensor]] = []
    for segment in segments:
        if segment.input_dtype is dtype:
            data = host_rows(segment.input)
            where += address_of(data), data.nbytes
        else:
            rows = _new_rows(segment.tokens, dtype, width, allocate)
            rows.copy_(as_rows(host_rows(segment.input), segment.input_dtype, width))
            converted.append((segment, rows))
            where += rows.data_ptr(), rows.nbytes
    return Spans(pack_spans(where), converted)


def output_spans(
    segments: Sequence[Segment], dtype: DType, width: int, allocate: Callable[[int], Buffer]
) -> Spans:
    """Where answers go; see `input_spans`, and call `convert_outputs` when they are there."""
    where: list[int] = []
    converted: list[tuple[Segment, torch.Tensor]] = []
    for segment in segments:
        if segment.output_dtype is dtype:
            data = host_rows(segment.output)
            where += address_of(data), data.nbytes
        else:
            rows = _new_rows(segment.tokens, dtype, width, allocate)
            converted.append((segment, rows))
            where += rows.data_ptr(), rows.nbytes
    return Spans(pack_spans(where), converted)


def convert_outputs(spans: Spans, width: int) -> float:
    """Answers of another type than the resident one, into the requests' memory.

    Returns:
        Seconds that it took.
    """
    began = time.perf_counter()
    for segment, rows in spans.converted:
        as_rows(host_rows(segment.output), segment.output_dtype, width).copy_(rows)
    return time.perf_counter() - began


def address_of(buffer: memoryview) -> int:
    """Where a C-contiguous buffer lies; it must be kept for as long as that is used."""
    if buffer.readonly:
        address: int = np.frombuffer(buffer, np.uint8).ctypes.data
        return address
    # A third of the time.
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _new_rows(
    tokens: int, dtype: DType, width: int, allocate: Callable[[int], Buffer]
) -> torch.Tensor:
    memory = allocate(tokens * width * dtype.itemsize)
    return torch.frombuffer(memory, dtype=TORCH_DTYPES[dtype]).view(tokens, width)
