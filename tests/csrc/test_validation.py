"""Every rule of swiglu_args_t: broken, it is refused with its reason and a sentence."""

from __future__ import annotations

import ctypes

import pytest

from tests.csrc import abi

LIMIT = 2**31 - 1024


def validate(library, args) -> tuple[str, str]:
    status = library.swiglu_validate(ctypes.byref(args))
    return abi.STATUS[status], library.swiglu_last_error().decode() if status else ""


def test_good_arguments_pass(library, good_args):
    assert validate(library, good_args) == ("SWIGLU_OK", "")


@pytest.mark.parametrize(
    ("broken", "reason", "sentence"),
    [
        (("struct_size", 8), "INVALID_ARGUMENT", "struct_size: must be 104, is 8"),
        (("dtype", 2), "INVALID_ARGUMENT", "dtype: must be one of 0 1, is 2"),
        (("activation", 3), "INVALID_ARGUMENT", "activation: must be one of 0 1 2, is 3"),
        (("raster", -1), "INVALID_ARGUMENT", "raster: must be one of 0 1 2, is -1"),
        (("swizzle", -1), "INVALID_ARGUMENT", "swizzle: must be 0 to 1024, is -1"),
        (("swizzle", 1025), "INVALID_ARGUMENT", "swizzle: must be 0 to 1024, is 1025"),
        (("flags", 2), "INVALID_ARGUMENT", "flags: must be one of 0 1, is 2"),
        (("num_sms", -1), "INVALID_ARGUMENT", "num_sms: must be 0 or more, is -1"),
        (("config", -2), "INVALID_ARGUMENT", "config: must be -1 to"),
        (("config", 10_000), "INVALID_ARGUMENT", "config: must be -1 to"),
        (("m", -1), "INVALID_SHAPE", f"m: must be 0 to {LIMIT}, is -1"),
        (("m", LIMIT + 1), "INVALID_SHAPE", f"m: must be 0 to {LIMIT}, is {LIMIT + 1}"),
        (("m", 2**31 - 2048), "INVALID_SHAPE", "m: must be at most 2^43 when multiplied by n"),
        (("n", 0), "INVALID_SHAPE", "n: must be 8 to"),
        (("n", 4860), "INVALID_SHAPE", "n: must be a multiple of 8, is 4860"),
        (("n", 2**30), "INVALID_SHAPE", "n: must be 8 to"),
        (("k", -8), "INVALID_SHAPE", "k: must be 0 to"),
        (("k", 900), "INVALID_SHAPE", "k: must be a multiple of 8, is 900"),
        (("x", None), "INVALID_ARGUMENT", "x: must be a device pointer, is NULL"),
        (("x", 0x1008), "MISALIGNED", "x: must be aligned to 16 bytes, is 8 bytes past"),
        (("x_row_stride", 888), "INVALID_SHAPE", "x_row_stride: must be 896 to"),
        (("x_row_stride", 900), "MISALIGNED", "x_row_stride: must be a multiple of 8, is 900"),
        (("x_row_stride", 2**39), "INVALID_SHAPE", "x_row_stride: must be 896 to"),
        (("gate_up", None), "INVALID_ARGUMENT", "gate_up: must be a device pointer, is NULL"),
        (
            ("gate_up", 0x2002),
            "MISALIGNED",
            "gate_up: must be aligned to 16 bytes, is 2 bytes past",
        ),
        (("gate_up_row_stride", 0), "INVALID_SHAPE", "gate_up_row_stride: must be 896 to"),
        (("gate_up_row_stride", 2**38), "INVALID_SHAPE", "below 2^39 when multiplied by n"),
        (("out", None), "INVALID_ARGUMENT", "out: must be a device pointer, is NULL"),
        (("out", 0x3004), "MISALIGNED", "out: must be aligned to 16 bytes, is 4 bytes past"),
        (("out_row_stride", 4856), "INVALID_SHAPE", "out_row_stride: must be 4864 to"),
        (
            ("out_row_stride", 4868),
            "MISALIGNED",
            "out_row_stride: must be a multiple of 8, is 4868",
        ),
    ],
)
def test_a_broken_rule_is_named(library, good_args, broken, reason, sentence):
    setattr(good_args, *broken)
    status, said = validate(library, good_args)
    assert status == f"SWIGLU_{reason}"
    assert sentence in said


@pytest.mark.parametrize("field", ["m", "n", "k"])
def test_the_largest_extents_pass(library, good_args, field):
    setattr(good_args, field, {"m": LIMIT, "n": 2**30 - 1024, "k": LIMIT // 8 * 8}[field])
    good_args.x_row_stride = max(good_args.x_row_stride, good_args.k)
    good_args.out_row_stride = max(good_args.out_row_stride, good_args.n)
    good_args.gate_up_row_stride = 896
    if field == "m":
        good_args.n = 8
    if field == "k":
        good_args.n, good_args.gate_up_row_stride = 8, good_args.k
    if field == "n":
        good_args.k = good_args.gate_up_row_stride = 8
    assert validate(library, good_args)[0] == "SWIGLU_OK"


def test_no_tokens_need_no_tensors(library, good_args):
    good_args.m, good_args.x, good_args.gate_up, good_args.out = 0, None, None, None
    assert validate(library, good_args)[0] == "SWIGLU_OK"


def test_no_hidden_size_needs_an_output_only(library, good_args):
    good_args.k, good_args.x, good_args.gate_up = 0, None, None
    assert validate(library, good_args)[0] == "SWIGLU_OK"
    good_args.out = None
    assert validate(library, good_args)[0] == "SWIGLU_INVALID_ARGUMENT"


def test_null_pointers_are_refused(library):
    assert library.swiglu_validate(None) == 1
    assert library.swiglu_last_error() == b"args: must be a pointer to swiglu_args_t, is NULL"
    assert library.swiglu_get_config(0, None) == 1
    assert library.swiglu_select(1, 8, 8, 0, 0, 132, None) == 1


def test_a_configuration_not_compiled_for_the_types_is_refused(library, good_args):
    special = next(c for c in abi.configs(library) if not c.all_types)
    good_args.config, good_args.dtype = special.id, abi.FP16
    status, said = validate(library, good_args)
    assert status == "SWIGLU_NOT_COMPILED"
    assert special.name.decode() in said
    good_args.dtype = abi.BF16
    assert validate(library, good_args)[0] == "SWIGLU_OK"


def test_a_launch_without_kernels_is_refused(library, good_args):
    status = library.swiglu_launch(ctypes.byref(good_args), None, 0, None)
    assert abi.STATUS[status] == "SWIGLU_UNSUPPORTED_DEVICE"
    assert b"host-only" in library.swiglu_last_error()


def test_no_tokens_launch_nothing_and_succeed(library, good_args):
    good_args.m = 0
    assert library.swiglu_launch(ctypes.byref(good_args), None, 0, None) == abi.OK


def test_workspace_size(library, good_args):
    size = ctypes.c_size_t(7)
    assert library.swiglu_workspace_size(ctypes.byref(good_args), ctypes.byref(size)) == abi.OK
    assert size.value == 0
    good_args.k = 4
    assert library.swiglu_workspace_size(ctypes.byref(good_args), ctypes.byref(size)) == 2
