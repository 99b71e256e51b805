"""Device memory by handle, with a driver that maps nothing."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from service.kernels.errors import CudaError, DeviceUnsupported, InvalidArgument, LibraryError
from service.kernels.ipc import HANDLE_BYTES, Ipc
from service.kernels.library import Library
from tests.csrc.conftest import CSRC, HOST_SOURCES, WARNINGS
from tests.kernels.conftest import build_recorder

ADDRESS = 0x7F00_0000_1000
HANDLE = ADDRESS.to_bytes(8, "little") + bytes(HANDLE_BYTES - 8)


@pytest.fixture(scope="module")
def made(compiler, tmp_path_factory) -> Library:
    path = tmp_path_factory.mktemp("ipc") / "libswiglu.so"
    sources = [source for source in HOST_SOURCES if source.name != "no_device_ipc.cpp"]
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", *WARNINGS]
    includes = [f"-I{CSRC / 'include'}", f"-I{CSRC / 'src'}"]
    fake = Path(__file__).with_name("fake_ipc.cpp")
    subprocess.run([compiler, *flags, *includes, *sources, fake, "-o", path], check=True)
    library = Library(path)
    library.functions.swiglu_test_opened.restype = ctypes.c_int64
    return library


def test_a_handle_is_opened_and_closed(made: Library) -> None:
    ipc = Ipc(made)
    assert ipc.open(HANDLE) == (ADDRESS, 4096, 3)
    assert ipc.open(HANDLE).address == ADDRESS
    assert made.functions.swiglu_test_opened() == 2
    ipc.close(ADDRESS)
    ipc.close(ADDRESS)
    assert made.functions.swiglu_test_opened() == 0


def test_cudas_refusals_have_its_words(made: Library) -> None:
    ipc = Ipc(made)
    with pytest.raises(CudaError, match=r"^cudaIpcOpenMemHandle: CUDA error: cudaErrorInvalidVal"):
        ipc.open(b"\xff" * HANDLE_BYTES)
    with pytest.raises(CudaError, match=r"^cudaIpcCloseMemHandle: CUDA error: refused"):
        ipc.close(1)
    assert made.functions.swiglu_test_opened() == 0


def test_what_cannot_be_described_is_closed_again(made: Library) -> None:
    made.functions.swiglu_test_describes(0)
    try:
        with pytest.raises(CudaError, match=r"^cuMemGetAddressRange"):
            Ipc(made).open(HANDLE)
    finally:
        made.functions.swiglu_test_describes(1)
    assert made.functions.swiglu_test_opened() == 0


@pytest.mark.parametrize("nbytes", [0, HANDLE_BYTES - 1, HANDLE_BYTES + 1])
def test_a_handle_has_its_length(made: Library, nbytes: int) -> None:
    with pytest.raises(InvalidArgument, match=f"handle: must have 64 bytes, has {nbytes}"):
        Ipc(made).open(bytes(nbytes))


@pytest.mark.parametrize("absent", range(4))
def test_null_is_refused(made: Library, absent: int) -> None:
    address, nbytes, device = ctypes.c_void_p(), ctypes.c_int64(), ctypes.c_int32()
    arguments = [HANDLE, *(ctypes.byref(one) for one in (address, nbytes, device))]
    arguments[absent] = None
    Ipc(made)
    with pytest.raises(InvalidArgument, match="must be a pointer, is NULL"):
        made.check(made.functions.swiglu_ipc_open(*arguments))
    with pytest.raises(InvalidArgument, match="address: must be a pointer, is NULL"):
        made.check(made.functions.swiglu_ipc_close(None))
    assert made.functions.swiglu_test_opened() == 0


def test_the_host_only_build_says_what_it_is(library_path: Path) -> None:
    with pytest.raises(DeviceUnsupported, match="to open device memory, is the host-only build"):
        Ipc(Library(library_path)).open(HANDLE)


def test_a_library_without_these_functions_is_refused(tmp_path: Path) -> None:
    library = Library(build_recorder(tmp_path / "libswiglu.so"))
    with pytest.raises(LibraryError, match=r"must have swiglu_ipc_open, has not; `make kernels`"):
        Ipc(library)
