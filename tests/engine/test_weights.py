"""load_model: specs, names, defaults, progress, and memory that does not suffice."""

from __future__ import annotations

import typing
from pathlib import Path

import pytest
import torch

from service.config import Preset
from service.engine import weights
from service.engine.base import DType, ModelSpec
from service.engine.presets import PRESETS, fill_random
from service.engine.weights import checkpoint_name, load_model
from service.errors import CheckpointError
from tests.checkpoints import mlp_tensors, write_checkpoint

CPU = torch.device("cpu")


def test_presets_are_those_of_the_settings() -> None:
    assert tuple(PRESETS) == typing.get_args(Preset)


def test_a_preset_has_its_shape_and_one_layer_by_default() -> None:
    model = load_model("qwen2.5-0.5b", device=CPU)
    assert model.spec == ModelSpec("qwen2.5-0.5b", 896, 4864, (0,), "silu", DType.BF16)
    layer = model.layers[0]
    assert layer.gate_up.shape == (9728, 896)
    assert layer.down.shape == (896, 4864)
    assert layer.gate_up.dtype == layer.down.dtype == torch.bfloat16


def test_random_weights_are_normal_and_the_same_every_time() -> None:
    first, again, other = ((torch.empty(2, 2400, 1024), torch.empty(64, 2400)) for _ in range(3))
    for layer, (gate_up, down) in ((3, first), (3, again), (4, other)):
        fill_random(layer, gate_up, down)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    for weight, different in zip(first, other, strict=True):
        assert not torch.equal(weight, different)
        # Four standard errors of the mean and of the spread of the smaller tensor.
        assert abs(weight.mean()) < 0.02 * 4 / weight.numel() ** 0.5
        assert weight.std() == pytest.approx(0.02, rel=4 / (2 * weight.numel()) ** 0.5)
        assert weight.abs().max() < 0.02 * 6.5
    # Pieces are drawn one after the other, not each from the start again.
    assert not torch.equal(first[0].view(-1)[:1000], first[0].view(-1)[1 << 22 :][:1000])


def test_preset_layers_are_checked() -> None:
    with pytest.raises(CheckpointError, match=r"^layers: must be below 24, is 30$"):
        load_model("qwen2.5-0.5b", layers=(0, 30), device=CPU)


def test_a_name_that_was_set_wins(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ckpt", mlp_tensors())
    assert load_model(tmp_path / "ckpt", name="mine", device=CPU).spec.name == "mine"
    assert load_model(tmp_path / "ckpt", device=CPU).spec.name == "ckpt"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("Qwen2.5-0.5B", "Qwen2.5-0.5B"),
        ("my model (v2)", "my-model-v2"),
        ("models--Qwen--Qwen2.5-0.5B/snapshots/060db6499f32", "Qwen2.5-0.5B"),
        ("...", "model"),
    ],
)
def test_checkpoints_are_named_by_their_directory(tmp_path: Path, folder: str, name: str) -> None:
    path = tmp_path / folder
    path.mkdir(parents=True)
    (path / "model.safetensors").touch()
    assert checkpoint_name(path) == name
    assert checkpoint_name(path / "model.safetensors") == name


def test_the_current_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert checkpoint_name(Path()) == "here"


def test_progress_counts_layers(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, mlp_tensors(layers=4))
    calls: list[tuple[int, int]] = []
    load_model(
        tmp_path,
        layers=(1, 3),
        device=CPU,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(1, 2), (2, 2)]


def test_weights_that_do_not_fit_are_refused_with_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    write_checkpoint(tmp_path, mlp_tensors())
    monkeypatch.setattr(weights.torch, "empty", refuse)
    with pytest.raises(CheckpointError, match=r"^layers: .* of cpu, 2 layers need 0\.0 GiB$"):
        load_model(tmp_path, device=CPU)
