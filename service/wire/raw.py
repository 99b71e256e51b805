"""`application/octet-stream`: rows of little-endian elements and nothing else."""

from __future__ import annotations

import math

from service.engine.base import DType
from service.errors import InvalidRequest
from service.wire.tensor import WireTensor, validate_width


def raw_tokens(content_length: int, dtype: DType, hidden_size: int) -> int:
    """Rows in a raw body of that many bytes, for admission before it is read.

    Raises:
        InvalidRequest: the length is no multiple of a row.
    """
    row_bytes = hidden_size * dtype.itemsize
    tokens, rest = divmod(content_length, row_bytes)
    if rest:
        raise InvalidRequest(
            f"body: must be a multiple of {row_bytes} bytes ({dtype.value} rows of the model's "
            f"hidden_size {hidden_size}), is {content_length}"
        )
    return tokens


def decode_raw(
    body: memoryview, dtype: DType, shape: tuple[int, ...] | None, hidden_size: int
) -> WireTensor:
    """View a raw body as a tensor, without a copy.

    Args:
        body: Little-endian elements in C order.
        dtype: Their type.
        shape: What the client declared; [tokens, hidden_size] from the length without it.
        hidden_size: Width of a row.

    Raises:
        InvalidRequest: the length is no multiple of a row or not that of the shape, or the
            shape's last dimension is not hidden_size.
    """
    if shape is None:
        tokens = raw_tokens(body.nbytes, dtype, hidden_size)
        return WireTensor(body, dtype, (tokens, hidden_size))
    validate_width(shape, hidden_size)
    expected = math.prod(shape) * dtype.itemsize
    if body.nbytes != expected:
        raise InvalidRequest(
            f"body: must be {expected} bytes for {dtype.value} of shape {list(shape)}, "
            f"is {body.nbytes}"
        )
    return WireTensor(body, dtype, shape)
