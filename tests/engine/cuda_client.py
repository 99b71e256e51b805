"""A client of CUDA shared memory: a process of its own that has the GPU, and no torch.

Its memory comes from cudaMalloc, because torch's allocator hands out parts of larger pieces.
"""

from __future__ import annotations

import ctypes
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

HANDLE_BYTES = 64


class _Handle(ctypes.Structure):
    """cudaIpcMemHandle_t, which is passed by value and by pointer."""

    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


class _Cuda:
    def __init__(self, runtime: str) -> None:
        self._runtime = ctypes.CDLL(runtime)
        self._check("cudaSetDevice", 0)

    def _check(self, name: str, *arguments: object) -> None:
        status = getattr(self._runtime, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {status}")

    def allocate(self, nbytes: int) -> tuple[int, bytes]:
        address, handle = ctypes.c_void_p(), _Handle()
        self._check("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self._check("cudaMemset", address, 0, ctypes.c_size_t(nbytes))
        self._check("cudaIpcGetMemHandle", ctypes.byref(handle), address)
        assert address.value is not None
        self._check("cudaDeviceSynchronize")
        return address.value, bytes(handle)

    def write(self, address: int, data: bytes) -> None:
        # Host memory that is not pinned is still on its way when cudaMemcpy returns.
        self._check("cudaMemcpy", ctypes.c_void_p(address), data, ctypes.c_size_t(len(data)), 1)
        self._check("cudaDeviceSynchronize")

    def read(self, address: int, nbytes: int) -> bytes:
        data = ctypes.create_string_buffer(nbytes)
        self._check("cudaMemcpy", data, ctypes.c_void_p(address), ctypes.c_size_t(nbytes), 2)
        return data.raw

    def free(self, address: int) -> None:
        self._check("cudaFree", ctypes.c_void_p(address))


def _serve(connection: Connection, runtime: str) -> None:
    cuda = _Cuda(runtime)
    while (call := connection.recv()) is not None:
        name, *arguments = call
        connection.send(getattr(cuda, name)(*arguments))


def loaded_runtime() -> str:
    """The CUDA runtime that torch has loaded into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "libcudart" in line)


class CudaClient:
    """The process, by calls: `allocate`, `write`, `read`, `free`, as above."""

    def __init__(self, runtime: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, runtime), daemon=True)
        self._process.start()
        theirs.close()

    def allocate(self, nbytes: int) -> tuple[int, bytes]:
        """Its address there, and the handle of new memory."""
        return self._call("allocate", nbytes)

    def write(self, address: int, data: bytes) -> None:
        self._call("write", address, data)

    def read(self, address: int, nbytes: int) -> bytes:
        return self._call("read", address, nbytes)

    def free(self, address: int) -> None:
        self._call("free", address)

    def kill(self) -> None:
        self._process.kill()
        self._process.join(10)

    def _call(self, *call: object):
        self._connection.send(call)
        if not self._connection.poll(20):
            raise AssertionError(f"the client does not answer: {call[0]}")
        return self._connection.recv()

    def __enter__(self) -> CudaClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
