"""Every rule of swiglu_down_args_t, the table of its configurations and the choice among them."""

from __future__ import annotations

import ctypes

import pytest

from tests.csrc import abi
from tests.csrc.names import DOWN_NAMES

LIMIT = 2**31 - 1024


def validate(library, args) -> tuple[str, str]:
    status = library.swiglu_down_validate(ctypes.byref(args))
    return abi.STATUS[status], library.swiglu_last_error().decode() if status else ""


def test_good_arguments_pass(library, good_down_args):
    assert validate(library, good_down_args) == ("SWIGLU_OK", "")


@pytest.mark.parametrize(
    ("broken", "reason", "sentence"),
    [
        (("struct_size", 8), "INVALID_ARGUMENT", "struct_size: must be 88, is 8"),
        (("dtype", 2), "INVALID_ARGUMENT", "dtype: must be one of 0 1, is 2"),
        (("flags", 2), "INVALID_ARGUMENT", "flags: must be one of 0 1, is 2"),
        (("config", -2), "INVALID_ARGUMENT", "config: must be -1 to"),
        (("config", 10_000), "INVALID_ARGUMENT", "config: must be -1 to"),
        (("m", -1), "INVALID_SHAPE", f"m: must be 0 to {LIMIT}, is -1"),
        (("m", LIMIT + 1), "INVALID_SHAPE", f"m: must be 0 to {LIMIT}, is {LIMIT + 1}"),
        (("n", 0), "INVALID_SHAPE", "n: must be 8 to"),
        (("n", 900), "INVALID_SHAPE", "n: must be a multiple of 8, is 900"),
        (("k", 4860), "INVALID_SHAPE", "k: must be a multiple of 8, is 4860"),
        (("x", None), "INVALID_ARGUMENT", "x: must be a device pointer, is NULL"),
        (("x_row_stride", 4856), "INVALID_SHAPE", "x_row_stride: must be 4864 to"),
        (("weight", None), "INVALID_ARGUMENT", "weight: must be a device pointer, is NULL"),
        (("weight", 0x2002), "MISALIGNED", "weight: must be aligned to 16 bytes, is 2 bytes past"),
        (("weight_row_stride", 0), "INVALID_SHAPE", "weight_row_stride: must be 4864 to"),
        (("weight_row_stride", 4868), "MISALIGNED", "weight_row_stride: must be a multiple of 8"),
        (("out", None), "INVALID_ARGUMENT", "out: must be a device pointer, is NULL"),
        (("out_row_stride", 888), "INVALID_SHAPE", "out_row_stride: must be 896 to"),
    ],
)
def test_a_broken_rule_is_named(library, good_down_args, broken, reason, sentence):
    setattr(good_down_args, *broken)
    status, said = validate(library, good_down_args)
    assert status == f"SWIGLU_{reason}"
    assert sentence in said


def test_null_pointers_are_refused(library):
    assert library.swiglu_down_validate(None) == 1
    assert library.swiglu_last_error() == b"args: must be a pointer to swiglu_down_args_t, is NULL"
    assert library.swiglu_down_get_config(0, None) == 1
    assert library.swiglu_down_select(1, 8, 8, 0, 132, None) == 1


def test_no_tokens_and_no_depth_need_less(library, good_down_args):
    good_down_args.k, good_down_args.x, good_down_args.weight = 0, None, None
    assert validate(library, good_down_args)[0] == "SWIGLU_OK"
    good_down_args.m, good_down_args.out = 0, None
    assert validate(library, good_down_args)[0] == "SWIGLU_OK"
    assert library.swiglu_down_launch(ctypes.byref(good_down_args), None) == abi.OK


def test_a_launch_without_kernels_is_refused(library, good_down_args):
    status = library.swiglu_down_launch(ctypes.byref(good_down_args), None)
    assert abi.STATUS[status] == "SWIGLU_UNSUPPORTED_DEVICE"


def test_a_configuration_not_compiled_for_the_type_is_refused(library, good_down_args):
    special = next(c for c in abi.down_configs(library) if not c.all_types)
    good_down_args.config, good_down_args.dtype = special.id, abi.FP16
    status, said = validate(library, good_down_args)
    assert status == "SWIGLU_NOT_COMPILED"
    assert special.name.decode() in said


def test_more_ctas_than_a_grid_has_are_refused(library, good_down_args):
    good_down_args.config = 0
    good_down_args.m, good_down_args.n = 2**31 - 2048, 4096
    good_down_args.out_row_stride = 4096
    status, said = validate(library, good_down_args)
    assert status == "SWIGLU_INVALID_SHAPE"
    assert "m: must be few enough for 2^31 - 1 CTAs of sm_" in said


def test_the_table_is_consistent(library):
    table = abi.down_configs(library)
    assert [config.name.decode() for config in table] == DOWN_NAMES
    assert [config.id for config in table] == list(range(len(table)))
    for config in table:
        assert (config.kernel, config.swap_ab, config.granularity) == (0, 1, 0)
        tile, depth, _, splits, sharers, _ = config.name.decode().removeprefix("sm_").split("_")
        assert tile == f"{config.tile_m}x{config.tile_n}"
        assert (depth, splits) == (f"k{config.tile_k}", f"p{config.split_k}")
        assert (config.cluster_m, sharers) == (1, f"c{config.cluster_n}")


@pytest.mark.parametrize("dtype", [abi.BF16, abi.FP16])
def test_every_choice_is_compiled(library, dtype):
    table = abi.down_configs(library)
    for n, k in [(896, 4864), (8192, 29568), (8, 8)]:
        for m in [1, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 8192]:
            choice = ctypes.c_int32(-7)
            status = library.swiglu_down_select(m, n, k, dtype, 132, ctypes.byref(choice))
            assert status == abi.OK
            config = table[choice.value]
            assert config.all_types or dtype == abi.BF16


@pytest.mark.parametrize("question", [(0, 8, 8, 1), (1, 0, 8, 1), (1, 8, -1, 1), (1, 8, 8, 0)])
def test_a_question_without_answer_is_refused(library, question):
    m, n, k, sms = question
    choice = ctypes.c_int32()
    assert library.swiglu_down_select(m, n, k, 0, sms, ctypes.byref(choice)) == 2


@pytest.mark.parametrize(
    ("m", "n", "name"),
    [
        (1, 896, "sm_8x64_k128_s6_p6_c1_t0"),
        (9, 1536, "sm_16x64_k128_s8_p4_c1_t0"),  # 24 tiles leave multiprocessors idle
        (16, 2048, "sm_16x64_k128_s5_p6_c1_t0"),  # 32 in four parts give each one CTA
        (16, 3584, "sm_16x64_k128_s4_p4_c1_t0"),  # 56 give two
        (16, 5120, "sm_16x64_k128_s3_p4_c1_t0"),  # 80 give three
        (16, 8192, "sm_16x64_k128_s8_p4_c1_t0"),  # 128 come in rounds
        (32, 2048, "sm_32x64_k128_s4_p6_c1_t0"),
    ],
)
def test_the_parts_of_the_sum_follow_the_number_of_tiles(library, m, n, name):
    choice = ctypes.c_int32(-7)
    assert library.swiglu_down_select(m, n, 4096, abi.BF16, 132, ctypes.byref(choice)) == abi.OK
    assert abi.down_configs(library)[choice.value].name.decode() == name
