"""Tables of the paper's page, each out of one GPU's results files."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from service.bench.kernel_results import KernelRow
from service.bench.markdown import markdown_table, percent
from service.bench.paper_claims_memory import ACCURACY_CLAIMS, MEMORY_CLAIMS
from service.bench.paper_claims_speed import SPEED_CLAIMS
from service.bench.paper_evidence import (
    EAGER_PASSES,
    PAPER_PASSES,
    Evidence,
    efficiency,
    intensity,
    kernel_of,
    ratio,
    saved_bytes,
    size_of,
    speedup,
    winner,
)
from service.bench.paper_options import PAPER_SIZES

NOT_MEASURED = "not measured"


def claims_table(evidence: Evidence) -> str:
    """Every claim: the paper's figures, ours, whether they are the same, and why not."""
    rows = []
    for claim in (*MEMORY_CLAIMS, *SPEED_CLAIMS, *ACCURACY_CLAIMS):
        found = claim.judge(evidence)
        rows.append(
            (claim.about, claim.claimed, found.measured, found.verdict, claim.rule, found.why)
        )
    header = ("claim", "paper", "measured here", "verdict", "same if", "why")
    return markdown_table(header, rows)


def configurations_table(evidence: Evidence) -> str:
    """The paper's 20: times and what follows from them."""
    measured = {row.key: row for row in evidence.paper_rows}
    times = ("eager", "compile", "merged", "Kernel-1", "Kernel-2", "ours")
    ratios = ("over eager", "over compile", "of peak", "efficiency", "against merged", "faster")
    rows = []
    for size in PAPER_SIZES:
        row = measured.get((size.model, size.tokens))
        name = (size.model, str(size.tokens))
        cells = _configuration(evidence, row) if row else (NOT_MEASURED, *("",) * 11)
        rows.append((*name, *cells))
    return markdown_table(("model", "tokens", *times, *ratios), rows)


def _configuration(evidence: Evidence, row: KernelRow) -> tuple[str, ...]:
    names = ("eager", "compile", "merged", "kernel1", "kernel2", "fused")
    won = winner(row)
    return (
        *(_number(getattr(row, f"{name}_us"), "{:.1f}") for name in names),
        _number(speedup(row), "{:.2f}×"),
        _number(ratio(row.compile_us, row.fused_us), "{:.2f}×"),
        _percent(evidence.share_of_peak(row)),
        _number(efficiency_of(evidence, row, "eager"), "{:.2f}"),
        _number(efficiency_of(evidence, row, "merged"), "{:.2f}"),
        "" if won is None else f"Kernel-{won}",
    )


def efficiency_of(evidence: Evidence, row: KernelRow, variant: str) -> float | None:
    """Against eager, whose passes are 6 more than ours, or merged, whose are 4 more."""
    us = row.eager_us if variant == "eager" else row.merged_us
    passes = EAGER_PASSES if variant == "eager" else PAPER_PASSES
    if us is None or row.fused_us is None:
        return None
    saved = saved_bytes(size_of(row), passes)
    return efficiency(us, row.fused_us, saved, evidence.read_rate(row))


def models_table(evidence: Evidence) -> str:
    """All sizes of the benchmark, one row a model."""
    rows = []
    for model in dict.fromkeys(row.model for row in evidence.rows):
        found = [row for row in evidence.rows if row.model == model]
        values = [value for row in found if (value := speedup(row))]
        wins = [winner(row) for row in found]
        rows.append(
            (
                model,
                ", ".join(str(row.tokens) for row in found),
                _mean(found, speedup),
                _number(max(values, default=None), "{:.2f}×"),
                _number(min(values, default=None), "{:.2f}×"),
                _mean(found, lambda row: ratio(row.compile_us, row.fused_us)),
                _mean(found, lambda row: ratio(row.merged_us, row.fused_us)),
                *(_count(wins, kernel) for kernel in (1, 2)),
                *_tuned(evidence, found[0]),
            )
        )
    means = ("over eager, mean", "best", "worst", "over compile, mean", "over merged, mean")
    wins_header = ("Kernel-1 wins", "Kernel-2 wins", "table: Kernel-1", "table: Kernel-2")
    return markdown_table(("model", "tokens", *means, *wins_header), rows)


