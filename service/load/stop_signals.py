"""SIGINT and SIGTERM while a load runs: it lets go of what it holds before they have effect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Catches them, in the main thread; what is caught has its effect at the end of the context.

    Only the first counts: `timeout` and terminals may send several, and letting go takes a moment.
    """

    def __init__(self) -> None:
        self._caught: int | None = None
        self._stop: Callable[[], object] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._caught is not None:
            signal.raise_signal(self._caught)

    @contextmanager
    def calling(self, stop: Callable[[], object]) -> Iterator[None]:
        """Inside, call this when one is caught, or at once if one was; it may raise."""
        self._stop = stop
        try:
            if self._caught is not None:
                stop()
            yield
        finally:
            self._stop = None

    def _catch(self, number: int, _: FrameType | None) -> None:
        if self._caught is None:
            self._caught = number
            if self._stop is not None:
                self._stop()
