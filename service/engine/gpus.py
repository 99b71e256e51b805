"""Which GPUs there are, for people and for NVML."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from service.engine.base import Gpu

_DRIVER = Path("/proc/driver/nvidia/version")


def describe_gpus() -> list[str]:
    """One line per GPU that torch can use: name, memory, architecture, driver."""
    if not torch.cuda.is_available():
        return []
    driver = _driver_version()
    lines = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        lines.append(
            f"{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB, "
            f"sm_{properties.major}{properties.minor}, driver {driver}"
        )
    return lines


def identify(device: torch.device) -> tuple[Gpu, ...]:
    """The GPU of a torch device under NVML's name; none for a CPU."""
    if device.type == "cpu":
        return ()
    properties = torch.cuda.get_device_properties(device)
    return (Gpu(device.index or 0, f"GPU-{properties.uuid}"),)


def gpu_slug(name: str) -> str:
    """The name in files: `h200` for NVIDIA H200, `rtx-4090` for NVIDIA GeForce RTX 4090."""
    kept = []
    for word in re.split(r"[^a-z0-9]+", name.lower()):
        if word not in {"nvidia", "geforce", "tesla", "graphics", "device"}:
            kept.append(word)
            if any(letter.isdigit() for letter in word):
                break
    return "-".join(kept) or "gpu"


def _driver_version() -> str:
    if not _DRIVER.exists():
        return "unknown"
    found = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", _DRIVER.read_text())
    return found.group(1) if found else "unknown"
