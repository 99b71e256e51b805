"""The fused gate/up product on torch tensors: one call of the native library.

out = act(x · W_gateᵀ) ⊙ (x · W_upᵀ)
"""

from __future__ import annotations

import torch

from service.kernels.checks import empty_output
from service.kernels.launcher import LIBRARY_CHOOSES, default_launcher
from service.kernels.library import KernelChoice
from service.kernels.ops import gate_up_op, gate_up_out_op


def gate_up(
    x: torch.Tensor,
    gate_up_weight: torch.Tensor,
    activation: str = "silu",
    *,
    out: torch.Tensor | None = None,
    choice: KernelChoice = LIBRARY_CHOOSES,
    weights_constant: bool = False,
) -> torch.Tensor:
    """The gated intermediate, in one kernel on the current stream.

    Nothing is allocated but `out`, and nothing waits. There is no gradient. Plain tensors go
    straight to the library, since torch's dispatcher costs as much host time as all the rest; what
    is traced, faked or subclassed goes through the custom op.

    Args:
        x: [tokens, hidden_size] bf16 or fp16 on a CUDA device, rows of adjacent elements at any
            distance that is a multiple of 8 elements. hidden_size is a multiple of 8.
        gate_up_weight: [2 · intermediate_size, hidden_size], gate first, of x's dtype and device,
            strided likewise. intermediate_size is a multiple of 8.
        activation: `silu`, `gelu_tanh` or `relu`.
        out: [tokens, intermediate_size] of x's dtype and device, strided likewise; must not
            overlap an input. By default a new tensor.
        choice: Kernel, order and grouping of output tiles; by default what the library chooses.
        weights_constant: The work enqueued last on the stream does not write the weights, so that
            they may be loaded before it has ended.

    Returns:
        `out`.

    Raises:
        InvalidArgument: a tensor or an option breaks a rule; `out` is untouched.
        KernelError: the device or the CUDA runtime refused; `out` is untouched.
        LibraryError: there is no usable libswiglu.so.
    """
    if torch.compiler.is_compiling() or type(x) is not torch.Tensor or not x.is_cuda:
        options = (activation, choice.config, choice.raster, choice.swizzle, weights_constant)
        if out is None:
            made: torch.Tensor = gate_up_op(x, gate_up_weight, *options)
            return made
        gate_up_out_op(x, gate_up_weight, out, *options)
        return out
    if out is None:
        out = empty_output(x, gate_up_weight)
    default_launcher()(x, gate_up_weight, out, activation, choice, weights_constant)
    return out
