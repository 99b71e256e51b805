"""Made-up results of the paper's experiments, for what judges and shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from service.bench.kernel_problem import Size
from service.bench.kernel_results import KernelRow
from service.bench.paper_evidence import Evidence
from service.bench.paper_options import MODELS, PAPER_SIZES, WEIGHT_STDS
from service.bench.paper_results import CompileRow, MismatchRow, PaperResults, PartsRow
from service.kernels.dispatch_table import Tuned, TunedSize
from tests.bench.results import RUN, make_row

READ = 4.39e12
MODES = {"default": "as it comes", "max-autotune": "the fastest"}


def make_rows(**changes: Callable[[KernelRow], float | None]) -> tuple[KernelRow, ...]:
    """A row for each of the paper's sizes, with columns computed out of the row as it was."""
    rows = [make_row(size.model, size.tokens) for size in PAPER_SIZES]
    return tuple(
        replace(row, **{name: change(row) for name, change in changes.items()}) for row in rows
    )


def make_parts(size: Size, passes: float, share: float) -> PartsRow:
    """Elementwise kernels that take so many passes over [M, N], and so much of all the time."""
    elementwise = passes * 2 * size.tokens * size.intermediate / READ * 1e6
    gemms = elementwise * (1 - share) / share
    parts = (gemms / 3, gemms / 3, elementwise * 0.4, elementwise * 0.6, gemms / 3)
    return PartsRow(size.model, size.tokens, *parts, mlp_us=gemms + elementwise)


def make_paper(
    *,
    passes: float = 5.0,
    share: Callable[[Size], float] = lambda size: 0.37 if size.hidden < 1000 else 0.09,
    eager_off: Callable[[float], float] = lambda std: std,
    ours_off: float = 0.0,
    fp32_off: float = 0.0,
    speeds: tuple[float, float] = (0.9, 1.1),
    launches: int | None = 3,
) -> PaperResults:
    """One run; `speeds` are those of the two modes, of eager's, and ours is twice as fast."""
    counted = {} if launches is None else dict.fromkeys(MODES, launches)
    us = {"eager": 100.0, "fused": 50.0}
    us |= {mode: 100.0 / speed for mode, speed in zip(MODES, speeds, strict=True)}
    return PaperResults(
        about={**RUN, "command": "tilemlp bench paper"},
        modes=MODES,
        parts=[make_parts(size, passes, share(size)) for size in PAPER_SIZES],
        compiled=[CompileRow(MODELS[0], 2048, us, dict.fromkeys(MODES, 4.5), counted)],
        mismatch=[
            MismatchRow(
                model, std, eager_off(std), fp32_off, ours_off, ours_off, "k1_a", "pp_64x256_c1x1"
            )
            for model in MODELS
            for std in WEIGHT_STDS
        ],
    )


def make_evidence(
    rows: tuple[KernelRow, ...] | None = None,
    paper: PaperResults | None = None,
    read: float = READ,
    fused: tuple[float, float] = (690.0, 1500.0),
) -> Evidence:
    """Of one run on an H200 that timed `fused` at the given watts and MHz."""
    rows = make_rows() if rows is None else rows
    timing = {"us": 1.0, "watts": fused[0], "mhz": fused[1], "rounds_us": [1.0]}
    run = {
        **RUN,
        "multiprocessors": 132,
        "ceilings": {"hbm_read_bytes_per_s": read, "gemm_flops_per_s": 680e12},
        "sizes": [
            {"model": row.model, "tokens": row.tokens, "variants": {"fused": timing}}
            for row in rows
        ],
    }
    tuned = (
        TunedSize(896, 4864, 2048, (Tuned("k1_64x256_c2x1", "along_m", 1, 1.0),)),
        TunedSize(896, 4864, 256, (Tuned("pp_64x256_c1x1", "along_m", 1, 1.0),)),
    )
    return Evidence("h200", rows, (run,), tuned, paper)
