"""csrc/include/swiglu/swiglu.h for ctypes: the same structs, values and functions, nothing more."""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag

ABI_VERSION = 3
CONFIG_AUTO = -1


class Status(IntEnum):
    """swiglu_status_t."""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_SHAPE = 2
    MISALIGNED = 3
    NOT_COMPILED = 4
    UNSUPPORTED_DEVICE = 5
    WORKSPACE_TOO_SMALL = 6
    CUDA_ERROR = 7
    INTERNAL = 8


class DTypeCode(IntEnum):
    """swiglu_dtype_t."""

    BF16 = 0
    FP16 = 1


class ActivationCode(IntEnum):
    """swiglu_activation_t."""

    SILU = 0
    GELU_TANH = 1
    RELU = 2


class Raster(IntEnum):
    """swiglu_raster_t: consecutive output tiles differ in M, or in N."""

    AUTO = 0
    ALONG_M = 1
    ALONG_N = 2


class Flag(IntFlag):
    """swiglu_flag_t, in the field `flags` of swiglu_args_t."""

    WEIGHTS_CONSTANT = 1


class Args(ctypes.Structure):
    """swiglu_args_t."""

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


class DownArgs(ctypes.Structure):
    """swiglu_down_args_t."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("dtype", ctypes.c_int32),
        ("config", ctypes.c_int32),
        ("flags", ctypes.c_int32),
        ("m", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("x_row_stride", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("weight_row_stride", ctypes.c_int64),
        ("out", ctypes.c_void_p),
        ("out_row_stride", ctypes.c_int64),
    ]


class Config(ctypes.Structure):
    """swiglu_config_t."""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("id", ctypes.c_int32),
        ("kernel", ctypes.c_int32),
        ("tile_m", ctypes.c_int32),
        ("tile_n", ctypes.c_int32),
        ("tile_k", ctypes.c_int32),
        ("cluster_m", ctypes.c_int32),
        ("cluster_n", ctypes.c_int32),
        ("cooperative", ctypes.c_int32),
        ("granularity", ctypes.c_int32),
        ("swap_ab", ctypes.c_int32),
        ("split_k", ctypes.c_int32),
        ("all_types", ctypes.c_int32),
        ("comparison", ctypes.c_int32),
        ("name", ctypes.c_char_p),
    ]


class Choice(ctypes.Structure):
    """swiglu_choice_t."""

    _fields_ = [
        ("config", ctypes.c_int32),
        ("raster", ctypes.c_int32),
        ("swizzle", ctypes.c_int32),
    ]


# name: (result, arguments), in the order of the header.
PROTOTYPES: dict[str, tuple[type, tuple[type, ...]]] = {
    "swiglu_abi_version": (ctypes.c_uint32, ()),
    "swiglu_build_info": (ctypes.c_char_p, ()),
    "swiglu_last_error": (ctypes.c_char_p, ()),
    "swiglu_status_name": (ctypes.c_char_p, (ctypes.c_int,)),
    "swiglu_config_count": (ctypes.c_int32, ()),
    "swiglu_get_config": (ctypes.c_int, (ctypes.c_int32, ctypes.POINTER(Config))),
    "swiglu_select": (
        ctypes.c_int,
        (*[ctypes.c_int64] * 3, *[ctypes.c_int32] * 3, ctypes.POINTER(Choice)),
    ),
    "swiglu_validate": (ctypes.c_int, (ctypes.POINTER(Args),)),
    "swiglu_workspace_size": (
        ctypes.c_int,
        (ctypes.POINTER(Args), ctypes.POINTER(ctypes.c_size_t)),
    ),
    "swiglu_launch": (
        ctypes.c_int,
        (ctypes.POINTER(Args), ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    ),
    "swiglu_down_config_count": (ctypes.c_int32, ()),
    "swiglu_down_get_config": (ctypes.c_int, (ctypes.c_int32, ctypes.POINTER(Config))),
    "swiglu_down_select": (
        ctypes.c_int,
        (*[ctypes.c_int64] * 3, *[ctypes.c_int32] * 2, ctypes.POINTER(ctypes.c_int32)),
    ),
    "swiglu_down_validate": (ctypes.c_int, (ctypes.POINTER(DownArgs),)),
    "swiglu_down_launch": (ctypes.c_int, (ctypes.POINTER(DownArgs), ctypes.c_void_p)),
}


def declare(library: ctypes.CDLL) -> None:
    """Give every function of the header its types.

    Raises:
        AttributeError: the library lacks one of them.
    """
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
