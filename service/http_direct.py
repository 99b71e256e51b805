"""Large bodies without the parser: from the socket into their slot, from their slot to the socket.

uvicorn copies a body four times before a route has it: out of the socket, into the parser's slices,
into its buffer, out of that. Here only what came with the headers goes that way; the rest is read
by the kernel into the memory that the route asks for.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httptools
from starlette.types import Scope

from service.http_protocol import BoundedHttpProtocol

# The name under which routes find the protocol among a scope's extensions.
EXTENSION = "tilemlp.direct"
# A smaller body is mostly there when its request begins, and the way around costs 20 µs.
_DIRECT_BYTES = 128 << 10
# Read at once for the parser: a request that goes past ASGI in one piece; and the headers of one
# whose body is read into its slot, with as little of the body as may be.
_WIDE_BYTES = 264 << 10
_NARROW_BYTES = 16 << 10


class DirectHttpProtocol(BoundedHttpProtocol):
    """HTTP on a connection, with a short way for large bodies.

    Attributes:
        reader: Takes its place with the transport.
    """

    reader: Reader

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as in uvicorn
        """A client has connected."""
        super().connection_made(transport)
        self._extensions = {EXTENSION: self}
        self.reader = Reader(self)
        transport.set_protocol(self.reader)

    def on_headers_complete(self) -> None:
        """All headers are there: the request begins."""
        if not self._is_large():
            self.reader.read_wide()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        super().on_headers_complete()

    def _is_large(self) -> bool:
        """Whether the body will be received by `receive_into`, as far as headers tell."""
        lengths = [value for name, value in self.headers if name == b"content-length"]
        return bool(lengths) and lengths[0].isdigit() and int(lengths[0]) >= _DIRECT_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def reads_ahead(self) -> bool:
        """Whether what comes next is no request that begins.

        It is one behind another that has no answer yet, or the rest of a body that was refused.
        """
        if self.pipeline or self._rest_bytes:
            return True
        return not (self.is_idle or self.cycle.more_body)

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
        received = self.reader.read_into(view[begun:])
        self.flow.resume_reading()
        try:
            return begun + await received
        except asyncio.CancelledError:
            # What still comes belongs to no request, and nobody can tell where the next begins.
            cycle.keep_alive = False
            self._refused = True
            self.reader.read_for_parser()
            raise

    def body_received(self) -> None:
        """The reader has all of it: the next byte begins another request."""
        self.parser = httptools.HttpRequestParser(self)
        self.cycle.more_body = False

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


class Reader(asyncio.BufferedProtocol):
    """What a transport reads with, on behalf of a protocol: for its parser, or into a body."""

    def __init__(self, protocol: DirectHttpProtocol) -> None:
        self._protocol = protocol
        self._wide = _scratch.memory
        # Its first bytes: as much as is read at once of a request that begins.
        self._parsed = self._wide
        self._body: memoryview | None = None
        self._count = 0
        self._received: asyncio.Future[int]

    def read_into(self, view: memoryview) -> asyncio.Future[int]:
        """From now on, fill the view; then read for the parser again.

        Returns:
            Bytes, once it is full or the client has left.
        """
        self._body = view
        self._count = 0
        self._received = asyncio.get_running_loop().create_future()
        # Of another such body, little should come before it is known where it goes.
        self._parsed = self._wide[:_NARROW_BYTES]
        return self._received

    def read_for_parser(self) -> None:
        """Into nobody's body any more."""
        self._body = None

    def read_wide(self) -> None:
        """The bodies of this connection go through the parser, better in one piece."""
        self._parsed = self._wide

    def get_buffer(self, sizehint: int) -> memoryview:
        """Of a body just the rest, so that no byte of a next request is taken."""
        del sizehint
        body = self._body
        if body is not None:
            return body[self._count :]
        # What is sent ahead of an answer is better read at once, and the end of the client with it.
        return self._wide if self._protocol.reads_ahead else self._parsed

    def buffer_updated(self, nbytes: int) -> None:
        """The kernel has written."""
        if self._body is None:
            # The parser takes copies of what it passes on, so nobody keeps the view.
            self._protocol.data_received(self._wide[:nbytes])
            return
        self._count += nbytes
        if self._count == len(self._body):
            self._body = None
            if not self._received.done():
                self._protocol.body_received()
                self._received.set_result(self._count)

    def eof_received(self) -> None:
        """The client sends no more; the transport closes."""
        self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._protocol.connection_lost(exc)
        body, self._body = self._body, None
        if body is not None and not self._received.done():
            self._received.set_result(self._count)

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The transport's buffer has room."""
        self._protocol.resume_writing()


class _Scratch(threading.local):
    """What is read for parsers, until they have it: one for all connections of an event loop."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(_WIDE_BYTES))


_scratch = _Scratch()
