"""The tensors of one measured size, and what is held against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import torch

from service.engine.presets import PRESETS
from service.kernels import reference
from service.kernels.tuner import Operands

# More than the L2 of any GPU: weights come from memory, as they do in a model of many layers.
ROTATED_BYTES = 400e6
DEVICE = "cuda"
WEIGHT_STD = 0.02
# Rows whose results are compared with FP64; all columns of them.
_CHECKED_ROWS = 512
_OFF = 0.01


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of one measurement: K = hidden, N = intermediate, M = tokens."""

    model: str
    tokens: int

    @property
    def hidden(self) -> int:
        """K."""
        return PRESETS[self.model].hidden_size

    @property
    def intermediate(self) -> int:
        """N."""
        return PRESETS[self.model].intermediate_size

    @property
    def flops(self) -> int:
        """Of gate and up, 2 per multiply-add."""
        return 4 * self.tokens * self.intermediate * self.hidden

    @property
    def bytes(self) -> int:
        """Each operand once, 2 bytes an element."""
        k, n, m = self.hidden, self.intermediate, self.tokens
        return 2 * (m * k + 2 * n * k + m * n)


class ModelTensors:
    """Weights and buffers of one model, shared by all its sizes."""

    def __init__(
        self, model: str, max_tokens: int, std: float = WEIGHT_STD, sets: int | None = None
    ) -> None:
        """Draw them: normal, x with deviation 1. Zeros would run faster than real data.

        Args:
            model: A preset.
            max_tokens: The largest M.
            std: Standard deviation of the weights.
            sets: How many sets of weights; by default as many as ROTATED_BYTES takes.
        """
        largest = Size(model, max_tokens)
        k, n = largest.hidden, largest.intermediate
        sets = sets or max(1, -(-int(ROTATED_BYTES) // (4 * n * k)))
        self.weights = [draw(2 * n, k, std) for _ in range(sets)]
        self.x = draw(max_tokens, k, 1.0)
        self.both = torch.empty(max_tokens, 2 * n, dtype=self.x.dtype, device=DEVICE)
        self.out = torch.empty(max_tokens, n, dtype=self.x.dtype, device=DEVICE)


class Problem:
    """One size on the tensors of its model.

    Attributes:
        x: [tokens, hidden] bf16.
        weights: Sets of [2 · intermediate, hidden], gate first.
        both: [tokens, 2 · intermediate], for what writes gate and up.
        out: [tokens, intermediate].
    """

    def __init__(self, size: Size, tensors: ModelTensors) -> None:
        self.size = size
        self.x = tensors.x[: size.tokens]
        self.weights = tensors.weights
        self.both = tensors.both[: size.tokens]
        self.out = tensors.out[: size.tokens]

    @property
    def operands(self) -> Operands:
        """What our kernels are timed on."""
        return Operands(self.x, self.weights, self.out)

    def off_by_one_percent(self, out: torch.Tensor) -> float:
        """Share of the elements that are more than 1 % away from FP64, for the first weights."""
        exact = self._exact
        error = (out[self._rows].double() - exact).abs()
        return float((~(error <= _OFF * exact.abs())).double().mean())

    @cached_property
    def _rows(self) -> torch.Tensor:
        count = min(_CHECKED_ROWS, self.size.tokens)
        return torch.linspace(0, self.size.tokens - 1, count, device=DEVICE).long()

    @cached_property
    def _exact(self) -> torch.Tensor:
        return reference.gated(self.x[self._rows], self.weights[0], "silu", torch.float64)


def draw_problems(sizes: Iterable[Size]) -> Iterator[Problem]:
    """A problem for each size; the tensors of one model are let go before the next one's."""
    for model, group in groupby(sizes, key=lambda size: size.model):
        of_model = list(group)
        tensors = ModelTensors(model, max(size.tokens for size in of_model))
        for size in of_model:
            yield Problem(size, tensors)
        del tensors
        torch.cuda.empty_cache()


def draw(rows: int, columns: int, std: float) -> torch.Tensor:
    """Normal bf16 data, [rows, columns], of that standard deviation."""
    return torch.randn(rows, columns, dtype=torch.bfloat16, device=DEVICE).mul_(std)
