"""An event loop whose clock jumps to the next timer when there is nothing to do.

A test of a delay of ten seconds takes no time, and ends at the same instant on every machine.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Time that one idle look at the timers takes. A loop that never moved on by itself could not end
# a wait for "one ulp later", which rounding makes of a timer.
TICK_S = 1e-9


class _JumpingSelector(selectors.DefaultSelector):
    """Where asyncio would sleep until its next timer, the clock jumps there."""

    now = 0.0

    def select(self, timeout: float | None = None):
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing will ever happen: the test waits for ever"
            self.now += max(timeout, TICK_S)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Starts at time 0.

    Attributes:
        errors: What callbacks raised; a test that expects some takes them out.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self.errors: list[BaseException] = []
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._jumping.now

    def block(self, seconds: float) -> None:
        """Let time pass while a callback runs, as one does that computes for too long."""
        self._jumping.now += seconds

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or AssertionError(context["message"]))

    def finish(self) -> None:
        """Close, with all that still runs."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.run_until_complete(asyncio.sleep(0))
        self.close()

    def raise_errors(self) -> None:
        """Fail the test of which a callback raised something unexpected."""
        if self.errors:
            raise self.errors[0]


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make an ordinary test of a coroutine function."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        loop = VirtualTimeLoop()
        try:
            loop.run_until_complete(test(*args, **kwargs))
        finally:
            loop.finish()
        loop.raise_errors()

    return run


async def settle() -> None:
    """Let everything happen that happens without time passing."""
    for _ in range(5):
        await asyncio.sleep(0)


async def outcome_of(awaitable: Awaitable[T]) -> T | BaseException:
    """The result, or the exception as a value."""
    return (await asyncio.gather(awaitable, return_exceptions=True))[0]
