"""Files into tensors by several threads: every byte where it belongs, and an end to all of them."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest
import torch

from service.engine import reading
from service.engine.reading import Read, read_all

PIECE = 100


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", PIECE)


def write(path: Path, nbytes: int, seed: int = 0) -> bytes:
    content = random.Random(seed).randbytes(nbytes)
    path.write_bytes(content)
    return content


@pytest.mark.parametrize("nbytes", [2, PIECE - 2, PIECE, PIECE + 2, 7 * PIECE, 30 * PIECE + 14])
def test_all_bytes_arrive(tmp_path: Path, nbytes: int) -> None:
    content = write(tmp_path / "one", nbytes + 50)
    target = torch.zeros(nbytes // 2, dtype=torch.bfloat16)
    read_all([Read(tmp_path / "one", 13, target)])
    assert bytes(target.view(torch.uint8).tolist()) == content[13 : 13 + nbytes]


def test_several_files_fill_their_own_targets(tmp_path: Path) -> None:
    expected, reads = [], []
    whole = torch.zeros(20, 100, dtype=torch.float16)
    for index, rows in enumerate((whole[:8], whole[8:])):
        content = write(tmp_path / str(index), 10_000, index)
        reads.append(Read(tmp_path / str(index), 7 * index, rows))
        expected.append(content[7 * index :][: rows.nbytes])
    read_all(reads)
    assert bytes(whole.view(-1).view(torch.uint8).tolist()) == b"".join(expected)


def test_short_reads_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = write(tmp_path / "one", 1000)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:33]], at))
    target = torch.zeros(1000, dtype=torch.uint8)
    read_all([Read(tmp_path / "one", 0, target)])
    assert bytes(target.tolist()) == content


def test_a_file_that_ends_early_is_an_error_that_says_where(tmp_path: Path) -> None:
    write(tmp_path / "one", 950)
    with pytest.raises(OSError, match=r"^.*/one ends at 950 bytes$"):
        read_all([Read(tmp_path / "one", 0, torch.zeros(1000, dtype=torch.uint8))])


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_all([Read(tmp_path / "none", 0, torch.zeros(10, dtype=torch.uint8))])


@pytest.mark.parametrize("fails", [False, True])
def test_no_thread_and_no_descriptor_is_left(tmp_path: Path, fails: bool) -> None:
    """Nothing may still write to a target when its owner hears of an error."""
    write(tmp_path / "one", 5000)
    before = set(threading.enumerate()), os.listdir("/proc/self/fd")
    target = torch.zeros(6000 if fails else 5000, dtype=torch.uint8)
    try:
        read_all([Read(tmp_path / "one", 0, target)])
    except OSError:
        assert fails
    else:
        assert not fails
    assert set(threading.enumerate()) == before[0]
    assert len(os.listdir("/proc/self/fd")) == len(before[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("nbytes", [2, 4096, 5 * 4096 + 2, 3 << 20])
def test_all_bytes_arrive_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 4096)
    content = write(tmp_path / "one", nbytes + 50)
    target = torch.zeros(nbytes // 2, dtype=torch.bfloat16, device="cuda")
    read_all([Read(tmp_path / "one", 13, target)])
    assert bytes(target.view(torch.uint8).cpu().numpy()) == content[13 : 13 + nbytes]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_file_that_ends_early_is_an_error_on_a_gpu_too(tmp_path: Path) -> None:
    write(tmp_path / "one", 950)
    with pytest.raises(OSError, match=r"^.*/one ends at 950 bytes$"):
        read_all([Read(tmp_path / "one", 0, torch.zeros(10_000, dtype=torch.uint8, device="cuda"))])
