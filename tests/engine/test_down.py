"""Which product takes a down projection: ours for few tokens, cuBLAS's beyond."""

from __future__ import annotations

import pytest
import torch

from service.engine.down import Down
from service.kernels.down import FASTER_UP_TO_TOKENS


class FakeLauncher:
    """What DownLauncher is, as far as it goes."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        *,
        weights_constant: bool,
    ) -> None:
        assert weights_constant, "loads of weights that nothing writes need not wait"
        self.tokens.append(len(x))
        out.copy_(x @ weight.T)


class FakeGemm:
    """What Gemm is."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        self.tokens.append(len(x))
        out.copy_(x @ weight.T)


@pytest.mark.parametrize("tokens", [1, FASTER_UP_TO_TOKENS, FASTER_UP_TO_TOKENS + 1, 200])
def test_few_tokens_are_ours(tokens: int) -> None:
    few, many = FakeLauncher(), FakeGemm()
    generator = torch.Generator().manual_seed(tokens)
    x, weight = (torch.randn(rows, 48, generator=generator) for rows in (tokens, 32))
    out = torch.empty(tokens, 32)
    Down(few, many).run(x, weight, out)
    torch.testing.assert_close(out, x @ weight.T)
    is_few = tokens <= FASTER_UP_TO_TOKENS
    assert (few.tokens, many.tokens) == (([tokens], []) if is_few else ([], [tokens]))
