"""The closed set of things that can be wrong with a request, as seen by the client."""

from __future__ import annotations

from enum import Enum


class Fault(Enum):
    """Why a request counts as an error although no error status arrived.

    An answer with a status other than 200 is counted by its status instead.
    """

    CONNECT = "connect"
    """No connection could be made."""
    TIMEOUT = "timeout"
    """No whole answer within the timeout, counted from the sending."""
    RESET = "reset"
    """The connection ended before the answer was whole."""
    PROTOCOL = "protocol"
    """The answer is not HTTP, or there was one without a request."""
    BACKLOG = "backlog"
    """Open loop: never sent, since too many requests were waiting in the client already."""
    WRONG_LENGTH = "wrong_length"
    """200, but the body's length is not rows × width × element size."""
    WRONG_SHAPE = "wrong_shape"
    """200, but `X-Tensor-Shape` is not `rows,width`."""
    WRONG_DTYPE = "wrong_dtype"
    """200, but `X-Tensor-Dtype` is not the one asked for."""
    NOT_FINITE = "not_finite"
    """200, but with NaN or infinity in the tensor."""
    WRONG_VALUES = "wrong_values"
    """200, but the tensor is not the one that the same rows gave when they were sent alone."""

    @property
    def is_wrong_answer(self) -> bool:
        """Whether the service answered 200 with something that is not the answer."""
        return self in _WRONG_ANSWERS


_WRONG_ANSWERS = frozenset(
    {
        Fault.WRONG_LENGTH,
        Fault.WRONG_SHAPE,
        Fault.WRONG_DTYPE,
        Fault.NOT_FINITE,
        Fault.WRONG_VALUES,
    }
)
