"""Measuring at start: which sizes, what is kept where, and when it is measured again."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from service.engine.autotune import autotune, cache_path, tuned_tokens
from service.kernels.dispatch_table import Tuned, TunedSize, read_table
from service.kernels.errors import LibraryError
from service.kernels.library import Library
from service.kernels.tuner import Found, Operands
from tests.engine.batches import make_model
from tests.engine.fake_device import FakeDevice
from tests.engine.test_gate_up import FakeLauncher
from tests.kernels.conftest import host_library  # noqa: F401 - a fixture

RANKED = (Tuned("pp_128x192_c2x1", "along_m", 1, 1.0), Tuned("k1_128x128_c2x1", "along_m", 1, 2.0))


class Sweep:
    """Stands for the measurements, and remembers what was to be measured."""

    def __init__(self) -> None:
        self.seen: list[Operands] = []

    def __call__(self, launcher, operands, num_sms, steadiness) -> Found:
        self.seen.append(operands)
        (tokens, hidden), intermediate = operands.x.shape, operands.out.shape[1]
        return Found(TunedSize(hidden, intermediate, tokens, RANKED), 1.0, {})


@pytest.fixture
def model():
    return make_model(layers=(0, 3))


@pytest.fixture
def start(model, host_library: Library):  # noqa: F811
    """One start of a service with at most 300 rows in a batch."""

    def run(path: Path | None, sweep: Sweep, *, gpu: str = "NVIDIA H200") -> list[TunedSize]:
        device = FakeDevice()
        device.name = gpu
        return autotune(model, FakeLauncher(host_library), device, 300, path, sweep=sweep)

    return run


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, (1,)), (2, (1, 2)), (64, (1, 16, 64)), (300, (1, 16, 64, 128, 256, 300))],
)
def test_sizes_end_with_the_largest_batch(largest, sizes):
    assert tuned_tokens(largest) == sizes
    assert tuned_tokens(20_000)[-2:] == (8192, 20_000)


def test_every_size_is_measured_on_random_rows_and_all_layers(start, model, tmp_path):
    sweep = Sweep()
    sizes = start(tmp_path / "table.json", sweep)
    assert [len(operands.x) for operands in sweep.seen] == [1, 16, 64, 128, 256, 300]
    for operands in sweep.seen:
        assert len(operands.weights) == len(model.layers)
        assert operands.x.dtype == torch.bfloat16
        assert operands.x.float().std() > 0.1
        assert operands.x.isfinite().all()
    assert sizes == read_table(tmp_path / "table.json")
    about = json.loads((tmp_path / "table.json").read_text())
    assert about["gpu"] == "NVIDIA H200"


def test_the_next_start_reads_it(start, tmp_path):
    first = start(tmp_path / "table.json", Sweep())
    again = Sweep()
    assert start(tmp_path / "table.json", again) == first
    assert not again.seen


@pytest.mark.parametrize(
    "change", [{"gpu": "NVIDIA H100"}, {"library": "another build"}, {"multiprocessors": 114}]
)
def test_a_table_of_another_gpu_or_library_is_measured_anew(start, tmp_path, change):
    path = tmp_path / "table.json"
    start(path, Sweep())
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    again = Sweep()
    start(path, again)
    assert len(again.seen) == 6
    assert json.loads(path.read_text())["gpu"] == "NVIDIA H200"


def test_a_table_of_another_shape_is_measured_anew(start, model, host_library, tmp_path):  # noqa: F811
    path = tmp_path / "table.json"
    start(path, Sweep())
    other = make_model(hidden_size=64, intermediate_size=96)
    again, device = Sweep(), FakeDevice()
    device.name = "NVIDIA H200"
    sizes = autotune(other, FakeLauncher(host_library), device, 300, path, sweep=again)
    assert len(again.seen) == 6
    assert {(size.hidden, size.intermediate) for size in sizes} == {(64, 96)}


def test_a_table_that_lacks_a_size_is_measured_anew(start, tmp_path):
    path = tmp_path / "table.json"
    start(path, Sweep())
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "sizes": document["sizes"][1:]}))
    again = Sweep()
    start(path, again)
    assert len(again.seen) == 6


def test_what_looks_like_a_table_of_ours_and_is_none_is_refused(start, tmp_path):
    path = tmp_path / "table.json"
    start(path, Sweep())
    path.write_text(json.dumps({**json.loads(path.read_text()), "sizes": [1]}))
    with pytest.raises(LibraryError, match="must be a file that the tuner wrote"):
        start(path, Sweep())


@pytest.mark.parametrize("text", ["", "[]", "no json"])
def test_any_other_file_is_written_over(start, tmp_path, text):
    path = tmp_path / "table.json"
    path.write_text(text)
    assert start(path, Sweep()) == read_table(path)


def test_a_folder_that_cannot_be_written_is_warned_of(start, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        assert len(start(tmp_path / "file" / "table.json", Sweep())) == 6
    assert "could not be kept" in caplog.text


def test_without_a_place_nothing_is_kept(start):
    assert len(start(None, Sweep())) == 6


def test_it_lies_beside_the_checkpoint(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_text("")
    assert cache_path(tmp_path, "NVIDIA H200") == tmp_path / "tilemlp-nvidia-h200.json"
    assert cache_path(file, "NVIDIA H200") == tmp_path / "tilemlp-nvidia-h200.json"
    assert cache_path(None, "NVIDIA H200") is None
    assert cache_path(tmp_path, "NVIDIA H200 NVL") != cache_path(tmp_path, "NVIDIA H200")
