"""The paper's claims about bytes and about accuracy, one judge each."""

from __future__ import annotations

import statistics

from service.bench.kernel_problem import Size
from service.bench.markdown import percent, percent_span, span
from service.bench.paper_evidence import (
    PAPER_PASSES,
    Evidence,
    intensity,
    saved_bytes,
    size_of,
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
)
from service.bench.paper_options import MODELS, PAPER_SIZES, WEIGHT_STDS
from service.bench.paper_results import MismatchRow

# [M, N] in bytes above which nothing of it waits in an L2 of 50 MB for the next kernel.
_BEYOND_L2 = 100e6
_SHARE, _UNFUSED_OFF = (0.09, 0.37), (0.045, 0.11)
_INTENSITY = 2.47
_NONE_OFF = 0.0001


def _passes(evidence: Evidence) -> Finding:
    """Elementwise kernels' time as passes over [M, N] at the read rate, and the GEMMs' 2 writes."""
    if evidence.paper is None:
        return NOT_MEASURED
    rate = float(evidence.paper.about["ceilings"]["hbm_read_bytes_per_s"])
    found = [
        # Less the one that the fused kernel writes as well.
        row.elementwise_us / 1e6 * rate / one_pass + 2 - 1
        for row in evidence.paper.parts
        if (one_pass := saved_bytes(Size(row.model, row.tokens), 1)) > _BEYOND_L2
    ]
    if not found:
        return NOT_MEASURED
    passes = statistics.median(found)
    measured = f"{passes:.1f}, by time (median of {len(found)} sizes, [M, N] beyond L2)"
    why = "torch's eager runs silu as a kernel of its own: silu(gate) is written and read as well"
    return Finding(
        measured, verdict(passes, PAPER_PASSES, 0.5), why if passes > PAPER_PASSES + 1 else ""
    )


def _share(evidence: Evidence) -> Finding:
    rows = evidence.paper.parts if evidence.paper else []
    if not rows:
        return NOT_MEASURED
    shares = [row.share for row in rows]
    judged = range_verdict(shares, _SHARE, 0.25)
    why = faster_memory(evidence) if max(shares) < _SHARE[1] else ""
    return Finding(f"{percent_span(shares)}{coverage(rows)}", judged, why)


def _share_by_model(evidence: Evidence) -> Finding:
    rows = evidence.paper.parts if evidence.paper else []
    means = {
        model: statistics.mean(shares)
        for model in MODELS
        if (shares := [row.share for row in rows if row.model == model])
    }
    if len(means) < 2:
        return NOT_MEASURED
    names = ", ".join(f"{model} {percent(mean)}" for model, mean in means.items())
    most = max(means, key=means.__getitem__)
    judged = SAME if most == next(iter(means)) else f"different: {most}"
    return Finding(f"mean by model: {names}", judged)


def _one_kernel(evidence: Evidence) -> Finding:
    found: dict[str, set[int]] = {}
    for row in evidence.paper.compiled if evidence.paper else ():
        for mode, launches in row.launches.items():
            found.setdefault(mode, set()).add(launches)
    if not found:
        return NOT_MEASURED
    measured = "kernels a call: " + ", ".join(
        f"{mode} {span(sorted(counts), 0)}" for mode, counts in found.items()
    )
    fewest = min(min(counts) for counts in found.values())
    if fewest < 2:
        return Finding(measured, "different: one kernel does it all")
    why = "the best of them joins silu·mul to one GEMM; the other's result goes through memory"
    return Finding(measured, SAME, why if fewest == 2 else "")


def _intensity(evidence: Evidence) -> Finding:
    gains = {size: intensity(size) / intensity(size, PAPER_PASSES) - 1 for size in PAPER_SIZES}
    size = max(gains, key=gains.__getitem__)
    rows = [size_of(row) for row in evidence.rows]
    most = max((intensity(it) / intensity(it, PAPER_PASSES) - 1 for it in rows), default=0.0)
    measured = f"+{percent(gains[size])} ({size.model}, {size.tokens} tokens), by the byte model"
    if most > gains[size]:
        measured += f"; of all sizes +{percent(most)}"
    return Finding(measured, verdict(gains[size], _INTENSITY, 0.01))


