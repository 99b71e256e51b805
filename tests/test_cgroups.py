"""Limits as container runtimes set them: versions 1 and 2, nested, absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.cgroups import cores, memory_limit_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
# What version 1 says where there is no limit.
NO_LIMIT = str((1 << 63) - 4096)


def mounted(tmp_path: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Cgroup file systems with these files, and what names the cgroups of a process."""
    cgroups, names = tmp_path / "cgroup", tmp_path / "names"
    for name, text in files.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    names.write_text(membership)
    return cgroups, names


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        # A container with a cgroup namespace of its own, as Docker and Kubernetes make it.
        ("0::/\n", {"memory.max": "1048576\n"}, 1 << 20),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE),
        # The parent's limit is the lower one, as a pod's may be.
        ("0::/pod/app\n", {"pod/memory.max": "4096", "pod/app/memory.max": "8192"}, 4096),
        ("0::/pod/app\n", {"pod/memory.max": "8192", "pod/app/memory.max": "4096"}, 4096),
        ("0::/pod/app\n", {"pod/memory.max": "8192", "pod/app/memory.max": "max"}, 8192),
        # Version 1: the path is the host's, the container's own limit stands at the root.
        (
            "3:cpu,cpuacct:/docker/1\n2:memory:/docker/1\n",
            {"memory/memory.limit_in_bytes": "2097152\n"},
            2 << 20,
        ),
        ("2:memory:/a\n", {"memory/a/memory.limit_in_bytes": NO_LIMIT}, MACHINE),
        # Both mounted: version 2 without the memory controller.
        (
            "2:cpu,memory:/a\n0::/a\n",
            {"memory/a/memory.limit_in_bytes": "1048576", "a/cgroup.procs": "1"},
            1 << 20,
        ),
        # A path may have colons in it.
        ("0::/a:b\n", {"a:b/memory.max": "4096"}, 4096),
        ("", {}, MACHINE),
    ],
)
def test_the_smallest_limit_counts(
    tmp_path: Path, membership: str, files: dict[str, str], expected: int
):
    cgroups, names = mounted(tmp_path, membership, files)
    assert memory_limit_bytes(cgroups, names) == expected


def test_a_machine_without_cgroups_has_its_memory(tmp_path: Path):
    assert memory_limit_bytes(tmp_path / "none", tmp_path / "nothing") == MACHINE


def test_this_process_may_use_some_memory():
    assert 0 < memory_limit_bytes() <= MACHINE


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "250000 100000\n"}, 2),
        ("0::/pod/app\n", {"pod/cpu.max": "300000 100000", "pod/app/cpu.max": "max 100000"}, 3),
        ("0::/\n", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "9000000 100000\n"}, 8),
        (
            "3:cpu,cpuacct:/docker/1\n",
            {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"},
            4,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("", {}, 8),
    ],
)
def test_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    membership: str,
    files: dict[str, str],
    expected: int,
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    cgroups, names = mounted(tmp_path, membership, files)
    assert cores(cgroups, names) == expected
