"""Counts of integers in logarithmic buckets: constant memory, mergeable, within 0.4 %."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from itertools import accumulate

# 128 buckets per power of two: a bucket is at most 1/128 of its lower bound wide, so its middle is
# within 1/256 = 0.39 % of every value in it. Values below 256 have a bucket of their own.
_SUB_BITS = 7
_EXACT_BITS = _SUB_BITS + 1
# 2**44 ns are almost five hours, far beyond any timeout; larger values count in the last bucket,
# and only `maximum` tells them apart.
_MAX_BITS = 44
_BUCKETS = ((_MAX_BITS - _EXACT_BITS) << _SUB_BITS) + (1 << _EXACT_BITS)


def _bucket(value: int) -> int:
    shift = value.bit_length() - _EXACT_BITS
    return value if shift <= 0 else (shift << _SUB_BITS) + (value >> shift)


def _middle(bucket: int) -> float:
    if bucket < 1 << _EXACT_BITS:
        return float(bucket)
    shift = (bucket >> _SUB_BITS) - 1
    lower = (bucket - (shift << _SUB_BITS)) << shift
    return lower + ((1 << shift) - 1) / 2


class LogHistogram:
    """Distribution of integers such as latencies in nanoseconds.

    Attributes:
        count: Values recorded.
        total: Their exact sum.
        minimum: Exact smallest value; 0 while there is none.
        maximum: Exact largest value; 0 while there is none.
    """

    __slots__ = ("_counts", "count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self._counts = array("Q", bytes(8 * _BUCKETS))  # an array pickles at memcpy speed
        self.count = 0
        self.total = 0
        self.minimum = 0
        self.maximum = 0

    def record(self, value: int) -> None:
        """Count one value, which must not be negative."""
        bucket = _bucket(value)
        self._counts[bucket if bucket < _BUCKETS else -1] += 1
        self.maximum = max(self.maximum, value)
        if value < self.minimum or not self.count:
            self.minimum = value
        self.count += 1
        self.total += value

    def merge(self, other: LogHistogram) -> None:
        """Add the values of `other`, as if they had been recorded here."""
        if not other.count:
            return
        self.minimum = min(self.minimum, other.minimum) if self.count else other.minimum
        self.maximum = max(self.maximum, other.maximum)
        self.count += other.count
        self.total += other.total
        pairs = zip(self._counts, other._counts, strict=True)
        self._counts = array("Q", [mine + theirs for mine, theirs in pairs])

    def quantile(self, fraction: float) -> float | None:
        """Smallest value that at least `fraction` of all values do not exceed, within 0.4 %.

        Args:
            fraction: Between 0 and 1; 0.99 is p99.

        Returns:
            None while nothing was recorded.
        """
        if not self.count:
            return None
        rank = max(1, math.ceil(fraction * self.count))
        if rank == self.count:
            return float(self.maximum)
        bucket = bisect_left(list(accumulate(self._counts)), rank)
        return min(max(_middle(bucket), float(self.minimum)), float(self.maximum))

    @property
    def mean(self) -> float | None:
        """Exact mean; None while nothing was recorded."""
        return self.total / self.count if self.count else None
