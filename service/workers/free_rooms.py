"""A front end's free rooms, and those who put requests into them."""

from __future__ import annotations

from typing import Protocol

from service.counts import FrontCounts


class GathersRequests(Protocol):
    """Who has requests that wait for a room."""

    @property
    def gathered(self) -> tuple[int, int, int]:
        """Requests that wait, their rows and bytes."""

    @property
    def oldest_s(self) -> float:
        """When the first of these came, by time.monotonic; infinity without one."""

    def flush(self) -> None:
        """Take free rooms for what waits, as long as there are any."""


class FreeRooms:
    """The rooms of one front end that are not on their way.

    Args:
        counts: Where it is told what waits.

    Attributes:
        granted: Rooms there are, free or on their way.
    """

    def __init__(self, counts: FrontCounts) -> None:
        self.granted = 0
        self._counts = counts
        self._free: list[int] = []
        self._gatherers: list[GathersRequests] = []

    def __bool__(self) -> bool:
        """There is one."""
        return bool(self._free)

    def join(self, gatherer: GathersRequests) -> None:
        """From now on it is offered what comes back."""
        self._gatherers.append(gatherer)

    def add(self, offset: int) -> None:
        """The engine's process has given a room, for good."""
        self.granted += 1
        self.give(offset)

    def take(self) -> int:
        """Offset of a room."""
        return self._free.pop()

    def give(self, offset: int) -> None:
        """Nobody uses a room any more: whoever has waited longest is first."""
        self._free.append(offset)
        for gatherer in sorted(self._gatherers, key=lambda one: one.oldest_s):
            gatherer.flush()

    def tell(self) -> None:
        """What waits has changed."""
        requests = tokens = nbytes = 0
        for gatherer in self._gatherers:
            more = gatherer.gathered
            requests, tokens, nbytes = requests + more[0], tokens + more[1], nbytes + more[2]
        self._counts.gathered = (requests, tokens, nbytes)

    def beside(self, gatherer: GathersRequests) -> tuple[int, int]:
        """Rows and bytes that wait elsewhere."""
        others = [one.gathered for one in self._gatherers if one is not gatherer]
        return sum([other[1] for other in others]), sum([other[2] for other in others])
