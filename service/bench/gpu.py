"""The GPU that a measurement was taken on."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

from service.kernels.dispatch_table import DispatchTable, table_of_card
from service.kernels.library import Library

_FIELDS = ("name", "driver_version", "power.limit", "clocks.max.sm", "clocks.max.memory")


def watts_and_mhz() -> tuple[float, float]:
    """What the card draws and its multiprocessors' clock, now."""
    return torch.cuda.power_draw() / 1e3, float(torch.cuda.clock_rate())


def card_table(path: Path, library: Library, gpu: Mapping[str, object]) -> DispatchTable:
    """The dispatch table in a file; an empty one where it is not of the card `describe_gpu` saw."""
    table = table_of_card(path, library, str(gpu["gpu"]), int(str(gpu["multiprocessors"])))
    return table or DispatchTable((), library)


def describe_gpu() -> dict[str, object]:
    """Name, driver, power limit in watts, highest clocks in MHz and multiprocessors.

    What only nvidia-smi knows is missing where there is none.
    """
    properties = torch.cuda.get_device_properties(0)
    about: dict[str, object] = {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
    }
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(_FIELDS)}"]
    try:
        found = subprocess.run(
            [*command, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return about
    _, driver, watts, sm_mhz, memory_mhz = (part.strip() for part in found.stdout.split(","))
    return {
        **about,
        "driver": driver,
        "power_limit_watts": float(watts),
        "max_sm_mhz": int(sm_mhz),
        "max_memory_mhz": int(memory_mhz),
    }
