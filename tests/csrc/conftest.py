"""The host half of the library, built with the C++ compiler alone, and the real one for a GPU."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.csrc import abi

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
HOST_SOURCES = [*(CSRC / "src").glob("capi*.cpp"), *sorted((CSRC / "src" / "host").glob("*.cpp"))]
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


@pytest.fixture
def good_down_args():
    """The same for a down projection."""
    return abi.DownArgs(
        struct_size=ctypes.sizeof(abi.DownArgs),
        config=abi.CONFIG_AUTO,
        m=16,
        n=896,
        k=4864,
        x=0x1000,
        x_row_stride=4864,
        weight=0x2000,
        weight_row_stride=4864,
        out=0x3000,
        out_row_stride=896,
    )


@pytest.fixture(scope="session")
def swiglu():
    """The built library with torch tensors, for tests marked gpu; SWIGLU_LIBRARY names another."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    path = Path(os.environ.get("SWIGLU_LIBRARY", ROOT / "build" / "csrc" / "libswiglu.so"))
    if not path.is_file():
        pytest.skip(f"needs {path}: make kernels")
    gpu_run = pytest.importorskip("tests.csrc.gpu_run")
    torch.manual_seed(0)
    return gpu_run.Swiglu(str(path))


@pytest.fixture
def config(swiglu, config_name):
    """One kernel configuration of the built library, by the name a test is parametrised with."""
    return swiglu.by_name[config_name]


@pytest.fixture
def down_config(swiglu, down_config_name):
    """The same for the down projection."""
    return swiglu.down_by_name[down_config_name]
