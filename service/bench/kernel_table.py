"""What README.md says of the kernels' benchmark, rendered from the results files."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.bench.kernel_choice import choices_in_short, read_choices
from service.bench.kernel_results import KernelRow, read_about, read_rows
from service.bench.markdown import describe_run, markdown_table

_LARGE_TOKENS = 1024
_OTHERS = {"eager": "eager_us", "cuBLAS's bare GEMM": "gemm_us", "QuACK": "quack_us"}
_HOST_CALLS = ("prepared", "bound", "gate_up into out", "torch.mm into out")


def kernel_bench_table(results: Path) -> str:
    """What `tilemlp bench kernels` last wrote for every GPU: pictures, times, conditions."""
    paths = sorted(results.glob("*-kernels.csv"))
    return "\n\n".join(_kernels_of_gpu(path) for path in paths)


def _kernels_of_gpu(path: Path) -> str:
    times = ("eager", "compile", "merged", "GEMM alone", "QuACK", "Kernel-1", "Kernel-2", "fused")
    ratios = ("eager/fused", "fused/GEMM")
    header = ("model", "tokens", *times, *ratios, "chosen", "off by 1 %", "of HBM")
    rows, runs = read_rows(path), read_about(path.with_suffix(".json"))
    table = markdown_table(header, (_kernel_cells(row) for row in rows))
    pictures = "\n".join(
        f"![{what}](service/bench/results/{path.stem}-{what}.png)"
        for what in ("speedup", "roofline")
    )
    conditions = " ".join(describe_run(run) for run in runs)
    return (
        f"{pictures}\n\n{_in_short(rows, runs)}\n\n<details><summary>All {len(rows)} sizes"
        f"</summary>\n\n{table}\n\nMicroseconds a call. Off by 1 %: elements of eager and of fused "
        f"that are more than 1 % away from FP64. {conditions}\n\n</details>"
    )


def _in_short(rows: Sequence[KernelRow], runs: Sequence[dict[str, Any]]) -> str:
    """How fused stands to the others at large batches, and what a call costs the host."""
    large = [row for row in rows if row.tokens >= _LARGE_TOKENS]
    lines = []
    for name, field in _OTHERS.items():
        ratios = [
            row.fused_us / other
            for row in large
            if row.fused_us and (other := getattr(row, field)) is not None
        ]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            lines.append(
                (name, f"{mean:.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}", str(len(ratios)))
            )
    header = (
        f"fused, from {_LARGE_TOKENS} tokens up, to",
        "geometric mean",
        "best",
        "worst",
        "sizes",
    )
    hosts = "; ".join(
        ", ".join(
            f"{name} {run['host_us'][name]}" for name in _HOST_CALLS if name in run["host_us"]
        )
        for run in runs
    )
    said = (
        markdown_table(header, lines),
        choices_in_short(read_choices(runs)),
        f"Host microseconds of one call from Python, one run after the other: {hosts}.",
    )
    return "\n\n".join(filter(None, said))


def _kernel_cells(row: KernelRow) -> tuple[str, ...]:
    names = ("eager", "compile", "merged", "gemm", "quack", "kernel1", "kernel2", "fused")
    times = [getattr(row, f"{name}_us") for name in names]
    shares = [
        f"{share * 100:.3f} %"
        for share in (row.mismatch_eager, row.mismatch_fused)
        if share is not None
    ]
    return (
        row.model,
        str(row.tokens),
        *("" if us is None else f"{us:.1f}" for us in times),
        _ratio(row.eager_us, row.fused_us),
        _ratio(row.fused_us, row.gemm_us),
        "" if row.chosen is None else f"`{row.chosen}`",
        ", ".join(shares),
        "" if row.hbm_fraction is None else f"{row.hbm_fraction:.2f}",
    )


def _ratio(above: float | None, below: float | None) -> str:
    return f"{above / below:.3f}" if above and below else ""
