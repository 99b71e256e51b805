"""What the native library can answer with, as exceptions.

StartError
└── LibraryError          libswiglu.so is missing or cannot be used
EngineError
└── KernelError           a call was refused or failed
    ├── InvalidArgument   (also a ValueError) the caller's tensors or options
    ├── DeviceUnsupported no GPU code for this device in this build
    └── CudaError         the CUDA runtime refused; its words are in the message
"""

from __future__ import annotations

from service.errors import EngineError, StartError
from service.kernels.abi import Status


class LibraryError(StartError):
    """libswiglu.so is missing, cannot be loaded or has another ABI version."""


class KernelError(EngineError):
    """A call was refused or failed; of a kernel's, nothing was enqueued."""


class InvalidArgument(KernelError, ValueError):
    """A tensor or an option breaks a rule; the message names argument, rule and value."""


class DeviceUnsupported(KernelError):
    """This build of the library has no kernels for the tensors' device."""


class CudaError(KernelError):
    """The CUDA runtime refused a call."""


_CLASSES: dict[int, type[KernelError]] = {
    Status.INVALID_ARGUMENT: InvalidArgument,
    Status.INVALID_SHAPE: InvalidArgument,
    Status.MISALIGNED: InvalidArgument,
    Status.NOT_COMPILED: InvalidArgument,
    Status.UNSUPPORTED_DEVICE: DeviceUnsupported,
    Status.CUDA_ERROR: CudaError,
}


def make_error(status: int, sentence: str) -> KernelError:
    """The exception for a status other than OK, with the library's sentence."""
    return _CLASSES.get(status, KernelError)(sentence)
