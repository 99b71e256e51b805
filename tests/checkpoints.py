"""Writes tiny checkpoints for tests, in the layout that Hugging Face models have on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]


def mlp_tensors(
    *,
    hidden_size: int = 16,
    intermediate_size: int = 32,
    layers: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    prefix: str = "model.",
    fused: bool = False,
    scale: float = 0.02,
    seed: int = 0,
) -> Tensors:
    """Random MLP weights under their names; gate, up and down differ in spread.

    The up half is spread three times as wide as the gate half, so that an engine that swaps the
    two gives another answer.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int, spread: float) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=generator) * spread).to(dtype)

    tensors: Tensors = {}
    for layer in range(layers):
        stem = f"{prefix}layers.{layer}.mlp"
        gate = draw(intermediate_size, hidden_size, scale)
        up = draw(intermediate_size, hidden_size, 3 * scale)
        if fused:
            tensors[f"{stem}.gate_up_proj.weight"] = torch.cat([gate, up])
        else:
            tensors[f"{stem}.gate_proj.weight"] = gate
            tensors[f"{stem}.up_proj.weight"] = up
        tensors[f"{stem}.down_proj.weight"] = draw(hidden_size, intermediate_size, scale)
    return tensors


def mlp_config(tensors: Mapping[str, torch.Tensor], **overrides: Any) -> dict[str, Any]:
    """The config.json that goes with weights; `overrides` add keys, or drop them with None."""
    down = [tensor for name, tensor in tensors.items() if "down_proj" in name]
    config = {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": down[0].shape[0],
        "intermediate_size": down[0].shape[1],
        "num_hidden_layers": len(down),
        **overrides,
    }
    return {key: value for key, value in config.items() if value is not None}


def write_checkpoint(folder: Path, tensors: Tensors, *, shards: int = 1, **overrides: Any) -> Path:
    """Write weights and config.json into a folder, as one file or as shards with an index.

    Tensors are dealt to shards in turn, so that a layer's tensors lie in different shards.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(mlp_config(tensors, **overrides)))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
