"""Torch tensors in, one swiglu_launch out; shared by the scripts of this folder that need a GPU."""

from __future__ import annotations

import ctypes

import torch

from tests.csrc import abi

DTYPES = {torch.bfloat16: abi.BF16, torch.float16: abi.FP16}


class Swiglu:
    """The library, called with torch tensors on the current stream."""

    def __init__(self, path: str) -> None:
        self.library = abi.load(path)
        self.configs = abi.configs(self.library)
        self.by_name = {config.name.decode(): config for config in self.configs}
        self.down_configs = abi.down_configs(self.library)
        self.down_by_name = {config.name.decode(): config for config in self.down_configs}

    def args(self, x, gate_up, out, /, **options) -> abi.Args:
        """Describe out = act(x W_gate^T) * (x W_up^T); options are fields of swiglu_args_t."""
        fields = {
            "struct_size": ctypes.sizeof(abi.Args),
            "dtype": DTYPES[x.dtype],
            "config": abi.CONFIG_AUTO,
            "m": x.shape[0],
            "n": gate_up.shape[0] // 2,
            "k": x.shape[1],
            "x": x.data_ptr(),
            "x_row_stride": x.stride(0),
            "gate_up": gate_up.data_ptr(),
            "gate_up_row_stride": gate_up.stride(0),
            "out": out.data_ptr(),
            "out_row_stride": out.stride(0),
        }
        return abi.Args(**{**fields, **options})

    def refusal(self, args: abi.Args) -> str:
        """Enqueue on torch's current stream; "" or the reason and sentence of a refusal."""
        stream = torch.cuda.current_stream().cuda_stream
        return self._said(self.library.swiglu_launch(ctypes.byref(args), None, 0, stream))

    def down_args(self, x, weight, out, /, **options) -> abi.DownArgs:
        """Describe out = x W^T; options are fields of swiglu_down_args_t."""
        fields = {
            "struct_size": ctypes.sizeof(abi.DownArgs),
            "dtype": DTYPES[x.dtype],
            "config": abi.CONFIG_AUTO,
            "m": x.shape[0],
            "n": weight.shape[0],
            "k": x.shape[1],
            "x": x.data_ptr(),
            "x_row_stride": x.stride(0),
            "weight": weight.data_ptr(),
            "weight_row_stride": weight.stride(0),
            "out": out.data_ptr(),
            "out_row_stride": out.stride(0),
        }
        return abi.DownArgs(**{**fields, **options})

    def down_refusal(self, args: abi.DownArgs) -> str:
        """As `refusal`, for a down projection."""
        stream = torch.cuda.current_stream().cuda_stream
        return self._said(self.library.swiglu_down_launch(ctypes.byref(args), stream))

    def launch_down(self, args: abi.DownArgs) -> None:
        """Enqueue on torch's current stream; raises with the library's sentence."""
        said = self.down_refusal(args)
        if said:
            raise RuntimeError(said)

    def down(self, x, weight, out, /, **options) -> None:
        """out = x W^T on torch's current stream."""
        self.launch_down(self.down_args(x, weight, out, **options))

    def _said(self, status: int) -> str:
        if status == abi.OK:
            return ""
        return f"{abi.STATUS[status]}: {self.library.swiglu_last_error().decode()}"

    def launch(self, args: abi.Args) -> None:
        """Enqueue on torch's current stream; raises with the library's sentence."""
        said = self.refusal(args)
        if said:
            raise RuntimeError(said)

    def weights(self, config: abi.Config, gate_up: torch.Tensor) -> torch.Tensor:
        """Return [gate; up] as this configuration reads it."""
        return interleave_rows(gate_up) if config.granularity == -1 else gate_up

    def __call__(self, x, gate_up, out, /, **options) -> None:
        self.launch(self.args(x, gate_up, out, **options))


def interleave_rows(gate_up: torch.Tensor) -> torch.Tensor:
    """Return [2N, K] with rows in groups of 8 gate and 8 up: what granularity -1 configs read."""
    n, k = gate_up.shape[0] // 2, gate_up.shape[1]
    return gate_up.view(2, n // 8, 8, k).transpose(0, 1).reshape(2 * n, k).contiguous()
