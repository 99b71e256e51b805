"""The five kernels of an unfused MLP as calls to time apart, and the whole of it."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional

from service.bench.kernel_problem import WEIGHT_STD, Problem, draw
from service.bench.kernel_variants import Calls, eager

PARTS = ("gate", "up", "silu", "mul", "down", "mlp")


def draw_downs(problem: Problem) -> list[torch.Tensor]:
    """As many sets of down_proj, [hidden, intermediate], as the problem has of gate and up."""
    hidden, intermediate = problem.size.hidden, problem.size.intermediate
    return [draw(hidden, intermediate, WEIGHT_STD) for _ in problem.weights]


def make_parts(problem: Problem, downs: list[torch.Tensor]) -> dict[str, Calls]:
    """Calls by the names of PARTS, one for each set of weights, on intermediates that are real.

    Args:
        problem: Its `both` and `out` are overwritten: gate and up, and silu(gate).
        downs: From `draw_downs`.
    """
    x, weights, n = problem.x, problem.weights, problem.size.intermediate
    # Apart, as eager has them: each contiguous.
    gate, up = problem.both.view(2, problem.size.tokens, n)
    torch.mm(x, weights[0][:n].T, out=gate)
    torch.mm(x, weights[0][n:].T, out=up)
    problem.out.copy_(functional.silu(gate))
    gated = problem.out * up
    return {
        "gate": [partial(torch.mm, x, weight[:n].T, out=gate) for weight in weights],
        "up": [partial(torch.mm, x, weight[n:].T, out=up) for weight in weights],
        # Once for each set as well, or the graph of a small one would be too short to time.
        "silu": [partial(functional.silu, gate)] * len(weights),
        "mul": [partial(torch.mul, problem.out, up)] * len(weights),
        "down": [partial(torch.mm, gated, down.T) for down in downs],
        "mlp": [partial(_mlp, x, *pair) for pair in zip(weights, downs, strict=True)],
    }


def _mlp(x: torch.Tensor, weight: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return eager(x, weight) @ down.T
