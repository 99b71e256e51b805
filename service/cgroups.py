"""What the kernel lets this process have, as containers set it: memory and processor time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_NONE = "max"


def memory_limit_bytes(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """The smallest of the limits of the process's cgroups and the machine's memory, in bytes.

    Args:
        cgroups: Where the cgroup file systems are mounted, version 1 or 2.
        membership: What names the cgroups of the process, as /proc/self/cgroup does.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Version 1 has a number beyond any memory for none.
    texts = (
        file.read_text().strip()
        for file in _files(cgroups, membership, "memory", "memory.max", "memory.limit_in_bytes")
    )
    return min([machine, *(int(text) for text in texts if text != _NONE)])


def cores(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Processors that the process may use at once: those it may run on, and its share of time.

    Args:
        cgroups: As above.
        membership: As above.
    """
    allowed = float(len(os.sched_getaffinity(0)))
    for file in _files(cgroups, membership, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        if file.name == "cpu.max":
            quota, period = file.read_text().split()
        else:
            quota, period = file.read_text(), (file.parent / "cpu.cfs_period_us").read_text()
        if quota != _NONE and int(quota) > 0:
            allowed = min(allowed, int(quota) / int(period))
    return max(1, int(allowed))


def _files(
    cgroups: Path, membership: Path, controller: str, name: str, old_name: str
) -> Iterator[Path]:
    """The files that hold a limit, of each cgroup of the process and of its ancestors."""
    lines = membership.read_text().splitlines() if membership.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, found = cgroups, name
        elif controller in controllers.split(","):
            root, found = cgroups / controller, old_name
        else:
            continue
        # Every ancestor's limit holds as well. In a container the path may be the host's, which
        # is not mounted there, while the container's own limit stands at the root.
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            file = root / folder / found
            if file.is_file():
                yield file
