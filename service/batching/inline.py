"""Which batches the event loop's thread runs itself, because threads would take longer to wake.

Handing a batch over and its outcome back wakes two threads, which takes longer on a virtual machine
than the kernels of one row: those take 10 to 100 µs. Where both are Python's, each then waits for
the interpreter besides.
"""

from __future__ import annotations

from collections.abc import Callable

# Nothing else happens in the loop meanwhile, so that a batch that takes longer is handed over: then
# waking threads is the lesser part of its time.
LONGEST_S = 200e-6
# The loop waits no longer than this for a batch that should be over by then, and a thread goes on
# waiting for it.
PATIENCE_S = 300e-6


def runs_inline(running: int, admitted: int, expected_s: Callable[[], float | None]) -> bool:
    """Whether a batch is to be run by the event loop's thread.

    Only where nothing else is going on: under load the loop has better things to do, and what waits
    meanwhile makes the next batch larger.

    Args:
        running: Other batches that are with the engine.
        admitted: Requests that are admitted and not with the engine: queued, or on their way in.
        expected_s: Asked only then, for the seconds it will be on the device; None where that is
            not known.
    """
    if running or admitted:
        return False
    seconds = expected_s()
    return seconds is not None and seconds <= LONGEST_S
