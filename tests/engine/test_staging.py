"""Rows through pieces: each to its place, no piece overwritten while it is being copied."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from service.engine import staging
from service.engine.staging import DIRECT_BYTES, PIECES, Download, Pieces, Upload
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


COUNTS = [(1,), (5,), (6,), (1, 1, 1), (4, 4), (1, 40, 2, 1), (17, 1, 30), (2,) * 30]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_arrive_in_order_whatever_their_type(
    device: FakeDevice, counts: tuple[int, ...], dtype: torch.dtype
) -> None:
    upload = Upload(device, torch.bfloat16, WIDTH)
    for _ in range(2):
        x = torch.full((sum(counts), WIDTH), torch.nan, dtype=torch.bfloat16)
        upload.send(draw(counts, dtype), x)
        assert torch.equal(x, torch.cat(draw(counts)))


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_answers_are_dealt_out_in_order(
    device: FakeDevice, counts: tuple[int, ...], dtype: torch.dtype
) -> None:
    download = Download(device, torch.bfloat16, WIDTH)
    source = torch.cat(draw(counts))
    outputs = [torch.full((count, WIDTH), torch.nan, dtype=dtype) for count in counts]
    end = FakeEvent()
    assert download.receive(source, outputs, end) >= 0
    assert (end.records, end.waited_for) == (1, 1)
    for rows, expected in zip(outputs, draw(counts, dtype), strict=True):
        assert torch.equal(rows, expected)


def test_small_inputs_share_a_copy(device: FakeDevice) -> None:
    upload = Upload(device, torch.bfloat16, WIDTH)
    upload.send(draw((1, 1, 2)), torch.empty(4, WIDTH, dtype=torch.bfloat16))
    assert [event.records for event in upload.pieces.events] == [1, 0, 0, 0]


def test_large_pinned_inputs_go_from_where_they_are(device: FakeDevice) -> None:
    rows = -(-DIRECT_BYTES // (2 * WIDTH))
    counts = (1, rows, 2, rows, rows - 1)
    device.pin = True
    upload = Upload(device, torch.bfloat16, WIDTH)
    x = torch.full((sum(counts), WIDTH), torch.nan, dtype=torch.bfloat16)
    upload.send(draw(counts), x)
    assert torch.equal(x, torch.cat(draw(counts)))
    # One piece each around the large ones; then what is one row short of large.
    assert sum(event.records for event in upload.pieces.events) == 2 + -(-(rows - 1) // 5)


@pytest.mark.parametrize(("pin", "dtype"), [(False, torch.bfloat16), (True, torch.float16)])
def test_others_never_do(device: FakeDevice, pin: bool, dtype: torch.dtype) -> None:
    rows = DIRECT_BYTES // WIDTH
    device.pin = pin
    upload = Upload(device, torch.bfloat16, WIDTH)
    upload.send(draw((rows,), dtype), torch.empty(rows, WIDTH, dtype=torch.bfloat16))
    assert sum(event.records for event in upload.pieces.events) == -(-rows // 5)


class Guarded(Pieces):
    """Refuses a piece whose last copy was not waited for."""

    def rows(self, piece: int, count: int, width: int) -> torch.Tensor:
        event = self.events[piece]
        assert isinstance(event, FakeEvent)
        assert event.waited_for == event.records, f"piece {piece} is still being copied"
        return super().rows(piece, count, width)


def test_a_piece_is_filled_again_only_after_its_copy(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "Pieces", Guarded)
    upload = Upload(device, torch.bfloat16, WIDTH)
    rows = 5 * PIECES * 3 + 1
    for _ in range(2):
        upload.send(draw((rows,)), torch.empty(rows, WIDTH, dtype=torch.bfloat16))
    assert [event.records for event in upload.pieces.events] == [7, 7, 6, 6]


def test_a_piece_is_fetched_again_only_after_it_was_emptied(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "Pieces", Guarded)
    rows = 5 * PIECES * 3 + 1
    outputs = [torch.empty(rows, WIDTH, dtype=torch.bfloat16)]
    Download(device, torch.bfloat16, WIDTH).receive(torch.cat(draw((rows,))), outputs, FakeEvent())
    assert torch.equal(outputs[0], torch.cat(draw((rows,))))


def test_a_batch_that_failed_half_way_leaves_no_rows_behind(device: FakeDevice) -> None:
    upload = Upload(device, torch.bfloat16, WIDTH)
    with pytest.raises(RuntimeError):
        upload.send([*draw((2,)), torch.empty(2, WIDTH + 1)], torch.empty(4, WIDTH))
    upload.reset()
    x = torch.empty(1, WIDTH, dtype=torch.bfloat16)
    upload.send(draw((1,)), x)
    assert torch.equal(x, draw((1,))[0])


def test_a_row_wider_than_a_piece_gets_a_larger_piece(device: FakeDevice) -> None:
    upload = Upload(device, torch.bfloat16, 100)
    rows = torch.arange(300, dtype=torch.float32).view(3, 100) % 251
    x = torch.empty(3, 100, dtype=torch.bfloat16)
    upload.send([rows], x)
    assert torch.equal(x.float(), rows)


def test_the_first_piece_carries_a_small_batch_for_a_graph(device: FakeDevice) -> None:
    upload, download = (kind(device, torch.bfloat16, WIDTH) for kind in (Upload, Download))
    upload.fill_piece(draw((1, 2, 1), torch.float32))
    assert torch.equal(upload.pieces.rows(0, 4, WIDTH), torch.cat(draw((4,))))
    download.pieces.rows(0, 4, WIDTH).copy_(torch.cat(draw((4,))))
    outputs = [torch.empty(count, WIDTH) for count in (3, 1)]
    download.empty_piece(outputs)
    assert torch.equal(torch.cat(outputs), torch.cat(draw((4,), torch.float32)))
