"""Which loads are measured, and what each process does of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from service.load.answers import Expected
from service.load.options import LoadOptions
from service.load.payloads import Payload

_GAPS_PER_DRAW = 1024
# Of the given rate: dense towards the end, where the latency bends.
_RATE_FRACTIONS = (0.125, 0.25, 0.5, 0.75, 0.875, 1.0)


@dataclass(frozen=True, slots=True)
class Load:
    """One load to measure: connections, and arrivals per second in the open loop."""

    connections: int
    rate_per_s: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """One process's part of a load; everything that it needs to know."""

    options: LoadOptions
    connections: int
    rate_per_s: float | None
    max_backlog_requests: int
    payloads: Sequence[Payload]
    expected: Sequence[Expected]
    seed: tuple[int, int]


def make_loads(options: LoadOptions) -> list[Load]:
    """The loads to measure, ascending, ending with the one of the options."""
    if not options.sweep:
        return [Load(options.connections, options.rate_per_s)]
    if options.rate_per_s is not None:
        rates = [options.rate_per_s * fraction for fraction in _RATE_FRACTIONS]
        return [Load(options.connections, rate) for rate in rates]
    powers = [1 << power for power in range(options.connections.bit_length())]
    return [Load(count, None) for count in sorted({*powers, options.connections})]


def make_plans(
    options: LoadOptions, load: Load, payloads: Sequence[Payload], expected: Sequence[Expected]
) -> list[Plan]:
    """Split a load evenly; no process gets less than one connection.

    Independent Poisson arrivals at 1/n of the rate in n processes are Poisson at the whole rate.
    """
    processes = min(options.processes, load.connections)
    return [
        Plan(
            options=options,
            connections=(load.connections + number) // processes,
            rate_per_s=None if load.rate_per_s is None else load.rate_per_s / processes,
            max_backlog_requests=math.ceil(options.max_backlog_requests / processes),
            payloads=payloads,
            expected=expected,
            seed=(options.seed, number),
        )
        for number in range(processes)
    ]


def poisson_arrivals_ns(rate_per_s: float, seed: tuple[int, int]) -> Iterator[int]:
    """Endless arrival times in nanoseconds from the start: exponential gaps of mean 1/rate."""
    rng = np.random.default_rng(seed)
    last = 0.0
    while True:
        times = last + np.cumsum(rng.exponential(1e9 / rate_per_s, _GAPS_PER_DRAW))
        last = float(times[-1])
        yield from times.astype(np.int64).tolist()
