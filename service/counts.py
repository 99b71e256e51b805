"""What a front end counts of its requests, in numbers that another process can read.

One array of doubles has one writer, a front end, and any number of readers. It may lie in memory
that processes share: then the engine's process adds up the arrays at each scrape, nothing is sent
for counting, and what a front end has counted outlives it.
"""

from __future__ import annotations

import ctypes
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, product

# Requests and stages: 50 µs to 10 s. A quantile is known to within a factor of 1.6 at worst.
DURATION_BUCKETS = tuple(50e-6 * 1.6**k for k in range(27))
APIS = ("mlp", "v2")
# The stages of a request outside the engine's process.
FRONT_STAGES = ("receive", "decode", "encode")

_LAST_OK, _CLOSED, _BEATS, _GATHERED, _FIRST = 0, 1, 2, 3, 6
_HISTOGRAM_CELLS = len(DURATION_BUCKETS) + 2


class Histogram:
    """Counts per bucket, and the sum of what was observed.

    Args:
        bounds: Upper bounds of the buckets, ascending.
        cells: Where to keep it: a cell per bound, one for what lies beyond, one for the sum.
    """

    __slots__ = ("_bounds", "_cells")

    def __init__(
        self, bounds: Sequence[float], cells: memoryview[float] | list[float] | None = None
    ) -> None:
        self._bounds = bounds
        self._cells = [0.0] * (len(bounds) + 2) if cells is None else cells

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` in the first bucket whose bound is not below it."""
        cells = self._cells
        cells[bisect_left(self._bounds, value)] += times
        cells[-1] += value * times

    @property
    def sum(self) -> float:
        """Of all that was observed."""
        return float(self._cells[-1])

    @property
    def count(self) -> int:
        """Observations so far."""
        return int(sum(self._cells[:-1]))

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as the exposition format wants them."""
        names = [*(repr(bound) for bound in self._bounds), "+Inf"]
        return list(zip(names, map(float, accumulate(self._cells[:-1])), strict=True))


class FrontCounts:
    """How the requests of one front end ended, and how long their stages took.

    Args:
        outcomes: Every end a request can have: `ok` and the codes of service.errors.
        cells: `cells_needed(outcomes)` doubles; new ones, all zero, by default.

    Attributes:
        stages: A histogram of seconds for each of FRONT_STAGES.
        durations: A histogram of seconds by API, of ok requests.
    """

    def __init__(self, outcomes: Sequence[str], cells: memoryview[float] | None = None) -> None:
        if cells is None:
            cells = memoryview(bytearray(8 * cells_needed(outcomes))).cast("d")
        self.cells = cells
        self._requests = {
            key: index for index, key in enumerate(product(APIS, outcomes), start=_FIRST)
        }
        start = self._first_histogram = _FIRST + len(self._requests)
        histograms = []
        for _ in range(len(APIS) + len(FRONT_STAGES)):
            part = cells[start : start + _HISTOGRAM_CELLS]
            histograms.append(Histogram(DURATION_BUCKETS, part))
            start += _HISTOGRAM_CELLS
        self.durations = dict(zip(APIS, histograms, strict=False))
        self.stages = dict(zip(FRONT_STAGES, histograms[len(APIS) :], strict=True))

    def request_ended(self, api: str, outcome: str, duration_s: float) -> None:
        """A tensor request has ended; the only place where requests are counted."""
        self.cells[self._requests[api, outcome]] += 1
        if outcome == "ok":
            self.durations[api].observe(duration_s)
            self.cells[_LAST_OK] = time.time()

    def stage(self, stage: str, duration_s: float) -> None:
        """One of FRONT_STAGES of a request is over."""
        self.stages[stage].observe(duration_s)

    def requests(self, api: str, outcome: str) -> float:
        """Requests of an API that ended so."""
        return float(self.cells[self._requests[api, outcome]])

    @property
    def last_ok_unix_s(self) -> float:
        """When the last request succeeded, in seconds since the epoch; 0 for never."""
        return float(self.cells[_LAST_OK])

    def connection_closed(self) -> None:
        """A client's connection is gone."""
        self.cells[_CLOSED] += 1

    @property
    def connections_closed(self) -> int:
        """Connections that are gone; `restart` begins anew."""
        return int(self.cells[_CLOSED])

    def beat(self) -> None:
        """The front end's event loop turns."""
        self.cells[_BEATS] += 1

    @property
    def beats(self) -> int:
        """How often it was seen to."""
        return int(self.cells[_BEATS])

    @property
    def gathered(self) -> tuple[int, int, int]:
        """Small requests that wait in the front end for a place in the queue, rows and bytes."""
        requests, tokens, nbytes = map(int, self.cells[_GATHERED:_FIRST])
        return requests, tokens, nbytes

    @gathered.setter
    def gathered(self, waiting: tuple[int, int, int]) -> None:
        for index, value in enumerate(waiting, start=_GATHERED):
            self.cells[index] = value

    def addresses(self) -> tuple[int, ...]:
        """Where requests to /mlp are counted by code that is not Python.

        The histograms of FRONT_STAGES, that of durations, the cells of ok and of cancelled
        requests, of the time of the last that was ok, and of closed connections.
        """
        order = [len(APIS) + index for index in range(len(FRONT_STAGES))] + [APIS.index("mlp")]
        histograms = [self._first_histogram + index * _HISTOGRAM_CELLS for index in order]
        ends = [self._requests["mlp", outcome] for outcome in ("ok", "cancelled")]
        return tuple(map(self._address, (*histograms, *ends, _LAST_OK, _CLOSED)))

    def address_of(self, api: str, outcome: str) -> int:
        """Where the requests of an API that ended so are counted."""
        return self._address(self._requests[api, outcome])

    def _address(self, cell: int) -> int:
        return ctypes.addressof(ctypes.c_double.from_buffer(self.cells, 8 * cell))

    def restart(self) -> None:
        """Another process takes the place of the writer; what was counted stays."""
        self.cells[_CLOSED] = 0.0
        self.gathered = (0, 0, 0)


def cells_needed(outcomes: Sequence[str]) -> int:
    """Doubles that FrontCounts needs."""
    histograms = len(APIS) + len(FRONT_STAGES)
    return _FIRST + len(APIS) * len(outcomes) + histograms * _HISTOGRAM_CELLS


def add_up(outcomes: Sequence[str], fronts: Iterable[FrontCounts]) -> FrontCounts:
    """The sum of what front ends have counted so far."""
    total = FrontCounts(outcomes)
    for front in fronts:
        last = max(total.last_ok_unix_s, front.last_ok_unix_s)
        for index, value in enumerate(front.cells):
            total.cells[index] += value
        total.cells[_LAST_OK] = last
    return total
