"""What the README shows of a kernels results file."""

from __future__ import annotations

from service import readme
from tests.bench.results import write_results


def test_pictures_rows_and_conditions(monkeypatch, tmp_path):
    write_results(tmp_path)
    monkeypatch.setattr(readme, "RESULTS", tmp_path)
    text = readme.kernel_bench_table()
    assert "![speedup](service/bench/results/h200-kernels-speedup.png)" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 4
    first = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert first[:2] == ["qwen2.5-0.5b", "16"]
    assert first[6] == first[7] == ""  # neither QuACK nor Kernel-1 was run
    assert first[10:] == ["1.560", "0.960", "`pp_128x192_c2x1`", "0.110 %, 0.004 %", "0.50"]
    for part in ("NVIDIA H200, limit 700 W", "torch 2.11.0", "0123456789ab", "4.39 TB/s"):
        assert part in text
