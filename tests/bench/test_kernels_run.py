"""`tilemlp bench kernels` from flags to files, with the GPU's parts played by the CPU."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from service.bench import kernel_problem, kernel_tune, kernel_variants, kernels
from service.bench.kernel_problem import ModelTensors, Problem, Size
from service.bench.kernel_results import read_about, read_rows
from service.bench.kernel_tune import ORDERS
from service.bench.kernel_variants import VARIANTS, make_calls
from service.bench.timing import Steadiness, Visit
from service.cli import main
from service.engine.presets import PresetShape
from service.kernels import reference
from service.kernels.launcher import Launcher

GPU = {"gpu": "NVIDIA H200", "multiprocessors": 132, "cuda": "13.0", "driver": "580.1"}
GPU["power_limit_watts"] = 700.0


class CpuLauncher(Launcher):
    """Chooses with the real library and computes in FP32."""

    def __init__(self, library) -> None:
        super().__init__(library)
        self.choices = []

    def __call__(self, x, weight, out, activation="silu", *options) -> None:
        self.choices.extend(options[:1])
        out.copy_(reference.gated(x, weight, activation, torch.float32))


class Counted:
    """Runs the calls of one pass once; every further one is a microsecond slower."""

    made = 0

    def __init__(self, calls) -> None:
        for call in calls:
            call()
        Counted.made += 1
        self.us = float(Counted.made)

    def visit(self, steadiness: Steadiness) -> Visit:
        return Visit(self.us, 650.0, 1400.0)


@pytest.fixture
def cpu(monkeypatch, host_library):
    """A card without a GPU; returns its launcher."""
    launcher = CpuLauncher(host_library)
    tiny = {"qwen2.5-0.5b": PresetShape(16, 24, 1), "qwen2.5-72b": PresetShape(32, 48, 1)}
    monkeypatch.setattr(kernel_problem, "PRESETS", tiny)
    monkeypatch.setattr(kernel_problem, "DEVICE", "cpu")
    monkeypatch.setattr(kernel_problem, "ROTATED_BYTES", 4096)
    monkeypatch.setattr(kernel_variants, "_compiled", lambda function: function)
    for module in (kernels, kernel_tune):
        monkeypatch.setattr(module, "require_gpu", lambda: None)
        monkeypatch.setattr(module, "default_launcher", lambda: launcher)
        monkeypatch.setattr(module, "describe_gpu", lambda: dict(GPU))
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
        assert (row.quack_us, row.kernel1_us) == (None, None)
        # The later an instance was captured, the slower it was; the chosen one was the first.
        assert row.kernel2_us == row.fused_us
        assert row.chosen in {config.name for config in cpu.library.configs}
        assert row.mismatch_eager is not None
        assert row.mismatch_fused == 0.0
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
    assert len(read_about(path.with_suffix(".json"))) == 2
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
    flags = ["--models", "0.5b", "--tokens", "4,1024", "--results", str(tmp_path)]
    out = run(monkeypatch, capsys, *flags, "--tune", "--rounds", "1")
    table = json.loads((tmp_path / "h200-dispatch.json").read_text())
    assert table["gpu"] == "NVIDIA H200"
    assert [entry["tokens"] for entry in table["entries"]] == [4, 1024]
    for entry in table["entries"]:
        config = cpu.library.config(entry["config"])
        assert config.granularity == 8
        assert entry["raster"] in ("along_m", "along_n")
        assert entry["swizzle"] >= 1
        assert entry["us"] <= min(entry["now_us"], *entry["runners_up"].values())
        best = f"{config.name} {entry['raster']} {entry['swizzle']}"
        assert entry["now"] in {*entry["runners_up"], best}
    assert out.count("of the GEMM") == 2
    swept = {(c.config, c.raster, c.swizzle) for c in cpu.choices}
    instances = [config for config in cpu.library.configs if config.granularity == 8]
    assert {config for config, raster, _ in swept if raster == 0} == {c.id for c in instances}
    assert len({(raster, swizzle) for _, raster, swizzle in swept if raster}) >= len(ORDERS)


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
