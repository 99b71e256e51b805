"""Memory lent to requests: page-locked where that helps, bounded, and nobody's twice."""

from __future__ import annotations

import gc

import pytest
import torch

from service.engine import host_memory
from service.engine.base import Output
from service.engine.host_memory import PIECES, HostMemory, Pieces
from service.kernels.transfer import DIRECT_BYTES
from tests.engine.batches import make_model
from tests.engine.fake_device import FakeDevice


class Pinning(FakeDevice):
    """Says how often it was asked for page-locked memory, and may have none."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.full = False

    def pinned(self, nbytes: int) -> torch.Tensor:
        if self.full:
            raise RuntimeError("CUDA error: out of memory")
        self.asked.append(nbytes)
        return super().pinned(nbytes)


@pytest.fixture
def device() -> Pinning:
    return Pinning()


def test_only_what_is_copied_from_where_it_is_gets_pinned(device: Pinning) -> None:
    memory = HostMemory(device)
    for nbytes in (1, 4096, DIRECT_BYTES - 1, DIRECT_BYTES, 1 << 20):
        lent = memoryview(memory.allocate(nbytes))
        assert (lent.nbytes, lent.readonly, lent.format) == (nbytes, False, "B")
    assert device.asked == [DIRECT_BYTES, 1 << 20]


def test_where_nothing_can_be_pinned_the_service_goes_on(device: Pinning, caplog) -> None:
    device.full = True
    memory = HostMemory(device)
    assert len(memory.allocate(1 << 20)) == 1 << 20
    assert "could not be page-locked" in caplog.text
    device.full = False
    memory.allocate(1 << 20)
    assert device.asked == [1 << 20]


def test_a_bound_holds_for_what_is_held_at_a_time(device: Pinning, monkeypatch) -> None:
    monkeypatch.setattr(host_memory, "LENT_BYTES", 3 << 20)
    memory = HostMemory(device)
    held = [memoryview(memory.allocate(1 << 20))[7:] for _ in range(5)]
    assert len(device.asked) == 3
    assert all(len(view) == (1 << 20) - 7 for view in held)
    del held[:2]
    gc.collect()
    held += [memoryview(memory.allocate(1 << 20)) for _ in range(3)]
    assert len(device.asked) == 5


def test_memory_stays_while_anything_refers_to_it(device: Pinning) -> None:
    memory = HostMemory(device)
    views = []
    for number in range(8):
        view = memoryview(memory.allocate(DIRECT_BYTES))
        view[:] = bytes([number]) * DIRECT_BYTES
        views.append(view[10:20])
        del view
    assert [bytes(view) for view in views] == [bytes([number]) * 10 for number in range(8)]


def test_pieces_hold_the_widest_row(device: Pinning, monkeypatch) -> None:
    monkeypatch.setattr(host_memory, "PIECE_BYTES", 64)
    model = make_model(hidden_size=32, intermediate_size=48).spec
    inputs, answers = Pieces(device, model, ()), Pieces(device, model, tuple(Output))
    assert device.asked == [PIECES * 64, PIECES * 128]
    assert inputs.rows(1, 32).shape == (1, 32)
    assert answers.rows(1, 48).data_ptr() == answers.staging.data_ptr()
    assert answers.staging.nbytes == 128
