"""Which backend and devices a service would get on this machine, and the sentence that says why."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from service.engine.base import ModelSpec
from service.engine.choose import (
    Plan,
    Setting,
    choose_backend,
    memory_need,
    read_gpu,
    read_library,
)
from service.engine.dispatch import Mode, is_plain, validate_dispatch
from service.engine.fused import SLOTS
from service.errors import ConfigError
from service.kernels.library import Library


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


def plan_engines(
    model: ModelSpec,
    device: str,
    devices: tuple[int, ...] = (),
    *,
    backend: Setting,
    dispatch: Mode,
    max_batch_tokens: int,
    autotune: bool = False,
) -> list[Plan]:
    """As `plan_engine`, for `device` or, where there are any, for each of `devices`.

    Raises:
        ConfigError: as `plan_engine`; or both are given, torch finds no such GPUs, or they would
            be served by different backends.
    """
    if not devices:
        one = plan_engine(model, device, backend, dispatch, max_batch_tokens, autotune=autotune)
        return [one]
    numbers = ",".join(map(str, devices))
    if device != "auto":
        raise ConfigError(
            f"devices: must not be given together with device, which is {device!r}, is {numbers!r}"
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if max(devices) >= count:
        raise ConfigError(
            f"devices: must be below {count}, the number of GPUs that torch finds, is {numbers!r}"
        )
    plans = [
        plan_engine(model, f"cuda:{index}", backend, dispatch, max_batch_tokens, autotune=autotune)
        for index in devices
    ]
    if len({plan.backend for plan in plans}) > 1:
        found = "; ".join(map(describe_plan, plans))
        raise ConfigError(f"devices: must all be served by the same backend, are not: {found}")
    return plans


def describe_plan(plan: Plan) -> str:
    """The sentence that log, `doctor`, metadata and metrics show."""
    return f"backend {plan.backend} on {plan.device}: {plan.reason}"


def describe_plans(plans: Sequence[Plan]) -> str:
    """The same for all replicas."""
    devices = ", ".join(str(plan.device) for plan in plans)
    return f"backend {plans[0].backend} on {devices}: {plans[0].reason}"


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
