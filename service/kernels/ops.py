"""The fused product as torch custom ops, so that torch.compile and fake tensors know it.

    tilemlp::gate_up(x, gate_up_weight, activation, config, raster, swizzle, …) -> out
    tilemlp::gate_up_out(x, gate_up_weight, out, activation, config, raster, swizzle, …)

Registered with a Library object: the decorator `torch.library.custom_op` would double what a call
costs the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from service.kernels.checks import check_activation, check_tensors, empty_output
from service.kernels.launcher import default_launcher
from service.kernels.library import KernelChoice

_OPTIONS = (
    'str activation="silu", int config=-1, int raster=0, int swizzle=0, bool weights_constant=False'
)
_SCHEMAS = (
    f"gate_up(Tensor x, Tensor gate_up_weight, {_OPTIONS}) -> Tensor",
    f"gate_up_out(Tensor x, Tensor gate_up_weight, Tensor(a!) out, {_OPTIONS}) -> ()",
)


def _gate_up(  # noqa: PLR0917 - the schema's order
    x: torch.Tensor,
    gate_up_weight: torch.Tensor,
    activation: str = "silu",
    config: int = -1,
    raster: int = 0,
    swizzle: int = 0,
    weights_constant: bool = False,
) -> torch.Tensor:
    out = empty_output(x, gate_up_weight)
    choice = KernelChoice(config, raster, swizzle)
    default_launcher()(x, gate_up_weight, out, activation, choice, weights_constant)
    return out


def _gate_up_out(  # noqa: PLR0917 - the schema's order
    x: torch.Tensor,
    gate_up_weight: torch.Tensor,
    out: torch.Tensor,
    activation: str = "silu",
    config: int = -1,
    raster: int = 0,
    swizzle: int = 0,
    weights_constant: bool = False,
) -> None:
    choice = KernelChoice(config, raster, swizzle)
    default_launcher()(x, gate_up_weight, out, activation, choice, weights_constant)


def _fake_gate_up(
    x: torch.Tensor, gate_up_weight: torch.Tensor, activation: str = "silu", *options: int
) -> torch.Tensor:
    out = empty_output(x, gate_up_weight)
    _fake_gate_up_out(x, gate_up_weight, out, activation, *options)
    return out


def _fake_gate_up_out(
    x: torch.Tensor,
    gate_up_weight: torch.Tensor,
    out: torch.Tensor,
    activation: str = "silu",
    *options: int,
) -> None:
    del options
    check_activation(activation)
    check_tensors(x, gate_up_weight, out)


def _register(library: torch.library.Library) -> None:
    for schema in _SCHEMAS:
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    implementations: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
        "gate_up": (_gate_up, _fake_gate_up),
        "gate_up_out": (_gate_up_out, _fake_gate_up_out),
    }
    for name, (real, fake) in implementations.items():
        # CPU as well, where the launcher refuses in one sentence and the dispatcher in pages.
        for key in ("CUDA", "CPU"):
            library.impl(name, real, key)  # type: ignore[no-untyped-call]
        torch.library.register_fake(f"tilemlp::{name}", fake, lib=library)


# Kept, since its end takes the ops away.
_library = torch.library.Library("tilemlp", "DEF")  # type: ignore[no-untyped-call]
_register(_library)
gate_up_op = torch.ops.tilemlp.gate_up.default
gate_up_out_op = torch.ops.tilemlp.gate_up_out.default
