"""How many elements each way of computing gets wrong, as the weights grow."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from service.bench.kernel_problem import ModelTensors, Problem, Size
from service.bench.kernel_variants import eager
from service.bench.paper_results import MismatchRow
from service.kernels import reference
from service.kernels.launcher import Launcher
from service.kernels.library import KernelChoice

# As many rows as are compared; the share of wrong elements does not depend on their number.
CHECKED_TOKENS = 512


def measure_mismatch(
    model: str, std: float, launcher: Launcher, choices: Mapping[int, KernelChoice]
) -> MismatchRow:
    """Shares off by more than 1 % from FP64, on weights drawn for this.

    Args:
        model: Preset.
        std: Standard deviation of the weights.
        launcher: Runs ours.
        choices: An instance of Kernel-1 and one of Kernel-2, by 1 and 2.
    """
    tensors = ModelTensors(model, CHECKED_TOKENS, std, sets=1)
    problem = Problem(Size(model, CHECKED_TOKENS), tensors)
    x, weight = problem.x, problem.weights[0]
    fp32 = reference.gated(x, weight, "silu", torch.float32).bfloat16()
    ours = {}
    for kernel, choice in choices.items():
        # What was not written must not pass for what the other one wrote.
        problem.out.fill_(float("nan"))
        launcher(x, weight, problem.out, "silu", choice)
        ours[kernel] = problem.off_by_one_percent(problem.out)
    names = {k: launcher.library.configs[choice.config].name for k, choice in choices.items()}
    return MismatchRow(
        model,
        std,
        eager=problem.off_by_one_percent(eager(x, weight)),
        fp32=problem.off_by_one_percent(fp32),
        kernel1=ours[1],
        kernel2=ours[2],
        config1=names[1],
        config2=names[2],
    )
