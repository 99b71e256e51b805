"""Wake-ups of the event loop that are precise to tens of microseconds.

Event loops round their timers to whole milliseconds, which in an open loop would be latency that
the service did not cause, and bursts that nobody asked for.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_TFD_TIMER_ABSTIME = 1
_NS = 1_000_000_000
_HAS_TIMERFD = sys.platform == "linux"


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Alarm:
    """Calls back once per `set`, from the event loop.

    On Linux a timerfd that the loop polls (Python itself has them from 3.13 on); elsewhere the
    loop's own timers.
    """

    def __init__(self, on_time: Callable[[], None]) -> None:
        self._on_time = on_time
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        self._handle: asyncio.TimerHandle | None = None
        if _HAS_TIMERFD:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            self._loop.add_reader(self._fd, self._expired)

    def set(self, at_ns: int) -> None:
        """Call back at that `time.monotonic_ns()`, at once if it has passed.

        Replaces an earlier time that has not come.
        """
        if self._fd < 0:
            if self._handle is not None:
                self._handle.cancel()
            delay_s = max(0, at_ns - time.monotonic_ns()) / _NS
            self._handle = self._loop.call_later(delay_s, self._on_time)
            return
        seconds, nanoseconds = divmod(max(1, at_ns), _NS)  # zero would disarm it
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(seconds, nanoseconds))
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Call back no more."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew between expiry and this call
            return
        self._on_time()
