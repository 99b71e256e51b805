"""The process: uvicorn around the application, and how it ends.

SIGTERM or SIGINT: not ready, answer what was accepted, exit 0; a second signal exits at once.
A dead engine: answer what was accepted with 500, exit 1, so that a supervisor restarts us.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from types import FrameType

import uvicorn

from service.app import create_app
from service.config import Settings
from service.engine.base import Engine
from service.runtime import Runtime

logger = logging.getLogger(__name__)

# Long enough for the last answers to leave and for a probe to see the reason, short enough for
# the supervisor to restart us before anybody waits.
_DEATH_DELAY_S = 0.5
# Once everything is answered, connections close at once; this only bounds a peer that won't read.
_CLOSE_TIMEOUT_S = 5


class Server(uvicorn.Server):
    """uvicorn's server with a drain before its shutdown, and an exit status."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.exit_status = 0
        self._runtime = Runtime(settings, engine, on_dead=self._engine_died)
        self._stopping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                create_app(self._runtime),
                host=settings.host,
                port=settings.port,
                http="httptools",
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
        try:
            await self._runtime.drain()
        except TimeoutError as error:
            logger.error("%s", error)
            self.exit_status = 1
        self.should_exit = True

    def _engine_died(self) -> None:
        self.exit_status = 1
        loop = asyncio.get_running_loop()
        loop.call_later(_DEATH_DELAY_S, self._exit_now)

    def _exit_now(self) -> None:
        self.should_exit = True


def serve(settings: Settings, engine: Engine) -> int:
    """Serve until told to stop.

    Returns:
        The exit status: 0 after a drain in which everything was answered, else 1.
    """
    server = Server(settings, engine)
    server.run()
    return server.exit_status
