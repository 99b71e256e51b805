"""The gated MLP in plain torch, at whatever precision is asked for: what kernels are judged by.

    gated  = act(x · W_gateᵀ) ⊙ (x · W_upᵀ)
    mlp(x) = gated · W_downᵀ

The whole computation, the gated intermediate included, is in one dtype; the only rounding to a
narrower type is the caller's, of the result. Weights are widened a few rows at a time, so that
FP64 of a large layer needs no FP64 copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch.nn import functional

# Infinities and NaN go through these as torch has them: silu(-inf) and gelu_tanh(-inf) are NaN.
ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda gate: functional.gelu(gate, approximate="tanh"),
    "relu": functional.relu,
}

# 1 Mi elements: 4 MiB of FP32, which stays in a CPU core's cache until the GEMM has read it.
WIDENED_ELEMENTS = 1 << 20


def gated(
    x: torch.Tensor, gate_up: torch.Tensor, activation: str, dtype: torch.dtype
) -> torch.Tensor:
    """The gated intermediate.

    Args:
        x: [tokens, hidden_size], any dtype.
        gate_up: [2 · intermediate_size, hidden_size], gate first, any dtype.
        activation: A key of ACTIVATIONS.
        dtype: Type of the whole computation.

    Returns:
        [tokens, intermediate_size] of `dtype`.
    """
    out = x.new_empty(x.shape[0], gate_up.shape[0] // 2, dtype=dtype)
    gated_into(out, x.to(dtype), gate_up, activation, _make_workspace(out, x.shape[1]))
    return out


def mlp(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The whole MLP.

    Args:
        x: [tokens, hidden_size], any dtype.
        gate_up: [2 · intermediate_size, hidden_size], gate first, any dtype.
        down: [hidden_size, intermediate_size], any dtype.
        activation: A key of ACTIVATIONS.
        dtype: Type of the whole computation.

    Returns:
        [tokens, hidden_size] of `dtype`.
    """
    intermediate = gated(x, gate_up, activation, dtype)
    out = intermediate.new_empty(x.shape[0], down.shape[0])
    linear_into(out, intermediate, down, _make_workspace(out, down.shape[1]))
    return out


def gated_into(
    out: torch.Tensor,
    x: torch.Tensor,
    gate_up: torch.Tensor,
    activation: str,
    workspace: torch.Tensor,
) -> None:
    """Like `gated`, in the dtype of `x` and into `out`.

    Args:
        out: [tokens, intermediate_size] of x's dtype.
        x: [tokens, hidden_size].
        gate_up: [2 · intermediate_size, hidden_size], gate first, any dtype.
        activation: A key of ACTIVATIONS.
        workspace: 1-D of x's dtype, at least hidden_size long, for widened weights.
    """
    size = gate_up.shape[0] // 2
    act = ACTIVATIONS[activation]
    linear_into(out, x, gate_up[size:], workspace)
    for first, gate_proj in _widen(gate_up[:size], workspace):
        out[:, first : first + len(gate_proj)].mul_(act(x @ gate_proj.T))


def linear_into(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, workspace: torch.Tensor
) -> None:
    """Write x · weightᵀ into `out`, in x's dtype.

    Args:
        out: [tokens, rows] of x's dtype.
        x: [tokens, columns].
        weight: [rows, columns], any dtype.
        workspace: 1-D of x's dtype, at least `columns` long.
    """
    for first, rows in _widen(weight, workspace):
        torch.mm(x, rows.T, out=out[:, first : first + len(rows)])


def _widen(weight: torch.Tensor, workspace: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Consecutive rows of a weight in the workspace's dtype, with the index of their first.

    What is yielded lies in the workspace and is overwritten by the next; a weight that has the
    dtype already is yielded whole, as it is.
    """
    if weight.dtype == workspace.dtype:
        yield 0, weight
        return
    columns = weight.shape[1]
    count = max(1, workspace.numel() // max(1, columns))
    for first in range(0, weight.shape[0], count):
        rows = weight[first : first + count]
        widened = workspace[: rows.numel()].view(rows.shape)
        yield first, widened.copy_(rows)


def _make_workspace(like: torch.Tensor, columns: int) -> torch.Tensor:
    return like.new_empty(max(WIDENED_ELEMENTS, columns))
