"""`tilemlp bench decode` from flags to files and page, with the GPU's parts played by the CPU."""

from __future__ import annotations

import sys

import pytest
import torch

from service.bench import decode, decode_problem, kernel_problem
from service.bench.decode_problem import MlpProblem
from service.bench.decode_results import read_decode_rows, write_decode_rows
from service.bench.decode_table import decode_bench_table
from service.bench.kernel_problem import ModelTensors, Size, draw
from service.bench.kernel_results import read_about
from service.cli import main
from service.engine.presets import PresetShape
from service.errors import ConfigError
from service.kernels.library import KernelChoice
from tests.bench.stand_ins import GPU, Counted, CpuLauncher

RATE = 4e12


class CpuDown:
    """Computes in FP32."""

    def __init__(self, library) -> None:
        self.library = library

    def __call__(self, x, weight, out, *, weights_constant: bool) -> None:
        assert weights_constant
        out.copy_(x.float() @ weight.float().T)


@pytest.fixture
def cpu(monkeypatch, host_library):
    launcher = CpuLauncher(host_library)
    tiny = {"qwen2.5-0.5b": PresetShape(16, 24, 1), "qwen2.5-72b": PresetShape(32, 48, 1)}
    monkeypatch.setattr(kernel_problem, "PRESETS", tiny)
    monkeypatch.setattr(kernel_problem, "DEVICE", "cpu")
    monkeypatch.setattr(kernel_problem, "ROTATED_BYTES", 4096)
    monkeypatch.setattr(decode_problem, "compiled", lambda function: function)
    monkeypatch.setattr(decode, "require_gpu", lambda _: None)
    monkeypatch.setattr(decode, "default_launcher", lambda: launcher)
    monkeypatch.setattr(decode, "describe_gpu", lambda: dict(GPU))
    monkeypatch.setattr(decode, "CapturedCalls", Counted)
    monkeypatch.setattr(decode, "DownLauncher", CpuDown)
    ceilings = {"hbm_read_bytes_per_s": RATE, "gemm_flops_per_s": 680e12}
    monkeypatch.setattr(decode, "measure_ceilings", lambda _: ceilings)
    return launcher


def run(monkeypatch, capsys, *flags: str) -> str:
    monkeypatch.setattr(sys, "argv", ["tilemlp", "bench", "decode", *flags])
    with pytest.raises(SystemExit) as exit_:
        main()
    printed = capsys.readouterr()
    assert not exit_.value.code, printed.err
    return printed.out


def test_one_row_a_size_and_a_table_of_them(monkeypatch, capsys, tmp_path, cpu):
    flags = ["--models", "0.5b,72b", "--tokens", "1,16", "--results", str(tmp_path)]
    out = run(monkeypatch, capsys, *flags, "--commit", "abc")
    assert out.count("qwen2.5-0.5b") == out.count("qwen2.5-72b") == 2
    rows = read_decode_rows(tmp_path / "h200-decode.csv")
    assert [(row.model, row.tokens) for row in rows] == [
        ("qwen2.5-0.5b", 1),
        ("qwen2.5-0.5b", 16),
        ("qwen2.5-72b", 1),
        ("qwen2.5-72b", 16),
    ]
    for row in rows:
        m, k, n = row.tokens, row.hidden, row.intermediate
        assert row.gate_up_config in {config.name for config in cpu.library.configs}
        assert row.down_config in {config.name for config in cpu.library.down_configs}
        bytes_ = 2 * (2 * m * k + 3 * n * k)
        assert row.mlp_hbm == pytest.approx(bytes_ / row.mlp_us * 1e6 / RATE, abs=1e-4)
        # The stand-in's times are whole; of two launches that are one MLP it gives the mean.
        assert row.mlp_us == 2 * (row.down_us + 1)
    (about,) = read_about(tmp_path / "h200-decode.json")
    assert about["command"] == "tilemlp bench decode --models 0.5b,72b --tokens 1,16"
    page = decode_bench_table(tmp_path)
    assert page.count("| qwen2.5-0.5b |") == 2
    assert "memory read 4.00 TB/s" in page


def test_rows_that_are_not_measured_again_stay_with_their_run(monkeypatch, capsys, tmp_path, cpu):
    flags = ["--results", str(tmp_path), "--commit", "abc"]
    run(monkeypatch, capsys, "--models", "0.5b,72b", "--tokens", "1,16", *flags)
    run(monkeypatch, capsys, "--models", "0.5b,72b", "--tokens", "4,16", "--add", *flags)
    path = tmp_path / "h200-decode.csv"
    assert [row.tokens for row in read_decode_rows(path)] == 2 * [1, 4, 16]
    sizes = [
        [(size["model"][8:], size["tokens"]) for size in about["sizes"]]
        for about in read_about(path.with_suffix(".json"))
    ]
    assert sizes == [
        [("0.5b", 1), ("72b", 1)],
        [("0.5b", 4), ("0.5b", 16), ("72b", 4), ("72b", 16)],
    ]
    run(monkeypatch, capsys, "--models", "0.5b", "--tokens", "4", *flags)
    assert [row.tokens for row in read_decode_rows(path)] == [4]
    (about,) = read_about(path.with_suffix(".json"))
    assert len(about["sizes"]) == 1


def test_ours_and_the_others_compute_the_same(cpu):
    tensors = ModelTensors("qwen2.5-0.5b", 4)
    problem = MlpProblem(
        Size("qwen2.5-0.5b", 4), tensors, [draw(16, 24, 0.02)] * len(tensors.weights)
    )
    ours = problem.ours(cpu, CpuDown(cpu.library), KernelChoice())
    baselines = problem.baselines()
    assert len(ours["mlp"]) == 2 * len(baselines["mlp_merged"])
    for call in ours["mlp"][:2]:
        call()
    mine = problem.out.clone()
    problem.out.zero_()
    baselines["mlp_merged"][0]()
    assert mine.abs().max() > 0
    torch.testing.assert_close(mine, problem.out, rtol=0.05, atol=1e-3)
    torch.testing.assert_close(mine, baselines["mlp_eager"][0](), rtol=0.05, atol=1e-3)


def test_out_of_time_no_further_size_is_begun(monkeypatch, capsys, tmp_path, cpu):
    flags = ["--models", "0.5b", "--tokens", "4", "--results", str(tmp_path), "--budget-s", "-1"]
    assert run(monkeypatch, capsys, *flags) == ""
    assert not list(tmp_path.iterdir())


def test_without_results_the_page_says_so(tmp_path):
    assert decode_bench_table(tmp_path) == "Not measured yet."


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "h200-decode.csv"
    with pytest.raises(ConfigError, match="must be a file that a run wrote"):
        read_decode_rows(path)
    write_decode_rows(path, [])
    assert read_decode_rows(path) == []
    path.write_text("model,tokens\n")
    with pytest.raises(ConfigError, match="must have the columns"):
        read_decode_rows(path)
