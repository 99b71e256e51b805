"""uvicorn around the application, with a drain before its end and an exit status."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from types import FrameType

import uvicorn

from service.app import create_app
from service.front import Front
from service.http_small import SmallHttpProtocol

logger = logging.getLogger(__name__)

# Long enough for the last answers to leave and for a probe to see the reason, short enough for
# the supervisor to restart us before anybody waits.
DEATH_DELAY_S = 0.5
# Once everything is answered, connections close at once; this only bounds a peer that won't read,
# where nothing is left of the grace.
CLOSE_TIMEOUT_S = 1
# For the refusals of those whose bodies have not arrived by the end of the grace.
_REFUSAL_S = 0.2


class HttpServer(uvicorn.Server):
    """Serves HTTP for a front until it is told to stop.

    Attributes:
        exit_status: 0 after a drain in which everything was answered, else 1.
    """

    def __init__(self, front: Front) -> None:
        self.exit_status = 0
        self._front = front
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                create_app(front),
                host=front.settings.host,
                port=front.settings.port,
                http=SmallHttpProtocol,
                loop="auto",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                # Nobody asks for a client's address, and it would hide the app from the protocol.
                proxy_headers=False,
                timeout_keep_alive=front.settings.keep_alive_s,
                timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port and the connections, by force where they would outlive the grace."""
        await super().shutdown(sockets)
        cut = list(self.server_state.connections)
        self.cut(len(cut))
        for connection in cut:
            connection.transport.abort()
        # One turn of the loop, in which the transports are told.
        await asyncio.sleep(0)

    def cut(self, connections: int) -> None:
        """So many connections end by force."""
        if connections:
            logger.error("drain: %d connections had not taken their answer, cut", connections)
            self.exit_status = 1

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain first. uvicorn would close the port at once, and then die of it."""
        del sig, frame
        if self._stopping is not None or self._loop is None:
            self.should_exit = self.force_exit = True
            self.exit_status = self.exit_status or 1
        else:
            self._loop.call_soon_threadsafe(self.begin_stopping)

    def begin_stopping(self) -> None:
        """Drain, then end; on the event loop's thread."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        front, settings = self._front, self._front.settings
        grace_ends = time.monotonic() + settings.shutdown_grace_s
        front.begin_drain()
        logger.info("draining: %d requests in progress", front.in_progress.count)
        await asyncio.sleep(settings.drain_delay_s)
        # Whoever still connects after the delay is better off elsewhere at once.
        for listener in self.servers:
            listener.close()
        if not await self._none_left(grace_ends - time.monotonic()):
            # Their clients have had as long; it is not the service that owes them an answer.
            front.in_progress.stop_receiving()
        if not await self._none_left(_REFUSAL_S):
            self.exit_status = 1
            # Who still waits learns why; and an engine that hangs must not keep the process.
            front.give_up(
                TimeoutError(
                    f"drain: {front.in_progress.count} requests were not answered within "
                    f"shutdown_grace_s {settings.shutdown_grace_s}"
                )
            )
        # Answers are with the transport now, and may need time to reach slow readers.
        left_s = math.ceil(grace_ends - time.monotonic())
        self.config.timeout_graceful_shutdown = max(CLOSE_TIMEOUT_S, left_s)
        self.should_exit = True

    async def _none_left(self, timeout_s: float) -> bool:
        try:
            await asyncio.wait_for(self._front.in_progress.none_left(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True

    def engine_died(self) -> None:
        """Only a restart can help: end soon, with status 1."""
        self.exit_status = 1
        asyncio.get_running_loop().call_later(DEATH_DELAY_S, self._exit_now)

    def _exit_now(self) -> None:
        self.should_exit = True
