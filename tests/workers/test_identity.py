"""A front end and the engine's process know when they are not of the same code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import service
from service.workers.identity import IDENTITY, identity_of

PACKAGE = Path(service.__file__).parent


@pytest.fixture
def copy(tmp_path) -> Path:
    return Path(shutil.copytree(PACKAGE, tmp_path / "service"))


def test_equal_code_is_the_same_wherever_it_lies(copy):
    assert identity_of(copy) == identity_of(PACKAGE)
    assert identity_of(copy).startswith(f"{service.__version__}-")


@pytest.mark.parametrize(
    "name", ["workers/records.py", "workers/rooms.py", "counts.py", "errors.py", "engine/base.py"]
)
def test_other_code_is_not(copy, name):
    with (copy / name).open("a") as file:
        file.write("\nMORE = 1\n")
    assert identity_of(copy) != identity_of(PACKAGE)


def test_a_front_end_of_other_code_reads_nothing_and_ends():
    # Neither descriptor is one.
    command = [sys.executable, "-m", "service.workers.front_end", "-1", "-1", "0.0.9-0"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert found.returncode == 1
    assert f"same code as the engine's process, 0.0.9-0, is of {IDENTITY}" in found.stderr
    assert found.stderr.count("\n") == 1
