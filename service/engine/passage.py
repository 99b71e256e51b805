"""The way of one batch through a slot: to the device, through the kernels, and back."""

from __future__ import annotations

from collections.abc import Sequence

from service.engine.base import Batch, BatchReport, Output
from service.engine.cuda_device import CudaDevice
from service.engine.device_spans import DeviceSpans, arrange
from service.engine.gate_up import GateUp
from service.engine.host_memory import HostMemory
from service.engine.slot import Product, Products, Seconds, Slot
from service.engine.spans import Spans, convert_outputs, input_spans, output_spans
from service.engine.weights import ResidentModel
from service.kernels.runner import Runner
from service.kernels.transfer import Trip

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

    def launch(self, trip: Trip, batch: Batch) -> Spans:
        """Launch a small batch.

        Returns:
            Where the answers go.
        """
        inputs, outputs = self._spans_in(batch), self._spans_out(batch)
        self._device.begin_trip(trip, inputs.packed)
        return outputs

    def finish(self, trip: Trip, batch: Batch, outputs: Spans) -> float:
        """Wait for it, and fill the answers; seconds of host time that it took."""
        host_s = self._device.end_trip(trip, outputs.packed)
        return host_s + convert_outputs(outputs, self._width(batch))

    def kernel(self, tokens: int) -> str:
        """What a client sees of a batch."""
        return self._gate_up.choose(tokens).name

    def run_trip(self, trip: Trip, batch: Batch, size: int) -> BatchReport:
        """The whole way in one call.

        Args:
            trip: Of a slot.
            batch: Of at most `size` rows.
            size: Rows that are computed.
        """
        inputs, outputs = self._spans_in(batch), self._spans_out(batch)
        host_s = self._device.run_trip(trip, inputs.packed, outputs.packed)
        host_s += convert_outputs(outputs, self._width(batch))
        return self.read_report(trip, batch.output, size, host_s)

    def start_trip(
        self, runner: Runner, ticket: int, trip: Trip, batch: Batch, keep: object
    ) -> None:
        """Have a thread of the library's go the whole way, with rows of the resident type.

        Args:
            runner: Whose thread.
            ticket: As in `Runner.start`.
            trip: Of a slot.
            batch: As in `run_trip`.
            keep: Owns the slot and the batch.
        """
        inputs, outputs = self._spans_in(batch), self._spans_out(batch)
        runner.start(ticket, trip, inputs.packed, outputs.packed, keep)

    def read_report(self, trip: Trip, output: Output, size: int, host_s: float) -> BatchReport:
        """What a trip took that is over."""
        return self.report(output, size, self._device.read_laps(trip.laps), host_s)

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
        laps_s = device.read_laps(slot.laps[batch.output])
        return self.report(batch.output, tokens, laps_s, host_s)

    def run_on_device(self, slot: Slot, batch: Batch, tokens: int) -> BatchReport:
        """The same for a batch of any size, some of whose rows are on the device."""
        placed = arrange(batch.segments)
        kept = self._device_spans.send(slot, placed)
        self._compute(slot, batch, tokens)
        host_s = self._device_spans.receive(slot, placed, slot.result(batch.output, tokens))
        del kept
        laps_s = self._device.read_laps(slot.laps[batch.output])
        return self.report(batch.output, tokens, laps_s, host_s)

    def report(
        self, output: Output, tokens: int, laps_s: Sequence[float], host_s: float
    ) -> BatchReport:
        """What a batch took.

        Args:
            output: Of the batch.
            tokens: Rows that were computed.
            laps_s: Of `Timers.laps`.
            host_s: Seconds of host time after the last copy.
        """
        seconds = Seconds.of(output, laps_s)
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
