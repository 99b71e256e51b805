"""`tilemlp bench paper` from flags to its file, with the GPU's parts played by the CPU."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional

from service.bench import kernel_problem, kernel_variants, paper, paper_compile
from service.bench.kernel_problem import ModelTensors, Problem, Size
from service.bench.kernel_variants import eager
from service.bench.paper_compile import MODES, make_mode_calls
from service.bench.paper_mismatch import measure_mismatch
from service.bench.paper_options import WEIGHT_STDS, parse_sizes
from service.bench.paper_parts import PARTS, draw_downs, make_parts
from service.bench.paper_results import read_paper
from service.cli import main
from service.engine.presets import PresetShape
from service.errors import ConfigError
from service.kernels.dispatch_table import Tuned, TunedSize, write_table
from service.kernels.library import KernelChoice
from tests.bench.stand_ins import CARD, GPU, Counted, CpuLauncher

# torch's own compiler warns of torch's own past when it is first imported.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
)
MODEL = "qwen2.5-0.5b"


@pytest.fixture
def cpu(monkeypatch, host_library):
    """A card without a GPU and the same data every time; returns its launcher."""
    torch.manual_seed(0)
    launcher = CpuLauncher(host_library)
    tiny = {MODEL: PresetShape(16, 24, 1), "qwen2.5-72b": PresetShape(32, 48, 1)}
    monkeypatch.setattr(kernel_problem, "PRESETS", tiny)
    monkeypatch.setattr(kernel_problem, "DEVICE", "cpu")
    monkeypatch.setattr(kernel_problem, "ROTATED_BYTES", 4096)
    for module in (kernel_variants, paper_compile):
        monkeypatch.setattr(module, "compiled", lambda function, options=None: function)
    monkeypatch.setattr(paper, "require_gpu", lambda command: None)
    monkeypatch.setattr(paper, "default_launcher", lambda: launcher)
    monkeypatch.setattr(paper, "describe_gpu", lambda: dict(GPU))
    monkeypatch.setattr(paper, "CapturedCalls", Counted)
    monkeypatch.setattr(paper, "count_launches", lambda call: call() is not None and 3)
    ceilings = {"hbm_read_bytes_per_s": 4e12, "gemm_flops_per_s": 680e12}
    monkeypatch.setattr(paper, "measure_ceilings", lambda _: ceilings)
    return launcher


@pytest.fixture
def bench(monkeypatch, capsys, tmp_path, cpu):
    """Runs the command; returns what it wrote and what it printed."""

    def run(*flags: str):
        folders = ["--results", str(tmp_path), "--tables", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["tilemlp", "bench", "paper", *folders, *flags])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        assert not exit_.value.code, printed.err
        return read_paper(tmp_path / "h200-paper.json"), printed.out

    return run


def make_problem(tokens: int = 4) -> Problem:
    return Problem(Size(MODEL, tokens), ModelTensors(MODEL, tokens))


def test_everything_is_measured_and_written(bench):
    sizes = ["--models", "0.5b,72b", "--tokens", "4,300", "--compile", "0.5b:4,72b:300"]
    found, out = bench(*sizes, "--commit", "abc")
    assert [(row.model, row.tokens) for row in found.parts] == [
        (MODEL, 4),
        (MODEL, 300),
        ("qwen2.5-72b", 4),
        ("qwen2.5-72b", 300),
    ]
    for row in found.parts:
        # Each is a microsecond slower than what was captured before it.
        assert row.up_us == row.gate_us + 1
        assert row.mlp_us == row.gate_us + 5
        assert row.sum_us == 5 * row.gate_us + 10
        assert row.share == pytest.approx((2 * row.gate_us + 5) / row.sum_us)
    assert [(row.model, row.std) for row in found.mismatch] == [
        (model, std) for model in (MODEL, "qwen2.5-72b") for std in WEIGHT_STDS
    ]
    assert [(row.model, row.tokens) for row in found.compiled] == [(MODEL, 4), ("qwen2.5-72b", 300)]
    for row in found.compiled:
        assert set(row.us) == {"eager", "fused", *(mode.name for mode in MODES)}
        assert row.launches == {mode.name: 3 for mode in MODES}
        assert set(row.compile_s) == set(row.launches)
    assert found.left_out == []
    assert found.modes == {mode.name: mode.about for mode in MODES}
    assert (found.about["gpu"], found.about["commit"]) == ("NVIDIA H200", "abc")
    assert found.about["command"] == f"tilemlp bench paper {' '.join(sizes)}"
    assert out.count("parts") == 4 + 4  # rows, and "parts over whole" in each
    assert out.count("of eager's speed, 3 kernels") == 2 * len(MODES)


def test_out_of_time_nothing_more_is_begun_and_what_is_left_out_is_said(bench):
    flags = ["--models", "0.5b", "--tokens", "4", "--compile", "0.5b:4", "--budget-s", "-1"]
    found, out = bench(*flags)
    assert (found.parts, found.compiled, found.mismatch) == ([], [], [])
    assert len(found.left_out) == len(WEIGHT_STDS) + 1 + len(MODES)
    assert out.count("left out") == len(found.left_out)


def test_modes_compiled_before_the_time_was_up_are_timed(monkeypatch, bench):
    class Clock:
        """A second passes with every mode that is compiled."""

        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()

    def slow(mode, problem):
        clock.now += 1
        return make_mode_calls(mode, problem)

    monkeypatch.setattr(paper, "time", clock)
    monkeypatch.setattr(paper, "make_mode_calls", slow)
    sizes = ["--models", "0.5b", "--tokens", "4", "--compile", "0.5b:4,72b:4"]
    found, _ = bench(*sizes, "--budget-s", "1.5")
    (row,) = found.compiled
    assert set(row.us) == {"eager", "fused", MODES[0].name, MODES[1].name}
    assert row.compile_s[MODES[0].name] == 1
    assert found.left_out[0] == f"compile {MODEL} 4 {MODES[2].name}"
    assert len(found.left_out) == 2 * len(MODES) - 2


def test_a_mode_that_torch_cannot_compile_is_left_out_with_the_reason(monkeypatch, bench):
    def refuse(x, weight):
        error = RuntimeError("no choices")
        raise BackendCompilerFailed(refuse, error, None)

    refused = replace(MODES[3], function=refuse)
    monkeypatch.setattr(paper, "MODES", (*MODES[:2], refused))
    found, _ = bench("--models", "0.5b", "--tokens", "4", "--compile", "0.5b:4")
    (row,) = found.compiled
    assert set(row.us) == {"eager", "fused", "default", "default, hints"}
    (left_out,) = found.left_out
    assert left_out.startswith(f"compile {MODEL} 4 {refused.name} (backend='refuse' raised")


def test_the_tables_best_of_each_kernel_is_checked(tmp_path, bench, cpu):
    ranked = (Tuned("co_256x128_c1x2", "along_m", 6, 1.0), Tuned("k1_64x256_c2x1", "along_n", 4, 2))
    write_table(tmp_path / "h200.json", CARD, [TunedSize(16, 24, 512, ranked)])
    found, _ = bench("--models", "0.5b", "--tokens", "4", "--compile", "")
    assert {(row.config1, row.config2) for row in found.mismatch} == {
        ("k1_64x256_c2x1", "co_256x128_c1x2")
    }
    assert KernelChoice(cpu.library.config("k1_64x256_c2x1").id, 2, 4) in cpu.choices
    # The stand-in for both computes in FP32.
    assert all(row.kernel1 == row.kernel2 == row.fp32 for row in found.mismatch)


def test_the_parts_are_those_of_eager(cpu):
    problem = make_problem()
    downs = draw_downs(problem)
    parts = make_parts(problem, downs)
    assert tuple(parts) == PARTS
    assert {len(calls) for calls in parts.values()} == {len(problem.weights)} == {3}
    last = {name: calls[-1]().clone() for name, calls in parts.items()}
    first = {name: calls[0]().clone() for name, calls in parts.items()}
    for found, weight, down in ((first, problem.weights[0], downs[0]), (last, *_last(problem))):
        gate_proj, up_proj = weight.chunk(2)
        assert torch.equal(found["gate"], problem.x @ gate_proj.T)
        assert torch.equal(found["up"], problem.x @ up_proj.T)
        assert down.shape == (16, 24)
    # With the first weights' intermediates everywhere, as before anything was called.
    gated = eager(problem.x, problem.weights[0])
    assert torch.equal(first["silu"], functional.silu(first["gate"]))
    assert torch.equal(first["mul"], gated)
    assert torch.equal(first["down"], gated @ downs[0].T)
    assert torch.equal(first["mlp"], first["down"])


def _last(problem: Problem):
    return problem.weights[-1], draw_downs(problem)[-1]


@pytest.mark.parametrize("mode", MODES, ids=[mode.name for mode in MODES])
def test_a_mode_computes_gated_with_options_that_torch_has(mode, cpu):
    problem = make_problem()
    for call, weight in zip(make_mode_calls(mode, problem), problem.weights, strict=True):
        assert torch.allclose(call(), eager(problem.x, weight), rtol=2e-2, atol=1e-3)
    # Wrong names and types are refused here, before anything is compiled.
    assert torch.compile(mode.function, options=dict(mode.options))
    assert set(mode.options) <= set(torch._inductor.list_options())


def test_the_autotuned_modes_are_torchs_own_and_more():
    own = torch._inductor.list_mode_options("max-autotune-no-cudagraphs")
    by_name = {mode.name: dict(mode.options) for mode in MODES}
    assert by_name["max-autotune"] == own
    assert own.items() < by_name["max-autotune, hints"].items()
    assert by_name["max-autotune, hints, merged"] == by_name["max-autotune, hints"]


def test_an_unknown_option_would_be_refused():
    with pytest.raises(RuntimeError, match="Unexpected optimization option"):
        torch.compile(eager, options={"epilogue_fusions": True})


def test_each_kernels_wrong_elements_are_its_own(cpu):
    class Wrong(CpuLauncher):
        """Kernel-1 is a twentieth too large in a quarter of the rows, Kernel-2 skips half of them.

        Those that it skips still hold what Kernel-1 got right.
        """

        def __call__(self, x, weight, out, activation="silu", *options) -> None:
            kernel = self.library.configs[options[0].config].kernel
            rows = slice(None) if kernel == 1 else slice(0, len(x) // 2)
            super().__call__(x[rows], weight, out[rows], activation)
            if kernel == 1:
                out[: len(x) // 4].mul_(1.05)

    library = cpu.library
    choices = {
        kernel: KernelChoice(next(c.id for c in library.configs if c.kernel == kernel))
        for kernel in (1, 2)
    }
    row = measure_mismatch(MODEL, 0.3, Wrong(library), choices)
    assert (row.model, row.std, row.kernel1, row.kernel2, row.fp32) == (MODEL, 0.3, 0.25, 0.5, 0.0)
    assert 0 < row.eager < 0.2


def test_weights_have_the_deviation_asked_for(cpu):
    tensors = ModelTensors("qwen2.5-72b", 4, 0.3, sets=1)
    assert len(tensors.weights) == 1
    assert float(tensors.weights[0].float().std()) == pytest.approx(0.3, rel=0.1)


def test_sizes_to_compile_for():
    assert parse_sizes("0.5b:16,qwen2.5-72b:2048") == (
        Size("qwen2.5-0.5b", 16),
        Size("qwen2.5-72b", 2048),
    )
    assert parse_sizes("") == ()
    with pytest.raises(ConfigError, match=r"^compile: must be preset:tokens with commas, is '3b'$"):
        parse_sizes("0.5b:1,3b")
    with pytest.raises(ConfigError, match=r"^tokens: must be numbers from 1 up, is 'x'$"):
        parse_sizes("3b:x")


def test_without_a_gpu_it_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["tilemlp", "bench", "paper"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    said = "tilemlp: bench paper: needs an NVIDIA GPU that torch can use, has none\n"
    assert capsys.readouterr().err == said
