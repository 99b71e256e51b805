"""Verdicts on the paper's claims, on results made up to be alike and to differ."""

from __future__ import annotations

import pytest

from service.bench.kernel_problem import Size
from service.bench.kernel_results import KernelRow
from service.bench.paper_claims_memory import ACCURACY_CLAIMS, MEMORY_CLAIMS
from service.bench.paper_claims_speed import SPEED_CLAIMS
from service.bench.paper_evidence import Evidence, efficiency, intensity, saved_bytes
from service.bench.paper_finding import NOT_MEASURED, Finding, range_verdict
from service.bench.paper_options import MODELS, PAPER_SIZES
from tests.bench.paper_evidence import make_evidence, make_paper, make_rows

CLAIMS = (*MEMORY_CLAIMS, *SPEED_CLAIMS, *ACCURACY_CLAIMS)


def judge(evidence: Evidence, about: str) -> Finding:
    (claim,) = (claim for claim in CLAIMS if claim.about.startswith(about))
    return claim.judge(evidence)


def speedups(best_model: str, best: float, other: float):
    """Rows whose speed-up is `best` on one model and `other` elsewhere."""
    return make_rows(
        fused_us=lambda row: row.eager_us / (best if row.model == best_model else other)
    )


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        (speedups(MODELS[0], 2.40, 1.2), "same"),
        (speedups(MODELS[2], 2.40, 1.2), "different: another model"),
        (speedups(MODELS[0], 1.60, 1.2), "different: lower"),
        (speedups(MODELS[0], 3.00, 1.2), "different: higher"),
    ],
)
def test_the_best_speed_up(rows, verdict):
    found = judge(make_evidence(rows), "Speed-up over eager")
    assert found.verdict == verdict


def test_faster_memory_is_the_reason_only_where_it_is_faster_and_the_speed_up_lower():
    rows = speedups(MODELS[0], 1.60, 1.2)
    found = judge(make_evidence(rows), "Speed-up over eager")
    assert found.measured.startswith("1.60× (0.5B, 256 tokens); of all sizes 1.60×")
    assert "read at 4.39 TB/s, the paper's has 3.35" in found.why
    assert judge(make_evidence(rows, read=3.2e12), "Speed-up over eager").why == ""
    assert judge(make_evidence(speedups(MODELS[0], 3, 1)), "Speed-up over eager").why == ""


def test_what_part_was_measured_is_said():
    found = judge(make_evidence(make_rows()[:15]), "Speed-up over eager")
    assert ", 15 of 20 configurations measured;" in found.measured


@pytest.mark.parametrize(
    ("speed", "measured", "verdict"),
    [
        (1.04, "1.04×", "same"),
        (0.97, "0.97×", "same"),
        (1.09, "1.09×", "different: higher"),
        (0.90, "0.90×", "different: lower"),
    ],
)
def test_the_largest_model_at_large_batches(speed, measured, verdict):
    found = judge(make_evidence(speedups(MODELS[-1], speed, 1.5)), "Speed-up at 72B")
    assert (found.measured, found.verdict) == (measured, verdict)
    # The bytes that eager moves besides, at 4.39 TB/s, of its time.
    rows = [row for row in make_rows() if row.model == MODELS[-1] and row.tokens >= 2048]
    shares = [12 * row.tokens * 29568 / 4.39e12 * 1e6 / row.eager_us for row in rows]
    assert f"worth {100 * min(shares):.1f}" in found.why


def test_torch_compile_against_eager():
    spread = dict(zip(MODELS, (0.34, 0.5, 0.6, 0.7, 0.94), strict=True))
    rows = make_rows(compile_us=lambda row: row.eager_us / spread[row.model])
    found = judge(make_evidence(rows), "Speed of torch.compile")
    assert (found.measured, found.verdict) == ("default 34–94 %", "same")
    faster = make_rows(compile_us=lambda row: row.eager_us / 1.1)
    found = judge(make_evidence(faster, make_paper(speeds=(1.05, 1.2))), "Speed of torch.compile")
    assert found.verdict == "different: all higher"
    assert found.measured == ("default 110 %; default 105 % (1 size); max-autotune 120 % (1 size)")
    assert found.why.endswith("silu and the product have become one")
    assert judge(make_evidence(faster, make_paper(launches=4)), "Speed of").why == ""


def test_torch_compile_against_ours():
    rows = make_rows(compile_us=lambda row: row.fused_us * (3 if row.tokens < 2048 else 7))
    found = judge(make_evidence(rows), "Time of torch.compile")
    assert (found.measured, found.verdict) == ("default 3.00–7.00×", "same")
    found = judge(make_evidence(paper=make_paper(speeds=(0.5, 0.4))), "Time of torch.compile")
    assert "; default 4.00× (1 size); max-autotune 5.00× (1 size)" in found.measured
    assert found.verdict == "different: lower"


