"""The process: uvicorn around the application, and how it ends.

SIGTERM or SIGINT: not ready, answer what was accepted, exit 0; a second signal exits at once.
A dead engine, or a drain beyond its grace: answer what was accepted with 500, exit 1, so that a
supervisor restarts us.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import sys
import time
from types import FrameType

import uvicorn

from service.app import create_app
from service.config import Settings
from service.engine.base import Engine
from service.http_protocol import BoundedHttpProtocol
from service.runtime import Runtime

logger = logging.getLogger(__name__)

# Long enough for the last answers to leave and for a probe to see the reason, short enough for
# the supervisor to restart us before anybody waits.
_DEATH_DELAY_S = 0.5
# A thread of the engine that comes back from the device waits so long for the interpreter when the
# event loop is busy; by default it were 5 ms, many times what a batch takes.
_SWITCH_INTERVAL_S = 1e-4
# Once everything is answered, connections close at once; this only bounds a peer that won't read,
# where nothing is left of the grace.
_CLOSE_TIMEOUT_S = 1


class Server(uvicorn.Server):
    """uvicorn's server with a drain before its shutdown, and an exit status."""

    def __init__(self, settings: Settings, engine: Engine, reason: str = "") -> None:
        self.exit_status = 0
        self.runtime = Runtime(settings, engine, on_dead=self._engine_died, reason=reason)
        self._grace_s = settings.shutdown_grace_s
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                create_app(self.runtime),
                host=settings.host,
                port=settings.port,
                http=BoundedHttpProtocol,
                loop="auto",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=_CLOSE_TIMEOUT_S,
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
        if cut:
            logger.error("drain: %d connections had not taken their answer, cut", len(cut))
            self.exit_status = 1
        for connection in cut:
            connection.transport.abort()
        # One turn of the loop, in which the transports are told.
        await asyncio.sleep(0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain first. uvicorn would close the port at once, and then die of it."""
        del sig, frame
        if self._stopping is not None or self._loop is None:
            self.should_exit = self.force_exit = True
            self.exit_status = self.exit_status or 1
        else:
            self._loop.call_soon_threadsafe(self._begin_stopping)

    def _begin_stopping(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        grace_ends = time.monotonic() + self._grace_s
        try:
            await self.runtime.drain()
        except TimeoutError as error:
            self.exit_status = 1
            # Who still waits learns why; and an engine that hangs must not keep the process.
            self.runtime.batcher.fail_all(error)
        # Answers are with the transport now, and may need time to reach slow readers.
        left_s = math.ceil(grace_ends - time.monotonic())
        self.config.timeout_graceful_shutdown = max(_CLOSE_TIMEOUT_S, left_s)
        self.should_exit = True

    def _engine_died(self) -> None:
        self.exit_status = 1
        loop = asyncio.get_running_loop()
        loop.call_later(_DEATH_DELAY_S, self._exit_now)

    def _exit_now(self) -> None:
        self.should_exit = True


def serve(settings: Settings, engine: Engine, reason: str = "") -> int:
    """Serve until told to stop.

    Ends the process itself, with the same status, where a thread of the engine is still at work.

    Args:
        settings: As given by the user.
        engine: Loaded, not yet warm.
        reason: Why it is this backend on this device.

    Returns:
        The exit status: 0 after a drain in which everything was answered, else 1.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    server = Server(settings, engine, reason)
    try:
        server.run()
    except SystemExit:
        # How uvicorn says that the port cannot be opened; it has logged the reason.
        server.exit_status = 1
    if not server.runtime.stopped:
        # Python's exit would unwind the engine's thread through the C++ frames of a kernel, and
        # that aborts with a core dump.
        logging.shutdown()
        os._exit(server.exit_status)
    return server.exit_status
