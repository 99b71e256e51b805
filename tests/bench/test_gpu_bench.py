"""The benchmark on a real GPU, briefly: every part runs, and times are near what they must be."""

from __future__ import annotations

import pytest
import torch

from service.bench import paper
from service.bench.gpu import describe_gpu
from service.bench.kernel_options import KernelBenchOptions
from service.bench.kernel_problem import Size
from service.bench.kernel_results import read_about, read_rows
from service.bench.kernel_tune import run_tune
from service.bench.kernels import run_kernel_bench
from service.bench.paper_compile import MODES
from service.bench.paper_options import PaperOptions
from service.bench.paper_results import read_paper
from service.kernels.dispatch_table import read_table
from service.kernels.timing import CapturedCalls, Steadiness

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
BRIEF = Steadiness(settle_s=0.005, measure_s=0.01, rounds=1)


def options(results, variants: str) -> KernelBenchOptions:
    return KernelBenchOptions(
        models=("qwen2.5-0.5b",),
        tokens=(300,),
        variants=tuple(variants.split(",")),
        steadiness=BRIEF,
        budget_s=60,
        results=results,
        tables=results,
        add=False,
        command="tilemlp bench kernels",
        commit=None,
    )


# torch's own compiler warns of torch's own past when it is first imported.
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_a_row_of_everything(tmp_path):
    run_kernel_bench(options(tmp_path, "eager,compile,merged,gemm,kernel2,fused"), lambda *_: None)
    (path,) = tmp_path.glob("*-kernels.csv")
    (row,) = read_rows(path)
    for us in (row.eager_us, row.compile_us, row.merged_us, row.gemm_us, row.fused_us):
        assert 2 < us < 1000
    assert row.kernel2_us <= row.fused_us
    assert row.mismatch_fused < row.mismatch_eager < 0.01
    assert 0.05 < row.hbm_fraction < 1
    (about,) = read_about(path.with_suffix(".json"))
    assert 1e12 < about["ceilings"]["hbm_read_bytes_per_s"] < 1e13
    assert about["gpu"] == describe_gpu()["gpu"]
    assert about["host_us"]["gate_up"] > 0


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_the_papers_measurements(monkeypatch, tmp_path):
    # Autotuning takes longer than a test may.
    monkeypatch.setattr(paper, "MODES", MODES[:2])
    size = Size("qwen2.5-0.5b", 300)
    wanted = PaperOptions(
        sizes=(size,),
        compile_sizes=(size,),
        steadiness=BRIEF,
        budget_s=60,
        results=tmp_path,
        tables=None,
        command="tilemlp bench paper",
        commit=None,
    )
    paper.run_paper_bench(wanted, lambda *_: None)
    (path,) = tmp_path.glob("*-paper.json")
    found = read_paper(path)
    assert found.left_out == []
    (parts,) = found.parts
    assert parts.gate_us == pytest.approx(parts.up_us, rel=0.3)
    assert parts.sum_us == pytest.approx(parts.mlp_us, rel=0.5)
    assert 0.02 < parts.share < 0.8
    (compiled,) = found.compiled
    assert set(compiled.launches.values()) <= {2, 3, 4}
    assert compiled.us["fused"] < compiled.us["eager"]
    for row in found.mismatch:
        assert row.eager > row.kernel2
        assert max(row.kernel1, row.kernel2) <= 2 * row.fp32 + 1e-3


def test_an_entry_of_the_dispatch_table(tmp_path):
    run_tune(options(tmp_path, "gemm"), lambda *_: None)
    (path,) = tmp_path.glob("*.json")
    (size,) = read_table(path)
    assert size.ranked[0].us <= size.ranked[-1].us
    assert {tuned.config.startswith("k1_") for tuned in size.ranked} == {True, False}


def test_time_is_that_of_the_work():
    """Twice the bytes take twice the time, and as long as the memory needs."""
    data = torch.randn(1 << 28, device="cuda")
    half = CapturedCalls([lambda: torch.sum(data[: 1 << 27])]).visit(BRIEF).us
    whole = CapturedCalls([lambda: torch.sum(data)] * 3).visit(BRIEF).us
    assert whole / half == pytest.approx(2, rel=0.15)
    assert 4 * data.numel() / whole * 1e6 < 1e13