def kernel1_wins(count: int, *, large_first: bool = True):
    """Rows of which Kernel-1 wins so many, those of the most tokens first or last."""
    sizes = sorted(PAPER_SIZES, key=lambda size: -size.tokens if large_first else size.tokens)
    won = {(size.model, size.tokens) for size in sizes[:count]}
    return make_rows(kernel1_us=lambda row: row.kernel2_us * (0.9 if row.key in won else 1.005))


@pytest.mark.parametrize(
    ("count", "verdict"),
    [
        (7, "same"),
        (9, "same"),
        (10, "different: higher"),
        (4, "different: lower"),
        (0, "different: lower"),
    ],
)
def test_wins(count, verdict):
    found = judge(make_evidence(kernel1_wins(count)), "The faster kernel")
    text = f"Kernel-2 {20 - count}, Kernel-1 {count}; {20 - count} within 1 %"
    assert (found.measured, found.verdict) == (text, verdict)


def test_wins_among_a_part_of_the_sizes_decide_nothing():
    rows = kernel1_wins(7)[:19]
    found = judge(make_evidence(rows), "The faster kernel")
    assert ", 19 of 20 configurations measured" in found.measured
    assert found.verdict == ""
    assert judge(make_evidence(make_rows()), "The faster kernel") == NOT_MEASURED


def test_which_kernel_is_for_which_batches():
    evidence = make_evidence(kernel1_wins(7))
    large, small = (judge(evidence, f"Kernel-{number} is the one") for number in (1, 2))
    assert (large.measured, large.verdict) == ("Kernel-1 wins 7 of 10", "same")
    assert (small.measured, small.verdict) == ("Kernel-2 wins 10 of 10", "same")
    evidence = make_evidence(kernel1_wins(7, large_first=False))
    large, small = (judge(evidence, f"Kernel-{number} is the one") for number in (1, 2))
    assert large.verdict == "different: Kernel-2 wins"
    assert small.verdict == "different: Kernel-1 wins"
    assert large.why == "Kernel-1 takes 1.005 of Kernel-2's time"


@pytest.mark.parametrize(("share", "verdict"), [(0.795, "same"), (0.7, "different: lower")])
def test_the_share_of_peak_and_the_clock_it_was_at(share, verdict):
    rows = make_rows(fused_us=lambda row: _us_at(share, row))
    found = judge(make_evidence(rows, fused=(690, 1500)), "Highest share")
    assert found.verdict == verdict
    assert found.measured.startswith(f"{100 * share:.1f} % (")
    at_clock = share * 989.5e12 / (132 * 4096 * 1500e6)
    assert "the card ran at 1500 MHz; the peak is that of 1830 MHz" in found.why
    assert found.why.endswith(f"at the clock held it is {100 * at_clock:.1f} %")
    assert judge(make_evidence(rows, fused=(500, 1980)), "Highest share").why == ""


def _us_at(share: float, row: KernelRow) -> float:
    return Size(row.model, row.tokens).flops / (share * 989.5e12) * 1e6


def test_passes_by_the_time_of_elementwise_kernels():
    found = judge(make_evidence(paper=make_paper(passes=3)), "Passes")
    assert found.measured.startswith("4.0, by time")
    assert (found.verdict, found.why) == ("same", "")
    found = judge(make_evidence(paper=make_paper(passes=5)), "Passes")
    assert (found.measured[:3], found.verdict) == ("6.0", "different: higher")
    assert "silu as a kernel of its own" in found.why


def test_the_share_of_activation_and_whose_it_is():
    paper = make_paper()
    found = judge(make_evidence(paper=paper), "Share of MLP")
    assert (found.measured, found.verdict) == ("9–37 %", "same")
    assert judge(make_evidence(paper=paper), "That share is highest").verdict == "same"
    paper = make_paper(share=lambda size: 0.3 if size.hidden > 8000 else 0.01)
    found = judge(make_evidence(paper=paper), "Share of MLP")
    assert found.verdict == "different: lower"
    found = judge(make_evidence(paper=paper), "That share is highest")
    assert found.verdict == "different: qwen2.5-72b"
    assert "qwen2.5-0.5b 1 %" in found.measured


