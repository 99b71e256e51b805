"""Checkpoints of every layout load into the merged layout; what does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from service.engine.base import DType
from service.engine.checkpoint import open_checkpoint
from service.engine.weights import ResidentModel, load_model
from service.errors import CheckpointError
from tests.checkpoints import Tensors, mlp_tensors, write_checkpoint

CPU = torch.device("cpu")
GATE = "model.layers.1.mlp.gate_proj.weight"
UP = "model.layers.1.mlp.up_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"


def assert_holds(model: ResidentModel, tensors: Tensors, prefix: str = "model.") -> None:
    assert tuple(model.layers) == model.spec.layers
    for layer, weights in model.layers.items():
        stem = f"{prefix}layers.{layer}.mlp"
        halves = [tensors[f"{stem}.{part}_proj.weight"] for part in ("gate", "up")]
        assert torch.equal(weights.gate_up, torch.cat(halves))
        assert torch.equal(weights.down, tensors[f"{stem}.down_proj.weight"])
        assert weights.gate_up.is_contiguous()


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_loads_gate_above_up_in_the_stored_dtype(
    tmp_path: Path, shards: int, dtype: torch.dtype
) -> None:
    tensors = mlp_tensors(layers=3, dtype=dtype)
    model = load_model(write_checkpoint(tmp_path, tensors, shards=shards), device=CPU)
    assert_holds(model, tensors)
    assert model.spec.layers == (0, 1, 2)
    assert model.layers[0].gate_up.dtype == dtype


def test_loads_a_single_file_with_its_config_beside_it(tmp_path: Path) -> None:
    tensors = mlp_tensors()
    write_checkpoint(tmp_path, tensors)
    file = (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert_holds(load_model(file, device=CPU), tensors)


def test_loads_only_the_layers_asked_for(tmp_path: Path) -> None:
    tensors = mlp_tensors(layers=5)
    write_checkpoint(tmp_path, tensors, shards=2)
    model = load_model(tmp_path, layers=(4, 1), device=CPU)
    assert model.spec.layers == (1, 4)
    assert_holds(model, tensors)


def test_loads_a_fused_gate_up_tensor(tmp_path: Path) -> None:
    tensors = mlp_tensors(fused=True)
    model = load_model(write_checkpoint(tmp_path, tensors, model_type="phi3"), device=CPU)
    stored = tensors["model.layers.1.mlp.gate_up_proj.weight"]
    assert torch.equal(model.layers[1].gate_up, stored)


@pytest.mark.parametrize("prefix", ["", "language_model.model.", "model.language_model."])
def test_loads_under_the_prefixes_that_models_use(tmp_path: Path, prefix: str) -> None:
    tensors = mlp_tensors(prefix=prefix)
    assert_holds(load_model(write_checkpoint(tmp_path, tensors), device=CPU), tensors, prefix)


def test_layers_that_are_not_asked_for_need_not_be_servable(tmp_path: Path) -> None:
    tensors = mlp_tensors(layers=2)
    del tensors[DOWN]
    write_checkpoint(tmp_path, tensors, num_hidden_layers=2)
    assert open_checkpoint(tmp_path, (0,)).layers == (0,)


def test_dtype_is_that_of_the_weights(tmp_path: Path) -> None:
    tensors = mlp_tensors(dtype=torch.float16)
    tensors["model.norm.weight"] = torch.ones(16)
    assert open_checkpoint(write_checkpoint(tmp_path, tensors)).dtype is DType.FP16


def changed(**tensors: torch.Tensor | None) -> Tensors:
    """Two bf16 layers, with tensors of the second replaced, added or left out."""
    result = mlp_tensors()
    for part, tensor in tensors.items():
        name = f"model.layers.1.mlp.{part.replace('__', '.')}"
        if tensor is None:
            del result[name]
        else:
            result[name] = tensor
    return result


BF16 = torch.bfloat16
REFUSED = [
    (
        changed(down_proj__weight=None),
        f"model: tensor {DOWN} must be in the checkpoint, is missing",
    ),
    (
        changed(gate_proj__weight=None),
        f"model: tensor {GATE} must be in the checkpoint, is missing",
    ),
    (
        changed(up_proj__weight=torch.zeros(16, 32, dtype=BF16)),
        f"model: shape of {UP} must be [32, 16] by config.json, is [16, 32]",
    ),
    (
        changed(up_proj__weight=torch.zeros(32, 16)),
        f"model: tensors of a layer must have one element type, {GATE} has BF16, {UP} has F32",
    ),
    (
        changed(**{f"{p}_proj__weight": torch.zeros(32, 16) for p in ("gate", "up")})
        | {DOWN: torch.zeros(16, 32)},
        "model: all layers must have one element type, layer 0 has BF16, layer 1 has F32",
    ),
    (
        changed(gate_proj__weight=torch.zeros(32, 16, dtype=torch.float8_e4m3fn)),
        f"model: element type of {GATE} must be one of BF16, F16, F32, since quantised weights "
        "are not served, is F8_E4M3",
    ),
    (
        changed(gate_proj__weight=None, gate_proj__qweight=torch.zeros(4, dtype=torch.int32)),
        f"model: {GATE} must be a plain matrix, since quantised weights are not served, there is "
        "model.layers.1.mlp.gate_proj.qweight",
    ),
    (
        changed(down_proj__bias=torch.zeros(16, dtype=BF16)),
        "model: an MLP must have no biases, since they are not served, there is "
        "model.layers.1.mlp.down_proj.bias",
    ),
]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(("tensors", "message"), REFUSED)
def test_refuses_weights_that_cannot_be_served(
    tmp_path: Path, shards: int, tensors: Tensors, message: str
) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    write_checkpoint(tmp_path, tensors, shards=shards, **shape)
    with pytest.raises(CheckpointError) as refusal:
        open_checkpoint(tmp_path)
    assert str(refusal.value) == message


def test_refuses_layers_beyond_the_model(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, mlp_tensors(layers=2))
    with pytest.raises(CheckpointError, match=r"^layers: must be below 2, is 3$"):
        open_checkpoint(tmp_path, (0, 3))
    with pytest.raises(CheckpointError, match=r"^layers: must name at least one layer, names none"):
        open_checkpoint(tmp_path, ())


def test_refuses_a_shard_served_as_if_it_were_all(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, mlp_tensors(), shards=2)
    with pytest.raises(CheckpointError, match=r"tensor .* must be in the checkpoint, is missing"):
        open_checkpoint(tmp_path / "model-00001-of-00002.safetensors")


@pytest.mark.parametrize("name", ["absent", "notes.txt"])
def test_refuses_a_path_that_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CheckpointError) as refusal:
        open_checkpoint(tmp_path / name)
    assert str(refusal.value) == (
        f"model: must be an existing directory or .safetensors file, is {str(tmp_path / name)!r}"
    )


def test_a_file_that_breaks_after_opening_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, mlp_tensors()))
    (tmp_path / "model.safetensors").write_bytes(b"overwritten")
    gate_up, down = torch.empty(64, 16, dtype=BF16), torch.empty(16, 32, dtype=BF16)
    ends = r"layer 1 must be readable, are not: .*/model\.safetensors ends at \d+ bytes$"
    with pytest.raises(CheckpointError, match=ends):
        checkpoint.fill(1, gate_up, down)
