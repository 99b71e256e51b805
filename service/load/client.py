"""One keep-alive HTTP/1.1 connection with one request in flight at a time."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

import httptools

from service.load.faults import Fault
from service.load.options import Address
from service.load.reader import Answer, AnswerReader


class Owner(Protocol):
    """Who is told what becomes of a connection; called from the event loop."""

    def answered(self, connection: Connection, answer: Answer) -> None:
        """The request in flight was answered; the connection is closed unless `is_open`."""

    def failed(self, connection: Connection, fault: Fault, message: str) -> None:
        """The connection is closed, and the request that may be in flight gets no answer."""

    def lost(self, connection: Connection) -> None:
        """The server closed the connection while nothing was in flight."""


class Connection(asyncio.BufferedProtocol):
    """Sends prepared bytes and reads the answer to them."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader()
        self._busy = False
        self._is_given_up = False

    @property
    def is_open(self) -> bool:
        """Whether a request can be sent, now or after the one in flight."""
        return self._transport is not None

    def send(self, request: bytes) -> None:
        """Send a request; there must be none in flight."""
        assert self._transport is not None
        assert not self._busy
        self._busy = True
        self._transport.write(request)

    def abort(self) -> None:
        """Close at once and tell nobody."""
        self._busy = False
        self._is_given_up = True
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

    # What follows is called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be ready to send."""
        # A cast, since uvloop's transports derive from asyncio's in behaviour only.
        self._transport = cast(asyncio.Transport, transport)
        if self._is_given_up:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report a close that did not come from here."""
        if self._transport is None:  # closed from here: whoever did that knows
            return
        if self._busy:
            reason = "" if exc is None else f" ({exc})"
            self._fail(Fault.RESET, f"connection closed after {self._reader.progress()}{reason}")
        else:
            self._transport = None
            self._owner.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Where the transport puts what it receives."""
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take in what was received."""
        if self._transport is None:
            return
        if not self._busy:
            self._fail(Fault.PROTOCOL, "data without a request")
            return
        try:
            answer = self._reader.received(nbytes)
        except httptools.HttpParserError as error:
            self._fail(Fault.PROTOCOL, f"not HTTP: {error}")
            return
        if answer is None:
            return
        self._busy = False
        self._reader.expect()
        if not answer.keep_alive:
            self.abort()
        self._owner.answered(self, answer)

    def _fail(self, fault: Fault, message: str) -> None:
        self.abort()
        self._owner.failed(self, fault, message)


async def connect(owner: Owner, address: Address, timeout_s: float) -> Connection:
    """Make a new connection.

    Raises:
        OSError: it cannot be made.
        asyncio.TimeoutError: it cannot be made in time.
    """
    loop = asyncio.get_running_loop()
    connection = Connection(owner)
    is_made = False
    try:
        made = loop.create_connection(lambda: connection, address.host, address.port)
        await asyncio.wait_for(made, timeout_s)
        is_made = True
    finally:
        # Timed out or cancelled, it may come to be all the same and nobody would know of it, while
        # uvloop waits for every connection when it closes a loop.
        if not is_made:
            connection.abort()
    return connection
