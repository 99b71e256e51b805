"""What README.md says of the decode benchmark, rendered from the results files."""

from __future__ import annotations

from pathlib import Path

from service.bench.decode_results import DecodeRow, read_decode_rows
from service.bench.kernel_results import read_about
from service.bench.markdown import describe_run, markdown_table

_HEADER = (
    "model",
    "tokens",
    "gate/up: eager",
    "GEMM alone",
    "fused",
    "of HBM",
    "eager/fused",
    "fused/GEMM",
    "down: cuBLAS",
    "ours",
    "of HBM",
    "MLP: eager",
    "merged",
    "ours",
    "of HBM",
    "eager/ours",
    "merged/ours",
)


def decode_bench_table(results: Path) -> str:
    """What `tilemlp bench decode` last wrote for every GPU; a sentence where it never ran."""
    paths = sorted(results.glob("*-decode.csv"))
    return "\n\n".join(_of_gpu(path) for path in paths) or "Not measured yet."


def _of_gpu(path: Path) -> str:
    rows = read_decode_rows(path)
    conditions = " ".join(describe_run(run) for run in read_about(path.with_suffix(".json")))
    return (
        f"{markdown_table(_HEADER, (_cells(row) for row in rows))}\n\nMicroseconds a call. Of HBM: "
        f"bytes that have to be read or written, over time, of the read rate of the same run. "
        f"{conditions}"
    )


def _cells(row: DecodeRow) -> tuple[str, ...]:
    return (
        row.model,
        str(row.tokens),
        f"{row.gate_up_eager_us:.1f}",
        f"{row.gate_up_gemm_us:.1f}",
        f"{row.gate_up_us:.1f}",
        f"{row.gate_up_hbm:.2f}",
        f"{row.gate_up_eager_us / row.gate_up_us:.2f}",
        f"{row.gate_up_us / row.gate_up_gemm_us:.2f}",
        f"{row.down_gemm_us:.1f}",
        f"{row.down_us:.1f}",
        f"{row.down_hbm:.2f}",
        f"{row.mlp_eager_us:.1f}",
        f"{row.mlp_merged_us:.1f}",
        f"{row.mlp_us:.1f}",
        f"{row.mlp_hbm:.2f}",
        f"{row.mlp_eager_us / row.mlp_us:.2f}",
        f"{row.mlp_merged_us / row.mlp_us:.2f}",
    )
