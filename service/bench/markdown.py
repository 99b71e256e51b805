"""What pages about measurements are made of: tables, and the conditions of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Lines of a table; a `|` in a cell is escaped."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def percent(share: float, digits: int = 0) -> str:
    """A share as `79.5 %`."""
    return f"{100 * share:.{digits}f} %"


def span(values: Sequence[float], digits: int, unit: str = "") -> str:
    """`low–high`, with the unit right after; one figure where both are written alike."""
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return f"{low}{unit}" if low == high else f"{low}–{high}{unit}"


def percent_span(shares: Sequence[float], digits: int = 0) -> str:
    """`9–37 %`."""
    return span([100 * share for share in shares], digits, " %")


def describe_run(run: dict[str, Any]) -> str:
    """Where and how a run on a GPU was taken, and what the card reached in it."""
    versions = ", ".join(f"{name} {found}" for name, found in run["versions"].items())
    return (
        f"{run['gpu']}, limit {run.get('power_limit_watts', 0):.0f} W, driver "
        f"{run.get('driver', '?')}, CUDA {run['cuda']}, {versions}, {run['library']}, commit "
        f"{run['commit']}, {run['date'][:10]}, `{run['command']}`; 8192³ GEMM "
        f"{run['ceilings']['gemm_flops_per_s'] / 1e12:.0f} TFLOP/s, memory read "
        f"{run['ceilings']['hbm_read_bytes_per_s'] / 1e12:.2f} TB/s."
    )
