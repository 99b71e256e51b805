"""docker-compose.yml, brought up for real; deploy/container/test.sh gives the engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMPOSE_FILES = ("docker-compose.yml", "deploy/container/compose.test.yml")
SERVICE_URL = "http://127.0.0.1:8000"
PROMETHEUS_URL = "http://127.0.0.1:9090"


def run(
    *command: str, check: bool = True, timeout_s: float = 180, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command in the repository's root, its output captured; tools of the environment first."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # What is set for servers of tests would be passed on to those of containers.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MLP_")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**ours, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert not check or done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


class Stack:
    """One compose project.

    Args:
        profile: Which of the two services to run; None leaves that to `.env`.
        overrides: Further compose files.
        environment: What the user's shell would have set.
    """

    def __init__(
        self, profile: str | None = None, *, overrides: Sequence[Path] = (), **environment: str
    ) -> None:
        self.service = f"tilemlp-{profile or 'gpu'}"
        self._environment = environment
        files = [*COMPOSE_FILES, *map(str, overrides)]
        self._command = ["docker-compose", *(part for name in files for part in ("-f", name))]
        if profile is not None:
            self._command += ["--profile", profile]

    def compose(
        self, *arguments: str, check: bool = True, timeout_s: float = 180
    ) -> subprocess.CompletedProcess[str]:
        """`docker-compose …`."""
        return run(
            *self._command, *arguments, check=check, timeout_s=timeout_s, **self._environment
        )

    def up(self, *, check: bool = True, wait_s: int = 90) -> subprocess.CompletedProcess[str]:
        """Start everything and wait until it is healthy."""
        limit = ("--wait", "--wait-timeout", str(wait_s))
        done = self.compose("up", "--detach", *limit, check=False)
        logs = self.logs() if check and done.returncode else ""
        assert not check or done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
        return done

    def down(self) -> None:
        """Remove containers, network and volumes."""
        self.compose("--profile", "*", "down", "--volumes", "--timeout", "5")

    def logs(self) -> str:
        """What every container has printed."""
        done = self.compose("logs", "--no-color", check=False)
        return done.stdout + done.stderr

    def shell(self, script: str, service: str | None = None) -> str:
        """Standard output of a shell script in a container; it must succeed."""
        return self.compose("exec", "-T", service or self.service, "sh", "-c", script).stdout

    def inspect(self, service: str | None = None) -> dict[str, Any]:
        """What the engine knows of a service's container, running or not."""
        name = self.compose("ps", "--all", "--quiet", service or self.service).stdout.split()
        assert len(name) == 1, name
        (found,) = json.loads(run("podman", "inspect", name[0]).stdout)
        return found

    def __enter__(self) -> Stack:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
