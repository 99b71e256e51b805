"""Infinities, NaN, zeros, denormals and gates far out: as PyTorch, on every kernel instance."""

from __future__ import annotations

import math

import pytest
import torch

from tests.csrc import abi
from tests.csrc.cases import ACTIVATIONS, POISON
from tests.csrc.names import CONFIG_NAMES

pytestmark = pytest.mark.gpu

INF, NAN = math.inf, math.nan
GATES = [0.0, 1.0, 20.0, 80.0, 87.0, 88.0, 89.0, 91.0, 100.0, 1e4, 3e38, INF, 1e-39, 1e-38]
GATES += [-gate for gate in GATES] + [NAN]
UPS = [1.0, -2.0, 0.0, 1e30, INF, NAN, 1e-39]
SMALLEST_GATE = -91.4  # down to here our silu is exact; PyTorch's in FP32 is 0 from -88.7 on


def run_pairs(swiglu, config, activation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gates, ups and results [5, N] of a K = 8 product that hands both through unchanged."""
    pairs = [(gate, up) for gate in GATES for up in UPS]
    pairs += [(1.0, 1.0)] * (-len(pairs) % 8)
    values = torch.tensor(pairs, device="cuda", dtype=torch.bfloat16)
    n = len(pairs)
    x = torch.zeros(5, 8, dtype=torch.bfloat16, device="cuda")
    x[:, 0] = 1
    gate_up = torch.zeros(2 * n, 8, dtype=torch.bfloat16, device="cuda")
    gate_up[:n, 0], gate_up[n:, 0] = values[:, 0], values[:, 1]
    out = torch.full((5, n), POISON, dtype=torch.bfloat16, device="cuda")
    swiglu(x, swiglu.weights(config, gate_up), out, config=config.id, activation=activation)
    return values[:, 0], values[:, 1], out


def agrees(out, wanted, ups, config) -> torch.Tensor:
    """One rounding and 1e-5 of the activation apart, infinities and NaN the same.

    Kernel-1 rounds the activated gate to bf16 as well, whose numbers end at 2^-133.
    """
    out, wanted = out.double(), wanted.float().bfloat16().double()
    near = torch.isclose(out, wanted, rtol=2**-7, atol=2e-40, equal_nan=True)
    if config.kernel == 1:
        slack = 1.01 * 2.0**-134 * ups.double().abs()
        near |= (out - wanted).abs() <= 2.0**-7 * wanted.abs() + slack
    return near


@pytest.mark.parametrize("config_name", CONFIG_NAMES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_special_values(swiglu, config, activation):
    if activation != abi.SILU and not config.all_types:
        pytest.skip(f"{config.name.decode()} is compiled with SiLU only")
    gates, ups, out = run_pairs(swiglu, config, activation)
    exact = ACTIVATIONS[activation](gates.double())
    as_pytorch = ACTIVATIONS[activation](gates.float()).double()
    right = agrees(out, exact * ups.double(), ups, config) | agrees(
        out, as_pytorch * ups.double(), ups, config
    )
    wrong = [
        (gates[column].item(), ups[column].item(), out[row, column].item())
        for row, column in (~right).nonzero().tolist()
    ]
    assert not wrong


@pytest.mark.parametrize("config_name", CONFIG_NAMES)
def test_silu_far_below_zero_is_exact(swiglu, config):
    """Against FP64, where PyTorch's FP32 is 0 already, also times infinity."""
    gates, ups, out = run_pairs(swiglu, config, abi.SILU)
    exact = ACTIVATIONS[abi.SILU](gates.double())
    inside = (gates >= SMALLEST_GATE) & gates.isfinite()
    assert not (~agrees(out, exact * ups.double(), ups, config) & inside).any()
    assert ((gates == -91) & ups.isinf() & inside).any()


@pytest.mark.parametrize("config_name", CONFIG_NAMES)
def test_minus_infinity_gives_nan_as_in_pytorch(swiglu, config):
    gates, _, out = run_pairs(swiglu, config, abi.SILU)
    assert out[:, gates == -INF].isnan().all()
