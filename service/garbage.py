"""How often the garbage collector looks, in a process that makes little garbage of its kind.

Requests free what they used by reference counts; with Python's own thresholds, looking for cycles
takes a tenth of a busy front end's time.
"""

from __future__ import annotations

import gc

# Objects more than before, from one look at the youngest to the next; Python has 700. With ten
# times as many nothing more is won, and what large bodies leave in cycles piles up.
_YOUNG_OBJECTS = 2000


def leave_garbage() -> None:
    """Never look at what is there now, and seldom at the rest; call it when all is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
