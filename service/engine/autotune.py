"""A dispatch table of its own for one model: measured at the first start, read at the next.

The tables that ship are of one GPU and the shapes of one family. A model of another shape, or
another GPU, gets the library's estimate, unless the service is told to measure.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import torch

from service.engine.cuda_device import CudaDevice
from service.engine.weights import ResidentModel
from service.kernels.dispatch_table import (
    TunedSize,
    is_measured_under,
    read_table,
    write_table,
)
from service.kernels.launcher import Launcher
from service.kernels.timing import Steadiness
from service.kernels.tuner import Found, Operands, tune

logger = logging.getLogger(__name__)

Sweep: TypeAlias = Callable[[Launcher, Operands, int, Steadiness], Found]

# Sizes between which the choice changes; the largest is the service's own largest batch.
TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# Enough for weights to come from memory, where the model has as many.
_ROTATED_BYTES = 400e6
_STEADINESS = Steadiness(settle_s=0.03, measure_s=0.06, rounds=2)


def tuned_tokens(max_batch_tokens: int) -> tuple[int, ...]:
    """The batch sizes to measure for a service with that largest batch."""
    return (*(size for size in TOKENS if size < max_batch_tokens), max_batch_tokens)


def cache_path(model: Path | None, gpu: str) -> Path | None:
    """Where a checkpoint's table of a GPU is kept: beside it. A preset has no place.

    Args:
        model: The checkpoint: a directory or a file in it.
        gpu: The GPU's name.
    """
    if model is None:
        return None
    folder = model if model.is_dir() else model.parent
    # The whole name, since an NVIDIA H200 NVL is another card than an H200.
    name = "-".join(re.findall(r"[a-z0-9]+", gpu.lower()))
    return folder / f"tilemlp-{name}.json"


def autotune(
    model: ResidentModel,
    launcher: Launcher,
    device: CudaDevice,
    max_batch_tokens: int,
    path: Path | None,
    *,
    sweep: Sweep = tune,
) -> list[TunedSize]:
    """The sizes of this model's table, from the file if it is of this GPU, library and shape.

    Args:
        model: Resident on `device`, of bf16 with SiLU.
        launcher: Of the library that has the kernels.
        device: The GPU, which is the current one.
        max_batch_tokens: The largest batch.
        path: Where the table is kept; a folder that cannot be written is warned of.
        sweep: `tuner.tune`, or what tests put in its place.

    Raises:
        LibraryError: the file is not a table.
    """
    about: dict[str, object] = {
        "gpu": device.name,
        "multiprocessors": device.num_sms,
        "library": launcher.library.build_info,
        "hidden": model.spec.hidden_size,
        "intermediate": model.spec.intermediate_size,
    }
    wanted = tuned_tokens(max_batch_tokens)
    if path is not None and is_measured_under(path, about):
        kept = read_table(path)
        if {size.tokens for size in kept} >= set(wanted):
            logger.info("dispatch table read from %s", path)
            return kept
    sizes = _measure(model, launcher, device, wanted, sweep)
    if path is not None:
        try:
            write_table(path, about, sizes)
        except OSError as error:
            logger.warning("dispatch table could not be kept in %s: %s", path, error)
    return sizes


def _measure(
    model: ResidentModel,
    launcher: Launcher,
    device: CudaDevice,
    wanted: Sequence[int],
    sweep: Sweep,
) -> list[TunedSize]:
    weights = _some_weights(model)
    hidden, intermediate = model.spec.hidden_size, model.spec.intermediate_size
    x = device.empty(wanted[-1], hidden, weights[0].dtype).normal_()
    out = device.empty(wanted[-1], intermediate, weights[0].dtype)
    sizes = []
    for tokens in wanted:
        operands = Operands(x[:tokens], weights, out[:tokens])
        found = sweep(launcher, operands, device.num_sms, _STEADINESS)
        sizes.append(found.tuned)
        logger.info("tuned %d tokens: %s", tokens, found.tuned.ranked[0])
    return sizes


def _some_weights(model: ResidentModel) -> list[torch.Tensor]:
    """Layers until they are more than fits into L2."""
    weights: list[torch.Tensor] = []
    for layer in model.layers.values():
        weights.append(layer.gate_up)
        if sum(weight.nbytes for weight in weights) > _ROTATED_BYTES:
            break
    return weights
