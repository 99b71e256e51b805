"""What the README shows of a kernels results file."""

from __future__ import annotations

from dataclasses import replace

from service.bench.kernel_results import read_rows, write_rows
from service.bench.kernel_table import kernel_bench_table
from tests.bench.results import write_results


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_pictures_rows_and_conditions(tmp_path):
    write_results(tmp_path)
    text = kernel_bench_table(tmp_path)
    assert "![speedup](service/bench/results/h200-kernels-speedup.png)" in text
    _, table = text.split("<details>")
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 4
    first = cells(lines[2])
    assert first[:2] == ["qwen2.5-0.5b", "16"]
    assert first[6] == first[7] == ""  # neither QuACK nor Kernel-1 was run
    assert first[10:] == ["1.560", "0.960", "`pp_128x192_c2x1`", "0.110 %, 0.004 %", "0.50"]
    for part in ("NVIDIA H200, limit 700 W", "torch 2.11.0", "0123456789ab", "4.39 TB/s"):
        assert part in text


def test_in_short_it_is_about_large_batches_and_a_call(tmp_path):
    path = write_results(tmp_path)
    rows = read_rows(path)
    times = {2048: 80.0, 8192: 125.0}
    write_rows(
        path,
        [
            replace(row, gemm_us=100.0, quack_us=None, fused_us=times.get(row.tokens, 1e6))
            for row in rows
        ],
    )
    text, _ = kernel_bench_table(tmp_path).split("<details>")
    found = {cells(line)[0]: cells(line)[1:] for line in text.splitlines() if line.startswith("|")}
    assert found["cuBLAS's bare GEMM"] == ["1.000", "0.800", "1.250", "2"]
    assert "QuACK" not in found  # nowhere measured
    assert "prepared 6.5, bound 9.25." in text
