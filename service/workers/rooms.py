"""Where bundles of small requests travel: rooms in shared memory, and what may gather outside.

A request whose body has arrived with its headers, and is small, costs more to be asked for than to
be moved. So each front end has rooms for good, and puts all such requests that are ready in one
turn of its event loop into one of them, rows behind rows: a bundle, which goes as one. While its
rooms are on their way, the next bundle gathers; the more there is to do, the more goes at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.config import Settings

# Of one front end. With two, one is computed while the other gathers or travels.
ROOMS = 2
# One half is for rows, the other for answers.
ROOM_BYTES = 2 << 20
HALF_BYTES = ROOM_BYTES // 2
# A larger body or answer of one request travels by itself.
SMALL_BYTES = 256 << 10
# Of the queue's limits, for what gathers in all front ends together.
_GATHERED_SHARE = 8


@dataclass(frozen=True, slots=True)
class Gathering:
    """What may gather in one front end while its rooms are on their way.

    The ledger does not see it, so that its limits are lower by as much.
    """

    tokens: int
    nbytes: int


def gathering(settings: Settings) -> Gathering:
    """As the settings have it; nothing where requests wait for company in the one queue."""
    if settings.max_queue_delay_s:
        return Gathering(0, 0)
    # The largest request there may be still has to pass.
    tokens = settings.max_queue_tokens - settings.max_batch_tokens
    nbytes = settings.max_queue_bytes - settings.max_body_bytes
    return Gathering(
        max(0, min(settings.max_queue_tokens // _GATHERED_SHARE, tokens)) // settings.workers,
        max(0, min(settings.max_queue_bytes // _GATHERED_SHARE, nbytes)) // settings.workers,
    )


def rooms_bytes(front_ends: int) -> int:
    """Memory for rooms: twice what there are, since those of a dead front end may be in use yet."""
    return 1 << (2 * ROOMS * ROOM_BYTES * front_ends - 1).bit_length()
