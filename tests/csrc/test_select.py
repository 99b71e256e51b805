"""The configuration table and the choice among it: pure, so tested without a GPU."""

from __future__ import annotations

import ctypes

import pytest

from tests.csrc import abi
from tests.csrc.names import SMALL_M_NAMES

QWEN = [
    (896, 4864),
    (1536, 8960),
    (2048, 11008),
    (3584, 18944),
    (5120, 13824),
    (5120, 27648),
    (8192, 29568),
]
TOKENS = [1, 8, 63, 64, 65, 127, 128, 129, 1024, 2048, 4096, 8192, 100_000]


def select(library, m, n, k, *, dtype=abi.BF16, activation=abi.SILU) -> abi.Choice:
    choice = abi.Choice()
    assert library.swiglu_select(m, n, k, dtype, activation, 132, ctypes.byref(choice)) == abi.OK
    return choice


def test_the_table_is_consistent(library):
    table = abi.configs(library)
    assert [config.id for config in table] == list(range(len(table)))
    assert len({config.name for config in table}) == len(table)
    for config in table:
        if config.swap_ab:
            continue
        kind, tile, cluster, *variant = config.name.decode().split("_")
        assert cluster == f"c{config.cluster_m}x{config.cluster_n}"
        assert config.comparison == bool(variant)
        if config.kernel == 1:
            assert kind == "k1"
            assert tile == f"{config.tile_m}x{config.tile_n}"
            assert config.granularity == 0
        else:
            assert kind == ("co" if config.cooperative else "pp")
            assert tile == f"{config.tile_m}x{2 * config.tile_n}"
            assert config.granularity == {"g1": 1, "phys": -1}.get("".join(variant), 8)


def test_the_small_m_part_of_the_table_is_consistent(library):
    small = [config for config in abi.configs(library) if config.swap_ab]
    assert [config.name.decode() for config in small] == SMALL_M_NAMES
    for config in small:
        assert (config.kernel, config.granularity, config.comparison) == (2, 8, 0)
        tile, depth, _, splits, sharers, _ = config.name.decode().removeprefix("sm_").split("_")
        assert tile == f"{config.tile_m}x{2 * config.tile_n}"
        assert (depth, splits) == (f"k{config.tile_k}", f"p{config.split_k}")
        assert (config.cluster_m, sharers) == (1, f"c{config.cluster_n}")


@pytest.mark.parametrize("index", [-1, 10_000])
def test_an_index_outside_the_table_is_refused(library, index):
    config = abi.Config(struct_size=ctypes.sizeof(abi.Config))
    assert library.swiglu_get_config(index, ctypes.byref(config)) == 1
    assert b"index: must be 0 to" in library.swiglu_last_error()


def test_a_struct_of_another_size_is_refused(library):
    assert library.swiglu_get_config(0, ctypes.byref(abi.Config(struct_size=4))) == 1


@pytest.mark.parametrize("dtype", [abi.BF16, abi.FP16])
@pytest.mark.parametrize("activation", [abi.SILU, abi.GELU_TANH, abi.RELU])
def test_every_choice_is_complete_and_compiled(library, dtype, activation):
    table = abi.configs(library)
    for k, n in [*QWEN, (8, 8), (8192, 8)]:
        for m in TOKENS:
            choice = select(library, m, n, k, dtype=dtype, activation=activation)
            config = table[choice.config]
            assert not config.comparison
            assert config.all_types or (dtype, activation) == (abi.BF16, abi.SILU)
            assert choice.raster in (abi.RASTER_ALONG_M, abi.RASTER_ALONG_N)
            assert 1 <= choice.swizzle <= 1024


def name_of(library, m, n, k, **types) -> str:
    return abi.configs(library)[select(library, m, n, k, **types).config].name.decode()


