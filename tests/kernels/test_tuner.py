"""The search for the fastest choice, on made-up times, and what a second look does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from service.kernels import tuner
from service.kernels.dispatch_table import Tuned, TunedSize
from service.kernels.library import KernelChoice, Library
from service.kernels.timing import Steadiness, Visit
from service.kernels.tuner import ORDERS, Operands, candidates, measure_again, tune

BRIEF = Steadiness(settle_s=0, measure_s=0, rounds=1)
OPERANDS = Operands(torch.empty(300, 16), [torch.empty(48, 16)], torch.empty(300, 24))


class FakeLauncher:
    def __init__(self, library: Library) -> None:
        self.library = library

    def __call__(self, *arguments: object) -> None:
        raise AssertionError("nothing runs here")


@pytest.fixture
def times(monkeypatch):
    """Sets how long a choice takes; returns the choices that were timed."""

    def use(us: Callable[[KernelChoice], float]) -> list[KernelChoice]:
        seen: list[KernelChoice] = []

        class Captured:
            def __init__(self, calls) -> None:
                self.choice = calls[0].args[4]
                seen.append(self.choice)

            def visit(self, steadiness: Steadiness) -> Visit:
                return Visit(us(self.choice), 650.0, 1400.0)

        monkeypatch.setattr(tuner, "CapturedCalls", Captured)
        return seen

    return use


def test_the_fastest_instance_in_the_fastest_order_comes_first(host_library, times):
    """Whichever it is; the best of the other kernel and the library's own choice are kept too."""
    for config in candidates(host_library, 300):
        best = KernelChoice(config.id, *ORDERS[-1])
        times(lambda it, best=best: 1.0 if it == best else 2.0 + (it.config != best.config))
        found = tune(FakeLauncher(host_library), OPERANDS, 132, BRIEF)
        first = found.tuned.ranked[0]
        assert (first.config, first.raster, first.swizzle) == (config.name, "along_n", 8)
        assert first.us == 1.0
        kernels = {host_library.config(tuned.config).kernel for tuned in found.tuned.ranked}
        assert kernels == {1, 2}
        assert (found.tuned.hidden, found.tuned.intermediate, found.tuned.tokens) == (16, 24, 300)


def test_what_is_there_for_comparison_is_never_tried(host_library, times):
    seen = times(lambda _: 1.0)
    tune(FakeLauncher(host_library), OPERANDS, 132, BRIEF)
    tried = {config.id for config in candidates(host_library, 300)}
    assert {choice.config for choice in seen} == tried
    assert any(config.comparison for config in host_library.configs)


def test_of_a_single_row_of_tiles_one_order_is_tried(host_library, times):
    seen = times(lambda _: 1.0)
    few = Operands(torch.empty(3, 16), OPERANDS.weights, torch.empty(3, 24))
    tune(FakeLauncher(host_library), few, 132, BRIEF)
    chosen = host_library.select(3, 24, 16, 132)
    orders = {(choice.raster, choice.swizzle) for choice in seen} - {
        (chosen.raster, chosen.swizzle)
    }
    assert orders <= {(0, 0), ORDERS[0]}


@pytest.mark.parametrize("tokens", [1, 8, 16, 64, 65, 128, 256, 257, 8192])
def test_only_what_may_win_is_tried(host_library, tokens):
    """Of both kernels something, small-M instances whose tile fits, and no more of the others."""
    tried = candidates(host_library, tokens)
    assert {config.kernel for config in tried} == {1, 2}
    small = [config for config in tried if config.swap_ab]
    assert bool(small) == (tokens <= 128)
    assert all(tokens / 2 <= config.tile_m <= max(8, 2 * tokens) for config in small)
    if tokens <= 64:
        assert all(config.tile_m <= 64 for config in tried if not config.swap_ab)


def test_a_small_m_kernel_has_one_order(host_library, times):
    small = [config.id for config in candidates(host_library, 20) if config.swap_ab]
    seen = times(lambda it: 1.0 if it.config in small else 2.0)
    few = Operands(torch.empty(20, 16), OPERANDS.weights, torch.empty(20, 24))
    tune(FakeLauncher(host_library), few, 132, BRIEF)
    chosen = host_library.select(20, 24, 16, 132)
    orders = {(it.raster, it.swizzle) for it in seen if it.config in small}
    assert orders <= {(0, 0), ORDERS[0], (chosen.raster, chosen.swizzle)}


def test_a_second_look_counts_as_much_as_the_first(host_library, times):
    lucky, steady = host_library.config("pp_128x192_c2x1"), host_library.config("k1_128x128_c2x1")
    first = TunedSize(
        16,
        24,
        300,
        (Tuned(lucky.name, "along_m", 4, 100.0), Tuned(steady.name, "along_n", 8, 101.0)),
    )
    seen = times(lambda it: 121.0 if it.config == lucky.id else 101.0)
    again = measure_again(FakeLauncher(host_library), OPERANDS, first, BRIEF)
    assert again.ranked == (
        Tuned(steady.name, "along_n", 8, 101.0),
        Tuned(lucky.name, "along_m", 4, 110.0),
    )
    assert (again.hidden, again.intermediate, again.tokens) == (16, 24, 300)
    assert {(it.config, it.raster, it.swizzle) for it in seen} == {
        (lucky.id, 1, 4),
        (steady.id, 2, 8),
    }
