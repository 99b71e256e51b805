"""The tensor that codecs read and write: flat bytes, element type and shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from service.engine.base import Buffer, DType
from service.errors import InvalidRequest

MAX_DIMENSIONS = 8
# Largest count that a double holds exactly; far above any body, far below an int64 overflow.
MAX_ELEMENTS = 2**53


@dataclass(frozen=True, slots=True)
class WireTensor:
    """Little-endian, C order. `data` may lie in a slot that is reused once the answer is sent.

    `data` may start at any address: behind a v2 header of odd length it is not aligned to the
    itemsize. numpy.frombuffer, torch.frombuffer and device copies take it as it is.

    Attributes:
        data: math.prod(shape) * dtype.itemsize bytes.
        shape: [..., width]; at least one dimension.
    """

    data: Buffer
    dtype: DType
    shape: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Rows: the product of all dimensions but the last."""
        shape = self.shape
        return shape[0] if len(shape) == 2 else math.prod(shape[:-1])


def validate_width(shape: tuple[int, ...], hidden_size: int) -> None:
    """Check that rows are as wide as the model.

    Raises:
        InvalidRequest: the last dimension is not hidden_size.
    """
    if not shape or shape[-1] != hidden_size:
        raise InvalidRequest(
            f"shape: the last dimension must be the model's hidden_size {hidden_size}, "
            f"is {list(shape)}"
        )


def validate_extents(shape: Sequence[int]) -> None:
    """Check a shape that a client declared, before anything multiplies it.

    Zero extents do not excuse the others: an answer of shape [2**52, 0, 896] holds no element, but
    whoever spells it out as nested lists would still build 2**52 of them.

    Raises:
        InvalidRequest: no dimension, more than MAX_DIMENSIONS, a negative one, or a product
            (zeros counted as ones) of MAX_ELEMENTS or more.
    """
    if not 1 <= len(shape) <= MAX_DIMENSIONS:
        raise InvalidRequest(f"shape: must have 1 to {MAX_DIMENSIONS} dimensions, has {len(shape)}")
    if min(shape) < 0:
        raise InvalidRequest(f"shape: dimensions must not be negative, is {list(shape)}")
    if math.prod(extent or 1 for extent in shape) >= MAX_ELEMENTS:
        raise InvalidRequest(
            f"shape: the product of its dimensions must be below 2**53, is {list(shape)}"
        )
