"""What the fused kernels are measured against, each as calls that can be captured.

eager      silu(x @ Wgᵀ) * (x @ Wuᵀ): two GEMMs, two elementwise kernels
compile    the same function under torch.compile
merged     one GEMM on [2N, K] and one elementwise kernel, as inference servers do it
gemm       that GEMM alone, with no activation: a bound for what fuses in the epilogue
quack      QuACK's gemm_gated in its default configuration, where it is installed
kernel1    the best instances of our two-pass kernel
kernel2    the best instances of our one-pass kernel
fused      the one of them that a service runs at this size
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch.nn import functional

from service.bench.kernel_problem import Problem
from service.errors import ConfigError

Calls: TypeAlias = Sequence[Callable[[], object]]
# Of torch's inductor, by name; torch's own type for them.
Options: TypeAlias = Mapping[str, str | int | bool | Callable[..., object]]
# Sizes in one run, at most.
_MOST_SHAPES = 1000
VARIANTS = ("eager", "compile", "merged", "gemm", "quack", "kernel1", "kernel2", "fused")


def parse_variants(text: str) -> tuple[str, ...]:
    """Names out of a list with commas, without those that cannot run here.

    Raises:
        ConfigError: there is no such variant.
    """
    names = tuple(text.split(","))
    for name in names:
        if name not in VARIANTS:
            raise ConfigError(f"variants: must be among {', '.join(VARIANTS)}, is {name!r}")
    installed = importlib.util.find_spec("quack") is not None
    return tuple(name for name in names if name != "quack" or installed)


def eager(x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
    """As a model's code has it.

    Args:
        x: [tokens, hidden].
        gate_up: [2 · intermediate, hidden], gate first.
    """
    gate_proj, up_proj = gate_up.chunk(2)
    return functional.silu(x @ gate_proj.T) * (x @ up_proj.T)


def silu_mul(both: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of a [tokens, 2 · intermediate] product; one kernel once compiled."""
    gate, up = both.chunk(2, dim=1)
    return functional.silu(gate) * up


def make_calls(variant: str, problem: Problem) -> Calls:
    """One call for each set of weights.

    Args:
        variant: One of VARIANTS that is not ours.
        problem: Tensors.
    """
    return {
        "eager": _eager,
        "compile": _compile,
        "merged": _merged,
        "gemm": _gemm,
        "quack": _quack,
    }[variant](problem)


def _eager(problem: Problem) -> Calls:
    return [partial(eager, problem.x, weight) for weight in problem.weights]


def _compile(problem: Problem) -> Calls:
    function = compiled(eager)
    return [partial(function, problem.x, weight) for weight in problem.weights]


def _merged(problem: Problem) -> Calls:
    activate = compiled(silu_mul)

    def call(weight: torch.Tensor) -> None:
        activate(torch.mm(problem.x, weight.T, out=problem.both))

    return [partial(call, weight) for weight in problem.weights]


def _gemm(problem: Problem) -> Calls:
    def call(weight: torch.Tensor) -> None:
        torch.mm(problem.x, weight.T, out=problem.both)

    return [partial(call, weight) for weight in problem.weights]


def _quack(problem: Problem) -> Calls:
    """It wants gate and up rows in turn, so it computes something else here, in the same time."""
    gemm_gated = importlib.import_module("quack.gemm_interface").gemm_gated

    def call(weight: torch.Tensor) -> None:
        gemm_gated(
            problem.x,
            weight.T,
            activation="swiglu",
            store_preact=False,
            postact_out=problem.out,
            tuned=False,
        )

    return [partial(call, weight) for weight in problem.weights]


def compiled(
    function: Callable[..., torch.Tensor], options: Options | None = None
) -> Callable[..., torch.Tensor]:
    """Compiled anew for every shape it is called with, never falling back to eager in silence.

    Args:
        function: What to compile.
        options: Of torch's inductor; by default its own.
    """
    torch._dynamo.config.recompile_limit = _MOST_SHAPES
    chosen = None if options is None else dict(options)
    return torch.compile(function, fullgraph=True, dynamic=False, options=chosen)