@pytest.mark.parametrize(
    ("launches", "verdict", "has_reason"),
    [(3, "same", False), (2, "same", True), (1, "different: one kernel does it all", False)],
)
def test_kernels_that_torch_compile_runs(launches, verdict, has_reason):
    evidence = make_evidence(paper=make_paper(launches=launches))
    found = judge(evidence, "torch.compile does not fuse")
    assert found.measured == f"kernels a call: default {launches}, max-autotune {launches}"
    assert (found.verdict, bool(found.why)) == (verdict, has_reason)
    assert judge(make_evidence(paper=make_paper(launches=None)), "torch.compile does") == (
        NOT_MEASURED
    )


def test_intensity_is_the_papers_by_its_byte_model():
    size = Size("qwen2.5-0.5b", 4096)
    elements = 4096 * 896 + 2 * 4864 * 896 + 4096 * 4864
    assert intensity(size) == 4 * 4096 * 4864 * 896 / (2 * elements)
    assert intensity(size, 4) == 4 * 4096 * 4864 * 896 / (2 * elements + 8 * 4096 * 4864)
    found = judge(make_evidence(), "Arithmetic intensity")
    assert found.measured == "+247 % (qwen2.5-0.5b, 4096 tokens), by the byte model"
    assert found.verdict == "same"


def test_the_ridge_is_the_runs_own():
    found = judge(make_evidence(), "Fusion crosses")
    assert (found.measured[:22], found.verdict) == ("at qwen2.5-0.5b 256; o", "same")
    found = judge(make_evidence(read=680e12 / 5000), "Fusion crosses")
    assert found.verdict == "different: none"
    assert found.measured == "at none of 20 sizes by the byte model, ridge at 5000 FLOP/B"


def test_fused_elements_are_held_against_fp32():
    clean = make_rows(mismatch_fused=lambda row: 0.0)
    assert judge(
        make_evidence(clean, make_paper()), "Elements off by more than 1 %, f"
    ).verdict == ("same")
    paper = make_paper(ours_off=0.01, fp32_off=0.009)
    found = judge(make_evidence(clean, paper), "Elements off by more than 1 %, f")
    assert found.verdict == "different: higher"
    assert found.why.startswith("FP32 rounded once has 0.900 % where ours has 1.000 %")
    paper = make_paper(ours_off=0.01, fp32_off=0.001)
    found = judge(make_evidence(clean, paper), "Elements off by more than 1 %, f")
    assert found.why.startswith("more than FP32 rounded once, which has 0.100 %")


def test_unfused_elements_by_scale():
    shares = {0.02: 0.002, 0.05: 0.01, 0.1: 0.05, 0.3: 0.08, 1.0: 0.2}
    evidence = make_evidence(paper=make_paper(eager_off=shares.__getitem__))
    found = judge(evidence, "Elements off by more than 1 %, u")
    assert found.measured.endswith(
        "0.20 % at 0.02; 1.00 % at 0.05; 5.00 % at 0.1; 8.00 % at 0.3; 20.00 % at 1"
    )
    assert found.verdict == "different: at no scale the same range"
    assert found.why.endswith("reached from deviation 0.1 on")
    alone = judge(make_evidence(), "Elements off by more than 1 %, u")
    assert (alone.measured, alone.verdict) == ("0.11 % at deviation 0.02", "different: all lower")


def test_without_results_nothing_is_judged():
    rows = tuple(
        KernelRow(row.model, row.tokens, row.hidden, row.intermediate) for row in make_rows()
    )
    by_the_model_alone = {"Arithmetic intensity", "Fusion crosses the roofline's ridge"}
    for claim in CLAIMS:
        if claim.about not in by_the_model_alone:
            assert claim.judge(make_evidence(rows)) == NOT_MEASURED, claim.about


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        ((1.0, 2.0), "same"),
        ((0.95, 2.1), "same"),
        ((2.3, 4.0), "different: all higher"),
        ((0.1, 0.9), "different: all lower"),
        ((1.2, 1.5), "different: a narrower range"),
        ((0.5, 3.0), "different: a wider range"),
        ((1.5, 3.0), "different: higher"),
        ((0.5, 1.5), "different: lower"),
    ],
)
def test_ranges(measured, verdict):
    assert range_verdict(measured, (1.0, 2.0), 0.1) == verdict


def test_efficiency_is_one_where_exactly_the_bytes_were_saved():
    size = Size("qwen2.5-0.5b", 2048)
    saved = saved_bytes(size, 6)
    assert saved == 12 * 2048 * 4864
    us = saved / 4e12 * 1e6
    assert efficiency(100 + us, 100, saved, 4e12) == pytest.approx(1)
    assert efficiency(100 + us, 50, saved, 4e12) == pytest.approx(2)
    assert efficiency(us / 2, 50, saved, 4e12) is None
