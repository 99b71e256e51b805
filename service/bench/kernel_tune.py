"""`tilemlp bench kernels --tune`: sweep every size into the dispatch table of this GPU."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

from service.bench.environment import describe_environment
from service.bench.gpu import describe_gpu
from service.bench.kernel_options import KernelBenchOptions, Progress, require_gpu
from service.bench.kernel_problem import Size, draw_problems
from service.bench.kernel_variants import make_calls
from service.bench.kernels import PACKAGES
from service.engine.gpus import gpu_slug
from service.kernels.dispatch_table import TunedSize, read_table, write_table
from service.kernels.launcher import default_launcher
from service.kernels.timing import CapturedCalls
from service.kernels.tuner import Found, measure_again, tune


def run_tune(options: KernelBenchOptions, progress: Progress) -> list[str]:
    """Sweep every size, then measure the best of each again; write the GPU's table after each.

    Returns:
        Lines to print.

    Raises:
        ConfigError: there is no GPU.
        LibraryError: there is no usable libswiglu.so.
    """
    require_gpu()
    launcher = default_launcher()
    gpu = describe_gpu()
    about: dict[str, object] = {
        **describe_environment(options.command, PACKAGES, options.commit),
        **gpu,
        "library": launcher.library.build_info,
        "steadiness": asdict(options.steadiness),
    }
    path = options.table_path(gpu_slug(str(gpu["gpu"])))
    rows: dict[tuple[int, int, int], TunedSize] = {}
    if options.add and path.exists():
        rows = {_key(size): size for size in read_table(path)}
        about["earlier"] = _earlier_runs(path)
    found: dict[Size, Found] = {}
    num_sms = int(str(gpu["multiprocessors"]))
    began, sizes = time.monotonic(), options.sizes
    for index, problem in enumerate(chain(draw_problems(sizes), draw_problems(sizes))):
        size = problem.size
        if time.monotonic() - began > options.budget_s:
            break
        progress(index, 2 * len(sizes), f"{size.model}, {size.tokens} tokens")
        if index < len(sizes):
            gemm = {"gemm": CapturedCalls(make_calls("gemm", problem))}
            found[size] = tune(launcher, problem.operands, num_sms, options.steadiness, gemm)
        else:
            first = found[size]
            ranked = measure_again(launcher, problem.operands, first.tuned, options.steadiness)
            found[size] = replace(first, tuned=ranked)
        rows[_key(found[size].tuned)] = found[size].tuned
        write_table(path, about, [rows[key] for key in sorted(rows)])
    return [_line(size, entry) for size, entry in found.items()]


def _earlier_runs(path: Path) -> list[dict[str, object]]:
    """What the rows that stay were measured under, oldest first."""
    document = json.loads(path.read_text())
    del document["sizes"]
    return [*document.pop("earlier", []), document]


def _key(size: TunedSize) -> tuple[int, int, int]:
    return size.hidden, size.intermediate, size.tokens


def _line(size: Size, found: Found) -> str:
    gemm_us = found.others["gemm"].us
    best = found.tuned.ranked[0]
    others = ", ".join(
        f"{tuned.config} {tuned.raster} {tuned.swizzle} {tuned.us / gemm_us:.3f}"
        for tuned in found.tuned.ranked[1:]
    )
    return (
        f"{size.model:13} {size.tokens:6}  {best.config:16} {best.raster:8} {best.swizzle:2} "
        f"{best.us:9.1f} µs, {best.us / gemm_us:.3f} of the GEMM; the library's choice "
        f"{found.chosen_us / gemm_us:.3f}; {others}"
    )
