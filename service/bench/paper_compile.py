"""torch.compile's ways to fuse gate, up and activation, with and without hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from service.bench.kernel_problem import Problem
from service.bench.kernel_variants import Calls, Options, compiled, eager, silu_mul

# What `mode="max-autotune-no-cudagraphs"` stands for (torch._inductor.list_mode_options), written
# out because a mode and options exclude each other. Without CUDA graphs of its own: every variant
# here is replayed from one.
_MAX_AUTOTUNE: Options = {
    "max_autotune": True,
    "coordinate_descent_tuning": True,
}
# Two kernels may join although they read nothing in common; independent kernels may share a launch.
_FUSE_MORE: Options = {"aggressive_fusion": True, "combo_kernels": True}
# By default cuBLAS competes and, where it wins, nothing can be fused into it. Triton templates
# alone leave every GEMM open for an epilogue, and without the benchmark of it it is always fused.
_INTO_TRITON: Options = {
    "max_autotune_gemm_backends": "TRITON",
    "epilogue_fusion": True,
    "benchmark_epilogue_fusion": False,
}


def merged_eager(x: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
    """Eager on merged weights: one GEMM, whose halves the activation takes.

    Args:
        x: [tokens, hidden].
        gate_up: [2 · intermediate, hidden], gate first.
    """
    return silu_mul(x @ gate_up.T)


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to call torch.compile.

    Attributes:
        name: In results files and tables.
        about: What is different, for a reader.
        options: Of inductor.
        function: What is compiled.
    """

    name: str
    about: str
    options: Options = field(default_factory=dict)
    function: Callable[..., torch.Tensor] = eager


MODES = (
    Mode("default", "as it comes: two cuBLAS GEMMs"),
    Mode("default, hints", "aggressive_fusion and combo_kernels on", _FUSE_MORE),
    Mode("max-autotune", "the fastest of cuBLAS and Triton for each GEMM", _MAX_AUTOTUNE),
    Mode(
        "max-autotune, hints",
        "Triton GEMMs only, so that up's can take silu·mul as its epilogue, which is always fused",
        {**_MAX_AUTOTUNE, **_FUSE_MORE, **_INTO_TRITON},
    ),
    Mode(
        "max-autotune, hints, merged",
        "the same on merged weights: one Triton GEMM on [2N, K]",
        {**_MAX_AUTOTUNE, **_FUSE_MORE, **_INTO_TRITON},
        merged_eager,
    ),
)


def make_mode_calls(mode: Mode, problem: Problem) -> Calls:
    """One call for each set of weights; the first one compiles."""
    function = compiled(mode.function, mode.options)
    return [partial(function, problem.x, weight) for weight in problem.weights]


def count_launches(call: Callable[[], object]) -> int | None:
    """Kernels that one call runs on the GPU; None where the profiler sees none.

    Timing comes before this: the profiler stays attached and slows later launches.
    """
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    seen = [
        event.name
        for event in profile.events()
        if event.device_type.name == "CUDA"
        and not event.is_user_annotation
        and not event.name.startswith("Mem")
    ]
    return len(seen) or None
