"""The way of one batch through a slot: to the device, through the kernels, and back."""

from __future__ import annotations

from service.engine.base import Batch, BatchReport, Output
from service.engine.cuda_device import CudaDevice
from service.engine.device_spans import DeviceSpans, arrange
from service.engine.gate_up import GateUp
from service.engine.host_memory import HostMemory
from service.engine.slot import Product, Products, Seconds, Slot
from service.engine.spans import Spans, convert_outputs, input_spans, output_spans
from service.engine.weights import ResidentModel

DOWN = "down"


class Passage:
    """What batches of one model pass through; each with a slot that is its own meanwhile.

    Attributes:
        products: What computes.
    """

    def __init__(
        self,
        device: CudaDevice,
        model: ResidentModel,
        gate_up: GateUp,
        down: Product,
        memory: HostMemory,
    ) -> None:
        self.products = Products(gate_up, down)
        self._device = device
        self._resident = model
        self._gate_up = gate_up
        self._memory = memory
        self._device_spans = DeviceSpans(device, model.spec.dtype, memory.allocate)

    def start_small(self, slot: Slot, batch: Batch, bucket: int) -> Spans:
        """Launch the graph of a bucket.

        Args:
            slot: Has the graph.
            batch: Of at most `bucket` rows.
            bucket: Rows of the graph.

        Returns:
            Where the answers go.
        """
        inputs, outputs = self._spans_in(batch), self._spans_out(batch)
        self._device.gather(inputs.packed, slot.upload.first)
        with self._device.turn:
            slot.graphs[batch.layer, batch.output, bucket]()
            self._device.record(slot.graph_timers.end)
        return outputs

    def finish_small(self, slot: Slot, batch: Batch, outputs: Spans) -> float:
        """Wait for the graph, and fill the answers; seconds of host time that it took."""
        end = slot.graph_timers.end
        host_s = self._device.scatter(slot.download.first, outputs.packed, end)
        return host_s + convert_outputs(outputs, self._width(batch))

    def report_small(self, slot: Slot, output: Output, bucket: int, host_s: float) -> BatchReport:
        """What the graph took."""
        return self._report(output, bucket, slot.graph_timers.read(output), host_s)

    def kernel(self, tokens: int) -> str:
        """What a client sees of a batch."""
        return self._gate_up.choose(tokens).name

    def run_trip(self, slot: Slot, batch: Batch, bucket: int) -> BatchReport:
        """The whole way in one call.

        Args:
            slot: Has the trip.
            batch: Of at most `bucket` rows.
            bucket: Rows that are computed.
        """
        inputs, outputs = self._spans_in(batch), self._spans_out(batch)
        trip = slot.trips[batch.layer, batch.output, bucket]
        host_s = self._device.run_trip(trip, inputs.packed, outputs.packed)
        host_s += convert_outputs(outputs, self._width(batch))
        return self._report(batch.output, bucket, slot.trip_timers.read(batch.output), host_s)

    def run_large(self, slot: Slot, batch: Batch, tokens: int) -> BatchReport:
        """Enqueue call by call on three streams, at the exact size, and wait for the answers."""
        device, timers = self._device, slot.timers
        inputs = self._spans_in(batch)
        device.send(slot.upload.staging, inputs.packed, slot.x, timers.begin, timers.arrived)
        self._compute(slot, batch, tokens)
        # While it computes.
        outputs = self._spans_out(batch)
        host_s = device.receive(
            slot.download.staging,
            slot.result(batch.output, tokens),
            outputs.packed,
            slot.done,
            timers.end,
        )
        host_s += convert_outputs(outputs, self._width(batch))
        return self._report(batch.output, tokens, timers.read(batch.output), host_s)

    def run_on_device(self, slot: Slot, batch: Batch, tokens: int) -> BatchReport:
        """The same for a batch of any size, some of whose rows are on the device."""
        placed = arrange(batch.segments)
        kept = self._device_spans.send(slot, placed)
        self._compute(slot, batch, tokens)
        host_s = self._device_spans.receive(slot, placed, slot.result(batch.output, tokens))
        del kept
        return self._report(batch.output, tokens, slot.timers.read(batch.output), host_s)

    def _compute(self, slot: Slot, batch: Batch, tokens: int) -> None:
        """Enqueue the kernels behind the rows' arrival."""
        # Together on the kernels' stream, so that its timers are its own.
        with self._device.turn:
            self._device.compute.wait_event(slot.timers.arrived)
            weights = self._resident.layers[batch.layer]
            slot.compute(self.products, weights, batch.output, tokens, slot.timers)
            self._device.record(slot.done)

    def _width(self, batch: Batch) -> int:
        return self._resident.spec.width(batch.output)

    def _spans_in(self, batch: Batch) -> Spans:
        spec = self._resident.spec
        return input_spans(batch.segments, spec.dtype, spec.hidden_size, self._memory.allocate)

    def _spans_out(self, batch: Batch) -> Spans:
        dtype = self._resident.spec.dtype
        return output_spans(batch.segments, dtype, self._width(batch), self._memory.allocate)

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
                "compute": seconds.busy,
                "d2h": seconds.d2h + host_s,
            },
            busy_s=seconds.busy,
        )
