"""The images' HEALTHCHECK as a process, against a service in each state."""

from __future__ import annotations

import socket
import subprocess
import sys

from tests.deploy.stack import ROOT
from tests.engines import FakeEngine
from tests.servers import ServerThread


def healthcheck(port: int) -> subprocess.CompletedProcess[str]:
    """Run as the Dockerfile has it."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "deploy/container/healthcheck.py")],
        env={"MLP_PORT": str(port)},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_a_ready_service_is_healthy_and_a_draining_one_is_not() -> None:
    with ServerThread(FakeEngine()) as thread:
        port = int(thread.url.rpartition(":")[2])
        assert healthcheck(port).returncode == 0
        thread.runtime.health.draining()
        done = healthcheck(port)
        assert done.returncode == 1
        assert done.stderr.startswith("503")
        assert "draining" in done.stderr


def test_nobody_on_the_port_is_unhealthy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = healthcheck(taken.getsockname()[1])
    assert done.returncode == 1
    assert "refused" in done.stderr
