"""The down projection of few tokens on torch tensors: one launch of the native library.

out = x · W_downᵀ
"""

from __future__ import annotations

import ctypes
from struct import Struct

import torch

from service.kernels.abi import CONFIG_AUTO, DownArgs
from service.kernels.checks import DTYPES, check_down_tensors, refuse_device
from service.kernels.launcher import WEIGHTS_CONSTANT, current_device, stream_of
from service.kernels.library import Library

# Above it cuBLAS is level or faster at most sizes (csrc/NOTES.md, run 10).
FASTER_UP_TO_TOKENS = 32

_LAYOUT = Struct("@I3i9q")
assert _LAYOUT.size == ctypes.sizeof(DownArgs)


class DownLauncher:
    """Launches one library's down projections.

    Attributes:
        library: Where the kernels are.
    """

    def __init__(self, library: Library) -> None:
        self.library = library
        self._launch = library.launch_down_packed

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        config: int = CONFIG_AUTO,
        weights_constant: bool = False,
    ) -> None:
        """Enqueue on the current stream of the tensors' device.

        Any number of tokens is right; FASTER_UP_TO_TOKENS says up to where it pays.

        Args:
            x: [tokens, intermediate_size] bf16 or fp16 on a CUDA device, rows of adjacent elements
                at any distance that is a multiple of 8 elements. Sizes but tokens are multiples
                of 8.
            weight: [hidden_size, intermediate_size] of x's dtype and device, strided likewise.
            out: [tokens, hidden_size], likewise; must not overlap an input.
            config: Id of a kernel of `library.down_configs`; by default what the library chooses.
            weights_constant: The work enqueued last on the stream does not write the weights, so
                that they may be loaded before it has ended.

        Raises:
            InvalidArgument: a rule is broken; `out` is untouched.
            KernelError: the device or the CUDA runtime refused; `out` is untouched.
        """
        prepared = self.prepare(x, weight, out, config, weights_constant)
        device = x.get_device()
        if device < 0:
            refuse_device(x)
        if device == current_device():
            prepared(stream_of(device))
        else:
            with torch.cuda.device(device):
                prepared(stream_of(device))

    def prepare(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        config: int = CONFIG_AUTO,
        weights_constant: bool = False,
    ) -> PreparedDown:
        """The same for tensors that are used again and again, such as a slot's buffers.

        Raises:
            InvalidArgument: a rule is broken.
        """
        check_down_tensors(x, weight, out)
        return PreparedDown(self, (x, weight, out), config, weights_constant)

    def enqueue_packed(self, args: bytes, stream: int) -> None:
        """Enqueue a packed swiglu_down_args_t on a stream of the current device."""
        status = self._launch(args, stream)
        if status:
            self.library.check(status)


class PreparedDown:
    """A down projection on fixed tensors: nothing is left but the library's own call.

    Attributes:
        x: [tokens, intermediate_size], kept alive; it must stay where it is in memory.
        weight: [hidden_size, intermediate_size], likewise.
        out: [tokens, hidden_size], likewise.
    """

    __slots__ = ("_args", "_launcher", "out", "weight", "x")

    def __init__(
        self,
        launcher: DownLauncher,
        tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        config: int,
        weights_constant: bool,
    ) -> None:
        self.x, self.weight, self.out = x, weight, out = tensors
        self._launcher = launcher
        tokens, intermediate_size = x.shape
        hidden_size = weight.shape[0]
        # torch lets the distance to a row that is not there be anything.
        several = tokens > 1
        self._args = _LAYOUT.pack(
            _LAYOUT.size,
            DTYPES[x.dtype],
            config,
            WEIGHTS_CONSTANT if weights_constant else 0,
            tokens,
            hidden_size,
            intermediate_size,
            x.data_ptr(),
            x.stride(0) if several else intermediate_size,
            weight.data_ptr(),
            weight.stride(0),
            out.data_ptr(),
            out.stride(0) if several else hidden_size,
        )

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream of the tensors' device, as cudaStream_t; that device is current.

        Raises:
            KernelError: the device or the CUDA runtime refused; `out` is untouched.
        """
        self._launcher.enqueue_packed(self._args, stream)
