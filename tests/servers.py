"""Servers for tests: the real one as a process, or one around any engine in a thread."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from service.config import Settings
from service.engine.base import Engine
from service.server import create_server
from service.workers.process import FrontEndProcess
from service.workers.server import EngineServer
from tests.engines import FakeEngine

_LISTENING = re.compile(r"running on (http://\S+)")


class ServerProcess:
    """`tilemlp serve` as users start it, on a free port, with its log in a file.

    Or another `command`, given as the interpreter's arguments, that reads the same variables.
    """

    def __init__(
        self,
        log_path: Path,
        *,
        command: Sequence[str] = ("-m", "service", "serve"),
        **settings: object,
    ) -> None:
        self.log_path = log_path
        # How many front ends there are is for the fixture `workers` to say.
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith("MLP_") or k == "MLP_WORKERS"
        }
        environment["MLP_PORT"] = "0"
        environment["MLP_DRAIN_DELAY_S"] = "0.2"
        environment |= {f"MLP_{name.upper()}": str(value) for name, value in settings.items()}
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.url = ""

    def wait_ready(self, timeout_s: float = 60.0) -> ServerProcess:
        """Until /health/ready says yes; fails with the log otherwise."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if not self.url and (found := _LISTENING.search(self.log)):
                self.url = found.group(1)
            if self.url and is_ready(self.url):
                return self
            time.sleep(0.05)
        self.kill()
        raise AssertionError(f"server did not become ready:\n{self.log}")

    @property
    def log(self) -> str:
        """All that the process has printed."""
        return self.log_path.read_text(errors="replace")

    def terminate(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, then the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def __enter__(self) -> ServerProcess:
        return self.wait_ready()

    def __exit__(self, *_: object) -> None:
        self.kill()


class ServerThread:
    """The whole server around an engine of the test's choice, in this process."""

    def __init__(self, engine: Engine, *, wait_ready: bool = True, **settings: object) -> None:
        given: dict[str, object] = {"port": 0, "drain_delay_s": 0.0, "self_test_interval_s": 0.0}
        self.settings = Settings(**{**given, **settings})  # type: ignore[arg-type]
        self.engine = engine
        self.server = create_server(self.settings, engine)
        self.runtime = self.server.runtime
        self.workers = self.settings.workers
        self._wait_ready = wait_ready
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.url = ""

    def __enter__(self) -> ServerThread:
        self.thread.start()
        wait_until(lambda: self.server.started, 30)
        port = self.server.port
        self.url = f"http://127.0.0.1:{port}"
        if self._wait_ready:
            wait_until(lambda: self.runtime.health.ready, 30)
            wait_until(lambda: len(self.front_ends) == self.workers, 30)
        return self

    @property
    def front_ends(self) -> list[FrontEndProcess]:
        """Those that take connections."""
        if not isinstance(self.server, EngineServer):
            return []
        return [found for found in list(self.server.pool.front_ends.values()) if found.ready]

    @property
    def in_progress(self) -> int:
        """Requests that are admitted and not yet answered."""
        if self.workers:
            return sum(front_end.requests for front_end in self.front_ends)
        return self.runtime.in_progress.count

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is not None and isinstance(self.engine, FakeEngine):
            # The test had no time to, and would be reported as a server that does not stop.
            self.engine.gate.set()
        # Its loop is closed where it has ended by itself.
        with contextlib.suppress(RuntimeError):
            self.server.handle_exit(signal.SIGTERM, None)
        self.thread.join(20)
        assert not self.thread.is_alive(), "the server did not stop"

    def wait_exit(self, timeout_s: float = 10.0) -> int:
        """The exit status, once the server has ended by itself."""
        self.thread.join(timeout_s)
        assert not self.thread.is_alive(), "the server did not exit"
        return self.server.exit_status


def get(url: str, path: str, timeout_s: float = 30.0) -> tuple[int, bytes]:
    """Status and body of a GET; a client of httpx takes 0.1 s to make, for its TLS."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_ready(url: str) -> bool:
    """What /health/ready says; False where nobody answers."""
    try:
        return get(url, "/health/ready", 5)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def wait_until(condition, timeout_s: float = 20.0) -> None:
    """Until the condition holds; fails when it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout_s} s: {condition}")
        time.sleep(0.002)
