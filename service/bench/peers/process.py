"""A compared server as a process, with all that it starts, watched through /proc."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import torch

from service.bench.peers.mlp import DEVICE, MODEL, WORKERS
from service.bench.peers.servers import PeerServer
from service.errors import StartError

_STOP_TIMEOUT_S = 10.0
# In the environment of whatever the server starts, also of what leaves its process group.
_MARK = "TILEMLP_BENCH_RUN"
_BUSY = re.compile(rb"^mlp_gpu_busy_seconds_total (\S+)$", re.MULTILINE)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class PeerProcess:
    """Started on construction, ready when `wait_ready` returns.

    Attributes:
        port: On the loopback interface.
    """

    def __init__(self, server: PeerServer, model: str) -> None:
        """Start it.

        Args:
            server: Which.
            model: `echo` or a preset.
        """
        self._mark = uuid.uuid4().hex
        self.port = _free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        arguments = [argument.format(port=self.port) for argument in server.arguments]
        environment = {
            **os.environ,
            **server.environment,
            MODEL: model,
            # Not `auto`, by which a server that is kept from the GPU would compute without.
            DEVICE: "cuda" if torch.cuda.is_available() else "cpu",
            WORKERS: str(server.workers),
            _MARK: self._mark,
        }
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_ready(self, row_bytes: int, timeout_s: float) -> None:
        """Until it answers a row.

        Raises:
            StartError: it ends before, or takes longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            if _answers(self.port, row_bytes):
                return
            time.sleep(0.2)
        self._log.seek(0)
        text = self._log.read().decode(errors="replace")[-2000:]
        raise StartError(f"must start within {timeout_s:g} s, did not:\n{text}")

    def cpu_s(self) -> float:
        """CPU time of all its processes that are alive."""
        return sum(_cpu_s(process) for process in self._family())

    def gpu_busy_s(self) -> float | None:
        """Seconds in which the GPU worked on batches, where the server tells them."""
        status, body = _request(self.port, "GET", "/metrics")
        found = _BUSY.search(body)
        return float(found[1]) if status == 200 and found is not None else None

    def stop(self) -> None:
        """End it and all that it started."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for process in self._family():
            os.kill(int(process.name), signal.SIGKILL)
        self._log.close()

    def _family(self) -> Iterator[Path]:
        mark = f"{_MARK}={self._mark}".encode()
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                found = (process / "environ").read_bytes()
            except (OSError, ProcessLookupError):
                continue  # ended, or somebody else's
            if mark in found:
                yield process


def _cpu_s(process: Path) -> float:
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # Fields 14 and 15, counted from behind the name, which is the second: user and system time.
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _answers(port: int, row_bytes: int) -> bool:
    status, body = _request(port, "POST", "/mlp", bytes(row_bytes))
    return status == 200 and len(body) == row_bytes


def _request(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body; status 0 where there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, {"Content-Type": "application/octet-stream"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
