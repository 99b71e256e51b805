"""The host half of the library, built with the C++ compiler alone: no CUDA, no CUTLASS, no GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.csrc import abi

CSRC = Path(__file__).resolve().parents[2] / "csrc"
HOST_SOURCES = [CSRC / "src" / "capi.cpp", *sorted((CSRC / "src" / "host").glob("*.cpp"))]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wno-sign-conversion", "-Werror"]


@pytest.fixture(scope="session")
def compiler():
    found = shutil.which("g++")
    if found is None:
        pytest.skip("needs g++")
    return found


@pytest.fixture(scope="session")
def library_path(compiler, tmp_path_factory):
    path = tmp_path_factory.mktemp("csrc") / "libswiglu.so"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS]
    includes = [f"-I{CSRC / 'include'}", f"-I{CSRC / 'src'}"]
    link = [f"-Wl,--version-script={CSRC / 'swiglu.map'}", "-Wl,--no-undefined", "-o", path]
    subprocess.run([compiler, *flags, *includes, *HOST_SOURCES, *link], check=True)
    return path


@pytest.fixture(scope="session")
def library(library_path):
    return abi.load(library_path)


@pytest.fixture
def good_args():
    """Valid arguments; the pointers are aligned but point nowhere, since nothing is launched."""
    return abi.Args(
        struct_size=ctypes.sizeof(abi.Args),
        config=abi.CONFIG_AUTO,
        m=100,
        n=4864,
        k=896,
        x=0x1000,
        x_row_stride=896,
        gate_up=0x2000,
        gate_up_row_stride=896,
        out=0x3000,
        out_row_stride=4864,
    )
