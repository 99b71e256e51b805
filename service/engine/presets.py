"""Random weights at the MLP shapes of the seven Qwen2.5 models, for trying and measuring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

# What transformers initialises these models with; near enough to a trained model's spread.
_STD = 0.02

# Weights are drawn on the CPU whatever the device, so that every machine serves the same ones.
# 4 Mi elements bound the FP32 draft to 16 MiB. The size is part of what fixes the numbers.
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class PresetShape:
    """Shape of a model's MLPs."""

    hidden_size: int
    intermediate_size: int
    num_layers: int


PRESETS: Mapping[str, PresetShape] = {
    "qwen2.5-0.5b": PresetShape(896, 4864, 24),
    "qwen2.5-1.5b": PresetShape(1536, 8960, 28),
    "qwen2.5-3b": PresetShape(2048, 11008, 36),
    "qwen2.5-7b": PresetShape(3584, 18944, 28),
    "qwen2.5-14b": PresetShape(5120, 13824, 48),
    "qwen2.5-32b": PresetShape(5120, 27648, 64),
    "qwen2.5-72b": PresetShape(8192, 29568, 80),
}


def fill_random(layer: int, gate_up: torch.Tensor, down: torch.Tensor) -> None:
    """Fill a layer in place with N(0, 0.02²); the layer's index is the seed.

    Args:
        layer: Index of the layer.
        gate_up: [2N, K], contiguous, on any device.
        down: [K, N], contiguous.
    """
    generator = torch.Generator().manual_seed(layer)
    draft = torch.empty(min(_CHUNK, max(gate_up.numel(), down.numel())))
    for weight in (gate_up, down):
        for part in torch.split(weight.view(-1), _CHUNK):
            part.copy_(draft[: part.numel()].normal_(0.0, _STD, generator=generator))
