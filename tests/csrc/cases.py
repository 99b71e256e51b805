"""Random problems inside poisoned buffers, their FP64 results, and the verdict on an output.

Outputs lie inside poisoned buffers and inputs are followed by NaN, so that a row or a column too
many shows at once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch.nn import functional

from tests.csrc import abi

QWEN = {  # name: (K, N)
    "0.5B": (896, 4864),
    "1.5B": (1536, 8960),
    "3B": (2048, 11008),
    "7B": (3584, 18944),
    "14B": (5120, 13824),
    "32B": (5120, 27648),
    "72B": (8192, 29568),
}
POISON = -12352.0  # exact in bf16 and fp16, so that it compares equal to itself
ACTIVATIONS = {
    abi.SILU: functional.silu,
    abi.GELU_TANH: lambda v: functional.gelu(v, approximate="tanh"),
    abi.RELU: functional.relu,
}
MANTISSA = {torch.bfloat16: 8, torch.float16: 11}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@dataclass
class Case:
    x: torch.Tensor
    gate_up: torch.Tensor
    out: torch.Tensor
    frame: torch.Tensor  # the poisoned buffer that `out` is a view of


def padded(rows: int, columns: int, pad: int, dtype) -> torch.Tensor:
    """A [rows, columns] view with `pad` columns of NaN beside it and three rows of NaN after it."""
    whole = torch.full((rows + 3, columns + pad), float("nan"), dtype=dtype, device="cuda")
    return whole[:rows, :columns]


def make_case(m, n, k, *, scale=0.02, dtype=torch.bfloat16, pad=8) -> Case:
    """Random normal x and weights * scale; gate and up of different scale and mean."""
    x = padded(m, k, pad, dtype)
    x.copy_(torch.randn(m, k, device="cuda"))
    gate_up = padded(2 * n, k, pad, dtype)
    gate_up.copy_(torch.randn(2 * n, k, device="cuda") * scale)
    gate_up[n:] *= 0.5
    gate_up[n:, 0] += scale
    frame = torch.full((m + 4, n + 2 * pad), POISON, dtype=dtype, device="cuda")
    return Case(x, gate_up, frame[2 : m + 2, pad : n + pad], frame)


def reference(x, gate_up, activation):
    """FP64 result, and the error that FP32 accumulation alone may make, both [M, N]."""
    n = gate_up.shape[0] // 2
    both = x.double() @ gate_up.double().T
    size = x.float().abs() @ gate_up.float().abs().T
    gate, up = both[:, :n], both[:, n:]
    act = ACTIVATIONS[activation](gate)
    # |act'| stays below 1.2. A tensor core rounds each of K/16 partial sums; 2^-19 of the sum of
    # magnitudes is far above that and far below one wrong product.
    slack = (1.2 * size[:, :n] * up.abs() + size[:, n:] * act.abs()) * 2**-19
    return act * up, slack


def make_down_case(m, n, k, *, scale=0.02, dtype=torch.bfloat16, pad=8) -> Case:
    """Random normal x and weights [N, K] * scale, in the place of gate_up."""
    x = padded(m, k, pad, dtype)
    x.copy_(torch.randn(m, k, device="cuda"))
    weight = padded(n, k, pad, dtype)
    weight.copy_(torch.randn(n, k, device="cuda") * scale)
    frame = torch.full((m + 4, n + 2 * pad), POISON, dtype=dtype, device="cuda")
    return Case(x, weight, frame[2 : m + 2, pad : n + pad], frame)


def down_reference(x, weight):
    """FP64 result, and the error that FP32 accumulation alone may make, both [M, N]."""
    size = x.float().abs() @ weight.float().abs().T
    return x.double() @ weight.double().T, size * 2**-19


def roundings_of(config) -> int:
    """How often a result is rounded: Kernel-1 rounds the activated gate as well."""
    return 3 - config.kernel


def faults(out, expected, slack, roundings=1) -> str:
    """Say how `out` is wrong, "" if it is not: the roundings plus the slack are allowed."""
    ulp = roundings * 2.0 ** -MANTISSA[out.dtype]
    tiny = 2.0**-24 if out.dtype == torch.float16 else 1e-38
    error = (out.double() - expected).abs()
    bad = ~(error <= ulp * 1.02 * expected.abs() + slack + tiny)
    if not bad.any():
        return ""
    row, column = bad.nonzero()[0].tolist()
    got, want = out[row, column].item(), expected[row, column].item()
    return f"{int(bad.sum())} elements off, first [{row}, {column}]: {got} instead of {want}"


def frame_fault(case: Case) -> str:
    """Say whether anything around the output was written."""
    m, n = case.out.shape
    copy = case.frame.clone()
    top = 2
    left = (case.frame.shape[1] - n) // 2
    copy[top : top + m, left : left + n] = POISON
    return "" if bool((copy == POISON).all()) else "written outside the output"


def run_case(
    swiglu,
    config,
    shape,
    *,
    scale=0.02,
    dtype=torch.bfloat16,
    activation=abi.SILU,
    pad=8,
    **options,
):
    """Run one random case on one configuration; "" or a sentence that says what is wrong."""
    case = make_case(*shape, scale=scale, dtype=dtype, pad=pad)
    weights = swiglu.weights(config, case.gate_up)
    swiglu(case.x, weights, case.out, config=config.id, activation=activation, **options)
    expected, slack = reference(case.x, case.gate_up, activation)
    fault = faults(case.out, expected, slack, roundings_of(config)) or frame_fault(case)
    return f"M, N, K {shape} scale {scale} pad {pad} {options}: {fault}" if fault else ""


def off_by_percent(values, expected) -> float:
    return float(((values.double() - expected).abs() > 0.01 * expected.abs()).double().mean())
