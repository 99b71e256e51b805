"""Receiving a request body straight into a pooled buffer, within limits and time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Message, Receive

from service.errors import Cancelled, InvalidRequest, ReceiveTimeout, TooLarge


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


def too_large(limit: int, got: str) -> TooLarge:
    """The refusal of a body over the limit, naming the limit and how to raise it."""
    return TooLarge(
        f"body: must have at most {limit} bytes, has {got}; "
        "raise max_body_bytes (MLP_MAX_BODY_BYTES)"
    )


async def receive_into(receive: Receive, view: memoryview, timeout_s: float) -> int:
    """Copy the body into `view` as it arrives.

    Returns:
        Bytes received.

    Raises:
        TooLarge: the body is longer than view.
        ReceiveTimeout: it did not arrive within timeout_s.
        Cancelled: the client left before it was complete.
    """
    received = 0
    with _expire_after(timeout_s):
        while True:
            message: Message = await receive()
            if message["type"] == "http.disconnect":
                raise Cancelled(f"body: the client left after {received} bytes")
            chunk: bytes = message.get("body", b"")
            end = received + len(chunk)
            if end > len(view):
                raise too_large(len(view), f"more than {len(view)}")
            view[received:end] = chunk
            received = end
            if not message.get("more_body", False):
                return received


@contextmanager
def _expire_after(timeout_s: float) -> Iterator[None]:
    # A timer and a cancel instead of asyncio.wait_for, which makes a task per call before 3.12.
    task = asyncio.current_task()
    assert task is not None
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(timeout_s, expire)
    try:
        yield
    except asyncio.CancelledError:
        if not expired:
            raise
        if hasattr(task, "uncancel"):
            task.uncancel()
        raise ReceiveTimeout(
            f"body: must arrive within receive_timeout_s {timeout_s}, did not"
        ) from None
    finally:
        timer.cancel()
