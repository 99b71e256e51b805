"""From settings to an engine, with the reason for what was chosen."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from service.engine.autotune import autotune as measure_or_read
from service.engine.autotune import cache_path
from service.engine.base import Engine, ModelSpec
from service.engine.choose import Plan, Setting
from service.engine.cuda_device import CudaDevice
from service.engine.dispatch import Mode
from service.engine.down import Down
from service.engine.fused import SLOTS, FusedEngine
from service.engine.gate_up import GateUp
from service.engine.gpus import gpu_slug
from service.engine.plan import describe_plans, plan_engines
from service.engine.reference import ReferenceEngine
from service.engine.replicas import ReplicatedEngine
from service.engine.weights import (
    ModelSource,
    Progress,
    ResidentModel,
    load_model,
    open_model,
)
from service.kernels.dispatch_table import (
    TABLES,
    DispatchTable,
    table_of_card,
    table_path,
)
from service.kernels.down import DownLauncher
from service.kernels.errors import LibraryError
from service.kernels.gemm import Gemm
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
    devices: tuple[int, ...] = (),
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
        devices: GPUs that each get a replica, instead of `device`.
        backend: `auto` is the fused kernels wherever they run; `fused` refuses anything else.
        dispatch: Which gate/up kernel the fused backend takes.
        autotune: Measure the kernels for this model's shape first, or read what was measured.
        max_batch_tokens: What `warm_up` will be told, for knowing whether memory suffices.
        progress: Called after each layer with the number of layers loaded and their total, which
            counts those of every replica.

    Returns:
        The engine, and a sentence saying which backend and device were chosen and why.

    Raises:
        ConfigError: there is no such device, no such kernel, or the backend cannot run.
        CheckpointError: the checkpoint cannot be served.
    """
    source = open_model(preset if model is None else model, name=model_name, layers=layers)
    plans = plan_engines(
        source.spec,
        device,
        devices,
        backend=backend,
        dispatch=dispatch,
        max_batch_tokens=max_batch_tokens,
        autotune=autotune,
    )
    said = describe_plans(plans)
    if plans[0].backend == "reference":
        if plans[0].device.type != "cpu":
            logger.warning("%s", said)
        if autotune or dispatch != "table":
            logger.warning("autotune and dispatch are for the fused kernels, which do not run here")
    wanted = FusedOptions(dispatch, autotune, max_batch_tokens, model, SLOTS * len(plans))
    engines = [
        _serve_on(plan, source, wanted, _share_of(progress, index, len(plans)))
        for index, plan in enumerate(plans)
    ]
    return (engines[0] if len(engines) == 1 else ReplicatedEngine(engines)), said


@dataclass(frozen=True, slots=True)
class FusedOptions:
    """What the fused engine is told besides the weights.

    Attributes:
        checkpoint: Beside which a tuned table is kept.
        threads: That will run batches.
    """

    dispatch: Mode
    autotune: bool
    max_batch_tokens: int
    checkpoint: Path | None
    threads: int


def _serve_on(
    plan: Plan, source: ModelSource, wanted: FusedOptions, progress: Progress | None
) -> Engine:
    """Load the weights to a device, and the engine around them."""
    if plan.backend == "reference":
        return ReferenceEngine(load_timed(source, plan.device, progress), plan.device)
    gpu = CudaDevice(plan.device, default_launcher().library)
    # Before the weights are read: what is wrong with the kernels is said at once.
    gate_up = bind_kernels(source.spec, wanted.dispatch, gpu)
    down = Down(DownLauncher(default_launcher().library), Gemm())
    resident = load_timed(source, plan.device, progress)
    if wanted.autotune:
        gate_up = tune_kernels(
            resident, wanted.dispatch, gpu, wanted.max_batch_tokens, wanted.checkpoint
        )
    described = gate_up.describe(wanted.max_batch_tokens)
    logger.info("dispatch by %s: %s", wanted.dispatch, described)
    return FusedEngine(resident, gpu, gate_up, down, threads=wanted.threads)


def load_timed(
    source: ModelSource, device: torch.device, progress: Progress | None
) -> ResidentModel:
    """Make the weights resident, and log at which rate."""
    began = time.perf_counter()
    resident = load_model(source, device=device, progress=progress)
    if device.type != "cpu":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    nbytes = source.spec.weight_bytes
    logger.info(
        "%d layers, %.2f GB, resident on %s in %.1f s: %.2f GB/s",
        len(source.spec.layers),
        nbytes / 1e9,
        device,
        seconds,
        nbytes / 1e9 / seconds,
    )
    return resident


def _share_of(progress: Progress | None, index: int, count: int) -> Progress | None:
    """Of one of several replicas that are loaded one after the other."""
    if progress is None or count == 1:
        return progress
    return lambda done, total: progress(index * total + done, count * total)


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
