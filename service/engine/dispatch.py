"""Which gate/up kernel a batch runs on: a pure function of the mode, the problem and the library.

    table     what the library chooses
    paper     the paper's rule: Kernel-2 below 2048 tokens, Kernel-1 from there on
    kernel1   Kernel-1 alone
    kernel2   Kernel-2 alone

Where the library's own choice is of the family asked for, it stands; its table knows more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from service.engine.base import DType, ModelSpec
from service.errors import ConfigError
from service.kernels.library import KernelChoice, KernelConfig

Mode: TypeAlias = Literal["table", "paper", "kernel1", "kernel2"]

# Values of the metrics' label `kernel`.
KERNEL1 = "kernel1"
KERNEL2 = "kernel2"
_KERNEL1_PREFIX = "k1_"

# "Tile-Level Activation Overlap for Efficient LLM Inference", 2026: Kernel-1 from M = 2048.
PAPER_CROSSOVER_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Problem:
    """One gate/up product.

    Attributes:
        tokens: M, 1 or more.
        intermediate_size: N.
        num_sms: Multiprocessors of the device.
        plain: bf16 with SiLU, for which every kernel is compiled.
    """

    tokens: int
    intermediate_size: int
    num_sms: int
    plain: bool


def is_plain(model: ModelSpec) -> bool:
    """Whether every kernel is compiled for a model: bf16 with SiLU."""
    return model.dtype is DType.BF16 and model.activation == "silu"


def family(name: str) -> str:
    """`kernel1` or `kernel2`, by a configuration's name."""
    return KERNEL1 if name.startswith(_KERNEL1_PREFIX) else KERNEL2


def validate_dispatch(mode: Mode, configs: Sequence[KernelConfig], *, plain: bool) -> None:
    """Refuse a mode for which the library lacks a kernel.

    Raises:
        ConfigError: it does; the message says which.
    """
    for wanted in _families(mode):
        if not _candidates(wanted, configs, plain=plain):
            number = wanted.removeprefix("kernel")
            others = "" if plain else " for this element type and activation"
            raise ConfigError(
                f"dispatch: must be table or a kernel of this library, which has no "
                f"Kernel-{number}{others}, is {mode!r}"
            )


def select_kernel(
    mode: Mode, problem: Problem, configs: Sequence[KernelConfig], chosen: KernelChoice
) -> KernelChoice:
    """The kernel for a problem; `validate_dispatch` must have passed.

    Args:
        mode: Which rule decides.
        problem: What is computed.
        configs: Every kernel of the library, by id.
        chosen: What the library chooses for the problem.

    Returns:
        `chosen`, or a configuration of another family with raster and swizzle left open.
    """
    if mode == "table":
        return chosen
    wanted: str = mode
    if mode == "paper":
        wanted = KERNEL2 if problem.tokens < PAPER_CROSSOVER_TOKENS else KERNEL1
    if family(configs[chosen.config].name) == wanted:
        return chosen
    candidates = _candidates(wanted, configs, plain=problem.plain)
    return KernelChoice(min(candidates, key=lambda config: _padded_area(config, problem)).id)


def _families(mode: Mode) -> tuple[str, ...]:
    if mode == "table":
        return ()
    return (KERNEL1, KERNEL2) if mode == "paper" else (mode,)


def _candidates(wanted: str, configs: Sequence[KernelConfig], *, plain: bool) -> list[KernelConfig]:
    """Kernels of a family that run on the resident layout, compiled for the problem's types."""
    # Granularity 0 wants weights interleaved in memory; 1 is there to measure the paper's choice.
    return [
        config
        for config in configs
        if family(config.name) == wanted
        and (wanted == KERNEL1 or config.granularity == 8)
        and (plain or config.all_types)
    ]


def _padded_area(config: KernelConfig, problem: Problem) -> int:
    """Output elements that the busiest multiprocessor works on, padding included."""
    tiles = -(-problem.tokens // config.tile_m) * -(-problem.intermediate_size // config.tile_n)
    return -(-tiles // problem.num_sms) * config.tile_m * config.tile_n
