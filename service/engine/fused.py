"""The GPU engine: gate/up on the fused kernels, the GPU never waiting.

Several batches are in flight, each in a slot of its own: while one computes, the next is copied to
the device and the last one back. Small batches are one CUDA graph each, copies included; larger
ones go by three streams, with a graph of their kernels while that is worth having, else call by
call. What has a graph and is of the resident dtype can run in threads of the library's, without the
interpreter. In the steady state nothing is allocated. Rows are computed in the resident dtype:
gated is rounded to it once (twice by Kernel-1), the answer once more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue

import torch

from service.engine.base import (
    Batch,
    BatchReport,
    Buffer,
    DeviceMemory,
    DType,
    Gpu,
    Launched,
    ModelSpec,
    OnEnd,
    Output,
    Segment,
)
from service.engine.buckets import GRAPH_BYTES, find_bucket, plan_buckets, plan_trips
from service.engine.cuda_device import CudaDevice
from service.engine.device_memory import DeviceMemories
from service.engine.dispatch import KERNEL1, KERNEL2
from service.engine.faults import DeviceFaults
from service.engine.gate_up import GateUp
from service.engine.gpus import identify
from service.engine.host_memory import HostMemory
from service.engine.known_answers import KnownAnswers
from service.engine.passage import DOWN, Passage
from service.engine.peaks import peak_flops
from service.engine.slot import Product, Slot
from service.engine.spans import Spans
from service.engine.warm_up import capture, load_kernels, measure_graphs, prepare_threads
from service.engine.weights import TORCH_DTYPES, ResidentModel
from service.errors import EngineDead, EngineError
from service.kernels.runner import Ended
from service.kernels.transfer import Trip

logger = logging.getLogger(__name__)

# One batch comes in, one computes, one goes out; and one more, or each direction of the bus would
# stand still while a thread sees to its batch.
SLOTS = 4


@dataclass(frozen=True, slots=True)
class _Started:
    """A batch in a thread of the library's.

    Attributes:
        slot: Its own meanwhile.
        batch: Which.
        size: Rows that are computed.
        ended: Told of its end.
    """

    slot: Slot
    batch: Batch
    size: int
    ended: OnEnd


class FusedEngine:
    """Implements `service.engine.base.Engine` and all that an engine may have besides."""

    def __init__(
        self,
        model: ResidentModel,
        device: CudaDevice,
        gate_up: GateUp,
        down: Product,
        *,
        slots: int = SLOTS,
        threads: int = SLOTS,
    ) -> None:
        """Take over a resident model.

        Args:
            model: Weights of bf16 or fp16 on `device`.
            device: A Hopper GPU.
            gate_up: The kernels, bound to the same model.
            down: The other half.
            slots: Batches in flight at most.
            threads: That will call `run`; with several GPUs more than run batches here at a time.
        """
        self._resident = model
        self._device = device
        self._count = slots
        self._threads = max(slots, threads)
        self._slots: SimpleQueue[Slot] = SimpleQueue()
        self._memory = HostMemory(device)
        self._shared = DeviceMemories(device)
        self._buckets: Mapping[Output, tuple[int, ...]] = dict.fromkeys(Output, ())
        self._trips: Mapping[Output, tuple[int, ...]] = dict.fromkeys(Output, ())
        self._graph_s: Mapping[tuple[Output, int], float] = {}
        self._passage = Passage(device, model, gate_up, down, self._memory)
        self._runner = device.runner(slots)
        self._tickets = count(1)
        accuracy = 4 * torch.finfo(TORCH_DTYPES[model.spec.dtype]).eps
        self._known_answers = KnownAnswers(model.spec.hidden_size, self._run_row, accuracy)

    @property
    def backend(self) -> str:
        """`fused`."""
        return "fused"

    @property
    def device(self) -> str:
        """The GPU's name."""
        return self._device.name

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPU."""
        return identify(self._device.device)

    @property
    def concurrency(self) -> int:
        """As many batches as there are slots."""
        return self._count

    @property
    def kernels(self) -> tuple[str, ...]:
        """Both kernels for gate/up, and down."""
        return (KERNEL1, KERNEL2, DOWN)

    @property
    def model(self) -> ModelSpec:
        """What is resident."""
        return self._resident.spec

    @property
    def peak_flops(self) -> float | None:
        """Dense peak FLOP/s of the GPU at the weights' dtype; None where it is not known."""
        return peak_flops(self.device, self.model.dtype)

    def allocate_host(self, nbytes: int) -> Buffer:
        """Memory for inputs and answers, which are copied from and to where they are."""
        return self._memory.allocate(nbytes)

    @property
    def direct_bytes(self) -> int:
        """More than any graph copies: its batches pass through staging, which the CPU fills."""
        return GRAPH_BYTES + 1

    def pin(self, memory: memoryview) -> bool:
        """Page-lock memory that a client shares."""
        try:
            self._device.pin(torch.frombuffer(memory, dtype=torch.uint8))
        except RuntimeError as error:
            logger.warning("%d shared bytes could not be pinned: %s", memory.nbytes, error)
            return False
        return True

    def unpin(self, memory: memoryview) -> None:
        """Let the pages go."""
        self._device.unpin(torch.frombuffer(memory, dtype=torch.uint8))

    def open_device_memory(self, handle: bytes, device: int, nbytes: int) -> DeviceMemory:
        """Open memory of another process on this GPU.

        Raises:
            InvalidRequest: it is on another GPU, cannot be opened, or has fewer bytes.
        """
        return self._shared.open(handle, device, nbytes)

    def close_device_memory(self, memory: DeviceMemory) -> None:
        """Undo it."""
        self._shared.close(memory)

    def warm_up(self, max_batch_tokens: int) -> None:
        """Allocate, load every kernel, capture the graphs, record the self-test's answers.

        Raises:
            EngineError: a layer's answer is not what FP64 gives, or memory does not suffice.
        """
        started = time.perf_counter()
        with DeviceFaults("warm-up"):
            self._device.enter()
            self._buckets = plan_buckets(self.model, max_batch_tokens, self._count)
            self._trips = plan_trips(self.model, max_batch_tokens, self._count, self._buckets)
            plans = (self._buckets, self._trips)
            sizes = [size for plan in plans for some in plan.values() for size in some]
            largest = max(max_batch_tokens, *sizes)
            slots = [Slot(self._device, self.model, largest) for _ in range(self._count)]
            weights = self._resident.layers[self.model.layers[0]]
            prepare_threads(self._device, slots, weights, self._threads)
            products = self._passage.products
            load_kernels(self._device, slots[0], products, weights, sizes, max_batch_tokens)
            graphs = sum(
                capture(self._device, slot, products, self._resident, *plans) for slot in slots
            )
            first = self.model.layers[0]
            self._graph_s = measure_graphs(self._device, slots[0], first, self._buckets)
        for slot in slots:
            self._slots.put(slot)
        self._known_answers.record(self._resident)
        logger.info("warm-up: %d graphs, %.1f s", graphs, time.perf_counter() - started)

    def run(self, batch: Batch) -> BatchReport:
        """Fill every segment's output.

        Raises:
            EngineDead: the device can run nothing any more.
            EngineError: this batch failed.
        """
        tokens = batch.tokens
        with DeviceFaults(f"batch of {tokens} tokens"):
            self._device.enter()
            slot = self._slots.get()
            try:
                report = self._run(slot, batch, tokens)
            except BaseException:
                self._give_up(slot)
                raise
            self._slots.put(slot)
            return report

    def expected_s(self, output: Output, tokens: int) -> float | None:
        """What the graph for it took when the engine warmed up; None where there is none."""
        bucket = find_bucket(self._buckets[output], tokens)
        return None if bucket is None else self._graph_s.get((output, bucket))

    def launch(self, batch: Batch) -> Launched | None:
        """Launch a batch that has a graph; None while all slots are in use.

        No graph knows of rows on the device.

        Raises:
            EngineDead: the device can run nothing any more.
            EngineError: this batch failed.
        """
        tokens = batch.tokens
        bucket = find_bucket(self._buckets[batch.output], tokens)
        if bucket is None or not batch.is_on_host:
            return None
        try:
            slot = self._slots.get_nowait()
        except Empty:
            return None
        trip = slot.trips[batch.layer, batch.output, bucket]
        with DeviceFaults(f"batch of {tokens} tokens"):
            self._device.enter()
            try:
                outputs = self._passage.launch(trip, batch)
            except BaseException:
                # No need to wait: a graph knows nothing of the batch's memory, and where it was
                # launched and an error followed, the device is lost.
                self._slots.put(slot)
                raise
        return self._launched(slot, trip, batch, bucket, outputs)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The runner's."""
        return (self._runner.descriptor,)

    def starts(self, output: Output, tokens: int) -> bool:
        """Whether there is a graph for so many rows."""
        return self._size(output, tokens) is not None

    def start(self, batch: Batch, ended: OnEnd) -> bool:
        """Have the library's threads run it; False where it has to be run.

        Raises:
            EngineError: it cannot be started.
        """
        size = self._size(batch.output, batch.tokens)
        if size is None or not self._is_plain(batch):
            return False
        try:
            slot = self._slots.get_nowait()
        except Empty:
            return False
        trip = slot.trips[batch.layer, batch.output, size]
        started = _Started(slot, batch, size, ended)
        try:
            self._passage.start_trip(self._runner, next(self._tickets), trip, batch, started)
        except BaseException:
            self._slots.put(slot)
            raise
        return True

    def collect(self) -> None:
        """Tell of the batches that have ended."""
        while (trip := self._runner.collect()) is not None:
            started: _Started = trip.kept
            try:
                outcome: BatchReport | Exception = self._outcome(started, trip)
            except Exception as error:  # noqa: BLE001 - whoever hears of the end decides
                outcome = error
            started.ended(outcome)

    def self_test(self) -> None:
        """Run a known input on one resident layer, as a batch; each call takes the next.

        Raises:
            EngineError: its answer changed; the message names the layer and the deviation.
            EngineDead: the device can run nothing any more.
        """
        self._known_answers.check()

    def close(self) -> None:
        """Let go of clients' memory, buffers, graphs and weights."""
        self._shared.close_all()
        self._runner.close()
        while not self._slots.empty():
            self._slots.get()
        self._resident = ResidentModel(self._resident.spec, {})

    def _run(self, slot: Slot, batch: Batch, tokens: int) -> BatchReport:
        if tokens > slot.capacity:
            raise EngineError(
                f"batch: must have at most {slot.capacity} tokens, which warm_up was told, "
                f"has {tokens}"
            )
        if not batch.is_on_host:
            return self._passage.run_on_device(slot, batch, tokens)
        size = self._size(batch.output, tokens)
        if size is None:
            return self._passage.run_large(slot, batch, tokens)
        trip = slot.trips[batch.layer, batch.output, size]
        return self._passage.run_trip(trip, batch, size)

    def _size(self, output: Output, tokens: int) -> int | None:
        """Rows of the graph for so many; None where there is none."""
        bucket = find_bucket(self._buckets[output], tokens)
        return find_bucket(self._trips[output], tokens) if bucket is None else bucket

    def _is_plain(self, batch: Batch) -> bool:
        """Whether all rows are on the host, and of the resident type, as they cross the bus."""
        dtype = self.model.dtype
        return batch.is_on_host and all(
            segment.input_dtype is dtype and segment.output_dtype is dtype
            for segment in batch.segments
        )

    def _outcome(self, started: _Started, trip: Ended) -> BatchReport | Exception:
        """What came of a started batch, whose slot is free: nothing of it is under way any more."""
        batch, error = started.batch, trip.error
        self._slots.put(started.slot)
        if error is None:
            return self._passage.report(batch.output, started.size, trip.laps_s, trip.host_s)
        if trip.lost:
            return EngineDead(f"batch of {batch.tokens} tokens: {error}")
        return error

    def _launched(
        self, slot: Slot, trip: Trip, batch: Batch, bucket: int, outputs: Spans
    ) -> Launched:
        doing = f"batch of {batch.tokens} tokens"
        host_s = 0.0

        def finish() -> None:
            nonlocal host_s
            with DeviceFaults(doing):
                self._device.enter()
                try:
                    host_s = self._passage.finish(trip, batch, outputs)
                except BaseException:
                    self._give_up(slot)
                    raise

        def report() -> BatchReport:
            with DeviceFaults(doing):
                try:
                    return self._passage.read_report(trip, batch.output, bucket, host_s)
                finally:
                    self._slots.put(slot)

        return Launched(
            kernel=self._passage.kernel(bucket),
            spin=lambda seconds: self._device.spin(slot.graph_timers.end, seconds),
            finish=finish,
            report=report,
        )

    def _give_up(self, slot: Slot) -> None:
        """Take a slot back from a batch that failed."""
        try:
            # Nothing may still read or write the batch's memory when its owner hears of it; and a
            # device that is lost says so here.
            self._device.synchronize()
        finally:
            self._slots.put(slot)

    def _run_row(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """The whole MLP of one FP32 row, on the path of every batch."""
        answer = bytearray(x.numel() * x.itemsize)
        data = memoryview(bytearray(x.numpy().tobytes()))
        segment = Segment(1, data, DType.FP32, memoryview(answer), DType.FP32)
        self.run(Batch(layer, Output.MLP, [segment]))
        return torch.frombuffer(answer, dtype=torch.float32).view(1, -1)
