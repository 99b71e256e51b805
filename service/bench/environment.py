"""Where and how a measurement was taken; written beside every results file."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from service.cgroups import cores

_PACKAGES = ("fastapi", "httptools", "starlette", "torch", "uvicorn", "uvloop")


def describe_environment(
    command: str, packages: Iterable[str] = _PACKAGES, commit: str | None = None
) -> dict[str, object]:
    """Machine, versions, commit, date and command.

    Args:
        command: What a reader would type.
        packages: Distributions whose versions matter; those not installed are left out.
        commit: Where there is no checkout to ask.
    """
    return {
        "command": command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit or _commit(),
        "machine": f"{_processor()}, {_cores()} cores",
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": _versions(packages),
    }


def _cores() -> str:
    usable, there = cores(), os.cpu_count()
    return str(there) if usable == there else f"{usable} of {there}"


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    """The checkout's commit, marked where it has changes; `unknown` outside a checkout."""
    here = Path(__file__).parent
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"
