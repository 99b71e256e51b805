"""csrc/include/swiglu/transfer.h for Python: a batch's rows to and from the device.

Every call releases the interpreter's lock once and takes it back once, however many requests the
batch has; copied one by one, each would be a chance for another thread to keep it. A `Trip` is a
whole batch in one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from service.kernels.library import Library, bind

# swiglu_span_t: address, bytes.
SPAN_BYTES = 16
# swiglu_lap_t: two events.
LAP_BYTES = 16
# SWIGLU_DIRECT_BYTES: what is as long and page-locked is copied from and to where it is.
DIRECT_BYTES = 64 << 10

# swiglu_trip_t.
_TRIP = Struct("@12P")

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_SECONDS = ctypes.POINTER(ctypes.c_double)

# name: (result, arguments), in the order of the header. Spans are the bytes that `pack_spans` made.
PROTOTYPES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "swiglu_staging_create": (
        ctypes.c_int,
        (_POINTER, ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)),
    ),
    "swiglu_staging_destroy": (None, (_POINTER,)),
    "swiglu_take_turn": (None, ()),
    "swiglu_give_turn": (None, ()),
    "swiglu_send": (
        ctypes.c_int,
        (_POINTER, ctypes.c_char_p, _COUNT, _POINTER, _POINTER, _POINTER, _POINTER),
    ),
    "swiglu_receive": (
        ctypes.c_int,
        (_POINTER, _POINTER, ctypes.c_char_p, _COUNT, *(_POINTER,) * 3, _SECONDS),
    ),
    "swiglu_graph_create": (
        ctypes.c_int,
        (_POINTER, _POINTER, ctypes.POINTER(ctypes.c_void_p)),
    ),
    "swiglu_graph_destroy": (None, (_POINTER,)),
    "swiglu_run_trip": (
        ctypes.c_int,
        (*(ctypes.c_char_p, ctypes.c_char_p, _COUNT, ctypes.c_char_p, _COUNT), _SECONDS),
    ),
    "swiglu_begin_trip": (ctypes.c_int, (ctypes.c_char_p, ctypes.c_char_p, _COUNT)),
    "swiglu_end_trip": (ctypes.c_int, (ctypes.c_char_p, ctypes.c_char_p, _COUNT, _SECONDS)),
    "swiglu_read_laps": (ctypes.c_int, (ctypes.c_char_p, ctypes.c_int32, _SECONDS)),
    "swiglu_spin": (ctypes.c_int, (_POINTER, ctypes.c_double, ctypes.POINTER(ctypes.c_int32))),
}


def pack_laps(events: list[tuple[int, int]]) -> bytes:
    """An array of swiglu_lap_t, of CUDA's handles."""
    return Struct(f"{2 * len(events)}P").pack(*(event for lap in events for event in lap))


def pack_spans(addresses_and_bytes: list[int]) -> bytes:
    """An array of swiglu_span_t: each span's address, then its length, one span after the other."""
    return Struct(f"{len(addresses_and_bytes)}q").pack(*addresses_and_bytes)


class Owned:
    """Something of the library's that is made by one of its functions and let go by another.

    Attributes:
        handle: What its other functions take.
    """

    __slots__ = ("_destroy", "handle")

    def __init__(
        self, library: Library, create: Callable[..., int], destroy: Callable[..., None], *of: int
    ) -> None:
        self._destroy = destroy
        made = ctypes.c_void_p()
        library.check(create(*of, ctypes.byref(made)))
        self.handle = made.value

    def close(self) -> None:
        """Let go of it; again is no error."""
        handle, self.handle = getattr(self, "handle", None), None
        if handle is not None:
            self._destroy(handle)

    def __del__(self) -> None:
        """The same."""
        self.close()


