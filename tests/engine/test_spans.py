"""Where rows are: the resident type in place, other types in memory of their own."""

from __future__ import annotations

import ctypes
from struct import iter_unpack

import pytest
import torch

from service.engine.base import DType, Segment
from service.engine.spans import address_of, convert_outputs, input_spans, output_spans
from service.engine.tensors import as_rows
from tests.engine.batches import WIRE, make_segment, to_bytes

WIDTH = 6
KINDS = [torch.bfloat16, torch.float16, torch.float32]


def draw(tokens: int, dtype: torch.dtype, first: float = 0) -> torch.Tensor:
    """Numbered rows, exact in every type."""
    return (first + torch.arange(tokens * WIDTH).view(tokens, WIDTH) % 251).to(dtype)


def bytes_at(packed: bytes) -> list[bytes]:
    return [ctypes.string_at(address, nbytes) for address, nbytes in iter_unpack("2q", packed)]


def make_segments(output: DType = DType.BF16, *, readonly: bool = False) -> list[Segment]:
    return [
        make_segment(draw(2 + i, kind, i), WIDTH, output, readonly=readonly)
        for i, kind in enumerate(KINDS)
    ]


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("resident", KINDS[:2])
def test_inputs_are_of_the_resident_type(resident: torch.dtype, readonly: bool) -> None:
    segments = make_segments(readonly=readonly)
    spans = input_spans(segments, WIRE[resident], WIDTH, bytearray)
    expected = [to_bytes(draw(2 + i, resident, i)) for i in range(len(KINDS))]
    assert bytes_at(spans.packed) == expected
    assert [segment for segment, _ in spans.converted] == [
        segment for segment in segments if segment.input_dtype is not WIRE[resident]
    ]


@pytest.mark.parametrize("output", WIRE.values())
def test_answers_reach_the_requests_in_their_types(output: DType) -> None:
    segments = make_segments(output)
    spans = output_spans(segments, DType.BF16, WIDTH, bytearray)
    for i, (address, nbytes) in enumerate(iter_unpack("2q", spans.packed)):
        rows = to_bytes(draw(2 + i, torch.bfloat16, 9 * i))
        assert len(rows) == nbytes
        ctypes.memmove(address, rows, nbytes)
    assert 0 <= convert_outputs(spans, WIDTH) < 10
    for i, segment in enumerate(segments):
        answer = as_rows(segment.output, output, WIDTH).float()
        assert torch.equal(answer, draw(2 + i, torch.float32, 9 * i))
    assert bool(spans.converted) == (output is not DType.BF16)


def test_an_address_is_that_of_the_first_byte_at_whatever_place() -> None:
    """A body behind a v2 header of odd length begins at an odd address."""
    memory = bytearray(range(50))
    for view in (memoryview(memory)[7:], memoryview(memory)[7:].toreadonly()):
        assert ctypes.string_at(address_of(view), 3) == bytes([7, 8, 9])
    numbers = memoryview(bytearray(16)).cast("f")
    assert address_of(numbers) == address_of(numbers.cast("B"))
