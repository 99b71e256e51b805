"""All that the fused engine asks of CUDA: streams, events, pinned memory, graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch

from service.kernels.errors import InvalidArgument
from service.kernels.ipc import Ipc
from service.kernels.launcher import current_device, stream_of
from service.kernels.library import Library
from service.kernels.runner import Runner
from service.kernels.transfer import Graph, Staging, Transfer, Trip, Way, pack_laps

# Between two events each.
Laps: TypeAlias = "Sequence[tuple[torch.cuda.Event, torch.cuda.Event]]"


class _Foreign:
    """Memory that torch did not allocate, in the form in which it takes such."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


@contextmanager
def _collecting_no_garbage() -> Iterator[None]:
    """For a capture, which breaks where another graph is let go of, as garbage may be."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class TripEnds(NamedTuple):
    """What all trips of a slot have in common.

    Attributes:
        upload: Rows pass through it to `x`, between `begin` and `arrived`.
        done: Recorded behind the kernels.
        download: Answers pass through it, before `end`.
    """

    upload: Staging
    x: torch.Tensor
    begin: torch.cuda.Event
    arrived: torch.cuda.Event
    done: torch.cuda.Event
    download: Staging
    end: torch.cuda.Event


class CudaDevice:
    """One GPU with a stream for each direction of copies and one for kernels.

    One stream for all kernels, so that batches compute one after the other: side by side they
    would take turns in L2, and neither's time could be told.

    Attributes:
        turn: A context for calls that belong together: nobody else enqueues meanwhile.
    """

    def __init__(self, device: torch.device, library: Library) -> None:
        """Make the streams.

        Args:
            device: With its index.
            library: Whose copies are used.

        Raises:
            LibraryError: the library has no such functions.
        """
        self.device = device
        self._library = library
        self._transfer = Transfer(library)
        self._ipc = Ipc(library)
        self.turn = self._transfer.turn
        self.name = torch.cuda.get_device_name(device)
        properties = torch.cuda.get_device_properties(device)
        self.num_sms: int = properties.multi_processor_count
        self.h2d, self.compute, self.d2h, self._beside = (
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for _ in range(4)
        )
        # Graphs allocate nothing, and with a pool each would make torch keep thousands.
        self._pool = torch.cuda.graph_pool_handle()

    def enter(self) -> None:
        """Make `compute` the calling thread's current stream, on this GPU."""
        index = self.device.index
        # Not once and for all: the thread may have run batches of another engine since.
        if current_device() == index and stream_of(index) == self.compute.cuda_stream:
            return
        torch.cuda.set_stream(self.compute)
        # Binds CUDA's context to the thread, which torch misses where cuBLAS comes first.
        self.compute.query()
        # Conversions of rows are too short for a team of threads, which was measured to take
        # 250 µs for 114 KB.
        torch.set_num_threads(1)

    def empty(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Device memory, with whatever was left in it."""
        return torch.empty(rows, columns, dtype=dtype, device=self.device)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Page-locked host memory of bytes: the only kind that is copied without waiting."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def staging(self, memory: torch.Tensor, piece_bytes: int, count: int) -> Staging:
        """For copies through that pinned memory, which the caller keeps."""
        with torch.cuda.device(self.device):
            return self._transfer.staging(memory.data_ptr(), piece_bytes, count)

    def send(
        self,
        staging: Staging,
        spans: bytes,
        x: torch.Tensor,
        begin: torch.cuda.Event,
        arrived: torch.cuda.Event,
    ) -> None:
        """Enqueue the spans to the first rows of x on `h2d`, between the two events."""
        self._transfer.send(
            staging,
            spans,
            x.data_ptr(),
            self.h2d.cuda_stream,
            begin.cuda_event,
            arrived.cuda_event,
        )

    def receive(
        self,
        staging: Staging,
        source: torch.Tensor,
        spans: bytes,
        after: torch.cuda.Event,
        end: torch.cuda.Event,
    ) -> float:
        """Fill the spans from the first rows of source on `d2h`; returns when all are filled.

        Args:
            staging: For what is not copied to where it goes.
            source: Rows on the device.
            spans: As `transfer.pack_spans` makes them.
            after: What the copies wait for.
            end: Recorded behind the last.

        Returns:
            Seconds of host time after the last copy had ended.
        """
        return self._transfer.receive(
            staging,
            source.data_ptr(),
            spans,
            self.d2h.cuda_stream,
            after.cuda_event,
            end.cuda_event,
        )

    def spin(self, event: torch.cuda.Event, seconds: float) -> bool:
        """Whether the event has passed, or the device failed, within so many seconds from now."""
        return self._transfer.spin(event.cuda_event, seconds)

    def read_laps(self, laps: bytes) -> tuple[float, ...]:
        """The seconds of each of `laps`, whose events have passed."""
        return self._transfer.read_laps(laps)

    def laps(self, laps: Laps) -> bytes:
        """For `read_laps` and `trip`: the events must have been recorded once, if in a graph."""
        return pack_laps([(begin.cuda_event, end.cuda_event) for begin, end in laps])

    def runner(self, threads: int) -> Runner:
        """Threads that run trips.

        Raises:
            LibraryError: the library has no such functions.
        """
        with torch.cuda.device(self.device):
            return Runner(self._library, threads)

    def pin(self, memory: torch.Tensor) -> None:
        """Page-lock host memory that somebody else allocated, from any thread.

        Raises:
            RuntimeError: CUDA refuses.
        """
        with torch.cuda.device(self.device):
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            status = cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
            torch.cuda.check_error(int(status))

    def unpin(self, memory: torch.Tensor) -> None:
        """Undo `pin`.

        Raises:
            RuntimeError: CUDA refuses.
        """
        with torch.cuda.device(self.device):
            cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(int(cudart.cudaHostUnregister(memory.data_ptr())))

    def map_memory(self, handle: bytes) -> torch.Tensor:
        """Another process's allocation on this GPU as bytes, from any thread.

        Raises:
            KernelError: CUDA refuses, or it lies on another GPU.
        """
        with torch.cuda.device(self.device):
            mapped = self._ipc.open(handle)
            if mapped.device != self.device.index:
                self._ipc.close(mapped.address)
                raise InvalidArgument(
                    f"handle: must be of memory on device {self.device.index}, is on "
                    f"{mapped.device}"
                )
            foreign = _Foreign(mapped.address, mapped.nbytes)
            return torch.as_tensor(foreign, device=self.device)

    def unmap_memory(self, memory: torch.Tensor) -> None:
        """Undo `map_memory`; nothing may use the bytes any more.

        Raises:
            KernelError: CUDA refuses.
        """
        with torch.cuda.device(self.device):
            self._ipc.close(memory.data_ptr())

    def copy_rows(
        self, target: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream
    ) -> None:
        """Enqueue a copy within the device, converting where types differ."""
        with torch.cuda.stream(stream), self.turn:
            target.copy_(source, non_blocking=True)

    def event(self) -> torch.cuda.Event:
        """For waiting."""
        return self._made(torch.cuda.Event())  # type: ignore[no-untyped-call]

    def timer(self, *, in_graph: bool = False) -> torch.cuda.Event:
        """For measuring; one recorded inside a graph is recorded again by each replay."""
        timer = torch.cuda.Event(  # type: ignore[no-untyped-call]
            enable_timing=True, external=in_graph
        )
        return timer if in_graph else self._made(timer)

    def record(self, event: torch.cuda.Event) -> None:
        """Record an event behind all that was enqueued on `compute`."""
        event.record(self.compute)

    def record_beside(self, event: torch.cuda.Event) -> None:
        """The same while a graph is captured, but nothing that follows waits for it but `join`."""
        self._beside.wait_stream(self.compute)
        event.record(self._beside)

    def join(self) -> None:
        """While a graph is captured: what follows on `compute` waits for what is beside it."""
        self.compute.wait_stream(self._beside)

    def _made(self, event: torch.cuda.Event) -> torch.cuda.Event:
        """Recorded once, since torch makes an event only then, and before has no handle of it."""
        event.record(self.compute)
        return event

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """What `enqueue` puts on the current stream, as a graph; it allocates nothing."""
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with _collecting_no_garbage():
            # Not torch.cuda.graph(), which collects garbage and empties torch's cache each time.
            # Other threads may pin memory meanwhile, which a capture in global mode would not
            # survive.
            graph.capture_begin(self._pool, capture_error_mode="thread_local")
            try:
                enqueue()
            finally:
                graph.capture_end()
        return self._transfer.graph(graph.raw_cuda_graph(), self.compute.cuda_stream, graph)

    def trip(self, ends: TripEnds, graph: Graph, answers: torch.Tensor, laps: bytes) -> Trip:
        """A way to the device, through a graph of kernels, and back.

        Args:
            ends: Of the slot.
            graph: Of `capture`: from the rows to the answers.
            answers: Rows on the device.
            laps: Of `laps`.
        """
        way = Way(
            x=ends.x.data_ptr(),
            h2d=self.h2d.cuda_stream,
            begin=ends.begin.cuda_event,
            arrived=ends.arrived.cuda_event,
            done=ends.done.cuda_event,
            answers=answers.data_ptr(),
            d2h=self.d2h.cuda_stream,
        )
        return self._trip(ends, graph, laps, way)

    def small_trip(self, ends: TripEnds, graph: Graph, laps: bytes) -> Trip:
        """The same where the graph goes from a piece to a piece; `end` is all of its events."""
        return self._trip(ends, graph, laps, None)

    def _trip(self, ends: TripEnds, graph: Graph, laps: bytes, way: Way | None) -> Trip:
        return Trip(
            upload=ends.upload,
            graph=graph,
            compute=self.compute.cuda_stream,
            download=ends.download,
            end=ends.end.cuda_event,
            way=way,
            laps=laps,
        )

    def run_trip(self, trip: Trip, inputs: bytes, outputs: bytes) -> float:
        """All of a trip in one call.

        Args:
            trip: Of either kind.
            inputs: As `transfer.pack_spans` makes them.
            outputs: Likewise; all are filled when it returns.

        Returns:
            Seconds of host time after the last copy had ended.
        """
        return self._transfer.run_trip(trip, inputs, outputs)

    def begin_trip(self, trip: Trip, inputs: bytes) -> None:
        """Launch a small trip, of rows that are free when this returns."""
        self._transfer.begin_trip(trip, inputs)

    def end_trip(self, trip: Trip, outputs: bytes) -> float:
        """Wait for it, and fill the answers; seconds of host time that it took."""
        return self._transfer.end_trip(trip, outputs)

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        torch.cuda.synchronize(self.device)
