"""Free rooms: those who wait are served in the order in which they came, and counted together."""

from __future__ import annotations

import math

from service.counts import FrontCounts
from service.errors import outcomes
from service.workers.free_rooms import FreeRooms


class Gatherer:
    """Has so many requests, each of two rows and ten bytes, and takes a room for one of them."""

    def __init__(self, free: FreeRooms, requests: int, oldest_s: float) -> None:
        self.requests = requests
        self.since_s = oldest_s
        self.flushed = 0
        self.taken: list[int] = []
        self._free = free
        free.join(self)

    @property
    def gathered(self) -> tuple[int, int, int]:
        return self.requests, 2 * self.requests, 10 * self.requests

    @property
    def oldest_s(self) -> float:
        return self.since_s if self.requests else math.inf

    def flush(self) -> None:
        self.flushed += 1
        while self.requests and self._free:
            self.requests -= 1
            self.taken.append(self._free.take())
        self._free.tell()


def _rooms() -> tuple[FreeRooms, FrontCounts]:
    counts = FrontCounts(outcomes())
    return FreeRooms(counts), counts


def test_a_room_goes_to_who_has_waited_longest():
    free, counts = _rooms()
    late, early = Gatherer(free, 2, 9.0), Gatherer(free, 1, 5.0)
    free.add(100)
    assert (early.taken, late.taken) == ([100], [])
    assert counts.gathered == (2, 4, 20)
    free.add(200)
    assert late.taken == [200]
    early.requests, early.since_s = 1, 8.0
    free.give(100)
    assert early.taken == [100, 100]
    free.give(200)
    assert late.taken == [200, 200]
    assert not free


def test_a_room_that_nobody_needs_stays_free_and_everybody_is_asked():
    free, _ = _rooms()
    gatherers = [Gatherer(free, 0, 0.0) for _ in range(3)]
    free.add(0)
    assert free
    assert [one.flushed for one in gatherers] == [1, 1, 1]
    assert free.take() == 0
    assert not free


def test_rooms_that_come_back_are_not_granted_twice():
    free, _ = _rooms()
    assert free.granted == 0
    for offset in (0, 100):
        free.add(offset)
    free.give(free.take())
    assert free.granted == 2
    assert {free.take(), free.take()} == {0, 100}


def test_what_waits_is_told_of_all_together():
    free, counts = _rooms()
    first, second = Gatherer(free, 3, 1.0), Gatherer(free, 4, 2.0)
    free.tell()
    assert counts.gathered == (7, 14, 70)
    first.requests = second.requests = 0
    free.tell()
    assert counts.gathered == (0, 0, 0)


def test_rows_and_bytes_beside_are_those_of_all_others():
    free, _ = _rooms()
    first, second, third = (Gatherer(free, count, 0.0) for count in (1, 2, 4))
    assert free.beside(first) == (12, 60)
    assert free.beside(second) == (10, 50)
    assert free.beside(third) == (6, 30)
