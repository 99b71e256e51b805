"""One weight tensor, checked once, for callers that multiply by it again and again."""

from __future__ import annotations

import torch

from service.kernels.checks import (
    ACTIVATIONS,
    DTYPES,
    check_activation,
    check_tensors,
    check_weight,
    refuse_device,
)
from service.kernels.launcher import (
    ARGS_SIZE,
    LIBRARY_CHOOSES,
    WEIGHTS_CONSTANT,
    Launcher,
    current_device,
    pack_args,
    stream_of,
)
from service.kernels.library import KernelChoice


class PreparedLaunch:
    """A launch on fixed weights and fixed tensors: nothing is left but the library's own call.

    Attributes:
        x: [tokens, hidden_size], kept alive; it must stay where it is in memory.
        out: [tokens, intermediate_size], likewise.
    """

    __slots__ = ("_args", "_bound", "out", "x")

    def __init__(self, bound: BoundLauncher, x: torch.Tensor, out: torch.Tensor) -> None:
        self.x = x
        self.out = out
        self._bound = bound
        self._args = bound.pack(x, out)

    def __call__(self, stream: int) -> None:
        """Enqueue on a stream of the tensors' device, as cudaStream_t; that device is current.

        Raises:
            KernelError: the device or the CUDA runtime refused; `out` is untouched.
        """
        self._bound.enqueue_packed(self._args, self.x, stream)


class BoundLauncher:
    """`swiglu.gate_up` on fixed weights, at half its host time.

    Attributes:
        gate_up_weight: [2 · intermediate_size, hidden_size], kept alive.
    """

    def __init__(
        self,
        launcher: Launcher,
        gate_up_weight: torch.Tensor,
        activation: str = "silu",
        *,
        choice: KernelChoice = LIBRARY_CHOOSES,
        weights_constant: bool = False,
    ) -> None:
        """Check the weights.

        Args:
            launcher: Of the library that has the kernels.
            gate_up_weight: As for `swiglu.gate_up`; it must stay where it is in memory.
            activation: `silu`, `gelu_tanh` or `relu`.
            choice: Kernel, order and grouping of output tiles; by default what the library chooses.
            weights_constant: No work on the streams of the calls writes the weights.

        Raises:
            InvalidArgument: a rule is broken.
        """
        check_activation(activation)
        check_weight(gate_up_weight)
        self.gate_up_weight = gate_up_weight.detach()
        self._launcher = launcher
        self._launch = launcher.library.launch_packed
        self._device = gate_up_weight.get_device()
        self._dtype = gate_up_weight.dtype
        rows, self._hidden_size = gate_up_weight.shape
        self._intermediate_size = rows // 2
        self._head = (
            ARGS_SIZE,
            DTYPES[self._dtype],
            ACTIVATIONS[activation],
            choice.config,
            choice.raster,
            choice.swizzle,
            0,
            WEIGHTS_CONSTANT if weights_constant else 0,
        )
        self._sizes = (self._intermediate_size, self._hidden_size)
        self._weight = (gate_up_weight.data_ptr(), gate_up_weight.stride(0))

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Enqueue the product on the current stream of the weights' device.

        Args:
            x: [tokens, hidden_size] of the weights' dtype and device.
            out: [tokens, intermediate_size], likewise; must not overlap an input.

        Raises:
            InvalidArgument: a rule is broken; `out` is untouched.
            KernelError: the device or the CUDA runtime refused; `out` is untouched.
        """
        device = self._device
        if not self._is_sound(x, out):
            check_tensors(x, self.gate_up_weight, out)
        if device < 0:
            refuse_device(x)
        if device == current_device():
            self.enqueue(x, out, stream_of(device))
        else:
            with torch.cuda.device(device):
                self.enqueue(x, out, stream_of(device))

    def prepare(self, x: torch.Tensor, out: torch.Tensor) -> PreparedLaunch:
        """The same for tensors that are used again and again, such as a slot's buffers.

        Raises:
            InvalidArgument: a rule is broken.
        """
        check_tensors(x, self.gate_up_weight, out)
        return PreparedLaunch(self, x, out)

    def enqueue(self, x: torch.Tensor, out: torch.Tensor, stream: int) -> None:
        """Enqueue on a stream of the current device, for tensors that were checked."""
        self.enqueue_packed(self.pack(x, out), x, stream)

    def pack(self, x: torch.Tensor, out: torch.Tensor) -> bytes:
        """swiglu_args_t for tensors that were checked."""
        tokens = x.shape[0]
        if tokens > 1:
            x_stride, out_stride = x.stride()[0], out.stride()[0]
        else:
            # torch lets the distance to a row that is not there be anything.
            x_stride, out_stride = self._hidden_size, self._intermediate_size
        return pack_args(
            *self._head,
            tokens,
            *self._sizes,
            x.data_ptr(),
            x_stride,
            *self._weight,
            out.data_ptr(),
            out_stride,
        )

    def enqueue_packed(self, args: bytes, x: torch.Tensor, stream: int) -> None:
        """Enqueue what `pack` made of `x`."""
        status = self._launch(args, None, 0, stream)
        if status:
            self._launcher.again_or_raise(status, args, x, stream)

    def _is_sound(self, x: torch.Tensor, out: torch.Tensor) -> bool:
        """Whether `check_tensors` has nothing to say, for the common case, quickly."""
        x_shape, out_shape = x.shape, out.shape
        dtype, device = self._dtype, self._device
        return (
            len(x_shape) == len(out_shape) == 2
            and x_shape[1] == self._hidden_size
            and out_shape[1] == self._intermediate_size
            and x_shape[0] == out_shape[0]
            and x.dtype is dtype
            and out.dtype is dtype
            and x.get_device() == device
            and out.get_device() == device
            and x.stride()[1] == 1
            and out.stride()[1] == 1
            and not x.requires_grad
        )