@pytest.mark.parametrize(
    ("tokens", "shape", "name"),
    [
        (65, (896, 4864), "pp_64x256_c1x1"),  # of a 128-row tile half would be empty
        (1024, (896, 4864), "pp_128x160_c2x1"),  # 3.1 waves of the wider tile, so 4
        (2048, (896, 4864), "pp_128x192_c2x1"),  # 14 steps along K do not pay for an epilogue
        (1024, (5120, 13824), "pp_128x192_c2x1"),  # 256-row tiles: 4.4 waves, so 5
        (1024, (5120, 27648), "co_256x192_c1x2"),  # 256-row tiles: 8.7 waves, so 9
        (8192, (8192, 29568), "co_256x192_c1x2"),
    ],
)
def test_the_cheapest_tile_is_chosen(library, tokens, shape, name):
    k, n = shape
    assert name_of(library, tokens, n, k) == name


@pytest.mark.parametrize(
    ("tokens", "shape", "name"),
    [
        (1, (896, 4864), "sm_8x64_k128_s6_p1_c1_t0"),  # 152 CTAs fit two to a multiprocessor
        (8, (896, 4864), "sm_8x64_k128_s6_p1_c1_t0"),
        (8, (2048, 11008), "sm_8x64_k128_s4_p1_c1_t0"),  # 344 fit three, not two
        (8, (3584, 18944), "sm_8x64_k128_s6_p1_c1_t0"),  # 592 fit neither way
        (9, (896, 4864), "sm_16x64_k64_s11_p1_c1_t0"),
        (17, (896, 4864), "sm_32x64_k64_s9_p1_c1_t0"),
        (33, (2048, 11008), "sm_64x64_k64_s4_p1_c1_t0"),
        (64, (896, 4864), "sm_64x64_k64_s6_p1_c1_t0"),
        (64, (3584, 18944), "sm_64x128_k128_s4_p1_c1_t0"),  # half as many bytes of tokens
    ],
)
def test_few_tokens_get_the_smallest_tile_that_holds_them(library, tokens, shape, name):
    k, n = shape
    assert name_of(library, tokens, n, k) == name


def test_few_tokens_of_other_types_get_what_is_compiled_for_them(library):
    name = name_of(library, 1, 4864, 896, dtype=abi.FP16)
    assert name == "sm_16x64_k128_s3_p1_c1_t0"
    assert name_of(library, 20, 4864, 896, activation=abi.RELU) == "sm_64x64_k64_s4_p1_c1_t0"


def test_other_types_get_a_tile_that_is_compiled_for_them(library):
    assert name_of(library, 8192, 29568, 8192, dtype=abi.FP16) == "pp_128x192_c2x1"


@pytest.mark.parametrize(
    ("tokens", "shape", "raster", "swizzle"),
    [
        (8192, (896, 4864), abi.RASTER_ALONG_M, 1),  # 15 MB of tokens stay in L2
        (100_000, (896, 4864), abi.RASTER_ALONG_N, 1),  # 17 MB of weights do
        (8192, (2048, 11008), abi.RASTER_ALONG_M, 8),  # neither; 34 MB of tokens are fewer
        (8192, (8192, 29568), abi.RASTER_ALONG_M, 8),
        (100_000, (2048, 11008), abi.RASTER_ALONG_N, 8),  # 90 MB of weights are
    ],
)
def test_what_is_read_again_stays_in_l2(library, tokens, shape, raster, swizzle):
    k, n = shape
    choice = select(library, tokens, n, k)
    assert (choice.raster, choice.swizzle) == (raster, swizzle)


@pytest.mark.parametrize(
    ("m", "n", "k", "sms"), [(0, 8, 8, 1), (1, 0, 8, 1), (1, 8, -1, 1), (1, 8, 8, 0)]
)
def test_a_question_without_answer_is_refused(library, m, n, k, sms):
    choice = abi.Choice()
    assert library.swiglu_select(m, n, k, 0, 0, sms, ctypes.byref(choice)) == 2
    assert b"must be 1 or more" in library.swiglu_last_error()
