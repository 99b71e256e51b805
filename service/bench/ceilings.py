"""What the card reaches in this run by kernels that are not ours: the scale to read times on."""

from __future__ import annotations

from functools import partial

import torch

from service.kernels.bound import BoundLauncher
from service.kernels.launcher import Launcher, stream_of
from service.kernels.ops import gate_up_op
from service.kernels.swiglu import gate_up
from service.kernels.timing import CapturedCalls, Steadiness, host_us

_READ_BYTES = 1 << 32
_SIDE = 8192


def measure_ceilings(steadiness: Steadiness) -> dict[str, float]:
    """Bytes per second read from memory, and FLOP/s of a large cuBLAS GEMM in bf16."""
    return {
        "hbm_read_bytes_per_s": _read_rate(steadiness),
        "gemm_flops_per_s": _gemm_rate(steadiness),
    }


def _read_rate(steadiness: Steadiness) -> float:
    """The best of two reductions over 4 GiB, which read everything and write nothing."""
    data = torch.randn(_READ_BYTES // 4, device="cuda")
    times = [
        CapturedCalls([partial(reduce, data)]).visit(steadiness).us
        for reduce in (torch.sum, torch.amax)
    ]
    return _READ_BYTES / min(times) * 1e6


def _gemm_rate(steadiness: Steadiness) -> float:
    a, b, c = (torch.randn(_SIDE, _SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    us = CapturedCalls([lambda: torch.mm(a, b, out=c)]).visit(steadiness).us
    return float(2 * _SIDE**3 / us * 1e6)


def measure_host_us(launcher: Launcher) -> dict[str, float]:
    """Host microseconds of one call, by way of calling, on a problem too small to matter.

    With no tokens nothing is launched, which leaves what our Python takes, checks in C included.
    """
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(272, 64, device="cuda", dtype=torch.bfloat16)
    out = x.new_empty(64, 136)
    none, no_out = x[:0], out[:0]
    bound = BoundLauncher(launcher, weight)
    prepared, stream = bound.prepare(x, out), stream_of(x.get_device())
    found = {
        "prepared": host_us(lambda: prepared(stream)),
        "bound, no tokens": host_us(lambda: bound(none, no_out)),
        "bound": host_us(lambda: bound(x, out)),
        "launcher, no tokens": host_us(lambda: launcher(none, weight, no_out)),
        "launcher": host_us(lambda: launcher(x, weight, out)),
        "gate_up into out": host_us(lambda: gate_up(x, weight, out=out)),
        "gate_up": host_us(lambda: gate_up(x, weight)),
        "custom op": host_us(lambda: gate_up_op(x, weight)),
        "torch.mm into out": host_us(lambda: torch.mm(x, weight.T[:, :136], out=out)),
    }
    return {name: round(us, 2) for name, us in found.items()}
