"""A claim of the paper held against what was measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.bench.kernel_results import KernelRow
from service.bench.paper_evidence import Evidence
from service.bench.paper_options import PAPER_SIZES

# An H100 SXM's memory by its data sheet: what the paper's card moves at most.
H100_BYTES_PER_S = 3.35e12


@dataclass(frozen=True, slots=True)
class Finding:
    """Three cells of a row.

    Attributes:
        measured: Figures, or `not measured`.
        verdict: `same`, or `different` and in which direction; empty where nothing was measured.
        why: A reason, where the results files decide on one.
    """

    measured: str = "not measured"
    verdict: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of the table.

    Attributes:
        about: What is claimed.
        claimed: The paper's figures.
        rule: When the verdict is `same`.
        judge: Makes the other cells.
    """

    about: str
    claimed: str
    rule: str
    judge: Callable[[Evidence], Finding]


NOT_MEASURED = Finding()
SAME = "same"


def verdict(measured: float, claimed: float, tolerance: float) -> str:
    """`same` up to a difference of `tolerance`, in the unit of both."""
    if abs(measured - claimed) <= tolerance:
        return SAME
    return "different: higher" if measured > claimed else "different: lower"


def range_verdict(measured: Sequence[float], claimed: tuple[float, float], tolerance: float) -> str:
    """`same` if both ends lie within `tolerance`, as a part of each end, of the claimed ones."""
    (low, high), (least, most) = (min(measured), max(measured)), claimed
    if abs(low - least) <= tolerance * least and abs(high - most) <= tolerance * most:
        return SAME
    if low > most:
        return "different: all higher"
    if high < least:
        return "different: all lower"
    if low >= least * (1 - tolerance) and high <= most * (1 + tolerance):
        return "different: a narrower range"
    if low < least and high > most:
        return "different: a wider range"
    return "different: higher" if high > most else "different: lower"


def coverage(rows: Sequence[object]) -> str:
    """`, 15 of 20 configurations measured`; empty where all are there."""
    total = len(PAPER_SIZES)
    return "" if len(rows) == total else f", {len(rows)} of {total} configurations measured"


def where(row: KernelRow) -> str:
    """A row's size, for a sentence."""
    return f"{row.model.removeprefix('qwen2.5-').upper()}, {row.tokens} tokens"


def faster_memory(evidence: Evidence) -> str:
    """Why intermediates weigh less than on the paper's card; empty where memory is no faster."""
    rate = float(evidence.runs[-1]["ceilings"]["hbm_read_bytes_per_s"])
    if rate <= H100_BYTES_PER_S:
        return ""
    return (
        f"this card was read at {rate / 1e12:.2f} TB/s, the paper's has "
        f"{H100_BYTES_PER_S / 1e12:.2f} by its data sheet, so the same passes take less of the time"
    )
