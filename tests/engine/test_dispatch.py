"""The choice of a kernel, on a library that is only a list."""

from __future__ import annotations

import pytest

from service.engine.dispatch import Problem, family, select_kernel, validate_dispatch
from service.errors import ConfigError
from service.kernels.library import KernelChoice, KernelConfig

CONFIGS = (
    KernelConfig(0, 2, "pp_64x256_c1x1", 64, 128, 8, True, False),
    KernelConfig(1, 2, "pp_128x192_c2x1", 128, 96, 8, True, False),
    KernelConfig(2, 2, "pp_128x192_c2x1_g1", 128, 96, 1, False, True),
    KernelConfig(3, 2, "pp_64x64_c2x1_phys", 64, 32, -1, True, True),
    KernelConfig(4, 1, "k1_128x128_c2x1", 128, 128, 0, False, False),
    KernelConfig(5, 1, "k1_64x128_c1x1", 64, 128, 0, False, False),
)
TODAY = CONFIGS[:4]
KERNEL2_CHOICE, KERNEL1_CHOICE = KernelChoice(1, 2, 8), KernelChoice(4, 1, 1)


def problem(tokens: int, *, n: int = 4864, plain: bool = True) -> Problem:
    return Problem(tokens, n, 132, plain)


def chosen_family(mode: str, tokens: int, chosen: KernelChoice) -> str:
    return family(CONFIGS[select_kernel(mode, problem(tokens), CONFIGS, chosen).config])


@pytest.mark.parametrize("chosen", [KERNEL1_CHOICE, KERNEL2_CHOICE])
@pytest.mark.parametrize("tokens", [1, 2047, 2048, 8192])
def test_without_measurements_the_table_is_the_librarys_own_choice(
    tokens: int, chosen: KernelChoice
) -> None:
    assert select_kernel("table", problem(tokens), CONFIGS, chosen) is chosen


@pytest.mark.parametrize("chosen", [KERNEL1_CHOICE, KERNEL2_CHOICE])
def test_the_paper_crosses_over_at_2048_tokens(chosen: KernelChoice) -> None:
    assert [chosen_family("paper", tokens, chosen) for tokens in (1, 2047, 2048, 8192)] == [
        "kernel2",
        "kernel2",
        "kernel1",
        "kernel1",
    ]


@pytest.mark.parametrize("mode", ["kernel1", "kernel2"])
@pytest.mark.parametrize("tokens", [1, 2048, 8192])
def test_a_forced_family_is_kept_at_every_size(mode: str, tokens: int) -> None:
    for chosen in (KERNEL1_CHOICE, KERNEL2_CHOICE):
        assert chosen_family(mode, tokens, chosen) == mode


def test_the_librarys_choice_stands_where_its_family_was_asked_for() -> None:
    assert select_kernel("kernel2", problem(8192), CONFIGS, KERNEL2_CHOICE) is KERNEL2_CHOICE
    assert select_kernel("paper", problem(8192), CONFIGS, KERNEL1_CHOICE) is KERNEL1_CHOICE


def test_otherwise_the_tile_that_pads_least_is_taken_and_the_library_orders_the_tiles() -> None:
    # 64 rows fill one 64-row tile and half a 128-row tile.
    assert select_kernel("kernel1", problem(64), CONFIGS, KERNEL2_CHOICE) == KernelChoice(5)
    assert select_kernel("kernel2", problem(64), CONFIGS, KERNEL1_CHOICE) == KernelChoice(0)
    # 4096 × 4864: 1216 tiles of 128 × 128 are 10 waves, 2432 of 64 × 128 are 19 of half the size.
    assert select_kernel("kernel1", problem(4096), CONFIGS, KERNEL2_CHOICE) == KernelChoice(5)
    # 16896 = 132 · 128 columns: one full wave against two of half the size; the first wins a tie.
    assert select_kernel("kernel1", problem(128, n=16896), CONFIGS, KERNEL2_CHOICE).config == 4


def test_what_was_measured_comes_first() -> None:
    ranked = (KernelChoice(5, 1, 2), KernelChoice(0, 2, 1), KernelChoice(4, 1, 1))
    picked = {
        mode: select_kernel(mode, problem(64), CONFIGS, KERNEL2_CHOICE, ranked)
        for mode in ("table", "paper", "kernel1", "kernel2")
    }
    assert picked == {
        "table": ranked[0],
        "paper": ranked[1],
        "kernel1": ranked[0],
        "kernel2": ranked[1],
    }
    only = ranked[:1]
    assert select_kernel("kernel2", problem(64), CONFIGS, KERNEL2_CHOICE, only) is KERNEL2_CHOICE


def test_kernels_that_cannot_run_here_are_never_forced() -> None:
    for tokens in (1, 64, 128, 1000, 8192):
        choice = select_kernel("kernel2", problem(tokens), CONFIGS, KERNEL1_CHOICE)
        assert not CONFIGS[choice.config].comparison
        other = problem(tokens, plain=False)
        choice = select_kernel("kernel2", other, CONFIGS, KERNEL1_CHOICE)
        assert CONFIGS[choice.config].all_types
        assert not CONFIGS[choice.config].comparison


@pytest.mark.parametrize("mode", ["paper", "kernel1"])
def test_a_library_without_kernel_1_is_said_in_one_sentence(mode: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate_dispatch(mode, TODAY, plain=True)
    assert str(caught.value) == (
        f"dispatch: must be table or a kernel of this library, which has no Kernel-1, is {mode!r}"
    )


@pytest.mark.parametrize("mode", ["table", "kernel2"])
def test_the_other_modes_need_no_kernel_1(mode: str) -> None:
    validate_dispatch(mode, TODAY, plain=True)


def test_a_kernel_1_that_is_not_compiled_for_the_model_is_none() -> None:
    validate_dispatch("paper", CONFIGS, plain=True)
    with pytest.raises(ConfigError, match="no Kernel-1 for this element type and activation, is"):
        validate_dispatch("paper", CONFIGS, plain=False)
