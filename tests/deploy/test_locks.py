"""What the images install: the locks cover what the service needs, at the versions tested here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.stack import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

FOLDER = ROOT / "deploy/container"
PYTHON = {"cpu.lock": "3.11", "gpu.lock": "3.12", "build.lock": "3.11"}
_ENTRY = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+)[^\n]*((?:\n\s+--hash=sha256:[0-9a-f]{64}.*)*)", re.M
)


def read_lock(path: Path) -> dict[str, Version]:
    """Version by name; every entry must have a hash."""
    found = {}
    for name, version, hashes in _ENTRY.findall(path.read_text()):
        assert hashes, f"{path.name}: {name} has no hash"
        found[canonicalize_name(name)] = Version(version)
    lines = path.read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith(("#", " "))]
    assert len(pins) == len(found), f"{path.name}: holds more than pins"
    return found


def constraints(python: str) -> dict[str, Version]:
    """constraints.txt as a Python version sees it."""
    environment = {"python_version": python, "platform_system": "Linux"}
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        pin = Requirement(line)
        marker: Marker | None = pin.marker
        if marker is None or marker.evaluate(environment):
            (only,) = pin.specifier
            found[canonicalize_name(pin.name)] = Version(only.version)
    return found


@pytest.mark.parametrize("name", ["cpu.lock", "gpu.lock"])
def test_a_lock_holds_every_dependency_at_the_version_of_constraints(name: str) -> None:
    locked, pinned = read_lock(FOLDER / name), constraints(PYTHON[name])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in project["dependencies"]:
        requirement = Requirement(text)
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), text
    for package in locked.keys() & pinned.keys():
        # `+cpu` is the same release of PyTorch.
        assert locked[package].public == pinned[package].public, f"{package}: run `make locks`"


def test_only_the_gpu_lock_holds_cuda() -> None:
    cpu, gpu = (read_lock(FOLDER / name) for name in ("cpu.lock", "gpu.lock"))
    # nvidia-ml-py is a Python file that looks for a driver, not a part of CUDA.
    cuda = [name for name in cpu if name.startswith(("nvidia", "cuda", "triton"))]
    assert cuda == ["nvidia-ml-py"]
    assert str(cpu["torch"]).endswith("+cpu")
    assert "nvidia-cublas" in gpu
    assert gpu["torch"].local is None


def test_the_images_are_built_with_what_pyproject_asks_for() -> None:
    locked = read_lock(FOLDER / "build.lock")
    system = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]
    for text in system["requires"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("name", PYTHON)
def test_a_lock_names_no_place(name: str) -> None:
    """Where packages come from is the builder's business."""
    text = (FOLDER / name).read_text()
    assert "://" not in text
    assert "--find-links" not in text
