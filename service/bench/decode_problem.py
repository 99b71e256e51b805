"""Whole MLPs of few tokens: their tensors, and what of them is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TypeAlias

import torch

from service.bench.kernel_problem import WEIGHT_STD, ModelTensors, Size, draw
from service.bench.kernel_variants import compiled, eager, silu_mul
from service.kernels.down import FASTER_UP_TO_TOKENS, DownLauncher
from service.kernels.launcher import Launcher
from service.kernels.library import KernelChoice

Calls: TypeAlias = Sequence[Callable[[], object]]


class MlpProblem:
    """One size: weights of whole MLPs to rotate over, and buffers."""

    def __init__(self, size: Size, tensors: ModelTensors, downs: Sequence[torch.Tensor]) -> None:
        m = size.tokens
        self.size = size
        self.x, self.both, self.gated = tensors.x[:m], tensors.both[:m], tensors.out[:m]
        self.gate_ups, self.downs = tensors.weights, downs
        self.out = torch.empty_like(self.x)

    def baselines(self) -> dict[str, Calls]:
        """What ours is held against, one call a set of weights."""
        x, both, out = self.x, self.both, self.out
        activate = compiled(silu_mul)

        def mlp_eager(gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
            return eager(x, gate_up) @ down.T

        def mlp_merged(gate_up: torch.Tensor, down: torch.Tensor) -> None:
            torch.mm(activate(torch.mm(x, gate_up.T, out=both)), down.T, out=out)

        return {
            "gate_up_eager": [partial(eager, x, w) for w in self.gate_ups],
            "gate_up_gemm": [partial(_mm, x, w, both) for w in self.gate_ups],
            "down_gemm": [partial(self._down_gemm, w) for w in self.downs],
            "mlp_eager": [partial(mlp_eager, *pair) for pair in self._pairs()],
            "mlp_merged": [partial(mlp_merged, *pair) for pair in self._pairs()],
        }

    def ours(
        self, launcher: Launcher, down: DownLauncher, choice: KernelChoice
    ) -> dict[str, Calls]:
        """The same by our kernels, on weights that nothing writes."""
        gate_up = partial(self._gate_up, launcher, choice)
        by_us, by_cublas = partial(self._down, down), self._down_gemm
        faster = by_us if self.size.tokens <= FASTER_UP_TO_TOKENS else by_cublas
        return {
            "gate_up": [partial(gate_up, w) for w in self.gate_ups],
            "down": [partial(by_us, w) for w in self.downs],
            "mlp": [
                call
                for one, two in self._pairs()
                for call in (partial(gate_up, one), partial(faster, two))
            ],
        }

    def _gate_up(self, launcher: Launcher, choice: KernelChoice, weight: torch.Tensor) -> None:
        launcher(self.x, weight, self.gated, "silu", choice, True)

    def _down(self, launcher: DownLauncher, weight: torch.Tensor) -> None:
        launcher(self.gated, weight, self.out, weights_constant=True)

    def _down_gemm(self, weight: torch.Tensor) -> None:
        _mm(self.gated, weight, self.out)

    def _pairs(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.gate_ups, self.downs, strict=True)


def _mm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(x, weight.T, out=out)


def draw_mlps(sizes: Sequence[Size]) -> Iterator[MlpProblem]:
    """A problem for each size; the tensors of one model are let go before the next one's."""
    for model, group in groupby(sizes, key=lambda size: size.model):
        of_model = list(group)
        tensors = ModelTensors(model, max(size.tokens for size in of_model))
        shape = (of_model[0].hidden, of_model[0].intermediate)
        downs = [draw(*shape, WEIGHT_STD) for _ in tensors.weights]
        for size in of_model:
            yield MlpProblem(size, tensors, downs)
        del tensors, downs
        torch.cuda.empty_cache()
