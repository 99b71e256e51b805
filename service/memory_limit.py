"""How much memory the process may use before the kernel ends it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def memory_limit_bytes(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """The smallest of the limits of the process's cgroups and the machine's memory, in bytes.

    Args:
        cgroups: Where the cgroup file systems are mounted, version 1 or 2.
        membership: What names the cgroups of the process, as /proc/self/cgroup does.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_cgroup_limits(cgroups, membership)])


def _cgroup_limits(cgroups: Path, membership: Path) -> Iterator[int]:
    lines = membership.read_text().splitlines() if membership.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        # Every ancestor's limit holds as well. In a container the path may be the host's, which
        # is not mounted there, while the container's own limit stands at the root.
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            file = root / folder / name
            # "max" is version 2's word for none; version 1 has a number beyond any memory.
            if file.is_file() and (text := file.read_text().strip()) != "max":
                yield int(text)
