"""What the native library cannot see of torch tensors in pointers, extents and strides."""

from __future__ import annotations

from typing import NoReturn

import torch

from service.kernels.abi import ActivationCode, DTypeCode
from service.kernels.errors import InvalidArgument

DTYPES = {torch.bfloat16: int(DTypeCode.BF16), torch.float16: int(DTypeCode.FP16)}
ACTIVATIONS = {
    "silu": int(ActivationCode.SILU),
    "gelu_tanh": int(ActivationCode.GELU_TANH),
    "relu": int(ActivationCode.RELU),
}


def empty_output(x: torch.Tensor, gate_up_weight: torch.Tensor) -> torch.Tensor:
    """A new [tokens, intermediate_size] of x's dtype and device.

    Raises:
        InvalidArgument: one of the two is not a matrix.
    """
    if x.dim() != 2 or gate_up_weight.dim() != 2:
        _check_matrix("x", x)
        _check_matrix("gate_up_weight", gate_up_weight)
    return x.new_empty((x.shape[0], gate_up_weight.shape[0] // 2))


def check_tensors(x: torch.Tensor, gate_up_weight: torch.Tensor, out: torch.Tensor) -> None:
    """What the library cannot see in pointers, extents and strides.

    Raises:
        InvalidArgument: a rule is broken.
    """
    _check_operands("gate_up_weight", x, gate_up_weight, out)
    rows = gate_up_weight.shape[0]
    _check_even(rows)
    _check_shape_of_out(out, x.shape[0], rows // 2)
    _check_no_gradients("gate_up_weight", x, gate_up_weight)


def check_down_tensors(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """The same for a down projection.

    Raises:
        InvalidArgument: a rule is broken.
    """
    _check_operands("weight", x, weight, out)
    _check_shape_of_out(out, x.shape[0], weight.shape[0])
    _check_no_gradients("weight", x, weight)


def check_weight(gate_up_weight: torch.Tensor) -> None:
    """What of `check_tensors` the weights alone can break.

    Raises:
        InvalidArgument: a rule is broken.
    """
    _check_dtype("gate_up_weight", gate_up_weight)
    _check_matrix("gate_up_weight", gate_up_weight)
    _check_rows("gate_up_weight", gate_up_weight)
    _check_even(gate_up_weight.shape[0])


def check_activation(activation: str) -> None:
    """Refuse the name of an activation that the kernels do not have.

    Raises:
        InvalidArgument: it is none of theirs.
    """
    if activation not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        raise InvalidArgument(f"activation: must be one of {names}, is {activation!r}")


def _check_operands(
    weight_name: str, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor
) -> None:
    _check_dtype("x", x)
    for name, tensor in (("x", x), (weight_name, weight), ("out", out)):
        _check_matrix(name, tensor)
        if tensor.dtype != x.dtype:
            raise InvalidArgument(f"{name}: must be of x's {x.dtype}, is of {tensor.dtype}")
        if tensor.device != x.device:
            raise InvalidArgument(f"{name}: must be on x's {x.device}, is on {tensor.device}")
        _check_rows(name, tensor)
    columns = weight.shape[1]
    if columns != x.shape[1]:
        raise InvalidArgument(f"{weight_name}: must have x's {x.shape[1]} columns, has {columns}")


def _check_shape_of_out(out: torch.Tensor, tokens: int, columns: int) -> None:
    if out.shape != (tokens, columns):
        raise InvalidArgument(f"out: must have shape {[tokens, columns]}, has {list(out.shape)}")


def _check_no_gradients(weight_name: str, x: torch.Tensor, weight: torch.Tensor) -> None:
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        raise InvalidArgument(f"x, {weight_name}: must not require gradients, there is none")


def _check_dtype(name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype not in DTYPES:
        raise InvalidArgument(
            f"{name}: must be of torch.bfloat16 or torch.float16, is of {tensor.dtype}"
        )


def _check_rows(name: str, tensor: torch.Tensor) -> None:
    if tensor.stride(1) != 1 and tensor.shape[1] > 1:
        raise InvalidArgument(
            f"{name}: elements of a row must be adjacent, are {tensor.stride(1)} apart"
        )


def _check_even(rows: int) -> None:
    if rows % 2:
        raise InvalidArgument(f"gate_up_weight: must have an even number of rows, has {rows}")


def _check_matrix(name: str, tensor: torch.Tensor) -> None:
    if tensor.dim() != 2:
        raise InvalidArgument(f"{name}: must have 2 dimensions, has shape {list(tensor.shape)}")


def refuse_device(x: torch.Tensor) -> NoReturn:
    """Say that the kernels run on GPUs.

    Raises:
        InvalidArgument: always.
    """
    raise InvalidArgument(f"x: must be on a CUDA device, is on {x.device}")
