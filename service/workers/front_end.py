"""A front end: HTTP in a process of its own, without an engine, torch or a listening socket.

`python -m service.workers.front_end CHANNEL MEMORY IDENTITY`, two file descriptors and the code
that the engine's process runs, which starts it so. It ends when it is told to, and at once when the
engine's process has gone.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from service.errors import outcomes
from service.garbage import leave_garbage
from service.heap import keep_freed_memory
from service.http_server import HttpServer
from service.http_small import SmallHttpProtocol
from service.log import configure_logging
from service.workers import lane_library
from service.workers.channel import Channel
from service.workers.hello import Hello
from service.workers.identity import IDENTITY
from service.workers.lane import Lane
from service.workers.memory import SharedMemory
from service.workers.records import Kind, Record, unpack
from service.workers.remote import RemoteFront

logger = logging.getLogger(__name__)

_HELLO_BYTES = 64 << 10


class CountedProtocol(SmallHttpProtocol):
    """HTTP on a connection, whose end is told.

    Attributes:
        on_lost: Called when the connection is gone.
    """

    on_lost: Callable[[], None]
    # Of a connection that comes back from the lane.
    unread = b""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - as in uvicorn
        """A client has connected, or its connection has come back."""
        super().connection_made(transport)
        unread, self.unread = self.unread, b""
        if unread:
            self.data_received(unread)
            # uvloop begins to read behind this, whatever was said to it here.
            self.loop.call_soon(self._pause_again)

    def _pause_again(self) -> None:
        if self.flow.read_paused and not self.transport.is_closing():
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        super().connection_lost(exc)
        if not self.has_moved:
            self.on_lost()


class FrontEnd(HttpServer):
    """Serves the connections that the engine's process passes on.

    Args:
        hello: What is served.
        memory: Shared with the engine's process.
        end: This process's end of the channel.
    """

    def __init__(self, hello: Hello, memory: SharedMemory, end: socket.socket) -> None:
        self._end = end
        self._taking: set[asyncio.Task[Any]] = set()
        self._lane: Lane | None = None
        self._remote = RemoteFront(
            hello,
            memory,
            on_dead=self.engine_died,
            on_stop=self.begin_stopping,
            on_connection=self._take_connection,
        )
        super().__init__(self._remote)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Be ready for connections."""
        del sockets
        await super().startup(sockets=[])
        remote = self._remote
        channel = Channel(self._end, remote.hear, remote.hung_up)
        remote.attach(channel)
        self._open_lane()
        channel.send(Record(Kind.READY))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections, by force where they would outlive the grace."""
        if self._lane is not None:
            # They come back once their clients have taken their answers.
            self.cut(await self._lane.none_left(self.config.timeout_graceful_shutdown or 0))
            if self._taking:
                await asyncio.wait(self._taking)
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; shows that the loop turns."""
        self._remote.counts.beat()
        if self._lane is not None:
            self._lane.tick()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Signals to the whole group are for the engine's process, which tells when to stop."""

    def _open_lane(self) -> None:
        path = lane_library.find_library()
        if path is None:
            # The engine's process says so.
            return
        app: Any = self.config.app

        def make(*given: Any, **named: Any) -> Lane:  # noqa: ANN401 - as Lane has it
            self._lane = Lane(
                library,
                *given,
                **named,
                find_meaning=app.takes_small.meaning,
                give_back=self._take_connection,
                default_headers=lambda: self.server_state.default_headers,
            )
            return self._lane

        try:
            library = lane_library.load_library(path)
            self._remote.open_lane(make)
        except OSError as error:
            logger.warning("front end: repeated requests go the long way: %s", error)

    def _take_connection(self, descriptor: int, unread: bytes = b"") -> None:
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        taken = loop.create_task(
            loop.connect_accepted_socket(lambda: self._protocol(unread), connection)
        )
        self._taking.add(taken)
        taken.add_done_callback(self._connection_taken)

    def _protocol(self, unread: bytes) -> CountedProtocol:
        protocol = CountedProtocol(
            self.config, self.server_state, self.lifespan.state, asyncio.get_running_loop()
        )
        protocol.on_lost = self._remote.counts.connection_closed
        protocol.lane, protocol.unread = self._lane, unread
        return protocol

    def _connection_taken(self, task: asyncio.Task[Any]) -> None:
        self._taking.discard(task)
        if not task.cancelled() and isinstance(task.exception(), OSError):
            # The client had left.
            self._remote.counts.connection_closed()


def main(channel: int, memory: int, identity: str) -> int:
    """Serve until told to stop; returns the exit status."""
    if identity != IDENTITY:
        # Before anything is read that another code has written.
        configure_logging("error")
        logger.error(
            "front end: must be of the same code as the engine's process, %s, is of %s, which was "
            "installed under the running service; restart the service",
            identity,
            IDENTITY,
        )
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = socket.socket(fileno=channel)
    end.setblocking(True)
    said = end.recv(_HELLO_BYTES)
    if not said:
        return 1
    (first,) = unpack(memoryview(said))
    hello = Hello.unpack(first.text)
    end.setblocking(False)
    configure_logging(hello.settings.log_level)
    shared = SharedMemory(memory, hello.settings.workers, hello.arena_bytes, outcomes())
    server = FrontEnd(hello, shared, end)
    keep_freed_memory()
    leave_garbage()
    server.run()
    return server.exit_status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
