"""How near an answer has to be, for tests of the engine and of the whole service."""

from __future__ import annotations

import torch

# FP32 sums of the same numbers in another order differ by as much again as one of them does from
# FP64; four times leaves room for the unlucky one among thousands.
_FLOOR_FACTOR = 4


def excess_over_one_percent(
    actual: torch.Tensor, exact: torch.Tensor, fp32: torch.Tensor
) -> torch.Tensor:
    """By how much each element is further from FP64 than allowed; none may be above zero.

    Allowed is 1 % of the FP64 value plus the floor of an FP32 computation: what torch's own FP32
    computation of the same thing is off by, at worst within the row. The floor is what counts for
    values near zero, which are small differences of large sums.

    Args:
        actual: [tokens, width], any dtype.
        exact: [tokens, width] FP64.
        fp32: [tokens, width], the same computed by torch in FP32.
    """
    floor = (fp32.double() - exact).abs().amax(dim=1, keepdim=True)
    deviation = (actual.double() - exact).abs()
    return deviation - 0.01 * exact.abs() - _FLOOR_FACTOR * floor


def relative_deviation(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest deviation, relative to the largest value of the row."""
    scale = expected.abs().amax(dim=1, keepdim=True)
    return float(((actual - expected).abs() / scale).max())
