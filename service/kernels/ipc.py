"""csrc/include/swiglu/ipc.h for Python: device memory that another process shares."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from service.kernels.errors import InvalidArgument
from service.kernels.library import Library, bind

# SWIGLU_IPC_HANDLE_BYTES.
HANDLE_BYTES = 64

_POINTER = ctypes.c_void_p

# name: (result, arguments), in the order of the header.
PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "swiglu_ipc_open": (
        ctypes.c_int,
        (
            ctypes.c_char_p,
            ctypes.POINTER(_POINTER),
            ctypes.POINTER(ctypes.c_int64),
            ctypes.POINTER(ctypes.c_int32),
        ),
    ),
    "swiglu_ipc_close": (ctypes.c_int, (_POINTER,)),
}


class Mapped(NamedTuple):
    """Memory of a device that another process allocated.

    Attributes:
        address: Where it begins, for this process.
        nbytes: From there on, as far as the driver tells.
        device: The one it lies on.
    """

    address: int
    nbytes: int
    device: int


class Ipc:
    """The functions of ipc.h in one library."""

    def __init__(self, library: Library) -> None:
        """Bind.

        Raises:
            LibraryError: the library lacks one of the functions.
        """
        bind(library, PROTOTYPES)
        self._library = library

    def open(self, handle: bytes) -> Mapped:
        """Map the memory of a handle for the current device; open already, it is opened once more.

        Args:
            handle: The HANDLE_BYTES of a cudaIpcMemHandle_t.

        Raises:
            InvalidArgument: it has another length.
            CudaError: CUDA refuses.
        """
        if len(handle) != HANDLE_BYTES:
            raise InvalidArgument(f"handle: must have {HANDLE_BYTES} bytes, has {len(handle)}")
        address, nbytes, device = _POINTER(), ctypes.c_int64(), ctypes.c_int32()
        self._library.check(
            self._library.functions.swiglu_ipc_open(
                handle, ctypes.byref(address), ctypes.byref(nbytes), ctypes.byref(device)
            )
        )
        assert address.value is not None
        return Mapped(address.value, nbytes.value, device.value)

    def close(self, address: int) -> None:
        """Undo one `open`.

        Raises:
            CudaError: CUDA refuses.
        """
        self._library.check(self._library.functions.swiglu_ipc_close(address))
