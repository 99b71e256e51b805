"""The tensor that codecs read and write: flat bytes, element type and shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

from service.engine.base import Buffer, DType
from service.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class WireTensor:
    """Little-endian, C order. `data` may lie in a slot that is reused once the answer is sent.

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
        return math.prod(self.shape[:-1])


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
