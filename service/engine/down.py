"""The down projection of a resident model: by our own kernel for few tokens, else by cuBLAS."""

from __future__ import annotations

import torch

from service.kernels.down import FASTER_UP_TO_TOKENS, DownLauncher
from service.kernels.gemm import Gemm


class Down:
    """One model's down projections.

    Args:
        few: Takes them up to FASTER_UP_TO_TOKENS.
        many: Takes the others.
    """

    def __init__(self, few: DownLauncher, many: Gemm) -> None:
        self._few = few
        self._many = many

    def run(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """Enqueue on the current stream.

        Args:
            x: [tokens, intermediate_size] of the resident dtype.
            weight: [hidden_size, intermediate_size], resident: nothing on any stream writes it.
            out: [tokens, hidden_size].
        """
        if len(x) <= FASTER_UP_TO_TOKENS:
            self._few(x, weight, out, weights_constant=True)
        else:
            self._many(x, weight, out)
