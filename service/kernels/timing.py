"""GPU times in the steady state: graph replays, settled clocks, shuffled order, medians.

A card under large GEMMs is limited by power, and the limit averages over tens of milliseconds: in
short visits in a fixed order, variants come out up to 25 % faster than they are, depending on what
ran before them. So every visit first runs until power and clocks have settled, and the order of
visits is drawn anew each round.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

# Starting a replay takes microseconds, so a graph of small kernels is made at least this long.
_GRAPH_S = 1e-3
_MOST_PASSES = 8
# Power and clock are read when so much of a visit has passed.
_SAMPLE_AT = 0.8


@dataclass(frozen=True, slots=True)
class Steadiness:
    """How long one visit lasts, and how often each variant is visited."""

    settle_s: float = 0.04
    measure_s: float = 0.12
    rounds: int = 3

    def for_tokens(self, tokens: int) -> Steadiness:
        """Half the time for batches so small that memory, not power, is the limit."""
        if tokens > 256:
            return self
        return Steadiness(self.settle_s, self.measure_s / 2, self.rounds)


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit: microseconds a call, what the card drew and ran at towards its end."""

    us: float
    watts: float | None = None
    mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians over the rounds, and the time of each."""

    us: float
    watts: float | None
    mhz: float | None
    rounds_us: tuple[float, ...]


class Visitable(Protocol):
    """Something that can be run for a while and timed."""

    def visit(self, steadiness: Steadiness) -> Visit:
        """Settle, measure, and say how long one call took."""


class CapturedCalls:
    """Calls captured as a CUDA graph, such as one for each of several sets of weights."""

    def __init__(
        self,
        calls: Sequence[Callable[[], object]],
        watts_and_mhz: Callable[[], tuple[float, float]] | None = None,
    ) -> None:
        """Capture them.

        Args:
            calls: Enqueue work on the current stream; the first is run once for what it compiles
                or loads.
            watts_and_mhz: Asked of the card during each visit. Not every card tells: a virtual GPU
                or a part of one does not.
        """
        self._watts_and_mhz = watts_and_mhz
        calls[0]()
        torch.cuda.synchronize()
        pass_s = elapsed_s(lambda: [call() for call in calls])
        passes = min(_MOST_PASSES, math.ceil(_GRAPH_S / pass_s))
        self._calls = passes * len(calls)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(passes):
                for call in calls:
                    call()
        self._graph.replay()
        self._replay_s = elapsed_s(self._graph.replay)

    def visit(self, steadiness: Steadiness) -> Visit:
        """Replay for the settling time and then for the measuring time."""
        for _ in range(self._count(steadiness.settle_s)):
            self._graph.replay()
        replays = self._count(steadiness.measure_s)
        start, end = _event(), _event()
        start.record()
        for _ in range(replays):
            self._graph.replay()
        end.record()
        card: tuple[float, float] | None = None
        if self._watts_and_mhz is not None:
            time.sleep(_SAMPLE_AT * (steadiness.settle_s + steadiness.measure_s))
            card = self._watts_and_mhz()
        end.synchronize()
        return Visit(start.elapsed_time(end) * 1e3 / (replays * self._calls), *(card or ()))

    def _count(self, seconds: float) -> int:
        return max(1, round(seconds / self._replay_s))


def elapsed_s(work: Callable[[], object]) -> float:
    """Device seconds of work enqueued on the current stream, launch gaps included."""
    start, end = _event(), _event()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def measure(
    variants: Mapping[str, Visitable],
    steadiness: Steadiness,
    visited: Callable[[str], None] = lambda _: None,
) -> dict[str, Timing]:
    """Visit every variant once a round, in an order drawn anew each round.

    Args:
        variants: What to time, by name.
        steadiness: Length and number of visits.
        visited: Told the name after every visit.

    Returns:
        Medians by name, in the order of `variants`.
    """
    visits: dict[str, list[Visit]] = {name: [] for name in variants}
    for _ in range(steadiness.rounds):
        for name in random.sample(list(variants), len(variants)):
            visits[name].append(variants[name].visit(steadiness))
            visited(name)
    return {name: _median(seen) for name, seen in visits.items()}


def _median(visits: Sequence[Visit]) -> Timing:
    return Timing(
        us=round(statistics.median(visit.us for visit in visits), 3),
        watts=_middle(visit.watts for visit in visits),
        mhz=_middle(visit.mhz for visit in visits),
        rounds_us=tuple(round(visit.us, 3) for visit in visits),
    )


def _middle(values: Iterable[float | None]) -> float | None:
    """The median of what is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def host_us(call: Callable[[], object], *, bursts: int = 20, calls: int = 100) -> float:
    """Host microseconds of one enqueueing call: median over bursts that the queue can hold."""
    call()
    spent = []
    for _ in range(bursts):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        spent.append((time.perf_counter() - began) / calls)
    torch.cuda.synchronize()
    return statistics.median(spent) * 1e6
