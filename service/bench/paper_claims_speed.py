"""The paper's claims about time, one judge each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.bench.kernel_results import KernelRow
from service.bench.markdown import percent, percent_span, span
from service.bench.paper_evidence import (
    EAGER_PASSES,
    Evidence,
    best,
    ratio,
    saved_bytes,
    size_of,
    speedup,
    winner,
)
from service.bench.paper_finding import (
    NOT_MEASURED,
    SAME,
    Claim,
    Finding,
    coverage,
    faster_memory,
    range_verdict,
    verdict,
    where,
)
from service.bench.paper_options import MODELS, PAPER_SIZES

# From so many tokens on the paper uses Kernel-1.
LARGE = 2048
_BEST = 2.47
_SMALLEST, _LARGEST = MODELS[0], MODELS[-1]
_WINS = {1: 7, 2: 13}
_PEAK = 0.795
# Dense bf16 of one multiprocessor: 512 multiply-adds in each of four tensor cores. With 132 of them
# at 1830 MHz that is the data sheet's peak.
_HOPPER_FLOPS_PER_CLOCK = 4096
_COMPILE_SPEED, _COMPILE_TIMES = (0.34, 0.94), (3.0, 7.0)
# Times of one run repeat within about a hundredth.
_LEVEL = 0.01


def _best_speedup(evidence: Evidence) -> Finding:
    found = best(evidence.paper_rows, speedup)
    if found is None:
        return NOT_MEASURED
    value, row = found
    covered = coverage([it for it in evidence.paper_rows if speedup(it)])
    everywhere = best(evidence.rows, speedup)
    assert everywhere is not None
    measured = f"{value:.2f}× ({where(row)}){covered}"
    measured += f"; of all sizes {everywhere[0]:.2f}× ({where(everywhere[1])})"
    judged = verdict(value, _BEST, 0.1 * _BEST)
    if judged == SAME and row.model != _SMALLEST:
        judged = "different: another model"
    return Finding(measured, judged, faster_memory(evidence) if value < _BEST else "")


def _largest_model(evidence: Evidence) -> Finding:
    rows = [row for row in evidence.paper_rows if row.model == _LARGEST and row.tokens >= LARGE]
    pairs = [(value, row) for row in rows if (value := speedup(row)) is not None]
    if not pairs:
        return NOT_MEASURED
    values = [value for value, _ in pairs]
    judged = SAME if all(abs(value - 1) <= 0.05 for value in values) else "different: higher"
    if judged != SAME and min(values) < 0.95:
        judged = "different: lower"
    shares = [_saved_share(evidence, row) for _, row in pairs]
    why = f"the bytes that fusion saves are worth {percent_span(shares, 1)} of eager's time there"
    return Finding(span(values, 2, "×"), judged, why)


def _saved_share(evidence: Evidence, row: KernelRow) -> float:
    assert row.eager_us
    seconds = saved_bytes(size_of(row), EAGER_PASSES) / evidence.read_rate(row)
    return seconds * 1e6 / row.eager_us


def _compile_speed(evidence: Evidence) -> Finding:
    speeds = [
        value for row in evidence.paper_rows if (value := ratio(row.eager_us, row.compile_us))
    ]
    measured = []
    if speeds:
        measured.append(f"default {percent_span(speeds)}{coverage(speeds)}")
    for mode, found in _of_modes(evidence, "eager").items():
        measured.append(f"{mode} {percent_span(found)} ({_sizes(found)})")
        speeds += found
    if not speeds:
        return NOT_MEASURED
    return Finding(
        "; ".join(measured), range_verdict(speeds, _COMPILE_SPEED, 0.1), _why_compiled(evidence)
    )


def _of_modes(evidence: Evidence, above: str) -> dict[str, list[float]]:
    """A variant's time over every mode's of torch.compile, at the sizes where both were run."""
    found: dict[str, list[float]] = {}
    for row in evidence.paper.compiled if evidence.paper else ():
        for mode, us in row.us.items():
            if mode not in {"eager", "fused"}:
                found.setdefault(mode, []).append(row.us[above] / us)
    return found


def _sizes(found: Sequence[float]) -> str:
    return f"{len(found)} size{'s' * (len(found) > 1)}"


def _why_compiled(evidence: Evidence) -> str:
    launches = {
        row.launches["default"]
        for row in (evidence.paper.compiled if evidence.paper else ())
        if "default" in row.launches
    }
    # Eager runs four: two GEMMs, silu, the product.
    if launches != {3}:
        return ""
    return "in the default mode it runs 3 kernels, eager 4: silu and the product have become one"


def _compile_times(evidence: Evidence) -> Finding:
    times = [value for row in evidence.paper_rows if (value := ratio(row.compile_us, row.fused_us))]
    measured = []
    if times:
        measured.append(f"default {span(times, 2, '×')}{coverage(times)}")
    for mode, inverse in _of_modes(evidence, "fused").items():
        found = [1 / value for value in inverse]
        measured.append(f"{mode} {span(found, 2, '×')} ({_sizes(found)})")
        times += found
    if not times:
        return NOT_MEASURED
    return Finding(
        "; ".join(measured), range_verdict(times, _COMPILE_TIMES, 0.1), _why_compiled(evidence)
    )


def _wins(evidence: Evidence) -> Finding:
    rows = [row for row in evidence.paper_rows if winner(row)]
    if not rows:
        return NOT_MEASURED
    first, second = (sum(winner(row) == kernel for row in rows) for kernel in (1, 2))
    close = sum(_is_level(row) for row in rows)
    measured = f"Kernel-2 {second}, Kernel-1 {first}{coverage(rows)}; {close} within 1 %"
    if len(rows) < len(PAPER_SIZES):
        return Finding(measured, "", "")
    return Finding(measured, verdict(first, _WINS[1], 2), _times_of_both(rows))


def _is_level(row: KernelRow) -> bool:
    value = ratio(row.kernel1_us, row.kernel2_us)
    return value is not None and abs(value - 1) <= _LEVEL


def _times_of_both(rows: Sequence[KernelRow]) -> str:
    values = [value for row in rows if (value := ratio(row.kernel1_us, row.kernel2_us))]
    return f"Kernel-1 takes {span(values, 3)} of Kernel-2's time"


def _large_batches(evidence: Evidence) -> Finding:
    return _wins_of(1, [row for row in evidence.paper_rows if row.tokens >= LARGE])


def _small_batches(evidence: Evidence) -> Finding:
    return _wins_of(2, [row for row in evidence.paper_rows if row.tokens < LARGE])


def _wins_of(kernel: int, rows: Sequence[KernelRow]) -> Finding:
    """`same` where it wins more than half of the rows."""
    rows = [row for row in rows if winner(row)]
    if not rows:
        return NOT_MEASURED
    won = sum(winner(row) == kernel for row in rows)
    judged = SAME if 2 * won > len(rows) else f"different: Kernel-{3 - kernel} wins"
    return Finding(f"Kernel-{kernel} wins {won} of {len(rows)}", judged, _times_of_both(rows))


def _peak(evidence: Evidence) -> Finding:
    found = best(evidence.paper_rows, evidence.share_of_peak)
    if found is None:
        return NOT_MEASURED
    value, row = found
    covered = coverage([it for it in evidence.paper_rows if it.fused_us])
    measured = f"{percent(value, 1)} ({where(row)}){covered}"
    return Finding(measured, verdict(value, _PEAK, 0.02), _held_clock(evidence, row))


def _held_clock(evidence: Evidence, row: KernelRow) -> str:
    """The clock, where it was below the one that the data sheet's peak belongs to."""
    run, conditions = evidence.run_of(row), evidence.conditions_of(row, "fused")
    if conditions is None or not evidence.peak or not row.fused_us or not _is_hopper(run):
        return ""
    watts, mhz = conditions
    per_mhz = run["multiprocessors"] * _HOPPER_FLOPS_PER_CLOCK * 1e6
    if mhz * per_mhz >= evidence.peak:
        return ""
    share = size_of(row).flops / row.fused_us * 1e6 / (mhz * per_mhz)
    return (
        f"drawing {watts:.0f} W of {run['power_limit_watts']:.0f}, the card ran at {mhz:.0f} MHz; "
        f"the peak is that of {evidence.peak / per_mhz:.0f} MHz, and at the clock held it is "
        f"{percent(share, 1)}"
    )


