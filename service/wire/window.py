"""Where in shared memory a tensor lies, as a request says it."""

from __future__ import annotations

from dataclasses import dataclass

# As of an object's, NAME_MAX of POSIX. It is repeated in answers, and sent between processes.
LONGEST_REGION_NAME = 255


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
