"""From settings to an engine: what is chosen, why, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from service.engine.base import DType
from service.engine.create import create_engine, select_device
from service.engine.peaks import peak_flops
from service.errors import ConfigError
from tests.checkpoints import mlp_tensors, write_checkpoint

H200 = "NVIDIA H200"


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: H200)


@pytest.mark.usefixtures("no_gpu")
def test_serves_a_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ckpt", mlp_tensors(layers=3))
    engine, reason = create_engine(
        model=tmp_path / "ckpt",
        preset="qwen2.5-0.5b",
        model_name=None,
        layers=(1, 2),
        device="auto",
    )
    assert (engine.model.name, engine.model.layers) == ("ckpt", (1, 2))
    assert reason == "backend reference on cpu: torch finds no GPU"


@pytest.mark.usefixtures("no_gpu")
def test_serves_a_preset_without_a_checkpoint() -> None:
    engine, reason = create_engine(
        model=None, preset="qwen2.5-0.5b", model_name="mine", layers=None, device="cpu"
    )
    assert (engine.model.name, engine.model.layers) == ("mine", (0,))
    assert reason == "backend reference on cpu: the setting device says so"


@pytest.mark.usefixtures("no_gpu")
def test_refuses_the_fused_backend_where_there_is_no_gpu() -> None:
    with pytest.raises(ConfigError, match=r"^backend: .* since the fused kernels need a GPU, is"):
        create_engine(
            model=None,
            preset="qwen2.5-0.5b",
            model_name=None,
            layers=None,
            device="auto",
            backend="fused",
        )


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("text", "device", "reason"),
    [
        ("auto", "cuda:0", f"torch finds {H200}"),
        ("cuda", "cuda:0", "the setting device says so"),
        ("cuda:1", "cuda:1", "the setting device says so"),
        ("cpu", "cpu", "the setting device says so"),
    ],
)
def test_selects_a_gpu(text: str, device: str, reason: str) -> None:
    assert select_device(text) == (torch.device(device), reason)


@pytest.mark.usefixtures("two_gpus")
def test_refuses_a_gpu_beyond_the_last() -> None:
    with pytest.raises(ConfigError, match=r"^device: must be one of the 2 GPUs .*, is 'cuda:2'$"):
        select_device("cuda:2")


@pytest.mark.usefixtures("no_gpu")
def test_refuses_a_gpu_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match=r"^device: must be one of the 0 GPUs .*, is 'cuda'$"):
        select_device("cuda")


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        (H200, DType.BF16, 989.5e12),
        ("NVIDIA H100 80GB HBM3", DType.FP16, 989.5e12),
        ("NVIDIA H100 PCIe", DType.BF16, 756e12),
        ("NVIDIA H200 NVL", DType.BF16, 835.5e12),
        (H200, DType.FP32, 67e12),
        ("NVIDIA GeForce GTX 1080", DType.BF16, None),
    ],
)
def test_peaks_are_the_dense_ones(name: str, dtype: DType, expected: float | None) -> None:
    assert peak_flops(name, dtype) == expected
