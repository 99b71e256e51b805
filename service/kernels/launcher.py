"""From torch tensors to one launch of the native library: checks, arguments, stream, workspace."""

from __future__ import annotations

import ctypes
import threading
from struct import Struct

import torch

from service.kernels.abi import Args, Flag, Status
from service.kernels.checks import (
    ACTIVATIONS,
    DTYPES,
    check_activation,
    check_tensors,
    refuse_device,
)
from service.kernels.library import KernelChoice, Library, default_library

LIBRARY_CHOOSES = KernelChoice()
WEIGHTS_CONSTANT = int(Flag.WEIGHTS_CONSTANT)

# All fields of swiglu_args_t in one call: set one by one they take 0.1 µs each. The library reads
# the bytes without the GIL, so every call has its own.
_LAYOUT = Struct("@I7i9q")
assert _LAYOUT.size == ctypes.sizeof(Args)
pack_args = _LAYOUT.pack
ARGS_SIZE = _LAYOUT.size


class Launcher:
    """Launches one library's kernels on torch tensors.

    Attributes:
        library: Where the kernels are.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._launch = library.launch_packed
        self._workspaces: dict[tuple[int, int], torch.Tensor] = {}
        self._lock = threading.Lock()

    def __call__(  # noqa: PLR0917 - keywords would cost 0.2 µs a call
        self,
        x: torch.Tensor,
        gate_up_weight: torch.Tensor,
        out: torch.Tensor,
        activation: str = "silu",
        choice: KernelChoice = LIBRARY_CHOOSES,
        weights_constant: bool = False,
    ) -> None:
        """Enqueue on the current stream of the tensors' device; as `swiglu.gate_up`, into `out`."""
        device = x.get_device()
        if not _is_sound(x, gate_up_weight, out):
            check_tensors(x, gate_up_weight, out)
        if device < 0:
            refuse_device(x)
        flags = WEIGHTS_CONSTANT if weights_constant else 0
        if device == current_device():
            self.enqueue(x, gate_up_weight, out, activation, choice, flags, stream_of(device))
        else:
            with torch.cuda.device(device):
                self.enqueue(x, gate_up_weight, out, activation, choice, flags, stream_of(device))

    def enqueue(  # noqa: PLR0917 - keywords would cost 0.2 µs a call
        self,
        x: torch.Tensor,
        gate_up_weight: torch.Tensor,
        out: torch.Tensor,
        activation: str,
        choice: KernelChoice,
        flags: int,
        stream: int,
    ) -> None:
        """Enqueue on a stream of the current device, for tensors that were checked."""
        code = ACTIVATIONS.get(activation)
        if code is None:
            check_activation(activation)
        tokens, hidden_size = x.shape
        intermediate_size = out.shape[1]
        args = pack_args(
            ARGS_SIZE,
            DTYPES[x.dtype],
            code,
            choice.config,
            choice.raster,
            choice.swizzle,
            0,
            flags,
            tokens,
            intermediate_size,
            hidden_size,
            x.data_ptr(),
            # torch lets the distance to a row that is not there be anything.
            x.stride(0) if tokens > 1 else hidden_size,
            gate_up_weight.data_ptr(),
            gate_up_weight.stride(0),
            out.data_ptr(),
            out.stride(0) if tokens > 1 else intermediate_size,
        )
        status = self._launch(args, None, 0, stream)
        if status:
            self.again_or_raise(status, args, x, stream)

    def again_or_raise(self, status: int, args: bytes, x: torch.Tensor, stream: int) -> None:
        """Launch once more with the workspace that was missing; raise for any other reason."""
        if status != Status.WORKSPACE_TOO_SMALL:
            self.library.check(status)
        size = self.library.workspace_size(Args.from_buffer_copy(args))
        workspace = self._workspace(x, stream, size)
        self.library.check(self._launch(args, workspace.data_ptr(), workspace.numel(), stream))

    def _workspace(self, x: torch.Tensor, stream: int, size: int) -> torch.Tensor:
        """Bytes that launches on one stream share, since they run one after the other."""
        key = (x.get_device(), stream)
        with self._lock:
            found = self._workspaces.get(key)
            if found is None or found.numel() < size:
                found = self._workspaces[key] = x.new_empty(size, dtype=torch.uint8)
            return found


def _is_sound(x: torch.Tensor, gate_up_weight: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether `check_tensors` has nothing to say, for the common case at a third of its time."""
    dtype, device = x.dtype, x.get_device()
    x_shape, weight_shape, out_shape = x.shape, gate_up_weight.shape, out.shape
    return (
        len(x_shape) == len(weight_shape) == len(out_shape) == 2
        and dtype in DTYPES
        and gate_up_weight.dtype is dtype
        and out.dtype is dtype
        and gate_up_weight.get_device() == device
        and out.get_device() == device
        and x_shape[1] == weight_shape[1]
        and x_shape[0] == out_shape[0]
        and weight_shape[0] == 2 * out_shape[1]
        and x.stride(1) == 1
        and gate_up_weight.stride(1) == 1
        and out.stride(1) == 1
        and not ((x.requires_grad or gate_up_weight.requires_grad) and torch.is_grad_enabled())
    )


def current_device() -> int:
    """The calling thread's device.

    `torch.cuda.current_device` asks first whether CUDA is there at all; where a tensor is on a
    device, it is.
    """
    device: int = torch._C._cuda_getDevice()
    return device


def stream_of(device: int) -> int:
    """The current stream of a device, as cudaStream_t.

    `torch.cuda.current_stream` makes an object of it first, which takes 2 µs.
    """
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


_default: list[Launcher] = []


def default_launcher() -> Launcher:
    """The launcher of this installation's library, made once.

    Raises:
        LibraryError: there is no usable libswiglu.so.
    """
    if not _default:
        _default.append(Launcher(default_library()))
    return _default[0]