def _is_hopper(run: dict[str, Any]) -> bool:
    known = "H100" in run["gpu"] or "H200" in run["gpu"]
    return known and {"multiprocessors", "power_limit_watts"} <= run.keys()


SPEED_CLAIMS = (
    Claim(
        "Speed-up over eager, at best",
        "2.47×, on 0.5B",
        "within 10 %, on the same model",
        _best_speedup,
    ),
    Claim("Speed-up at 72B, large batch", "≈1.0×", "all from 0.95 to 1.05×", _largest_model),
    Claim(
        "Speed of torch.compile, of eager's",
        "34–94 %",
        "both ends within a tenth",
        _compile_speed,
    ),
    Claim(
        "Time of torch.compile over the kernels'",
        "3–7×",
        "both ends within a tenth",
        _compile_times,
    ),
    Claim(
        "The faster kernel, of 20 configurations",
        "Kernel-2 13, Kernel-1 7",
        "within 2 of 20, all 20 measured",
        _wins,
    ),
    Claim(
        f"Kernel-1 is the one for large batches, from {LARGE} tokens",
        "M ≥ 2048",
        "wins more than half of them",
        _large_batches,
    ),
    Claim(
        "Kernel-2 is the one for small batches, having twice the tiles",
        "M < 2048",
        "wins more than half of them",
        _small_batches,
    ),
    Claim("Highest share of the bf16 peak", "79.5 %", "within 2 points", _peak),
)
