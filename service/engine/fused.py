"""The GPU engine: gate/up on the fused kernels, down by cuBLAS, the GPU never waiting.

Several batches are in flight, each in a slot of its own: while one computes, the next is copied to
the device and the last one back. Small batches are one CUDA graph each, copies included; larger
ones go call by call on three streams. In the steady state nothing is allocated. Rows are computed
in the resident dtype: gated is rounded to it once (twice by Kernel-1), the answer once more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue

import torch

from service.engine.base import Batch, BatchReport, Buffer, DType, Gpu, ModelSpec, Output, Segment
from service.engine.buckets import GRAPH_BYTES, find_bucket, plan_buckets
from service.engine.cuda_device import CudaDevice
from service.engine.dispatch import KERNEL1, KERNEL2
from service.engine.faults import device_faults
from service.engine.gate_up import GateUp
from service.engine.gpus import identify
from service.engine.host_memory import HostMemory
from service.engine.known_answers import KnownAnswers
from service.engine.peaks import peak_flops
from service.engine.slot import Seconds, Slot
from service.engine.spans import Spans, convert_outputs, input_spans, output_spans
from service.engine.warm_up import capture, load_kernels, prepare_threads
from service.engine.weights import TORCH_DTYPES, ResidentModel
from service.errors import EngineError

logger = logging.getLogger(__name__)

DOWN = "down"
# One batch comes in, one computes, one goes out.
SLOTS = 3


class FusedEngine:
    """Implements `service.engine.base.Engine`, `OnGpus`, `LendsHostMemory`, `PinsHostMemory`."""

    def __init__(
        self,
        model: ResidentModel,
        device: CudaDevice,
        gate_up: GateUp,
        slots: int = SLOTS,
        threads: int = SLOTS,
    ) -> None:
        """Take over a resident model.

        Args:
            model: Weights of bf16 or fp16 on `device`.
            device: A Hopper GPU.
            gate_up: The kernels, bound to the same model.
            slots: Batches in flight at most.
            threads: That will call `run`; with several GPUs more than run batches here at a time.
        """
        # Or cuBLAS may add up partial sums of down in the narrow type.
        matmul = torch.backends.cuda.matmul
        matmul.allow_bf16_reduced_precision_reduction = False
        matmul.allow_fp16_reduced_precision_reduction = False
        self._resident = model
        self._device = device
        self._gate_up = gate_up
        self._count = slots
        self._threads = max(slots, threads)
        self._slots: SimpleQueue[Slot] = SimpleQueue()
        self._memory = HostMemory(device)
        self._buckets: Mapping[Output, tuple[int, ...]] = {}
        # Keeps a batch's calls together on the kernels' stream, so that its timers are its own.
        self._submitting = threading.Lock()
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

    def warm_up(self, max_batch_tokens: int) -> None:
        """Allocate, load every kernel, capture the graphs, record the self-test's answers.

        Raises:
            EngineError: a layer's answer is not what FP64 gives, or memory does not suffice.
        """
        started = time.perf_counter()
        with device_faults("warm-up"):
            self._device.enter()
            self._buckets = plan_buckets(self.model, max_batch_tokens, self._count)
            largest = max((max_batch_tokens, *(b[-1] for b in self._buckets.values() if b)))
            slots = [Slot(self._device, self.model, largest) for _ in range(self._count)]
            weights = self._resident.layers[self.model.layers[0]]
            prepare_threads(self._device, slots, weights, self._threads)
            load_kernels(
                self._device, slots[0], self._gate_up, weights, self._buckets, max_batch_tokens
            )
            graphs = sum(
                capture(self._device, slot, self._gate_up, self._resident, self._buckets)
                for slot in slots
            )
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
        with device_faults(f"batch of {tokens} tokens"):
            self._device.enter()
            slot = self._slots.get()
            try:
                return self._run(slot, batch, tokens)
            except BaseException:
                # Nothing may still read or write the batch's memory when its owner hears of it;
                # and a device that is lost says so here.
                self._device.synchronize()
                raise
            finally:
                self._slots.put(slot)

    def self_test(self) -> None:
        """Run a known input on one resident layer, as a batch; each call takes the next.

        Raises:
            EngineError: its answer changed; the message names the layer and the deviation.
            EngineDead: the device can run nothing any more.
        """
        self._known_answers.check()

    def close(self) -> None:
        """Let go of buffers, graphs and weights."""
        while not self._slots.empty():
            self._slots.get()
        self._resident = ResidentModel(self._resident.spec, {})

    def _run(self, slot: Slot, batch: Batch, tokens: int) -> BatchReport:
        if tokens > slot.capacity:
            raise EngineError(
                f"batch: must have at most {slot.capacity} tokens, which warm_up was told, "
                f"has {tokens}"
            )
        bucket = find_bucket(self._buckets[batch.output], tokens)
        run = self._run_large if bucket is None else self._run_graph
        seconds, host_s = run(slot, batch, bucket or tokens)
        return self._report(batch.output, bucket or tokens, seconds, host_s)

    def _run_graph(self, slot: Slot, batch: Batch, bucket: int) -> tuple[Seconds, float]:
        device, width = self._device, self.model.width(batch.output)
        inputs = self._spans_in(batch)
        device.gather(inputs.packed, slot.upload.first)
        with self._submitting:
            slot.graphs[batch.layer, batch.output, bucket]()
            slot.done.record(device.compute)
        outputs = self._spans_out(batch, width)
        host_s = device.scatter(slot.download.first, outputs.packed, slot.done)
        return slot.graph_timers.read(batch.output), host_s + convert_outputs(outputs, width)

    def _run_large(self, slot: Slot, batch: Batch, tokens: int) -> tuple[Seconds, float]:
        device, timers, width = self._device, slot.timers, self.model.width(batch.output)
        inputs = self._spans_in(batch)
        device.send(slot.upload.staging, inputs.packed, slot.x, timers.begin, timers.arrived)
        with self._submitting:
            device.compute.wait_event(timers.arrived)
            weights = self._resident.layers[batch.layer]
            slot.compute(self._gate_up, weights, batch.output, tokens, timers)
            slot.done.record(device.compute)
        # While it computes.
        outputs = self._spans_out(batch, width)
        host_s = device.receive(
            slot.download.staging,
            slot.result(batch.output, tokens),
            outputs.packed,
            slot.done,
            timers.end,
        )
        return timers.read(batch.output), host_s + convert_outputs(outputs, width)

    def _spans_in(self, batch: Batch) -> Spans:
        spec = self.model
        return input_spans(batch.segments, spec.dtype, spec.hidden_size, self._memory.allocate)

    def _spans_out(self, batch: Batch, width: int) -> Spans:
        return output_spans(batch.segments, self.model.dtype, width, self._memory.allocate)

    def _report(self, output: Output, tokens: int, seconds: Seconds, host_s: float) -> BatchReport:
        chosen = self._gate_up.choose(tokens)
        kernels: tuple[tuple[str, float], ...] = ((chosen.family, seconds.gate_up),)
        if output is Output.MLP:
            kernels = (*kernels, (DOWN, seconds.down))
        return BatchReport(
            kernel=chosen.name,
            kernels=kernels,
            stages={
                "h2d": seconds.h2d,
                "compute": seconds.compute,
                "d2h": seconds.d2h + host_s,
            },
            busy_s=seconds.compute,
        )

    def _run_row(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """The whole MLP of one FP32 row, on the path of every batch."""
        answer = bytearray(x.numel() * x.itemsize)
        data = memoryview(bytearray(x.numpy().tobytes()))
        segment = Segment(1, data, DType.FP32, memoryview(answer), DType.FP32)
        self.run(Batch(layer, Output.MLP, [segment]))
        return torch.frombuffer(answer, dtype=torch.float32).view(1, -1)
