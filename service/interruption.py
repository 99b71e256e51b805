"""What a task waits for, ended from elsewhere by an error of one's choice."""

from __future__ import annotations

import asyncio
import sys


class Interruption:
    """Raises what `end` was called with in the task that entered it.

    A cancel of its own instead of asyncio.wait_for, which makes a task per call before 3.12.
    """

    __slots__ = ("_error", "_task")

    def __init__(self) -> None:
        self._error: Exception | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._error is not None and kind is asyncio.CancelledError:
            if sys.version_info >= (3, 11):
                self._task.uncancel()
            raise self._error from None

    def end(self, error: Exception) -> None:
        """End the wait."""
        self._error = error
        self._task.cancel()
