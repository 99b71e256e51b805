"""csrc/include/swiglu/runner.h for Python: batches in threads that need no interpreter.

Threads of Python's own pass the interpreter's lock to and fro some ten times a batch, and whoever
waits for it sleeps.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from service.kernels.errors import KernelError
from service.kernels.library import Library, bind
from service.kernels.transfer import LAP_BYTES, SPAN_BYTES, Owned, Trip

# SWIGLU_MAX_LAPS.
MAX_LAPS = 4


class _Ended(ctypes.Structure):
    """swiglu_ended_t."""

    _fields_ = (
        ("ticket", ctypes.c_int64),
        ("host_s", ctypes.c_double),
        ("laps_s", ctypes.c_double * MAX_LAPS),
        ("lost", ctypes.c_int32),
    )


_BYTES, _COUNT = ctypes.c_char_p, ctypes.c_int64

# As in transfer.py.
PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "swiglu_runner_create": (
        ctypes.c_int,
        (ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)),
    ),
    "swiglu_runner_destroy": (None, (ctypes.c_void_p,)),
    "swiglu_runner_descriptor": (ctypes.c_int32, (ctypes.c_void_p,)),
    "swiglu_runner_start": (
        ctypes.c_int,
        (
            *(ctypes.c_void_p, ctypes.c_int64, _BYTES),
            *(_BYTES, _COUNT, _BYTES, _COUNT, _BYTES, ctypes.c_int32),
        ),
    ),
    "swiglu_runner_collect": (ctypes.c_int, (ctypes.c_void_p, ctypes.POINTER(_Ended))),
}


class Ended(NamedTuple):
    """A batch that is over.

    Attributes:
        ticket: Of `Runner.start`.
        host_s: Seconds of host time after the last copy had ended.
        laps_s: Seconds of the trip's laps; undefined behind them, and after an error.
        error: What failed; nothing of the batch is under way any more.
        lost: Whether the device can run nothing any more.
        kept: What `Runner.start` was given to keep.
    """

    ticket: int
    host_s: float
    laps_s: tuple[float, ...]
    error: KernelError | None
    lost: bool
    kept: Any


# What threads of runners work on that are gone themselves; for good, as nobody hears when that is
# over.
_abandoned: list[object] = []


class Runner(Owned):
    """Threads of the library that run trips.

    Attributes:
        descriptor: Readable while there is something to collect.
    """

    __slots__ = ("_ended", "_functions", "_kept", "_library", "descriptor")

    def __init__(self, library: Library, threads: int) -> None:
        """Start them, for the current device.

        Args:
            library: Which has the functions.
            threads: Trips at a time.

        Raises:
            KernelError: the CUDA runtime refused.
            LibraryError: the library lacks one of the functions.
        """
        # None of them takes as long as to get the lock back from another thread.
        bind(library, PROTOTYPES, holding=True)
        of = self._functions = library.holding
        self._kept: dict[int, tuple[Trip, object]] = {}
        super().__init__(library, of.swiglu_runner_create, of.swiglu_runner_destroy, threads)
        self._library = library
        self._ended = _Ended()
        self.descriptor: int = of.swiglu_runner_descriptor(self.handle)

    def start(self, ticket: int, trip: Trip, inputs: bytes, outputs: bytes, keep: object) -> None:
        """Have a trip run.

        Args:
            ticket: The caller's number for it, not 0.
            trip: Nobody else may use any of it until it was collected.
            inputs: Spans of `transfer.pack_spans`.
            outputs: Likewise.
            keep: Owns the memory of the spans and what the trip refers to; kept until then.

        Raises:
            KernelError: an argument is wrong.
        """
        laps = trip.laps
        self._kept[ticket] = trip, keep
        status = self._functions.swiglu_runner_start(
            self.handle,
            ticket,
            trip.packed,
            inputs,
            len(inputs) // SPAN_BYTES,
            outputs,
            len(outputs) // SPAN_BYTES,
            laps,
            len(laps) // LAP_BYTES,
        )
        if status:
            del self._kept[ticket]
            raise self._library.make_error(status)

    def collect(self) -> Ended | None:
        """The trip that ended first; None where none has. One thread at a time may ask."""
        ended = self._ended
        ended.ticket = 0
        status = self._functions.swiglu_runner_collect(self.handle, ended)
        if not ended.ticket:
            return None
        _, kept = self._kept.pop(ended.ticket)
        error = self._library.make_error(status) if status else None
        lost = bool(ended.lost)
        return Ended(ended.ticket, ended.host_s, tuple(ended.laps_s), error, lost, kept)

    def close(self) -> None:
        """End its threads, once they are through; again is no error."""
        if getattr(self, "_kept", None):
            _abandoned.append(self._kept)
            self._kept = {}
        super().close()
