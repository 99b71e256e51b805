"""Rows through pieces: each to its place, no piece overwritten while it is being copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from service.engine import staging
from service.engine.base import DType, Segment
from service.engine.staging import DIRECT_BYTES, PIECES, Download, Pieces, Upload
from service.engine.tensors import as_rows
from tests.engine.batches import WIRE, make_segment, to_bytes
from tests.engine.fake_device import FakeDevice, FakeEvent

WIDTH = 6


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rows of 6 bf16 elements, and some bytes more."""
    monkeypatch.setattr(staging, "PIECE_BYTES", 64)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


def draw(counts: Sequence[int], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Numbered rows, exact in every type."""
    whole = torch.arange(sum(counts) * WIDTH, dtype=torch.float32).view(-1, WIDTH) % 251
    return [part.to(dtype) for part in torch.split(whole, list(counts))]


def segments_of(inputs: Sequence[torch.Tensor], output_dtype: DType = DType.BF16) -> list[Segment]:
    return [make_segment(rows, WIDTH, output_dtype) for rows in inputs]


def outputs_of(segments: Sequence[Segment]) -> list[torch.Tensor]:
    return [as_rows(segment.output, segment.output_dtype, WIDTH) for segment in segments]


COUNTS = [(1,), (5,), (6,), (1, 1, 1), (4, 4), (1, 40, 2, 1), (17, 1, 30), (2,) * 30]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_arrive_in_order_whatever_their_type(
    device: FakeDevice, counts: tuple[int, ...], dtype: torch.dtype
) -> None:
    upload = Upload(device, DType.BF16, WIDTH)
    for _ in range(2):
        x = torch.full((sum(counts), WIDTH), torch.nan, dtype=torch.bfloat16)
        upload.send(segments_of(draw(counts, dtype)), x)
        assert torch.equal(x, torch.cat(draw(counts)))


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_answers_are_dealt_out_in_order(
    device: FakeDevice, counts: tuple[int, ...], dtype: torch.dtype
) -> None:
    download = Download(device, DType.BF16, WIDTH)
    source = torch.cat(draw(counts))
    segments = segments_of(draw(counts), WIRE[dtype])
    end = FakeEvent()
    assert download.receive(source, segments, end) >= 0
    assert (end.records, end.waited_for) == (1, 1)
    for rows, expected in zip(outputs_of(segments), draw(counts, dtype), strict=True):
        assert torch.equal(rows, expected)


def test_small_inputs_share_a_copy(device: FakeDevice) -> None:
    upload = Upload(device, DType.BF16, WIDTH)
    upload.send(segments_of(draw((1, 1, 2))), torch.empty(4, WIDTH, dtype=torch.bfloat16))
    assert [event.records for event in upload.pieces.events] == [1, 0, 0, 0]


def test_large_pinned_inputs_go_from_where_they_are(device: FakeDevice) -> None:
    rows = -(-DIRECT_BYTES // (2 * WIDTH))
    counts = (1, rows, 2, rows, rows - 1)
    device.all_pinned = True
    upload = Upload(device, DType.BF16, WIDTH)
    x = torch.full((sum(counts), WIDTH), torch.nan, dtype=torch.bfloat16)
    upload.send(segments_of(draw(counts)), x)
    assert torch.equal(x, torch.cat(draw(counts)))
    # One piece each around the large ones; then what is one row short of large.
    assert sum(event.records for event in upload.pieces.events) == 2 + -(-(rows - 1) // 5)


@pytest.mark.parametrize(("pin", "dtype"), [(False, torch.bfloat16), (True, torch.float16)])
def test_others_never_do(device: FakeDevice, pin: bool, dtype: torch.dtype) -> None:
    rows = DIRECT_BYTES // WIDTH
    device.all_pinned = pin
    upload = Upload(device, DType.BF16, WIDTH)
    upload.send(segments_of(draw((rows,), dtype)), torch.empty(rows, WIDTH, dtype=torch.bfloat16))
    assert sum(event.records for event in upload.pieces.events) == -(-rows // 5)


class Guarded(Pieces):
    """Refuses a piece whose last copy was not waited for."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        self._bytes, self.views = self.views, self

    def __getitem__(self, piece: int) -> memoryview:
        self._check(piece)
        return self._bytes[piece]

    def rows(self, piece: int, count: int, width: int) -> torch.Tensor:
        self._check(piece)
        return super().rows(piece, count, width)

    def _check(self, piece: int) -> None:
        event = self.events[piece]
        assert isinstance(event, FakeEvent)
        assert event.waited_for == event.records, f"piece {piece} is still being copied"


def test_a_piece_is_filled_again_only_after_its_copy(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "Pieces", Guarded)
    upload = Upload(device, DType.BF16, WIDTH)
    rows = 5 * PIECES * 3 + 1
    for counts in ((rows,), (1,) * rows):
        upload.send(segments_of(draw(counts)), torch.empty(rows, WIDTH, dtype=torch.bfloat16))
    assert [event.records for event in upload.pieces.events] == [7, 7, 6, 6]


def test_a_piece_is_fetched_again_only_after_it_was_emptied(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "Pieces", Guarded)
    rows = 5 * PIECES * 3 + 1
    for counts in ((rows,), (1,) * rows):
        segments = segments_of(draw(counts))
        source = torch.cat(draw(counts))
        Download(device, DType.BF16, WIDTH).receive(source, segments, FakeEvent())
        assert torch.equal(torch.cat(outputs_of(segments)), source)


def test_a_batch_that_failed_half_way_leaves_no_rows_behind(device: FakeDevice) -> None:
    upload = Upload(device, DType.BF16, WIDTH)
    bad = segments_of([torch.zeros(2, WIDTH + 1)])
    with pytest.raises(RuntimeError):
        upload.send([*segments_of(draw((2,))), *bad], torch.empty(4, WIDTH))
    upload.reset()
    x = torch.empty(1, WIDTH, dtype=torch.bfloat16)
    upload.send(segments_of(draw((1,))), x)
    assert torch.equal(x, draw((1,))[0])


def test_a_row_wider_than_a_piece_gets_a_larger_piece(device: FakeDevice) -> None:
    upload = Upload(device, DType.BF16, 100)
    rows = torch.arange(300, dtype=torch.float32).view(3, 100) % 251
    x = torch.empty(3, 100, dtype=torch.bfloat16)
    upload.send([make_segment(rows, 100, DType.BF16)], x)
    assert torch.equal(x.float(), rows)


def test_the_first_piece_carries_a_small_batch_for_a_graph(device: FakeDevice) -> None:
    upload = Upload(device, DType.BF16, WIDTH)
    upload.fill_piece(segments_of([*draw((1, 2), torch.float32), torch.ones(1, WIDTH).bfloat16()]))
    expected = torch.cat([*draw((3,)), torch.ones(1, WIDTH).bfloat16()])
    assert torch.equal(upload.pieces.rows(0, 4, WIDTH), expected)
    download = Download(device, DType.BF16, WIDTH)
    download.pieces.rows(0, 4, WIDTH).copy_(expected)
    segments = [*segments_of(draw((3,))), *segments_of(draw((1,)), DType.FP32)]
    download.empty_piece(segments, WIDTH)
    assert torch.equal(torch.cat(outputs_of(segments)), expected.float())


def test_a_body_at_an_odd_address_is_read_as_it_is(device: FakeDevice) -> None:
    """Behind a v2 header of odd length."""
    (rows,) = draw((3,))
    memory = bytearray(1 + rows.nbytes)
    memory[1:] = to_bytes(rows)
    (segment,) = segments_of([rows])
    odd = replace(segment, input=memoryview(memory)[1:])
    upload = Upload(device, DType.BF16, WIDTH)
    x = torch.empty(3, WIDTH, dtype=torch.bfloat16)
    upload.send([odd], x)
    assert torch.equal(x, rows)


LARGE = -(-DIRECT_BYTES // (2 * WIDTH))


@pytest.mark.parametrize("numbers", [(LARGE,), (2, LARGE, 7), (LARGE, LARGE, 3), (1, LARGE)])
def test_large_answers_go_straight_into_pinned_memory(
    device: FakeDevice, numbers: tuple[int, ...]
) -> None:
    device.all_pinned = True
    download = Download(device, DType.BF16, WIDTH)
    source = torch.cat(draw(numbers))
    segments = segments_of(draw(numbers))
    end = FakeEvent()
    download.receive(source, segments, end)
    for rows, expected in zip(outputs_of(segments), draw(numbers), strict=True):
        assert torch.equal(rows, expected)
    assert (end.records, end.waited_for) == (1, 1)
    # What lies between them passes through pieces of five rows.
    pieces = sum(-(-count // 5) for count in numbers if count != LARGE)
    assert sum(event.records for event in download.pieces.events) == pieces


@pytest.mark.parametrize(("pin", "dtype"), [(False, DType.BF16), (True, DType.FP16)])
def test_other_answers_never_do(device: FakeDevice, pin: bool, dtype: DType) -> None:
    rows = DIRECT_BYTES // WIDTH
    device.all_pinned = pin
    download = Download(device, DType.BF16, WIDTH)
    segments = segments_of(draw((rows,)), dtype)
    download.receive(torch.cat(draw((rows,))), segments, FakeEvent())
    assert sum(event.records for event in download.pieces.events) == -(-rows // 5)
