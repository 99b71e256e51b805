"""The end of a process whose interpreter is stuck, in which no timer of its own can run any more.

A call into a driver that hangs may keep the interpreter's lock. Then the event loop stands still,
and with it whatever would notice, answer or exit; only a thread that needs no interpreter is left.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys

logger = logging.getLogger(__name__)

_BEATS = 4


async def keep_beating(limit_s: float) -> None:
    """Have the process end, with every thread's traceback, once the loop has stood still so long.

    Runs until it is cancelled; then nothing ends the process any more. A process that is stopped
    for so long, as by `docker pause`, ends when it is continued.

    Args:
        limit_s: Longer than anything that may keep the loop from running.
    """
    if sys.__stderr__ is None:
        logger.warning("a stuck interpreter will not end the process: there is no stderr to say so")
        return
    try:
        while True:
            # Starts anew each time.
            faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.__stderr__)
            await asyncio.sleep(limit_s / _BEATS)
    finally:
        faulthandler.cancel_dump_traceback_later()
