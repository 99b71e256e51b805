"""Where in shared memory a tensor lies, as a request says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a registered region.

    Attributes:
        region: Registered name.
        offset: First byte, counted from the beginning of the region.
        nbytes: Length.
    """

    region: str
    offset: int
    nbytes: int