class Staging(Owned):
    """Page-locked pieces through which rows pass; one call at a time may use it."""

    __slots__ = ()

    def __init__(self, library: Library, address: int, piece_bytes: int, count: int) -> None:
        """Make it on the current device.

        Args:
            library: Which has the functions.
            address: Of page-locked memory that outlives this object.
            piece_bytes: Of one piece.
            count: Pieces, one behind the other.

        Raises:
            KernelError: the CUDA runtime refused.
        """
        of = library.functions
        create, destroy = of.swiglu_staging_create, of.swiglu_staging_destroy
        super().__init__(library, create, destroy, address, piece_bytes, count)


class Graph(Owned):
    """A captured graph, ready to be launched."""

    __slots__ = ("_captured",)

    def __init__(self, library: Library, captured: int, stream: int, owner: object) -> None:
        """Make it on the current device.

        Args:
            library: Which has the functions.
            captured: A cudaGraph_t.
            stream: Uploads it.
            owner: Kept alive, as it may own memory that the kernels use.

        Raises:
            KernelError: the CUDA runtime refused.
        """
        self._captured = owner
        of = library.functions
        create, destroy = of.swiglu_graph_create, of.swiglu_graph_destroy
        super().__init__(library, create, destroy, captured, stream)


class Way(NamedTuple):
    """What a trip passes besides its graph.

    Attributes:
        x: Address on the device.
        h2d: Stream.
        begin: Event.
        arrived: Event.
        done: Event, recorded behind the graph.
        answers: Address on the device.
        d2h: Stream.
    """

    x: int
    h2d: int
    begin: int
    arrived: int
    done: int
    answers: int
    d2h: int


_NO_WAY = Way(0, 0, 0, 0, 0, 0, 0)


class Trip:
    """All but the spans of one kind of batch in one set of buffers: swiglu_trip_t.

    Attributes:
        packed: The struct.
        laps: What to measure of it, by `pack_laps`.
    """

    __slots__ = ("_kept", "laps", "packed")

    def __init__(
        self,
        *,
        upload: Staging,
        graph: Graph,
        compute: int,
        download: Staging,
        end: int,
        way: Way | None = None,
        laps: bytes = b"",
    ) -> None:
        """Pack it.

        Args:
            upload: For `send`; or the graph reads from its first piece.
            graph: Launched behind `way.arrived`, or at once.
            compute: Stream, like all streams and events of CUDA's own handles.
            download: For `receive`; or the graph leaves the answers in its first piece.
            end: Event.
            way: To the device and back; None where the graph holds the copies.
            laps: See Attributes.
        """
        self._kept = (upload, graph, download)
        x, h2d, begin, arrived, done, answers, d2h = way or _NO_WAY
        self.laps = laps
        self.packed = _TRIP.pack(
            upload.handle,
            x,
            h2d,
            begin,
            arrived,
            graph.handle,
            compute,
            done,
            download.handle,
            answers,
            d2h,
            end,
        )


class Turn:
    """A context in which nobody else enqueues: see swiglu_take_turn."""

    __slots__ = ("_give", "_take")

    def __init__(self, library: Library) -> None:
        self._take = library.functions.swiglu_take_turn
        self._give = library.functions.swiglu_give_turn

    def __enter__(self) -> None:
        """Wait for it without the interpreter's lock, which the other may need."""
        self._take()

    def __exit__(self, *_: object) -> None:
        """Let the next one."""
        self._give()


