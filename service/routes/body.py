"""Receiving a request body straight into a pooled buffer, within limits and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.types import Message, Receive

from service.errors import Cancelled, InvalidRequest, ReceiveTimeout, TooLarge, UnsupportedType
from service.interruption import Interruption
from service.routes.direct import Direct
from service.wire.quoting import quote


def parse_content_length(value: bytes | None) -> int | None:
    """The declared length; None for a chunked body.

    Raises:
        InvalidRequest: not a number. Servers check this too; the app may run under any of them.
    """
    if value is None:
        return None
    if not value.isdigit():
        raise InvalidRequest(f"Content-Length: must be a number, is {value.decode('latin-1')!r}")
    return int(value)


def check_transfer_encoding(value: bytes | None) -> None:
    """Refuse codings that nobody would undo.

    Raises:
        UnsupportedType: anything but `chunked`, which the server has undone already.
    """
    if value is not None and value.strip().lower() != b"chunked":
        raise UnsupportedType(
            f"Transfer-Encoding: must be chunked, is {quote(value.decode('latin-1'))}; compress "
            "with Content-Encoding"
        )


def too_large(limit: int, got: str) -> TooLarge:
    """The refusal of a body over the limit, naming the limit and how to raise it."""
    return TooLarge(
        f"body: must have at most {limit} bytes, has {got}; "
        "raise max_body_bytes (MLP_MAX_BODY_BYTES)"
    )


async def receive_directly(direct: Direct, view: memoryview, timeout_s: float) -> int:
    """Receive a body that is as long as `view`, which the kernel writes to.

    Returns:
        Bytes received.

    Raises:
        ReceiveTimeout: it did not arrive within timeout_s.
        Cancelled: the client left before it was complete.
    """
    with _Expiry(timeout_s):
        received = await direct.receive_into(view)
    if received < len(view):
        raise Cancelled(f"body: the client left after {received} bytes")
    return received


async def receive_into(receive: Receive, view: memoryview, timeout_s: float) -> int:
    """Copy a body into `view` as it arrives.

    Returns:
        Bytes received.

    Raises:
        TooLarge: the body is longer than view.
        ReceiveTimeout: it did not arrive within timeout_s.
        Cancelled: the client left before it was complete.
    """
    received, more = 0, True
    with _Expiry(timeout_s):
        while more:
            chunk, more = await _next_chunk(receive, received)
            end = received + len(chunk)
            if end > len(view):
                raise too_large(len(view), f"more than {len(view)}")
            view[received:end] = chunk
            received = end
    return received


async def receive_growing(
    receive: Receive,
    limit: int,
    timeout_s: float,
    room: int,
    grow: Callable[[int], Awaitable[None]],
) -> memoryview:
    """Receive a body of undeclared length into memory that grows with it.

    Args:
        receive: The server's.
        limit: Longest body in bytes.
        timeout_s: Longest time for all of it.
        room: Bytes that were reserved for it.
        grow: Reserves more, up to the number of bytes it is given; may raise.

    Raises:
        TooLarge: the body is longer than limit.
        ReceiveTimeout: it did not arrive within timeout_s.
        Cancelled: the client left before it was complete.
    """
    body, more = bytearray(), True
    with _Expiry(timeout_s):
        while more:
            chunk, more = await _next_chunk(receive, len(body))
            size = len(body) + len(chunk)
            if size > limit:
                raise too_large(limit, f"more than {limit}")
            if size > room:
                room = min(limit, 2 * size)
                await grow(room)
            body += chunk
    return memoryview(body)


async def _next_chunk(receive: Receive, received: int) -> tuple[bytes, bool]:
    """The next bytes, and whether there are more."""
    message: Message = await receive()
    if message["type"] == "http.disconnect":
        raise Cancelled(f"body: the client left after {received} bytes")
    return message.get("body", b""), message.get("more_body", False)


async def discard(receive: Receive, timeout_s: float) -> None:
    """Read what comes of a body, and drop it, for timeout_s at most.

    Closing a connection with unread data resets it, and a client that is still sending would see
    that instead of the answer.
    """
    with suppress(ReceiveTimeout), _Expiry(timeout_s):
        while (await receive()).get("more_body", False):
            pass


class _Expiry(Interruption):
    """Raises ReceiveTimeout in the task that entered it, once the time is over."""

    __slots__ = ("_timeout_s", "_timer")

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s

    def __enter__(self) -> None:
        super().__enter__()
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._timer.cancel()
        super().__exit__(kind, *rest)

    def _expire(self) -> None:
        self.end(
            ReceiveTimeout(f"body: must arrive within receive_timeout_s {self._timeout_s}, did not")
        )
