"""A device for the fused engine where there is no GPU: everything happens at once, on the CPU."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from struct import iter_unpack
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from service.engine.base import ModelSpec
from service.engine.cuda_device import TripEnds
from service.engine.gate_up import ChosenKernel
from service.kernels import reference
from service.kernels.errors import CudaError, KernelError
from service.kernels.library import KernelChoice
from service.kernels.runner import MAX_LAPS, Ended


class Operation(NamedTuple):
    """What was asked of the device, or of the thread that asks.

    Attributes:
        where: The stream, or `host`.
        what: `record`, `wait`, `copy`, `copy on device`, `down`, `replay`, `capture`, `join`,
            `spin`; `wait` of `host` blocks it.
        event: Of a record or wait; None where the host waits for all there is.
    """

    where: str
    what: str
    event: FakeEvent | None = None


class FakeEvent:
    """Counts; the time between two is always 1 ms."""

    def __init__(self, device: FakeDevice | None = None) -> None:
        self.records = 0
        self._device = device

    def record(self, stream: FakeStream) -> None:
        self.records += 1
        if self._device is not None:
            self._device.log.append(Operation(stream.name, "record", self))

    def synchronize(self) -> None:
        assert self.records, "waited for nothing"
        if self._device is not None:
            self._device.log.append(Operation("host", "wait", self))


class FakeTrip(NamedTuple):
    """What Trip is.

    Attributes:
        answers: None where the graph holds the copies.
    """

    ends: TripEnds
    graph: Callable[[], None]
    answers: torch.Tensor | None
    laps: Sequence[tuple[FakeEvent, FakeEvent]]


class FakeRunner:
    """What Runner is, with a thread for each trip.

    Attributes:
        fails: What the next trip fails with.
        lost: Whether the device is then.
        started: Trips.
        closed: Whether it was.
    """

    def __init__(self, device: FakeDevice) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.fails: KernelError | None = None
        self.lost = self.closed = False
        self.started = 0
        self._device = device
        self._lock = threading.Lock()
        self._ended: deque[Ended] = deque()
        self._kept: dict[int, object] = {}

    def start(
        self, ticket: int, trip: FakeTrip, inputs: bytes, outputs: bytes, keep: object
    ) -> None:
        self.started += 1
        self._kept[ticket] = trip, keep
        error, self.fails = self.fails, None

        def work() -> None:
            nonlocal error
            self._device.enter()
            host_s, laps_s = 0.0, ()
            if error is None:
                try:
                    host_s = self._device.run_trip(trip, inputs, outputs)
                    laps_s = self._device.read_laps(trip.laps)
                except Exception as failed:  # noqa: BLE001 - as whatever fails there is told of
                    error = failed if isinstance(failed, KernelError) else KernelError(repr(failed))
            padding = (-1.0,) * (MAX_LAPS - len(laps_s))
            ended = Ended(ticket, host_s, (*laps_s, *padding), error, self.lost, keep)
            with self._lock:
                self._ended.append(ended)
                if len(self._ended) == 1:
                    os.eventfd_write(self.descriptor, 1)

        threading.Thread(target=work).start()

    def collect(self) -> Ended | None:
        with self._lock:
            if not self._ended:
                return None
            ended = self._ended.popleft()
            if not self._ended:
                os.eventfd_read(self.descriptor)
        del self._kept[ended.ticket]
        return ended

    def close(self) -> None:
        self.closed = True

    def __del__(self) -> None:
        os.close(self.descriptor)


class FakeStream:
    def __init__(self, device: FakeDevice, name: str) -> None:
        self.name = name
        self._device = device

    def wait_event(self, event: FakeEvent) -> None:
        assert event.records, "waited for nothing"
        self._device.log.append(Operation(self.name, "wait", event))


class _Watch(TorchDispatchMode):
    """Notes torch's copies, which a GPU would run on the current stream."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and len(args) > 2 and args[2]:
            # Only copies across the bus are asked not to block.
            self._device.note("copy")
        return func(*args, **(kwargs or {}))


