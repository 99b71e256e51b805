"""Large bodies without the parser: from the socket into their slot, from their slot to the socket.

uvicorn copies a body four times before a route has it: out of the socket, into the parser's slices,
into its buffer, out of that. Here only what came with the headers goes that way; the rest is read
by the kernel into the memory that the route asks for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from starlette.types import Scope

from service.http_protocol import BoundedHttpProtocol

# The name under which routes find the protocol among a scope's extensions.
EXTENSION = "tilemlp.direct"
# A smaller body is mostly there when its request begins, and the way around costs 20 µs.
_DIRECT_BYTES = 128 << 10


class DirectHttpProtocol(BoundedHttpProtocol):
    """HTTP on a connection, with a short way for large bodies."""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as in uvicorn
        """A client has connected."""
        super().connection_made(transport)
        self._extensions = {EXTENSION: self}

    def on_headers_complete(self) -> None:
        """All headers are there: the request begins."""
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        super().on_headers_complete()

    def can_receive(self, scope: Scope, nbytes: int) -> bool:
        """Whether `receive_into` is the better way for a body of declared length."""
        # Behind another request that is not answered, the parser is somewhere else.
        return nbytes >= _DIRECT_BYTES and self.cycle.scope is scope

    async def receive_into(self, view: memoryview) -> int:
        """Receive the body of the request at hand.

        Args:
            view: As long as the body was declared to be; not written to after the end.

        Returns:
            Bytes received: fewer than view has where the client left.
        """
        cycle = self.cycle
        begun = len(cycle.body)
        view[:begun] = cycle.body
        cycle.body = bytearray()
        cycle.message_event.clear()
        if begun == len(view) or cycle.disconnected:
            return begun
        if cycle.waiting_for_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            cycle.waiting_for_100_continue = False
        receiver = _Receiver(self, view[begun:])
        self._read_with(receiver)
        try:
            return begun + await receiver.received
        except asyncio.CancelledError:
            # What still comes belongs to no request, and nobody can tell where the next begins.
            cycle.keep_alive = False
            self._refused = True
            self._read_with(self)
            raise

    def body_received(self) -> None:
        """The receiver has all of it: the next byte begins another request."""
        self.parser = httptools.HttpRequestParser(self)
        self.cycle.more_body = False
        self._read_with(self)

    def write_exactly(self) -> None:
        """From now on, a sender waits until the kernel has all that was sent before."""
        self._limit_writes(0)

    def write_ahead(self) -> None:
        """From now on, a sender waits only for a buffer that is full."""
        self._limit_writes(None)

    def abort(self) -> None:
        """Cut the connection."""
        self.transport.abort()

    def _limit_writes(self, high: int | None) -> None:
        # The client may have left meanwhile, and uvloop takes no orders for a closed transport.
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=high)

    def _read_with(self, protocol: asyncio.BaseProtocol) -> None:
        # Paused meanwhile, because how to read is chosen when reading starts.
        self.flow.pause_reading()
        self.transport.set_protocol(protocol)
        self.flow.resume_reading()


class _Receiver(asyncio.BufferedProtocol):
    """Takes the place of the protocol until a body is complete.

    Attributes:
        received: Bytes, once it is complete or the client has left.
    """

    def __init__(self, protocol: DirectHttpProtocol, view: memoryview) -> None:
        self._protocol = protocol
        self._view = view
        self._count = 0
        self.received: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Just the rest of the body, so that no byte of a next request is taken."""
        del sizehint
        return self._view[self._count :]

    def buffer_updated(self, nbytes: int) -> None:
        """The kernel has written."""
        self._count += nbytes
        if self._count == len(self._view) and not self.received.done():
            self._protocol.body_received()
            self.received.set_result(self._count)

    def eof_received(self) -> None:
        """The client sends no more; the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._protocol.connection_lost(exc)
        if not self.received.done():
            self.received.set_result(self._count)

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The transport's buffer has room."""
        self._protocol.resume_writing()
