"""Which gate/up kernel a batch runs on: a pure function of the mode, the problem and the library.

    table     the fastest one measured on this GPU, else what the library chooses
    paper     the paper's rule: Kernel-2 below 2048 tokens, Kernel-1 from there on
    kernel1   Kernel-1 alone
    kernel2   Kernel-2 alone

Of the kernel that a rule names, the fastest measured, else the library's own choice if it is one of
its instances, else the instance whose tiles pad least.
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


def family(config: KernelConfig) -> str:
    """`kernel1` or `kernel2`."""
    return KERNEL1 if config.kernel == 1 else KERNEL2


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
    mode: Mode,
    problem: Problem,
    configs: Sequence[KernelConfig],
    chosen: KernelChoice,
    ranked: Sequence[KernelChoice] = (),
) -> KernelChoice:
    """The kernel for a problem; `validate_dispatch` must have passed.

    Args:
        mode: Which rule decides.
        problem: What is computed.
        configs: Every kernel of the library, by id.
        chosen: What the library chooses for the problem.
        ranked: What was measured for it on this GPU, fastest first.

    Returns:
        A choice of `ranked`, or `chosen`, or an instance with raster and swizzle left open.
    """
    if mode == "table":
        return ranked[0] if ranked else chosen
    wanted: str = mode
    if mode == "paper":
        wanted = KERNEL2 if problem.tokens < PAPER_CROSSOVER_TOKENS else KERNEL1
    for choice in (*ranked, chosen):
        if family(configs[choice.config]) == wanted:
            return choice
    candidates = _candidates(wanted, configs, plain=problem.plain)
    return KernelChoice(min(candidates, key=lambda config: _padded_area(config, problem)).id)


def _families(mode: Mode) -> tuple[str, ...]:
    if mode == "table":
        return ()
    return (KERNEL1, KERNEL2) if mode == "paper" else (mode,)


def _candidates(wanted: str, configs: Sequence[KernelConfig], *, plain: bool) -> list[KernelConfig]:
    """Instances of a kernel that are there to be chosen, compiled for the problem's types."""
    return [
        config
        for config in configs
        if family(config) == wanted and not config.comparison and (plain or config.all_types)
    ]


def _padded_area(config: KernelConfig, problem: Problem) -> int:
    """Output elements that the busiest multiprocessor works on, padding included."""
    tiles = -(-problem.tokens // config.tile_m) * -(-problem.intermediate_size // config.tile_n)
    return -(-tiles // problem.num_sms) * config.tile_m * config.tile_n