class Transfer:
    """The functions of transfer.h in one library. Streams and events are CUDA's own handles.

    Attributes:
        turn: To enqueue in by other means.
    """

    def __init__(self, library: Library) -> None:
        """Bind.

        Raises:
            LibraryError: the library lacks one of the functions.
        """
        bind(library, PROTOTYPES)
        self.library = library
        self._functions = library.functions
        self.turn = Turn(library)

    def staging(self, address: int, piece_bytes: int, count: int) -> Staging:
        """Pieces in page-locked memory of the caller's; see `Staging`."""
        return Staging(self.library, address, piece_bytes, count)

    def send(  # noqa: PLR0917 - the order of the header
        self, staging: Staging, spans: bytes, device: int, stream: int, begin: int, arrived: int
    ) -> None:
        """Enqueue the spans' bytes to consecutive addresses from `device` on.

        Args:
            staging: Used by nobody else.
            spans: Of `pack_spans`; long page-locked ones must stay until `arrived`.
            device: Address on the current device.
            stream: Of the current device.
            begin: Recorded before the copies.
            arrived: Recorded behind them.

        Raises:
            KernelError: the CUDA runtime refused; some copies may be under way.
        """
        count = len(spans) // SPAN_BYTES
        status = self._functions.swiglu_send(
            staging.handle, spans, count, device, stream, begin, arrived
        )
        if status:
            self.library.check(status)

    def receive(  # noqa: PLR0917 - the order of the header
        self, staging: Staging, device: int, spans: bytes, stream: int, after: int, end: int
    ) -> float:
        """Fill the spans from consecutive addresses from `device` on; returns when all are.

        Args:
            staging: Used by nobody else.
            device: Address on the current device.
            spans: Of `pack_spans`.
            stream: Of the current device.
            after: An event that the copies wait for.
            end: Recorded behind the last copy.

        Returns:
            Seconds of host time after the last copy had ended.

        Raises:
            KernelError: the CUDA runtime refused; some copies may be under way.
        """
        count = len(spans) // SPAN_BYTES
        host_s = ctypes.c_double()
        status = self._functions.swiglu_receive(
            staging.handle, device, spans, count, stream, after, end, host_s
        )
        if status:
            self.library.check(status)
        return host_s.value

    def graph(self, captured: int, stream: int, owner: object) -> Graph:
        """A captured graph made ready; see `Graph`."""
        return Graph(self.library, captured, stream, owner)

    def run_trip(self, trip: Trip, inputs: bytes, outputs: bytes) -> float:
        """A whole batch: to the device, through a graph, and back.

        Args:
            trip: Nobody else may use any of it meanwhile.
            inputs: Spans of `pack_spans`.
            outputs: Likewise.

        Returns:
            Seconds of host time after the last copy had ended.

        Raises:
            KernelError: the CUDA runtime refused; some copies may be under way.
        """
        host_s = ctypes.c_double()
        status = self._functions.swiglu_run_trip(
            trip.packed,
            inputs,
            len(inputs) // SPAN_BYTES,
            outputs,
            len(outputs) // SPAN_BYTES,
            host_s,
        )
        if status:
            self.library.check(status)
        return host_s.value

    def spin(self, event: int, seconds: float) -> bool:
        """Whether an event has passed within so many seconds from now, or the device has failed."""
        passed = ctypes.c_int32()
        status = self._functions.swiglu_spin(event, seconds, passed)
        if status:
            self.library.check(status)
        return bool(passed.value)

    def begin_trip(self, trip: Trip, inputs: bytes) -> None:
        """Launch a trip whose graph holds the copies, and wait for nothing.

        Args:
            trip: As in `run_trip`.
            inputs: Spans of `pack_spans`, free when this returns; none for what was there before.

        Raises:
            KernelError: the CUDA runtime refused, or the spans are too long.
        """
        count = len(inputs) // SPAN_BYTES
        status = self._functions.swiglu_begin_trip(trip.packed, inputs, count)
        if status:
            self.library.check(status)

    def end_trip(self, trip: Trip, outputs: bytes) -> float:
        """Wait for such a trip, and fill the spans.

        Returns:
            Seconds of host time behind it.

        Raises:
            KernelError: the CUDA runtime refused, or the spans are too long.
        """
        host_s = ctypes.c_double()
        count = len(outputs) // SPAN_BYTES
        status = self._functions.swiglu_end_trip(trip.packed, outputs, count, host_s)
        if status:
            self.library.check(status)
        return host_s.value

    def read_laps(self, laps: bytes) -> tuple[float, ...]:
        """The seconds of each lap of `pack_laps`, once all events have passed.

        Raises:
            KernelError: the CUDA runtime refused.
        """
        count = len(laps) // LAP_BYTES
        seconds = (ctypes.c_double * count)()
        status = self._functions.swiglu_read_laps(laps, count, seconds)
        if status:
            self.library.check(status)
        return tuple(seconds)
