"""How good the dispatch table's choices were in a run other than the one that made the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.bench.kernel_variants import VARIANTS

# The chosen kernel may be so much slower than the fastest one known before it counts as missed.
TOLERANCE = 0.01


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen kernel at one size beside the fastest other one that the tuner knows.

    Attributes:
        model: Preset.
        tokens: M.
        behind: The chosen one's time over the fastest one's, less 1; 0 where it is the fastest.
        apart: Every round of the chosen one was slower than every round of the fastest one, so that
            the difference is more than what one visit differs from the next.
    """

    model: str
    tokens: int
    behind: float
    apart: bool


def read_choices(runs: Sequence[Mapping[str, Any]]) -> list[Choice]:
    """Every size at which the chosen kernel was timed beside others.

    Args:
        runs: Of a results file, each with its sizes.
    """
    return [
        choice
        for run in runs
        for size in run.get("sizes", ())
        if (choice := _choice(size)) is not None
    ]


def choices_in_short(choices: Sequence[Choice]) -> str:
    """A sentence or two for the README; empty where nothing can be said."""
    if not choices:
        return ""
    missed = [choice for choice in choices if choice.behind > TOLERANCE]
    said = (
        f"The chosen kernel was within {TOLERANCE:.0%} of the fastest one that the tuner knows at "
        f"{len(choices) - len(missed)} of {len(choices)} sizes"
    )
    if not missed:
        return f"{said}."
    worst = max(missed, key=lambda choice: choice.behind)
    apart = sum(choice.apart for choice in missed)
    return (
        f"{said}, and at the worst {worst.behind:.1%} behind it ({worst.model}, {worst.tokens} "
        f"tokens). Of the {len(missed)} sizes further behind, the rounds of the two kernels do not "
        f"overlap at {apart}."
    )


def _choice(size: Mapping[str, Any]) -> Choice | None:
    variants: Mapping[str, Mapping[str, Any]] = size["variants"]
    others = [timing for name, timing in variants.items() if name not in VARIANTS]
    if "fused" not in variants or not others:
        return None
    fused = variants["fused"]
    best = min(others, key=lambda timing: float(timing["us"]))
    return Choice(
        model=size["model"],
        tokens=size["tokens"],
        behind=max(0.0, fused["us"] / best["us"] - 1),
        apart=min(fused["rounds_us"]) > max(best["rounds_us"]),
    )
