"""Which memory of others the fused engine opens, and that it closes it again."""

from __future__ import annotations

import logging
import threading

import pytest
import torch

from service.errors import InvalidRequest
from service.kernels.errors import CudaError
from tests.engine.fused_engines import Made

HANDLE = b"h" * 64


@pytest.fixture
def made(make) -> Made:
    one = make()
    one.device.shared[HANDLE] = torch.arange(100, dtype=torch.uint8)
    return one


def test_memory_is_opened_as_often_as_it_is_closed(made: Made) -> None:
    engine, address = made.engine, made.device.shared[HANDLE].data_ptr()
    first = engine.open_device_memory(HANDLE, 0, 100)
    second = engine.open_device_memory(HANDLE, 0, 10)
    assert first.address == second.address == address
    assert made.device.mapped == [address, address]
    engine.close_device_memory(first)
    engine.close_device_memory(first)
    assert made.device.mapped == [address]
    engine.close_device_memory(second)
    assert made.device.mapped == []


@pytest.mark.parametrize(
    ("handle", "index", "nbytes", "words"),
    [
        (HANDLE, 1, 1, "^device_id: must be 0, the engine's GPU, is 1$"),
        (HANDLE, 0, 101, "^byte_size: must be at most 100, what was allocated, is 101$"),
        (
            b"x" * 64,
            0,
            1,
            "^raw_handle: must be one .* is not: cudaIpcOpenMemHandle: CUDA error",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_and_left_closed(
    made: Made, handle: bytes, index: int, nbytes: int, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        made.engine.open_device_memory(handle, index, nbytes)
    assert made.device.mapped == []


def test_nothing_is_open_behind_the_engines_end(made: Made) -> None:
    for _ in range(3):
        made.engine.open_device_memory(HANDLE, 0, 100)
    assert len(made.device.mapped) == 3
    made.engine.close()
    assert made.device.mapped == []


def test_memory_that_cannot_be_closed_is_told_and_forgotten(
    made: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(memory: torch.Tensor) -> None:
        raise CudaError("cudaIpcCloseMemHandle: CUDA error: no")

    memory = made.engine.open_device_memory(HANDLE, 0, 100)
    monkeypatch.setattr(made.device, "unmap_memory", fail)
    with caplog.at_level(logging.WARNING):
        made.engine.close_device_memory(memory)
        made.engine.close_device_memory(memory)
    (record,) = caplog.records
    assert "could not be closed: cudaIpcCloseMemHandle" in record.message


def test_two_that_close_at_once_close_once(made: Made) -> None:
    memory = made.engine.open_device_memory(HANDLE, 0, 100)
    made.engine.open_device_memory(HANDLE, 0, 100)
    threads = [
        threading.Thread(target=made.engine.close_device_memory, args=(memory,)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made.device.mapped) == 1
