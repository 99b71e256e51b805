"""Answers as ASGI messages: tensors in one or more buffers, errors as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from starlette.types import Send

from service.engine.base import Buffer
from service.errors import ServiceError
from service.routes.direct import Direct
from service.wire.compression import deflate
from service.wire.media import Encoding

RawHeaders: TypeAlias = list[tuple[bytes, bytes]]
# Of a request, by lower-case name.
Headers: TypeAlias = dict[bytes, bytes]
Linger: TypeAlias = Callable[[], Awaitable[None]]

# Below this, joining the pieces costs less than another write to the socket.
_JOIN_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer.

    Attributes:
        chunks: The body in order; the transport may hold on to them after they were sent, so they
            must not lie in memory that is reused, unless `send_held` sends them.
    """

    status: int
    headers: RawHeaders
    chunks: list[Buffer]

    async def send_held(self, send: Send, direct: Direct, timeout_s: float) -> None:
        """Send the answer out of memory that is reused, and return when the kernel has it.

        Cuts the connection of a client that has not taken it within timeout_s.
        """
        timer = asyncio.get_running_loop().call_later(timeout_s, direct.abort)

        async def all_written() -> None:
            """The last, empty message waits for it."""

        try:
            await self.send(send, all_written, direct.write_exactly)
        except BaseException:
            direct.abort()
            raise
        finally:
            timer.cancel()
        direct.write_ahead()

    async def send(
        self,
        send: Send,
        linger: Linger | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Hand the answer to the transport.

        Args:
            send: The server's.
            linger: Awaited when all is sent, before the server may close the connection.
            begun: Called between headers and body.
        """
        sizes = [len(chunk) for chunk in self.chunks]
        total = sum(sizes)
        chunks = self.chunks
        if len(chunks) > 1 and total <= _JOIN_BYTES:
            chunks = [b"".join(chunks)]
        self.headers.append((b"content-length", b"%d" % total))
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        begun()
        last = len(chunks) - 1
        for index, chunk in enumerate(chunks):
            more = index < last or linger is not None
            await send({"type": "http.response.body", "body": chunk, "more_body": more})
        if linger is not None:
            await linger()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def error_headers(error: ServiceError) -> dict[str, str]:
    """What goes beside an error's body."""
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.status in (408, 503):
        # The rest of the body may still come, or the service is about to go away.
        headers["connection"] = "close"
    return headers


def error_body(message: str, code: str) -> dict[str, str]:
    """The one form that every error has on the wire."""
    return {"error": message, "code": code}


def error_reply(error: ServiceError, headers: RawHeaders) -> Reply:
    """An error as a complete answer."""
    extra = [(name.encode(), value.encode()) for name, value in error_headers(error).items()]
    body = json.dumps(error_body(str(error), error.code)).encode()
    return Reply(error.status, [*headers, (b"content-type", b"application/json"), *extra], [body])


def internal_error(error: Exception) -> ServiceError:
    """What a client may know of a bug: its kind. The server logs the traceback."""
    return ServiceError(f"internal error: {type(error).__name__}")


def compress(chunks: list[Buffer], encoding: Encoding | None, headers: RawHeaders) -> list[Buffer]:
    """The body as the client explicitly asked for it, with the header that says so."""
    if encoding is None:
        return chunks
    headers.append((b"content-encoding", encoding.value.encode()))
    return [deflate(chunks, encoding)]


def header_text(headers: Headers, name: bytes) -> str | None:
    """A request header as text; None where it is not given."""
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")
