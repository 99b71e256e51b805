"""The fastest kernel, order and grouping of tiles for one size, found on the GPU at hand.

The sweep narrows down: all instances at a glance, then all orders of the best few at a glance, then
the best of those in the steady state, the best of each kernel and the library's own choice among
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import geometric_mean

import torch

from service.kernels.abi import Raster
from service.kernels.dispatch_table import Tuned, TunedSize, choice_of
from service.kernels.launcher import LIBRARY_CHOOSES, Launcher
from service.kernels.library import KernelChoice, KernelConfig, Library
from service.kernels.timing import CapturedCalls, Steadiness, Timing, Visitable, measure

ORDERS = (
    *((Raster.ALONG_M, swizzle) for swizzle in (1, 2, 4, 6, 8, 12)),
    *((Raster.ALONG_N, swizzle) for swizzle in (1, 4, 8)),
)
# Enough to tell which few are worth more.
GLANCE = Steadiness(settle_s=0.015, measure_s=0.03, rounds=1)
_INSTANCES_KEPT = 3
# Up to here the smallest of the large tiles of each kernel stand in for all of them.
_FEW_TOKENS = 64
_SMALLEST_TILE = 8
_CHOICES_KEPT = 3


@dataclass(frozen=True, slots=True)
class Operands:
    """What the kernels are timed on.

    Attributes:
        x: [tokens, hidden_size] bf16, random.
        weights: Sets of [2 · intermediate_size, hidden_size], gate first; best more than fits into
            L2, as in a model of many layers.
        out: [tokens, intermediate_size].
    """

    x: torch.Tensor
    weights: Sequence[torch.Tensor]
    out: torch.Tensor


@dataclass(frozen=True, slots=True)
class Found:
    """One size after its sweep.

    Attributes:
        tuned: The line of a dispatch table.
        chosen_us: What the library chooses by itself.
        others: Timings of what was measured beside it, by name.
    """

    tuned: TunedSize
    chosen_us: float
    others: Mapping[str, Timing]


def fused_calls(
    launcher: Launcher, operands: Operands, choice: KernelChoice = LIBRARY_CHOOSES
) -> list[Callable[[], object]]:
    """One launch for each set of weights, which nothing writes, as in a service."""
    return [
        partial(launcher, operands.x, weight, operands.out, "silu", choice, True)
        for weight in operands.weights
    ]


def candidates(library: Library, tokens: int) -> list[KernelConfig]:
    """The instances that a choice is made among, without those that cannot win at that size."""
    return [
        config for config in library.configs if not config.comparison and _may_win(config, tokens)
    ]


def _may_win(config: KernelConfig, tokens: int) -> bool:
    """Whether a tile is neither mostly empty nor one of many that read the same weights."""
    if config.swap_ab:
        return config.tile_m <= max(_SMALLEST_TILE, 2 * tokens) and tokens <= 2 * config.tile_m
    return tokens > _FEW_TOKENS or config.tile_m <= _FEW_TOKENS


def time_choices(
    launcher: Launcher,
    operands: Operands,
    choices: Sequence[KernelChoice],
    steadiness: Steadiness,
) -> dict[KernelChoice, float]:
    """Microseconds of a launch by each choice."""
    names = {choice: choice_name(choice, launcher.library) for choice in choices}
    timings = measure(
        {
            name: CapturedCalls(fused_calls(launcher, operands, choice))
            for choice, name in names.items()
        },
        steadiness,
    )
    return {choice: timings[name].us for choice, name in names.items()}


def tune(
    launcher: Launcher,
    operands: Operands,
    num_sms: int,
    steadiness: Steadiness,
    others: Mapping[str, Visitable] | None = None,
) -> Found:
    """Sweep one size.

    Args:
        launcher: Of the library that has the kernels.
        operands: Tensors of the size.
        num_sms: Multiprocessors of the GPU.
        steadiness: Of the last and longest measurement.
        others: To be measured beside it, by name.
    """
    return _Sweep(launcher, operands, num_sms).run(steadiness, others or {})


def measure_again(
    launcher: Launcher, operands: Operands, size: TunedSize, steadiness: Steadiness
) -> TunedSize:
    """Rank a size's choices anew, by this measurement and the one they were ranked by.

    Two choices that are within a percent of each other change places from one minute to the next,
    so what is measured once, however long, picks the luckier. Worth something only some time later.

    Args:
        launcher: Of the library that has the kernels.
        operands: Tensors of the size.
        size: What `tune` found.
        steadiness: As for `tune`.
    """
    choices = {tuned: choice_of(tuned, launcher.library) for tuned in size.ranked}
    us = time_choices(
        launcher, operands, list(choices.values()), steadiness.for_tokens(size.tokens)
    )
    both = [
        replace(tuned, us=round(geometric_mean((tuned.us, us[choice])), 2))
        for tuned, choice in choices.items()
    ]
    return replace(size, ranked=tuple(sorted(both, key=lambda tuned: tuned.us)))


class _Sweep:
    """The search at one size."""

    def __init__(self, launcher: Launcher, operands: Operands, num_sms: int) -> None:
        self._launcher = launcher
        self._library = launcher.library
        self._operands = operands
        self._num_sms = num_sms
        self._tokens, self._hidden = operands.x.shape
        self._intermediate = operands.out.shape[1]

    def run(self, steadiness: Steadiness, others: Mapping[str, Visitable]) -> Found:
        chosen = self._library.select(self._tokens, self._intermediate, self._hidden, self._num_sms)
        finalists = {chosen, *self._finalists()}
        visitables: dict[str, Visitable] = {
            self._name(choice): self._capture(choice) for choice in finalists
        }
        timings = measure({**visitables, **others}, steadiness.for_tokens(self._tokens))
        us = {choice: timings[self._name(choice)].us for choice in finalists}
        ranked = tuple(self._tuned(choice, us[choice]) for choice in sorted(us, key=us.__getitem__))
        return Found(
            TunedSize(self._hidden, self._intermediate, self._tokens, ranked),
            us[chosen],
            {name: timings[name] for name in others},
        )

    def _finalists(self) -> list[KernelChoice]:
        """The best few choices, and the best of each kernel."""
        instances = [KernelChoice(config.id) for config in candidates(self._library, self._tokens)]
        kept = self._with_each_kernel(self._by_time(instances), _INSTANCES_KEPT)
        orders = [
            KernelChoice(choice.config, raster, swizzle)
            for choice in kept
            for raster, swizzle in self._orders(choice)
        ]
        return self._with_each_kernel(self._by_time(orders), _CHOICES_KEPT)

    def _orders(self, choice: KernelChoice) -> Sequence[tuple[Raster, int]]:
        """Of a single row of tiles there is one, and the small-M kernels know no other."""
        config = self._library.configs[choice.config]
        return ORDERS[:1] if config.swap_ab or self._tokens <= config.tile_m else ORDERS

    def _by_time(self, choices: Sequence[KernelChoice]) -> list[KernelChoice]:
        us = time_choices(self._launcher, self._operands, choices, GLANCE)
        return sorted(choices, key=us.__getitem__)

    def _with_each_kernel(self, ranked: Sequence[KernelChoice], count: int) -> list[KernelChoice]:
        """The first `count`, and the first of every kernel that is not among them."""
        kept = list(ranked[:count])
        for choice in ranked[count:]:
            if all(self._kernel(other) != self._kernel(choice) for other in kept):
                kept.append(choice)
        return kept

    def _capture(self, choice: KernelChoice) -> CapturedCalls:
        return CapturedCalls(fused_calls(self._launcher, self._operands, choice))

    def _kernel(self, choice: KernelChoice) -> int:
        return self._library.configs[choice.config].kernel

    def _tuned(self, choice: KernelChoice, us: float) -> Tuned:
        config = self._library.configs[choice.config].name
        return Tuned(config, Raster(choice.raster).name.lower(), choice.swizzle, round(us, 2))

    def _name(self, choice: KernelChoice) -> str:
        return choice_name(choice, self._library)


def choice_name(choice: KernelChoice, library: Library) -> str:
    """A choice in words, such as `pp_128x192_c2x1 along_m 8`."""
    config = library.configs[choice.config].name
    return f"{config} {Raster(choice.raster).name.lower()} {choice.swizzle}"