def _ridge(evidence: Evidence) -> Finding:
    measured = [size_of(row) for row in evidence.rows if size_of(row) not in PAPER_SIZES]
    sizes = (*PAPER_SIZES, *measured)
    ridge = f"of {len(sizes)} sizes by the byte model, ridge at {evidence.ridge:.0f} FLOP/B"
    crossing = [
        f"{size.model} {size.tokens}"
        for size in sizes
        if intensity(size, PAPER_PASSES) < evidence.ridge <= intensity(size)
    ]
    if not crossing:
        return Finding(f"at none {ridge}", "different: none")
    return Finding(f"at {', '.join(crossing)}; {ridge}", SAME)


def _fused_off(evidence: Evidence) -> Finding:
    shares = [row.mismatch_fused for row in evidence.rows if row.mismatch_fused is not None]
    scaled = evidence.paper.mismatch if evidence.paper else []
    if not shares and not scaled:
        return NOT_MEASURED
    measured = []
    if shares:
        measured.append(f"{percent_span(shares, 3)} at all sizes of the benchmark")
    if scaled:
        values = [max(row.kernel1, row.kernel2) for row in scaled]
        measured.append(f"{percent_span(values, 3)} over the weight scales")
        shares += values
    judged = SAME if max(shares) < _NONE_OFF else "different: higher"
    return Finding("; ".join(measured), judged, _against_fp32(scaled))


def _against_fp32(rows: list[MismatchRow]) -> str:
    """Whether FP32 accumulation accounts for it: both sum in FP32, in orders of their own."""
    if not rows:
        return ""
    worst = max(rows, key=lambda row: max(row.kernel1, row.kernel2))
    ours, fp32 = max(worst.kernel1, worst.kernel2), worst.fp32
    where_ = f"{worst.model}, weights of deviation {worst.std:g}"
    if ours <= 1.5 * fp32:
        return (
            f"FP32 rounded once has {percent(fp32, 3)} where ours has {percent(ours, 3)} ({where_})"
        )
    return f"more than FP32 rounded once, which has {percent(fp32, 3)} ({where_})"


def _unfused_off(evidence: Evidence) -> Finding:
    scaled = evidence.paper.mismatch if evidence.paper else []
    by_std = {
        std: shares
        for std in WEIGHT_STDS
        if (shares := [row.eager for row in scaled if row.std == std])
    }
    csv = [row.mismatch_eager for row in evidence.rows if row.mismatch_eager is not None]
    if not by_std and csv:
        judged = range_verdict(csv, _UNFUSED_OFF, 0.25)
        return Finding(f"{percent_span(csv, 2)} at deviation {WEIGHT_STDS[0]:g}", judged)
    if not by_std:
        return NOT_MEASURED
    measured = "; ".join(f"{percent_span(v, 2)} at {std:g}" for std, v in by_std.items())
    alike = [std for std, v in by_std.items() if range_verdict(v, _UNFUSED_OFF, 0.25) == SAME]
    inside = [
        std for std, v in by_std.items() if min(v) <= _UNFUSED_OFF[1] and max(v) >= _UNFUSED_OFF[0]
    ]
    judged = SAME if alike else "different: at no scale the same range"
    why = ""
    if inside and inside[0] > WEIGHT_STDS[0]:
        why = (
            "it grows with the scale of the weights; the claimed range is reached from deviation "
            f"{inside[0]:g} on"
        )
    return Finding(f"by deviation of the weights: {measured}", judged, why)


MEMORY_CLAIMS = (
    Claim(
        "Passes over [M, N] through memory that fusion saves",
        "4",
        "within half a pass",
        _passes,
    ),
    Claim(
        "Share of MLP time that activation and intermediates take",
        "9–37 %",
        "both ends within a quarter",
        _share,
    ),
    Claim("That share is highest for", "small models", "for the smallest model", _share_by_model),
    Claim(
        "torch.compile does not fuse across two GEMMs",
        "none",
        "every mode runs 2 kernels or more",
        _one_kernel,
    ),
    Claim("Arithmetic intensity", "up to +247 %", "within 1 point", _intensity),
    Claim("Fusion crosses the roofline's ridge", "yes", "at one size or more", _ridge),
)
ACCURACY_CLAIMS = (
    Claim("Elements off by more than 1 %, fused", "0 %", "below 0.01 %", _fused_off),
    Claim(
        "Elements off by more than 1 %, unfused in bf16",
        "4.5–11 %",
        "at some scale both ends within a quarter",
        _unfused_off,
    ),
)