class FakeDevice:
    """What CudaDevice is.

    Attributes:
        refuse_pin: Whether `pin` fails.
        pinned_by_others: Address and bytes of what it was asked to pin.
        shared: What others have allocated on it, by handle.
        mapped: Addresses of what was opened of it, as often as it was.
        runners: What it has made.
        captures: Graphs captured.
        replays: Graphs launched.
        idle: Called by `synchronize`.
        is_over: What `spin` finds.
        log: What was asked of it, in order.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu", 0)
        self.name = "fake GPU"
        self.num_sms = 132
        self.h2d, self.compute, self.d2h, self.beside = (
            FakeStream(self, name) for name in ("h2d", "compute", "d2h", "beside")
        )
        self.log: list[Operation] = []
        self.refuse_pin = False
        self.pinned_by_others: set[tuple[int, int]] = set()
        self.shared: dict[bytes, torch.Tensor] = {}
        self.mapped: list[int] = []
        self.runners: list[FakeRunner] = []
        self.captures = self.replays = 0
        self.idle: Callable[[], None] = lambda: None
        self.is_over = True
        self.turn = threading.Lock()
        self.entered: set[int] = set()

    def enter(self) -> None:
        self.entered.add(threading.get_ident())

    def note(self, what: str, event: FakeEvent | None = None) -> None:
        """Log something on the stream of kernels, which is every thread's current one."""
        self.log.append(Operation(self.compute.name, what, event))

    @contextmanager
    def watched(self):
        """Log anew, and the calling thread's copies as well."""
        self.log.clear()
        with _Watch(self):
            yield

    def empty(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows, columns), float("nan"), dtype=dtype)

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), 255, dtype=torch.uint8)

    def pin(self, memory: torch.Tensor) -> None:
        if self.refuse_pin:
            raise RuntimeError("out of pages")
        self.pinned_by_others.add((memory.data_ptr(), memory.nbytes))

    def unpin(self, memory: torch.Tensor) -> None:
        self.pinned_by_others.remove((memory.data_ptr(), memory.nbytes))

    def map_memory(self, handle: bytes) -> torch.Tensor:
        if handle not in self.shared:
            raise CudaError(
                "cudaIpcOpenMemHandle: CUDA error: cudaErrorInvalidValue, no such thing"
            )
        self.mapped.append(self.shared[handle].data_ptr())
        return self.shared[handle][:]

    def unmap_memory(self, memory: torch.Tensor) -> None:
        self.mapped.remove(memory.data_ptr())

    def copy_rows(self, target: torch.Tensor, source: torch.Tensor, stream: FakeStream) -> None:
        assert threading.get_ident() in self.entered
        with self.turn:
            self.log.append(Operation(stream.name, "copy on device"))
            target.copy_(source)

    def staging(self, memory: torch.Tensor, piece_bytes: int, count: int) -> torch.Tensor:
        assert memory.nbytes == piece_bytes * count
        return memory[:piece_bytes]

    def send(
        self,
        staging: torch.Tensor,
        spans: bytes,
        x: torch.Tensor,
        begin: FakeEvent,
        arrived: FakeEvent,
    ) -> None:
        assert threading.get_ident() in self.entered
        begin.record(self.h2d)
        self.log.append(Operation("h2d", "copy"))
        self._fill(spans, x)
        arrived.record(self.h2d)

    def receive(
        self,
        staging: torch.Tensor,
        source: torch.Tensor,
        spans: bytes,
        after: FakeEvent,
        end: FakeEvent,
    ) -> float:
        self.d2h.wait_event(after)
        self.log.append(Operation("d2h", "copy"))
        end.record(self.d2h)
        return self._empty(source, spans, end)

    def _fill(self, spans: bytes, target: torch.Tensor) -> None:
        self.log.append(Operation("host", "fill"))
        at = target.data_ptr()
        for address, nbytes in iter_unpack("2q", spans):
            assert at + nbytes <= target.data_ptr() + target.nbytes
            ctypes.memmove(at, address, nbytes)
            at += nbytes

    def _empty(self, source: torch.Tensor, spans: bytes, after: FakeEvent) -> float:
        assert after.records, "waited for nothing"
        self.log.append(Operation("host", "wait", after))
        self.log.append(Operation("host", "empty"))
        at = source.data_ptr()
        for address, nbytes in iter_unpack("2q", spans):
            assert at + nbytes <= source.data_ptr() + source.nbytes
            ctypes.memmove(address, at, nbytes)
            at += nbytes
        return 1e-3

    def record(self, event: FakeEvent) -> None:
        event.record(self.compute)

    def record_beside(self, event: FakeEvent) -> None:
        event.record(self.beside)

    def join(self) -> None:
        self.note("join")

    def spin(self, event: FakeEvent, seconds: float) -> bool:
        assert event.records, "waited for nothing"
        self.log.append(Operation("host", "spin", event))
        return self.is_over

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def timer(self, *, in_graph: bool = False) -> FakeEvent:
        return FakeEvent(self)

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1
        self.note("capture")

        def replay() -> None:
            self.replays += 1
            self.note("replay")
            enqueue()

        return replay

    def laps(self, laps: Sequence[tuple[FakeEvent, FakeEvent]]) -> object:
        return laps

    def read_laps(self, laps: Sequence[tuple[FakeEvent, FakeEvent]]) -> tuple[float, ...]:
        assert all(begin is not end for begin, end in laps)
        assert all(event.records for lap in laps for event in lap), "not recorded yet"
        return (1e-3,) * len(laps)

    def runner(self, threads: int) -> FakeRunner:
        self.runners.append(FakeRunner(self))
        return self.runners[-1]

    def trip(
        self, ends: TripEnds, graph: Callable[[], None], answers: torch.Tensor, laps
    ) -> FakeTrip:
        return FakeTrip(ends, graph, answers, laps)

    def small_trip(self, ends: TripEnds, graph: Callable[[], None], laps) -> FakeTrip:
        return FakeTrip(ends, graph, None, laps)

    def run_trip(self, trip: FakeTrip, inputs: bytes, outputs: bytes) -> float:
        ends = trip.ends
        if trip.answers is None:
            self.begin_trip(trip, inputs)
            return self.end_trip(trip, outputs)
        self.send(ends.upload, inputs, ends.x, ends.begin, ends.arrived)
        self.compute.wait_event(ends.arrived)
        trip.graph()
        self.record(ends.done)
        return self.receive(ends.download, trip.answers, outputs, ends.done, ends.end)

    def begin_trip(self, trip: FakeTrip, inputs: bytes) -> None:
        assert trip.answers is None
        assert threading.get_ident() in self.entered
        self._fill(inputs, trip.ends.upload)
        trip.graph()
        self.record(trip.ends.end)

    def end_trip(self, trip: FakeTrip, outputs: bytes) -> float:
        assert trip.answers is None
        return self._empty(trip.ends.download, outputs, trip.ends.end)

    def synchronize(self) -> None:
        self.log.append(Operation("host", "wait"))
        self.idle()


class FakeGateUp:
    """What GateUp is, on the CPU.

    Attributes:
        sizes: Rows of every product that ran.
        before: Called with each product's rows before it; may raise.
    """

    def __init__(self, model: ModelSpec) -> None:
        self._model = model
        self.sizes: list[int] = []
        self.before: Callable[[torch.Tensor], None] = lambda x: None

    def choose(self, tokens: int) -> ChosenKernel:
        kernel = "kernel1" if tokens >= 2048 else "kernel2"
        return ChosenKernel(KernelChoice(0), kernel, f"{kernel}/for_{tokens}")

    def run(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        self.before(x)
        self.sizes.append(len(x))
        out.copy_(reference.gated(x, weight, self._model.activation, torch.float32))


class FakeDown:
    """What Down is, on the CPU."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device

    def run(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        self._device.note("down")
        torch.mm(x, weight.T, out=out)
