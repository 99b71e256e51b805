"""The results files of `tilemlp bench kernels`: columns, numbers, merging, and refusals."""

from __future__ import annotations

import dataclasses

import pytest

from service.bench.kernel_results import (
    COLUMNS,
    KernelRow,
    csv_path,
    merge_rows,
    read_about,
    read_rows,
    write_about,
    write_rows,
)
from service.errors import ConfigError

FULL = KernelRow(
    "qwen2.5-0.5b", 2048, 896, 4864, 86.8, 80.1, 79.2, 63.3, 61.2, 62.5, 60.03, 60.01,
    "pp_128x192_c2x1", 0.0011, 0.0000374, 0.123,
)  # fmt: skip
SPARSE = KernelRow("qwen2.5-72b", 1, 8192, 29568, gemm_us=225.8)


def test_the_columns_are_the_ones_that_others_read():
    assert ",".join(COLUMNS) == (
        "model,tokens,hidden,intermediate,eager_us,compile_us,merged_us,gemm_us,quack_us,"
        "kernel1_us,kernel2_us,fused_us,chosen,mismatch_eager,mismatch_fused,hbm_fraction"
    )


def test_rows_come_back_and_what_was_not_run_is_empty(tmp_path):
    path = csv_path(tmp_path, "h200")
    assert path.name == "h200-kernels.csv"
    write_rows(path, [FULL, SPARSE])
    assert read_rows(path) == [FULL, SPARSE]
    lines = path.read_text().splitlines()
    assert lines[1] == (
        "qwen2.5-0.5b,2048,896,4864,86.80,80.10,79.20,63.30,61.20,62.50,60.03,60.01,"
        "pp_128x192_c2x1,0.0011000,0.0000374,0.1230"
    )
    assert lines[2] == "qwen2.5-72b,1,8192,29568,,,,225.80,,,,,,,,"


def test_rows_are_replaced_whole():
    newer = dataclasses.replace(SPARSE, model=FULL.model, tokens=FULL.tokens, hidden=896)
    newer = dataclasses.replace(newer, intermediate=4864)
    assert merge_rows([SPARSE, FULL], [newer]) == [newer, SPARSE]
    small = dataclasses.replace(FULL, tokens=16)
    assert merge_rows([], [SPARSE, FULL, small]) == [small, FULL, SPARSE]


def test_another_files_columns_are_refused(tmp_path):
    path = tmp_path / "h200-kernels.csv"
    with pytest.raises(ConfigError, match="must be a file that a run wrote"):
        read_rows(path)
    path.write_text("model,rows\nqwen,1\n")
    with pytest.raises(ConfigError, match="must have the columns model, tokens"):
        read_rows(path)


def test_runs_are_kept_beside_the_rows(tmp_path):
    path = tmp_path / "h200-kernels.json"
    assert read_about(path) == []
    write_about(path, [{"gpu": "NVIDIA H200"}, {"gpu": "NVIDIA H200", "date": "2026"}])
    assert [run.get("date") for run in read_about(path)] == [None, "2026"]
