"""The process: a server around the engine, and how it ends.

SIGTERM or SIGINT: not ready, answer what was accepted, exit 0; a second signal exits at once.
A dead engine, or a drain beyond its grace: answer what was accepted with 500, exit 1, so that a
supervisor restarts us.
"""

from __future__ import annotations

import logging
import os
import sys

from service.config import Settings
from service.engine.base import Engine
from service.heap import keep_freed_memory
from service.http_server import HttpServer
from service.open_files import raise_open_files_limit
from service.runtime import Runtime
from service.workers.server import EngineServer

# A thread of the engine that comes back from the device waits so long for the interpreter when the
# event loop is busy; by default it were 5 ms, many times what a batch takes.
_SWITCH_INTERVAL_S = 1e-4


class Server(HttpServer):
    """Engine and HTTP in one process."""

    def __init__(self, settings: Settings, engine: Engine, reason: str = "") -> None:
        self.runtime = Runtime(settings, engine, on_dead=self.engine_died, reason=reason)
        super().__init__(self.runtime)

    @property
    def port(self) -> int:
        """Where it listens, once it has started."""
        address: tuple[str, int] = self.servers[0].sockets[0].getsockname()
        return address[1]


def create_server(settings: Settings, engine: Engine, reason: str = "") -> Server | EngineServer:
    """The server that the setting `workers` asks for; arguments as for `serve`."""
    kind = EngineServer if settings.workers else Server
    return kind(settings, engine, reason)


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
    # Front ends inherit it.
    raise_open_files_limit()
    keep_freed_memory()
    server = create_server(settings, engine, reason)
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
