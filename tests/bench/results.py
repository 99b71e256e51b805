"""A made-up results file, for what reads one."""

from __future__ import annotations

from pathlib import Path

from service.bench.kernel_problem import Size
from service.bench.kernel_results import KernelRow, write_about, write_rows

RUN = {
    "command": "tilemlp bench kernels",
    "date": "2026-11-30T10:00:00+00:00",
    "commit": "0123456789ab",
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "cuda": "13.0",
    "power_limit_watts": 700.0,
    "library": "cutlass=4.2.0 cudart=13000",
    "versions": {"torch": "2.11.0"},
    "host_us": {"prepared": 6.5, "bound": 9.25, "something else": 1.0},
    "ceilings": {"hbm_read_bytes_per_s": 4.39e12, "gemm_flops_per_s": 680e12},
}


def make_row(model: str, tokens: int, *, quack: bool = True) -> KernelRow:
    """Times at 80 % of the roofline for the GEMM, and in proportion for the rest."""
    size = Size(model, tokens)
    gemm_us = max(size.flops / 680e12, size.bytes / 4.39e12) * 1e6 / 0.8
    return KernelRow(
        model,
        tokens,
        size.hidden,
        size.intermediate,
        eager_us=gemm_us * 1.5,
        compile_us=gemm_us * 1.4,
        merged_us=gemm_us * 1.25,
        gemm_us=gemm_us,
        quack_us=gemm_us * 0.97 if quack else None,
        kernel2_us=gemm_us * 0.95,
        fused_us=gemm_us * 0.96,
        chosen="pp_128x192_c2x1",
        mismatch_eager=0.0011,
        mismatch_fused=0.0000374,
        hbm_fraction=0.5,
    )


def write_results(folder: Path) -> Path:
    rows = [make_row("qwen2.5-0.5b", 16, quack=False), make_row("qwen2.5-0.5b", 2048)]
    rows += [make_row("qwen2.5-72b", 16), make_row("qwen2.5-72b", 8192)]
    path = folder / "h200-kernels.csv"
    write_rows(path, rows)
    write_about(path.with_suffix(".json"), [RUN])
    return path
