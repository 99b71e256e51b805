"""liblane.so as it is now, whatever was built before, and a lane on it for a test."""

from __future__ import annotations

import asyncio
import ctypes
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from service.workers.lane_library import load_library
from tests.csrc.conftest import CSRC, WARNINGS
from tests.workers.lane_harness import Harness

OnLane: TypeAlias = Callable[..., None]


@pytest.fixture(scope="session")
def lane_library(tmp_path_factory) -> ctypes.PyDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    path = tmp_path_factory.mktemp("lane") / "liblane.so"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS]
    source = CSRC / "lane" / "lane.cpp"
    subprocess.run([compiler, *flags, "-Wl,--no-undefined", "-o", path, source], check=True)
    return load_library(path)


@pytest.fixture
def on_lane(lane_library) -> OnLane:
    """Runs a test on a lane of its own, at whose end all has to be at rest."""

    def run(test: Callable[[Harness], Awaitable[None]], **settings: object) -> None:
        async def with_lane() -> None:
            harness = Harness(lane_library, **settings)
            try:
                await test(harness)
                assert harness.held == harness.nothing
            finally:
                harness.close()

        asyncio.run(with_lane())

    return run
