"""The FP32/FP64 reference itself, against the formula written out with torch's own operators."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from service.kernels import reference
from service.kernels.reference import ACTIVATIONS, gated, linear_into, mlp

FORMULAS = {
    "silu": lambda z: z / (1 + torch.exp(-z)),
    "gelu_tanh": lambda z: (
        0.5 * z * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * z**3)))
    ),
    "relu": lambda z: z.clamp(min=0),
}


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
def test_both_outputs_are_the_formula(activation: str, stored: torch.dtype) -> None:
    x, gate_proj, up_proj = draw(5, 24), draw(40, 24, seed=1), 3 * draw(40, 24, seed=2)
    gate_up = torch.cat([gate_proj, up_proj]).to(stored)
    down = draw(24, 40, seed=3).to(stored)
    gate, up = x @ gate_up[:40].double().T, x @ gate_up[40:].double().T
    expected = FORMULAS[activation](gate) * up
    torch.testing.assert_close(gated(x, gate_up, activation, torch.float64), expected)
    torch.testing.assert_close(
        mlp(x, gate_up, down, activation, torch.float64), expected @ down.double().T
    )


def test_swapped_halves_give_another_answer() -> None:
    x, gate_up = draw(5, 24), torch.cat([draw(40, 24, seed=1), 3 * draw(40, 24, seed=2)])
    swapped = torch.cat([gate_up[40:], gate_up[:40]])
    right = gated(x, gate_up, "silu", torch.float64)
    assert (gated(x, swapped, "silu", torch.float64) - right).abs().max() > 0.1 * right.abs().max()


@pytest.mark.parametrize("elements", [1, 24, 100, 24 * 7, 24 * 39, 24 * 40, 1 << 20])
def test_pieces_of_any_size_make_up_the_whole(elements: int) -> None:
    x, weight = draw(3, 24, dtype=torch.float32), draw(40, 24, seed=1, dtype=torch.bfloat16)
    out = torch.full((3, 40), torch.nan)
    linear_into(out, x, weight, torch.empty(max(24, elements)))
    torch.testing.assert_close(out, x @ weight.float().T)


def test_weights_wider_than_a_piece_are_taken_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference, "WIDENED_ELEMENTS", 8)
    x, gate_up = draw(2, 24), draw(16, 24, seed=1, dtype=torch.bfloat16)
    gate, up = (x @ half.double().T for half in gate_up.split(8))
    torch.testing.assert_close(gated(x, gate_up, "relu", torch.float64), functional.relu(gate) * up)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_infinities_and_nan_are_torchs(activation: str, value: float) -> None:
    torch_has = {
        "silu": functional.silu,
        "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
        "relu": functional.relu,
    }
    x = torch.tensor([[value]])
    answer = gated(x, torch.tensor([[1.0], [1.0]]), activation, torch.float32)
    torch.testing.assert_close(answer, torch_has[activation](x) * x, equal_nan=True)


def test_no_tokens_give_an_empty_answer() -> None:
    gate_up, down = draw(16, 24), draw(24, 8)
    assert gated(torch.empty(0, 24), gate_up, "silu", torch.float32).shape == (0, 8)
    assert mlp(torch.empty(0, 24), gate_up, down, "silu", torch.float64).shape == (0, 24)
