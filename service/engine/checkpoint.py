"""A checkpoint's MLP weights: found, checked as a whole, then copied layer by layer.

Everything that can be refused is refused by `open_checkpoint`, from config.json and the
safetensors headers, before memory for a single weight is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from service.engine.base import DType
from service.engine.families import MlpConfig, read_mlp_config
from service.engine.reading import Read, read_all
from service.engine.shards import StoredTensor, read_stored_tensors
from service.errors import CheckpointError

# Where model classes keep their decoder layers: a causal LM, a bare base model, and the two ways
# in which multimodal models nest a language model.
_PREFIXES = ("model.", "", "language_model.model.", "model.language_model.")

_DTYPES: Mapping[str, DType] = {"BF16": DType.BF16, "F16": DType.FP16, "F32": DType.FP32}

_QUANTISED_SUFFIXES = (".qweight", ".weight_packed")


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint of which every tensor of `layers` is known to be there and to fit.

    Attributes:
        layers: Selected layers, ascending.
        dtype: Element type of every selected weight.
    """

    config: MlpConfig
    layers: tuple[int, ...]
    dtype: DType
    prefix: str
    tensors: Mapping[str, StoredTensor]

    def fill(self, layer: int, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        """Read a layer's weights to where they stay; nothing else holds more than a piece of them.

        Args:
            layer: One of `layers`.
            gate_up: [2N, K] of `dtype`, contiguous, gate first, on any device.
            down: [K, N], likewise.

        Raises:
            CheckpointError: a file broke since the checkpoint was opened.
        """
        size = self.config.intermediate_size
        gate, up, whole = gate_up[:size], gate_up[size:], gate_up
        targets = (
            {"gate_up_proj": whole} if self.config.fused else {"gate_proj": gate, "up_proj": up}
        )
        stored = {
            part: self.tensors[_tensor_name(self.prefix, layer, part)]
            for part in (*targets, "down_proj")
        }
        targets["down_proj"] = down
        try:
            read_all([Read(one.file, one.offset, targets[part]) for part, one in stored.items()])
        except OSError as error:
            raise CheckpointError(
                f"model: weights of layer {layer} must be readable, are not: {error}"
            ) from error


def open_checkpoint(path: Path, layers: tuple[int, ...] | None = None) -> Checkpoint:
    """Find and check the MLPs of a Hugging Face checkpoint.

    Args:
        path: A directory with model.safetensors or an index with shards, or one .safetensors file
            with its config.json beside it.
        layers: Layers to serve; all of the checkpoint's by default.

    Raises:
        CheckpointError: the checkpoint cannot be served; the message names what, rule and value.
    """
    if not path.is_dir() and not (path.is_file() and path.suffix == ".safetensors"):
        raise CheckpointError(
            f"model: must be an existing directory or .safetensors file, is {str(path)!r}"
        )
    folder = path if path.is_dir() else path.parent
    config = read_mlp_config(folder / "config.json")
    selected = select_layers(layers, config.num_layers)
    tensors = read_stored_tensors(path)
    prefix = next((p for p in _PREFIXES if _has_mlp(tensors, p, selected[0])), _PREFIXES[0])
    dtypes = {_validate_layer(tensors, prefix, layer, config): layer for layer in selected}
    if len(dtypes) > 1:
        raise CheckpointError(
            f"model: all layers must have one element type, "
            f"{', '.join(f'layer {layer} has {dtype}' for dtype, layer in dtypes.items())}"
        )
    return Checkpoint(config, selected, _DTYPES[next(iter(dtypes))], prefix, tensors)


def select_layers(layers: tuple[int, ...] | None, num_layers: int) -> tuple[int, ...]:
    """The layers asked for, or all.

    Raises:
        CheckpointError: a layer is not below num_layers.
    """
    if layers is None:
        return tuple(range(num_layers))
    if not layers:
        raise CheckpointError("layers: must name at least one layer, names none")
    if max(layers) >= num_layers:
        raise CheckpointError(f"layers: must be below {num_layers}, is {max(layers)}")
    return tuple(sorted(set(layers)))


def _tensor_name(prefix: str, layer: int, part: str) -> str:
    return f"{prefix}layers.{layer}.mlp.{part}.weight"


def _has_mlp(tensors: Mapping[str, StoredTensor], prefix: str, layer: int) -> bool:
    start = f"{prefix}layers.{layer}.mlp."
    return any(name.startswith(start) for name in tensors)


def _validate_layer(
    tensors: Mapping[str, StoredTensor], prefix: str, layer: int, config: MlpConfig
) -> str:
    """Check a layer's tensors and return their element type, by its safetensors name."""
    hidden, intermediate = config.hidden_size, config.intermediate_size
    shapes = {"gate_proj": (intermediate, hidden), "up_proj": (intermediate, hidden)}
    if config.fused:
        shapes = {"gate_up_proj": (2 * intermediate, hidden)}
    shapes["down_proj"] = (hidden, intermediate)
    dtypes: dict[str, str] = {}
    for part, shape in shapes.items():
        name = _tensor_name(prefix, layer, part)
        tensor = _validate_tensor(tensors, name)
        if tensor.shape != shape:
            raise CheckpointError(
                f"model: shape of {name} must be {list(shape)} by config.json, "
                f"is {list(tensor.shape)}"
            )
        nbytes = prod(shape) * _DTYPES[tensor.dtype].itemsize
        if tensor.nbytes != nbytes:
            raise CheckpointError(
                f"model: {name} must have {nbytes} bytes by its shape, has {tensor.nbytes}"
            )
        dtypes.setdefault(tensor.dtype, name)
    if len(dtypes) > 1:
        raise CheckpointError(
            f"model: tensors of a layer must have one element type, "
            f"{', '.join(f'{name} has {dtype}' for dtype, name in dtypes.items())}"
        )
    return next(iter(dtypes))


def _validate_tensor(tensors: Mapping[str, StoredTensor], name: str) -> StoredTensor:
    stem = name.removesuffix(".weight")
    for suffix in _QUANTISED_SUFFIXES:
        if stem + suffix in tensors:
            raise CheckpointError(
                f"model: {name} must be a plain matrix, since quantised weights are not served, "
                f"there is {stem}{suffix}"
            )
    if f"{stem}.bias" in tensors:
        raise CheckpointError(
            f"model: an MLP must have no biases, since they are not served, there is {stem}.bias"
        )
    if name not in tensors:
        raise CheckpointError(f"model: tensor {name} must be in the checkpoint, is missing")
    if tensors[name].dtype not in _DTYPES:
        raise CheckpointError(
            f"model: element type of {name} must be one of {', '.join(_DTYPES)}, since quantised "
            f"weights are not served, is {tensors[name].dtype}"
        )
    return tensors[name]
