"""The service as users start it, as a process under measurement, and its metrics as numbers."""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from service.errors import StartError
from service.process_memory import anonymous_bytes

_LISTENING = re.compile(r"running on http://[^:]+:(\d+)")
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_START_S = 180.0

# By the series as Prometheus writes it: `name` or `name{label="value"}`.
Samples: TypeAlias = Mapping[str, float]


class ServedModel:
    """`tilemlp serve` on a free port, until `close`.

    As a context manager it is ready inside.
    """

    def __init__(self, **settings: object) -> None:
        """Start it; `wait_ready` must follow.

        Args:
            settings: As variables `MLP_…`; others of the environment are not passed on.
        """
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLP_")}
        given = {"port": 0, "drain_delay_s": 0.0, **settings}
        environment |= {f"MLP_{name.upper()}": str(value) for name, value in given.items()}
        self._log = tempfile.NamedTemporaryFile(suffix=".log")  # noqa: SIM115 - as long as we are
        self._process = subprocess.Popen(
            [sys.executable, "-m", "service", "serve"],
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def samples(self) -> Samples:
        """Every series of /metrics."""
        status, text = self._get("/metrics")
        if status != 200:
            raise StartError(f"service: /metrics must answer 200, answers {status}")
        return parse_samples(text)

    def resident_bytes(self) -> int:
        """Anonymous memory of all its processes: not what they share, which is of fixed size."""
        main = self._process.pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return sum(anonymous_bytes(pid) for pid in (main, *map(int, children)))

    def close(self) -> None:
        """SIGTERM, and wait for the end."""
        self._process.terminate()
        self._process.wait(60)
        self._log.close()

    def wait_ready(self) -> ServedModel:
        """Until it answers.

        Raises:
            StartError: it ended or was not ready in time; the message holds its log.
        """
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if found := _LISTENING.search(self._text()):
                self._port = int(found.group(1))
                if self._is_ready():
                    return self
            time.sleep(0.1)
        log = self._text()
        self.close()
        raise StartError(f"service: it did not become ready:\n{log}")

    def __enter__(self) -> ServedModel:
        return self.wait_ready()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_ready(self) -> bool:
        try:
            return self._get("/health/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def _text(self) -> str:
        return Path(self._log.name).read_text(errors="replace")


def parse_samples(text: str) -> Samples:
    """The text of a scrape as numbers; each series under its name with its labels as written."""
    found = {}
    for name, labels, value in _SAMPLE.findall(text):
        found[f"{name}{{{labels}}}" if labels else name] = float(value)
    return found
