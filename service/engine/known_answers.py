"""A known answer per resident layer: catches weights or a device that went wrong unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import TypeAlias

import torch

from service.engine.weights import ResidentModel
from service.errors import EngineError
from service.kernels import reference

# FP32 accumulation over K and N deviates from FP64 by some 1e-6 of the answer's RMS, a wrong layout
# by 1.
_ACCURACY = 1e-4
# A repeat on the same device gives the same bits, or nearly, where a BLAS picks its kernel anew.
_REPEATABILITY = 1e-5

Run: TypeAlias = Callable[[int, torch.Tensor], torch.Tensor]


class KnownAnswers:
    """Records what an engine answers to a fixed row, and compares later.

    Args:
        hidden_size: Width of a row.
        run: Whole MLP of one row: (layer, [1, hidden_size] FP32 on the CPU) → [1, hidden_size]
            FP32 on the CPU.
        accuracy: How far from FP64 an answer may be, relative to its RMS.
    """

    def __init__(self, hidden_size: int, run: Run, accuracy: float = _ACCURACY) -> None:
        self._run = run
        self._accuracy = accuracy
        generator = torch.Generator().manual_seed(0)
        # Numbers that bf16 has, so that an engine which takes no other computes the same row.
        self._x = torch.randn(1, hidden_size, generator=generator).bfloat16().float()
        self._answers: Mapping[int, torch.Tensor] = {}

    def record(self, model: ResidentModel) -> None:
        """Take each layer's answer, once it agrees with what FP64 makes of the weights.

        Raises:
            EngineError: it does not; the message names the layer and the deviation.
        """
        answers = {}
        for layer, weights in model.layers.items():
            answer = self._run(layer, self._x)
            x = self._x.to(weights.gate_up.device)
            expected = reference.mlp(
                x, weights.gate_up, weights.down, model.spec.activation, torch.float64
            )
            _compare(layer, answer, expected.cpu(), self._accuracy)
            answers[layer] = answer
        self._answers = answers
        self._turns = cycle(answers)

    def check(self) -> None:
        """Run the next layer again; one at a time, because batches wait meanwhile.

        Raises:
            EngineError: its answer changed; the message names the layer and the deviation.
        """
        layer = next(self._turns)
        _compare(layer, self._run(layer, self._x), self._answers[layer], _REPEATABILITY)


def _compare(layer: int, answer: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    expected = expected.double()
    # Weights may hold infinities; then so does the answer, and the rest sets the scale.
    rms = expected.where(expected.isfinite(), 0.0).square().mean().sqrt().item()
    same = (answer == expected) | (answer.isnan() & expected.isnan())
    deviation = torch.where(same, 0.0, (answer - expected).abs()).max().item()
    # Negated, so that a NaN where a number was expected fails.
    if not deviation <= bound * rms:
        raise EngineError(
            f"self-test: layer {layer} must be within {bound:g} of the known answer's RMS "
            f"{rms:.4g}, is off by {deviation:.4g}"
        )
