"""`tilemlp bench kernels` from flags to files, with the GPU's parts played by the CPU."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from service.bench import kernel_problem, kernel_tune, kernel_variants, kernels
from service.bench.kernel_problem import ModelTensors, Problem, Size
from service.bench.kernel_results import read_about, read_rows
from service.bench.kernel_variants import VARIANTS, make_calls
from service.cli import main
from service.engine.presets import PresetShape
from service.kernels import reference, tuner
from service.kernels.dispatch_table import Tuned, TunedSize, read_table, write_table
from service.kernels.library import KernelChoice
from service.kernels.tuner import ORDERS, candidates
from tests.bench.stand_ins import CARD, GPU, Counted, CpuLauncher


@pytest.fixture
def cpu(monkeypatch, host_library):
    """A card without a GPU; returns its launcher."""
    launcher = CpuLauncher(host_library)
    tiny = {"qwen2.5-0.5b": PresetShape(16, 24, 1), "qwen2.5-72b": PresetShape(32, 48, 1)}
    monkeypatch.setattr(kernel_problem, "PRESETS", tiny)
    monkeypatch.setattr(kernel_problem, "DEVICE", "cpu")
    monkeypatch.setattr(kernel_problem, "ROTATED_BYTES", 4096)
    monkeypatch.setattr(kernel_variants, "compiled", lambda function: function)
    for module in (kernels, kernel_tune):
        monkeypatch.setattr(module, "require_gpu", lambda: None)
        monkeypatch.setattr(module, "default_launcher", lambda: launcher)
        monkeypatch.setattr(module, "describe_gpu", lambda: dict(GPU))
    for module in (kernels, kernel_tune, tuner):
        monkeypatch.setattr(module, "CapturedCalls", Counted)
    ceilings = {"hbm_read_bytes_per_s": 4e12, "gemm_flops_per_s": 680e12}
    monkeypatch.setattr(kernels, "measure_ceilings", lambda _: ceilings)
    monkeypatch.setattr(kernels, "measure_host_us", lambda _: {"gate_up": 9.0})
    return launcher


def run(monkeypatch, capsys, *flags: str) -> str:
    monkeypatch.setattr(sys, "argv", ["tilemlp", "bench", "kernels", *flags])
    with pytest.raises(SystemExit) as exit_:
        main()
    printed = capsys.readouterr()
    assert not exit_.value.code, printed.err
    return printed.out


def test_one_row_a_size_and_all_that_was_asked_for(monkeypatch, capsys, tmp_path, cpu):
    flags = ["--models", "0.5b,72b", "--tokens", "4,1024", "--results", str(tmp_path)]
    out = run(monkeypatch, capsys, *flags, "--commit", "abc")
    rows = read_rows(tmp_path / "h200-kernels.csv")
    assert [row.key for row in rows] == [
        ("qwen2.5-0.5b", 4),
        ("qwen2.5-0.5b", 1024),
        ("qwen2.5-72b", 4),
        ("qwen2.5-72b", 1024),
    ]
    for row in rows:
        assert None not in (row.eager_us, row.compile_us, row.merged_us, row.gemm_us, row.fused_us)
        assert row.quack_us is None
        # The later an instance was captured, the slower it was; the chosen one was the first.
        assert row.kernel2_us == row.fused_us < row.kernel1_us
        assert row.chosen in {config.name for config in cpu.library.configs}
        assert row.mismatch_eager is not None
        # Of rows drawn anew: FP32 is seldom between two bf16 numbers on another side than FP64.
        assert row.mismatch_fused * row.tokens * row.intermediate < 5
        bytes_ = Size(row.model, row.tokens).bytes
        assert row.hbm_fraction == pytest.approx(bytes_ / row.fused_us * 1e6 / 4e12, abs=1e-4)
    assert out.count("qwen2.5-0.5b") == 2
    (about,) = read_about(tmp_path / "h200-kernels.json")
    assert (about["gpu"], about["commit"], about["driver"]) == ("NVIDIA H200", "abc", "580.1")
    assert about["command"] == "tilemlp bench kernels --models 0.5b,72b --tokens 4,1024"
    assert {"fused", "eager"} < set(about["sizes"][0]["variants"])
    assert len(about["sizes"][0]["variants"]["fused"]["rounds_us"]) == 3


def test_what_was_not_asked_for_stays_empty(monkeypatch, capsys, tmp_path, cpu):
    flags = ["--models", "0.5b", "--tokens", "4", "--results", str(tmp_path)]
    run(monkeypatch, capsys, *flags, "--variants", "gemm,kernel2")
    (row,) = read_rows(tmp_path / "h200-kernels.csv")
    assert row.gemm_us is not None
    assert row.kernel2_us is not None
    others = (row.eager_us, row.fused_us, row.chosen, row.mismatch_eager, row.mismatch_fused)
    assert others == (None,) * 5


def test_rows_of_earlier_runs_stay_if_asked(monkeypatch, capsys, tmp_path, cpu):
    flags = ["--models", "0.5b", "--variants", "eager,gemm", "--results", str(tmp_path)]
    path = tmp_path / "h200-kernels.csv"
    run(monkeypatch, capsys, *flags, "--tokens", "4,8")
    run(monkeypatch, capsys, *flags, "--tokens", "8,16", "--add")
    assert [row.tokens for row in read_rows(path)] == [4, 8, 16]
    runs = read_about(path.with_suffix(".json"))
    assert [[size["tokens"] for size in run["sizes"]] for run in runs] == [[4], [8, 16]]
    run(monkeypatch, capsys, *flags, "--tokens", "4", "--add")
    runs = read_about(path.with_suffix(".json"))
    assert [[size["tokens"] for size in run["sizes"]] for run in runs] == [[8, 16], [4]]
    run(monkeypatch, capsys, *flags, "--tokens", "16")
    assert [row.tokens for row in read_rows(path)] == [16]
    assert len(read_about(path.with_suffix(".json"))) == 1


def test_out_of_time_what_was_left_out_is_said(monkeypatch, capsys, tmp_path, cpu):
    flags = ["--models", "0.5b", "--tokens", "4,8", "--results", str(tmp_path), "--budget-s", "0"]
    run(monkeypatch, capsys, *flags, "--variants", "gemm")
    assert read_rows(tmp_path / "h200-kernels.csv") == []
    (about,) = read_about(tmp_path / "h200-kernels.json")
    assert about["left_out"] == ["qwen2.5-0.5b 4", "qwen2.5-0.5b 8"]


def test_tuning_keeps_the_fastest_choice(monkeypatch, capsys, tmp_path, cpu):
    flags = ["--models", "0.5b", "--tokens", "4,1024", "--tables", str(tmp_path)]
    out = run(monkeypatch, capsys, *flags, "--tune", "--rounds", "1")
    assert json.loads((tmp_path / "h200.json").read_text())["gpu"] == "NVIDIA H200"
    sizes = read_table(tmp_path / "h200.json")
    assert [size.tokens for size in sizes] == [4, 1024]
    for size in sizes:
        times = [tuned.us for tuned in size.ranked]
        assert times == sorted(times)
        kernels_ = {cpu.library.config(tuned.config).kernel for tuned in size.ranked}
        assert kernels_ == {1, 2}
        now = cpu.library.select(size.tokens, size.intermediate, size.hidden, 132)
        assert cpu.library.configs[now.config].name in {tuned.config for tuned in size.ranked}
    assert out.count("of the GEMM") == 2
    swept = {(c.config, c.raster, c.swizzle) for c in cpu.choices}
    tried = {c.id for tokens in (4, 1024) for c in candidates(cpu.library, tokens)}
    assert {config for config, raster, _ in swept if raster == 0} == tried
    assert len({(raster, swizzle) for _, raster, swizzle in swept if raster}) >= len(ORDERS)


def test_what_is_tuned_later_joins_what_is_there(monkeypatch, capsys, tmp_path, cpu):
    flags = ["--models", "0.5b", "--tables", str(tmp_path), "--tune", "--rounds", "1"]
    for tokens, commit in (("4", "a"), ("8", "b"), ("8,16", "c")):
        run(monkeypatch, capsys, *flags, "--tokens", tokens, "--add", "--commit", commit)
    path = tmp_path / "h200.json"
    assert [size.tokens for size in read_table(path)] == [4, 8, 16]
    about = json.loads(path.read_text())
    assert about["commit"] == "c"
    assert [earlier["commit"] for earlier in about["earlier"]] == ["a", "b"]
    run(monkeypatch, capsys, *flags, "--tokens", "4")
    assert [size.tokens for size in read_table(path)] == [4]
    assert "earlier" not in json.loads(path.read_text())


def test_what_was_tuned_is_what_is_measured(monkeypatch, capsys, tmp_path, cpu):
    """The table's first is `fused`, its first of each kernel the other two columns."""
    ranked = [
        Tuned("k1_64x256_c2x1", "along_n", 4, 1.0),
        Tuned("co_256x128_c1x2", "along_m", 6, 2.0),
        Tuned("pp_64x256_c1x1", "along_m", 1, 3.0),
    ]
    sizes = [TunedSize(16, 24, 64, tuple(ranked))]
    write_table(tmp_path / "h200.json", CARD, sizes)
    flags = ["--models", "0.5b", "--results", str(tmp_path), "--tables", str(tmp_path)]
    run(monkeypatch, capsys, *flags, "--tokens", "48", "--variants", "kernel1,kernel2,fused")
    (row,) = read_rows(tmp_path / "h200-kernels.csv")
    assert row.chosen == "k1_64x256_c2x1"
    assert row.kernel1_us == row.fused_us < row.kernel2_us
    ids = {cpu.library.config(tuned.config).id for tuned in ranked}
    assert {choice.config for choice in cpu.choices} == ids
    assert KernelChoice(cpu.library.config("co_256x128_c1x2").id, 1, 6) in cpu.choices
    write_table(tmp_path / "h200.json", {**CARD, "multiprocessors": 114}, sizes)
    run(monkeypatch, capsys, *flags, "--tokens", "48", "--variants", "fused")
    (row,) = read_rows(tmp_path / "h200-kernels.csv")
    assert row.chosen != "k1_64x256_c2x1"  # another card's


