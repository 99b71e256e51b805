"""Which backend serves a model on a device, and why: facts in, a plan out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from service.engine.base import DType, ModelSpec
from service.errors import ConfigError
from service.kernels.errors import LibraryError
from service.kernels.library import Library, default_library

Setting: TypeAlias = Literal["auto", "fused", "reference"]
Backend: TypeAlias = Literal["fused", "reference"]

_HOPPER = (9, 0)
# CUDA's context and modules, cuBLAS workspaces, graphs.
_OVERHEAD_BYTES = 1 << 30
# Rows of the reference engine's FP32 intermediate.
_REFERENCE_BLOCK_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Plan:
    """What will serve, and the sentence that says why."""

    backend: Backend
    device: torch.device
    reason: str


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What matters of a GPU.

    Attributes:
        capability: Compute capability, such as (9, 0).
        free_bytes: Memory that nobody uses.
    """

    name: str
    capability: tuple[int, int]
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Need:
    """Device memory that serving a model takes, in bytes.

    Attributes:
        fused: Weights, buffers of every slot and what CUDA itself takes.
        reference: The same for the reference engine.
    """

    fused: int
    reference: int


def memory_need(model: ModelSpec, max_batch_tokens: int, slots: int) -> Need:
    """From shapes alone, a little more than is measured."""
    hidden, intermediate, itemsize = (
        model.hidden_size,
        model.intermediate_size,
        model.dtype.itemsize,
    )
    weights = len(model.layers) * 3 * hidden * intermediate * itemsize
    row = (2 * hidden + intermediate) * itemsize
    fp32 = max_batch_tokens * (hidden + max(hidden, intermediate))
    fp32 += min(max_batch_tokens, _REFERENCE_BLOCK_TOKENS) * intermediate
    return Need(
        weights + slots * max_batch_tokens * row + _OVERHEAD_BYTES,
        weights + 4 * fp32 + _OVERHEAD_BYTES,
    )


def choose_backend(
    setting: Setting,
    device: torch.device,
    why_device: str,
    model: ModelSpec,
    need: Need,
    *,
    gpu: GpuFacts | None,
    library: Library | LibraryError,
    may_leave_gpu: bool,
) -> Plan:
    """Choose.

    Args:
        setting: What the user wants.
        device: Where; a CPU or CUDA device.
        why_device: The reason for the device.
        model: What is served.
        need: Device memory that it takes.
        gpu: The device, if it is a GPU.
        library: The kernel library, or why there is none.
        may_leave_gpu: The device was not the user's choice.

    Raises:
        ConfigError: the setting is `fused`, which cannot run.
    """
    obstacle = find_obstacle(model, need, gpu, library)
    if setting == "fused" and obstacle is not None:
        raise ConfigError(f"backend: must be auto or reference, since {obstacle}, is 'fused'")
    if setting == "reference":
        obstacle = "the setting backend says reference"
    if obstacle is None:
        return Plan("fused", device, why_device)
    if gpu is None:
        return Plan("reference", device, why_device)
    reason = f"{why_device}, but {obstacle}"
    if may_leave_gpu and need.reference > gpu.free_bytes:
        reason = f"{why_device}, but {_too_little(need.reference, gpu)}"
        return Plan("reference", torch.device("cpu"), reason)
    return Plan("reference", device, reason)


def find_obstacle(
    model: ModelSpec, need: Need, gpu: GpuFacts | None, library: Library | LibraryError
) -> str | None:
    """Why the fused kernels cannot serve a model; None if they can."""
    if gpu is None:
        return "the fused kernels need a GPU"
    if gpu.capability != _HOPPER:
        return (
            f"the fused kernels need sm_90, {gpu.name} is sm_{gpu.capability[0]}{gpu.capability[1]}"
        )
    if isinstance(library, LibraryError):
        return str(library)
    if "cuda=none" in library.build_info.split():
        return f"kernel library: must have GPU code, {library.path} was built without"
    if model.dtype is DType.FP32:
        return "the fused kernels take weights of bf16 or fp16, these are of fp32"
    for name, size in (("hidden", model.hidden_size), ("intermediate", model.intermediate_size)):
        if size % 8:
            return f"the fused kernels need a multiple of 8 as {name}_size, it is {size}"
    if need.fused > gpu.free_bytes:
        return _too_little(need.fused, gpu)
    return None


def _too_little(needed: int, gpu: GpuFacts) -> str:
    return (
        f"{needed / 2**30:.1f} GiB of device memory must be free for weights and buffers, "
        f"{gpu.free_bytes / 2**30:.1f} are"
    )


def read_gpu(device: torch.device) -> GpuFacts | None:
    """The facts of a CUDA device; None for a CPU."""
    if device.type == "cpu":
        return None
    return GpuFacts(
        torch.cuda.get_device_name(device),
        torch.cuda.get_device_capability(device),
        torch.cuda.mem_get_info(device)[0],
    )


def read_library() -> Library | LibraryError:
    """The kernel library of this installation, or why there is none."""
    try:
        return default_library()
    except LibraryError as error:
        return error
