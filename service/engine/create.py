"""From settings to an engine, with the reason for what was chosen."""

from __future__ import annotations

from pathlib import Path

import torch

from service.engine.base import Engine
from service.engine.reference import ReferenceEngine
from service.engine.weights import Progress, load_model
from service.errors import ConfigError


def create_engine(
    *,
    model: Path | None,
    preset: str,
    model_name: str | None,
    layers: tuple[int, ...] | None,
    device: str,
    progress: Progress | None = None,
) -> tuple[Engine, str]:
    """Load the weights and make the engine that serves them; `warm_up` is the caller's.

    Args:
        model: A checkpoint's path; without it, `preset` decides.
        preset: A key of `presets.PRESETS`.
        model_name: What clients call the model; by default the checkpoint's directory or preset.
        layers: Layers to load; by default all of a checkpoint and layer 0 of a preset.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        progress: Called after each layer with the number of layers loaded and their total.

    Returns:
        The engine, and a sentence saying which backend and device were chosen and why.

    Raises:
        ConfigError: there is no such device.
        CheckpointError: the checkpoint cannot be served.
    """
    chosen, reason = select_device(device)
    source = preset if model is None else model
    resident = load_model(source, name=model_name, layers=layers, device=chosen, progress=progress)
    return ReferenceEngine(resident, chosen), f"backend reference on {chosen}: {reason}"


def select_device(text: str) -> tuple[torch.device, str]:
    """The device of a setting, and why.

    Raises:
        ConfigError: torch finds no such device.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "auto":
        if count:
            return torch.device("cuda", 0), f"torch finds {torch.cuda.get_device_name(0)}"
        return torch.device("cpu"), "torch finds no GPU"
    device = torch.device(text)
    if device.type == "cpu":
        return device, "the setting device says so"
    index = device.index or 0
    if index >= count:
        raise ConfigError(f"device: must be one of the {count} GPUs that torch finds, is {text!r}")
    return torch.device("cuda", index), "the setting device says so"