def test_every_variant_but_quack_computes_what_it_says(cpu):
    problem = Problem(Size("qwen2.5-0.5b", 4), ModelTensors("qwen2.5-0.5b", 8))
    exact = reference.gated(problem.x, problem.weights[0], "silu", torch.float64)
    for name in ("eager", "compile"):
        out = make_calls(name, problem)[0]()
        assert problem.off_by_one_percent(out) < 0.2
        assert problem.off_by_one_percent(out * 1.05) == 1.0
    make_calls("gemm", problem)[0]()
    gate, up = problem.both.double().chunk(2, dim=1)
    assert torch.allclose(torch.nn.functional.silu(gate) * up, exact, rtol=0.05, atol=1e-3)
    assert len(make_calls("merged", problem)) == len(problem.weights) == 3
    assert problem.off_by_one_percent(torch.full_like(exact, float("nan"))) == 1.0


def test_quack_is_called_in_its_default_configuration(monkeypatch, cpu):
    problem = Problem(Size("qwen2.5-0.5b", 4), ModelTensors("qwen2.5-0.5b", 8))
    seen = []

    class Quack:
        @staticmethod
        def gemm_gated(a, b, **options):
            seen.append((a.shape, b.shape, options["tuned"], options["store_preact"]))

    monkeypatch.setattr(kernel_variants.importlib, "import_module", lambda name: Quack)
    make_calls("quack", problem)[0]()
    assert seen == [((4, 16), (16, 48), False, False)]
    assert "quack" in VARIANTS


def test_without_a_gpu_it_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["tilemlp", "bench", "kernels"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    said = "tilemlp: bench kernels: needs an NVIDIA GPU that torch can use, has none\n"
    assert capsys.readouterr().err == said
