"""A small model on disk, and what its MLPs give in FP64: the independent judge of answers."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import torch

from tests.checkpoints import mlp_tensors, write_checkpoint

HIDDEN = 64
INTERMEDIATE = 128
LAYERS = 3
BF16 = np.dtype(ml_dtypes.bfloat16)

# Half a unit in the last place, relative, and the smallest step near zero.
_ROUNDING = {
    "float32": (2.0**-24, 2.0**-149),
    "float16": (2.0**-11, 2.0**-25),
    "bfloat16": (2.0**-8, 2.0**-134),
}
# FP32 sums over 64 and 128 products, in any order, relative to the largest answer of the row.
_FP32_SUMS = 1e-5


class ExactModel:
    """Weights in numpy, and the formula once more, in other words than the service has it."""

    def __init__(self, folder: Path) -> None:
        tensors = mlp_tensors(
            hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, layers=LAYERS, scale=0.3
        )
        self.folder = write_checkpoint(folder / "tiny-qwen", tensors)
        self.name = "tiny-qwen"
        self._weights = [
            tuple(
                tensors[f"model.layers.{layer}.mlp.{name}_proj.weight"].to(torch.float64).numpy()
                for name in ("gate", "up", "down")
            )
            for layer in range(LAYERS)
        ]

    def run(self, x: np.ndarray, layer: int, output: str) -> np.ndarray:
        """[tokens, hidden] of any dtype → [tokens, width] FP64."""
        gate_proj, up_proj, down_proj = self._weights[layer]
        x = x.astype(np.float64)
        gate = x @ gate_proj.T
        gated = gate / (1 + np.exp(-gate)) * (x @ up_proj.T)
        return gated if output == "gated" else gated @ down_proj.T

    def assert_right(self, y: np.ndarray, x: np.ndarray, layer: int, output: str) -> None:
        """The answer is FP64's, but for FP32 sums and one rounding into its dtype."""
        exact = self.run(x, layer, output)
        assert y.shape == exact.shape
        relative, step = _ROUNDING[y.dtype.name]
        largest = np.abs(exact).max(axis=1, keepdims=True, initial=0.0)
        allowed = relative * np.abs(exact) + step + _FP32_SUMS * largest
        excess = np.abs(y.astype(np.float64) - exact) - allowed
        assert excess.max(initial=0.0) <= 0
