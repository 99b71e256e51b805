"""The structs and functions of swiglu.h for ctypes, for tests that need nothing of the service."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

ABI_VERSION = 1
OK = 0
STATUS = [
    "SWIGLU_OK",
    "SWIGLU_INVALID_ARGUMENT",
    "SWIGLU_INVALID_SHAPE",
    "SWIGLU_MISALIGNED",
    "SWIGLU_NOT_COMPILED",
    "SWIGLU_UNSUPPORTED_DEVICE",
    "SWIGLU_WORKSPACE_TOO_SMALL",
    "SWIGLU_CUDA_ERROR",
    "SWIGLU_INTERNAL",
]
BF16, FP16 = 0, 1
SILU, GELU_TANH, RELU = 0, 1, 2
RASTER_AUTO, RASTER_ALONG_M, RASTER_ALONG_N = 0, 1, 2
CONFIG_AUTO = -1
WEIGHTS_CONSTANT = 1


class Args(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("config", ctypes.c_int32),
        ("raster", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
        ("num_sms", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("x_row_stride", ctypes.c_int64),
        ("gate_up", ctypes.c_void_p),
        ("gate_up_row_stride", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("out_row_stride", ctypes.c_int64),
    ]


class Config(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("id", ctypes.c_int32),
        ("tile_m", ctypes.c_int32),
        ("tile_n", ctypes.c_int32),
        ("tile_k", ctypes.c_int32),
        ("cluster_m", ctypes.c_int32),
        ("cluster_n", ctypes.c_int32),
        ("cooperative", ctypes.c_int32),
        ("granularity", ctypes.c_int32),
        ("all_types", ctypes.c_int32),
        ("name", ctypes.c_char_p),
    ]


class Choice(ctypes.Structure):
    _fields_ = [
        ("config", ctypes.c_int32),
        ("raster", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
    ]


def load(path: str | os.PathLike[str]) -> ctypes.CDLL:
    """Load libswiglu.so and declare its functions; refuses another ABI version."""
    library = ctypes.CDLL(str(Path(path).resolve()))
    library.swiglu_abi_version.restype = ctypes.c_uint32
    library.swiglu_build_info.restype = ctypes.c_char_p
    library.swiglu_last_error.restype = ctypes.c_char_p
    library.swiglu_status_name.restype = ctypes.c_char_p
    library.swiglu_config_count.restype = ctypes.c_int32
    library.swiglu_get_config.argtypes = [ctypes.c_int32, ctypes.POINTER(Config)]
    library.swiglu_select.argtypes = [
        *[ctypes.c_int64] * 3,
        *[ctypes.c_int32] * 3,
        ctypes.POINTER(Choice),
    ]
    library.swiglu_validate.argtypes = [ctypes.POINTER(Args)]
    library.swiglu_workspace_size.argtypes = [
        ctypes.POINTER(Args),
        ctypes.POINTER(ctypes.c_size_t),
    ]
    library.swiglu_launch.argtypes = [
        ctypes.POINTER(Args),
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    version = library.swiglu_abi_version()
    if version != ABI_VERSION:
        raise RuntimeError(f"{path}: ABI version must be {ABI_VERSION}, is {version}")
    return library


def configs(library: ctypes.CDLL) -> list[Config]:
    """Return every kernel configuration, in the order of ids."""
    found = []
    for index in range(library.swiglu_config_count()):
        config = Config(struct_size=ctypes.sizeof(Config))
        status = library.swiglu_get_config(index, ctypes.byref(config))
        if status != OK:
            raise RuntimeError(library.swiglu_last_error().decode())
        found.append(config)
    return found
