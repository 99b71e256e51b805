"""The ABI in the short words that the tests of the native library use."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from service.kernels.abi import (
    ABI_VERSION,
    CONFIG_AUTO,
    ActivationCode,
    Args,
    Choice,
    Config,
    DownArgs,
    DTypeCode,
    Flag,
    Raster,
    Status,
    declare,
)

__all__ = ["ABI_VERSION", "CONFIG_AUTO", "Args", "Choice", "Config", "DownArgs"]

OK = Status.OK
STATUS = [f"SWIGLU_{status.name}" for status in Status]
BF16, FP16 = DTypeCode.BF16, DTypeCode.FP16
SILU, GELU_TANH, RELU = ActivationCode
RASTER_AUTO, RASTER_ALONG_M, RASTER_ALONG_N = Raster
WEIGHTS_CONSTANT = Flag.WEIGHTS_CONSTANT


def load(path: str | os.PathLike[str]) -> ctypes.CDLL:
    """Load libswiglu.so and declare its functions; refuses another ABI version."""
    library = ctypes.CDLL(str(Path(path).resolve()))
    declare(library)
    version = library.swiglu_abi_version()
    if version != ABI_VERSION:
        raise RuntimeError(f"{path}: ABI version must be {ABI_VERSION}, is {version}")
    return library


def configs(library: ctypes.CDLL) -> list[Config]:
    """Return every kernel configuration of the gate/up product, in the order of ids."""
    return _configs(library, library.swiglu_config_count, library.swiglu_get_config)


def down_configs(library: ctypes.CDLL) -> list[Config]:
    """Return every kernel configuration of the down projection, in the order of ids."""
    return _configs(library, library.swiglu_down_config_count, library.swiglu_down_get_config)


def _configs(library: ctypes.CDLL, count, get_config) -> list[Config]:
    found = []
    for index in range(count()):
        config = Config(struct_size=ctypes.sizeof(Config))
        status = get_config(index, ctypes.byref(config))
        if status != OK:
            raise RuntimeError(library.swiglu_last_error().decode())
        found.append(config)
    return found
