"""`tilemlp doctor`: what this machine has, what the service would use, and why."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from service import __version__
from service.config import Settings, load_settings, parse_devices, parse_layers
from service.engine.choose import Plan
from service.engine.gpus import describe_gpus
from service.engine.plan import describe_plans, plan_engines
from service.engine.weights import open_model
from service.errors import StartError
from service.kernels.abi import ABI_VERSION
from service.kernels.errors import LibraryError
from service.kernels.library import default_library

_PACKAGES = ("torch", "fastapi", "starlette", "uvicorn", "uvloop", "pydantic", "prometheus-client")


def examine() -> tuple[list[tuple[str, str]], bool]:
    """Findings as (what, found), and whether `tilemlp serve` would start as things are."""
    findings = [
        ("tilemlp", __version__),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("packages", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)),
        ("machine", f"{platform.platform()}, {os.cpu_count()} cores, {_memory()}"),
    ]
    findings.append(("kernels", _kernel_library()))
    gpus = describe_gpus()
    findings += [("gpu", gpu) for gpu in gpus] or [("gpu", "none that torch can use")]
    try:
        settings = load_settings()
        plans = _plan(settings)
    except StartError as error:
        return [*findings, ("settings", f"wrong: {error}")], False
    given = {name: value for name, value in settings if name in settings.model_fields_set}
    shown = ", ".join(f"{name}={value}" for name, value in given.items())
    findings.append(("settings", shown or "all at their defaults"))
    findings.append(("backend", describe_plans(plans).removeprefix("backend ")))
    return findings, True


def _plan(settings: Settings) -> list[Plan]:
    layers = None if settings.layers is None else parse_layers(settings.layers)
    source = open_model(
        settings.preset if settings.model is None else settings.model, layers=layers
    )
    return plan_engines(
        source.spec,
        settings.device,
        () if settings.devices is None else parse_devices(settings.devices),
        backend=settings.backend,
        dispatch=settings.dispatch,
        max_batch_tokens=settings.max_batch_tokens,
        autotune=settings.autotune,
    )


def _kernel_library() -> str:
    try:
        library = default_library()
    except LibraryError as error:
        return str(error).removeprefix("kernel library: ")
    count = len(library.configs)
    return f"{library.path}, ABI {ABI_VERSION}, {count} kernels, {library.build_info}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _memory() -> str:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return f"{int(line.split()[1]) / 2**20:.1f} GiB free"
    return "memory unknown"
