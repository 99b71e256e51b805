"""Libraries to bind to where there is no GPU: one that records, and the real one's host half."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from service.kernels.abi import ABI_VERSION, Args
from service.kernels.launcher import Launcher
from service.kernels.library import Library
from tests.csrc.conftest import CSRC, HOST_SOURCES

HERE = Path(__file__).parent


def build(path: Path, *arguments: str | Path) -> Path:
    """Compile and link a shared library with gcc or g++."""
    compiler = "g++" if any(str(part).endswith(".cpp") for part in arguments) else "gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    flags = ["-shared", "-fPIC", f"-I{CSRC / 'include'}", "-o", path]
    subprocess.run([compiler, *flags, *arguments], check=True)
    return path


def build_recorder(path: Path, abi_version: int = ABI_VERSION) -> Path:
    return build(path, f"-DRECORDER_ABI_VERSION={abi_version}", HERE / "recorder.c")


class Recorder(Launcher):
    """A launcher whose library keeps what it was called with."""

    def reset(self, status: int = 0, workspace_bytes: int = 0) -> None:
        self.library.functions.recorder_reset(status, ctypes.c_size_t(workspace_bytes))

    @property
    def args(self) -> Args:
        self.library.functions.recorder_args.restype = ctypes.POINTER(Args)
        return self.library.functions.recorder_args().contents

    def recorded(self, what: str) -> int:
        function = getattr(self.library.functions, f"recorder_{what}")
        function.restype = ctypes.c_size_t
        return function()


@pytest.fixture(scope="session")
def recorder_path(tmp_path_factory) -> Path:
    return build_recorder(tmp_path_factory.mktemp("recorder") / "libswiglu.so")


@pytest.fixture
def recorder(recorder_path) -> Recorder:
    made = Recorder(Library(recorder_path))
    made.reset()
    return made


@pytest.fixture(scope="session")
def host_library(tmp_path_factory) -> Library:
    """The library without its kernels: it validates and chooses, and refuses to launch."""
    path = tmp_path_factory.mktemp("host") / "libswiglu.so"
    return Library(build(path, "-std=c++17", f"-I{CSRC / 'src'}", *HOST_SOURCES))
