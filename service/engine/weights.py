"""Weights that stay resident on the device, in the one layout that every kernel reads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from service.engine.base import DType, ModelSpec
from service.engine.checkpoint import open_checkpoint, select_layers
from service.engine.presets import PRESETS, fill_random
from service.errors import CheckpointError

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    DType.BF16: torch.bfloat16,
    DType.FP16: torch.float16,
    DType.FP32: torch.float32,
}

Progress: TypeAlias = Callable[[int, int], None]
_Fill: TypeAlias = Callable[[int, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class ResidentLayer:
    """One layer's weights.

    Attributes:
        gate_up: [2N, K], contiguous: gate_proj's rows, then up_proj's.
        down: [K, N], contiguous.
    """

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """A model's spec and the layers that it names, all on one device."""

    spec: ModelSpec
    layers: Mapping[int, ResidentLayer]


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's weights come from; nothing is loaded yet.

    Attributes:
        spec: What will be resident.
        fill: Writes one layer: (layer, [2N, K] gate first, [K, N]), on any device.
    """

    spec: ModelSpec
    fill: _Fill


def open_model(
    source: Path | str, *, name: str | None = None, layers: tuple[int, ...] | None = None
) -> ModelSource:
    """Find a model and check all of it, as `load_model` does, before any memory is taken.

    Raises:
        CheckpointError: the checkpoint cannot be served.
    """
    if isinstance(source, Path):
        checkpoint = open_checkpoint(source, layers)
        config = checkpoint.config
        spec = ModelSpec(
            name=name or checkpoint_name(source),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            layers=checkpoint.layers,
            activation=config.activation,
            dtype=checkpoint.dtype,
        )
        return ModelSource(spec, checkpoint.fill)
    shape = PRESETS[source]
    spec = ModelSpec(
        name=name or source,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        layers=select_layers((0,) if layers is None else layers, shape.num_layers),
        activation="silu",
        dtype=DType.BF16,
    )
    return ModelSource(spec, fill_random)


def load_model(
    source: Path | str | ModelSource,
    *,
    name: str | None = None,
    layers: tuple[int, ...] | None = None,
    device: torch.device,
    progress: Progress | None = None,
) -> ResidentModel:
    """Make a model's MLPs resident; never holds a second copy of a layer.

    Args:
        source: A checkpoint's path, the name of a preset, or what `open_model` made of it.
        name: What clients call the model; by default the checkpoint's directory or the preset.
        layers: Layers to load; by default all of a checkpoint and layer 0 of a preset.
        device: Where the weights stay.
        progress: Called after each layer with the number of layers loaded and their total.

    Raises:
        CheckpointError: the checkpoint cannot be served, or does not fit the device's memory.
    """
    if not isinstance(source, ModelSource):
        source = open_model(source, name=name, layers=layers)
    return _load(source.spec, source.fill, device, progress)


def checkpoint_name(path: Path) -> str:
    """What clients call a checkpoint whose name was not set: its directory, fit for a URL.

    In the Hugging Face cache the directory is a commit hash; the repository's name stands two
    levels above it.
    """
    folder = Path(os.path.abspath(path))
    folder = folder.parent if path.is_file() else folder
    name = folder.name
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        name = folder.parent.parent.name.rpartition("--")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:128] or "model"


def _load(
    spec: ModelSpec, fill: _Fill, device: torch.device, progress: Progress | None
) -> ResidentModel:
    layers: dict[int, ResidentLayer] = {}
    for done, layer in enumerate(spec.layers, start=1):
        layers[layer] = _allocate(spec, device)
        fill(layer, layers[layer].gate_up, layers[layer].down)
        if progress is not None:
            progress(done, len(spec.layers))
    return ResidentModel(spec, layers)


def _allocate(spec: ModelSpec, device: torch.device) -> ResidentLayer:
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    dtype = TORCH_DTYPES[spec.dtype]
    try:
        return ResidentLayer(
            gate_up=torch.empty(2 * intermediate, hidden, dtype=dtype, device=device),
            down=torch.empty(hidden, intermediate, dtype=dtype, device=device),
        )
    except torch.OutOfMemoryError:
        needed = len(spec.layers) * 3 * hidden * intermediate * spec.dtype.itemsize
        raise CheckpointError(
            f"layers: resident weights must fit the memory of {device}, "
            f"{len(spec.layers)} layers need {needed / 2**30:.1f} GiB"
        ) from None
