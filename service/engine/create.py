"""From settings to an engine, with the reason for what was chosen."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from service.engine.autotune import autotune as measure_or_read
from service.engine.autotune import cache_path
from service.engine.base import Engine, ModelSpec
from service.engine.choose import (
    Plan,
    Setting,
    choose_backend,
    memory_need,
    read_gpu,
    read_library,
)
from service.engine.cuda_device import CudaDevice
from service.engine.dispatch import Mode, is_plain, validate_dispatch
from service.engine.fused import SLOTS, FusedEngine
from service.engine.gate_up import GateUp
from service.engine.gpus import gpu_slug
from service.engine.reference import ReferenceEngine
from service.engine.weights import Progress, ResidentModel, load_model, open_model
from service.errors import ConfigError
from service.kernels.dispatch_table import (
    TABLES,
    DispatchTable,
    table_of_card,
    table_path,
)
from service.kernels.errors import LibraryError
from service.kernels.launcher import default_launcher
from service.kernels.library import Library

logger = logging.getLogger(__name__)


def create_engine(
    *,
    model: Path | None,
    preset: str,
    model_name: str | None,
    layers: tuple[int, ...] | None,
    device: str,
    backend: Setting = "auto",
    dispatch: Mode = "table",
    autotune: bool = False,
    max_batch_tokens: int = 8192,
    progress: Progress | None = None,
) -> tuple[Engine, str]:
    """Load the weights and make the engine that serves them; `warm_up` is the caller's.

    Args:
        model: A checkpoint's path; without it, `preset` decides.
        preset: A key of `presets.PRESETS`.
        model_name: What clients call the model; by default the checkpoint's directory or preset.
        layers: Layers to load; by default all of a checkpoint and layer 0 of a preset.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        backend: `auto` is the fused kernels wherever they run; `fused` refuses anything else.
        dispatch: Which gate/up kernel the fused backend takes.
        autotune: Measure the kernels for this model's shape first, or read what was measured.
        max_batch_tokens: What `warm_up` will be told, for knowing whether memory suffices.
        progress: Called after each layer with the number of layers loaded and their total.

    Returns:
        The engine, and a sentence saying which backend and device were chosen and why.

    Raises:
        ConfigError: there is no such device, no such kernel, or the backend cannot run.
        CheckpointError: the checkpoint cannot be served.
    """
    source = open_model(preset if model is None else model, name=model_name, layers=layers)
    plan = plan_engine(source.spec, device, backend, dispatch, max_batch_tokens, autotune=autotune)
    said = describe_plan(plan)
    if plan.backend == "fused":
        gpu = CudaDevice(plan.device)
        # Before the weights are read: what is wrong with the kernels is said at once.
        gate_up = bind_kernels(source.spec, dispatch, gpu)
        resident = load_model(source, device=plan.device, progress=progress)
        if autotune:
            gate_up = tune_kernels(resident, dispatch, gpu, max_batch_tokens, model)
        logger.info("dispatch by %s: %s", dispatch, gate_up.describe(max_batch_tokens))
        return FusedEngine(resident, gpu, gate_up), said
    if plan.device.type != "cpu":
        logger.warning("%s", said)
    if autotune or dispatch != "table":
        logger.warning("autotune and dispatch are for the fused kernels, which do not run here")
    resident = load_model(source, device=plan.device, progress=progress)
    return ReferenceEngine(resident, plan.device), said


def bind_kernels(model: ModelSpec, dispatch: Mode, gpu: CudaDevice) -> GateUp:
    """This installation's kernels for a model, with what was measured on such a GPU.

    Raises:
        ConfigError: the library has no kernel for the mode.
        LibraryError: there is no usable library.
    """
    launcher = default_launcher()
    table = shipped_table(launcher.library, gpu.name, gpu.num_sms)
    return GateUp(launcher, model, dispatch, gpu.num_sms, table)


def shipped_table(
    library: Library, gpu: str, num_sms: int, folder: Path = TABLES
) -> DispatchTable | None:
    """The package's table of a GPU; None where it has none that fits GPU and library.

    Args:
        library: Whose kernels the table must name.
        gpu: Its full name.
        num_sms: Its multiprocessors.
        folder: Where the tables are.
    """
    try:
        return table_of_card(table_path(gpu_slug(gpu), folder), library, gpu, num_sms)
    except LibraryError as error:
        logger.warning("the library's own estimate chooses kernels: %s", error)
        return None


def tune_kernels(
    resident: ResidentModel,
    dispatch: Mode,
    gpu: CudaDevice,
    max_batch_tokens: int,
    checkpoint: Path | None,
) -> GateUp:
    """The kernels for a resident model, by a table of its own.

    Raises:
        LibraryError: the table beside the checkpoint is none.
    """
    launcher = default_launcher()
    path = cache_path(checkpoint, gpu.name)
    with torch.cuda.device(gpu.device):
        sizes = measure_or_read(resident, launcher, gpu, max_batch_tokens, path)
    table = DispatchTable(sizes, launcher.library)
    return GateUp(launcher, resident.spec, dispatch, gpu.num_sms, table)


def plan_engine(
    model: ModelSpec,
    device: str,
    backend: Setting,
    dispatch: Mode,
    max_batch_tokens: int,
    *,
    autotune: bool = False,
) -> Plan:
    """Which backend and device would serve a model on this machine, and why.

    Raises:
        ConfigError: torch finds no such device, there is no such kernel, the backend cannot run, or
            there is nothing to tune.
    """
    chosen, why_device = select_device(device)
    library = read_library()
    plan = choose_backend(
        backend,
        chosen,
        why_device,
        model,
        memory_need(model, max_batch_tokens, SLOTS),
        gpu=read_gpu(chosen),
        library=library,
        may_leave_gpu=device == "auto",
    )
    if plan.backend == "fused" and isinstance(library, Library):
        validate_dispatch(dispatch, library.configs, plain=is_plain(model))
        if autotune and not is_plain(model):
            raise ConfigError(
                "autotune: must be off for other models than bf16 with SiLU, whose kernels have no "
                f"alternatives; this one is {model.dtype.value} with {model.activation}"
            )
    return plan


def describe_plan(plan: Plan) -> str:
    """The sentence that log, `doctor`, metadata and metrics show."""
    return f"backend {plan.backend} on {plan.device}: {plan.reason}"


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