def _mean(rows: Sequence[KernelRow], value: Callable[[KernelRow], float | None]) -> str:
    """Geometric."""
    values = [found for row in rows if (found := value(row))]
    return f"{statistics.geometric_mean(values):.2f}×" if values else NOT_MEASURED


def _count(wins: Sequence[int | None], kernel: int) -> str:
    return NOT_MEASURED if not any(wins) else str(sum(it == kernel for it in wins))


def _tuned(evidence: Evidence, row: KernelRow) -> tuple[str, str]:
    """Entries of the dispatch table for weights of that shape, by kernel."""
    shape = (row.hidden, row.intermediate)
    chosen = [
        kernel_of(size.ranked[0].config)
        for size in evidence.tuned
        if (size.hidden, size.intermediate) == shape
    ]
    if not chosen:
        return NOT_MEASURED, NOT_MEASURED
    return str(chosen.count(1)), str(chosen.count(2))


def intensity_table(evidence: Evidence) -> str:
    """FLOPs per byte of the paper's 20, unfused and fused, by the byte model."""
    rows = []
    for size in PAPER_SIZES:
        unfused, fused = intensity(size, PAPER_PASSES), intensity(size)
        rows.append(
            (
                size.model,
                str(size.tokens),
                f"{unfused:.0f}",
                f"{fused:.0f}",
                f"+{percent(fused / unfused - 1)}",
                f"{saved_bytes(size, PAPER_PASSES) / 1e6:.0f}",
                _side(evidence.ridge, unfused, fused),
            )
        )
    header = ("model", "tokens", "unfused FLOP/B", "fused FLOP/B", "gain", "MB saved", "ridge")
    return markdown_table(header, rows)


def _side(ridge: float, unfused: float, fused: float) -> str:
    if unfused < ridge <= fused:
        return f"crosses {ridge:.0f}"
    return f"left of {ridge:.0f}" if fused < ridge else f"right of {ridge:.0f}"


def parts_table(evidence: Evidence) -> str:
    """Eager's kernels timed apart."""
    if evidence.paper is None or not evidence.paper.parts:
        return NOT_MEASURED.capitalize() + "."
    header = ("model", "tokens", "gate", "up", "silu", "mul", "down", "silu + mul", "sum over MLP")
    rows = [
        (
            row.model,
            str(row.tokens),
            *(f"{us:.1f}" for us in (row.gate_us, row.up_us, row.silu_us, row.mul_us, row.down_us)),
            percent(row.share, 1),
            f"{row.sum_us / row.mlp_us:.3f}",
        )
        for row in evidence.paper.parts
    ]
    return markdown_table(header, rows)


def compile_table(evidence: Evidence) -> str:
    """torch.compile's modes: what each is, and what it reached."""
    if evidence.paper is None or not evidence.paper.compiled:
        return NOT_MEASURED.capitalize() + "."
    header = ("model", "tokens", "mode", "µs", "of eager's speed", "over ours", "kernels", "s")
    rows = [
        (
            row.model,
            str(row.tokens),
            mode,
            f"{us:.1f}",
            percent(row.us["eager"] / us),
            f"{us / row.us['fused']:.2f}×",
            str(row.launches.get(mode, NOT_MEASURED if mode in row.compile_s else "")),
            _number(row.compile_s.get(mode), "{:.1f}"),
        )
        for row in evidence.paper.compiled
        for mode, us in row.us.items()
    ]
    modes = "\n".join(f"- {name}: {about}" for name, about in evidence.paper.modes.items())
    return f"{modes}\n\n{markdown_table(header, rows)}\n\ns: seconds to compile and capture."


def mismatch_table(evidence: Evidence) -> str:
    """Elements off by more than 1 % from FP64, by model and scale of the weights."""
    if evidence.paper is None or not evidence.paper.mismatch:
        return NOT_MEASURED.capitalize() + "."
    header = ("model", "deviation", "eager", "FP32 rounded once", "Kernel-1", "Kernel-2")
    rows = [
        (
            row.model,
            f"{row.std:g}",
            percent(row.eager, 3),
            percent(row.fp32, 3),
            f"{percent(row.kernel1, 3)} (`{row.config1}`)",
            f"{percent(row.kernel2, 3)} (`{row.config2}`)",
        )
        for row in evidence.paper.mismatch
    ]
    return markdown_table(header, rows)


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share, 1)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
